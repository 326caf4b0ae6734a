//! The `agents` and `a2a` sections: the agents that A2A clients find, and where they find them.

use std::collections::BTreeMap;
use std::time::Duration;

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_plugin::extension;
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attach::{AttachConfig, AttachProtocol};
use super::binding::BindingConfig;
use super::routing::{ConditionConfig, DestinationConfig, RouteConfig};
use super::value::AsText;
use crate::names::{Attribute, Name, Pattern};

/// An agent that A2A clients find: what its card says, and where its requests go. Its name is the `targetagent` of its
/// requests and part of its URL, `/a2a/agents/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentCardConfig {
    /// What the agent does, for people and for models that choose an agent. Without it, that of the card of an attached
    /// server.
    ///
    /// Wrong: an agent without `attach` needs it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 4096))]
    pub description: String,
    /// The version of the agent.
    #[serde(default = "default_version")]
    #[schemars(length(min = 1, max = 64))]
    pub version: String,
    /// Where its requests go: a route for `targetagent: NAME` without writing one. Routes that are written come first.
    ///
    /// Wrong: without it, and without a route that takes them, calls of this agent fail with `agent_not_found`.
    pub to: Option<DestinationConfig>,
    /// A program or an HTTP server that is the agent: the bridge reads the topic of `to`, and answers from there. What its
    /// card is not told here is taken from the server's own card, or made from its tools.
    pub attach: Option<AttachConfig>,
    /// What it can do.
    #[serde(default)]
    pub skills: Vec<SkillConfig>,
    /// What MCP clients find. `mcp`: its tools, prompts and resources. `a2a`: each skill, as a tool that sends it a
    /// message. Without it: what an attached server speaks; else `mcp` if the agent has no skills; any other is asked for `tools/list`, and has its
    /// skills as tools if it answers with none.
    ///
    /// Wrong: an A2A agent that leaves unknown requests unanswered, without `protocol: a2a`, keeps MCP clients waiting for
    /// 2 s now and then.
    pub protocol: Option<AgentProtocol>,
    /// Whether it sends answers in parts, which clients ask for with `message/stream`.
    ///
    /// Wrong: with `false` clients do not ask for streams, and `message/stream` is refused.
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
}

/// The protocol of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentProtocol {
    /// It is sent messages, and answers with messages and tasks.
    A2a,
    /// It has tools, prompts and resources.
    Mcp,
}

/// One skill of an agent, as its card shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkillConfig {
    /// The id, unique among the skills of the agent.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
    /// The name for people; the id if it is not given.
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// What it does.
    #[schemars(length(min = 1, max = 4096))]
    pub description: String,
    /// Words to find it by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Examples of requests.
    #[serde(default)]
    pub examples: Vec<String>,
}

/// The A2A interface. It is served when `agents` lists an agent, or `registry.enabled` is true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct A2aConfig {
    /// The URL by which clients reach the HTTP listener, as `https://agents.example.com`: the URLs of cards begin with
    /// it. Without it they begin with `http://` and the `Host` of the request.
    ///
    /// Wrong: behind a proxy that adds TLS or a path, cards without it name URLs that clients cannot use.
    #[schemars(pattern("^https?://[!-~]*[!-.0-~]$"), length(max = 2048))]
    pub public_url: Option<String>,
    /// The agent of `POST /a2a`. Without it: the only agent; of several, the one that the request names in
    /// `params._agentId` or in `metadata.targetAgent` of its message.
    pub default_agent: Option<Name>,
    /// Most parts of a message.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_parts: u32,
    /// Largest text of a part.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_text_part: AsText<ByteSize>,
    /// Largest file or data of a part.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_data_part: AsText<ByteSize>,
    /// Most requests of one client at a time, by its address (IPv6: by its /64 network). A stream counts until it ends.
    /// Further ones get `429` with `Retry-After`.
    ///
    /// Wrong: all clients behind one proxy count as one.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_requests_per_client: u32,
    /// Most tasks of one `contextId` that are being worked on. A context lives for as long as its tasks are kept: 24 hours.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_tasks_per_context: u32,
    /// Webhooks that clients set, and that the bridge calls when something happens to their tasks.
    pub push_notifications: PushConfig,
}

