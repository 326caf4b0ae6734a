//! The life of a bridge: start, run, drain.
//!
//! [`Bridge::run`] owns every task, and each ends with it. While a bus is down, its bindings and its reply reader keep
//! retrying; the process does not exit. Source: docs/design.md §9.

mod runner;

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{Health, Subscription, Transport as _};
use axum::http::HeaderName;
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::bridge::{BindingService, Bridge};
use crate::bus::{Bus, BusId, Buses};
use crate::calls::Calls;
use crate::calls::cancel::Cancel;
use crate::calls::exchange::Exchanges;
use crate::calls::reply_reader::ReplyReader;
use crate::config::HttpConfig;
use crate::doors::a2a::{Deliveries, Settings};
use crate::doors::admin::AdminDoor;
use crate::doors::{self, Door, DoorSettings, Mounted, StateLines};
use crate::http::{self, ConnectionBounds, Ending, Hosts, Listener};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::Metrics;
use crate::names::DOOR;
use crate::readiness::{Readiness, TRANSPORT};
use crate::registry::Registry;
use crate::reload::ConfigReloader;
use crate::results::Results;
use crate::results::follower::Follower;
use crate::state::Logs;
use crate::tasks::Tasks;
use crate::workflows::Workflows;
use runner::{REPORT_DRAIN, Runner};

/// How long the answers of abandoned calls may take to reach their callers.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the remaining tasks may take to end after the drain, and then the buses to close. Even if a bus does not
/// answer, the process ends within the 10 s that the Helm chart adds to the grace period.
const CLOSE: Duration = Duration::from_secs(3);
/// The part of the grace period that is reserved for bindings to finish messages in progress.
const BINDINGS_GRACE: Duration = Duration::from_secs(5);
/// The end of the grace period, for the errors of requests to attached agents that have not ended: a quarter of it, at
/// most this.
const MAX_ENDING: Duration = Duration::from_secs(2);
/// How long the HTTP listener waits for the first attempts to connect to the buses.
const FIRST_ATTEMPTS: Duration = Duration::from_secs(5);
/// How often suppressed log lines and dropped messages are reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often the log repeats that a bus is down.
const REMIND_EVERY: Duration = Duration::from_secs(60);
/// The state of a bus that is not up, and was not just before.
const NOT_CONNECTED: &str = "not connected";
/// How long a bus may be down before the calls fail whose answer is a single message, and new ones. If it comes back
/// sooner, the answer probably arrives.
const INTERRUPTION: Duration = Duration::from_secs(1);
/// Maximum number of connections to the admin listener.
const ADMIN_CONNECTIONS: usize = 64;
/// If a caller reads nothing of a response for this long, its connection is closed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// A running bridge.
struct Process {
    buses: Buses,
    calls: Arc<Calls>,
    exchanges: Arc<Exchanges>,
    workflows: Option<Workflows>,
    results: Option<Arc<Results>>,
    metrics: Arc<Metrics>,
    registry: Arc<Registry>,
    tasks: Option<Arc<Tasks>>,
    readiness: Arc<Readiness>,
    log: LogLimits,
    state: Arc<Logs>,
    grace: Duration,
    order: Stop,
    /// The bindings for events, which end first.
    events: JoinSet<()>,
    intake: Intake,
    /// Everything else.
    rest: JoinSet<()>,
}

/// The other parts that take in work.
#[derive(Default)]
struct Intake {
    bindings: JoinSet<()>,
    /// The HTTP listener.
    door: JoinSet<()>,
}

