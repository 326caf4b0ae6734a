//! The configuration of a bridge.
//!
//! ```text
//!  file ──YAML──> raw::Node ──> + A2ABUS_ variables ──> schema: every value alone ──> sections ──> validate: together
//!  (line and column of every node)                      └──────────── problems, all of them ────────────┘
//! ```
//!
//! [`Config::load`] is the entry point. It reports problems together, each with its path, its line, and the fix. If a
//! value is wrong by itself, its section or entry is left out of the checks of several values.
//! The JSON Schema ([`json_schema`]) and the reference (`CONFIGURATION.md`) are generated from the structs of this
//! module.

mod agents;
mod attach;
mod binding;
mod changes;
mod condition;
mod convert;
mod file;
mod nearest;
mod path;
mod problem;
mod raw;
#[cfg(all(test, feature = "kafka", feature = "nats"))]
mod reference;
mod registry;
mod routing;
mod schema;
mod section;
mod service;
mod state;
mod transport;
mod validate;
mod value;
mod workflows;

#[cfg(test)]
#[cfg(all(feature = "kafka", feature = "nats"))]
mod tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

pub use self::agents::{
    A2aConfig, AgentCardConfig, AgentProtocol, ClientDialect, ListVersions, McpConfig,
    ProviderConfig, PushConfig, SkillConfig,
};
pub(crate) use self::attach::find_program;
pub use self::attach::{AttachConfig, AttachProtocol, TextOrSecret};
pub use self::binding::{
    BindingConfig, Claim, DeadLetterConfig, E2aShapes, EventIds, Family, MappingConfig,
    Notifications, OnUnknown, Role, StreamMcptype,
};
pub(crate) use self::changes::{Change, changes};
pub(crate) use self::condition::{Anchor, Condition, condition_holds};
pub use self::file::{Config, json_schema};
pub use self::problem::{ConfigErrors, Problem, Severity, SourceLocation};
pub(crate) use self::registry::MAX_CARD_BYTES;
pub use self::registry::{RegistryConfig, RegistryDestination, UnknownAgents};
pub(crate) use self::routing::answering;
pub use self::routing::{
    ConditionConfig, DEFAULT_ROUTE, DestinationConfig, DialectsConfig, RouteConfig,
};
pub use self::service::{
    AdminConfig, CallsConfig, HttpConfig, LimitsConfig, LogFormat, ReplyTokenMode, TelemetryConfig,
};
pub use self::state::{StateConfig, StateLog};
pub use self::transport::{TransportConfig, TransportType};
pub use self::value::{AsText, LogFilter, TextFormat};
pub use self::workflows::{
    AgentConfig, ApiConfig, ApiKey, CredentialConfig, CredentialType, EndpointConfig, Grant,
    HttpMethod, RatesConfig, RetryUnsafe, WorkflowsConfig,
};
pub use crate::names::{GlobText, Mode, Name, Names, Pattern};

/// Whether to read secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secrets {
    /// Check only how the file refers to them.
    Referenced,
    /// Read each of them.
    Read,
}

// === impl Config ===

impl Config {
    /// Whether A2A clients can have tasks: there is an agent, or one can announce itself.
    #[must_use]
    pub fn keeps_tasks(&self) -> bool {
        !self.agents.is_empty() || self.registry.enabled
    }

    /// Whether clients can set webhooks for their tasks.
    #[must_use]
    pub fn keeps_webhooks(&self) -> bool {
        self.keeps_tasks() && self.a2a.push_notifications.enabled
    }

    /// Whether answers are stored: those to requests with an `Idempotency-Key`, and those of attached agents.
    #[must_use]
    pub fn keeps_results(&self) -> bool {
        let mut bindings = self.bindings.iter();
        self.http.enabled || bindings.any(|binding| binding.role == Role::Agent)
    }

    /// Whether records of executions and `localStorage` are stored in the logs of `state`.
    #[must_use]
    pub fn keeps_executions(&self) -> bool {
        let workflows = &self.workflows;
        let is_kept = self.state.place() != StateLog::Memory;
        workflows.enabled && workflows.data_directory.is_none() && is_kept
    }

    /// Whether A2A tasks, and the answers to requests with an `Idempotency-Key`, are only in the memory of this process
    /// although its replicas could share them on a bus.
    #[must_use]
    pub fn keeps_state_alone(&self) -> bool {
        let mut transports = self.transports.values();
        let has_bus = transports.any(|it| it.transport_type() != TransportType::Memory);
        self.http.enabled && has_bus && self.state.place() == StateLog::Memory
    }

