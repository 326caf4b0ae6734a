//! A store in one file on disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ::redb::{
    Builder, Database, DatabaseError, Error, ReadableDatabase, StorageError, TableDefinition,
};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Semaphore;

use super::error::OpenError;
use crate::environment::{Change, Store, StoreError, Table};

/// A durable store in one file, for one process at a time. A finished write is on disk, and the file stays consistent
/// when the process or the machine stops at any time.
///
/// It needs the tokio runtime, because it uses its blocking threads for disk access.
///
/// ```no_run
/// use a2abus_executor::RedbStore;
///
/// let store = RedbStore::open("/var/lib/a2abus/executor.redb".as_ref())?;
/// # Ok::<(), a2abus_executor::OpenError>(())
/// ```
pub struct RedbStore {
    handle: Arc<Reopenable>,
    /// One writer and a few readers at a time, so that waiting occupies no threads.
    writer: Arc<Semaphore>,
    readers: Arc<Semaphore>,
}

/// The database. After a disk failure it accepts no operations until it is reopened.
struct Reopenable {
    path: PathBuf,
    /// The last failure of the disk since the last write.
    failure: Mutex<Option<Failure>>,
    open: Box<dyn Fn() -> Result<Database, OpenError> + Send + Sync>,
    /// The minimum time between two attempts to open it.
    pause: Duration,
    state: RwLock<State>,
}

/// A failure of the disk.
struct Failure {
    at: Instant,
    /// The file, and what the disk said. Later operations do not repeat it.
    cause: String,
}

struct State {
    /// `None` while it cannot be opened.
    database: Option<Database>,
    /// How often it was opened.
    opened: u64,
    since: Instant,
}

/// The size of the cache of the file in memory.
const CACHE_BYTES: usize = 32 << 20;
const READERS: usize = 8;
/// How many random characters end the name of a file that is not complete yet.
const RANDOM: usize = 6;
const TABLES: [Table; 3] = [Table::Local, Table::Executions, Table::Summaries];
/// How long the store waits after a disk failure.
const PAUSE: Duration = Duration::from_secs(2);
/// After this time without another failure, the last one is no longer reported.
const FORGOTTEN: Duration = Duration::from_secs(60);

type Definition = TableDefinition<'static, &'static str, &'static [u8]>;

const fn definition(table: Table) -> Definition {
    TableDefinition::new(match table {
        Table::Local => "local",
        Table::Executions => "executions",
        Table::Summaries => "summaries",
    })
}

// === impl RedbStore ===

impl RedbStore {
    /// Opens the file, or creates it for its owner only. Blocks.
    ///
    /// # Errors
    /// [`OpenError::InUse`] while another process has it open; otherwise why it cannot be used.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let file = path.to_owned();
        Self::open_with(path, PAUSE, move || open(&file))
    }

    fn open_with(
        path: &Path,
        pause: Duration,
        open: impl Fn() -> Result<Database, OpenError> + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let state = State {
            database: Some(open()?),
            opened: 1,
            since: Instant::now(),
        };
        Ok(Self {
            handle: Arc::new(Reopenable {
                path: path.to_owned(),
                failure: Mutex::default(),
                open: Box::new(open),
                pause,
                state: RwLock::new(state),
            }),
            writer: Arc::new(Semaphore::new(1)),
            readers: Arc::new(Semaphore::new(READERS)),
        })
    }

    /// Runs a function on a blocking thread. It runs to its end even if its caller is gone, and holds its permit until
    /// then.
    async fn run<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        work: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(permits).acquire_owned().await;
        let place = place.map_err(|error| StoreError(error.into()))?;
        let handle = Arc::clone(&self.handle);
        let done = tokio::task::spawn_blocking(move || {
            let done = handle.run(work);
            drop(place);
            done
        });
        done.await.map_err(|error| StoreError(error.into()))?
    }
}

// === impl Reopenable ===

