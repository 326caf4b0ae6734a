//! localStorage: values of agents in a [`Store`].

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::usage::{StorageError, Usage};
use crate::environment::{Change, Clock, Store, StoreDelayed, StoreError, Table};

/// Values by agent and key. The usage of an agent is stored beside its values, in the same write.
pub(super) struct Local {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    accounts: std::sync::Mutex<HashMap<String, Account>>,
}

/// The usage of one agent; `None` while it is unknown. One write at a time.
type Account = Arc<tokio::sync::Mutex<Option<Usage>>>;

/// The exclusive right to change the values of an agent.
type Turn = tokio::sync::OwnedMutexGuard<Option<Usage>>;

/// How long a change waits for earlier ones of its agent.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Whether a value can have this key.
fn is_key(key: &str) -> bool {
    !key.is_empty() && !key.contains('\0')
}

/// The key of a value. Keys contain no control characters and are not empty, so they cannot collide with keys of other
/// agents or with usage entries.
fn key_of(agent: &str, key: &str) -> String {
    format!("{agent}\0{key}")
}

fn account_key(agent: &str) -> String {
    key_of(agent, "")
}

// === impl Local ===

impl Local {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            accounts: std::sync::Mutex::default(),
        }
    }

    /// # Cancel safety
    /// The future may be dropped; the value may then have been stored or not.
    pub(super) async fn keep(
        &self,
        agent: &str,
        key: &str,
        text: Bytes,
    ) -> Result<(), StorageError> {
        if !is_key(key) {
            return Err(StorageError::BadKey);
        }
        let mut account = self.turn(agent).await?;
        let usage = self.usage(agent, *account).await?;
        let key = key_of(agent, key);
        let old = self.store.get(Table::Local, &key).await?;
        let next = usage.replace(old.map(|old| old.len() as u64), text.len() as u64)?;
        // Unknown while the write is in progress, because this future may be dropped there.
        *account = None;
        let result = self.change(agent, key, Some(text), next).await;
        *account = Some(if result.is_ok() { next } else { usage });
        Ok(result?)
    }

    pub(super) async fn get(&self, agent: &str, key: &str) -> Result<Option<Bytes>, StoreError> {
        if !is_key(key) {
            return Ok(None);
        }
        self.store.get(Table::Local, &key_of(agent, key)).await
    }

    /// The keys of an agent in order, each with the size of its value.
    pub(super) async fn list(&self, agent: &str) -> Result<Vec<(String, usize)>, StoreError> {
        // The values are read too, each of up to ten mebibytes.
        const BATCH: usize = 8;
        let prefix = key_of(agent, "");
        let mut keys = Vec::new();
        let mut after = prefix.clone();
        loop {
            let page = self.store.scan(Table::Local, &prefix, &after, BATCH);
            let page = page.await?;
            let Some((last, _)) = page.last() else {
                return Ok(keys);
            };
            after.clone_from(last);
            let key = |(key, value): &(String, Bytes)| {
                let key = key.strip_prefix(&prefix).filter(|key| !key.is_empty())?;
                Some((key.to_owned(), value.len()))
            };
            keys.extend(page.iter().filter_map(key));
        }
    }

    /// Removes a value. Returns whether there was one.
    ///
    /// # Cancel safety
    /// The future may be dropped; the value may then have been removed or not.
    pub(super) async fn remove(&self, agent: &str, key: &str) -> Result<bool, StoreError> {
        if !is_key(key) {
            return Ok(false);
        }
        let mut account = self.turn(agent).await?;
        let usage = self.usage(agent, *account).await?;
        let key = key_of(agent, key);
        let Some(old) = self.store.get(Table::Local, &key).await? else {
            return Ok(false);
        };
        let mut next = usage;
        next.remove(old.len() as u64);
        *account = None;
        let removed = self.change(agent, key, None, next).await;
        *account = Some(if removed.is_ok() { next } else { usage });
        removed.map(|()| true)
    }

    /// Waits for the turn to change the values of an agent.
    async fn turn(&self, agent: &str) -> Result<Turn, StoreError> {
        let account = self.account(agent);
        // The clock of a test may jump ahead, so it is asked only if there is something to wait for.
        if let Ok(turn) = Arc::clone(&account).try_lock_owned() {
            return Ok(turn);
        }
        tokio::select! {
            biased;
            turn = account.lock_owned() => Ok(turn),
            () = self.clock.sleep(MAX_WAIT) => {
                let cause = "earlier values of the agent are still being stored";
                Err(StoreError(StoreDelayed(cause.into()).into()))
            }
        }
    }

    fn account(&self, agent: &str) -> Account {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        match accounts.get(agent) {
            Some(account) => Arc::clone(account),
            None => Arc::clone(accounts.entry(agent.to_owned()).or_default()),
        }
    }

    /// Sets or removes the value of a key, and sets the usage of its agent.
    async fn change(
        &self,
        agent: &str,
        key: String,
        value: Option<Bytes>,
        usage: Usage,
    ) -> Result<(), StoreError> {
        let change = |key, value| Change {
            table: Table::Local,
            key,
            value,
        };
        let changes = vec![
            change(key, value),
            change(account_key(agent), Some(account_text(usage))),
        ];
        self.store.write(changes).await
    }

    /// The usage of an agent: the known one, unless another process may have changed it.
    async fn usage(&self, agent: &str, known: Option<Usage>) -> Result<Usage, StoreError> {
        match known {
            Some(usage) if !self.store.is_shared() => Ok(usage),
            _ => self.read_account(agent).await,
        }
    }

    async fn read_account(&self, agent: &str) -> Result<Usage, StoreError> {
        // A write whose future was dropped may still be in progress; this one waits for it.
        self.store.write(Vec::new()).await?;
        let Some(text) = self.store.get(Table::Local, &account_key(agent)).await? else {
            return Ok(Usage::default());
        };
        let account = crate::parse(&text).map_err(|error| StoreError(error.into()))?;
        let aggregation = |name| account.get(name)?.as_number()?.as_u64();
        match (aggregation("bytes"), aggregation("entries")) {
            (Some(bytes), Some(entries)) => Ok(Usage { bytes, entries }),
            _ => Err(StoreError("the account of an agent is damaged".into())),
        }
    }
}

fn account_text(usage: Usage) -> Bytes {
    format!(r#"{{"bytes":{},"entries":{}}}"#, usage.bytes, usage.entries).into()
}
