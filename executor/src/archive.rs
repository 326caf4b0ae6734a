//! The records of executions in the store, and how long they stay there.
//!
//! | table | key | value |
//! |---|---|---|
//! | Executions | `<agent> NUL <execution id>` | `{"digest","unsafe","reports","record"}` |
//! | Summaries | `<agent> NUL <start, the newest first> NUL <execution id>` | `{"bytes","summary"}` |
//!
//! A record answers a request that comes again, so that it stays as long as the operator says. Its results do not have
//! to: those of an agent's oldest executions go when its records come near the bytes they may have, and its oldest
//! records only when all the others have lost theirs. Source: docs/protocols/a2e-workflows.md §D45.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use a2abus_models::Json;
use a2abus_plugin::Text;
use bytes::Bytes;

use crate::environment::{Change, Store, StoreError, StoreFull, Table};
use crate::record::Record;

/// The records of all agents.
pub(crate) struct Archive {
    store: Arc<dyn Store>,
    max_agent_bytes: usize,
    agents: std::sync::Mutex<HashMap<Text, Account>>,
}

/// What was written for an agent since room was made, in bytes; `None` where that is not known. One write at a time.
type Account = Arc<tokio::sync::Mutex<Option<usize>>>;

/// A record, with what nobody outside needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    /// Of the workflow's bytes. Source: docs/protocols/a2e-workflows.md §D45.
    pub(crate) digest: Text,
    /// Whether a request that must not be made twice may have been made.
    pub(crate) has_begun_unsafe: bool,
}

/// What lists show of a record.
struct Summary {
    key: String,
    record: Record,
    /// Of the whole record.
    bytes: usize,
}

