//! Properties of every payload, whatever an agent writes.

use std::collections::BTreeMap;

use a2abus_plugin::protocol::jsonrpc::{Id, splice};
use a2abus_plugin::{
    Data, DecodeErrorKind, Event, EventId, Hint, Ids, Limits, MapContext, MapOptions, Mapped,
    Source, Time, TypePrefix, Units, decode, format, map, wrap_unknown,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

fn mapped(payload: &Bytes, hint: &Hint) -> Units<Mapped> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    map(
        payload,
        hint,
        &Limits::default(),
        &MapOptions::default(),
        &context,
    )
}

/// Without and with headers that declare one value per line.
fn hints() -> impl Strategy<Value = Hint> {
    let mut lines = Hint::default();
    lines.header("content-type", "application/x-ndjson");
    prop_oneof![Just(Hint::default()), Just(lines)]
}

/// The JSON-RPC id of a payload that is one valid unit.
fn id_of(payload: &Bytes) -> Id {
    let units = decode(payload, &Hint::default(), &Limits::default());
    let unit = units.into_only().unwrap().unwrap();
    unit.json_rpc.unwrap().id.unwrap()
}

// === generated JSON-RPC ===

fn white_space() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just(String::new()),
        1 => "[ \t\r\n]{1,3}",
    ]
}

/// JSON strings of visible text, each character as it is or as an escape.
fn string_token() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        Just('a'),
        Just('Z'),
        Just('0'),
        Just('-'),
        Just('/'),
        Just('é'),
        Just('日'),
        Just('😀')
    ];
    vec((plain, any::<bool>()), 0..12).prop_map(|characters| {
        let inside: String = characters
            .into_iter()
            .map(|(c, escaped)| if escaped { escape(c) } else { c.to_string() })
            .collect();
        format!("\"{inside}\"")
    })
}

fn escape(c: char) -> String {
    let mut units = [0; 2];
    c.encode_utf16(&mut units)
        .iter()
        .map(|unit| format!("\\u{unit:04x}"))
        .collect()
}

fn number_token() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?"
}

fn id_token() -> impl Strategy<Value = String> {
    prop_oneof![number_token(), string_token(), Just("null".to_owned())]
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        number_token(),
        string_token(),
        Just("true".to_owned()),
        Just("null".to_owned()),
        Just("{}".to_owned()),
        Just("[ ]".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(|values| format!("[{}]", values.join(" ,"))),
            vec((string_token(), inner), 1..4).prop_map(|members| {
                let members: Vec<String> = members
                    .into_iter()
                    .map(|(name, value)| format!("{name}:\t{value}"))
                    .collect();
                format!("{{{}}}", members.join(", "))
            }),
        ]
    })
}

/// A member name, one of its characters perhaps as an escape.
fn name_token(name: &'static str) -> impl Strategy<Value = String> {
    (any::<bool>(), 0..name.len()).prop_map(move |(escaped, at)| {
        let spelt: String = name
            .char_indices()
            .map(|(index, c)| {
                if escaped && index == at {
                    escape(c)
                } else {
                    c.to_string()
                }
            })
            .collect();
        format!("\"{spelt}\"")
    })
}

fn member(
    name: &'static str,
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    (name_token(name), white_space(), white_space(), value)
        .prop_map(|(name, before, after, value)| format!("{name}{before}:{after}{value}"))
}

/// One JSON-RPC request or response with an id, members in any order, nothing around it.
fn json_rpc() -> impl Strategy<Value = String> {
    let version = prop_oneof![Just("\"2.0\"".to_owned()), Just("\"\\u0032.0\"".to_owned())];
    let body = prop_oneof![
        member("method", Just("\"tools/call\"".to_owned())),
        member("method", Just("\"x\\/\\u0079\"".to_owned())),
        member("result", value()),
        member(
            "error",
            Just("{\"code\":-32000,\"message\":\"no\"}".to_owned())
        ),
    ];
    let members = (
        member("jsonrpc", version),
        member("id", id_token()),
        body,
        member("anything", value()),
    );
    let order = members
        .prop_map(|(version, id, body, other)| vec![version, id, body, other])
        .prop_shuffle();
    (order, vec(white_space(), 10)).prop_map(|(members, spaces)| {
        let mut text = "{".to_owned();
        for (index, member) in members.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&spaces[2 * index]);
            text.push_str(member);
            text.push_str(&spaces[2 * index + 1]);
        }
        text.push('}');
        text
    })
}

