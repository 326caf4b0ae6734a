//! The events of A2E messages, A2E workflows and E2A records. Source: docs/protocols/detection.md,
//! docs/protocols/a2e-messages.md §8, docs/protocols/a2e-workflows.md §11, docs/protocols/e2a.md §10.

use a2abus_plugin::{
    Data, Event, EventId, Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Notifications,
    Source, Streams, Text, Units, format, map,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

const PREFIX: &str = "org.apache.eventmesh.a2a.";

fn units_with(payload: &str, hint: &Hint, options: &MapOptions) -> Units<Mapped> {
    let context = MapContext {
        source: Source::new("/t").unwrap(),
        time: None,
        ids: Ids::Payload(&|| EventId::new("<new>").unwrap()),
    };
    let payload = Bytes::from(payload.to_owned());
    map(&payload, hint, &Limits::default(), options, &context)
}

fn units(payload: &str, hint: &Hint) -> Units<Mapped> {
    units_with(payload, hint, &MapOptions::default())
}

/// The attributes of the only event, without those that every event shares.
fn attributes_of(mapped: &Mapped) -> Map<String, Value> {
    let mut structured = Vec::new();
    format::write(&mapped.event, &mut structured);
    let mut event: Map<String, Value> = serde_json::from_slice(&structured).unwrap();
    for name in [
        "specversion",
        "source",
        "datacontenttype",
        "data",
        "data_base64",
    ] {
        event.remove(name);
    }
    event
}

fn attributes(payload: &Value, hint: &Hint) -> Value {
    let mapped = units(&payload.to_string(), hint).into_only().unwrap();
    Value::Object(attributes_of(
        &mapped.unwrap_or_else(|refused| panic!("{refused:?}")),
    ))
}

fn refusal(payload: &Value, hint: &Hint) -> (String, String) {
    let refused = units(&payload.to_string(), hint)
        .into_only()
        .unwrap()
        .unwrap_err();
    (
        refused.error.kind().to_string(),
        refused.error.pointer().to_owned(),
    )
}

fn declared(family: Family) -> Hint {
    let mut hint = Hint::default();
    hint.family = Some(family);
    hint
}

/// `expected` with the prefix in front of its type.
fn event(mut expected: Value) -> Value {
    let ty = format!("{PREFIX}{}", expected["type"].as_str().unwrap());
    expected["type"] = ty.into();
    expected
}

// === A2E messages ===

fn vectors(group: &str) -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../tests/vectors/a2e_message.json")).unwrap();
    let cases = file["cases"].as_array().unwrap().iter();
    cases
        .filter(|case| case["group"] == group)
        .cloned()
        .collect()
}

#[test]
fn the_attributes_of_a2e_messages_are_those_of_the_vectors() {
    let cases = vectors("map");
    assert_eq!(cases.len(), 7);
    for case in cases {
        let payload: Value = serde_json::from_str(case["wire"].as_str().unwrap()).unwrap();
        assert_eq!(
            attributes(&payload, &Hint::default()),
            case["attributes"],
            "{}",
            case["name"]
        );
    }
}

#[test]
fn the_detected_family_matches_the_vectors() {
    let class = |outcome: &Result<Mapped, a2abus_plugin::Refused>| match outcome {
        Ok(mapped) => match mapped.detection.family {
            Family::CloudEvent => "cloudevent",
            Family::JsonRpc => "jsonrpc",
            Family::Legacy => "legacy_a2a",
            Family::A2eMessage => "a2e_message",
            Family::A2eWorkflow => "a2e_execution",
            Family::E2a => "e2a",
        },
        // A single line of a workflow is recognised and refused.
        Err(refused) if refused.error.kind().as_str() == "missing_collaborationid" => {
            "a2e_execution"
        }
        Err(refused) if refused.error.kind().as_str() == "unknown" => "not_a2e",
        // A legacy message without an act is still one.
        Err(refused) => refused.error.kind().as_str(),
    };
    let cases = vectors("detect");
    assert_eq!(cases.len(), 12);
    for case in cases {
        let wire = case["wire"].as_str().unwrap();
        for (binding, hint) in [
            ("mixed", Hint::default()),
            ("declared", declared(Family::A2eMessage)),
        ] {
            let expected = case[binding].as_str().unwrap();
            if expected == "batch" {
                assert!(wire.starts_with('['));
                continue;
            }
            let units = units(wire, &hint);
            assert_eq!(
                class(&units[0]),
                expected,
                "{} on a {binding} binding",
                case["name"]
            );
        }
    }
}

#[test]
fn a2e_answers_events_and_pushes_are_distinguished() {
    let kind = |payload: Value| attributes(&payload, &Hint::default())["mcptype"].clone();
    let message = |ty: &str, more: Value| {
        let mut payload = json!({"type": ty, "id": "1", "version": "1.0", "ts": 1});
        payload
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        payload
    };
    for (ty, more, expected) in [
        ("shutdown", json!({}), "notification"),
        ("env/state/push", json!({}), "notification"),
        ("tool/event", json!({}), "notification"),
        ("tool/event", json!({"req_id": "c"}), "stream"),
        ("error", json!({}), "notification"),
        ("error", json!({"req_id": "c"}), "response"),
        ("planning/task/add", json!({}), "request"),
        ("planning/task/add/resp", json!({"req_id": "c"}), "response"),
        ("mcp/sample/req", json!({}), "request"),
        ("mcp/sample/req", json!({"req_id": "c"}), "response"),
    ] {
        assert_eq!(kind(message(ty, more)), expected, "{ty}");
    }
}

