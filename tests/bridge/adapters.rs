//! The processing of payloads in a binding: refuses, converts, validates, names.

use a2abus_bridge::config::Config;
use a2abus_plugin::{Event, Limits};
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, Consumer, Message, Topic};
use support::battery::within;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::set_up::{build, publish, read, receive, until_ready};

/// A bridge that reads `in` and writes `out`.
struct World {
    memory: Memory,
    out: Consumer,
    dead: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// The configuration, with more keys for the binding and for the route.
fn config(binding: &str, route: &str) -> String {
    format!(
        "instance: test\n\
         transports: {{ bus: {{ type: memory }} }}\n\
         bindings: [{{ name: in, transport: bus, topics: [in] {binding} }}]\n\
         routes: [{{ name: out, to: [{{ transport: bus, topic: out }}] {route} }}]\n\
         http: {{ enabled: false }}\nadmin: {{ enabled: false }}\n"
    )
}

impl World {
    async fn new(binding: &str, route: &str) -> Self {
        let memory = Memory::default();
        let text = config(binding, route);
        let config =
            Config::read("test.yaml", &text, []).unwrap_or_else(|problems| panic!("{problems}"));
        let bridge = build(config, |_| &memory).await;
        let readiness = std::sync::Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let out = read(&memory, "out").await;
        let dead = read(&memory, "a2abus.dlq").await;
        until_ready(&readiness).await;
        Self {
            memory,
            out,
            dead,
            stop,
            running,
        }
    }

    async fn publish(&self, message: Message) {
        let address = Address::topic(Topic::from_static("in"));
        publish(&self.memory, &address, message).await;
    }

    /// The event that is routed next.
    async fn event(&mut self) -> Event {
        let message = receive(&mut self.out, "an event").await.message;
        match content_mode::read(ProtocolBinding::Memory, &message, &Limits::default()).unwrap() {
            Content::Event(event) => event,
            Content::Plain { .. } => panic!("not a CloudEvent"),
        }
    }

