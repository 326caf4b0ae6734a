//! Builds everything from the configuration; starts and drains it in order.
//!
//! ```text
//! build:  transports ─> routes ─> calls ─> executor ─> bindings (nothing has to be reachable yet)
//! run:    admin listener ─> HTTP listener ─> reply readers, bindings      (each retries until its bus answers)
//! drain:  not ready ─> no new calls ─> calls finish ─> bindings finish ─> buses flush and close
//! ```

mod bindings;
mod error;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use a2abus_executor::{Client, ClientOptions, Environment};
use a2abus_models::e2a::Trust;
use a2abus_plugin::Text;
use a2abus_transports::{AnyTransport, Revealed, Subscription};
use arc_swap::ArcSwap;
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::bus::delivery::{Destinations, Publisher};
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::Outbound;
use crate::bus::{Bus, BusId, Buses};
use crate::calls::callid::Replica;
use crate::calls::cancel::{Cancel, Canceller};
use crate::calls::exchange::Exchanges;
use crate::calls::reply::ReplyChannels;
use crate::calls::reply_token::ReplyTokens;
use crate::calls::{CallLimits, Calls};
use crate::config::{
    BindingConfig, Config, HttpConfig, Name, PushConfig, StateLog, TransportConfig,
};
use crate::doors::a2a::{AllowedUrls, Deliveries, Limits, LiveSettings, PushSettings, Settings};
use crate::doors::{DoorSettings, PublicUrl};
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;
use crate::names::DOOR;
use crate::readiness::Readiness;
use crate::registry::Registry;
use crate::reload::{ConfigReloader, LogLevels, Reloads};
use crate::restart::chain;
use crate::results::Results;
use crate::route::{Destination, RouteTable};
use crate::rules::{CurrentRules, Rules};
use crate::state::Logs;
use crate::state::seal::SealKeys;
use crate::tasks::Tasks;
use crate::tasks::push::Webhooks;
use crate::workflows::Workflows;
use crate::workflows::reload::{SecretFileStates, SecretWatcher};
use crate::workflows::shared::SharedStore;
use bindings::Parts;

pub(crate) use bindings::BindingService;
pub use error::BridgeError;

/// A bridge, ready to run.
#[derive(Debug)]
pub struct Bridge {
    pub(crate) buses: Buses,
    pub(crate) calls: Arc<Calls>,
    pub(crate) exchanges: Arc<Exchanges>,
    pub(crate) cancels: mpsc::Receiver<Cancel>,
    pub(crate) bindings: Vec<(BindingService, Subscription)>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: LogLimits,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) door: Option<TcpListener>,
    pub(crate) admin: Option<TcpListener>,
    pub(crate) http: HttpConfig,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) door_settings: DoorSettings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) a2a: Option<Settings>,
    pub(crate) deliveries: Option<Deliveries>,
    /// The stored answers of the HTTP listener, if there is one.
    pub(crate) results: Option<Arc<Results>>,
    /// Whether it takes over calls of replicas that have stopped.
    pub(crate) takes_over: bool,
    pub(crate) workflows: Option<Workflows>,
    pub(crate) reload: Option<ConfigReloader>,
    pub(crate) state: Arc<Logs>,
}

// === impl Bridge ===

impl Bridge {
    /// Builds everything and opens the listeners. No bus has to be reachable.
    ///
    /// # Errors
    /// When a transport's configuration cannot be used, or a listener cannot be opened.
    pub async fn build(config: Config) -> Result<Self, BridgeError> {
        let mut transports = BTreeMap::new();
        for (name, transport) in &config.transports {
            let connected = transport
                .connect()
                .await
                .map_err(|source| BridgeError::Transport {
                    name: name.text().clone(),
                    source,
                })?;
            let certificates = transport.tls_findings();
            for problem in certificates.invalid.iter().chain(&certificates.expiring) {
                tracing::warn!(transport = %name, "{problem}");
            }
            transports.insert(name.clone(), connected);
        }
        Self::build_on(config, transports).await
    }

    /// As [`Bridge::build`], on existing transports: for tests, and for programs that embed the bridge.
    ///
    /// # Errors
    /// As [`Bridge::build`].
    pub async fn build_on(
        config: Config,
        transports: BTreeMap<Name, AnyTransport>,
    ) -> Result<Self, BridgeError> {
        Self::build_in(config, transports, None).await
    }

