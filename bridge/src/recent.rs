//! What happened lately, as far as a bounded memory goes.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The last so many keys and what is known of each; the oldest is forgotten first.
#[derive(Debug)]
pub(crate) struct Recent<K, V = ()> {
    known: HashMap<K, V>,
    order: VecDeque<K>,
    most: usize,
}

// === impl Recent ===

impl<K: Eq + Hash + Clone, V> Recent<K, V> {
    /// Remembers `most` keys.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            order: VecDeque::new(),
            most,
        }
    }

    /// Remembers a key. One that is known keeps its place in the order.
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

    /// What is known of a key.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.known.get(key)
    }

    /// Whether the key is known.
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
    fn the_oldest_is_forgotten_first() {
        let mut recent = Recent::new(2);
        for (key, value) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            recent.insert(key, value);
        }
        assert_eq!((recent.get("a"), recent.get("b")), (None, Some(&2)));
        assert!(recent.contains("c"));
        assert_eq!(recent.order.len(), recent.known.len());
    }
}
