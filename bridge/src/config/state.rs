//! The `state` section: state that replicas share.

use std::path::PathBuf;

use a2abus_transports::Topic;
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::AsText;
use crate::names::Name;

/// State that outlives a request: the tasks of A2A callers and their webhooks, the answers to requests with an
/// `Idempotency-Key`, announced agents, and workflow executions and `localStorage`. These are logs on Kafka or
/// JetStream, which all replicas read, or logs of this process alone.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StateConfig {
    /// Where the logs are: `memory`, `embedded` (files in `directory`), or the name of a Kafka or NATS transport.
    ///
    /// Wrong: with `memory` nothing survives a restart. With `memory` or `embedded` each replica has its own state, so
    /// run only one.
    #[schemars(extend("default_words" = "`memory`"))]
    pub log: Name,
    /// The directory of the files, with `log: embedded`. It must exist.
    ///
    /// Wrong: two replicas must not share a directory.
    pub directory: Option<PathBuf>,
    /// Whether the bridge creates missing topics and streams. `a2abus topics plan` shows them.
    ///
    /// Wrong: the bridge needs permission to create them; topics get the broker's default number of replicas, streams
    /// three in a NATS cluster.
    pub create: bool,
    /// The prefix of topics and subjects: `<prefix>.tasks`, `<prefix>.results`. Streams are named after them:
    /// `A2ABUS_TASKS`.
    ///
    /// Wrong: two deployments with the same prefix share their state.
    pub prefix: AsText<Topic>,
    /// Memory for each kind of state; with `log: memory` its records take as much again. When it is full, the oldest
    /// finished tasks and answers are removed; if there are none, new ones are refused. An `Idempotency-Key` whose
    /// answer was removed is still refused, until the keys of removed answers would take more than a quarter of the
    /// memory.
    ///
    /// Wrong: once the keys themselves are removed, a repeated request with such a key is executed again.
    #[schemars(extend("bounds" = ["1MiB", "1TiB"]))]
    pub memory: AsText<ByteSize>,
}

/// Where the logs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateLog<'a> {
    /// In memory.
    Memory,
    /// In files.
    Embedded,
    /// On this transport.
    Transport(&'a Name),
}

// === impl StateConfig ===

impl StateConfig {
    /// Where the logs are.
    #[must_use]
    pub fn place(&self) -> StateLog<'_> {
        match self.log.as_str() {
            "memory" => StateLog::Memory,
            "embedded" => StateLog::Embedded,
            _ => StateLog::Transport(&self.log),
        }
    }
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            log: Name::from_static("memory"),
            directory: None,
            create: false,
            prefix: AsText(const { Topic::from_static("a2abus") }),
            memory: AsText(ByteSize::mib(256)),
        }
    }
}
