//! The agents that may execute workflows, and their permissions.
//!
//! A directory is built from the configuration and its secrets. It is immutable; a reload replaces it.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use a2abus_executor::{Agent, Credential, CredentialKind, Rates, Secret};
use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{Allowed, Apis, Policy};
use a2abus_plugin::Text;
use a2abus_transports::{Revealed, SecretError};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::config::{
    AgentConfig, ApiConfig, ApiKey, CredentialConfig, CredentialType, Grant, Name, RatesConfig,
    WorkflowsConfig,
};

/// The agents, by id and by key.
#[derive(Debug, Default)]
pub struct Directory {
    members: BTreeMap<Text, Arc<Member>>,
    keys: Vec<ApiKeyHash>,
}

/// An agent, with the permissions that it can query.
#[derive(Debug)]
pub struct Member {
    agent: Arc<Agent>,
    apis: Vec<Arc<ApiConfig>>,
    credentials: Vec<CredentialConfig>,
}

/// The SHA-256 of an API key, and its owner.
struct ApiKeyHash {
    digest: [u8; 32],
    owner: Arc<Member>,
}

/// The secrets in files at the last successful read. A process without free descriptors, or a failing disk, must not
/// revoke a key.
#[derive(Default)]
pub(super) struct LastKnownSecrets {
    digests: BTreeMap<PathBuf, Option<[u8; 32]>>,
    secrets: BTreeMap<PathBuf, Revealed>,
    /// Where a secret could not be read the last time, and why.
    unsure: BTreeMap<PathBuf, String>,
}

/// A secret that cannot be read, its owner, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnreadableSecret {
    /// The secret of a credential.
    #[error("credential {id}")]
    Credential {
        /// The credential.
        id: Name,
        /// Why.
        source: SecretError,
    },
    /// A key of an agent.
    #[error("a key of agent {id}")]
    Key {
        /// The agent of the key.
        id: Name,
        /// Why.
        source: SecretError,
    },
}

/// Why the directory cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// A secret cannot be read.
    #[error(transparent)]
    Unread(#[from] UnreadableSecret),
    /// A digest is invalid.
    #[error("agent {id}: sha256 is not 64 hexadecimal digits")]
    Digest {
        /// The agent of the key.
        id: Name,
    },
    /// Two agents have the same key.
    #[error("the agents {first} and {second} have the same key")]
    SharedKey {
        /// The first agent.
        first: Text,
        /// The second agent.
        second: Name,
    },
}

// === impl Directory ===

impl Directory {
    /// Reads all secrets. Blocks while it reads small files.
    ///
    /// # Errors
    /// Which secret cannot be read, and why. The error never contains the secret.
    pub fn read(config: &WorkflowsConfig) -> Result<Self, DirectoryError> {
        let (directory, unread) =
            Self::read_what_is_there(config, &mut LastKnownSecrets::default())?;
        match unread.into_iter().next() {
            None => Ok(directory),
            Some(unread) => Err(unread.into()),
        }
    }

    /// The same, but leaves out keys and credentials whose secrets cannot be read, and returns these. If a secret
    /// exists but cannot be read at the moment, its last value is used.
    pub(super) fn read_what_is_there(
        config: &WorkflowsConfig,
        remembered: &mut LastKnownSecrets,
    ) -> Result<(Self, Vec<UnreadableSecret>), DirectoryError> {
        let mut unread = Vec::new();
        remembered.unsure.clear();
        let apis: Vec<Arc<ApiConfig>> = config.apis.iter().cloned().map(Arc::new).collect();
        let credentials = credentials(config, &apis, remembered, &mut unread);
        let mut directory = Self::default();
        for agent in &config.agents {
            let member = Arc::new(member(agent, config, &apis, &credentials));
            for key in &agent.keys {
                let id = agent.id.clone();
                match remembered.digest(key) {
                    Ok(Some(digest)) => directory.add_key(&id, digest, &member)?,
                    Ok(None) => return Err(DirectoryError::Digest { id }),
                    Err(source) => unread.push(UnreadableSecret::Key { id, source }),
                }
            }
            directory.members.insert(agent.id.text().clone(), member);
        }
        Ok((directory, unread))
    }

