//! `a2abus explain`: why, from where and where to.

use serde_json::{Value, json};

use super::{BAD_TARGET, CALL, CONFIG, CommandOutput, LEGACY, RESULT, config, run};

fn explain(more: &[&str], payload: &str) -> CommandOutput {
    let (_folder, file) = config(CONFIG);
    let arguments = [&["explain", "-c", file.to_str().unwrap()], more].concat();
    run(&arguments, payload)
}

#[test]
fn explain_says_why_and_where_every_attribute_comes_from() {
    let output = run(&["explain"], CALL);
    let line = output.one();
    assert_eq!(
        line["because"],
        json!({"rule": 2, "member": "jsonrpc", "value": "2.0"})
    );
    assert_eq!(
        line["origins"],
        json!({
            "id": "id", "source": "where the payload was received", "type": "type_prefix and method",
            "datacontenttype": "the payload is JSON", "time": "the clock", "a2amethod": "method",
            "targetagent": "params._agentId", "mcptype": "method with an id",
            "protocol": "the payload's family", "protocolversion": "jsonrpc",
        })
    );
    assert_eq!((line.get("route"), output.status), (None, 0));
    for (payload, rule, member, value) in [
        (LEGACY, 3, "protocol", "A2A"),
        (
            r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#,
            1,
            "specversion",
            "1.0",
        ),
    ] {
        let detection = run(&["explain"], payload).one()["because"].clone();
        assert_eq!(
            detection,
            json!({"rule": rule, "member": member, "value": value})
        );
    }
}

#[test]
fn explain_has_an_origin_for_every_attribute_that_map_prints() {
    for payload in [CALL, RESULT, LEGACY] {
        let line = run(&["explain"], payload).one();
        let event = line["event"].as_object().unwrap();
        let origins = line["origins"].as_object().unwrap();
        for name in event
            .keys()
            .filter(|name| !matches!(name.as_str(), "data" | "specversion"))
        {
            let origin = origins[name.as_str()].as_str().unwrap();
            assert_ne!(origin, "the mapping", "{name}");
        }
        assert_eq!(origins.len(), event.len() - 2);
    }
}

