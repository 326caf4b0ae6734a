//! Depth and width without end: every reader stops at its limit, within a small stack.

use a2abus_models::Json;
use a2abus_models::a2e_message::{Checks, DecodeOptions, Reason, decode};
use a2abus_models::a2e_workflow::{Code, Document, WorkflowLimits};
use a2abus_models::e2a::{E2aEnvelope, E2aErrorKind, E2aResponse, Trust};
use a2abus_plugin::{DecodeErrorKind, Hint, Limits, decode as decode_payload};
use bytes::Bytes;

const MILLION: usize = 1_000_000;

/// Far less than a level of recursion for each level of the documents would take.
const STACK_BYTES: usize = 512 << 10;

fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(test).unwrap().join().unwrap();
}

/// So many bytes that only the other limits count.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits
}

/// The text that opens a level, and how many levels it opens.
const OPENINGS: [(&str, usize); 4] = [
    ("[", 1),
    ("{\"a\":", 1),
    ("{\"operation\":[", 2),
    ("[{\"params\":", 2),
];

/// A million levels, closed and not.
fn deep() -> impl Iterator<Item = (Bytes, usize)> {
    OPENINGS.into_iter().flat_map(|(opening, levels)| {
        let opened = opening.repeat(MILLION / levels);
        let closed = format!("{opened}1{}", "]".repeat(MILLION));
        let step = opening.len().div_ceil(levels);
        [opened, closed].map(|text| (Bytes::from(text), step))
    })
}

/// A million members or elements.
fn wide() -> [Bytes; 3] {
    [
        format!("[{}0]", "0,".repeat(MILLION - 1)),
        format!("{{{}\"b\":0}}", "\"a\":0,".repeat(MILLION - 1)),
        format!(
            "{{\"type\":\"ping\",\"id\":\"1\",\"odd\":[{}0]}}",
            "[],".repeat(MILLION - 1)
        ),
    ]
    .map(Bytes::from)
}

#[test]
fn a_million_levels_are_refused_where_the_limit_is() {
    on_a_small_stack(|| {
        for (document, step) in deep() {
            let error = Json::parse(&document, &limits()).unwrap_err();
            assert_eq!(error.kind(), DecodeErrorKind::TooDeep);
            // Nothing is read behind the bracket that is one too many.
            assert!(error.offset() <= 128 * step, "{}", error.offset());
            let units = decode_payload(&document, &Hint::default(), &limits());
            let error = &units[0].as_ref().unwrap_err().error;
            assert_eq!(error.kind(), DecodeErrorKind::TooDeep);
            assert!(error.offset() <= 128 * step, "{}", error.offset());
        }
    });
}

#[test]
fn a_million_members_are_refused_where_the_limit_is() {
    on_a_small_stack(|| {
        for document in wide() {
            let error = Json::parse(&document, &limits()).unwrap_err();
            assert_eq!(error.kind(), DecodeErrorKind::TooLarge);
            assert!(
                error.offset() <= 200_002 * "\"a\":0,".len(),
                "{}",
                error.offset()
            );
            let units = decode_payload(&document, &Hint::default(), &limits());
            let error = &units[0].as_ref().unwrap_err().error;
            assert_eq!(error.kind(), DecodeErrorKind::TooLarge);
        }
    });
}

#[test]
fn messages_are_bounded() {
    on_a_small_stack(|| {
        for checks in [Checks::Schema, Checks::BaseKeys] {
            let mut options = DecodeOptions::default();
            options.limits = limits();
            options.checks = checks;
            for (document, _) in deep() {
                assert_eq!(
                    decode(&document, &options).unwrap_err().reason(),
                    Reason::Depth
                );
            }
            for document in wide() {
                assert_eq!(
                    decode(&document, &options).unwrap_err().reason(),
                    Reason::TooLarge
                );
            }
            let many = format!("{{\"type\":\"ping\",\"id\":\"1\"}}{}", "x".repeat(9 << 20));
            let refusal = decode(&many.into(), &DecodeOptions::default()).unwrap_err();
            assert_eq!(refusal.reason(), Reason::TooLarge);
        }
    });
}

#[test]
fn workflows_are_bounded() {
    on_a_small_stack(|| {
        let mut limits = WorkflowLimits::default();
        limits.max_bytes = usize::MAX;
        limits.max_line_bytes = usize::MAX;
        let codes = |document: &Bytes| -> Vec<Code> {
            let parsed = Document::parse(document, &limits);
            parsed.issues().iter().map(|issue| issue.code).collect()
        };
        for (document, _) in deep() {
            assert_eq!(codes(&document)[0], Code::InvalidJson);
        }
        for document in wide() {
            assert_eq!(codes(&document)[0], Code::WorkflowTooLarge);
        }
        // A million lines: their faults are listed up to the limit.
        let lines = Bytes::from("7\n".repeat(MILLION));
        let codes = codes(&lines);
        assert_eq!(codes.len(), limits.max_issues + 1);
        assert_eq!(codes[limits.max_issues], Code::WorkflowTooLarge);
        let cut = Document::parse(&lines, &WorkflowLimits::default());
        assert_eq!(cut.issues().len(), 1);
    });
}

#[test]
fn records_accept_exactly_json() {
    on_a_small_stack(|| {
        for (document, _) in deep() {
            assert!(Json::parse(&document, &limits()).is_err());
        }
        // As deep as JSON may be.
        for open in ["params", "body", "metadata"] {
            let inner = format!("{}{}", "[".repeat(126), "]".repeat(126));
            let text =
                format!("{{\"request_id\":\"r\",\"method\":\"m\",\"{open}\":{{\"a\":{inner}}}}}");
            let value = Json::parse(text.as_bytes(), &limits()).unwrap();
            assert!(E2aEnvelope::parse(&value, Trust::Untrusted).is_ok());
            assert!(E2aResponse::parse(&value).is_ok());
        }
        // A million members of one object that was not read from text.
        let members = (0..MILLION).map(|number| (number.to_string(), Json::Null));
        let wide = Json::object(members);
        assert!(E2aEnvelope::parse(&wide, Trust::Untrusted).is_ok());
        let list = Json::from(vec![Json::Null; MILLION]);
        let error = E2aEnvelope::parse(&list, Trust::Untrusted).unwrap_err();
        assert_eq!(error.kind, E2aErrorKind::NotAnObject);
    });
}
