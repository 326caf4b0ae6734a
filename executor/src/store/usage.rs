//! How much an agent stores in one storage, and its limits.
//!
//! An overwritten value counts once. The number of values is limited too, because a small value costs far more than its
//! bytes. Source: docs/protocols/a2e-workflows.md §7, file store.

use crate::environment::StoreError;

/// The largest value, as compact JSON.
pub(super) const MAX_VALUE_BYTES: usize = 10 << 20;
/// The maximum total size of an agent's values in one storage.
pub(super) const MAX_AGENT_BYTES: u64 = 100 << 20;
/// The maximum number of an agent's values in one storage; for files, directories count too.
pub(super) const MAX_AGENT_ENTRIES: u64 = 10_000;

/// The usage of one agent in one storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Why a value is not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StorageError {
    #[error("as JSON it has more than {} MiB", MAX_VALUE_BYTES >> 20)]
    ValueTooLarge,
    #[error("the agent would have more than {} MiB there", MAX_AGENT_BYTES >> 20)]
    TooManyBytes,
    #[error("the agent would have more than {MAX_AGENT_ENTRIES} entries there")]
    TooManyEntries,
    #[error("the operator has not configured it")]
    NotConfigured,
    #[error("the key is not a valid name there")]
    BadKey,
    #[error("{0}")]
    Failed(#[source] StoreError),
}

// === impl Usage ===

impl Usage {
    /// The usage after storing a value of this size, which replaces another or is new.
    pub(super) fn replace(self, old: Option<u64>, new: u64) -> Result<Self, StorageError> {
        let next = Self {
            bytes: self.bytes.saturating_sub(old.unwrap_or(0)) + new,
            entries: self.entries + u64::from(old.is_none()),
        };
        // An agent above a limit that was lowered may still replace a value by a smaller one.
        if next.bytes > MAX_AGENT_BYTES && next.bytes > self.bytes {
            return Err(StorageError::TooManyBytes);
        }
        if next.entries > MAX_AGENT_ENTRIES && old.is_none() {
            return Err(StorageError::TooManyEntries);
        }
        Ok(next)
    }

    /// The usage after removing a value of this size.
    pub(super) fn remove(&mut self, old: u64) {
        self.bytes = self.bytes.saturating_sub(old);
        self.entries = self.entries.saturating_sub(1);
    }
}

// === impl StorageError ===

impl StorageError {
    /// The name of the exceeded limit, and its value.
    pub(super) fn limit(&self) -> Option<(&'static str, usize)> {
        match self {
            Self::ValueTooLarge => Some(("value_bytes", MAX_VALUE_BYTES)),
            Self::TooManyBytes => Some(("agent_bytes", MAX_AGENT_BYTES as usize)),
            Self::TooManyEntries => Some(("agent_entries", MAX_AGENT_ENTRIES as usize)),
            Self::NotConfigured | Self::BadKey | Self::Failed(_) => None,
        }
    }
}

impl From<StoreError> for StorageError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_byte_and_the_last_entry_still_fit() {
        let usage = Usage {
            bytes: MAX_AGENT_BYTES - 10,
            entries: MAX_AGENT_ENTRIES - 1,
        };
        let full = usage.replace(None, 10).unwrap();
        assert_eq!(
            (full.bytes, full.entries),
            (MAX_AGENT_BYTES, MAX_AGENT_ENTRIES)
        );
        assert!(matches!(
            usage.replace(None, 11),
            Err(StorageError::TooManyBytes)
        ));
        assert!(matches!(
            usage.replace(Some(5), 16),
            Err(StorageError::TooManyBytes)
        ));
        assert!(matches!(
            full.replace(None, 0),
            Err(StorageError::TooManyEntries)
        ));
        assert_eq!(full.replace(Some(7), 7).unwrap(), full);
        assert_eq!(full.replace(Some(7), 0).unwrap().bytes, MAX_AGENT_BYTES - 7);
    }

    proptest! {
        #[test]
        fn usage_is_the_sum_of_the_stored_values(writes in prop::collection::vec((0_u8..20, 0_u64..(30 << 20)), 0..200)) {
            let mut values: HashMap<u8, u64> = HashMap::new();
            let mut usage = Usage::default();
            for (key, new) in writes {
                let others: u64 = values.iter().filter(|(k, _)| **k != key).map(|(_, v)| v).sum();
                match usage.replace(values.get(&key).copied(), new) {
                    Ok(next) => {
                        usage = next;
                        values.insert(key, new);
                        prop_assert!(others + new <= MAX_AGENT_BYTES);
                    }
                    Err(_) => prop_assert!(others + new > MAX_AGENT_BYTES),
                }
                prop_assert_eq!(usage.bytes, values.values().sum::<u64>());
                prop_assert_eq!(usage.entries, values.len() as u64);
            }
        }
    }
}
