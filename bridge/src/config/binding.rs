//! The `bindings` section: which topics are read, and how.

use a2abus_models::convert::Conversion;
use a2abus_plugin::{EventId, Hint, Ids, Text};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Reading, Subscription, Topic, TopicFilter};
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::AsText;
use crate::names::TRACE_HEADERS;
use crate::names::{Name, Pattern};

/// Topics of one transport that the bridge reads, and how it processes them.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// The name, unique among the bindings. It is used in `source` of mapped events, in metrics, and as the attribute
    /// `binding` in conditions.
    pub name: Name,
    /// The transport to read from: a key of `transports`.
    pub transport: Name,
    /// The topics to read. On NATS and in memory, `*` matches one segment and a final `>` matches the rest.
    ///
    /// Wrong: if a Kafka topic does not exist when the bridge starts, the bridge reads no topic of this binding and is
    /// not ready; it retries. If a topic is deleted later, the bridge reads the others and is `degraded`.
    #[schemars(length(min = 1))]
    pub topics: Vec<AsText<TopicFilter>>,
    /// The Kafka consumer group or NATS queue group that the replicas share. With `role: responses` on core NATS, every
    /// replica also reads all messages itself, without the group, and takes the answers to its own calls, in order; the
    /// group only decides which replica makes a dead letter, or sends a copy to a process that does not have this
    /// binding.
    ///
    /// Wrong: a new group, at the first start or after you change the name, reads a Kafka topic from its oldest record:
    /// on a topic that is in use, the bridge then routes all of its history. If other software uses the same group,
    /// each gets only part of the messages.
    #[serde(default = "default_group")]
    pub group: Name,
    /// The JetStream stream to read from (NATS only, with `durable`). Without it the subjects are read with core NATS,
    /// at most once.
    pub stream: Option<Name>,
    /// The durable JetStream consumer that remembers the position (NATS only, with `stream`).
    pub durable: Option<Name>,
    /// The purpose of the messages.
    ///
    /// - `events` are detected, mapped and routed.
    /// - `responses` are answers to calls, which are delivered to their callers and never routed.
    /// - `workflows` are A2E workflows, which the bridge executes (needs `workflows.enabled`).
    /// - `discovery` are the cards of agents that announce themselves, and requests like `agent/card/register` (needs
    ///   `registry.enabled`).
    #[serde(default)]
    pub role: Role,
    /// The agent of `workflows.agents` with whose permissions all requests of this binding run. With `role: workflows`
    /// it is required, unless the binding has `trusts: [sourceagent]`; then each event names its agent.
    pub run_as: Option<Name>,
    /// The family of the payloads on these topics. If you set it, the binding also accepts messages of that family that
    /// lack their usual markers (for example an A2E message without `version`).
    pub protocol: Option<Family>,
    /// Refuse payloads of a family other than `protocol`.
    #[serde(default)]
    pub strict: bool,
    /// What happens to a JSON object of no known family. Payloads that are not a JSON object, such as Avro, text and
    /// tombstones (records without a body), always become dead letters.
    ///
    /// - `reject`: it becomes a dead letter. With `convert`, this acts like `wrap`.
    /// - `wrap`: it becomes an event of type `<type_prefix>unknown`.
    /// - `pass`: its bytes are published unchanged, and its hops are counted in the header `bus-hops`.
    #[serde(default)]
    pub on_unknown: OnUnknown,
    /// A conversion (see `a2abus convert --list`) of every record before it is routed (with `role: events`), including
    /// payloads of no known family. The attributes that describe the data are those of the converted record; `id`,
    /// `source`, `targetagent` and `collaborationid` stay the same.
    ///
    /// Wrong: a record that cannot be converted becomes a dead letter (`convert_failed`).
    pub convert: Option<AsText<&'static Conversion>>,
    /// Refuse A2E messages, A2E workflows and E2A records that break the model of their family (with `role: events`).
    ///
    /// Wrong: an invalid record becomes a dead letter (`invalid_record`) that lists every fault.
    #[serde(default)]
    pub validate: bool,
    /// If a CloudEvent lacks routing attributes, take them from its data.
    #[serde(default)]
    pub fill_from_data: bool,
    /// Where messages that cannot be delivered are stored.
    #[serde(default)]
    pub dead_letter: DeadLetterConfig,
    /// Maximum number of bytes received and not yet acknowledged; at the limit the source is paused. Kafka partitions
    /// whose messages cannot be delivered are paused, do not stop the others, and may hold the same amount in addition.
    /// Waiting requests may use three quarters of it, those for one agent a quarter (a single larger request may still
    /// wait); a request above that gets the error `exhausted` at once.
    ///
    /// Wrong: too small slows the binding down; too large costs memory. At least `limits.max_bytes`.
    #[serde(default = "default_budget_bytes")]
    #[schemars(extend("bounds" = ["64KiB", "16GiB"]))]
    pub budget_bytes: AsText<ByteSize>,
    /// Maximum number of messages received and not yet acknowledged; at the limit the source is paused. The
    /// shares of waiting requests and the rule for blocked partitions are those of `budget_bytes`. A Kafka partition is
    /// also paused when 8 times as many records (at least 4096) were read after one that is not acknowledged yet.
    ///
    /// Wrong: too small slows the binding down; too large costs memory, and more messages are redelivered after a
    /// crash.
    #[serde(default = "default_budget_messages")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub budget_messages: u32,
    /// How many workers process the messages (with `role: events` or `responses`). One worker uses at most one core and
    /// processes about 100,000 messages of 1 KiB a second. Messages of one Kafka partition, or of one NATS subject,
    /// always go to the same worker, in order.
    ///
    /// Wrong: every message costs a little more CPU with several workers; more workers than partitions or cores have
    /// no effect.
    #[serde(default = "default_workers")]
    #[schemars(range(min = 1, max = 64))]
    pub workers: u32,
    /// How payloads become events.
    #[serde(default)]
    pub mapping: MappingConfig,
    /// The headers that routed events keep, by name or with `*` and `?`, ignoring case; by default the trace-context
    /// headers. CloudEvents headers, `content-type`, and names that begin with `kafka_`, `nats-` or `bus-` are never
    /// kept. At most 64 headers and 16 KiB of one message are kept; on NATS only values in visible ASCII.
    ///
    /// Wrong: `*` lets writers of the topics send instructions to the consumers of the destinations.
    #[serde(default = "default_pass_headers")]
    pub pass_headers: Vec<AsText<Pattern>>,
    /// Which attributes the bridge accepts from writers of the topics. A binding with `role: workflows` may have
    /// `sourceagent` only.
    ///
    /// - `sourceagent`: the agent that sent the event. Unless it is listed, the bridge removes the attribute. With
    ///   `role: workflows`, requests have the permissions of the agent that they name.
    /// - `source`: the source of a CloudEvent, even if it is that of a bridge. Unless it is listed, a CloudEvent whose
    ///   `source` begins with `/a2abus/`, or equals the `mapping.source` of a binding, gets the `source` and an `id` of
    ///   this binding, so that nobody can forge events of the bridge. Other sources are kept.
    /// - Other attributes do not depend on this list: `origin` is always overwritten, `replyto` and `progressto` are
    ///   removed where `reply_topics` does not allow them, and `callid` is removed from everything but requests.
    ///
    /// Wrong: every writer of the topics can then act as any agent, or cause consumers to drop events of the bridge as
    /// duplicates.
    #[serde(default)]
    pub trusts: Vec<Claim>,
    /// The topic, on the binding's transport, for answers to requests that name no reply address; it becomes their
    /// `replyto`.
    pub replies: Option<AsText<Topic>>,
    /// The topics, on the binding's transport, where a request may ask for its answer (`replyto`, `kafka_replyTopic`, a
    /// NATS reply subject) or its progress (`progressto`), by name or with `*` and `?`. A request that names any other
    /// topic becomes a dead letter (`reply_topic_refused`).
    ///
    /// - Always allowed: `replies`; the reply addresses below `calls.reply_topic`; and the NATS reply subject of the
    ///   message itself if it begins with `_INBOX`, as NATS clients set it.
    /// - Never allowed: other names that begin with `_` or `$`.
    ///
    /// Wrong: anyone who can write requests can make the bridge publish answers to every listed topic, with the
    /// bridge's permissions; with `*` also to topics of other agents and to the dead-letter topic.
    #[serde(default)]
    pub reply_topics: Vec<AsText<Pattern>>,
    /// The topic, on the binding's transport, for the progress of executions (with `role: workflows`) whose request
    /// does not set `progressto`. Without it, progress goes where `replies` or the routes send the answer. If the
    /// request names a reply address, no progress is sent, because the requester would mistake it for the answer.
    pub progress: Option<AsText<Topic>>,
}

