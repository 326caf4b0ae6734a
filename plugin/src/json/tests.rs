use super::*;
use proptest::prelude::*;

/// The verdict of this reader on a whole document.
fn accepts(text: &[u8]) -> bool {
    let limits = Limits {
        max_depth: 128,
        max_members: u32::MAX,
        ..Limits::default()
    };
    let mut reader = Reader::new(text, &limits);
    let ok = reader.value().is_ok();
    reader.skip_white_space();
    ok && reader.peek().is_none() && std::str::from_utf8(text).is_ok()
}

/// The verdict of the reference: the grammar by serde_json, UTF-8 by the standard library.
fn reference(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok()
        && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

#[test]
fn agrees_with_the_reference_on_hand_made_documents() {
    for text in [
        "{}",
        "[]",
        " { \"a\" : [ 1 , -0.5e+10 , true , false , null , \"x\" ] } ",
        "1e999",
        "-0",
        "\"\\ud800\"",
        "123456789012345678901234567890",
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "-",
        "1e",
        "+1",
        "tru",
        "nulll",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"a",
        "\"\t\"",
        "{}{}",
        "[1 2]",
        "{\"a\" 1}",
        "[}",
        "{]",
        "\u{feff}{}",
        "\"\u{7f}\"",
        "[[[[]]],{}]",
        "\"é\"",
    ] {
        assert_eq!(
            accepts(text.as_bytes()),
            reference(text.as_bytes()),
            "{text}"
        );
    }
}

#[test]
fn depth_is_bounded_without_recursion() {
    let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
    assert!(accepts(deep(128).as_bytes()));
    assert!(!accepts(deep(129).as_bytes()));
    let bomb = "[".repeat(1_000_000);
    let error = Reader::new(bomb.as_bytes(), &Limits::default())
        .value()
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.offset()),
        (DecodeErrorKind::TooDeep, 128)
    );
}

#[test]
fn names_are_unescaped() {
    let text = br#"{"\u005fagentId":1,"\ud83d\ude00":2,"\ud800":3,"a\"\\\/\b\f\n\r\tz":4}"#;
    let mut names = Vec::new();
    Reader::new(text, &Limits::default())
        .object(|reader, name| {
            names.push(name.to_vec());
            reader.value().map(|_| ())
        })
        .unwrap();
    assert_eq!(names[0], b"_agentId");
    assert_eq!(names[1], "😀".as_bytes());
    assert_eq!(names[2], b"\\ud800");
    assert_eq!(names[3], b"a\"\\/\x08\x0c\n\r\tz");
}

#[test]
fn lone_surrogates_are_replaced_on_request() {
    for (raw, lossy) in [
        (r"ok \ud83d", "ok \u{fffd}"),
        (r"\ude00!", "\u{fffd}!"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
        (r"\ud83d\u0061\n", "\u{fffd}a\n"),
        (r"\ud83d\nx", "\u{fffd}\nx"),
    ] {
        assert_eq!(unescape(raw.as_bytes()), None, "{raw}");
        assert_eq!(unescape_lossy(raw.as_bytes()).as_deref(), Some(lossy));
    }
    let whole = r"\ud83d\ude00 \u00e9";
    assert_eq!(unescape(whole.as_bytes()).as_deref(), Some("😀 é"));
    assert_eq!(unescape_lossy(whole.as_bytes()).as_deref(), Some("😀 é"));
    let mut names = Vec::new();
    Reader::new(br#"{"a\ud800":1}"#, &Limits::default())
        .replacing_lone_surrogates()
        .object(|reader, name| {
            names.push(name.to_vec());
            reader.value().map(drop)
        })
        .unwrap();
    assert_eq!(names, ["a\u{fffd}".as_bytes()]);
}

#[test]
fn range_of_finds_a_borrowed_slice() {
    let text = r#"{"a":"b","c":"b"}"#;
    for (start, end) in [(0, text.len()), (5, 8), (13, 16), (4, 4), (17, 17)] {
        assert_eq!(range_of(text.as_bytes(), &text[start..end]), start..end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_reference_on_json_like_text(text in "[\\[\\]{}:,\"\\\\u0-9eE+.\\-tfnrualse aé\u{1}]{0,40}") {
        prop_assert_eq!(accepts(text.as_bytes()), reference(text.as_bytes()));
    }

    #[test]
    fn agrees_with_the_reference_on_bytes(bytes: Vec<u8>) {
        prop_assert_eq!(accepts(&bytes), reference(&bytes));
    }
}
