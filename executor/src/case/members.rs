//! The members that a case may have. A misspelt member would be ignored, and the test would pass.

use a2abus_models::{Array, Json, Object};
use a2abus_plugin::Text;

const CASE: [&str; 8] = [
    "name",
    "workflow",
    "input",
    "http_fixtures",
    "credentials",
    "policy",
    "options",
    "expected",
];
const ANSWER: [&str; 5] = ["status", "headers", "body", "body_text", "error"];
const CREDENTIAL: [&str; 3] = ["type", "value", "apis"];
const POLICY: [&str; 7] = [
    "operations",
    "apis",
    "credentials",
    "maxOperations",
    "maxExecutionTimeMs",
    "maxLoopItems",
    "fileStorage",
];
const OPTIONS: [&str; 2] = ["onError", "level"];
const EXPECTED: [&str; 12] = [
    "valid",
    "status",
    "results",
    "model",
    "error",
    "errors",
    "requests",
    "retry_delays_ms",
    "stored",
    "waited_ms",
    "skipped",
    "warnings",
];
/// Those of [`EXPECTED`] that are lists.
const LISTS: [&str; 5] = [
    "errors",
    "requests",
    "retry_delays_ms",
    "skipped",
    "warnings",
];
/// The members of a validation issue. Only these are compared: of errors `code`, `level`, `operationId`, of warnings
/// `code` and `operationId`.
const ISSUE: [&str; 7] = [
    "code",
    "level",
    "operationId",
    "severity",
    "message",
    "line",
    "suggestion",
];

/// Refuses members that would be ignored.
pub(super) fn check(case: &Json) -> Result<(), String> {
    let members = case.as_object().ok_or("it is not an object")?;
    for (name, _) in members {
        refuse_misspelt(name)?;
    }
    for (name, known) in [
        ("policy", &POLICY as &[_]),
        ("options", &OPTIONS),
        ("expected", &EXPECTED),
    ] {
        if let Some(value) = members.get(name) {
            only(value, name, known)?;
        }
    }
    for (id, credential) in object(members.get("credentials")) {
        only(credential, &format!("credentials.{id}"), &CREDENTIAL)?;
    }
    for (request, answers) in object(members.get("http_fixtures")) {
        check_answers(answers, &format!("http_fixtures[\"{request}\"]"))?;
    }
    members.get("expected").map_or(Ok(()), check_expected)
}

/// Other members are ignored.
fn refuse_misspelt(name: &str) -> Result<(), String> {
    let is_near = |known: &&&str| {
        let distance = strsim::osa_distance(name, known);
        distance > 0 && distance <= known.len() / 4
    };
    match CASE.iter().find(is_near) {
        Some(known) => Err(format!("unknown member {name:?}; did you mean {known:?}?")),
        None => Ok(()),
    }
}

fn check_answers(answers: &Json, at: &str) -> Result<(), String> {
    for (index, answer) in list(answers, at)?.iter().enumerate() {
        let at = format!("{at}[{index}]");
        match only(answer, &at, &ANSWER)?.get("error").map(Json::as_str) {
            None | Some(Some("connect" | "timeout")) => {}
            Some(_) => return Err(format!("{at}.error: connect or timeout")),
        }
    }
    Ok(())
}

fn check_expected(expected: &Json) -> Result<(), String> {
    for name in LISTS {
        let at = format!("expected.{name}");
        let Some(elements) = expected.get(name).map(|value| list(value, &at)) else {
            continue;
        };
        let known: &[_] = match (name, expected.get("valid")) {
            ("warnings", _) => &ISSUE,
            ("errors", Some(Json::Bool(false))) => &ISSUE,
            // The others are compared in full.
            _ => continue,
        };
        for (index, element) in elements?.iter().enumerate() {
            only(element, &format!("{at}[{index}]"), known)?;
        }
    }
    Ok(())
}

/// An object with only these members.
fn only<'a>(value: &'a Json, at: &str, known: &[&str]) -> Result<&'a Object, String> {
    let object = value.as_object();
    let object = object.ok_or_else(|| format!("{at} is not an object"))?;
    let mut names = object.iter().map(|(name, _)| name);
    match names.find(|name| !known.contains(&name.as_str())) {
        None => Ok(object),
        Some(name) => Err(format!(
            "{at}: unknown member {name:?}; known are {}",
            known.join(", ")
        )),
    }
}

/// The members of an object. Its reader checks that it is one.
fn object(value: Option<&Json>) -> impl Iterator<Item = (&Text, &Json)> {
    value.and_then(Json::as_object).into_iter().flatten()
}

fn list<'a>(value: &'a Json, at: &str) -> Result<&'a Array, String> {
    value
        .as_array()
        .ok_or_else(|| format!("{at} is not a list"))
}
