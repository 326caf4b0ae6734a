//! The CloudEvents bindings: each reads and writes the vectors of `tests/vectors/cloudevents_bindings.json`.

use std::collections::BTreeMap;

use a2abus_plugin::{Data, Event, EventError, Limits, Text, Value as Attribute, format};
use a2abus_transports::content_mode::{self, Content, ContentMode, ProtocolBinding};
use a2abus_transports::{Headers, Message};
use bytes::Bytes;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../vectors/cloudevents_bindings.json");

/// The cases there are; a file that lost some does not pass.
const CASES: usize = 273;

#[test]
fn every_vector_of_the_cloudevents_bindings_holds() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    let mut run: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in cases {
        let op = case["op"].as_str().unwrap();
        let outcome = match op {
            "decode" => decode(case),
            "encode-binary" => encode(case, ContentMode::Binary),
            "encode-structured" => encode(case, ContentMode::Structured),
            "translate" => translate(case),
            "key" => key(case),
            other => Err(format!("no runner for {other}")),
        };
        *run.entry(op).or_default() += 1;
        if let Err(difference) = outcome {
            failures.push(format!("{}: {difference}", case["id"]));
        }
    }
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert_eq!(run.values().sum::<usize>(), CASES);
    for (op, count) in vectors["counts"]["by_op"].as_object().unwrap() {
        assert_eq!(
            run.get(op.as_str()).map(|n| json!(n)).as_ref(),
            Some(count),
            "{op}"
        );
    }
}

fn decode(case: &Value) -> Result<(), String> {
    let binding = case["binding"].as_str().unwrap();
    let observed = match binding {
        "json" => outcome(format::read(
            &body(&case["input"]["body"]).unwrap(),
            &limits(),
        )),
        name => observe(binding_of(name), &message(name, &case["input"])),
    };
    same(&observed, &normal(&case["expect"]))
}

fn observe(binding: ProtocolBinding, message: &Message) -> Value {
    if binding == ProtocolBinding::Http {
        match content_mode::read_batch(message, &limits()) {
            Err(error) => return outcome(Err(error)),
            Ok(Some(events)) => {
                let events: Vec<Value> = events.into_iter().map(outcome).collect();
                return json!({"kind": "batch", "events": events});
            }
            Ok(None) => {}
        }
    }
    match content_mode::read(binding, message, &limits()) {
        Err(error) => outcome(Err(error)),
        Ok(Content::Event(event)) => outcome(Ok(event)),
        Ok(Content::Plain { body, .. }) => {
            assert_eq!(body, message.body.clone().unwrap_or_default());
            json!({"kind": "not_cloudevent"})
        }
    }
}

fn encode(case: &Value, mode: ContentMode) -> Result<(), String> {
    let binding = binding_of(case["binding"].as_str().unwrap());
    written(&event(&case["input"]), binding, mode, &case["expect"])
}

fn translate(case: &Value) -> Result<(), String> {
    let (from, to) = case["binding"].as_str().unwrap().split_once('>').unwrap();
    let read = match from {
        "json" => format::read(&body(&case["input"]["body"]).unwrap(), &limits()),
        name => {
            match content_mode::read(binding_of(name), &message(name, &case["input"]), &limits()) {
                Ok(Content::Event(event)) => Ok(event),
                Ok(Content::Plain { .. }) => return Err("not read as an event".into()),
                Err(error) => Err(error),
            }
        }
    };
    match read {
        Ok(event) => written(&event, binding_of(to), ContentMode::Binary, &case["expect"]),
        error => same(&outcome(error), &case["expect"]),
    }
}

/// The key of a record: the user's, or the one that the mapper takes from the event.
fn key(case: &Value) -> Result<(), String> {
    let event = event(&case["input"]["event"]);
    let user = case["input"]["user_key"].as_str();
    let mapper = case["input"]["mapper"].as_str();
    let key = user
        .map(|key| Bytes::from(key.to_owned()))
        .or_else(|| content_mode::key(&event, mapper?));
    let key = key.map(|key| String::from_utf8(key.to_vec()).unwrap());
    let attributes = &outcome(Ok(event))["attributes"];
    same(
        &json!({"key": key, "attributes": attributes}),
        &case["expect"],
    )
}

fn written(
    event: &Event,
    binding: ProtocolBinding,
    mode: ContentMode,
    expect: &Value,
) -> Result<(), String> {
    let message = match content_mode::write(binding, event, mode) {
        Ok(message) => message,
        Err(error) => return same(&outcome(Err(error)), expect),
    };
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let mut headers: Vec<(String, String)> = message
        .headers
        .iter()
        .map(|h| (h.name.to_ascii_lowercase(), text(h.value.as_ref().unwrap())))
        .collect();
    headers.sort();
    if let Some(prefix) = expect["content_type_prefix"].as_str() {
        let [(name, value)] = headers.as_slice() else {
            return Err(format!("headers are {headers:?}"));
        };
        if name != "content-type" || !value.starts_with(prefix) {
            return Err(format!("{name} is {value}"));
        }
    } else {
        same(&json!(headers), &expect["headers"])?;
    }
    let expected = expect.get("body").or(expect.get("value")).unwrap();
    match (expected.get("json"), &message.body) {
        (Some(expected), Some(body)) => same(&serde_json::from_slice(body).unwrap(), expected),
        (_, observed) if *observed == body(expected) => Ok(()),
        (_, observed) => Err(format!("body is {observed:?}, expected {expected}")),
    }
}

fn limits() -> Limits {
    Limits::default()
}

fn binding_of(name: &str) -> ProtocolBinding {
    match name {
        "kafka" => ProtocolBinding::Kafka,
        "nats" => ProtocolBinding::Nats,
        "http" => ProtocolBinding::Http,
        other => panic!("no binding {other}"),
    }
}

