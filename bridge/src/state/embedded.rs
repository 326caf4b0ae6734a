//! A log in a file, for one process. It survives restarts.

use std::any::Any;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use a2abus_executor::open_database;
use a2abus_plugin::Text;
use bytes::Bytes;
use redb::{Database, Error, ReadableDatabase, ReadableTable as _, TableDefinition};
use tokio::sync::{mpsc, oneshot, watch};

use super::log::{
    BATCH_BYTES, Batch, Bounds, Cursor, Kind, LogSpec, Position, Reader, Record, StateError,
    check_key,
};
use crate::clock;
use crate::lock::lock;

/// A log in its own file. Clones share it; no other process can open it at the same time.
#[derive(Debug, Clone)]
pub struct EmbeddedLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    spec: LogSpec,
    file: Arc<OpenFile>,
    appends: mpsc::Sender<Append>,
    /// The next offset.
    end: watch::Receiver<u64>,
}

/// The database, which must be reopened after a disk error.
#[derive(Debug)]
struct OpenFile {
    name: &'static str,
    path: PathBuf,
    /// The file that was opened last. It is kept open: otherwise the inode of a deleted file could be used again.
    opened: Mutex<Option<File>>,
    database: RwLock<DatabaseSlot>,
}

/// The database of a file.
#[derive(Debug)]
enum DatabaseSlot {
    Closed,
    Open(Arc<Database>),
    /// It has failed. It locks the file until its last user has noticed the failure.
    Failed(Arc<Database>),
}

/// A record to append, and the channel for its caller.
#[derive(Debug)]
struct Append {
    key: Text,
    body: Option<Bytes>,
    answer: oneshot::Sender<Result<Position, StateError>>,
}

/// By offset: a record as [`encode`] writes it.
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// By key: the offset of its last record, in a log of the kind `Latest`.
const LATEST: TableDefinition<'_, &str, u64> = TableDefinition::new("latest");
/// The key `next` holds the next offset.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const NEXT: &str = "next";

/// Maximum number of appends that wait for the disk.
const QUEUE: usize = 1024;
/// Maximum number of appends in one commit.
const COMMIT: usize = 512;
/// Maximum number of records in one batch of a reader.
const BATCH: usize = 512;
/// Maximum number of old records removed in one commit. It is more than a commit can add.
const REMOVED: usize = 2 * COMMIT;
/// The size of the database cache in memory.
const CACHE_BYTES: usize = 16 << 20;
/// The pause before another attempt to read or open a file.
const PAUSE: Duration = Duration::from_secs(2);

// === impl EmbeddedLog ===

impl EmbeddedLog {
    /// Opens or creates the file of a log in a directory. Only its owner can access it. Blocks.
    ///
    /// # Errors
    /// [`StateError::Disk`] when the file cannot be used, or another process has opened it.
    pub fn open(spec: LogSpec, directory: &Path) -> Result<Self, StateError> {
        check_directory(directory).map_err(|error| StateError::Disk {
            name: spec.name,
            path: directory.to_owned(),
            error: Arc::new(Error::Io(error)),
        })?;
        let file = Arc::new(OpenFile::new(spec.name, directory));
        let next = file.run(prepare)?;
        let (appends, queue) = mpsc::channel(QUEUE);
        let (tell_end, end) = watch::channel(next);
        let writer = Writer {
            kind: spec.kind,
            file: Arc::clone(&file),
            next,
            end: tell_end,
        };
        let thread = std::thread::Builder::new().name("a2abus-state".to_owned());
        // The thread ends with the last clone of the log.
        thread
            .spawn(move || writer.run(queue))
            .map_err(|error| file.failed(Error::Io(error)))?;
        Ok(Self(Arc::new(Shared {
            spec,
            file,
            appends,
            end,
        })))
    }

    pub(super) fn spec(&self) -> &LogSpec {
        &self.0.spec
    }

    /// Why the next process would not find this file, if it is not in its place. Blocks.
    pub(super) fn misplaced(&self) -> Option<String> {
        let file = &self.0.file;
        let why = file.misplaced()?;
        Some(format!("{} {why}", file.path.display()))
    }

