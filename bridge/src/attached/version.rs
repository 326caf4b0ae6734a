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

/// In 0.3 the data of a part is an object. Like the SDKs, other data becomes its member `value`, and the metadata say
/// so.
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
        let new = crate::object::camel(&name);
        if !members.contains_key(&*new) {
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
mod tests;
