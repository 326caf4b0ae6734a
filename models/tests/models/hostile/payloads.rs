//! Payloads on the path of a message: decoded, mapped, written as an event and read again.

use a2abus_plugin::{
    Event, Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Refused, Source, Units,
    decode, format, map,
};
use bytes::Bytes;

use super::{
    Accepted, BEGIN, DEFINITION, Either, HostileKind, MESSAGE, OLDER, PROGRESS, RECORD, REQUEST,
    Refused as No, SAMPLES, VALUES, kind, replaced, truncated, with_bytes, with_member,
};

type Parts = Vec<Result<(), &'static str>>;

fn mapped(document: &[u8], hint: &Hint) -> Units<Mapped> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/hostile").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let payload = Bytes::copy_from_slice(document);
    map(
        &payload,
        hint,
        &Limits::default(),
        &MapOptions::default(),
        &context,
    )
}

fn parts(document: &[u8], hint: &Hint) -> Parts {
    let part = |unit: &Result<Mapped, Refused>| match unit {
        Ok(unit) => {
            assert_valid(&unit.event);
            Ok(())
        }
        Err(refused) => {
            assert!(refused.error.offset() <= document.len());
            Err(refused.error.kind().as_str())
        }
    };
    mapped(document, hint).iter().map(part).collect()
}

/// Every other program accepts the event too: each attribute passes the check for setting it.
fn assert_valid(event: &Event) {
    let mut again = Event::new(
        event.id().clone(),
        event.source().clone(),
        event.ty().clone(),
    )
    .unwrap();
    for (name, value) in event.core_attributes().skip(1) {
        again.set(name, value).unwrap();
    }
    for (name, value) in event.extensions() {
        again.set(name, value.clone()).unwrap();
    }
    let mut written = Vec::new();
    format::write(event, &mut written);
    let read = format::read(&written.into(), &Limits::default()).unwrap();
    assert!(read.core_attributes().eq(event.core_attributes()));
    assert!(read.extensions().eq(event.extensions()));
}

fn undeclared(document: &[u8]) -> Parts {
    parts(document, &Hint::default())
}

fn declared(document: &[u8], family: Family) -> Parts {
    let mut hint = Hint::default();
    hint.family = Some(family);
    hint.strict = true;
    parts(document, &hint)
}

fn as_messages(document: &[u8]) -> Parts {
    declared(document, Family::A2eMessage)
}

fn as_workflows(document: &[u8]) -> Parts {
    declared(document, Family::A2eWorkflow)
}

fn as_e2a(document: &[u8]) -> Parts {
    declared(document, Family::E2a)
}

fn with_strict_ids(document: &[u8]) -> Parts {
    let mut hint = Hint::default();
    hint.strict_ids = true;
    parts(document, &hint)
}

/// Each sample that has the member, with each value for it.
fn given(samples: &[&str], names: &[&str], values: &[&str]) -> Vec<String> {
    let mut documents = Vec::new();
    for sample in samples {
        for name in names {
            for value in values {
                documents.push(replaced(sample, name, value));
            }
        }
    }
    documents
}

pub(super) fn kinds() -> Vec<HostileKind> {
    [bytes(), members(), families()]
        .into_iter()
        .flatten()
        .collect()
}

