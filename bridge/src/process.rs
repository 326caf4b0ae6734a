//! The life of a bridge: start, run, drain.
//!
//! Every task is owned by [`Bridge::run`] and ends with it. A bus that is away keeps its bindings and its reply leg
//! trying; the process does not exit for it. Source: docs/design.md §9.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::content_mode::Binding;
use a2abus_transports::{
    AnyTransport, Consumer, Delivery, Health, Outcome, Reading, Subscription, Transport as _,
    TransportError, TransportErrorKind,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::bridge::{Bridge, Work};
use crate::bus::headers::PassedHeaders;
use crate::bus::{Bus, BusId, Buses};
use crate::calls::cancel::Cancel;
use crate::calls::exchange::Exchanges;
use crate::calls::reply::ReplyLeg;
use crate::calls::resolve::{ReadAt, Reader};
use crate::calls::{CallError, Calls, DOOR};
use crate::config::HttpConfig;
use crate::doors::a2a::Settings;
use crate::doors::admin::AdminDoor;
use crate::doors::{self, Door, Mounted};
use crate::http::{self, ConnectionBounds, Ending, Hosts, Listener};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::reload::Reload;
use crate::seldom::{LogLimits, Seldom};
use crate::state::Logs;
use crate::workflows::Workflows;

/// The wait before something that failed to start is tried again: the first, and the longest.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A subscription that ended by itself earlier than this waits as long before it starts again: something ends it each time.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// How long callers may take to hear that their calls are abandoned.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The part of the grace period that is reserved for bindings to finish messages in progress.
const BINDINGS_GRACE: Duration = Duration::from_secs(5);
/// The cause until the group of a binding has assigned its partitions.
const WAITING: &str = "waiting for partitions";
/// How often the log and the metrics catch up with what was suppressed or dropped.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Connections to the admin listener, at most.
const ADMIN_CONNECTIONS: usize = 64;
/// How long a caller may take nothing of a response before its connection is closed.
const RESPONSE_PATIENCE: Duration = Duration::from_secs(120);
/// Cancels that are on their way at a time, at most.
const CANCELS_AT_A_TIME: usize = 64;
/// How long buses may take to flush and close.
const CLOSE: Duration = Duration::from_secs(10);

/// A bridge that runs.
struct Process {
    buses: Buses,
    calls: Arc<Calls>,
    exchanges: Arc<Exchanges>,
    workflows: Option<Workflows>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    log: LogLimits,
    /// Its views end with the process.
    _state: Arc<Logs>,
    grace: Duration,
    order: Stop,
    /// The bindings of events, which end first.
    events: JoinSet<()>,
    /// The other bindings and the HTTP listener.
    intake: JoinSet<()>,
    /// Everything else.
    rest: JoinSet<()>,
}

/// The order to end, for the parts in the order in which they end.
#[derive(Default)]
struct Stop {
    /// The bridge drains: callers are sent elsewhere.
    drain: CancellationToken,
    /// No new work: the HTTP listener and the bindings.
    intake: CancellationToken,
    /// The rest: reply legs, cancels, the admin listener.
    rest: CancellationToken,
}

// === impl Bridge ===

impl Bridge {
    /// Runs until `stop`, then drains: work in progress is finished within the grace period of the configuration.
    ///
    /// # Panics
    /// After the drain, when a task of the bridge has panicked: the process should be restarted.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            buses,
            calls,
            exchanges,
            cancels,
            bindings,
            metrics,
            log,
            readiness,
            door,
            admin,
            http,
            admin_hosts,
            passed,
            a2a,
            workflows,
            reload,
            state,
        } = self;
        let mut process = Process {
            buses,
            calls,
            exchanges,
            workflows,
            metrics,
            readiness,
            log,
            _state: state,
            grace: http.drain_grace.0,
            order: Stop::default(),
            events: JoinSet::new(),
            intake: JoinSet::new(),
            rest: JoinSet::new(),
        };
        let bounds = connection_bounds(&http);
        if let Some(listener) = admin {
            process.open_admin(listener, admin_hosts, bounds);
        }
        process.watch_buses();
        process.read_answers();
        process.start_upkeep(cancels, reload);
        for (work, subscription) in bindings {
            process.start_binding(work, subscription);
        }
        if let Some(listener) = door {
            process.open_door(listener, http, (passed, a2a), bounds);
        }
        process.readiness.started();
        let ended = process.until_stopped(&stop).await;
        process.drain().await;
        process.end().await;
        if let Some(Err(error)) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

// === impl Process ===

// Every condition is noted before the task that meets it runs: else the bridge is ready for a moment in which nothing is
// connected yet.
impl Process {
    /// Opens the admin listener.
    fn open_admin(&mut self, socket: TcpListener, hosts: Vec<String>, bounds: ConnectionBounds) {
        let door = AdminDoor {
            readiness: Arc::clone(&self.readiness),
            metrics: Arc::clone(&self.metrics),
            hosts: Hosts::new(hosts),
        };
        self.rest.spawn(http::serve(Listener {
            socket,
            router: doors::admin::router(door),
            bounds: ConnectionBounds {
                max_connections: ADMIN_CONNECTIONS,
                max_per_client: ADMIN_CONNECTIONS / 2,
                ..bounds
            },
            ending: Ending {
                farewell: self.order.rest.clone(),
                shutdown: self.order.rest.clone(),
            },
            name: "admin",
            metrics: Arc::clone(&self.metrics),
            log: self.log.clone(),
        }));
    }

    /// Watches whether the buses are connected.
    fn watch_buses(&mut self) {
        for (id, bus) in self.buses.iter() {
            self.readiness.starting(condition_of(bus));
            self.rest.spawn(watch_health(
                id,
                bus.clone(),
                Arc::clone(&self.calls),
                Arc::clone(&self.readiness),
                self.order.rest.clone(),
            ));
        }
    }

    /// Reads the answers of every bus that calls go to.
    fn read_answers(&mut self) {
        for leg in self.calls.legs().iter() {
            let Some(bus) = self.buses.get(leg.bus) else {
                continue;
            };
            let reader = ReplyReader {
                leg: leg.clone(),
                bus: bus.clone(),
                calls: Arc::clone(&self.calls),
            };
            self.readiness.starting(reader.condition());
            let stop = self.order.rest.clone();
            self.rest
                .spawn(reader.run(Arc::clone(&self.readiness), stop));
        }
    }

    /// Starts what goes on beside the messages: cancels, old records, changes of the configuration, reports.
    fn start_upkeep(&mut self, cancels: mpsc::Receiver<Cancel>, reload: Option<Reload>) {
        let stop = || self.order.rest.clone();
        let rest = &mut self.rest;
        rest.spawn(send_cancels(Arc::clone(&self.calls), cancels, stop()));
        if let Some(workflows) = self.workflows.clone() {
            rest.spawn(until(stop(), workflows.keep_tidy()));
        }
        if let Some(reload) = reload {
            rest.spawn(until(stop(), reload.run()));
        }
        let reports = report(self.log.clone(), self.buses.clone());
        rest.spawn(until(stop(), reports));
    }

    /// Starts a binding, if its bus is there.
    fn start_binding(&mut self, work: Work, subscription: Subscription) {
        let Some(bus) = self.buses.get(work.bus()) else {
            return;
        };
        let dead_letters = self.buses.get(work.dead_letters().bus);
        let (log, name) = (&self.log, work.name());
        let runner = Runner {
            pauses: log.seldom_of(name, Level::WARN, "more partitions were paused"),
            resumptions: log.seldom_of(name, Level::INFO, "more partitions are read again"),
            work,
            subscription,
            transport: bus.transport.clone(),
            dead_letters: dead_letters.map(|bus| bus.transport.clone()),
            metrics: Arc::clone(&self.metrics),
            grace: self.grace,
        };
        self.readiness.starting(runner.condition());
        let readiness = Arc::clone(&self.readiness);
        if runner.work.is_of_events() {
            self.events
                .spawn(runner.run(readiness, self.order.drain.clone()));
        } else {
            self.intake
                .spawn(runner.run(readiness, self.order.intake.clone()));
        }
    }

    /// Opens the HTTP listener.
    fn open_door(
        &mut self,
        socket: TcpListener,
        http: HttpConfig,
        (passed, a2a): (PassedHeaders, Settings),
        bounds: ConnectionBounds,
    ) {
        let origins = http.allowed_origins.iter();
        let door = Door {
            calls: Arc::clone(&self.calls),
            metrics: Arc::clone(&self.metrics),
            readiness: Arc::clone(&self.readiness),
            allowed_origins: origins.filter_map(|origin| origin.parse().ok()).collect(),
            hosts: Hosts::new(http.allowed_hosts),
            passed,
            body_timeout: http.header_timeout.0,
        };
        let executor = self.workflows.clone();
        let executor = executor.map(|workflows| doors::workflows::router(door.clone(), workflows));
        let router = executor.unwrap_or_default();
        let router = if a2a.registry.is_empty() {
            router
        } else {
            router.merge(doors::a2a::router(door.clone(), a2a, &self.log))
        };
        let mounted = Mounted {
            router,
            exposed: [&doors::workflows::EXPOSED[..], &doors::a2a::EXPOSED].concat(),
        };
        self.intake.spawn(http::serve(Listener {
            socket,
            router: doors::router(door, mounted),
            bounds,
            ending: Ending {
                farewell: self.order.drain.clone(),
                shutdown: self.order.intake.clone(),
            },
            name: DOOR,
            metrics: Arc::clone(&self.metrics),
            log: self.log.clone(),
        }));
    }

    /// Waits for the order to stop, or for a task that ends before it; what became of that.
    async fn until_stopped(&mut self, stop: &CancellationToken) -> Option<Result<(), JoinError>> {
        let ended = tokio::select! {
            () = stop.cancelled() => None,
            ended = by_itself(&mut self.events) => Some(ended),
            ended = by_itself(&mut self.intake) => Some(ended),
            ended = by_itself(&mut self.rest) => Some(ended),
        };
        if ended.is_some() {
            tracing::error!(
                "a task of the bridge failed: draining, then exiting so that it can be restarted"
            );
        }
        ended
    }

    /// Finishes what is in hand, within the grace period.
    async fn drain(&mut self) {
        let grace = self.grace;
        tracing::info!(
            grace_seconds = grace.as_secs(),
            pending_calls = self.calls.pending().len(),
            "draining"
        );
        self.readiness.drain();
        self.order.drain.cancel();
        self.calls.drain();
        // Events are read no more: other replicas take them. Answers still come in by the other bindings, so these go on
        // until the last call and the last request on the bus have their own; new calls are refused with 503 meanwhile.
        let for_bindings = (grace / 4).min(BINDINGS_GRACE);
        let until = Instant::now() + grace;
        let in_hand = async {
            end(&mut self.events).await;
            self.calls.pending().until_empty().await;
            self.calls.until_published().await;
        };
        let (in_hand, ()) = tokio::join!(
            timeout(grace - for_bindings, in_hand),
            finish(self.workflows.as_ref(), grace - for_bindings)
        );
        if in_hand.is_err() {
            let failed = self
                .calls
                .pending()
                .fail_where(|_| true, &CallError::Draining);
            tracing::warn!(
                calls = failed,
                "the grace period is over: pending calls fail, and messages that are not published yet stay at their source"
            );
        }
        // Answers that arrived are still on their way to requesters on the bus.
        self.exchanges.end(until).await;
        if timeout_at(until, end(&mut self.events)).await.is_err() {
            self.events.shutdown().await;
        }
        self.order.intake.cancel();
        let intake = timeout_at(until + LAST_WORDS, end(&mut self.intake));
        if intake.await.is_err() {
            tracing::warn!("the grace period is over: messages in progress are abandoned");
            self.intake.shutdown().await;
        }
    }

    /// Ends what served the drain, and closes the buses.
    async fn end(&mut self) {
        self.order.rest.cancel();
        if timeout(CLOSE, end(&mut self.rest)).await.is_err() {
            self.rest.shutdown().await;
        }
        self.buses.close(CLOSE).await;
        self.log.flush();
        tracing::info!("stopped");
    }
}

/// The connection limits of the HTTP listener.
fn connection_bounds(http: &HttpConfig) -> ConnectionBounds {
    let max_connections = http::affordable(http.max_connections as usize);
    let quarter = max_connections.div_ceil(4);
    let per_client = http.max_connections_per_client;
    ConnectionBounds {
        header_timeout: http.header_timeout.0,
        idle_timeout: http.idle_timeout.0,
        response_patience: RESPONSE_PATIENCE,
        max_connections,
        max_per_client: per_client.map_or(quarter, |most| most as usize),
    }
}

/// Lets executions of workflows finish, and cancels what then still runs.
async fn finish(workflows: Option<&Workflows>, patience: Duration) {
    if let Some(workflows) = workflows {
        workflows.finish(patience).await;
    }
}

/// Runs a future until `stop`.
async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    stop.run_until_cancelled(work).await;
}