/// An attribute that a binding accepts from the writers of its topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Claim {
    /// The `source` of a CloudEvent.
    Source,
    /// The agent that sent the event.
    SourceAgent,
}

/// The purpose of a binding's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Payloads to detect, map and route.
    #[default]
    Events,
    /// Answers to calls: correlated, never routed.
    Responses,
    /// A2E workflows: executed, and their results routed.
    Workflows,
    /// Announcements of agents: cards, and requests to the registry.
    Discovery,
    /// Requests for an attached agent. The bridge creates this binding from `agents.NAME.attach`.
    #[serde(skip)]
    Agent,
}

/// A family that a binding can declare for its payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// JSON-RPC 2.0: MCP, A2A, ACP.
    Jsonrpc,
    /// FIPA style messages marked `protocol: "A2A"`.
    Legacy,
    /// A2E 1.0 messages.
    A2eMessage,
    /// A2E 1.0.0 workflows.
    A2eWorkflow,
    /// E2A 1.0.
    E2a,
    /// CloudEvents.
    Cloudevent,
}

/// What to do with a payload of no known family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// Make it a dead letter, with the reason.
    #[default]
    Reject,
    /// Make it an event of type `<type_prefix>unknown`.
    Wrap,
    /// Publish the bytes unchanged, without attributes.
    Pass,
}

