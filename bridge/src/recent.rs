//! A bounded memory of recent events.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A map of the most recent keys. The oldest is removed first.
#[derive(Debug)]
pub(crate) struct Recent<K, V = ()> {
    known: HashMap<K, V>,
    order: VecDeque<K>,
    most: usize,
}

// === impl Recent ===

impl<K: Eq + Hash + Clone, V> Recent<K, V> {
    /// A map of at most `most` keys.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            order: VecDeque::new(),
            most,
        }
    }

    /// Inserts a key. An existing key keeps its age.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.known.insert(key.clone(), value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// The value of a key.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.known.get(key)
    }

    /// The value of a key, to change it.
    pub(crate) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.known.get_mut(key)
    }

    /// Whether the map contains the key.
    pub(crate) fn contains<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.known.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_is_removed_first() {
        let mut recent = Recent::new(2);
        for (key, value) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            recent.insert(key, value);
        }
        assert_eq!((recent.get("a"), recent.get("b")), (None, Some(&2)));
        assert!(recent.contains("c"));
        assert_eq!(recent.order.len(), recent.known.len());
    }
}
