//! The shared vectors.

use a2abus_models::{Json, Object};

use super::{json, run};

const VECTORS: &str = include_str!("../../../../tests/vectors/e2a.json");

/// Compares objects regardless of order, numbers by value, and placeholders by their meaning. With `subset` only the
/// shown top-level members count.
fn same(expected: &Json, actual: &Json, subset: bool) -> bool {
    match (expected, actual) {
        (Json::String(text), Json::String(actual)) if text == "<now>" => {
            actual.contains('T') && actual.ends_with("+00:00")
        }
        (Json::String(text), Json::String(actual)) if text == "<converter>" => !actual.is_empty(),
        (Json::Number(one), Json::Number(other)) => one.as_f64() == other.as_f64(),
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same(a, b, false))
        }
        (Json::Object(one), Json::Object(other)) => {
            let all = |(name, value): (&_, &Json)| {
                let name: &a2abus_plugin::Text = name;
                other
                    .get(name)
                    .is_some_and(|actual| same(value, actual, false))
            };
            (subset || one.len() == other.len()) && one.iter().all(all)
        }
        _ => expected == actual,
    }
}

/// In the results of these functions null and `{}` are equal as metadata.
fn without_empty_metadata(function: &str, mut value: Json) -> Json {
    if let Json::Object(object) = &mut value
        && function.starts_with("parse_agent_server_wire_")
        && object.get("metadata") == Some(&Json::Object(Object::new()))
    {
        object.insert("metadata", Json::Null);
    }
    value
}

fn names(value: &Json) -> Vec<&str> {
    let object = value.as_object().unwrap();
    object.iter().map(|(name, _)| name.as_str()).collect()
}

fn judge(case: &Json) {
    let text = |name: &str| case.get(name).and_then(Json::as_str).unwrap();
    let (name, function) = (text("name"), text("function"));
    let result = run(function, case.get("input").unwrap());
    let ours = case.get("ours");
    let expectation = ours.unwrap_or(case);
    let Some(output) = expectation.get("output") else {
        let error = result.expect_err(name);
        if let Some(ours) = ours.and_then(|ours| ours.get("error")) {
            assert_eq!(
                ours.get("kind").unwrap().as_str(),
                Some(error.kind),
                "{name}"
            );
            assert_eq!(
                ours.get("field").unwrap().as_text(),
                Some(&error.field),
                "{name}"
            );
        }
        return;
    };
    let actual = without_empty_metadata(function, result.expect(name));
    let expected = without_empty_metadata(function, output.clone());
    let subset = expectation.get("subset") == Some(&Json::Bool(true));
    assert!(
        same(&expected, &actual, subset),
        "{name}: {actual} instead of {expected}"
    );
    if output.as_object().is_some() && !subset {
        assert_eq!(names(&actual), names(output), "{name}");
    }
}

#[test]
fn every_vector_holds() {
    let vectors = json(VECTORS);
    let cases = vectors.get("cases").unwrap().as_array().unwrap();
    cases.iter().for_each(judge);
    assert_eq!(cases.len(), 63);
}

#[test]
fn vectors_read_the_same_in_both_forms() {
    let vectors = json(VECTORS);
    for case in vectors.get("cases").unwrap().as_array().unwrap() {
        let function = case.get("function").and_then(Json::as_str).unwrap();
        let Some(compact) = function.strip_suffix("_normalize") else {
            continue;
        };
        let input = case.get("input").unwrap();
        if let Ok(full) = run(function, input) {
            let short = run(&format!("{compact}_compact"), input).unwrap();
            assert_eq!(run(function, &short).unwrap(), full);
            assert_eq!(run(function, &full).unwrap(), full);
        }
    }
}
