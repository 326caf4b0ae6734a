//! Reloads agents, APIs and credentials after a change of the configuration or a secret.
//!
//! `reload.rs` of the bridge triggers the checks. If a secret is missing or empty, its key or credential cannot be used
//! until the secret is back; everything else is reloaded. This needs two successive checks, because some editors
//! truncate a file before writing it. If a secret exists but cannot be read, for example because the process has no
//! free descriptors, its old value stays in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::directory::{self, Directory, LastKnownSecrets, UnreadableSecret};
use super::{Workflows, WorkflowsError};
use crate::config::WorkflowsConfig;
use crate::metrics::ReloadOutcome;

/// Watches the secret files of an executor.
#[derive(Debug)]
pub(crate) struct SecretWatcher {
    workflows: Workflows,
    /// The configuration in use.
    config: WorkflowsConfig,
    seen: SecretFileStates,
    /// The paths of secrets that were missing at the last read.
    absent: BTreeSet<String>,
    /// Those of them that a second read has confirmed.
    missing: BTreeSet<String>,
    /// Whether a second check has to confirm that.
    is_in_doubt: bool,
    remembered: LastKnownSecrets,
}

/// Identifies a state of a file and its permissions, behind all links; `None` for a missing file.
pub(crate) type FileState = Option<(u64, u64, [i64; 4])>;

/// The states of the secret files at the last check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretFileStates(BTreeMap<PathBuf, FileState>);

/// How many agents are in use after reading everything again, and the secrets that they are without. `None` if a secret
/// has just disappeared, maybe only for a moment.
type SecretsRead = Option<(usize, Vec<UnreadableSecret>)>;

/// Checks that these agents, APIs and credentials can be used. Missing secrets are not an error.
///
/// # Errors
/// Why not.
pub(crate) fn check(config: &WorkflowsConfig) -> Result<(), WorkflowsError> {
    Directory::read_what_is_there(config, &mut LastKnownSecrets::default())?;
    Ok(())
}

// === impl SecretWatcher ===

impl SecretWatcher {
    /// Counts an invalid configuration. It changes nothing, but secrets that are gone are still removed.
    pub(crate) fn refused(&mut self) {
        self.workflows
            .0
            .metrics
            .workflow_reload(ReloadOutcome::Refused);
        self.check_files(None);
    }

    /// Applies a changed configuration, if given, and changed secrets. Blocks while it reads small files.
    pub(crate) fn check_files(&mut self, changed: Option<&WorkflowsConfig>) {
        let now = self.seen.again();
        let has_changed = changed.is_some() || now != self.seen || self.is_in_doubt;
        // A missing or unreadable secret may be back although the state of its file looks the same.
        if !has_changed && self.absent.is_empty() && self.remembered.unsure().is_empty() {
            return;
        }
        // Take the file states before reading the files, so that a change in between is seen next time.
        self.seen = now;
        self.is_in_doubt = false;
        let before = (self.absent.clone(), self.remembered.unsure().clone());
        let read = self.read(changed);
        let is_same = before == (self.absent.clone(), self.remembered.unsure().clone());
        if !has_changed && is_same && !self.is_in_doubt {
            return;
        }
        for (file, cause) in self.remembered.unsure() {
            tracing::warn!(
                file = %file.display(),
                cause,
                "a secret of workflows cannot be read at the moment: its old value stays in use"
            );
        }
        let outcome = match read {
            Ok(None) => {
                self.is_in_doubt = true;
                return;
            }
            Ok(Some((agents, unread))) => {
                log_taken(agents);
                unread.iter().for_each(log_unread);
                if unread.is_empty() {
                    ReloadOutcome::Applied
                } else {
                    ReloadOutcome::Partial
                }
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "agents, APIs and credentials of workflows are not changed"
                );
                ReloadOutcome::Refused
            }
        };
        self.workflows.0.metrics.workflow_reload(outcome);
    }

    /// Which keys are revoked, and which credentials cannot be used, because their secrets are missing.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = Vec::from_iter(self.missing.iter().map(String::as_str));
        (!missing.is_empty()).then(|| {
            let missing = missing.join(", ");
            format!("keys are revoked, or credentials cannot be used, because their secrets are missing: {missing}")
        })
    }

    /// Reads the secrets of the new configuration, or of the current one.
    fn read(&mut self, changed: Option<&WorkflowsConfig>) -> Result<SecretsRead, WorkflowsError> {
        if let Some(changed) = changed {
            // Even if a secret cannot be used now: a change of its file is then seen, and everything is read again.
            self.seen.watch(changed);
            self.config = changed.clone();
        }
        let read = Directory::read_what_is_there(&self.config, &mut self.remembered);
        let (directory, unread) = read?;
        Ok(self.take(directory, unread))
    }

    /// Puts the agents to use, unless a second check is needed.
    fn take(&mut self, directory: Directory, unread: Vec<UnreadableSecret>) -> SecretsRead {
        let absent = unread.iter().map(|unread| unread.cause().place()).collect();
        let before = std::mem::replace(&mut self.absent, absent);
        if !self.absent.is_subset(&before) {
            return None;
        }
        self.missing.clone_from(&self.absent);
        let agents = directory.len();
        self.workflows.replace(directory);
        Some((agents, unread))
    }
}

