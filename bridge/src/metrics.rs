//! All metrics of the bridge, with their names, units, labels and meanings.
//!
//! Label values come from closed sets: names in the configuration, and constants of the program (`&'static str` or
//! enums). Text from payloads never becomes a label value, except the names of agents, whose number [`AgentMetrics`]
//! limits. The handles of bindings and transports are resolved once, so counting a message is one atomic addition.
//!
//! Source: docs/design.md §10.

mod a2a;
mod agents;
mod attached;
mod doors;
mod label;
mod process;
#[cfg(test)]
mod reference;
mod registrar;
mod registry;
mod reload;
mod state;
mod workflows;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use a2abus_executor::{OperationStatus, Progress, Status};
use a2abus_plugin::{DecodeErrorKind, Family, Kind, Text};
use a2abus_transports::TransportErrorKind;
use http::StatusCode;
use prometheus::{
    Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};

pub use self::a2a::PushOutcome;
pub(crate) use self::agents::AgentInFlight;
pub use self::agents::AgentMetrics;
pub use self::doors::{IdempotencyOutcome, LimitScope};
pub use self::label::{CallOutcome, HttpPath, ReplyOutcome};
pub use self::registrar::Definition;
pub use self::registry::RegistryEvent;
pub use self::reload::ConfigReload;
pub use self::state::StateMetrics;
pub use self::workflows::{RefusalReason, ReloadOutcome};

use self::a2a::A2aMetrics;
use self::attached::AttachedMetrics;
use self::doors::DoorMetrics;
use self::process::ProcessMetrics;
use self::registrar::{CALL_SECONDS, Registrar, add_one, per_value};
use self::registry::RegistryMetrics;
use self::reload::ReloadMetrics;
use self::state::StateFamilies;
use self::workflows::WorkflowMetrics;

/// The metrics of one bridge. Two bridges in one process have separate metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    definitions: Vec<Definition>,
    received: IntCounterVec,
    settled: IntCounterVec,
    dead_lettered: IntCounterVec,
    dropped: IntCounterVec,
    overruled: IntCounterVec,
    in_flight: IntGaugeVec,
    held_lanes: IntGaugeVec,
    dead_letters_lost: IntCounterVec,
    client_dropped: IntCounterVec,
    source_lag: IntGaugeVec,
    removed_unread: IntCounterVec,
    paused_partitions: IntGaugeVec,
    published: IntCounterVec,
    retries: IntCounterVec,
    given_up: IntCounterVec,
    publish_seconds: HistogramVec,
    transport_up: IntGaugeVec,
    http_requests: HttpRequests,
    refused: IntCounterVec,
    /// By family, then kind.
    units: Vec<IntCounter>,
    calls: Vec<IntCounter>,
    call_seconds: Histogram,
    target_conflicts: IntCounter,
    replies: Vec<IntCounter>,
    /// Events that match no route.
    pub unrouted: IntCounter,
    /// Parts of answers delivered to callers.
    pub call_parts: IntCounter,
    /// Calls that are waiting for their answer.
    pub pending_calls: IntGauge,
    /// Memory used by requests and answers in progress, in bytes.
    pub held_bytes: IntGauge,
    /// Requests and answers that did not fit into this memory.
    pub budget_refused: IntCounter,
    /// Cancel messages that were not sent.
    pub cancels_dropped: IntCounter,
    /// Calls of other replicas that were taken over.
    pub followed: IntCounter,
    /// Calls of other replicas that were given up because of lack of memory.
    pub followed_lost: IntCounter,
    connections: IntGaugeVec,
    connections_closed: IntCounterVec,
    agents: Arc<AgentMetrics>,
    reload: ReloadMetrics,
    workflows: WorkflowMetrics,
    state: StateFamilies,
    attached: AttachedMetrics,
    announcements: RegistryMetrics,
    a2a: A2aMetrics,
    doors: DoorMetrics,
    process: ProcessMetrics,
}