    /// The next dead letter: its reason, its detail and its body.
    async fn dead_letter(&mut self) -> (String, String, String) {
        let message = receive(&mut self.dead, "a dead letter").await.message;
        let header = |name| {
            let value = message.headers.get(name).unwrap();
            String::from_utf8(value.to_vec()).unwrap()
        };
        let body = String::from_utf8(message.body.clone().unwrap().to_vec()).unwrap();
        (header("bus-dlq-reason"), header("bus-dlq-detail"), body)
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

#[tokio::test]
async fn a_handshake_is_not_published_and_its_token_is_blanked() {
    let mut world = World::new("", "").await;
    let handshake = r#"{"type":"handshake/req","id":"1", "version":"1.0","ts":1.50,"auth_token":"s3cret","agent_id":"a"}"#;
    world.publish(Message::plain(handshake)).await;
    let (reason, detail, body) = world.dead_letter().await;
    assert_eq!(reason, "link_local");
    assert!(detail.contains("handshake"), "{detail}");
    assert_eq!(body, handshake.replace("s3cret", "***"));
    // Broken, and a line among others.
    let lines = format!("{handshake}\n{handshake} x\n");
    world.publish(Message::plain(lines)).await;
    for reason in ["link_local", "not_json"] {
        let (found, _, body) = world.dead_letter().await;
        assert_eq!(found, reason);
        assert!(body.contains("***") && !body.contains("s3cret"), "{body}");
    }
    for ty in ["ping", "pong", "shutdown"] {
        let message = format!(r#"{{"type":"{ty}","id":"1","version":"1.0","ts":1}}"#);
        world.publish(Message::plain(message)).await;
        assert_eq!(world.dead_letter().await.0, "link_local");
    }
    world.end().await;
}

#[tokio::test]
async fn the_credentials_of_an_e2a_request_reach_its_agent_and_no_dead_letter() {
    let auth = r#""auth":{"bearer_token":"s3cret","extra_headers":{"X-Key":"s3cret"}}"#;
    let request = |more: &str| {
        format!(r#"{{"protocol_version":"1.0","request_id":"r","method":"m",{auth}{more}}}"#)
    };
    let mut world = World::new("", "").await;
    world.publish(Message::plain(request(""))).await;
    assert_eq!(world.event().await.body(), request(""));
    let refused = request(r#","params":{"_agentId":{}}"#);
    world.publish(Message::plain(refused.clone())).await;
    let (reason, detail, body) = world.dead_letter().await;
    assert_eq!(reason, "bad_target");
    assert_eq!(body, refused.replace("s3cret", "***"));
    assert!(!detail.contains("s3cret"));
    world.end().await;
}

const E2A: &str = r#"{"protocol_version":"1.0","request_id":"r1","method":"session/prompt","agent_id":"coder","session_id":"s","params":{"text":"Hi"}}"#;

/// An attribute of an event as text; `-` where it is absent.
fn attribute(event: &Event, name: &str) -> String {
    let value = event.attribute(name);
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[track_caller]
fn check_acp_call(event: &Event) {
    let body = event.body();
    let call: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&call["jsonrpc"], &call["method"]),
        (&"2.0".into(), &"session/prompt".into())
    );
    for (name, value) in [
        ("type", "org.apache.eventmesh.a2a.session.prompt.req"),
        ("protocol", "A2A"),
        ("protocolversion", "2.0"),
        ("a2amethod", "session/prompt"),
        ("mcptype", "request"),
        ("datacontenttype", "application/json"),
        // Its routing and correlation attributes do not change.
        ("targetagent", "coder"),
        ("collaborationid", "r1"),
        ("sessionid", "s"),
    ] {
        assert_eq!(attribute(event, name), value, "{name}");
    }
}

#[tokio::test]
async fn a_binding_and_a_route_convert_records() {
    let convert = ", convert: envelope_to_acp_jsonrpc_call";
    for (binding, route) in [(convert, ""), ("", convert)] {
        let mut world = World::new(binding, route).await;
        world.publish(Message::plain(E2A)).await;
        check_acp_call(&world.event().await);
        world.end().await;
    }
}

#[tokio::test]
async fn a_call_is_wrapped_as_its_conversion_requires() {
    let mut world = World::new("", ", convert: envelope_from_jsonrpc_request").await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"_agentId":"coder","sessionId":"s"}}"#;
    world.publish(Message::plain(call)).await;
    let event = world.event().await;
    let body = event.body();
    let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(request["jsonrpc_id"], 7);
    // An answer to the request names it by the id of the event.
    assert_eq!(request["request_id"], event.id().as_str());
    assert_eq!(attribute(&event, "protocol"), "E2A");
    assert_eq!(attribute(&event, "targetagent"), "coder");
    world.end().await;
}

#[tokio::test]
async fn a_payload_of_an_unknown_format_can_be_converted() {
    let mut world = World::new(", convert: envelope_from_acp_jsonrpc", "").await;
    let call = r#"{"method":"session/prompt","params":{"text":"Hi"},"jsonrpc_id":3}"#;
    world.publish(Message::plain(call)).await;
    let event = world.event().await;
    assert_eq!(attribute(&event, "protocol"), "E2A");
    world.end().await;
}

#[tokio::test]
async fn a_record_that_cannot_be_converted_becomes_a_dead_letter_with_the_reason() {
    let convert = ", convert: e2a_response_to_acp_jsonrpc_response";
    for (binding, route) in [(convert, ""), ("", convert)] {
        let mut world = World::new(binding, route).await;
        // A part has no counterpart; the other is a record no more.
        let part = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"e2a.chunk","is_final":false,"body":{"delta":"x"}}"#;
        let broken = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"e2a.complete","is_final":true,"user_id":{}}"#;
        for (payload, why) in [
            (
                part,
                "e2a_response_to_acp_jsonrpc_response: the record has no counterpart",
            ),
            (
                broken,
                "e2a_response_to_acp_jsonrpc_response: bad_type at user_id",
            ),
        ] {
            world.publish(Message::plain(payload)).await;
            let (reason, detail, body) = world.dead_letter().await;
            assert_eq!(reason, "convert_failed");
            assert!(detail.starts_with(why), "{detail}");
            assert_eq!(body, payload);
        }
        world.end().await;
    }
}

/// Its id would be lost, and its agent would not answer.
#[tokio::test]
async fn a_message_of_another_family_is_not_converted() {
    let mut world = World::new("", ", convert: envelope_normalize").await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#;
    world.publish(Message::plain(call)).await;
    let (reason, detail, body) = world.dead_letter().await;
    assert_eq!((reason.as_str(), body.as_str()), ("convert_failed", call));
    assert_eq!(
        detail,
        "envelope_normalize: unrecognized_shape: expected an E2A request, but this is a JSON-RPC message"
    );
    world.end().await;
}

#[tokio::test]
async fn a_record_that_breaks_its_model_is_refused_with_everything_that_is_wrong() {
    for (binding, route) in [(", validate: true", ""), ("", ", validate: true")] {
        let mut world = World::new(binding, route).await;
        for (payload, faults) in [
            (
                r#"{"protocol_version":"1.0","request_id":"r","method":"m","user_id":{},"auth":{"bearer_token":[]},"identity_origin":"robot"}"#,
                "user_id: bad_type; identity_origin: bad_value; auth.bearer_token: bad_type",
            ),
            (
                r#"{"type":"tool/call/resp","id":"1","version":"1.0","ts":1,"req_id":"2","data":{"success":"maybe","tool_name":7}}"#,
                "data.success: is not a Boolean; data.tool_name: is not a string; data.duration_ms: is missing",
            ),
        ] {
            world.publish(Message::plain(payload)).await;
            let (reason, detail, _) = world.dead_letter().await;
            assert_eq!(reason, "invalid_record");
            let listed = detail.strip_prefix("the record is not valid: ").unwrap();
            let sorted = |text: &str| {
                let mut faults: Vec<String> = text.split("; ").map(str::to_owned).collect();
                faults.sort();
                faults
            };
            assert_eq!(sorted(listed), sorted(faults));
        }
        let workflow = "{\"type\":\"operationUpdate\",\"operationId\":\"w\",\"operation\":{\"Wait\":{\"duration\":\"x\"}}}\n\
             {\"type\":\"beginExecution\",\"executionId\":\"e\",\"operationOrder\":[\"w\",\"gone\"]}";
        world.publish(Message::plain(workflow)).await;
        let (reason, detail, _) = world.dead_letter().await;
        assert_eq!(reason, "invalid_record");
        assert!(
            detail.contains("duration") && detail.contains("gone"),
            "{detail}"
        );
        // Valid payloads, and those without a model, pass.
        for payload in [E2A, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#] {
            world.publish(Message::plain(payload)).await;
            assert_eq!(world.event().await.body(), payload);
        }
        world.end().await;
    }
}

#[test]
fn a_conversion_that_does_not_exist_is_an_error_with_the_nearest() {
    let problems = |binding: &str, route: &str| {
        let read = Config::read("test.yaml", &config(binding, route), []);
        read.unwrap_err().to_string()
    };
    let misspelt = ", convert: envelope_to_acp_jsonrpc_cal";
    for text in [problems(misspelt, ""), problems("", misspelt)] {
        assert!(
            text.contains("did you mean envelope_to_acp_jsonrpc_call?"),
            "{text}"
        );
    }
    assert!(problems(", convert: x", "").contains("a2abus convert --list"));
    let responses = problems(", role: responses, validate: true, convert: classify", "");
    assert_eq!(responses.matches("is only for role: events").count(), 2);
    let pass = problems(", on_unknown: pass, convert: classify", "");
    assert!(pass.contains("write one of the two"), "{pass}");
}

/// A reader of the original executes the inner request or takes the inner answer, not the one that was routed.
#[tokio::test]
async fn a_message_inside_another_does_not_pass_unless_it_is_the_same() {
    let inside = |id: &str| {
        format!(
            r#"{{"protocol_version":"1.0","request_id":"r","method":"x","params":{{"_agentId":"w"}},"channel_context":{{"_jiuwenswarm":{{"normalize_failed":true,"legacy_agent_request":{{"request_id":"{id}"}}}}}}}}"#
        )
    };
    let (same, other) = (inside("r"), inside("evil"));
    let answer = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"e2a.complete","is_final":true,"metadata":{"_e2a_wire_legacy_agent_response":{"request_id":"evil"}}}"#;
    let trusted = ", mapping: { e2a_trusted: true }";
    for (binding, refused) in [
        ("", vec![same.as_str(), other.as_str(), answer]),
        (trusted, vec![other.as_str(), answer]),
    ] {
        let mut world = World::new(binding, "").await;
        for payload in refused {
            world.publish(Message::plain(payload.to_owned())).await;
            let (reason, detail, body) = world.dead_letter().await;
            assert_eq!(reason, "bad_value");
            assert!(!detail.contains("evil"), "{detail}");
            assert_eq!(body, payload);
        }
        if binding == trusted {
            world.publish(Message::plain(same.clone())).await;
            assert_eq!(world.event().await.body(), same);
        }
        world.end().await;
    }
}

