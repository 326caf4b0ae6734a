//! Reads the configuration file again while the bridge runs.
//!
//! ```text
//!  SIGHUP, or the file has changed ──> the whole file is validated ──> invalid: nothing changes
//!                                                                  └─> the parts of `parts.rs` are replaced
//! ```
//!
//! The other settings need a restart. Parts that are not valid together with them wait for it too.
//!
//! The file is checked every few seconds: notifications do not work on every file system, and Kubernetes updates a
//! ConfigMap by replacing a symbolic link. A file that is being written is not read until it is the same in two checks;
//! SIGHUP reads it at once. Messages that have been read keep their rules.

mod attached;
mod parts;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use self::attached::{AGENTS, Attached, RESTART};
use self::parts::{A2A, Group, Held, adopt, hold, mixed};
use crate::bus::delivery::Publisher;
use crate::calls::Calls;
use crate::config::{
    BindingConfig, Change, Claim, Config, ConfigErrors, Problem, Role, Severity, changes,
};
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
/// The names of the configuration, and of the secrets of workflows, in the readiness report.
const CONFIGURATION: &str = "configuration";
const SECRETS: &str = "secrets of workflows";

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
    /// The document to compare the next file with.
    reported: Value,
    /// The warnings of the last valid file. Only new ones are logged.
    warned: Vec<Problem>,
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
#[derive(PartialEq, Eq)]
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
            reported: config.document.clone(),
            warned: config.warnings.clone(),
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
                self.report_secrets();
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

    fn report_secrets(&self) {
        match self.workflows.as_ref().and_then(SecretWatcher::missing) {
            Some(cause) => self.readiness.degraded(SECRETS, cause),
            None => self.readiness.restored(SECRETS),
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
                self.warn(warnings);
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
        let changes = changes(&self.reported, &next.document);
        let running = self.config.clone();
        let attached = Attached::new(&running, next);
        let (config, held) = self.merged(next, &attached)?;
        let rules = rules_of(&config)?;
        // Without an A2A interface, changes of agents stay reported after their routes are in use.
        let in_use = crate::config::changes(&running.document, &config.document);
        let has_changed = |group| {
            let mut in_use = in_use.iter();
            in_use.any(|change| Group::of(change) == Some(group))
        };
        let has_agents = has_changed(Group::Workflows) && !held.contains_key(&Group::Workflows);
        if has_agents {
            workflows::reload::check(&config.workflows)?;
        }
        // Nothing fails from here on. If a secret changes at this moment, `check_files` reports it, and tries again when
        // it changes once more.
        self.publisher.outbound().replace(&rules);
        if has_changed(Group::Routing) {
            self.publisher.forget_unheld();
        }
        if let Some(log) = &self.log
            && has_changed(Group::Log)
        {
            (log.0)(config.telemetry.log.0.as_str());
        }
        if let Some(a2a) = &self.a2a {
            a2a.replace(&config);
        }
        if let Some(workflows) = &mut self.workflows {
            workflows.check_files(has_agents.then_some(&config.workflows));
        }
        let (later, applied): (Vec<_>, Vec<_>) = changes
            .iter()
            .map(|change| (change, self.obstacle(change, &attached, &held)))
            .partition(|(_, pending)| pending.is_some());
        for (change, _) in applied.iter().take(MAX_LINES) {
            log_change(change);
        }
        self.settle(config);
        let mut later: Vec<_> = later.into_iter().filter_map(|(_, why)| why).collect();
        // Report several changes of one card once.
        later.dedup();
        Ok((applied.len(), later))
    }

    /// The configuration after the reload, and which of its parts keep their running values. It mixes two valid files, so
    /// it is validated too.
    fn merged(&self, next: &Config, attached: &Attached<'_>) -> Result<(Config, Held), Refusal> {
        let mut held = Held::new();
        if self.workflows.is_none() {
            hold(&mut held, &[Group::Workflows], RESTART);
        }
        if self.log.is_none() {
            let why = "A2ABUS_LOG sets the log levels of this process";
            hold(&mut held, &[Group::Log], why);
        }
        let routes = rules_of(next)?.routes;
        let obstacle = attached.routing_obstacle();
        if let Some(why) = obstacle.or_else(|| self.unreachable(&routes)) {
            hold(&mut held, &[Group::Routing], &why);
        }
        hold_identities(&mut held, &self.config, next);
        let document = |held: &Held| {
            let mut document = mixed(&self.config.document, &next.document, held);
            attached.restore(&mut document);
            document
        };
        // Limits come last: they rarely depend on a setting that waits.
        let linked: [&[Group]; 2] = [
            &[Group::Routing, Group::A2a, Group::Workflows],
            &[Group::Limits],
        ];
        for groups in linked {
            match Config::of_document(document(&held)) {
                Ok(config) => return Ok((config, held)),
                Err(problems) => {
                    let error = problems.first_error();
                    let why = format!("{RESTART}: with the settings in use, {error}");
                    hold(&mut held, groups, &why);
                }
            }
        }
        // Only log levels are replaced now, so this cannot fail.
        Ok((Config::of_document(document(&held))?, held))
    }

    /// Stores the configuration in use. Without an A2A interface, changes of its parts are reported until the restart.
    fn settle(&mut self, config: Config) {
        let before = std::mem::replace(&mut self.reported, config.document.clone());
        if self.a2a.is_none() {
            adopt(&mut self.reported, &before, AGENTS);
            adopt(&mut self.reported, &before, A2A);
        }
        self.config = config;
    }

    /// Why a change is not in use; `None` when it is.
    fn obstacle(
        &self,
        change: &Change,
        attached: &Attached<'_>,
        held: &Held,
    ) -> Option<PendingChange> {
        let pending = |why: &str| {
            let (path, why) = (change.path.to_string(), why.to_owned());
            Some(PendingChange { path, why })
        };
        let Some(group) = Group::of(change) else {
            return pending(RESTART);
        };
        if let Some(why) = held.get(&group) {
            return pending(why);
        }
        if attached.holds(change) || self.a2a.is_none() && change.is_in(A2A) {
            return pending(RESTART);
        }
        let lacks_card = self.a2a.is_none() && change.is_in(AGENTS);
        lacks_card.then(|| {
            let agent = change.member_in(AGENTS).map(|(agent, _)| agent);
            PendingChange {
                path: format!("{AGENTS}.{} (its card)", agent.unwrap_or_default()),
                why: format!("{RESTART}; its routes are already in use"),
            }
        })
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

    /// Logs the warnings that the file before did not have, wherever they are now in the file.
    fn warn(&mut self, warnings: Vec<Problem>) {
        let is_new = |warning: &&Problem| {
            let mut before = self.warned.iter();
            before.all(|it| (&it.path, &it.message) != (&warning.path, &warning.message))
        };
        let new: Vec<Problem> = warnings.iter().filter(is_new).cloned().collect();
        log_warnings(&self.file.display().to_string(), &new);
        self.warned = warnings;
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

/// Holds what would let writers act for a new agent, because until the restart the bridge reads as before.
fn hold_identities(held: &mut Held, running: &Config, next: &Config) {
    for binding in &running.bindings {
        let name = &binding.name;
        let why = format!("{RESTART}: until then, binding {name} stays as it is");
        let mut bindings = next.bindings.iter();
        let next = bindings.find(|other| other.name == *name);
        let is_same_source = next.is_some_and(|next| reads_the_same(binding, next));
        let (trusts, will_trust) = (trusts_agents(binding), next.is_some_and(trusts_agents));
        if trusts != will_trust || trusts && !is_same_source {
            hold(held, &[Group::Routing, Group::Workflows], &why);
        }
        let is_same_agent =
            next.is_some_and(|next| next.role == Role::Workflows && next.run_as == binding.run_as);
        if binding.role == Role::Workflows && !(is_same_source && is_same_agent) {
            hold(held, &[Group::Workflows], &why);
        }
    }
    if running.workflows.rpc && !next.workflows.rpc {
        let why = format!("{RESTART}: until then, workflows.rpc is true");
        hold(held, &[Group::Workflows], &why);
    }
}

/// Whether two bindings have the same writers.
fn reads_the_same(one: &BindingConfig, other: &BindingConfig) -> bool {
    one.transport == other.transport
        && one.topics == other.topics
        && one.stream == other.stream
        && one.durable == other.durable
}

/// Whether the writers of a binding say which agent they are.
fn trusts_agents(binding: &BindingConfig) -> bool {
    binding.trusts.contains(&Claim::SourceAgent)
}

fn log_change(change: &Change) {
    let (setting, before, after) = (&change.path, change.before(), change.after());
    tracing::info!(target: TARGET, %setting, %before, %after, "a setting has changed");
}
