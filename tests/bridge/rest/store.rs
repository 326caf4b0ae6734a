//! A store that fails on demand, and that can limit concurrent reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use a2abus_executor::{
    Change, Client, ClientOptions, Environment, MemoryStore, RecordForgotten, Store, StoreDelayed,
    StoreError, SystemClock, SystemRandom, Table,
};
use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

pub(super) struct Shaky {
    store: MemoryStore,
    pub(super) fails: AtomicBool,
    /// Whether the record of every execution was removed for lack of memory.
    pub(super) forgets: AtomicBool,
    /// Whether the store takes no record but the first of each execution, unless it is written late with a permit.
    pub(super) delays: AtomicBool,
    pub(super) late: Semaphore,
    /// Reads wait for a permit, and return it.
    pub(super) gate: Semaphore,
    /// The number of reads.
    pub(super) reads: AtomicUsize,
}

// === impl Shaky ===

impl Shaky {
    /// A store with this number of concurrent reads.
    pub(super) fn with_gate(permits: usize) -> Self {
        Self {
            store: MemoryStore::default(),
            fails: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            delays: AtomicBool::new(false),
            late: Semaphore::new(0),
            gate: Semaphore::new(permits),
            reads: AtomicUsize::new(0),
        }
    }

    /// The real world with this store.
    pub(super) fn environment(self: &Arc<Self>) -> Environment {
        Environment {
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom::new().unwrap()),
            http: Arc::new(Client::new(&ClientOptions::default()).unwrap()),
            store: Arc::clone(self) as Arc<dyn Store>,
        }
    }

    /// The record of an execution of `reporter`, as it is stored.
    pub(super) async fn record(&self, id: &str) -> String {
        let key = format!("reporter\0{id}");
        let stored = self.store.get(Table::Executions, &key).await.unwrap();
        String::from_utf8(stored.unwrap().to_vec()).unwrap()
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(StoreError("fails as configured".into())),
            false => Ok(()),
        }
    }
}

impl Store for Shaky {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let _pass = self.gate.acquire().await.unwrap();
            self.check()?;
            self.store.get(table, key).await
        }
        .boxed()
    }

    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        _until: SystemTime,
        _names: Vec<Text>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            match self.forgets.load(Ordering::SeqCst) {
                true => Err(StoreError(RecordForgotten.into())),
                false => {
                    self.check()?;
                    self.store.write(changes).await.map(|()| true)
                }
            }
        }
        .boxed()
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            self.check()?;
            if self.delays.load(Ordering::SeqCst) {
                return Err(StoreError(StoreDelayed("as configured".into()).into()));
            }
            self.store.write(changes).await
        }
        .boxed()
    }

    fn write_late(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let _pass = self.late.acquire().await.unwrap();
            self.store.write(changes).await
        }
        .boxed()
    }

    fn trouble(&self) -> Option<String> {
        self.check().err().map(|error| error.0.to_string())
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        async move {
            self.check()?;
            self.store.scan(table, prefix, after, most).await
        }
        .boxed()
    }
}
