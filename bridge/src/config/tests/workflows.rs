//! The executor of workflows.

use super::*;

#[test]
fn an_executor_that_callers_reach_without_a_key_is_a_warning() {
    let text = |rpc: bool, run_as: &str| {
        format!(
            "workflows: {{enabled: true, rpc: {rpc}, agents: [{{id: a}}]}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows{run_as}}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        )
    };
    let warning = "f:1:33: warning: workflows.rpc: anyone who can reach http.listen can execute workflows as a without a key, by POST /rpc";
    check_more(&text(true, ", run_as: a"), &[warning]);
    check_more(&text(false, ", run_as: a"), &[]);
    check_more(&text(true, ", trusts: [sourceagent]"), &[]);
    let off = format!("{}http: {{enabled: false}}\n", text(true, ", run_as: a"));
    check_more(&off, &[]);
}

#[test]
fn a_workflow_binding_says_whose_permissions_requests_have() {
    let check = |keys: &str, problems: &[&str]| {
        let text = format!(
            "workflows: {{enabled: true, agents: [{{id: a}}]}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows{keys}}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        );
        check_more(&text, problems);
    };
    check(", run_as: a", &[]);
    check(", trusts: [sourceagent]", &[]);
    let missing = "f:2:12: bindings[0].run_as: is missing: write the agent with whose permissions all requests run, or trusts: [sourceagent] if every writer of the topics may act for any agent";
    check("", &[missing]);
    check(
        ", trusts: [source]",
        &[
            missing,
            "f:2:74: bindings[0].trusts: source is only for role: events: requests for workflows are not forwarded",
        ],
    );
    check(
        ", run_as: a, trusts: [sourceagent]",
        &[
            "f:2:74: bindings[0].run_as: cannot be combined with trusts: [sourceagent]: keep one of them",
        ],
    );
}

#[test]
fn workflows_refer_to_existing_parts() {
    check_more(
        "
workflows:
  enabled: true
  apis:
  - {id: users, base_url: \"https://api.example.com/v1\"}
  - {id: users, base_url: \"https://b.example.com\"}
  credentials:
  - {id: key, type: api-key, value: {env: KEY}, apis: [user]}
  - {id: key, type: basic, value: {file: /k}}
  agents:
  - {id: a, operations: [ApiCal], apis: [zzz, \"*\"], credentials: [key, kee], storages: [file, local]}
  - {id: a, operations: [\"*\"]}
bindings:
- {name: w, transport: k, topics: [w], role: workflows, run_as: b}
- {name: e, transport: k, topics: [e], run_as: a}
default_route: [{transport: n, topic: t}]
",
        &[
            "f:5:10: workflows.apis[1].id: is already the id of workflows.apis[0]: choose another one",
            "f:7:56: workflows.credentials[0].apis[0]: there is no API user: did you mean users?",
            "f:8:5: warning: workflows.credentials[1].apis: is empty, so the credential is never sent: list the APIs it is for",
            "f:8:10: workflows.credentials[1].id: is already the id of workflows.credentials[0]: choose another one",
            "f:10:26: workflows.agents[0].operations[0]: there is no operation ApiCal: did you mean ApiCall?",
            "f:10:42: workflows.agents[0].apis[0]: there is no API zzz: the APIs are users, users",
            "f:10:72: workflows.agents[0].credentials[1]: there is no credential kee: did you mean key?",
            "f:10:89: workflows.agents[0].storages[0]: needs workflows.file_directory, the directory of the files",
            "f:10:95: workflows.agents[0].storages[1]: there is no storage local: the storages are localStorage, sessionStorage, file",
            "f:11:10: workflows.agents[1].id: is already the id of workflows.agents[0]: choose another one",
            "f:13:65: bindings[0].run_as: there is no agent b: did you mean a?",
            "f:14:48: bindings[1].run_as: is only for bindings with role: workflows",
        ],
    );
}

#[test]
fn invalid_workflow_values_are_reported_with_a_fix() {
    check_more(
        "
workflows:
  workers: 0
  apis: [{id: a, base_url: api.example.com}, {id: b, base_url: \"ftp://b\"}, {id: c, base_url: \"https://u@c?q=1\"}]
  credentials: [{id: k, type: bearer, value: hunter2}, {id: l, type: custom}]
  agents: [{id: a, keys: [{sha256: abc}, {key: x}, hunter2], max_execution_time: 2h, max_operations: 101}]
",
        &[
            "f:2:12: workflows.workers: out of bounds: write 1 to 256",
            "f:3:28: workflows.apis[0].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:3:64: workflows.apis[1].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:3:94: workflows.apis[2].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:4:31: workflows.credentials[0].type: not allowed: the values are bearer-token, basic, api-key, password, custom",
            "f:4:46: workflows.credentials[0].value: secrets must not be in this file: write {env: NAME} or {file: PATH}",
            "f:4:56: workflows.credentials[1].value: is missing: the secret: a file or an environment variable",
            "f:5:36: workflows.agents[0].keys[0].sha256: must match the pattern ^[0-9a-fA-F]{64}$",
            "f:5:42: workflows.agents[0].keys[1].sha256: is missing",
            "f:5:43: workflows.agents[0].keys[1].key: unknown key: the keys here are sha256",
            "f:5:52: workflows.agents[0].keys[2]: secrets must not be in this file: write {env: NAME} or {file: PATH} or {sha256: HEX}",
            "f:5:82: workflows.agents[0].max_execution_time: out of bounds: write 1ms to 1h",
            "f:5:102: workflows.agents[0].max_operations: out of bounds: write 1 to 100",
        ],
    );
}

#[test]
fn unusable_workflows_are_reported() {
    let twice = "a".repeat(64);
    let agents = format!(
        "agents: [{{id: a, keys: [{{sha256: {twice}}}]}}, {{id: b, keys: [{{sha256: {}}}]}}]",
        twice.to_uppercase()
    );
    check_more(
        &format!(
            "workflows: {{{agents}}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows, trusts: [sourceagent]}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        ),
        &[
            "f:1:130: workflows.agents[1].keys[0]: is the same key as workflows.agents[0].keys[0]",
            "f:2:55: bindings[0].role: needs workflows.enabled: true",
        ],
    );
    check_more(
        "http: {enabled: false}\nworkflows: {enabled: true}\ncalls: {enabled: false}\n",
        &[
            "f:2:1: nothing to do: add a binding, or enable http",
            "f:2:12: warning: workflows.agents: is empty, so no agent may execute a workflow",
            "f:2:22: warning: workflows.enabled: the executor cannot be reached: enable http, or write a binding with role: workflows",
        ],
    );
}
