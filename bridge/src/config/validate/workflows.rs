//! Does everything that the `workflows` section refers to exist, and is every entry used?

use a2abus_models::a2e_workflow::OperationType;
use a2abus_models::a2e_workflow::operation::Storage;

use super::checker::{Checker, already};
use crate::config::path::ValuePath;
use crate::config::workflows::{ApiKey, WorkflowsConfig};
use crate::config::{BindingConfig, Claim, Name, Role};

pub(super) fn check(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let Some(workflows) = &sections.workflows else {
        return;
    };
    let path = ValuePath::root().key("workflows");
    ids(checker, &path, workflows);
    credentials(checker, &path, workflows);
    agents(checker, &path, workflows);
    keys(checker, &path, workflows);
    bindings(checker, workflows);
    of_use(checker, &path, workflows);
}

/// Checks that ids are unique within each list.
fn ids(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let lists: [(&str, Vec<&Name>); 3] = [
        ("apis", workflows.apis.iter().map(|api| &api.id).collect()),
        (
            "credentials",
            workflows.credentials.iter().map(|one| &one.id).collect(),
        ),
        (
            "agents",
            workflows.agents.iter().map(|agent| &agent.id).collect(),
        ),
    ];
    for (list, ids) in lists {
        let path = path.key(list);
        let ids = ids.into_iter().enumerate();
        let ids = ids.map(|(index, id)| (path.index(index).key("id"), id));
        checker.unique(ids, |first| already("id", first));
    }
}

fn credentials(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let apis: Vec<&str> = workflows.apis.iter().map(|api| api.id.as_str()).collect();
    for (index, credential) in workflows.credentials.iter().enumerate() {
        let path = path.key("credentials").index(index);
        if credential.apis.is_empty() {
            let message = "is empty, so the credential is never sent: list the APIs it is for";
            checker.warning(path.key("apis"), message);
        }
        for (place, id) in credential.apis.iter().enumerate() {
            let path = path.key("apis").index(place);
            checker.require_known(path, "API", id.as_str(), &apis);
        }
    }
}

fn agents(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let operations: Vec<&str> = OperationType::ALL.iter().map(|of| of.as_str()).collect();
    let storages: Vec<&str> = Storage::ALL.iter().map(|of| of.as_str()).collect();
    let apis: Vec<&str> = workflows.apis.iter().map(|api| api.id.as_str()).collect();
    let secrets = workflows.credentials.iter();
    let credentials: Vec<&str> = secrets.map(|one| one.id.as_str()).collect();
    for (index, agent) in workflows.agents.iter().enumerate() {
        let path = path.key("agents").index(index);
        for (key, what, granted, there) in [
            ("operations", "operation", &agent.operations, &operations),
            ("apis", "API", &agent.apis, &apis),
            (
                "credentials",
                "credential",
                &agent.credentials,
                &credentials,
            ),
            ("storages", "storage", &agent.storages, &storages),
        ] {
            let granted = granted.iter().enumerate();
            for (index, grant) in granted.filter(|(_, grant)| !grant.is_everything()) {
                checker.require_known(path.key(key).index(index), what, grant.as_str(), there);
            }
        }
        let file = agent
            .storages
            .iter()
            .position(|storage| storage.as_str() == "file");
        if let (Some(place), None) = (file, &workflows.file_directory) {
            let message = "needs workflows.file_directory, the directory of the files";
            checker.error(path.key("storages").index(place), message);
        }
    }
}

/// Checks that a key identifies only one agent. Keys in files and variables are compared when they are read.
fn keys(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let path = path.key("agents");
    let keys = workflows
        .agents
        .iter()
        .enumerate()
        .flat_map(|(index, agent)| {
            let path = path.index(index).key("keys");
            let keys = agent.keys.iter().enumerate();
            keys.filter_map(move |(index, key)| match key {
                ApiKey::Sha256(digest) => Some((path.index(index), digest.to_ascii_lowercase())),
                ApiKey::File(_) | ApiKey::Env(_) => None,
            })
        });
    checker.unique(keys, |first| format!("is the same key as {first}"));
}

fn bindings(checker: &mut Checker<'_>, workflows: &WorkflowsConfig) {
    let agents: Vec<&str> = workflows
        .agents
        .iter()
        .map(|agent| agent.id.as_str())
        .collect();
    for (path, binding) in checker.each_binding() {
        let runs = binding.role == Role::Workflows;
        if runs && !workflows.enabled {
            let message = "needs workflows.enabled: true";
            checker.error(path.key("role"), message);
        }
        if binding.progress.is_some() && !runs {
            checker.error(
                path.key("progress"),
                "is only for bindings with role: workflows",
            );
        }
        if runs {
            permissions(checker, &path, binding);
        }
        let Some(agent) = &binding.run_as else {
            continue;
        };
        if runs {
            checker.require_known(path.key("run_as"), "agent", agent.as_str(), &agents);
        } else {
            checker.error(
                path.key("run_as"),
                "is only for bindings with role: workflows",
            );
        }
    }
}

/// Checks that the configuration decides whose permissions a request has; a payload may only do so if that is allowed.
fn permissions(checker: &mut Checker<'_>, path: &ValuePath, binding: &BindingConfig) {
    let believes = binding.trusts.contains(&Claim::SourceAgent);
    if binding.run_as.is_some() == believes {
        let message = match believes {
            true => "cannot be combined with trusts: [sourceagent]: keep one of them",
            false => {
                "is missing: write the agent with whose permissions all requests run, or trusts: [sourceagent] if every writer of the topics may act for any agent"
            }
        };
        checker.error(path.key("run_as"), message);
    }
    if binding.trusts.contains(&Claim::Source) {
        let message = "source is only for role: events: requests for workflows are not forwarded";
        checker.error(path.key("trusts"), message);
    }
}

/// Checks that workflows can reach the executor, and that an agent may use it.
fn of_use(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    if !workflows.enabled {
        return;
    }
    if workflows.agents.is_empty() {
        let message = "is empty, so no agent may execute a workflow";
        checker.warning(path.key("agents"), message);
    }
    open_to_callers(checker, path, workflows);
    let on_bus = |checker: &Checker<'_>| {
        checker.sections.is_broken("bindings")
            || checker.sections.bindings.iter().any(|binding| {
                binding
                    .as_ref()
                    .is_none_or(|binding| binding.role == Role::Workflows)
            })
    };
    if !checker.has_http_listener() && !on_bus(checker) {
        let message =
            "the executor cannot be reached: enable http, or write a binding with role: workflows";
        checker.warning(path.key("enabled"), message);
    }
}

/// Warns that callers of `/rpc` send no key, so all of them have the permissions of `run_as`.
fn open_to_callers(checker: &mut Checker<'_>, path: &ValuePath, workflows: &WorkflowsConfig) {
    let calls = checker.sections.calls.as_ref();
    if !workflows.rpc || !checker.has_http_listener() || calls.is_some_and(|calls| !calls.enabled) {
        return;
    }
    let mut agents: Vec<&str> = checker
        .each_binding()
        .filter(|(_, binding)| binding.role == Role::Workflows)
        .filter_map(|(_, binding)| binding.run_as.as_ref().map(Name::as_str))
        .collect();
    agents.dedup();
    if !agents.is_empty() {
        let message = format!(
            "anyone who can reach http.listen can execute workflows as {} without a key, by POST /rpc",
            agents.join(", ")
        );
        checker.warning(path.key("rpc"), message);
    }
}
