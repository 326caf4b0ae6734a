//! The records of executions in the store, and how long they are kept.
//!
//! | table | key | value |
//! |---|---|---|
//! | Executions | `<agent> NUL <execution id>` | `{"digest","unsafe","reports","record"}` |
//! | Summaries | `<agent> NUL <start, the newest first> NUL <execution id>` | `{"bytes","summary"}` |
//!
//! A record answers a request that is sent again, so it is kept as long as the operator says. Its results need not be:
//! when an agent's records approach their limit in bytes, its oldest executions lose their results first. The oldest
//! records are removed only when all others have lost their results. Source: docs/protocols/a2e-workflows.md §D45.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use a2abus_models::Json;
use a2abus_plugin::Text;
use bytes::Bytes;

use crate::environment::{
    Change, Clock, RecordForgotten, Store, StoreDelayed, StoreError, StoreFull, Table,
};
use crate::failure::Failure;
use crate::record::Record;
use crate::value::{MAX_BYTES, write_within};

/// The records of all agents.
pub(crate) struct Archive {
    store: Arc<dyn Store>,
    max_agent_bytes: usize,
    agents: std::sync::Mutex<HashMap<Text, Account>>,
}

/// The bytes written for an agent since the last cleanup; `None` if unknown. One write at a time.
type Account = Arc<tokio::sync::Mutex<Option<usize>>>;

/// The exclusive right to write the records of an agent.
pub(crate) type Turn = tokio::sync::OwnedMutexGuard<Option<usize>>;

/// A record, with internal members.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    /// The digest of the workflow's bytes. Source: docs/protocols/a2e-workflows.md §D45.
    pub(crate) digest: Text,
    /// Whether a request that must not be repeated may have been sent.
    pub(crate) has_begun_unsafe: bool,
}

/// The part of a record that lists show.
struct Summary {
    key: String,
    record: Record,
    /// The size of the whole record.
    bytes: usize,
}

/// The cause of a [`StoreError`] when a record cannot be read, however often that is tried.
#[derive(Debug, thiserror::Error)]
#[error("a record is malformed")]
pub(crate) struct MalformedRecord;

/// How many summaries are read at a time.
const PAGE: usize = 1_000;
/// How many expired records are removed at a time. Requests of their agent wait meanwhile.
const EXPIRED_PAGE: usize = 50;
/// How long a request waits for earlier writes of its agent. A store may retry these much longer, during an outage.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The same for the last record of an execution, whose requester waits for the answer.
const LAST_WAIT: Duration = Duration::from_secs(2);

// === impl Archive ===

impl Archive {
    pub(crate) fn new(store: Arc<dyn Store>, max_agent_bytes: usize) -> Self {
        Self {
            store,
            max_agent_bytes,
            agents: std::sync::Mutex::default(),
        }
    }

    pub(crate) async fn load(&self, agent: &Text, id: &str) -> Result<Option<Stored>, StoreError> {
        let key = record_key(agent, id);
        let Some(bytes) = self.store.get(Table::Executions, &key).await? else {
            return Ok(None);
        };
        Stored::read(&bytes)
            .map(Some)
            .ok_or_else(|| StoreError(MalformedRecord.into()))
    }

    /// Writes the record and its summary together.
    ///
    /// # Cancel safety
    /// The future may be dropped; the record may then have been written or not.
    pub(crate) async fn save(
        &self,
        agent: &Text,
        stored: &Stored,
        clock: &dyn Clock,
    ) -> Result<(), StoreError> {
        let mut turn = self.turn(agent, clock).await?;
        self.save_in(&mut turn, agent, stored).await
    }

    /// Like [`Archive::save`], for a caller that has the turn.
    pub(crate) async fn save_in(
        &self,
        turn: &mut Turn,
        agent: &Text,
        stored: &Stored,
    ) -> Result<(), StoreError> {
        self.put(turn, agent, stored, None).await.map(drop)
    }