    fn add_key(
        &mut self,
        id: &Name,
        digest: [u8; 32],
        owner: &Arc<Member>,
    ) -> Result<(), DirectoryError> {
        let existing = self.keys.iter().find(|key| key.digest == digest);
        if let Some(existing) = existing.filter(|existing| !Arc::ptr_eq(&existing.owner, owner)) {
            return Err(DirectoryError::SharedKey {
                first: existing.owner.agent.id().clone(),
                second: id.clone(),
            });
        }
        let owner = Arc::clone(owner);
        self.keys.push(ApiKeyHash { digest, owner });
        Ok(())
    }

    /// The agent with this id.
    #[must_use]
    pub fn agent(&self, id: &str) -> Option<&Arc<Member>> {
        self.members.get(id)
    }

    /// The agent with this API key. The lookup time reveals nothing about the keys.
    #[must_use]
    pub fn authenticate(&self, key: &str) -> Option<&Arc<Member>> {
        let digest = ApiKey::digest_of(key);
        let none = u64::MAX;
        let found = (0_u64..).zip(&self.keys).fold(none, |found, (index, key)| {
            let same: Choice = key.digest.ct_eq(&digest);
            u64::conditional_select(&found, &index, same)
        });
        let index = usize::try_from(found).ok()?;
        self.keys.get(index).map(|key| &key.owner)
    }

    /// The number of agents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

// === impl LastKnownSecrets ===

impl LastKnownSecrets {
    /// The paths of secrets that could not be read last time, so their old values are in use.
    pub(super) fn unsure(&self) -> &BTreeMap<PathBuf, String> {
        &self.unsure
    }

    fn digest(&mut self, key: &ApiKey) -> Result<Option<[u8; 32]>, SecretError> {
        let path = match key {
            ApiKey::File(path) => Some(path.as_path()),
            ApiKey::Sha256(_) | ApiKey::Env(_) => None,
        };
        remember(&mut self.digests, &mut self.unsure, path, key.digest())
    }

    fn secret(&mut self, secret: &a2abus_transports::Secret) -> Result<Revealed, SecretError> {
        let read = secret.reveal();
        remember(&mut self.secrets, &mut self.unsure, secret.path(), read)
    }
}

/// The secret as read, or its last value if it exists but could not be read.
fn remember<T: Clone>(
    known: &mut BTreeMap<PathBuf, T>,
    unsure: &mut BTreeMap<PathBuf, String>,
    path: Option<&Path>,
    read: Result<T, SecretError>,
) -> Result<T, SecretError> {
    let Some(path) = path else { return read };
    match read {
        Ok(value) => {
            known.insert(path.to_owned(), value.clone());
            Ok(value)
        }
        Err(error) if error.is_gone() => {
            known.remove(path);
            Err(error)
        }
        Err(error) => match known.get(path) {
            Some(value) => {
                let cause = error.source().map(ToString::to_string);
                unsure.insert(path.to_owned(), cause.unwrap_or_default());
                Ok(value.clone())
            }
            None => Err(error),
        },
    }
}

// === impl Member ===

impl Member {
    /// The agent as the executor knows it.
    #[must_use]
    pub fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// The APIs of the catalogue that it may call.
    #[must_use]
    pub fn apis(&self) -> &[Arc<ApiConfig>] {
        &self.apis
    }

    /// The configuration, without secrets, of the credentials that it may refer to.
    #[must_use]
    pub fn credentials(&self) -> &[CredentialConfig] {
        &self.credentials
    }
}

// === impl UnreadableSecret ===

impl UnreadableSecret {
    /// Why it cannot be read.
    pub(super) fn cause(&self) -> &SecretError {
        match self {
            Self::Credential { source, .. } | Self::Key { source, .. } => source,
        }
    }
}

impl std::fmt::Debug for LastKnownSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastKnownSecrets")
            .field("unsure", &self.unsure)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ApiKeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeyHash")
            .field("owner", self.owner.agent.id())
            .finish_non_exhaustive()
    }
}

