//! The executor's store on the logs of the state: all replicas share records and `localStorage`, and an execution runs
//! on one of them.
//!
//! | log | key | entry |
//! |---|---|---|
//! | `executions` | hash of agent and execution id | who runs it until when, the names that cancel it, its record and its summary |
//! | `storage` | hash of agent and key | the last value |
//!
//! The order of the log decides which replica starts an execution. Its claim has a deadline. After that another replica
//! may start the execution again, and further writes of the first one are ignored. The size of an agent's
//! `localStorage` is computed from its values. Replicas that write at the same time do not see each other's writes, so
//! the limit may be exceeded by the writes in flight.

mod fold;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use a2abus_executor::{
    Change, RecordForgotten, Store, StoreDelayed, StoreError, StoreFull, StoreTooLarge, Table,
};
use a2abus_plugin::Text;
use a2abus_transports::TransportErrorKind;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use self::fold::{Event, Execution, ExecutionFold, ExecutionRecord, Value, ValueFold};
use crate::clock;
use crate::lock::lock;
use crate::results::digest_of;
use crate::state::body;
use crate::state::{
    ATTENDED, EXECUTIONS, Entries, Logs, STORAGE, STORED, StateError, UNATTENDED, View,
};

/// The store of one replica.
#[derive(Debug)]
pub(crate) struct SharedStore {
    executions: View<ExecutionFold>,
    values: View<ValueFold>,
    /// Whether only this process can use the logs.
    is_alone: bool,
    /// The runs of this process and their deadlines, by the key of their execution.
    runs: Mutex<HashMap<String, (Text, u64)>>,
}

/// One page of a list: at most `most` keys that begin with `prefix` and come after the key `after`.
#[derive(Debug, Clone, Copy)]
struct Page<'a> {
    prefix: &'a str,
    after: &'a str,
    most: usize,
}

/// How long an outage of a log may delay an execution that waits for a write: the default time limit of an execution.
const DELAY: Duration = Duration::from_secs(30);
/// How many records a waiting task may lag behind before it reads the state again.
const BEHIND: usize = 8;

// === impl SharedStore ===

impl SharedStore {
    /// The store on the logs of the configuration.
    ///
    /// # Errors
    /// When a log cannot be opened.
    pub(crate) async fn open(logs: &Logs, is_alone: bool) -> Result<Self, StateError> {
        let executions = logs.view(EXECUTIONS, ExecutionFold).await?;
        let values = logs.view(STORAGE, ValueFold).await?;
        Ok(Self::new(executions, values, is_alone))
    }

