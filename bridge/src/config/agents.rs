//! The `agents` and `a2a` sections: the agents that A2A clients can find, and the interface where they find them.

use std::collections::BTreeMap;
use std::time::Duration;

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_plugin::extension;
use a2abus_transports::{Revealed, Secret, SecretError};
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attach::{AttachConfig, AttachProtocol};
use super::binding::BindingConfig;
use super::routing::{ConditionConfig, DestinationConfig, RouteConfig};
use super::value::AsText;
use crate::names::{Attribute, Name, Pattern};

/// An agent that A2A clients can find: its card, and the destination of its requests. Its name is the `targetagent` of
/// its requests and part of its URL, `/a2a/agents/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentCardConfig {
    /// What the agent does, for people and for models that choose an agent. By default, the description in the card of
    /// an attached server.
    ///
    /// Wrong: it is required for an agent without `attach`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 4096))]
    pub description: String,
    /// The version of the agent.
    #[serde(default = "default_version")]
    #[schemars(length(min = 1, max = 64))]
    pub version: String,
    /// Where its requests go. The bridge adds a route for `targetagent: NAME` after those of `routes`.
    ///
    /// Wrong: without it, and without a matching route, calls to this agent fail with `agent_not_found`.
    pub to: Option<DestinationConfig>,
    /// A program or HTTP server that acts as the agent. The bridge reads requests from the topic of `to`, passes them
    /// to the server, and publishes its answers. The server's own card, or its list of tools, supplies what is not set
    /// here.
    pub attach: Option<AttachConfig>,
    /// What the agent can do.
    #[serde(default)]
    pub skills: Vec<SkillConfig>,
    /// What MCP clients find.
    ///
    /// - `mcp`: the agent's tools, prompts and resources.
    /// - `a2a`: one tool per skill, which sends the agent a message.
    /// - Without it: the protocol of an attached server; else `mcp` if the agent has no skills; otherwise the bridge
    ///   asks the agent for `tools/list` and offers its skills as tools if it lists none.
    ///
    /// Wrong: set `a2a` for an A2A agent that ignores unknown requests; otherwise MCP clients sometimes wait 2 s.
    pub protocol: Option<AgentProtocol>,
    /// The A2A dialect of JSON-RPC requests that do not reveal it, because they have no `A2A-Version` and nothing that
    /// only JAF has. `a2a-0.3` (default), or `jaf-doc`: the variant of A2A 0.3 that the JAF framework documents. It
    /// applies at the URL of the agent, and at `POST /a2a` if the agent is the one that is called by default.
    ///
    /// Wrong: with `jaf-doc`, SDKs of A2A 0.3 that do not send `A2A-Version` cannot read the answers.
    pub dialect: Option<ClientDialect>,
    /// Whether the agent can stream its answer in parts (`message/stream`).
    ///
    /// Wrong: with `false` clients do not request streams, and `message/stream` is refused.
    #[serde(default = "yes")]
    pub streaming: bool,
    /// The media types that it accepts.
    #[serde(default = "default_modes")]
    #[schemars(length(min = 1), inner(length(min = 1, max = 256)))]
    pub input_modes: Vec<String>,
    /// The media types that it answers with.
    #[serde(default = "default_modes")]
    #[schemars(length(min = 1), inner(length(min = 1, max = 256)))]
    pub output_modes: Vec<String>,
    /// Who offers the agent. By default, the `provider` in the card of an attached server.
    pub provider: Option<ProviderConfig>,
    /// The URL of its documentation. By default, the `documentationUrl` in the card of an attached server.
    #[schemars(pattern("^https?://[!-~]+$"), length(max = 2048))]
    pub documentation_url: Option<String>,
    /// The URL of its icon. By default, the `iconUrl` in the card of an attached server.
    #[schemars(pattern("^https?://[!-~]+$"), length(max = 2048))]
    pub icon_url: Option<String>,
    /// The extensions of A2A that its own card declares, as in the card.
    #[serde(skip)]
    pub extensions: Vec<serde_json::Value>,
    /// The versions of its MCP lists, if they are known.
    #[serde(skip)]
    pub lists: Option<ListVersions>,
}

