//! The agent and the executor of a workflow.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use a2abus_executor::{Agent, Executor, Object, Rates};
use a2abus_models::a2e_workflow::{Allowed, Apis, Policy, Report, Strictness};
use a2abus_plugin::Text;
use bytes::Bytes;

use super::execution_args::ExecutionArgs;
use crate::cli::command::{Misuse, load};
use crate::config::WorkflowsConfig;
use crate::workflows::{self, Directory};

pub(super) struct Profile {
    pub(super) executor: Executor,
    pub(super) agent: Arc<Agent>,
}

pub(super) fn of(args: &ExecutionArgs) -> anyhow::Result<Profile> {
    let (config, agent) = match &args.policy {
        Some(path) => from_configuration(path, args.agent.as_deref())?,
        None => (WorkflowsConfig::default(), Arc::new(unrestricted())),
    };
    // Does not touch the data of a running bridge.
    let config = WorkflowsConfig {
        data_directory: None,
        ..config
    };
    let environment = workflows::environment(&config)?;
    Ok(Profile {
        executor: Executor::new(environment, workflows::options(&config)?),
        agent,
    })
}

/// The agent of this id, or the only one.
fn from_configuration(
    path: &Path,
    id: Option<&str>,
) -> anyhow::Result<(WorkflowsConfig, Arc<Agent>)> {
    let config = load(path)
        .map_err(|error| Misuse(error.to_string()))?
        .workflows;
    let ids: Vec<&str> = config
        .agents
        .iter()
        .map(|agent| agent.id.as_str())
        .collect();
    let id = match (id, ids.as_slice()) {
        (Some(id), _) if ids.contains(&id) => id,
        (None, [only]) => only,
        (None, []) => {
            return Err(Misuse(format!("{} has no agents in workflows", path.display())).into());
        }
        _ => {
            let message = format!("--agent must be one of {}", ids.join(", "));
            return Err(Misuse(message).into());
        }
    };
    let directory = Directory::read(&config)?;
    let agent = directory.agent(id).map(|member| Arc::clone(member.agent()));
    let agent = agent.ok_or_else(|| Misuse(format!("there is no agent {id}")))?;
    Ok((config, agent))
}

/// An agent that may run all operations: the user may run programs on this machine anyway.
fn unrestricted() -> Agent {
    let policy = Policy {
        operations: Allowed::All,
        apis: Apis {
            any: true,
            bases: Vec::new(),
        },
        storages: ["localStorage", "sessionStorage"].into_iter().collect(),
        ..Policy::default()
    };
    let id = Text::from_static("local");
    Agent::new(id, policy, BTreeMap::new(), Rates::default())
}

// === impl Profile ===

impl Profile {
    pub(super) fn validate(&self, workflow: &Bytes, input: &Object, level: Strictness) -> Report {
        self.executor.validate(&self.agent, workflow, input, level)
    }
}
