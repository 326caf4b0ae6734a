//! Reads the configuration file again while the bridge runs.
//!
//! ```text
//!  SIGHUP, or the file has changed ──> the whole file is validated ──> invalid: nothing changes
//!                                                                  └─> routes, limits, log levels, agents of workflows
//! ```
//!
//! The file is checked every few seconds: notifications do not work on every file system, and Kubernetes updates a
//! ConfigMap by replacing a symbolic link. A file that is being written is not read until it is the same in two checks;
//! SIGHUP reads it at once. Messages that have been read keep their rules.

mod attached;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use self::attached::{AGENTS, Attached, RESTART, set};
use crate::bus::delivery::Publisher;
use crate::calls::Calls;
use crate::config::{Change, Config, ConfigErrors, Problem, Severity, changes};
use crate::doors::a2a::Settings;
use crate::metrics::{ConfigReload, Metrics};
use crate::readiness::Readiness;
use crate::route::{RouteError, RouteTable};
use crate::rules::Rules;
use crate::workflows;
use crate::workflows::reload::{FileState, SecretWatcher, file_state};

/// The log target of the changes made by a reload.
pub(crate) const TARGET: &str = "a2abus::reload";
/// How often files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of changes, and of problems, that one reload logs.
const MAX_LINES: usize = 50;
/// The name of the configuration in the readiness report.
const CONFIGURATION: &str = "configuration";

/// The parts of the file that a reload replaces.
const ROUTES: [&str; 2] = ["routes", "default_route"];
const LIMITS: &str = "limits";
/// The parts of the A2A interface that a reload replaces, besides the agents.
const A2A: [&str; 7] = [
    "a2a.public_url",
    "a2a.default_agent",
    "a2a.max_parts",
    "a2a.max_text_part",
    "a2a.max_data_part",
    "a2a.max_requests_per_client",
    "a2a.max_tasks_per_context",
];
const LOG: &str = "telemetry.log";
/// The settings that name destinations.
const ROUTING: [&str; 3] = ["routes", "default_route", "agents"];
const WORKFLOWS: [&str; 3] = [
    "workflows.apis",
    "workflows.credentials",
    "workflows.agents",
];

/// Makes a bridge read its configuration file again.
#[derive(Debug, Clone, Default)]
pub struct Reloads(Arc<Notify>);

/// Sets the log levels of the process.
pub struct LogLevels(Box<dyn Fn(&str) + Send + Sync>);

/// Reads the configuration file again, and applies the changes.
#[derive(Debug)]
pub(crate) struct ConfigReloader {
    file: PathBuf,
    /// The file at the last check.
    seen: FileState,
    /// Whether it had changed then, and may still have been incomplete.
    is_fresh: bool,
    /// Reports problems of the file, and changes that are not in use.
    is_degraded: bool,
    /// The configuration in use.
    config: Config,
    publisher: Publisher,
    calls: Arc<Calls>,
    workflows: Option<SecretWatcher>,
    /// The settings of the A2A interface, if there is one.
    a2a: Option<Settings>,
    log: Option<LogLevels>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    requests: Reloads,
}

/// A change that is not in use, and why.
struct PendingChange {
    path: String,
    why: String,
}

/// Why a changed configuration is not used at all.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error("route {0}: {1}")]
    Route(Text, RouteError),
    #[error(transparent)]
    Workflows(#[from] workflows::WorkflowsError),
}

// === impl Reloads ===

impl Reloads {
    /// Requests a reload. Several requests in a short time are one.
    pub fn request(&self) {
        self.0.notify_one();
    }
}

// === impl LogLevels ===

impl LogLevels {
    /// A function that sets the levels from a filter such as `telemetry.log`.
    #[must_use]
    pub fn new(set: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Box::new(set))
    }
}

impl std::fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogLevels").finish_non_exhaustive()
    }
}

// === impl ConfigReloader ===

impl ConfigReloader {
    /// The reloader of a bridge with this configuration; `None` when it was not read from a file.
    pub(crate) fn new(
        config: &Config,
        publisher: &Publisher,
        calls: &Arc<Calls>,
        workflows: Option<SecretWatcher>,
        metrics: &Arc<Metrics>,
        readiness: &Arc<Readiness>,
    ) -> Option<Self> {
        Some(Self {
            file: config.file.clone()?,
            // The first check finds changes since the file was read.
            seen: None,
            is_fresh: false,
            is_degraded: false,
            config: config.clone(),
            publisher: publisher.clone(),
            calls: Arc::clone(calls),
            workflows,
            a2a: None,
            log: None,
            metrics: Arc::clone(metrics),
            readiness: Arc::clone(readiness),
            requests: Reloads::default(),
        })
    }

