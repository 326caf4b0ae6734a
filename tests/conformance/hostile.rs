//! Does the plugin survive what is meant to hurt it? Thousands of bad documents of many kinds: each is refused with the
//! right error or becomes a valid event, nothing panics, and time grows with the bytes and no faster.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use a2abus_plugin::DecodeErrorKind as K;
use a2abus_plugin::{Hint, Ids, Limits, MapContext, MapOptions, Source, format, map};
use bytes::Bytes;

use crate::payloads::{Outcome, outcomes};

/// What must become of the documents of one kind.
enum Verdict {
    /// Every unit is refused, with one of these errors.
    Refused(&'static [K]),
    /// Every unit becomes an event.
    Mapped,
    /// Either, unit by unit, but never anything else.
    Either,
}

use Verdict::{Either, Mapped, Refused};

struct HostileKind {
    name: &'static str,
    verdict: Verdict,
    documents: Vec<Vec<u8>>,
}

fn kind<D: Into<Vec<u8>>>(
    name: &'static str,
    verdict: Verdict,
    documents: impl IntoIterator<Item = D>,
) -> HostileKind {
    HostileKind {
        name,
        verdict,
        documents: documents.into_iter().map(Into::into).collect(),
    }
}

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":"r-1","method":"tools/call","params":{"_agentId":"weather","_seq":-1.5e3,"a":[true,null,"\u00e9"]}}"#;
const RESPONSE: &str =
    r#"{"jsonrpc":"2.0","id":7,"result":{"kind":"task","status":{"state":"working"}}}"#;
const LEGACY: &str = r#"{"protocol":"A2A","messageType":"CFP","targetAgent":{"agentId":"b"},"metadata":{"correlationId":"c"}}"#;
const EVENT: &str = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05Z","n":-7,"data":{"a":1}}"#;
const SAMPLES: [&str; 4] = [REQUEST, RESPONSE, LEGACY, EVENT];

/// A request whose member has this value.
fn request_with(member: &str, value: &str) -> String {
    match member {
        "_agentId" | "_topic" | "_seq" => {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"{member}":{value}}}}}"#)
        }
        "method" => format!(r#"{{"jsonrpc":"2.0","id":1,"method":{value}}}"#),
        "id" => format!(r#"{{"jsonrpc":"2.0","id":{value},"method":"m"}}"#),
        other => format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","{other}":{value}}}"#),
    }
}

const NAMED: [&str; 4] = ["method", "id", "_agentId", "_topic"];
const REFUSES_TEXT: &[K] = &[K::BadMethod, K::BadId, K::BadTarget, K::BadTopic];

// === shape: depth, width, size ===

fn depths() -> Vec<HostileKind> {
    let nested = |depth: usize, open: &str, close: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"m","params":{}{}}}"#,
            open.repeat(depth),
            close.repeat(depth)
        )
    };
    vec![
        kind(
            "a million levels",
            Refused(&[K::TooDeep]),
            ["[", "{\"a\":", "[{\"params\":", "{\"jsonrpc\":[", "[[],"]
                .map(|open| open.repeat(1_000_000 / open.len())),
        ),
        kind(
            "one level too many",
            Refused(&[K::TooDeep, K::NotJson]),
            (128..200).flat_map(|depth| {
                [
                    nested(depth, "[", "]"),
                    nested(depth, "{\"a\":", "}"),
                    nested(depth, "[{\"params\":", "}]"),
                ]
            }),
        ),
        kind(
            "as deep as allowed",
            Mapped,
            (1..=127).map(|depth| nested(depth, "[", "]")),
        ),
    ]
}