fn log_taken(agents: usize) {
    tracing::info!(
        agents,
        "agents, APIs and credentials of workflows are reloaded"
    );
}

fn log_unread(unread: &UnreadableSecret) {
    tracing::error!(
        error = unread as &dyn std::error::Error,
        "a secret of workflows is missing: its key is revoked, or its credential cannot be used, until it is back"
    );
}

// === impl SecretFileStates ===

impl SecretFileStates {
    /// The file states of a configuration. Call this before the secrets are read, so that later changes are seen.
    pub(crate) fn of(config: &WorkflowsConfig) -> Self {
        let mut files = Self(BTreeMap::new());
        files.watch(config);
        files
    }

    /// Watches them for an executor.
    pub(crate) fn watch_for(
        self,
        workflows: &Workflows,
        config: &WorkflowsConfig,
    ) -> SecretWatcher {
        let mut remembered = LastKnownSecrets::default();
        // The start-up has just read them and reported all problems.
        drop(Directory::read_what_is_there(config, &mut remembered));
        SecretWatcher {
            remembered,
            workflows: workflows.clone(),
            config: config.clone(),
            seen: self,
            absent: BTreeSet::new(),
            missing: BTreeSet::new(),
            is_in_doubt: false,
        }
    }

    /// The current states of the same files.
    fn again(&self) -> Self {
        let files = self.0.keys();
        Self(files.map(|file| (file.clone(), file_state(file))).collect())
    }

    /// Also watches the secrets of this configuration.
    fn watch(&mut self, config: &WorkflowsConfig) {
        for file in directory::secret_files(config) {
            self.0
                .entry(file)
                .or_insert_with_key(|file| file_state(file));
        }
    }
}

