//! A store that fails on demand, and that can limit concurrent reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use a2abus_executor::{
    Change, Client, ClientOptions, Environment, MemoryStore, RecordForgotten, Store, StoreError,
    SystemClock, SystemRandom, Table,
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
                false => self.write(changes).await.map(|()| true),
            }
        }
        .boxed()
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            self.check()?;
            self.store.write(changes).await
        }
        .boxed()
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
