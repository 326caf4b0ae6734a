//! A2E messages by their type string alone: what it says of a message nobody has read. Nothing here allocates.
//!
//! Source: `a2e-message` sections 1.4 and 8.2.

use crate::protocol::Kind;

/// The known types, in order of their bytes.
pub const TYPES: [&str; 121] = [
    "chain/event",
    "chain/req",
    "chain/resp",
    "env/batch_step/req",
    "env/batch_step/resp",
    "env/close/req",
    "env/close/resp",
    "env/exp/list/req",
    "env/exp/list/resp",
    "env/observe/req",
    "env/observe/resp",
    "env/plan/req",
    "env/plan/resp",
    "env/render/req",
    "env/render/resp",
    "env/reset/req",
    "env/reset/resp",
    "env/space/req",
    "env/space/resp",
    "env/state/push",
    "env/step/req",
    "env/step/resp",
    "error",
    "handshake/req",
    "handshake/resp",
    "invoke/event",
    "learn/adapt/req",
    "learn/adapt/resp",
    "learn/experience/req",
    "learn/experience/resp",
    "learn/feedback/req",
    "learn/feedback/resp",
    "learn/refinement/apply/req",
    "learn/refinement/apply/resp",
    "learn/refinement/history/req",
    "learn/refinement/history/resp",
    "learn/refinement/plan/req",
    "learn/refinement/plan/resp",
    "learn/refinement/review/req",
    "learn/refinement/review/resp",
    "learn/refinement/rollback/req",
    "learn/refinement/rollback/resp",
    "learn/stats/req",
    "learn/stats/resp",
    "mcp/prompt/get/req",
    "mcp/prompt/get/resp",
    "mcp/prompt/list/req",
    "mcp/prompt/list/resp",
    "mcp/resource/list/req",
    "mcp/resource/list/resp",
    "mcp/resource/read/req",
    "mcp/resource/read/resp",
    "mcp/resource/subscribe/req",
    "mcp/resource/subscribe/resp",
    "mcp/root/list/req",
    "mcp/root/list/resp",
    "mcp/sample/req",
    "mcp/sample/resp",
    "mcp/server/list/req",
    "mcp/server/list/resp",
    "mcp/server/push",
    "mcp/server/register/req",
    "mcp/server/register/resp",
    "mcp/server/unregister/req",
    "mcp/server/unregister/resp",
    "memory/forget/req",
    "memory/forget/resp",
    "memory/init/req",
    "memory/init/resp",
    "memory/retrieve/req",
    "memory/retrieve/resp",
    "memory/store/req",
    "memory/store/resp",
    "multi_agent/await",
    "multi_agent/await/resp",
    "multi_agent/delegate",
    "multi_agent/delegate/resp",
    "multi_agent/list",
    "multi_agent/list/resp",
    "multi_agent/spawn",
    "multi_agent/spawn/resp",
    "multi_agent/terminate",
    "multi_agent/terminate/resp",
    "ping",
    "planning/plan/board",
    "planning/plan/board/resp",
    "planning/plan/create",
    "planning/plan/create/resp",
    "planning/plan/list",
    "planning/plan/list/resp",
    "planning/task/add",
    "planning/task/add/resp",
    "planning/task/list",
    "planning/task/list/resp",
    "planning/task/update",
    "planning/task/update/resp",
    "pong",
    "proc/kill/req",
    "proc/kill/resp",
    "proc/read/event",
    "proc/spawn/req",
    "proc/spawn/resp",
    "proc/status/req",
    "proc/status/resp",
    "proc/write/req",
    "proc/write/resp",
    "shutdown",
    "skill/call/req",
    "skill/call/resp",
    "skill/discover/req",
    "skill/discover/resp",
    "skill/event",
    "tool/call/req",
    "tool/call/resp",
    "tool/event",
    "tool/list/req",
    "tool/list/resp",
    "toolkit/configure/req",
    "toolkit/configure/resp",
    "toolkit/list/req",
    "toolkit/list/resp",
];

