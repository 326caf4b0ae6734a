//! Is reading A2E messages total, do they read back as they are written, and do pieces of a stream change nothing?
//!
//! The first byte is the size of the pieces; the rest are lines.
#![no_main]

use a2abus_models::a2e_message::{
    Checks, DecodeOptions, Ids, Line, Message, CallMatcher, Matched, Splitter, decode, decode_lines,
};
use a2abus_models::Json;
use a2abus_plugin::{Kind, Text};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const MAX_LINE_BYTES: usize = 512;

fuzz_target!(|bytes: &[u8]| {
    let Some((&size, payload)) = bytes.split_first() else {
        return;
    };
    let payload = Bytes::copy_from_slice(payload);
    check_splitter(&payload, usize::from(size) + 1);
    let mut matcher = CallMatcher::new(8);
    for ids in [Ids::Optional, Ids::Required] {
        for checks in [Checks::Schema, Checks::BaseKeys] {
            let mut options = DecodeOptions::default();
            options.ids = ids;
            options.checks = checks;
            for result in decode_lines(&payload, &options) {
                match result {
                    Ok(message) => {
                        assert_round_trip(&message, &options);
                        check_repair(&mut matcher, &message);
                    }
                    Err(refusal) => {
                        assert!(!refusal.kind().as_str().is_empty());
                        for error in [refusal.to_error(), refusal.error_for_requester()] {
                            assert!(error.is_none_or(|error| !format!("{error:?}").is_empty()));
                        }
                    }
                }
            }
        }
    }
});

fn assert_round_trip(message: &Message, options: &DecodeOptions) {
    let line = message.to_string();
    assert!(line.is_ascii() && !line.contains('\n'));
    let again = decode(&line.clone().into(), options)
        .expect("what was written")
        .expect("no blank");
    assert_eq!(again.to_string(), line);
    assert_eq!(&again, message);
}

/// Whatever the pieces, the lines are the same, and each is within the limit.
fn check_splitter(payload: &Bytes, size: usize) {
    let whole = lines(payload, payload.len().max(1));
    assert_eq!(whole, lines(payload, size));
    for line in whole {
        if let Line::Whole(line) = line {
            assert!(!line.is_empty() && line.len() <= MAX_LINE_BYTES);
            assert!(!line.contains(&b'\n'));
        }
    }
}

fn lines(payload: &Bytes, size: usize) -> Vec<Line> {
    let mut splitter = Splitter::new(MAX_LINE_BYTES);
    let mut lines = Vec::new();
    for piece in payload.chunks(size) {
        let mut piece = payload.slice_ref(piece);
        while let Some(line) = splitter.next_line(&mut piece) {
            lines.push(line);
        }
    }
    lines.extend(splitter.finish());
    lines
}

/// Requests are opened; an answer without `req_id` gets that of an open call, and reads as the same message with it.
fn check_repair(matcher: &mut CallMatcher, message: &Message) {
    let type_name = message.body.type_name();
    let line = Bytes::from(message.to_string());
    if let (Kind::Request, Some(id)) = (message.kind(), &message.header.id) {
        let before = matcher.open_calls();
        let opened = matcher.open(type_name, id).is_ok();
        assert_eq!(matcher.open_calls(), before + usize::from(opened));
        assert!(matcher.open_calls() <= 8);
    }
    let before = matcher.open_calls();
    match matcher
        .match_message(type_name, message.body.req_id(), &line)
        .expect("a JSON object")
    {
        Matched::Unchanged => {}
        Matched::Unmatched => assert_eq!(matcher.open_calls(), before),
        Matched::Completed {
            req_id,
            line: completed,
        } => {
            assert_eq!(matcher.open_calls() + 1, before);
            let limits = DecodeOptions::default().limits;
            let mut expected = message.to_object();
            expected.insert("req_id", Json::from(Text::clone(&req_id)));
            let completed = Json::parse(&completed, &limits).expect("a completed line");
            assert_eq!(completed, Json::Object(expected));
        }
    }
}