/// The bridge itself may put a request into another one.
#[tokio::test]
async fn a_request_that_a_conversion_has_put_inside_is_described() {
    let mut world = World::new(", convert: build_fallback_e2a", "").await;
    let request = r#"{"request_id":"r","channel_id":"c","req_method":"chat.send","params":{}}"#;
    world.publish(Message::plain(request)).await;
    let event = world.event().await;
    for (name, value) in [
        ("type", "org.apache.eventmesh.a2a.e2a.unnamed.req"),
        ("protocolversion", "1.0"),
        ("collaborationid", "r"),
    ] {
        assert_eq!(attribute(&event, name), value, "{name}");
    }
    world.end().await;
}

#[tokio::test]
async fn missing_attributes_of_a_cloudevent_come_from_its_data_if_the_binding_says_so() {
    let data = r#"{"jsonrpc":"2.0","method":"tools/call","params":{"_agentId":"weather"}}"#;
    let filling = ", fill_from_data: true";
    for (binding, own, expected) in [
        ("", None, "-"),
        (filling, None, "weather"),
        (filling, Some("other"), "other"),
    ] {
        let mut world = World::new(binding, "").await;
        let mut message = Message::plain(data);
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "1"),
            ("source", "s"),
            ("type", "t"),
        ] {
            message.headers.push(format!("ce_{name}"), value);
        }
        if let Some(own) = own {
            message.headers.push("ce_targetagent", own);
        }
        world.publish(message).await;
        let event = world.event().await;
        assert_eq!(attribute(&event, "targetagent"), expected);
        assert_eq!(event.body(), data);
        world.end().await;
    }
}

/// The event and the position it was read at.
async fn named(world: &mut World) -> (String, String) {
    let event = world.event().await;
    (event.id().to_string(), attribute(&event, "origin"))
}

#[tokio::test]
async fn the_id_of_an_event_is_where_it_was_read() {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    let batch = format!("[{call},{call}]");
    let mut world = World::new("", "").await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        world.publish(Message::plain(batch.clone())).await;
        for index in 0..2 {
            let (id, origin) = named(&mut world).await;
            assert!(origin.starts_with("m:in/"), "{origin}");
            assert_eq!(id, format!("{origin}#{index}"));
            ids.push(id);
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    world.end().await;
    for (rule, is_own) in [("payload", true), ("fresh", false)] {
        let mut world = World::new(&format!(", mapping: {{ ids: {rule} }}"), "").await;
        world.publish(Message::plain(call)).await;
        let (id, origin) = named(&mut world).await;
        assert_eq!(id == "1", is_own, "{id}");
        assert!(!id.contains(&origin));
        world.end().await;
    }
}
