//! The workflow executor of the bridge.
//!
//! ```text
//!  HTTP:  door ──┐                        ┌── directory: agents, keys, secrets <── reload: file and secrets change
//!                ├──> Workflows ──> begin ┤
//!  bus:   bus  ──┘        │               └── Executor (crate a2abus-executor)
//!                         └──> run: on threads of their own, to the end
//! ```
//!
//! HTTP and the bus share [`Workflows`]. An execution that has started runs to its end, even if its requester
//! disconnects. A drain waits for running executions, and then stops those that remain. As after a crash, the request
//! of such an execution runs it again when it is delivered or sent again, unless a call that may change something had
//! begun.

pub mod bus;
mod directory;
pub(crate) mod reload;
pub(crate) mod shared;
mod turns;
mod workers;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use a2abus_executor::{
    Agent, Client, ClientError, ClientOptions, Environment, Execution, Executor, FileStore, Json,
    MemoryStore, OpenError, Options, Progress, Record, RedbStore, Refusal, Request, RetryUnsafe,
    RunningElsewhere, Started, Store, SystemClock, SystemRandom,
};
use a2abus_models::a2e_workflow::Report;
use a2abus_plugin::Text;
use bytesize::ByteSize;
use tokio::sync::oneshot;

pub use self::directory::{Directory, DirectoryError, Member, UnreadableSecret};

use self::workers::Workers;
use crate::config::{self, WorkflowsConfig};
use crate::metrics::{Metrics, RefusalReason};
use crate::readiness::Readiness;

/// Executes workflows for HTTP and the bus. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Workflows(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    executor: Executor,
    directory: RwLock<Arc<Directory>>,
    environment: Environment,
    name: Text,
    /// Whether each operation is published, in addition to the start and the end.
    reports_operations: bool,
    rpc: bool,
    workers: Workers,
    metrics: Arc<Metrics>,
}

/// A running execution. It continues when this is dropped.
#[derive(Debug)]
pub struct Run {
    execution_id: Text,
    ended: oneshot::Receiver<Arc<Record>>,
}

/// The result of a request to execute, whose execution runs by itself.
#[derive(Debug)]
pub enum Begun {
    /// It runs.
    New(Run),
    /// The same request is already running.
    Running(RunningElsewhere),
    /// The same request has run before.
    Finished(Arc<Record>),
}

