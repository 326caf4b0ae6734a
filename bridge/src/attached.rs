//! Attached agents: programs that the bridge starts, and HTTP servers that it calls, available on the bus as agents.
//!
//! ```text
//! topic ─> Ask ─┬─ request ─> turn ─> claim ─> server ─> answer kept ─> published ─> settled
//!               │                        └─ begun before: the kept answer ─┘
//!               ├─ cancel ──> the request of this id
//!               ├─ answer to an open question, notification ─> server
//!               └─ anything else ─> dead letter, and an error to the requester
//!
//! server: Server (MCP) ─ Link ─┬─ Program: its pipes
//!                              └─ Session: streamable HTTP
//!         Plain (A2A, JSON-RPC): each request one POST
//! ```
//!
//! A request that may have an effect is claimed on the log `results` before it reaches the server. If it is
//! redelivered, it gets the stored answer and is not executed again. Messages that precede an answer are published as
//! they arrive.
//!
//! Source: docs/protocols/mcp.md §11.

mod ask;
mod card;
mod health;
mod herald;
mod lifecycle;
mod link;
mod plain;
mod program;
mod replies;
mod server;
mod session;
mod version;
mod watched;
mod web;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_executor::{Limit, Quotas, SystemClock, Window};
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{self, Id};
use a2abus_plugin::{Event, Ids, Kind, MapContext, Text, Unit, decode};
use a2abus_transports::{Consumer, Delivery, Origin, TransportError};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use self::ask::{Ask, Rejected, Request};
use self::health::Health;
pub(crate) use self::herald::Herald;
use self::lifecycle::{Lifecycle, RunningServer};
use self::link::{Disconnected, Log as ServerLog, Parts, is_question_id};
use self::plain::Plain;
use self::program::Program;
use self::replies::Answer;
pub(crate) use self::replies::ReplyPublisher;
use self::server::{Server, ServerTransport};
use self::session::Session;
use self::watched::Watched;
use self::web::{Web, url_of};
use crate::bus::deadletter::{Reason, Undeliverable, Undelivered};
use crate::calls::CallError;
use crate::calls::callid::ReplyId;
use crate::calls::failure::{self, Failure, Recipient};
use crate::clock;
use crate::config::{AttachConfig, AttachProtocol};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::Metrics;
use crate::pipeline::held::Held;
use crate::pipeline::intake::{Intake, Read};
use crate::readiness::Readiness;
use crate::registry::Registry;
use crate::results::{Claim, KeyState, Results, UpdateSource, message_for_agent};
use crate::state::Lagged;

/// The requests for one attached agent.
#[derive(Debug)]
pub(crate) struct AttachedBinding {
    /// Reads its messages.
    pub(crate) intake: Intake,
    upstream: Arc<Upstream>,
    /// Announces the agent, if `announce` is set.
    herald: Option<Herald>,
    reply_publisher: ReplyPublisher,
    results: Arc<Results>,
    turns: Semaphore,
    bounds: Bounds,
    /// The requests in progress, by the requester's own id.
    running: Mutex<Running>,
    /// Limits the messages that are passed on to other bridges: anyone who can write to the topic can cause them.
    passed_on: Quotas,
    log: Log,
}

/// The server of an attached agent.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// An MCP server; the bridge is its client.
    Mcp(Server),
    /// A server that receives requests unchanged.
    Plain(Plain),
}

/// The limits of one agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of concurrent requests to its server.
    pub(crate) concurrency: usize,
    /// The time limit of a request that sets none, and the longest that it may set.
    pub(crate) longest: Duration,
    /// How long a call may continue after each message before its answer. The calling bridge waits as long.
    pub(crate) between_parts: Duration,
    /// The time limit of a call whose answer has parts.
    pub(crate) longest_stream: Duration,
}

#[derive(Debug, Default)]
struct Running {
    last: u64,
    by_id: HashMap<Text, HashMap<u64, CancellationToken>>,
}

/// Rate limits for log lines that requesters can cause.
#[derive(Debug)]
struct Log {
    refused: LogLimit,
    unanswered: LogLimit,
    unclaimed: LogLimit,
    begun: LogLimit,
    unreported: LogLimit,
    unpassed: LogLimit,
}

/// The time limits of one request.
struct Deadlines {
    /// For the answer, or for the next message that precedes it.
    next: Mutex<Instant>,
    /// How long the server may take after a message that precedes the answer.
    between_parts: Duration,
    /// For the answer, even if messages precede it.
    last: Instant,
}