/// Who offers an agent, as its card shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The name of the organization.
    #[schemars(length(min = 1, max = 256))]
    pub organization: String,
    /// The URL of the organization.
    #[schemars(pattern("^https?://[!-~]+$"), length(max = 2048))]
    pub url: String,
}

/// The versions of the lists of an MCP server. A list with another version may have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListVersions {
    pub(crate) tools: u64,
    pub(crate) prompts: u64,
    pub(crate) resources: u64,
}

/// The protocol of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentProtocol {
    /// It receives messages, and answers with messages and tasks.
    A2a,
    /// It has tools, prompts and resources.
    Mcp,
}

/// The dialect of requests that do not show theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientDialect {
    /// Official A2A 0.3.
    #[serde(rename = "a2a-0.3")]
    A2a03,
    /// The JAF document.
    #[serde(rename = "jaf-doc")]
    JafDoc,
}

/// One skill of an agent, as its card shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkillConfig {
    /// The id, unique among the skills of the agent.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
    /// The name for people; by default the id.
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// What it does.
    #[schemars(length(min = 1, max = 4096))]
    pub description: String,
    /// Keywords for finding it.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Examples of requests.
    #[serde(default)]
    pub examples: Vec<String>,
}

/// The MCP interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct McpConfig {
    /// What separates the agent from the tool or prompt in the names at `/mcp`: `.`, or for example `__`.
    ///
    /// Wrong: with `.`, some model APIs refuse the names, because they allow letters, digits, `_` and `-` only.
    #[schemars(pattern("^[._-]{1,2}$"))]
    pub separator: String,
}

/// The A2A interface. It is served when `agents` lists an agent, or `registry.enabled` is true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct A2aConfig {
    /// The URL under which clients reach the HTTP listener, such as `https://agents.example.com`. URLs in cards begin
    /// with it (by default with `http://` and the `Host` of the request), and so does the path of the event `endpoint`
    /// of MCP 2024-11-05. Its origin counts as that of this server. The paths of the listener are served below its path
    /// too.
    ///
    /// Wrong: behind a proxy that adds TLS or a path, the default gives cards URLs that clients cannot use.
    #[schemars(pattern("^https?://[!-~]*[!-.0-~]$"), length(max = 2048))]
    pub public_url: Option<String>,
    /// The agent that `POST /a2a` calls. By default the only agent; if there are several, the request must name one in
    /// `params._agentId` or in `metadata.targetAgent` of its message.
    pub default_agent: Option<Name>,
    /// Maximum number of parts in a message.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_parts: u32,
    /// Maximum size of a text part.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_text_part: AsText<ByteSize>,
    /// Maximum size of the file or data in a part.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_data_part: AsText<ByteSize>,
    /// Maximum number of requests of one client at a time, by its address (IPv6: by its /64 network). A stream counts
    /// until it ends. Further requests get `429` with `Retry-After`.
    ///
    /// Wrong: all clients behind one proxy count as one.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_requests_per_client: u32,
    /// Maximum number of concurrent tasks with one `contextId`. A task that waits for its client (`input-required`,
    /// `auth-required`) does not count, and a message for an existing task is never refused for this limit. A context
    /// exists as long as its tasks are stored.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_tasks_per_context: u32,
    /// How long `tasks/cancel` waits for the agent's answer. Then the task is cancelled without it.
    ///
    /// Wrong: the agent may still be working on a task that was cancelled without its answer.
    #[schemars(extend("bounds" = ["100ms", "5m"]))]
    pub cancel_timeout: AsText<Duration>,
    /// Webhooks that clients set. The bridge calls them when their tasks change.
    pub push_notifications: PushConfig,
}