    pub(super) async fn append(
        &self,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Position, StateError> {
        check_key(key)?;
        let (answer, answered) = oneshot::channel();
        let key = Text::from(key);
        let append = Append { key, body, answer };
        let closed = StateError::Closed(self.0.spec.name);
        if self.0.appends.send(append).await.is_err() {
            return Err(closed);
        }
        answered.await.unwrap_or(Err(closed))
    }

    pub(super) async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        let (file, end) = (Arc::clone(&self.0.file), self.0.end.clone());
        let next = from.next(0);
        Ok(Reader::spawn(move |batches| fill(file, end, next, batches)))
    }

    pub(super) async fn bounds(&self) -> Result<Bounds, StateError> {
        let end = *self.0.end.borrow();
        let first = self
            .0
            .file
            .read(move |database| first(database, end))
            .await?;
        let mut bounds = Bounds::default();
        bounds.start.advance(0, first);
        bounds.end.advance(0, end);
        Ok(bounds)
    }
}

/// Reads until the receiver is gone.
async fn fill(
    file: Arc<OpenFile>,
    mut end: watch::Receiver<u64>,
    mut next: u64,
    batches: mpsc::Sender<Batch>,
) {
    // The writer ends with the last clone of the log.
    while end.wait_for(|end| *end > next).await.is_ok() {
        let from = next;
        let batch = match file.read(move |database| after(database, from)).await {
            Ok(batch) => batch,
            Err(error) => {
                tracing::warn!(%error, "cannot read a log of the state: trying again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        next = batch.reached.next(0).max(next);
        if batches.send(batch).await.is_err() {
            return;
        }
    }
}

// === impl OpenFile ===

impl OpenFile {
    fn new(name: &'static str, directory: &Path) -> Self {
        Self {
            name,
            path: directory.join(format!("{name}.redb")),
            opened: Mutex::default(),
            database: RwLock::new(DatabaseSlot::Closed),
        }
    }

    /// The database, opened if necessary.
    fn database(&self) -> Result<Arc<Database>, Error> {
        let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if let DatabaseSlot::Open(database) = &*open {
            return Ok(Arc::clone(database));
        }
        drop(open);
        let mut slot = self.slot();
        match &*slot {
            DatabaseSlot::Open(database) => return Ok(Arc::clone(database)),
            // The file cannot be opened again yet, but not because of another process.
            DatabaseSlot::Failed(database) if Arc::strong_count(database) > 1 => {
                return Err(Error::PreviousIo);
            }
            DatabaseSlot::Failed(_) | DatabaseSlot::Closed => {}
        }
        *slot = DatabaseSlot::Closed;
        // An empty or other file in its place would silently begin another state.
        if let Some(why) = self.misplaced() {
            return Err(Error::Io(io::Error::other(why)));
        }
        let database = Arc::new(open_database(&self.path, CACHE_BYTES)?);
        *lock(&self.opened) = Some(File::open(&self.path).map_err(Error::Io)?);
        *slot = DatabaseSlot::Open(Arc::clone(&database));
        Ok(database)
    }

    /// Runs an operation on the database. If the disk has failed, or the database library has panicked, which it does
    /// for a damaged file, the next operation opens the database again.
    fn run<T>(&self, work: impl FnOnce(&Database) -> Result<T, Error>) -> Result<T, StateError> {
        let done = catch_unwind(AssertUnwindSafe(|| work(&*self.database()?)));
        if matches!(done, Err(_) | Ok(Err(Error::Io(_) | Error::PreviousIo))) {
            let mut slot = self.slot();
            if let DatabaseSlot::Open(database) = &*slot {
                *slot = DatabaseSlot::Failed(Arc::clone(database));
            }
        }
        match done {
            Ok(done) => done.map_err(|error| self.failed(error)),
            Err(panic) => Err(self.panicked(&*panic)),
        }
    }

    /// Why the file that was opened is not in its place; `None` if it is, or if none was opened yet.
    fn misplaced(&self) -> Option<String> {
        let opened = lock(&self.opened).as_ref()?.metadata().ok()?;
        let what = match fs::metadata(&self.path) {
            Ok(found) if identity(&opened) == identity(&found) => return None,
            Ok(_) => "was replaced".to_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                "was moved away or deleted".to_owned()
            }
            // Its path leads through a file or a circle of links, for example.
            Err(error) => format!("cannot be found ({error})"),
        };
        Some(format!(
            "{what}: the bridge uses no other file in its place while it runs, and will not find its records after a restart; move that file back, or restart the bridge to continue with what is there now"
        ))
    }

    fn slot(&self) -> RwLockWriteGuard<'_, DatabaseSlot> {
        let slot = self.database.write();
        slot.unwrap_or_else(PoisonError::into_inner)
    }

    /// Like `run`, on a thread where blocking is allowed.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StateError> {
        let file = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || file.run(work)).await;
        done.unwrap_or_else(|_| Err(StateError::Closed(self.name)))
    }

    fn failed(&self, error: Error) -> StateError {
        StateError::Disk {
            name: self.name,
            path: self.path.clone(),
            error: Arc::new(error),
        }
    }

    /// The error when the database library panics while it uses the file. A damaged file makes it panic, but so may
    /// something else, and an operator must not discard an intact file.
    fn panicked(&self, panic: &(dyn Any + Send)) -> StateError {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("without a message");
        self.failed(Error::Io(io::Error::other(format!(
            "the database library has panicked ({text}): if the file is damaged, restore it from a backup, or move it away to begin with an empty state"
        ))))
    }
}