/// Answered HTTP requests.
#[derive(Debug)]
struct HttpRequests {
    by_status: IntCounterVec,
    /// Those with the status 200, by path. A series exists once it counts something.
    ok: [OnceLock<IntCounter>; HttpPath::COUNT],
}

/// The metrics of one binding, resolved.
#[derive(Debug, Clone)]
pub struct BindingMetrics {
    name: Text,
    dead_lettered: IntCounterVec,
    dropped: IntCounterVec,
    overruled: IntCounterVec,
    /// Messages read from the source.
    pub received: IntCounter,
    /// Messages whose position at the source is settled.
    pub settled: IntCounter,
    /// Messages received and not yet acknowledged.
    pub in_flight: IntGauge,
    held_lanes: IntGaugeVec,
    /// Dead letters that nothing stores.
    pub dead_letters_lost: IntCounter,
}

/// The metrics of one transport, resolved.
#[derive(Debug, Clone)]
pub struct TransportMetrics {
    name: Text,
    retries: IntCounterVec,
    given_up: IntCounterVec,
    /// Messages that the bus has confirmed.
    pub published: IntCounter,
    /// Time from handing a message to the client to its confirmation, in seconds.
    pub publish_seconds: Histogram,
    /// Messages that the client received and dropped because they were not read in time.
    pub client_dropped: IntCounter,
    /// 1 if the bus answers, otherwise 0.
    pub up: IntGauge,
}

/// Upper bounds of the buckets for the time a confirmation takes: from memory to the delivery deadline.
const PUBLISH_SECONDS: [f64; 13] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];

const KINDS: [Kind; 4] = [
    Kind::Request,
    Kind::Notification,
    Kind::Response,
    Kind::Stream,
];