#[test]
fn an_a2e_message_names_its_target_or_its_topic() {
    let call = |more: Value| {
        let mut payload = json!({"a2e": "1.0", "type": "tool/call/req", "tool_name": "t"});
        payload
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        payload
    };
    let topic = attributes(
        &call(json!({"_topic": "t.1", "_agentId": "a"})),
        &Hint::default(),
    );
    assert_eq!(
        (&topic["subject"], topic.get("targetagent")),
        (&json!("t.1"), None)
    );
    // Without an id the event gets a new one, and nothing can be correlated with it.
    assert_eq!(
        (&topic["id"], topic.get("collaborationid")),
        (&json!("<new>"), None)
    );
    let correlated = call(json!({"req_id": "r", "_agentId": "a"}));
    let correlated = attributes(&correlated, &Hint::default());
    assert_eq!(
        (&correlated["id"], &correlated["collaborationid"]),
        (&json!("<new>"), &json!("r"))
    );
    let own = attributes(&call(json!({"id": "i", "req_id": "r"})), &Hint::default());
    assert_eq!(own["collaborationid"], "i");
    let bad = call(json!({"_agentId": "a/../b"}));
    assert_eq!(
        refusal(&bad, &Hint::default()),
        ("bad_target".into(), "/_agentId".into())
    );
    let mut strict = Hint::default();
    strict.strict_ids = true;
    assert_eq!(refusal(&call(json!({})), &strict).0, "missing_id");
    assert_eq!(
        refusal(&call(json!({"id": 7})), &Hint::default()).0,
        "bad_id"
    );
    for version in ["2.0", "x", "1.x", ""] {
        let payload = json!({"a2e": version, "type": "ping", "id": "1"});
        assert_eq!(
            refusal(&payload, &Hint::default()).0,
            "unsupported_version",
            "{version}"
        );
    }
    let both = json!({"a2e": "1.0", "version": "1.1", "type": "ping", "id": "1"});
    assert_eq!(refusal(&both, &Hint::default()).0, "unsupported_version");
}

#[test]
fn a_repeated_decisive_member_is_refused() {
    for payload in [
        r#"{"a2e":"1.0","type":"ping","id":"1","id":"2"}"#,
        r#"{"protocol_version":"1.0","request_id":"1","method":"m","method":"m"}"#,
        r#"{"protocol_version":"1.0","request_id":"1","method":"m","params":{"_agentId":"a","_agentId":"b"}}"#,
    ] {
        let refused = units(payload, &Hint::default())
            .into_only()
            .unwrap()
            .unwrap_err();
        assert_eq!(
            refused.error.kind().as_str(),
            "duplicate_member",
            "{payload}"
        );
    }
}

// === A2E workflows ===

const DEFINITION: &str =
    r#"{"type":"operationUpdate","operationId":"a","operation":{"Wait":{"duration":1}}}"#;
const BEGIN: &str = r#"{"type":"beginExecution","executionId":"exec-1","operationOrder":["a"]}"#;

fn workflow_event(target: &str) -> Value {
    event(json!({
        "type": "a2e.workflow.execute.req", "id": "exec-1", "mcptype": "request",
        "a2amethod": "workflows/execute", "collaborationid": "exec-1", "targetagent": target,
        "protocol": "A2E-EXEC", "protocolversion": "1.0",
    }))
}

#[test]
fn the_lines_of_a_workflow_are_one_unit() {
    for payload in [
        format!("{DEFINITION}\n{BEGIN}\n"),
        format!("\n{DEFINITION}\r\n\r\n{DEFINITION}\n{BEGIN}"),
    ] {
        let mapped = units(&payload, &Hint::default())
            .into_only()
            .unwrap()
            .unwrap();
        assert_eq!(mapped.detection.rule, 5);
        assert_eq!(mapped.event.body(), payload);
        assert_eq!(
            mapped.event.datacontenttype().unwrap(),
            "application/x-ndjson"
        );
        assert_eq!(
            Value::Object(attributes_of(&mapped)),
            workflow_event("a2e-executor")
        );
    }
}

#[test]
fn the_wrapped_dialect_is_a_workflow_too() {
    let payload = concat!(
        r#"{"operationUpdate":{"workflowId":"w","operations":[]}}"#,
        "\n",
        r#"{"beginExecution":{"workflowId":"w","root":"a"}}"#
    );
    let mapped = units(payload, &Hint::default())
        .into_only()
        .unwrap()
        .unwrap();
    assert_eq!(mapped.event.id(), "<new>");
    assert_eq!(
        mapped.event.extension_text("a2amethod").unwrap(),
        "workflows/execute"
    );
    assert_eq!(mapped.event.extension("collaborationid"), None);
}

#[test]
fn a_line_that_executors_ignore_refuses_no_workflow() {
    let ignored = r#"{"dataModelUpdate":{"key":"x"}}"#;
    let definition = r#"{"operationUpdate":{"workflowId":"w","operations":[]}}"#;
    let begin = r#"{"beginExecution":{"workflowId":"w","root":"a"}}"#;
    for payload in [
        format!("{definition}\n{ignored}\n{begin}"),
        format!("{ignored}\n{definition}\n{begin}"),
    ] {
        let mapped = units(&payload, &Hint::default())
            .into_only()
            .unwrap()
            .unwrap();
        assert_eq!(mapped.event.body(), payload);
        assert_eq!(
            mapped.event.extension_text("a2amethod").unwrap(),
            "workflows/execute"
        );
    }
    for other in [
        r#"{"dataModelUpdate":5}"#,
        r#"{"type":"x","dataModelUpdate":{}}"#,
    ] {
        let payload = format!("{definition}\n{other}\n{begin}");
        let refused = units(&payload, &Hint::default())
            .into_only()
            .unwrap()
            .unwrap_err();
        assert_eq!(refused.error.kind().as_str(), "unknown", "{payload}");
    }
    // Alone, nothing shows that it belongs to a workflow.
    let alone = serde_json::from_str(ignored).unwrap();
    assert_eq!(refusal(&alone, &Hint::default()).0, "unknown");
}

#[test]
fn a_line_of_the_wrapped_dialect_is_what_its_object_says() {
    let content = json!({"workflowId":"w"});
    for begin in [json!(null), json!("x"), content.clone()] {
        let definition = json!({"operationUpdate": content, "beginExecution": begin});
        let (kind, _) = refusal(&definition, &Hint::default());
        assert_eq!(kind, "missing_collaborationid", "{definition}");
    }
    let begin = json!({"operationUpdate": null, "beginExecution": content});
    let event = attributes(&begin, &Hint::default());
    assert_eq!(event["a2amethod"], "workflows/execute");
}

#[test]
fn the_begin_line_or_the_binding_names_the_executor() {
    let named = BEGIN.replace("\"executionId\"", "\"_agentId\":\"x\",\"executionId\"");
    let workflow = |begin: &str, hint: &Hint| {
        let payload = format!("{DEFINITION}\n{begin}");
        attributes_of(&units(&payload, hint).into_only().unwrap().unwrap())["targetagent"].clone()
    };
    let bad = format!("{DEFINITION}\n{}", named.replace("\"x\"", "\"x y\""));
    let refused = units(&bad, &Hint::default())
        .into_only()
        .unwrap()
        .unwrap_err();
    assert_eq!(refused.error.kind().as_str(), "bad_target");
    assert_eq!(refused.bytes, bad);
    let mut hint = Hint::default();
    hint.executor = Some(Text::from("runner"));
    assert_eq!(workflow(BEGIN, &hint), "runner");
    assert_eq!(workflow(&named, &hint), "x");
    hint.validate_workflows = true;
    let validate = units(&format!("{DEFINITION}\n{BEGIN}"), &hint)
        .into_only()
        .unwrap()
        .unwrap();
    assert_eq!(
        validate.event.ty().as_str(),
        format!("{PREFIX}a2e.workflow.validate.req")
    );
}

