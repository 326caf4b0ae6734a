//! From the text of a case to an agent, its permissions and an executor.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{Allowed, Apis, Policy, Strictness};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;
use bytes::Bytes;

use super::members;
use super::recorded::Recorded;
use crate::agent::{Agent, Credential, CredentialKind, Rates, Secret};
use crate::environment::{Environment, Random};
use crate::executor::{Executor, Options};
use crate::shared::{Limits, OnError};
use crate::store::{FileStore, MemoryStore};
use crate::virtual_clock::VirtualClock;

#[derive(Debug, Clone)]
pub(super) struct Test {
    pub(super) workflow: Bytes,
    pub(super) input: Object,
    pub(super) fixtures: Object,
    pub(super) agent: Arc<Agent>,
    pub(super) max_loop_items: Option<usize>,
    pub(super) on_error: OnError,
    pub(super) strictness: Strictness,
    pub(super) expected: Json,
}

/// The API that is registered if a case registers none.
const API: &str = "https://api.example.com";

/// A random source that returns the same bytes in every run.
struct FixedRandom;

impl Random for FixedRandom {
    fn bits(&self) -> u128 {
        u128::MAX / 2
    }
}

// === impl Test ===

impl Test {
    /// Reads the test of a case.
    pub(super) fn read(value: &Json) -> Result<Self, String> {
        members::check(value)?;
        let empty = Json::Object(Object::default());
        let member = |name| value.get(name).unwrap_or(&empty);
        let options = member("options");
        // A value that is not a string is not a word.
        let text = |name| Some(options.get(name)?.as_str().unwrap_or_default());
        let policy = member("policy");
        let credentials = credentials(object(member("credentials"), "credentials")?)?;
        let agent = agent(policy, credentials)?;
        Ok(Self {
            workflow: workflow(value.get("workflow").ok_or("workflow is missing")?)?,
            input: object(member("input"), "input")?.clone(),
            fixtures: object(member("http_fixtures"), "http_fixtures")?.clone(),
            agent: Arc::new(agent),
            max_loop_items: number(policy, "maxLoopItems")?,
            on_error: match text("onError") {
                None => OnError::default(),
                Some(text) => OnError::from_name(text).ok_or("onError: stop or continue")?,
            },
            strictness: match text("level") {
                None => Strictness::default(),
                Some(text) => {
                    Strictness::from_name(text).ok_or("level: strict, moderate or lenient")?
                }
            },
            expected: value.get("expected").ok_or("expected is missing")?.clone(),
        })
    }

    pub(super) fn executor(
        &self,
        clock: VirtualClock,
        http: Arc<Recorded>,
        files: &Path,
    ) -> Result<Executor, String> {
        let files = FileStore::open(files).map_err(|error| error.to_string())?;
        let environment = Environment {
            clock: Arc::new(clock),
            random: Arc::new(FixedRandom),
            http,
            store: Arc::new(MemoryStore::default()),
        };
        let mut limits = Limits::default();
        limits.max_loop_items = self.max_loop_items.unwrap_or(limits.max_loop_items);
        let options = Options {
            limits,
            files: Some(files),
            ..Options::default()
        };
        Ok(Executor::new(environment, options))
    }
}

/// One line for each element.
fn workflow(lines: &Json) -> Result<Bytes, String> {
    let lines = lines.as_array().ok_or("workflow is not an array")?;
    let line = |line: &Json| match line {
        Json::String(text) => text.to_string(),
        other => other.to_string(),
    };
    Ok(lines.iter().map(line).collect::<Vec<_>>().join("\n").into())
}

fn agent(policy: &Json, credentials: BTreeMap<Text, Credential>) -> Result<Agent, String> {
    let allowed = |name| match policy.get(name) {
        None => Ok(Allowed::All),
        Some(list) => Ok::<_, String>(strings(list, name)?.into_iter().collect()),
    };
    let apis = match policy.get("apis") {
        None => vec![API],
        Some(list) => strings(list, "apis")?,
    };
    let files = match policy.get("fileStorage") {
        None | Some(Json::Bool(true)) => Some(Storage::File),
        Some(Json::Bool(false)) => None,
        Some(_) => return Err("policy.fileStorage: true or false".to_owned()),
    };
    let storages = [Storage::Local, Storage::Session].into_iter().chain(files);
    let default = Policy::default();
    let time = number(policy, "maxExecutionTimeMs")?.map(|ms| Duration::from_millis(ms as u64));
    let policy = Policy {
        operations: allowed("operations")?,
        credentials: allowed("credentials")?,
        apis: Apis::parse(apis).map_err(|error| format!("apis: {error}"))?,
        storages: storages.map(|storage| storage.as_str()).collect(),
        max_operations: number(policy, "maxOperations")?.unwrap_or(default.max_operations),
        max_execution_time: time.unwrap_or(default.max_execution_time),
        ..default
    };
    Ok(Agent::new(
        "tester".into(),
        policy,
        credentials,
        Rates::default(),
    ))
}

fn credentials(members: &Object) -> Result<BTreeMap<Text, Credential>, String> {
    members
        .iter()
        .map(|(id, value)| Ok((id.clone(), credential(id, value)?)))
        .collect()
}

fn credential(id: &str, value: &Json) -> Result<Credential, String> {
    let text = |name: &str| {
        let text = value.get(name).and_then(Json::as_str);
        text.ok_or_else(|| format!("credentials.{id}: {name} is not a string"))
    };
    let kind = CredentialKind::from_name(text("type")?);
    let apis = match value.get("apis") {
        None => vec![API],
        Some(list) => strings(list, "apis")?,
    };
    Ok(Credential {
        kind: kind.ok_or_else(|| format!("credentials.{id}: no such type"))?,
        secret: Secret::new(text("value")?.to_owned()),
        apis: Apis::parse(apis).map_err(|error| format!("credentials.{id}: {error}"))?,
        description: None,
    })
}

fn object<'a>(value: &'a Json, name: &str) -> Result<&'a Object, String> {
    value
        .as_object()
        .ok_or_else(|| format!("{name} is not an object"))
}

fn strings<'a>(value: &'a Json, name: &str) -> Result<Vec<&'a str>, String> {
    let list = value
        .as_array()
        .map(|list| list.iter().map(Json::as_str).collect());
    list.flatten()
        .ok_or_else(|| format!("{name} is not a list of strings"))
}

fn number(value: &Json, name: &str) -> Result<Option<usize>, String> {
    match value.get(name) {
        None => Ok(None),
        Some(value) => match value
            .as_i64()
            .and_then(|number| usize::try_from(number).ok())
        {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name} is not a whole number")),
        },
    }
}
