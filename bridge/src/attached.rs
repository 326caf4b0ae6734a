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
mod draining;
mod health;
mod herald;
mod lifecycle;
mod link;
mod log_level;
mod made_tasks;
mod members;
mod passing;
mod plain;
mod program;
mod replies;
mod running;
mod server;
mod serving;
mod session;
mod tool_call;
mod version;
mod watched;
mod web;

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_executor::{Quotas, SystemClock};
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Event, Ids, MapContext, Text};
use a2abus_transports::{Consumer, Delivery, Origin, Subscription};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use self::ask::{Ask, Rejected, Request};
use self::health::Health;
pub(crate) use self::herald::Herald;
use self::lifecycle::{Lifecycle, RunningServer};
use self::link::Log as ServerLog;
use self::plain::Plain;
use self::program::Program;
pub(crate) use self::program::kill_programs;
use self::replies::Answer;
pub(crate) use self::replies::ReplyPublisher;
use self::running::{Found, Running};
use self::server::{Server, ServerTransport};
use self::session::Session;
use self::watched::Watched;
use self::web::{Web, url_of};
use crate::bus::deadletter::{Reason, Undeliverable};
use crate::calls::callid::is_reply_id;
use crate::calls::failure::Recipient;
use crate::clock;
use crate::config::{AttachConfig, AttachProtocol};
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::Metrics;
use crate::pipeline::held::Held;
use crate::pipeline::intake::{Intake, Read};
use crate::readiness::Readiness;
use crate::registry::Registry;
use crate::results::{ResourceEvent, Results, UpdateSource, resource_event_in};
use crate::state::{Following, Lagged};

/// The requests for one attached agent.
#[derive(Debug)]
pub(crate) struct AttachedBinding {
    /// Reads its messages.
    pub(crate) intake: Intake,
    /// How it reads them.
    subscription: Subscription,
    upstream: Arc<Upstream>,
    /// Announces the agent, if `announce` is set.
    herald: Option<Herald>,
    reply_publisher: ReplyPublisher,
    results: Arc<Results>,
    turns: Semaphore,
    bounds: Bounds,
    running: Mutex<Running>,
    /// Cancelled shortly before a stopping process ends. Requests in progress then fail, unless they are redelivered.
    ending: CancellationToken,
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
    /// The time limit of a request that sets none, and how long a call may continue after each message before its answer.
    /// The calling bridge waits as long.
    pub(crate) usual: Duration,
    /// The longest time limit that a request may set.
    pub(crate) longest: Duration,
    /// The time limit of a call whose answer has parts.
    pub(crate) longest_stream: Duration,
}

/// Rate limits for log lines that requesters can cause.
#[derive(Debug)]
struct Log {
    refused: LogLimit,
    unanswered: LogLimit,
    late: LogLimit,
    unclaimed: LogLimit,
    begun: LogLimit,
    unreported: LogLimit,
    unpassed: LogLimit,
}

/// Requests that are being served.
type Work<'a> = FuturesUnordered<BoxFuture<'a, ()>>;

/// How often the subscriptions of the server are compared with those of the clients, because some expire.
const RESYNC: Duration = Duration::from_secs(30);
/// How long after the end of a subscription they are compared. One comparison serves many ends, and by then the request
/// for the end has reached one of the bridges that attach the server.
const ENDED: Duration = Duration::from_secs(1);

// === impl Upstream ===

impl Upstream {
    /// The log and the counters of the server.
    fn log(&self) -> &ServerLog {
        match self {
            Self::Mcp(server) => &server.log,
            Self::Plain(plain) => &plain.log,
        }
    }

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