    /// The handle to request a reload.
    pub(crate) fn reloads(&self) -> &Reloads {
        &self.requests
    }

    /// Applies changes to the A2A interface.
    pub(crate) fn with_a2a(mut self, settings: Option<&Settings>) -> Self {
        self.a2a = settings.cloned();
        self
    }

    /// Applies changes to the log levels.
    pub(crate) fn set_log_levels(&mut self, levels: LogLevels) {
        self.log = Some(levels);
    }

    /// Checks the files until it is dropped.
    pub(crate) async fn run(mut self) {
        let requests = self.requests.clone();
        let mut every = interval(CHECK_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = requests.0.notified() => true,
                _ = every.tick() => false,
            };
            let looked = tokio::task::spawn_blocking(move || {
                self.check_file(is_asked);
                self
            });
            match looked.await {
                Ok(reload) => self = reload,
                Err(error) => {
                    tracing::error!(%error, "changes of the configuration are no longer detected");
                    return;
                }
            }
        }
    }

    /// Applies the changes of the file, if there are any. Blocks while it reads small files.
    fn check_file(&mut self, is_asked: bool) {
        // The check comes before reading, so the next check finds a change in between.
        let now = file_state(&self.file);
        let has_changed = std::mem::replace(&mut self.seen, now) != now;
        let is_due = is_asked || (self.is_fresh && !has_changed);
        self.is_fresh = !is_asked && has_changed;
        if is_due {
            return self.read(is_asked);
        }
        if let Some(workflows) = &mut self.workflows {
            workflows.check_files(None);
        }
    }

    fn read(&mut self, is_asked: bool) {
        let loaded = Config::load(&self.file, std::env::vars_os())
            .map_err(Refusal::from)
            .and_then(|next| Ok((self.take(&next)?, next.warnings)));
        match loaded {
            // A file without changes is not reported, unless it replaces an invalid one.
            Ok(((0, later), _)) if later.is_empty() && !is_asked && !self.is_degraded => {}
            Ok(((applied, later), warnings)) => {
                log_warnings(&self.file.display().to_string(), &warnings);
                self.is_degraded = !later.is_empty();
                self.report(applied, &later);
            }
            Err(refusal) => {
                self.is_degraded = true;
                self.refuse(refusal);
            }
        }
    }

    /// Applies the changes that can be applied. Returns their number, and the other changes.
    fn take(&mut self, next: &Config) -> Result<(usize, Vec<PendingChange>), Refusal> {
        let changes = changes(&self.config.document, &next.document);
        let running = self.config.clone();
        let attached = Attached::new(&running, next);
        let mut config = self.with_changes(next, &attached);
        let mut rules = rules_of(&config)?;
        let unreachable = attached
            .routing_obstacle()
            .or_else(|| self.unreachable(&rules.routes));
        if unreachable.is_some() {
            config.routes.clone_from(&self.config.routes);
            config.default_route.clone_from(&self.config.default_route);
            config.agents.clone_from(&self.config.agents);
            let default_agent = self.config.a2a.default_agent.clone();
            config.a2a.default_agent = default_agent;
            rules = rules_of(&config)?;
        }
        let has_agents = self.workflows.is_some() && changes.iter().any(|it| is_in(it, &WORKFLOWS));
        if has_agents {
            workflows::reload::check(&next.workflows)?;
        }
        // Nothing can fail from here on.
        self.publisher.outbound().replace(&rules);
        if changes.iter().any(|change| is_in(change, &ROUTING)) {
            self.publisher.forget_unheld();
        }
        if let Some(log) = &self.log
            && changes.iter().any(|change| change.is_in(LOG))
        {
            (log.0)(next.telemetry.log.0.as_str());
        }
        if let Some(a2a) = &self.a2a {
            a2a.replace(&config);
        }
        if let Some(workflows) = &mut self.workflows {
            workflows.check_files(has_agents.then_some(&next.workflows));
        }
        let (later, applied): (Vec<_>, Vec<_>) = changes
            .iter()
            .map(|change| {
                let obstacle = self.obstacle(change, &attached, unreachable.as_deref());
                (change, obstacle)
            })
            .partition(|(_, obstacle)| obstacle.is_some());
        for (change, _) in applied.iter().take(MAX_LINES) {
            log_change(change);
        }
        self.settle(config, next, &attached, unreachable.is_none());
        let later = later.into_iter().filter_map(|(change, why)| {
            let path = change.path.to_string();
            Some(PendingChange { path, why: why? })
        });
        Ok((applied.len(), later.collect()))
    }

    /// The configuration in use, with all changes that can be applied while the process runs.
    fn with_changes(&self, next: &Config, attached: &Attached<'_>) -> Config {
        let mut config = self.config.clone();
        config.limits = next.limits.clone();
        config.routes.clone_from(&next.routes);
        config.default_route.clone_from(&next.default_route);
        config.agents = attached.agents();
        if self.a2a.is_some() {
            let push = std::mem::take(&mut config.a2a.push_notifications);
            config.a2a.clone_from(&next.a2a);
            config.a2a.push_notifications = push;
        }
        config
    }

    /// Stores the configuration in use; its document contains the values in use.
    fn settle(
        &mut self,
        mut config: Config,
        next: &Config,
        attached: &Attached<'_>,
        has_routes: bool,
    ) {
        let routes = ROUTES.into_iter().filter(|_| has_routes);
        let log = self.log.as_ref().map(|_| LOG);
        let agents = WORKFLOWS.into_iter().filter(|_| self.workflows.is_some());
        let a2a = A2A.into_iter().filter(|part| self.shows(part, has_routes));
        let cards = Some(AGENTS).filter(|part| self.shows(part, has_routes));
        let parts = routes.chain([LIMITS]).chain(log).chain(agents);
        for part in parts.chain(a2a).chain(cards) {
            adopt(&mut config.document, &next.document, part);
        }
        if self.shows(AGENTS, has_routes) {
            attached.restore(&mut config.document);
        }
        self.config = config;
    }

    /// Whether a change to this part of the A2A interface is in use. Agents are applied together with their routes.
    fn shows(&self, part: &str, has_routes: bool) -> bool {
        let needs_routes = part == AGENTS || part == "a2a.default_agent";
        self.a2a.is_some() && (has_routes || !needs_routes)
    }

    /// Why a change is not in use; `None` when it is.
    fn obstacle(
        &self,
        change: &Change,
        attached: &Attached<'_>,
        unreachable: Option<&str>,
    ) -> Option<String> {
        if is_in(change, &ROUTES) {
            return unreachable.map(str::to_owned);
        }
        if attached.holds(change) {
            return Some(unreachable.unwrap_or(RESTART).to_owned());
        }
        let shown = A2A
            .into_iter()
            .chain([AGENTS])
            .find(|part| change.is_in(part));
        if let Some(part) = shown {
            return match (unreachable, self.shows(part, unreachable.is_none())) {
                (_, true) => None,
                (Some(why), false) if self.a2a.is_some() => Some(why.to_owned()),
                (None, false) if part == AGENTS => {
                    Some(format!("its card {RESTART}; its route is in use"))
                }
                (_, false) => Some(RESTART.to_owned()),
            };
        }
        if change.is_in(LOG) && self.log.is_none() {
            return Some("A2ABUS_LOG sets the log levels of this process".to_owned());
        }
        let has_workflows = self.workflows.is_some();
        let is_used = is_in(change, &[LIMITS, LOG]) || has_workflows && is_in(change, &WORKFLOWS);
        (!is_used).then(|| RESTART.to_owned())
    }

    /// Why these routes need a restart, if they do: buses and their reply readers are only opened when the process
    /// starts.
    fn unreachable(&self, routes: &RouteTable) -> Option<String> {
        let buses = self.publisher.outbound().buses();
        for route in routes.routes().iter().chain(routes.default_route()) {
            let name = route.name().text();
            for (index, to) in route.destinations().iter().enumerate() {
                let transport = to.transport().text();
                let Some(bus) = buses.find(to.transport()) else {
                    return Some(format!(
                        "{RESTART}: route {name} leads to the new transport {transport}"
                    ));
                };
                let is_called = self.config.calls.enabled && index == route.answering();
                if is_called
                    && !self
                        .calls
                        .channels()
                        .iter()
                        .any(|channel| channel.bus == bus)
                {
                    return Some(format!(
                        "{RESTART}: route {name} is the first to {transport}, and answers from there are not read yet"
                    ));
                }
            }
        }
        None
    }

    fn report(&self, applied: usize, later: &[PendingChange]) {
        for PendingChange { path, why } in later.iter().take(MAX_LINES) {
            tracing::warn!(target: TARGET, setting = path, why, "a changed setting is not in use");
        }
        let file = self.file.display();
        tracing::info!(
            target: TARGET,
            %file,
            applied,
            not_in_use = later.len(),
            "the configuration was read again"
        );
        let outcome = match (applied, later) {
            (0, []) => ConfigReload::Unchanged,
            (_, []) => ConfigReload::Applied,
            _ => ConfigReload::RestartNeeded,
        };
        if later.is_empty() {
            self.readiness.restored(CONFIGURATION);
        } else {
            let settings = later.iter().take(MAX_LINES);
            let settings: Vec<_> = settings
                .map(|PendingChange { path, why }| format!("{path}: {why}"))
                .collect();
            self.readiness.degraded(CONFIGURATION, settings.join("; "));
        }
        // Last, so that whoever sees the count finds the rest too.
        self.metrics.config_reload(outcome);
    }

    fn refuse(&mut self, refusal: Refusal) {
        let (errors, warnings) = refusal.lines();
        for warning in warnings.iter().take(MAX_LINES) {
            tracing::warn!("{warning}");
        }
        for error in errors.iter().take(MAX_LINES) {
            tracing::error!("{error}");
        }
        let first = errors.first().map(String::as_str).unwrap_or_default();
        let cause = format!("the changed file is invalid and not in use: {first}");
        self.readiness.degraded(CONFIGURATION, cause);
        let file = self.file.display();
        tracing::error!(%file, "the changed configuration is invalid: nothing has changed");
        if let Some(workflows) = &mut self.workflows {
            workflows.refused();
        }
        // Last, so that whoever sees the count finds the rest too.
        self.metrics.config_reload(ConfigReload::Refused);
    }
}

