//! Bindings with `role: discovery`: they read announcements of agents from the bus.
//!
//! ```text
//! receive ─┬─ a card ──────────────────────────┬─> Registry ─> settle ─> answer, if somebody waits
//!          ├─ agent/card/register, and the like ┘        └─> refused: dead letter ─> settle ─> answer
//!          ├─ agent/card/list, and the like ──> settle ─> Registry ─> answer
//!          └─ anything else ─> refused
//! ```
//!
//! Changes are made one at a time, so the latest announcement of an agent wins. The message of a change is settled when
//! its record is in the log. Queries and answers wait for agents and for the bus, so changes do not wait for them, unless
//! 64 answers are in progress. The message of a query is settled when it is read: its sender can repeat it, and the
//! changes after an unsettled message may be delivered again.
//!
//! Source: docs/protocols/eventmesh-a2a.md §4.

use a2abus_plugin::protocol::jsonrpc;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Data, Event, EventError, Kind, Text, extension};
use a2abus_transports::content_mode::{self, Content};
use a2abus_transports::{
    Acknowledger, Address, Consumer, Delivery, Message, Origin, Outcome, Topic, TopicFilter,
    TransportErrorKind,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::request::Method;
use super::{Announcement, AnnouncementError, Registry, RequestOrigin};
use crate::bus::deadletter::{Reason, Stage, Undelivered};
use crate::bus::delivery::Publisher;
use crate::bus::headers::spring;
use crate::calls::failure::{self, Failure, Recipient};
use crate::calls::reply_address::{AllowedReplyAddresses, Refused, named_in};
use crate::config::{BindingConfig, Name};
use crate::log_limit::{LogLimit, LogLimits};
use crate::pipeline::intake::Intake;
use crate::results::{MAX_URI, Results, UpdateSource};

/// A binding that reads announcements.
#[derive(Debug)]
pub(crate) struct DiscoveryBinding {
    /// Reads its messages.
    pub(crate) intake: Intake,
    registry: Arc<Registry>,
    /// Where changes of resources are recorded; `None` if nothing needs them.
    results: Option<Arc<Results>>,
    /// The default transport of the announced agents.
    transport: Name,
    /// The subject filters whose last word is a wildcard. On their subjects the last word names the agent.
    named_subjects: Vec<TopicFilter>,
    places: AllowedReplyAddresses,
    publisher: Publisher,
    /// Limits the queries that are in progress or wait, those in progress, and the answers to changes.
    open_queries: Semaphore,
    queries: Semaphore,
    answers: Semaphore,
    waiting: LogLimit,
    refused: LogLimit,
    unanswered: LogLimit,
}

/// Queries and answers in progress.
type Background<'a> = FuturesUnordered<BoxFuture<'a, ()>>;

/// A received message, without its acknowledgement.
struct Received {
    message: Message,
    topic: Topic,
    reply_to: Option<Topic>,
    origin: Option<Origin>,
}

/// What a message asks for.
enum DiscoveryRequest {
    /// A card.
    Card(Bytes),
    /// A resource of an agent has changed.
    Updated {
        agent: Text,
        uri: Text,
        from: Option<UpdateSource>,
    },
    Request {
        /// The id as JSON; `None` for a notification.
        id: Option<Text>,
        method: Method,
        params: Option<Box<RawValue>>,
    },
    /// A JSON-RPC request that is not accepted here, and why. Its sender may wait for the answer with its id.
    Refused { id: Option<Text>, failure: Failure },
}

/// The result of one message.
struct RequestResult {
    /// The id of the request, if its sender waits for an answer.
    id: Option<Text>,
    /// For a failure, whether a retry may succeed.
    result: Result<String, (Failure, bool)>,
    /// Whether the request changes the registry. A refused change becomes a dead letter; a refused query is only
    /// answered.
    is_change: bool,
}

/// The notification that a resource has changed.
pub(crate) const UPDATED: &str = "notifications/resources/updated";
/// The member of its `_meta` that names the agent.
pub(crate) const AGENT: &str = "io.a2abus/agent";
/// The member that marks the copies of one change.
pub(crate) const UPDATE_SOURCE: &str = "io.a2abus/update";
/// Maximum number of bytes of the name of a run.
const MAX_RUN: usize = 64;
/// Maximum number of queries that are processed concurrently. Others wait.
const MAX_QUERIES: usize = 16;
/// Maximum number of queries that are processed or wait. Others are refused.
const MAX_OPEN_QUERIES: usize = 128;
/// How long a query waits until it is one of these. Announcements behind it wait too.
const PLACE_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of answers to changes that are published concurrently. If the bus confirms none, changes wait.
const MAX_ANSWERS: usize = 64;
/// How long publishing an answer may take. Requesters wait no longer.
const ANSWER: Duration = Duration::from_secs(10);
/// Between two attempts to store an announcement.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

// === impl DiscoveryBinding ===

impl DiscoveryBinding {
    pub(crate) fn new(
        intake: Intake,
        places: AllowedReplyAddresses,
        publisher: Publisher,
        config: &BindingConfig,
        (registry, results): (Arc<Registry>, Option<Arc<Results>>),
        log: &LogLimits,
    ) -> Self {
        let subjects = config.topics.iter().map(|topics| topics.0.clone());
        let is_named = |filter: &TopicFilter| {
            let last = filter.as_str().rsplit('.').next();
            intake.binding != content_mode::ProtocolBinding::Kafka
                && matches!(last, Some("*" | ">"))
        };
        Self {
            named_subjects: subjects.filter(is_named).collect(),
            transport: config.transport.clone(),
            waiting: log.limit_of(
                &intake.name,
                Level::WARN,
                "more announcements wait to be stored",
            ),
            refused: log.limit_of(&intake.name, Level::WARN, "more announcements were refused"),
            unanswered: log.limit_of(
                &intake.name,
                Level::WARN,
                "more answers to announcements were not published",
            ),
            intake,
            registry,
            results,
            places,
            publisher,
            open_queries: Semaphore::new(MAX_OPEN_QUERIES),
            queries: Semaphore::new(MAX_QUERIES),
            answers: Semaphore::new(MAX_ANSWERS),
        }
    }

    /// Runs until `stop`, then finishes the queries and answers in progress. Unfinished changes are redelivered.
    pub(crate) async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let (mut background, ending) = (Background::new(), CancellationToken::new());
        loop {
            let delivery = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    consumer.stop();
                    // Dropping a delivery that was not processed abandons it.
                    while consumer.try_recv().is_some() {}
                    break;
                }
                Some(()) = background.next() => continue,
                delivery = consumer.recv() => delivery,
            };
            let Some(delivery) = delivery else {
                break;
            };
            self.receive(delivery, &mut background, (&stop, &ending))
                .await;
        }
        // Queries that still wait for their turn are dropped.
        ending.cancel();
        while background.next().await.is_some() {}
        consumer
    }

    /// Makes the change in a message. Queries and answers continue in the background.
    async fn receive<'a>(
        &'a self,
        delivery: Delivery,
        background: &mut Background<'a>,
        (stop, ending): (&CancellationToken, &CancellationToken),
    ) {
        drop(self.intake.receive(&delivery));
        let Delivery {
            message,
            topic,
            reply_to,
            origin,
            acknowledger,
            ..
        } = delivery;
        let received = Received {
            message,
            topic,
            reply_to,
            origin,
        };
        let request = self.read_request(&received.message);
        let is_query = matches!(&request, DiscoveryRequest::Request { method, .. }
            if !method.is_change());
        if is_query {
            self.settle(acknowledger);
            let place = timeout(PLACE_TIMEOUT, self.open_queries.acquire());
            match alongside(place, background).await {
                Ok(Ok(open)) => {
                    let query = self.query(request, received, (open, ending.clone()));
                    background.push(query.boxed());
                }
                _ => background.extend(self.refuse_query(request, received).await),
            }
            return;
        }
        let change = self.change(request, (received, acknowledger), stop);
        if let Some(answer) = alongside(change, background).await {
            background.push(answer);
        }
    }

    /// Answers a query, unless `ending` comes before its turn. It counts as open meanwhile.
    async fn query(
        &self,
        request: DiscoveryRequest,
        delivery: Received,
        (_open, ending): (SemaphorePermit<'_>, CancellationToken),
    ) {
        let turn = ending.run_until_cancelled(self.queries.acquire());
        let Some(_turn) = turn.await else {
            self.intake.metrics.dropped("stopping");
            if let Some(suppressed) = self.unanswered.allow() {
                tracing::warn!(binding = %self.intake.name, topic = %delivery.topic, suppressed, "a query was still waiting when the bridge stopped: its sender gets no answer");
            }
            return;
        };
        let done = self.done(&request, &delivery).await;
        let (id, result) = self.noted(done, &delivery).await;
        let inbox = delivery.reply_to.as_ref();
        self.answer(&delivery.message, inbox, id, &result).await;
    }

    /// Refuses a query, because too many others wait. Returns what answers its sender, if there is a turn for that.
    async fn refuse_query(
        &self,
        request: DiscoveryRequest,
        delivery: Received,
    ) -> Option<BoxFuture<'_, ()>> {
        let DiscoveryRequest::Request { id, .. } = request else {
            return None;
        };
        let message = "too many queries are waiting: try again later";
        let failure = Failure::new(failure::Reason::Exhausted, message);
        self.intake.metrics.dropped("exhausted");
        self.refuse(&delivery, &failure, false).await;
        let turn = self.answers.try_acquire().ok()?;
        let answered = async move {
            let inbox = delivery.reply_to.as_ref();
            self.answer(&delivery.message, inbox, id, &Err(failure))
                .await;
            drop(turn);
        };
        Some(answered.boxed())
    }

    /// Makes a change, and settles its message. Returns what answers its sender; `None` if the bridge stops first.
    async fn change<'a>(
        &'a self,
        request: DiscoveryRequest,
        (delivery, acknowledger): (Received, Acknowledger),
        stop: &CancellationToken,
    ) -> Option<BoxFuture<'a, ()>> {
        let Some(done) = self.changed(&request, &delivery, stop).await else {
            self.intake.metrics.in_flight.dec();
            return None;
        };
        let (id, result) = self.noted(done, &delivery).await;
        let Received {
            message, reply_to, ..
        } = delivery;
        // Before the answer: a message that is redelivered after later ones would undo their changes.
        self.settle(acknowledger);
        let turn = self.answers.acquire().await;
        let answered = async move {
            self.answer(&message, reply_to.as_ref(), id, &result).await;
            drop(turn);
        };
        Some(answered.boxed())
    }

    fn settle(&self, acknowledger: Acknowledger) {
        self.intake.metrics.in_flight.dec();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.intake.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(%error, "an announcement was not acknowledged: it may be redelivered");
            }
        }
    }

    /// Makes a change, and tries again while the bus is unavailable; `None` if the bridge stops first.
    async fn changed(
        &self,
        request: &DiscoveryRequest,
        delivery: &Received,
        stop: &CancellationToken,
    ) -> Option<RequestResult> {
        let [mut pause, longest] = PAUSES;
        loop {
            let done = self.done(request, delivery).await;
            // If the bus is unavailable, try again later. The message is not settled, so nothing is lost.
            let Err((failure, true)) = &done.result else {
                return Some(done);
            };
            if let Some(suppressed) = self.waiting.allow() {
                let (topic, detail) = (&delivery.topic, failure.message());
                tracing::warn!(binding = %self.intake.name, %topic, detail, suppressed,
                    "an announcement cannot be stored: it and later ones wait");
            }
            stop.run_until_cancelled(tokio::time::sleep(pause)).await?;
            pause = (pause * 2).min(longest);
        }
    }

    /// The id and the result of a request. A refused one is logged. It also becomes a dead letter, unless it is a query
    /// whose sender gets the error.
    async fn noted(
        &self,
        done: RequestResult,
        delivery: &Received,
    ) -> (Option<Text>, Result<String, Failure>) {
        let result = done.result.map_err(|(failure, _)| failure);
        if let Err(failure) = &result {
            self.refuse(delivery, failure, done.is_change || done.id.is_none())
                .await;
        }
        (done.id, result)
    }

    /// The request in the body of a message, or in the data of its event.
    fn read_request(&self, message: &Message) -> DiscoveryRequest {
        let limits = self.publisher.outbound().rules().limits;
        let request = match content_mode::read(self.intake.binding, message, &limits) {
            Ok(Content::Plain { body, .. }) => DiscoveryRequest::read(body),
            Ok(Content::Event(event)) => DiscoveryRequest::read(event.body()),
            Err(error) => {
                let reason = failure::Reason::InvalidRequest;
                Err(Failure::new(reason, error.to_string()))
            }
        };
        request.unwrap_or_else(|failure| DiscoveryRequest::Refused { id: None, failure })
    }

    /// Executes the request. For a failure, also returns whether a retry may succeed.
    async fn done(&self, request: &DiscoveryRequest, delivery: &Received) -> RequestResult {
        match request {
            DiscoveryRequest::Refused { id, failure } => RequestResult {
                id: id.clone(),
                result: Err((failure.clone(), false)),
                is_change: true,
            },
            DiscoveryRequest::Card(card) => {
                let claim = Announcement {
                    origin: self.origin(delivery),
                    ..Announcement::default()
                };
                let registered = self.registry.register(card, &claim).await;
                let result = registered
                    .map(|(agent, announced)| self.registry.receipt(&agent, &announced))
                    .map_err(|refused| {
                        let failure = Failure::from(refused);
                        let is_transient = failure.is_transient();
                        (failure, is_transient)
                    });
                RequestResult {
                    id: None,
                    result,
                    is_change: true,
                }
            }
            DiscoveryRequest::Updated { agent, uri, from } => RequestResult {
                id: None,
                result: self
                    .updated(agent, (uri, from), &self.origin(delivery))
                    .await,
                is_change: true,
            },
            DiscoveryRequest::Request { id, method, params } => {
                let origin = self.origin(delivery);
                let params = params.as_deref();
                let answered = self.registry.answer(*method, params, None, origin).await;
                let result = answered.map_err(|failure| {
                    let is_transient = method.is_change() && failure.is_transient();
                    (failure, is_transient)
                });
                RequestResult {
                    id: id.clone(),
                    result,
                    is_change: method.is_change(),
                }
            }
        }
    }

    /// Passes the change of a resource on to all replicas.
    async fn updated(
        &self,
        agent: &Text,
        (uri, from): (&Text, &Option<UpdateSource>),
        origin: &RequestOrigin,
    ) -> Result<String, (Failure, bool)> {
        let checked = self.registry.check_sender(agent, origin);
        checked.map_err(|error| (Failure::from(error), false))?;
        if let Some(results) = &self.results {
            let noted = results.note_updated(agent, uri.clone(), from.clone()).await;
            noted.map_err(|error| (AnnouncementError::NotStored(error).into(), true))?;
        }
        Ok("{}".to_owned())
    }

    /// The agent names in a message: its key on Kafka, and the last word of a subject that matches a wildcard.
    fn origin(&self, delivery: &Received) -> RequestOrigin {
        let key = delivery.message.key.as_deref();
        let key = key.filter(|key| !key.is_empty());
        let key = key.map(|key| Text::from(String::from_utf8_lossy(key).into_owned()));
        let mut filters = self.named_subjects.iter();
        let is_named = filters.any(|filter| filter.matches(&delivery.topic));
        let last_token = is_named.then(|| delivery.topic.as_str().rsplit('.').next());
        RequestOrigin {
            transport: Some(self.transport.clone()),
            shows: key
                .into_iter()
                .chain(last_token.flatten().map(Text::from))
                .collect(),
            caller: None,
        }
    }

    /// Logs a refused message, and stores it as a dead letter.
    async fn refuse(&self, delivery: &Received, failure: &Failure, is_kept: bool) {
        let (reason, detail) = (failure.reason_code(), failure.message());
        if let Some(suppressed) = self.refused.allow() {
            let origin = delivery.origin.as_ref();
            let origin = origin.map_or("unknown", |origin| origin.position.as_str());
            tracing::warn!(binding = %self.intake.name, origin, reason, detail, suppressed, "an announcement is refused");
        }
        if !is_kept {
            return;
        }
        let of = Undelivered::new(&delivery.message, &delivery.topic, delivery.origin.as_ref());
        let reason = Reason {
            code: reason,
            stage: Stage::Detect,
            detail: detail.to_owned(),
            unit: None,
        };
        let dead_letters = &self.intake.dead_letters;
        let dead_letter = dead_letters.dead_letter(&of, None, &reason);
        dead_letters.store(dead_letter, &self.publisher).await;
    }

    /// Answers the sender of a request with an id, or of any message that names its own inbox.
    async fn answer(
        &self,
        message: &Message,
        inbox: Option<&Topic>,
        id: Option<Text>,
        result: &Result<String, Failure>,
    ) {
        let named = named_in(message);
        if id.is_none() && named.is_none() && inbox.is_none() {
            return;
        }
        if let Some((name, _)) = &named
            && let Err(refused) = self.places.named(name, inbox)
        {
            self.intake.metrics.dropped(Refused::REASON);
            if let Some(suppressed) = self.unanswered.allow() {
                tracing::warn!(binding = %self.intake.name, error = %refused, suppressed, "the reply address of an announcement is not allowed: the announcement is answered at its inbox or at `replies`, if there is one");
            }
        }
        let Some(address) = self.places.of_refused(named, inbox) else {
            return;
        };
        let (topic, to) = (&address.topic, (&address, &id));
        let mut published = self.publish(message, to, result).await;
        if let (Err((error, true)), Ok(answer)) = (&published, result) {
            let failed = Err(self.too_large(answer.len(), (topic, error)));
            published = self.publish(message, to, &failed).await;
        }
        if let Err((error, _)) = published
            && let Some(suppressed) = self.unanswered.allow()
        {
            tracing::warn!(binding = %self.intake.name, %topic, error, suppressed, "an announcement is not answered");
        }
    }

    /// The error in place of an answer that its bus refuses because of its size.
    fn too_large(&self, bytes: usize, (topic, error): (&Topic, &str)) -> Failure {
        let reason = failure::Reason::ReplyUndeliverable;
        let message = format!(
            "the answer has {bytes} bytes, more than its bus accepts: ask for fewer agents at a time, with limit and offset"
        );
        let failure = Failure::new(reason, message);
        self.intake.metrics.dropped(failure.reason_code());
        if let Some(suppressed) = self.unanswered.allow() {
            tracing::warn!(binding = %self.intake.name, %topic, bytes, error, suppressed, "an answer is too large for its bus: its requester gets an error");
        }
        failure
    }

    /// Publishes an answer to the request with this id.
    ///
    /// # Errors
    /// Why it is not published, and whether the bus refuses it because of its size.
    async fn publish(
        &self,
        message: &Message,
        (address, id): (&Address, &Option<Text>),
        result: &Result<String, Failure>,
    ) -> Result<(), (String, bool)> {
        let token = id.clone().unwrap_or(Text::from_static("null"));
        let event = self
            .event(&token, result)
            .map_err(|error| (error.to_string(), false))?;
        let correlation = message.headers.get(spring::CORRELATION_ID);
        let (to, headers) = ((self.intake.bus, address), (correlation, &[][..]));
        let outbound = self.publisher.outbound();
        let copy = outbound
            .to_address(&event, to, headers, false)
            .map_err(|error| (error.to_string(), false))?;
        match timeout(ANSWER, self.publisher.until_confirmed(&copy)).await {
            Ok(sent) => sent.map_err(|error| {
                let is_too_large = error.kind() == TransportErrorKind::TooLarge;
                (error.to_string(), is_too_large)
            }),
            Err(_) => Err((
                format!("the bus did not accept it within {ANSWER:?}"),
                false,
            )),
        }
    }

    /// A JSON-RPC response, as an event.
    fn event(&self, id: &Text, result: &Result<String, Failure>) -> Result<Event, EventError> {
        let prefix = self.intake.options.type_prefix.text();
        let source = Text::from(&*self.intake.source);
        let ty = format!("{prefix}common.response");
        let mut event = Event::new(crate::clock::new_event_id().into(), source, ty.into())?;
        event.set("time", crate::clock::rfc3339(crate::clock::now()))?;
        event.set("datacontenttype", "application/json")?;
        event.set(extension::MCP_TYPE, Kind::Response.as_str())?;
        event.set(extension::PROTOCOL, "A2A")?;
        event.set(extension::PROTOCOL_VERSION, "2.0")?;
        let body = match result {
            Ok(result) => jsonrpc::result(id, result),
            Err(failure) => failure.render(&Recipient::new(id.clone(), Dialect::JsonRpc)),
        };
        event.set_data(Some(Data::from(body)));
        Ok(event)
    }
}