/// Summaries that are read at a time.
const PAGE: usize = 1_000;

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
            .ok_or_else(|| StoreError("a record is malformed".into()))
    }

    /// Writes the record and its summary at once.
    ///
    /// # Cancel safety
    /// The future may be dropped; the record may then have been written or not.
    pub(crate) async fn save(&self, agent: &Text, stored: &Stored) -> Result<(), StoreError> {
        self.put(agent, stored, None).await.map(drop)
    }

    /// As [`Archive::save`], for an execution that begins, and has ended at `until` at the latest; `false` where another
    /// process runs it.
    pub(crate) async fn begin(
        &self,
        agent: &Text,
        stored: &Stored,
        until: SystemTime,
    ) -> Result<bool, StoreError> {
        self.put(agent, stored, Some(until)).await
    }

    async fn put(
        &self,
        agent: &Text,
        stored: &Stored,
        begins_until: Option<SystemTime>,
    ) -> Result<bool, StoreError> {
        let write = async |changes| match begins_until {
            Some(until) => self.store.begin(changes, until).await,
            None => self.store.write(changes).await.map(|()| true),
        };
        let account = self.account(agent);
        let mut written = account.lock().await;
        // Not known while the write is under way: this future may be dropped there.
        let before = written.take();
        let (changes, bytes) = stored.changes(agent);
        let is_written = match write(changes.clone()).await {
            Ok(is_written) => is_written,
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
        // Some of the room is made ahead, so that it is seldom looked for.
        match self.make_room(agent, self.max_agent_bytes / 4 * 3).await {
            Ok(()) => *written = Some(0),
            // The next one tries again.
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

    /// Waits as long as another process runs an execution, and loads its record.
    pub(crate) async fn ended_elsewhere(
        &self,
        agent: &Text,
        id: &str,
    ) -> Result<Option<Stored>, StoreError> {
        self.store.until_idle(&record_key(agent, id)).await;
        self.load(agent, id).await
    }

    /// Asks the other process that runs an execution to cancel it; whether there is one.
    pub(crate) async fn cancel_elsewhere(
        &self,
        agent: &Text,
        id: &str,
    ) -> Result<bool, StoreError> {
        self.store.cancel(&record_key(agent, id)).await
    }

    /// Waits until another process asks for an execution of this one to be cancelled.
    pub(crate) async fn until_cancelled(&self, agent: &Text, id: &str) {
        self.store.until_cancelled(&record_key(agent, id)).await;
    }

    /// Takes a record and its summary away.
    pub(crate) async fn remove(&self, agent: &Text, record: &Record) -> Result<(), StoreError> {
        let account = self.account(agent);
        let _one_at_a_time = account.lock().await;
        let changes = removal(agent, record.execution_id(), summary_key(agent, record));
        self.store.write(changes.into()).await
    }

    /// Summaries of an agent, the newest first, that come after a key; with the key of the last one looked at, if there
    /// may be more.
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

    /// Takes away the records of executions that began before this and do not run, and gives their number.
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
                .scan(Table::Summaries, &prefix, &after, PAGE)
                .await?;
            let mut changes = Vec::new();
            for (key, _) in &found {
                let id = key.splitn(3, '\0').nth(2).unwrap_or_default();
                if !runs(agent, id) {
                    changes.extend(removal(agent, id, key.clone()));
                }
            }
            removed += changes.len() / 2;
            self.store.write(changes).await?;
            match found.last() {
                Some((last, _)) if found.len() == PAGE => after.clone_from(last),
                _ => return Ok(removed),
            }
        }
    }

    /// Takes away the results of an agent's oldest executions until the records that are whole have no more than
    /// `max_whole` bytes, and its oldest records until those that have lost theirs have a quarter of what all may have.
    /// What has not ended stays, and the newest.
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
                "records of executions are removed early: a repeated request of one of them runs again"
            );
        }
        Ok(())
    }

    /// What writes a record without its values, if it has any; and its bytes then.
    async fn reduced(
        &self,
        agent: &Text,
        summary: &Summary,
    ) -> Result<(Vec<Change>, usize), StoreError> {
        if summary.record.is_without_values() {
            return Ok((Vec::new(), summary.bytes));
        }
        let stored = self.load(agent, summary.record.execution_id()).await?;
        Ok(match stored {
            Some(stored) => stored.without_values().changes(agent),
            // A summary without a record tells of nothing.
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

    /// What takes it away with its record.
    fn removal(&self, agent: &Text) -> [Change; 2] {
        removal(agent, self.record.execution_id(), self.key.clone())
    }
}

// === impl Stored ===

impl Stored {
    /// The same without the values, which may be too many to keep.
    pub(crate) fn without_values(&self) -> Self {
        Self {
            record: self.record.without_values(),
            ..self.clone()
        }
    }

    /// What writes the record and its summary; and the bytes of the record.
    fn changes(&self, agent: &Text) -> (Vec<Change>, usize) {
        let change = |table, key, value: &Json| Change {
            table,
            key,
            value: Some(Bytes::from(value.to_string())),
        };
        let record = Json::object([
            ("digest", self.digest.clone().into()),
            ("unsafe", self.has_begun_unsafe.into()),
            ("reports", self.record.reports().into()),
            ("record", self.record.to_value()),
        ]);
        let record = change(
            Table::Executions,
            record_key(agent, self.record.execution_id()),
            &record,
        );
        let bytes = record.value.as_ref().map_or(0, Bytes::len);
        let summary = Json::object([("bytes", bytes.into()), ("summary", self.record.summary())]);
        let summary = change(Table::Summaries, summary_key(agent, &self.record), &summary);
        (vec![record, summary], bytes)
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

/// Neither names of agents nor ids of executions have controls, so that no two keys are the same.
fn record_key(agent: &Text, id: &str) -> String {
    format!("{agent}\0{id}")
}

fn summary_key(agent: &Text, record: &Record) -> String {
    let began = newest_first(record.started());
    format!("{agent}\0{began}\0{}", record.execution_id())
}

/// A time, so that the newest is the first in the order of keys.
fn newest_first(time: SystemTime) -> String {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    let millis = since_epoch.map_or(0, |since| since.as_millis());
    let rest = u64::MAX - u64::try_from(millis).unwrap_or(u64::MAX);
    format!("{rest:020}")
}