// === impl Metrics ===

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// Cannot happen with the definitions of this file, as a test checks.
    pub fn new() -> Result<Self, Error> {
        let mut on = Registrar::default();
        let metrics = Self {
            received: on.counters(RECEIVED)?,
            settled: on.counters(SETTLED)?,
            dead_lettered: on.counters(DEAD_LETTERED)?,
            dropped: on.counters(DROPPED)?,
            overruled: on.counters(OVERRULED)?,
            in_flight: on.gauges(IN_FLIGHT)?,
            held_lanes: on.gauges(HELD_LANES)?,
            dead_letters_lost: on.counters(DEAD_LETTERS_LOST)?,
            client_dropped: on.counters(CLIENT_DROPPED)?,
            source_lag: on.gauges(SOURCE_LAG)?,
            removed_unread: on.counters(REMOVED_UNREAD)?,
            paused_partitions: on.gauges(PAUSED_PARTITIONS)?,
            published: on.counters(PUBLISHED)?,
            retries: on.counters(RETRIES)?,
            given_up: on.counters(GIVEN_UP)?,
            cancels_dropped: on.counter(CANCELS_DROPPED)?,
            followed: on.counter(FOLLOWED)?,
            followed_lost: on.counter(FOLLOWED_LOST)?,
            publish_seconds: on.histograms(PUBLISH, &PUBLISH_SECONDS)?,
            transport_up: on.gauges(TRANSPORT_UP)?,
            units: per_unit(&on.counters(UNITS)?)?,
            refused: on.counters(REFUSED)?,
            unrouted: on.counter(UNROUTED)?,
            target_conflicts: on.counter(TARGET_CONFLICTS)?,
            calls: per_value(
                &on.counters(CALLS)?,
                &CallOutcome::ALL.map(CallOutcome::as_str),
            )?,
            call_parts: on.counter(CALL_PARTS)?,
            replies: per_value(
                &on.counters(REPLIES)?,
                &ReplyOutcome::ALL.map(ReplyOutcome::as_str),
            )?,
            pending_calls: on.gauge(PENDING_CALLS)?,
            call_seconds: on.histogram(CALL, &CALL_SECONDS)?,
            http_requests: HttpRequests::of(on.counters(HTTP_REQUESTS)?),
            held_bytes: on.gauge(HELD_BYTES)?,
            budget_refused: on.counter(BUDGET_REFUSED)?,
            connections: on.gauges(CONNECTIONS)?,
            connections_closed: on.counters(CONNECTIONS_CLOSED)?,
            agents: AgentMetrics::new(&mut on)?,
            reload: ReloadMetrics::new(&mut on)?,
            workflows: WorkflowMetrics::new(&mut on)?,
            state: StateFamilies::new(&mut on)?,
            attached: AttachedMetrics::new(&mut on)?,
            announcements: RegistryMetrics::new(&mut on)?,
            a2a: A2aMetrics::new(&mut on)?,
            doors: DoorMetrics::new(&mut on)?,
            process: ProcessMetrics::new(&mut on)?,
            registry: on.registry.clone(),
            definitions: Vec::new(),
        };
        Ok(Self {
            definitions: on.definitions,
            ..metrics
        })
    }

    /// The metrics of a binding of the configuration.
    #[must_use]
    pub fn binding(&self, name: &Text) -> BindingMetrics {
        let labels = &[name.as_str()];
        BindingMetrics {
            dead_lettered: self.dead_lettered.clone(),
            dropped: self.dropped.clone(),
            overruled: self.overruled.clone(),
            received: self.received.with_label_values(labels),
            settled: self.settled.with_label_values(labels),
            in_flight: self.in_flight.with_label_values(labels),
            held_lanes: self.held_lanes.clone(),
            dead_letters_lost: self.dead_letters_lost.with_label_values(labels),
            name: name.clone(),
        }
    }

    /// How many Kafka partitions of a binding are paused because of their own records.
    pub fn paused_partitions(&self, binding: &Text, partitions: usize) {
        let gauge = self
            .paused_partitions
            .with_label_values(&[binding.as_str()]);
        gauge.set(i64::try_from(partitions).unwrap_or(i64::MAX));
    }

    /// The lag of a binding in messages; `None` if it is unknown.
    pub fn source_lag(&self, binding: &Text, lag: Option<u64>) {
        let labels = &[binding.as_str()];
        match lag {
            Some(lag) => {
                let gauge = self.source_lag.with_label_values(labels);
                gauge.set(i64::try_from(lag).unwrap_or(i64::MAX));
            }
            // An error means that there was no value to remove.
            None => drop(self.source_lag.remove_label_values(labels)),
        }
    }

    /// Counts messages of a binding that the source has removed before they were read.
    pub fn removed_unread(&self, binding: &Text, messages: u64) {
        let counter = self.removed_unread.with_label_values(&[binding.as_str()]);
        counter.inc_by(messages);
    }

    /// The metrics of a transport of the configuration.
    #[must_use]
    pub fn transport(&self, name: &Text) -> TransportMetrics {
        let labels = &[name.as_str()];
        TransportMetrics {
            retries: self.retries.clone(),
            given_up: self.given_up.clone(),
            published: self.published.with_label_values(labels),
            publish_seconds: self.publish_seconds.with_label_values(labels),
            client_dropped: self.client_dropped.with_label_values(labels),
            up: self.transport_up.with_label_values(labels),
            name: name.clone(),
        }
    }

    /// The metrics of a view of the state.
    #[must_use]
    pub fn state(&self, name: &str) -> StateMetrics {
        self.state.of(name)
    }

    /// Counts the outcome of an announcement of an agent.
    pub fn registry(&self, event: RegistryEvent) {
        self.announcements.count(event);
    }

    /// How many agents have announced themselves.
    pub fn announced_agents(&self, count: usize) {
        let gauge = &self.announcements.agents;
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a decoded unit.
    pub fn unit(&self, family: Family, kind: Kind) {
        add_one(&self.units, family as usize * KINDS.len() + kind as usize);
    }

    /// Counts a refused unit.
    pub fn refused(&self, kind: DecodeErrorKind) {
        self.refused.with_label_values(&[kind.as_str()]).inc();
    }

    /// Counts a finished call, and how long it took.
    pub fn call_ended(&self, outcome: CallOutcome, took: Duration) {
        add_one(&self.calls, outcome as usize);
        self.call_seconds.observe(took.as_secs_f64());
    }

    /// The open connections of an HTTP listener.
    pub(crate) fn connections(&self, door: &'static str) -> IntGauge {
        self.connections.with_label_values(&[door])
    }

    /// Counts a connection that the bridge closed.
    pub(crate) fn connection_closed(&self, door: &'static str, why: &'static str) {
        self.connections_closed
            .with_label_values(&[door, why])
            .inc();
    }

    /// Calls by agent.
    #[must_use]
    pub fn agents(&self) -> &Arc<AgentMetrics> {
        &self.agents
    }

    /// Counts an attribute of a caller's event that was removed or overwritten.
    pub(crate) fn overruled(&self, binding: &str, attribute: &'static str) {
        self.overruled
            .with_label_values(&[binding, attribute])
            .inc();
    }

    /// Counts an event whose payload names a different agent than the path or attribute that takes precedence.
    pub fn target_conflict(&self) {
        self.target_conflicts.inc();
    }

    /// Counts an answer from the bus.
    pub fn reply(&self, outcome: ReplyOutcome) {
        add_one(&self.replies, outcome as usize);
    }

    /// Counts a request of an A2A client by its method, version, binding and outcome.
    pub(crate) fn a2a_request(&self, labels: [&'static str; 4]) {
        self.a2a.request(labels);
    }

    /// Counts a task that begins.
    pub(crate) fn task_started(&self) {
        self.a2a.task_started();
    }

    /// The metrics of attached agents.
    pub(crate) fn attached(&self) -> &AttachedMetrics {
        &self.attached
    }

    /// Counts a task that has ended in this state.
    pub(crate) fn task_ended(&self, state: &'static str) {
        self.a2a.task_ended(state);
    }

    /// Counts a call of a webhook.
    pub(crate) fn push_delivery(&self, outcome: PushOutcome) {
        self.a2a.push_delivery(outcome);
    }

    /// Counts an answered HTTP request; a stream counts when its head is sent.
    pub fn http_request(&self, path: HttpPath, status: StatusCode) {
        self.http_requests.add(path, status);
    }

    /// Counts a request with an `Idempotency-Key`.
    pub fn keyed(&self, outcome: IdempotencyOutcome) {
        self.doors.keyed(outcome);
    }

    /// Counts a request that is above a limit of its client or its context.
    pub fn limited(&self, limit: LimitScope) {
        self.doors.limited(limit);
    }

    /// The open streams of MCP clients for notifications.
    pub(crate) fn mcp_streams(&self) -> &IntGauge {
        &self.doors.mcp_streams
    }

    /// The subscriptions of MCP clients to resources.
    pub(crate) fn mcp_subscriptions(&self) -> &IntGauge {
        &self.doors.mcp_subscriptions
    }

    /// Counts a question of an agent that is refused, because nobody can answer it.
    pub(crate) fn question_refused(&self) {
        self.doors.questions_refused.inc();
    }

    /// Counts an execution that begins.
    pub fn workflow_started(&self) {
        self.workflows.started.inc();
        self.workflows.running.inc();
    }

    /// Counts a finished execution; `None` if it was given up.
    pub fn workflow_ended(&self, status: Option<Status>) {
        self.workflows.running.dec();
        let status = status.map_or(workflows::ABANDONED, Status::as_str);
        self.workflows.ended.with_label_values(&[status]).inc();
    }

    /// Counts an execution of a process that has died, which was found to be interrupted.
    pub(crate) fn workflow_found_abandoned(&self) {
        let labels = &[workflows::ABANDONED];
        self.workflows.ended.with_label_values(labels).inc();
    }

    /// Counts an execution whose record is stored without its results.
    pub(crate) fn workflow_results_not_stored(&self) {
        self.workflows.not_stored.inc();
    }

    /// Counts a finished run of an operation.
    pub fn workflow_operation(&self, progress: &Progress) {
        match progress.status {
            OperationStatus::Running => {}
            status => {
                let labels = &[progress.operation_type.as_str(), status.as_str()];
                self.workflows.operations.with_label_values(labels).inc();
            }
        }
    }

    /// Counts a refused request.
    pub fn workflow_refused(&self, why: RefusalReason) {
        add_one(&self.workflows.refused, why as usize);
    }

    /// Counts that the configuration was read again.
    pub fn config_reload(&self, what: ConfigReload) {
        self.reload.count(what);
    }

    /// Counts a reload of agents, APIs, credentials or their secrets.
    pub fn workflow_reload(&self, what: ReloadOutcome) {
        add_one(&self.workflows.reloads, what as usize);
    }

    /// What `/readyz` reports now.
    pub(crate) fn readiness(&self, is_ready: bool, degraded: usize) {
        self.process.set(is_ready, degraded);
    }

    /// Lines of the log that were not written.
    pub(crate) fn log_lines_lost(&self) -> &IntCounter {
        &self.process.log_lines_lost
    }

    /// Every metric in the text format that Prometheus scrapes.
    ///
    /// # Errors
    /// When a metric cannot be written, which is a defect of this file.
    pub fn render(&self) -> Result<String, Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// The definitions of all metrics.
    #[must_use]
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }
}

