//! The logs that the configuration chose, and their views.

#[cfg(any(feature = "kafka", feature = "nats"))]
mod on_bus;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

#[cfg(any(feature = "kafka", feature = "nats"))]
use self::on_bus::OnBus;
use super::any::AnyLog;
use super::embedded::EmbeddedLog;
use super::fold::Fold;
use super::log::{LogSpec, StateError};
use super::memory::MemoryLog;
use super::view::{Progress, View, ViewTask};
use crate::bus::Buses;
use crate::config::{Config, StateLog};
use crate::lock::lock;
use crate::metrics::{Metrics, StateMetrics};
use crate::readiness::Readiness;

/// The state of one bridge: its logs, each opened once, and the tasks of its views, which end with it.
#[derive(Debug)]
pub struct Logs {
    backend: LogBackend,
    memory_bytes: usize,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    open: Mutex<HashMap<&'static str, AnyLog>>,
    tasks: Mutex<JoinSet<()>>,
}

/// Where the logs are stored.
#[derive(Debug)]
enum LogBackend {
    Memory,
    Files(PathBuf),
    #[cfg(any(feature = "kafka", feature = "nats"))]
    Bus(Box<OnBus>),
}

/// How often the metrics of a view are brought up to date.
const REPORT: Duration = Duration::from_secs(1);
/// How often the bridge looks whether the file of a log is still in its place.
const LOOK: Duration = Duration::from_secs(2);

// === impl Logs ===

impl Logs {
    /// The logs of a configuration. Opens nothing yet.
    pub(crate) fn new(
        config: &Config,
        buses: &Buses,
        readiness: &Arc<Readiness>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let backend = match (config.state.place(), &config.state.directory, buses) {
            (StateLog::Embedded, Some(directory), _) => LogBackend::Files(directory.clone()),
            #[cfg(any(feature = "kafka", feature = "nats"))]
            // The configuration was checked, so the transport exists.
            (StateLog::Transport(name), _, buses) => {
                let bus = OnBus::new(config, buses, name).map(Box::new);
                bus.map_or(LogBackend::Memory, LogBackend::Bus)
            }
            _ => LogBackend::Memory,
        };
        Self {
            backend,
            memory_bytes: usize::try_from(config.state.memory.0.as_u64()).unwrap_or(usize::MAX),
            readiness: Arc::clone(readiness),
            metrics: Arc::clone(metrics),
            open: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Whether the logs are in the memory of this process.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.backend, LogBackend::Memory)
    }

    /// Opens a log, or returns the open one. A log on a bus need not be reachable.
    ///
    /// # Errors
    /// [`StateError::Disk`] when the file cannot be used; [`StateError::Bus`] when the bus has no logs.
    pub async fn open(&self, spec: LogSpec) -> Result<AnyLog, StateError> {
        if let Some(log) = lock(&self.open).get(spec.name) {
            return Ok(log.clone());
        }
        let name = spec.name;
        let opened: AnyLog = match &self.backend {
            LogBackend::Memory => MemoryLog::new(spec, self.memory_bytes).into(),
            LogBackend::Files(directory) => {
                let at = directory.clone();
                let opened = tokio::task::spawn_blocking(move || EmbeddedLog::open(spec, &at));
                let opened = opened.await;
                // Without a result, the process ends.
                opened.unwrap_or(Err(StateError::Closed(name)))?.into()
            }
            #[cfg(any(feature = "kafka", feature = "nats"))]
            LogBackend::Bus(bus) => bus.open(spec)?.into(),
        };
        let mut open = lock(&self.open);
        Ok(open.entry(name).or_insert(opened).clone())
    }

    /// Opens a log and starts a view of it, which ends with `self`. The bridge becomes ready once the view has caught
    /// up.
    ///
    /// # Errors
    /// As [`Logs::open`].
    pub async fn view<F: Fold>(&self, spec: LogSpec, fold: F) -> Result<View<F>, StateError> {
        let name = spec.name;
        let log = self.open(spec).await?;
        let (view, task) = View::start(log.clone(), fold, self.memory_bytes);
        let condition = Text::from(format!("state {name}"));
        self.readiness.starting(condition.clone());
        let watched = ViewStatus {
            log,
            progress: view.progress(),
            readiness: Arc::clone(&self.readiness),
            condition,
            metrics: self.metrics.state(name),
            counted: Mutex::default(),
        };
        let mut tasks = lock(&self.tasks);
        tasks.spawn(watched.run(task));
        Ok(view)
    }

