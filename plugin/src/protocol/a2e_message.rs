//! What the type string of an A2E message implies, without reading the message. Does not allocate.
//!
//! Source: docs/protocols/a2e-messages.md §1.4 and §8.2.

use crate::protocol::Kind;

/// The namespaces whose requests end without `/req`.
const BARE_NAMESPACES: [&str; 2] = ["multi_agent", "planning"];

/// The known types without a namespace.
const BASE_TYPES: [&str; 4] = ["error", "ping", "pong", "shutdown"];

/// The namespaces, each with its capability and the rest of its known types after the first slash.
const NAMESPACES: [(&str, Option<&str>, &str); 13] = [
    ("handshake", None, "req resp"),
    ("invoke", None, "event"),
    (
        "tool",
        Some("tools"),
        "call/req call/resp event list/req list/resp",
    ),
    (
        "skill",
        Some("skill"),
        "call/req call/resp discover/req discover/resp event",
    ),
    (
        "proc",
        Some("proc"),
        "kill/req kill/resp read/event spawn/req spawn/resp status/req status/resp \
         write/req write/resp",
    ),
    (
        "memory",
        Some("memory"),
        "forget/req forget/resp init/req init/resp retrieve/req retrieve/resp store/req \
         store/resp",
    ),
    ("chain", Some("chains"), "event req resp"),
    (
        "toolkit",
        Some("toolkits"),
        "configure/req configure/resp list/req list/resp",
    ),
    (
        "multi_agent",
        Some("multi_agent"),
        "await await/resp delegate delegate/resp list list/resp spawn spawn/resp \
         terminate terminate/resp",
    ),
    (
        "planning",
        Some("planning"),
        "plan/board plan/board/resp plan/create plan/create/resp plan/list plan/list/resp \
         task/add task/add/resp task/list task/list/resp task/update task/update/resp",
    ),
    (
        "env",
        Some("env"),
        "batch_step/req batch_step/resp close/req close/resp exp/list/req exp/list/resp \
         observe/req observe/resp plan/req plan/resp render/req render/resp reset/req \
         reset/resp space/req space/resp state/push step/req step/resp",
    ),
    (
        "learn",
        Some("learning"),
        "adapt/req adapt/resp experience/req experience/resp feedback/req feedback/resp \
         refinement/apply/req refinement/apply/resp refinement/history/req \
         refinement/history/resp refinement/plan/req refinement/plan/resp \
         refinement/review/req refinement/review/resp refinement/rollback/req \
         refinement/rollback/resp stats/req stats/resp",
    ),
    (
        "mcp",
        Some("mcp"),
        "prompt/get/req prompt/get/resp prompt/list/req prompt/list/resp \
         resource/list/req resource/list/resp resource/read/req resource/read/resp \
         resource/subscribe/req resource/subscribe/resp root/list/req root/list/resp \
         sample/req sample/resp server/list/req server/list/resp server/push \
         server/register/req server/register/resp server/unregister/req \
         server/unregister/resp",
    ),
];

/// Whether the type is exactly one of the 121 known types.
#[must_use]
pub fn is_known(type_name: &str) -> bool {
    match type_name.split_once('/') {
        None => BASE_TYPES.contains(&type_name),
        Some((name, rest)) => NAMESPACES
            .iter()
            .any(|(known, _, types)| *known == name && types.split(' ').any(|word| word == rest)),
    }
}

/// Whether it reports the progress of a call.
#[must_use]
pub fn is_event(type_name: &str) -> bool {
    type_name.ends_with("/event")
}

/// Whether it is unsolicited.
#[must_use]
pub fn is_push(type_name: &str) -> bool {
    type_name.ends_with("/push")
}

/// Whether it concerns only the connection between an agent and its environment. Source: docs/protocols/a2e-messages.md
/// §8.3.
#[must_use]
pub fn is_link_local(type_name: &str) -> bool {
    matches!(
        type_name,
        "handshake/req" | "handshake/resp" | "ping" | "pong" | "shutdown"
    )
}

/// The operation: the type without one trailing `/req` or `/resp`, `ping` for `pong`, and any other type unchanged.
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

/// The role of the message in its exchange; `req_id` is empty if the message has none.
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
        // `error`, and types of unknown form.
        _ if belongs => Kind::Response,
        _ => Kind::Notification,
    }
}

/// The capability that serves the type, by its namespace; `None` for the base types and unknown
/// namespaces.
#[must_use]
pub fn capability(type_name: &str) -> Option<&'static str> {
    let namespace = namespace(type_name);
    let known = NAMESPACES.iter().find(|(name, ..)| *name == namespace);
    known.and_then(|(_, capability, _)| *capability)
}

/// Whether a version is supported: 1, or 1 with any further numbers after dots. Source: docs/protocols/a2e-messages.md
/// §1.1 and §6.
#[must_use]
pub fn is_version_1(version: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = version.split('.');
    parts.next() == Some("1") && parts.all(is_number)
}

/// A string as the Boolean that the SDK reads from it, in any letter case. Source: docs/protocols/a2e-messages.md §1.3.
#[must_use]
pub fn flag(text: &str) -> Option<bool> {
    const TRUE: [&str; 6] = ["1", "on", "t", "true", "y", "yes"];
    const FALSE: [&str; 6] = ["0", "off", "f", "false", "n", "no"];
    let is_one_of = |words: [&str; 6]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_one_of(TRUE) {
        Some(true)
    } else {
        is_one_of(FALSE).then_some(false)
    }
}

/// The text before the first slash; empty if there is none.
fn namespace(type_name: &str) -> &str {
    type_name.split_once('/').map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_121_types_are_known() {
        let in_namespaces = NAMESPACES.iter().flat_map(|(name, _, types)| {
            types.split(' ').map(move |rest| format!("{name}/{rest}"))
        });
        let base_types = BASE_TYPES.iter().map(ToString::to_string);
        let types: std::collections::BTreeSet<String> = in_namespaces.chain(base_types).collect();
        assert_eq!(types.len(), 121);
        for name in types {
            assert!(is_known(&name), "{name}");
            for other in [
                format!("/{name}"),
                format!("{name}/"),
                format!(" {name}"),
                name.to_uppercase(),
            ] {
                assert!(!is_known(&other), "{other}");
            }
        }
        assert!(!is_known("") && !is_known("tool/") && !is_known("tool/list/req list/resp"));
    }
}
