//! What turns records into entries.

use super::log::Record;

/// How the records of a log make a state: one entry per key.
///
/// A pure function. It must not look at the clock, at random numbers, or at anything else but the entry and the record:
/// every replica calls it with the same records of a key in the same order, and all have to come to the same entry. Since
/// an entry depends on the records of its own key alone, the order of other records makes no difference.
pub trait Fold: Send + Sync + 'static {
    /// What is kept for one key.
    type Entry: Send + Sync + 'static;

    /// Applies a record to the entry of its key; `None` is no entry, before and after. Total: a record that cannot be read
    /// is [`Applied::Unknown`] and changes nothing. One that was applied before (the same origin), or that is not
    /// allowed any more (a cancel after the end), is [`Applied::Unchanged`].
    ///
    /// In a log of the kind `latest`, a record without a body removes the entry without asking the fold.
    fn apply(&self, entry: &mut Option<Self::Entry>, record: &Record) -> Applied;

    /// What an entry takes in memory, in bytes, about.
    fn size_bytes(&self, entry: &Self::Entry) -> usize;

    /// Whether nothing can change this entry any more. Such entries are forgotten when room is needed, the first that
    /// ended first; later records of their keys change nothing.
    fn has_ended(&self, _entry: &Self::Entry) -> bool {
        false
    }

    /// A name under which the entry can be found with others: the context of a task.
    fn group<'a>(&self, _entry: &'a Self::Entry) -> Option<&'a str> {
        None
    }
}

/// What a record did to its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It changed the entry: followers get it.
    Changed,
    /// It was understood and changed nothing.
    Unchanged,
    /// It was not understood. It is counted.
    Unknown,
}