    /// Reads the file, applies the environment variables, and checks everything. It opens no connection and reads no
    /// secret.
    ///
    /// `environment` is `std::env::vars_os()`: variables `A2ABUS_SECTION__KEY` set `section.key`.
    ///
    /// # Errors
    /// All errors and warnings about the file and the environment.
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigErrors> {
        Self::load_with(path, environment, Secrets::Referenced)
    }

    /// Like [`Config::load`], but also reads every secret that the bridge needs to start, to check that it exists.
    ///
    /// # Errors
    /// Like [`Config::load`], plus every secret that cannot be read. No error contains a secret.
    pub fn load_with_secrets(
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigErrors> {
        Self::load_with(path, environment, Secrets::Read)
    }

    /// Like [`Config::load`], for text in memory. Problems call it `file`.
    ///
    /// # Errors
    /// Like [`Config::load`].
    pub fn read(
        file: &str,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigErrors> {
        Self::read_with(file, text, environment, Secrets::Referenced)
    }

    /// The text of a file, for [`Config::read`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn text_of(path: &Path) -> Result<String, ConfigErrors> {
        read_file(path)
            .map_err(|error| ConfigErrors::unreadable(&path.display().to_string(), &error))
    }

    /// The transports in a configuration and the environment, each with its type if that is known. Checks nothing else.
    ///
    /// # Errors
    /// When the text is not YAML.
    pub(crate) fn transports_of(
        file: &str,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Vec<(String, Option<TransportType>)>, ConfigErrors> {
        let mut problems = ConfigErrors::new(file);
        let Some(root) = raw::read(text, environment, &mut problems) else {
            return Err(problems);
        };
        let root = root.to_json();
        let transports = root.get("transports").and_then(Value::as_object);
        let named = transports.into_iter().flatten().map(|(name, settings)| {
            let kind = settings.get("type").cloned().unwrap_or_default();
            (name.clone(), serde_json::from_value(kind).ok())
        });
        Ok(named.collect())
    }

    fn load_with(
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        secrets: Secrets,
    ) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let text = Self::text_of(path)?;
        Self::read_with(&file, &text, environment, secrets).map(|config| Self {
            file: Some(path.to_owned()),
            ..config
        })
    }

    fn read_with(
        file: &str,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        secrets: Secrets,
    ) -> Result<Self, ConfigErrors> {
        let mut problems = ConfigErrors::new(file);
        match raw::read(text, environment, &mut problems) {
            Some(root) => Self::checked(&root, problems, secrets),
            None => Err(problems),
        }
    }

    /// The configuration of a document that mixes the values of several valid ones. Variables are already applied. Like
    /// [`Config::load`], it opens no connection and reads no secret.
    ///
    /// # Errors
    /// When the values do not fit together.
    pub(crate) fn of_document(document: Value) -> Result<Self, ConfigErrors> {
        let problems = ConfigErrors::new("the configuration in use");
        let root = raw::Node::from_json(document);
        Self::checked(&root, problems, Secrets::Referenced)
    }

    fn checked(
        root: &raw::Node,
        mut problems: ConfigErrors,
        secrets: Secrets,
    ) -> Result<Self, ConfigErrors> {
        schema::check(root, &json_schema(), &mut problems);
        if !root.is_map() {
            return Err(problems);
        }
        let sections = section::Sections::new(root, &mut problems);
        validate::check(&sections, root, &mut problems);
        if secrets == Secrets::Read {
            validate::check_secrets(&sections, root, &mut problems);
        }
        problems.sort();
        match sections.into_config() {
            Some(mut config) if !problems.has_errors() => {
                config.document = root.to_json();
                (config.unverified, config.warnings) = problems
                    .into_problems()
                    .into_iter()
                    .partition(|problem| problem.severity == Severity::Unverified);
                Ok(config)
            }
            _ => Err(problems),
        }
    }
}

/// The largest file, in bytes.
const LARGEST_FILE: u64 = 16 << 20;

/// Reads the text of a file. The limit matters because the path may be a device that never ends.
fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_FILE {
        let message = "the file is larger than 16 MiB";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to());
        let lines = valid.unwrap_or_default().split(|byte| *byte == b'\n');
        let line = lines.count();
        let message = format!("line {line} is not UTF-8: save the file as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Checks only the `mapping` section of a binding and returns its first problem.
pub(crate) fn check_mapping(mapping: &Value) -> Result<(), String> {
    let schema = schemars::schema_for!(MappingConfig).to_value();
    schema::check_section(mapping.clone(), &schema)
}