#[test]
fn explain_shows_the_destinations_and_the_routes_that_did_not_match() {
    let output = explain(&[], CALL);
    let line = output.one();
    assert_eq!(line["event"]["type"], "x.tools.call.req");
    assert_eq!(line["event"]["source"], "/a2abus/t/in");
    let route = &line["route"];
    assert_eq!(
        (&route["binding"], &route["chosen"]),
        (&json!("in"), &json!("agents"))
    );
    let steps: Vec<_> = route["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["route"])
        .collect();
    assert_eq!(steps, ["other", "door", "agents"]);
    assert_eq!(route["steps"][0]["mismatch"]["value"], "weather");
    assert_eq!(
        route["destinations"],
        json!([{"transport": "bus", "topic": "agents.weather", "key": "<position>#0", "mode": "binary"}])
    );
    assert_eq!(output.status, 0);
}

#[test]
fn explain_takes_the_binding_that_is_named() {
    let door = explain(&["--binding", "http"], CALL).one();
    assert_eq!(door["route"]["chosen"], "door");
    assert_eq!(door["event"]["source"], "/a2abus/t/http/127.0.0.1");
    let misuse = explain(&["--binding", "nope"], CALL);
    assert_eq!(misuse.status, 2);
    assert_eq!(
        misuse.stderr,
        "a2abus: there is no binding \"nope\": choose one of answers, in, http\n"
    );
    assert_eq!(run(&["explain", "--binding", "in"], CALL).status, 2);
}

/// What a caller sends never becomes a dead letter.
#[test]
fn explain_shows_the_call_over_http_or_the_error_that_its_caller_gets() {
    let (_folder, file) = config(&CONFIG.replace("'htt?'", "answers"));
    let file = file.to_str().unwrap();
    let explain = |more: &[&str], payload: &str| {
        let arguments = ["explain", "-c", file, "--binding", "http"];
        run(&[&arguments[..], more].concat(), payload)
    };
    let call = explain(&[], CALL).one();
    assert_eq!(call["event"]["id"], "<call>");
    assert_eq!(call["origins"]["id"], "the id of the call");
    assert_eq!(call["route"]["destinations"][0]["key"], "<call>");
    // A caller chooses neither these attributes of a CloudEvent nor where its answer goes.
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","targetagent":"a","mcptype":"request","replyto":"x"}"#;
    let event = explain(&[], event).one();
    assert_eq!(event["event"]["id"], "<call>");
    assert_eq!(event["event"]["source"], "/a2abus/t/http/127.0.0.1");
    assert_eq!(event["event"].get("replyto"), None);
    assert_eq!(event["route"]["chosen"], "agents", "{event}");

    let nobody = CALL.replace("_agentId", "agent");
    for (payload, reason, fix) in [
        (nobody.as_str(), "agent_not_found", "default_route"),
        (RESULT, "invalid_request", "a request"),
    ] {
        let output = explain(&[], payload);
        let route = output.one()["route"].clone();
        assert_eq!((&route["reason"], output.status), (&json!(reason), 1));
        let text = explain(&["--text"], payload).stdout;
        let goes = format!("goes    nowhere: the caller gets the error {reason}\n");
        assert!(text.contains(&goes) && text.contains(fix), "{text}");
    }
    let refused = explain(&["--text"], BAD_TARGET).stdout;
    let goes = "goes    nowhere: the caller gets the error bad_target\n";
    assert!(refused.contains(goes), "{refused}");
}

#[test]
fn explain_shows_no_route_for_messages_of_a_binding_of_answers() {
    let answers = ["--binding", "answers"];
    let cloud_event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","callid":"x"}"#;
    for (payload, reason, status) in [
        (RESULT, json!(null), 0),
        (cloud_event, json!(null), 0),
        (CALL, json!("not_an_answer"), 1),
        (LEGACY, json!("not_an_answer"), 1),
    ] {
        let output = explain(&answers, payload);
        let route = &output.one()["route"];
        let note = route["note"].as_str().unwrap();
        assert!(note.contains("matched to the calls"), "{note}");
        assert_eq!(
            (&route["reason"], output.status),
            (&reason, status),
            "{route}"
        );
        assert_eq!(route["chosen"], json!(null));
        assert_eq!(
            (&route["steps"], &route["destinations"]),
            (&json!([]), &json!([]))
        );
    }
}

const REGISTRY: &str = "
transports: { bus: { type: memory } }
registry: { enabled: true, destinations: [{ to: { transport: bus, topic: 'agents.{targetagent}' } }] }
workflows: { enabled: true, agents: [{ id: a }] }
bindings:
  - { name: in, transport: bus, topics: [in] }
  - { name: cards, transport: bus, topics: [cards], role: discovery }
  - { name: wf, transport: bus, topics: [wf], role: workflows, run_as: a }
agents: { listed: { description: It is listed. } }
default_route: [{ transport: bus, topic: rest }]
";

#[test]
fn explain_shows_no_route_for_messages_that_are_not_routed() {
    let (_folder, file) = config(REGISTRY);
    let file = file.to_str().unwrap();
    for (binding, payload, note) in [
        ("cards", CALL, "the registry gets this"),
        ("wf", EXECUTE, "the executor"),
    ] {
        let output = run(&["explain", "-c", file, "--binding", binding], payload);
        let route = &output.one()["route"];
        let shown = route["note"].as_str().unwrap();
        assert!(shown.contains(note), "{shown}");
        assert_eq!(
            (&route["steps"], &route["destinations"], output.status),
            (&json!([]), &json!([]), 0)
        );
    }
    // The executor answers, so the binding must allow the reply address; the registry only logs one.
    let named = r#"{"specversion":"1.0","id":"1","source":"/s","type":"x.a2e.workflow.execute.req","replyto":"other"}"#;
    for (binding, reason, status) in [
        ("wf", json!("reply_topic_refused"), 1),
        ("cards", json!(null), 0),
    ] {
        let output = run(&["explain", "-c", file, "--binding", binding], named);
        let route = &output.one()["route"];
        assert_eq!(
            (&route["reason"], output.status),
            (&reason, status),
            "{route}"
        );
    }
}

const EXECUTE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"workflows/execute","params":{"workflow":"{}"}}"#;

