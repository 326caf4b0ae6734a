//! HTTP+JSON of A2A 0.3: the JSON form of its protobuf messages, which differs from the JSON of its JSON-RPC.
//!
//! Requests are converted to JSON-RPC, which agents read, and results are converted back. Clients may use either
//! spelling of members, `messageId` or `message_id`. Source: A2A 0.3 section 3.2.3; docs/protocols/a2a.md §10.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::method::{Method, Push};
use crate::calls::failure::{Failure, Reason};
use crate::object::camel;

type Object = Map<String, Value>;

// === requests ===

/// The parameters of `message/send` from a `SendMessageRequest`.
pub(super) fn params(body: &[u8]) -> Result<Value, Failure> {
    let body: Value = serde_json::from_slice(body).map_err(|error| {
        let message = format!("the body cannot be read: {error}");
        Failure::new(Reason::Parse, message)
    })?;
    let Value::Object(body) = body else {
        let message = "the body must be an object";
        return Err(Failure::new(Reason::InvalidRequest, message));
    };
    let mut params = spelled(body, &[("request", "message")]);
    if let Some(Value::Object(message)) = params.remove("message") {
        params.insert("message".to_owned(), self::message(message));
    }
    if let Some(Value::Object(configuration)) = params.remove("configuration") {
        let known = [("pushNotification", "pushNotificationConfig")];
        let mut configuration = spelled(configuration, &known);
        // Protocol Buffers omit a field that is false.
        let blocking = configuration.entry("blocking");
        blocking.or_insert(false.into());
        params.insert("configuration".to_owned(), configuration.into());
    }
    Ok(params.into())
}

fn message(message: Object) -> Value {
    let mut message = spelled(message, &[("content", "parts")]);
    // Empty ids count as absent.
    message.retain(|name, value| !(matches!(&**name, "contextId" | "taskId") && value == ""));
    message.insert("kind".to_owned(), "message".into());
    let role = match message.get("role").and_then(Value::as_str) {
        Some("ROLE_USER") => Some("user"),
        Some("ROLE_AGENT") => Some("agent"),
        _ => None,
    };
    if let Some(role) = role {
        message.insert("role".to_owned(), role.into());
    }
    if let Some(Value::Array(parts)) = message.get_mut("parts") {
        for part in parts {
            *part = part_of_client(part.take());
        }
    }
    message.into()
}

fn part_of_client(part: Value) -> Value {
    let Value::Object(mut part) = part else {
        return part;
    };
    if part.contains_key("kind") {
        return part.into();
    }
    let kind = ["text", "file", "data"]
        .into_iter()
        .find(|kind| part.contains_key(*kind));
    let Some(kind) = kind else {
        return part.into();
    };
    if let Some(Value::Object(file)) = part.get_mut("file") {
        let known = [("fileWithUri", "uri"), ("fileWithBytes", "bytes")];
        *file = spelled(std::mem::take(file), &known);
    }
    if kind == "data"
        && let Some(data) = part.get_mut("data").and_then(|data| data.get_mut("data"))
    {
        let data = data.take();
        part.insert("data".to_owned(), data);
    }
    part.insert("kind".to_owned(), kind.into());
    part.into()
}

/// Converts members to camel case, and renames some of them.
fn spelled(object: Object, names: &[(&str, &str)]) -> Object {
    let members = object.into_iter().map(|(name, value)| {
        let name = camel(&name);
        let known = names.iter().find(|(from, _)| *from == name);
        let name = known.map_or(name, |(_, to)| Cow::Borrowed(*to));
        (name.into_owned(), value)
    });
    members.collect()
}

// === results ===

/// Converts the JSON-RPC result of a method.
pub(super) fn result(method: Method, result: &str) -> String {
    let Ok(result) = serde_json::from_str::<Value>(result) else {
        return result.to_owned();
    };
    let result = match method {
        Method::Send | Method::Stream | Method::Follow => event(result),
        Method::Get | Method::Cancel => task(result),
        Method::List => with(result, "tasks", |tasks| each(tasks, task)),
        Method::Push(Push::Set | Push::Get) => config(&result),
        Method::Push(Push::List) => {
            json!({ "configs": each(result, |item| config(&item)), "nextPageToken": "" })
        }
        Method::Push(Push::Delete) | Method::Card => result,
    };
    result.to_string()
}

