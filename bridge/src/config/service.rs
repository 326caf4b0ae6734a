//! The sections of the process itself: calls, HTTP listeners, limits, telemetry.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use a2abus_plugin::Limits;
use a2abus_transports::Topic;
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{AsText, LogFilter};
use crate::names::DOOR_HEADERS;
use crate::names::Pattern;

/// Calls: requests that expect an answer. Like all events, they follow `routes`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CallsConfig {
    /// Whether this bridge makes calls: for HTTP clients, and for requests on the bus. If `false`, calls over HTTP are
    /// refused, and a request on the bus is routed with the reply address of its sender: the agent answers there
    /// directly, and the bridge sends no errors, cancels or converted answers.
    pub enabled: bool,
    /// Where answers arrive. On Kafka a topic; on NATS and in memory, subjects below it,
    /// `<reply_topic>.<replica>.<callid>`, so on NATS the bridge needs permission to subscribe to `<reply_topic>.>`,
    /// and agents need permission to publish there.
    ///
    /// Wrong: give each deployment its own reply topic. Two deployments that share one will miss answers.
    pub reply_topic: AsText<Topic>,
    /// How many partitions `reply_topic` gets when the bridge creates it (Kafka); at least the number of replicas.
    ///
    /// Wrong: replicas that share a partition also read the answers meant for each other.
    #[schemars(range(min = 1, max = 10_000))]
    pub reply_partitions: u32,
    /// The number of this replica among those with the same `reply_topic`, from 0, for instance the ordinal of its pod.
    /// On Kafka this replica reads its answers from the partition with this number modulo the number of partitions.
    ///
    /// Wrong: two replicas with the same number read the answers meant for each other and count them as late. Replicas
    /// with random numbers may share a partition.
    #[schemars(range(min = 0, max = 65_535), extend("default_words" = "random at each start"))]
    pub replica: Option<u16>,
    /// Whether an answer must prove that its sender has the request. The ids that an agent repeats anyway (the JSON-RPC
    /// id, `callid`, `collaborationid`, `kafka_correlationId`, the NATS reply subject) end with a reply token, an HMAC
    /// over call id, target and deadline, so agents need not know about it. `required` rejects answers without the
    /// token or with a wrong one; `if_present` only those with a wrong one; `off` makes no tokens. The key is generated
    /// when the process starts, so only the replica that made a call can verify its answers.
    ///
    /// Wrong: with `off` or `if_present` anyone who knows the id of a call, from a log or an HTTP header, can answer
    /// it.
    pub reply_token: ReplyTokenMode,
    /// How long a call waits for its answer if the caller sets no timeout.
    ///
    /// Wrong: too short: calls that would have been answered fail. Too long: callers of dead agents wait.
    #[schemars(extend("bounds" = ["1ms", "1h"]))]
    pub timeout: AsText<Duration>,
    /// The longest timeout that a caller may set.
    #[schemars(extend("bounds" = ["1ms", "1day"]))]
    pub max_timeout: AsText<Duration>,
    /// How long a streamed answer may take in total.
    #[schemars(extend("bounds" = ["1ms", "1day"]))]
    pub stream_timeout: AsText<Duration>,
    /// How long an MCP client may take to answer a question of an agent (sampling, elicitation, roots). Then the call
    /// fails, and the agent gets a cancel.
    ///
    /// Wrong: too short: people who fill in a form are too late. Too long: a client that does not come back blocks an
    /// attached program with `concurrency: 1`.
    #[schemars(extend("bounds" = ["1ms", "1day"]))]
    pub question_timeout: AsText<Duration>,
    /// Maximum number of calls waiting for an answer; further callers get `429` with `Retry-After`.
    ///
    /// Wrong: too small: calls are refused. Too large: each waiting call takes 4 KiB of `budget_bytes`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_pending: u32,
    /// Maximum number of calls waiting for one agent; further callers of this agent get `429` with `Retry-After`. All
    /// calls without a target agent count as one agent.
    ///
    /// Wrong: if it is as large as `max_pending`, one slow or dead agent can use up all calls.
    #[schemars(range(min = 1, max = 10_000_000), extend("default_words" = "a quarter of `max_pending`"))]
    pub max_pending_per_agent: Option<u32>,
    /// Maximum number of calls of one caller waiting for an answer, by its address (IPv6: by its /64 network).
    ///
    /// Wrong: all callers behind one proxy count as one. If it is as large as `max_pending`, one caller can shut out
    /// all others.
    #[schemars(range(min = 1, max = 10_000_000), extend("default_words" = "a quarter of `max_pending`"))]
    pub max_pending_per_caller: Option<u32>,
    /// Memory for all requests and answers in progress: request heads and bodies, waiting calls (4 KiB each), and parts
    /// of answers that callers have not read yet. Requests that do not fit are refused with `exhausted`. One client
    /// gets at most half of it.
    ///
    /// Wrong: too small: requests are refused. Too large: callers can make the process use that much memory.
    #[schemars(extend("bounds" = ["1MiB", "1TiB"]))]
    pub budget_bytes: AsText<ByteSize>,
    /// Maximum number of parts of one answer that wait for a slow caller, or for the bridge to publish or store them;
    /// at the limit the answer ends with an error. Each counts its size and 256 bytes against `budget_bytes`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_parts_buffered: u32,
}