fn bytes() -> Vec<HostileKind> {
    const ODD: &[&str] = &[
        "not_json",
        "not_an_object",
        "unknown",
        "unsupported_version",
        "missing_version",
        "bad_method",
        "bad_id",
        "bad_target",
        "bad_seq",
        "bad_member",
        "missing_collaborationid",
    ];
    let kind_of =
        |name, verdict, documents: Vec<Vec<u8>>| kind(name, verdict, undeclared, documents);
    vec![
        kind_of(
            "payload: truncated at every byte",
            No(&["not_json"]),
            truncated(&SAMPLES),
        ),
        kind_of(
            "payload: bad UTF-8 at every byte",
            No(&["not_utf8"]),
            with_bytes(&SAMPLES, b"\xff"),
        ),
        kind_of(
            "payload: a surrogate in UTF-8 at every byte",
            No(&["not_utf8"]),
            with_bytes(&SAMPLES, b"\xed\xa0\x80"),
        ),
        kind_of(
            "payload: NUL at every byte",
            No(&["not_json"]),
            with_bytes(&SAMPLES, b"\0"),
        ),
        kind_of(
            "payload: a quote at every byte",
            Either(ODD),
            with_bytes(&SAMPLES, b"\""),
        ),
        kind_of(
            "payload: a bracket at every byte",
            Either(ODD),
            with_bytes(&SAMPLES, b"]"),
        ),
        kind_of(
            "payload: a backslash at every byte",
            Either(ODD),
            with_bytes(&SAMPLES, b"\\"),
        ),
        kind_of(
            "payload: a line end at every byte",
            Either(ODD),
            with_bytes(&SAMPLES, b"\n"),
        ),
        kind_of(
            "payload: half a surrogate pair at every byte",
            Either(ODD),
            with_bytes(&SAMPLES, b"\\ud83d"),
        ),
    ]
}

fn members() -> Vec<HostileKind> {
    let twice = |samples: &[&str], names: &[&str]| -> Vec<String> {
        let mut documents = Vec::new();
        for sample in samples {
            let object: serde_json::Value = serde_json::from_str(sample).unwrap();
            for name in names {
                if let Some(value) = object.get(*name) {
                    documents.extend(with_member(sample, name, &value.to_string()));
                    documents.extend(with_member(
                        sample,
                        &format!("\\u{:04x}{}", name.as_bytes()[0], &name[1..]),
                        "0",
                    ));
                }
            }
        }
        documents
    };
    let not_text = [
        "true",
        "0",
        "[]",
        "{}",
        "\"\"",
        "\" \"",
        "\"a b\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
    ];
    let not_name = [
        "null",
        "true",
        "0",
        "[]",
        "\"\"",
        "\"a b\"",
        "\"a..b\"",
        "\"é\"",
        "\"a\\u0000\"",
    ];
    let not_version_1 = [
        "\"\"", "\"2.0\"", "\"1.x\"", "\"01.0\"", "\"1.\"", "true", "[]", "1",
    ];
    vec![
        kind(
            "payload: a member of a message that decides, twice",
            No(&["duplicate_member", "unknown"]),
            undeclared,
            twice(
                &[MESSAGE, PROGRESS],
                &["type", "id", "version", "a2e", "req_id"],
            ),
        ),
        kind(
            "payload: a member of a record that decides, twice",
            No(&["duplicate_member"]),
            undeclared,
            twice(
                &[REQUEST, RECORD, OLDER],
                &[
                    "request_id",
                    "method",
                    "params",
                    "agent_id",
                    "channel_id",
                    "sequence",
                    "is_final",
                    "jsonrpc_id",
                ],
            ),
        ),
        kind(
            "payload: no type of a message",
            No(&["bad_method", "unknown"]),
            undeclared,
            given(&[MESSAGE, PROGRESS], &["type"], &not_text),
        ),
        kind(
            "payload: no version of a message",
            No(&["unsupported_version"]),
            undeclared,
            given(&[MESSAGE], &["a2e"], &not_version_1[..5])
                .into_iter()
                .chain(given(&[PROGRESS], &["version"], &not_version_1)),
        ),
        kind(
            "payload: no version of a record",
            No(&["unsupported_version"]),
            undeclared,
            given(&[REQUEST, RECORD], &["protocol_version"], &not_version_1),
        ),
        kind(
            "payload: a record without a version",
            No(&["missing_version"]),
            undeclared,
            given(&[RECORD], &["protocol_version"], &["null"]),
        ),
        kind(
            "payload: no name of an agent or a topic",
            No(&["bad_target", "bad_topic"]),
            undeclared,
            given(&[MESSAGE, PROGRESS, BEGIN], &["_agentId"], &not_name)
                .into_iter()
                .chain(given(&[MESSAGE, PROGRESS], &["_topic"], &not_name))
                .chain(not_name.iter().flat_map(|value| {
                    ["_agentId", "_topic"]
                        .map(|name| replaced(REQUEST, "params", &format!("{{\"{name}\":{value}}}")))
                })),
        ),
        kind(
            "payload: no id of a message",
            No(&["bad_id", "unknown"]),
            undeclared,
            given(
                &[MESSAGE, PROGRESS],
                &["id"],
                &["true", "0", "1.5", "[]", "{}"],
            ),
        ),
        kind(
            "payload: no id where one is demanded",
            No(&["missing_id", "bad_id", "unknown"]),
            with_strict_ids,
            given(
                &[MESSAGE, PROGRESS],
                &["id"],
                &["null", "\"\"", "\"\\u0000\"", "\"\\ud800\"", "0"],
            ),
        ),
        kind(
            "payload: no flag and no sequence of a record",
            No(&["bad_member", "bad_seq"]),
            undeclared,
            given(&[REQUEST], &["is_stream"], &["[]", "{}", "\"\"", "\"yes\""])
                .into_iter()
                .chain(given(&[RECORD], &["is_final"], &["[]", "{}", "\"1\""]))
                .chain(given(&[RECORD], &["sequence"], &["[]", "{}", "true"]))
                .chain(given(&[OLDER], &["is_complete"], &["[]", "{}", "\"no\""]))
                .chain(given(&[PROGRESS], &["seq"], &["[]", "{}", "\"\""])),
        ),
        kind(
            "payload: a Boolean for the number of an A2E message, as its SDK reads it",
            Accepted,
            undeclared,
            given(&[PROGRESS], &["seq"], &["true", "false"]),
        ),
        kind(
            "payload: any value of members that say little",
            Accepted,
            undeclared,
            given(
                &[MESSAGE],
                &[
                    "ts",
                    "tool_name",
                    "arguments",
                    "timeout",
                    "session_id",
                    "kind",
                    "code",
                ],
                &VALUES,
            )
            .into_iter()
            .chain(given(
                &[REQUEST],
                &[
                    "timestamp",
                    "session_id",
                    "task_id",
                    "auth",
                    "provenance",
                    "channel",
                ],
                &VALUES,
            ))
            .chain(given(
                &[RECORD],
                &["timestamp", "status", "metadata", "is_server_push"],
                &VALUES,
            )),
        ),
    ]
}

