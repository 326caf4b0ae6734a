//! The extension attributes of an event, in the order in which they were set.

use super::value::Value;
use crate::text::Text;

/// Names and values, without duplicate names. Stored inline for nearly every event.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    /// Filled from the front.
    near: [Option<Extension>; INLINE],
    /// How many of them are filled.
    count: usize,
    /// The extensions beyond the inline ones.
    overflow: Vec<Extension>,
    /// A Bloom filter of the names, because most names that are looked up are absent.
    names: u64,
}

type Extension = (Text, Value);

/// Enough for nearly every mapped and routed event.
const INLINE: usize = 12;

impl Extensions {
    /// Adds an extension whose name is not present yet.
    ///
    /// Inlined, so that the value is built in place: writing its fields and then moving it as a whole stalls the
    /// processor.
    #[inline(always)]
    pub(crate) fn push(&mut self, name: Text, value: Value) {
        self.names |= bit(&name);
        match self.near.get_mut(self.count) {
            Some(free) if free.is_none() => {
                *free = Some((name, value));
                self.count += 1;
            }
            _ => self.overflow.push((name, value)),
        }
    }

    /// Removes the extension of this name.
    pub(crate) fn remove(&mut self, name: &str) {
        if self.names & bit(name) == 0 {
            return;
        }
        self.take(name);
        self.names = self.iter().fold(0, |names, (name, _)| names | bit(name));
    }

    fn take(&mut self, name: &str) {
        let Some(at) = self
            .near
            .iter()
            .flatten()
            .position(|(known, _)| known == name)
        else {
            self.overflow.retain(|(known, _)| known != name);
            return;
        };
        let later = self.near.get_mut(at..).unwrap_or_default();
        later.rotate_left(1);
        if let Some(last) = later.last_mut() {
            *last = None;
        }
        self.count -= 1;
        if !self.overflow.is_empty() {
            let (name, value) = self.overflow.remove(0);
            self.push(name, value);
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        if self.names & bit(name) == 0 {
            return None;
        }
        let mut all = self.iter();
        all.find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        if self.names & bit(name) == 0 {
            return None;
        }
        let mut all = self.near.iter_mut().flatten().chain(&mut self.overflow);
        all.find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Extension> {
        self.near.iter().flatten().chain(&self.overflow)
    }
}

/// The bit of a name in [`Extensions::names`].
fn bit(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return 1;
    };
    let mixed = usize::from(*first) * 7 + usize::from(*last) * 3 + bytes.len();
    1 << (mixed % 64)
}
