//! Secrets never appear in results.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::*;
use crate::environment::HttpError;
use crate::testing::{answer, json, no_answer};

/// Contains every character that some encoding changes.
const SECRET: &str = "s3\"cr\\3t/vä+l ue%?";

const KINDS: [(CredentialKind, &str); 5] = [
    (CredentialKind::BearerToken, SECRET),
    (CredentialKind::Basic, "user:s3\"cr\\3t/vä+l ue%?"),
    (CredentialKind::ApiKey, SECRET),
    (CredentialKind::Password, SECRET),
    (CredentialKind::Custom, SECRET),
];

const CONFIG: &str = r#"{"method":"GET","url":"https://api.example.com/me",
    "headers":{"Authorization":{"credentialRef":{"id":"c"}}}}"#;

fn world(kind: CredentialKind, secret: &str, turn: ScriptedResponse) -> World {
    let mut world = World::new([turn]);
    let credential = credential(kind, secret, &[API]);
    world.agent = agent("agent", &[API], [("c", credential)]);
    world
}

/// As it stands in a string of JSON.
fn in_json(text: &str) -> String {
    let quoted = Json::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Every byte as `%XX`.
fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Every character as `\uXXXX`.
fn escaped(text: &str) -> String {
    text.encode_utf16()
        .map(|unit| format!("\\u{unit:04x}"))
        .collect()
}

/// As `encodeURIComponent` writes it.
fn url_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte);
    let encode = |byte: u8| match byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// The same with the digits in lower case.
fn url_encoded_lower(text: &str) -> String {
    let encoded = url_encoded(text);
    let mut parts = encoded.split('%');
    let mut lower = parts.next().unwrap().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        lower += &format!("%{}{rest}", digits.to_lowercase());
    }
    lower
}

/// The forms of a secret that somebody could look for.
fn searched(kind: CredentialKind, secret: &str) -> Vec<String> {
    let header = match kind {
        CredentialKind::Basic => STANDARD.encode(secret),
        _ => secret.to_owned(),
    };
    let password = secret.strip_prefix("user:").unwrap_or(secret).to_owned();
    let mut forms = vec![secret.to_owned(), header, password];
    for form in forms.clone() {
        forms.push(STANDARD.encode(&form));
        forms.push(URL_SAFE_NO_PAD.encode(&form));
        forms.push(url_encoded(&form));
        forms.push(url_encoded_lower(&form));
        forms.push(url_encoded(&form).replace("%20", "+"));
        forms.push(percent(&form));
        forms.push(escaped(&form));
        forms.push(in_json(&form));
    }
    forms
}

fn assert_clean(shown: &str, kind: CredentialKind, secret: &str) {
    for form in searched(kind, secret) {
        assert!(!shown.contains(&form), "{kind:?}: {form} in {shown}");
        let in_json = in_json(&form);
        assert!(!shown.contains(&in_json), "{kind:?}: {in_json} in {shown}");
    }
}