/// A result of a send, under the member that names its type.
fn event(result: Value) -> Value {
    let kind = result.get("kind").and_then(Value::as_str);
    match kind.unwrap_or_default() {
        "task" => json!({ "task": task(result) }),
        "status-update" => {
            json!({ "statusUpdate": with(bare(result), "status", status) })
        }
        "artifact-update" => {
            json!({ "artifactUpdate": with(bare(result), "artifact", artifact) })
        }
        _ => json!({ "message": message_of_server(result) }),
    }
}

fn task(task: Value) -> Value {
    let task = with(bare(task), "status", status);
    let task = with(task, "history", |all| each(all, message_of_server));
    with(task, "artifacts", |all| each(all, artifact))
}

fn status(status: Value) -> Value {
    let status = with(status, "message", message_of_server);
    with(status, "state", |state| {
        let state = state.as_str().unwrap_or_default();
        match state {
            "canceled" => "TASK_STATE_CANCELLED".into(),
            "unknown" => "TASK_STATE_UNSPECIFIED".into(),
            state => format!("TASK_STATE_{}", state.replace('-', "_").to_uppercase()).into(),
        }
    })
}

fn artifact(artifact: Value) -> Value {
    with(artifact, "parts", |parts| each(parts, part_of_server))
}

fn message_of_server(message: Value) -> Value {
    let message = with(bare(message), "parts", |parts| each(parts, part_of_server));
    let Value::Object(message) = message else {
        return message;
    };
    let members = message.into_iter().filter_map(|(name, value)| {
        match name.as_str() {
            "parts" => Some(("content".to_owned(), value)),
            "role" => {
                let role = value.as_str().unwrap_or_default().to_uppercase();
                Some((name, format!("ROLE_{role}").into()))
            }
            // The protobuf message has no such member, and clients reject it.
            "referenceTaskIds" => None,
            _ => Some((name, value)),
        }
    });
    Value::Object(members.collect())
}

fn part_of_server(part: Value) -> Value {
    let kind = part.get("kind").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "text" => bare(part),
        "file" => with(bare(part), "file", |file| match file {
            Value::Object(file) => {
                let known = [("uri", "fileWithUri"), ("bytes", "fileWithBytes")];
                spelled(file, &known).into()
            }
            file => file,
        }),
        "data" => with(bare(part), "data", |data| json!({ "data": data })),
        // The protobuf messages do not have this kind.
        _ => json!({ "data": { "data": part } }),
    }
}

/// A push-notification configuration of a task, by its name.
fn config(config: &Value) -> Value {
    let text = |pointer| config.pointer(pointer).and_then(Value::as_str);
    let task = text("/taskId").unwrap_or_default();
    let id = text("/pushNotificationConfig/id").unwrap_or_default();
    json!({
        "name": format!("tasks/{task}/pushNotificationConfigs/{id}"),
        "pushNotificationConfig": config["pushNotificationConfig"],
    })
}

/// Without `kind`.
fn bare(mut value: Value) -> Value {
    if let Value::Object(members) = &mut value {
        members.remove("kind");
    }
    value
}

/// Changes one member, if it is present.
fn with(mut value: Value, member: &str, change: impl FnOnce(Value) -> Value) -> Value {
    if let Some(member) = value.get_mut(member) {
        let before = member.take();
        *member = change(before);
    }
    value
}

