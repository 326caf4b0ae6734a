//! Programs and HTTP servers that the bridge connects to the bus: `agents.NAME.attach`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_transports::{Secret, SecretError, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::binding::default_dead_letter_topic;
use super::routing::DestinationConfig;
use super::value::AsText;
use super::{BindingConfig, Role};
use crate::names::{Name, Pattern};

/// A program that the bridge starts, or an HTTP server that it calls. The bridge reads requests from the topic of `to`
/// and publishes each answer to the reply address of its request. Set exactly one of `command` and `url`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachConfig {
    /// The program of an MCP server over stdio, and its arguments. No shell is involved. The bridge starts it, and
    /// restarts it whenever it exits.
    ///
    /// Wrong: a program that does not start, or exits at once, is restarted after 0.5 s to 30 s; until then its calls
    /// fail with `agent_unavailable`.
    #[schemars(length(min = 1), inner(length(max = 4096)))]
    pub command: Option<Vec<String>>,
    /// The URL of an HTTP server, such as `http://weather.internal:8000/mcp`. Requests are posted to it.
    ///
    /// Wrong: while the server cannot be reached, calls fail with `agent_unavailable` and the reason.
    pub url: Option<AsText<ApiBase>>,
    /// The protocol of the server at `url`. A program always uses `mcp`.
    #[serde(default)]
    pub protocol: AttachProtocol,
    /// Headers of every request to `url`, such as `authorization`: texts, or references to secrets. Never write a
    /// secret as text. A secret holds the whole header value, including `Bearer ` if the server needs that. After a 401
    /// or 403 the secret is read again; if it has changed, a request that was answered with 401 is sent once more.
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The environment of the program: texts, or references to secrets. Never write a secret as text. Secrets are read
    /// at each start of the program. From the bridge's environment the program inherits only `HOME`, `LANG`, `LOGNAME`,
    /// `PATH`, `SHELL`, `TERM`, `TMPDIR`, `TZ` and `USER`.
    #[serde(default)]
    pub env: BTreeMap<String, TextOrSecret>,
    /// The working directory of the program; by default the bridge's.
    pub directory: Option<PathBuf>,
    /// Maximum number of concurrent calls; further ones wait. With 1, an MCP program can send requests (sampling,
    /// elicitation, roots) and log messages to the client of its call. With more, the bridge cannot tell which call
    /// they belong to. An HTTP server can always send them on the response stream of the call; what it sends on the GET
    /// of its session also needs 1.
    ///
    /// Wrong: if the server processes one call at a time, a higher value makes calls time out.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 10_000))]
    pub concurrency: u32,
    /// The JetStream stream to read requests from (NATS only, with `durable`). Without it, requests are read at most
    /// once.
    pub stream: Option<Name>,
    /// The durable JetStream consumer that remembers the position (NATS only, with `stream`).
    pub durable: Option<Name>,
    /// A topic on the transport of `to`. The card is published there after each change and every 30 s. A bridge that
    /// reads the topic with `role: discovery` knows the agent for 90 s after each publication, and for 40 s after the last
    /// one, when the process stops.
    ///
    /// Wrong: without it, only bridges that list the agent know it.
    pub announce: Option<AsText<Topic>>,
    /// The topics where a request may ask for its answer; see `reply_topics` of a binding.
    #[serde(default)]
    pub reply_topics: Vec<AsText<Pattern>>,
    /// The topic for requests that cannot be read; see `dead_letter.topic` of a binding.
    #[serde(default = "default_dead_letter_topic")]
    pub dead_letter: AsText<Topic>,
}

/// The protocol of an attached HTTP server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachProtocol {
    /// MCP over streamable HTTP: the bridge opens one session.
    #[default]
    Mcp,
    /// A2A 0.3 or 1.0 over JSON-RPC: requests are posted unchanged, and the server's card becomes the agent's card.
    A2a,
    /// JSON-RPC 2.0: requests are posted unchanged.
    Jsonrpc,
}

/// A text, or a reference to a secret: `{file: PATH}` or `{env: NAME}`.
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
    /// The text. Blocks while it reads a small file.
    ///
    /// # Errors
    /// When the secret cannot be read.
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
    /// Its secrets, each with the name of its map and its key there.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &str, &Secret)> {
        let maps = [("env", &self.env), ("headers", &self.headers)];
        maps.into_iter().flat_map(|(section, map)| {
            let secrets = map.iter();
            secrets.filter_map(move |(key, value)| Some((section, key.as_str(), value.secret()?)))
        })
    }

    /// Why its program cannot be started on this machine. If `PATH` is a secret, nobody looks for the program in it.
    pub(super) fn missing_program(&self) -> Option<&'static str> {
        let program = self.command.as_ref()?.first()?;
        let path = match self.env.get("PATH") {
            Some(TextOrSecret::Text(path)) => OsString::from(path),
            Some(TextOrSecret::Secret(_)) => return None,
            None => std::env::var_os("PATH").unwrap_or_default(),
        };
        let directory = self.directory.as_deref().unwrap_or(Path::new("."));
        find_program(program, directory, &path).err()
    }
}

/// Why a program that is on this machine cannot be started.
pub(super) const NOT_EXECUTABLE: &str = "is not executable: run chmod +x on it";

/// Looks for a program as the bridge starts it: in a directory if its name has a slash, else in `path`.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn find_program(
    program: &str,
    directory: &Path,
    path: &OsStr,
) -> Result<(), &'static str> {
    let is_executable = |path: &Path| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        let path = directory.join(program);
        return match is_executable(&path) {
            true => Ok(()),
            false if path.is_file() => Err(NOT_EXECUTABLE),
            false => Err("no such program"),
        };
    }
    let mut candidates = std::env::split_paths(path).map(|folder| folder.join(program));
    let found = candidates.any(|candidate| is_executable(&candidate));
    let missing = "there is no such program in PATH: install it, or give its path";
    found.then_some(()).ok_or(missing)
}

// === impl BindingConfig ===

impl BindingConfig {
    /// The binding that reads the requests of an attached agent; `None` if its destination is not one fixed topic.
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
