//! StoreData: where values are stored, and how much an agent may store.
//!
//! ```text
//! StoreData ── localStorage ───> Local ────> Store (memory, redb)   durable, per agent
//!           ── sessionStorage ─> Sessions                           in memory, per agent and session
//!           ── file ───────────> FileStore                          <root>/<agent>/<key>
//! ```
//!
//! All storages have the same limits per agent, see [`usage`]. Source: docs/protocols/a2e-workflows.md §4 and §7.

mod error;
mod file;
mod local;
mod memory;
#[cfg(feature = "redb")]
mod redb;
mod session;
#[cfg(test)]
mod testing;
mod usage;

use std::sync::Arc;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::operation::{Storage, StoreData};
use a2abus_plugin::Text;
use bytes::Bytes;

use crate::environment::{Clock, Store, StoreError};
use crate::failure::{Failure, FailureCode};
use crate::value::write_within;
use local::Local;
use session::Sessions;
use usage::{MAX_VALUE_BYTES, StorageError};

pub use error::OpenError;
pub use file::FileStore;
pub use memory::MemoryStore;
#[cfg(feature = "redb")]
pub use redb::{RedbStore, open_database};

/// The storages that StoreData writes to.
pub(crate) struct Storages {
    local: Local,
    files: Option<FileStore>,
    sessions: Sessions,
}

/// A value that StoreData has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredValue {
    /// The session it belongs to, in `sessionStorage`.
    pub session: Option<Text>,
    /// Its key.
    pub key: Text,
    /// The bytes of its JSON text.
    pub bytes: usize,
}

/// Stores a value, and returns the result of the operation.
///
/// # Cancel safety
/// The future may be dropped; the value may then have been stored or not.
pub(crate) async fn store(
    operation: &StoreData,
    value: Json,
    storages: &Storages,
    agent: &str,
    session: &str,
) -> Result<Json, Failure> {
    let StoreData { storage, key, .. } = operation;
    let text = write_within(&value, MAX_VALUE_BYTES).ok_or(StorageError::ValueTooLarge);
    // From here on only the text is needed.
    drop(value);
    let stored = match text {
        Ok(text) => {
            let bytes = text.len();
            let result = storages.keep(agent, session, *storage, key, text).await;
            result.map(|()| bytes)
        }
        Err(error) => Err(error),
    };
    let bytes = stored.map_err(|error| failure(&error, *storage, key))?;
    Ok(Json::object([
        ("stored", Json::Bool(true)),
        ("storage", storage.as_str().into()),
        ("key", key.clone().into()),
        ("bytes", bytes.into()),
    ]))
}

fn failure(error: &StorageError, storage: Storage, key: &str) -> Failure {
    let storage = storage.as_str();
    if let StorageError::Failed(error) = error {
        // The agent does not learn the cause, because it may name a file of the host.
        tracing::error!(storage, error = error.to_string(), cause = ?error.0, "a value could not be stored");
    }
    let message = format!("{storage} did not store the value: {error}");
    let failure = Failure::new(FailureCode::StorageFailed, message)
        .with("storage", storage)
        .with("key", key);
    match error.limit() {
        Some((limit, max)) => failure.with("limit", limit).with("max", max),
        None => failure,
    }
}

// === impl Storages ===

