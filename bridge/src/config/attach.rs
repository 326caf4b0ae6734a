//! Programs that the bridge starts and puts on the bus: `agents.NAME.attach`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use a2abus_transports::Topic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::routing::DestinationConfig;
use super::value::AsText;
use super::{BindingConfig, Role};
use crate::names::{Name, Pattern};

/// An MCP server over stdio that the bridge starts and calls: it reads the topic of `to`, and publishes the answers where
/// each request says. The program is started with the bridge, and again whenever it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachConfig {
    /// The program and its arguments. No shell is involved.
    ///
    /// Wrong: a program that does not start, or ends at once, is started again after 0.5 s to 30 s; its calls fail with
    /// `agent_unavailable` meanwhile.
    #[schemars(length(min = 1), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Its environment. Of the bridge's own it gets `HOME`, `LANG`, `LOGNAME`, `PATH`, `SHELL`, `TERM`, `TMPDIR`, `TZ`
    /// and `USER`, and nothing else.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory. By default that of the bridge.
    pub directory: Option<PathBuf>,
    /// Most calls at a time; further ones wait. With 1 the program may ask the client of its call (sampling,
    /// elicitation, roots) and log to it: with more nothing says which call is meant.
    ///
    /// Wrong: with many, a program that works on one call at a time lets calls run into their deadline.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 10_000))]
    pub concurrency: u32,
    /// The JetStream stream to read requests from (NATS only, with `durable`). Without it they are read at most once.
    pub stream: Option<Name>,
    /// The durable JetStream consumer that remembers the position (NATS only, with `stream`).
    pub durable: Option<Name>,
    /// The topics to which a request may direct its answer, as `reply_topics` of a binding.
    #[serde(default)]
    pub reply_topics: Vec<AsText<Pattern>>,
    /// Where requests that cannot be read are stored, as `dead_letter.topic` of a binding.
    #[serde(default = "default_dead_letter")]
    pub dead_letter: AsText<Topic>,
}

// === impl BindingConfig ===

impl BindingConfig {
    /// The binding that reads the requests of an attached agent; `None` where its destination is no topic.
    pub(super) fn attached(
        name: &Name,
        to: &DestinationConfig,
        attach: &AttachConfig,
    ) -> Option<Self> {
        let topic = Topic::new(to.topic.0.as_literal()?).ok()?;
        let value = serde_json::json!({
            "name": name, "transport": to.transport, "topics": [topic.as_str()], "group": name,
            "stream": attach.stream, "durable": attach.durable,
            "reply_topics": attach.reply_topics,
            "dead_letter": { "topic": attach.dead_letter },
        });
        let mut binding: Self = serde_json::from_value(value).ok()?;
        binding.role = Role::Agent;
        Some(binding)
    }
}

fn default_concurrency() -> u32 {
    16
}

fn default_dead_letter() -> AsText<Topic> {
    AsText(const { Topic::from_static("a2abus.dlq") })
}
