//! Translates between A2A 0.3 and 1.0, for a server that speaks only one of them.
//!
//! Only the members that differ are written anew; all others keep their bytes. What does not have the expected shape is
//! passed on as it is, so that the server can refuse it. Source: A2A 1.0, appendix A.2 (migration), and
//! docs/protocols/a2a.md §1 and §9.

use std::collections::BTreeMap;

use a2abus_plugin::protocol::dialect::Dialect;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The methods of both versions: in 0.3, in 1.0.
const METHODS: [(&str, &str); 5] = [
    ("message/send", "SendMessage"),
    ("message/stream", "SendStreamingMessage"),
    ("tasks/get", "GetTask"),
    ("tasks/cancel", "CancelTask"),
    ("tasks/resubscribe", "SubscribeToTask"),
];
/// The states that end a stream in 0.3.
const FINAL: [&str; 6] = [
    "completed",
    "canceled",
    "failed",
    "rejected",
    "input-required",
    "auth-required",
];

/// The members of an object, in their JSON form.
type Members = BTreeMap<String, Box<RawValue>>;

/// A change of one value; `None` leaves it as it is.
type Change = fn(&RawValue) -> Option<Box<RawValue>>;

/// The members of a card that say which versions its server speaks.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    protocol_version: Option<String>,
    #[serde(default)]
    supported_interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    protocol_binding: Option<String>,
    protocol_version: Option<String>,
}

/// The only version that the server with this card speaks over JSON-RPC; `None` if it speaks both, or the card does not
/// say.
pub(super) fn only(card: &[u8]) -> Option<Dialect> {
    let card: Versions = serde_json::from_slice(card).ok()?;
    let interfaces = card.supported_interfaces.iter().filter(|interface| {
        let binding = interface.protocol_binding.as_deref();
        binding.is_none_or(|binding| binding.eq_ignore_ascii_case("JSONRPC"))
    });
    let versions = interfaces.map(|interface| interface.protocol_version.as_deref());
    let versions: Vec<&str> = versions
        .chain([card.protocol_version.as_deref()])
        .flatten()
        .collect();
    let speaks = |major: &str| {
        versions
            .iter()
            .any(|version| version.split('.').next() == Some(major))
    };
    match (speaks("0"), speaks("1")) {
        (true, false) => Some(Dialect::A2a03),
        (false, true) => Some(Dialect::A2a10),
        _ => None,
    }
}

/// The request in this version; `None` if it needs no translation.
pub(super) fn request(body: &[u8], method: &str, to: Dialect) -> Option<Bytes> {
    let is_1_0 = to == Dialect::A2a10;
    let known = METHODS.iter().find(|(v0_3, v1_0)| match is_1_0 {
        true => *v0_3 == method,
        false => *v1_0 == method,
    });
    let (v0_3, v1_0) = known?;
    let method = if is_1_0 { v1_0 } else { v0_3 };
    let mut members: Members = serde_json::from_slice(body).ok()?;
    members.insert("method".to_owned(), raw(method)?);
    change(&mut members, "params", |params| {
        let mut params = object(params)?;
        change(
            &mut params,
            "message",
            both(is_1_0, message_1_0, message_0_3),
        );
        let configuration = both(is_1_0, configuration_1_0, configuration_0_3);
        change(&mut params, "configuration", configuration);
        raw(&params)
    });
    serde_json::to_vec(&members).ok().map(Bytes::from)
}

/// A response to a request with this method, in this version.
pub(super) fn response(body: &Bytes, method: &str, to: Dialect) -> Bytes {
    let Ok(mut members) = serde_json::from_slice::<Members>(body) else {
        return body.clone();
    };
    let result = members.get("result").and_then(|result| object(result));
    let Some(result) = result else {
        return body.clone();
    };
    let result = match to {
        Dialect::A2a10 => result_1_0(result, method),
        _ => result_0_3(result),
    };
    let Some(result) = result else {
        return body.clone();
    };
    members.insert("result".to_owned(), result);
    serde_json::to_vec(&members).map_or_else(|_| body.clone(), Bytes::from)
}

// === to 1.0 ===

