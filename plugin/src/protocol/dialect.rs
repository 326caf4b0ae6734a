//! The protocols over JSON-RPC, and how to tell them apart.

use crate::protocol::{CallType, DEFAULT_TYPE_PREFIX};

/// A protocol over JSON-RPC 2.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// A2A as in the JAF 0.3.0 document.
    JafDoc,
    /// Official A2A 0.3.
    A2a03,
    /// Official A2A 1.0.
    A2a10,
    /// Model Context Protocol.
    Mcp,
    /// Agent Client Protocol.
    Acp,
    /// Plain JSON-RPC 2.0.
    JsonRpc,
}

impl Dialect {
    /// The stable name of this dialect.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::JafDoc => "jaf-doc",
            Self::A2a03 => "a2a-0.3",
            Self::A2a10 => "a2a-1.0",
            Self::Mcp => "mcp",
            Self::Acp => "acp",
            Self::JsonRpc => "jsonrpc",
        }
    }

    /// Whether the methods of this dialect accept named parameters only. Source: docs/protocols/eventmesh-a2a.md §1.
    pub(crate) fn needs_object_params(self) -> bool {
        match self {
            Self::JafDoc | Self::A2a03 | Self::A2a10 | Self::Mcp => true,
            Self::Acp | Self::JsonRpc => false,
        }
    }
}

/// Members of a call's parameters that reveal its dialect, for method names that several protocols share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ParamsHints {
    pub(crate) protocol_version: Version,
    pub(crate) has_id: bool,
    pub(crate) has_task_id: bool,
    pub(crate) has_session_id: bool,
    pub(crate) has_reason: bool,
    /// `configuration` contains `maxTurns`, `timeout` or `priority`, or the message's role is `system`.
    pub(crate) jaf: bool,
}

/// The type of `params.protocolVersion`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Version {
    #[default]
    Absent,
    Number,
    Other,
}

/// A method that a protocol defines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    dialect: Dialect,
    pub(crate) ty: CallType,
}

/// Declares the methods of the dialects, and the suffixes of their event types. The types of known methods are built at
/// compile time.
macro_rules! methods {
    ($($dialect:ident, $suffix:literal => { $($name:literal)* })*) => {
        /// The method of this name, if a protocol defines one.
        pub(crate) fn find_method(name: &str) -> Option<&'static Method> {
            match name {
                $($($name => {
                    const LENGTH: usize = DEFAULT_TYPE_PREFIX.len() + $name.len() + $suffix.len();
                    const TYPE: [u8; LENGTH] = call_type($name, $suffix);
                    const KNOWN: CallType = CallType::of(&TYPE, $suffix);
                    Some(&Method { name: $name, dialect: Dialect::$dialect, ty: KNOWN })
                })*)*
                _ => None,
            }
        }
    };
}

methods! {
    // Source: docs/protocols/a2a.md §2.
    A2a03, ".req" => {
        "message/send"
        "tasks/get"
        "tasks/cancel"
        "tasks/pushNotificationConfig/set"
        "tasks/pushNotificationConfig/get"
        "tasks/pushNotificationConfig/list"
        "tasks/pushNotificationConfig/delete"
        "agent/getAuthenticatedExtendedCard"
        "agent/card/register"
        "agent/card/update"
        "agent/card/get"
        "agent/card/delete"
        "agent/card/list"
    }
    A2a03, ".stream" => {
        "message/stream"
        "message/sendStream"
        "tasks/resubscribe"
    }
    // Source: docs/protocols/mcp.md §2.
    Mcp, ".req" => {
        "initialize"
        "ping"
        "tools/list"
        "tools/call"
        "resources/list"
        "resources/templates/list"
        "resources/read"
        "resources/subscribe"
        "resources/unsubscribe"
        "prompts/list"
        "prompts/get"
        "logging/setLevel"
        "completion/complete"
        "tasks/list"
        "tasks/result"
        "tasks/update"
        "server/discover"
        "subscriptions/listen"
        "sampling/createMessage"
        "roots/list"
        "elicitation/create"
    }
    // Source: docs/protocols/a2a.md §2.
    A2a10, ".req" => {
        "SendMessage"
        "GetTask"
        "ListTasks"
        "CancelTask"
        "CreateTaskPushNotificationConfig"
        "GetTaskPushNotificationConfig"
        "ListTaskPushNotificationConfig"
        "ListTaskPushNotificationConfigs"
        "DeleteTaskPushNotificationConfig"
        "GetExtendedAgentCard"
    }
    A2a10, ".stream" => {
        "SendStreamingMessage"
        "SubscribeToTask"
    }
    // Source: docs/protocols/acp.md §1.
    Acp, ".req" => {
        "authenticate"
        "auth/login"
        "auth/logout"
        "logout"
        "session/new"
        "session/load"
        "session/resume"
        "session/list"
        "session/delete"
        "session/close"
        "session/set_mode"
        "session/set_config_option"
        "session/set_model"
        "session/fork"
        "session/prompt"
        "session/cancel"
        "session/request_permission"
        "session/update"
        "fs/read_text_file"
        "fs/write_text_file"
        "terminal/create"
        "terminal/output"
        "terminal/release"
        "terminal/wait_for_exit"
        "terminal/kill"
        "elicitation/complete"
        "$/cancel_request"
    }
}