    /// Like [`Archive::save`], for the last record of an execution, whose requester waits.
    ///
    /// # Errors
    /// With [`StoreDelayed`] as the cause, [`Archive::save_late`] may still store it.
    pub(crate) async fn save_last(
        &self,
        agent: &Text,
        stored: &Stored,
        clock: &dyn Clock,
    ) -> Result<(), StoreError> {
        // Any other store ends each write soon.
        let wait = match self.store.is_shared() {
            true => LAST_WAIT,
            false => MAX_WAIT,
        };
        let mut turn = self.turn_within(agent, clock, wait).await?;
        self.save_in(&mut turn, agent, stored).await
    }

    /// Stores the last record of an execution without the turn: no other record of the agent waits for it. Returns its
    /// size, for [`Archive::count`].
    pub(crate) async fn save_late(
        &self,
        agent: &Text,
        stored: &Stored,
    ) -> Result<usize, StoreError> {
        let (changes, bytes) = stored.changes(agent);
        self.store.write(changes).await.map(|()| bytes)
    }

    /// Like [`Archive::save_late`], without the values of the execution, and with the reason. It tries for as long as
    /// [`Store::write_late`].
    pub(crate) async fn save_end(
        &self,
        agent: &Text,
        stored: &Stored,
        why: &Failure,
    ) -> Result<usize, StoreError> {
        let (changes, bytes) = stored.without_values(Some(why)).changes(agent);
        self.store.write_late(changes).await.map(|()| bytes)
    }

    /// Counts what was written without the turn.
    pub(crate) async fn count(&self, agent: &Text, bytes: usize) {
        if let Some(written) = self.account(agent).lock().await.as_mut() {
            *written = written.saturating_add(bytes);
        }
    }

    /// Waits for the turn to write a record of an agent.
    ///
    /// # Errors
    /// If it does not come in time.
    pub(crate) async fn turn(&self, agent: &Text, clock: &dyn Clock) -> Result<Turn, StoreError> {
        self.turn_within(agent, clock, MAX_WAIT).await
    }

    async fn turn_within(
        &self,
        agent: &Text,
        clock: &dyn Clock,
        wait: Duration,
    ) -> Result<Turn, StoreError> {
        let account = self.account(agent);
        // The clock of a test may jump ahead, so it is asked only if there is something to wait for.
        if let Ok(turn) = Arc::clone(&account).try_lock_owned() {
            return Ok(turn);
        }
        tokio::select! {
            biased;
            turn = account.lock_owned() => Ok(turn),
            () = clock.sleep(wait) => {
                let cause = "earlier records of the agent are still being written";
                Err(StoreError(StoreDelayed(cause.into()).into()))
            }
        }
    }

    /// Like [`Archive::save`], for an execution that starts now and will have ended by `until`. Returns `false`
    /// if another process already runs it.
    pub(crate) async fn begin(
        &self,
        mut turn: Turn,
        agent: &Text,
        stored: &Stored,
        (until, names): (SystemTime, &[Text]),
    ) -> Result<bool, StoreError> {
        let begins = Some((until, names));
        self.put(&mut turn, agent, stored, begins).await
    }

