//! Translates between A2A 0.3 and 1.0, for a server that speaks only one of them.
//!
//! Only the members that differ are written anew; all others keep their bytes. What does not have the expected shape is
//! passed on as it is, so that the server can refuse it. Source: docs/protocols/a2a.md §1 and §9.

use std::collections::BTreeMap;

use a2abus_plugin::protocol::dialect::Dialect;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::clock;
use crate::tasks::model::State;

/// The methods of both versions: in 0.3, in 1.0. Of several names, the first one is sent.
const METHODS: [(&str, &str); 6] = [
    ("message/send", "SendMessage"),
    ("message/stream", "SendStreamingMessage"),
    ("message/sendStream", "SendStreamingMessage"),
    ("tasks/get", "GetTask"),
    ("tasks/cancel", "CancelTask"),
    ("tasks/resubscribe", "SubscribeToTask"),
];
/// The roles and the states: in 0.3, in 1.0, and as the number that stands for the name in ProtoJSON.
const ROLES: [(&str, &str, u8); 2] = [("user", "ROLE_USER", 1), ("agent", "ROLE_AGENT", 2)];
const STATES: [(&str, &str, u8); 9] = [
    ("unknown", "TASK_STATE_UNSPECIFIED", 0),
    ("submitted", "TASK_STATE_SUBMITTED", 1),
    ("working", "TASK_STATE_WORKING", 2),
    ("completed", "TASK_STATE_COMPLETED", 3),
    ("failed", "TASK_STATE_FAILED", 4),
    ("canceled", "TASK_STATE_CANCELED", 5),
    ("input-required", "TASK_STATE_INPUT_REQUIRED", 6),
    ("rejected", "TASK_STATE_REJECTED", 7),
    ("auth-required", "TASK_STATE_AUTH_REQUIRED", 8),
];
/// The members of a file: of `file` in 0.3, of its part in 1.0.
const FILE: [(&str, &str); 4] = [
    ("bytes", "raw"),
    ("uri", "url"),
    ("name", "filename"),
    ("mimeType", "mediaType"),
];
/// The member that holds data that is not an object, and the metadata member that marks it.
const WRAPPED: &str = "value";
const IS_WRAPPED: &str = "data_part_compat";
/// A webhook, and the scheme of its authentication: in 0.3, in 1.0.
const WEBHOOK: [(&str, &str); 2] = [
    ("pushNotificationConfig", "taskPushNotificationConfig"),
    ("schemes", "scheme"),
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

/// The method in this version; `None` if it is a method of this version, or has no equivalent.
pub(super) fn method_in(method: &str, to: Dialect) -> Option<&'static str> {
    METHODS.iter().find_map(|&(v0_3, v1_0)| match to {
        Dialect::A2a10 => (v0_3 == method).then_some(v1_0),
        _ => (v1_0 == method).then_some(v0_3),
    })
}

