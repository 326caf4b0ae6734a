//! Values, their sizes in memory, and their text.

use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Json, DecodeError> {
    Json::parse(text.as_bytes(), &Limits::default())
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_filter_map("finite", |n| Number::from_f64(n).map(Json::from)),
        any::<String>().prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Json::from),
            prop::collection::vec((any::<String>(), inner), 0..8).prop_map(Json::object),
        ]
    })
}

proptest! {
    #[test]
    fn written_records_read_back(value in any_json()) {
        let again = parse(&value.to_string()).unwrap();
        prop_assert_eq!(again.to_string(), value.to_string());
        prop_assert_eq!(&again, &value);
        prop_assert_eq!(again.weight(), value.weight());
        let ascii = format!("{value:#}");
        prop_assert!(ascii.is_ascii());
        prop_assert_eq!(&parse(&ascii).unwrap(), &value);
    }

    #[test]
    fn it_reads_what_serde_json_reads(text in "[\\[\\]{}:,\"\\\\u0-9eE+.\\-tfnrualse aé]{0,40}") {
        let reference = serde_json::from_str::<serde_json::Value>(&text);
        if let Ok(reference) = reference {
            let ours = serde_json::from_str::<serde_json::Value>(&parse(&text).unwrap().to_string()).unwrap();
            prop_assert_eq!(ours, reference);
        }
    }
}

