//! Executions and stored values as pure functions of their records.

use a2abus_executor::Status;
use a2abus_plugin::Text;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::state::body;
use crate::state::{Applied, Fold, Groups, Record};

/// An event of an execution. The body of a record is `{"v":1,"event":…}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// A replica claims the execution until a deadline, in milliseconds since 1970.
    Begun {
        run: Text,
        until: u64,
        /// The run that it replaces, which has ended.
        replaces: Option<Text>,
        /// The names by which other replicas can cancel it. Older bridges did not write them.
        #[serde(default)]
        names: Vec<Text>,
        execution: ExecutionRecord,
    },
    /// Its record has changed.
    Written {
        /// The run that writes; none if the execution has ended.
        run: Option<Text>,
        execution: ExecutionRecord,
    },
    /// Its record was removed.
    Removed {
        run: Option<Text>,
        summary_key: Text,
    },
    /// A client has cancelled it.
    Cancelled,
}

/// The record of an execution, with its summary.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ExecutionRecord {
    /// The key of the record.
    pub(super) key: Text,
    pub(super) summary_key: Text,
    pub(super) record: Box<RawValue>,
    pub(super) summary: Box<RawValue>,
    pub(super) is_final: bool,
}

/// An execution that a replica has claimed.
#[derive(Debug, Clone)]
pub(super) struct Execution {
    pub(super) run: Text,
    /// The deadline of the run, in milliseconds since 1970.
    pub(super) until: u64,
    /// The names by which other replicas can cancel it. Empty once it has ended.
    pub(super) names: Vec<Text>,
    pub(super) key: Text,
    pub(super) summary_key: Text,
    pub(super) record: Bytes,
    pub(super) summary: Bytes,
    pub(super) is_final: bool,
    pub(super) is_cancelled: bool,
}

/// Folds records into executions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExecutionFold;

/// A value in `localStorage`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Value {
    pub(super) key: Text,
    value: Box<RawValue>,
}

/// Keeps the last value.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueFold;

// === impl ExecutionRecord ===

impl ExecutionRecord {
    /// The record and the summary that the executor writes, both JSON.
    pub(super) fn of(
        key: Text,
        summary_key: Text,
        record: &[u8],
        summary: &[u8],
    ) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Listed {
            summary: Stands,
        }
        #[derive(Deserialize)]
        struct Stands {
            #[serde(deserialize_with = "status")]
            status: Status,
        }
        let Listed { summary: stands } = serde_json::from_slice(summary)?;
        Ok(Self {
            key,
            summary_key,
            record: serde_json::from_slice(record)?,
            summary: serde_json::from_slice(summary)?,
            is_final: stands.status.is_final(),
        })
    }
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let text = Text::deserialize(deserializer)?;
    Status::from_name(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no status")))
}

// === impl ExecutionFold ===

impl Fold for ExecutionFold {
    type Entry = Execution;

    fn apply(&self, entry: &mut Option<Execution>, record: &Record) -> Applied {
        let Some(event) = body::read(record) else {
            return Applied::Unknown;
        };
        let current = entry.as_ref();
        match event {
            Event::Begun {
                run,
                until,
                replaces,
                names,
                execution,
            } if current.is_none_or(|known| known.is_free(replaces.as_ref(), record.time)) => {
                *entry = Some(Execution::new(run, until, names, execution));
            }
            Event::Written { run, execution }
                if current.is_some_and(|known| {
                    // An ended execution does not run again.
                    (execution.is_final || !known.is_final)
                        && known.may_change(run.as_ref(), &execution.summary_key, record.time)
                }) =>
            {
                let Some(known) = entry.take() else {
                    return Applied::Unchanged;
                };
                *entry = Some(Execution {
                    is_cancelled: known.is_cancelled,
                    ..Execution::new(known.run, known.until, known.names, execution)
                });
            }
            Event::Removed { run, summary_key }
                if current.is_some_and(|known| {
                    known.may_change(run.as_ref(), &summary_key, record.time)
                }) =>
            {
                *entry = None;
            }
            Event::Cancelled => match entry.as_mut() {
                Some(known) if !known.is_final => known.is_cancelled = true,
                _ => return Applied::Unchanged,
            },
            Event::Begun { .. } | Event::Written { .. } | Event::Removed { .. } => {
                return Applied::Unchanged;
            }
        }
        Applied::Changed
    }

    fn size_bytes(&self, execution: &Execution) -> usize {
        let keys = execution.key.len() + execution.summary_key.len();
        let names = execution.names.iter();
        let names: usize = names.map(|name| size_of::<Text>() + name.len()).sum();
        size_of::<Execution>() + keys + names + execution.record.len() + execution.summary.len()
    }

    fn has_ended(&self, execution: &Execution) -> bool {
        execution.is_final
    }

    /// The agent, and the agent with its NUL for those that have not ended.
    fn groups<'a>(&self, execution: &'a Execution) -> Groups<&'a str> {
        let nul = execution.key.find('\0');
        let agent = nul.and_then(|nul| execution.key.get(..nul));
        let running = nul.and_then(|nul| execution.key.get(..=nul));
        [agent, running.filter(|_| !execution.is_final)]
    }
}

// === impl Execution ===

impl Execution {
    fn new(run: Text, until: u64, names: Vec<Text>, written: ExecutionRecord) -> Self {
        let bytes = |json: Box<RawValue>| Bytes::from(String::from(Box::<str>::from(json)));
        Self {
            run,
            until,
            names: if written.is_final { Vec::new() } else { names },
            key: written.key,
            summary_key: written.summary_key,
            record: bytes(written.record),
            summary: bytes(written.summary),
            is_final: written.is_final,
            is_cancelled: false,
        }
    }

    /// Whether another run may replace it: its deadline has passed, or the new run names it as the one to replace.
    fn is_free(&self, replaces: Option<&Text>, now: u64) -> bool {
        !self.is_final && (self.until < now || replaces == Some(&self.run))
    }

    /// Whether a run may change its record. Anyone may once the execution has ended or its deadline has passed.
    fn may_change(&self, run: Option<&Text>, summary_key: &Text, now: u64) -> bool {
        let is_it = self.summary_key == *summary_key;
        run == Some(&self.run) || is_it && (self.is_final || self.until < now)
    }
}

// === impl Value ===

impl Value {
    pub(super) fn of(key: Text, value: &[u8]) -> serde_json::Result<Self> {
        Ok(Self {
            key,
            value: serde_json::from_slice(value)?,
        })
    }

    /// Its JSON text.
    pub(super) fn text(&self) -> &str {
        self.value.get()
    }
}

// === impl ValueFold ===

impl Fold for ValueFold {
    type Entry = Value;

    fn apply(&self, entry: &mut Option<Value>, record: &Record) -> Applied {
        let Some(value) = body::read(record) else {
            return Applied::Unknown;
        };
        *entry = Some(value);
        Applied::Changed
    }

    fn size_bytes(&self, value: &Value) -> usize {
        size_of::<Value>() + value.key.len() + value.text().len()
    }

    fn groups<'a>(&self, value: &'a Value) -> Groups<&'a str> {
        [value.key.split('\0').next(), None]
    }
}
