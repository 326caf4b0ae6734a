//! The rules of the source that no vector covers.

use a2abus_models::Json;
use a2abus_models::a2e_message::memory::{MemoryEntry, MemoryTier};
use a2abus_models::a2e_message::session::HandshakeRequest;
use a2abus_models::a2e_message::tools::ToolCallRequest;
use a2abus_models::a2e_message::{
    Body, Checks, DecodeOptions, Float, Generated, Header, Ids, Message, Reason, Record, Secret,
    VersionKeys, decode, decode_lines, members_of,
};
use a2abus_models::convert::{Conversion, ConvertContext};
use a2abus_plugin::protocol::a2e_message as type_name;
use a2abus_plugin::{Kind, Limits};
use bytes::Bytes;

use super::{is_registered, read};

fn reason(line: &str) -> Reason {
    read(line).unwrap_err().reason()
}

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes(), &Limits::default()).unwrap()
}

/// The examples of the source, with their dots filled in.
#[test]
fn the_examples_of_the_source_are_read() {
    let request =
        r#"{"a2e":"1.0","id":"a1b2c3","type":"tool/call/req","ts":1716123456.789,"arguments":{}}"#;
    let request = read(request).unwrap();
    assert_eq!(request.header.id.as_deref(), Some("a1b2c3"));
    assert_eq!(request.header.version, "1.0");
    assert_eq!(request.header.ts, Float::new(1_716_123_456.789));
    assert_eq!(request.kind(), Kind::Request);
    assert!(matches!(request.body, Body::ToolCallRequest(_)));

    let answer = r#"{"a2e":"1.0","id":"d4e5f6","type":"tool/call/resp","ts":1716123457.012,
        "req_id":"a1b2c3","data":{"success":true,"tool_name":"ls","duration_ms":3}}"#;
    let answer = read(answer).unwrap();
    assert_eq!(
        (answer.kind(), answer.body.req_id()),
        (Kind::Response, "a1b2c3")
    );
}

#[test]
fn there_are_121_known_types_and_119_registered_ones() {
    assert_eq!(Body::TYPES.len(), 121);
    let registered = Body::TYPES.iter().filter(|name| is_registered(name));
    assert_eq!(registered.count(), 119);
    for name in Body::TYPES {
        assert!(
            type_name::is_known(name) && members_of(name).is_some(),
            "{name}"
        );
    }
    for name in [
        "Ping",
        "ping ",
        "env/spaces/req",
        "mcp/sampling/req",
        "SUBAGENT_SPAWN_REQ",
        "",
    ] {
        assert!(
            !type_name::is_known(name) && members_of(name).is_none(),
            "{name}"
        );
    }
}

#[test]
fn messages_of_our_own_carry_both_version_keys() {
    let call = ToolCallRequest {
        tool_name: "l\u{2028}s".into(),
        ..ToolCallRequest::default()
    };
    let message = Message {
        header: Header::new("c1", Float::new(2.0)),
        body: call.into(),
    };
    let line = concat!(
        r#"{"type":"tool/call/req","id":"c1","version":"1.0","a2e":"1.0","ts":2.0,"#,
        r#""session_id":"","tool_name":"l\u2028s","arguments":{},"correlation_id":"","#,
        r#""streaming":false,"timeout":30}"#,
    );
    assert_eq!(message.to_string(), line);
    assert_eq!(read(line).unwrap(), message);
    let header = Header {
        version_keys: VersionKeys::Version,
        ..message.header
    };
    assert!(!Message { header, ..message }.to_string().contains("a2e"));
}

