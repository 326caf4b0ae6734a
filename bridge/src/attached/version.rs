//! Translates between A2A 0.3 and 1.0, for a server that speaks only one of them.
//!
//! Only the members that differ are written anew; all others keep their bytes. What does not have the expected shape is
//! passed on as it is, so that the server can refuse it. Source: docs/protocols/a2a.md §1 and §9.

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
/// The members of a file: of `file` in 0.3, of its part in 1.0.
const FILE: [(&str, &str); 4] = [
    ("bytes", "raw"),
    ("uri", "url"),
    ("name", "filename"),
    ("mimeType", "mediaType"),
];
/// A webhook, and the scheme of its authentication: in 0.3, in 1.0.
const WEBHOOK: [(&str, &str); 2] = [
    ("pushNotificationConfig", "taskPushNotificationConfig"),
    ("schemes", "scheme"),
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
pub(super) fn single_version(card: &[u8]) -> Option<Dialect> {
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
    let method = METHODS.iter().find_map(|&(v0_3, v1_0)| match to {
        Dialect::A2a10 => (v0_3 == method).then_some(v1_0),
        _ => (v1_0 == method).then_some(v0_3),
    })?;
    let mut members: Members = serde_json::from_slice(body).ok()?;
    members.insert("method".to_owned(), raw(method)?);
    change(&mut members, "params", |params| {
        let mut params = object(params)?;
        change(&mut params, "message", |it| raw(&message(object(it)?, to)?));
        change(&mut params, "configuration", |it| {
            raw(&configuration(object(it)?, to)?)
        });
        raw(&params)
    });
    serde_json::to_vec(&members).ok().map(Bytes::from)
}

/// A response to a request with this method, in this version.
pub(super) fn response(body: &Bytes, method: &str, to: Dialect) -> Bytes {
    let translated = || {
        let mut members: Members = serde_json::from_slice(body).ok()?;
        let old = object(members.get("result")?)?;
        let new = match to {
            Dialect::A2a10 => result_1_0(old, method),
            _ => result_0_3(old),
        };
        members.insert("result".to_owned(), new?);
        serde_json::to_vec(&members).ok().map(Bytes::from)
    };
    translated().unwrap_or_else(|| body.clone())
}

// === the shapes ===

fn result_1_0(mut result: Members, method: &str) -> Option<Box<RawValue>> {
    let to = Dialect::A2a10;
    let kind = string(result.get("kind")?)?;
    let (wrapper, value) = match &*kind {
        "message" => ("message", message(result, to)?),
        "task" => {
            let task = task(result, to)?;
            if matches!(
                method,
                "GetTask" | "CancelTask" | "tasks/get" | "tasks/cancel"
            ) {
                return raw(&task);
            }
            ("task", task)
        }
        "status-update" => {
            result.remove("final");
            ("statusUpdate", update(result, None, to)?)
        }
        "artifact-update" => ("artifactUpdate", update(result, None, to)?),
        _ => return None,
    };
    raw(&BTreeMap::from([(wrapper, value)]))
}

fn result_0_3(mut result: Members) -> Option<Box<RawValue>> {
    let to = Dialect::A2a03;
    let mut member = |name: &str| result.remove(name);
    if let Some(old) = member("task") {
        return raw(&task(object(&old)?, to)?);
    }
    if let Some(old) = member("message") {
        return raw(&message(object(&old)?, to)?);
    }
    if let Some(old) = member("statusUpdate") {
        let mut update = update(object(&old)?, Some("status-update"), to)?;
        let state = update.get("status").and_then(|status| object(status));
        let state = state.and_then(|status| string(status.get("state")?));
        let is_final = state.is_some_and(|state| FINAL.contains(&&*state));
        update.insert("final".to_owned(), raw(&is_final)?);
        return raw(&update);
    }
    if let Some(old) = member("artifactUpdate") {
        return raw(&update(object(&old)?, Some("artifact-update"), to)?);
    }
    let is_task = result.contains_key("id") && result.contains_key("status");
    is_task.then(|| raw(&task(result, to)?)).flatten()
}

/// An update of a task. Only 0.3 has a `kind`.
fn update(mut update: Members, kind: Option<&str>, to: Dialect) -> Option<Members> {
    set_kind(&mut update, kind)?;
    change(&mut update, "status", |it| raw(&status(object(it)?, to)?));
    change(&mut update, "artifact", |it| {
        raw(&artifact(object(it)?, to)?)
    });
    Some(update)
}

fn task(mut task: Members, to: Dialect) -> Option<Members> {
    set_kind(&mut task, (to != Dialect::A2a10).then_some("task"))?;
    change(&mut task, "status", |it| raw(&status(object(it)?, to)?));
    each(&mut task, "history", |it| message(it, to));
    each(&mut task, "artifacts", |it| artifact(it, to));
    Some(task)
}

fn status(mut status: Members, to: Dialect) -> Option<Members> {
    change(&mut status, "state", |state| {
        raw(&*task_state(&string(state)?, to)?)
    });
    change(&mut status, "message", |it| raw(&message(object(it)?, to)?));
    Some(status)
}

fn task_state(state: &str, to: Dialect) -> Option<String> {
    let name = match to {
        Dialect::A2a10 => state.to_uppercase().replace('-', "_"),
        _ => state
            .strip_prefix("TASK_STATE_")?
            .to_lowercase()
            .replace('_', "-"),
    };
    Some(match (to, &*name) {
        (Dialect::A2a10, "UNKNOWN") => "TASK_STATE_UNSPECIFIED".to_owned(),
        (Dialect::A2a10, name) => format!("TASK_STATE_{name}"),
        (_, "unspecified") => "unknown".to_owned(),
        _ => name,
    })
}

fn artifact(mut artifact: Members, to: Dialect) -> Option<Members> {
    each(&mut artifact, "parts", |it| part(it, to));
    Some(artifact)
}

fn message(mut message: Members, to: Dialect) -> Option<Members> {
    set_kind(&mut message, (to != Dialect::A2a10).then_some("message"))?;
    change(&mut message, "role", |role| {
        let roles = [("user", "ROLE_USER"), ("agent", "ROLE_AGENT")];
        let role = string(role)?;
        let role = roles.iter().find_map(|&(v0_3, v1_0)| match to {
            Dialect::A2a10 => (v0_3 == role).then_some(v1_0),
            _ => (v1_0 == role).then_some(v0_3),
        });
        raw(role?)
    });
    each(&mut message, "parts", |it| part(it, to));
    Some(message)
}

fn part(mut part: Members, to: Dialect) -> Option<Members> {
    if to == Dialect::A2a10 {
        set_kind(&mut part, None)?;
        if let Some(file) = part.remove("file") {
            let mut file = object(&file)?;
            for (v0_3, v1_0) in FILE {
                rename(&mut file, v0_3, v1_0);
            }
            part.extend(file);
        }
        return Some(part);
    }
    let has = |name: &str| part.contains_key(name);
    let kind = match (has("text"), has("data"), has("raw") || has("url")) {
        (true, _, _) => "text",
        (_, true, _) => "data",
        (_, _, true) => "file",
        _ => return None,
    };
    if kind == "file" {
        let member = |(v0_3, v1_0): (&str, &str)| Some((v0_3.to_owned(), part.remove(v1_0)?));
        let file: Members = FILE.into_iter().filter_map(member).collect();
        part.insert("file".to_owned(), raw(&file)?);
    }
    set_kind(&mut part, Some(kind))?;
    Some(part)
}

fn configuration(mut configuration: Members, to: Dialect) -> Option<Members> {
    if to == Dialect::A2a10 {
        let blocking = configuration.remove("blocking");
        if blocking.is_some_and(|blocking| blocking.get() == "false") {
            configuration.insert("returnImmediately".to_owned(), raw(&true)?);
        }
        webhook(&mut configuration, WEBHOOK, |schemes| {
            let schemes: Vec<Box<RawValue>> = serde_json::from_str(schemes.get()).ok()?;
            schemes.into_iter().next()
        });
    } else {
        // In 1.0 a request waits for the end of the task unless it says otherwise.
        let at_once = configuration.remove("returnImmediately");
        let blocking = at_once.is_none_or(|at_once| at_once.get() != "true");
        configuration.insert("blocking".to_owned(), raw(&blocking)?);
        webhook(
            &mut configuration,
            WEBHOOK.map(|(v0_3, v1_0)| (v1_0, v0_3)),
            |scheme| raw(&[scheme]),
        );
    }
    Some(configuration)
}

/// Renames a webhook and its scheme, and writes the scheme anew. The bridge calls the webhooks of its own interfaces,
/// and leaves `null` in their place.
fn webhook(
    configuration: &mut Members,
    [(name, new_name), (scheme, new_scheme)]: [(&str, &str); 2],
    written: impl FnOnce(&RawValue) -> Option<Box<RawValue>>,
) {
    rename(configuration, name, new_name);
    if configuration
        .get(new_name)
        .is_some_and(|webhook| webhook.get() == "null")
    {
        configuration.remove(new_name);
    }
    change(configuration, new_name, |webhook| {
        let mut webhook = object(webhook)?;
        change(&mut webhook, "authentication", |authentication| {
            let mut authentication = object(authentication)?;
            change(&mut authentication, scheme, written);
            rename(&mut authentication, scheme, new_scheme);
            raw(&authentication)
        });
        raw(&webhook)
    });
}

// === JSON ===

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

fn each(members: &mut Members, name: &str, translated: impl Fn(Members) -> Option<Members>) {
    change(members, name, |array| {
        let items: Vec<Box<RawValue>> = serde_json::from_str(array.get()).ok()?;
        let item = |item: Box<RawValue>| {
            let new = object(&item).and_then(&translated);
            new.and_then(|new| raw(&new)).unwrap_or(item)
        };
        raw(&items.into_iter().map(item).collect::<Vec<_>>())
    });
}

fn rename(members: &mut Members, name: &str, new: &str) {
    if let Some(value) = members.remove(name) {
        members.insert(new.to_owned(), value);
    }
}

/// Sets the member `kind`, which only 0.3 has.
fn set_kind(members: &mut Members, kind: Option<&str>) -> Option<()> {
    match kind {
        Some(kind) => members.insert("kind".to_owned(), raw(kind)?),
        None => members.remove("kind"),
    };
    Some(())
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
        // The bridge calls the webhook itself.
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
            assert_eq!(
                single_version(card.to_string().as_bytes()),
                expected,
                "{card}"
            );
        }
    }
}
