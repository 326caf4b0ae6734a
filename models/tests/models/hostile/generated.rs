//! Generated bad documents: valid payloads of every family with random escapes from a seed, each with one fault.

use std::collections::HashSet;

use a2abus_plugin::{DecodeErrorKind as K, Hint, Limits, decode};
use bytes::Bytes;

/// A random number generator, so that a failure can be seen again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn random_string(&mut self) -> String {
        let letters = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let length = 1 + self.below(12);
        (0..length)
            .map(|_| char::from(self.pick(letters)))
            .collect()
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", " ", "\t", "  "])
    }

    /// Any JSON value, not deep.
    fn value(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => self.pick(&["null", "true", "false"]).to_owned(),
            1 => format!("{}", self.below(1 << 30)),
            2 => format!("-{}.{}e+{}", self.below(99), self.below(99), self.below(9)),
            3 => format!("\"{}\\u00e9\\n é\"", self.random_string()),
            4 | 5 => format!("\"{}\"", self.random_string()),
            6 => format!("[{},{}]", self.value(depth - 1), self.value(depth - 1)),
            _ => self.object(&[], depth - 1),
        }
    }

    /// An object with these members, some unknown ones, and white space, in any order.
    fn object(&mut self, members: &[(&str, &str)], depth: usize) -> String {
        let mut written: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("\"{name}\":{}{value}", self.space()))
            .collect();
        for _ in 0..self.below(4) {
            let odd = format!("\"x-{}\":{}", self.random_string(), self.value(depth));
            written.insert(self.below(written.len() + 1), odd);
        }
        let comma = format!("{},{}", self.space(), self.space());
        format!("{{{}}}", written.join(&comma))
    }

    /// A good payload of the family of the members, one of which is another.
    fn with(&mut self, good: &[(&str, &str)], name: &str, value: &str) -> Vec<u8> {
        let mut members: Vec<(&str, &str)> = good.to_vec();
        members.retain(|(known, _)| *known != name);
        let at = self.below(members.len() + 1);
        members.insert(at, (name, value));
        self.object(&members, 2).into_bytes()
    }

    fn without(&mut self, good: &[(&str, &str)], name: &str) -> Vec<u8> {
        let mut members: Vec<(&str, &str)> = good.to_vec();
        members.retain(|(known, _)| *known != name);
        self.object(&members, 2).into_bytes()
    }

    /// A valid payload with a repeated member, sometimes with an escape in its name.
    fn twice(&mut self, good: &[(&str, &str)], names: &[&str]) -> Vec<u8> {
        let name = self.pick(names);
        let (_, value) = *good.iter().find(|(known, _)| *known == name).unwrap();
        let escaped = format!("\\u{:04x}{}", name.as_bytes()[0], &name[1..]);
        let again = if self.below(2) == 0 { name } else { &escaped };
        let mut members: Vec<(&str, &str)> = good.to_vec();
        members.insert(self.below(members.len() + 1), (again, value));
        self.object(&members, 2).into_bytes()
    }

    /// Any good payload.
    fn payload(&mut self) -> Vec<u8> {
        let good = self.pick(&[REQUEST, RESULT, LEGACY, MESSAGE, RECORD, EVENT]);
        self.object(good, 3).into_bytes()
    }

    /// Any valid payload with something inserted where a value or a name begins.
    fn broken_at(&mut self, before: u8, with: &[u8]) -> Vec<u8> {
        let payload = self.payload();
        let places: Vec<usize> = (0..payload.len())
            .filter(|at| payload[*at] == before)
            .collect();
        let at = self.pick(&places);
        [&payload[..at], with, &payload[at + 1..]].concat()
    }

    /// Any good payload with these bytes inside a string.
    fn in_a_string(&mut self, bytes: &[u8]) -> Vec<u8> {
        let value = [b"\"", self.random_string().as_bytes(), bytes, b"\""].concat();
        let payload = self.payload();
        [b"{\"s\":", &value[..], b",", &payload[1..]].concat()
    }
}

type Members = &'static [(&'static str, &'static str)];

