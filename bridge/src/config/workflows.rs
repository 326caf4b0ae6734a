//! The `workflows` section: the executor of A2E workflows, and who may do what with it.

use std::path::PathBuf;
use std::time::Duration;

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_plugin::Text;
use a2abus_transports::{Secret, SecretError};
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::value::AsText;
use crate::names::Name;

/// The executor of A2E workflows. A reload replaces only `apis`, `credentials` and `agents` of this section, also after
/// a change of a secret; everything else needs a restart. A key or credential whose file is missing or empty in two
/// successive checks cannot be used until the file is back.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkflowsConfig {
    /// Whether workflows are executed here: over HTTP under `/api/v1`, and from bindings with `role: workflows`.
    pub enabled: bool,
    /// The name of the executor: the `targetagent` that workflows are addressed to.
    #[schemars(
        with = "String",
        length(min = 1, max = 256),
        pattern("^[A-Za-z0-9._/:@+-]+$")
    )]
    pub agent: Text,
    /// Whether calls to `POST /rpc` and `/rpc/{agent}` may reach a binding with `role: workflows`. These callers send
    /// no key; their workflows run as `run_as`, or as the agent that a route or the payload sets as `sourceagent`. If
    /// `false`, the caller gets the error `rpc_not_permitted`.
    ///
    /// Wrong: with `true` everyone who can reach `http.listen` has the permissions of `run_as`.
    pub rpc: bool,
    /// The directory for records of executions and `localStorage`. Without it both are in the logs of `state`, which
    /// replicas share; with `state.log: memory` they are in memory, at most 256 MiB for all agents together.
    ///
    /// Wrong: without it and without a `state` that survives restarts, a restart loses all records, so a workflow that
    /// is sent again runs again. Two processes cannot share a directory.
    #[schemars(length(min = 1))]
    pub data_directory: Option<PathBuf>,
    /// Approximate limit for the stored records of each agent. Above three quarters of it, the oldest
    /// executions lose their results; above the limit, their records.
    ///
    /// Wrong: too small: results are deleted before they are fetched. Far too small: a repeated request runs again.
    #[schemars(extend("bounds" = ["1MiB", "1TiB"]))]
    pub max_record_bytes: AsText<ByteSize>,
    /// Maximum number of operations executed in one execution. A loop counts as one, and so does each operation in each
    /// of its iterations.
    ///
    /// Wrong: too small: a loop over 1,000 elements cannot finish. Far too large: only `max_execution_time` ends a
    /// runaway workflow.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_operation_runs: usize,
    /// Memory limit for each of these parts of an execution: the data model, the results, and the failures after which
    /// it continues. The size in memory counts: small objects take about five times their JSON size.
    ///
    /// Wrong: too small: large API responses cannot be processed. Each execution may use three times this amount of
    /// memory.
    #[schemars(extend("bounds" = ["1MiB", "1TiB"]))]
    pub max_model_bytes: AsText<ByteSize>,
    /// The directory to which the operation `StoreData` writes files, with a subdirectory for each agent. Without it
    /// the storage `file` does not exist.
    #[schemars(length(min = 1))]
    pub file_directory: Option<PathBuf>,
    /// Certificates (PEM) of private authorities that sign the certificates of services called by workflows, in
    /// addition to those of the system.
    pub ca_files: Vec<PathBuf>,
    /// Maximum number of retries of an API call after a temporary failure. The waits between them grow from one second
    /// to a minute.
    ///
    /// Wrong: with more retries an execution takes longer to fail, and puts more load on a service that is in trouble.
    #[schemars(range(max = 10))]
    pub max_retries: u32,
    /// How long the response to a GET is reused for the same agent; `0s` switches it off.
    ///
    /// Wrong: too long: workflows work on outdated data.
    #[schemars(extend("bounds" = ["0s", "24h"]))]
    pub cache_time: AsText<Duration>,
    /// When a POST or PATCH without an `Idempotency-Key` is sent again: `rarely`: only if it cannot have had an effect,
    /// or the service asked for a retry; `always`: like any other request.
    ///
    /// Wrong: `always` can make a service act twice.
    pub retry_unsafe: RetryUnsafe,
    /// Whether the progress of each operation is published, in addition to the start and the end of each execution.
    pub progress: bool,
    /// The threads that run executions, separate from those of the bridge and at a lower priority. The executions of
    /// one agent use at most a quarter of them at a time, at least one, so that they do not delay those of other
    /// agents.
    ///
    /// Wrong: with fewer than four, heavy workflows of one agent may delay others. With far more than four times the
    /// number of processors, heavy workflows of several agents slow down the bridge.
    #[schemars(range(min = 1, max = 256))]
    pub workers: u16,
    /// The APIs that workflows may call: the catalogue.
    pub apis: Vec<ApiConfig>,
    /// The secrets that workflows may refer to by id; workflows never see the values.
    pub credentials: Vec<CredentialConfig>,
    /// Who may execute workflows, and what they may do in them.
    pub agents: Vec<AgentConfig>,
}