impl Reopenable {
    /// Runs a function; it runs a second time if the database had to be reopened.
    fn run<T>(&self, work: impl Fn(&Database) -> Result<T, Error>) -> Result<T, StoreError> {
        let attempt = || {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let done = match &state.database {
                Some(database) => work(database),
                None => Err(Error::PreviousIo),
            };
            (done, state.opened)
        };
        let done = match attempt() {
            (Err(error @ (Error::Io(_) | Error::PreviousIo)), opened) => {
                let cause = self.failed(&error);
                match self.reopen(opened, &cause) {
                    Ok(true) => attempt().0,
                    Ok(false) => Err(error),
                    Err(error) => return Err(StoreError(error.into())),
                }
            }
            (done, _) => done,
        };
        done.map_err(|error| match error {
            Error::Io(_) | Error::PreviousIo => StoreError(self.failed(&error).into()),
            error => StoreError(error.into()),
        })
    }

    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a failure of the disk, and returns its cause: after the first one, the database says only that there was
    /// one.
    fn failed(&self, error: &Error) -> String {
        let at = Instant::now();
        let mut failure = self.failure();
        let cause = match (&*failure, error) {
            (Some(known), Error::PreviousIo) => known.cause.clone(),
            _ => format!("{}: {error}", self.path.display()),
        };
        let noted = cause.clone();
        *failure = Some(Failure { at, cause: noted });
        cause
    }

    /// Reopens it, unless another caller has. Returns whether to try again. Attempts are limited, because all callers
    /// wait for them, and a large file takes a while to repair.
    fn reopen(&self, opened: u64, cause: &str) -> Result<bool, OpenError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.opened != opened {
            return Ok(true);
        }
        if state.since.elapsed() < self.pause {
            return Ok(false);
        }
        tracing::warn!(%cause, "the disk of a store failed: the store is reopened");
        // Only one process at a time may open the file.
        drop(state.database.take());
        let database = (self.open)();
        state.since = Instant::now();
        state.opened += 1;
        state.database = Some(database?);
        Ok(true)
    }
}

fn open(path: &Path) -> Result<Database, OpenError> {
    let unusable = |source| OpenError::Unusable {
        path: path.to_owned(),
        source,
    };
    let database = open_database(path, CACHE_BYTES).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(path.to_owned()),
        other => unusable(other.into()),
    })?;
    make_tables(&database).map_err(|error| unusable(error.into()))?;
    Ok(database)
}

/// Opens the file of a database, or creates it. If this process may change that, only its owner can read and write it.
///
/// A new file gets its name when it is complete. So a process that is killed while it creates one, or that finds the
/// disk full, leaves nothing under this name that cannot be opened; at most a file `.new-NAME-…` beside it, which the
/// next process that opens the file removes.
///
/// # Errors
/// [`DatabaseError::DatabaseAlreadyOpen`] if another process has opened it; otherwise the error of the disk.
pub fn open_database(path: &Path, cache_bytes: usize) -> Result<Database, DatabaseError> {
    let file = match existing_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match create(path) {
                // Another process was faster, and may have removed the new file of this one.
                Err(_) if path.exists() => {}
                created => created?,
            }
            existing_file(path)
        }
        opened => opened,
    };
    let file = file.map_err(|error| of_disk(with_link(path, error)))?;
    let database = Builder::new()
        .set_cache_size(cache_bytes)
        .create_file(file)?;
    remove_unfinished(path);
    Ok(database)
}

fn create(path: &Path) -> Result<(), DatabaseError> {
    let place = &target(path);
    let (directory, prefix) = unfinished(place);
    let mut new = tempfile::Builder::new();
    let new = new.prefix(&prefix).rand_bytes(RANDOM);
    let new = new.tempfile_in(directory);
    let new = new.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => of_disk(with_link(path, error)),
        _ => of_disk(error),
    })?;
    drop(Builder::new().create_file(new.reopen().map_err(of_disk)?)?);
    new.persist_noclobber(place)
        .map_err(|error| of_disk(error.error))?;
    // Not every file system can do that.
    drop(File::open(directory).and_then(|directory| directory.sync_all()));
    Ok(())
}

/// The directory of a file that is not complete yet, and the beginning of its name.
fn unfinished(path: &Path) -> (&Path, OsString) {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let mut prefix = OsString::from(".new-");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push("-");
    (directory.unwrap_or(Path::new(".")), prefix)
}