    /// Ends the views. Call it before the buses close, because a log that ends while it is read counts as an error.
    pub(crate) async fn close(&self) {
        let mut tasks = {
            let mut tasks = lock(&self.tasks);
            std::mem::take(&mut *tasks)
        };
        tasks.shutdown().await;
    }

    /// Whether other replicas may share the state.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !matches!(self.backend, LogBackend::Memory | LogBackend::Files(_))
    }
}

/// The status of a view, for readiness and metrics.
struct ViewStatus {
    log: AnyLog,
    progress: watch::Receiver<Progress>,
    readiness: Arc<Readiness>,
    condition: Text,
    metrics: StateMetrics,
    /// The progress that the metrics show.
    counted: Mutex<Progress>,
}

// === impl ViewStatus ===

impl ViewStatus {
    /// Runs until the view ends.
    async fn run(self, mut task: ViewTask) {
        tokio::select! {
            () = task.ended() => {}
            () = self.be_ready() => {}
            () = self.report() => {}
            () = self.look() => {}
        }
        let ended = "the view of the state has ended".to_owned();
        self.readiness.set(self.condition, Err(ended));
    }

    /// Reports readiness: ready if the view has caught up and its log answers, else the progress or the cause. Degraded
    /// if the log stores no records: calls that need no record still work.
    async fn be_ready(&self) {
        let mut progress = self.progress.clone();
        loop {
            let (met, unwritten) = {
                let now = progress.borrow_and_update();
                let met = if let Some(cause) = &now.silent {
                    Err(cause.to_string())
                } else if now.is_caught_up {
                    Ok(())
                } else if now.end == super::Cursor::start() {
                    Err("waiting for its log".to_owned())
                } else {
                    Err(format!("{} records behind", now.behind()))
                };
                (met, now.unwritten.clone())
            };
            let is_met = met.is_ok();
            if is_met {
                // Before the bridge is ready, so that the metrics of a ready bridge show what it has read.
                self.count();
            }
            match &unwritten {
                Some(cause) if is_met => {
                    let cause = format!("records are not stored: {cause}");
                    self.readiness.degraded(self.condition.clone(), cause);
                }
                _ => self.readiness.set(self.condition.clone(), met),
            }
            let changed = if is_met {
                let is_lost = |now: &Progress| {
                    !now.is_caught_up || now.silent.is_some() || now.unwritten != unwritten
                };
                progress.wait_for(is_lost).await.map(drop)
            } else {
                progress.changed().await
            };
            if changed.is_err() {
                return;
            }
        }
    }

    async fn report(&self) {
        let mut ticks = tokio::time::interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.count();
        }
    }

    /// Reports the log as degraded while its file is not in its place: this process still uses the file, but the next
    /// one will not find it.
    async fn look(&self) {
        let AnyLog::Embedded(log) = &self.log else {
            return std::future::pending().await;
        };
        let condition = Text::from(format!("file of {}", self.condition));
        let mut is_misplaced = false;
        loop {
            tokio::time::sleep(LOOK).await;
            let file = log.clone();
            let looked = tokio::task::spawn_blocking(move || file.misplaced()).await;
            // A check without a result means that the process ends.
            let Ok(found) = looked else {
                return std::future::pending().await;
            };
            let Some(cause) = found else {
                if std::mem::take(&mut is_misplaced) {
                    self.readiness.restored(&condition);
                    let log = self.log.spec().name;
                    tracing::info!(log, "a file of the state is in its place again");
                }
                continue;
            };
            if !std::mem::replace(&mut is_misplaced, true) {
                tracing::warn!(%cause, "a file of the state is not in its place: unless it is moved back, what is stored now is lost at the next start");
            }
            self.readiness.degraded(condition.clone(), cause);
        }
    }

    /// Shows the progress in the metrics.
    fn count(&self) {
        let mut last = lock(&self.counted);
        let now = self.progress.borrow().clone();
        let metrics = &self.metrics;
        metrics
            .records
            .inc_by(now.records.saturating_sub(last.records));
        metrics
            .unknown
            .inc_by(now.unknown.saturating_sub(last.unknown));
        metrics
            .forgotten
            .inc_by(now.forgotten.saturating_sub(last.forgotten));
        metrics.entries.set(gauge(now.entries));
        metrics.bytes.set(gauge(now.bytes));
        metrics
            .behind
            .set(i64::try_from(now.behind()).unwrap_or(i64::MAX));
        *last = now;
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