#[tokio::test]
async fn a_bearer_token_that_is_echoed_is_taken_out() {
    let turn = json(200, r#"{"echo":"Bearer s3cr3t-value","n":1}"#);
    let world = world(CredentialKind::BearerToken, "s3cr3t-value", turn);
    let called = world.call(CONFIG).await;
    let expected = r#"{"echo":"Bearer [REDACTED]","n":1}"#;
    assert_eq!(called.result.unwrap().to_string(), expected);
    assert_eq!(
        header(&world.requests()[0], "authorization"),
        Some("Bearer s3cr3t-value")
    );
}

#[tokio::test]
async fn no_form_of_any_secret_comes_back_in_values_names_and_errors() {
    for (kind, secret) in KINDS {
        let texts: Vec<String> = searched(kind, secret)
            .iter()
            .map(|form| format!("before {form} after {form}"))
            .collect();
        let text = texts.join(" | ");
        let body = Json::object([
            (
                "names",
                Json::object(texts.iter().map(|text| (text.clone(), Json::Null))),
            ),
            (
                "deep",
                vec![Json::object([("text", Json::from(text.clone()))])].into(),
            ),
            ("kept", "before".into()),
        ]);
        let body = body.to_string();
        let plain = [("content-type", "text/plain")];
        let location = format!("https://x.example/?q={text}");
        for turn in [
            json(200, &body),
            answer(200, &plain, &text),
            json(400, &body),
            answer(400, &plain, &text),
            answer(302, &[("location", &location)], ""),
            json(200, &format!("{{{text}")),
            answer(200, &[("content-type", &text)], "x"),
        ] {
            let world = world(kind, secret, turn);
            let called = world.call(CONFIG).await;
            let shown = match &called.result {
                Ok(value) => value.to_string(),
                Err(failure) => format!("{} {failure}", failure.to_value()),
            };
            assert_clean(&shown, kind, secret);
            assert_clean(&format!("{called:?}"), kind, secret);
            if called.result.is_ok() {
                let clean = vec!["before [REDACTED] after [REDACTED]"; texts.len()];
                assert!(shown.contains(&clean.join(" | ")), "{shown}");
            }
            // The cached result is clean too.
            let again = world.call(CONFIG).await;
            assert_clean(&format!("{again:?}"), kind, secret);
        }
    }
}

#[tokio::test]
async fn debug_and_display_show_no_secret() {
    for (kind, secret) in KINDS {
        let world = world(kind, secret, json(200, &Json::from(secret).to_string()));
        world.call(CONFIG).await;
        let credential = &world.agent.credentials()["c"];
        let response = world
            .environment
            .http
            .send(world.requests()[0].clone())
            .await;
        let shown = format!(
            "{:?} {:?} {} {:?} {:?} {:?} {:?} {:?} {:?}",
            world.agent,
            credential,
            credential.secret,
            world.requests(),
            response,
            world.redactor,
            world.cache,
            world.quotas,
            world.environment,
        );
        assert_clean(&shown, kind, secret);
    }
}

#[tokio::test]
async fn a_secret_is_taken_out_of_base64_of_a_longer_text() {
    for before in ["", "x", "xy", "Bearer ", "{\"authorization\":\"Bearer "] {
        let echoed = STANDARD.encode(format!("{before}s3cr3t-value\"}}"));
        let turn = json(200, &format!("\"{echoed}\""));
        let world = world(CredentialKind::BearerToken, "s3cr3t-value", turn);
        let value = world.call(CONFIG).await.result.unwrap();
        let shown = value.as_str().unwrap();
        assert!(shown.contains("[REDACTED]"), "{before:?}: {shown}");
        let own = STANDARD.encode("s3cr3t-value");
        assert!(shown.len() <= echoed.len() + 10 - own.len() + 3, "{shown}");
    }
}

#[tokio::test]
async fn a_secret_of_an_earlier_call_is_taken_out_of_later_answers() {
    let mut world = World::new([json(200, "1"), json(200, r#"["tok-123456","key-654321"]"#)]);
    world.agent = agent(
        "agent",
        &[API],
        [
            (
                "a",
                credential(CredentialKind::BearerToken, "tok-123456", &[API]),
            ),
            (
                "b",
                credential(CredentialKind::ApiKey, "key-654321", &[API]),
            ),
        ],
    );
    let with = |id: &str| {
        format!(
            r#"{{"method":"GET","url":"{API}/{id}","headers":{{"K":{{"credentialRef":{{"id":"{id}"}}}}}}}}"#
        )
    };
    world.call(&with("a")).await;
    let value = world
        .call(&get("https://api.example.com/echo"))
        .await
        .result
        .unwrap();
    let expected = r#"["[REDACTED]","key-654321"]"#;
    assert_eq!(value.to_string(), expected, "it has not used the other");
    world.call(&with("b")).await;
    let called = world.call(&get("https://api.example.com/echo")).await;
    assert!(called.cached);
    let expected = r#"["[REDACTED]","[REDACTED]"]"#;
    assert_eq!(called.result.unwrap().to_string(), expected, "now it has");
}

#[tokio::test]
async fn a_cut_does_not_leave_the_beginning_of_a_secret() {
    for at in 1_000..1_024 {
        let body = format!("{}s3cr3t-value-that-is-long", "x".repeat(at));
        let world = world(
            CredentialKind::ApiKey,
            "s3cr3t-value-that-is-long",
            answer(400, &[], &body),
        );
        let shown = detail(&world.call(CONFIG).await, "response").unwrap();
        assert!(!shown.as_str().unwrap().contains('s'), "{at}");
    }
}

#[tokio::test]
async fn numbers_that_are_secrets_are_taken_out() {
    let turn = json(
        200,
        r#"{"pin":12345678,"other":1234567,"float":0.12345678}"#,
    );
    let world = world(CredentialKind::Password, "12345678", turn);
    let expected = r#"{"pin":"[REDACTED]","other":1234567,"float":"[REDACTED]"}"#;
    assert_eq!(
        world.call(CONFIG).await.result.unwrap().to_string(),
        expected
    );
}

#[tokio::test]
async fn secrets_that_overlap_leave_nothing_between_them() {
    let mut world = World::new([json(200, r#""abcdefghijklmnop""#)]);
    world.agent = agent(
        "agent",
        &[API],
        [
            ("a", credential(CredentialKind::ApiKey, "abcdefgh", &[API])),
            ("b", credential(CredentialKind::ApiKey, "efghijklm", &[API])),
        ],
    );
    let value = world
        .call(
            r#"{"method":"GET","url":"https://api.example.com/x","headers":
            {"A":{"credentialRef":{"id":"a"}},"B":{"credentialRef":{"id":"b"}}}}"#,
        )
        .await
        .result
        .unwrap();
    assert_eq!(value, "[REDACTED]nop".into());
}

#[tokio::test]
async fn short_secrets_are_left_where_they_are_but_not_as_they_were_sent() {
    let turn = json(200, r#"["ab1","Bearer ab1","about"]"#);
    let world = world(CredentialKind::BearerToken, "ab1", turn);
    let expected = r#"["ab1","[REDACTED]","about"]"#;
    assert_eq!(
        world.call(CONFIG).await.result.unwrap().to_string(),
        expected
    );
}

#[tokio::test]
async fn a_clean_answer_is_not_copied() {
    let finder = Redactor::default();
    finder
        .learn(&credential(CredentialKind::ApiKey, "s3cr3t-value", &[API]))
        .unwrap();
    let value = crate::parse(br#"{"a":[1,"text",{"b":null}]}"#).unwrap();
    assert_eq!(finder.value(value.clone()).address(), value.address());
}

#[tokio::test]
async fn answers_of_great_depth_are_cleaned_in_time() {
    let finder = Redactor::default();
    finder
        .learn(&credential(CredentialKind::ApiKey, "s3cr3t-value", &[API]))
        .unwrap();
    let deep = format!(
        "{}\"s3cr3t-value\"{}",
        r#"{"a":"#.repeat(120),
        "}".repeat(120)
    );
    let value = finder.value(crate::parse(deep.as_bytes()).unwrap());
    assert!(value.to_string().contains("\"[REDACTED]\""));
}

#[tokio::test]
async fn a_secret_that_is_no_header_is_refused_without_being_shown() {
    let world = world(CredentialKind::ApiKey, "s3cr3t-value\n", json(200, "1"));
    let called = world.call(CONFIG).await;
    assert_eq!(failed(&called), ("DataError", "invalid_value"));
    assert_clean(
        &format!("{called:?}"),
        CredentialKind::ApiKey,
        "s3cr3t-value",
    );
    assert!(world.requests().is_empty());
}

#[tokio::test]
async fn errors_of_the_connection_show_no_secret() {
    for error in [HttpError::Connect, HttpError::Timeout, HttpError::Forbidden] {
        let world = world(CredentialKind::ApiKey, "s3cr3t-value", no_answer(error));
        let called = world.call(CONFIG).await;
        assert_clean(
            &format!("{called:?}"),
            CredentialKind::ApiKey,
            "s3cr3t-value",
        );
    }
}

proptest::proptest! {
    // Each case looks for some thirty forms.
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]

    #[test]
    fn no_form_of_any_secret_stays_in_any_text(
        secret in "[ -~äß€😀\n]{6,24}",
        // A preceding percent sign or backslash would be decoded together with it.
        before in r#"[a-z0-9 +=/"{:]{0,6}"#,
        after in r#"[a-z0-9 %+=/"}:\\]{0,6}"#,
    ) {
        let redactor = Redactor::default();
        redactor.learn(&credential(CredentialKind::ApiKey, &secret, &[])).unwrap();
        for form in searched(CredentialKind::ApiKey, &secret) {
            let text = redactor.text(&format!("{before}{form}{after}"));
            proptest::prop_assert!(!text.contains(&form), "{} in {}", form, text);
            proptest::prop_assert!(text.contains("[REDACTED]"));
        }
    }
}
