//! What a type string tells, without reading the message. Nothing here allocates.
//!
//! Source: `a2e-message` sections 1.4 and 8.2.

use super::body::Body;
use crate::protocol::Kind;

/// The namespaces whose requests end without `/req`.
const BARE_NAMESPACES: [&str; 2] = ["multi_agent", "planning"];

/// Known types that no reader of the SDK has registered; it keeps only their base keys.
const UNREGISTERED: [&str; 2] = ["mcp/server/push", "env/plan/req"];

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
    Body::is_known(type_name)
}

/// Whether the readers of the SDK know the type too; messages of others lose all but their base
/// keys there.
#[must_use]
pub fn is_registered(type_name: &str) -> bool {
    is_known(type_name) && !UNREGISTERED.contains(&type_name)
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
/// use a2abus_plugin::protocol::a2e_message::type_name::operation;
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
