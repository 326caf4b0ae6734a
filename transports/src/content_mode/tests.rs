use a2abus_plugin::Value;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const BINDINGS: [ProtocolBinding; 4] = [
    ProtocolBinding::Kafka,
    ProtocolBinding::Nats,
    ProtocolBinding::Memory,
    ProtocolBinding::Http,
];

fn message(headers: &[(&str, &str)], body: &str) -> Message {
    let mut list = Headers::new();
    for (name, value) in headers {
        list.push(*name, value.to_string());
    }
    Message {
        key: None,
        headers: list,
        body: Some(body.to_owned().into()),
    }
}

fn minimal() -> Event {
    Event::new("1".into(), "/s".into(), "t".into()).unwrap()
}

fn read_event(binding: ProtocolBinding, message: &Message) -> Result<Event, EventErrorKind> {
    match read(binding, message, &Limits::default()) {
        Ok(Content::Event(event)) => Ok(event),
        Ok(Content::Plain { .. }) => panic!("read as plain: {message:?}"),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn binary_data_are_shared_and_never_inspected() {
    let mut event = minimal();
    event.set("datacontenttype", "application/json").unwrap();
    let data = Bytes::from_static(b" { \"a\" : 1.0e0 } ");
    event.set_data(Some(Data::from(data.clone())));
    for binding in BINDINGS {
        let message = write(binding, &event, ContentMode::Binary).unwrap();
        assert_eq!(message.body.as_ref().unwrap().as_ptr(), data.as_ptr());
        let read = read_event(binding, &message).unwrap();
        assert_eq!(read.body().as_ptr(), data.as_ptr());
    }
}

#[test]
fn a_refused_event_shows_the_attributes_that_are_legal() {
    let limits = Limits::default();
    let remains = |binding, refused: &Message| {
        assert!(read(binding, refused, &limits).is_err(), "{refused:?}");
        let (texts, data) = read_refused(binding, refused, ["id", "replyto"], &limits);
        (texts.map(|text| text.map(|text| text.to_string())), data)
    };
    let some = |text: &str| Some(text.to_owned());
    let kafka = message(
        &[
            ("ce_specversion", "1.0"),
            ("ce_id", "a"),
            ("ce_id", "b"),
            ("ce_replyto", "desk"),
        ],
        "hi",
    );
    let hi = Some(Bytes::from_static(b"hi"));
    let expected = ([None, some("desk")], hi.clone());
    assert_eq!(remains(ProtocolBinding::Kafka, &kafka), expected);
    let nats = message(
        &[
            ("ce-specversion", "1.0"),
            ("Ce-Id", "a%20b"),
            ("ce-replyto", "%"),
        ],
        "hi",
    );
    let expected = ([some("a b"), None], hi);
    assert_eq!(remains(ProtocolBinding::Nats, &nats), expected);
    let body = r#"{"specversion":"1.0","id":"a","replyto":"desk","time":"x","data":[1]}"#;
    let structured = message(&[("content-type", "application/cloudevents+json")], body);
    let data = Some(Bytes::from_static(b"[1]"));
    let expected = ([some("a"), some("desk")], data);
    for binding in BINDINGS {
        assert_eq!(remains(binding, &structured), expected);
    }
    // Without a header, as older clients of NATS write it. It has no source.
    let bare = message(&[], body);
    assert_eq!(remains(ProtocolBinding::Nats, &bare), expected);
}

#[test]
fn plain_messages_keep_their_body_and_content_type() {
    let plain = message(&[("Content-Type", "text/plain"), ("ce_id", "1")], "hi");
    for binding in BINDINGS {
        let content = read(binding, &plain, &Limits::default()).unwrap();
        let expected = Content::Plain {
            content_type: Some("text/plain".into()),
            body: Bytes::from_static(b"hi"),
        };
        assert_eq!(content, expected);
    }
}

#[test]
fn foreign_headers_are_those_outside_cloudevents() {
    let mixed = message(
        &[
            ("ce_id", "1"),
            ("CE-Id", "1"),
            ("Content-Type", "x/y"),
            ("traceparent", "t"),
            ("ce", "short"),
        ],
        "",
    );
    let check = |binding, expected: &[&str]| {
        let names: Vec<&str> = foreign_headers(binding, &mixed)
            .map(|header| header.name.as_str())
            .collect();
        assert_eq!(names, expected, "{binding:?}");
    };
    check(ProtocolBinding::Kafka, &["CE-Id", "traceparent", "ce"]);
    check(ProtocolBinding::Memory, &["CE-Id", "traceparent", "ce"]);
    check(ProtocolBinding::Nats, &["ce_id", "traceparent", "ce"]);
    check(ProtocolBinding::Http, &["ce_id", "traceparent", "ce"]);
}

#[test]
fn two_content_types_are_refused_if_ambiguous() {
    let headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", "1"),
        ("ce_source", "/s"),
        ("ce_type", "t"),
    ];
    let twice = [("content-type", "text/plain"), ("Content-Type", "a/b")];
    let check = |headers: &[(&str, &str)], body, expected| {
        assert_eq!(
            read_event(ProtocolBinding::Kafka, &message(headers, body)),
            Err(expected)
        );
    };
    check(
        &[headers, [twice[0], twice[1], ("x", "y"), ("z", "")]].concat(),
        "",
        EventErrorKind::DuplicateAttribute,
    );
    let structured = ("content-type", "application/cloudevents+json");
    check(
        &[structured, twice[1]],
        "{}",
        EventErrorKind::DuplicateAttribute,
    );
    let both = [&headers[..], &[twice[0], ("ce_datacontenttype", "a/b")]].concat();
    check(&both, "", EventErrorKind::DuplicateAttribute);
    // The SDK for JavaScript writes the same value twice.
    let same = [
        &headers[..],
        &[twice[0], ("ce_datacontenttype", "text/plain")],
    ]
    .concat();
    let event = read_event(ProtocolBinding::Kafka, &message(&same, "text")).unwrap();
    assert_eq!(event.datacontenttype().unwrap(), "text/plain");
}

#[test]
fn bare_json_on_nats_is_an_event_only_if_it_is_marked() {
    let check = |body: &str, expected: Result<bool, EventErrorKind>| {
        let message = Message::plain(body.to_owned());
        let content = read(ProtocolBinding::Nats, &message, &Limits::default());
        let seen = content
            .map(|content| matches!(content, Content::Event(_)))
            .map_err(|error| error.kind());
        assert_eq!(seen, expected, "{body}");
    };
    check(
        r#" {"specversion":"1.0","id":"1","source":"/s","type":"t"}"#,
        Ok(true),
    );
    check(
        r#"{"\u0073pecversion":"1.0","id":"1","source":"/s","type":"t"}"#,
        Ok(true),
    );
    check(
        r#"{"specversion":"1.0","id":"1","source":"/s"}"#,
        Err(EventErrorKind::MissingAttribute),
    );
    check(
        r#"{"specversion":"9","id":"1"}"#,
        Err(EventErrorKind::UnsupportedSpecversion),
    );
    check(r#"{"jsonrpc":"2.0","method":"ping","id":1}"#, Ok(false));
    check(r#"{"jsonrpc":"2.0","id":1,"id":2}"#, Ok(false));
    check(&format!("{{\"a\":{}", "[".repeat(10_000)), Ok(false));
    check("[]", Ok(false));
    check("", Ok(false));
}

#[test]
fn an_http_content_type_that_cannot_be_a_header_is_refused() {
    let mut event = minimal();
    event.set("datacontenttype", "text/plà").unwrap();
    let error = write(ProtocolBinding::Http, &event, ContentMode::Binary).unwrap_err();
    assert_eq!(error.kind(), EventErrorKind::InvalidAttributeValue);
    for binding in [
        ProtocolBinding::Kafka,
        ProtocolBinding::Nats,
        ProtocolBinding::Memory,
    ] {
        let message = write(binding, &event, ContentMode::Binary).unwrap();
        assert_eq!(read_event(binding, &message).unwrap(), event);
    }
}

#[test]
fn too_many_attributes_are_refused() {
    let mut event = minimal();
    for number in 0..MAX_ATTRIBUTES {
        event.set(&format!("x{number}"), "v").unwrap();
    }
    let message = write(ProtocolBinding::Kafka, &event, ContentMode::Binary).unwrap();
    let error = read_event(ProtocolBinding::Kafka, &message).unwrap_err();
    assert_eq!(error, EventErrorKind::MalformedEvent);
}

#[test]
fn a_batch_is_bounded_and_read_only_on_request() {
    let batch = message(
        &[("content-type", "application/cloudevents-batch+json")],
        "[1,2,3]",
    );
    let mut limits = Limits::default();
    limits.max_units = 2;
    let error = read_batch(&batch, &limits).unwrap_err();
    assert_eq!(error.kind(), EventErrorKind::MalformedBatch);
    let events = read_batch(&batch, &Limits::default()).unwrap().unwrap();
    assert!(events.len() == 3 && events.iter().all(Result::is_err));
    assert_eq!(
        read_event(ProtocolBinding::Http, &batch),
        Err(EventErrorKind::BatchUnsupported)
    );
    let one = message(&[("content-type", "application/cloudevents+json")], "{}");
    assert_eq!(read_batch(&one, &limits).unwrap(), None);
}

#[test]
fn content_modes_are_written_in_lower_case() {
    let mode: ContentMode = serde_json::from_str("\"structured\"").unwrap();
    assert_eq!(mode, ContentMode::Structured);
    assert!(serde_json::from_str::<ContentMode>("\"Binary\"").is_err());
}

/// Any text that CloudEvents allows. Characters that are difficult in headers are more frequent than by chance.
fn text() -> impl Strategy<Value = String> {
    let hard = prop::sample::select(vec![
        ' ', '"', '%', '\\', ';', '=', '~', 'ë', '€', '😀', '\u{feff}',
    ]);
    let any = any::<char>().prop_filter("CloudEvents forbids it", |c| {
        let code = u32::from(*c);
        !c.is_control() && !(0xfdd0..=0xfdef).contains(&code) && code & 0xfffe != 0xfffe
    });
    vec(
        prop_oneof![3 => any, 2 => hard, 3 => prop::char::range('a', 'z')],
        1..20,
    )
    .prop_map(|chars| chars.into_iter().collect())
}

fn extension() -> impl Strategy<Value = (String, Value)> {
    let value = prop_oneof![
        text().prop_map(|text| Value::from(text.as_str())),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
    ];
    // The core names and the reserved ones are shorter than these.
    ("[a-z0-9]{16,24}", value)
}

fn data() -> impl Strategy<Value = Option<Data>> {
    let json = prop::sample::select(vec!["null", "1", "\"x\"", "{\"a\":[1,{}]}", " [ ] "]);
    option::of(prop_oneof![
        vec(any::<u8>(), 1..40).prop_map(|bytes| Data::from(Bytes::from(bytes))),
        text().prop_map(|text| Data::from(Bytes::from(text))),
        json.prop_map(|json| Data::from(Bytes::from_static(json.as_bytes()))),
    ])
}

fn event() -> impl Strategy<Value = Event> {
    let media_types = prop::sample::select(vec![
        "application/json",
        "Application/X+JSON; charset=utf-8",
        "text/plain; charset=\"utf-8\"",
        "application/xml",
        "application/octet-stream",
    ]);
    let times = prop::sample::select(vec!["2026-02-03T04:05:06Z", "2024-02-29t23:59:60.5+05:30"]);
    (
        (text(), text(), text()),
        option::of(text()),
        option::of(media_types),
        option::of(times),
        vec(extension(), 0..6),
        data(),
    )
        .prop_map(
            |((id, source, ty), subject, media_type, time, extensions, data)| {
                let mut event = Event::new(id.into(), source.into(), ty.into()).unwrap();
                let optional = [
                    ("subject", subject.as_deref()),
                    ("datacontenttype", media_type),
                    ("time", time),
                    ("dataschema", media_type.map(|_| "urn:x:y")),
                ];
                for (name, value) in optional {
                    if let Some(value) = value {
                        event.set(name, value).unwrap();
                    }
                }
                for (name, value) in extensions {
                    event.set(&name, value).unwrap();
                }
                event.set_data(data);
                event
            },
        )
}

/// The content that survives every binding: the text of the attributes, in any order, and the bytes.
fn essence(event: &Event) -> (Vec<(String, String)>, Option<Bytes>) {
    let core = event
        .core_attributes()
        .map(|(name, value)| (name.into(), value.into()));
    let extensions = event
        .extensions()
        .map(|(name, value)| (name.to_owned(), value.to_string()));
    let mut attributes: Vec<_> = core.chain(extensions).collect();
    attributes.sort();
    (attributes, event.data().map(|data| data.bytes().clone()))
}

/// JSON data without white space, which structured mode need not keep.
fn compact(bytes: Bytes) -> Bytes {
    serde_json::from_slice::<serde_json::Value>(&bytes)
        .map_or(bytes, |value| value.to_string().into())
}

/// A list that clones share, its items, a block and its count of owners, however many attributes there are.
#[test]
fn the_headers_of_an_event_take_four_allocations() {
    let mut event = minimal();
    for at in 0..12 {
        let value = format!("value {at}, longer than 23 bytes");
        event
            .set(&format!("extension{at}"), Text::from(value))
            .unwrap();
    }
    for binding in [ProtocolBinding::Kafka, ProtocolBinding::Nats] {
        let taken = allocation_counter::measure(|| {
            write(binding, &event, ContentMode::Binary).unwrap();
        });
        assert_eq!(taken.count_total, 4, "{binding:?}");
    }
}

proptest! {
    #[test]
    fn every_event_survives_binary_mode(event in event()) {
        for binding in BINDINGS {
            let message = write(binding, &event, ContentMode::Binary).unwrap();
            prop_assert_eq!(essence(&read_event(binding, &message).unwrap()), essence(&event));
        }
    }

    #[test]
    fn every_event_survives_structured_mode(event in event()) {
        for binding in BINDINGS {
            let message = write(binding, &event, ContentMode::Structured).unwrap();
            let read = read_event(binding, &message).unwrap();
            let (expected, data) = essence(&event);
            let (attributes, read_data) = essence(&read);
            prop_assert_eq!(attributes, expected);
            prop_assert_eq!(read_data.map(compact), data.map(compact));
            for (name, value) in event.extensions() {
                prop_assert_eq!(read.extension(name), Some(value), "the type of {}", name);
            }
        }
    }

    #[test]
    fn every_event_survives_all_bindings_in_turn(event in event()) {
        let mut travelled = event.clone();
        for binding in [ProtocolBinding::Kafka, ProtocolBinding::Nats, ProtocolBinding::Http, ProtocolBinding::Memory] {
            let message = write(binding, &travelled, ContentMode::Binary).unwrap();
            travelled = read_event(binding, &message).unwrap();
        }
        prop_assert_eq!(essence(&travelled), essence(&event));
    }

    #[test]
    fn hostile_messages_never_panic(
        headers in vec((hostile_name(), option::of(hostile_value())), 0..12),
        body in option::of(prop_oneof![
            vec(any::<u8>(), 0..60),
            Just(b"{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/\",\"type\":\"t\"}".to_vec()),
            Just(b"[{},1]".to_vec()),
        ]),
    ) {
        let mut message = Message { body: body.map(Bytes::from), ..Message::default() };
        for (name, value) in headers {
            match value {
                Some(value) => message.headers.push(name, value),
                None => message.headers.push_null(name),
            }
        }
        for binding in BINDINGS {
            for header in foreign_headers(binding, &message) {
                prop_assert!(!header.name.eq_ignore_ascii_case("content-type"));
            }
            if let Ok(Content::Event(event)) = read(binding, &message, &Limits::default()) {
                for target in BINDINGS {
                    // An event that was read can be written everywhere, except for an unusual media type over HTTP.
                    let written = write(target, &event, ContentMode::Binary);
                    prop_assert!(written.is_ok() || target == ProtocolBinding::Http);
                }
            }
        }
        let _ = read_batch(&message, &Limits::default());
    }

    #[test]
    fn percent_text_survives(text in text()) {
        let mut written = BytesMut::new();
        percent::encode(&text, &mut written);
        let written = written.freeze();
        prop_assert!(written.iter().all(|byte| (0x21..=0x7e).contains(byte)));
        prop_assert_eq!(percent::decode("x", &written).unwrap(), text.as_str());
    }
}

fn hostile_name() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "ce_specversion",
        "ce-specversion",
        "CE-SpecVersion",
        "ce_id",
        "ce-id",
        "ce_source",
        "ce-source",
        "ce_type",
        "ce-type",
        "ce_",
        "ce-",
        "ce",
        "cé-x",
        "ce-data",
        "ce_data_base64",
        "content-type",
        "Content-Type",
        "ce-datacontenttype",
        "ce_time",
        "ce-dataschema",
    ]);
    prop_oneof![4 => known.prop_map(String::from), 1 => any::<String>()]
}

fn hostile_value() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "1.0",
        "x",
        "\"",
        "\"\\",
        "\"a\\\"",
        "%",
        "%4",
        "%zz",
        "%00",
        "%FF",
        " \t ",
        "a\r\nb: c",
        "application/cloudevents",
        "application/cloudevents+json;charset",
        "application/json",
        "application/cloudevents-batch",
        "application/cloudevents+json; charset=\"",
        "",
    ]);
    prop_oneof![
        4 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..30),
    ]
}