// === impl BindingMetrics ===

impl BindingMetrics {
    /// Counts a message that became a dead letter; `reason` is the code of an error.
    pub fn dead_lettered(&self, reason: &'static str) {
        let labels = &[self.name.as_str(), reason];
        self.dead_lettered.with_label_values(labels).inc();
    }

    /// Counts an attribute of a writer that was removed or overwritten.
    pub(crate) fn overruled(&self, attribute: &'static str) {
        let labels = &[self.name.as_str(), attribute];
        self.overruled.with_label_values(labels).inc();
    }

    /// Counts a message that was settled without being published, as intended.
    pub fn dropped(&self, reason: &'static str) {
        let labels = &[self.name.as_str(), reason];
        self.dropped.with_label_values(labels).inc();
    }

    /// The gauge of lanes that wait because of an error of this kind.
    #[must_use]
    pub fn held_lanes(&self, kind: TransportErrorKind) -> IntGauge {
        let labels = &[self.name.as_str(), kind.as_str()];
        self.held_lanes.with_label_values(labels)
    }
}

// === impl TransportMetrics ===

impl TransportMetrics {
    /// Counts a publish retry.
    pub fn retried(&self, kind: TransportErrorKind) {
        let labels = &[self.name.as_str(), kind.as_str()];
        self.retries.with_label_values(labels).inc();
    }