/// The signals to stop, in the order in which the parts end.
#[derive(Default)]
struct Stop {
    /// The bridge drains: new callers are refused.
    drain: CancellationToken,
    /// No new work: the HTTP listener and the bindings.
    intake: CancellationToken,
    /// The rest: reply channels, cancels, the admin listener.
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
            door_settings,
            registry,
            a2a,
            deliveries,
            results,
            takes_over,
            workflows,
            reload,
            state,
        } = self;
        let mut process = Process {
            buses,
            calls,
            exchanges,
            workflows,
            results,
            metrics,
            registry,
            tasks: a2a.as_ref().map(|a2a| Arc::clone(&a2a.tasks)),
            readiness,
            log,
            state,
            grace: http.drain_grace.0,
            order: Stop::default(),
            events: JoinSet::new(),
            intake: Intake::default(),
            rest: JoinSet::new(),
        };
        if let Some(listener) = admin {
            process.open_admin(listener, admin_hosts, connection_bounds(&http));
        }
        process.watch_buses();
        process.read_answers(takes_over, a2a.as_ref());
        process.start_upkeep(cancels, reload, (a2a.as_ref(), deliveries));
        process.start_bindings(bindings, &stop).await;
        if let Some(listener) = door {
            until(stop.clone(), process.first_attempts()).await;
            process.open_door(listener, http, (door_settings, a2a));
        }
        let failed = process.until_stopped(&stop).await;
        process.end().await;
        if let Some(panic) = failed {
            std::panic::resume_unwind(panic);
        }
    }
}

// === impl Process ===

