//! Do the families of A2E and E2A survive hostile input? Thousands of bad documents of many kinds: each is refused with
//! the right name or becomes a valid event, and nothing panics or exceeds the depth limit.

mod bounds;
mod generated;
mod messages;
mod payloads;
mod records;
mod workflows;

use std::collections::BTreeMap;

/// The expected result for the documents of one kind.
enum Verdict {
    /// All of it is refused, with one of these names.
    Refused(&'static [&'static str]),
    /// All of it is accepted.
    Accepted,
    /// Either, part by part, but refusals have one of these words.
    Either(&'static [&'static str]),
}

use Verdict::{Accepted, Either, Refused};

/// Documents of one kind, and the expected result.
struct HostileKind {
    name: &'static str,
    verdict: Verdict,
    read: Read,
    documents: Vec<Vec<u8>>,
}

/// Reads a whole document. Returns for each part nothing, or the stable name of its refusal. Accepted parts are valid
/// by the reader's own checks.
type Read = fn(&[u8]) -> Vec<Result<(), &'static str>>;

fn kind<D: Into<Vec<u8>>>(
    name: &'static str,
    verdict: Verdict,
    read: Read,
    documents: impl IntoIterator<Item = D>,
) -> HostileKind {
    HostileKind {
        name,
        verdict,
        read,
        documents: documents.into_iter().map(Into::into).collect(),
    }
}

impl HostileKind {
    fn check(&self) {
        let context = |document: &[u8]| {
            let excerpt = &document[..document.len().min(400)];
            format!("{}: {}", self.name, String::from_utf8_lossy(excerpt))
        };
        for document in &self.documents {
            let parts = (self.read)(document);
            assert!(!parts.is_empty(), "{}", context(document));
            for part in parts {
                let as_expected = match (&self.verdict, part) {
                    (Accepted | Either(_), Ok(())) => true,
                    (Refused(kinds) | Either(kinds), Err(kind)) => kinds.contains(&kind),
                    (Refused(_), Ok(())) | (Accepted, Err(_)) => false,
                };
                assert!(as_expected, "{part:?} of {}", context(document));
            }
        }
    }
}

#[test]
fn hostile_documents_are_refused_with_the_right_code_or_become_valid() {
    let families = [
        payloads::kinds(),
        messages::kinds(),
        workflows::kinds(),
        records::kinds(),
    ];
    let mut counts = BTreeMap::new();
    for kind in families.iter().flatten() {
        kind.check();
        let before = counts.insert(kind.name, kind.documents.len());
        assert_eq!(before, None, "two kinds are called {}", kind.name);
    }
    println!("{counts:#?}");
    assert!(counts.values().all(|count| *count > 0));
    assert!(counts.len() >= 15, "{} kinds", counts.len());
    let total: usize = counts.values().sum();
    assert!(total >= 3_000, "{total} documents");
}

// === samples and what is done to them ===

const MESSAGE: &str = r#"{"type":"tool/call/req","id":"a1","version":"1.0","ts":1716123456.5,"tool_name":"l\u0073","arguments":{"p":[1,null]},"timeout":30}"#;
const PROGRESS: &str = r#"{"type":"tool/event","a2e":"1.0","id":"e1","req_id":"a1","kind":"stdout","seq":3,"data":{"t":"\u00e9"}}"#;
const DEFINITION: &str = r#"{"type":"operationUpdate","operationId":"users","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/u","outputPath":"/workflow/users"}}}"#;
const BEGIN: &str = r#"{"type":"beginExecution","executionId":"run-1","operationOrder":["users"],"_agentId":"executor-1"}"#;
const REQUEST: &str = r#"{"protocol_version":"1.0","request_id":"r1","jsonrpc_id":7,"method":"chat.send","agent_id":"coder","is_stream":true,"timestamp":1716123456,"params":{"content":"\u00e9"}}"#;
const RECORD: &str = r#"{"protocol_version":"1.0","response_id":"p1","request_id":"r1","sequence":2,"is_final":false,"response_kind":"e2a.chunk","status":"in_progress","body":{"delta":"a"}}"#;
const OLDER: &str = r#"{"request_id":"r1","channel_id":"web","payload":{"content":"a"},"is_complete":true,"metadata":{}}"#;

/// One payload of each family, and of each shape of it.
const SAMPLES: [&str; 6] = [MESSAGE, PROGRESS, BEGIN, REQUEST, RECORD, OLDER];

/// A value of every type and size that a member may be given.
const VALUES: [&str; 20] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1.5",
    "1e400",
    "-0",
    "99999999999999999999",
    "\"\"",
    "\" \"",
    "\"a b\"",
    "\"\\u0000\"",
    "\"..\"",
    "\"1.0\"",
    "\"true\"",
    "[]",
    "[[]]",
    "{}",
    "{\"a\":{}}",
];

fn truncated(samples: &[&str]) -> Vec<Vec<u8>> {
    let ends = |sample: &str| -> Vec<Vec<u8>> {
        let bytes = sample.as_bytes();
        (1..bytes.len()).map(|end| bytes[..end].to_vec()).collect()
    };
    samples.iter().flat_map(|sample| ends(sample)).collect()
}

/// Each sample with the bytes put in at every place.
fn with_bytes(samples: &[&str], bytes: &[u8]) -> Vec<Vec<u8>> {
    let at_all = |sample: &str| -> Vec<Vec<u8>> {
        let text = sample.as_bytes();
        let at = |at: usize| [&text[..at], bytes, &text[at..]].concat();
        (0..=text.len()).map(at).collect()
    };
    samples.iter().flat_map(|sample| at_all(sample)).collect()
}

/// The object with one more member, before the others or after them.
fn with_member(object: &str, name: &str, value: &str) -> [String; 2] {
    let inside = &object[1..object.len() - 1];
    [
        format!("{{\"{name}\":{value},{inside}}}"),
        format!("{{{inside},\"{name}\":{value}}}"),
    ]
}

/// The object with this value for a member, whether it has one or not.
fn replaced(object: &str, name: &str, value: &str) -> String {
    let mut members: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(object).unwrap();
    members.remove(name);
    let rest = serde_json::Value::Object(members).to_string();
    let [first, _] = with_member(&rest, name, value);
    first
}