    /// Counts a message of a caller that was not published.
    pub fn given_up(&self, kind: TransportErrorKind) {
        let labels = &[self.name.as_str(), kind.as_str()];
        self.given_up.with_label_values(labels).inc();
    }
}

// === impl HttpRequests ===

impl HttpRequests {
    fn of(by_status: IntCounterVec) -> Self {
        Self {
            by_status,
            ok: Default::default(),
        }
    }

    fn add(&self, path: HttpPath, status: StatusCode) {
        let labels = &[path.as_str(), status.as_str()];
        let counter = || self.by_status.with_label_values(labels);
        match self.ok.get(path as usize) {
            Some(ok) if status == StatusCode::OK => ok.get_or_init(counter).inc(),
            _ => counter().inc(),
        }
    }
}

/// One counter for each family and kind, so that they are scraped as 0 before the first unit.
fn per_unit(units: &IntCounterVec) -> Result<Vec<IntCounter>, Error> {
    let pairs = Family::ALL
        .iter()
        .flat_map(|family| KINDS.iter().map(move |kind| (family, kind)));
    pairs
        .map(|(family, kind)| units.get_metric_with_label_values(&[family.as_str(), kind.as_str()]))
        .collect()
}

// === the metrics ===

const RECEIVED: Definition = Definition {
    name: "a2abus_received_total",
    unit: "messages",
    labels: &["binding"],
    help: "Messages read from the source, redeliveries included.",
};
const SETTLED: Definition = Definition {
    name: "a2abus_settled_total",
    unit: "messages",
    labels: &["binding"],
    help: "Messages acknowledged to the source: copied, dead-lettered or dropped.",
};
const DEAD_LETTERED: Definition = Definition {
    name: "a2abus_dead_lettered_total",
    unit: "messages",
    labels: &["binding", "reason"],
    help: "Messages that became dead letters.",
};
const DROPPED: Definition = Definition {
    name: "a2abus_dropped_total",
    unit: "messages",
    labels: &["binding", "reason"],
    help: "Messages and answers that were not delivered, by reason.",
};
const OVERRULED: Definition = Definition {
    name: "a2abus_attributes_overruled_total",
    unit: "attributes",
    labels: &["binding", "attribute"],
    help: "Attributes set by the writer of an event that were removed or overwritten.",
};
const IN_FLIGHT: Definition = Definition {
    name: "a2abus_in_flight",
    unit: "messages",
    labels: &["binding"],
    help: "Messages received and not yet acknowledged.",
};
const HELD_LANES: Definition = Definition {
    name: "a2abus_held_lanes",
    unit: "lanes",
    labels: &["binding", "kind"],
    help: "Lanes that wait because a destination does not accept their next message, by kind of failure. Lanes that continue count too, if copies of requests wait for destinations from which no answer is expected.",
};
const DEAD_LETTERS_LOST: Definition = Definition {
    name: "a2abus_dead_letters_lost_total",
    unit: "messages",
    labels: &["binding"],
    help: "Dead letters of core NATS bindings that no stream confirmed: their messages are lost. `a2abus_dead_lettered_total` counts them too.",
};
const CLIENT_DROPPED: Definition = Definition {
    name: "a2abus_client_dropped_total",
    unit: "messages",
    labels: &["transport"],
    help: "Messages that were dropped unread: those of core NATS subscriptions because the bridge was too slow, and those in topics of the memory transport that nobody reads because others needed the room.",
};
const SOURCE_LAG: Definition = Definition {
    name: "a2abus_source_lag",
    unit: "messages",
    labels: &["binding"],
    help: "Messages at the source that are not acknowledged: on Kafka in the partitions of this replica; on JetStream pending or unacknowledged messages of the durable consumer. Across replicas, add the values on Kafka (sum), and take the largest on JetStream (max). It is read every 5 s, so a new binding or a rebalance shows up to 5 s late.",
};
const REMOVED_UNREAD: Definition = Definition {
    name: "a2abus_removed_unread_total",
    unit: "messages",
    labels: &["binding"],
    help: "Kafka records that were removed from their topic (retention, DeleteRecords) before the bridge read them: they are lost. Counted when the next record of the partition is read; control records of transactions count too.",
};
const PAUSED_PARTITIONS: Definition = Definition {
    name: "a2abus_paused_partitions",
    unit: "partitions",
    labels: &["binding"],
    help: "Kafka partitions that are not read because of their own records: a request waits for its answer and holds back too many later records, or its records fill its share of the budget and none of them is settled, because a destination accepts none or their work is slow.",
};
const PUBLISHED: Definition = Definition {
    name: "a2abus_published_total",
    unit: "messages",
    labels: &["transport"],
    help: "Messages that the bus has confirmed.",
};
const RETRIES: Definition = Definition {
    name: "a2abus_retries_total",
    unit: "publications",
    labels: &["transport", "kind"],
    help: "Publish retries, by kind of failure.",
};
const GIVEN_UP: Definition = Definition {
    name: "a2abus_given_up_total",
    unit: "messages",
    labels: &["transport", "kind"],
    help: "Messages of callers that the bus did not accept before the call ended, and those that it did not confirm and that are not sent again, by the last kind of failure.",
};
const CANCELS_DROPPED: Definition = Definition {
    name: "a2abus_cancels_dropped_total",
    unit: "cancels",
    labels: &[],
    help: "Cancel messages that were not sent because too many were waiting, or the bridge was stopping.",
};
const PUBLISH: Definition = Definition {
    name: "a2abus_publish_seconds",
    unit: "seconds",
    labels: &["transport"],
    help: "Time from handing a message to the client to its confirmation.",
};
const TRANSPORT_UP: Definition = Definition {
    name: "a2abus_transport_up",
    unit: "0 or 1",
    labels: &["transport"],
    help: "1 if the bus answers, otherwise 0.",
};
const UNITS: Definition = Definition {
    name: "a2abus_units_total",
    unit: "units",
    labels: &["family", "kind"],
    help: "Decoded units of payloads.",
};
const REFUSED: Definition = Definition {
    name: "a2abus_refused_total",
    unit: "units",
    labels: &["kind"],
    help: "Refused units of payloads, by error.",
};
const UNROUTED: Definition = Definition {
    name: "a2abus_unrouted_total",
    unit: "events",
    labels: &[],
    help: "Events that match no route.",
};
const TARGET_CONFLICTS: Definition = Definition {
    name: "a2abus_target_conflicts_total",
    unit: "events",
    labels: &[],
    help: "Events whose payload names a different agent than the path or attribute that takes precedence.",
};
const CALLS: Definition = Definition {
    name: "a2abus_calls_total",
    unit: "calls",
    labels: &["outcome"],
    help: "Finished calls, by outcome.",
};
const CALL_PARTS: Definition = Definition {
    name: "a2abus_call_parts_total",
    unit: "parts",
    labels: &[],
    help: "Parts of answers delivered to callers.",
};
const REPLIES: Definition = Definition {
    name: "a2abus_replies_total",
    unit: "messages",
    labels: &["outcome"],
    help: "Answers read from the bus, by outcome.",
};
const PENDING_CALLS: Definition = Definition {
    name: "a2abus_pending_calls",
    unit: "calls",
    labels: &[],
    help: "Calls that are waiting for their answer.",
};
const CALL: Definition = Definition {
    name: "a2abus_call_seconds",
    unit: "seconds",
    labels: &[],
    help: "Time from a request to the end of its call, however it ended.",
};
const HTTP_REQUESTS: Definition = Definition {
    name: "a2abus_http_requests_total",
    unit: "requests",
    labels: &["path", "status"],
    help: "HTTP requests answered by the HTTP listener for callers. `path` is a path such as `/rpc/{agent}`, or `a2a rest`, `agent cards`, `/api` (all paths below it), `/health` or `other`.",
};
const HELD_BYTES: Definition = Definition {
    name: "a2abus_held_bytes",
    unit: "bytes",
    labels: &[],
    help: "Memory used by requests and answers, of `calls.budget_bytes`.",
};
const FOLLOWED: Definition = Definition {
    name: "a2abus_calls_taken_over_total",
    unit: "calls",
    labels: &[],
    help: "Calls of other replicas whose answers this replica recorded, because the other replica did not accept them.",
};