// Every condition is registered before the task that meets it runs. Otherwise the bridge would be ready for a moment
// before anything is connected.
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
                (
                    self.log.limit(
                        Level::WARN,
                        "more causes of a transport that is not connected",
                    ),
                    self.log
                        .limit(Level::INFO, "more connections of a transport"),
                ),
                self.order.rest.clone(),
            ));
        }
    }

    /// Reads the answers on every bus that calls go to, and those for other replicas if this one takes over calls.
    fn read_answers(&mut self, takes_over: bool, a2a: Option<&Settings>) {
        for channel in self.calls.channels().iter() {
            let Some(bus) = self.buses.get(channel.bus) else {
                continue;
            };
            let reader = ReplyReader {
                channel: channel.clone(),
                bus: bus.clone(),
                calls: Arc::clone(&self.calls),
            };
            self.readiness.starting(reader.condition());
            let stop = self.order.rest.clone();
            self.rest
                .spawn(reader.run(Arc::clone(&self.readiness), stop));
        }
        if takes_over {
            self.follow_others(a2a);
        }
    }

    /// Reads the answers to calls of other replicas, if they share the state.
    fn follow_others(&mut self, a2a: Option<&Settings>) {
        let shared = self.results.as_ref().filter(|results| results.is_shared());
        let Some(results) = shared.cloned() else {
            return;
        };
        let delivering = Arc::clone(&results).deliver_recorded(Arc::clone(&self.calls));
        self.rest.spawn(until(self.order.rest.clone(), delivering));
        if let Some(a2a) = a2a {
            let (tasks, results) = (Arc::clone(&a2a.tasks), Arc::clone(&results));
            let ends = tasks.end_overdue(move |unfinished| {
                let results = Arc::clone(&results);
                async move { results.deadlines(&unfinished).await }
            });
            self.rest.spawn(until(self.order.rest.clone(), ends));
        }
        let line = |what| self.log.limit(Level::WARN, what);
        for channel in self.calls.channels().iter() {
            let Some(bus) = self.buses.get(channel.bus) else {
                continue;
            };
            let follower = Follower {
                channel: channel.clone(),
                bus: bus.clone(),
                calls: Arc::clone(&self.calls),
                results: Arc::clone(&results),
                tasks: a2a.map(|a2a| Arc::clone(&a2a.tasks)),
                metrics: Arc::clone(&self.metrics),
                adopted: line("more calls of replicas that have stopped were taken over"),
                lost: line("more answers to calls of other replicas were given up"),
                rejected: line("more answers to calls of other replicas were rejected"),
            };
            self.readiness.starting(follower.condition());
            let stop = self.order.rest.clone();
            self.rest
                .spawn(follower.run(Arc::clone(&self.readiness), stop));
        }
    }

    /// Starts the background tasks: cancels, removal of old records, changes of the configuration, reports.
    fn start_upkeep(
        &mut self,
        cancels: mpsc::Receiver<Cancel>,
        reload: Option<ConfigReloader>,
        (a2a, deliveries): (Option<&Settings>, Option<Deliveries>),
    ) {
        let stop = || self.order.rest.clone();
        let rest = &mut self.rest;
        let calls = Arc::clone(&self.calls);
        let stopping = stop();
        rest.spawn(async move { calls.send_cancels(cancels, stopping).await });
        if let Some(workflows) = self.workflows.clone() {
            rest.spawn(until(stop(), workflows.clone().keep_tidy()));
            let readiness = Arc::clone(&self.readiness);
            rest.spawn(until(stop(), workflows.watch_store(readiness)));
        }
        if let Some(reload) = reload {
            rest.spawn(until(stop(), reload.run()));
        }
        rest.spawn(until(stop(), Arc::clone(&self.registry).follow_log()));
        if let Some(a2a) = a2a {
            let tasks = Arc::clone(&a2a.tasks);
            rest.spawn(until(stop(), tasks.end_orphans(self.calls.longest())));
        }
        if let Some(deliveries) = deliveries {
            rest.spawn(deliveries.run(stop()));
        }
        let reports = report(self.log.clone(), self.buses.clone());
        rest.spawn(until(stop(), reports));
    }

    /// Starts the bindings, once the agents that have announced themselves are known.
    async fn start_bindings(
        &mut self,
        bindings: Vec<(BindingService, Subscription)>,
        stop: &CancellationToken,
    ) {
        until(stop.clone(), self.registry.first_read()).await;
        for (work, subscription) in bindings {
            self.start_binding(work, subscription);
        }
    }

    /// Starts a binding, if its bus exists.
    fn start_binding(&mut self, work: BindingService, subscription: Subscription) {
        let Some(bus) = self.buses.get(work.intake().bus) else {
            return;
        };
        let intake = work.intake();
        let dead_letters = self.buses.get(intake.dead_letters.bus);
        let (log, name) = (&self.log, &intake.name);
        let runner = Runner {
            pauses: log.limit_of(name, Level::WARN, "more partitions were paused"),
            resumptions: log.limit_of(name, Level::INFO, "more partitions are read again"),
            work,
            subscription,
            transport: bus.transport.clone(),
            dead_letters: dead_letters.map(|bus| bus.transport.clone()),
            metrics: Arc::clone(&self.metrics),
            grace: self.grace,
        };
        self.readiness.starting(runner.condition());
        if let BindingService::Agent(agent) = &runner.work {
            let upstream = Arc::clone(agent.upstream());
            self.rest.spawn(upstream.run(self.order.rest.clone()));
            let (drain, ending) = (self.order.drain.clone(), agent.ending().clone());
            let left = self.grace - (self.grace / 4).min(MAX_ENDING);
            let ends = async move {
                drain.cancelled().await;
                sleep(left).await;
                ending.cancel();
            };
            self.rest.spawn(until(self.order.rest.clone(), ends));
        }
        let readiness = Arc::clone(&self.readiness);
        let stop = match runner.work.stops_at_drain() {
            true => self.order.drain.clone(),
            false => self.order.intake.clone(),
        };
        let bindings = match runner.work.is_of_events() {
            true => &mut self.events,
            false => &mut self.intake.bindings,
        };
        bindings.spawn(runner.run(readiness, stop));
    }

    /// Waits until each bus has been tried, and the answers on those that are connected are read. Callers wait
    /// meanwhile; served earlier, they would be refused.
    async fn first_attempts(&self) {
        let channels = self.calls.channels();
        let attempts = self.buses.iter().map(|(id, bus)| async move {
            let mut health = bus.transport.health();
            let tried = health.wait_for(|health| !matches!(health, Health::Connecting(_)));
            let is_up = tried.await.is_ok_and(|health| health.is_up());
            if is_up {
                channels.until_reading(id).await;
            }
        });
        // Whoever takes longer is refused with the cause.
        let _ = timeout(FIRST_ATTEMPTS, join_all(attempts)).await;
    }

    /// Opens the HTTP listener.
    fn open_door(
        &mut self,
        socket: TcpListener,
        http: HttpConfig,
        (settings, a2a): (DoorSettings, Option<Settings>),
    ) {
        let bounds = connection_bounds(&http);
        let Some(results) = self.results.clone() else {
            return;
        };
        let origins = http.allowed_origins.iter();
        let door = Door {
            calls: Arc::clone(&self.calls),
            metrics: Arc::clone(&self.metrics),
            readiness: Arc::clone(&self.readiness),
            allowed_origins: origins.filter_map(|origin| origin.parse().ok()).collect(),
            hosts: Hosts::new(http.allowed_hosts),
            registry: Arc::clone(&self.registry),
            passed: settings.passed,
            public_url: settings.public_url,
            body_timeout: http.header_timeout.0,
            results,
            state_lines: StateLines::new(&self.log),
        };
        let executor = self.workflows.clone();
        let executor = executor.map(|workflows| doors::workflows::router(door.clone(), workflows));
        let router = executor.unwrap_or_default();
        let drain = self.order.drain.clone();
        let router = match a2a {
            Some(a2a) => {
                let a2a = doors::a2a::open(door.clone(), a2a, drain.clone());
                let eventmesh = doors::eventmesh::router(&a2a);
                router.merge(doors::a2a::router(&a2a)).merge(eventmesh)
            }
            None => router,
        };
        let mcp = doors::mcp::router(door.clone(), settings.mcp, drain, &self.log);
        let router = router.merge(mcp);
        let mounted = Mounted {
            router,
            exposed: exposed(),
        };
        self.intake.door.spawn(http::serve(Listener {
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

    /// Runs the started tasks until `stop`, or until one of them ends by itself. Returns its panic, if that was the
    /// cause.
    async fn until_stopped(&mut self, stop: &CancellationToken) -> Option<Box<dyn Any + Send>> {
        self.readiness.started();
        let ended = tokio::select! {
            () = stop.cancelled() => return None,
            ended = first_to_end(&mut self.events) => ("a binding of events", ended),
            ended = first_to_end(&mut self.intake.bindings) => ("a binding of answers or workflows", ended),
            ended = first_to_end(&mut self.intake.door) => ("the HTTP listener", ended),
            ended = first_to_end(&mut self.rest) => ("a background task", ended),
        };
        let (part, ended) = ended;
        tracing::error!(
            part,
            "a part of the bridge failed: draining, then exiting so that it can be restarted"
        );
        ended.err()?.try_into_panic().ok()
    }

    /// Finishes the work in progress, within the grace period.
    async fn drain(&mut self) {
        let grace = self.grace;
        let for_bindings = (grace / 4).min(BINDINGS_GRACE);
        tracing::info!(
            grace_seconds = grace.as_secs(),
            for_calls_seconds = (grace - for_bindings).as_secs(),
            pending_calls = self.calls.pending().len(),
            "draining"
        );
        self.readiness.drain();
        self.order.drain.cancel();
        self.calls.drain();
        // Bindings for events stop, because other replicas read their events. The other bindings continue to read
        // answers until the last call and the last request on the bus are answered. New calls are refused with 503
        // meanwhile.
        let until = Instant::now() + grace;
        let in_hand = async {
            end(&mut self.events).await;
            self.calls.pending().until_empty().await;
            self.calls.until_published().await;
        };
        let workflows = async {
            if let Some(workflows) = &self.workflows {
                workflows.finish(grace - for_bindings).await;
            }
        };
        let in_hand = async { tokio::join!(timeout(grace - for_bindings, in_hand), workflows) };
        let (in_hand, ()) = tokio::select! {
            in_hand = in_hand => in_hand,
            never = report_calls(&self.calls) => match never {},
        };
        let failed = self.calls.give_up();
        if in_hand.is_err() {
            tracing::warn!(
                calls = failed,
                rest_seconds = for_bindings.as_secs(),
                "the time for calls is over: pending calls fail, and unpublished messages stay at their source; the rest of the grace period is for answers that have arrived"
            );
        }
        // Answers that have arrived still have to be published to requesters on the bus.
        self.exchanges.end(until).await;
        if timeout_at(until, end(&mut self.events)).await.is_err() {
            self.events.shutdown().await;
        }
        self.order.intake.cancel();
        self.intake.end(until + LAST_ANSWERS_TIMEOUT).await;
        self.end_changes().await;
        if let Some(results) = &self.results
            && timeout_at(until + LAST_ANSWERS_TIMEOUT, results.until_kept())
                .await
                .is_err()
        {
            tracing::warn!(
                "the grace period is over: some answers to requests with an Idempotency-Key were not stored"
            );
        }
    }

    /// Waits for changes of tasks and agents, which continue if their client disconnects. The calls and requests that
    /// they need have ended, so this takes as long as the log needs for the last records.
    async fn end_changes(&self) {
        let changes = async {
            self.registry.until_changed().await;
            if let Some(tasks) = &self.tasks {
                tasks.until_recorded().await;
            }
        };
        if timeout(LAST_ANSWERS_TIMEOUT, changes).await.is_err() {
            tracing::warn!(
                "some changes of tasks and agents were not stored before the bridge stopped"
            );
        }
    }

    /// Drains, ends the tasks that the drain needed, and closes the buses.
    async fn end(&mut self) {
        self.drain().await;
        self.order.rest.cancel();
        if timeout(CLOSE, end(&mut self.rest)).await.is_err() {
            self.rest.shutdown().await;
        }
        self.state.close().await;
        self.buses.close(CLOSE).await;
        self.log.flush();
        tracing::info!("stopped");
    }
}

// === impl Intake ===

impl Intake {
    /// Waits until every task has ended, at most until the deadline, and aborts the rest.
    async fn end(&mut self, deadline: Instant) {
        let Self { bindings, door } = self;
        let ended = tokio::join!(
            timeout_at(deadline, end(bindings)),
            timeout_at(deadline, end(door))
        );
        if ended.0.is_err() {
            tracing::warn!("the grace period is over: messages in progress are abandoned");
            bindings.shutdown().await;
        }
        if ended.1.is_err() {
            tracing::warn!("the grace period is over: open HTTP connections are cut off");
            door.shutdown().await;
        }
    }
}

/// The response headers that web pages may read, without duplicates.
fn exposed() -> Vec<HeaderName> {
    let all = [
        &doors::workflows::EXPOSED[..],
        &doors::a2a::EXPOSED,
        &doors::mcp::EXPOSED,
    ];
    let mut exposed: Vec<HeaderName> = Vec::new();
    for name in all.concat() {
        if !exposed.contains(&name) {
            exposed.push(name);
        }
    }
    exposed
}

/// The connection limits of the HTTP listener.
fn connection_bounds(http: &HttpConfig) -> ConnectionBounds {
    let max_connections = http::affordable(http.max_connections as usize);
    let quarter = max_connections.div_ceil(4);
    let per_client = http.max_connections_per_client;
    ConnectionBounds {
        header_timeout: http.header_timeout.0,
        idle_timeout: http.idle_timeout.0,
        response_timeout: RESPONSE_TIMEOUT,
        max_connections,
        max_per_client: per_client.map_or(quarter, |most| most as usize),
    }
}

/// Logs during a drain how many calls it waits for.
async fn report_calls(calls: &Calls) -> Infallible {
    loop {
        sleep(REPORT_DRAIN).await;
        let pending_calls = calls.pending().len();
        if pending_calls > 0 {
            tracing::info!(
                pending_calls,
                "draining: calls are still waiting for their answers"
            );
        }
    }
}

/// Runs a future until `stop`.
async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    stop.run_until_cancelled(work).await;
}

/// Waits for the first task that ends before the shutdown.
async fn first_to_end(tasks: &mut JoinSet<()>) -> Result<(), JoinError> {
    match tasks.join_next().await {
        Some(ended) => ended,
        None => std::future::pending().await,
    }
}

async fn end(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a part of the bridge ended unexpectedly");
        }
    }
}

