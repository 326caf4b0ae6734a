//! The sections of the process itself: calls, the doors, limits, telemetry.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use a2abus_plugin::Limits;
use a2abus_transports::Topic;
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{AsText, LogFilter};
use crate::bus::headers::DOOR_HEADERS;
use crate::names::Pattern;

/// Calls: requests that expect an answer. Like all events they follow `routes`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CallsConfig {
    /// Whether this bridge makes calls for HTTP clients and its command line.
    pub enabled: bool,
    /// Where answers come back. On Kafka a topic; on NATS and in memory subjects below it,
    /// `<reply_topic>.<replica>.<callid>`, so that on NATS the bridge needs the right to subscribe to `<reply_topic>.>`
    /// and agents the right to publish there.
    ///
    /// Wrong: give each deployment its own reply topic. Two deployments that share one will miss answers.
    pub reply_topic: AsText<Topic>,
    /// How many partitions `reply_topic` gets when the bridge creates it (Kafka); at least the number of replicas.
    ///
    /// Wrong: replicas that share a partition read each other's answers too.
    #[schemars(range(min = 1, max = 10_000))]
    pub reply_partitions: u32,
    /// The number of this replica among those with the same `reply_topic`, from 0, for instance the ordinal of its pod. On
    /// Kafka it reads its answers from the partition of that number, so that replicas do not share one.
    ///
    /// Wrong: two replicas with one number read each other's answers, and count those of the other as late. Those with
    /// random numbers may share a partition.
    #[schemars(range(min = 0, max = 65_535), extend("default_words" = "random at each start"))]
    pub replica: Option<u16>,
    /// Whether an answer must prove that its sender has the request. The ids that an agent repeats anyway (the JSON-RPC
    /// id, `callid`, `collaborationid`, `kafka_correlationId`, the NATS reply subject) end with a reply token, an HMAC
    /// over call id, target and deadline, so that no agent has to know about it. `required` rejects answers without the
    /// token or with a wrong one; `if_present` only those with a wrong one; `off` makes no tokens. The key is generated
    /// when the process starts: only the replica that made a call verifies its answers.
    ///
    /// Wrong: with `off` or `if_present` anyone who knows the id of a call, from a log or an HTTP header, can answer
    /// it.
    pub reply_token: ReplyTokenMode,
    /// How long a call waits for its answer if the caller sets no timeout.
    ///
    /// Wrong: too short fails calls that would have been answered; too long makes callers of dead agents wait.
    #[schemars(extend("bounds" = ["1ms", "1h"]))]
    pub timeout: AsText<Duration>,
    /// The longest timeout that a caller may ask for.
    #[schemars(extend("bounds" = ["1ms", "1day"]))]
    pub max_timeout: AsText<Duration>,
    /// How long a streamed answer may take in total.
    #[schemars(extend("bounds" = ["1ms", "1day"]))]
    pub stream_timeout: AsText<Duration>,
    /// Most calls waiting for an answer; further callers get `429` with `Retry-After`.
    ///
    /// Wrong: too small refuses calls, too large costs memory (about 1 KiB each).
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_pending: u32,
    /// Most calls waiting for one agent; further callers of this agent get `429` with `Retry-After`. Calls that name no
    /// agent share one bound.
    ///
    /// Wrong: with a value as large as `max_pending`, one agent that is slow or gone can use up all calls.
    #[schemars(range(min = 1, max = 10_000_000), extend("default_words" = "a quarter of `max_pending`"))]
    pub max_pending_per_agent: Option<u32>,
    /// Most calls of one caller waiting for an answer, by its address (IPv6: by its /64 network).
    ///
    /// Wrong: all callers behind one proxy count as one; as large as `max_pending`, one caller shuts out all others.
    #[schemars(range(min = 1, max = 10_000_000), extend("default_words" = "a quarter of `max_pending`"))]
    pub max_pending_per_caller: Option<u32>,
    /// Memory for all requests and answers in progress: heads and bodies of requests, waiting calls (4 KiB each), and
    /// parts of answers that wait for their callers. What does not fit is refused with `exhausted`. One client gets at
    /// most half of it.
    ///
    /// Wrong: too small refuses requests; too large lets callers make the process that large.
    #[schemars(extend("bounds" = ["1MiB", "1TiB"]))]
    pub budget_bytes: AsText<ByteSize>,
    /// Most parts of one streamed answer that wait for a slow caller; above it the stream ends with an error.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_parts_buffered: u32,
}