#[test]
fn the_begin_line_names_its_execution_once() {
    let twice = BEGIN.replace("\"executionId\"", "\"executionId\":\"e2\",\"executionId\"");
    for payload in [twice.clone(), format!("{DEFINITION}\n{twice}")] {
        let refused = units(&payload, &Hint::default())
            .into_only()
            .unwrap()
            .unwrap_err();
        assert_eq!(refused.error.kind().as_str(), "duplicate_member");
        assert_eq!(refused.error.pointer(), "/executionId");
    }
}

#[test]
fn a_workflow_whose_first_line_cannot_be_read_is_refused_as_a_workflow() {
    let refused = |payload: &str| {
        let refused = units(payload, &Hint::default()).into_only().unwrap();
        let refused = refused.unwrap_err();
        assert_eq!(refused.error.kind().as_str(), "not_json", "{payload}");
        assert_eq!(refused.bytes, payload);
        refused
    };
    for first in ["```", "{bad", &format!("{DEFINITION} x")] {
        let refused = refused(&format!("{first}\n{DEFINITION}\n{BEGIN}"));
        let message = refused.error.to_string();
        assert!(message.contains("line 1 of the workflow"), "{message}");
        let family = refused.sender.map(|sender| sender.family);
        assert_eq!(family, Some(Family::A2eWorkflow), "{first}");
    }
    for other in [
        "{bad".to_owned(),
        "{bad\n{\"jsonrpc\":\"2.0\",\"method\":\"m\"}".to_owned(),
        format!("{{bad\n{DEFINITION}\n{{\"jsonrpc\":\"2.0\",\"method\":\"m\"}}"),
        "{\n\"a\": x\n}".to_owned(),
        format!("{{\n\"a\": [\n{DEFINITION},\n{BEGIN}\n]\n"),
    ] {
        assert!(refused(&other).sender.is_none(), "{other}");
    }
}

#[test]
fn a_single_workflow_line_needs_a_collaboration_id() {
    let begin = serde_json::from_str(BEGIN).unwrap();
    assert_eq!(
        attributes(&begin, &Hint::default()),
        workflow_event("a2e-executor")
    );
    let definition = serde_json::from_str(DEFINITION).unwrap();
    assert_eq!(
        refusal(&definition, &Hint::default()).0,
        "missing_collaborationid"
    );
    let mut tied = Hint::default();
    tied.header("CollaborationId", "flow-7");
    let expected = event(json!({
        "type": "a2e.operation.update", "id": "<new>", "mcptype": "notification",
        "a2amethod": "operationUpdate", "collaborationid": "flow-7",
        "targetagent": "a2e-executor", "protocol": "A2E-EXEC", "protocolversion": "1.0",
    }));
    assert_eq!(attributes(&definition, &tied), expected);
}

#[test]
fn lines_of_mixed_kinds_are_separate_units() {
    let payload = format!("{BEGIN}\n{{\"jsonrpc\":\"2.0\",\"method\":\"m\"}}\n{DEFINITION}\nnull");
    let units = units(&payload, &Hint::default());
    let outcomes: Vec<_> = units
        .iter()
        .map(|unit| match unit {
            Ok(mapped) => mapped.detection.family.as_str(),
            Err(refused) => refused.error.kind().as_str(),
        })
        .collect();
    let expected = [
        "a2e_workflow",
        "jsonrpc",
        "missing_collaborationid",
        "not_an_object",
    ];
    assert_eq!(outcomes, expected);
}

