//! `a2abus map`: what it prints of payloads, and its options.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{BAD_TARGET, CALL, CommandOutput, LEGACY, RESULT, command, run};

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