/// The device and the inode number of a file.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Fails if something else is in the place of the directory, or its links lead in a circle. A missing directory has an
/// error of its own.
fn check_directory(directory: &Path) -> io::Result<()> {
    let why = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => return Ok(()),
            _ => error.to_string(),
        },
    };
    Err(io::Error::other(format!(
        "{why}: set `state.directory` to a directory that exists, or fix what is at its path"
    )))
}

/// Creates the tables, and removes the deletions of the last run, because no view still has their keys. Returns the
/// next offset.
fn prepare(database: &Database) -> Result<u64, Error> {
    let transaction = database.begin_write()?;
    let next = {
        let mut records = transaction.open_table(RECORDS)?;
        let mut latest = transaction.open_table(LATEST)?;
        let mut gone = Vec::new();
        for entry in latest.iter()? {
            let (key, offset) = entry?;
            let is_deletion = match records.get(offset.value())? {
                Some(bytes) => {
                    decode(offset.value(), bytes.value()).is_none_or(|r| r.body.is_none())
                }
                None => true,
            };
            if is_deletion {
                gone.push((key.value().to_owned(), offset.value()));
            }
        }
        for (key, offset) in gone {
            latest.remove(&*key)?;
            records.remove(offset)?;
        }
        let meta = transaction.open_table(META)?;
        meta.get(NEXT)?.map_or(0, |next| next.value())
    };
    transaction.commit()?;
    Ok(next)
}

/// The offset of the first record, or `end` if there is none.
fn first(database: &Database, end: u64) -> Result<u64, Error> {
    let records = database.begin_read()?.open_table(RECORDS)?;
    let first = records.first()?.map(|(offset, _)| offset.value());
    Ok(first.unwrap_or(end))
}

/// A batch of records from an offset on.
fn after(database: &Database, from: u64) -> Result<Batch, Error> {
    let reading = database.begin_read()?;
    // Read the records and the next offset in one transaction: the next offset is the position after a batch with all
    // records.
    let next = reading
        .open_table(META)?
        .get(NEXT)?
        .map_or(0, |next| next.value());
    let records = reading.open_table(RECORDS)?;
    let (mut batch, mut size) = (Batch::default(), 0);
    for entry in records.range(from..)? {
        if batch.records.len() == BATCH || size >= BATCH_BYTES {
            return Ok(batch);
        }
        let (offset, bytes) = entry?;
        let offset = offset.value();
        size += bytes.value().len();
        batch.reached.advance(0, offset + 1);
        batch.records.extend(decode(offset, bytes.value()));
    }
    batch.reached.advance(0, next);
    Ok(batch)
}

// === the writer ===