    async fn put(
        &self,
        written: &mut Option<usize>,
        agent: &Text,
        stored: &Stored,
        begins: Option<(SystemTime, &[Text])>,
    ) -> Result<bool, StoreError> {
        let write = async |changes| match begins {
            Some((until, names)) => self.store.begin(changes, until, names.to_vec()).await,
            None => self.store.write(changes).await.map(|()| true),
        };
        // Unknown while the write is in progress, because this future may be dropped there.
        let before = written.take();
        let (changes, bytes) = stored.changes(agent);
        let is_written = match write(changes.clone()).await {
            Ok(is_written) => is_written,
            // Nothing was written.
            Err(error) if error.0.is::<RecordForgotten>() => {
                *written = before;
                return Err(error);
            }
            Err(error) => {
                if !error.0.is::<StoreFull>() || self.make_room(agent, 0).await.is_err() {
                    return Err(error);
                }
                write(changes).await?
            }
        };
        if !is_written {
            *written = before;
            return Ok(false);
        }
        let since = before.map(|before| before.saturating_add(bytes));
        if let Some(since) = since.filter(|since| *since <= self.max_agent_bytes / 4) {
            *written = Some(since);
            return Ok(true);
        }
        // Frees more than needed, so that cleanups are rare.
        match self.make_room(agent, self.max_agent_bytes / 4 * 3).await {
            Ok(()) => *written = Some(0),
            // The next write tries again.
            Err(error) => tracing::warn!(
                %agent, error = &*error.0,
                "the results of old executions could not be removed"
            ),
        }
        Ok(true)
    }

    /// Whether another process runs an execution.
    pub(crate) fn runs_elsewhere(&self, agent: &Text, id: &str) -> bool {
        self.store.runs_elsewhere(&record_key(agent, id))
    }

    /// Waits while another process runs an execution, and loads its record.
    pub(crate) async fn ended_elsewhere(
        &self,
        agent: &Text,
        id: &str,
    ) -> Result<Option<Stored>, StoreError> {
        self.store.until_idle(&record_key(agent, id)).await;
        self.load(agent, id).await
    }

    /// Asks the other process that runs an execution to cancel it. Returns whether there is one.
    pub(crate) async fn cancel_elsewhere(
        &self,
        agent: &Text,
        id: &str,
    ) -> Result<bool, StoreError> {
        self.store.cancel(&record_key(agent, id)).await
    }

    /// Asks the other processes that run executions of an agent with this name to cancel them. Returns whether there
    /// are any.
    pub(crate) async fn cancel_named_elsewhere(
        &self,
        agent: &Text,
        name: &str,
    ) -> Result<bool, StoreError> {
        self.store.cancel_named(agent, name).await
    }

    /// Waits until another process asks to cancel an execution of this process.
    pub(crate) async fn until_cancelled(&self, agent: &Text, id: &str) {
        self.store.until_cancelled(&record_key(agent, id)).await;
    }

    /// Removes a record and its summary. The caller has the turn.
    pub(crate) async fn remove(
        &self,
        _turn: &Turn,
        agent: &Text,
        record: &Record,
    ) -> Result<(), StoreError> {
        let changes = removal(agent, record.execution_id(), summary_key(agent, record));
        self.store.write(changes.into()).await
    }

    /// Summaries of an agent after a key, the newest first; with the last key examined, if there may be more.
    pub(crate) async fn summaries(
        &self,
        agent: &Text,
        after: &str,
    ) -> Result<(Vec<Record>, Option<String>), StoreError> {
        let (page, next) = self.page(agent, after).await?;
        Ok((page.into_iter().map(|found| found.record).collect(), next))
    }

    async fn page(
        &self,
        agent: &Text,
        after: &str,
    ) -> Result<(Vec<Summary>, Option<String>), StoreError> {
        let prefix = record_key(agent, "");
        let found = self
            .store
            .scan(Table::Summaries, &prefix, after, PAGE)
            .await?;
        let next = (found.len() == PAGE).then(|| found.last().map(|(key, _)| key.clone()));
        let read = |(key, bytes): (String, Bytes)| Summary::read(key, &bytes);
        let page = found.into_iter().filter_map(read).collect();
        Ok((page, next.flatten()))
    }

    /// Removes the records of executions that began before this time and are not running. Returns their number.
    pub(crate) async fn expire(
        &self,
        before: SystemTime,
        runs: impl Fn(&Text, &str) -> bool,
    ) -> Result<usize, StoreError> {
        let mut removed = 0;
        let mut after = String::new();
        while let Some(first) = self.first(&after).await? {
            let agent = Text::from(first.split('\0').next().unwrap_or_default());
            removed += self.expire_of(&agent, before, &runs).await?;
            // All keys of the agent come before this one.
            after = format!("{agent}\u{1}");
        }
        Ok(removed)
    }