#[test]
fn numbers_and_the_order_of_members_are_kept() {
    let text = r#"{"b":1.50,"a":12345678901234567890123,"e":1E+2,"b2":-0}"#;
    assert_eq!(parse(text).unwrap().to_string(), text);
    let twice = parse(r#"{"a":1,"b":2,"a":3}"#).unwrap();
    assert_eq!(twice.to_string(), r#"{"a":3,"b":2}"#);
    assert_eq!(twice.as_object().unwrap().repeated(), ["a"]);
    assert_eq!(twice, parse(r#"{"b":2,"a":3}"#).unwrap());
}

#[test]
fn a_duplicate_member_is_found_at_every_level() {
    for (text, expected) in [
        (r#"{"a":1,"a":1}"#, Some("a")),
        (
            r#"{"a":[1,{"b":[[{"c":1,"d":2,"c":3}]]}]}"#,
            Some("a[1].b[0][0].c"),
        ),
        (r#"[{},{"a":{},"a":{}}]"#, Some("[1].a")),
        (r#"{"a":{"b":1},"b":[{"a":1},{"a":1}]}"#, None),
        ("7", None),
    ] {
        let found = parse(text).unwrap().first_repeated();
        assert_eq!(found.as_deref(), expected, "{text}");
    }
}

#[test]
fn invalid_json_text_is_refused() {
    for bad in [r#""\ud800""#, r#"{"\ud800":1}"#, "{} {}", "", "[1,]"] {
        assert_eq!(
            parse(bad).unwrap_err().kind(),
            DecodeErrorKind::NotJson,
            "{bad}"
        );
    }
}

#[test]
fn lone_surrogates_are_replaced_on_request() {
    let text = r#"{"\ud800":["ok \ud83d","\ud83d\ude00",1.50]}"#;
    let read = Json::parse_lossy(text.as_bytes(), &Limits::default()).unwrap();
    let expected = "{\"\u{fffd}\":[\"ok \u{fffd}\",\"😀\",1.50]}";
    assert_eq!(read.to_string(), expected);
    for bad in ["{} {}", "", r#""\ud8""#] {
        assert!(Json::parse_lossy(bad.as_bytes(), &Limits::default()).is_err());
    }
}

#[test]
fn a_value_fits_in_three_machine_words() {
    assert_eq!(size_of::<Json>(), 24);
}

#[test]
fn numbers_are_equal_by_value_and_no_other_kinds_are() {
    for (a, b, equal) in [
        ("1", "1.0", true),
        ("1", "1e0", true),
        ("0", "-0.0", true),
        ("1", "true", false),
        ("1", "\"1\"", false),
        ("0", "null", false),
        ("10000000000000000", "1e16", true),
        ("-9007199254740992", "-9007199254740992.0", true),
        ("12345678901234567890", "12345678901234567890.0", true),
        ("12345678901234567890", "12345678901234567891", false),
        ("9007199254740993", "9007199254740992.0", false),
        ("1e400", "10e399", true),
        ("1e400", "1e401", false),
        ("1e9223372036854775807", "1E+9223372036854775807", true),
        ("1.0e-400", "10e-401", true),
        ("0.10000000000000000001", "1.0000000000000000001e-1", true),
        ("0.1", "1e-1", true),
        ("0.1", "0.1000000000000000055511151231257827", false),
        (r#"{"a":1,"b":[2]}"#, r#"{"b":[2.0],"a":1}"#, true),
        (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
        ("[1,2]", "[2,1]", false),
    ] {
        let (a, b) = (parse(a).unwrap(), parse(b).unwrap());
        assert_eq!(a == b, equal, "{a} and {b}");
        let state = RandomState::new();
        assert!(
            !equal || a.hash_in(&state) == b.hash_in(&state),
            "{a} and {b}"
        );
        assert_eq!(canonical(&a) == canonical(&b), equal, "{a} and {b}");
    }
}

fn canonical(value: &Json) -> String {
    let mut out = String::new();
    value.write_canonical(&mut out).unwrap();
    out
}

#[test]
fn weight_follows_every_change() {
    let mut object = Object::default();
    object.insert("a", parse("[1,2,3]").unwrap());
    object.insert("a", parse(r#""text""#).unwrap());
    object.insert("b", Json::Null);
    object.insert("d", true);
    object.remove("d");
    object.change(&"b".into(), |value| {
        *value = parse(r#"{"deep":[{}]}"#).unwrap();
    });
    object.change(&"c".into(), |value| *value = Json::Bool(true));
    let text = Json::from(object.clone()).to_string();
    assert_eq!(text, r#"{"a":"text","b":{"deep":[{}]},"c":true}"#);
    assert_eq!(Json::from(object).weight(), parse(&text).unwrap().weight());
}

#[test]
fn by_value_numbers_have_one_form() {
    for (text, expected) in [
        ("-0", "0"),
        ("1E+2", "100.0"),
        ("1.50", "1.5"),
        ("100", "100"),
        ("1.5e-7", "1.5e-7"),
        ("1e400", "1e400"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("0.10000000000000000001", "0.10000000000000000001"),
    ] {
        let text = format!(r#"{{"a":[{text}]}}"#);
        let expected = format!(r#"{{"a":[{expected}]}}"#);
        let read = Json::parse_by_value(text.as_bytes(), &Limits::default()).unwrap();
        let written = parse(&text).unwrap();
        assert_eq!(read.to_string(), expected);
        assert_eq!(written.by_value().to_string(), expected);
        assert_eq!((&read, written.to_string()), (&written, text));
    }
}

#[test]
fn canonical_text_is_one_for_equal_values() {
    let canonical = |text: &str| canonical(&parse(text).unwrap());
    let (a, b) = (
        r#"{"b":[1.0,"é"],"a":1e2}"#,
        r#"{"a":100,"b":[1,"\u00e9"]}"#,
    );
    assert_eq!(canonical(a), r#"{"a":100,"b":[1,"é"]}"#);
    assert_eq!(canonical(a), canonical(b));
    for (text, expected) in [
        ("1e16", "10000000000000000"),
        ("-12345678901234567890.0", "-12345678901234567890"),
        ("1e40", "10000000000000000000000000000000000000000"),
        ("1e41", "1e41"),
        ("10e399", "1e400"),
        ("1.50", "1.5"),
        ("-0.0", "0"),
    ] {
        assert_eq!(canonical(text), expected);
    }
}