    fn new(executions: View<ExecutionFold>, values: View<ValueFold>, is_alone: bool) -> Self {
        Self {
            executions,
            values,
            is_alone,
            runs: Mutex::default(),
        }
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<String, (Text, u64)>> {
        lock(&self.runs)
    }

    /// This process's run of an execution, which it may end or replace.
    fn own_run(&self, key: &str) -> Option<Text> {
        let own = self.runs().get(key).map(|(run, _)| run.clone());
        own.or_else(|| {
            let of = |execution: &Execution| self.is_alone.then(|| execution.run.clone());
            self.execution(key, of).flatten()
        })
    }

    fn execution<T>(&self, key: &str, read: impl FnOnce(&Execution) -> T) -> Option<T> {
        let at = log_key(key);
        self.executions.read(|entries| entries.get(&at).map(read))
    }

    /// The deadline of an execution that another process runs.
    fn elsewhere_until(&self, key: &str, execution: Option<&Execution>) -> Option<u64> {
        let execution = execution.filter(|execution| !execution.is_final && !self.is_alone)?;
        let is_own = self
            .runs()
            .get(key)
            .is_some_and(|(run, _)| *run == execution.run);
        let is_over = execution.until < clock::milliseconds(clock::now());
        (!is_own && !is_over).then_some(execution.until)
    }

    /// Records an event for a caller that waits for it.
    async fn commit(&self, key: &str, event: &Event) -> Result<(), StoreError> {
        let body = Some(body::write(event));
        let stored = self.executions.commit(&log_key(key), body, ATTENDED).await;
        stored.map(drop).map_err(failed)
    }

    /// Records an event of an execution. During an outage it tries again for `limit`.
    async fn record(&self, key: &str, event: &Event, limit: Duration) -> Result<(), StoreError> {
        let (key, body) = (log_key(key), Some(body::write(event)));
        let stored = self.executions.commit_again(&key, body, limit).await;
        stored.map(drop).map_err(failed)
    }

    /// Writes the record of an execution with its summary, unless another process has replaced the run.
    async fn write_execution(
        &self,
        written: ExecutionRecord,
        is_late: bool,
    ) -> Result<(), StoreError> {
        let key = written.key.to_string();
        let run = self.own_run(&key);
        let is_here = self.runs().contains_key(&key);
        let is_final = written.is_final;
        let limit = match is_late {
            true => UNATTENDED,
            // The answer of the execution waits for its record.
            false if is_here && is_final => STORED,
            false if is_here => DELAY,
            // A request may wait until the end of an execution that is not here is recorded.
            false => ATTENDED,
        };
        let event = Event::Written {
            run: run.clone(),
            execution: written,
        };
        self.record(&key, &event, limit).await?;
        let current = self.execution(&key, |execution| execution.run.clone());
        if is_final {
            self.runs().remove(&key);
        }
        match (run, current) {
            (Some(run), Some(current)) if run != current => Err(other(
                "another replica has taken over the execution, because its deadline on this replica has passed",
            )),
            _ => Ok(()),
        }
    }

    async fn write_value(&self, key: String, value: Option<Bytes>) -> Result<(), StoreError> {
        let at = log_key(&key);
        let value = value.map(|value| Value::of(key.into(), &value)).transpose();
        let value = value.map_err(|error| StoreError(error.into()))?;
        let body = value.map(|value| body::write(&value));
        let stored = self.values.commit_again(&at, body, DELAY).await;
        stored.map(drop).map_err(failed)
    }

    fn value(&self, key: &str) -> Option<Bytes> {
        match key.strip_suffix('\0') {
            Some(agent) => Some(self.account(agent)),
            None => {
                let at = log_key(key);
                let bytes = |value: &Value| Bytes::copy_from_slice(value.text().as_bytes());
                self.values.read(|entries| entries.get(&at).map(bytes))
            }
        }
    }

    /// The size of an agent's `localStorage`.
    fn account(&self, agent: &str) -> Bytes {
        let (bytes, entries) = self.values.read(|values| {
            let sizes = values.group(agent).map(|(_, value)| value.text().len());
            sizes.fold((0, 0), |(bytes, entries), size| (bytes + size, entries + 1))
        });
        format!(r#"{{"bytes":{bytes},"entries":{entries}}}"#).into()
    }

    async fn change(&self, changes: Vec<Change>, is_late: bool) -> Result<(), StoreError> {
        let mut record = None;
        for change in changes {
            let Change { table, key, value } = change;
            match table {
                // The size is computed from the values.
                Table::Local if key.ends_with('\0') => {}
                Table::Local => self.write_value(key, value).await?,
                // Its summary follows.
                Table::Executions => record = Some((key, value)),
                Table::Summaries => match (record.take(), value) {
                    (Some((of, Some(record))), Some(summary)) => {
                        let written = ExecutionRecord::of(of.into(), key.into(), &record, &summary);
                        let written = written.map_err(|error| StoreError(error.into()))?;
                        self.write_execution(written, is_late).await?;
                    }
                    (Some((of, None)), None) => {
                        let run = self.own_run(&of);
                        let summary_key = key.into();
                        let removed = Event::Removed { run, summary_key };
                        // A request may wait for it.
                        self.record(&of, &removed, ATTENDED).await?;
                    }
                    _ => return Err(other("a record and its summary must be written together")),
                },
            }
        }
        Ok(())
    }

    async fn claim(
        &self,
        changes: Vec<Change>,
        until: SystemTime,
        names: Vec<Text>,
    ) -> Result<bool, StoreError> {
        let execution = first_record(&changes)?;
        let (key, summary_key) = (execution.key.to_string(), execution.summary_key.clone());
        if self.is_forgotten(&key) {
            return Err(StoreError(RecordForgotten.into()));
        }
        let (run, until) = (
            Text::from(clock::new_event_id()),
            clock::milliseconds(until),
        );
        let event = Event::Begun {
            run: run.clone(),
            until,
            replaces: self.own_run(&key),
            names,
            execution,
        };
        self.note_run(&key, &run, until);
        let committed = self.commit(&key, &event).await;
        let current = self.execution(&key, |execution| execution.run.clone());
        if current.as_ref() == Some(&run) {
            return Ok(true);
        }
        self.runs().remove(&key);
        if let Err(error) = committed {
            self.revoke(&key, (run, summary_key), until, &error).await;
            return Err(error);
        }
        match current {
            Some(_) => Ok(false),
            None if self.is_forgotten(&key) => {
                let error = StoreError(RecordForgotten.into());
                // A replica with more memory would wait for this run.
                self.revoke(&key, (run, summary_key), until, &error).await;
                Err(error)
            }
            None => Err(other(
                "the execution was not started, because its record was removed while it was written; it may be requested again",
            )),
        }
    }

    /// Whether the record of an execution was removed for lack of memory.
    fn is_forgotten(&self, key: &str) -> bool {
        let at = log_key(key);
        self.executions.read(|entries| entries.is_forgotten(&at))
    }

    /// Revokes a run that did not start. Its record may be in the log nevertheless, and others would wait for it.
    async fn revoke(
        &self,
        key: &str,
        (run, summary_key): (Text, Text),
        until: u64,
        error: &StoreError,
    ) {
        let removed = Event::Removed {
            run: Some(run),
            summary_key,
        };
        let removed = Some(body::write(&removed));
        let taken_back = self
            .executions
            .append_within(&log_key(key), removed, ATTENDED)
            .await;
        let (agent, execution) = key.split_once('\0').unwrap_or_default();
        match taken_back {
            Ok(_) => {
                tracing::warn!(agent, execution, %error, "an execution was not started, and its record is revoked");
            }
            Err(revoke_error) => {
                let until = clock::rfc3339(clock::since_1970(until));
                tracing::error!(agent, execution, %error, %revoke_error, %until, "an execution was not started, but its record could not be revoked: if the log has stored it, this execution cannot be started before `until`");
            }
        }
    }

    /// Stores a run, and removes runs whose deadline has passed.
    fn note_run(&self, key: &str, run: &Text, until: u64) {
        let now = clock::milliseconds(clock::now());
        let mut runs = self.runs();
        runs.retain(|_, (_, until)| *until >= now);
        runs.insert(key.to_owned(), (run.clone(), until));
    }

    async fn wait_until_idle(&self, key: &str) {
        let at = log_key(key);
        loop {
            let (until, mut following) = self.executions.follow(Some(&at), BEHIND, |entries| {
                self.elsewhere_until(key, entries.get(&at))
            });
            let Some(until) = until else { return };
            let over = clock::since_1970(until).duration_since(clock::now());
            // Wait slightly longer, so that the deadline has passed.
            let over = over.unwrap_or_default() + Duration::from_millis(1);
            tokio::select! {
                () = sleep(over) => {}
                next = following.next() => if matches!(next, Ok(None)) { return },
            }
        }
    }

    async fn wait_until_cancelled(&self, key: &str) {
        let at = log_key(key);
        loop {
            let (is_cancelled, mut following) =
                self.executions.follow(Some(&at), BEHIND, |entries| {
                    entries
                        .get(&at)
                        .is_some_and(|execution| execution.is_cancelled)
                });
            if is_cancelled {
                return;
            }
            if matches!(following.next().await, Ok(None)) {
                return std::future::pending().await;
            }
        }
    }

    /// The keys of the unfinished executions of an agent that have this name.
    fn named(&self, agent: &str, name: &str) -> Vec<Text> {
        let unfinished = format!("{agent}\0");
        self.executions.read(|entries| {
            let unfinished = entries.group(&unfinished).map(|(_, execution)| execution);
            let named = unfinished.filter(|execution| execution.names.iter().any(|n| n == name));
            named.map(|execution| execution.key.clone()).collect()
        })
    }

    fn listed_values(&self, page: Page<'_>) -> Vec<(String, Bytes)> {
        // They may be large, so they are copied one by one.
        let keys = self
            .values
            .read(|entries| page.of(entries, |value| &value.key, |_| ()));
        let value = |(key, ()): (String, ())| {
            let value = self.value(&key)?;
            Some((key, value))
        };
        keys.into_iter().filter_map(value).collect()
    }

    fn listed_summaries(&self, page: Page<'_>) -> Vec<(String, Bytes)> {
        self.executions
            .read(|entries| page.of(entries, |e| &e.summary_key, |e| e.summary.clone()))
    }
}

/// The record of an execution that starts, with its summary.
fn first_record(changes: &[Change]) -> Result<ExecutionRecord, StoreError> {
    if let [record, summary] = changes
        && let (Some(text), Some(short)) = (&record.value, &summary.value)
    {
        let keys = [&record.key, &summary.key].map(|key| Text::from(key.as_str()));
        let [key, summary_key] = keys;
        let written = ExecutionRecord::of(key, summary_key, text, short);
        return written.map_err(|error| StoreError(error.into()));
    }
    Err(other(
        "an execution must start with a record and its summary",
    ))
}

// === impl Page ===

impl Page<'_> {
    /// The keys on this page in order, each with what is read from its entry. Reads only the entries of one agent if the
    /// prefix is its name with a NUL.
    fn of<E, T>(
        self,
        entries: &Entries<E>,
        key: impl Fn(&E) -> &Text,
        read: impl Fn(&E) -> T,
    ) -> Vec<(String, T)> {
        let is_here = |entry: &&E| {
            let key = key(entry).as_str();
            key.starts_with(self.prefix) && key > self.after
        };
        let mut found: Vec<&E> = match self.prefix.strip_suffix('\0') {
            Some(agent) => {
                let own = entries.group(agent).map(|(_, entry)| entry);
                own.filter(is_here).collect()
            }
            None => {
                let all = entries.iter().map(|(_, entry)| entry);
                all.filter(is_here).collect()
            }
        };
        let order = |one: &&E, other: &&E| key(one).cmp(key(other));
        if self.most < found.len() {
            // Only the keys of the page need to be sorted.
            found.select_nth_unstable_by(self.most, order);
            found.truncate(self.most);
        }
        found.sort_unstable_by(order);
        let read = |entry: &E| (key(entry).to_string(), read(entry));
        found.into_iter().map(read).collect()
    }
}

impl Store for SharedStore {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let found = match table {
            Table::Local => Ok(self.value(key)),
            Table::Executions => Ok(self.execution(key, |execution| execution.record.clone())),
            Table::Summaries => Err(other("summaries are only listed")),
        };
        Box::pin(std::future::ready(found))
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.change(changes, false))
    }

    fn write_late(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.change(changes, true))
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        let page = Page {
            prefix,
            after,
            most,
        };
        let found = match table {
            Table::Local => Ok(self.listed_values(page)),
            Table::Summaries => Ok(self.listed_summaries(page)),
            Table::Executions => Err(other("records are not listed, only their summaries")),
        };
        Box::pin(std::future::ready(found))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        until: SystemTime,
        names: Vec<Text>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.claim(changes, until, names))
    }

    fn runs_elsewhere(&self, key: &str) -> bool {
        let at = log_key(key);
        let until = |entries: &Entries<Execution>| self.elsewhere_until(key, entries.get(&at));
        self.executions.read(until).is_some()
    }

    fn until_idle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.wait_until_idle(key))
    }

    fn cancel<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            if !self.runs_elsewhere(key) {
                return Ok(false);
            }
            let cancelled = self.commit(key, &Event::Cancelled).await;
            cancelled.map(|()| true)
        })
    }

    fn cancel_named<'a>(
        &'a self,
        agent: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let (mut was_there, mut first_error) = (false, None);
            // If one cannot be cancelled, the others still are.
            for key in self.named(agent, name) {
                match self.cancel(&key).await {
                    Ok(is_cancelled) => was_there |= is_cancelled,
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            first_error.map_or(Ok(was_there), Err)
        })
    }

    fn until_cancelled<'a>(&'a self, key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.wait_until_cancelled(key))
    }
}

/// The log key for a key of any length and characters.
fn log_key(key: &str) -> String {
    digest_of([key.as_bytes()]).to_string()
}

fn failed(error: StateError) -> StoreError {
    match error {
        StateError::Full { limit, .. } => StoreError(StoreFull { max_bytes: limit }.into()),
        error if is_too_large(&error) => StoreError(StoreTooLarge(error.into()).into()),
        error if error.is_transient() => StoreError(StoreDelayed(error.into()).into()),
        error => StoreError(error.into()),
    }
}

fn is_too_large(error: &StateError) -> bool {
    match error {
        StateError::TooLarge { .. } => true,
        StateError::Bus { error, .. } => error.kind() == TransportErrorKind::TooLarge,
        _ => false,
    }
}

fn other(why: &str) -> StoreError {
    StoreError(why.into())
}

#[cfg(test)]
mod tests;
