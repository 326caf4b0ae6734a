//! Can every secret and TLS file that the bridge needs to start be read, are the certificates valid, do the clients of
//! the buses accept them, and are the programs of attached agents on this machine? No message shows a secret.

use std::collections::HashMap;
use std::error::Error as _;

use a2abus_transports::SecretError;

use super::checker::Checker;
use crate::config::agents::KeyError;
use crate::config::attach::NOT_EXECUTABLE;
use crate::config::path::ValuePath;
use crate::config::transport::TransportConfig;
use crate::config::workflows::WorkflowsConfig;
use crate::config::{AttachConfig, PushConfig, StateLog};

pub(super) fn check(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    transports(checker);
    let path = ValuePath::root().key("agents");
    for (name, agent) in &sections.agents {
        let attach = agent.as_ref().and_then(|agent| agent.attach.as_ref());
        for (section, key, secret) in attach.into_iter().flat_map(AttachConfig::secrets) {
            if let Err(error) = secret.reveal() {
                let path = path.key(name).key("attach").key(section).key(key);
                unread(checker, path, &error);
            }
        }
    }
    if let Some(workflows) = sections.workflows.as_ref().filter(|it| it.enabled) {
        let path = ValuePath::root().key("workflows");
        for (index, credential) in workflows.credentials.iter().enumerate() {
            if let Err(error) = credential.value.reveal() {
                let path = path.key("credentials").index(index).key("value");
                unread(checker, path, &error);
            }
        }
        keys(checker, &path, workflows);
    }
    files(checker);
    programs(checker);
    let push = sections.a2a.as_ref().map(|a2a| &a2a.push_notifications);
    if let Some(push) = push.filter(|push| push.enabled) {
        let path = ValuePath::root()
            .key("a2a")
            .key("push_notifications")
            .key("keys");
        for (index, key) in push.keys.iter().enumerate() {
            match PushConfig::reveal_key(key) {
                Ok(_) => {}
                Err(KeyError::Secret(error)) => unread(checker, path.index(index), &error),
                Err(short @ KeyError::Short) => checker.error(path.index(index), short.to_string()),
            }
        }
    }
}

fn transports(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let path = ValuePath::root().key("transports");
    for (name, transport) in &sections.transports {
        for (place, secret) in transport.iter().flat_map(TransportConfig::secrets) {
            if let Err(error) = secret.reveal() {
                unread(checker, path.key(name).below(place), &error);
            }
        }
        let findings = transport.as_ref().map(TransportConfig::tls_findings);
        let findings = findings.unwrap_or_default();
        let login = transport.as_ref().and_then(TransportConfig::login_problem);
        let unusable = findings.unusable.into_iter().chain(findings.invalid);
        for problem in unusable.chain(login) {
            checker.error(path.key(name).below(&problem.key), problem.message);
        }
        for problem in findings.expiring {
            checker.warning(path.key(name).below(&problem.key), problem.message);
        }
        let path = path.key(name);
        if !checker.problems.has_error_under(&path) {
            for problem in transport.iter().flat_map(TransportConfig::refusals) {
                checker.error(path.below(&problem.key), problem.message);
            }
        }
    }
}

/// Checks files that are not secrets.
fn files(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let workflows = sections.workflows.as_ref().filter(|it| it.enabled);
    let ca_files = workflows.map(|workflows| workflows.ca_files.as_slice());
    for (index, file) in ca_files.unwrap_or_default().iter().enumerate() {
        if let Err(error) = std::fs::read(file) {
            let path = ValuePath::root().key("workflows");
            let path = path.key("ca_files").index(index);
            checker.error(path, format!("cannot be read: {error}"));
        }
    }
    let state = sections.state.as_ref();
    let state = state.filter(|state| state.place() == StateLog::Embedded);
    if let Some(directory) = state.and_then(|state| state.directory.as_deref())
        && !directory.is_dir()
    {
        let path = ValuePath::root().key("state").key("directory");
        let message = "is not a directory here: create it before the bridge starts";
        checker.warning(path, message);
    }
}

/// Warns of programs that are not on this machine, or not executable; the bridge may run on another one.
fn programs(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    for (name, agent) in &sections.agents {
        let Some(attach) = agent.as_ref().and_then(|agent| agent.attach.as_ref()) else {
            continue;
        };
        let path = ValuePath::root().key("agents").key(name).key("attach");
        let directory = attach.directory.as_ref();
        if directory.is_some_and(|directory| !directory.is_dir()) {
            let message = "is not a directory here: create it before the bridge starts";
            checker.warning(path.key("directory"), message);
        } else if let Some(why) = attach.missing_program() {
            let message = match why {
                NOT_EXECUTABLE => why.to_owned(),
                _ => format!("is not on this machine: {why}"),
            };
            checker.warning(path.key("command").index(0), message);
        }
    }
}

/// Checks that a key identifies only one agent, whatever its form in the file.
fn keys(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let mut first: HashMap<[u8; 32], (usize, ValuePath)> = HashMap::new();
    for (index, agent) in workflows.agents.iter().enumerate() {
        for (place, key) in agent.keys.iter().enumerate() {
            let path = path.key("agents").index(index).key("keys").index(place);
            let digest = match key.digest() {
                Ok(Some(digest)) => digest,
                // The checks without secrets have already reported an invalid digest.
                Ok(None) => continue,
                Err(error) => {
                    unread(checker, path, &error);
                    continue;
                }
            };
            match first.get(&digest) {
                None => {
                    first.insert(digest, (index, path));
                }
                // Two equal digests are already reported, too.
                Some((owner, first))
                    if *owner != index && !checker.problems.has_error_under(&path) =>
                {
                    checker.error(path, format!("is the same key as {first}"));
                }
                Some(_) => {}
            }
        }
    }
}

fn unread(checker: &mut Checker<'_>, path: ValuePath, error: &SecretError) {
    checker.error(
        path,
        match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    );
}