fn message_1_0(message: &RawValue) -> Option<Box<RawValue>> {
    let mut message = object(message)?;
    message.remove("kind");
    change(&mut message, "role", |role| match &*string(role)? {
        "user" => raw(&"ROLE_USER"),
        "agent" => raw(&"ROLE_AGENT"),
        _ => None,
    });
    change(&mut message, "parts", |parts| each(parts, part_1_0));
    raw(&message)
}

fn part_1_0(part: &RawValue) -> Option<Box<RawValue>> {
    let mut part = object(part)?;
    part.remove("kind");
    if let Some(file) = part.remove("file") {
        let names = [
            ("bytes", "raw"),
            ("uri", "url"),
            ("name", "filename"),
            ("mimeType", "mediaType"),
        ];
        part.extend(renamed(object(&file)?, names));
    }
    raw(&part)
}

fn configuration_1_0(configuration: &RawValue) -> Option<Box<RawValue>> {
    let mut configuration = object(configuration)?;
    if let Some(blocking) = configuration.remove("blocking")
        && blocking.get() == "false"
    {
        configuration.insert("returnImmediately".to_owned(), raw(&true)?);
    }
    if let Some(webhook) = configuration.remove("pushNotificationConfig")
        && let Some(mut webhook) = object(&webhook)
    {
        change(&mut webhook, "authentication", |authentication| {
            let mut authentication = object(authentication)?;
            let schemes = authentication.remove("schemes")?;
            let schemes: Vec<String> = serde_json::from_str(schemes.get()).ok()?;
            authentication.insert("scheme".to_owned(), raw(schemes.first()?)?);
            raw(&authentication)
        });
        configuration.insert("taskPushNotificationConfig".to_owned(), raw(&webhook)?);
    }
    raw(&configuration)
}

fn result_1_0(mut result: Members, method: &str) -> Option<Box<RawValue>> {
    let kind = result.get("kind").and_then(|kind| string(kind))?;
    let wrapped = |name: &str, value| raw(&BTreeMap::from([(name, value)]));
    match &*kind {
        "message" => wrapped("message", message_1_0(&raw(&result)?)?),
        "task" => {
            let task = task_1_0(result)?;
            match method {
                "tasks/get" | "tasks/cancel" | "GetTask" | "CancelTask" => Some(task),
                _ => wrapped("task", task),
            }
        }
        "status-update" => {
            result.remove("kind");
            result.remove("final");
            change(&mut result, "status", status_1_0);
            wrapped("statusUpdate", raw(&result)?)
        }
        "artifact-update" => {
            result.remove("kind");
            change(&mut result, "artifact", artifact_1_0);
            wrapped("artifactUpdate", raw(&result)?)
        }
        _ => None,
    }
}

fn task_1_0(mut task: Members) -> Option<Box<RawValue>> {
    task.remove("kind");
    change(&mut task, "status", status_1_0);
    change(&mut task, "history", |history| each(history, message_1_0));
    change(&mut task, "artifacts", |artifacts| {
        each(artifacts, artifact_1_0)
    });
    raw(&task)
}

fn status_1_0(status: &RawValue) -> Option<Box<RawValue>> {
    let mut status = object(status)?;
    change(&mut status, "state", |state| match &*string(state)? {
        "unknown" => raw(&"TASK_STATE_UNSPECIFIED"),
        state => raw(&format!(
            "TASK_STATE_{}",
            state.to_uppercase().replace('-', "_")
        )),
    });
    change(&mut status, "message", message_1_0);
    raw(&status)
}

fn artifact_1_0(artifact: &RawValue) -> Option<Box<RawValue>> {
    let mut artifact = object(artifact)?;
    change(&mut artifact, "parts", |parts| each(parts, part_1_0));
    raw(&artifact)
}

// === to 0.3 ===

fn message_0_3(message: &RawValue) -> Option<Box<RawValue>> {
    let mut message = object(message)?;
    message.insert("kind".to_owned(), raw(&"message")?);
    change(&mut message, "role", |role| match &*string(role)? {
        "ROLE_USER" => raw(&"user"),
        "ROLE_AGENT" => raw(&"agent"),
        _ => None,
    });
    change(&mut message, "parts", |parts| each(parts, part_0_3));
    raw(&message)
}