/// Without the line that cannot be read, the others would be another workflow than the one that was sent.
#[test]
fn a_broken_line_refuses_the_whole_workflow() {
    let mut tied = Hint::default();
    tied.header("collaborationid", "flow-7");
    let broken = [
        (&DEFINITION[..40], "not_json"),
        ("```", "not_json"),
        (r#"{"type":"foo"}"#, "unknown"),
        ("[1]", "not_an_object"),
        ("7", "not_an_object"),
    ];
    for (line, kind) in broken {
        for payload in [
            format!("{DEFINITION}\n{line}\n{BEGIN}"),
            format!("{DEFINITION}\n\n{BEGIN}\r\n{line}"),
        ] {
            for hint in [&Hint::default(), &tied] {
                let refused = units(&payload, hint).into_only().unwrap().unwrap_err();
                assert_eq!(refused.error.kind().as_str(), kind, "{payload}");
                assert_eq!(refused.bytes, payload);
                let number = payload.lines().position(|own| own == line).unwrap() + 1;
                let place = format!("line {number} of the workflow");
                let message = refused.error.to_string();
                assert!(message.starts_with(&place), "{message}");
                let sender = refused.sender.unwrap();
                assert_eq!(sender.family, Family::A2eWorkflow);
                assert_eq!(sender.id.unwrap(), "exec-1");
            }
        }
    }
    // Its end is missing.
    let truncated = format!("{DEFINITION}\n{}", &BEGIN[..60]);
    let refused = units(&truncated, &tied).into_only().unwrap().unwrap_err();
    assert_eq!(refused.sender.unwrap().id.unwrap(), "flow-7");
}

#[test]
fn a_broken_line_of_another_family_refuses_no_workflow_line() {
    let mut tied = Hint::default();
    tied.header("collaborationid", "flow-7");
    for other in [
        r#"{"jsonrpc":"1.0","method":"m"}"#,
        r#"{"type":"tool/call/req","id":"c1","version":"1.0","ts":1,"x":NaN}"#,
    ] {
        let units = units(&format!("{DEFINITION}\n{other}\n{BEGIN}"), &tied);
        let accepted: Vec<bool> = units.iter().map(Result::is_ok).collect();
        assert_eq!(accepted, [true, false, true], "{other}");
    }
}

#[test]
fn a_workflow_line_may_be_an_a2e_message_and_an_array_is_never_a_workflow() {
    let marked = json!({"a2e": "1.0", "type": "beginExecution", "id": "1"});
    assert_eq!(attributes(&marked, &Hint::default())["protocol"], "A2E");
    let array = format!("[{DEFINITION},{BEGIN}]");
    assert_eq!(units(&array, &Hint::default()).len(), 2);
}

// === E2A ===

#[test]
fn an_e2a_request_and_its_parts_match_the_example() {
    let request = json!({"protocol_version":"1.0","request_id":"req_1","channel":"web",
        "method":"chat.send","is_stream":true,"agent_ref":{"mode":"agent","id":"planner"},
        "params":{"query":"Hi"}});
    let expected = event(
        json!({"type":"e2a.chat.send.stream","id":"req_1","mcptype":"request",
        "a2amethod":"chat.send","collaborationid":"req_1","targetagent":"planner",
        "e2achannel":"web","protocol":"E2A","protocolversion":"1.0"}),
    );
    assert_eq!(attributes(&request, &Hint::default()), expected);
    let chunk = json!({"protocol_version":"1.0","request_id":"req_1","response_id":"r2",
        "response_kind":"e2a.chunk","sequence":1,"is_final":false,"status":"in_progress",
        "body":{"delta_kind":"text","delta":"x"}});
    let expected = event(
        json!({"type":"e2a.chunk.stream","id":"r2","mcptype":"stream",
        "collaborationid":"req_1","seq":"1","isfinal":false,"e2akind":"e2a.chunk",
        "e2astatus":"in_progress","protocol":"E2A","protocolversion":"1.0"}),
    );
    assert_eq!(attributes(&chunk, &Hint::default()), expected);
    let mut options = MapOptions::default();
    options.streams = Streams::AsResponses;
    let two_values = units_with(&chunk.to_string(), &Hint::default(), &options);
    let two_values = attributes_of(two_values[0].as_ref().unwrap());
    assert_eq!(
        (&two_values["mcptype"], &two_values["isfinal"]),
        (&json!("response"), &json!(false))
    );
}

#[test]
fn event_types_are_built_the_same_for_known_and_unknown_methods() {
    let methods = [
        ("tools/call", ".req"),
        ("tasks/pushNotificationConfig/set", ".req"),
        ("GetTask", ".req"),
        ("$/cancel_request", ".req"),
        ("message/stream", ".stream"),
        ("SubscribeToTask", ".stream"),
        ("no/such/method", ".req"),
    ];
    for prefix in [PREFIX, "com.example."] {
        for notifications in [Notifications::AsNotifications, Notifications::AsRequests] {
            let mut options = MapOptions::default();
            options.type_prefix = prefix.try_into().unwrap();
            options.notifications = notifications;
            let type_of = |payload: Value| {
                let units = units_with(&payload.to_string(), &Hint::default(), &options);
                units[0].as_ref().unwrap().event.ty().clone()
            };
            for (method, suffix) in methods {
                let name = method.replace('/', ".");
                let request = json!({"jsonrpc":"2.0","id":1,"method":method});
                assert_eq!(type_of(request), format!("{prefix}{name}{suffix}").as_str());
                let notification = json!({"jsonrpc":"2.0","method":method});
                let copies_requests = notifications == Notifications::AsRequests;
                let suffix = if copies_requests { suffix } else { "" };
                assert_eq!(
                    type_of(notification),
                    format!("{prefix}{name}{suffix}").as_str()
                );
            }
            let answer = json!({"jsonrpc":"2.0","id":1,"result":{}});
            assert_eq!(type_of(answer), format!("{prefix}common.response").as_str());
        }
    }
}

fn request(more: Value) -> Value {
    let mut payload = json!({"protocol_version":"1.0","request_id":"r","method":"m"});
    let Value::Object(more) = more else {
        panic!("members");
    };
    payload.as_object_mut().unwrap().extend(more);
    payload
}

fn response(more: Value) -> Value {
    let mut payload =
        json!({"protocol_version":"1.0","request_id":"r","response_kind":"e2a.complete"});
    let Value::Object(more) = more else {
        panic!("members");
    };
    payload.as_object_mut().unwrap().extend(more);
    payload
}

#[test]
fn an_e2a_request_names_its_agent_in_one_of_three_members() {
    for (more, target) in [
        (json!({"params":{"_agentId":"a"}}), json!("a")),
        (
            json!({"agent_id":"b","params":{"_agentId":"b"}}),
            json!("b"),
        ),
        (json!({"agent_id":"b","agent_ref":{"id":"c"}}), json!("b")),
        (json!({"agent_id":"","agent_ref":{"id":"c"}}), json!("c")),
        (json!({"agent_ref":{"id":"default"}}), Value::Null),
        // The sender is never the target.
        (json!({"source_agent_id":"me"}), Value::Null),
        (json!({"params":{"_agentId":"a","_topic":"t"}}), Value::Null),
    ] {
        assert_eq!(
            attributes(&request(more.clone()), &Hint::default())["targetagent"],
            target,
            "{more}"
        );
    }
    for (more, pointer) in [
        (
            json!({"agent_id":"b","params":{"_agentId":"a"}}),
            "/agent_id",
        ),
        (json!({"agent_id":"a b"}), "/agent_id"),
        (json!({"agent_ref":{"id":"a\nb"}}), "/agent_ref/id"),
        (json!({"params":{"_agentId":7}}), "/params/_agentId"),
    ] {
        let expected = ("bad_target".to_owned(), pointer.to_owned());
        assert_eq!(
            refusal(&request(more.clone()), &Hint::default()),
            expected,
            "{more}"
        );
    }
}

#[test]
fn the_kind_of_an_e2a_request_depends_on_its_method_and_ids() {
    for (more, kind, ty) in [
        (
            json!({"method":"session/cancel"}),
            "notification",
            "e2a.session.cancel",
        ),
        (
            json!({"method":"session/cancel","jsonrpc_id":1}),
            "request",
            "e2a.session.cancel.req",
        ),
        (json!({"request_id":null}), "notification", "e2a.m"),
        (
            json!({"request_id":null,"jsonrpc_id":"j"}),
            "request",
            "e2a.m.req",
        ),
        (
            json!({"method":"ext","ext_method":"x/y"}),
            "request",
            "e2a.ext.x.y.req",
        ),
        (json!({"method":"ext"}), "request", "e2a.ext.req"),
        (
            json!({"method":"ext","ext_method":" "}),
            "request",
            "e2a.ext.req",
        ),
        (
            json!({"method":"session/cancel","is_stream":"x"}),
            "notification",
            "e2a.session.cancel",
        ),
        (json!({"method":null}), "request", "e2a.unnamed.req"),
        (
            json!({"method":" ","req_method":"old"}),
            "request",
            "e2a.old.req",
        ),
    ] {
        let event = attributes(&request(more.clone()), &Hint::default());
        assert_eq!(event["mcptype"], kind, "{more}");
        assert_eq!(event["type"], format!("{PREFIX}{ty}"), "{more}");
    }
    let answer = request(json!({"method":"acp.tool_response","params":{"jsonrpc_id":3}}));
    let answer = attributes(&answer, &Hint::default());
    assert_eq!(
        (&answer["mcptype"], &answer["collaborationid"]),
        (&json!("response"), &json!("3"))
    );
}

#[test]
fn the_kind_of_an_e2a_response_depends_on_is_final() {
    for (more, kind, ty) in [
        (json!({"is_final":true}), "response", "e2a.complete.resp"),
        (json!({}), "stream", "e2a.complete.stream"),
        (
            json!({"response_kind":"acp.output_request","body":{"id":5,"method":"fs/read_text_file"}}),
            "request",
            "e2a.acp.output_request.stream",
        ),
    ] {
        let event = attributes(&response(more.clone()), &Hint::default());
        assert_eq!(event["mcptype"], kind, "{more}");
        assert_eq!(event["type"], format!("{PREFIX}{ty}"), "{more}");
    }
    let request =
        response(json!({"response_kind":"acp.output_request","body":{"id":5,"method":"x"}}));
    let request = attributes(&request, &Hint::default());
    assert_eq!(
        (&request["a2amethod"], &request["collaborationid"]),
        (&json!("x"), &json!("5"))
    );
}

#[test]
fn only_a_trusted_binding_accepts_a_server_push() {
    let push = response(
        json!({"is_final":true,"sequence":0,"metadata":{"_jiuwenswarm_server_push":true}}),
    );
    assert_eq!(attributes(&push, &Hint::default())["mcptype"], "response");
    let believed = attributes(&push, &declared(Family::E2a));
    assert_eq!(believed["mcptype"], "notification");
    assert_eq!((believed.get("isfinal"), believed.get("seq")), (None, None));
    assert_eq!(believed["type"], format!("{PREFIX}e2a.complete"));
}

#[test]
fn a_request_inside_a_request_needs_a_trusted_binding_and_the_same_id() {
    let block = |inner: Value| json!({"_jiuwenswarm":{"normalize_failed":true,"legacy_agent_request":inner}});
    for member in ["channel_context", "metadata"] {
        let with = |context: Value| request(json!({ (member): context }));
        let at = format!("/{member}/_jiuwenswarm");
        let same = with(block(json!({"request_id":"r","params":{}})));
        let refused = ("bad_value".to_owned(), at.clone());
        assert_eq!(refusal(&same, &Hint::default()), refused);
        let mut trusted = Hint::default();
        trusted.e2a_trusted = true;
        for hint in [&trusted, &declared(Family::E2a)] {
            assert_eq!(attributes(&same, hint)["collaborationid"], "r");
            let id = format!("{at}/legacy_agent_request/request_id");
            for inner in [
                json!({"request_id":"evil"}),
                json!({"request_id":["r"]}),
                json!({"request_id":null}),
                json!({}),
            ] {
                let refused = ("bad_value".to_owned(), id.clone());
                assert_eq!(refusal(&with(block(inner)), hint), refused);
            }
        }
        let number = json!({"protocol_version":"1.0","request_id":7,"method":"m",
            (member):block(json!({"request_id":"7"}))});
        assert_eq!(attributes(&number, &trusted)["collaborationid"], "7");
        // Other members are the sender's own.
        let other = with(json!({"k":{"_jiuwenswarm":1},"traceparent":"x"}));
        assert_eq!(attributes(&other, &Hint::default())["collaborationid"], "r");
    }
}

#[test]
fn an_a2e_message_without_a_string_id_is_named_as_such() {
    for payload in [
        json!({"type":"tool/call/req","id":1,"version":"1.0","ts":1}),
        json!({"type":"own","id":null,"version":"1.0","ts":1,"req_id":"r"}),
        json!({"type":"tool/call/req"}),
    ] {
        let unit = units(&payload.to_string(), &Hint::default()).into_only();
        let error = unit.unwrap().unwrap_err().error;
        assert_eq!(
            (error.kind().as_str(), error.pointer()),
            ("unknown", "/id"),
            "{payload}"
        );
        assert!(error.to_string().contains("A2E"), "{error}");
    }
    for payload in [json!({"type":"own","id":1}), json!({"type":"own","ts":1})] {
        let unknown = ("unknown".to_owned(), String::new());
        assert_eq!(refusal(&payload, &Hint::default()), unknown);
    }
}

#[test]
fn a_request_inside_a_request_is_found_however_it_is_written() {
    let kind = |context: &str, hint: &Hint| {
        let payload = format!(
            r#"{{"protocol_version":"1.0","request_id":"r","method":"m","channel_context":{context}}}"#
        );
        let unit = units(&payload, hint).into_only().unwrap();
        unit.map(drop)
            .map_err(|refused| refused.error.kind().as_str())
    };
    let (untrusted, trusted) = (Hint::default(), declared(Family::E2a));
    let escaped = r#"{ "a" : 1 , "\u005fjiuwenswarm" : {} }"#;
    assert_eq!(kind(escaped, &untrusted), Err("bad_value"));
    assert_eq!(kind(escaped, &trusted), Ok(()));
    // Nothing is inside.
    assert_eq!(kind(r#"{"_jiuwenswarm": null}"#, &untrusted), Ok(()));
    for twice in [
        r#"{"_jiuwenswarm":{"legacy_agent_request":{"request_id":"x","request_id":"r"}}}"#,
        r#"{"_jiuwenswarm":{"legacy_agent_request":{"request_id":"x"},"legacy_agent_request":{"request_id":"r"}}}"#,
        r#"{"_jiuwenswarm":{"legacy_agent_request":{"request_id":"x"}},"_jiuwenswarm":{}}"#,
    ] {
        assert_eq!(kind(twice, &trusted), Err("bad_value"), "{twice}");
    }
    let same = r#"{"_jiuwenswarm":{"legacy_agent_request":{"request_id":"\u0072"}}}"#;
    assert_eq!(kind(same, &trusted), Ok(()));
}

#[test]
fn an_answer_inside_a_record_has_the_id_of_the_record() {
    for key in [
        "_e2a_wire_legacy_agent_response",
        "_e2a_wire_legacy_agent_chunk",
    ] {
        let with = |blob: Value| response(json!({"is_final":true,"metadata":{(key):blob}}));
        for hint in [&Hint::default(), &declared(Family::E2a)] {
            for id in [json!("evil"), json!(7), json!(true), json!({})] {
                let refused = ("bad_value".to_owned(), format!("/metadata/{key}"));
                assert_eq!(refusal(&with(json!({"request_id":id})), hint), refused);
            }
            for blob in [
                json!({"request_id":"r","ok":true}),
                json!({"request_id":null}),
                json!({"request_id":""}),
                json!({"ok":true}),
                json!("text"),
            ] {
                let event = attributes(&with(blob), hint);
                assert_eq!(event["collaborationid"], "r");
            }
        }
    }
}

#[test]
fn the_ids_of_e2a_response_parts_are_distinct() {
    for (more, id, seq) in [
        (
            json!({"response_id":"r","sequence":2}),
            json!("r:2"),
            json!("2"),
        ),
        (
            json!({"response_id":"q","sequence":"7"}),
            json!("q"),
            json!("7"),
        ),
        (json!({"sequence":3.0}), json!("r:3"), json!("3")),
        (json!({"sequence":0}), json!("r:0"), json!("0")),
        // Several parts may lack it.
        (json!({}), json!("<new>"), Value::Null),
        (json!({"sequence":null}), json!("<new>"), Value::Null),
        (
            json!({"body":{"event_type":"keepalive"}}),
            json!("<new>"),
            Value::Null,
        ),
        (json!({"sequence":-1}), json!("<new>"), Value::Null),
        (json!({"sequence":-2}), json!("<new>"), json!("-2")),
        (
            json!({"sequence":4,"body":{"event_type":"keepalive"}}),
            json!("<new>"),
            Value::Null,
        ),
    ] {
        let event = attributes(&response(more.clone()), &Hint::default());
        assert_eq!((&event["id"], &event["seq"]), (&id, &seq), "{more}");
    }
    let bad = response(json!({"sequence":"abc"}));
    assert_eq!(
        refusal(&bad, &Hint::default()),
        ("bad_seq".into(), "/sequence".into())
    );
}

#[test]
fn e2a_errors_have_codes_for_routing() {
    for (body, code, text) in [
        (json!({"code":-32000}), -32_000, Value::Null),
        (
            json!({"code":"E2A.AGENT_ERROR"}),
            -32_603,
            json!("E2A.AGENT_ERROR"),
        ),
        (json!({"code":1e300}), -32_603, Value::Null),
        (json!({}), -32_603, Value::Null),
    ] {
        let record = response(json!({"response_kind":"e2a.error","is_final":true,"body":body}));
        let event = attributes(&record, &Hint::default());
        assert_eq!(
            (&event["rpcerrorcode"], &event["e2acode"]),
            (&json!(code), &text),
            "{record}"
        );
    }
}

#[test]
fn legacy_shapes_map_like_their_current_equivalents() {
    for (payload, ty, kind, is_final) in [
        (
            json!({"request_id":"r","channel_id":"c","ok":true,"payload":{}}),
            "e2a.complete.resp",
            "response",
            true,
        ),
        (
            json!({"request_id":"r","channel_id":"c","ok":false,"payload":{}}),
            "e2a.error.resp",
            "response",
            true,
        ),
        (
            json!({"request_id":"r","channel_id":"c","payload":{},"is_complete":false}),
            "e2a.chunk.stream",
            "stream",
            false,
        ),
        (
            json!({"request_id":"r","channel_id":"c","payload":{"event_type":"chat.error"},"is_complete":true}),
            "e2a.error.resp",
            "response",
            true,
        ),
    ] {
        let event = attributes(&payload, &Hint::default());
        assert_eq!(event["type"], format!("{PREFIX}{ty}"), "{payload}");
        assert_eq!(
            (&event["mcptype"], &event["isfinal"]),
            (&json!(kind), &json!(is_final))
        );
        assert_eq!(
            (&event["protocolversion"], &event["e2achannel"]),
            (&json!("0"), &json!("c"))
        );
    }
    let request = json!({"request_id":"r","channel_id":"feishu","req_method":"chat.send",
        "timestamp":0.0,"params":{}});
    let event = attributes(&request, &Hint::default());
    assert_eq!(event["type"], format!("{PREFIX}e2a.chat.send.req"));
    assert_eq!(
        (event.get("time"), &event["protocolversion"]),
        (None, &json!("0"))
    );
    let mut strict = Hint::default();
    strict.e2a_versions_only = true;
    assert_eq!(refusal(&request, &strict).0, "unknown");
}

#[test]
fn failures_in_legacy_shapes_have_the_codes_of_their_records() {
    for (payload, code) in [
        (
            json!({"request_id":"r","channel_id":"c","ok":false,"payload":{}}),
            json!("E2A.AGENT_ERROR"),
        ),
        (
            json!({"request_id":"r","channel_id":"c","ok":null,"payload":{}}),
            json!("E2A.AGENT_ERROR"),
        ),
        (
            json!({"request_id":"r","channel_id":"c","payload":{"event_type":"chat.error"},"is_complete":true}),
            json!("chat.error"),
        ),
        (
            json!({"request_id":"r","channel_id":"c","ok":true,"payload":{}}),
            Value::Null,
        ),
    ] {
        let event = attributes(&payload, &Hint::default());
        assert_eq!(event["e2acode"], code, "{payload}");
    }
}

#[test]
fn numbers_become_e2a_attributes_with_their_digits() {
    let numbers = json!({"session_id":5,"task_id":1.50,"context_id":-7,"correlation_id":9,
        "channel":3,"source_agent_id":4,"provenance":{"source_protocol":8}});
    let event = attributes(&request(numbers), &Hint::default());
    for (name, value) in [
        ("sessionid", "5"),
        ("taskid", "1.5"),
        ("contextid", "-7"),
        ("correlationid", "9"),
        ("e2achannel", "3"),
        ("sourceagent", "4"),
        ("sourceprotocol", "8"),
    ] {
        assert_eq!(event[name], value, "{name}");
    }
    let event = attributes(&response(json!({"status":5})), &Hint::default());
    assert_eq!(event["e2astatus"], "5");
}

/// Source: docs/protocols/e2a.md §9.
#[test]
fn an_unused_jsonrpc_id_does_not_fail_the_mapping() {
    for odd in [json!(true), json!({}), json!("a\n"), json!("x".repeat(257))] {
        let event = attributes(&request(json!({"jsonrpc_id":odd})), &Hint::default());
        let expected = (&json!("r"), &json!("r"), &json!("request"));
        let actual = (&event["id"], &event["collaborationid"], &event["mcptype"]);
        assert_eq!(actual, expected, "{odd}");
        let used = request(json!({"request_id":null,"jsonrpc_id":odd}));
        let refused = ("bad_id".to_owned(), "/jsonrpc_id".to_owned());
        assert_eq!(refusal(&used, &Hint::default()), refused, "{odd}");
    }
}

#[test]
fn e2a_versions_are_checked() {
    assert_eq!(
        refusal(
            &request(json!({"protocol_version":"2.0"})),
            &Hint::default()
        )
        .0,
        "unsupported_version"
    );
    let without = json!({"response_kind":"e2a.chunk","request_id":"r"});
    assert_eq!(refusal(&without, &Hint::default()).0, "missing_version");
}

#[test]
fn unused_e2a_members_do_not_fail_the_mapping() {
    let odd = request(
        json!({"identity_origin":"robot","auth":7,"expected_output_modes":"x",
        "session_id":["no"],"timestamp":{},"task_id":"a\u{7}b"}),
    );
    let event = attributes(&odd, &Hint::default());
    assert_eq!(
        (
            event.get("sessionid"),
            event.get("taskid"),
            event.get("time")
        ),
        (None, None, None)
    );
}

#[test]
fn a_control_frame_is_detected_only_where_e2a_is_declared() {
    let frame = json!({"type":"event","event":"connection.ack","payload":{"status":"ready"}});
    assert_eq!(refusal(&frame, &Hint::default()).0, "unknown");
    let event = attributes(&frame, &declared(Family::E2a));
    assert_eq!(event["type"], format!("{PREFIX}e2a.connection.ack"));
    assert_eq!(event["mcptype"], "notification");
}

#[test]
fn e2a_trace_context_and_origin_become_attributes() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = request(
        json!({"channel_context":{"traceparent":trace,"tracestate":"a=b"},
        "provenance":{"source_protocol":"acp"},"timestamp":"2026-03-28T14:00:00+02:00"}),
    );
    let event = attributes(&traced, &Hint::default());
    assert_eq!(
        (&event["traceparent"], &event["tracestate"]),
        (&json!(trace), &json!("a=b"))
    );
    assert_eq!(
        (&event["sourceprotocol"], &event["time"]),
        (&json!("acp"), &json!("2026-03-28T12:00:00Z"))
    );
    let broken = request(json!({"channel_context":{"traceparent":"00-0-0-0","tracestate":"a=b"}}));
    let event = attributes(&broken, &Hint::default());
    assert_eq!(
        (event.get("traceparent"), event.get("tracestate")),
        (None, None)
    );
}

// === JSON-RPC ===

fn result(result: Value) -> Value {
    json!({"jsonrpc":"2.0","id":"r","result":result})
}

#[test]
fn parts_of_a_streamed_answer_are_marked_partial_or_final() {
    let working = json!({"state":"working"});
    for (part, kind, is_final) in [
        (
            json!({"kind":"status-update","status":working,"final":false}),
            "stream",
            json!(false),
        ),
        (json!({"kind":"artifact-update"}), "stream", json!(false)),
        (json!({"artifactUpdate":{}}), "stream", json!(false)),
        (
            json!({"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"}}}),
            "stream",
            json!(false),
        ),
        (
            json!({"kind":"partial-completion","final":false}),
            "stream",
            json!(false),
        ),
        (
            json!({"kind":"status-update","status":working,"final":true}),
            "response",
            json!(true),
        ),
        (
            json!({"statusUpdate":{"status":{"state":"TASK_STATE_COMPLETED"}}}),
            "response",
            json!(true),
        ),
        // Only the call knows whether an unfinished task is the whole answer.
        (
            json!({"kind":"task","status":working}),
            "response",
            Value::Null,
        ),
        (json!({"content":[]}), "response", Value::Null),
    ] {
        let event = attributes(&result(part.clone()), &Hint::default());
        assert_eq!(event["mcptype"], kind, "{part}");
        assert_eq!(event["isfinal"], is_final, "{part}");
        assert_eq!(event["type"], format!("{PREFIX}common.response"), "{part}");
        assert_eq!(event["collaborationid"], "r", "{part}");
    }
}