/// `<default prefix><method, its slashes as dots><suffix>`.
const fn call_type<const LENGTH: usize>(method: &str, suffix: &str) -> [u8; LENGTH] {
    let mut written = [0; LENGTH];
    let (parts, mut part, mut at) = ([DEFAULT_TYPE_PREFIX, method, suffix], 0, 0);
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        let mut from = 0;
        while from < bytes.len() {
            written[at] = if bytes[from] == b'/' {
                b'.'
            } else {
                bytes[from]
            };
            (from, at) = (from + 1, at + 1);
        }
        part += 1;
    }
    written
}

/// The type of every answer.
pub(crate) const RESPONSE: &str = {
    const NAME: &str = "common.response";
    const TYPE: [u8; DEFAULT_TYPE_PREFIX.len() + NAME.len()] = call_type(NAME, "");
    CallType::of(&TYPE, "").request
};

/// Whether the method's answer comes in parts. Source: docs/protocols/eventmesh-a2a.md §2.
#[must_use]
pub fn is_streaming(method: &str) -> bool {
    find_method(method).is_some_and(Method::is_streaming)
}

// === impl Method ===

impl Method {
    /// Whether the answer comes in parts.
    pub(crate) fn is_streaming(&self) -> bool {
        self.ty.request.ends_with(".stream")
    }
}

/// The dialect of a call. Calls `marks` only for method names that several protocols share. Source:
/// docs/protocols/a2a.md §3, docs/protocols/mcp.md §2 and docs/protocols/acp.md §1.
pub(crate) fn of_call(
    name: &str,
    known: Option<&Method>,
    marks: impl Fn() -> ParamsHints,
) -> Dialect {
    let Some(&Method { dialect, .. }) = known else {
        return if name.starts_with("notifications/") {
            Dialect::Mcp
        } else {
            Dialect::JsonRpc
        };
    };
    match name {
        "initialize" if marks().protocol_version == Version::Number => Dialect::Acp,
        "tasks/get" | "tasks/cancel" => match marks() {
            marks if marks.has_task_id && !marks.has_id => Dialect::Mcp,
            marks if marks.has_reason && name == "tasks/cancel" => Dialect::JafDoc,
            _ => dialect,
        },
        "elicitation/create" if marks().has_session_id => Dialect::Acp,
        "message/send" | "message/stream" if marks().jaf => Dialect::JafDoc,
        _ => dialect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_names_are_distinguished_by_their_parameters() {
        let none = ParamsHints::default();
        let check = |method, marks, dialect| {
            let found = of_call(method, find_method(method), || marks);
            assert_eq!(found, dialect, "{method} {marks:?}")
        };
        check("initialize", none, Dialect::Mcp);
        check(
            "initialize",
            ParamsHints {
                protocol_version: Version::Other,
                ..none
            },
            Dialect::Mcp,
        );
        check(
            "initialize",
            ParamsHints {
                protocol_version: Version::Number,
                ..none
            },
            Dialect::Acp,
        );
        check("tasks/get", none, Dialect::A2a03);
        check(
            "tasks/get",
            ParamsHints {
                has_task_id: true,
                ..none
            },
            Dialect::Mcp,
        );
        check(
            "tasks/get",
            ParamsHints {
                has_task_id: true,
                has_id: true,
                ..none
            },
            Dialect::A2a03,
        );
        check(
            "tasks/cancel",
            ParamsHints {
                has_id: true,
                has_reason: true,
                ..none
            },
            Dialect::JafDoc,
        );
        check("elicitation/create", none, Dialect::Mcp);
        check(
            "elicitation/create",
            ParamsHints {
                has_session_id: true,
                ..none
            },
            Dialect::Acp,
        );
        check(
            "message/send",
            ParamsHints { jaf: true, ..none },
            Dialect::JafDoc,
        );
        check("SendMessage", none, Dialect::A2a10);
        check("notifications/anything", none, Dialect::Mcp);
        check("tools/list", none, Dialect::Mcp);
        check("foo/bar", none, Dialect::JsonRpc);
    }
}