/// Stores appended records on its own thread. Records that arrive while the disk is busy share one commit.
struct Writer {
    kind: Kind,
    file: Arc<OpenFile>,
    next: u64,
    end: watch::Sender<u64>,
}

// === impl Writer ===

impl Writer {
    fn run(mut self, mut queue: mpsc::Receiver<Append>) {
        while let Some(first) = queue.blocking_recv() {
            let mut appends = vec![first];
            while appends.len() < COMMIT
                && let Ok(append) = queue.try_recv()
            {
                appends.push(append);
            }
            let now = clock::milliseconds(clock::now());
            let (kind, next) = (self.kind, self.next);
            let written = self
                .file
                .run(|database| write(database, kind, next, now, &appends));
            if let Ok(first) = &written {
                self.next = first + u64::try_from(appends.len()).unwrap_or(0);
                self.end.send_replace(self.next);
            }
            for (index, append) in (0_u64..).zip(appends) {
                let position = written.clone().map(|first| Position::at(first + index));
                // The caller may have stopped waiting.
                let _ = append.answer.send(position);
            }
        }
    }
}

/// Stores records from the offset `next` on, and removes records that are replaced or too old. Returns the offset of
/// the first one that it has stored.
fn write(
    database: &Database,
    kind: Kind,
    next: u64,
    now: u64,
    appends: &[Append],
) -> Result<u64, Error> {
    // Without a commit, it changes nothing.
    let transaction = database.begin_write()?;
    let first = {
        let mut records = transaction.open_table(RECORDS)?;
        let mut latest = transaction.open_table(LATEST)?;
        let mut meta = transaction.open_table(META)?;
        // A commit that has failed may be on the disk. Its records keep their offsets.
        let first = meta.get(NEXT)?.map_or(0, |stored| stored.value()).max(next);
        let mut end = first;
        for append in appends {
            let bytes = encode(now, &append.key, append.body.as_deref());
            records.insert(end, bytes.as_slice())?;
            if kind == Kind::Latest {
                let before = latest
                    .insert(&*append.key, end)?
                    .map(|before| before.value());
                if let Some(before) = before {
                    records.remove(before)?;
                }
            }
            end += 1;
        }
        if let Some(max_age) = kind.max_age() {
            let oldest = now.saturating_sub(clock::whole_milliseconds(max_age));
            for _ in 0..REMOVED {
                let Some((offset, is_old)) = records.first()?.map(|(offset, bytes)| {
                    let record = decode(offset.value(), bytes.value());
                    (
                        offset.value(),
                        record.is_none_or(|record| record.time < oldest),
                    )
                }) else {
                    break;
                };
                if !is_old {
                    break;
                }
                records.remove(offset)?;
            }
        }
        meta.insert(NEXT, end)?;
        first
    };
    transaction.commit()?;
    Ok(first)
}