/// The namespaces whose requests end without `/req`.
const BARE_NAMESPACES: [&str; 2] = ["multi_agent", "planning"];

/// The capability that serves each namespace.
const CAPABILITIES: [(&str, &str); 11] = [
    ("tool", "tools"),
    ("skill", "skill"),
    ("proc", "proc"),
    ("memory", "memory"),
    ("chain", "chains"),
    ("toolkit", "toolkits"),
    ("multi_agent", "multi_agent"),
    ("planning", "planning"),
    ("env", "env"),
    ("learn", "learning"),
    ("mcp", "mcp"),
];

/// The members that name what a request is about: the first one that holds a string that is not
/// empty gives `a2eobject`.
pub const OBJECT_MEMBERS: [&str; 12] = [
    "tool_name",
    "name",
    "toolkit_name",
    "proc_id",
    "memory_id",
    "episode_id",
    "env_name",
    "plan_id",
    "subagent_id",
    "server_id",
    "chain_id",
    "component_name",
];

/// Whether the type is one of the 121 known ones. Case and blanks count.
#[must_use]
pub fn is_known(type_name: &str) -> bool {
    TYPES.binary_search(&type_name).is_ok()
}

/// Whether it is progress of a call.
#[must_use]
pub fn is_event(type_name: &str) -> bool {
    type_name.ends_with("/event")
}

/// Whether it is something nobody asked for.
#[must_use]
pub fn is_push(type_name: &str) -> bool {
    type_name.ends_with("/push")
}

/// Whether it is about the connection between an agent and its environment, and for nobody else. Source: `a2e-message`
/// section 8.3.
#[must_use]
pub fn is_link_local(type_name: &str) -> bool {
    matches!(
        type_name,
        "handshake/req" | "handshake/resp" | "ping" | "pong" | "shutdown"
    )
}

/// The operation: one trailing `/req` or `/resp` less, `ping` for `pong`, and any other type as it
/// is.
///
/// ```
/// use a2abus_plugin::protocol::a2e_message::operation;
///
/// assert_eq!(operation("tool/call/req"), "tool/call");
/// assert_eq!(operation("planning/task/add/resp"), "planning/task/add");
/// assert_eq!(operation("pong"), "ping");
/// assert_eq!(operation("tool/event"), "tool/event");
/// ```
#[must_use]
pub fn operation(type_name: &str) -> &str {
    if type_name == "pong" {
        return "ping";
    }
    let request = type_name.strip_suffix("/req");
    request
        .or_else(|| type_name.strip_suffix("/resp"))
        .unwrap_or(type_name)
}

/// What the message is in its exchange; `req_id` is empty where it has none.
#[must_use]
pub fn kind(type_name: &str, req_id: &str) -> Kind {
    let belongs = !req_id.is_empty();
    match type_name {
        "ping" => Kind::Request,
        "shutdown" => Kind::Notification,
        "pong" => Kind::Response,
        // The SDK writes the answer with the type of the request.
        "mcp/sample/req" if belongs => Kind::Response,
        _ if is_push(type_name) => Kind::Notification,
        _ if is_event(type_name) && belongs => Kind::Stream,
        _ if is_event(type_name) => Kind::Notification,
        _ if type_name.ends_with("/resp") => Kind::Response,
        _ if type_name.ends_with("/req") => Kind::Request,
        _ if BARE_NAMESPACES.contains(&namespace(type_name)) => Kind::Request,
        // `error`, and types of no known shape.
        _ if belongs => Kind::Response,
        _ => Kind::Notification,
    }
}

/// The capability that serves the type, by its namespace; `None` for the base types and unknown
/// namespaces.
#[must_use]
pub fn capability(type_name: &str) -> Option<&'static str> {
    let namespace = namespace(type_name);
    CAPABILITIES
        .into_iter()
        .find_map(|(name, capability)| (name == namespace).then_some(capability))
}

/// What stands before the first slash; nothing where there is none.
fn namespace(type_name: &str) -> &str {
    type_name.split_once('/').map_or("", |(name, _)| name)
}