impl Storages {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        files: Option<FileStore>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            local: Local::new(store, Arc::clone(&clock)),
            files,
            sessions: Sessions::new(clock),
        }
    }

    async fn keep(
        &self,
        agent: &str,
        session: &str,
        storage: Storage,
        key: &str,
        text: Bytes,
    ) -> Result<(), StorageError> {
        match (storage, &self.files) {
            (Storage::Local, _) => self.local.keep(agent, key, text).await,
            (Storage::Session, _) => self.sessions.keep(agent, session, key, text),
            (Storage::File, Some(files)) => files.keep(agent, key, text).await,
            (Storage::File, None) => Err(StorageError::NotConfigured),
        }
    }

    /// The values that an agent has in a storage, by session and key. Files are not listed; the operator has their
    /// directory.
    pub(crate) async fn list(
        &self,
        agent: &str,
        storage: Storage,
    ) -> Result<Vec<StoredValue>, StoreError> {
        let value = |session: Option<String>, key: String, bytes| StoredValue {
            session: session.map(Text::from),
            key: key.into(),
            bytes,
        };
        Ok(match storage {
            Storage::Local => {
                let values = self.local.list(agent).await?.into_iter();
                values.map(|(key, bytes)| value(None, key, bytes)).collect()
            }
            Storage::Session => {
                let values = self.sessions.list(agent).into_iter();
                let value = |(session, key, bytes)| value(Some(session), key, bytes);
                values.map(value).collect()
            }
            Storage::File => Vec::new(),
        })
    }

    /// Removes a value. Returns whether there was one. Files are not removed.
    pub(crate) async fn remove(
        &self,
        agent: &str,
        session: &str,
        storage: Storage,
        key: &str,
    ) -> Result<bool, StoreError> {
        match storage {
            Storage::Local => self.local.remove(agent, key).await,
            Storage::Session => Ok(self.sessions.remove(agent, session, key)),
            Storage::File => Ok(false),
        }
    }

    /// The value stored under a key; the session matters only for sessionStorage.
    pub(crate) async fn stored(
        &self,
        agent: &str,
        session: &str,
        storage: Storage,
        key: &str,
    ) -> Result<Option<Json>, StoreError> {
        let text = match (storage, &self.files) {
            (Storage::Local, _) => self.local.get(agent, key).await?,
            (Storage::Session, _) => self.sessions.get(agent, session, key),
            (Storage::File, Some(files)) => files.get(agent, key).await?,
            (Storage::File, None) => None,
        };
        text.map(|text| crate::parse(&text).map_err(|error| StoreError(error.into())))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::environment::{Change, Table};
    use crate::operation::testing::{operation, parse};
    use crate::store::testing::ManualClock;
    use a2abus_models::a2e_workflow::OperationKind;

    /// A store that fails on demand.
    struct Faulty {
        store: MemoryStore,
        fails: AtomicBool,
    }

    impl Faulty {
        fn check(&self) -> Result<(), StoreError> {
            if self.fails.load(Ordering::SeqCst) {
                return Err(StoreError("/host/secret.redb: disk on fire".into()));
            }
            Ok(())
        }
    }

    impl Store for Faulty {
        fn get<'a>(
            &'a self,
            table: Table,
            key: &'a str,
        ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
            self.store.get(table, key)
        }

        fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async move {
                self.check()?;
                self.store.write(changes).await
            })
        }

        fn scan<'a>(
            &'a self,
            table: Table,
            prefix: &'a str,
            after: &'a str,
            max: usize,
        ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
            self.store.scan(table, prefix, after, max)
        }
    }

    /// A store with a value under every key.
    struct Everywhere;

    impl Store for Everywhere {
        fn get<'a>(
            &'a self,
            _: Table,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
            Box::pin(async { Ok(Some(Bytes::from_static(b"1"))) })
        }

        fn write<'a>(&'a self, _: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async { Ok(()) })
        }

        fn scan<'a>(
            &'a self,
            _: Table,
            _: &'a str,
            _: &'a str,
            _: usize,
        ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    fn storages(store: Arc<dyn Store>, files: Option<FileStore>) -> Storages {
        Storages::new(store, files, Arc::new(ManualClock::default()))
    }

    async fn run(
        storages: &Storages,
        storage: &str,
        key: &str,
        value: Json,
    ) -> Result<Json, Failure> {
        let config =
            format!(r#"{{"inputPath":"/workflow/x","storage":"{storage}","key":"{key}"}}"#);
        let OperationKind::StoreData(operation) = operation("StoreData", &config) else {
            panic!("not a StoreData");
        };
        store(&operation, value, storages, "agent", "session").await
    }

    #[tokio::test]
    async fn a_value_is_stored_as_compact_json_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = FileStore::open(&directory.path().join("files")).unwrap();
        let storages = storages(Arc::new(MemoryStore::default()), Some(files));
        for (name, storage) in [
            ("localStorage", Storage::Local),
            ("sessionStorage", Storage::Session),
            ("file", Storage::File),
        ] {
            for (text, bytes) in [
                (r#"{"k":[1,2]}"#, 11),
                ("null", 4),
                (r#""é\n""#, 6),
                (r#"{ "a" : 1.50, "b":[ ] }"#, 16),
            ] {
                let value = parse(text);
                let made = run(&storages, name, "reports/1", value.clone())
                    .await
                    .unwrap();
                let expected = format!(
                    r#"{{"stored":true,"storage":"{name}","key":"reports/1","bytes":{bytes}}}"#
                );
                assert_eq!(made.to_string(), expected);
                let stored = |agent, session, key| storages.stored(agent, session, storage, key);
                assert_eq!(
                    stored("agent", "session", "reports/1").await.unwrap(),
                    Some(value)
                );
                assert_eq!(stored("other", "session", "reports/1").await.unwrap(), None);
                assert_eq!(
                    stored("agent", "session", "reports").await.unwrap_or(None),
                    None
                );
                let elsewhere = stored("agent", "other", "reports/1").await.unwrap();
                assert_eq!(elsewhere.is_some(), storage != Storage::Session, "{name}");
            }
        }
    }

    /// A value whose JSON has this length, and that is fast to write.
    fn value_of(bytes: usize) -> Json {
        crate::parse("1".repeat(bytes).as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn local_values_can_be_listed_and_removed() {
        let storages = storages(Arc::new(MemoryStore::default()), None);
        for n in 0..10 {
            let key = format!("k{n}");
            run(&storages, "localStorage", &key, value_of(MAX_VALUE_BYTES))
                .await
                .unwrap();
        }
        assert!(
            run(&storages, "localStorage", "x", Json::Null)
                .await
                .is_err()
        );
        let keys = |agent: &'static str| async {
            let values = storages.list(agent, Storage::Local).await.unwrap();
            values
                .into_iter()
                .map(|value| value.key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys("agent").await.len(), 10);
        assert_eq!(keys("agent").await[9], "k9");
        assert!(keys("agen").await.is_empty());
        let remove = |agent, key| storages.remove(agent, "", Storage::Local, key);
        assert!(!remove("other", "k3").await.unwrap());
        assert!(!remove("agent", "").await.unwrap());
        assert!(remove("agent", "k3").await.unwrap());
        assert!(!remove("agent", "k3").await.unwrap());
        run(&storages, "localStorage", "x", Json::Null)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn keys_of_usage_entries_are_no_keys_of_values() {
        let storages = storages(Arc::new(Everywhere), None);
        let stored = |key| storages.stored("agent", "", Storage::Local, key);
        for key in ["", "\0", "k\0", "a\0b"] {
            assert_eq!(stored(key).await.unwrap(), None, "{key:?}");
        }
        assert_eq!(stored("k").await.unwrap(), Some(Json::from(1_i64)));
    }

    #[tokio::test]
    async fn the_limits_apply_to_every_storage() {
        let directory = tempfile::tempdir().unwrap();
        let files = FileStore::open(directory.path()).unwrap();
        let storages = storages(Arc::new(MemoryStore::default()), Some(files));
        let limit = |made: Result<Json, Failure>| {
            let failure = made.unwrap_err();
            assert_eq!(failure.code, FailureCode::StorageFailed);
            let limit = failure.details.get("limit").unwrap();
            limit.as_str().unwrap().to_owned()
        };
        for storage in ["localStorage", "sessionStorage", "file"] {
            let too_large = value_of(MAX_VALUE_BYTES + 1);
            assert_eq!(
                limit(run(&storages, storage, "k", too_large).await),
                "value_bytes"
            );
            // Its JSON text is six times as long as the string.
            let escaped = "\u{1}".repeat(MAX_VALUE_BYTES / 6 + 1).into();
            assert_eq!(
                limit(run(&storages, storage, "k", escaped).await),
                "value_bytes"
            );
            for n in 0..10 {
                let key = n.to_string();
                run(&storages, storage, &key, value_of(MAX_VALUE_BYTES))
                    .await
                    .unwrap();
            }
            let one_more = || run(&storages, storage, "x", Json::from(1_i64));
            assert_eq!(limit(one_more().await), "agent_bytes");
            run(&storages, storage, "3", value_of(MAX_VALUE_BYTES))
                .await
                .unwrap();
            run(&storages, storage, "3", value_of(MAX_VALUE_BYTES - 1))
                .await
                .unwrap();
            one_more().await.unwrap();
            assert_eq!(
                limit(run(&storages, storage, "x", Json::from(12_i64)).await),
                "agent_bytes"
            );
        }
    }

    #[tokio::test]
    async fn the_usage_of_an_agent_is_counted_when_the_store_is_opened_again() {
        let store = Arc::new(MemoryStore::default());
        let first = storages(Arc::<MemoryStore>::clone(&store), None);
        for n in 0..10 {
            run(
                &first,
                "localStorage",
                &n.to_string(),
                value_of(MAX_VALUE_BYTES),
            )
            .await
            .unwrap();
        }
        let second = storages(store, None);
        assert!(run(&second, "localStorage", "x", Json::Null).await.is_err());
        run(&second, "localStorage", "4", Json::Null).await.unwrap();
        run(&second, "localStorage", "x", Json::Null).await.unwrap();
    }

    #[tokio::test]
    async fn concurrent_writes_are_counted_correctly() {
        let storages = storages(Arc::new(MemoryStore::default()), None);
        let value = value_of(MAX_VALUE_BYTES / 2);
        let keys: Vec<_> = (0..30).map(|n| n.to_string()).collect();
        let writes = keys
            .iter()
            .map(|key| run(&storages, "localStorage", key, value.clone()));
        let made = futures_util::future::join_all(writes).await;
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 20);
    }

    #[tokio::test]
    async fn a_store_failure_hides_its_cause_from_the_agent() {
        let store = Arc::new(Faulty {
            store: MemoryStore::default(),
            fails: AtomicBool::new(false),
        });
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("host-root");
        let files = FileStore::open(&root).unwrap();
        let storages = storages(Arc::<Faulty>::clone(&store), Some(files));
        run(&storages, "localStorage", "k", Json::from(1_i64))
            .await
            .unwrap();
        run(&storages, "file", "dir/k", Json::from(1_i64))
            .await
            .unwrap();
        store.fails.store(true, Ordering::SeqCst);
        for (storage, key) in [("localStorage", "k"), ("file", "dir"), ("file", "dir/k/x")] {
            let failure = run(&storages, storage, key, Json::from(2_i64))
                .await
                .unwrap_err();
            assert_eq!(failure.code, FailureCode::StorageFailed, "{storage} {key}");
            let shown = format!("{} {failure} {failure:?}", failure.to_value());
            let root = root.to_str().unwrap();
            for hidden in [root, "host", "disk on fire"] {
                assert!(!shown.contains(hidden), "{shown} names {hidden}");
            }
        }
        // It works again when the store does, and counts as before.
        store.fails.store(false, Ordering::SeqCst);
        let stored = storages
            .stored("agent", "", Storage::Local, "k")
            .await
            .unwrap();
        assert_eq!(stored, Some(Json::from(1_i64)));
        run(&storages, "localStorage", "k", Json::from(3_i64))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn file_storage_is_disabled_without_a_root() {
        let storages = storages(Arc::new(MemoryStore::default()), None);
        let failure = run(&storages, "file", "k", Json::Null).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::StorageFailed);
        assert_eq!(
            storages
                .stored("agent", "s", Storage::File, "k")
                .await
                .unwrap(),
            None
        );
    }
}