/// Text that looks like payloads: decisive words, brackets, white space.
fn json_like() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "[\\[\\]{}:,\"\\\\ \n\r0-9e.\\-]",
        2 => Just("\"jsonrpc\":\"2.0\",".to_owned()),
        1 => Just("\"id\":1,".to_owned()),
        1 => Just("\"method\":\"m\"".to_owned()),
        1 => Just("\"params\":{\"_agentId\":\"a\"}".to_owned()),
        1 => Just("\"protocol\":\"A2A\"".to_owned()),
        1 => Just("\"specversion\":\"1.0\",".to_owned()),
        1 => Just("\\ud83d".to_owned()),
        1 => Just("\u{feff}".to_owned()),
        1 => Just("{\"jsonrpc\":\"2.0\",\"method\":\"m\"}".to_owned()),
        1 => Just("\n".to_owned()),
    ];
    vec(word, 0..24).prop_map(|words| words.concat())
}

/// Every payload gives units in order, and every unit's bytes lie within the payload.
fn check_total(payload: &Bytes, hint: &Hint) -> Result<(), TestCaseError> {
    let units = mapped(payload, hint);
    prop_assert!(!units.is_empty());
    let payload_ends = payload.as_ptr_range();
    for (index, unit) in units.iter().enumerate() {
        let (at, bytes) = match unit {
            Ok(mapped) => (mapped.index, &mapped.bytes),
            Err(refused) => {
                prop_assert!(refused.error.offset() <= payload.len());
                (refused.index, &refused.bytes)
            }
        };
        prop_assert_eq!(at, index);
        let range = bytes.as_ptr_range();
        let shared = payload_ends.start <= range.start && range.end <= payload_ends.end;
        prop_assert!(bytes.is_empty() || shared, "a unit's bytes are copied");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn reading_is_total_on_bytes(bytes in any::<Vec<u8>>(), hint in hints()) {
        check_total(&Bytes::from(bytes), &hint)?;
    }

    #[test]
    fn reading_is_total_on_json_like_text(text in json_like(), hint in hints()) {
        check_total(&Bytes::from(text), &hint)?;
    }

    #[test]
    fn reading_is_total_on_broken_json_rpc(text in json_rpc(), at in any::<usize>(), byte in any::<u8>(), hint in hints()) {
        let mut bytes = text.into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        check_total(&Bytes::from(bytes.clone()), &hint)?;
        bytes.truncate(at);
        check_total(&Bytes::from(bytes), &hint)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_data_of_an_event_are_the_bytes_of_its_object(
        text in json_rpc(), before in white_space(), after in white_space(),
    ) {
        let payload = Bytes::from(format!("{before}{text}{after}"));
        let units = mapped(&payload, &Hint::default());
        prop_assert_eq!(units.len(), 1);
        prop_assert_eq!(units[0].as_ref().unwrap().event.body(), payload);
    }

    #[test]
    fn a_batch_keeps_count_order_and_the_bytes_of_each_element(
        elements in vec(prop_oneof![3 => json_rpc(), 1 => value()], 1..8),
        spaces in vec(white_space(), 18),
    ) {
        let inside: Vec<String> = elements
            .iter()
            .zip(spaces.chunks(2))
            .map(|(element, around)| format!("{}{element}{}", around[0], around[1]))
            .collect();
        let payload = Bytes::from(format!("{}[{}]{}", spaces[16], inside.join(","), spaces[17]));
        let units = mapped(&payload, &Hint::default());
        prop_assert_eq!(units.len(), elements.len());
        for (unit, element) in units.iter().zip(&elements) {
            let bytes = match unit {
                Ok(mapped) => mapped.event.body(),
                Err(refused) => refused.bytes.clone(),
            };
            prop_assert_eq!(&bytes, element);
        }
    }

    #[test]
    fn lines_keep_count_order_and_the_bytes_of_each_line(
        lines in vec(json_rpc(), 2..8),
        ends in vec(prop_oneof![Just("\n"), Just("\r\n"), Just(" \n\n\t\r\n")], 8),
        hint in hints(),
    ) {
        let lines: Vec<String> = lines.into_iter().map(|line| line.replace(['\n', '\r'], " ")).collect();
        let payload: String = lines.iter().zip(ends).flat_map(|(line, end)| [line.as_str(), end]).collect();
        let units = mapped(&Bytes::from(payload), &hint);
        prop_assert_eq!(units.len(), lines.len());
        for (unit, line) in units.iter().zip(&lines) {
            prop_assert_eq!(&unit.as_ref().unwrap().event.body(), line);
        }
    }

    #[test]
    fn a_bad_batch_element_does_not_affect_the_others(
        good in json_rpc(), bad in value(), at in 0usize..3,
    ) {
        let mut elements = vec![good.clone(), good.clone()];
        elements.insert(at, bad);
        let units = mapped(&Bytes::from(format!("[{}]", elements.join(","))), &Hint::default());
        prop_assert_eq!(units.len(), 3);
        for (index, unit) in units.iter().enumerate() {
            prop_assert_eq!(unit.is_ok(), index != at);
        }
    }

    #[test]
    fn mapping_depends_only_on_its_arguments(text in prop_oneof![json_rpc(), json_like()]) {
        let payload = Bytes::from(text);
        prop_assert_eq!(mapped(&payload, &Hint::default()), mapped(&payload, &Hint::default()));
    }

    #[test]
    fn an_id_is_its_exact_token(text in json_rpc()) {
        let payload = Bytes::from(text);
        let id = id_of(&payload);
        prop_assert_eq!(&payload[id.span()], id.token().as_bytes());
    }

    #[test]
    fn replacing_an_id_and_restoring_it_restores_the_bytes(
        text in json_rpc(), before in white_space(), call_id in "[0-9a-v]{26}",
    ) {
        let body = Bytes::from(format!("{before}{text}"));
        let id = id_of(&body);
        let token = format!("\"{call_id}\"");
        let sent = splice(&body, id.span(), &token);
        let sent_id = id_of(&sent);
        prop_assert_eq!(sent_id.token().as_str(), token.as_str());
        prop_assert_eq!(sent_id.span().start, id.span().start);
        prop_assert_eq!(splice(&sent, sent_id.span(), id.token()), body);
    }

    #[test]
    fn a_unit_with_replaced_values_is_the_one_of_the_new_bytes(
        (own, new, other) in ("[a-z]{0,9}", "[a-z]{0,9}", "[a-z]{0,9}"), order in 0_usize..3,
    ) {
        let request = |name: &str, uri: &str| {
            let mut members = [
                r#""jsonrpc":"2.0","id":7"#.to_owned(),
                format!(r#""params":{{"name":"{name}","_meta":{{"progressToken":1}},"uri":"{uri}"}}"#),
                r#""method":"tools/call""#.to_owned(),
            ];
            members.rotate_left(order);
            Bytes::from(format!(" {{{}}}", members.join(",")))
        };
        let unit = |bytes: &Bytes| {
            let unit = decode(bytes, &Hint::default(), &Limits::default()).into_only();
            unit.unwrap().unwrap()
        };
        let body = request(&own, &own);
        let mut replaced = unit(&body);
        let edits = ["\"name\":\"", "\"uri\":\""].map(|member| {
            let at = std::str::from_utf8(&body).unwrap().find(member).unwrap() + member.len();
            let text = if member.contains("name") { &new } else { &other };
            (at..at + own.len(), text.clone())
        });
        replaced.replace(edits.into(), &Limits::default()).unwrap();
        prop_assert_eq!(replaced, unit(&request(&new, &other)));
    }

    #[test]
    fn an_id_in_a_batch_is_found_within_its_element(elements in vec(json_rpc(), 1..5)) {
        let payload = Bytes::from(format!("\u{feff} [{}]", elements.join(" , ")));
        for unit in decode(&payload, &Hint::default(), &Limits::default()) {
            let unit = unit.unwrap();
            let id = unit.json_rpc.unwrap().id.unwrap();
            prop_assert_eq!(&unit.bytes[id.span()], id.token().as_bytes());
        }
    }

    #[test]
    fn a_truncated_object_is_never_accepted(text in json_rpc(), at in any::<usize>()) {
        let end = at % text.len();
        let payload = Bytes::copy_from_slice(&text.as_bytes()[..end]);
        let units = mapped(&payload, &Hint::default());
        let kind = units[0].as_ref().unwrap_err().error.kind();
        prop_assert!(matches!(
            kind,
            DecodeErrorKind::NotJson | DecodeErrorKind::Empty | DecodeErrorKind::NotUtf8
        ));
    }
}

// === events are what they say ===

/// The attributes of an event, its time as an instant, and its data without the white space around JSON.
fn content(event: &Event) -> (BTreeMap<String, String>, Bytes) {
    let mut attributes: BTreeMap<String, String> = event
        .core_attributes()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .chain(
            event
                .extensions()
                .map(|(name, value)| (name.to_owned(), format!("{value:?}"))),
        )
        .collect();
    if let Some(time) = attributes.get_mut("time") {
        *time = chrono::DateTime::parse_from_rfc3339(time)
            .unwrap()
            .to_utc()
            .to_string();
    }
    let body = event.body();
    let inside = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&body);
    let data = if event.data().is_some_and(Data::is_json) {
        Bytes::copy_from_slice(inside.trim_ascii())
    } else {
        body.clone()
    };
    (attributes, data)
}

/// The event is read back equal, from its JSON form and from the event of the SDK.
fn check_read_back(event: &Event) {
    let mut structured = Vec::new();
    format::write(event, &mut structured);
    let read = format::read(&structured.into(), &Limits::default()).unwrap();
    assert_eq!(content(&read), content(event));
    let theirs = cloudevents::Event::try_from(event).unwrap();
    let back = Event::try_from(theirs).unwrap();
    assert_eq!(content(&back), content(event));
    assert_eq!(back.body(), event.body());
}

/// Texts that might be a source, a prefix, an id or a time, but sometimes are not.
fn wild() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ -~]{0,24}",
        "[a-z]{0,5}:?/{0,2}[\\[\\]a-z0-9:%./?#-]{0,20}",
        "[0-9]{4}-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{1,9})?(Z|[+-][01][0-9]:30)",
        Just("yesterday".to_owned()),
        Just("a\nb".to_owned()),
    ]
}