/// Where messages that cannot be delivered are stored.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterConfig {
    /// The topic. On NATS, dead letters are stored in JetStream: create a stream that includes this subject. Exception:
    /// bindings that read core NATS publish their dead letters at most once; without such a stream they are lost. On
    /// Kafka the bridge creates a missing topic when it starts, with one partition and the broker's default retention
    /// and replicas.
    ///
    /// Wrong: while the topic cannot be written, the binding is paused, and no dead letter is dropped. A binding that
    /// reads core NATS does not wait, and loses them.
    #[serde(default = "default_dead_letter_topic")]
    pub topic: AsText<Topic>,
    /// The transport, if it is not the binding's own.
    pub transport: Option<Name>,
}

/// How payloads become events.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MappingConfig {
    /// The prefix of the `type` of mapped events.
    #[serde(default = "default_type_prefix")]
    #[schemars(
        with = "String",
        length(min = 1, max = 128),
        pattern("^[A-Za-z0-9._-]+$")
    )]
    pub type_prefix: Text,
    /// The `source` of mapped events; by default `/a2abus/<instance>/<binding>`.
    #[schemars(
        with = "Option<String>",
        length(min = 1, max = 256),
        pattern("^[!-~]+$")
    )]
    pub source: Option<Text>,
    /// Where the `id` of mapped events comes from.
    ///
    /// - `position`: the source position of the message and the index of the unit (`k:agents.requests/1/42#0`), which
    ///   is unique and stays the same when the message is redelivered. Messages of core NATS have no position, and get
    ///   a new id each time.
    /// - `payload`: the id in the payload, as in EventMesh.
    /// - `fresh`: a new id each time.
    ///
    /// Wrong: with `payload`, ids repeat, because agents count from 1; consumers that drop duplicates by `source` and
    /// `id` then drop requests.
    #[serde(default)]
    pub ids: EventIds,
    /// The `mcptype` of a JSON-RPC notification: `notification`, or `request` as in EventMesh.
    #[serde(default)]
    pub notifications: Notifications,
    /// The `mcptype` of a part that is not the last of its answer: `stream`, or `response` for consumers that know only
    /// two values; then `isfinal` distinguishes the parts.
    #[serde(default)]
    pub stream_mcptype: StreamMcptype,
    /// The target agent of A2E workflows that do not name one.
    #[schemars(
        with = "Option<String>",
        length(min = 1, max = 256),
        pattern("^[A-Za-z0-9._/:@+-]+$")
    )]
    pub executor: Option<Text>,
    /// Mark A2E workflows for validation only, so that they are not executed.
    #[serde(default)]
    pub validate_workflows: bool,
    /// Whether E2A records without a `protocol_version` are recognised: `any` recognises them, `strict` does not.
    #[serde(default)]
    pub e2a_shapes: E2aShapes,
    /// Accept the two members that only an E2A server sets: `_jiuwenswarm` (a request inside the request) and
    /// `_jiuwenswarm_server_push` (it marks a push). A binding with `protocol: e2a` always does.
    #[serde(default)]
    pub e2a_trusted: bool,
    /// Refuse A2E messages without an `id` instead of generating one.
    #[serde(default)]
    pub strict_ids: bool,
}

/// Where the ids of mapped events come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventIds {
    /// The position of the message, and the index of the unit.
    #[default]
    Position,
    /// The payload, if it has an id.
    Payload,
    /// Every event gets a new id.
    Fresh,
}