/// The webhooks of A2A clients. They are stored in `state`; only one replica at a time calls a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PushConfig {
    /// Whether clients may set webhooks. The cards of the agents announce it.
    ///
    /// Wrong: clients choose these URLs, and the bridge calls them from inside its network.
    pub enabled: bool,
    /// Whether any `https` URL with public addresses is allowed. If `false`, only `allowed_urls` and those of
    /// `loopback` are.
    pub public_urls: bool,
    /// Allowed beginnings of webhook URLs. They may use `http` and private addresses, such as
    /// `http://hooks.internal:8080/a2a`.
    ///
    /// Wrong: every client can make the bridge call any path below these URLs.
    pub allowed_urls: Vec<AsText<ApiBase>>,
    /// Whether webhooks may be on the machine of the bridge: `http` or `https` URLs of `localhost`, `127.0.0.1` or
    /// `[::1]`, at any port. For development and tests.
    ///
    /// Wrong: every client can make the bridge call any path of any service on its machine.
    pub loopback: bool,
    /// Keys that encrypt the tokens and credentials of webhooks in `state`: texts of at least 32 random characters,
    /// such as `openssl rand -hex 32` prints, the same at all replicas. The first one encrypts, all decrypt. To replace
    /// a key: add the new one after it and restart all replicas; put it first and restart again; remove the old one
    /// three days later. Without keys, webhooks with a token or credentials are refused, unless `state.log` is
    /// `memory`.
    ///
    /// Wrong: whoever has a key and reads the state can call these webhooks in the name of the bridge.
    pub keys: Vec<Secret>,
    /// How long one call may take.
    #[schemars(extend("bounds" = ["100ms", "30s"]))]
    pub timeout: AsText<Duration>,
    /// How long a failed delivery is retried, counted from its first call by this process, with pauses from 1 s to
    /// 60 s. Then the bridge drops it with a log line and a metric, and goes on with the next event of the task.
    ///
    /// Wrong: events of a task are delivered in order, so later ones wait as long.
    #[schemars(extend("bounds" = ["0s", "24h"]))]
    pub give_up_after: AsText<Duration>,
    /// Maximum number of webhooks of one task.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_per_task: u32,
}

impl Default for PushConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            public_urls: true,
            allowed_urls: Vec::new(),
            loopback: false,
            keys: Vec::new(),
            timeout: AsText(Duration::from_secs(10)),
            give_up_after: AsText(Duration::from_secs(10 * 60)),
            max_per_task: 10,
        }
    }
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            separator: ".".to_owned(),
        }
    }
}

impl Default for A2aConfig {
    fn default() -> Self {
        Self {
            public_url: None,
            default_agent: None,
            max_parts: 100,
            max_text_part: AsText(ByteSize::kib(100)),
            max_data_part: AsText(ByteSize::mib(1)),
            max_requests_per_client: 10,
            max_tasks_per_context: 5,
            cancel_timeout: AsText(Duration::from_secs(5)),
            push_notifications: PushConfig::default(),
        }
    }
}

/// A key for secrets in the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// It cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Whoever reads the state could guess it.
    #[error(
        "must have at least {MIN_KEY_BYTES} bytes: `openssl rand -hex 32` prints a suitable one"
    )]
    Short,
}

/// The shortest key of webhooks, in bytes.
const MIN_KEY_BYTES: usize = 32;
/// The longest id of a skill, in characters.
const MAX_SKILL_ID: usize = 256;
/// The prefix of the name of an agent's route.
const ROUTE_PREFIX: &str = "agent-";

// === impl PushConfig ===

impl PushConfig {
    /// The text of one of the keys.
    ///
    /// # Errors
    /// When it cannot be read, or is too short.
    pub(crate) fn reveal_key(key: &Secret) -> Result<Revealed, KeyError> {
        let key = key.reveal()?;
        match key.as_str().len() {
            0..MIN_KEY_BYTES => Err(KeyError::Short),
            _ => Ok(key),
        }
    }
}

// === impl SkillConfig ===

impl SkillConfig {
    /// Checks the id of a skill. MCP clients see it as the name of a tool.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_id(id: &str) -> Result<(), &'static str> {
        if id.trim().is_empty() || id.chars().count() > MAX_SKILL_ID {
            return Err("must be a string of 1 to 256 characters");
        }
        if id.contains(char::is_control) {
            return Err("has a control character");
        }
        Ok(())
    }
}

