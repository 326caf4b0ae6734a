//! The logs of the bridge, and their locations on a bus.

use std::fmt;
use std::time::Duration;

use a2abus_transports::Topic;

use super::log::{Kind, LogSpec};

/// Tasks of A2A callers and their events.
pub const TASKS: LogSpec = LogSpec {
    name: "tasks",
    kind: Kind::Events {
        life: DAY,
        max_life: DAYS_3,
    },
};

/// The last announcement of each agent.
pub const AGENTS: LogSpec = LogSpec {
    name: "agents",
    kind: Kind::Latest,
};

/// The webhooks of tasks, and what was delivered to them.
pub const PUSH: LogSpec = LogSpec {
    name: "push",
    kind: Kind::Events {
        life: DAY,
        max_life: DAYS_3,
    },
};

/// Answers to requests with an idempotency key.
pub const RESULTS: LogSpec = LogSpec {
    name: "results",
    kind: Kind::Events {
        life: DAY,
        // A call may take a day until it is answered.
        max_life: DAYS_2,
    },
};

/// Executions of workflows, and their records.
pub const EXECUTIONS: LogSpec = LogSpec {
    name: "executions",
    kind: Kind::Events {
        // An hour longer than the executor keeps records.
        life: HOURS_25,
        max_life: DAYS_2,
    },
};

/// The values of `localStorage`.
pub const STORAGE: LogSpec = LogSpec {
    name: "storage",
    kind: Kind::Latest,
};

/// All logs.
pub const LOGS: [LogSpec; 6] = [TASKS, AGENTS, PUSH, RESULTS, EXECUTIONS, STORAGE];

const DAY: Duration = hours(24);
const HOURS_25: Duration = hours(25);
const DAYS_2: Duration = hours(2 * 24);
const DAYS_3: Duration = hours(3 * 24);

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

/// The location of a log on a bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLocation {
    /// A topic of Kafka: the key of a record is its key.
    Topic(Topic),
    /// A stream of JetStream: the key of a record is the rest of its subject.
    Stream {
        /// The name of the stream.
        name: String,
        /// The prefix of the subjects, without the final dot.
        prefix: Topic,
    },
}

// === impl LogLocation ===

impl fmt::Display for LogLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => write!(f, "topic {topic}"),
            Self::Stream { name, .. } => write!(f, "stream {name}"),
        }
    }
}

impl LogLocation {
    /// The topic of a log on Kafka; `None` for a prefix that is too long.
    #[must_use]
    pub fn on_kafka(spec: &LogSpec, prefix: &Topic) -> Option<Self> {
        let topic = Topic::new(format!("{prefix}.{}", spec.name)).ok()?;
        Some(Self::Topic(topic))
    }

    /// The stream of a log on JetStream; `None` for a prefix that is too long.
    #[must_use]
    pub fn on_jetstream(spec: &LogSpec, prefix: &Topic) -> Option<Self> {
        let prefix = Topic::new(format!("{prefix}.{}", spec.name)).ok()?;
        let name = prefix.as_str().replace('.', "_").to_uppercase();
        Some(Self::Stream { name, prefix })
    }
}