/// The first task that ends before the shutdown.
async fn by_itself(tasks: &mut JoinSet<()>) -> Result<(), JoinError> {
    match tasks.join_next().await {
        Some(ended) => ended,
        None => std::future::pending().await,
    }
}

async fn end(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a task ended unexpectedly");
        }
    }
}

/// Reports what no message reports by itself: log lines that were suppressed, and messages that a client dropped.
async fn report(log: LogLimits, buses: Buses) {
    let mut every = tokio::time::interval(REPORT_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        log.report();
        for (_, bus) in buses.iter() {
            let dropped = bus.transport.dropped_messages();
            let counter = &bus.metrics.client_dropped;
            counter.inc_by(dropped.saturating_sub(counter.get()));
        }
    }
}

/// The condition that a bus is connected.
fn condition_of(bus: &Bus) -> String {
    format!("transport {}", bus.name.text())
}

/// Informs calls, readiness and metrics when a bus goes down or comes up.
async fn watch_health(
    id: BusId,
    bus: Bus,
    calls: Arc<Calls>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) {
    let mut health = bus.transport.health();
    let condition = condition_of(&bus);
    let mut was_up = false;
    loop {
        let now = health.borrow_and_update().clone();
        match now {
            Health::Up => {
                tracing::info!(transport = %bus.name.text(), "connected");
                was_up = true;
                bus.metrics.up.set(1);
                readiness.set(condition.as_str(), Ok(()));
            }
            Health::Down(cause) => {
                if was_up {
                    was_up = false;
                    tracing::error!(transport = %bus.name.text(), %cause, "the transport is down: trying again until it is back");
                } else {
                    tracing::info!(transport = %bus.name.text(), "{cause}");
                }
                bus.metrics.up.set(0);
                readiness.set(condition.as_str(), Err(cause.to_string()));
                calls.fail_all(id, &cause);
            }
        }
        tokio::select! {
            changed = health.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Sends cancels, many at a time: an agent whose topic does not confirm delays no other. On `stop` it sends what waits.
async fn send_cancels(
    calls: Arc<Calls>,
    mut cancels: mpsc::Receiver<Cancel>,
    stop: CancellationToken,
) {
    let mut sending = FuturesUnordered::new();
    let (mut is_open, mut is_wanted) = (true, true);
    loop {
        tokio::select! {
            biased;
            Some(()) = sending.next() => {}
            cancel = cancels.recv(), if is_open && sending.len() < CANCELS_AT_A_TIME => match cancel {
                Some(cancel) => sending.push(calls.send_cancel(cancel)),
                None => is_open = false,
            },
            () = stop.cancelled(), if is_wanted => {
                is_wanted = false;
                cancels.close();
            }
            else => return,
        }
    }
}

/// Starts something until it works; `None` when told to stop first. Says why it does not; that it is ready is for the
/// caller to say.
async fn start<F: Future<Output = Result<Consumer, TransportError>>>(
    condition: &str,
    readiness: &Readiness,
    stop: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Option<Consumer> {
    let mut wait = RESTART.0;
    loop {
        let result = tokio::select! {
            result = attempt() => result,
            () = stop.cancelled() => return None,
        };
        match result {
            Ok(started) => return Some(started),
            Err(error) => {
                tracing::warn!(condition, error = %chain(&error), "a part of the bridge did not start; trying again");
                readiness.set(condition, Err(chain(&error)));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(RESTART.1),
            () = stop.cancelled() => return None,
        }
    }
}

/// Waits before something that ended by itself is started again, when it had not lived long.
async fn not_too_soon(began: Instant, stop: &CancellationToken) {
    if began.elapsed() < SHORT_LIFE {
        tokio::select! {
            () = tokio::time::sleep(SHORT_LIFE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Runs one binding.
struct Runner {
    work: Work,
    subscription: Subscription,
    transport: AnyTransport,
    dead_letters: Option<AnyTransport>,
    metrics: Arc<Metrics>,
    grace: Duration,
    pauses: Seldom,
    resumptions: Seldom,
}

// === impl Runner ===

impl Runner {
    /// The condition that the topics of the binding are read.
    fn condition(&self) -> String {
        format!("binding {}", self.work.name())
    }

    async fn run(self, readiness: Arc<Readiness>, stop: CancellationToken) {
        let condition = self.condition();
        while !stop.is_cancelled() {
            let Some(consumer) = start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            readiness.set(condition.as_str(), Err(WAITING.to_owned()));
            let (assigned, lag) = (consumer.assigned(), consumer.lag());
            let paused = consumer.paused();
            let working = self.work.run(consumer, stop.clone());
            let consumer = tokio::select! {
                consumer = working => consumer,
                () = ready_when(assigned, &condition, &readiness) => return,
                () = self.tell_lag(lag) => return,
                () = self.tell_paused(paused) => return,
                () = grace_over(&stop, self.grace) => return self.abandon(),
            };
            self.metrics.source_lag(self.work.name(), None);
            self.metrics.paused_partitions(self.work.name(), 0);
            // Requests that wait for their answers settle until then.
            match consumer.close(self.grace.max(CLOSE)).await {
                Err(error) if error.kind() == TransportErrorKind::Fenced => {
                    // Whoever took the place keeps it: two that take it from each other in turn serve nobody.
                    tracing::error!(binding = %self.work.name(), %error, "another process has this instance_id");
                    readiness.set(condition.as_str(), Err(error.to_string()));
                    stop.cancelled().await;
                    return;
                }
                Err(error) => {
                    tracing::warn!(binding = %self.work.name(), %error, "not closed cleanly: some messages may be redelivered");
                }
                Ok(()) => {}
            }
            readiness.set(condition.as_str(), Err("the subscription ended".to_owned()));
            not_too_soon(began, &stop).await;
        }
    }

    /// Logs how many messages were in progress at the deadline: a source that stores messages redelivers them, core
    /// NATS does not.
    fn abandon(&self) {
        let (name, messages) = (self.work.name(), self.work.in_flight());
        let is_kept = !matches!(self.subscription.reading, Reading::Group(_))
            || self.transport.binding() != Binding::Nats;
        match messages {
            0 => {}
            _ if is_kept => tracing::warn!(binding = %name, messages,
                "the grace period is over: messages in progress are abandoned, and will be redelivered"),
            _ => tracing::error!(binding = %name, messages,
                "the grace period is over: messages in progress are lost, because core NATS does not store them"),
        }
    }

    /// Notes which partitions are paused because one request waits too long, and never ends.
    async fn tell_paused(&self, paused: Option<watch::Receiver<Vec<Text>>>) {
        let name = self.work.name();
        let mut before = Vec::new();
        if let Some(mut paused) = paused {
            while paused.changed().await.is_ok() {
                let now = paused.borrow_and_update().clone();
                self.metrics.paused_partitions(name, now.len());
                for partition in now.iter().filter(|partition| !before.contains(*partition)) {
                    if let Some(suppressed) = self.pauses.allow() {
                        tracing::warn!(binding = %name, %partition, suppressed,
                            "partition paused: too many records were read after a request that is still unanswered");
                    }
                }
                for partition in before.iter().filter(|partition| !now.contains(partition)) {
                    if let Some(suppressed) = self.resumptions.allow() {
                        tracing::info!(binding = %name, %partition, suppressed, "a paused partition is read again");
                    }
                }
                before = now;
            }
        }
        std::future::pending().await
    }

    /// Records how far the binding is behind its source whenever that is reported; never ends.
    async fn tell_lag(&self, lag: Option<watch::Receiver<Option<u64>>>) {
        if let Some(mut lag) = lag {
            while lag.changed().await.is_ok() {
                let known = *lag.borrow_and_update();
                self.metrics.source_lag(self.work.name(), known);
            }
        }
        std::future::pending().await
    }

    /// Dead letters of core NATS are kept only where a stream takes them.
    async fn warn_of_lost_letters(&self, transport: &AnyTransport) {
        #[cfg(feature = "nats")]
        if let AnyTransport::Nats(nats) = transport {
            let (dead_letters, binding) = (self.work.dead_letters(), self.work.name());
            let topic = dead_letters.topic.as_str();
            if !dead_letters.is_backed && matches!(nats.stream_of(topic).await, Ok(None)) {
                tracing::warn!(%binding, topic, "no JetStream stream stores the dead letters of this binding: they are lost");
            }
        }
        #[cfg(not(feature = "nats"))]
        let _ = transport;
    }

    async fn subscribe(&self) -> Result<Consumer, TransportError> {
        if let Some(transport) = &self.dead_letters {
            transport
                .ensure_topic(&self.work.dead_letters().topic, 1)
                .await?;
            self.warn_of_lost_letters(transport).await;
        }
        self.transport.subscribe(self.subscription.clone()).await
    }
}

/// Notes that a condition is met once `assigned` is done, and never ends.
async fn ready_when(assigned: impl Future<Output = ()>, condition: &str, readiness: &Readiness) {
    assigned.await;
    readiness.set(condition, Ok(()));
    std::future::pending().await
}

async fn grace_over(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
}

/// How often the partitions of the reply topic are counted again.
const RECOUNT_EVERY: Duration = Duration::from_secs(60);
/// How long after one count the next may follow, however many answers are misplaced.
const RECOUNT_PAUSE: Duration = Duration::from_secs(5);

/// Reads the answers of one bus.
struct ReplyReader {
    leg: ReplyLeg,
    bus: Bus,
    calls: Arc<Calls>,
}

// === impl ReplyReader ===

impl ReplyReader {
    /// The condition that answers are read.
    fn condition(&self) -> String {
        format!("answers on {}", self.bus.name.text())
    }

    async fn run(self, readiness: Arc<Readiness>, stop: CancellationToken) {
        let condition = self.condition();
        while !stop.is_cancelled() {
            let Some(mut consumer) =
                start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            readiness.set(condition.as_str(), Ok(()));
            self.leg.set_reading(true);
            while let Some(there) = self.read_all(&mut consumer, &stop).await {
                let moving = self.read_among(there, &mut consumer);
                stop.run_until_cancelled(moving).await;
            }
            self.leg.set_reading(false);
            if let Err(error) = consumer.close(CLOSE).await {
                tracing::warn!(transport = %self.bus.name.text(), %error, "the reader of answers did not close cleanly");
            }
            readiness.set(condition.as_str(), Err("the subscription ended".to_owned()));
            not_too_soon(began, &stop).await;
        }
    }

    /// Reads answers until the subscription ends: `None`, or until the reply topic has another number of partitions.
    async fn read_all(&self, consumer: &mut Consumer, stop: &CancellationToken) -> Option<u32> {
        let mut resized = pin!(self.until_resized());
        loop {
            tokio::select! {
                biased;
                delivery = consumer.recv() => self.read(delivery?),
                () = stop.cancelled() => return None,
                there = &mut resized => return Some(there),
            }
        }
    }

    /// Waits until the reply topic has another number of partitions than was known. The place of an answer follows from
    /// that number, so that all replicas must know the same.
    async fn until_resized(&self) -> u32 {
        let Some((topic, _)) = self.leg.required_topic() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(RECOUNT_PAUSE).await;
            drop(tokio::time::timeout(RECOUNT_EVERY, self.leg.until_misplaced()).await);
            // An error says nothing about the number; the next time may.
            if let Ok(there) = self.bus.transport.partitions(topic).await
                && self.leg.has_changed(there)
            {
                return there;
            }
        }
    }

    /// Reads from the partition of this replica among this many, before any call names it. What comes to the old one from
    /// now on is forwarded as a misplaced answer.
    async fn read_among(&self, there: u32, consumer: &mut Consumer) {
        let transport = self.bus.name.text();
        let new = match self.subscribe_among(there).await {
            Ok(new) => new,
            Err(error) => {
                tracing::warn!(%transport, partitions = there, %error, "the number of partitions of the reply topic has changed, and the new one of this replica cannot be read yet");
                return;
            }
        };
        new.assigned().await;
        self.leg.found(there);
        tracing::info!(%transport, partitions = there, "the number of partitions of the reply topic has changed: answers are read from another one");
        let mut old = std::mem::replace(consumer, new);
        old.stop();
        while let Some(delivery) = old.recv().await {
            self.read(delivery);
        }
        if let Err(error) = old.close(CLOSE).await {
            tracing::warn!(%transport, %error, "the reader of answers did not close cleanly");
        }
    }

    async fn subscribe(&self) -> Result<Consumer, TransportError> {
        let mut there = 1;
        if let Some((topic, partitions)) = self.leg.required_topic() {
            self.bus.transport.ensure_topic(topic, partitions).await?;
            there = self.bus.transport.partitions(topic).await?;
            self.leg.found(there);
        }
        self.subscribe_among(there).await
    }

    async fn subscribe_among(&self, partitions: u32) -> Result<Consumer, TransportError> {
        let subscription = self.calls.legs().subscription(&self.leg, partitions);
        let subscription = subscription.map_err(|error| {
            TransportError::new(TransportErrorKind::BadConfig, error.to_string())
        })?;
        self.bus.transport.subscribe(subscription).await
    }

    /// Hands one message to the calls it answers. An answer without a caller is counted, logged and dropped: nothing
    /// waits for it.
    fn read(&self, delivery: Delivery) {
        let Delivery {
            message,
            topic,
            origin,
            acknowledger,
            ..
        } = delivery;
        let rules = self.calls.rules();
        let at = ReadAt {
            rules: &rules,
            bus: self.leg.bus,
            topic: &topic,
            origin: origin.as_ref(),
            message: &message,
            reply_to: None,
            reader: Reader::ReplyLeg,
        };
        let binding = self.bus.transport.binding();
        if !(binding == Binding::Nats && self.calls.no_responders(at)) {
            // They are counted and logged; nothing is to be sent on from here.
            drop(self.calls.take_answers(at, binding));
        }
        if let Err(error) = acknowledger.settle(Outcome::Settled) {
            tracing::warn!(%error, "an answer was not acknowledged: it may be redelivered");
        }
    }
}
