//! A store in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::environment::{Change, Store, StoreError, StoreFull, Table};

/// A store that ends with the process, with a maximum size.
///
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use a2abus_executor::{Change, MemoryStore, Store, Table};
///
/// let store = MemoryStore::new(1 << 20);
/// let (table, key) = (Table::Local, "k".to_owned());
/// store.write(vec![Change { table, key, value: Some("v".into()) }]).await.unwrap();
/// assert_eq!(store.get(Table::Local, "k").await.unwrap().unwrap(), "v");
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    local: BTreeMap<String, Bytes>,
    executions: BTreeMap<String, Bytes>,
    summaries: BTreeMap<String, Bytes>,
    bytes: usize,
}

/// The overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 64;

fn entry_bytes(key: &str, value: &Bytes) -> usize {
    ENTRY_BYTES + key.len() + value.len()
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store for this many bytes of keys and values.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut state = self.lock();
        let before = state.bytes;
        // The reverse of each change.
        let mut undo = Vec::with_capacity(changes.len());
        for change in changes {
            undo.push(state.apply(change));
        }
        if state.bytes <= self.max_bytes || state.bytes <= before {
            return Ok(());
        }
        for change in undo.into_iter().rev() {
            state.apply(change);
        }
        let max_bytes = self.max_bytes;
        Err(StoreError(StoreFull { max_bytes }.into()))
    }
}

/// A store for 256 MiB.
impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl Store for MemoryStore {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let value = self.lock().table(table).get(key).cloned();
        ready(Ok(value)).boxed()
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.change(changes) }.boxed()
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        let mut state = self.lock();
        let from = if after < prefix {
            Bound::Included(prefix)
        } else {
            Bound::Excluded(after)
        };
        let found = state
            .table(table)
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(max)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        ready(Ok(found)).boxed()
    }
}

// === impl State ===

impl State {
    fn table(&mut self, table: Table) -> &mut BTreeMap<String, Bytes> {
        match table {
            Table::Local => &mut self.local,
            Table::Executions => &mut self.executions,
            Table::Summaries => &mut self.summaries,
        }
    }

    /// Makes a change and returns its reverse.
    fn apply(&mut self, change: Change) -> Change {
        let Change { table, key, value } = change;
        let added = value.as_ref().map_or(0, |value| entry_bytes(&key, value));
        let entries = self.table(table);
        let old = match value {
            Some(value) => entries.insert(key.clone(), value),
            None => entries.remove(&key),
        };
        let removed = old.as_ref().map_or(0, |old| entry_bytes(&key, old));
        self.bytes = self.bytes + added - removed;
        Change {
            table,
            key,
            value: old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{battery, put, remove};

    #[tokio::test]
    async fn it_passes_the_store_battery() {
        battery(&MemoryStore::default()).await;
    }

    #[tokio::test]
    async fn a_full_store_refuses_writes_and_keeps_its_values() {
        let store = MemoryStore::new(1000);
        let value = |bytes: usize| "x".repeat(bytes);
        put(&store, "a", &value(500)).await.unwrap();
        let both = vec![
            remove("a"),
            Change {
                table: Table::Local,
                key: "b".to_owned(),
                value: Some(value(1000).into()),
            },
        ];
        assert!(store.write(both).await.is_err());
        assert!(put(&store, "b", &value(500)).await.is_err());
        let all = store.scan(Table::Local, "", "", 10).await.unwrap();
        assert_eq!(all, [("a".to_owned(), value(500).into())]);
        // Overwriting or removing a value frees room.
        put(&store, "a", &value(1000 - ENTRY_BYTES - 1))
            .await
            .unwrap();
        assert!(put(&store, "a", &value(1000 - ENTRY_BYTES)).await.is_err());
        store.write(vec![remove("a")]).await.unwrap();
        put(&store, "b", &value(1000 - ENTRY_BYTES - 1))
            .await
            .unwrap();
    }
}