fn sizes() -> Vec<HostileKind> {
    let wide = |count: usize| vec!["0"; count].join(",");
    let members = |count: usize| {
        let members: Vec<String> = (0..count).map(|n| format!("\"m{}\":0", n % 50)).collect();
        members.join(",")
    };
    vec![
        kind(
            "too many members",
            Refused(&[K::TooLarge]),
            [
                format!("[{}]", wide(200_001)),
                format!("{{{}}}", members(200_001)),
                format!(
                    r#"{{"jsonrpc":"2.0","method":"m","params":[{}]}}"#,
                    wide(200_000)
                ),
                format!(r#"{{"result":{{{}}},"jsonrpc":"2.0"}}"#, members(200_000)),
            ],
        ),
        kind(
            "more units than allowed",
            Refused(&[K::TooLarge]),
            [
                format!("[{}]", vec![REQUEST; 1_001].join(",")),
                format!("[{}]", vec!["[]"; 5_000].join(",")),
                vec![REQUEST; 1_001].join("\n"),
                "7\n".repeat(200_000),
            ],
        ),
        kind(
            "more bytes than allowed",
            Refused(&[K::TooLarge]),
            ["[", "{", "\"", " ", "\n", "x", "0", "\u{feff}"]
                .map(|text| text.repeat((2 << 20) / text.len())),
        ),
    ]
}

fn long_texts() -> Vec<HostileKind> {
    let mega = "m".repeat(1 << 20);
    vec![
        kind(
            "a megabyte of text where a name belongs",
            Refused(&[K::TooLarge]),
            NAMED.map(|member| request_with(member, &format!("\"{mega}\""))),
        ),
        kind(
            "half a megabyte of text where a name belongs",
            Refused(REFUSES_TEXT),
            NAMED.map(|member| request_with(member, &format!("\"{}\"", &mega[..1 << 19]))),
        ),
        kind(
            "half a megabyte of escapes where a name belongs",
            Refused(REFUSES_TEXT),
            NAMED.map(|member| {
                request_with(member, &format!("\"{}\"", "\\u0061".repeat((1 << 19) / 6)))
            }),
        ),
        kind(
            "half a megabyte of text where it is allowed",
            Mapped,
            [
                request_with("params", &format!("{{\"a\":\"{}\"}}", &mega[..1 << 19])),
                request_with("params", &format!("{{\"{}\":1}}", &mega[..1 << 19])),
                request_with(&mega[..1 << 19], "1"),
                request_with(&"\\u0061".repeat(80_000), "1"),
                request_with("x", &"9".repeat(1 << 19)),
            ],
        ),
    ]
}

// === bytes: encodings, truncation, noise ===

fn truncated() -> impl Iterator<Item = Vec<u8>> {
    SAMPLES
        .into_iter()
        .flat_map(|sample| (1..sample.len()).map(|end| sample.as_bytes()[..end].to_vec()))
}

/// Each sample with the bytes put in at every place.
fn with_bytes(bytes: &'static [u8]) -> impl Iterator<Item = Vec<u8>> {
    [REQUEST, EVENT].into_iter().flat_map(move |sample| {
        (0..=sample.len()).map(move |at| {
            let (head, tail) = sample.as_bytes().split_at(at);
            [head, bytes, tail].concat()
        })
    })
}

/// A random number generator, so that a failure can be seen again.
fn next(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn noise() -> Vec<Vec<u8>> {
    let mut state = 1;
    let mutate = |state: &mut u64, sample: &str| {
        let mut bytes = sample.as_bytes().to_vec();
        for _ in 0..=next(state) % 4 {
            let at = next(state) % bytes.len();
            match next(state) % 3 {
                0 => bytes[at] = (next(state) % 256) as u8,
                1 => bytes.insert(at, b"{}[]\",:\\ \n0e-"[next(state) % 13]),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    };
    (0..800)
        .map(|n| mutate(&mut state, SAMPLES[n % SAMPLES.len()]))
        .collect()
}

fn encodings() -> Vec<Vec<u8>> {
    let utf16 = |bytes_of: fn(u16) -> [u8; 2]| -> Vec<u8> {
        REQUEST.encode_utf16().flat_map(bytes_of).collect()
    };
    let utf32: Vec<u8> = REQUEST
        .chars()
        .flat_map(|c| u32::from(c).to_le_bytes())
        .collect();
    let (little, big) = (utf16(u16::to_le_bytes), utf16(u16::to_be_bytes));
    vec![
        [&b"\xff\xfe"[..], &little].concat(),
        [&b"\xfe\xff"[..], &big].concat(),
        little,
        big,
        utf32,
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00".to_vec(),
        b"{\"jsonrpc\":\"2.0\",\"method\":\"gr\xfc\xdfe\"}".to_vec(),
        [b"\xef\xbb\xbf", REQUEST.as_bytes(), b"\xef\xbb\xbf"].concat(),
        [b"\xef\xbb\xbf\xef\xbb\xbf", REQUEST.as_bytes()].concat(),
    ]
}

fn bytes() -> Vec<HostileKind> {
    let not_text: &[K] = &[K::NotUtf8];
    let not_json: &[K] = &[K::NotJson];
    vec![
        kind("truncated at every byte", Refused(not_json), truncated()),
        kind(
            "bad UTF-8 at every byte",
            Refused(not_text),
            with_bytes(b"\xff"),
        ),
        kind(
            "overlong UTF-8 at every byte",
            Refused(not_text),
            with_bytes(b"\xc0\x80"),
        ),
        kind(
            "a surrogate in UTF-8 at every byte",
            Refused(not_text),
            with_bytes(b"\xed\xa0\x80"),
        ),
        kind(
            "past Unicode at every byte",
            Refused(not_text),
            with_bytes(b"\xf4\x90\x80\x80"),
        ),
        kind(
            "half a character at every byte",
            Refused(not_text),
            with_bytes(b"\xe2\x82"),
        ),
        kind("NUL at every byte", Refused(not_json), with_bytes(b"\0")),
        kind("a quote at every byte", Either, with_bytes(b"\"")),
        kind("a brace at every byte", Either, with_bytes(b"{")),
        kind("a backslash at every byte", Either, with_bytes(b"\\")),
        kind("a line feed at every byte", Either, with_bytes(b"\n")),
        kind(
            "other encodings",
            Refused(&[K::NotUtf8, K::NotJson]),
            encodings(),
        ),
        kind("noise", Either, noise()),
    ]
}

// === grammar ===

const BROKEN_NUMBERS: [&str; 16] = [
    "01",
    "-",
    "+1",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x10",
    "1_000",
    "--1",
    "1.e5",
    "NaN",
    "Infinity",
    "-Infinity",
    "1,5",
    "\u{661}",
];
const BROKEN_LITERALS: [&str; 15] = [
    "True",
    "nul",
    "nulll",
    "undefined",
    "tru",
    "'a'",
    "falsey",
    "None",
    "`a`",
    "//x\n1",
    "/*x*/1",
    "1;",
    "(1)",
    "<a/>",
    "@",
];
const BROKEN_STRUCTURE: [&str; 21] = [
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{,}",
    "{a:1}",
    "{1:1}",
    "{\"a\" 1}",
    "{\"a\"::1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":1;\"b\":2}",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1",
    "{\"a\":1]",
    "[1}",
    "{\"a\":[1}",
    "}",
    "]",
    "{null:1}",
    "[1,,2]",
];
const BROKEN_ESCAPES: [&str; 11] = [
    "\\",
    "\\x41",
    "\\u",
    "\\u1",
    "\\u12g4",
    "\\U00000041",
    "\\'",
    "\\0",
    "\\u{41}",
    "\\a",
    "\\\n",
];
const TAILS: [&str; 10] = [
    "x", "{}", "]", "}", "\0", ",", "\u{feff}", "null", "/**/", "\u{a0}",
];

fn grammar() -> Vec<HostileKind> {
    let in_params = |value: &str| request_with("params", value);
    let in_string = |text: &str| request_with("params", &format!("{{\"a\":\"{text}\"}}"));
    vec![
        kind(
            "broken numbers",
            Refused(&[K::NotJson]),
            BROKEN_NUMBERS.map(in_params),
        ),
        kind(
            "broken literals",
            Refused(&[K::NotJson]),
            BROKEN_LITERALS.map(in_params),
        ),
        kind(
            "broken structure",
            Refused(&[K::NotJson]),
            BROKEN_STRUCTURE.map(in_params),
        ),
        kind(
            "broken escapes",
            Refused(&[K::NotJson]),
            BROKEN_ESCAPES.map(in_string),
        ),
        kind(
            "control characters inside strings",
            Refused(&[K::NotJson]),
            (0u8..0x20).map(|c| in_string(&char::from(c).to_string())),
        ),
        kind(
            "text after the document",
            Refused(&[K::NotJson]),
            TAILS
                .into_iter()
                .flat_map(|tail| SAMPLES.map(|sample| format!("{sample}{tail}"))),
        ),
        kind(
            "numbers of any size where a number belongs",
            Mapped,
            [
                "0",
                "-0",
                "1e999999",
                "-1e-999999",
                "0.1",
                "9007199254740993",
                "1E+2",
            ]
            .into_iter()
            .flat_map(|number| ["id", "_seq"].map(|member| request_with(member, number)))
            .chain([request_with("id", &"9".repeat(1_024))]),
        ),
        kind(
            "a number of 1,025 digits where an attribute is made",
            Refused(&[K::BadId, K::BadSeq]),
            ["id", "_seq"].map(|member| request_with(member, &"9".repeat(1_025))),
        ),
    ]
}

// === meaning: wrong types, duplicates, injection ===

const WRONG_MEMBER: &[K] = &[
    K::BadMethod,
    K::BadId,
    K::BadTarget,
    K::BadTopic,
    K::BadSeq,
    K::BadParams,
    K::Invalid,
    K::UnsupportedVersion,
    K::BadMember,
    K::BadError,
];

fn wrong_types() -> Vec<String> {
    let all = [
        ("method", &["null", "7", "true", "{}", "[]", "\"\""][..]),
        ("id", &["true", "false", "{}", "[]", "{\"id\":1}"]),
        ("_agentId", &["null", "7", "true", "{}", "[]", "\"\""]),
        ("_topic", &["null", "7", "true", "{}", "[]", "\"\""]),
        ("_seq", &["null", "true", "{}", "[]", "\"\""]),
        ("params", &["7", "true", "\"x\""]),
        ("result", &["1", "null"]),
        ("error", &["1", "null"]),
    ];
    let versions = [
        "2.0",
        "2",
        "\"1.0\"",
        "\"2\"",
        "\"2.0.0\"",
        "null",
        "[]",
        "{}",
        "\"\"",
    ];
    let legacy = [
        r#""messageType":7"#,
        r#""messageType":{}"#,
        r#""sourceAgent":{"agentId":{}}"#,
        r#""sourceAgent":{"agentId":true}"#,
        r#""targetAgent":{"agentId":[]}"#,
        r#""metadata":{"correlationId":{}}"#,
        r#""metadata":{"correlationId":"\u0007"}"#,
    ];
    let errors = [
        "1",
        "\"x\"",
        "[]",
        "{}",
        "null",
        r#"{"code":1e3,"message":"x"}"#,
    ];
    let calls = all.iter().flat_map(|(member, values)| {
        values
            .iter()
            .map(|value| request_with(member, value))
            .collect::<Vec<_>>()
    });
    calls
        .chain(versions.map(|version| format!(r#"{{"jsonrpc":{version},"method":"m"}}"#)))
        .chain(legacy.map(|member| format!(r#"{{"protocol":"A2A",{member}}}"#)))
        .chain(errors.map(|error| format!(r#"{{"jsonrpc":"2.0","error":{error}}}"#)))
        .collect()
}

fn duplicates() -> Vec<String> {
    let tops = ["jsonrpc", "id", "method", "params"];
    let escaped = |name: &str| format!("\\u{:04x}{}", name.as_bytes()[0], &name[1..]);
    let values = |name: &str| match name {
        "jsonrpc" => "\"2.0\"",
        "id" => "1",
        "method" => "\"m\"",
        _ => "{}",
    };
    let mut all = Vec::new();
    for name in tops {
        for second in [name.to_owned(), escaped(name)] {
            let members: Vec<String> = tops
                .iter()
                .map(|name| format!("\"{name}\":{}", values(name)))
                .chain([format!("\"{second}\":{}", values(name))])
                .collect();
            all.push(format!("{{{}}}", members.join(",")));
            let mut turned = members;
            turned.rotate_right(1);
            all.push(format!("{{{}}}", turned.join(",")));
        }
    }
    for name in ["_agentId", "_topic", "_seq"] {
        for second in [name.to_owned(), escaped(name)] {
            all.push(request_with(
                "params",
                &format!("{{\"{name}\":\"a\",\"x\":{{}},\"{second}\":\"b\"}}"),
            ));
        }
    }
    all
}

/// Text that would break out of an attribute, a header or a topic.
const INJECTIONS: [&str; 24] = [
    "a\\r\\nX-Evil: 1",
    "a\\nb",
    "a\\u0000b",
    "a\\tb",
    "a b",
    " a",
    "a ",
    "..",
    "a..b",
    "../../etc/passwd",
    "a/../b",
    "*",
    "a.*",
    ">",
    "a.>",
    "#",
    "+\\u2028",
    "a%0d%0ab",
    "a\\\\b",
    "{targetagent}",
    "${jndi:ldap://x}",
    "\u{202e}a",
    "a\u{200b}",
    "аgent",
];

const LONE_SURROGATES: [&str; 5] = [
    "\\ud800",
    "\\udfff",
    "\\ud800\\u0041",
    "a\\udc00b",
    "\\ud83d\\ud83d",
];
const STRANGERS: [&str; 12] = [
    "{}",
    "{\"a\":1}",
    "{\"jsonrpcx\":\"2.0\"}",
    "{\"JSONRPC\":\"2.0\"}",
    "{\"\":\"2.0\"}",
    "{\"jsonrpc\\u0000\":\"2.0\"}",
    "{\"protocol\":\"A2A \"}",
    "{\"protocol\":\"a2a\"}",
    "{\"data\":{\"jsonrpc\":\"2.0\"}}",
    "{\"x\":\"\\\"jsonrpc\\\":\\\"2.0\\\"\"}",
    "{\"\\ud800\":\"2.0\"}",
    "{\"__proto__\":{\"jsonrpc\":\"2.0\"}}",
];
const SCALARS: [&str; 6] = [
    "7",
    "\"x\"",
    "true",
    "null",
    "-1e5",
    "\"{\\\"jsonrpc\\\":\\\"2.0\\\"}\"",
];

fn meaning() -> Vec<HostileKind> {
    let both = |text: &str| {
        ["_agentId", "_topic"].map(|member| request_with(member, &format!("\"{text}\"")))
    };
    let lone = |text: &str| NAMED.map(|member| request_with(member, &format!("\"{text}\"")));
    let controls = (0u32..0x20)
        .chain(0x7f..0xa0)
        .chain([0xfdd0, 0xfffe, 0xffff])
        .flat_map(|c| NAMED.map(|member| request_with(member, &format!("\"a\\u{c:04x}\""))));
    vec![
        kind("wrong types", Refused(WRONG_MEMBER), wrong_types()),
        kind("duplicates", Refused(&[K::DuplicateMember]), duplicates()),
        kind(
            "injection into names",
            Refused(&[K::BadTarget, K::BadTopic]),
            INJECTIONS.into_iter().flat_map(both),
        ),
        kind(
            "lone surrogates",
            Refused(REFUSES_TEXT),
            LONE_SURROGATES.into_iter().flat_map(lone),
        ),
        kind(
            "control characters and noncharacters as escapes",
            Refused(REFUSES_TEXT),
            controls,
        ),
        kind(
            "lone surrogates where nobody looks",
            Mapped,
            LONE_SURROGATES.map(|text| request_with(text, &format!("\"{text}\""))),
        ),
        kind("strangers", Refused(&[K::Unknown]), STRANGERS),
        kind("scalars", Refused(&[K::NotAnObject]), SCALARS),
        kind(
            "batches of nothing",
            Refused(&[K::NotAnObject, K::Unknown, K::EmptyBatch]),
            [
                "[]",
                "[[]]",
                "[[[]],[]]",
                "[7,null]",
                "[{}]",
                "[[],{}]",
                "[\"a\",[{}]]",
            ],
        ),
        kind(
            "bad CloudEvents",
            Refused(&[K::BadCloudEvent]),
            bad_events(),
        ),
    ]
}

fn bad_events() -> Vec<String> {
    let with = |member: &str| {
        format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t",{member}}}"#)
    };
    let many: Vec<String> = (0..300).map(|n| format!("\"a{n}\":1")).collect();
    [
        r#""time":"now""#,
        r#""time":"2026-13-01T00:00:00Z""#,
        r#""dataschema":"x""#,
        r#""subject":"""#,
        r#""subject":7"#,
        r#""A":1"#,
        r#""a-b":1"#,
        r#""a_b":1"#,
        r#""é":1"#,
        r#""":1"#,
        r#""x":1.5"#,
        r#""x":2147483648"#,
        r#""x":{}"#,
        r#""x":[]"#,
        r#""x":"a\u0000""#,
        r#""x":"\ud800""#,
        r#""x":"a\r\nb: c""#,
        r#""x":1,"x":2"#,
        r#""x":1,"\u0078":2"#,
        r#""data":1,"data_base64":"AA==""#,
        r#""data_base64":"!""#,
        r#""data_base64":7"#,
        r#""data":1,"data":2"#,
        r#""targetagent":"a","targetagent":"b""#,
        r#""id":"2""#,
        r#""datacontenttype":"""#,
    ]
    .into_iter()
    .map(with)
    .chain([
        with(&many.join(",")),
        r#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#.to_owned(),
        r#"{"specversion":"1.0","id":"1","source":"","type":"t"}"#.to_owned(),
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"a\u0007"}"#.to_owned(),
    ])
    .collect()
}

// === the judge ===

fn check(kind: &HostileKind, document: &[u8]) {
    let shown = String::from_utf8_lossy(&document[..document.len().min(200)]);
    let place = format!("{}: {shown}", kind.name);
    let units = outcomes(document.to_vec());
    assert!(!units.is_empty(), "{place}");
    for unit in &units {
        match (unit, &kind.verdict) {
            (Ok(mapped), Mapped | Either) => check_event(mapped, &place),
            (Err(refused), Refused(kinds)) => {
                let kind = refused.error.kind();
                assert!(kinds.contains(&kind), "{place}: {kind}");
                check_error(unit, document.len(), &place);
            }
            (Err(_), Either) => check_error(unit, document.len(), &place),
            (Ok(_), Refused(_)) => panic!("{place}: mapped"),
            (Err(refused), Mapped) => panic!("{place}: {}", refused.error),
        }
    }
}

/// A mapped event must be one that anybody can read: it survives its own JSON format.
fn check_event(mapped: &a2abus_plugin::Mapped, place: &str) {
    let mut json = Vec::new();
    format::write(&mapped.event, &mut json);
    let mut limits = Limits::default();
    limits.max_depth = 128;
    // The envelope of the event is one level more than its data.
    let read = format::read(&Bytes::from(json), &limits);
    match read {
        Ok(event) => {
            let ours: Vec<_> = mapped.event.core_attributes().collect();
            let theirs: Vec<_> = event.core_attributes().collect();
            assert_eq!(ours, theirs, "{place}");
            assert!(mapped.event.extensions().eq(event.extensions()), "{place}");
        }
        Err(error) => assert_eq!(
            error.kind(),
            a2abus_plugin::EventErrorKind::TooDeep,
            "{place}: {error}"
        ),
    }
}

fn check_error(unit: &Outcome, length: usize, place: &str) {
    let error = &unit.as_ref().unwrap_err().error;
    assert!(error.offset() <= length, "{place}");
    assert!(error.to_string().len() < 300, "{place}: {error}");
    assert!(error.pointer().len() < 300, "{place}: {}", error.pointer());
}

#[test]
fn thousands_of_hostile_documents_do_no_harm() {
    let kinds: Vec<HostileKind> = [
        depths(),
        sizes(),
        long_texts(),
        bytes(),
        grammar(),
        meaning(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut count = 0;
    for kind in &kinds {
        for document in &kind.documents {
            check(kind, document);
            count += 1;
        }
    }
    assert!(kinds.len() >= 20, "{} kinds", kinds.len());
    assert!(count >= 2_000, "{count} documents");
}

// === time ===

/// Time on a processor, so that a busy machine does not count; where the kernel does not tell, time on the wall.
fn clock(start: Instant) -> Duration {
    let output = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = output.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// The fastest of three attempts to read the document so many times, every limit out of the way.
fn time(document: &Bytes, times: usize) -> Duration {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    limits.max_units = usize::MAX;
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let wall = Instant::now();
    let once = || {
        let start = clock(wall);
        for _ in 0..times {
            let units = map(
                document,
                &Hint::default(),
                &limits,
                &MapOptions::default(),
                &context,
            );
            assert!(!units.is_empty());
        }
        clock(wall).saturating_sub(start)
    };
    once().min(once()).min(once())
}

/// Documents of any size, by their main content.
type Growing = (&'static str, Box<dyn Fn(usize) -> String>);

fn growing() -> [Growing; 12] {
    let repeated = |head: &'static str, piece: &'static str, tail: &'static str| {
        move |bytes: usize| format!("{head}{}{tail}", piece.repeat(bytes / piece.len()))
    };
    let bracket_lines = |bytes: usize| {
        let group = format!("{}\"{}\n", "[\n".repeat(100), "x".repeat(20_000));
        format!("{REQUEST}\n{}", group.repeat(bytes / group.len()))
    };
    [
        ("elements", Box::new(repeated("{\"a\":[0", ",0", "]}"))),
        ("members", Box::new(repeated("{\"a\":0", ",\"a\":0", "}"))),
        (
            "escaped names",
            Box::new(repeated("{\"a\":0", ",\"\\u0061\\u0062\":0", "}")),
        ),
        (
            "repeated ids",
            Box::new(repeated("{\"jsonrpc\":\"2.0\"", ",\"id\":1", "}")),
        ),
        (
            "a long string",
            Box::new(repeated("{\"a\":\"", "xé", "\"}")),
        ),
        (
            "a string of escapes",
            Box::new(repeated("{\"a\":\"", "\\u00e9", "\"}")),
        ),
        (
            "a string without end",
            Box::new(repeated("{\"a\":\"", "\\\"", "")),
        ),
        (
            "requests",
            Box::new(repeated(
                "[7",
                ",{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}",
                "]",
            )),
        ),
        (
            "lines",
            Box::new(repeated(
                "",
                "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n",
                "",
            )),
        ),
        (
            "bad lines",
            Box::new(repeated(
                "{}\n",
                "{\"a\":[\"some text that no bracket closes before the line ends\"\n",
                "",
            )),
        ),
        ("blank lines", Box::new(repeated("{}\n", "\r\n", ""))),
        ("lines of brackets", Box::new(bracket_lines)),
    ]
}

#[test]
fn time_grows_with_the_bytes_and_no_faster() {
    for (name, document) in growing() {
        let pieces = time(&Bytes::from(document(64 << 10)), 8);
        let whole = time(&Bytes::from(document(512 << 10)), 1);
        // The same bytes in one piece: quadratic work would take eight times as long.
        let allowed = pieces * 3 + Duration::from_millis(20);
        assert!(
            whole <= allowed,
            "{name}: {pieces:?}, in one piece {whole:?}"
        );
    }
}

#[test]
fn a_line_is_read_once_however_many_brackets_stand_before_it() {
    // The same text behind one bracket and behind a hundred, each on a line of its own.
    let document = |brackets: usize| {
        let text = "x".repeat(1 << 19);
        Bytes::from(format!("{REQUEST}\n{}\"{text}", "[\n".repeat(brackets)))
    };
    let (one, hundred) = (document(1), document(100));
    let allowed = time(&one, 4) * 3 + Duration::from_millis(20);
    let taken = time(&hundred, 4);
    assert!(taken <= allowed, "{taken:?}, {allowed:?} allowed");
}
