//! The commands as a shell sees them: output, errors, exit status.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const CALL: &str = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather","name":"get"}}"#;
const RESULT: &str =
    r#"{"jsonrpc":"2.0","id":7,"result":{"kind":"task","status":{"state":"working"}}}"#;
const LEGACY: &str = r#"{"protocol":"A2A","messageType":"CFP","targetAgent":{"agentId":"b"},"metadata":{"correlationId":"c"}}"#;
const BAD_TARGET: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":7}}"#;

/// How a run ended.
struct CommandOutput {
    status: i32,
    stdout: String,
    stderr: String,
}

impl CommandOutput {
    /// Standard output as JSON lines.
    fn lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[track_caller]
    fn one(&self) -> Value {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{}{}", self.stdout, self.stderr);
        lines.remove(0)
    }
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2abus"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("A2ABUS_") {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str], stdin: impl AsRef<[u8]>) -> CommandOutput {
    let mut child = command(args).spawn().unwrap();
    // A command that is misused does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_ref());
    child.wait_with_output().unwrap().into()
}

// === map ===

#[test]
fn map_prints_a_request_as_one_line() {
    let output = run(&["map"], CALL);
    let line = format!(
        r#"{{"index":0,"ok":true,"family":"jsonrpc","rule":2,"kind":"request","dialect":"mcp","id_raw":"\"req-1\"","event":{{"specversion":"1.0","id":"req-1","source":"/a2abus/map","type":"org.apache.eventmesh.a2a.tools.call.req","datacontenttype":"application/json","time":"<now>","a2amethod":"tools/call","targetagent":"weather","mcptype":"request","protocol":"A2A","protocolversion":"2.0","data":{CALL}}}}}"#
    );
    assert_eq!(
        (output.status, output.stdout, output.stderr),
        (0, format!("{line}\n"), String::new())
    );
}