/// The result of a request.
struct CallResult {
    answer: Answer,
    /// Whether the server may have executed the request.
    is_begun: bool,
}

/// Requests that are being served.
type Work<'a> = FuturesUnordered<BoxFuture<'a, ()>>;

/// The limits of messages that are passed on to other bridges: their number, and the bytes of each.
const PASSED_PER_MINUTE: [Limit; 1] = [Limit::new(6_000, Window::Minute)];
const LARGEST_PASSED: usize = 256 << 10;
/// Maximum number of messages that precede an answer and wait for the bus.
const QUEUE: usize = 64;
/// The pause between attempts to claim a request.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the subscriptions of the server are compared with those of the clients: some expire, and some reach another
/// replica.
const RESYNC: Duration = Duration::from_secs(30);

// === impl Upstream ===

impl Upstream {
    /// Creates the server that an agent's configuration names.
    ///
    /// # Errors
    /// When no client can be created for it.
    pub(crate) fn new(
        agent: &Text,
        config: &AttachConfig,
        (registry, readiness): (&Arc<Registry>, &Arc<Readiness>),
        metrics: &Metrics,
        limits: &LogLimits,
    ) -> Result<Self, String> {
        let health = Health::new(agent, readiness, registry);
        let (log, concurrency) = (
            server_log(agent, metrics, limits),
            config.concurrency as usize,
        );
        let mcp = |transport, health| {
            Self::Mcp(Server {
                lifecycle: Lifecycle::new(concurrency == 1, registry, health, &log),
                transport,
                starts: metrics.attached().starts(agent),
                log: Arc::clone(&log),
            })
        };
        let Some(url) = &config.url else {
            let program = ServerTransport::Program(Program {
                command: config.command.clone().unwrap_or_default(),
                env: config.env.clone(),
                directory: config.directory.clone(),
                log: Arc::clone(&log),
            });
            return Ok(mcp(program, health));
        };
        let url = url_of(url).map_err(|error| error.to_string())?;
        let web = Web::new(url, &config.headers, concurrency).map_err(|error| error.to_string())?;
        Ok(match config.protocol {
            AttachProtocol::Mcp => {
                let log = Arc::clone(&log);
                let session = Session {
                    web,
                    concurrency,
                    log,
                };
                mcp(ServerTransport::Session(session), health)
            }
            protocol @ (AttachProtocol::A2a | AttachProtocol::Jsonrpc) => Self::Plain(Plain {
                web,
                protocol,
                registry: Arc::clone(registry),
                health,
                log,
                single_version: Mutex::default(),
                card_state: tokio::sync::Mutex::default(),
            }),
        })
    }

    fn log(&self) -> &ServerLog {
        match self {
            Self::Mcp(server) => &server.log,
            Self::Plain(plain) => &plain.log,
        }
    }

    /// Whether the server can be reached and, if it can, has described itself.
    fn is_known(&self, registry: &Registry) -> bool {
        match self {
            Self::Mcp(server) => {
                registry.is_described(&server.log.agent) && server.lifecycle.is_up()
            }
            Self::Plain(plain) => match plain.protocol {
                AttachProtocol::A2a => {
                    registry.is_described(&plain.log.agent) && plain.health.is_up()
                }
                AttachProtocol::Mcp | AttachProtocol::Jsonrpc => plain.health.is_up(),
            },
        }
    }

    /// Keeps the server running and its card up to date, until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        match &*self {
            Self::Mcp(server) => server.run(stop).await,
            Self::Plain(plain) => plain.run(stop).await,
        }
    }
}

fn server_log(agent: &Text, metrics: &Metrics, limits: &LogLimits) -> Arc<ServerLog> {
    let warn = |more| limits.limit_of(agent, Level::WARN, more);
    Arc::new(ServerLog {
        agent: agent.clone(),
        strange: warn("more protocol errors of an attached server"),
        dropped: warn("more messages of an attached server were dropped"),
        drops: metrics.attached().drops(agent),
        passed_on: metrics.attached().passed_on(agent),
        unusable: metrics.attached().unusable_skills(agent),
        left_out: Mutex::default(),
        ends: warn("an attached server ended more often"),
        stderr: limits.limit_of(agent, Level::INFO, "more lines of an attached server's log"),
    })
}

// === impl AttachedBinding ===

