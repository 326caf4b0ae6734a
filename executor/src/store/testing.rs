//! The tests that every store passes, and a clock for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};

use crate::environment::{Change, Clock, Store, StoreError, Table};

/// A clock that shows the time it is set to, in seconds.
#[derive(Default)]
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.elapsed()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

fn change(table: Table, key: &str, value: Option<&str>) -> Change {
    Change {
        table,
        key: key.to_owned(),
        value: value.map(|value| value.to_owned().into()),
    }
}

pub(crate) fn remove(key: &str) -> Change {
    change(Table::Local, key, None)
}

pub(crate) async fn put(store: &dyn Store, key: &str, value: &str) -> Result<(), StoreError> {
    store
        .write(vec![change(Table::Local, key, Some(value))])
        .await
}

async fn scanned(store: &dyn Store, table: Table, prefix: &str, max: usize) -> String {
    let found = store.scan(table, prefix, "", max).await.unwrap();
    shown(&found)
}

fn shown(found: &[(String, Bytes)]) -> String {
    let found = found
        .iter()
        .map(|(key, value)| format!("{key}={}", str::from_utf8(value).unwrap()));
    found.collect::<Vec<_>>().join(" ")
}

/// Tests all operations of an empty store.
pub(crate) async fn battery(store: &dyn Store) {
    let get = async |key| store.get(Table::Local, key).await.unwrap();
    assert_eq!(get("a").await, None);
    assert_eq!(scanned(store, Table::Local, "", 9).await, "");
    store.write(Vec::new()).await.unwrap();
    store.write(vec![remove("a")]).await.unwrap();

    put(store, "a", "1").await.unwrap();
    put(store, "a", "2").await.unwrap();
    put(store, "empty", "").await.unwrap();
    assert_eq!(get("a").await.unwrap(), "2");
    assert_eq!(get("empty").await.unwrap(), "");
    assert_eq!(store.get(Table::Executions, "a").await.unwrap(), None);

    let changes = vec![
        change(Table::Executions, "a", Some("e")),
        change(Table::Summaries, "a", Some("s")),
        change(Table::Local, "b", Some("first")),
        change(Table::Local, "b", Some("last")),
        change(Table::Local, "c", Some("first")),
        remove("c"),
        remove("empty"),
    ];
    store.write(changes).await.unwrap();
    assert_eq!(scanned(store, Table::Local, "", 9).await, "a=2 b=last");
    assert_eq!(scanned(store, Table::Executions, "", 9).await, "a=e");
    assert_eq!(scanned(store, Table::Summaries, "", 9).await, "a=s");

    for key in [
        "p",
        "p\0",
        "p\0x",
        "p1",
        "pé",
        "p\u{ffff}",
        "p😀",
        "o\u{10ffff}",
        "q",
    ] {
        put(store, key, "v").await.unwrap();
    }
    assert_eq!(
        scanned(store, Table::Local, "p", 99).await,
        "p=v p\0=v p\0x=v p1=v pé=v p\u{ffff}=v p😀=v"
    );
    assert_eq!(
        scanned(store, Table::Local, "p\0", 99).await,
        "p\0=v p\0x=v"
    );
    assert_eq!(scanned(store, Table::Local, "p", 2).await, "p=v p\0=v");
    assert_eq!(scanned(store, Table::Local, "p", 0).await, "");
    assert_eq!(scanned(store, Table::Local, "q", usize::MAX).await, "q=v");
    assert_eq!(scanned(store, Table::Local, "r", 9).await, "");
    for (after, expected) in [
        ("", "p=v p\0=v"),
        ("a", "p=v p\0=v"),
        ("p", "p\0=v p\0x=v"),
        ("p\0y", "p1=v pé=v"),
        ("p\u{ffff}", "p😀=v"),
        ("p😀", ""),
        ("z", ""),
    ] {
        let found = store.scan(Table::Local, "p", after, 2).await.unwrap();
        assert_eq!(shown(&found), expected, "after {after:?}");
    }

    let keys: Vec<_> = (0..50).map(|n| format!("many{n:02}")).collect();
    let writes = keys.iter().map(|key| put(store, key, key));
    join_all(writes).await.into_iter().for_each(Result::unwrap);
    assert_eq!(
        store
            .scan(Table::Local, "many", "", 99)
            .await
            .unwrap()
            .len(),
        50
    );
}