/// When a request that is not safe to repeat is retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryUnsafe {
    /// Only if it cannot have had an effect, or the service asked for a retry.
    #[default]
    Rarely,
    /// Like any other request.
    Always,
}

/// A registered base URL.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// The id, unique among the APIs.
    pub id: Name,
    /// Scheme, host, port and path prefix of the URLs of this API.
    ///
    /// Wrong: a base URL inside your network lets workflows reach that host, which is otherwise forbidden; `http:`
    /// sends everything unencrypted, including credentials.
    pub base_url: AsText<ApiBase>,
    /// What it is for, as shown to agents.
    pub description: Option<String>,
    /// Its endpoints, as shown to agents. Other paths below the base URL may be called too.
    #[serde(default)]
    pub endpoints: Vec<EndpointConfig>,
}

/// One endpoint of an API.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointConfig {
    /// The path below the base URL, such as `/users/{id}`.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// The HTTP method.
    pub method: HttpMethod,
    /// What it does.
    pub description: Option<String>,
    /// Its parameters by name, each with a description for agents.
    #[serde(default)]
    pub parameters: Map<String, Value>,
}

/// The methods an ApiCall may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// Reads.
    Get,
    /// Creates or acts.
    Post,
    /// Replaces.
    Put,
    /// Removes.
    Delete,
    /// Changes.
    Patch,
}

/// A secret that workflows may refer to.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialConfig {
    /// The id that workflows refer to it by, unique among the credentials.
    pub id: Name,
    /// How it becomes a header: `bearer-token` puts `Bearer ` before it; `basic` is `user:password`, sent in Base64
    /// after `Basic `; the others are sent unchanged.
    #[serde(rename = "type")]
    pub kind: CredentialType,
    /// The secret: a file or an environment variable.
    ///
    /// Wrong: the bridge does not start if the secret is missing or empty. If it disappears later, the credential is
    /// absent until it is back.
    pub value: Secret,
    /// The ids of the APIs to which it may be sent; it is sent to no others.
    #[serde(default)]
    pub apis: Vec<Name>,
    /// What it is for, as shown to agents.
    pub description: Option<String>,
}

/// How a secret becomes a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialType {
    /// `Bearer ` and the secret.
    BearerToken,
    /// `Basic ` and the Base64 of the secret.
    Basic,
    /// The secret.
    ApiKey,
    /// The secret.
    Password,
    /// The secret.
    Custom,
}

/// One agent. Everything that is not granted is refused; an empty or missing list grants nothing.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The id, unique among the agents; on the bus its `sourceagent`.
    pub id: Name,
    /// The API keys it sends over HTTP. Without a key the agent exists on the bus only.
    ///
    /// Wrong: the bridge does not start if a key is missing or empty. If it disappears later, the key is revoked until
    /// it is back.
    #[serde(default)]
    pub keys: Vec<ApiKey>,
    /// The types of operations it may use, such as `ApiCall`, or `*` for all.
    #[serde(default)]
    pub operations: Vec<Grant>,
    /// The ids of the APIs it may call. `*` means every API in the catalogue, and every host that is globally
    /// reachable.
    ///
    /// Wrong: with `*` a workflow can send its data to any host.
    #[serde(default)]
    pub apis: Vec<Grant>,
    /// The ids of the credentials it may refer to, or `*` for all.
    #[serde(default)]
    pub credentials: Vec<Grant>,
    /// The storages it may write to, `localStorage`, `sessionStorage`, `file`, or `*` for all. `file` needs
    /// `workflows.file_directory`; without that, `*` does not include it.
    #[serde(default)]
    pub storages: Vec<Grant>,
    /// Maximum number of operations in a workflow.
    #[serde(default = "default_max_operations")]
    #[schemars(range(min = 1, max = 100))]
    pub max_operations: u32,
    /// Maximum duration of an execution.
    #[serde(default = "default_max_execution_time")]
    #[schemars(extend("bounds" = ["1ms", "1h"]))]
    pub max_execution_time: AsText<Duration>,
    /// Rate limits for its requests and API calls.
    #[serde(default)]
    pub rates: RatesConfig,
}