/// The `mcptype` of a part of an answer that is not the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamMcptype {
    /// A separate value, `stream`.
    #[default]
    Stream,
    /// The same value as the last part, `response`.
    Response,
}

/// Which E2A records are recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum E2aShapes {
    /// With or without a version; the first E2A records had none.
    #[default]
    Any,
    /// Only with a version.
    Strict,
}

/// How JSON-RPC notifications are marked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notifications {
    /// As notifications.
    #[default]
    AsNotifications,
    /// As requests, like EventMesh's code.
    AsRequests,
}

// === impl BindingConfig ===

impl BindingConfig {
    /// What the binding declares about its payloads.
    #[must_use]
    pub fn hint(&self) -> Hint {
        let mut hint = Hint::default();
        hint.family = self.protocol.map(Into::into);
        hint.strict = self.strict;
        hint.refuse_link_local = self.role == Role::Events;
        self.mapping.add_to(&mut hint);
        hint
    }

    /// The subscription to request from the transport.
    #[must_use]
    pub fn subscription(&self) -> Subscription {
        let reading = match (&self.stream, &self.durable) {
            (Some(stream), Some(durable)) => Reading::Durable {
                stream: stream.text().clone(),
                name: durable.text().clone(),
            },
            _ => Reading::Group(self.group.text().clone()),
        };
        Subscription {
            topics: self.topics.iter().map(|topic| topic.0.clone()).collect(),
            reading,
            budget_bytes: usize::try_from(self.budget_bytes.0.0).unwrap_or(usize::MAX),
            budget_messages: usize::try_from(self.budget_messages).unwrap_or(usize::MAX),
        }
    }

    /// Whether messages are redelivered until they are settled.
    #[must_use]
    pub fn is_at_least_once(&self, bus: ProtocolBinding) -> bool {
        bus != ProtocolBinding::Nats || self.durable.is_some()
    }

    /// The transport of the dead letters.
    #[must_use]
    pub fn dead_letter_transport(&self) -> &Name {
        self.dead_letter
            .transport
            .as_ref()
            .unwrap_or(&self.transport)
    }
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self {
            topic: default_dead_letter_topic(),
            transport: None,
        }
    }
}

// === impl EventIds ===

impl EventIds {
    /// The ids of the events of a message that was read at `origin`; fresh ids if it has no position.
    #[must_use]
    pub fn at(self, origin: Option<&Text>) -> Ids<'static> {
        let origin = origin.and_then(|origin| EventId::new(origin.clone()).ok());
        match (self, origin) {
            (Self::Position, Some(origin)) => Ids::Given(origin),
            (Self::Position | Self::Fresh, _) => Ids::Fresh(&crate::clock::new_event_id),
            (Self::Payload, _) => Ids::Payload(&crate::clock::new_event_id),
        }
    }
}

// === impl MappingConfig ===

impl MappingConfig {
    /// Adds what the mapping declares about payloads.
    pub fn add_to(&self, hint: &mut Hint) {
        hint.executor.clone_from(&self.executor);
        hint.validate_workflows = self.validate_workflows;
        hint.e2a_versions_only = self.e2a_shapes == E2aShapes::Strict;
        hint.e2a_trusted = self.e2a_trusted;
        hint.strict_ids = self.strict_ids;
    }
}

impl Default for MappingConfig {
    fn default() -> Self {
        Self {
            type_prefix: default_type_prefix(),
            source: None,
            ids: EventIds::default(),
            notifications: Notifications::default(),
            stream_mcptype: StreamMcptype::default(),
            executor: None,
            validate_workflows: false,
            e2a_shapes: E2aShapes::default(),
            e2a_trusted: false,
            strict_ids: false,
        }
    }
}

fn default_group() -> Name {
    Name::from_static("a2abus")
}

pub(super) fn default_dead_letter_topic() -> AsText<Topic> {
    AsText(const { Topic::from_static("a2abus.dlq") })
}

fn default_pass_headers() -> Vec<AsText<Pattern>> {
    TRACE_HEADERS
        .map(|name| AsText(Pattern::from_static(name)))
        .to_vec()
}

fn default_type_prefix() -> Text {
    Text::from_static("org.apache.eventmesh.a2a.")
}

fn default_budget_bytes() -> AsText<ByteSize> {
    AsText(ByteSize::mib(64))
}

const fn default_workers() -> u32 {
    1
}

const fn default_budget_messages() -> u32 {
    10_000
}