const REQUEST: Members = &[
    ("jsonrpc", "\"2.0\""),
    ("id", "\"r-1\""),
    ("method", "\"tools/call\""),
    ("params", "{\"_agentId\":\"weather\"}"),
];
const RESULT: Members = &[("jsonrpc", "\"2.0\""), ("id", "7"), ("result", "{\"a\":1}")];
const ERROR: Members = &[
    ("jsonrpc", "\"2.0\""),
    ("id", "7"),
    ("error", "{\"code\":-32000,\"message\":\"m\"}"),
];
const LEGACY: Members = &[
    ("protocol", "\"A2A\""),
    ("messageType", "\"CFP\""),
    ("targetAgent", "{\"agentId\":\"b\"}"),
];
const MESSAGE: Members = &[
    ("a2e", "\"1.0\""),
    ("type", "\"tool/call/req\""),
    ("id", "\"a1\""),
    ("ts", "1716123456.5"),
];
const RECORD: Members = &[
    ("protocol_version", "\"1.0\""),
    ("request_id", "\"r1\""),
    ("method", "\"chat.send\""),
    ("params", "{}"),
];
const ANSWER: Members = &[
    ("protocol_version", "\"1.0\""),
    ("request_id", "\"r1\""),
    ("response_kind", "\"e2a.chunk\""),
    ("sequence", "2"),
    ("is_final", "false"),
    ("body", "{}"),
];
const EVENT: Members = &[
    ("specversion", "\"1.0\""),
    ("id", "\"1\""),
    ("source", "\"/s\""),
    ("type", "\"t\""),
];