/// The name of something granted, or `*` for everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Grant(
    #[schemars(
        with = "String",
        length(min = 1, max = 64),
        pattern("^([*]|[A-Za-z0-9][A-Za-z0-9._-]*)$")
    )]
    Text,
);

/// An API key: its SHA-256 in hexadecimal, `{sha256: HEX}`, or a reference to the key, `{file: PATH}` or `{env: NAME}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApiKey {
    /// The SHA-256 of the key, in hexadecimal.
    Sha256(#[schemars(pattern("^[0-9a-fA-F]{64}$"))] String),
    /// Path of a file that contains the key. One trailing line break is ignored.
    File(PathBuf),
    /// Name of an environment variable that contains the key.
    Env(String),
}

/// Rate limits of an agent, in sliding windows.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RatesConfig {
    /// Maximum number of HTTP requests in 60 seconds.
    #[schemars(range(max = 1_000_000))]
    pub requests_per_minute: u32,
    /// Maximum number of HTTP requests in an hour.
    #[schemars(range(max = 1_000_000))]
    pub requests_per_hour: u32,
    /// Maximum number of HTTP requests in a day.
    #[schemars(range(max = 1_000_000))]
    pub requests_per_day: u32,
    /// Maximum number of requests that its workflows send in 60 seconds, each attempt counted.
    #[schemars(range(max = 1_000_000))]
    pub api_calls_per_minute: u32,
    /// Maximum number of requests that its workflows send in an hour, each attempt counted.
    #[schemars(range(max = 1_000_000))]
    pub api_calls_per_hour: u32,
}

// === impl HttpMethod ===

impl HttpMethod {
    /// The method on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
        }
    }
}

// === impl CredentialType ===

impl CredentialType {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BearerToken => "bearer-token",
            Self::Basic => "basic",
            Self::ApiKey => "api-key",
            Self::Password => "password",
            Self::Custom => "custom",
        }
    }
}

// === impl ApiKey ===

impl ApiKey {
    /// The SHA-256 of the key; `None` if the given `sha256` is invalid.
    ///
    /// # Errors
    /// Why the key cannot be read. The error never contains the key.
    pub fn digest(&self) -> Result<Option<[u8; 32]>, SecretError> {
        let secret = match self {
            Self::Sha256(hex) => return Ok(from_hex(hex)),
            Self::File(path) => Secret::file(path),
            Self::Env(name) => Secret::env(name),
        };
        Ok(Some(Self::digest_of(secret.reveal()?.as_str())))
    }

    /// The SHA-256 of a key that a client presents.
    #[must_use]
    pub fn digest_of(key: &str) -> [u8; 32] {
        Sha256::digest(key.as_bytes()).into()
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(digest)
}

// === impl Grant ===

impl Grant {
    /// The name, or `*`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `*`.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0 == "*"
    }
}

// === defaults ===

impl Default for WorkflowsConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            agent: Text::from_static("a2e-executor"),
            rpc: false,
            data_directory: None,
            max_record_bytes: AsText(ByteSize::mib(64)),
            max_operation_runs: 20_000,
            max_model_bytes: AsText(ByteSize::mib(32)),
            file_directory: None,
            ca_files: Vec::new(),
            max_retries: 3,
            cache_time: AsText(Duration::from_secs(300)),
            retry_unsafe: RetryUnsafe::default(),
            progress: true,
            workers: 8,
            apis: Vec::new(),
            credentials: Vec::new(),
            agents: Vec::new(),
        }
    }
}

impl Default for RatesConfig {
    fn default() -> Self {
        Self {
            requests_per_minute: 60,
            requests_per_hour: 1_000,
            requests_per_day: 10_000,
            api_calls_per_minute: 30,
            api_calls_per_hour: 500,
        }
    }
}

const fn default_max_operations() -> u32 {
    20
}

fn default_max_execution_time() -> AsText<Duration> {
    AsText(Duration::from_secs(30))
}