#[test]
fn versions_of_major_1_are_supported() {
    let verdict = |members: &str| {
        let line = format!(r#"{{"type":"ping","id":"p",{members}}}"#);
        read(&line)
            .map(|message| message.header.version.to_string())
            .map_err(|refusal| refusal.reason())
    };
    for (members, version) in [
        (r#""version":"1""#, "1"),
        (r#""version":"1.20.3""#, "1.20.3"),
        (r#""a2e":"1.1""#, "1.1"),
        (r#""version":"1.0","a2e":"1.0""#, "1.0"),
        (r#""x":0"#, "1.0"),
    ] {
        assert_eq!(verdict(members), Ok(version.to_owned()), "{members}");
    }
    for members in [
        r#""version":"2.0""#,
        r#""version":"1.""#,
        r#""version":"1.x""#,
        r#""version":"10""#,
        r#""version":"""#,
        r#""version":"1.0","a2e":"1.1""#,
    ] {
        assert_eq!(
            verdict(members),
            Err(Reason::UnsupportedVersion),
            "{members}"
        );
    }
    assert_eq!(verdict(r#""version":null"#), Err(Reason::BadBaseKey));
    assert_eq!(verdict(r#""a2e":1"#), Err(Reason::BadBaseKey));
}

/// Source: docs/protocols/a2e-messages.md §1.3.
#[test]
fn values_are_coerced_as_the_sdk_does() {
    let written = |type_name: &str, member: &str, value: &str| {
        let line = format!(r#"{{"type":"{type_name}","id":"i","{member}":{value}}}"#);
        let message = read(&line).map_err(|refusal| refusal.reason())?;
        Ok(message.to_object().get(member).unwrap().to_string())
    };
    for (value, expected) in [
        ("4", "4"),
        (r#""4""#, "4"),
        (r#"" +004.0 ""#, "4"),
        (r#""-1_000""#, "-1000"),
        (r#""1_0.0""#, "10"),
        (r#""0_1""#, "1"),
        ("3.0", "3"),
        ("true", "1"),
        ("1e2", "100"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
        (
            r#""-123456789012345678901234567890""#,
            "-123456789012345678901234567890",
        ),
    ] {
        assert_eq!(
            written("shutdown", "timeout", value),
            Ok(expected.to_owned()),
            "{value}"
        );
    }
    for value in [
        "10.5",
        "null",
        r#""x""#,
        r#""""#,
        r#""1.5""#,
        "[]",
        "1e300",
        r#""-""#,
        r#""1__0""#,
        r#""_1""#,
        r#""-_1""#,
        r#""1_""#,
        r#""1_.0""#,
        r#""1.0_0""#,
    ] {
        assert_eq!(
            written("shutdown", "timeout", value),
            Err(Reason::BadMember),
            "{value}"
        );
    }
    for (value, expected) in [
        ("1", "1.0"),
        ("1.50", "1.50"),
        (r#""1.5""#, "1.5"),
        (r#""1_000.5""#, "1000.5"),
        ("false", "0.0"),
        ("9007199254740993", "9007199254740993.0"),
    ] {
        assert_eq!(
            written("pong", "uptime_seconds", value),
            Ok(expected.to_owned()),
            "{value}"
        );
    }
    for value in [
        "null",
        r#""nan""#,
        r#""inf""#,
        r#""1e999""#,
        "{}",
        r#""1__0""#,
        r#""1_""#,
    ] {
        assert_eq!(
            written("pong", "uptime_seconds", value),
            Err(Reason::BadMember),
            "{value}"
        );
    }
    for (value, expected) in [
        ("1", "true"),
        ("0.0", "false"),
        (r#""Yes""#, "true"),
        (r#""on""#, "true"),
        (r#""F""#, "false"),
    ] {
        assert_eq!(
            written("tool/list/req", "include_deferred", value),
            Ok(expected.to_owned()),
            "{value}"
        );
    }
    for value in ["2", "null", r#""ja""#, "[]"] {
        assert_eq!(
            written("tool/list/req", "include_deferred", value),
            Err(Reason::BadMember),
            "{value}"
        );
    }
    for value in ["1", "null", "true", "{}"] {
        assert_eq!(
            written("tool/list/req", "query", value),
            Err(Reason::BadMember),
            "{value}"
        );
    }
}

#[test]
fn defaults_hold_where_members_are_left_out() {
    let line =
        r#"{"type":"env/state/push","id":"i","episode_id":"e","step_id":1,"event_type":"status"}"#;
    let object = read(line).unwrap().to_object();
    let expected = concat!(
        r#"{"type":"env/state/push","id":"i","version":"1.0","episode_id":"e","#,
        r#""step_id":1,"action_id":null,"event_type":"status","reason":"","delta":{},"#,
        r#""reward":null,"reward_info":{},"terminal":false}"#,
    );
    assert_eq!(object.to_string(), expected);
    let render = read(r#"{"type":"env/render/req","id":"i","episode_id":"e"}"#).unwrap();
    assert_eq!(
        render.to_object().get("mode").unwrap().as_str(),
        Some("screenshot")
    );
    // Values that each writer generates stay absent.
    let chain = read(r#"{"type":"chain/req","id":"i"}"#).unwrap();
    assert!(!chain.to_object().contains("chain_id"));
}

#[test]
fn violations_name_the_member() {
    let field = |line: &str| {
        let refusal = read(line).unwrap_err();
        (refusal.reason(), refusal.field().to_string())
    };
    let result = concat!(
        r#"{"type":"tool/call/resp","id":"i","req_id":"r","data":{"success":true,"#,
        r#""tool_name":"t"}}"#,
    );
    assert_eq!(
        field(result),
        (Reason::MissingMember, "data.duration_ms".to_owned())
    );
    let tools = concat!(
        r#"{"type":"tool/list/resp","id":"i","tools":[{"name":"t","description":"d","#,
        r#""tags":["a",1]}]}"#,
    );
    assert_eq!(
        field(tools),
        (Reason::BadMember, "tools.0.tags.1".to_owned())
    );
    let scope = r#"{"type":"memory/init/req","id":"i","scope":{"secret":1}}"#;
    assert_eq!(field(scope), (Reason::BadMember, "scope.*".to_owned()));
    let strategy = r#"{"type":"learn/adapt/req","id":"i","strategy":"guess"}"#;
    assert_eq!(field(strategy), (Reason::BadMember, "strategy".to_owned()));
    let corrective = concat!(
        r#"{"type":"learn/feedback/req","id":"i","feedbacks":[{"rated_turn":null,"#,
        r#""polarity":"corrective"}]}"#,
    );
    assert_eq!(
        field(corrective),
        (Reason::BadMember, "feedbacks.0.correction".to_owned())
    );
    let embedded = r#"{"type":"env/batch_step/resp","id":"i","results":[{"type":"ping"}]}"#;
    assert_eq!(
        field(embedded),
        (Reason::BadMember, "results.0.type".to_owned())
    );
}

#[test]
fn a_bridge_may_leave_members_unchecked() {
    let mut options = DecodeOptions::default();
    options.checks = Checks::BaseKeys;
    let line = r#"{"type":"tool/call/req","id":"c","arguments":7}"#;
    let message = decode(&line.into(), &options).unwrap().unwrap();
    assert!(matches!(message.body, Body::Unknown(_)));
    assert_eq!(message.to_object().get("arguments"), Some(&json("7")));
    let version = decode(&r#"{"type":"ping","version":"2"}"#.into(), &options);
    assert_eq!(version.unwrap_err().reason(), Reason::UnsupportedVersion);
}

#[test]
fn ids_may_be_demanded() {
    let mut options = DecodeOptions::default();
    options.ids = Ids::Required;
    for line in [r#"{"type":"ping"}"#, r#"{"type":"ping","id":""}"#] {
        assert_eq!(read(line).unwrap().header.id, None);
        let refusal = decode(&line.into(), &options).unwrap_err();
        assert_eq!(
            (refusal.kind().as_str(), refusal.reason()),
            ("invalid_message", Reason::MissingId)
        );
    }
}

#[test]
fn framing_faults_have_codes() {
    assert_eq!(
        reason("{\"type\":\"ping\",\"id\":\"\\ud800\"}"),
        Reason::NotJson
    );
    assert_eq!(reason("\u{feff}{\"type\":\"ping\"}"), Reason::NotJson);
    let not_utf8 = decode(
        &b"{\"type\":\"\xff\"}"[..].into(),
        &DecodeOptions::default(),
    );
    assert_eq!(not_utf8.unwrap_err().reason(), Reason::NotUtf8);
    let mut limits = Limits::default();
    limits.max_bytes = 10;
    let mut options = DecodeOptions::default();
    options.limits = limits;
    let long = decode(&r#"{"type":"ping"}"#.into(), &options);
    assert_eq!(long.unwrap_err().reason(), Reason::TooLarge);
    for name in [
        "req_id",
        "version",
        "a2e",
        "session_id",
        "_agentId",
        "_topic",
    ] {
        let line = format!(r#"{{"type":"ping","id":"p","{name}":"1","{name}":"1"}}"#);
        assert_eq!(reason(&line), Reason::DuplicateMember, "{name}");
    }
    // Any other member may be repeated; the last counts.
    let twice = read(r#"{"type":"ping","id":"p","x":1,"x":2}"#).unwrap();
    assert_eq!(twice.to_object().get("x"), Some(&json("2")));
}

#[test]
fn lines_are_read_one_by_one() {
    let payload = concat!(
        "\u{feff}{\"type\":\"ping\",\"id\":\"1\"}\r\n\n  \r\n{oops}\n",
        "\u{feff}{\"type\":\"ping\"}\n{\"type\":\"ping\",\"id\":\"\u{2028}\"}\n",
        "{\"type\":\"ping\",\"id\":\"this one is too long\",\"x\":\"xxxxxxxxxxx\"}\n",
        "{\"type\":\"ping\",\"id\":\"2\"}",
    );
    let mut limits = Limits::default();
    limits.max_bytes = 40;
    limits.max_units = 5;
    let mut options = DecodeOptions::default();
    options.limits = limits;
    let results = decode_lines(&payload.into(), &options);
    let verdicts: Vec<_> = results
        .into_iter()
        .map(|result| {
            result
                .map(|message| message.header.id.unwrap())
                .map_err(|refusal| refusal.reason())
        })
        .collect();
    let expected = [
        Ok("1".into()),
        Err(Reason::NotJson),
        Err(Reason::NotJson),
        Ok("\u{2028}".into()),
        Err(Reason::TooLarge),
        Err(Reason::TooLarge),
    ];
    assert_eq!(
        verdicts, expected,
        "the last one says that there are more lines"
    );
}

#[test]
fn kinds_follow_from_the_type_string() {
    for (name, req_id, kind) in [
        ("handshake/req", "", Kind::Request),
        ("ping", "", Kind::Request),
        ("multi_agent/await", "", Kind::Request),
        ("planning/task/add", "", Kind::Request),
        ("planning/task/add/resp", "r", Kind::Response),
        ("env/close/resp", "", Kind::Response),
        ("pong", "", Kind::Response),
        ("error", "r", Kind::Response),
        ("error", "", Kind::Notification),
        ("tool/event", "r", Kind::Stream),
        ("tool/event", "", Kind::Notification),
        ("shutdown", "", Kind::Notification),
        ("env/state/push", "r", Kind::Notification),
        ("mcp/sample/req", "", Kind::Request),
        ("mcp/sample/req", "r", Kind::Response),
        ("weather/get/req", "r", Kind::Request),
        ("weather", "r", Kind::Response),
        ("weather", "", Kind::Notification),
    ] {
        assert_eq!(type_name::kind(name, req_id), kind, "{name} {req_id}");
    }
    assert_eq!(type_name::capability("learn/stats/req"), Some("learning"));
    assert_eq!(type_name::capability("chain/req"), Some("chains"));
    assert_eq!(type_name::capability("invoke/event"), None);
    assert_eq!(type_name::capability("tool"), None);
    assert!(type_name::is_push("env/state/push") && type_name::is_event("chain/event"));
}

#[test]
fn secrets_are_not_shown() {
    let handshake = HandshakeRequest {
        auth_token: Secret("hunter2".into()),
        ..HandshakeRequest::default()
    };
    assert!(!format!("{handshake:?}").contains("hunter2"));
    let message = Message {
        header: Header::new("h", None),
        body: handshake.into(),
    };
    assert!(message.to_string().contains("hunter2"));
    let unknown = read(r#"{"type":"login/req","id":"l","password":"hunter2"}"#).unwrap();
    assert!(!format!("{unknown:?}").contains("hunter2"));
    let refused =
        read(r#"{"type":"handshake/req","id":"h","auth_token":["hunter2"]}"#).unwrap_err();
    assert!(!format!("{refused:?}{refused}").contains("hunter2"));
}

#[test]
fn entries_of_a_memory_have_a_shape() {
    let Json::Object(entry) = json(r#"{"key":{"k":1},"content":null,"tier":"working","mine":2}"#)
    else {
        panic!("an object");
    };
    let entry = MemoryEntry::from_object(entry).unwrap();
    assert_eq!(
        (entry.tier, entry.updated_at.clone()),
        (MemoryTier::Working, Generated(None))
    );
    let written = concat!(
        r#"{"key":{"k":1},"content":null,"tier":"working","tags":[],"source":"","#,
        r#""score":1.0,"ttl":0,"mine":2}"#,
    );
    assert_eq!(entry.to_object().to_string(), written);
}

#[test]
fn a_duplicate_member_inside_a_message_is_not_written() {
    let line = r#"{"type":"odd/call/req","id":"o","list":[{"a":1,"a":2}]}"#;
    let message = read(line).unwrap();
    assert_eq!(read(&message.to_string()).unwrap(), message);
}

#[test]
fn one_byte_order_mark_at_the_start_of_a_stream_is_skipped() {
    let line = "{\"type\":\"ping\",\"id\":\"1\"}";
    let options = DecodeOptions::default();
    let stream = |text: &str| -> Vec<bool> {
        let lines = decode_lines(&Bytes::copy_from_slice(text.as_bytes()), &options);
        lines.iter().map(Result::is_ok).collect()
    };
    assert_eq!(stream(&format!("\u{feff}{line}\n{line}")), [true, true]);
    assert_eq!(stream(&format!("\u{feff}\n{line}")), [true]);
    assert_eq!(stream(&format!("{line}\n\u{feff}{line}")), [true, false]);
    assert_eq!(stream(&format!("\u{feff}\u{feff}{line}")), [false]);
    let convert = Conversion::find("a2e_message_encode").unwrap();
    let context = ConvertContext {
        now: "now".into(),
        converter: "test".into(),
        new_id: "new".into(),
    };
    for text in [line.to_owned(), format!("{line}\n")] {
        let marked = format!("\u{feff}{text}");
        let run = |text: &str| convert.run_on(text.as_bytes(), &Limits::default(), &context);
        assert_eq!(run(&marked).unwrap(), run(&text).unwrap());
    }
}