/// The webhooks of A2A clients. They are kept in the state, and one replica at a time calls each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PushConfig {
    /// Whether clients may set webhooks. Cards say so.
    ///
    /// Wrong: webhooks are URLs that clients choose; the bridge calls them from inside its network.
    pub enabled: bool,
    /// Whether a webhook may have any URL with `https` whose addresses are public. Without it only `allowed_urls`.
    pub public_urls: bool,
    /// URLs that webhooks may begin with, also with `http` and with private addresses, as
    /// `http://hooks.internal:8080/a2a`.
    ///
    /// Wrong: every client can have anything below these URLs called.
    pub allowed_urls: Vec<AsText<ApiBase>>,
    /// How long one call may take.
    #[schemars(extend("bounds" = ["100ms", "30s"]))]
    pub timeout: AsText<Duration>,
    /// How long a delivery that fails is repeated, with pauses from 1 s to 60 s. Then it is given up, which is logged and
    /// counted, and the next event of the task is delivered.
    ///
    /// Wrong: events of a task are delivered in order, so later ones wait for as long.
    #[schemars(extend("bounds" = ["0s", "24h"]))]
    pub give_up_after: AsText<Duration>,
    /// Most webhooks of one task.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_per_task: u32,
}

impl Default for PushConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            public_urls: true,
            allowed_urls: Vec::new(),
            timeout: AsText(Duration::from_secs(10)),
            give_up_after: AsText(Duration::from_secs(10 * 60)),
            max_per_task: 10,
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
            push_notifications: PushConfig::default(),
        }
    }
}

/// The longest id of a skill, in characters.
const MAX_SKILL_ID: usize = 256;
/// The name of the route of an agent begins with this.
const ROUTE_PREFIX: &str = "agent-";

// === impl SkillConfig ===

impl SkillConfig {
    /// Whether a skill may have this id: MCP clients get it as the name of a tool.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_id(id: &str) -> Result<(), &'static str> {
        if id.trim().is_empty() || id.chars().count() > MAX_SKILL_ID {
            return Err("is not a text of 1 to 256 characters");
        }
        if id.contains(char::is_control) {
            return Err("has a control character");
        }
        Ok(())
    }
}

// === impl AgentCardConfig ===

impl AgentCardConfig {
    /// The route that `to` stands for; `None` where there is none, or where the name is too long for one.
    pub(super) fn route(&self, name: &str) -> Option<RouteConfig> {
        let to = self.to.clone()?;
        let target = Attribute::new(extension::TARGET_AGENT).ok()?;
        let is_it = ConditionConfig::Pattern(AsText(Pattern::new(name).ok()?));
        Some(RouteConfig {
            name: Name::new(&format!("{ROUTE_PREFIX}{name}")).ok()?,
            when: BTreeMap::from([(AsText(target), is_it)]),
            to: vec![to],
            convert: None,
            validate: false,
        })
    }

    /// What clients are shown, where an attached server has said this about itself: what is written here, and what is not
    /// from there. A server that does not stream is not asked to.
    #[must_use]
    pub(crate) fn completed_by(&self, said: Self) -> Self {
        let is_default = |modes: &Vec<String>| *modes == default_modes();
        let of = |written: &Vec<String>, said| match is_default(written) {
            true => said,
            false => written.clone(),
        };
        Self {
            description: match self.description.is_empty() {
                true => said.description,
                false => self.description.clone(),
            },
            version: match self.version == default_version() {
                true => said.version,
                false => self.version.clone(),
            },
            skills: match self.skills.is_empty() {
                true => said.skills,
                false => self.skills.clone(),
            },
            streaming: self.streaming && said.streaming,
            input_modes: of(&self.input_modes, said.input_modes),
            output_modes: of(&self.output_modes, said.output_modes),
            to: self.to.clone(),
            attach: self.attach.clone(),
            protocol: self.protocol,
        }
    }

    /// The same with words where an attached server has not described itself yet.
    #[must_use]
    pub(crate) fn described(mut self) -> Self {
        if self.description.is_empty() {
            "An attached server that has not described itself.".clone_into(&mut self.description);
        }
        self
    }

    /// The binding that reads the requests of an attached agent; `None` of any other, or where it reads no single topic.
    pub(super) fn binding(&self, name: &str) -> Option<BindingConfig> {
        let name = Name::new(&format!("{ROUTE_PREFIX}{name}")).ok()?;
        BindingConfig::attached(&name, self.to.as_ref()?, self.attach.as_ref()?)
    }

    /// What MCP clients find; `None` where only the agent knows.
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

    /// The agent whose binding has this name.
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