    /// As [`Bridge::build_on`], with another clock, network or store for workflows.
    ///
    /// # Errors
    /// As [`Bridge::build`].
    pub async fn build_in(
        config: Config,
        transports: BTreeMap<Name, AnyTransport>,
        world: Option<Environment>,
    ) -> Result<Self, BridgeError> {
        let metrics = metrics(&config)?;
        let (outbound, called) = outbound(&config, transports, &metrics)?;
        let readiness = Arc::new(Readiness::new());
        let log = LogLimits::default();
        let publisher = publisher(&outbound, &readiness, &log);
        let (calls, cancels) = calls(&config, &called, &publisher, &metrics, &log)?;
        let exchanges = Arc::new(Exchanges::new(outbound.clone(), publisher.clone(), &log));
        let state = Arc::new(Logs::new(&config, outbound.buses(), &readiness, &metrics));
        let watched = (&metrics, &log);
        let registry = Registry::open(&config, &state, &outbound, &calls, watched);
        let registry = Box::pin(registry).await?;
        let parts = Parts {
            config: &config,
            registry: &registry,
            outbound: &outbound,
            publisher: publisher.clone(),
            exchanges: &exchanges,
            calls: &calls,
            metrics: &metrics,
            readiness: &readiness,
            log: &log,
        };
        let (workflows, watch) = workflows(&config, world, &state, &metrics).await?;
        let results = results(&config, &state, &log).await?;
        let bindings = parts.bindings(workflows.as_ref(), results.as_ref())?;
        let reload = ConfigReloader::new(&config, &publisher, &calls, watch, &metrics, &readiness);
        let door = listen("http.listen", config.http.enabled, config.http.listen.0).await?;
        let admin = listen("admin.listen", config.admin.enabled, config.admin.listen.0).await?;
        let url = PublicUrl::new(&config.a2a);
        let (a2a, deliveries) = Box::pin(a2a(&config, (&registry, &url), &state, watched)).await?;
        let reload = reload.map(|reload| reload.with_a2a(a2a.as_ref()));
        Ok(Self {
            buses: outbound.buses().clone(),
            calls,
            exchanges,
            cancels,
            bindings,
            metrics,
            log,
            readiness,
            door,
            admin,
            registry,
            door_settings: door_settings(&config, url)?,
            http: config.http,
            admin_hosts: config.admin.allowed_hosts,
            a2a,
            deliveries,
            results,
            takes_over: true,
            workflows,
            reload,
            state,
        })
    }

    /// A handle that makes this bridge read its configuration file again; `None` when it was not read from a file.
    #[must_use]
    pub fn reloads(&self) -> Option<Reloads> {
        self.reload.as_ref().map(|reload| reload.reloads().clone())
    }

    /// Applies changes of `telemetry.log`. Without this, a changed level is reported as not in use.
    #[must_use]
    pub fn with_log_levels(mut self, levels: LogLevels) -> Self {
        if let Some(reload) = &mut self.reload {
            reload.set_log_levels(levels);
        }
        self
    }

    /// The same bridge, only for calls: it reads no bindings, stores no tasks, takes over no calls of other replicas,
    /// and calls no webhooks.
    #[must_use]
    pub fn calls_only(mut self) -> Self {
        self.bindings.clear();
        (self.a2a, self.deliveries) = (None, None);
        self.takes_over = false;
        self.calls.channels().read_every_partition();
        self
    }

