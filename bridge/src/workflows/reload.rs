//! When do other agents, APIs and credentials count? Soon after the configuration file or a secret has changed.
//!
//! Files are looked at now and then: what tells of changes at once does not work on every file system, and a secret of
//! Kubernetes changes by a link. What is wrong changes nothing.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::directory::{self, Directory};
use super::{Workflows, WorkflowsError};
use crate::config::{Config, WorkflowsConfig};
use crate::metrics::Reload;

/// Watches the files that the agents of an executor come from.
#[derive(Debug)]
pub(crate) struct Watch {
    workflows: Workflows,
    file: PathBuf,
    seen: Seen,
}

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What tells one state of a file from another; `None` for one that is not there.
type State = Option<(u64, u64, i64, i64)>;

/// The files as they were when they were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<PathBuf, State>);

/// Why what has changed is not taken over.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("{0}")]
    Config(#[from] crate::config::ConfigErrors),
    #[error(transparent)]
    Workflows(#[from] WorkflowsError),
}

// === impl Watch ===

impl Watch {
    /// Looks at the files until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut every = interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            match looked.await {
                Ok(watch) => self = watch,
                Err(error) => {
                    tracing::error!(%error, "changes of the configuration are not looked for any more");
                    return;
                }
            }
        }
    }

    /// Takes over what has changed, if anything has. Blocks as long as reading small files does.
    fn look(&mut self) {
        let now = self.seen.again();
        if now == self.seen {
            return;
        }
        // Looked at before it is read: a change meanwhile is seen the next time.
        self.seen = now;
        match self.read() {
            Ok(agents) => {
                tracing::info!(
                    agents,
                    "agents, APIs and credentials of workflows are read again"
                );
                self.workflows.0.metrics.workflow_reload(Reload::Taken);
            }
            Err(error) => {
                tracing::error!(
                    file = %self.file.display(),
                    error = &error as &dyn std::error::Error,
                    "the configuration has changed and cannot be used: agents, APIs and credentials of workflows stay as they were"
                );
                self.workflows.0.metrics.workflow_reload(Reload::Refused);
            }
        }
    }

    fn read(&mut self) -> Result<usize, ReloadError> {
        let config = Config::load(&self.file, std::env::vars_os())?;
        // Also when a secret cannot be read: its file is then waited for.
        self.seen.watch(&config.workflows);
        let directory = Directory::read(&config.workflows).map_err(WorkflowsError::from)?;
        let agents = directory.len();
        self.workflows.replace(directory);
        Ok(agents)
    }
}

// === impl Seen ===

impl Seen {
    /// The files of a configuration, before its secrets are read: what changes meanwhile is seen later.
    pub(crate) fn of(config: &Config) -> Self {
        let file = config.file.iter();
        let mut files = Self(file.map(|file| (file.clone(), state(file))).collect());
        files.watch(&config.workflows);
        files
    }

    /// Watches them for an executor; nothing when the configuration was not read from a file.
    pub(crate) fn watch_for(self, workflows: &Workflows, config: &Config) -> Option<Watch> {
        Some(Watch {
            workflows: workflows.clone(),
            file: config.file.clone()?,
            seen: self,
        })
    }

    /// The same files, as they are now.
    fn again(&self) -> Self {
        let files = self.0.keys();
        Self(files.map(|file| (file.clone(), state(file))).collect())
    }

    /// Looks at the secrets of a configuration as well.
    fn watch(&mut self, config: &WorkflowsConfig) {
        for file in directory::secret_files(config) {
            self.0.entry(file).or_insert_with_key(|file| state(file));
        }
    }
}

fn state(file: &Path) -> State {
    let of = |found: Metadata| (found.ino(), found.len(), found.mtime(), found.mtime_nsec());
    std::fs::metadata(file).ok().map(of)
}