/// The current state of a file.
pub(crate) fn file_state(file: &Path) -> FileState {
    let of = |found: Metadata| {
        let (written, written_nanos) = (found.mtime(), found.mtime_nsec());
        // A change of the permissions changes only this time.
        let (changed, changed_nanos) = (found.ctime(), found.ctime_nsec());
        let times = [written, written_nanos, changed, changed_nanos];
        (found.ino(), found.len(), times)
    };
    std::fs::metadata(file).ok().map(of)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::Config;
    use crate::metrics::Metrics;

    /// An executor whose agent has a key in a file, and what watches it.
    fn watched(directory: &Path) -> (Workflows, SecretWatcher, Arc<Metrics>, PathBuf) {
        let (key, file) = (directory.join("key"), directory.join("a2abus.yaml"));
        std::fs::write(&key, "the-key").unwrap();
        let text = format!(
            "calls: {{enabled: false}}\nworkflows: {{enabled: true, agents: [{{id: a, keys: [{{file: {}}}]}}]}}",
            key.display()
        );
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file, []).unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let seen = SecretFileStates::of(&config.workflows);
        let workflows = Workflows::build(&config.workflows, Arc::clone(&metrics)).unwrap();
        let watch = seen.watch_for(&workflows, &config.workflows);
        (workflows, watch, metrics, key)
    }

    #[test]
    fn a_file_that_is_empty_for_one_look_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, metrics, key) = watched(directory.path());
        for gone in [
            |key: &Path| std::fs::write(key, ""),
            |key: &Path| std::fs::remove_file(key),
        ] {
            gone(&key).unwrap();
            watch.check_files(None);
            assert!(workflows.authenticate("the-key").is_some());
            std::fs::write(&key, "the-key").unwrap();
            watch.check_files(None);
            watch.check_files(None);
            assert!(workflows.authenticate("the-key").is_some());
        }
        let text = metrics.render().unwrap();
        for line in [
            "a2abus_workflow_reloads_total{outcome=\"applied\"} 2",
            "a2abus_workflow_reloads_total{outcome=\"partial\"} 0",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_read_at_the_moment_is_not_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, metrics, key) = watched(directory.path());
        // A directory at this path cannot be read, but it exists.
        std::fs::remove_file(&key).unwrap();
        std::fs::create_dir(&key).unwrap();
        for _ in 0..3 {
            watch.check_files(None);
            assert!(workflows.authenticate("the-key").is_some());
        }
        std::fs::remove_dir(&key).unwrap();
        watch.check_files(None);
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_none(), "it is gone");
        std::fs::write(&key, "the-key").unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_some());
        let partial = "a2abus_workflow_reloads_total{outcome=\"partial\"} 1";
        assert!(metrics.render().unwrap().contains(partial));
    }

    #[test]
    fn a_change_of_the_permissions_is_seen() {
        use std::os::unix::fs::PermissionsExt as _;

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let before = file_state(&file);
        // The times of a file system are coarse.
        let end = Instant::now() + Duration::from_secs(30);
        while file_state(&file) == before {
            assert!(Instant::now() < end, "{before:?}");
            for mode in [0o600, 0o644] {
                let permissions = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&file, permissions).unwrap();
            }
        }
    }

    #[test]
    fn agents_that_cannot_be_used_at_once_are_used_when_their_secret_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, _metrics, key) = watched(directory.path());
        let [other, file] = ["other", "more.yaml"].map(|name| directory.path().join(name));
        // Two agents must not have the same key.
        std::fs::write(&other, "the-key").unwrap();
        let text = format!(
            "calls: {{enabled: false}}\nworkflows: {{enabled: true, agents: [{{id: a, keys: [{{file: {}}}]}}, {{id: b, keys: [{{file: {}}}]}}]}}",
            key.display(),
            other.display()
        );
        std::fs::write(&file, text).unwrap();
        let changed = Config::load(&file, []).unwrap();
        watch.check_files(Some(&changed.workflows));
        assert!(workflows.agent("b").is_none());
        std::fs::write(&other, "another-key").unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("another-key").is_some());
    }

    #[test]
    fn a_key_that_is_back_counts_whatever_its_file_looks_like() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, _metrics, key) = watched(directory.path());
        std::fs::remove_file(&key).unwrap();
        watch.check_files(None);
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_none());
        std::fs::write(&key, "the-key").unwrap();
        // As if it had been seen so when it was not there.
        watch.seen = watch.seen.again();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_some());
    }

    #[test]
    fn a_missing_key_is_revoked_even_if_the_new_configuration_is_invalid() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, metrics, key) = watched(directory.path());
        watch.refused();
        assert!(workflows.authenticate("the-key").is_some());
        std::fs::remove_file(&key).unwrap();
        watch.refused();
        watch.refused();
        assert!(workflows.authenticate("the-key").is_none());
        let line = "a2abus_workflow_reloads_total{outcome=\"refused\"} 3";
        assert!(metrics.render().unwrap().contains(line));
        std::fs::write(&key, "the-key").unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_some());
    }

    #[test]
    fn a_file_counts_as_missing_after_two_successive_checks() {
        let directory = tempfile::tempdir().unwrap();
        let (workflows, mut watch, metrics, key) = watched(directory.path());
        std::fs::remove_file(&key).unwrap();
        watch.check_files(None);
        // Empty is as bad as missing.
        std::fs::write(&key, "\n").unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_none());
        assert!(workflows.agent("a").is_some(), "it is known on the bus");
        let missing = watch.missing().unwrap();
        assert!(missing.contains(key.to_str().unwrap()), "{missing}");
        watch.check_files(None);
        let line = "a2abus_workflow_reloads_total{outcome=\"partial\"} 1";
        assert!(metrics.render().unwrap().contains(line));
        std::fs::write(&key, "the-key").unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_some());
        assert_eq!(watch.missing(), None);
        // What was believed before is not believed again at the first look.
        std::fs::remove_file(&key).unwrap();
        watch.check_files(None);
        assert!(workflows.authenticate("the-key").is_some());
    }
}
