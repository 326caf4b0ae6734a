//! The parts of the configuration that were read successfully, even if others were not.
//!
//! Checks across several values (`validate`) use these parts, so one bad value neither hides other problems nor causes
//! false ones.

mod partial;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use self::partial::PartialEntries;
use super::path::ValuePath;
use super::problem::ConfigErrors;
use super::raw::Node;
use super::{
    A2aConfig, AdminConfig, AgentCardConfig, BindingConfig, CallsConfig, Config, DestinationConfig,
    HttpConfig, LimitsConfig, McpConfig, Name, RegistryConfig, RouteConfig, StateConfig,
    TelemetryConfig, TransportConfig, WorkflowsConfig,
};

/// The sections and entries. `None` marks one that could not be read; its problems are already reported.
#[derive(Debug)]
pub(super) struct Sections {
    pub(super) instance: Option<Name>,
    pub(super) transports: BTreeMap<String, Option<TransportConfig>>,
    pub(super) bindings: Vec<Option<BindingConfig>>,
    pub(super) routes: Vec<Option<RouteConfig>>,
    pub(super) default_route: Vec<Option<DestinationConfig>>,
    pub(super) agents: BTreeMap<String, Option<AgentCardConfig>>,
    /// The routes that entries of `agents` define, with the names of the agents.
    pub(super) agent_routes: Vec<(String, RouteConfig)>,
    /// The bindings that read the requests of attached agents, with the names of the agents.
    pub(super) attached: Vec<(String, BindingConfig)>,
    pub(super) registry: Option<RegistryConfig>,
    pub(super) a2a: Option<A2aConfig>,
    pub(super) mcp: Option<McpConfig>,
    pub(super) calls: Option<CallsConfig>,
    pub(super) http: Option<HttpConfig>,
    pub(super) admin: Option<AdminConfig>,
    pub(super) limits: Option<LimitsConfig>,
    pub(super) telemetry: Option<TelemetryConfig>,
    pub(super) state: Option<StateConfig>,
    /// Values that are read on their own, even from entries that cannot be read as a whole.
    pub(super) partial: PartialEntries,
    pub(super) workflows: Option<WorkflowsConfig>,
    /// Sections of the wrong type (not a list or map), so their entries are unknown.
    broken: BTreeSet<&'static str>,
}

struct Reader<'a> {
    root: &'a Node,
    sections: Map<String, Value>,
    problems: &'a mut ConfigErrors,
    broken: BTreeSet<&'static str>,
}

// === impl Sections ===

impl Sections {
    pub(super) fn new(root: &Node, problems: &mut ConfigErrors) -> Self {
        let json = root.to_json();
        let partial = PartialEntries::read(&json, problems);
        let sections = match json {
            Value::Object(sections) => sections,
            _ => Map::new(),
        };
        let mut reader = Reader {
            root,
            sections,
            problems,
            broken: BTreeSet::new(),
        };
        let agents = reader.map("agents");
        Self {
            instance: reader.one("instance"),
            transports: reader.map("transports"),
            bindings: reader.list("bindings"),
            routes: reader.list("routes"),
            default_route: reader.list("default_route"),
            agent_routes: of_agents(&agents, AgentCardConfig::route),
            attached: of_agents(&agents, AgentCardConfig::binding),
            agents,
            registry: reader.section("registry"),
            a2a: reader.section("a2a"),
            mcp: reader.section("mcp"),
            calls: reader.section("calls"),
            http: reader.section("http"),
            admin: reader.section("admin"),
            limits: reader.section("limits"),
            telemetry: reader.section("telemetry"),
            state: reader.section("state"),
            partial,
            workflows: reader.section("workflows"),
            broken: reader.broken,
        }
    }

    /// Whether a section has the wrong type, so its entries are unknown.
    pub(super) fn is_broken(&self, section: &str) -> bool {
        self.broken.contains(section)
    }

    /// The configuration, if everything was read.
    pub(super) fn into_config(self) -> Option<Config> {
        let transports = self
            .transports
            .into_iter()
            .map(|(name, transport)| Some((Name::new(&name).ok()?, transport?)));
        let attached = self.attached.into_iter().map(|(_, binding)| Some(binding));
        let bindings = self.bindings.into_iter().chain(attached);
        let agents = self
            .agents
            .into_iter()
            .map(|(name, agent)| Some((Name::new(&name).ok()?, agent?)));
        let of_agents = self.agent_routes.into_iter().map(|(_, route)| Some(route));
        let routes = self.routes.into_iter().chain(of_agents);
        Some(Config {
            instance: self.instance?,
            transports: transports.collect::<Option<_>>()?,
            bindings: bindings.collect::<Option<_>>()?,
            routes: routes.collect::<Option<_>>()?,
            default_route: self.default_route.into_iter().collect::<Option<_>>()?,
            agents: agents.collect::<Option<_>>()?,
            registry: self.registry?,
            a2a: self.a2a?,
            mcp: self.mcp?,
            calls: self.calls?,
            http: self.http?,
            admin: self.admin?,
            limits: self.limits?,
            telemetry: self.telemetry?,
            state: self.state?,
            workflows: self.workflows?,
            file: None,
            document: Value::Null,
            warnings: Vec::new(),
            unverified: Vec::new(),
        })
    }
}

/// What the agents define, each with the name of its agent.
fn of_agents<T>(
    agents: &BTreeMap<String, Option<AgentCardConfig>>,
    defined: fn(&AgentCardConfig, &str) -> Option<T>,
) -> Vec<(String, T)> {
    let all = agents.iter().filter_map(|(name, agent)| {
        let defined = defined(agent.as_ref()?, name)?;
        Some((name.clone(), defined))
    });
    all.collect()
}

// === impl Reader ===

impl Reader<'_> {
    /// Reads a section whose keys all have defaults.
    fn section<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        self.sections
            .entry(name)
            .or_insert_with(|| Value::Object(Map::new()));
        self.one(name)
    }

    fn one<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = self.sections.remove(name)?;
        self.read(value, &ValuePath::root().key(name))
    }

    fn map<T: DeserializeOwned>(&mut self, name: &'static str) -> BTreeMap<String, Option<T>> {
        let path = ValuePath::root().key(name);
        match self.sections.remove(name) {
            Some(Value::Object(members)) => members
                .into_iter()
                .map(|(key, value)| {
                    let member = self.read(value, &path.key(&key));
                    (key, member)
                })
                .collect(),
            Some(_) => {
                self.broken.insert(name);
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        }
    }

    fn list<T: DeserializeOwned>(&mut self, name: &'static str) -> Vec<Option<T>> {
        let path = ValuePath::root().key(name);
        match self.sections.remove(name) {
            Some(Value::Array(items)) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| self.read(item, &path.index(index)))
                .collect(),
            Some(_) => {
                self.broken.insert(name);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Reads a value. Reports a failure, unless the schema check has already reported its reason.
    fn read<T: DeserializeOwned>(&mut self, value: Value, path: &ValuePath) -> Option<T> {
        if self.problems.has_error_under(path) {
            return None;
        }
        match serde_json::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                let site = self.root.site(path);
                self.problems.error(site, path.clone(), error.to_string());
                None
            }
        }
    }
}