/// Time (8 bytes), length of the key (2), the key, whether there is a body (1), the body. Numbers are big-endian.
fn encode(time: u64, key: &str, body: Option<&[u8]>) -> Vec<u8> {
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(11 + key.len() + body.map_or(0, <[u8]>::len));
    bytes.extend_from_slice(&time.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(key.as_bytes());
    bytes.push(u8::from(body.is_some()));
    bytes.extend_from_slice(body.unwrap_or_default());
    bytes
}

/// `None` for bytes that [`encode`] did not write.
fn decode(offset: u64, bytes: &[u8]) -> Option<Record> {
    let (time, rest) = bytes.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (has_body, body) = rest.split_first()?;
    Some(Record {
        key: Text::from(str::from_utf8(key).ok()?),
        position: Position::at(offset),
        time: u64::from_be_bytes(*time),
        body: (*has_body == 1).then(|| Bytes::copy_from_slice(body)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_file_that_is_no_log_names_it_and_the_cure() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.redb");
        std::fs::write(&path, "no database").unwrap();
        let spec = LogSpec {
            name: "test",
            kind: Kind::Latest,
        };
        let error = EmbeddedLog::open(spec.clone(), directory.path()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let open = EmbeddedLog::open(spec.clone(), directory.path()).unwrap();
        let used = EmbeddedLog::open(spec.clone(), directory.path()).unwrap_err();
        drop(open);
        for (error, cure) in [(error, "move it away"), (used, "`state.directory`")] {
            let text = error.to_string();
            let name = path.display().to_string();
            assert!(text.contains(&name) && text.contains(cure), "{text}");
        }
        let missing = directory.path().join("missing");
        let text = EmbeddedLog::open(spec, &missing).unwrap_err().to_string();
        let name = missing.join("test.redb").display().to_string();
        let cure = "create the directory (`state.directory`)";
        assert!(text.contains(&name) && text.contains(cure), "{text}");
    }

    #[test]
    fn a_state_directory_that_is_not_a_directory_is_named_with_the_cure() {
        let root = tempfile::tempdir().unwrap();
        let (file, circle) = (root.path().join("file"), root.path().join("circle"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        for directory in [file.clone(), file.join("below"), circle] {
            let spec = LogSpec {
                name: "test",
                kind: Kind::Latest,
            };
            let error = EmbeddedLog::open(spec, &directory).unwrap_err();
            let text = error.to_string();
            let named = format!("{}: ", directory.display());
            let cure = "set `state.directory` to a directory";
            assert!(text.contains(&named) && text.contains(cure), "{text}");
        }
    }

    #[test]
    fn a_file_that_was_moved_away_or_replaced_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let spec = LogSpec {
            name: "test",
            kind: Kind::Latest,
        };
        let log = EmbeddedLog::open(spec, directory.path()).unwrap();
        assert_eq!(log.misplaced(), None);
        let (path, away) = (&log.0.file.path, directory.path().join("away"));
        fs::rename(path, &away).unwrap();
        let why = log.misplaced().unwrap();
        assert!(why.contains("test.redb was moved away"), "{why}");
        fs::write(path, "").unwrap();
        let why = log.misplaced().unwrap();
        assert!(why.contains("test.redb was replaced"), "{why}");
        fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink(path, path).unwrap();
        let why = log.misplaced().unwrap();
        assert!(why.contains("test.redb cannot be found ("), "{why}");
        fs::rename(&away, path).unwrap();
        assert_eq!(log.misplaced(), None);
    }

    #[test]
    fn the_error_of_a_panic_names_its_message_and_does_not_say_that_the_file_is_damaged() {
        for panic in [
            Box::new("out of range") as Box<dyn Any + Send>,
            Box::new("out of range".to_owned()),
        ] {
            let error = OpenFile::new("test", Path::new("/state")).panicked(&*panic);
            let text = error.to_string();
            let has = |part: &str| text.contains(part);
            assert!(has("/state/test.redb") && has("out of range"), "{text}");
            assert!(has("if the file is damaged"), "{text}");
            assert!(!has("DB corrupted"), "{text}");
        }
    }

    /// The disk works again, and no other process uses the file.
    #[test]
    fn a_file_is_opened_again_after_an_error_once_its_last_user_has_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = OpenFile::new("test", directory.path());
        file.run(prepare).unwrap();
        let user = file.database().unwrap();
        let fails = |_: &Database| Err::<(), _>(Error::Io(io::ErrorKind::StorageFull.into()));
        for error in [file.run(fails).unwrap_err(), file.run(prepare).unwrap_err()] {
            assert!(error.is_outage(), "{error}");
            assert!(!error.to_string().contains("another process"), "{error}");
        }
        drop(user);
        file.run(prepare).unwrap();
    }

    #[test]
    fn after_an_error_no_other_file_is_used_in_place_of_one_that_was_moved_away() {
        let directory = tempfile::tempdir().unwrap();
        let file = OpenFile::new("test", directory.path());
        file.run(prepare).unwrap();
        let away = directory.path().join("away");
        fs::rename(&file.path, &away).unwrap();
        let fails = |_: &Database| Err::<(), _>(Error::Io(io::ErrorKind::StorageFull.into()));
        file.run(fails).unwrap_err();
        let error = file.run(prepare).unwrap_err();
        assert!(error.is_outage(), "{error}");
        assert!(
            error.to_string().contains("was moved away or deleted"),
            "{error}"
        );
        assert!(!file.path.exists(), "an empty file was created");
        drop(open_database(&file.path, CACHE_BYTES).unwrap());
        let error = file.run(prepare).unwrap_err();
        assert!(error.to_string().contains("was replaced"), "{error}");
        assert!(file.misplaced().is_some());
        fs::rename(&away, &file.path).unwrap();
        file.run(prepare).unwrap();
        assert_eq!(file.misplaced(), None);
    }

    #[tokio::test]
    async fn a_panic_of_the_database_library_does_not_end_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let spec = LogSpec {
            name: "test",
            kind: Kind::Latest,
        };
        let log = EmbeddedLog::open(spec, directory.path()).unwrap();
        let panics = |_: &Database| -> Result<(), Error> { panic!("out of range") };
        let error = log.0.file.run(panics).unwrap_err();
        assert!(error.is_outage(), "{error}");
        assert!(error.to_string().contains("out of range"), "{error}");
        log.append("a", None).await.unwrap();
        let mut reader = log.read(Cursor::start()).await.unwrap();
        assert_eq!(reader.next().await.unwrap().records.len(), 1);
    }

    fn of_body(key: &str, body: &[u8]) -> Append {
        let (answer, _) = oneshot::channel();
        Append {
            key: Text::from(key),
            body: Some(Bytes::copy_from_slice(body)),
            answer,
        }
    }

    #[test]
    fn a_batch_of_large_records_is_short() {
        let directory = tempfile::tempdir().unwrap();
        let database = open_database(&directory.path().join("test.redb"), CACHE_BYTES).unwrap();
        let next = prepare(&database).unwrap();
        let large = vec![b'x'; BATCH_BYTES * 2 / 3];
        let appends = ["a", "b", "c"].map(|key| of_body(key, &large));
        write(&database, Kind::Latest, next, 1, &appends).unwrap();
        for (from, records, reached) in [(0, 2, 2), (2, 1, 3), (3, 0, 3)] {
            let batch = after(&database, from).unwrap();
            let read = (batch.records.len(), batch.reached.next(0));
            assert_eq!(read, (records, reached), "{from}");
        }
    }

    #[test]
    fn a_record_that_is_not_understood_hides_no_later_one() {
        let directory = tempfile::tempdir().unwrap();
        let database = open_database(&directory.path().join("test.redb"), CACHE_BYTES).unwrap();
        let next = prepare(&database).unwrap();
        let keys: Vec<String> = (0..=BATCH).map(|number| number.to_string()).collect();
        let appends: Vec<Append> = keys.iter().map(|key| of_body(key, b"x")).collect();
        write(&database, Kind::Latest, next, 1, &appends).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut records = transaction.open_table(RECORDS).unwrap();
        records.insert(1_u64, [0_u8].as_slice()).unwrap();
        drop(records);
        transaction.commit().unwrap();
        let (mut read, mut from) = (Vec::new(), 0);
        while from <= BATCH as u64 {
            let batch = after(&database, from).unwrap();
            from = batch.reached.next(0);
            read.extend(batch.records.into_iter().map(|record| record.key));
        }
        let understood = keys.iter().filter(|key| *key != "1");
        let understood: Vec<&str> = understood.map(String::as_str).collect();
        assert_eq!(read, understood);
    }

    /// The writer does not know about the records of a commit that has failed after it was written.
    #[test]
    fn an_offset_is_used_once_although_a_commit_seemed_to_fail() {
        let directory = tempfile::tempdir().unwrap();
        let database = open_database(&directory.path().join("test.redb"), CACHE_BYTES).unwrap();
        let next = prepare(&database).unwrap();
        let appends = |key: &str| {
            let (answer, _) = oneshot::channel();
            let (key, body) = (Text::from(key), None);
            [Append { key, body, answer }]
        };
        for (offset, key) in (0..).zip(["written", "next"]) {
            let first = write(&database, Kind::Latest, next, 1, &appends(key)).unwrap();
            assert_eq!(first, offset, "{key}");
        }
        let records = after(&database, 0).unwrap().records;
        let keys: Vec<&str> = records.iter().map(|record| record.key.as_str()).collect();
        assert_eq!(keys, ["written", "next"]);
    }
}