// === impl Refusal ===

impl Refusal {
    /// The errors and the warnings, each in one line.
    fn lines(self) -> (Vec<String>, Vec<String>) {
        let Self::Config(problems) = self else {
            return (vec![format!("{:#}", anyhow::Error::new(self))], Vec::new());
        };
        let all = problems.problems().iter();
        let (errors, warnings): (Vec<_>, Vec<_>) =
            all.partition(|problem| problem.severity == Severity::Error);
        let line = |problem: &Problem| problem.in_file(problems.file()).to_string();
        let lines = |some: Vec<&Problem>| some.into_iter().map(line).collect();
        (lines(errors), lines(warnings))
    }
}

/// Logs what is valid in a configuration, but probably a mistake.
pub(crate) fn log_warnings(file: &str, warnings: &[Problem]) {
    for warning in warnings.iter().take(MAX_LINES) {
        tracing::warn!("{}", warning.in_file(file));
    }
}

fn rules_of(config: &Config) -> Result<Rules, Refusal> {
    Rules::new(config).map_err(|(route, error)| Refusal::Route(route, error))
}

fn is_in(change: &Change, parts: &[&str]) -> bool {
    parts.iter().any(|part| change.is_in(part))
}

fn log_change(change: &Change) {
    let (setting, before, after) = (&change.path, change.before(), change.after());
    tracing::info!(target: TARGET, %setting, %before, %after, "a setting has changed");
}

/// Replaces one part of a document, such as `telemetry.log`, by the same part of another.
fn adopt(document: &mut Value, next: &Value, part: &str) {
    let value = next.pointer(&format!("/{}", part.replace('.', "/")));
    let (around, key) = match part.split_once('.') {
        None => (Some(document), part),
        Some((section, key)) => {
            let sections = document.as_object_mut();
            let section = sections.map(|all| all.entry(section).or_insert_with(|| json!({})));
            (section, key)
        }
    };
    let Some(members) = around.and_then(Value::as_object_mut) else {
        return;
    };
    set(members, key, value);
}