    /// The first key of a summary that comes after another.
    async fn first(&self, after: &str) -> Result<Option<String>, StoreError> {
        let found = self.store.scan(Table::Summaries, "", after, 1).await?;
        Ok(found.into_iter().next().map(|(key, _)| key))
    }

    async fn expire_of(
        &self,
        agent: &Text,
        before: SystemTime,
        runs: impl Fn(&Text, &str) -> bool,
    ) -> Result<usize, StoreError> {
        let mut removed = 0;
        let prefix = record_key(agent, "");
        // The newest are first: from here on all are older.
        let mut after = format!("{prefix}{}\u{1}", newest_first(before));
        loop {
            let account = self.account(agent);
            let _one_at_a_time = account.lock().await;
            let found = self
                .store
                .scan(Table::Summaries, &prefix, &after, EXPIRED_PAGE)
                .await?;
            let mut changes = Vec::new();
            for (key, _) in &found {
                let id = key.splitn(3, '\0').nth(2).unwrap_or_default();
                if !runs(agent, id) && !self.runs_elsewhere(agent, id) {
                    changes.extend(removal(agent, id, key.clone()));
                }
            }
            removed += changes.len() / 2;
            self.store.write(changes).await?;
            match found.last() {
                Some((last, _)) if found.len() == EXPIRED_PAGE => after.clone_from(last),
                _ => return Ok(removed),
            }
        }
    }

    /// Removes the results of an agent's oldest executions until the complete records have no more than `max_whole`
    /// bytes, and its oldest records until those without results have a quarter of the total limit. Running executions
    /// and the newest record stay.
    async fn make_room(&self, agent: &Text, max_whole: usize) -> Result<(), StoreError> {
        let (mut whole, mut reduced, mut removed) = (0_usize, 0_usize, 0_usize);
        let mut is_over = false;
        let mut after = String::new();
        loop {
            let (page, next) = self.page(agent, &after).await?;
            let mut changes = Vec::new();
            for summary in page {
                is_over |= whole > 0 && whole.saturating_add(summary.bytes) > max_whole;
                if !is_over || !summary.record.status().is_final() {
                    whole = whole.saturating_add(summary.bytes);
                    continue;
                }
                let (written, bytes) = self.reduced(agent, &summary).await?;
                if reduced.saturating_add(bytes) > self.max_agent_bytes / 4 {
                    removed += 1;
                    changes.extend(summary.removal(agent));
                } else {
                    reduced = reduced.saturating_add(bytes);
                    changes.extend(written);
                }
            }
            if !changes.is_empty() {
                self.store.write(changes).await?;
            }
            match next {
                Some(last) => after = last,
                None => break,
            }
        }
        if removed > 0 {
            tracing::warn!(
                %agent, removed,
                "records of executions are removed early: if such a request is repeated, it runs again"
            );
        }
        Ok(())
    }

    /// The change that writes a record without its values, if it has any; and its size afterwards. A record that cannot
    /// be read is removed, because otherwise the others could not be reduced.
    async fn reduced(
        &self,
        agent: &Text,
        summary: &Summary,
    ) -> Result<(Vec<Change>, usize), StoreError> {
        if summary.record.is_without_values() {
            return Ok((Vec::new(), summary.bytes));
        }
        let id = summary.record.execution_id();
        let stored = match self.load(agent, id).await {
            Err(error) if error.0.is::<MalformedRecord>() => {
                tracing::error!(
                    %agent, execution_id = %id,
                    "a malformed record is removed: if its request is repeated, it runs again"
                );
                None
            }
            loaded => loaded?,
        };
        Ok(match stored {
            Some(stored) => stored.without_values(None).changes(agent),
            // A summary without a record describes nothing.
            None => (summary.removal(agent).into(), 0),
        })
    }