fn each(value: Value, change: fn(Value) -> Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(change).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_either_spelling_become_those_of_json_rpc() {
        let expected = json!({
            "message": {
                "kind": "message", "role": "user", "messageId": "m", "contextId": "c",
                "parts": [
                    { "kind": "text", "text": "hi" },
                    { "kind": "file", "file": { "uri": "https://x/y", "mimeType": "a/b", "name": "n" } },
                    { "kind": "file", "file": { "bytes": "aGk=" }, "metadata": { "some_key": 1 } },
                    { "kind": "data", "data": { "n_1": 1 } },
                ],
            },
            "configuration": {
                "acceptedOutputModes": ["text/plain"], "historyLength": 2, "blocking": true,
                "pushNotificationConfig": { "url": "https://x" },
            },
        });
        let camel = json!({
            "message": {
                "role": "ROLE_USER", "messageId": "m", "contextId": "c", "taskId": "",
                "content": [
                    { "text": "hi" },
                    { "file": { "fileWithUri": "https://x/y", "mimeType": "a/b", "name": "n" } },
                    { "file": { "fileWithBytes": "aGk=" }, "metadata": { "some_key": 1 } },
                    { "data": { "data": { "n_1": 1 } } },
                ],
            },
            "configuration": {
                "acceptedOutputModes": ["text/plain"], "historyLength": 2, "blocking": true,
                "pushNotification": { "url": "https://x" },
            },
        });
        assert_eq!(params(camel.to_string().as_bytes()).unwrap(), expected);
        let snake = json!({
            "request": {
                "role": "ROLE_USER", "message_id": "m", "context_id": "c",
                "content": [
                    { "text": "hi" },
                    { "file": { "file_with_uri": "https://x/y", "mime_type": "a/b", "name": "n" } },
                    { "file": { "file_with_bytes": "aGk=" }, "metadata": { "some_key": 1 } },
                    { "data": { "data": { "n_1": 1 } } },
                ],
            },
            "configuration": {
                "accepted_output_modes": ["text/plain"], "history_length": 2, "blocking": true,
                "push_notification": { "url": "https://x" },
            },
        });
        assert_eq!(params(snake.to_string().as_bytes()).unwrap(), expected);
        // JSON in the form of JSON-RPC is not changed.
        let plain = json!({ "message": expected["message"] });
        assert_eq!(params(plain.to_string().as_bytes()).unwrap(), plain);
        let not_blocking = json!({ "message": expected["message"], "configuration": {} });
        let not_blocking = params(not_blocking.to_string().as_bytes()).unwrap();
        assert_eq!(not_blocking["configuration"]["blocking"], false);
        for (bad, part) in [
            ("[]", "invalid_request"),
            ("1", "invalid_request"),
            ("{", "parse_error"),
        ] {
            assert_eq!(params(bad.as_bytes()).unwrap_err().reason_code(), part);
        }
    }

    #[test]
    fn results_become_messages() {
        let of = |method, value: Value| -> Value {
            serde_json::from_str(&result(method, &value.to_string())).unwrap()
        };
        let message = json!({
            "kind": "message", "role": "agent", "messageId": "m", "referenceTaskIds": ["t"],
            "parts": [
                { "kind": "text", "text": "hi" },
                { "kind": "file", "file": { "bytes": "aGk=", "mimeType": "a/b" } },
                { "kind": "data", "data": { "n": 1 } },
                { "kind": "odd", "x": 1 },
            ],
        });
        let written = json!({
            "role": "ROLE_AGENT", "messageId": "m",
            "content": [
                { "text": "hi" },
                { "file": { "fileWithBytes": "aGk=", "mimeType": "a/b" } },
                { "data": { "data": { "n": 1 } } },
                { "data": { "data": { "kind": "odd", "x": 1 } } },
            ],
        });
        assert_eq!(
            of(Method::Send, message.clone()),
            json!({ "message": written })
        );
        let task = json!({
            "kind": "task", "id": "t", "contextId": "c", "history": [message],
            "status": { "state": "input-required", "message": message, "timestamp": "2026-02-02T02:40:00Z" },
            "artifacts": [{ "artifactId": "a", "parts": [{ "kind": "text", "text": "x" }] }],
        });
        let expected = json!({
            "id": "t", "contextId": "c", "history": [written],
            "status": { "state": "TASK_STATE_INPUT_REQUIRED", "message": written, "timestamp": "2026-02-02T02:40:00Z" },
            "artifacts": [{ "artifactId": "a", "parts": [{ "text": "x" }] }],
        });
        assert_eq!(of(Method::Get, task.clone()), expected);
        assert_eq!(of(Method::Follow, task), json!({ "task": expected }));
        let update = json!({
            "kind": "status-update", "taskId": "t", "contextId": "c", "status": { "state": "canceled" }, "final": true,
        });
        let expected = json!({ "statusUpdate": {
            "taskId": "t", "contextId": "c", "status": { "state": "TASK_STATE_CANCELLED" }, "final": true,
        }});
        assert_eq!(of(Method::Stream, update), expected);
        let config = json!({ "taskId": "t", "pushNotificationConfig": { "id": "c", "url": "u" } });
        let expected = json!({
            "name": "tasks/t/pushNotificationConfigs/c", "pushNotificationConfig": { "id": "c", "url": "u" },
        });
        assert_eq!(of(Method::Push(Push::Get), config.clone()), expected);
        assert_eq!(
            of(Method::Push(Push::List), json!([config]))["configs"],
            json!([expected])
        );
    }
}