/// The card in a body that announces an agent: the body itself, or a part of a request. `None` if there is none.
///
/// # Errors
/// Why the registry does not read the body.
pub(crate) fn announced_card(body: &Bytes) -> Result<Option<Bytes>, Failure> {
    #[derive(Deserialize)]
    struct Params {
        card: Box<RawValue>,
    }
    Ok(match DiscoveryRequest::read(body.clone())? {
        DiscoveryRequest::Card(card) => Some(card),
        DiscoveryRequest::Request {
            method: Method::Register | Method::Update,
            params,
            ..
        } => {
            let params = params.as_deref().map_or("{}", RawValue::get);
            let params: Option<Params> = serde_json::from_str(params).ok();
            params.map(|params| Bytes::copy_from_slice(params.card.get().as_bytes()))
        }
        DiscoveryRequest::Request { .. }
        | DiscoveryRequest::Updated { .. }
        | DiscoveryRequest::Refused { .. } => None,
    })
}

/// Whether a body is a batch of JSON-RPC messages.
fn is_batch(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Element {
        #[serde(rename = "jsonrpc")]
        _version: IgnoredAny,
    }
    let elements = || serde_json::from_slice::<Vec<Element>>(body);
    body.trim_ascii_start().starts_with(b"[") && elements().is_ok_and(|all| !all.is_empty())
}