const FOLLOWED_LOST: Definition = Definition {
    name: "a2abus_followed_calls_dropped_total",
    unit: "calls",
    labels: &[],
    help: "Calls of other replicas whose answers this replica no longer follows, because it lost their bus, the number of partitions of the reply topic changed, memory ran short, an E2A record was missing, or the log refused a part.",
};

const BUDGET_REFUSED: Definition = Definition {
    name: "a2abus_budget_refused_total",
    unit: "refusals",
    labels: &[],
    help: "Requests, calls and parts of answers that did not fit into `calls.budget_bytes`, and requests whose task or webhook did not fit into `state.memory`.",
};
const CONNECTIONS: Definition = Definition {
    name: "a2abus_http_connections",
    unit: "connections",
    labels: &["door"],
    help: "Open connections of HTTP clients. `door` is the listener: `http` or `admin`.",
};
const CONNECTIONS_CLOSED: Definition = Definition {
    name: "a2abus_http_connections_closed_total",
    unit: "connections",
    labels: &["door", "why"],
    help: "Connections that the bridge closed, by listener (`door`: `http` or `admin`) and by reason: `too_many` of one client, `idle`, `stalled`, `no_request`, `made_room` for another one, or because of what the client sent: `head_too_large` (or too many header lines), `malformed`, `flood`.",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_help_and_a_unit_in_its_name() {
        let metrics = Metrics::new().unwrap();
        assert_eq!(metrics.definitions().len(), 74);
        // A gauge without a unit suffix is named after what it counts.
        let gauges = [
            "a2abus_config_last_reload_successful",
            "a2abus_config_restart_needed",
            "a2abus_in_flight",
            "a2abus_held_lanes",
            "a2abus_source_lag",
            "a2abus_paused_partitions",
            "a2abus_pending_calls",
            "a2abus_http_connections",
            "a2abus_mcp_streams",
            "a2abus_mcp_subscriptions",
            "a2abus_agent_calls_in_flight",
            "a2abus_workflow_executions",
            "a2abus_transport_up",
            "a2abus_announced_agents",
            "a2abus_attached_unusable_skills",
            "a2abus_state_entries",
            "a2abus_state_behind",
            "a2abus_build_info",
            "a2abus_ready",
            "a2abus_degraded",
        ];
        for Definition {
            name, unit, help, ..
        } in metrics.definitions()
        {
            assert!(name.starts_with("a2abus_"), "{name}");
            assert!(help.ends_with('.') && help.len() > 20, "{name}: {help}");
            assert!(!unit.is_empty(), "{name}");
            let is_named = match *unit {
                "seconds" => name.ends_with("_seconds"),
                "bytes" => name.ends_with("_bytes"),
                _ if gauges.contains(name) => true,
                _ => name.ends_with("_total"),
            };
            assert!(is_named, "{name} does not contain its unit {unit}");
        }
    }

    #[test]
    fn the_enums_index_their_own_counters() {
        let metrics = Metrics::new().unwrap();
        for outcome in CallOutcome::ALL {
            metrics.call_ended(outcome, Duration::from_millis(20));
        }
        for outcome in ReplyOutcome::ALL {
            metrics.reply(outcome);
        }
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        for (index, family) in Family::ALL.into_iter().enumerate() {
            assert_eq!(family as usize, index);
        }
        metrics.unit(Family::Legacy, Kind::Response);
        let text = metrics.render().unwrap();
        for outcome in CallOutcome::ALL.map(CallOutcome::as_str) {
            assert!(text.contains(&format!("a2abus_calls_total{{outcome=\"{outcome}\"}} 1")));
        }
        for outcome in ReplyOutcome::ALL.map(ReplyOutcome::as_str) {
            assert!(text.contains(&format!("a2abus_replies_total{{outcome=\"{outcome}\"}} 1")));
        }
        assert!(text.contains("a2abus_units_total{family=\"legacy\",kind=\"response\"} 1"));
        assert!(text.contains("a2abus_units_total{family=\"legacy\",kind=\"request\"} 0"));
    }

    #[test]
    fn the_metrics_of_bindings_and_transports_have_their_names() {
        let metrics = Metrics::new().unwrap();
        let binding = metrics.binding(&"in".into());
        binding.received.inc();
        binding.dead_lettered("no_route");
        binding.dropped("expired");
        let transport = metrics.transport(&"kafka".into());
        transport.up.set(1);
        transport.retried(TransportErrorKind::Disconnected);
        transport.publish_seconds.observe(0.002);
        metrics.refused(DecodeErrorKind::NotJson);
        metrics.http_request(HttpPath::RpcAgent, StatusCode::OK);
        let text = metrics.render().unwrap();
        for line in [
            "a2abus_received_total{binding=\"in\"} 1",
            "a2abus_dead_lettered_total{binding=\"in\",reason=\"no_route\"} 1",
            "a2abus_dropped_total{binding=\"in\",reason=\"expired\"} 1",
            "a2abus_transport_up{transport=\"kafka\"} 1",
            "a2abus_retries_total{kind=\"disconnected\",transport=\"kafka\"} 1",
            "a2abus_publish_seconds_bucket{transport=\"kafka\",le=\"0.0025\"} 1",
            "a2abus_refused_total{kind=\"not_json\"} 1",
            "a2abus_http_requests_total{path=\"/rpc/{agent}\",status=\"200\"} 1",
            "a2abus_build_info{version=\"0.1.0\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