#[test]
fn consumers_that_know_two_kinds_distinguish_parts_by_isfinal() {
    let mut options = MapOptions::default();
    options.streams = Streams::AsResponses;
    let part = result(json!({"artifactUpdate":{}})).to_string();
    let mapped = units_with(&part, &Hint::default(), &options);
    let event = attributes_of(mapped[0].as_ref().unwrap());
    assert_eq!(
        (&event["mcptype"], &event["isfinal"]),
        (&json!("response"), &json!(false))
    );
}

#[test]
fn the_answer_to_a_jaf_cancel_is_a_cancelled_task() {
    let cancelled = json!({"id":"t-1","cancelled":true,"timestamp":"2026-01-01T00:00:00Z"});
    let event = attributes(&result(cancelled), &Hint::default());
    assert_eq!(
        (&event["taskid"], &event["taskstate"], &event["mcptype"]),
        (&json!("t-1"), &json!("canceled"), &json!("response"))
    );
    for other in [
        json!({"id":"t-1","cancelled":false}),
        json!({"cancelled":true}),
        json!({"id":1,"cancelled":true}),
        json!({"id":"t-1"}),
    ] {
        let event = attributes(&result(other.clone()), &Hint::default());
        assert_eq!(
            (event.get("taskid"), event.get("taskstate")),
            (None, None),
            "{other}"
        );
    }
}

