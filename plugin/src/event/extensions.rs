//! The extension attributes of an event, in the order they were set.

use super::Value;
use crate::text::Text;

/// Names and values, no name twice. Those of nearly every event lie in the event itself.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    /// Filled from the front.
    near: [Option<Extension>; NEAR],
    /// How many of them are filled.
    count: usize,
    /// What has no room there.
    far: Vec<Extension>,
    /// One bit for each name, shared by several: most names that are looked up are not there.
    names: u64,
}

type Extension = (Text, Value);

/// Room for the extensions of nearly every mapped and routed event.
const NEAR: usize = 12;

impl Extensions {
    /// Adds one whose name is not there yet.
    ///
    /// Inlined, so that it is made where it lies: what is written in pieces and then moved as a whole makes the
    /// processor wait.
    #[inline(always)]
    pub(crate) fn push(&mut self, name: Text, value: Value) {
        self.names |= bit(&name);
        match self.near.get_mut(self.count) {
            Some(free) if free.is_none() => {
                *free = Some((name, value));
                self.count += 1;
            }
            _ => self.far.push((name, value)),
        }
    }

    /// Takes the one of this name away.
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
            self.far.retain(|(known, _)| known != name);
            return;
        };
        let later = self.near.get_mut(at..).unwrap_or_default();
        later.rotate_left(1);
        if let Some(last) = later.last_mut() {
            *last = None;
        }
        self.count -= 1;
        if !self.far.is_empty() {
            let (name, value) = self.far.remove(0);
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
        let mut all = self.near.iter_mut().flatten().chain(&mut self.far);
        all.find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Extension> {
        self.near.iter().flatten().chain(&self.far)
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