/// Which answers are accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyTokenMode {
    /// Nothing: there are no tokens.
    Off,
    /// The right token, or none.
    IfPresent,
    /// The right token.
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
    /// Wrong: the default accepts connections from this machine only; `0.0.0.0:8080` from everywhere.
    pub listen: AsText<SocketAddr>,
    /// The web pages that may send requests, by origin, as `https://app.example.com`. A browser's request from any
    /// other page is refused with 403. Programs send no origin and are not affected.
    ///
    /// Wrong: a listed page can call every agent from its visitors' browsers.
    #[schemars(inner(pattern("^[a-z][a-z0-9+.-]*://[!-.0-~]+$"), length(max = 256)))]
    pub allowed_origins: Vec<String>,
    /// The request headers that are passed to the agent, by name or with `*` and `?`, ignoring case; by default the
    /// trace-context and A2A headers. CloudEvents headers, `content-type`, and names that begin with `kafka_`, `nats-`
    /// or `bus-` are never passed. At most 64 headers and 16 KiB of one request are passed. In a batch they count once
    /// per request against `limits.max_bytes`.
    ///
    /// Wrong: `*` puts the credentials of callers on the bus; `baggage` may be large and is sent with each request of a
    /// batch.
    pub pass_headers: Vec<AsText<Pattern>>,
    /// How long a client may take to send its request head, and then its body.
    ///
    /// Wrong: too long lets idle clients hold connections.
    #[schemars(extend("bounds" = ["100ms", "10m"]))]
    pub header_timeout: AsText<Duration>,
    /// How long a connection may stay open without a request. Before the first request, and between two of HTTP/1, it is
    /// `header_timeout`.
    ///
    /// Wrong: too long lets idle clients hold connections, too short makes clients connect again.
    #[schemars(extend("bounds" = ["100ms", "1h"]))]
    pub idle_timeout: AsText<Duration>,
    /// Most connections at a time; more wait in the kernel. Where the process may open fewer files it is less, with a
    /// warning: some are reserved for brokers, files and the admin listener.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Most connections of one client, by its address (IPv6: by its /64 network); a further one is closed at once.
    ///
    /// Wrong: all clients behind one proxy count as one; as large as `max_connections`, one client shuts out all others.
    #[schemars(range(min = 1, max = 1_000_000), extend("default_words" = "a quarter of `max_connections`"))]
    pub max_connections_per_client: Option<u32>,
    /// The names, without a port, that clients may send in `Host`. Addresses and `localhost` are always accepted; any
    /// other name is refused with 421, so that no web page can point its own name at this listener. `*` accepts any
    /// name; there are no other wildcards.
    ///
    /// Wrong: clients that use a name that is not listed are refused; `*` lets web pages of other sites in.
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = r"^(\*|[A-Za-z0-9._-]+)$")))]
    pub allowed_hosts: Vec<String>,
    /// How long the process may finish work in progress after SIGTERM.
    ///
    /// Wrong: too short ends calls with 503; if it is longer than the grace period of the platform, the platform kills
    /// the process first.
    #[schemars(extend("bounds" = ["0s", "1h"]))]
    pub drain_grace: AsText<Duration>,
}

/// The HTTP listener for operators: health, readiness, metrics.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// The address to listen on.
    ///
    /// Wrong: it has no authentication: keep it off public addresses.
    pub listen: AsText<SocketAddr>,
    /// The names that a request may have in `Host`, as for `http.allowed_hosts`.
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = r"^(\*|[A-Za-z0-9._-]+)$")))]
    pub allowed_hosts: Vec<String>,
}

/// Limits of payloads. A payload above one of them is refused.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Largest payload. A larger HTTP request body gets 413.
    ///
    /// Wrong: a payload that is too large for its destination topic becomes a dead letter.
    #[schemars(extend("bounds" = ["1KiB", "1GiB"]))]
    pub max_bytes: AsText<ByteSize>,
    /// Deepest nesting of objects and arrays.
    #[schemars(range(min = 8, max = 128))]
    pub max_depth: u32,
    /// Most object members and array elements in a payload.
    #[schemars(range(min = 16, max = 100_000_000))]
    pub max_members: u32,
    /// Most elements of a batch or lines of a document.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_units: u32,
    /// How many routes an event may pass. An event above it is considered to be in a loop and becomes a dead letter.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_hops: u32,
}

/// Logs and metrics.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// What to log: levels by module, as `info,a2abus_bridge=debug`. The access log is `a2abus::access`: one INFO line
    /// for each request; `info,a2abus::access=off` switches it off. The lines of the NATS client are left out, because they
    /// repeat those of the bridge; `info,async_nats=info` shows them.
    pub log: AsText<LogFilter>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Most agents with metrics of their own: those named in a route, from their first call on; others, from their
    /// first answer on. All further agents count as `other`.
    ///
    /// Wrong: about 25 series for each agent; too many slow the metrics system down.
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
    /// One JSON object a line.
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
            max_pending: 10_000,
            max_pending_per_agent: None,
            max_pending_per_caller: None,
            budget_bytes: AsText(ByteSize::mib(64)),
            max_parts_buffered: 256,
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
            // With headers and key it fits in a message of the transports' own defaults: 1000000 bytes on Kafka.
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
