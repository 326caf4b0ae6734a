//! The cost of reading. One allocation for an event; a million members, units or levels take time and memory linear in
//! the bytes, with all limits removed.

use std::time::{Duration, Instant};

use a2abus_plugin::{
    EventId, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Source, Units, map, redact_secrets,
};
use allocation_counter::measure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

/// The content of a document, how many pieces it has, the bytes that reading takes for each, and the document.
type Growing = (&'static str, usize, usize, fn(usize) -> String);

const MILLION: usize = 1_000_000;

/// One object takes the same memory, whatever its size.
const NOTHING: usize = 0;

/// An event with its attributes, and the same again while the list of units grows.
const UNIT_BYTES: usize = 2_048;

const GROWING: [Growing; 7] = [
    ("members of no family", MILLION, NOTHING, |count| {
        format!("{{{}\"b\":0}}", "\"a\":0,".repeat(count))
    }),
    ("different members", MILLION, NOTHING, |count| {
        let members: Vec<String> = (0..count).map(|n| format!("\"m{n}\":0")).collect();
        let params = members.join(",");
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{{params}}}}}"#)
    }),
    ("the same member", MILLION, NOTHING, |count| {
        format!(r#"{{"jsonrpc":"2.0"{}}}"#, r#","id":1"#.repeat(count))
    }),
    ("elements", MILLION, NOTHING, |count| {
        let params = "[],".repeat(count);
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":[{params}0]}}"#)
    }),
    ("escapes", MILLION, NOTHING, |count| {
        let text = r"\u00e9".repeat(count);
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{text}"}}"#)
    }),
    ("levels", MILLION, NOTHING, |count| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}"#, "[".repeat(count))
    }),
    ("units", MILLION / 20, UNIT_BYTES, |count| {
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
        format!("{line}\n").repeat(count)
    }),
];

/// Other memory: one event, or the description of a refusal.
const SLACK_BYTES: usize = 4_096;

fn mapped(document: &Bytes) -> Units<Mapped> {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    limits.max_units = usize::MAX;
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&|| EventId::new("new").unwrap()),
    };
    map(
        document,
        &Hint::default(),
        &limits,
        &MapOptions::default(),
        &context,
    )
}

/// CPU time, so that a busy machine does not count; wall time if the kernel does not provide CPU time.
fn clock(start: Instant) -> Duration {
    let output = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = output.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// The faster of two attempts.
fn time_of(document: &Bytes) -> Duration {
    let wall = Instant::now();
    let once = || {
        let start = clock(wall);
        drop(mapped(document));
        clock(wall).saturating_sub(start)
    };
    once().min(once())
}

#[test]
fn decoding_is_linear_in_time_and_memory() {
    for (name, count, piece_bytes, make) in GROWING {
        let whole = Bytes::from(make(count));
        let allocated = measure(|| drop(mapped(&whole))).bytes_max;
        let allowed = (count * piece_bytes + SLACK_BYTES) as u64;
        assert!(
            allocated <= allowed,
            "{name}: {allocated} bytes, {allowed} allowed"
        );
        let part = Bytes::from(make(count / 8));
        let (part, whole) = (time_of(&part), time_of(&whole));
        // Quadratic work would take sixty-four times as long.
        let allowed = part * 24 + Duration::from_millis(20);
        assert!(
            whole <= allowed,
            "{name}: {part:?}, eight times as much {whole:?}"
        );
    }
}

#[test]
fn an_event_is_one_allocation_besides_its_attribute_text() {
    let request = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather","_seq":7}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":"req-1","result":{"content":[]}}"#;
    for text in [request, answer] {
        let payload = Bytes::from_static(text.as_bytes());
        assert_eq!(measure(|| drop(mapped(&payload))).count_total, 1, "{text}");
    }
    // Their types are built at run time, and too long to be stored inline.
    let act = r#"{"protocol":"A2A","messageType":"cfp","targetAgent":{"agentId":"b"}}"#;
    let message = r#"{"a2e":"1.0","type":"tool/call/req","id":"a1","tool_name":"ls"}"#;
    let unknown = r#"{"jsonrpc":"2.0","id":1,"method":"no/such/method"}"#;
    for text in [message, unknown] {
        let payload = Bytes::from_static(text.as_bytes());
        assert_eq!(measure(|| drop(mapped(&payload))).count_total, 2, "{text}");
    }
    // The act is also converted to lower case.
    let payload = Bytes::from_static(act.as_bytes());
    assert_eq!(measure(|| drop(mapped(&payload))).count_total, 3);
}

#[test]
fn a_body_is_not_copied() {
    for size in [1 << 10, 1 << 16, 1 << 20] {
        let text = "x".repeat(size);
        let payload = Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"text":"{text}"}}}}"#
        ));
        let allocated = measure(|| drop(mapped(&payload))).bytes_total;
        assert!(
            allocated < 1_024,
            "{allocated} bytes for a payload of {size}"
        );
        let units = mapped(&payload);
        let body = units[0].as_ref().unwrap().event.body();
        assert_eq!(body.as_ptr(), payload.as_ptr());
        assert_eq!(body.len(), payload.len());
    }
}

#[test]
fn secrets_of_nested_payloads_are_found_in_one_pass_over_each_level() {
    const LEVELS: u64 = 16;
    // No level is JSON, which shows only at its end.
    let mut payload = "{}x".to_owned();
    for _ in 0..LEVELS {
        payload = format!(r#"{{"data_base64":"{}"}}x"#, BASE64.encode(&payload));
    }
    let payload = Bytes::from(payload);
    let allocations = measure(|| drop(redact_secrets(&payload))).count_total;
    // Two passes over each level would be 2^16 passes over the innermost one.
    let allowed = 16 * LEVELS;
    assert!(
        allocations <= allowed,
        "{allocations} allocations, {allowed} allowed"
    );
}