proptest! {
    #[test]
    fn every_mapped_event_is_read_back_equal(
        payload in prop_oneof![json_rpc(), json_like(), any_family()],
        hint in hints(),
        (source, prefix, id, time) in (wild(), wild(), wild(), wild()),
        rule in 0..3,
    ) {
        let new_id = MapContext::counting(&id);
        let mut options = MapOptions::default();
        if let Ok(prefix) = TypePrefix::new(prefix) {
            options.type_prefix = prefix;
        }
        let given = EventId::new(id.clone());
        let context = MapContext {
            source: Source::new(source).unwrap_or_default(),
            time: Time::new(time).ok(),
            ids: match (rule, given) {
                (0, Ok(id)) => Ids::Given(id),
                (1, _) => Ids::Fresh(&new_id),
                _ => Ids::Payload(&new_id),
            },
        };
        let payload = Bytes::from(payload);
        let units = map(&payload, &hint, &Limits::default(), &options, &context);
        for mapped in units.into_iter().flatten() {
            check_read_back(&mapped.event);
        }
        check_read_back(&wrap_unknown(&payload, 0, &options, &context));
    }
}

/// A message of a family other than JSON-RPC, with a word or a time where one may be.
fn any_family() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        string_token(),
        number_token(),
        Just("\"2016-12-31T23:59:60Z\"".to_owned()),
        Just("\"2026-03-28T14:00:00+02:00\"".to_owned()),
        Just("1716123456.789".to_owned()),
    ];
    (word.clone(), word.clone(), word, 0..4).prop_map(|(a, b, c, family)| match family {
        0 => format!(r#"{{"a2e":"1.0","type":"tool/event","id":{a},"req_id":{b},"ts":{c}}}"#),
        1 => format!(r#"{{"protocol_version":"1.0","request_id":{a},"method":"m","session_id":{b},"timestamp":{c}}}"#),
        2 => format!(r#"{{"protocol":"A2A","messageType":{a},"metadata":{{"correlationId":{b}}}}}"#),
        _ => format!(r#"{{"type":"operationUpdate","operationId":"a"}}
{{"type":"beginExecution","executionId":{a}}}"#),
    })
}