// === impl AgentCardConfig ===

impl AgentCardConfig {
    /// The name of the route of an agent, and of the binding of an attached one.
    ///
    /// # Errors
    /// When the agent's name is too long for it.
    pub(crate) fn route_name(agent: &str) -> Result<Name, String> {
        Name::new(&format!("{ROUTE_PREFIX}{agent}"))
    }

    /// The route that `to` defines. `None` without `to`, or if the agent's name is too long for a route name.
    pub(crate) fn route(&self, name: &str) -> Option<RouteConfig> {
        let to = self.to.clone()?;
        let target = Attribute::new(extension::TARGET_AGENT).ok()?;
        let is_it = ConditionConfig::Pattern(AsText(Pattern::new(name).ok()?));
        Some(RouteConfig {
            name: Self::route_name(name).ok()?,
            when: BTreeMap::from([(AsText(target), is_it)]),
            to: vec![to],
            convert: None,
            validate: false,
        })
    }

    /// The card to show to clients: this configuration, completed by what the attached server says about itself. If the
    /// server does not stream, the card does not offer streams.
    #[must_use]
    pub(crate) fn completed_by(&self, card: Self) -> Self {
        let is_default = |modes: &Vec<String>| *modes == default_modes();
        let of = |written: &Vec<String>, card| match is_default(written) {
            true => card,
            false => written.clone(),
        };
        Self {
            description: match self.description.is_empty() {
                true => card.description,
                false => self.description.clone(),
            },
            version: match self.version == default_version() {
                true => card.version,
                false => self.version.clone(),
            },
            skills: match self.skills.is_empty() {
                true => card.skills,
                false => self.skills.clone(),
            },
            streaming: self.streaming && card.streaming,
            input_modes: of(&self.input_modes, card.input_modes),
            output_modes: of(&self.output_modes, card.output_modes),
            to: self.to.clone(),
            attach: self.attach.clone(),
            protocol: self.protocol,
            dialect: self.dialect.or(card.dialect),
            provider: self.provider.clone().or(card.provider),
            documentation_url: self.documentation_url.clone().or(card.documentation_url),
            icon_url: self.icon_url.clone().or(card.icon_url),
            extensions: card.extensions,
            lists: card.lists,
        }
    }

    /// The same, with a placeholder if an attached server has not described itself yet.
    #[must_use]
    pub(crate) fn described(mut self) -> Self {
        if self.description.is_empty() {
            "An attached server that has not described itself yet."
                .clone_into(&mut self.description);
        }
        self
    }

    /// The binding that reads the requests of an attached agent. `None` for any other agent, or if `to` is not one
    /// fixed topic.
    pub(super) fn binding(&self, name: &str) -> Option<BindingConfig> {
        let name = Self::route_name(name).ok()?;
        BindingConfig::attached(&name, self.to.as_ref()?, self.attach.as_ref()?)
    }

    /// What MCP clients find; `None` if only the agent itself knows.
    pub(crate) fn speaks(&self) -> Option<AgentProtocol> {
        let known = match self.attach.as_ref().map(|attach| attach.protocol) {
            Some(AttachProtocol::A2a) => Some(AgentProtocol::A2a),
            Some(AttachProtocol::Mcp) => Some(AgentProtocol::Mcp),
            Some(AttachProtocol::Jsonrpc) | None => {
                self.skills.is_empty().then_some(AgentProtocol::Mcp)
            }
        };
        self.protocol.or(known)
    }

    /// The attached agent that a binding of this name belongs to.
    pub(crate) fn attached_by(binding: &Name) -> Option<&str> {
        binding.as_str().strip_prefix(ROUTE_PREFIX)
    }
}

fn yes() -> bool {
    true
}

fn default_version() -> String {
    "1.0.0".to_owned()
}

fn default_modes() -> Vec<String> {
    ["text/plain", "application/json"].map(str::to_owned).into()
}