    fn account(&self, agent: &Text) -> Account {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(agents.entry(agent.clone()).or_default())
    }
}

// === impl Summary ===

impl Summary {
    fn read(key: String, bytes: &[u8]) -> Option<Self> {
        let value = crate::parse(bytes).ok()?;
        Some(Self {
            key,
            record: Record::read(value.get("summary")?)?,
            bytes: usize::try_from(value.get("bytes")?.as_i64()?).ok()?,
        })
    }

    /// The change that removes it together with its record.
    fn removal(&self, agent: &Text) -> [Change; 2] {
        removal(agent, self.record.execution_id(), self.key.clone())
    }
}

// === impl Stored ===

impl Stored {
    /// The same without the values, which may be too large to keep.
    pub(crate) fn without_values(&self, why: Option<&Failure>) -> Self {
        Self {
            record: self.record.without_values(why),
            ..self.clone()
        }
    }

    /// The changes that write the record and its summary; and the size of the record. A record that would be too long to
    /// be read again is written without its values.
    fn changes(&self, agent: &Text) -> (Vec<Change>, usize) {
        if let Some(text) = write_within(&self.to_value(), MAX_BYTES) {
            return self.changes_with(agent, text);
        }
        tracing::warn!(
            %agent, execution_id = %self.record.execution_id(), max_bytes = MAX_BYTES,
            "the results of an execution are not stored, because its record would be too long"
        );
        let why = Failure::results_too_long(MAX_BYTES);
        let reduced = self.without_values(Some(&why));
        let text = Bytes::from(reduced.to_value().to_string());
        reduced.changes_with(agent, text)
    }

    /// The same for a record with this text.
    fn changes_with(&self, agent: &Text, text: Bytes) -> (Vec<Change>, usize) {
        let change = |table, key, value| Change {
            table,
            key,
            value: Some(value),
        };
        let bytes = text.len();
        let summary = Json::object([("bytes", bytes.into()), ("summary", self.record.summary())]);
        let summary = Bytes::from(summary.to_string());
        let key = record_key(agent, self.record.execution_id());
        let record = change(Table::Executions, key, text);
        let key = summary_key(agent, &self.record);
        (vec![record, change(Table::Summaries, key, summary)], bytes)
    }

    fn to_value(&self) -> Json {
        Json::object([
            ("digest", self.digest.clone().into()),
            ("unsafe", self.has_begun_unsafe.into()),
            ("reports", self.record.reports().into()),
            ("record", self.record.to_value()),
        ])
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let value = crate::parse(bytes).ok()?;
        let Some(Json::Bool(has_begun_unsafe)) = value.get("unsafe") else {
            return None;
        };
        let reports = value.get("reports")?.as_i64()?;
        let record = Record::read(value.get("record")?)?;
        Some(Self {
            record: record.reported(usize::try_from(reports).ok()?),
            digest: value.get("digest")?.as_str()?.into(),
            has_begun_unsafe: *has_begun_unsafe,
        })
    }
}

fn removal(agent: &Text, id: &str, summary_key: String) -> [Change; 2] {
    let change = |table, key| Change {
        table,
        key,
        value: None,
    };
    [
        change(Table::Executions, record_key(agent, id)),
        change(Table::Summaries, summary_key),
    ]
}

/// Neither names of agents nor ids of executions contain control characters, so all keys are different.
fn record_key(agent: &Text, id: &str) -> String {
    format!("{agent}\0{id}")
}

fn summary_key(agent: &Text, record: &Record) -> String {
    let began = newest_first(record.started());
    format!("{agent}\0{began}\0{}", record.execution_id())
}

/// A time in a form that puts the newest first in the order of keys.
fn newest_first(time: SystemTime) -> String {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    let millis = since_epoch.map_or(0, |since| since.as_millis());
    let rest = u64::MAX - u64::try_from(millis).unwrap_or(u64::MAX);
    format!("{rest:020}")
}