/// Removes what killed processes have left of a file that this process has now opened. A process that is still creating
/// it is too late, and will find this one.
fn remove_unfinished(path: &Path) {
    let place = target(path);
    let (directory, prefix) = unfinished(&place);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name
            .as_encoded_bytes()
            .strip_prefix(prefix.as_encoded_bytes());
        // The name of another file may begin with the same characters.
        if random.is_none_or(|random| random.len() != RANDOM) {
            continue;
        }
        let left = entry.path();
        match fs::remove_file(&left) {
            Ok(()) => {
                tracing::info!(file = %left.display(), "removed an unfinished file that a killed process had left");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(file = %left.display(), %error, "cannot remove an unfinished file that a killed process has left: remove it yourself");
            }
        }
    }
}

/// The path of a file, which may be a symbolic link although the file is not there yet.
fn target(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // The most that Linux follows.
    for _ in 0..40 {
        let Ok(to) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    path
}

fn of_disk(error: io::Error) -> DatabaseError {
    StorageError::from(error).into()
}

/// Says so if the path is a symbolic link that leads to no file. Other errors have a cure of their own: whoever removed
/// the link to a file that cannot be read would start without its contents.
fn with_link(path: &Path, error: io::Error) -> io::Error {
    let may_be_file = match fs::metadata(path) {
        Ok(found) => found.is_file(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    };
    match path.is_symlink() && !may_be_file {
        true => io::Error::other(format!(
            "it is a symbolic link whose target cannot be used ({error}): correct or remove the link"
        )),
        false => error,
    }
}

/// Opens a file that exists.
fn existing_file(path: &Path) -> io::Result<File> {
    // Opening a pipe or a device could have an effect.
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let what = match kind.is_dir() {
            true => "a directory",
            false => "a pipe, a socket or a device",
        };
        return Err(io::Error::other(format!(
            "it is {what}, not a file: move it away, or choose another place"
        )));
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // Fails if this user may use the file but does not own it.
    drop(file.set_permissions(fs::Permissions::from_mode(0o600)));
    Ok(file)
}

/// Creates the tables, because reading fails on a table that was never written.
fn make_tables(database: &Database) -> Result<(), Error> {
    let reading = database.begin_read()?;
    let are_there = TABLES
        .into_iter()
        .all(|table| reading.open_table(definition(table)).is_ok());
    if are_there {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    for table in TABLES {
        transaction.open_table(definition(table))?;
    }
    Ok(transaction.commit()?)
}

fn write(database: &Database, changes: &[Change]) -> Result<(), Error> {
    // Dropped without a commit, it changes nothing.
    let transaction = database.begin_write()?;
    for Change { table, key, value } in changes {
        let mut table = transaction.open_table(definition(*table))?;
        match value {
            Some(value) => table.insert(key.as_str(), value.as_ref())?,
            None => table.remove(key.as_str())?,
        };
    }
    Ok(transaction.commit()?)
}

fn read(database: &Database, table: Table, key: &str) -> Result<Option<Bytes>, Error> {
    let table = database.begin_read()?.open_table(definition(table))?;
    let value = table.get(key)?;
    Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
}

fn scan(
    database: &Database,
    table: Table,
    prefix: &str,
    after: &str,
    max: usize,
) -> Result<Vec<(String, Bytes)>, Error> {
    let table = database.begin_read()?.open_table(definition(table))?;
    let mut found = Vec::new();
    let from = if after < prefix {
        Bound::Included(prefix)
    } else {
        Bound::Excluded(after)
    };
    let entries = table.range::<&str>((from, Bound::Unbounded))?;
    for entry in entries.take(max) {
        let (key, value) = entry?;
        if !key.value().starts_with(prefix) {
            break;
        }
        found.push((
            key.value().to_owned(),
            Bytes::copy_from_slice(value.value()),
        ));
    }
    Ok(found)
}

impl Store for RedbStore {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.to_owned();
        self.run(&self.readers, move |database| read(database, table, &key))
            .boxed()
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
        let handle = Arc::clone(&self.handle);
        self.run(&self.writer, move |database| {
            if changes.is_empty() {
                // It only waited for the previous write; nothing has to be written.
                return Ok(());
            }
            write(database, &changes)?;
            *handle.failure() = None;
            Ok(())
        })
        .boxed()
    }

    fn trouble(&self) -> Option<String> {
        let failure = self.handle.failure();
        let recent = failure.as_ref().filter(|it| it.at.elapsed() < FORGOTTEN);
        recent.map(|failure| failure.cause.clone())
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.run(&self.readers, move |database| {
            scan(database, table, &prefix, &after, max)
        })
        .boxed()
    }
}

impl std::fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use ::redb::StorageBackend;
    use ::redb::backends::InMemoryBackend;

    use super::*;
    use crate::store::testing::{battery, put, remove};

    #[tokio::test]
    async fn it_passes_the_store_battery() {
        let directory = tempfile::tempdir().unwrap();
        battery(&RedbStore::open(&directory.path().join("s")).unwrap()).await;
    }

    #[tokio::test]
    async fn it_survives_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let large = "x".repeat(10 << 20);
        {
            let store = RedbStore::open(&path).unwrap();
            put(&store, "a", "1").await.unwrap();
            put(&store, "gone", "1").await.unwrap();
            put(&store, "b", &large).await.unwrap();
            store.write(vec![remove("gone")]).await.unwrap();
        }
        let store = RedbStore::open(&path).unwrap();
        let all = store.scan(Table::Local, "", "", 10).await.unwrap();
        let expected = [("a".to_owned(), "1".into()), ("b".to_owned(), large.into())];
        assert!(all == expected, "{} entries", all.len());
    }

    /// A disk that fails on demand.
    #[derive(Debug, Clone, Default)]
    struct Disk {
        bytes: Arc<InMemoryBackend>,
        fails: Arc<AtomicBool>,
    }

    impl Disk {
        fn check(&self) -> io::Result<()> {
            match self.fails.load(Ordering::SeqCst) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.bytes.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.bytes.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.check()?;
            self.bytes.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.check()?;
            self.bytes.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.check()?;
            self.bytes.write(offset, data)
        }
    }

    /// A store on a disk, and how often it was opened.
    fn store_on(disk: &Disk, pause: Duration) -> (RedbStore, Arc<AtomicUsize>) {
        let (disk, opened) = (disk.clone(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&opened);
        let open = move || {
            count.fetch_add(1, Ordering::SeqCst);
            let unusable = |source| OpenError::Unusable {
                path: "disk".into(),
                source,
            };
            let database = Builder::new().create_with_backend(disk.clone());
            let database = database.map_err(|error| unusable(error.into()))?;
            make_tables(&database).map_err(|error| unusable(error.into()))?;
            Ok(database)
        };
        let store = RedbStore::open_with(Path::new("disk"), pause, open).unwrap();
        (store, opened)
    }

    #[tokio::test]
    async fn the_store_recovers_when_the_disk_does() {
        let disk = Disk::default();
        let (store, _) = store_on(&disk, Duration::ZERO);
        put(&store, "a", "1").await.unwrap();
        for round in ["2", "3"] {
            disk.fails.store(true, Ordering::SeqCst);
            for _ in 0..3 {
                let error = put(&store, "b", round).await.unwrap_err();
                let trouble = store.trouble().unwrap();
                // Each failure names the file and what the disk said.
                let full = io::Error::from(io::ErrorKind::StorageFull).to_string();
                assert!(trouble.starts_with("disk: "), "{trouble}");
                assert!(trouble.contains(&full), "{trouble}");
                let source = error.source().unwrap().to_string();
                assert!(source.starts_with("disk"), "{source}");
            }
            disk.fails.store(false, Ordering::SeqCst);
            put(&store, "c", round).await.unwrap();
            assert_eq!(store.trouble(), None);
            let all = store.scan(Table::Local, "", "", 10).await.unwrap();
            let expected =
                [("a", "1"), ("c", round)].map(|(key, value)| (key.to_owned(), value.into()));
            assert_eq!(all, expected);
        }
    }

    #[tokio::test]
    async fn a_failed_disk_is_not_retried_at_once() {
        let disk = Disk::default();
        let (store, opened) = store_on(&disk, Duration::MAX);
        disk.fails.store(true, Ordering::SeqCst);
        for _ in 0..9 {
            assert!(put(&store, "b", "1").await.is_err());
        }
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn the_file_is_private_and_used_by_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let _held = RedbStore::open(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = RedbStore::open(&path).unwrap_err();
        assert!(matches!(again, OpenError::InUse(_)), "{again:?}");
        assert_eq!(
            again.to_string(),
            format!("{} is in use by another process", path.display())
        );
    }

    #[test]
    fn a_file_is_created_where_symbolic_links_lead() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("disk")).unwrap();
        std::os::unix::fs::symlink("other", path("link")).unwrap();
        std::os::unix::fs::symlink("disk/file", path("other")).unwrap();
        drop(open_database(&path("link"), CACHE_BYTES).unwrap());
        assert!(path("disk/file").is_file() && path("link").is_symlink());
    }

    #[test]
    fn what_a_killed_process_has_left_of_a_new_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let left = [".new-file-A1b2C3", ".new-file-d4E5f6"];
        let others = [".new-file-b-A1b2C3", ".new-other-A1b2C3", ".new-A1b2C3"];
        for name in left.iter().chain(&others) {
            fs::write(path(name), "").unwrap();
        }
        let open = open_database(&path("file"), CACHE_BYTES).unwrap();
        assert!(left.iter().all(|name| !path(name).exists()));
        assert!(others.iter().all(|name| path(name).exists()));
        // A process that cannot open it removes nothing.
        fs::write(path(left[0]), "").unwrap();
        assert!(open_database(&path("file"), CACHE_BYTES).is_err());
        assert!(path(left[0]).exists());
        drop(open);
        drop(open_database(&path("file"), CACHE_BYTES).unwrap());
        assert!(!path(left[0]).exists());
    }

    #[test]
    fn several_that_create_a_file_at_once_all_find_it() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..20 {
            let path = directory.path().join(number.to_string());
            let opened = std::thread::scope(|scope| {
                let each = [(); 4].map(|()| scope.spawn(|| open_database(&path, CACHE_BYTES)));
                each.map(|opened| opened.join().unwrap())
            });
            for opened in &opened {
                let is_used = matches!(opened, Err(DatabaseError::DatabaseAlreadyOpen));
                assert!(opened.is_ok() || is_used, "{:?}", opened.as_ref().err());
            }
            assert!(opened.iter().any(Result::is_ok));
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 20);
    }

    #[test]
    fn the_error_of_a_path_without_a_file_names_the_cause_and_the_cure() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        symlink("circle", path("circle")).unwrap();
        symlink("missing/file", path("dangling")).unwrap();
        symlink("directory", path("link")).unwrap();
        let (move_away, correct) = ("move it away", "correct or remove the link");
        for (name, expected) in [
            ("directory", ["it is a directory", move_away]),
            ("socket", ["it is a pipe, a socket or a device", move_away]),
            ("circle", ["a symbolic link", correct]),
            ("dangling", ["missing", correct]),
            ("link", ["a directory", correct]),
        ] {
            let refused = open_database(&path(name), CACHE_BYTES).unwrap_err();
            let text = refused.to_string();
            assert!(expected.iter().all(|part| text.contains(*part)), "{text}");
        }
    }

    /// A process that is killed meanwhile leaves no file that cannot be opened.
    #[test]
    fn a_new_file_is_complete_when_it_gets_its_name() {
        const MAGIC: &[u8] = b"redb";
        let directory = tempfile::tempdir().unwrap();
        for number in 0..20 {
            let path = directory.path().join(number.to_string());
            let watched = path.clone();
            let first_seen = std::thread::spawn(move || {
                loop {
                    if let Ok(bytes) = fs::read(&watched) {
                        return bytes;
                    }
                }
            });
            drop(open_database(&path, CACHE_BYTES).unwrap());
            assert!(first_seen.join().unwrap().starts_with(MAGIC));
        }
        let files = fs::read_dir(directory.path()).unwrap();
        assert_eq!(files.count(), 20, "nothing else is left");
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_store_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        fs::write(
            &path,
            "a text that is longer than the head of a store".repeat(9000),
        )
        .unwrap();
        for path in [path.as_path(), directory.path(), &path.join("x")] {
            let refused = RedbStore::open(path).unwrap_err();
            assert!(matches!(refused, OpenError::Unusable { .. }), "{refused:?}");
            assert!(refused.source().is_some());
        }
    }

    #[tokio::test]
    async fn an_abandoned_write_completes_before_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let store = RedbStore::open(&directory.path().join("s")).unwrap();
        let large = "x".repeat(1 << 20);
        for round in 0..8 {
            let key = round.to_string();
            {
                let write = put(&store, &key, &large);
                tokio::pin!(write);
                // After the first poll it has begun.
                assert!(futures_util::poll!(&mut write).is_pending());
            }
            store.write(Vec::new()).await.unwrap();
            assert!(store.get(Table::Local, &key).await.unwrap().is_some());
        }
    }
}