// === A2E messages on a bus ===

#[test]
fn the_answer_to_a_sampling_request_has_the_type_of_an_answer() {
    let answer = json!({"type":"mcp/sample/req","id":"2","version":"1.0","ts":1,"req_id":"1"});
    let event = attributes(&answer, &Hint::default());
    assert_eq!(event["type"], format!("{PREFIX}a2e.mcp.sample.resp"));
    assert_eq!(
        (&event["a2etype"], &event["a2amethod"], &event["mcptype"]),
        (
            &json!("mcp/sample/req"),
            &json!("mcp/sample"),
            &json!("response")
        )
    );
    let request = json!({"type":"mcp/sample/req","id":"1","version":"1.0","ts":1});
    let event = attributes(&request, &Hint::default());
    assert_eq!(event["type"], format!("{PREFIX}a2e.mcp.sample.req"));
}

#[test]
fn an_a2e_error_is_retryable_only_if_it_says_so() {
    let mut error = json!({"type":"error","id":"2","version":"1.0","ts":1,"req_id":"1","code":"x"});
    let event = attributes(&error, &Hint::default());
    assert_eq!(event.get("retryable"), None);
    for (written, read) in [
        (json!(false), json!(false)),
        (json!("yes"), json!(true)),
        (json!(1), json!(true)),
        (json!("True"), json!(true)),
        (json!(0.0), json!(false)),
        (json!(2), Value::Null),
        (json!("maybe"), Value::Null),
    ] {
        error["retryable"] = written;
        let event = attributes(&error, &Hint::default());
        assert_eq!(event["retryable"], read, "{error}");
    }
}

