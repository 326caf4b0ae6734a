//! Secrets never appear in results.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::*;
use crate::environment::HttpError;
use crate::testing::{answer, json, no_response};

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

fn harness(kind: CredentialKind, secret: &str, response: ScriptedResponse) -> Harness {
    let mut harness = Harness::new([response]);
    let credential = credential(kind, secret, &[API]);
    harness.agent = agent("agent", &[API], [("c", credential)]);
    harness
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

/// As in HTML, as most libraries write it.
fn in_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// Every character as `&#xXX;`.
fn in_html_by_number(text: &str) -> String {
    text.chars()
        .map(|c| format!("&#x{:x};", u32::from(c)))
        .collect()
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
        forms.push(in_html(&form));
        forms.push(in_html_by_number(&form));
        let hexadecimal: String = form.bytes().map(|byte| format!("{byte:02x}")).collect();
        forms.push(hexadecimal.to_uppercase());
        forms.push(hexadecimal);
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
async fn an_echoed_bearer_token_is_redacted() {
    let response = json(200, r#"{"echo":"Bearer s3cr3t-value","n":1}"#);
    let harness = harness(CredentialKind::BearerToken, "s3cr3t-value", response);
    let called = harness.call(CONFIG).await;
    let expected = r#"{"echo":"Bearer [REDACTED]","n":1}"#;
    assert_eq!(called.result.unwrap().to_string(), expected);
    assert_eq!(
        header(&harness.requests()[0], "authorization"),
        Some("Bearer s3cr3t-value")
    );
}

#[tokio::test]
async fn no_encoded_form_of_a_secret_appears_in_values_names_or_errors() {
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
        for response in [
            json(200, &body),
            answer(200, &plain, &text),
            json(400, &body),
            answer(400, &plain, &text),
            answer(302, &[("location", &location)], ""),
            json(200, &format!("{{{text}")),
            answer(200, &[("content-type", &text)], "x"),
        ] {
            let harness = harness(kind, secret, response);
            let called = harness.call(CONFIG).await;
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
            let again = harness.call(CONFIG).await;
            assert_clean(&format!("{again:?}"), kind, secret);
        }
    }
}

#[tokio::test]
async fn debug_and_display_show_no_secret() {
    for (kind, secret) in KINDS {
        let harness = harness(kind, secret, json(200, &Json::from(secret).to_string()));
        harness.call(CONFIG).await;
        let credential = &harness.agent.credentials()["c"];
        let response = harness
            .environment
            .http
            .send(harness.requests()[0].clone())
            .await;
        let shown = format!(
            "{:?} {:?} {} {:?} {:?} {:?} {:?} {:?} {:?}",
            harness.agent,
            credential,
            credential.secret,
            harness.requests(),
            response,
            harness.redactor,
            harness.cache,
            harness.quotas,
            harness.environment,
        );
        assert_clean(&shown, kind, secret);
    }
}

#[tokio::test]
async fn a_secret_inside_longer_base64_is_redacted() {
    for before in ["", "x", "xy", "Bearer ", "{\"authorization\":\"Bearer "] {
        let echoed = STANDARD.encode(format!("{before}s3cr3t-value\"}}"));
        let response = json(200, &format!("\"{echoed}\""));
        let harness = harness(CredentialKind::BearerToken, "s3cr3t-value", response);
        let value = harness.call(CONFIG).await.result.unwrap();
        let shown = value.as_str().unwrap();
        assert!(shown.contains("[REDACTED]"), "{before:?}: {shown}");
        let own = STANDARD.encode("s3cr3t-value");
        assert!(shown.len() <= echoed.len() + 10 - own.len() + 3, "{shown}");
    }
}

#[tokio::test]
async fn a_secret_of_an_earlier_call_is_redacted_in_later_responses() {
    let mut harness = Harness::new([json(200, "1"), json(200, r#"["tok-123456","key-654321"]"#)]);
    harness.agent = agent(
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
    harness.call(&with("a")).await;
    let value = harness
        .call(&get("https://api.example.com/echo"))
        .await
        .result
        .unwrap();
    let expected = r#"["[REDACTED]","key-654321"]"#;
    assert_eq!(value.to_string(), expected, "it has not used the other");
    harness.call(&with("b")).await;
    let called = harness.call(&get("https://api.example.com/echo")).await;
    assert!(called.cached);
    let expected = r#"["[REDACTED]","[REDACTED]"]"#;
    assert_eq!(called.result.unwrap().to_string(), expected, "now it has");
}

#[tokio::test]
async fn truncation_leaves_no_prefix_of_a_secret() {
    for at in 1_000..1_024 {
        let body = format!("{}s3cr3t-value-that-is-long", "x".repeat(at));
        let harness = harness(
            CredentialKind::ApiKey,
            "s3cr3t-value-that-is-long",
            answer(400, &[], &body),
        );
        let shown = detail(&harness.call(CONFIG).await, "response").unwrap();
        assert!(!shown.as_str().unwrap().contains('s'), "{at}");
    }
}

#[tokio::test]
async fn numeric_secrets_are_redacted() {
    let response = json(
        200,
        r#"{"pin":12345678,"other":1234567,"float":0.12345678}"#,
    );
    let harness = harness(CredentialKind::Password, "12345678", response);
    let expected = r#"{"pin":"[REDACTED]","other":1234567,"float":"[REDACTED]"}"#;
    assert_eq!(
        harness.call(CONFIG).await.result.unwrap().to_string(),
        expected
    );
}

#[tokio::test]
async fn overlapping_secrets_are_redacted_completely() {
    let mut harness = Harness::new([json(200, r#""abcdefghijklmnop""#)]);
    harness.agent = agent(
        "agent",
        &[API],
        [
            ("a", credential(CredentialKind::ApiKey, "abcdefgh", &[API])),
            ("b", credential(CredentialKind::ApiKey, "efghijklm", &[API])),
        ],
    );
    let value = harness
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
async fn short_secrets_are_redacted_only_in_the_form_that_was_sent() {
    let response = json(200, r#"["ab1","Bearer ab1","about"]"#);
    let harness = harness(CredentialKind::BearerToken, "ab1", response);
    let expected = r#"["ab1","[REDACTED]","about"]"#;
    assert_eq!(
        harness.call(CONFIG).await.result.unwrap().to_string(),
        expected
    );
}

#[tokio::test]
async fn a_response_without_secrets_is_not_copied() {
    let finder = Redactor::default();
    finder
        .add_secret(&credential(CredentialKind::ApiKey, "s3cr3t-value", &[API]))
        .unwrap();
    let value = crate::parse(br#"{"a":[1,"text",{"b":null}]}"#).unwrap();
    assert_eq!(finder.value(value.clone()).address(), value.address());
}

#[tokio::test]
async fn redaction_of_deeply_nested_responses_is_fast() {
    let finder = Redactor::default();
    finder
        .add_secret(&credential(CredentialKind::ApiKey, "s3cr3t-value", &[API]))
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
async fn a_secret_that_is_not_a_legal_header_is_refused_without_being_shown() {
    let harness = harness(CredentialKind::ApiKey, "s3cr3t-value\n", json(200, "1"));
    let called = harness.call(CONFIG).await;
    assert_eq!(failed(&called), ("DataError", "invalid_value"));
    assert_clean(
        &format!("{called:?}"),
        CredentialKind::ApiKey,
        "s3cr3t-value",
    );
    assert!(harness.requests().is_empty());
}

#[tokio::test]
async fn errors_of_the_connection_show_no_secret() {
    for error in [HttpError::Connect, HttpError::Timeout, HttpError::Forbidden] {
        let harness = harness(CredentialKind::ApiKey, "s3cr3t-value", no_response(error));
        let called = harness.call(CONFIG).await;
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
    fn no_encoded_form_of_a_secret_survives_redaction(
        secret in "[ -~äß€😀\n]{6,24}",
        // A preceding percent sign or backslash would be decoded together with it.
        before in r#"[a-z0-9 +=/"{:]{0,6}"#,
        after in r#"[a-z0-9 %+=/"}:\\]{0,6}"#,
    ) {
        let redactor = Redactor::default();
        redactor.add_secret(&credential(CredentialKind::ApiKey, &secret, &[])).unwrap();
        for form in searched(CredentialKind::ApiKey, &secret) {
            let text = redactor.text(&format!("{before}{form}{after}"));
            proptest::prop_assert!(!text.contains(&form), "{} in {}", form, text);
            proptest::prop_assert!(text.contains("[REDACTED]"));
        }
    }
}