/// The request in this version; `None` if it needs no translation.
pub(super) fn request(body: &[u8], method: &str, to: Dialect) -> Option<Bytes> {
    let method = method_in(method, to)?;
    let mut members: Members = serde_json::from_slice(body).ok()?;
    members.insert("method".to_owned(), raw(method)?);
    change(&mut members, "params", |params| {
        let mut params = object(params)?;
        camel(&mut params, to);
        change(&mut params, "message", |it| raw(&sent(object(it)?, to)?));
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
        let mut members = response_members(body)?;
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

/// The members of a response. Also accepts an array with one response.
fn response_members(body: &[u8]) -> Option<Members> {
    let batch = || {
        let [only]: [Members; 1] = serde_json::from_slice(body).ok()?;
        Some(only)
    };
    serde_json::from_slice(body).ok().or_else(batch)
}

// === the shapes ===

fn result_1_0(mut result: Members, method: &str) -> Option<Box<RawValue>> {
    let to = Dialect::A2a10;
    let kind = result.get("kind").and_then(|kind| string(kind));
    let kind = kind.or_else(|| kind_of(&result).map(str::to_owned));
    let (wrapper, value) = match kind.as_deref()? {
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

/// The kind of a result that does not name it.
fn kind_of(result: &Members) -> Option<&'static str> {
    let has = |name: &str| result.contains_key(name);
    match (has("taskId"), has("status"), has("artifact")) {
        (true, true, _) => Some("status-update"),
        (true, _, true) => Some("artifact-update"),
        (false, true, false) if has("id") => Some("task"),
        _ if has("role") && has("parts") => Some("message"),
        _ => None,
    }
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
        let is_final = state.is_some_and(|state| State::read(&state).is_at_rest());
        update.insert("final".to_owned(), raw(&is_final)?);
        return raw(&update);
    }
    if let Some(old) = member("artifactUpdate") {
        return raw(&update(object(&old)?, Some("artifact-update"), to)?);
    }
    match kind_of(&result)? {
        "task" => raw(&task(result, to)?),
        "message" => raw(&message(result, to)?),
        _ => None,
    }
}

/// An update of a task. Only 0.3 has a `kind`.
fn update(mut update: Members, kind: Option<&str>, to: Dialect) -> Option<Members> {
    set_kind(&mut update, kind)?;
    fill(&mut update, to, [("contextId", "\"\"")])?;
    change(&mut update, "status", |it| raw(&status(object(it)?, to)?));
    change(&mut update, "artifact", |it| {
        raw(&artifact(object(it)?, to)?)
    });
    Some(update)
}

fn task(mut task: Members, to: Dialect) -> Option<Members> {
    set_kind(&mut task, (to != Dialect::A2a10).then_some("task"))?;
    fill(&mut task, to, [("contextId", "\"\""), ("status", "{}")])?;
    change(&mut task, "status", |it| raw(&status(object(it)?, to)?));
    each(&mut task, "history", |it| message(it, to));
    each(&mut task, "artifacts", |it| artifact(it, to));
    Some(task)
}

fn status(mut status: Members, to: Dialect) -> Option<Members> {
    fill(&mut status, to, [("state", "0")])?;
    change(&mut status, "state", |state| {
        let [(unknown_0_3, unknown_1_0, _), ..] = STATES;
        let unknown = match to {
            Dialect::A2a10 => unknown_1_0,
            _ => unknown_0_3,
        };
        raw(named(state, &STATES, to).unwrap_or(unknown))
    });
    if to == Dialect::A2a10 {
        // A time of 1.0 is in UTC.
        change(&mut status, "timestamp", |time| {
            let time = string(time).filter(|time| !time.ends_with('Z'))?;
            raw(&*clock::rfc3339(clock::parse_loosely(&time)?))
        });
    }
    change(&mut status, "message", |it| raw(&message(object(it)?, to)?));
    Some(status)
}

fn artifact(mut artifact: Members, to: Dialect) -> Option<Members> {
    fill(&mut artifact, to, [("parts", "[]")])?;
    each(&mut artifact, "parts", |it| part(it, to));
    Some(artifact)
}

/// A message of an agent.
fn message(mut message: Members, to: Dialect) -> Option<Members> {
    let is_unspecified = |role: &RawValue| matches!(role.get(), "0" | r#""ROLE_UNSPECIFIED""#);
    if message.get("role").is_some_and(|role| is_unspecified(role)) {
        message.remove("role");
    }
    fill(&mut message, to, [("role", "2"), ("parts", "[]")])?;
    sent(message, to)
}

/// A message of any sender.
fn sent(mut message: Members, to: Dialect) -> Option<Members> {
    camel(&mut message, to);
    set_kind(&mut message, (to != Dialect::A2a10).then_some("message"))?;
    change(&mut message, "role", |role| raw(named(role, &ROLES, to)?));
    each(&mut message, "parts", |it| part(it, to));
    Some(message)
}

/// A name of an enumeration in this version. In 1.0 it may be a number.
fn named(
    value: &RawValue,
    names: &[(&'static str, &'static str, u8)],
    to: Dialect,
) -> Option<&'static str> {
    let name = string(value).map(|name| match (&*name, to) {
        // A usual spelling. Source: docs/protocols/a2a.md §4.
        ("cancelled", Dialect::A2a10) => "canceled".to_owned(),
        _ => name,
    });
    names.iter().find_map(|&(v0_3, v1_0, number)| {
        // A server may use the names of the other version.
        let is_named = name
            .as_deref()
            .is_some_and(|name| name == v0_3 || name == v1_0);
        match to {
            Dialect::A2a10 => is_named.then_some(v1_0),
            _ => (is_named || value.get() == number.to_string()).then_some(v0_3),
        }
    })
}

fn part(mut part: Members, to: Dialect) -> Option<Members> {
    if to == Dialect::A2a10 {
        part_1_0(part)
    } else {
        camel(&mut part, to);
        part_0_3(part)
    }
}

fn part_1_0(mut part: Members) -> Option<Members> {
    let kind = part.get("kind").and_then(|kind| string(kind));
    let inferred = || {
        ["text", "data", "file"]
            .into_iter()
            .find(|kind| part.contains_key(*kind))
    };
    match kind.as_deref().or_else(inferred)? {
        "text" => {}
        "data" => unwrap_data(&mut part),
        "file" => {
            let mut file = object(part.get("file")?)?;
            if !file.contains_key("bytes") && !file.contains_key("uri") {
                return None;
            }
            for (v0_3, v1_0) in FILE {
                rename(&mut file, v0_3, v1_0);
            }
            part.remove("file");
            part.extend(file);
        }
        _ => return None,
    }
    set_kind(&mut part, None)?;
    Some(part)
}

fn part_0_3(mut part: Members) -> Option<Members> {
    let has = |name: &str| part.contains_key(name);
    let kind = match (has("text"), has("data"), has("raw") || has("url")) {
        (true, _, _) => "text",
        (_, true, _) => "data",
        (_, _, true) => "file",
        _ => return None,
    };
    match kind {
        "file" => {
            let member = |(v0_3, v1_0): (&str, &str)| Some((v0_3.to_owned(), part.remove(v1_0)?));
            let file: Members = FILE.into_iter().filter_map(member).collect();
            part.insert("file".to_owned(), raw(&file)?);
        }
        "data" => wrap_data(&mut part)?,
        _ => {}
    }
    set_kind(&mut part, Some(kind))?;
    Some(part)
}

/// In 0.3 the data of a part is an object. Like the SDKs, other data becomes its member `value`, and the metadata say so.
fn wrap_data(part: &mut Members) -> Option<()> {
    let data = part.get("data")?;
    if data.get().starts_with('{') {
        return Some(());
    }
    let wrapped = raw(&BTreeMap::from([(WRAPPED, data)]))?;
    part.insert("data".to_owned(), wrapped);
    let metadata = part.get("metadata").and_then(|metadata| object(metadata));
    let mut metadata = metadata.unwrap_or_default();
    metadata.insert(IS_WRAPPED.to_owned(), raw(&true)?);
    part.insert("metadata".to_owned(), raw(&metadata)?);
    Some(())
}

/// The reverse of [`wrap_data`].
fn unwrap_data(part: &mut Members) {
    let metadata = part.get("metadata").and_then(|metadata| object(metadata));
    let Some(mut metadata) = metadata else { return };
    let is_wrapped = metadata.remove(IS_WRAPPED);
    if is_wrapped.is_none_or(|is_wrapped| is_wrapped.get() != "true") {
        return;
    }
    let value = part
        .get("data")
        .and_then(|data| object(data)?.remove(WRAPPED));
    let (Some(value), Some(metadata)) = (value, raw(&metadata)) else {
        return;
    };
    part.insert("data".to_owned(), value);
    if metadata.get() == "{}" {
        part.remove("metadata");
    } else {
        part.insert("metadata".to_owned(), metadata);
    }
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
        camel(&mut configuration, to);
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
            let written = authentication.remove(scheme).and_then(|it| written(&it));
            authentication.extend(written.map(|written| (new_scheme.to_owned(), written)));
            raw(&authentication)
        });
        // In 1.0 the scheme is required.
        let authentication = webhook.get("authentication").and_then(|it| object(it));
        if authentication.is_some_and(|it| !it.contains_key(new_scheme)) {
            webhook.remove("authentication");
        }
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

/// Adds members with these values that 0.3 requires and 1.0 leaves out if they are empty.
fn fill<const N: usize>(
    members: &mut Members,
    to: Dialect,
    values: [(&str, &str); N],
) -> Option<()> {
    if to == Dialect::A2a10 {
        return Some(());
    }
    camel(members, to);
    for (name, value) in values {
        if !members.contains_key(name) {
            let value = RawValue::from_string(value.to_owned()).ok()?;
            members.insert(name.to_owned(), value);
        }
    }
    Some(())
}

/// Writes names for 0.3 in lower camel case. ProtoJSON parsers also accept the names of the `.proto` file.
fn camel(members: &mut Members, to: Dialect) {
    if to == Dialect::A2a10 {
        return;
    }
    let snake = members.keys().filter(|name| name.contains('_'));
    let snake: Vec<String> = snake.cloned().collect();
    for name in snake {
        let mut words = name.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        let new = words.fold(first, |mut new, word| {
            let mut letters = word.chars();
            new.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
            new + letters.as_str()
        });
        if !members.contains_key(&new) {
            rename(members, &name, &new);
        }
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
            let mut v0_3 = json!({
                "jsonrpc": "2.0", "id": "a", "method": old,
                "params": { "id": "t", "message": v0_3, "configuration": { "blocking": false, "historyLength": 2 } },
            });
            let v1_0 = json!({
                "jsonrpc": "2.0", "id": "a", "method": new,
                "params": { "id": "t", "message": v1_0, "configuration": { "returnImmediately": true, "historyLength": 2 } },
            });
            assert_eq!(request_in(&v0_3, Dialect::A2a10), v1_0);
            if old == "message/sendStream" {
                v0_3["method"] = json!("message/stream");
            }
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
        // A webhook without a scheme.
        let without = webhook(json!({ "schemes": [], "credentials": "c" }));
        let without = of("message/send", json!({ "pushNotificationConfig": without }));
        let sent = request_in(&without, Dialect::A2a10);
        let sent = &sent["params"]["configuration"]["taskPushNotificationConfig"];
        assert_eq!(sent, &json!({ "url": "https://x" }));
        // ProtoJSON also accepts the names of the `.proto` file.
        let snake = of(
            "SendMessage",
            json!({ "return_immediately": true, "history_length": 1 }),
        );
        let sent = request_in(&snake, Dialect::A2a03);
        let expected = json!({ "blocking": false, "historyLength": 1 });
        assert_eq!(sent["params"]["configuration"], expected);
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
    fn data_that_is_no_object_is_wrapped_for_0_3() {
        for data in [json!([1, 2]), json!("a"), json!(null), json!(1.5)] {
            let task = |parts: Value| json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_COMPLETED" }, "artifacts": [{ "artifactId": "x", "parts": parts }] });
            let v1_0 = task(json!([{ "data": data, "metadata": { "a": 1 } }, { "data": data }]));
            let v0_3 = response_in(&json!({ "task": v1_0 }), "message/send", Dialect::A2a03);
            let wrapped = json!([
                { "kind": "data", "data": { "value": data }, "metadata": { "a": 1, "data_part_compat": true } },
                { "kind": "data", "data": { "value": data }, "metadata": { "data_part_compat": true } },
            ]);
            assert_eq!(v0_3["artifacts"][0]["parts"], wrapped);
            assert_eq!(response_in(&v0_3, "tasks/get", Dialect::A2a10), v1_0);
        }
    }

    #[test]
    fn what_1_0_leaves_out_is_there_for_0_3() {
        let update = |member: &str, value: Value| json!({ member: { "taskId": "t", "contextId": "c", value["name"].as_str().unwrap(): value["value"] } });
        let artifact = json!({ "name": "artifact", "value": { "artifactId": "x" } });
        let status = |value: Value| json!({ "name": "status", "value": value });
        for (v1_0, pointer, expected) in [
            (
                update("artifactUpdate", artifact),
                "/artifact/parts",
                json!([]),
            ),
            (
                update("statusUpdate", status(json!({}))),
                "/status/state",
                json!("unknown"),
            ),
            (
                update("statusUpdate", status(json!({ "state": 3 }))),
                "/status/state",
                json!("completed"),
            ),
            (
                update("statusUpdate", status(json!({ "state": "TASK_STATE_NEW" }))),
                "/status/state",
                json!("unknown"),
            ),
            (
                json!({ "message": { "messageId": "m" } }),
                "/parts",
                json!([]),
            ),
            (
                json!({ "message": { "messageId": "m" } }),
                "/role",
                json!("agent"),
            ),
            (
                json!({ "message": { "messageId": "m", "role": 1 } }),
                "/role",
                json!("user"),
            ),
            (
                json!({ "message": { "messageId": "m", "role": "ROLE_UNSPECIFIED" } }),
                "/role",
                json!("agent"),
            ),
            (
                json!({ "task": { "id": "t", "context_id": "c" } }),
                "/contextId",
                json!("c"),
            ),
            (
                json!({ "task": { "id": "t", "status": { "state": "completed" } } }),
                "/status/state",
                json!("completed"),
            ),
            (json!({ "task": { "id": "t" } }), "/contextId", json!("")),
            (
                json!({ "task": { "id": "t" } }),
                "/status/state",
                json!("unknown"),
            ),
            (
                json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [] }),
                "/kind",
                json!("message"),
            ),
        ] {
            let v0_3 = response_in(&v1_0, "message/stream", Dialect::A2a03);
            assert_eq!(v0_3.pointer(pointer), Some(&expected), "{v1_0}: {v0_3}");
        }
        // A client without a role gets the server's error.
        for role in [json!(null), json!("ROLE_UNSPECIFIED")] {
            let message = json!({ "messageId": "m", "role": role });
            let request = json!({ "method": "SendMessage", "params": { "message": message } });
            let sent = request_in(&request, Dialect::A2a03);
            assert_eq!(sent["params"]["message"]["role"], role, "{sent}");
        }
    }

    #[test]
    fn answers_of_0_3_get_the_states_and_times_of_1_0() {
        let status = |state: &str, time: &str| json!({ "taskId": "t", "contextId": "c", "status": { "state": state, "timestamp": time } });
        for (state, expected) in [
            ("cancelled", "TASK_STATE_CANCELED"),
            ("new", "TASK_STATE_UNSPECIFIED"),
            ("working", "TASK_STATE_WORKING"),
        ] {
            for time in ["2026-01-01T00:00:00.5", "2026-01-01T02:00:00.500+02:00"] {
                // Without `kind`.
                let update = response_in(&status(state, time), "message/stream", Dialect::A2a10);
                let expected =
                    json!({ "state": expected, "timestamp": "2026-01-01T00:00:00.500Z" });
                assert_eq!(update["statusUpdate"]["status"], expected);
            }
        }
        let unknown = json!({ "kind": "weird", "x": 1 });
        let message = json!({ "role": "agent", "messageId": "m", "parts": [unknown, { "kind": "file", "file": { "name": "x" } }] });
        let answer = response_in(&message, "message/send", Dialect::A2a10);
        assert_eq!(answer["message"]["parts"], message["parts"]);
    }

    #[test]
    fn an_answer_in_an_array_is_translated() {
        let message = json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [] });
        let body = json!([{ "jsonrpc": "2.0", "id": 1, "result": { "message": message } }]);
        let body = super::response(&body.to_string().into(), "message/send", Dialect::A2a03);
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["result"]["role"], "agent", "{answer}");
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
        let status = json!({ "kind": "status-update", "taskId": "t", "contextId": "c", "status": status_0_3, "final": true });
        let artifact = json!({ "kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": artifact_0_3, "append": true });
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
                json!({ "statusUpdate": { "taskId": "t", "contextId": "c", "status": status_1_0 } }),
                "message/stream",
            ),
            (
                &artifact,
                json!({ "artifactUpdate": { "taskId": "t", "contextId": "c", "artifact": artifact_1_0, "append": true } }),
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