/// Source: docs/protocols/a2e-messages.md §1.3.
#[test]
fn the_seq_of_an_a2e_event_is_read_as_the_sdk_does() {
    let event = |seq: Value| json!({"type":"tool/event","id":"1","version":"1.0","ts":1,"req_id":"q","seq":seq});
    for (written, read) in [
        (json!(3), "3"),
        (json!(3.0), "3"),
        (json!("+04"), "4"),
        (json!(true), "1"),
        (json!(null), "0"),
    ] {
        let attributes = attributes(&event(written), &Hint::default());
        assert_eq!(attributes["seq"], read);
    }
    let refused = ("bad_seq".to_owned(), "/seq".to_owned());
    assert_eq!(refusal(&event(json!([])), &Hint::default()), refused);
}

#[test]
fn an_a2e_type_names_an_operation() {
    for ty in ["/req", "/resp"] {
        let message = json!({"type":ty,"id":"1","version":"1.0","ts":1});
        let refused = ("bad_method".to_owned(), "/type".to_owned());
        assert_eq!(refusal(&message, &Hint::default()), refused);
    }
}

#[test]
fn connection_messages_are_refused_for_publishing() {
    let mut hint = Hint::default();
    hint.refuse_link_local = true;
    for ty in [
        "handshake/req",
        "handshake/resp",
        "ping",
        "pong",
        "shutdown",
    ] {
        let message =
            json!({"type":ty,"id":"1","version":"1.0","ts":1,"req_id":"2","auth_token":"s3cret"});
        let (kind, pointer) = refusal(&message, &hint);
        assert_eq!((kind.as_str(), pointer.as_str()), ("link_local", "/type"));
        attributes(&message, &Hint::default());
    }
    let call = json!({"type":"tool/call/req","id":"1","version":"1.0","ts":1});
    attributes(&call, &hint);
}