fn unknown_method(method: &str) -> Failure {
    let method: String = method.chars().take(64).collect();
    let message = format!(
        "expected an agent card, agent/card/register, update, get, delete or list, methods/list, or {UPDATED}; this is JSON-RPC with the method {method:?}"
    );
    Failure::new(failure::Reason::MethodNotFound, message)
}

/// Waits for `work`, while queries and answers continue.
async fn alongside<T>(work: impl Future<Output = T>, background: &mut Background<'_>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            Some(()) = background.next() => {}
        }
    }
}

// === impl DiscoveryRequest ===

impl DiscoveryRequest {
    fn read(body: Bytes) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Envelope {
            #[serde(default)]
            jsonrpc: Option<String>,
            #[serde(default)]
            id: Option<Box<RawValue>>,
            #[serde(default)]
            method: Option<String>,
            #[serde(default)]
            params: Option<Box<RawValue>>,
        }
        let refuse = |message: String| Failure::new(failure::Reason::InvalidRequest, message);
        if is_batch(&body) {
            let message = "a batch is not accepted here: send each request as its own message";
            return Err(refuse(message.to_owned()));
        }
        let envelope: Result<Envelope, _> = serde_json::from_slice(&body);
        // Anything else is read as a card, so its faults are those of a card.
        let Ok(Envelope {
            jsonrpc: Some(version),
            id,
            method,
            params,
        }) = envelope
        else {
            return Ok(Self::Card(body));
        };
        let method = method.unwrap_or_default();
        if method == UPDATED {
            return Self::update(params.as_deref());
        }
        let id = id.map(|id| Text::from(id.get()));
        let is_id = |id: &Text| !id.starts_with(['{', '[', 't', 'f']);
        if !id.as_ref().is_none_or(is_id) {
            return Err(refuse("the id is neither a string nor a number".to_owned()));
        }
        if version != "2.0" {
            let failure = refuse("jsonrpc must be \"2.0\"".to_owned());
            return Ok(Self::Refused { id, failure });
        }
        Ok(match Method::of(&method) {
            Some(method) => Self::Request { id, method, params },
            None => Self::Refused {
                id,
                failure: unknown_method(&method),
            },
        })
    }

    /// Reads the change of a resource.
    fn update(params: Option<&RawValue>) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Params {
            uri: String,
            #[serde(rename = "_meta")]
            meta: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(rename = "io.a2abus/agent")]
            agent: String,
            #[serde(rename = "io.a2abus/update", default)]
            from: Option<UpdateSource>,
        }
        let params = params.map_or("{}", RawValue::get);
        let params: Params = serde_json::from_str(params).map_err(|error| {
            let expected =
                "expected params.uri, and the agent in params._meta[\"io.a2abus/agent\"]";
            Failure::bad_params(&format!("{UPDATED}: {expected}: {error}"))
        })?;
        if params.uri.len() > MAX_URI {
            let message = format!("{UPDATED}: the uri has more than {MAX_URI} bytes");
            return Err(Failure::bad_params(&message));
        }
        let from = params.meta.from;
        if from.as_ref().is_some_and(|from| from.run.len() > MAX_RUN) {
            let message = format!("{UPDATED}: the run has more than {MAX_RUN} bytes");
            return Err(Failure::bad_params(&message));
        }
        Ok(Self::Updated {
            agent: params.meta.agent.into(),
            uri: params.uri.into(),
            from,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_refusal_has_the_id_of_its_request() {
        let read = |body: &Value| DiscoveryRequest::read(Bytes::from(body.to_string()));
        for (version, method, reason) in [
            ("2.0", "agent/card/fly", failure::Reason::MethodNotFound),
            ("1.0", "agent/card/get", failure::Reason::InvalidRequest),
        ] {
            let request = json!({ "jsonrpc": version, "id": "nm", "method": method });
            let Ok(DiscoveryRequest::Refused { id, failure }) = read(&request) else {
                panic!("{request} is not refused");
            };
            assert_eq!(id.as_deref(), Some(r#""nm""#));
            assert_eq!(failure.reason(), reason);
        }
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "agent/card/list" });
        let Err(failure) = read(&json!([request, request])) else {
            panic!("a batch is not refused");
        };
        assert!(failure.message().contains("a batch"), "{failure:?}");
        let cards = read(&json!([{ "name": "a" }]));
        assert!(matches!(cards, Ok(DiscoveryRequest::Card(_))));
    }

    /// The attributes of `serde` take no constants, so the names are written twice.
    #[test]
    fn the_change_of_a_resource_is_read_by_the_names_that_are_written() {
        let from = UpdateSource {
            run: "run".into(),
            number: 1,
        };
        let meta = json!({ AGENT: "tools", UPDATE_SOURCE: from });
        let params = json!({ "uri": "file:///x", "_meta": meta });
        let update = json!({ "jsonrpc": "2.0", "method": UPDATED, "params": params });
        let read = DiscoveryRequest::read(Bytes::from(update.to_string()));
        let Ok(DiscoveryRequest::Updated { agent, uri, from }) = read else {
            panic!("it is not read as a change");
        };
        assert_eq!((agent.as_str(), uri.as_str()), ("tools", "file:///x"));
        assert!(from.is_some());
    }
}
