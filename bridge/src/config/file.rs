//! The whole configuration and its schema.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde_json::Value;

use super::agents::{A2aConfig, AgentCardConfig, McpConfig};
use super::binding::BindingConfig;
use super::problem::Problem;
use super::registry::RegistryConfig;
use super::routing::{DestinationConfig, RouteConfig};
use super::service::{AdminConfig, CallsConfig, HttpConfig, LimitsConfig, TelemetryConfig};
use super::state::StateConfig;
use super::transport::TransportConfig;
use super::workflows::WorkflowsConfig;
use crate::names::Name;

/// The configuration of a bridge.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Config {
    /// The name of this bridge in the `source` of mapped events. Default: the host's name (`HOSTNAME`, else the
    /// system's) if that is a valid name, otherwise `a2abus`.
    #[schemars(default = "default_instance", extend("default_words" = "the host's name"))]
    pub instance: Name,
    /// The buses, by a name of your choice.
    #[schemars(default, extend("propertyNames" = {"format": "name"}))]
    pub transports: BTreeMap<Name, TransportConfig>,
    /// The topics to read, and how to process their messages.
    #[schemars(default)]
    pub bindings: Vec<BindingConfig>,
    /// Where events go; the first matching route decides.
    #[schemars(default)]
    pub routes: Vec<RouteConfig>,
    /// Where events that match no route go. Without it, they become dead letters with the reason `no_route`.
    #[schemars(default)]
    pub default_route: Vec<DestinationConfig>,
    /// The agents that A2A clients can find, by name.
    #[schemars(default, extend("propertyNames" = {"format": "name"}))]
    pub agents: BTreeMap<Name, AgentCardConfig>,
    /// Agents that announce themselves.
    #[schemars(default)]
    pub registry: RegistryConfig,
    /// The A2A interface.
    #[schemars(default)]
    pub a2a: A2aConfig,
    /// The MCP interface.
    #[schemars(default)]
    pub mcp: McpConfig,
    /// Calls: requests that expect an answer.
    #[schemars(default)]
    pub calls: CallsConfig,
    /// The HTTP listener for callers.
    #[schemars(default)]
    pub http: HttpConfig,
    /// The HTTP listener for operators.
    #[schemars(default)]
    pub admin: AdminConfig,
    /// Limits of payloads.
    #[schemars(default)]
    pub limits: LimitsConfig,
    /// Logs and metrics.
    #[schemars(default)]
    pub telemetry: TelemetryConfig,
    /// State that outlives a request.
    #[schemars(default)]
    pub state: StateConfig,
    /// The executor of A2E workflows.
    #[schemars(default)]
    pub workflows: WorkflowsConfig,
    /// The file it was read from, if any. A change of the file reloads it.
    #[schemars(skip)]
    pub file: Option<PathBuf>,
    /// The file and the variables as one document, which a reload compares.
    #[schemars(skip)]
    pub(crate) document: Value,
    /// Warnings: valid, but probably not intended.
    #[schemars(skip)]
    pub warnings: Vec<Problem>,
    /// Warnings about what may be missing on the bus; see [`Severity::Unverified`](super::Severity::Unverified).
    #[schemars(skip)]
    pub unverified: Vec<Problem>,
}

/// The JSON Schema (2020-12) of the configuration file. Beyond the standard: the keyword `bounds` holds the smallest
/// and the largest value of a duration or size written as text, and `default_words` describes a default that depends on
/// the environment.
#[must_use]
pub fn json_schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

fn default_instance() -> Name {
    Name::from_static("a2abus")
}