#[test]
fn a_declared_family_has_its_own_rule() {
    let rule = |payload: &str, hint: &Hint| {
        let unit = units(payload, hint).into_only().unwrap().unwrap();
        (unit.detection.rule, unit.detection.member)
    };
    let known = r#"{"type":"tool/call/req","id":"1"}"#;
    let weak = r#"{"type":"ping","id":"1"}"#;
    let hint = declared(Family::A2eMessage);
    assert_eq!(rule(known, &hint), (7, "type"));
    assert_eq!(rule(weak, &hint), (10, "type"));
}

// === ids ===

fn ids(payload: &str, ids: Ids<'_>) -> Vec<String> {
    let context = MapContext {
        source: Source::new("/t").unwrap(),
        time: None,
        ids,
    };
    let payload = Bytes::from(payload.to_owned());
    let (hint, limits, options) = (Hint::default(), Limits::default(), MapOptions::default());
    let units = map(&payload, &hint, &limits, &options, &context);
    let units = units.into_iter();
    units
        .map(|unit| unit.unwrap().event.id().to_string())
        .collect()
}

fn batch_of_calls(tokens: &[&str]) -> String {
    let call = |token: &&str| format!(r#"{{"jsonrpc":"2.0","id":{token},"method":"m"}}"#);
    let calls: Vec<String> = tokens.iter().map(call).collect();
    format!("[{}]", calls.join(","))
}

#[test]
fn numeric_and_string_ids_in_one_batch_are_distinct() {
    let new: &dyn Fn() -> EventId = &|| EventId::new("<new>").unwrap();
    for (tokens, expected) in [
        (&["1", "\"1\""][..], &["1", "\"1\""][..]),
        (&["\"1\"", "2", "1"], &["\"1\"", "2", "1"]),
        (&["\"\\u0031\"", "1"], &["\"\\u0031\"", "1"]),
        (&["1.0", "\"1\"", "\"1.0\""], &["1.0", "1", "\"1.0\""]),
        (&["\"1\"", "\"2\""], &["1", "2"]),
        (&["1", "2", "\"a\""], &["1", "2", "a"]),
    ] {
        let found = ids(&batch_of_calls(tokens), Ids::Payload(new));
        assert_eq!(found, expected, "{tokens:?}");
    }
}

#[test]
fn ids_can_be_new_or_given() {
    let payload = batch_of_calls(&["1", "\"1\"", "1"]);
    let counting = MapContext::counting("n");
    assert_eq!(ids(&payload, Ids::Fresh(&counting)), ["n-0", "n-1", "n-2"]);
    let position = EventId::new("k:agents.requests/1/42").unwrap();
    let given: Vec<String> = (0..3).map(|n| format!("{position}#{n}")).collect();
    assert_eq!(ids(&payload, Ids::Given(position.clone())), given);
    let one = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    assert_eq!(ids(one, Ids::Given(position)), given[..1]);
    // An event keeps its own id.
    let event = r#"{"specversion":"1.0","id":"own","source":"/s","type":"t"}"#;
    assert_eq!(ids(event, Ids::Fresh(&counting)), ["own"]);
}

#[test]
fn data_declared_as_json_must_be_json() {
    for bad in ["1,\"replyto\":\"evil\"", "", "{}{}", "NaN", "\u{feff}{}"] {
        assert!(Data::json(bad.as_bytes().to_vec().into()).is_err(), "{bad}");
    }
    let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
    event.set("datacontenttype", "application/json").unwrap();
    event.set_data(Some(Data::from(Bytes::from_static(
        b"1,\"replyto\":\"evil\"",
    ))));
    let mut structured = Vec::new();
    format::write(&event, &mut structured);
    let read = format::read(&structured.into(), &Limits::default()).unwrap();
    assert_eq!(read.extension("replyto"), None);
    assert_eq!(read.body(), event.body());
}
