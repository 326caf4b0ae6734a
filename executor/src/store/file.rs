//! Files of agents. No file may ever be created or read outside the root.
//!
//! Every step from the root opens a name in an open directory and follows no symbolic link, so concurrent changes of
//! the tree by others do not matter. Source: docs/protocols/a2e-workflows.md §7, file store.

mod tree;

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::error::OpenError;
use super::usage::{MAX_AGENT_ENTRIES, MAX_VALUE_BYTES, StorageError, Usage};
use crate::environment::StoreError;

/// A directory in which agents store files, each agent in its own directory: `<root>/<agent>/<key>`. Special characters
/// in an agent's name are written as `%XX`.
///
/// It needs the tokio runtime, because it uses its blocking threads for disk access. Other processes may read and
/// remove files there, but not store any.
#[derive(Debug, Clone)]
pub struct FileStore(Arc<Files>);

#[derive(Debug)]
struct Files {
    root: OwnedFd,
    accounts: Mutex<HashMap<String, Account>>,
}

/// The usage of one agent; `None` while it is unknown. One write at a time.
type Account = Arc<Mutex<Option<Usage>>>;

/// A file within the directory of an agent.
struct Key<'a> {
    directories: Vec<&'a str>,
    name: &'a str,
}

// === impl FileStore ===

impl FileStore {
    /// Opens a directory, or creates it for its owner only. Blocks.
    ///
    /// # Errors
    /// When it is not a directory (for example a symbolic link), or cannot be opened.
    pub fn open(root: &Path) -> Result<Self, OpenError> {
        let opened = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)
            .and_then(|()| tree::open(root));
        let root = opened.map_err(|error| OpenError::Unusable {
            path: root.to_owned(),
            source: error.into(),
        })?;
        Ok(Self(Arc::new(Files {
            root,
            accounts: Mutex::default(),
        })))
    }

    pub(super) async fn keep(
        &self,
        agent: &str,
        key: &str,
        text: Bytes,
    ) -> Result<(), StorageError> {
        let (agent, key) = (agent.to_owned(), key.to_owned());
        self.run(move |files| files.keep(&agent, &key, &text))
            .await?
    }

    pub(super) async fn get(&self, agent: &str, key: &str) -> Result<Option<Bytes>, StoreError> {
        let (agent, key) = (agent.to_owned(), key.to_owned());
        self.run(move |files| files.get(&agent, &key).map_err(failed))
            .await?
    }

    /// Runs a function on a blocking thread, to its end even if nobody waits any more.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let files = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&files)).await;
        done.map_err(|error| StoreError(error.into()))
    }
}

fn failed(error: io::Error) -> StoreError {
    StoreError(error.into())
}

// === impl Files ===

impl Files {
    fn keep(&self, agent: &str, key: &str, text: &[u8]) -> Result<(), StorageError> {
        let directory = directory_of(agent).ok_or(StorageError::BadKey)?;
        let key = Key::parse(key).ok_or(StorageError::BadKey)?;
        let account = self.account(&directory);
        let mut account = account.lock().unwrap_or_else(PoisonError::into_inner);
        let known = account.take();
        let mut usage = match known {
            Some(usage) => usage,
            None => self.measure(&directory)?,
        };
        let mut result = self.put(&directory, &key, text, &mut usage);
        if known.is_some()
            && matches!(
                result,
                Err(StorageError::TooManyBytes | StorageError::TooManyEntries)
            )
        {
            // Others may have removed files since.
            usage = self.measure(&directory)?;
            result = self.put(&directory, &key, text, &mut usage);
        }
        if !matches!(result, Err(StorageError::Failed(_))) {
            *account = Some(usage);
        }
        result
    }

    fn account(&self, directory: &str) -> Account {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        match accounts.get(directory) {
            Some(account) => Arc::clone(account),
            None => Arc::clone(accounts.entry(directory.to_owned()).or_default()),
        }
    }

    fn measure(&self, directory: &str) -> Result<Usage, StorageError> {
        let mut usage = Usage::default();
        match tree::enter(self.root.as_fd(), directory) {
            Ok(directory) => tree::measure(directory, &mut usage).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error).into()),
        }
        Ok(usage)
    }

    fn put(
        &self,
        directory: &str,
        key: &Key<'_>,
        text: &[u8],
        usage: &mut Usage,
    ) -> Result<(), StorageError> {
        let (mut at, _) = tree::open_or_create(self.root.as_fd(), directory).map_err(failed)?;
        for name in &key.directories {
            let next = match tree::enter(at.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if usage.entries >= MAX_AGENT_ENTRIES {
                        return Err(StorageError::TooManyEntries);
                    }
                    let (next, made) = tree::open_or_create(at.as_fd(), name).map_err(failed)?;
                    usage.entries += u64::from(made);
                    next
                }
                entered => entered.map_err(failed)?,
            };
            at = next;
        }
        let old = tree::size(at.as_fd(), key.name).map_err(failed)?;
        let next = usage.replace(old, text.len() as u64)?;
        tree::replace(at.as_fd(), key.name, text).map_err(failed)?;
        *usage = next;
        Ok(())
    }

    fn get(&self, agent: &str, key: &str) -> io::Result<Option<Bytes>> {
        let (Some(directory), Some(key)) = (directory_of(agent), Key::parse(key)) else {
            return Ok(None);
        };
        let read = || {
            let mut at = tree::enter(self.root.as_fd(), &directory)?;
            for name in &key.directories {
                at = tree::enter(at.as_fd(), name)?;
            }
            tree::read(at.as_fd(), key.name, MAX_VALUE_BYTES)
        };
        match read() {
            Ok(text) => Ok(Some(text.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The directory of an agent, unique per name; `None` if its name is too long or empty.
fn directory_of(agent: &str) -> Option<String> {
    let mut name = String::with_capacity(agent.len());
    for byte in agent.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-' => name.push(byte.into()),
            // No name may begin with a dot, because `..` would be another directory.
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    (1..=tree::MAX_NAME).contains(&name.len()).then_some(name)
}

// === impl Key ===

impl<'a> Key<'a> {
    /// Parses a relative path. Every name must begin with a letter, a digit or `_`, and may contain hyphens and dots
    /// after that. Validation has checked this already, but here the safety of the host depends on it.
    fn parse(key: &'a str) -> Option<Self> {
        let is_name = |name: &&str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            name.len() <= tree::MAX_NAME
                && name.bytes().next().is_some_and(plain)
                && name.bytes().all(|b| plain(b) || b == b'.' || b == b'-')
        };
        let mut directories: Vec<_> = key.split('/').collect();
        let name = directories.pop()?;
        (directories.len() < tree::MAX_DEPTH && directories.iter().chain([&name]).all(is_name))
            .then_some(Self { directories, name })
    }
}

#[cfg(test)]
mod tests;