/// The secret files of a configuration. If one changes, the directory must be read again.
pub(super) fn secret_files(config: &WorkflowsConfig) -> Vec<PathBuf> {
    let credentials = config.credentials.iter();
    let credentials = credentials.filter_map(|one| one.value.path().map(PathBuf::from));
    let keys = config.agents.iter().flat_map(|agent| &agent.keys);
    let keys = keys.filter_map(|key| match key {
        ApiKey::File(path) => Some(path.clone()),
        ApiKey::Sha256(_) | ApiKey::Env(_) => None,
    });
    credentials.chain(keys).collect()
}

fn credentials(
    config: &WorkflowsConfig,
    apis: &[Arc<ApiConfig>],
    remembered: &mut LastKnownSecrets,
    unread: &mut Vec<UnreadableSecret>,
) -> BTreeMap<Text, Credential> {
    let mut credentials = BTreeMap::new();
    for credential in &config.credentials {
        let secret = match remembered.secret(&credential.value) {
            Ok(revealed) => Secret::new(revealed.as_str().to_owned()),
            Err(source) => {
                let id = credential.id.clone();
                unread.push(UnreadableSecret::Credential { id, source });
                continue;
            }
        };
        let of_it = |api: &&Arc<ApiConfig>| credential.apis.contains(&api.id);
        let entry = Credential {
            kind: kind(credential.kind),
            secret,
            apis: Apis {
                any: false,
                bases: bases(apis.iter().filter(of_it)),
            },
            description: credential.description.clone(),
        };
        credentials.insert(credential.id.text().clone(), entry);
    }
    credentials
}

fn member(
    config: &AgentConfig,
    workflows: &WorkflowsConfig,
    apis: &[Arc<ApiConfig>],
    credentials: &BTreeMap<Text, Credential>,
) -> Member {
    let allowed = |grants: &[Grant]| grants.iter().map(Grant::as_str).collect::<Allowed>();
    let may_call = allowed(&config.apis);
    let own_apis: Vec<_> = apis
        .iter()
        .filter(|api| may_call.contains(api.id.as_str()))
        .cloned()
        .collect();
    let may_use = allowed(&config.credentials);
    let own_credentials = credentials
        .iter()
        .filter(|(id, _)| may_use.contains(id))
        .map(|(id, credential)| (id.clone(), credential.clone()));
    let policy = Policy {
        operations: allowed(&config.operations),
        apis: Apis {
            any: may_call == Allowed::All,
            bases: bases(&own_apis),
        },
        credentials: may_use.clone(),
        storages: storages(allowed(&config.storages), workflows),
        max_operations: usize::try_from(config.max_operations).unwrap_or(usize::MAX),
        max_execution_time: config.max_execution_time.0,
        ..Policy::default()
    };
    let agent = Agent::new(
        config.id.text().clone(),
        policy,
        own_credentials.collect(),
        rates(&config.rates),
    );
    Member {
        agent: Arc::new(agent),
        apis: own_apis,
        credentials: workflows
            .credentials
            .iter()
            .filter(|credential| {
                let id = credential.id.as_str();
                may_use.contains(id) && credentials.contains_key(id)
            })
            .cloned()
            .collect(),
    }
}

/// The storages that exist. Without a directory for the files, `*` does not grant `file`.
fn storages(granted: Allowed, workflows: &WorkflowsConfig) -> Allowed {
    if workflows.file_directory.is_some() {
        return granted;
    }
    let storages = Storage::ALL.iter().filter(|of| **of != Storage::File);
    let storages = storages.map(|of| of.as_str());
    storages.filter(|of| granted.contains(of)).collect()
}

fn bases<'a>(
    apis: impl IntoIterator<Item = &'a Arc<ApiConfig>>,
) -> Vec<a2abus_models::a2e_workflow::target::ApiBase> {
    apis.into_iter().map(|api| api.base_url.0.clone()).collect()
}