fn part_0_3(part: &RawValue) -> Option<Box<RawValue>> {
    let mut part = object(part)?;
    let kind = match &part {
        part if part.contains_key("text") => "text",
        part if part.contains_key("data") => "data",
        part if part.contains_key("raw") || part.contains_key("url") => "file",
        _ => return None,
    };
    if kind == "file" {
        let names = [
            ("raw", "bytes"),
            ("url", "uri"),
            ("filename", "name"),
            ("mediaType", "mimeType"),
        ];
        let file = names.map(|(name, in_0_3)| Some((in_0_3.to_owned(), part.remove(name)?)));
        let file: Members = file.into_iter().flatten().collect();
        part.insert("file".to_owned(), raw(&file)?);
    }
    part.insert("kind".to_owned(), raw(kind)?);
    raw(&part)
}

fn configuration_0_3(configuration: &RawValue) -> Option<Box<RawValue>> {
    let mut configuration = object(configuration)?;
    // In 1.0 a request waits for the end of the task unless it says otherwise.
    let at_once = configuration.remove("returnImmediately");
    let blocking = at_once.is_none_or(|at_once| at_once.get() != "true");
    configuration.insert("blocking".to_owned(), raw(&blocking)?);
    if let Some(webhook) = configuration.remove("taskPushNotificationConfig")
        && let Some(mut webhook) = object(&webhook)
    {
        change(&mut webhook, "authentication", |authentication| {
            let mut authentication = object(authentication)?;
            let scheme = authentication.remove("scheme")?;
            authentication.insert("schemes".to_owned(), raw(&[scheme])?);
            raw(&authentication)
        });
        configuration.insert("pushNotificationConfig".to_owned(), raw(&webhook)?);
    }
    raw(&configuration)
}

fn result_0_3(mut result: Members) -> Option<Box<RawValue>> {
    if let Some(task) = result.get("task") {
        return task_0_3(object(task)?);
    }
    if let Some(message) = result.get("message") {
        return message_0_3(message);
    }
    if let Some(update) = result.get("statusUpdate") {
        let mut update = object(update)?;
        change(&mut update, "status", status_0_3);
        let state = update.get("status").and_then(|status| object(status));
        let state = state.and_then(|status| string(status.get("state")?));
        let is_final = state.is_some_and(|state| FINAL.contains(&&*state));
        update.insert("final".to_owned(), raw(&is_final)?);
        update.insert("kind".to_owned(), raw(&"status-update")?);
        return raw(&update);
    }
    if let Some(update) = result.remove("artifactUpdate") {
        let mut update = object(&update)?;
        change(&mut update, "artifact", artifact_0_3);
        update.insert("kind".to_owned(), raw(&"artifact-update")?);
        return raw(&update);
    }
    let is_task = result.contains_key("id") && result.contains_key("status");
    if is_task { task_0_3(result) } else { None }
}

fn task_0_3(mut task: Members) -> Option<Box<RawValue>> {
    task.insert("kind".to_owned(), raw(&"task")?);
    change(&mut task, "status", status_0_3);
    change(&mut task, "history", |history| each(history, message_0_3));
    change(&mut task, "artifacts", |artifacts| {
        each(artifacts, artifact_0_3)
    });
    raw(&task)
}

fn status_0_3(status: &RawValue) -> Option<Box<RawValue>> {
    let mut status = object(status)?;
    change(&mut status, "state", |state| {
        match string(state)?.strip_prefix("TASK_STATE_")? {
            "UNSPECIFIED" => raw(&"unknown"),
            state => raw(&state.to_lowercase().replace('_', "-")),
        }
    });
    change(&mut status, "message", message_0_3);
    raw(&status)
}

fn artifact_0_3(artifact: &RawValue) -> Option<Box<RawValue>> {
    let mut artifact = object(artifact)?;
    change(&mut artifact, "parts", |parts| each(parts, part_0_3));
    raw(&artifact)
}

// === JSON ===

fn both(is_1_0: bool, to_1_0: Change, to_0_3: Change) -> Change {
    if is_1_0 { to_1_0 } else { to_0_3 }
}

fn object(json: &RawValue) -> Option<Members> {
    serde_json::from_str(json.get()).ok()
}

fn string(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok()
}

fn raw<T: Serialize + ?Sized>(value: &T) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}

fn change(
    members: &mut Members,
    name: &str,
    change: impl FnOnce(&RawValue) -> Option<Box<RawValue>>,
) {
    if let Some(value) = members.get_mut(name)
        && let Some(changed) = change(value)
    {
        *value = changed;
    }
}