#[test]
fn map_prints_json_data_of_events_inline() {
    let event = |members: &str| {
        let payload =
            format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{members}}}"#);
        let output = run(&["map"], &payload);
        assert_eq!(output.status, 0, "{payload}");
        let line = output.stdout;
        // As it was, whether or not the event says what its data are.
        assert!(line.contains(&format!(r#""event":{payload}}}"#)), "{line}");
    };
    event(r#","data":{ "a" : 1.50 }"#);
    event(r#","data":"text""#);
    event(r#","data":null"#);
    event(r#","datacontenttype":"application/json","data":[1]"#);
    event(r#","datacontenttype":"text/plain","data":"text""#);
    event(r#","data_base64":"AP8=""#);
    event("");
}

#[test]
fn map_prints_fixed_placeholders_for_new_ids_and_the_time() {
    let event = &run(&["map"], RESULT).one()["event"];
    assert_eq!(
        (&event["id"], &event["time"]),
        (&json!("<new>"), &json!("<now>"))
    );
    assert_eq!(event["collaborationid"], "7");
}

#[test]
fn map_prints_refusals_with_their_place_and_ends_with_1() {
    let output = run(&["map"], BAD_TARGET);
    let mut line = output.one();
    let message = line["error"]["message"].take();
    assert!(
        message.as_str().unwrap().contains("must be a string"),
        "{message}"
    );
    assert_eq!(
        line,
        json!({"index": 0, "ok": false, "error": {
            "kind": "bad_target", "message": null, "pointer": "/params/_agentId", "offset": 58,
        }})
    );
    assert_eq!((output.status, output.stderr.as_str()), (1, ""));
}

#[test]
fn map_shows_every_unit_of_a_batch() {
    let output = run(&["map"], format!("[{CALL},7,{LEGACY}]"));
    let reported: Vec<_> = output
        .lines()
        .iter()
        .map(|line| (line["index"].clone(), line["ok"].clone()))
        .collect();
    assert_eq!(
        reported,
        [
            (json!(0), json!(true)),
            (json!(1), json!(false)),
            (json!(2), json!(true))
        ]
    );
    assert_eq!(output.lines()[2]["family"], "legacy");
    assert_eq!(output.lines()[2].get("dialect"), None);
    assert_eq!(output.status, 1);
}

#[test]
fn map_keeps_the_id_as_it_was_written() {
    for (id, raw) in [
        ("1.50", "1.50"),
        (r#""\u0061""#, r#""\u0061""#),
        ("null", "null"),
    ] {
        let line = run(
            &["map"],
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#),
        )
        .one();
        assert_eq!(line["id_raw"], raw);
    }
    let notification = run(&["map"], r#"{"jsonrpc":"2.0","method":"m"}"#).one();
    assert_eq!(
        (&notification["id_raw"], &notification["kind"]),
        (&Value::Null, &json!("notification"))
    );
}

#[test]
fn map_prints_one_line_for_a_payload_of_many() {
    let payload =
        format!("{{\r\n  \"jsonrpc\": \"2.0\",\n  \"method\": \"m\",\n  \"params\": {CALL}\n}}\n");
    let line = run(&["map"], &payload).one();
    assert_eq!(
        line["event"]["data"],
        serde_json::from_str::<Value>(&payload).unwrap()
    );
}

#[test]
fn map_reads_every_line_as_a_payload_of_its_own() {
    let output = run(
        &["map", "--lines"],
        format!("{CALL}\r\n\n[{RESULT},{LEGACY}]\n{{\n{CALL}"),
    );
    let reported: Vec<_> = output
        .lines()
        .iter()
        .map(|line| {
            (
                line["index"].as_u64().unwrap(),
                line["kind"].clone(),
                line["error"]["kind"].clone(),
            )
        })
        .collect();
    assert_eq!(
        reported,
        [
            (0, json!("request"), Value::Null),
            (0, Value::Null, json!("empty")),
            (0, json!("response"), Value::Null),
            (1, json!("request"), Value::Null),
            (0, Value::Null, json!("not_json")),
            (0, json!("request"), Value::Null),
        ]
    );
}

#[test]
fn map_reads_a_file_and_a_dash_as_standard_input() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("payload.json");
    std::fs::write(&file, CALL).unwrap();
    assert_eq!(run(&["map", file.to_str().unwrap()], "").one()["ok"], true);
    assert_eq!(run(&["map", "-"], CALL).one()["ok"], true);
    let missing = run(&["map", "/nowhere/payload.json"], "");
    assert_eq!((missing.status, missing.stdout.as_str()), (2, ""));
    assert!(
        missing
            .stderr
            .starts_with("a2abus: /nowhere/payload.json cannot be read: ")
    );
    assert_eq!(missing.stderr.lines().count(), 1);
}

#[test]
fn map_takes_headers_for_a_cloud_event() {
    let headers = |prefix: &str| {
        [
            "specversion=1.0",
            "id=e%201",
            "source=/s",
            "type=t",
            "targetagent=w",
        ]
        .map(|header| format!("{prefix}{header}"))
    };
    let body = [0xff, 0, 1];
    let arguments = |headers: [String; 5]| -> Vec<String> {
        let headers = headers
            .into_iter()
            .flat_map(|header| ["--header".to_owned(), header]);
        ["map".to_owned()].into_iter().chain(headers).collect()
    };
    let sender = |headers: [String; 5]| {
        let arguments = arguments(headers);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run(&arguments, body).one()
    };
    assert_eq!(
        sender(headers("ce-")),
        json!({"index": 0, "ok": true, "family": "cloudevent", "rule": 1, "kind": "notification", "event": {
            "specversion": "1.0", "id": "e 1", "source": "/s", "type": "t", "targetagent": "w",
            "data_base64": "/wAB",
        }})
    );
    // Kafka's headers are not percent-encoded.
    assert_eq!(sender(headers("ce_"))["event"]["id"], "e%201");
    let mut broken = headers("ce-");
    broken[1] = "ce-id=".to_owned();
    let refused = sender(broken);
    assert_eq!(
        (&refused["error"]["kind"], &refused["error"]["pointer"]),
        (&json!("bad_cloudevent"), &json!("/id"))
    );
}

#[test]
fn map_takes_a_content_type_for_a_cloud_event_or_a_framing() {
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;
    let structured = ["map", "--content-type", "application/cloudevents+json"];
    assert_eq!(run(&structured, event).one()["family"], "cloudevent");
    assert_eq!(
        run(&structured, CALL).one()["error"]["kind"],
        "bad_cloudevent"
    );
    let batch = [
        "map",
        "--content-type",
        "application/cloudevents-batch+json",
    ];
    let reported = run(&batch, format!("[{event},7,{event}]")).lines();
    let oks: Vec<_> = reported
        .iter()
        .map(|line| (line["index"].clone(), line["ok"].clone()))
        .collect();
    assert_eq!(
        oks,
        [
            (json!(0), json!(true)),
            (json!(1), json!(false)),
            (json!(2), json!(true))
        ]
    );
    let lines = ["map", "--content-type", "application/x-ndjson"];
    assert_eq!(
        run(&lines, format!("nonsense\n{CALL}")).lines()[1]["ok"],
        true
    );
}

#[test]
fn map_takes_headers_for_a_dialect() {
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"message/send"}"#;
    assert_eq!(run(&["map"], payload).one()["dialect"], "a2a-0.3");
    let header = ["map", "--header", "X-A2A-Client=jaf-js/2.0"];
    assert_eq!(run(&header, payload).one()["dialect"], "jaf-doc");
}

#[test]
fn map_refuses_other_families_only_with_its_option() {
    assert_eq!(run(&["map", "--family", "legacy"], CALL).status, 0);
    let strict = run(&["map", "--family", "legacy", "--strict"], CALL);
    assert_eq!(
        (strict.one()["error"]["kind"].clone(), strict.status),
        (json!("wrong_family"), 1)
    );
    for misuse in [&["map", "--strict"][..], &["map", "--family", "soap"]] {
        assert_eq!(run(misuse, CALL).status, 2);
    }
}

#[test]
fn map_takes_the_options_of_the_mapping() {
    let arguments = [
        "map",
        "--option",
        "type_prefix=x.",
        "--option",
        "source=/here",
        "--option",
        "notifications=as_requests",
    ];
    let event = run(&arguments, r#"{"jsonrpc":"2.0","method":"m"}"#).one()["event"].clone();
    assert_eq!(
        (&event["type"], &event["source"]),
        (&json!("x.m.req"), &json!("/here"))
    );
    for misuse in [
        "color=red",
        "notifications=maybe",
        "type_prefix=a b",
        "source=",
        "source",
    ] {
        let output = run(&["map", "--option", misuse], CALL);
        assert_eq!((output.status, output.stdout.as_str()), (2, ""), "{misuse}");
    }
    let unknown = run(&["map", "--option", "color=red"], CALL).stderr;
    assert!(unknown.contains("unknown field `color`"), "{unknown}");
    assert!(unknown.contains("`type_prefix`, `source`"), "{unknown}");
}

#[test]
fn map_takes_a_time_and_makes_ids_when_asked() {
    let at = |now: &str| run(&["map", "--now", now], RESULT);
    assert_eq!(
        at("2026-02-03T04:05:06Z").one()["event"]["time"],
        "2026-02-03T04:05:06Z"
    );
    let real = at("real").one()["event"]["time"].clone();
    assert!(real.as_str().unwrap().starts_with("20"), "{real}");
    assert_eq!(at("yesterday").status, 2);
    let random = run(&["map", "--ids", "random"], format!("[{RESULT},{RESULT}]")).lines();
    let ids: Vec<_> = random
        .iter()
        .map(|line| line["event"]["id"].as_str().unwrap().to_owned())
        .collect();
    assert!(ids[0].len() >= 26 && ids[0] != ids[1], "{ids:?}");
}

#[test]
fn map_refuses_a_payload_over_the_limit_without_reading_on() {
    let output = run(&["map"], vec![b' '; 3 << 20]);
    assert_eq!(output.one()["error"]["kind"], "too_large");
    let lines = run(
        &["map", "--lines"],
        format!("{}\n{CALL}", "x".repeat(3 << 20)),
    );
    assert_eq!(lines.lines()[0]["error"]["kind"], "too_large");
    assert_eq!(lines.lines()[1]["ok"], true);
}

#[test]
fn map_ends_quietly_when_its_output_is_closed() {
    let mut child = command(&["map", "--lines"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let writer = std::thread::spawn(move || {
        let line = format!("{CALL}\n");
        while stdin.write_all(line.as_bytes()).is_ok() {}
    });
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let output: CommandOutput = child.wait_with_output().unwrap().into();
    writer.join().unwrap();
    assert_eq!((output.status, output.stderr.as_str()), (0, ""));
}

// === explain ===

const CONFIG: &str = "
instance: t
transports: { bus: { type: memory } }
bindings:
  - { name: answers, transport: bus, topics: [answers], role: responses }
  - { name: in, transport: bus, topics: [in], mapping: { type_prefix: x. } }
routes:
  - { name: other, when: { targetagent: other }, to: [{ transport: bus, topic: other }] }
  - { name: door, when: { binding: 'htt?' }, to: [{ transport: bus, topic: door }] }
  - { name: agents, when: { mcptype: request, targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}', key: '{id}' }] }
  - { name: broken, when: { mcptype: notification }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }
";

/// The text as a file that lives as long as its folder.
fn config(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a2abus.yaml");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

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
    assert_eq!(door["event"]["source"], "/a2abus/t/http");
    let misuse = explain(&["--binding", "nope"], CALL);
    assert_eq!(misuse.status, 2);
    assert_eq!(
        misuse.stderr,
        "a2abus: there is no binding \"nope\": choose one of answers, in, http\n"
    );
    assert_eq!(run(&["explain", "--binding", "in"], CALL).status, 2);
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
    for (binding, note) in [("cards", "the registry gets this"), ("wf", "the executor")] {
        let output = run(&["explain", "-c", file, "--binding", binding], CALL);
        let route = &output.one()["route"];
        let shown = route["note"].as_str().unwrap();
        assert!(shown.contains(note), "{shown}");
        assert_eq!(
            (&route["steps"], &route["destinations"], output.status),
            (&json!([]), &json!([]), 0)
        );
    }
    // The executor answers, so the binding must allow the reply address; the registry only logs one.
    let named = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","replyto":"other"}"#;
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

// === check ===

#[test]
fn check_counts_the_parts_of_a_valid_configuration() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    assert_eq!(output.status, 0, "{}", output.stdout);
    let last = output.stdout.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("{file}: OK: 1 transport, 2 bindings, 4 routes")),
        "{last}"
    );
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        (&reported["ok"], &reported["bindings"], &reported["errors"]),
        (&json!(true), &json!(2), &json!([]))
    );
    // What there is none of is not counted, and attached agents have a binding and a route.
    let doors = "transports: { n: { type: memory } }\n";
    let agent = "agents: { sums: { attach: { url: 'http://127.0.0.1:9/', protocol: jsonrpc }, to: { transport: n, topic: agents.sums } } }\n";
    for (text, counts) in [
        (doors.to_owned(), "1 transport"),
        (
            format!("{doors}{agent}"),
            "1 transport, 1 binding, 1 route, 1 agent",
        ),
    ] {
        let (_folder, file) = self::config(&text);
        let file = file.to_str().unwrap();
        let output = run(&["check", "-c", file], "");
        let verdict = format!("{file}: OK: {counts}");
        assert_eq!(output.stdout.trim_end(), verdict, "{}", output.stderr);
    }
}

#[test]
fn check_prints_every_problem_and_ends_with_1() {
    let (_folder, file) = config(
        "instance: t\ntransports: { bus: { type: fax } }\nlimits: { max_hops: 0 }\nroots: []\n",
    );
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    assert_eq!((output.status, output.stdout.as_str()), (1, ""));
    for expected in ["type", "max_hops", "roots"] {
        let found = output
            .stderr
            .lines()
            .any(|line| line.starts_with(file) && line.contains(expected));
        assert!(found, "{expected}: {}", output.stderr);
    }
    assert!(
        output
            .stderr
            .lines()
            .last()
            .unwrap()
            .ends_with(": 3 errors"),
        "{}",
        output.stderr
    );
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        (
            &reported["ok"],
            reported["errors"].as_array().unwrap().len()
        ),
        (&json!(false), 3)
    );
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_names_the_servers_that_cannot_be_reached() {
    // Nobody listens on this port.
    let (_folder, file) = config(
        "
transports:
  k: { type: kafka, brokers: ['127.0.0.1:1'] }
  n: { type: nats, servers: ['nats://127.0.0.1:1'] }
routes: [{ name: n, when: { targetagent: 'n-*' }, to: [{ transport: n, topic: 'a.{targetagent}.x' }] }]
default_route: [{ transport: k, topic: 'agents.{targetagent}' }]
",
    );
    let file = file.to_str().unwrap();
    let output = run(&["check", "--connect", "-c", file], "");
    assert_eq!(output.status, 1, "{}", output.stdout);
    for name in ["k", "n"] {
        let failed =
            format!("FAILED   {name}: connect: no connection: 127.0.0.1:1: connection refused\n");
        assert!(output.stdout.contains(&failed), "{}", output.stdout);
    }
    let verdict = format!("{file}: 2 connection tests failed\n");
    assert!(output.stdout.ends_with(&verdict), "{}", output.stdout);
    // What the bridge needs is known without a connection.
    for line in [
        "kafka-acls.sh --bootstrap-server 127.0.0.1:1 --add --allow-principal 'User:PRINCIPAL' --operation Describe --operation Write --resource-pattern-type prefixed --topic 'agents.'\n",
        // For answers that arrive in the wrong partition.
        "kafka-acls.sh --bootstrap-server 127.0.0.1:1 --add --allow-principal 'User:PRINCIPAL' --operation Create --operation Describe --operation DescribeConfigs --operation Write --topic 'a2abus.dlq'\n",
        "  subscribe: { allow: [\"_INBOX.>\", \"a2abus.replies.>\"] }\n",
    ] {
        assert!(output.stdout.contains(line), "{}", output.stdout);
    }
    let reported = run(&["check", "--connect", "--json", "-c", file], "").one();
    assert_eq!(reported["ok"], false);
    assert_eq!(reported["tests"][0]["outcome"], "failed");
    assert_eq!(reported["rights"][1]["transport"], "n");
}

#[test]
fn check_counts_the_environment_and_a_missing_file() {
    let (_folder, file) = config(CONFIG);
    let mut command = command(&["check", "-c", file.to_str().unwrap()]);
    let output: CommandOutput = command
        .env("A2ABUS_LIMITS__MAX_HOPS", "0")
        .output()
        .unwrap()
        .into();
    assert_eq!(output.status, 1);
    assert!(
        output.stderr.starts_with("A2ABUS_LIMITS__MAX_HOPS: "),
        "{}",
        output.stderr
    );
    let missing = run(&["check", "-c", "/nowhere/a2abus.yaml"], "");
    assert_eq!(missing.status, 1);
    assert!(
        missing
            .stderr
            .starts_with("/nowhere/a2abus.yaml: cannot be read"),
        "{}",
        missing.stderr
    );
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_reports_every_missing_secret_and_file() {
    let (folder, file) = config("");
    let place = folder.path().display();
    std::fs::write(folder.path().join("empty"), "\n").unwrap();
    std::fs::write(folder.path().join("key"), "canary-key").unwrap();
    let text = format!(
        "
transports:
  bus: {{type: memory}}
  k: {{type: kafka, brokers: ['h:1'], tls: {{cert_file: c, key_file: k, key_password: {{env: NOT_SET}}}},
       sasl: {{mechanism: PLAIN, username: u, password: {{file: {place}/missing}}}}}}
  n: {{type: nats, servers: ['nats://h:1'], auth: {{token: {{file: {place}/empty}}}}}}
default_route: [{{transport: bus, topic: t}}, {{transport: k, topic: t}}, {{transport: n, topic: t}}]
workflows:
  enabled: true
  apis: [{{id: x, base_url: 'https://x.example.com'}}]
  credentials:
    - {{id: good, type: custom, apis: [x], value: {{file: {place}/key}}}}
    - {{id: bad, type: custom, apis: [x], value: {{file: {place}/missing}}}}
  agents:
    - {{id: a, keys: [{{file: {place}/key}}, {{env: NOT_SET}}]}}
    - {{id: b, keys: [{{file: {place}/empty}}, {{file: {place}/key}}]}}
a2a: {{push_notifications: {{enabled: true, keys: [{{file: {place}/key}}, {{env: NOT_SET}}]}}}}
"
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    let gone = "No such file or directory (os error 2)";
    let unset = "the environment variable NOT_SET is not set";
    let missing = format!("cannot read the secret file {place}/missing: {gone}");
    let empty = format!("the secret in {place}/empty is empty");
    let duplicate = "is the same key as workflows.agents[0].keys[0]";
    let short = "must have at least 32 bytes: `openssl rand -hex 32` prints a suitable one";
    let [no_cert, no_key] = ["c", "k"]
        .map(|it| format!("{it} does not exist: correct the path, or put the file there"));
    let expected = [
        (4, "transports.k.tls.cert_file", no_cert.as_str()),
        (4, "transports.k.tls.key_file", &no_key),
        (4, "transports.k.tls.key_password", unset),
        (5, "transports.k.sasl.password", &missing),
        (6, "transports.n.auth.token", &empty),
        (13, "workflows.credentials[1].value", &missing),
        (15, "workflows.agents[0].keys[1]", unset),
        (16, "workflows.agents[1].keys[0]", &empty),
        (16, "workflows.agents[1].keys[1]", duplicate),
        (17, "a2a.push_notifications.keys[0]", short),
        (17, "a2a.push_notifications.keys[1]", unset),
    ];
    let lines: Vec<&str> = output.stderr.lines().collect();
    for (reported, (line, path, message)) in lines.iter().zip(expected) {
        assert!(
            reported.starts_with(&format!("{file}:{line}:")),
            "{reported}"
        );
        assert!(
            reported.ends_with(&format!(" {path}: {message}")),
            "{reported}"
        );
    }
    let verdict = format!(
        "{file}: 11 errors, all in secrets and TLS files. Everything else is OK (--without-secrets skips this check)."
    );
    assert_eq!((output.status, lines.len()), (1, 12), "{}", output.stderr);
    assert_eq!(lines[11], verdict);
    assert!(!output.stderr.contains("canary"), "{}", output.stderr);
    let alone = run(&["check", "-c", file, "--without-secrets"], "");
    assert_eq!(alone.status, 0, "{}", alone.stderr);

    // What is switched off needs none.
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("enabled: true", "enabled: false")).unwrap();
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        reported["errors"].as_array().unwrap().len(),
        5,
        "{reported}"
    );
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_reads_the_tls_files() {
    let (folder, file) = config("");
    let place = folder.path();
    let pair = |name: &str, until: i32| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(place.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(place.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    };
    pair("good", 2999);
    pair("old", 2020);
    let checked = |tls: &str| {
        let tls = tls.replace("DIR", &place.display().to_string());
        let text = format!(
            "
transports:
  k: {{type: kafka, brokers: ['h:1'], tls: {{{tls}}}}}
  n: {{type: nats, servers: ['nats://h:1'], tls: {{{tls}}}}}
default_route: [{{transport: k, topic: t}}, {{transport: n, topic: t}}]
"
        );
        std::fs::write(&file, text).unwrap();
        run(&["check", "-c", file.to_str().unwrap()], "")
    };
    let good = "ca_file: DIR/good.pem, cert_file: DIR/good.pem, key_file: DIR/good.key";
    let output = checked(good);
    assert_eq!(output.status, 0, "{}", output.stdout);
    for (tls, key, message) in [
        ("ca_file: DIR/none", "ca_file", "/none does not exist: "),
        (
            "ca_file: DIR/good.key",
            "ca_file",
            "/good.key holds no certificate in PEM",
        ),
        (
            "ca_file: DIR/old.pem",
            "ca_file",
            "/old.pem expired on 2020-01-01T00:00:00Z: renew it",
        ),
        (
            "cert_file: DIR/good.pem, key_file: DIR/old.key",
            "key_file",
            "/good.pem: use the two that were issued together",
        ),
        (
            "cert_file: DIR/good.pem, key_file: DIR/good.pem",
            "key_file",
            "/good.pem holds no private key in PEM",
        ),
    ] {
        let output = checked(tls);
        assert_eq!(output.status, 1, "{}", output.stderr);
        for bus in ["k", "n"] {
            let path = format!(" transports.{bus}.tls.{key}: ");
            let mut lines = output.stderr.lines();
            let line = lines.find(|line| line.contains(&path) && line.contains(message));
            assert!(line.is_some(), "{path}{message}\n{}", output.stderr);
        }
    }
    // The client of Kafka reads its files once.
    let output = checked("ca_file: DIR/old.pem").stderr;
    for (bus, cure) in [("k", "renew it, and restart the bridge"), ("n", "renew it")] {
        let path = format!(" transports.{bus}.tls.ca_file: ");
        let line = output.lines().find(|line| line.contains(&path)).unwrap();
        assert!(line.ends_with(cure), "{line}");
    }
}

// === topics ===

#[test]
fn topics_refuses_options_that_no_transport_supports() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    let zero = "at least 1; without the option the broker chooses";
    for (arguments, reason) in [
        (["plan", "--partitions", "0"], zero),
        (["apply", "--partitions", "0"], zero),
        (["plan", "--replicas", "0"], zero),
        (
            ["plan", "--partitions", "100001"],
            "a number from 1 to 100000 is needed",
        ),
        (
            ["apply", "--replicas", "three"],
            "a number from 1 to 10000 is needed",
        ),
        (
            ["plan", "--cluster", "My_Cluster"],
            "1 to 63 lower-case letters, digits and inner hyphens",
        ),
        (
            ["apply", "--output", "strimzi"],
            "[possible values: human, json]",
        ),
    ] {
        let output = run(&[&["topics"], &arguments[..], &["-c", file]].concat(), "");
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (2, ""),
            "{arguments:?}"
        );
        assert!(
            output.stderr.contains(reason),
            "{arguments:?}: {}",
            output.stderr
        );
    }
    let help = run(&["topics", "apply", "--help"], "").stdout;
    assert!(
        !help.contains("strimzi") && !help.contains("--cluster"),
        "{help}"
    );
}

// === call ===

#[test]
fn a_call_ends_at_its_timeout_when_the_bus_cannot_be_reached() {
    // Nobody listens on this port.
    for bus in [
        "{ type: kafka, brokers: ['127.0.0.1:1'] }",
        "{ type: nats, servers: ['nats://127.0.0.1:1'] }",
    ] {
        let (_folder, file) = config(&format!(
            "transports: {{ bus: {bus} }}\ndefault_route: [{{ transport: bus, topic: agents }}]\n"
        ));
        let file = file.to_str().unwrap();
        let ends_in_time = || {
            let start = Instant::now();
            let output = run(&["call", "-c", file, "-t", "300ms", "agent", "ping"], "");
            let took = start.elapsed();
            assert_eq!(
                (output.status, output.stdout.as_str()),
                (1, ""),
                "{}",
                output.stderr
            );
            let last = output.stderr.lines().last().unwrap();
            assert!(
                last.starts_with("a2abus: not connected within 300ms: "),
                "{last}"
            );
            // A machine with much to do may not get so far as to try.
            let says_why = last.contains("transport bus: ") || last.ends_with(": still starting");
            assert!(says_why, "{last}");
            println!("it took {took:?}");
            // Without the bound it is 30 s, and a question to the cluster may take 10 s.
            took < Duration::from_secs(8)
        };
        // A stall of the machine delays one call, and a missing bound all of them.
        assert!((0..3).any(|_| ends_in_time()), "no call ended in time");
    }
}

#[test]
fn an_unanswered_call_fails_with_its_timeout() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    // A machine with much to do may need all of a short time to connect.
    let answerless = ["250ms", "1s", "4s", "16s"].into_iter().any(|time| {
        let arguments = ["call", "-c", file, "-t", time, "agent", "tools/call"];
        let output = run(&arguments, "");
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (1, ""),
            "{}",
            output.stderr
        );
        let not_connected = format!("a2abus: not connected within {time}: ");
        let no_answer = "a2abus: no answer from agent \"agent\" within ";
        let is_told =
            output.stderr.starts_with(no_answer) || output.stderr.starts_with(&not_connected);
        assert!(is_told, "{}", output.stderr);
        output.stderr.starts_with(no_answer)
    });
    assert!(answerless, "it never connected");
}

#[test]
fn a_call_is_checked_with_the_limits_of_the_configuration() {
    let (_folder, file) = config(&format!("{CONFIG}limits: {{ max_depth: 8 }}\n"));
    let nested = "[".repeat(20) + &"]".repeat(20);
    let file = file.to_str().unwrap();
    let output = run(&["call", "-c", file, "agent", "ping", &nested], "");
    assert_eq!((output.status, output.stdout.as_str()), (2, ""));
    let refused = output.stderr.contains("the request is refused");
    assert!(refused, "{}", output.stderr);
}

// === demo ===

#[test]
fn the_demo_names_the_route_only_if_one_matched() {
    let output = run(&["demo", "--json"], "");
    assert_eq!(output.status, 0, "{}", output.stdout);
    let lines = output.lines();
    let (verdict, steps) = lines.split_last().unwrap();
    assert_eq!(verdict["ok"], true);
    for step in steps {
        let unrouted = [
            "unknown agent",
            "workflow",
            "A2A: the agent's card",
            "A2A: the rest of that stream",
            "MCP: the tools of a program that the bridge has started",
            "MCP: a call of its tool, among those of all agents",
        ];
        let is_routed = !unrouted.contains(&step["step"].as_str().unwrap());
        let route = is_routed.then_some("agents");
        assert_eq!(step["route"], json!(route), "{step}");
    }
    assert!(steps.iter().any(|step| step["step"] == "unknown agent"));
}

// === the program ===

#[test]
fn every_command_explains_itself_with_examples() {
    for name in ["map", "explain", "check", "serve", "call", "demo"] {
        let output = run(&[name, "--help"], "");
        assert_eq!(output.status, 0, "{name}");
        assert!(
            output.stdout.contains("Examples:\n  ") && output.stdout.contains("a2abus"),
            "{name}"
        );
        assert!(!output.stdout.contains('\\'), "{}", output.stdout);
    }
    let output = run(&["--help"], "");
    assert!(output.stdout.contains("Exit status:") && output.status == 0);
    assert!(run(&["--version"], "").stdout.starts_with("a2abus"));
}

#[test]
fn misuse_ends_with_2() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    for misuse in [
        &[][..],
        &["fly"],
        &["map", "--fly"],
        &["demo", "--agents", "tck"],
        &["map", "a", "b"],
        &["check", "extra"],
        &["call", "-t", "soon", "agent", "ping"],
        &["call", "-t", "0s", "-c", file, "agent", "ping"],
        &["call", "-t", "1h", "-c", file, "agent", "ping"],
        &["call", "-c", file, "no agent", "ping"],
        &["call", "-c", file, "agent", "no method"],
        &["call", "-c", file, "agent", "ping", "{"],
    ] {
        let output = run(misuse, "");
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (2, ""),
            "{misuse:?}"
        );
    }
}