/// Reports suppressed log lines, and messages that a client dropped.
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
    format!("{TRANSPORT}{}", bus.name.text())
}

/// Informs calls, readiness and metrics when a bus goes down or comes up.
async fn watch_health(
    id: BusId,
    bus: Bus,
    calls: Arc<Calls>,
    readiness: Arc<Readiness>,
    (log, connected): (LogLimit, LogLimit),
    stop: CancellationToken,
) {
    let transport = bus.name.text();
    let mut health = bus.transport.health();
    let condition = condition_of(&bus);
    // The last known state, and since when the bus is down.
    let (mut before, mut since) = (None::<Health>, None::<Instant>);
    loop {
        let now = health.borrow_and_update().clone();
        since = (!now.is_up()).then(|| since.unwrap_or_else(Instant::now));
        if since.is_none() {
            calls.bus_is_back(id);
        }
        match &now {
            Health::Up => {
                if let Some(suppressed) = connected.allow() {
                    tracing::info!(%transport, suppressed, "connected");
                }
                bus.metrics.up.set(1);
                readiness.set(condition.as_str(), Ok(()));
            }
            Health::Impaired(cause) => {
                if !matches!(before, Some(Health::Impaired(_))) {
                    tracing::warn!(%transport, %cause, "the transport is connected, but a part of it does not work: trying again");
                }
                bus.metrics.up.set(1);
                // Whatever else uses the transport works.
                readiness.degraded(condition.as_str(), cause.to_string());
            }
            Health::Connecting(cause) | Health::Down(cause) => {
                match now {
                    Health::Connecting(_) => tracing::info!(%transport, "{cause}"),
                    _ if before.as_ref().is_some_and(Health::is_up) => {
                        log_down(transport, cause, &log, "down");
                    }
                    _ => log_down(transport, cause, &log, NOT_CONNECTED),
                }
                bus.metrics.up.set(0);
                readiness.set(condition.as_str(), Err(cause.to_string()));
                calls.fail_parts(id, cause);
            }
        }
        tokio::select! {
            changed = health.changed() => if changed.is_err() { return },
            () = fail_calls(id, since, &now, &calls) => {}
            () = remind(transport, &now, &log) => {}
            () = stop.cancelled() => return,
        }
        before = Some(now);
    }
}

/// Fails the calls on a bus that stays down. Never ends.
async fn fail_calls(bus: BusId, since: Option<Instant>, health: &Health, calls: &Calls) {
    if let (Some(since), Health::Connecting(cause) | Health::Down(cause)) = (since, health) {
        tokio::time::sleep_until(since + INTERRUPTION).await;
        calls.give_up_bus(bus, cause);
    }
    std::future::pending().await
}

/// Logs repeatedly while a bus is down. Never ends, even if the bus is up.
async fn remind(transport: &Text, health: &Health, log: &LogLimit) {
    let (Health::Connecting(cause) | Health::Down(cause)) = health else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(REMIND_EVERY).await;
        log_down(transport, cause, log, NOT_CONNECTED);
    }
}

fn log_down(transport: &Text, cause: &Text, log: &LogLimit, state: &str) {
    if let Some(suppressed) = log.allow() {
        tracing::warn!(%transport, %cause, suppressed, "the transport is {state}: reconnecting");
    }
}