/// Which answers are accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyTokenMode {
    /// All answers; there are no tokens.
    Off,
    /// Answers with the right token, or without one.
    IfPresent,
    /// Only answers with the right token.
    #[default]
    Required,
}

/// The HTTP listener for callers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Whether there is an HTTP listener for callers.
    pub enabled: bool,
    /// The address to listen on.
    ///
    /// Wrong: the default accepts connections from this machine only; `0.0.0.0:8080` accepts them from everywhere.
    pub listen: AsText<SocketAddr>,
    /// The origins of web pages that may send requests, such as `https://app.example.com`.
    ///
    /// - Requests with any other `Origin` are refused with 403, unless that is the origin of this server
    ///   (`a2a.public_url`, or the `Host` of the request).
    /// - Requests that read agent cards are served, but browsers do not show the response to pages of other origins.
    /// - Programs other than browsers usually send no `Origin` and are not affected.
    ///
    /// Wrong: a listed page can call every agent from its visitors' browsers.
    #[schemars(inner(pattern("^[a-z][a-z0-9+.-]*://[!-.0-~]+$"), length(max = 256)))]
    pub allowed_origins: Vec<String>,
    /// The request headers that are passed to the agent, by name or with `*` and `?`, ignoring case; by default the
    /// trace-context and A2A headers. CloudEvents headers, `content-type`, and names that begin with `kafka_`, `nats-`
    /// or `bus-` are never passed. At most 64 headers and 16 KiB of one request are passed. In a batch, they count
    /// against `limits.max_bytes` once per request.
    ///
    /// Wrong: `*` puts the credentials of callers on the bus; `baggage` may be large and is sent with each request of a
    /// batch.
    pub pass_headers: Vec<AsText<Pattern>>,
    /// How long a client may take to send its request head, and then its body.
    ///
    /// Wrong: too long lets idle clients hold connections.
    #[schemars(extend("bounds" = ["100ms", "10m"]))]
    pub header_timeout: AsText<Duration>,
    /// How long a connection may stay open without a request. Before the first request, and between HTTP/1 requests,
    /// `header_timeout` applies instead.
    ///
    /// Wrong: too long lets idle clients hold connections; too short makes clients reconnect.
    #[schemars(extend("bounds" = ["100ms", "1h"]))]
    pub idle_timeout: AsText<Duration>,
    /// Maximum number of connections at a time; further ones wait in the kernel. If the limit of open files is lower,
    /// the bridge lowers this value with a warning, and reserves some descriptors for brokers, files and the admin
    /// listener.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Maximum number of connections of one client, by its address (IPv6: by its /64 network); further ones are closed
    /// at once.
    ///
    /// Wrong: all clients behind one proxy count as one. If it is as large as `max_connections`, one client can shut
    /// out all others.
    #[schemars(range(min = 1, max = 1_000_000), extend("default_words" = "a quarter of `max_connections`"))]
    pub max_connections_per_client: Option<u32>,
    /// The names, without a port, that clients may send in `Host`. IP addresses and `localhost` are always accepted;
    /// any other name is refused with 421, so that no web page can reach this listener through its own DNS name (DNS
    /// rebinding). `*` accepts any name (with `agents` or `registry.enabled`, `a2a.public_url` is then required); there
    /// are no other wildcards.
    ///
    /// Wrong: clients that use an unlisted name are refused; `*` lets web pages of other sites send requests.
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = r"^(\*|[A-Za-z0-9._-]+)$")))]
    pub allowed_hosts: Vec<String>,
    /// How long the process may finish work in progress after SIGTERM. Its last quarter, at most 5 s, is for publishing
    /// messages and answers in progress; calls that are still pending then fail.
    ///
    /// Wrong: too short: calls end with `answer_lost`. Longer than the platform's grace period: the platform kills the
    /// process first.
    #[schemars(extend("bounds" = ["0s", "1h"]))]
    pub drain_grace: AsText<Duration>,
}