impl AttachedBinding {
    pub(crate) fn new(
        (upstream, herald): (Arc<Upstream>, Option<Herald>),
        intake: Intake,
        reply_publisher: ReplyPublisher,
        results: Arc<Results>,
        bounds: Bounds,
        log: &LogLimits,
    ) -> Self {
        let limit = |more| log.limit_of(&intake.name, Level::WARN, more);
        Self {
            log: Log {
                refused: limit(
                    "more messages were refused because they are not requests for this agent",
                ),
                unanswered: limit("more answers were not delivered"),
                unclaimed: limit("more requests wait to be recorded"),
                begun: limit("more requests have been started before"),
                unreported: limit("more changes of resources are lost"),
                unpassed: limit("more answers and cancels were not passed on"),
            },
            intake,
            upstream,
            herald,
            reply_publisher,
            results,
            turns: Semaphore::new(bounds.concurrency),
            bounds,
            running: Mutex::default(),
            passed_on: Quotas::new(Arc::new(SystemClock::new()), 1),
        }
    }

    /// The server.
    pub(crate) fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Runs until `stop`, then finishes the requests in progress.
    pub(crate) async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let mut work = Work::new();
        let mut is_open = true;
        let assigned = consumer.assigned();
        let announcing = async {
            // Announce the agent only now, because clients may call it at once.
            assigned.await;
            match &self.herald {
                Some(herald) => {
                    herald
                        .run(|registry| self.upstream.is_known(registry))
                        .await
                }
                None => pending().await,
            }
        };
        let mut announcing = pin!(announcing);
        let mut reporting = pin!(self.report_updates());
        let mut passing = pin!(self.take_passed());
        loop {
            tokio::select! {
                biased;
                Some(()) = work.next() => {}
                () = &mut announcing, if is_open => {}
                never = &mut reporting, if is_open => match never {},
                never = &mut passing, if is_open || !work.is_empty() => match never {},
                () = stop.cancelled(), if is_open => {
                    consumer.stop();
                    // Dropping a delivery that was not processed abandons it.
                    while consumer.try_recv().is_some() {}
                    is_open = false;
                }
                delivery = consumer.recv(), if is_open => match delivery {
                    Some(delivery) => self.receive(delivery, &work),
                    None => is_open = false,
                },
                else => return consumer,
            }
        }
    }

    /// Reports the changes of resources that clients have subscribed to.
    async fn report_updates(&self) -> Infallible {
        let Upstream::Mcp(server) = &*self.upstream else {
            return pending().await;
        };
        let (agent, watched) = (self.reply_publisher.agent(), &server.lifecycle.watched);
        let following = async {
            loop {
                let surplus = watched.follow(self.results.watched_resources(agent).await);
                if surplus > 0
                    && let Some(suppressed) = self.log.unreported.allow()
                {
                    tracing::warn!(%agent, surplus, suppressed, "clients have subscribed to too many resources of an attached server: changes of the rest are dropped");
                }
                sleep(RESYNC).await;
            }
        };
        tokio::select! {
            never = following => never,
            never = self.report_updates_of(watched) => never,
        }
    }

    async fn report_updates_of(&self, watched: &Watched) -> Infallible {
        let agent = self.reply_publisher.agent();
        let run = Text::from(&*clock::new_event_id());
        for number in 1.. {
            let uri = watched.next_updated().await;
            let run = run.clone();
            let from = UpdateSource { run, number };
            let noted = self
                .results
                .note_updated(agent, uri.clone(), Some(from.clone()));
            let announced = async {
                match &self.herald {
                    Some(herald) => herald.announce_update(&uri, &from).await,
                    None => Ok(()),
                }
            };
            let (noted, announced) = tokio::join!(noted, announced);
            let noted = noted.map_err(|error| error.to_string());
            let announced = announced.map_err(|error| error.to_string());
            if let Err(error) = noted.and(announced)
                && let Some(suppressed) = self.log.unreported.allow()
            {
                tracing::warn!(%agent, %uri, error, suppressed, "the change of a resource is lost: clients do not learn of it");
            }
        }
        // The numbers do not end.
        pending().await
    }

    fn receive<'a>(&'a self, delivery: Delivery, work: &Work<'a>) {
        let span = self.intake.receive(&delivery);
        let _receive = span.entered();
        let (held, inbox) = Held::new(delivery, self.intake.metrics.clone());
        let limits = self.reply_publisher.publisher.outbound().rules().limits;
        let new_id = clock::new_event_id;
        let context = || MapContext {
            source: self.intake.source.clone(),
            time: None,
            ids: Ids::Payload(&new_id),
        };
        let requester = |event: &Event| {
            let (reply_publisher, inbox) = (&self.reply_publisher, inbox.as_ref());
            reply_publisher.requester(&self.intake, event, &held.message, inbox)
        };
        let place = held.origin.as_ref().map(Origin::identity);
        let take = |read| {
            let ask_result = match read {
                Read::CloudEvent(event, _) => {
                    let inside = self.intake.inside(&event, &self.intake.hint, &limits);
                    let requester = requester(&event);
                    Ask::of(
                        &event,
                        inside,
                        requester,
                        (self.reply_publisher.agent(), place.as_ref()),
                    )
                }
                Read::Mapped(mapped) => {
                    let event = mapped.event.clone();
                    let requester = requester(&event);
                    Ask::of(
                        &event,
                        Some(mapped),
                        requester,
                        (self.reply_publisher.agent(), place.as_ref()),
                    )
                }
                Read::Refused(refusal) => {
                    let requester = self.reply_publisher.unread(&held.message, inbox.as_ref());
                    Err(Rejected::of(requester, &refusal))
                }
            };
            self.begin(ask_result, Arc::clone(&held), work);
        };
        self.intake
            .read(&held.message, &limits, None, context, take);
        // Settles the delivery if all its units are done, else the last unit settles it.
        held.done();
    }

    fn begin<'a>(
        &'a self,
        ask_result: Result<Ask, Box<Rejected>>,
        held: Arc<Held>,
        work: &Work<'a>,
    ) {
        match ask_result {
            Ok(Ask::Request(request)) => {
                // Do this before the next message is read, which may be the cancel of this request.
                let entered = self.enter(&request.id);
                work.push(self.serve(request, entered, held).boxed());
            }
            Ok(Ask::Expired(request)) => {
                self.dropped(&held, "expired");
                work.push(self.expired(request, held).boxed());
            }
            Ok(Ask::Answer(body, id)) => work.push(self.reply(body, id, held).boxed()),
            Ok(Ask::Cancel(id)) if self.cancel(&id) => held.done(),
            Ok(Ask::Cancel(id)) if is_call_id(&id) => {
                work.push(self.cancel_elsewhere(id, held).boxed());
            }
            // Requests of other clients may have the same id.
            Ok(Ask::Cancel(_)) => held.done(),
            Ok(Ask::Message(method, message)) => {
                work.push(self.pass_on(method, message, held).boxed());
            }
            Ok(Ask::Nothing) => held.done(),
            Err(rejected) => work.push(self.reject(rejected, held).boxed()),
        }
    }

    /// The MCP server, if it is up.
    fn now_up(&self) -> Option<Arc<RunningServer>> {
        match &*self.upstream {
            Upstream::Mcp(server) => server.lifecycle.now_up(),
            Upstream::Plain(_) => None,
        }
    }

    /// Passes an answer to an open question on to the server, or to the bridge that has asked it. Others are dropped:
    /// anyone who can write to the topic can send them.
    async fn reply(&self, body: Bytes, id: Option<Id>, held: Arc<Held>) {
        let is_taken = self.is_answer(&body, id.as_ref()).await
            || (id.as_ref().is_some_and(is_question_id) && self.pass_to_others(&body).await);
        if !is_taken {
            self.dropped(&held, "unasked_answer");
        }
        held.done();
    }

    /// Passes an answer on to the server. Returns whether it answers an open question of this bridge.
    async fn is_answer(&self, body: &Bytes, id: Option<&Id>) -> bool {
        match (self.now_up(), id) {
            // If the server has ended since, its questions are no longer open.
            (Some(up), Some(id)) => up.link.reply(body, id).await.unwrap_or(false),
            _ => false,
        }
    }

    /// Cancels a request of another bridge.
    async fn cancel_elsewhere(&self, id: Text, held: Arc<Held>) {
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        self.pass_to_others(cancel.as_bytes()).await;
        held.done();
    }

    /// Passes a message on to the other bridges that attach this server and share the state. On NATS, any of them may
    /// get a message about a request of another one. Returns whether it is passed on.
    async fn pass_to_others(&self, body: &[u8]) -> bool {
        let agent = self.reply_publisher.agent();
        if !self.results.is_shared()
            || body.len() > LARGEST_PASSED
            || self.passed_on.admit(agent, &PASSED_PER_MINUTE).is_err()
        {
            return false;
        }
        match self.results.pass_to_agent(agent, body).await {
            Ok(()) => {
                self.upstream.log().passed_on.inc();
                true
            }
            Err(error) => {
                if let Some(suppressed) = self.log.unpassed.allow() {
                    tracing::warn!(%agent, %error, suppressed, "an answer or a cancel was not passed on to the other bridges that attach this server");
                }
                false
            }
        }
    }

    /// Takes the messages that other bridges pass on.
    async fn take_passed(&self) -> Infallible {
        let agent = self.reply_publisher.agent();
        let limits = self.reply_publisher.publisher.outbound().rules().limits;
        let mut following = self.results.follow_new().await;
        while self.results.is_shared() {
            let body = match following.next().await {
                Ok(Some(record)) => message_for_agent(&record, agent),
                Ok(None) => break,
                Err(Lagged) => {
                    tracing::warn!(%agent, "answers and cancels that other bridges passed on may be lost: the log was read too slowly");
                    following = self.results.follow_new().await;
                    None
                }
            };
            let Some(body) = body else { continue };
            if let Ok(Ok(unit)) = decode(&body, &self.intake.hint, &limits).into_only() {
                self.take_unit(&unit).await;
            }
        }
        pending().await
    }

    /// Takes a message that another bridge has passed on. This bridge may have neither its request nor its question.
    async fn take_unit(&self, unit: &Unit) {
        if let Some(id) = Ask::cancelled_by(unit) {
            self.cancel(&id);
        } else if let Some(message) = &unit.json_rpc {
            self.is_answer(&unit.bytes, message.id.as_ref()).await;
        }
    }

    /// Answers a request that arrived after its deadline, without executing it.
    async fn expired(&self, request: Box<Request>, held: Arc<Held>) {
        let failure = late("the request arrived after its deadline and was not executed");
        let answer = Answer::failed(&failure, &request.recipient());
        self.publish(&request, answer, &held).await;
        held.done();
    }

    /// Passes a notification on to the server.
    async fn pass_on(&self, method: String, message: Bytes, held: Arc<Held>) {
        match (&*self.upstream, self.now_up()) {
            (Upstream::Plain(plain), _) => plain.notify(&method, message).await,
            // An error means that the server has just ended, which is the same as not running.
            (Upstream::Mcp(_), Some(up)) => drop(up.link.send(message).await),
            (Upstream::Mcp(_), None) => {
                tracing::debug!(binding = %self.intake.name, "message dropped: the server is not running")
            }
        }
        held.done();
    }

    /// Answers a request, then settles it.
    async fn serve(
        &self,
        request: Box<Request>,
        (number, cancelled): (u64, CancellationToken),
        held: Arc<Held>,
    ) {
        let deadlines = Deadlines::of(&request, self.bounds);
        let claim = request.claim(deadlines.last - Instant::now());
        let answered = self.answered(&request, claim.as_ref(), &deadlines).boxed();
        let answer = cancelled.run_until_cancelled(answered).await;
        self.leave(&request.id, number);
        match answer {
            Some(answer) => self.publish(&request, answer, &held).await,
            None => {
                tracing::debug!(binding = %self.intake.name, "a request was cancelled");
                if let Some((key, claim)) = claim {
                    let results = Arc::clone(&self.results);
                    self.results
                        .spawn(async move { results.give_up(&key, &claim.call).await });
                }
            }
        }
        held.done();
    }

    /// Publishes an answer. If that is impossible, for example because it is too large, the requester gets the reason.
    async fn publish(&self, request: &Request, answer: Answer, held: &Held) {
        let publisher = &self.reply_publisher;
        let (identity, requester) = (request.identity.as_ref(), &request.requester);
        let published = publisher.answer(&self.intake, requester, (identity, answer));
        let Err(error) = published.await else {
            return;
        };
        self.unanswered(held, &error).await;
        if requester.waits() {
            let failure = Failure::on_bus(&CallError::Undeliverable(error.to_string().into()));
            let answer = (identity, Answer::failed(&failure, &request.recipient()));
            let published = publisher.answer(&self.intake, requester, answer);
            if let Err(error) = published.await {
                tracing::debug!(binding = %self.intake.name, %error, "the error in place of an answer is not delivered");
            }
        }
    }

    /// The answer to a request: the server's, the stored one of a redelivered request, or an error.
    async fn answered(
        &self,
        request: &Request,
        claim: Option<&(String, Claim)>,
        deadlines: &Deadlines,
    ) -> Answer {
        let failed = |failure: Failure| Answer::failed(&failure, &request.recipient());
        let until = deadlines.next();
        let is_repeatable = match &*self.upstream {
            Upstream::Plain(plain) => request.is_repeatable(plain.protocol, |_| false),
            Upstream::Mcp(server) => {
                let up = match self.up_or_answer(server, request, claim, deadlines).await {
                    Ok(up) => up,
                    Err(answer) => return answer,
                };
                if request.is_a2a() {
                    return failed(Failure::new(failure::Reason::Unsupported, NO_A2A));
                }
                if request.method == "initialize" {
                    return Answer::from(jsonrpc::result(&request.id, up.profile.get()));
                }
                request.is_repeatable(AttachProtocol::Mcp, |tool| up.link.is_repeatable(tool))
            }
        };
        match claim.filter(|_| !is_repeatable) {
            Some((key, claim)) => self.once(request, (key, claim), deadlines).await,
            None => match timeout_at(until, self.turns.acquire()).await {
                Ok(_turn) => self.worked(request, deadlines).await.answer,
                Err(_) => failed(late(BUSY)),
            },
        }
    }

    /// The running server. If it does not run, the answer of a request that was begun before, or an error.
    async fn up_or_answer(
        &self,
        server: &Server,
        request: &Request,
        claim: Option<&(String, Claim)>,
        deadlines: &Deadlines,
    ) -> Result<Arc<RunningServer>, Answer> {
        let until = deadlines.next();
        let failure = match timeout_at(until, server.lifecycle.up()).await {
            Ok(Ok(up)) => return Ok(up),
            Ok(Err(failure)) => failure,
            Err(_) => late("its server did not start in time"),
        };
        if let Some((key, claim)) = claim
            && let Ok(true) = timeout_at(until, self.results.is_claimed(key, claim)).await
        {
            return Err(Box::pin(self.once(request, (key, claim), deadlines)).await);
        }
        Err(Answer::failed(&failure, &request.recipient()))
    }

    /// The answer to a request that must be executed only once, however often it is delivered.
    async fn once(
        &self,
        request: &Request,
        (key, claim): (&str, &Claim),
        deadlines: &Deadlines,
    ) -> Answer {
        let failed = |failure: Failure| Answer::failed(&failure, &request.recipient());
        let until = deadlines.next();
        loop {
            // The wait for another bridge may have taken longer: then the request is no longer started.
            if Instant::now() >= until {
                return self.at_deadline(request, (key, claim));
            }
            let Ok(turn) = timeout_at(until, self.turns.acquire()).await else {
                return failed(late(BUSY));
            };
            let left = until.saturating_duration_since(Instant::now());
            match self.results.claim(key, claim, left).await {
                Ok(KeyState::Ours) => {
                    let call = &claim.call;
                    let work = Box::pin(self.worked(request, deadlines));
                    let done = self.results.renewing(key, call, work).await;
                    let kept = done.is_begun.then(|| done.answer.stored());
                    self.results.keep_in_background(key, call, kept).await;
                    return done.answer;
                }
                // A different request with the same key: its source position was used before.
                Ok(KeyState::Differs(_)) => {
                    return Box::pin(self.worked(request, deadlines)).await.answer;
                }
                Ok(KeyState::Answered(stored)) => return Answer::from(&*stored),
                Ok(KeyState::Running(call)) => {
                    drop(turn);
                    if let Some(suppressed) = self.log.begun.allow() {
                        tracing::warn!(binding = %self.intake.name, id = %request.id, suppressed, "a redelivered request was already started, so it is not executed again: waiting for its answer; if the bridge that started it has stopped, the requester gets answer_lost after about 20 s");
                    }
                    let settled = self.results.until_settled(key, &call);
                    if timeout_at(deadlines.last, settled).await.is_err() {
                        return failed(lost());
                    }
                }
                Ok(KeyState::RecordedElsewhere(_) | KeyState::Lost(_) | KeyState::Forgotten) => {
                    return failed(lost());
                }
                Err(error) => {
                    drop(turn);
                    if let Some(suppressed) = self.log.unclaimed.allow() {
                        tracing::warn!(binding = %self.intake.name, %error, suppressed, "a request cannot be recorded in the log: it waits, so that it is not executed twice");
                    }
                    if timeout_at(until, sleep(PAUSE)).await.is_err() {
                        return failed(late("the request could not be recorded in the log"));
                    }
                }
            }
        }
    }

    /// The answer to a request whose deadline has passed while it waited.
    fn at_deadline(&self, request: &Request, (key, claim): (&str, &Claim)) -> Answer {
        let failure = match self.results.key_state(key, claim) {
            Some(KeyState::Answered(stored)) => return Answer::from(&*stored),
            Some(_) => lost(),
            None => late(BUSY),
        };
        Answer::failed(&failure, &request.recipient())
    }

    /// The server's answer. Messages that precede it are published meanwhile.
    async fn worked(&self, request: &Request, deadlines: &Deadlines) -> CallResult {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let parts = Parts {
            sender,
            takes_all: request.requester.is_call(),
            reached: Arc::default(),
        };
        let reached = Arc::clone(&parts.reached);
        let work = self.with_server(request, parts);
        let publishing = async {
            while let Some(part) = receiver.recv().await {
                let (is_question, kind) = (part.is_question, part.kind);
                let published = self
                    .reply_publisher
                    .part(&self.intake, &request.requester, part);
                match published.await {
                    Ok(()) => deadlines.extend(is_question),
                    Err(error) => {
                        if let Some(suppressed) = self.log.unanswered.allow() {
                            tracing::warn!(binding = %self.intake.name, id = %request.id, kind = kind.as_str(), %error, suppressed, "a message that precedes an answer is not delivered");
                        }
                        // Without this part, the answer would be wrong.
                        if kind == Kind::Stream {
                            let lost = CallError::Undeliverable(error.to_string().into());
                            return Err(Failure::on_bus(&lost));
                        }
                    }
                }
            }
            Ok(())
        };
        // The channel of parts closes when the work ends; the last parts are published before the answer.
        let work = async { Ok(work.await) };
        let both = async { tokio::try_join!(work, publishing).and_then(|(answer, ())| answer) };
        let answer = deadlines.limit(pin!(both)).await;
        let answer = answer.unwrap_or_else(|| Err(late("its server did not answer in time")));
        CallResult {
            answer: match answer {
                Ok(body) => Answer::from(body),
                Err(failure) => Answer::failed(&failure, &request.recipient()),
            },
            is_begun: reached.load(Ordering::Acquire),
        }
    }

    /// The answer of the server.
    async fn with_server(&self, request: &Request, parts: Parts) -> Result<Bytes, Failure> {
        match &*self.upstream {
            Upstream::Plain(plain) => plain.request(request, &parts).await,
            Upstream::Mcp(server) => with_mcp(server, request, parts).await,
        }
    }

    /// Makes a dead letter of a message that is not a request for this agent. A waiting requester gets the reason.
    async fn reject(&self, rejected: Box<Rejected>, held: Arc<Held>) {
        let Rejected {
            reason,
            body,
            requester,
            id,
            failure,
        } = *rejected;
        if let Some(suppressed) = self.log.refused.allow() {
            let origin = held.position().unwrap_or("unknown");
            tracing::warn!(binding = %self.intake.name, origin, reason = reason.code, detail = reason.detail, suppressed, "a message is not for this agent");
        }
        self.dead_letter(&held, body, &reason).await;
        if requester.waits() {
            let id = id.unwrap_or(Text::from_static("null"));
            let error = Answer::failed(&failure, &Recipient::new(id, Dialect::Mcp));
            let identity = held.origin.as_ref().map(Origin::identity);
            let published =
                self.reply_publisher
                    .answer(&self.intake, &requester, (identity.as_ref(), error));
            if let Err(error) = published.await {
                tracing::debug!(binding = %self.intake.name, %error, "a refusal is not delivered");
            }
        }
        held.done();
    }

    /// Makes a request a dead letter if its answer cannot be delivered. If the request is sent again, it gets the same
    /// answer.
    async fn unanswered(&self, held: &Held, error: &Undeliverable) {
        if let Some(suppressed) = self.log.unanswered.allow() {
            let origin = held.position().unwrap_or("unknown");
            tracing::warn!(binding = %self.intake.name, origin, %error, suppressed, "an answer is not delivered");
        }
        self.dead_letter(held, None, &error.reason()).await;
    }

    /// Counts and logs a dropped message.
    fn dropped(&self, held: &Held, reason: &'static str) {
        self.intake.dead_letters.dropped(&undelivered(held), reason);
    }

    async fn dead_letter(&self, held: &Held, body: Option<Bytes>, reason: &Reason) {
        let of = undelivered(held);
        let dead_letters = &self.intake.dead_letters;
        let dead_letter = dead_letters.dead_letter(&of, body, reason);
        let replacement = |copy, error: &TransportError| dead_letters.replacement(copy, error);
        // `until_settled` counts and logs a dead letter that cannot be stored.
        drop(
            self.reply_publisher
                .publisher
                .until_settled(dead_letter, replacement)
                .await,
        );
    }

    fn enter(&self, id: &Text) -> (u64, CancellationToken) {
        let cancelled = CancellationToken::new();
        let mut running = self.running();
        running.last += 1;
        let number = running.last;
        let same = running.by_id.entry(id.clone()).or_default();
        same.insert(number, cancelled.clone());
        (number, cancelled)
    }

    fn leave(&self, id: &Text, number: u64) {
        let mut running = self.running();
        if let Some(same) = running.by_id.get_mut(id) {
            same.remove(&number);
            if same.is_empty() {
                running.by_id.remove(id);
            }
        }
    }

    /// Cancels the request with this id. If several requests have it, none is cancelled. Returns whether there is one.
    fn cancel(&self, id: &Text) -> bool {
        let running = self.running();
        let mut same = running.by_id.get(id).into_iter().flat_map(HashMap::values);
        match (same.next(), same.next()) {
            (Some(only), None) => only.cancel(),
            (None, _) => {
                tracing::debug!(binding = %self.intake.name, "no such request in progress to cancel");
                return false;
            }
            (Some(_), Some(_)) => {
                tracing::warn!(binding = %self.intake.name, %id, "cancel ignored: several requests have this id")
            }
        }
        true
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Deadlines ===

impl Deadlines {
    fn of(request: &Request, bounds: Bounds) -> Self {
        let now = Instant::now();
        let left = request.left.unwrap_or(bounds.longest).min(bounds.longest);
        // Only calls from a bridge may be extended: that bridge cancels the call when its caller stops waiting. Nobody
        // would cancel other requests.
        let (between_parts, longest) = if request.requester.is_call() {
            (
                bounds.between_parts.max(left),
                bounds.longest_stream.max(left),
            )
        } else {
            (left, left)
        };
        Self {
            next: Mutex::new(now + left),
            between_parts,
            last: now + longest,
        }
    }

    fn next(&self) -> Instant {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the deadline after a message that precedes the answer. The answer to a question may take as long as the
    /// whole call.
    fn extend(&self, is_question: bool) {
        let extended = if is_question {
            self.last
        } else {
            self.last.min(Instant::now() + self.between_parts)
        };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = extended.max(*next);
    }

    /// The result of `work`; `None` if the deadline passes first.
    async fn limit<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        loop {
            let next = self.next();
            match timeout_at(next, work.as_mut()).await {
                Ok(result) => return Some(result),
                Err(_) if next < self.next() => {}
                Err(_) => return None,
            }
        }
    }
}

/// Whether an id (as JSON) is that of a call of a bridge.
fn is_call_id(id: &str) -> bool {
    let text: Option<String> = serde_json::from_str(id).ok();
    text.is_some_and(|text| text.parse::<ReplyId>().is_ok())
}

/// The answer of an MCP server. If a run ends before it has received the request, the next run gets it.
async fn with_mcp(server: &Server, request: &Request, parts: Parts) -> Result<Bytes, Failure> {
    let is_tracked = server
        .lifecycle
        .watched
        .track(&request.method, &request.body);
    loop {
        let up: Arc<RunningServer> = server.lifecycle.up().await?;
        let link = &up.link;
        if !is_tracked {
            link.strange("clients have subscribed to too many resources of an attached server: changes of more are dropped");
        }
        let how = (parts.clone(), request.requester.traced());
        let answer = match link.request(&request.body, &request.message, how).await {
            Ok(waiting) => waiting.answer().await,
            Err(gone) => Err(gone),
        };
        match answer {
            Ok(answer) => return answer,
            Err(Disconnected) if parts.reached.load(Ordering::Acquire) => {
                return Err(Failure::new(failure::Reason::AgentUnavailable, GONE));
            }
            Err(Disconnected) => {}
        }
    }
}

/// Why calls fail when their server has ended.
const GONE: &str =
    "the server of this agent exited during the request, which may have been executed";

/// The answer to an A2A client that calls an MCP server.
const NO_A2A: &str = "this agent is an MCP server, which does not accept A2A messages: use tools/call at /mcp or /rpc";

/// Why a request did not reach the server.
const BUSY: &str = "the agent is busy with other requests";

fn undelivered(held: &Held) -> Undelivered<'_> {
    Undelivered {
        message: &held.message,
        topic: &held.topic,
        origin: held.origin.as_ref(),
        agent: None,
        call: None,
    }
}

fn late(why: &str) -> Failure {
    let message = format!("no answer before the deadline: {why}");
    Failure::new(failure::Reason::Timeout, message)
}

fn lost() -> Failure {
    let message = "this request was started before and its answer is unknown: it is not repeated, because it may have had an effect";
    Failure::new(failure::Reason::AnswerLost, message)
}