#[test]
fn explain_refuses_what_the_executor_does_not_execute() {
    let (_folder, file) = config(REGISTRY);
    let file = file.to_str().unwrap();
    let tools = EXECUTE.replace("workflows/execute", "tools/list");
    let message = r#"{"type":"tool/call/req","id":"1","version":"1.0","ts":1,"tool_name":"ls","arguments":{}}"#;
    let letters = "to the dead letters:";
    let error = "nowhere: its requester, if it has one, gets the error";
    for (payload, goes, reason) in [
        (CALL, letters, "other_agent"),
        (message, letters, "not_a_workflow"),
        (RESULT, letters, "not_a_workflow"),
        (tools.as_str(), error, "unknown_method"),
    ] {
        let arguments = ["explain", "-c", file, "--binding", "wf"];
        let output = run(&arguments, payload);
        let route = &output.one()["route"];
        assert_eq!((&route["reason"], output.status), (&json!(reason), 1));
        let text = run(&[&arguments[..], &["--text"]].concat(), payload).stdout;
        assert!(
            text.contains(&format!("goes    {goes} {reason}\n")),
            "{text}"
        );
    }
}

/// It shows what the bridge makes of a message, not what its sender has written.
#[test]
fn explain_removes_what_a_sender_may_not_set() {
    let event = r#"{"specversion":"1.0","id":"1","source":"/a2abus/other/in","type":"t","mcptype":"request","targetagent":"a","sourceagent":"b","callid":"c","expirytime":"soon"}"#;
    for (binding, source, id) in [
        ("in", "/a2abus/t/in", "<position>#0"),
        ("http", "/a2abus/t/http/127.0.0.1", "<call>"),
    ] {
        let line = explain(&["--binding", binding], event).one();
        let shown = &line["event"];
        assert_eq!(
            (&shown["source"], &shown["id"]),
            (&json!(source), &json!(id))
        );
        let mut removed: Vec<&str> = line["removed"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        removed.sort_unstable();
        assert_eq!(removed, ["callid", "expirytime", "sourceagent"]);
        for name in removed {
            assert_eq!(shown.get(name), None, "{line}");
        }
        assert_ne!(line["origins"]["source"], "the event itself");
        let text = explain(&["--binding", binding, "--text"], event).stdout;
        assert!(text.contains("\nremoved "), "{text}");
    }
}

#[test]
fn explain_takes_requests_over_http_as_the_door_does() {
    let ping = r#"{"type":"ping","id":"1","version":"1.0","ts":1,"_agentId":"weather"}"#;
    let output = explain(&["--binding", "http"], ping);
    assert_eq!(
        (&output.one()["reason"], output.status),
        (&json!("link_local"), 1)
    );
    // Over HTTP, the data of an event say what it is if the event does not.
    let event = format!(
        r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","targetagent":"a","data":{CALL}}}"#
    );
    for (binding, kind) in [("http", "request"), ("in", "notification")] {
        let line = explain(&["--binding", binding], &event).one();
        assert_eq!(line["kind"], kind, "{line}");
    }
}

#[test]
fn explain_refuses_unknown_agents_like_the_bridge() {
    const NOTE: &str = "known only to the running bridge";
    let listed = CALL.replace("weather", "listed");
    let any = config(REGISTRY);
    let only_known = config(&REGISTRY.replace(
        "enabled: true, d",
        "enabled: true, unknown_agents: known, d",
    ));
    for (file, payload, reason, has_note) in [
        (&any, CALL, json!(null), true),
        (&any, listed.as_str(), json!(null), false),
        (&only_known, CALL, json!("agent_not_found"), true),
        (&only_known, listed.as_str(), json!(null), false),
    ] {
        let output = run(&["explain", "-c", file.1.to_str().unwrap()], payload);
        let route = &output.one()["route"];
        assert_eq!(route["reason"], reason, "{route}");
        let note = route["note"].as_str().unwrap_or_default();
        assert_eq!(note.contains(NOTE), has_note, "{route}");
        let destinations = route["destinations"].as_array().unwrap();
        assert_eq!(destinations.is_empty(), !reason.is_null(), "{route}");
        assert_eq!(output.status, i32::from(!reason.is_null()));
    }
}

#[test]
fn explain_says_why_an_event_goes_nowhere() {
    let no_route = explain(
        &[],
        LEGACY
            .replace("CFP", "DANCE")
            .replace(",\"targetAgent\":{\"agentId\":\"b\"}", "")
            .as_str(),
    );
    assert_eq!(no_route.one()["route"]["reason"], "bad_destination");
    assert!(
        no_route.one()["route"]["destinations"][0]["error"]
            .as_str()
            .unwrap()
            .contains("targetagent")
    );
    assert_eq!(no_route.status, 1);
    let nobody = explain(&[], RESULT);
    assert_eq!(nobody.one()["route"]["reason"], "no_route");
    assert_eq!(nobody.status, 1);
}

#[test]
fn explain_suggests_a_fix_for_a_refused_payload() {
    let output = run(&["explain"], BAD_TARGET);
    let line = output.one();
    assert_eq!(
        (&line["error"]["kind"], output.status),
        (&json!("bad_target"), 1)
    );
    assert!(line["fix"].as_str().unwrap().contains("256"));
    // Families differ in what an id may be, and an agent may have a valid name twice.
    let long = "x".repeat(300);
    let e2a = format!(r#"{{"protocol_version":"1.0","request_id":"{long}","method":"m"}}"#);
    let two = r#"{"protocol_version":"1.0","request_id":"r","method":"m","agent_id":"b","params":{"_agentId":"a"}}"#;
    for (payload, fix) in [
        (e2a.as_str(), "at most 256 characters"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, "null"),
        (
            r#"{"a2e":"1.0","type":"ping","id":7}"#,
            "a string as the id",
        ),
        (two, "name one agent"),
        (
            r#"{"type":"tool/call/req","id":1,"version":"1.0","ts":1}"#,
            "a string id",
        ),
        (r#"{"type":"tool/call/req"}"#, "a string req_id"),
        (
            r#"{"a2e":"1.0","type":"/req","id":"7"}"#,
            "the name of an operation before /req",
        ),
    ] {
        let line = run(&["explain"], payload).one();
        assert!(line["fix"].as_str().unwrap().contains(fix), "{line}");
    }
}

#[test]
fn explain_honours_on_unknown() {
    let unknown = r#"{"hello":"world"}"#;
    let rejected = explain(&[], unknown);
    assert_eq!(
        (&rejected.one()["error"]["kind"], rejected.status),
        (&json!("unknown"), 1)
    );
    for (how, event) in [
        ("wrap", json!("org.apache.eventmesh.a2a.unknown")),
        ("pass", Value::Null),
    ] {
        let text = CONFIG.replace("role: responses }", "role: responses }\n  - { name: any, transport: bus, topics: [any], on_unknown: HOW }")
            .replace("HOW", how)
            .replace("binding: 'htt?'", "binding: any");
        let (_folder, file) = config(&text);
        let file = file.to_str().unwrap();
        let arguments = ["explain", "-c", file, "--binding", "any"];
        let output = run(&arguments, unknown);
        let line = output.one();
        assert_eq!((&line["ok"], output.status), (&json!(true), 0), "{line}");
        assert_eq!(line["on_unknown"], how);
        assert_eq!(line["route"]["chosen"], "door");
        assert_eq!(line["event"]["type"], event);
        let reported = run(&[&arguments[..], &["--text"]].concat(), unknown);
        let first = reported.stdout.lines().next().unwrap();
        assert!(
            first.starts_with(&format!("unit 0  unknown format; on_unknown is {how}: ")),
            "{first}"
        );
        assert!(
            reported
                .stdout
                .contains("goes    transport bus, topic door"),
            "{}",
            reported.stdout
        );
    }
}

const ADAPTING: &str = "
transports: { bus: { type: memory } }
bindings:
  - { name: filling, transport: bus, topics: [a], fill_from_data: true }
  - { name: checking, transport: bus, topics: [b], validate: true }
  - { name: converting, transport: bus, topics: [c], convert: envelope_to_acp_jsonrpc_call }
routes:
  - { name: weather, when: { targetagent: weather }, to: [{ transport: bus, topic: weather }] }
  - { name: rest, to: [{ transport: bus, topic: rest }] }
";

/// It does what the bridge does with the same message.
#[test]
fn explain_fills_validates_and_converts_like_the_binding() {
    let (_directory, file) = config(ADAPTING);
    let at = |binding: &str, more: &[&str], payload: &str| {
        let file = file.to_str().unwrap();
        let arguments = [&["explain", "-c", file, "--binding", binding], more].concat();
        run(&arguments, payload)
    };
    let event =
        format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"t","data":{CALL}}}"#);
    let filled = at("filling", &[], &event).one();
    assert_eq!(filled["route"]["chosen"], "weather");
    assert_eq!(filled["event"]["targetagent"], "weather");
    assert_eq!(filled["kind"], "request");
    assert_eq!(
        filled["origins"]["targetagent"],
        "the data, by fill_from_data"
    );
    assert_eq!(filled["origins"]["id"], "the event itself");
    let unfilled = at("checking", &[], &event).one();
    assert_eq!(unfilled["route"]["chosen"], "rest");

    let invalid = r#"{"type":"tool/call/req","id":"c1","version":"1.0","ts":1}"#;
    let output = at("checking", &[], invalid);
    let route = &output.one()["route"];
    assert_eq!(
        (route["reason"].as_str(), output.status),
        (Some("invalid_record"), 1)
    );
    assert!(
        route["detail"].as_str().unwrap().contains("arguments"),
        "{route}"
    );

    let unknown = at("converting", &[], CALL).one();
    assert_eq!(unknown["route"]["reason"], "convert_failed");
    // With a conversion, an object of no known family is not rejected.
    let unknown = at("converting", &[], r#"{"hello":1}"#).one();
    assert_eq!(unknown["on_unknown"], "wrap", "{unknown}");
    assert_eq!(unknown["route"]["reason"], "convert_failed");

    let refused = at("filling", &["--header", "ce_replyto=other"], CALL).one();
    assert_eq!(refused["route"]["reason"], "reply_topic_refused");
    let text = at("filling", &["--text", "--header", "ce_replyto=other"], CALL);
    assert!(
        text.stdout.contains("add the topic to its reply_topics"),
        "{}",
        text.stdout
    );
}

#[test]
fn explain_shows_what_a_conversion_makes_of_a_record() {
    let (_directory, file) = config(ADAPTING);
    let file = file.to_str().unwrap();
    let record = r#"{"protocol_version":"1.0","request_id":"r1","session_id":"s","method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"hi"}]}}"#;
    let output = run(&["explain", "-c", file, "--binding", "converting"], record).one();
    let converted = &output["route"]["converted"];
    assert_eq!(converted["protocol"], "A2A", "{output}");
    assert_eq!(converted["data"]["method"], "session/prompt");
    assert_eq!(output["event"]["protocol"], "E2A");
}

#[test]
fn explain_prints_text_into_a_pipe_when_asked() {
    let output = run(&["explain", "--text"], CALL);
    assert!(
        output.stdout.starts_with("unit 0  JSON-RPC request, mcp"),
        "{}",
        output.stdout
    );
    assert_eq!(run(&["explain", "--text", "--json"], CALL).status, 2);
}

#[test]
fn explain_refuses_a_wrong_configuration() {
    let (_folder, file) = config("instanze: t\n");
    let output = run(&["explain", "-c", file.to_str().unwrap()], CALL);
    assert_eq!((output.status, output.stdout.as_str()), (1, ""));
    assert!(
        output.stderr.lines().count() >= 2 && output.stderr.contains("instanze"),
        "{}",
        output.stderr
    );
    assert!(
        output
            .stderr
            .lines()
            .last()
            .unwrap()
            .starts_with("a2abus: the configuration ")
    );
}

#[test]
fn explain_reads_the_card_of_an_agent_that_announces_itself() {
    let (_folder, file) = config(REGISTRY);
    let arguments = [
        "explain",
        "-c",
        file.to_str().unwrap(),
        "--binding",
        "cards",
    ];
    for (card, reason, status) in [
        (r#"{"name":"maps","description":"d"}"#, json!(null), 0),
        (
            r#"{"name":"maps","description":7}"#,
            json!("invalid_params"),
            1,
        ),
        ("hello", json!("invalid_params"), 1),
    ] {
        let output = run(&arguments, card);
        let route = &output.one()["route"];
        assert!(route["note"].as_str().unwrap().contains("the registry"));
        assert_eq!((&route["reason"], output.status), (&reason, status));
        let text = run(&[&arguments[..], &["--text"]].concat(), card).stdout;
        assert!(text.contains("unit 0  the card of an agent\n"), "{text}");
    }
}

#[test]
fn explain_drops_a_message_that_has_expired() {
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","mcptype":"request","targetagent":"a","expirytime":"TIME"}"#;
    let expired = event.replace("TIME", "2020-01-01T00:00:00Z");
    for (binding, reason, goes) in [
        ("in", "expired", "goes    nowhere: it is dropped, "),
        (
            "http",
            "timeout",
            "goes    nowhere: the caller gets the error timeout\n",
        ),
    ] {
        let output = explain(&["--binding", binding], &expired);
        let route = &output.one()["route"];
        assert_eq!((&route["reason"], output.status), (&json!(reason), 1));
        let text = explain(&["--binding", binding, "--text"], &expired).stdout;
        assert!(text.contains(goes), "{text}");
        let later = event.replace("TIME", "2100-01-01T00:00:00Z");
        assert_eq!(explain(&["--binding", binding], &later).status, 0);
    }
}

#[test]
fn explain_has_the_reasons_of_a_binding_of_answers() {
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
    for (payload, reason) in [
        ("hello", "unreadable"),
        ("", "unreadable"),
        (
            r#"{"jsonrpc":"2.0","id":1,"id":2,"result":1}"#,
            "unreadable",
        ),
        (r#"{"a":1}"#, "uncorrelated"),
        (notification, "uncorrelated"),
    ] {
        let output = explain(&["--binding", "answers"], payload);
        let line = output.one();
        let shown = line.get("reason").unwrap_or(&line["route"]["reason"]);
        assert_eq!((shown, output.status), (&json!(reason), 1), "{payload}");
        let text = explain(&["--binding", "answers", "--text"], payload).stdout;
        assert!(!text.contains("on_unknown"), "{text}");
    }
}

#[test]
fn explain_reads_each_announcement_once_with_the_card_in_it() {
    let (_folder, file) = config(REGISTRY);
    let file = file.to_str().unwrap();
    let event = |card: &str| {
        format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{card}}}"#)
    };
    let register = |card: &str| {
        let params = format!(r#"{{"agent_id":"maps","card":{card}}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"agent/card/register","params":{params}}}"#)
    };
    let good = r#"{"name":"maps","description":"d"}"#;
    let bad = r#"{"name":"maps","description":7}"#;
    let no_object = Some("not a JSON object");
    let batch = "a batch is not accepted here";
    for (payload, fault) in [
        (format!("[{good},{good}]"), no_object),
        (format!("[{good},{CALL}]"), no_object),
        (format!("[{CALL}]"), Some(batch)),
        ("[]".to_owned(), no_object),
        (format!("{good}\n{good}"), Some("trailing characters")),
        (LEGACY.to_owned(), Some("/name")),
        (event(good), None),
        (event(bad), Some("/description")),
        (register(good), None),
        (register(bad), Some("/description")),
    ] {
        let arguments = ["explain", "-c", file, "--binding", "cards"];
        let output = run(&arguments, &payload);
        let route = &output.one()["route"];
        let of = |fault| match fault == batch {
            true => "invalid_request",
            false => "invalid_params",
        };
        let reason = fault.map(of);
        let found = (&route["reason"], output.status);
        assert_eq!(
            found,
            (&json!(reason), i32::from(fault.is_some())),
            "{payload}"
        );
        let detail = route["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(fault.unwrap_or_default()), "{detail}");
    }
}

#[test]
fn explain_refuses_requests_that_have_come_too_late_to_be_executed() {
    const AGENT: &str = "
transports: { bus: { type: memory } }
agents: { sums: { to: { transport: bus, topic: agents.sums }, attach: { url: 'http://127.0.0.1:9/', protocol: jsonrpc } } }
";
    let workflow = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","a2amethod":"workflows/execute","expirytime":"TIME","data":{"workflow":"{}"}}"#;
    let call = CALL.replace("weather", "sums");
    let call = format!(
        r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","mcptype":"request","expirytime":"TIME","data":{call}}}"#
    );
    for (text, binding, event, reason, goes) in [
        (
            REGISTRY,
            "wf",
            workflow,
            "execution_timeout",
            "goes    nowhere: its requester, if it has one, gets the error execution_timeout\n",
        ),
        (
            AGENT,
            "agent-sums",
            call.as_str(),
            "expired",
            "goes    nowhere: it is dropped, ",
        ),
    ] {
        let (_folder, file) = config(text);
        let arguments = [
            "explain",
            "-c",
            file.to_str().unwrap(),
            "--binding",
            binding,
        ];
        let expired = event.replace("TIME", "2020-01-01T00:00:00Z");
        let output = run(&arguments, &expired);
        let route = &output.one()["route"];
        assert_eq!((&route["reason"], output.status), (&json!(reason), 1));
        assert!(route["note"].is_string(), "{route}");
        let shown = run(&[&arguments[..], &["--text"]].concat(), &expired).stdout;
        assert!(
            shown.contains(goes) && shown.contains("expirytime has passed"),
            "{shown}"
        );
        let later = event.replace("TIME", "2100-01-01T00:00:00Z");
        let output = run(&arguments, &later);
        assert_eq!(output.status, 0, "{}", output.stdout);
    }
}

/// Whatever its kind and its family: the call that it names waits for it.
#[test]
fn explain_finds_the_call_of_an_answer_in_its_headers_and_attributes() {
    let call = "a".repeat(26);
    let event = |kind: &str, call: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","mcptype":"{kind}","callid":"{call}"}}"#
        )
    };
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
    let unknown = r#"{"a":1}"#;
    for header in ["kafka_correlationId", "ce_callid", "ce_collaborationid"] {
        for payload in [notification, unknown, CALL] {
            let named = format!("{header}={call}");
            let output = explain(&["--binding", "answers", "--header", &named], payload);
            let route = &output.one()["route"];
            assert_eq!((&route["reason"], output.status), (&json!(null), 0));
            let note = route["note"].as_str().unwrap();
            assert!(note.contains("matched to the calls"), "{note}");
        }
        let other = format!("{header}=x");
        for payload in [notification, unknown] {
            let output = explain(&["--binding", "answers", "--header", &other], payload);
            let line = output.one();
            let reason = line.get("reason").unwrap_or(&line["route"]["reason"]);
            assert_eq!((reason, output.status), (&json!("uncorrelated"), 1));
        }
    }
    for (event, reason) in [
        (event("notification", &call), json!(null)),
        (event("request", &call), json!(null)),
        (event("notification", "x"), json!("uncorrelated")),
        (event("request", "x"), json!("not_an_answer")),
    ] {
        let output = explain(&["--binding", "answers"], &event);
        assert_eq!(output.one()["route"]["reason"], reason, "{event}");
    }
    let named = format!("kafka_correlationId={call}");
    let arguments = ["--binding", "answers", "--text", "--header", &named];
    let text = explain(&arguments, unknown).stdout;
    let what = "unit 0  an answer of no known family\n";
    assert!(text.starts_with(what), "{text}");
}

#[test]
fn explain_takes_answers_of_any_family() {
    let (_folder, file) = config(
        "
transports: { bus: { type: memory } }
bindings: [{ name: answers, transport: bus, topics: [a], role: responses, protocol: a2e_message, strict: true }]
",
    );
    let file = file.to_str().unwrap();
    let output = run(&["explain", "-c", file, "--binding", "answers"], RESULT);
    assert_eq!(output.status, 0, "{}", output.stdout);
    assert_eq!(output.one()["family"], "jsonrpc");
}
