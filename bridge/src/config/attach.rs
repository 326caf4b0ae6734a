//! Programs and HTTP servers that the bridge puts on the bus: `agents.NAME.attach`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_transports::{Secret, SecretError, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::routing::DestinationConfig;
use super::value::AsText;
use super::{BindingConfig, Role};
use crate::names::{Name, Pattern};

/// A program that the bridge starts, or an HTTP server that it calls: the bridge reads the topic of `to`, and publishes the
/// answers where each request says. Exactly one of `command` and `url` is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachConfig {
    /// The program of an MCP server over stdio, and its arguments. No shell is involved. It is started with the bridge, and
    /// again whenever it ends.
    ///
    /// Wrong: a program that does not start, or ends at once, is started again after 0.5 s to 30 s; its calls fail with
    /// `agent_unavailable` meanwhile.
    #[schemars(length(min = 1), inner(length(max = 4096)))]
    pub command: Option<Vec<String>>,
    /// The URL to which the requests of an HTTP server are posted, as `http://weather.internal:8000/mcp`.
    ///
    /// Wrong: calls fail with `agent_unavailable`, and say why.
    pub url: Option<AsText<ApiBase>>,
    /// What the server at `url` speaks. A program speaks `mcp`.
    #[serde(default)]
    pub protocol: AttachProtocol,
    /// Headers of every request to `url`, such as `authorization`: texts, or secrets. A secret is the whole value, with
    /// `Bearer ` where the server wants that. It is read again after the server has answered 401 or 403.
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The environment of the program: texts, or secrets. Of the bridge's own it gets `HOME`, `LANG`, `LOGNAME`, `PATH`,
    /// `SHELL`, `TERM`, `TMPDIR`, `TZ` and `USER`, and nothing else. Secrets are read at each start.
    #[serde(default)]
    pub env: BTreeMap<String, TextOrSecret>,
    /// The working directory of the program. By default that of the bridge.
    pub directory: Option<PathBuf>,
    /// Most calls at a time; further ones wait. With 1 an MCP program may ask the client of its call (sampling,
    /// elicitation, roots) and log to it: with more nothing says which call is meant. Over HTTP the response says it.
    ///
    /// Wrong: with many, a server that works on one call at a time lets calls run into their deadline.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 10_000))]
    pub concurrency: u32,
    /// The JetStream stream to read requests from (NATS only, with `durable`). Without it they are read at most once.
    pub stream: Option<Name>,
    /// The durable JetStream consumer that remembers the position (NATS only, with `stream`).
    pub durable: Option<Name>,
    /// A topic on the transport of `to`, where the card is published when it changes and every 30 s: a bridge whose binding
    /// with `role: discovery` reads it finds the agent, for 90 s after each time.
    ///
    /// Wrong: without it only bridges that list the agent find it.
    pub announce: Option<AsText<Topic>>,
    /// The topics to which a request may direct its answer, as `reply_topics` of a binding.
    #[serde(default)]
    pub reply_topics: Vec<AsText<Pattern>>,
    /// Where requests that cannot be read are stored, as `dead_letter.topic` of a binding.
    #[serde(default = "default_dead_letter")]
    pub dead_letter: AsText<Topic>,
}

/// The protocol of an attached HTTP server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachProtocol {
    /// MCP over streamable HTTP: the bridge begins a session, as its only client.
    #[default]
    Mcp,
    /// A2A 0.3 or 1.0 over JSON-RPC: requests are posted as they are, and the card of the server is shown as that of the
    /// agent.
    A2a,
    /// JSON-RPC 2.0: requests are posted as they are.
    Jsonrpc,
}

/// A text, or a secret that is somewhere else: `{file: PATH}` or `{env: NAME}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TextOrSecret {
    /// The text itself.
    Text(String),
    /// Where it is.
    Secret(Secret),
}

// === impl TextOrSecret ===

impl TextOrSecret {
    /// The text. Blocks as long as reading a small file does.
    ///
    /// # Errors
    /// When it is a secret that cannot be read.
    pub(crate) fn reveal(&self) -> Result<String, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Secret(secret) => Ok(secret.reveal()?.as_str().to_owned()),
        }
    }

    /// The secret, if it is one.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Text(_) => None,
            Self::Secret(secret) => Some(secret),
        }
    }
}

impl std::fmt::Debug for TextOrSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

// === impl AttachConfig ===

impl AttachConfig {
    /// Its secrets, each with the map and the key that it stands at.
    pub(super) fn secrets(&self) -> impl Iterator<Item = (&'static str, &str, &Secret)> {
        let maps = [("env", &self.env), ("headers", &self.headers)];
        maps.into_iter().flat_map(|(section, map)| {
            let secrets = map.iter();
            secrets.filter_map(move |(key, value)| Some((section, key.as_str(), value.secret()?)))
        })
    }
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