fn families() -> Vec<HostileKind> {
    vec![
        kind(
            "payload: another family than messages",
            No(&["wrong_family"]),
            as_messages,
            [BEGIN, REQUEST, RECORD, OLDER],
        ),
        kind(
            "payload: another family than workflows",
            No(&["wrong_family"]),
            as_workflows,
            [MESSAGE, PROGRESS, REQUEST, RECORD],
        ),
        kind(
            "payload: another family than E2A",
            No(&["wrong_family"]),
            as_e2a,
            [MESSAGE, PROGRESS, BEGIN],
        ),
        kind(
            "payload: a line of a workflow alone",
            No(&["missing_collaborationid"]),
            undeclared,
            [DEFINITION],
        ),
        kind(
            "payload: lines of a workflow among others",
            Either(&[
                "missing_collaborationid",
                "not_json",
                "not_an_object",
                "unknown",
            ]),
            undeclared,
            [MESSAGE, REQUEST, "7", "{", "{}", "null", "[]"]
                .into_iter()
                .flat_map(|other| {
                    [
                        format!("{DEFINITION}\n{other}\n{BEGIN}"),
                        format!("{other}\n{DEFINITION}\n{BEGIN}"),
                        format!("{DEFINITION}\n{BEGIN}\n{other}"),
                    ]
                })
                .filter(|lines| !lines.starts_with('[')),
        ),
    ]
}

#[test]
fn samples_have_the_declared_families() {
    for (sample, family) in SAMPLES.iter().zip([
        Family::A2eMessage,
        Family::A2eMessage,
        Family::A2eWorkflow,
        Family::E2a,
        Family::E2a,
        Family::E2a,
    ]) {
        let units = decode(&Bytes::from(*sample), &Hint::default(), &Limits::default());
        let unit = units[0].as_ref().unwrap();
        assert_eq!(unit.detection.family, family, "{sample}");
        assert!(unit.json_rpc.is_none());
    }
}