/// The HTTP listener for operators: health, readiness, metrics.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Whether there is an HTTP listener for operators.
    pub enabled: bool,
    /// The address to listen on.
    ///
    /// Wrong: it has no authentication, so keep it off public addresses.
    pub listen: AsText<SocketAddr>,
    /// The names that clients may send in `Host`; see `http.allowed_hosts`.
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = r"^(\*|[A-Za-z0-9._-]+)$")))]
    pub allowed_hosts: Vec<String>,
}

/// Limits of payloads. A payload that exceeds one of them is refused.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum size of a payload: of a message, of a request, and of the answer of an agent. A larger HTTP request body
    /// gets 413; if an answer is larger, its caller gets an error.
    ///
    /// Wrong: a payload that is too large for its destination topic becomes a dead letter.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_bytes: AsText<ByteSize>,
    /// Deepest nesting of objects and arrays.
    #[schemars(range(min = 8, max = 128))]
    pub max_depth: u32,
    /// Maximum number of object members and array elements in a payload.
    #[schemars(range(min = 16, max = 100_000_000))]
    pub max_members: u32,
    /// Maximum number of elements in a batch, or of lines in a document.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_units: u32,
    /// How many routes an event may pass. An event that exceeds it is treated as a loop and becomes a dead letter.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_hops: u32,
}

/// Logs and metrics.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// What to log: levels by module, such as `info,a2abus_bridge=debug`. The access log is `a2abus::access`, with one
    /// INFO line per request; `info,a2abus::access=off` switches it off. Log lines of the NATS client,
    /// those of the Kafka client about consumers that it cannot close, and warnings of the HTTP/2 library are hidden,
    /// because the bridge logs the cause itself; `info,async_nats=info`, `info,rdkafka=info` and `info,h2=warn` show
    /// them.
    pub log: AsText<LogFilter>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Maximum number of agents with separate metrics. An agent that a route names, or that has announced itself, gets
    /// them with its first call, any other with its first answer. All further agents count as `other`, until an agent
    /// has not been called for 10 minutes: then one of them takes its place.
    ///
    /// Wrong: each agent adds about 20 series; too many slow down the metrics system.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_agents: u32,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

// === defaults ===

impl Default for CallsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            reply_topic: AsText(const { Topic::from_static("a2abus.replies") }),
            reply_partitions: 32,
            replica: None,
            reply_token: ReplyTokenMode::default(),
            timeout: AsText(Duration::from_secs(30)),
            max_timeout: AsText(Duration::from_secs(300)),
            stream_timeout: AsText(Duration::from_secs(600)),
            question_timeout: AsText(Duration::from_secs(300)),
            max_pending: 10_000,
            max_pending_per_agent: None,
            max_pending_per_caller: None,
            budget_bytes: AsText(ByteSize::mib(64)),
            max_parts_buffered: 65_536,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: AsText(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))),
            allowed_origins: Vec::new(),
            pass_headers: DOOR_HEADERS
                .map(|name| AsText(Pattern::from_static(name)))
                .to_vec(),
            header_timeout: AsText(Duration::from_secs(10)),
            idle_timeout: AsText(Duration::from_secs(60)),
            max_connections: 4096,
            max_connections_per_client: None,
            allowed_hosts: Vec::new(),
            drain_grace: AsText(Duration::from_secs(25)),
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: AsText(SocketAddr::from((Ipv4Addr::LOCALHOST, 9090))),
            allowed_hosts: Vec::new(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            // Leaves room for headers and key within the transports' own default limits: 1000000 bytes on Kafka.
            max_bytes: AsText(ByteSize::kib(960)),
            max_depth: limits.max_depth,
            max_members: limits.max_members,
            max_units: u32::try_from(limits.max_units).unwrap_or(u32::MAX),
            max_hops: 8,
        }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log: AsText(LogFilter::info()),
            log_format: LogFormat::default(),
            max_agents: 100,
        }
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        let mut limits = Self::default();
        limits.max_bytes = usize::try_from(config.max_bytes.0.0).unwrap_or(usize::MAX);
        limits.max_depth = config.max_depth;
        limits.max_members = config.max_members;
        limits.max_units = usize::try_from(config.max_units).unwrap_or(usize::MAX);
        limits
    }
}