/// Why an execution is not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotBegun {
    /// The bridge is shutting down.
    #[error("the executor is shutting down")]
    Draining,
    /// The executor refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why workflows cannot be executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkflowsError {
    /// A secret is missing, or two agents have the same key.
    #[error("cannot load the agents of workflows")]
    Agents(#[from] DirectoryError),
    /// The data directory cannot be created.
    #[error("workflows: cannot create the data directory {} (create it, writable for this user, or change workflows.data_directory)", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A store cannot be used.
    #[error("cannot open the store of workflows (workflows.data_directory)")]
    Store(#[from] OpenError),
    /// A certificate cannot be read.
    #[error("workflows: cannot read the certificates in {}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The HTTP client for API calls cannot be created.
    #[error("workflows: cannot create the HTTP client")]
    Client(#[source] ClientError),
    /// The operating system provides no random numbers.
    #[error("workflows: no random numbers: {0}")]
    Random(getrandom::Error),
    /// The threads cannot be started.
    #[error("workflows: cannot start the threads of the executor")]
    Threads(#[source] std::io::Error),
}

/// The name of the store in the readiness.
const STORE: &str = "store of workflows";
/// How often to check whether the store works.
const LOOK: Duration = Duration::from_secs(1);
/// How often expired records are removed.
const EXPIRE_EVERY: Duration = Duration::from_secs(60 * 60);

// === impl Workflows ===

impl Workflows {
    /// Builds the configured executor with the real environment.
    ///
    /// # Errors
    /// What cannot be used: a secret, a directory or a certificate.
    pub fn build(config: &WorkflowsConfig, metrics: Arc<Metrics>) -> Result<Self, WorkflowsError> {
        Self::build_in(environment(config)?, config, metrics)
    }

    /// Like [`Workflows::build`], with a store that replicas share.
    ///
    /// # Errors
    /// Like [`Workflows::build`].
    pub(crate) fn build_on(
        store: Arc<dyn Store>,
        config: &WorkflowsConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Self, WorkflowsError> {
        let environment = Environment {
            store,
            ..environment(config)?
        };
        Self::build_in(environment, config, metrics)
    }

    /// Like [`Workflows::build`], with another environment, for tests.
    ///
    /// # Errors
    /// Like [`Workflows::build`].
    pub fn build_in(
        environment: Environment,
        config: &WorkflowsConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Self, WorkflowsError> {
        let directory = Directory::read(config)?;
        let options = options(config)?;
        let inner = Inner {
            executor: Executor::new(environment.clone(), options),
            directory: RwLock::new(Arc::new(directory)),
            environment,
            name: config.agent.clone(),
            reports_operations: config.progress,
            rpc: config.rpc,
            workers: Workers::start(config.workers).map_err(WorkflowsError::Threads)?,
            metrics,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The name that workflows are addressed to.
    #[must_use]
    pub fn name(&self) -> &Text {
        &self.0.name
    }

    /// Whether each operation is published, in addition to the start and the end.
    #[must_use]
    pub fn reports_operations(&self) -> bool {
        self.0.reports_operations
    }

    /// Whether callers of `/rpc`, who send no key, may execute workflows.
    #[must_use]
    pub fn rpc(&self) -> bool {
        self.0.rpc
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.0.executor
    }

    /// The environment of executions: clock, random numbers, network and store.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.0.environment
    }

    /// The agent with this id, in the current directory.
    #[must_use]
    pub fn agent(&self, id: &str) -> Option<Arc<Agent>> {
        let directory = self.directory();
        directory.agent(id).map(|member| Arc::clone(member.agent()))
    }

    /// The agent with this API key, in the current directory.
    #[must_use]
    pub fn authenticate(&self, key: &str) -> Option<Arc<Agent>> {
        let directory = self.directory();
        let member = directory.authenticate(key);
        member.map(|member| Arc::clone(member.agent()))
    }

    /// The current directory of agents.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        // Ignore poisoning: the directory is replaced as a whole.
        let directory = self.0.directory.read();
        Arc::clone(&directory.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the directory of agents. Running executions keep their old settings.
    pub fn replace(&self, directory: Directory) {
        let directory = Arc::new(directory);
        let mut current = self
            .0
            .directory
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = directory;
    }

    /// Starts an execution, or finds the existing one with the same agent, id and workflow. Pass a new execution to
    /// [`Workflows::run`].
    ///
    /// # Errors
    /// Why an execution is not started.
    pub async fn begin(&self, agent: &Arc<Agent>, request: Request) -> Result<Started, NotBegun> {
        self.begin_and(agent, request, std::convert::identity).await
    }

    /// Like [`Workflows::begin`], and runs a new execution. It runs to its end even if the returned future is dropped
    /// while the execution is recorded.
    ///
    /// # Errors
    /// Like [`Workflows::begin`].
    pub async fn start(&self, agent: &Arc<Agent>, request: Request) -> Result<Begun, NotBegun> {
        let (workflows, owner) = (self.clone(), Arc::clone(agent));
        let run = move |started: Started| match started {
            Started::New(execution) => Begun::New(workflows.run(&owner, execution, drop)),
            Started::Running(running) => Begun::Running(running),
            Started::Finished(record) => Begun::Finished(record),
        };
        self.begin_and(agent, request, run).await
    }

    /// Starts an execution, and passes it on in the same task. The task continues even if nobody waits for it.
    async fn begin_and<T: Send + 'static>(
        &self,
        agent: &Arc<Agent>,
        request: Request,
        then: impl FnOnce(Started) -> T + Send + 'static,
    ) -> Result<T, NotBegun> {
        if self.0.workers.are_draining() {
            self.refused(RefusalReason::Draining);
            return Err(NotBegun::Draining);
        }
        let (executor, owned_agent) = (self.0.executor.clone(), Arc::clone(agent));
        // Reading a large workflow takes a while, too.
        let metrics = Arc::clone(&self.0.metrics);
        let begin = async move {
            let started = executor.execute(&owned_agent, request).await?;
            if let Started::Finished(record) = &started
                && record.is_newly_interrupted()
            {
                metrics.workflow_found_abandoned();
            }
            Ok::<_, Refusal>(then(started))
        };
        let begun = self.0.workers.finish_task(agent.id(), begin).await;
        begun.ok_or(NotBegun::Draining)?.map_err(|refusal| {
            match refusal {
                Refusal::Invalid(_) => self.refused(RefusalReason::Invalid),
                Refusal::Expired(_) => self.refused(RefusalReason::Expired),
                Refusal::Conflict(_) => self.refused(RefusalReason::Conflict),
                Refusal::Forgotten(_) | Refusal::Unreadable(_) => {
                    self.refused(RefusalReason::Store);
                }
                // A request that waits for a free slot or for the store is not refused.
                _ => {}
            }
            NotBegun::Refused(refusal)
        })
    }

    /// Validates a workflow without executing it; `None` when the bridge is shutting down.
    pub async fn validate(&self, agent: &Arc<Agent>, request: Request) -> Option<Report> {
        if self.0.workers.are_draining() {
            self.refused(RefusalReason::Draining);
            return None;
        }
        let (executor, owned_agent) = (self.0.executor.clone(), Arc::clone(agent));
        let verdict = async move {
            let Request {
                workflow,
                input,
                strictness,
                ..
            } = request;
            executor.validate(&owned_agent, &workflow, &input, strictness)
        };
        self.ask(agent, verdict).await
    }

    /// Runs an execution to its end, on the threads of the executor. Those threads call `on_progress` for each
    /// operation; it must not block.
    pub fn run(
        &self,
        agent: &Agent,
        execution: Execution,
        on_progress: impl FnMut(Progress) + Send + 'static,
    ) -> Run {
        let (tell, ended) = oneshot::channel();
        let execution_id = execution.execution_id().clone();
        let task = workers::Task {
            executor: self.0.executor.clone(),
            agent: agent.id().clone(),
            execution,
            metrics: Arc::clone(&self.0.metrics),
        };
        self.0.workers.run(task, on_progress, tell);
        Run {
            execution_id,
            ended,
        }
    }

    /// Waits for the end of an execution that is already running; `None` if it was abandoned, or if the bridge is
    /// shutting down. Its record may be large, so the threads of the executor read it.
    pub(crate) async fn ended(
        &self,
        agent: &Agent,
        running: RunningElsewhere,
    ) -> Option<Arc<Record>> {
        self.ask(agent, running.ended()).await.flatten()
    }

    /// Runs a query on the threads of the executor, because it may take a long time. It ends when nobody waits for it
    /// any more; `None` when the bridge is shutting down.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        agent: &Agent,
        query: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.0.workers.ask(agent.id(), query).await
    }

    /// A record as JSON text. It may be large, so the threads of the executor serialize it.
    pub(crate) async fn write(
        &self,
        agent: &Agent,
        record: &Arc<Record>,
        view: fn(&Record) -> Json,
    ) -> String {
        let given = Arc::clone(record);
        let work = async move { view(&given).to_string() };
        let text = self.ask(agent, work);
        // At the end of a drain, the threads may have stopped already.
        text.await.unwrap_or_else(|| view(record).to_string())
    }

    /// Counts a request that is refused before it reaches the executor.
    pub fn refused(&self, why: RefusalReason) {
        self.0.metrics.workflow_refused(why);
    }

    /// Removes old records periodically, until the future is dropped.
    pub(crate) async fn keep_tidy(self) {
        let mut every = tokio::time::interval(EXPIRE_EVERY);
        loop {
            every.tick().await;
            match self.0.executor.expire().await {
                Ok(0) => {}
                Ok(records) => tracing::debug!(records, "removed old records of executions"),
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "old records of executions were not removed"
                    );
                }
            }
        }
    }

    /// Shows in the readiness whether the store fails, until the future is dropped.
    pub(crate) async fn watch_store(self, readiness: Arc<Readiness>) {
        let mut every = tokio::time::interval(LOOK);
        loop {
            every.tick().await;
            match self.0.environment.store.trouble() {
                Some(cause) => readiness.degraded(STORE, cause),
                None => readiness.restored(STORE),
            }
        }
    }

    /// Whether new executions are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.workers.are_draining()
    }

    /// Refuses new executions. Running ones continue.
    pub fn drain(&self) {
        self.0.workers.drain();
    }

    /// Waits at most `grace` for running executions, then stops the rest and waits for them to end.
    pub(crate) async fn finish(&self, grace: Duration) {
        self.0.workers.finish(grace).await;
    }

    /// Waits until a drain has ended all executions of this replica.
    pub(crate) async fn until_finished(&self) {
        self.0.workers.finished().await;
    }
}

/// The options of the executor, from the configuration.
pub(crate) fn options(config: &WorkflowsConfig) -> Result<Options, WorkflowsError> {
    let mut options = Options::default();
    let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
    options.limits.max_record_bytes = bytes(config.max_record_bytes.0);
    options.limits.max_operation_runs = config.max_operation_runs;
    options.limits.max_model_bytes = bytes(config.max_model_bytes.0);
    options.limits.max_retries = config.max_retries;
    options.caching.responses = config.cache_time.0;
    options.files = config
        .file_directory
        .as_ref()
        .map(|root| FileStore::open(root))
        .transpose()?;
    options.retry_unsafe = match config.retry_unsafe {
        config::RetryUnsafe::Rarely => RetryUnsafe::WhenRefused,
        config::RetryUnsafe::Always => RetryUnsafe::Always,
    };
    Ok(options)
}

/// The real environment, from the configuration.
pub(crate) fn environment(config: &WorkflowsConfig) -> Result<Environment, WorkflowsError> {
    let mut certificates = Vec::new();
    for path in &config.ca_files {
        let read = std::fs::read(path);
        certificates.push(read.map_err(|source| WorkflowsError::Certificates {
            path: path.clone(),
            source,
        })?);
    }
    let options = ClientOptions {
        root_certificates: certificates,
        ..ClientOptions::default()
    };
    let client = Client::new(&options).map_err(WorkflowsError::Client)?;
    let store: Arc<dyn Store> = match &config.data_directory {
        None => Arc::new(MemoryStore::default()),
        Some(directory) => Arc::new(open_store(directory)?),
    };
    Ok(Environment {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom::new().map_err(WorkflowsError::Random)?),
        http: Arc::new(client),
        store,
    })
}

/// Opens the store in a directory. Creates the directory if necessary, accessible only to its owner.
fn open_store(directory: &Path) -> Result<RedbStore, WorkflowsError> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|source| WorkflowsError::Directory {
        path: directory.to_owned(),
        source,
    })?;
    Ok(RedbStore::open(&directory.join(DATA_FILE))?)
}

/// The file in the data directory.
const DATA_FILE: &str = "workflows.redb";

// === impl Run ===

impl Run {
    /// The id of the execution.
    #[must_use]
    pub fn execution_id(&self) -> &Text {
        &self.execution_id
    }

    /// Waits for its final record; `None` if it did not finish because the process is shutting down.
    pub async fn ended(self) -> Option<Arc<Record>> {
        self.ended.await.ok()
    }
}