/// The fault of a document, the name of its refusal, and how to make one.
type BadKind = (&'static str, K, fn(&mut Random) -> Vec<u8>);

/// Values that are not names of an agent or topic.
const NO_NAMES: [&str; 9] = [
    "null", "true", "0", "[]", "{}", "\"\"", "\"a b\"", "\"a..b\"", "\"é\"",
];

const BYTES: [BadKind; 22] = [
    ("empty", K::Empty, |random| {
        (0..random.below(9))
            .map(|_| random.pick(b" \t\r\n"))
            .collect()
    }),
    ("cut off", K::NotJson, |random| {
        let payload = random.payload();
        payload[..1 + random.below(payload.len() - 1)]
            .trim_ascii_end()
            .to_vec()
    }),
    ("a byte that is not UTF-8", K::NotUtf8, |random| {
        let byte = random.pick(&[0x80, 0xbf, 0xc0, 0xc1, 0xf5, 0xff]);
        random.in_a_string(&[byte])
    }),
    ("a surrogate in UTF-8", K::NotUtf8, |random| {
        random.in_a_string(b"\xed\xa0\x80")
    }),
    ("half a character", K::NotUtf8, |random| {
        random.in_a_string(b"\xe2\x82")
    }),
    ("a control character in a string", K::NotJson, |random| {
        let byte = random.below(0x20) as u8;
        // A line end would end the line.
        random.in_a_string(&[if byte == b'\n' { b'\r' } else { byte }])
    }),
    ("a broken escape", K::NotJson, |random| {
        let escape = random.pick(&["\\x", "\\u12", "\\u12g4", "\\'", "\\u", "\\U0041"]);
        random.in_a_string(escape.as_bytes())
    }),
    ("no colon", K::NotJson, |random| {
        let with = random.pick(&[b"".as_slice(), b"=", b"::", b",", b";"]);
        broken_outside_strings(random, b':', with)
    }),
    ("no name", K::NotJson, |random| {
        let with = random.pick(&[
            b"{,".as_slice(),
            b"{a:1,",
            b"{1:1,",
            b"{'a':1,",
            b"{null:1,",
            b"{:1,",
        ]);
        random.broken_at(b'{', with)
    }),
    ("a comma too many", K::NotJson, |random| {
        let payload = random.payload();
        [&payload[..payload.len() - 1], b",}"].concat()
    }),
    ("the wrong bracket", K::NotJson, |random| {
        let payload = random.payload();
        [&payload[..payload.len() - 1], b"]"].concat()
    }),
    ("more text after it", K::NotJson, |random| {
        let more = random.pick(&["}", "]", "x", ",", "{}", "\"a\"", "0"]);
        [&random.payload(), more.as_bytes()].concat()
    }),
    ("a broken number", K::NotJson, |random| {
        let number = random.pick(&[
            "01",
            "+1",
            "1.",
            ".5",
            "-",
            "1e",
            "1e+",
            "0x1",
            "NaN",
            "-Infinity",
            "1_0",
        ]);
        random.with(REQUEST, "n", number)
    }),
    ("a broken word", K::NotJson, |random| {
        let literal = random.pick(&[
            "True",
            "nul",
            "falsee",
            "undefined",
            "None",
            "nullnull",
            "truefalse",
        ]);
        random.with(RECORD, "n", literal)
    }),
    ("a comment", K::NotJson, |random| {
        let comment = random.pick(&["/**/1", "//\n1", "#\n1"]);
        random.with(MESSAGE, "n", comment)
    }),
    ("too deep", K::TooDeep, |random| {
        let depth = 128 + random.below(400);
        let open = random.pick(&["[", "{\"a\":", "[{\"b\":"]);
        let value = open.repeat(depth);
        random.with(REQUEST, "deep", &value)
    }),
    ("more than the limit", K::TooLarge, |random| {
        let string = random.random_string();
        random.with(
            REQUEST,
            "long",
            &format!("\"{}\"", string.repeat((1 << 20) / string.len() + 1)),
        )
    }),
    ("no object", K::NotAnObject, |random| {
        let string = format!("\"{}\"", random.random_string());
        let number = random.below(1 << 30).to_string();
        random
            .pick(&[string.as_str(), &number, "null", "true", "-0.5e9"])
            .into()
    }),
    ("an empty batch", K::EmptyBatch, |random| {
        [random.space(), "[", random.space(), "]", random.space()]
            .concat()
            .into()
    }),
    ("a batch of no objects", K::NotAnObject, |random| {
        let elements: Vec<String> = (0..=random.below(5))
            .map(|_| format!("[{}]", random.value(1)))
            .collect();
        format!("[{}]", elements.join(",")).into()
    }),
    ("an object of no family", K::Unknown, |random| {
        random.object(&[], 3).into_bytes()
    }),
    ("a method and no mark of a family", K::Unknown, |random| {
        random.without(REQUEST, "jsonrpc")
    }),
];

const MEMBERS: [BadKind; 26] = [
    (
        "another version of JSON-RPC",
        K::UnsupportedVersion,
        |random| {
            let version =
                random.pick(&["\"1.0\"", "\"2\"", "2.0", "null", "[]", "\"2.0 \"", "\"\""]);
            random.with(REQUEST, "jsonrpc", version)
        },
    ),
    (
        "another version of CloudEvents",
        K::UnsupportedVersion,
        |random| {
            let version = random.pick(&["\"0.3\"", "\"1.1\"", "1.0", "null", "{}", "\"\""]);
            random.with(EVENT, "specversion", version)
        },
    ),
    ("another version of A2E", K::UnsupportedVersion, |random| {
        let version = random.pick(&["\"2.0\"", "\"0.9\"", "\"1.x\"", "\"\"", "\"1.\""]);
        random.with(MESSAGE, "a2e", version)
    }),
    ("another version of E2A", K::UnsupportedVersion, |random| {
        let version = random.pick(&["\"2.0\"", "\"1.x\"", "1", "\"\"", "[]", "true"]);
        random.with(RECORD, "protocol_version", version)
    }),
    ("an answer without a version", K::MissingVersion, |random| {
        random.without(ANSWER, "protocol_version")
    }),
    (
        "a member of a request twice",
        K::DuplicateMember,
        |random| random.twice(REQUEST, &["jsonrpc", "id", "method", "params"]),
    ),
    (
        "a member of an answer twice",
        K::DuplicateMember,
        |random| random.twice(RESULT, &["jsonrpc", "id", "result"]),
    ),
    (
        "a member of a legacy message twice",
        K::DuplicateMember,
        |random| random.twice(LEGACY, &["protocol", "messageType", "targetAgent"]),
    ),
    (
        "a member of an A2E message twice",
        K::DuplicateMember,
        |random| random.twice(MESSAGE, &["a2e", "type", "id"]),
    ),
    ("a member of a record twice", K::DuplicateMember, |random| {
        random.twice(
            RECORD,
            &["protocol_version", "request_id", "method", "params"],
        )
    }),
    ("no id of a request", K::BadId, |random| {
        let id = random.pick(&[
            "true",
            "false",
            "[]",
            "{}",
            "[1]",
            "\"a\\u0000\"",
            "\"\\ud800\"",
        ]);
        random.with(REQUEST, "id", id)
    }),
    ("an id without end", K::BadId, |random| {
        let id = format!("\"{}\"", random.random_string().repeat(1_025));
        random.with(RESULT, "id", &id)
    }),
    ("no id of an A2E message", K::BadId, |random| {
        let id = random.pick(&["true", "0", "1.5", "[]", "{}"]);
        random.with(MESSAGE, "id", id)
    }),
    ("no method", K::BadMethod, |random| {
        let long = format!("\"{}\"", "m".repeat(257 + random.below(99)));
        let method = random.pick(&[
            "null",
            "7",
            "[]",
            "{}",
            "true",
            "\"\"",
            "\"a b\"",
            "\"a\\nb\"",
            &long,
        ]);
        random.with(REQUEST, "method", method)
    }),
    ("no act", K::BadMethod, |random| {
        let act = random.pick(&["7", "[]", "{}", "true", "\"\"", "\"a b\"", "\"\\u0000\""]);
        random.with(LEGACY, "messageType", act)
    }),
    ("no params", K::BadParams, |random| {
        let params = random.pick(&["7", "\"\"", "true", "[]", "[1]", "\"{}\""]);
        random.with(REQUEST, "params", params)
    }),
    ("no agent", K::BadTarget, |random| {
        let name = random.pick(&NO_NAMES);
        let params = random.object(&[("_agentId", name)], 1);
        random.with(REQUEST, "params", &params)
    }),
    ("no agent of a legacy message", K::BadTarget, |random| {
        let name = random.pick(&NO_NAMES);
        let agent = random.object(&[("agentId", name)], 1);
        random.with(LEGACY, "targetAgent", &agent)
    }),
    ("no topic", K::BadTopic, |random| {
        let name = random.pick(&NO_NAMES);
        let params = random.object(&[("_topic", name)], 1);
        random.with(REQUEST, "params", &params)
    }),
    ("no sequence", K::BadSeq, |random| {
        let seq = random.pick(&["null", "true", "[]", "{}", "\"\"", "\"\\u0007\""]);
        let params = random.object(&[("_seq", seq)], 1);
        random.with(REQUEST, "params", &params)
    }),
    ("no sequence of a record", K::BadSeq, |random| {
        let seq = random.pick(&["true", "[]", "{}", "\"a\"", "1.5", "1e99", "\"\""]);
        random.with(ANSWER, "sequence", seq)
    }),
    ("no flag of a record", K::BadMember, |random| {
        let flag = random.pick(&["[]", "{}", "\"\"", "\"yes\"", "\"1\""]);
        random.with(ANSWER, "is_final", flag)
    }),
    ("no error", K::BadError, |random| {
        let error = random.pick(&[
            "null",
            "7",
            "\"m\"",
            "[]",
            "{}",
            "{\"code\":1.5,\"message\":\"m\"}",
            "{\"code\":\"1\",\"message\":\"m\"}",
            "{\"code\":1}",
            "{\"code\":1,\"message\":7}",
        ]);
        random.with(ERROR, "error", error)
    }),
    ("both result and error", K::BothResultAndError, |random| {
        random.with(ERROR, "result", "{}")
    }),
    (
        "neither call nor answer",
        K::Invalid,
        |random| match random.below(3) {
            0 => random.without(RESULT, "result"),
            1 => random.with(RESULT, "method", "\"m\""),
            _ => random.with(ERROR, "method", "\"m\""),
        },
    ),
    ("a bad event", K::BadCloudEvent, |random| {
        let bad = [
            ("id", "\"\""),
            ("source", "\"\""),
            ("type", "\"a\\u0007\""),
            ("time", "\"now\""),
            ("dataschema", "\"x\""),
            ("subject", "7"),
            ("n", "1.5"),
            ("n", "2147483648"),
            ("n", "{}"),
            ("Upper", "1"),
            ("data_base64", "\"!\""),
        ];
        let (name, value) = random.pick(&bad);
        random.with(EVENT, name, value)
    }),
];

/// Any valid payload with one byte outside its strings replaced.
fn broken_outside_strings(random: &mut Random, byte: u8, with: &[u8]) -> Vec<u8> {
    let payload = random.object(REQUEST, 2).into_bytes();
    let mut inside = false;
    let mut places = Vec::new();
    for (at, found) in payload.iter().enumerate() {
        inside ^= *found == b'"';
        if *found == byte && !inside {
            places.push(at);
        }
    }
    let at = random.pick(&places);
    [&payload[..at], with, &payload[at + 1..]].concat()
}

/// How many documents of each kind.
const EACH: usize = 250;

#[test]
fn ten_thousand_generated_bad_documents_are_refused_with_their_codes() {
    let kinds: Vec<&BadKind> = BYTES.iter().chain(&MEMBERS).collect();
    let mut random = Random(0x00a2_ab05);
    let (mut count, mut different) = (0, HashSet::new());
    for (name, kind, make) in &kinds {
        for _ in 0..EACH {
            let seed = random.0;
            let document = make(&mut random);
            let excerpt =
                String::from_utf8_lossy(&document[..document.len().min(400)]).into_owned();
            let place = format!("{name}, seed {seed}: {excerpt}");
            let length = document.len();
            let payload = Bytes::from(document);
            let units = decode(&payload, &Hint::default(), &Limits::default());
            assert!(!units.is_empty(), "{place}");
            for unit in units.iter() {
                let Err(refused) = unit else {
                    panic!("taken: {place}");
                };
                assert_eq!(refused.error.kind(), *kind, "{place}");
                assert!(refused.error.offset() <= length, "{place}");
                assert!(refused.error.to_string().len() < 300, "{place}");
            }
            different.insert(payload);
            count += 1;
        }
    }
    assert!(kinds.len() >= 40, "{} kinds", kinds.len());
    assert!(count >= 10_000, "{count} documents");
    // There are few documents of only white space; the others differ.
    assert!(different.len() >= 10_000, "{} different", different.len());
}
