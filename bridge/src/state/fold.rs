//! The function that turns records into entries.

use super::log::Record;

/// Computes the state of a log from its records: one entry per key.
///
/// A fold must be pure: it may read only the entry and the record, no clock and no random numbers. Every replica
/// applies the same records of a key in the same order, and all must reach the same entry. An entry depends only on the
/// records of its own key, so the order of other records does not matter.
pub trait Fold: Send + Sync + 'static {
    /// The state of one key.
    type Entry: Send + Sync + 'static;

    /// Applies a record to the entry of its key; `None` means no entry, before or after. It never fails: a record that
    /// cannot be read is [`Applied::Unknown`] and changes nothing. A record that was applied before (the same origin),
    /// or that comes too late (a cancel after the end), is [`Applied::Unchanged`].
    ///
    /// In a log of the kind `latest`, a record without a body removes the entry without asking the fold.
    fn apply(&self, entry: &mut Option<Self::Entry>, record: &Record) -> Applied;

    /// The approximate size of an entry in memory, in bytes.
    fn size_bytes(&self, entry: &Self::Entry) -> usize;

    /// Whether the entry may be removed when memory is needed. The entries that ended first are removed first. As long
    /// as the key is kept, later records of it change nothing.
    fn has_ended(&self, _entry: &Self::Entry) -> bool {
        false
    }

    /// Whether an ended entry may be removed together with its key, because later records of the key do no harm. All
    /// other keys are kept, and take memory.
    fn forgets_key(&self, _entry: &Self::Entry) -> bool {
        false
    }

    /// Whether an ended entry only serves to recognise copies of its record. If there are many such entries, they are
    /// removed before all others.
    fn is_passing(&self, _entry: &Self::Entry) -> bool {
        false
    }

    /// The groups of the entry, for finding related entries: the context of a task.
    fn groups<'a>(&self, _entry: &'a Self::Entry) -> Groups<&'a str> {
        Groups::default()
    }
}

/// The groups of an entry.
pub type Groups<T> = [Option<T>; 2];

/// What a record did to its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It changed the entry, so followers receive it.
    Changed,
    /// It was understood and changed nothing.
    Unchanged,
    /// It was not understood; it is counted.
    Unknown,
}