    /// Whether the server can be reached and, if it can, has described itself completely.
    fn is_known(&self, registry: &Registry) -> bool {
        match self {
            Self::Mcp(server) => {
                registry.is_described(&server.log.agent) && server.lifecycle.is_complete()
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

/// Takes new subscriptions from the log, until the next comparison with it is due: after the end of a subscription, or
/// when records were missed.
async fn take_subscriptions(mut following: Following, agent: &Text, watched: &Watched) {
    let mut has_ended = false;
    let mut due = pin!(sleep(ENDED));
    loop {
        let next = tokio::select! {
            () = &mut due, if has_ended => return,
            next = following.next() => next,
        };
        let record = match next {
            Ok(Some(record)) => record,
            // The log has ended.
            Ok(None) => return pending().await,
            Err(Lagged) => return,
        };
        match resource_event_in(&record) {
            Some(ResourceEvent::Subscribed(it)) if it.agent == *agent => watched.add(it.uri),
            Some(ResourceEvent::Unsubscribed(it)) if it.agent == *agent && !has_ended => {
                has_ended = true;
                due.as_mut().reset(Instant::now() + ENDED);
            }
            _ => {}
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
        (intake, subscription): (Intake, Subscription),
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
                late: limit("more requests were not answered in time"),
                unclaimed: limit("more requests wait to be recorded"),
                begun: limit("more requests have been started before"),
                unreported: limit("more changes of resources are lost"),
                unpassed: limit("more answers and cancels were not passed on"),
            },
            intake,
            subscription,
            upstream,
            herald,
            reply_publisher,
            results,
            turns: Semaphore::new(bounds.concurrency),
            bounds,
            running: Mutex::default(),
            ending: CancellationToken::new(),
            passed_on: Quotas::new(Arc::new(SystemClock::new()), 1),
        }
    }

    /// The server.
    pub(crate) fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// To be cancelled shortly before the process ends.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Runs until `stop`, then finishes the requests in progress.
    pub(crate) async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let assigned = consumer.assigned();
        let announcing = async {
            let Some(herald) = &self.herald else {
                return;
            };
            // Announce the agent only now, because clients may call it at once.
            if stop.run_until_cancelled(assigned).await.is_some() {
                let is_known = |registry: &Registry| self.upstream.is_known(registry);
                herald.run(is_known, &stop).await;
            }
        };
        let mut announcing = pin!(announcing);
        let mut is_announcing = true;
        let is_stopped = {
            let mut passing = pin!(self.take_passed());
            let mut working = pin!(self.work(&mut consumer, &stop));
            loop {
                tokio::select! {
                    biased;
                    is_stopped = &mut working => break is_stopped,
                    () = &mut announcing, if is_announcing => is_announcing = false,
                    never = &mut passing => match never {},
                }
            }
        };
        if is_stopped && is_announcing {
            announcing.await;
        }
        consumer
    }

    /// Answers requests until `stop`, then finishes those in progress. Returns `false` if the subscription has ended by
    /// itself.
    async fn work(&self, consumer: &mut Consumer, stop: &CancellationToken) -> bool {
        let mut work = Work::new();
        let mut reporting = pin!(self.report_updates());
        loop {
            tokio::select! {
                biased;
                Some(()) = work.next() => {}
                never = &mut reporting => match never {},
                () = stop.cancelled() => {
                    self.drain(consumer, work).await;
                    return true;
                }
                delivery = consumer.recv() => match delivery {
                    Some(delivery) => {
                        let begin = |ask_result, held| self.begin(ask_result, held, &work);
                        self.receive(delivery, begin);
                    }
                    None => break,
                },
            }
        }
        while let Some(()) = work.next().await {}
        false
    }

    /// Reports the changes of resources that clients have subscribed to.
    async fn report_updates(&self) -> Infallible {
        let Upstream::Mcp(server) = &*self.upstream else {
            return pending().await;
        };
        let watched = &server.lifecycle.watched;
        tokio::select! {
            never = self.follow_subscriptions(watched) => never,
            never = self.report_updates_of(watched) => never,
        }
    }

    /// Keeps the subscriptions of the server equal to those of the clients.
    async fn follow_subscriptions(&self, watched: &Watched) -> Infallible {
        let (agent, results) = (self.reply_publisher.agent(), &self.results);
        loop {
            // Begins before the comparison, so that no record between the two is missed. Only bridges that share the log
            // get requests of one another's clients.
            let following = match results.is_shared() {
                true => Some(results.follow_new().await),
                false => None,
            };
            let surplus = watched.follow(results.watched_resources(agent).await);
            if surplus > 0
                && let Some(suppressed) = self.log.unreported.allow()
            {
                tracing::warn!(%agent, surplus, suppressed, "clients have subscribed to too many resources of an attached server: changes of the rest are dropped");
            }
            let taking = async {
                match following {
                    Some(following) => take_subscriptions(following, agent, watched).await,
                    None => pending().await,
                }
            };
            // When the time is over, the next comparison is due anyway.
            let _ = timeout(RESYNC, taking).await;
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

    /// Reads a message, and passes each of its requests to `begin`.
    fn receive(
        &self,
        delivery: Delivery,
        mut begin: impl FnMut(Result<Ask, Box<Rejected>>, Arc<Held>),
    ) {
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
        let place = |unit: usize| Some(format!("{}/{unit}", place.as_ref()?));
        let take = |read| {
            let ask_result = match read {
                Read::CloudEvent(event, unit) => {
                    let place = place(unit.map_or(0, |unit| unit.index));
                    let inside = self.intake.inside(&event, &self.intake.hint, &limits);
                    let requester = requester(&event);
                    Ask::of(
                        &event,
                        inside,
                        requester,
                        (self.reply_publisher.agent(), place.as_deref()),
                    )
                }
                Read::Mapped(mapped) => {
                    let event = mapped.event.clone();
                    let place = place(0);
                    let requester = requester(&event);
                    Ask::of(
                        &event,
                        Some(mapped),
                        requester,
                        (self.reply_publisher.agent(), place.as_deref()),
                    )
                }
                Read::Refused(refusal) => {
                    let requester = self.reply_publisher.unread(&held.message, inbox.as_ref());
                    Err(Rejected::of(requester, &refusal))
                }
            };
            begin(ask_result, Arc::clone(&held));
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
            Ok(Ask::Request(mut request)) => {
                // Do this before the next message is read, which may be the cancel of this request.
                let cancelled = self.enter(&mut request);
                work.push(self.serve(request, cancelled, held).boxed());
            }
            Ok(Ask::Expired(mut request)) => {
                let cancelled = self.enter(&mut request);
                work.push(self.expired(request, cancelled, held).boxed());
            }
            Ok(Ask::Answer(body, id)) => work.push(self.reply(body, id, held).boxed()),
            Ok(Ask::Cancel(id)) => match self.cancel(&id) {
                // Other ids are not unique: a client of another bridge may have used the same one.
                Found::Waiting | Found::Nothing if is_reply_id(&id) => {
                    work.push(self.cancel_elsewhere(id, held).boxed());
                }
                Found::Here | Found::Waiting | Found::Several | Found::Nothing => held.done(),
            },
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
            tracing::warn!(binding = %self.intake.name, origin, reason = reason.code, detail = reason.detail, suppressed, "a message is not for this agent: it becomes a dead letter");
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
        self.intake
            .dead_letters
            .dropped(&held.undelivered(), reason);
    }

    async fn dead_letter(&self, held: &Held, body: Option<Bytes>, reason: &Reason) {
        let dead_letters = &self.intake.dead_letters;
        let dead_letter = dead_letters.dead_letter(&held.undelivered(), body, reason);
        let publisher = &self.reply_publisher.publisher;
        dead_letters.store(dead_letter, publisher).await;
    }

    /// Notes that a delivery of a request is in progress. Returns a token that a cancel of the request cancels.
    fn enter(&self, request: &mut Request) -> CancellationToken {
        let identity = request.identity.as_ref();
        let (number, cancelled) = self.running().enter(&request.id, identity);
        request.delivery = number;
        cancelled
    }

    /// Cancels the request with this id. If several requests have it, none is cancelled.
    fn cancel(&self, id: &Text) -> Found {
        let found = self.running().cancel(id);
        match found {
            Found::Nothing => {
                tracing::debug!(binding = %self.intake.name, "no such request in progress to cancel");
            }
            Found::Several => {
                tracing::warn!(binding = %self.intake.name, %id, "cancel ignored: several requests have this id");
            }
            Found::Here | Found::Waiting => {}
        }
        found
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        lock(&self.running)
    }
}