fn kind(kind: CredentialType) -> CredentialKind {
    match kind {
        CredentialType::BearerToken => CredentialKind::BearerToken,
        CredentialType::Basic => CredentialKind::Basic,
        CredentialType::ApiKey => CredentialKind::ApiKey,
        CredentialType::Password => CredentialKind::Password,
        CredentialType::Custom => CredentialKind::Custom,
    }
}

fn rates(config: &RatesConfig) -> Rates {
    Rates {
        requests_per_minute: config.requests_per_minute,
        requests_per_hour: config.requests_per_hour,
        requests_per_day: config.requests_per_day,
        api_calls_per_minute: config.api_calls_per_minute,
        api_calls_per_hour: config.api_calls_per_hour,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn config(text: &str) -> WorkflowsConfig {
        let text = format!("calls: {{enabled: false}}\nworkflows: {text}");
        crate::config::Config::read("f", &text, [])
            .unwrap()
            .workflows
    }

    /// The error message for agents that cannot be used, with its cause.
    fn refused(text: &str) -> String {
        let error = Directory::read(&config(text)).unwrap_err();
        let cause = error.source().map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    }

    #[test]
    fn a_secret_that_is_not_there_is_named() {
        assert_eq!(
            refused("{credentials: [{id: c, type: custom, value: {env: A2ABUS_TEST_NOT_SET}}]}"),
            "credential c: the environment variable A2ABUS_TEST_NOT_SET is not set"
        );
        assert_eq!(
            refused("{agents: [{id: a, keys: [{file: /nowhere/key}]}]}"),
            "a key of agent a: cannot read the secret file /nowhere/key"
        );
    }

    #[test]
    fn a_key_is_of_one_agent_wherever_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, "one-key\n").unwrap();
        let (file, hex) = (file.display(), hex(&ApiKey::digest_of("one-key")));
        let agents = |other: &str| {
            format!(
                "{{agents: [{{id: a, keys: [{{file: {file}}}, {{sha256: {hex}}}]}}, {{id: b, keys: [{other}]}}]}}"
            )
        };
        assert_eq!(
            refused(&agents(&format!("{{file: {file}}}"))),
            "the agents a and b have the same key"
        );
        let read = Directory::read(&config(&agents(""))).unwrap();
        assert_eq!(read.authenticate("one-key").unwrap().agent().id(), "a");
        assert!(read.authenticate("one-key\n").is_none());
        assert!(read.authenticate("").is_none());
    }

    #[test]
    fn ungranted_capabilities_are_not_listed() {
        let read = Directory::read(&config(
            "{apis: [{id: x, base_url: \"https://x.example.com\"}, {id: y, base_url: \"https://y.example.com\"}], \
              agents: [{id: none}, {id: one, apis: [y]}, {id: all, apis: [\"*\"]}]}",
        ))
        .unwrap();
        for (id, any, bases) in [("none", false, 0), ("one", false, 1), ("all", true, 2)] {
            let apis = &read.agent(id).unwrap().agent().policy().apis;
            assert_eq!((apis.any, apis.bases.len()), (any, bases), "{id}");
        }
        assert_eq!(
            read.agent("none").unwrap().agent().policy().operations,
            Allowed::default()
        );
        assert!(read.agent("x").is_none());
    }

    /// The storage does not exist, so no workflow that writes to it begins.
    #[test]
    fn no_agent_may_write_files_without_a_directory_for_them() {
        for (directory, expected) in [("", false), ("file_directory: /files, ", true)] {
            let text = format!("{{{directory}agents: [{{id: a, storages: [\"*\"]}}]}}");
            let read = Directory::read(&config(&text)).unwrap();
            let policy = read.agent("a").unwrap().agent().policy();
            assert_eq!(policy.permits_storage(Storage::File), expected);
            assert!(policy.permits_storage(Storage::Local));
            assert!(policy.permits_storage(Storage::Session));
        }
    }

    fn hex(digest: &[u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
