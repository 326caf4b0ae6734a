//! Does the reader say of every text what serde_json says of it, and read the same value?
//!
//! Documented differences: no text holds a lone surrogate, and nesting ends at 128 levels, which serde_json allows one
//! less of. Where a name stands twice, the last value holds in both.
#![no_main]

use a2abus_models::Json;
use a2abus_plugin::{DecodeErrorKind, Limits};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_depth = 128;
    limits.max_members = u32::MAX;
    limits.max_units = usize::MAX;
    limits
}

/// How serde_json marks a number of any size inside itself; an object with this member is none to it.
const MARK_OF_NUMBERS: &[u8] = b"$serde_json";

fuzz_target!(|bytes: &[u8]| {
    if bytes
        .windows(MARK_OF_NUMBERS.len())
        .any(|window| window == MARK_OF_NUMBERS)
    {
        return;
    }
    let ours = Json::parse(bytes, &limits());
    let theirs = serde_json::from_slice::<Value>(bytes);
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => {
            assert_same(ours, theirs);
            assert_round_trip(ours);
        }
        (Ok(ours), Err(error)) => {
            assert!(
                error.to_string().starts_with("recursion limit"),
                "{error}: {ours}"
            );
            assert_round_trip(ours);
        }
        (Err(error), Ok(value)) => panic!("{error}: {value}"),
        (Err(error), Err(_)) => {
            assert!(error.offset() <= bytes.len());
            assert_ne!(error.kind(), DecodeErrorKind::TooLarge);
        }
    }
});

fn assert_same(ours: &Json, theirs: &Value) {
    match (ours, theirs) {
        (Json::Null, Value::Null) => {}
        (Json::Bool(ours), Value::Bool(theirs)) => assert_eq!(ours, theirs),
        (Json::Number(ours), Value::Number(theirs)) => {
            // serde_json gives an exponent its sign.
            let bare = |digits: &str| digits.replace('+', "").to_ascii_lowercase();
            assert_eq!(bare(&ours.to_string()), bare(theirs.as_str()));
        }
        (Json::String(ours), Value::String(theirs)) => assert_eq!(ours.as_str(), theirs),
        (Json::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len());
            ours.iter()
                .zip(theirs)
                .for_each(|(ours, theirs)| assert_same(ours, theirs));
        }
        (Json::Object(ours), Value::Object(theirs)) => {
            assert_eq!(ours.len(), theirs.len());
            for (name, value) in ours.iter() {
                assert_same(value, theirs.get(name.as_str()).expect("the member"));
            }
        }
        _ => panic!("{ours} and {theirs}"),
    }
}

fn assert_round_trip(value: &Json) {
    for written in [value.to_string(), format!("{value:#}")] {
        let again = Json::parse(written.as_bytes(), &limits()).expect("what was written");
        assert_eq!(again.to_string(), value.to_string());
    }
}