    /// The address of the HTTP listener.
    #[must_use]
    pub fn door_address(&self) -> Option<SocketAddr> {
        self.door
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// The address of the admin listener.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// Makes calls without HTTP.
    #[must_use]
    pub fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Executes workflows without HTTP, if they are enabled.
    #[must_use]
    pub fn workflows(&self) -> Option<&Workflows> {
        self.workflows.as_ref()
    }

    /// The logs of the state. Start views of them before the bridge runs, so that it is only ready once they have
    /// caught up.
    #[must_use]
    pub fn state(&self) -> &Arc<Logs> {
        &self.state
    }

    /// The readiness.
    #[must_use]
    pub fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

/// The routes, their sender, and the buses that calls go to.
fn outbound(
    config: &Config,
    transports: BTreeMap<Name, AnyTransport>,
    metrics: &Metrics,
) -> Result<(Outbound, Vec<BusId>), BridgeError> {
    let list = transports.into_iter().map(|(name, transport)| {
        let metrics = metrics.transport(name.text());
        Bus {
            name,
            transport,
            metrics,
        }
    });
    let buses = Buses::new(list.collect());
    let rules = Rules::new(config)
        .map_err(|(route, error)| BridgeError::Config(format!("route {route}: {error}")))?;
    let called = if config.calls.enabled {
        called_buses(config, &buses, &rules.routes)
    } else {
        Vec::new()
    };
    let rules = Arc::new(CurrentRules::new(rules));
    Ok((Outbound::new(buses, rules), called))
}

/// The calls, and the cancels that they send.
fn calls(
    config: &Config,
    called: &[BusId],
    publisher: &Publisher,
    metrics: &Arc<Metrics>,
    log: &LogLimits,
) -> Result<(Arc<Calls>, mpsc::Receiver<Cancel>), BridgeError> {
    let replica = match config.calls.replica {
        Some(number) => Replica(number),
        None => Replica::random().map_err(BridgeError::Random)?,
    };
    let partitions = u16::try_from(config.calls.reply_partitions).unwrap_or(u16::MAX);
    let (buses, topic) = (publisher.outbound().buses(), &config.calls.reply_topic.0);
    let mut channels = ReplyChannels::new(buses, called, topic, partitions, replica);
    let answers = core_answers(config, buses);
    for bus in called {
        let of_bus = answers.iter().filter(|(of, _)| of == bus);
        let topics = of_bus.flat_map(|(_, binding)| {
            let trust = Trust::from(&binding.hint());
            binding.topics.iter().map(move |it| (it.0.clone(), trust))
        });
        channels.read_also(*bus, topics.collect());
    }
    let (canceller, cancels) = Canceller::channel(metrics.cancels_dropped.clone(), log);
    let source = Text::from(format!("/a2abus/{}/{DOOR}", config.instance.text()));
    let tokens = ReplyTokens::random(config.calls.reply_token).map_err(BridgeError::Random)?;
    let calls = Calls::new(
        publisher.clone(),
        (channels, tokens),
        call_limits(config),
        source,
        canceller,
        Arc::clone(metrics),
        log,
    );
    Ok((Arc::new(calls), cancels))
}

/// The executor, if workflows are enabled, and the watcher of its files.
async fn workflows(
    config: &Config,
    world: Option<Environment>,
    state: &Logs,
    metrics: &Arc<Metrics>,
) -> Result<(Option<Workflows>, Option<SecretWatcher>), BridgeError> {
    if !config.workflows.enabled {
        return Ok((None, None));
    }
    let seen = SecretFileStates::of(&config.workflows);
    let metrics = Arc::clone(metrics);
    let workflows = match world {
        None if config.keeps_executions() => {
            let is_alone = config.state.place() == StateLog::Embedded;
            let store = Arc::new(SharedStore::open(state, is_alone).await?);
            Workflows::build_on(store, &config.workflows, metrics)?
        }
        None => Workflows::build(&config.workflows, metrics)?,
        Some(world) => Workflows::build_in(world, &config.workflows, metrics)?,
    };
    let watch = seen.watch_for(&workflows, &config.workflows);
    Ok((Some(workflows), Some(watch)))
}

fn door_settings(config: &Config, public_url: PublicUrl) -> Result<DoorSettings, BridgeError> {
    let patterns = config.http.pass_headers.iter().map(|pattern| &pattern.0);
    let passed = PassedHeaders::new(patterns)
        .map_err(|error| BridgeError::Config(format!("http.pass_headers: {error}")))?;
    Ok(DoorSettings {
        passed,
        public_url,
        mcp: config.mcp.clone(),
    })
}

/// The bindings whose topics every replica reads whole, each with its bus.
fn core_answers<'a>(config: &'a Config, buses: &Buses) -> Vec<(BusId, &'a BindingConfig)> {
    let found = config.bindings.iter().filter_map(|binding| {
        let transport = config.transports.get(&binding.transport);
        let kind = transport.map(TransportConfig::transport_type);
        let is_read = binding.reads_core_answers(kind);
        Some((buses.find(&binding.transport).filter(|_| is_read)?, binding))
    });
    found.collect()
}

/// The buses that a call can go to, by a route or to an announced agent, and those where every replica reads answers.
/// An answer may come back there.
fn called_buses(config: &Config, buses: &Buses, routes: &RouteTable) -> Vec<BusId> {
    let all = routes.routes().iter().chain(routes.default_route());
    let routed = all.filter_map(|route| route.destinations().get(route.answering()));
    let routed = routed.map(Destination::transport);
    let announced = config.registry.enabled_destinations().iter();
    let announced = announced.map(|place| &place.to.transport);
    let mut called: Vec<BusId> = Vec::new();
    for bus in routed.chain(announced).filter_map(|name| buses.find(name)) {
        if !called.contains(&bus) {
            called.push(bus);
        }
    }
    if !called.is_empty() {
        for (bus, _) in core_answers(config, buses) {
            if !called.contains(&bus) {
                called.push(bus);
            }
        }
    }
    called
}

fn call_limits(config: &Config) -> CallLimits {
    let calls = &config.calls;
    // One agent or one caller may use a quarter.
    let quarter = calls.max_pending.div_ceil(4);
    CallLimits {
        timeout: calls.timeout.0,
        max_timeout: calls.max_timeout.0,
        stream_timeout: calls.stream_timeout.0,
        question_timeout: calls.question_timeout.0,
        max_pending: calls.max_pending as usize,
        max_pending_per_agent: calls.max_pending_per_agent.unwrap_or(quarter) as usize,
        budget_bytes: usize::try_from(calls.budget_bytes.0.as_u64()).unwrap_or(usize::MAX),
        max_pending_per_caller: calls.max_pending_per_caller.unwrap_or(quarter) as usize,
        max_parts_buffered: calls.max_parts_buffered as usize,
    }
}

/// The A2A interface, if there is an agent for it.
async fn a2a(
    config: &Config,
    (registry, public_url): (&Arc<Registry>, &PublicUrl),
    state: &Logs,
    (metrics, log): (&Arc<Metrics>, &LogLimits),
) -> Result<(Option<Settings>, Option<Deliveries>), BridgeError> {
    if !config.keeps_tasks() {
        return Ok((None, None));
    }
    let tasks = Tasks::open(state, log, metrics).await?;
    // Only HTTP clients have tasks.
    if config.http.enabled && config.state.place() == StateLog::Memory {
        tracing::warn!(
            "tasks are kept in memory: they do not survive a restart, and other replicas do not see them; set state.log"
        );
    }
    let deliveries = deliveries(config, state, &tasks, metrics, log).await?;
    let settings = Settings {
        registry: Arc::clone(registry),
        push: deliveries.as_ref().map(|it| Arc::clone(&it.push)),
        tasks,
        instance: config.instance.text().clone(),
        public_url: public_url.clone(),
        live: Arc::new(ArcSwap::from_pointee(LiveSettings::new(&config.a2a))),
        at_a_time: Limits::new(&config.a2a),
    };
    Ok((Some(settings), deliveries))
}

/// The sender of webhooks of tasks, if clients may set them.
async fn deliveries(
    config: &Config,
    state: &Logs,
    tasks: &Arc<Tasks>,
    metrics: &Arc<Metrics>,
    log: &LogLimits,
) -> Result<Option<Deliveries>, BridgeError> {
    if !config.keeps_webhooks() {
        return Ok(None);
    }
    let config = &config.a2a.push_notifications;
    let keys = config.keys.iter().enumerate().map(|(index, key)| {
        PushConfig::reveal_key(key).map_err(|error| {
            let error = chain(&error);
            BridgeError::Config(format!("a2a.push_notifications.keys[{index}]: {error}"))
        })
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let keys = SealKeys::new(keys.iter().map(Revealed::as_str));
    let push = PushSettings {
        webhooks: Webhooks::open(state, keys).await?,
        allowed: AllowedUrls::new(config),
        max: config.max_per_task as usize,
    };
    let client = Client::new(&ClientOptions::default()).map_err(BridgeError::Client)?;
    Ok(Some(Deliveries::new(
        (Arc::new(push), Arc::clone(tasks)),
        Arc::new(client),
        metrics,
        log,
        (config.timeout.0, config.give_up_after.0),
    )))
}

fn metrics(config: &Config) -> Result<Arc<Metrics>, BridgeError> {
    let metrics = Metrics::new().map_err(BridgeError::Metrics)?;
    metrics
        .agents()
        .set_most(config.telemetry.max_agents as usize);
    Ok(Arc::new(metrics))
}

/// The publisher, which knows the failing destinations.
fn publisher(outbound: &Outbound, readiness: &Arc<Readiness>, log: &LogLimits) -> Publisher {
    let destinations = Destinations::new(outbound.buses().clone(), Arc::clone(readiness), log);
    Publisher::new(outbound.clone(), Arc::new(destinations))
}

/// The stored answers to requests with a key and of attached agents, if anything needs them.
async fn results(
    config: &Config,
    state: &Logs,
    log: &LogLimits,
) -> Result<Option<Arc<Results>>, BridgeError> {
    if !config.keeps_results() {
        return Ok(None);
    }
    if config.keeps_state_alone() {
        tracing::info!(
            "answers to requests with an Idempotency-Key are kept in memory: after a restart, and at another replica, a repeated request is executed again; set state.log"
        );
    }
    Ok(Some(Results::open(state, log).await?))
}

/// How many unsent bytes of a connection the kernel accepts.
#[cfg(target_os = "linux")]
const MAX_UNSENT: u32 = 128 << 10;

async fn listen(
    key: &'static str,
    enabled: bool,
    address: SocketAddr,
) -> Result<Option<TcpListener>, BridgeError> {
    if !enabled {
        return Ok(None);
    }
    let failed = |error| BridgeError::Listen {
        key,
        address,
        error,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    // The connections inherit it. The kernel's own limit is megabytes, so a client that reads slowly, but fast enough,
    // would seem to read nothing for minutes.
    #[cfg(target_os = "linux")]
    SockRef::from(&listener)
        .set_tcp_notsent_lowat(MAX_UNSENT)
        .map_err(failed)?;
    Ok(Some(listener))
}