fn message(binding: &str, input: &Value) -> Message {
    let mut headers = Headers::new();
    for header in input["headers"].as_array().unwrap() {
        let name = Text::from(header[0].as_str().unwrap());
        match &header[1] {
            Value::Null => headers.push_null(name),
            Value::String(value) => headers.push(name, value.clone()),
            bytes => headers.push(name, body(bytes).unwrap()),
        }
    }
    let part = match binding {
        "kafka" => "value",
        "nats" => "payload",
        _ => "body",
    };
    Message {
        key: body(&input["key"]),
        headers,
        body: body(&input[part]),
    }
}

/// Bytes as the vectors write them; `None` for null.
fn body(value: &Value) -> Option<Bytes> {
    if value.is_null() {
        return None;
    }
    let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
    let times = || usize::try_from(value["times"].as_u64().unwrap()).unwrap();
    Some(match kind.as_str() {
        "utf8" => Bytes::from(value.as_str().unwrap().to_owned()),
        "base64" => base64(value.as_str().unwrap()),
        "json" => Bytes::from(value.to_string()),
        "repeat" => Bytes::from(value["utf8"].as_str().unwrap().repeat(times())),
        "nest" => {
            let nested = value["open"].as_str().unwrap().repeat(times());
            Bytes::from(value["prefix"].as_str().unwrap().to_owned() + &nested)
        }
        other => panic!("no bytes of kind {other}"),
    })
}

fn base64(text: &str) -> Bytes {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = ALPHABET.iter().position(|known| *known == byte).unwrap();
        bits = bits << 6 | u32::try_from(digit).unwrap();
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from(bits >> held & 0xff).unwrap());
        }
    }
    out.into()
}

/// The event of an encode or key case.
fn event(input: &Value) -> Event {
    let attributes = input["attributes"].as_object().unwrap();
    let text = |name: &str| Text::from(attributes[name].as_str().unwrap());
    let mut event = Event::new(text("id"), text("source"), text("type")).unwrap();
    for (name, value) in attributes {
        let value = match value {
            Value::String(text) => Attribute::from(text.as_str()),
            Value::Bool(flag) => Attribute::from(*flag),
            Value::Number(number) => {
                Attribute::from(i32::try_from(number.as_i64().unwrap()).unwrap())
            }
            other => Attribute::from(other["binary"].as_str().unwrap()),
        };
        event.set(name, value).unwrap();
    }
    let data = &input["data"];
    event.set_data(match data["kind"].as_str().unwrap() {
        "none" => None,
        "json" => Some(Data::json(Bytes::from(data["value"].to_string())).unwrap()),
        other => panic!("no data of kind {other}"),
    });
    event
}

/// The result of reading, in the form of the vectors.
fn outcome(read: Result<Event, EventError>) -> Value {
    let event = match read {
        Ok(event) => event,
        Err(error) => return json!({"kind": "error", "code": error.kind().as_str()}),
    };
    let mut attributes: BTreeMap<&str, Value> = event
        .core_attributes()
        .map(|(name, value)| (name, json!(value)))
        .collect();
    attributes.extend(event.extensions().map(|(name, value)| {
        (
            name,
            match value {
                Attribute::String(text) => json!(text),
                Attribute::Integer(number) => json!(number),
                Attribute::Boolean(flag) => json!(flag),
            },
        )
    }));
    let (data, broken) = view(&event);
    let mut observed = json!({"kind": "event", "attributes": attributes, "data": data});
    if broken {
        observed["data_error"] = json!(true);
    }
    observed
}

/// The data as the vectors view them, and whether they are declared JSON without being it.
fn view(event: &Event) -> (Value, bool) {
    let media_type = event.datacontenttype().map_or("", |text| text.as_str());
    let (bytes, is_json) = match event.data() {
        None => return (json!({"kind": "none"}), false),
        Some(data) => (data.bytes(), data.is_json() || format::is_json(media_type)),
    };
    if is_json && let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        return (json!({"kind": "json", "value": value}), false);
    }
    let essence = media_type.to_ascii_lowercase();
    let (essence, parameters) = essence.split_once(';').unwrap_or((&essence, ""));
    let is_text = essence.starts_with("text/") || essence.ends_with("xml");
    let charset = parameters.trim().strip_prefix("charset=");
    let readable = charset.is_none_or(|charset| matches!(charset, "utf-8" | "us-ascii"));
    match std::str::from_utf8(bytes) {
        Ok(text) if is_text && readable => (json!({"kind": "text", "value": text}), false),
        _ => (json!({"kind": "binary", "bytes": bytes.to_vec()}), is_json),
    }
}

/// The expectation with its shorthands written out.
fn normal(expect: &Value) -> Value {
    let mut expect = expect.clone();
    if let Some(events) = expect.get_mut("events").and_then(Value::as_array_mut) {
        for event in events {
            *event = normal(event);
        }
    }
    let data = &expect["data"];
    match data["kind"].as_str() {
        Some("repeat") => {
            let bytes = body(&json!({"repeat": data})).unwrap();
            let text = std::str::from_utf8(&bytes).unwrap();
            expect["data"] = json!({"kind": "text", "value": text});
        }
        Some("binary") => {
            let bytes = base64(data["base64"].as_str().unwrap());
            expect["data"] = json!({"kind": "binary", "bytes": bytes.to_vec()});
        }
        _ => {}
    }
    expect
}

fn same(observed: &Value, expected: &Value) -> Result<(), String> {
    if observed == expected {
        return Ok(());
    }
    let short = |value: &Value| value.to_string().chars().take(600).collect::<String>();
    Err(format!(
        "\n  observed {}\n  expected {}",
        short(observed),
        short(expected)
    ))
}