fn each(array: &RawValue, change: Change) -> Option<Box<RawValue>> {
    let items: Vec<Box<RawValue>> = serde_json::from_str(array.get()).ok()?;
    let items = items.into_iter().map(|item| change(&item).unwrap_or(item));
    raw(&items.collect::<Vec<_>>())
}

fn renamed<const N: usize>(mut members: Members, names: [(&str, &str); N]) -> Members {
    for (name, new) in names {
        if let Some(value) = members.remove(name) {
            members.insert(new.to_owned(), value);
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request_in(request: &Value, to: Dialect) -> Value {
        let method = request["method"].as_str().unwrap();
        let body = super::request(request.to_string().as_bytes(), method, to).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    fn response_in(response: &Value, method: &str, to: Dialect) -> Value {
        let body =
            Bytes::from(json!({ "jsonrpc": "2.0", "id": 1, "result": response }).to_string());
        let body = super::response(&body, method, to);
        serde_json::from_slice::<Value>(&body).unwrap()["result"].take()
    }

    fn messages() -> [Value; 2] {
        let v0_3 = json!({
            "kind": "message", "messageId": "m", "role": "user", "contextId": "c", "metadata": { "kind": 1 },
            "parts": [
                { "kind": "text", "text": "hi", "metadata": { "a": 1 } },
                { "kind": "file", "file": { "bytes": "aGk=", "name": "n", "mimeType": "a/b" } },
                { "kind": "file", "file": { "uri": "https://x/y" } },
                { "kind": "data", "data": { "kind": "k" } },
            ],
        });
        let v1_0 = json!({
            "messageId": "m", "role": "ROLE_USER", "contextId": "c", "metadata": { "kind": 1 },
            "parts": [
                { "text": "hi", "metadata": { "a": 1 } },
                { "raw": "aGk=", "filename": "n", "mediaType": "a/b" },
                { "url": "https://x/y" },
                { "data": { "kind": "k" } },
            ],
        });
        [v0_3, v1_0]
    }

    #[test]
    fn requests_have_the_method_and_shape_of_the_other_version() {
        let [v0_3, v1_0] = messages();
        for (old, new) in METHODS {
            let v0_3 = json!({
                "jsonrpc": "2.0", "id": "a", "method": old,
                "params": { "id": "t", "message": v0_3, "configuration": { "blocking": false, "historyLength": 2 } },
            });
            let v1_0 = json!({
                "jsonrpc": "2.0", "id": "a", "method": new,
                "params": { "id": "t", "message": v1_0, "configuration": { "returnImmediately": true, "historyLength": 2 } },
            });
            assert_eq!(request_in(&v0_3, Dialect::A2a10), v1_0);
            assert_eq!(request_in(&v1_0, Dialect::A2a03), v0_3);
        }
        let of = |method, configuration| json!({ "method": method, "params": { "configuration": configuration } });
        let webhook =
            |authentication| json!({ "url": "https://x", "authentication": authentication });
        let v0_3 = webhook(json!({ "schemes": ["Bearer"], "credentials": "c" }));
        let v0_3 = of(
            "message/send",
            json!({ "blocking": true, "pushNotificationConfig": v0_3 }),
        );
        let v1_0 = webhook(json!({ "scheme": "Bearer", "credentials": "c" }));
        let v1_0 = of("SendMessage", json!({ "taskPushNotificationConfig": v1_0 }));
        assert_eq!(request_in(&v0_3, Dialect::A2a10), v1_0);
        assert_eq!(request_in(&v1_0, Dialect::A2a03), v0_3);
        // The bridge has taken the webhook out.
        let taken = of("message/send", json!({ "pushNotificationConfig": null }));
        let sent = request_in(&taken, Dialect::A2a10);
        assert_eq!(sent["params"]["configuration"], json!({}));
        for (method, to) in [
            ("SendMessage", Dialect::A2a10),
            ("message/send", Dialect::A2a03),
            ("add", Dialect::A2a10),
        ] {
            assert_eq!(super::request(b"{}", method, to), None, "{method}");
        }
    }

    #[test]
    fn a_part_loses_nothing_that_the_other_version_has_no_place_for() {
        let part = json!({ "text": "t", "mediaType": "text/x", "kind": "text" });
        let parts =
            json!({ "method": "SendMessage", "params": { "message": { "parts": [part] } } });
        let sent = request_in(&parts, Dialect::A2a03);
        assert_eq!(sent["params"]["message"]["parts"][0], part);
    }

    #[test]
    fn what_is_equal_in_both_versions_keeps_its_bytes() {
        let body = br#"{"id":1,"method":"message/send","params":{"message":{"parts":[{"kind":"data","data":{ "n":1.0e2 }}]}}}"#;
        let body = super::request(body, "message/send", Dialect::A2a10).unwrap();
        assert_eq!(
            body,
            r#"{"id":1,"method":"SendMessage","params":{"message":{"parts":[{"data":{ "n":1.0e2 }}]}}}"#
        );
    }

    #[test]
    fn results_have_the_shape_of_the_other_version() {
        let [message_0_3, message_1_0] = messages();
        let status_0_3 = json!({ "state": "input-required", "message": message_0_3 });
        let status_1_0 = json!({ "state": "TASK_STATE_INPUT_REQUIRED", "message": message_1_0 });
        let artifact_0_3 = json!({ "artifactId": "x", "parts": [{ "kind": "text", "text": "t" }] });
        let artifact_1_0 = json!({ "artifactId": "x", "parts": [{ "text": "t" }] });
        let task_0_3 = json!({
            "kind": "task", "id": "t", "contextId": "c", "status": status_0_3,
            "history": [message_0_3], "artifacts": [artifact_0_3],
        });
        let task_1_0 = json!({
            "id": "t", "contextId": "c", "status": status_1_0,
            "history": [message_1_0], "artifacts": [artifact_1_0],
        });
        let status =
            json!({ "kind": "status-update", "taskId": "t", "status": status_0_3, "final": true });
        let artifact = json!({ "kind": "artifact-update", "taskId": "t", "artifact": artifact_0_3, "append": true });
        for (v0_3, v1_0, method) in [
            (
                &message_0_3,
                json!({ "message": message_1_0 }),
                "message/send",
            ),
            (&task_0_3, json!({ "task": task_1_0 }), "SendMessage"),
            (&task_0_3, task_1_0, "tasks/get"),
            (
                &status,
                json!({ "statusUpdate": { "taskId": "t", "status": status_1_0 } }),
                "message/stream",
            ),
            (
                &artifact,
                json!({ "artifactUpdate": { "taskId": "t", "artifact": artifact_1_0, "append": true } }),
                "tasks/resubscribe",
            ),
        ] {
            assert_eq!(&response_in(&v1_0, method, Dialect::A2a03), v0_3);
            assert_eq!(response_in(v0_3, method, Dialect::A2a10), v1_0);
        }
        let other = json!({ "sum": 3 });
        assert_eq!(response_in(&other, "message/send", Dialect::A2a03), other);
        let error = Bytes::from_static(br#"{ "id":1, "error":{} }"#);
        assert_eq!(
            super::response(&error, "message/send", Dialect::A2a03),
            error
        );
    }

    #[test]
    fn a_card_says_whether_its_server_speaks_one_version() {
        let interface = |binding, version| json!({ "url": "http://x", "protocolBinding": binding, "protocolVersion": version });
        for (card, expected) in [
            (json!({ "protocolVersion": "0.3.0" }), Some(Dialect::A2a03)),
            (
                json!({ "supportedInterfaces": [interface("JSONRPC", "1.0")] }),
                Some(Dialect::A2a10),
            ),
            (
                json!({ "supportedInterfaces": [interface("JSONRPC", "1.0"), interface("HTTP+JSON", "0.3")] }),
                Some(Dialect::A2a10),
            ),
            (
                json!({ "supportedInterfaces": [interface("JSONRPC", "1.0"), interface("JSONRPC", "0.3")] }),
                None,
            ),
            (
                json!({ "protocolVersion": "0.3.0", "supportedInterfaces": [interface("JSONRPC", "1.0")] }),
                None,
            ),
            (json!({}), None),
            (json!({ "protocolVersion": 7 }), None),
        ] {
            assert_eq!(only(card.to_string().as_bytes()), expected, "{card}");
        }
    }
}
