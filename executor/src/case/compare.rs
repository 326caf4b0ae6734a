//! Compares a run with the expectation.

use a2abus_models::{Array, Json, Number, Object};
use a2abus_plugin::Text;

use super::observed::Observed;

/// The differences that are found.
#[derive(Default)]
struct Differences(Vec<String>);

/// Every difference, in words.
pub(super) fn compare(expected: &Json, observed: &Observed) -> Vec<String> {
    let mut differences = Differences::default();
    let report = observed.report.to_json();
    let valid = Json::Bool(observed.report.is_valid());
    if expected
        .get("valid")
        .is_some_and(|expected| *expected != valid)
    {
        let errors = Json::from(list(&report, "errors"));
        let errors = shorten(&errors);
        return vec![format!("valid: {valid}, with the errors {errors}")];
    }
    differences.of_issues("warnings", &["code", "operationId"], expected, &report);
    if observed.report.is_valid() {
        differences.of_record(expected, observed);
        differences.of_effects(expected, observed);
    } else {
        let of_error = ["code", "level", "operationId"];
        differences.of_issues("errors", &of_error, expected, &report);
        let none = Json::from(Vec::new());
        differences.check("requests", &none, &observed.requests.clone().into());
    }
    differences.0
}

// === impl Differences ===

impl Differences {
    fn check(&mut self, name: &str, expected: &Json, got: &Json) {
        if expected != got {
            let (expected, got) = (shorten(expected), shorten(got));
            self.0
                .push(format!("{name}: expected {expected}, got {got}"));
        }
    }

    /// The same for a member that must be empty if the expectation does not have it.
    fn check_member(&mut self, name: &str, expected: &Json, got: &Json) {
        let is_empty = *got == Json::Null || got.as_object().is_some_and(Object::is_empty);
        match expected.get(name) {
            Some(expected) => self.check(name, expected, got),
            None if is_empty => {}
            None => {
                let got = shorten(got);
                self.0
                    .push(format!("{name}: expected does not mention it, got {got}"));
            }
        }
    }

    /// Errors or warnings of validation, in any order.
    fn of_issues(&mut self, name: &str, members: &[&str], expected: &Json, report: &Json) {
        let issues = |from| {
            let issues = list(from, name);
            sorted(issues.iter().map(|issue| only(issue, members)).collect())
        };
        self.check(name, &issues(expected), &issues(report));
    }

    /// The record of the execution, and the final data model.
    fn of_record(&mut self, expected: &Json, observed: &Observed) {
        let record = observed.record.as_ref().map(|record| record.to_value());
        let record = record.unwrap_or_default();
        let member = |value: &Json, name: &str| value.get(name).cloned().unwrap_or_default();
        for name in ["status", "results"] {
            self.check_member(name, expected, &member(&record, name));
        }
        self.check_member("model", expected, &observed.model.clone().into());
        for name in ["skipped", "errors"] {
            let (expected, got) = (list(expected, name), list(&record, name));
            let cut = got.iter().zip(0..).map(|(got, i)| match expected.get(i) {
                Some(expected) => expected_part(expected, got),
                None => got.clone(),
            });
            let cut = Json::from(cut.collect::<Vec<_>>());
            self.check(name, &expected.clone().into(), &cut);
        }
        let error = member(expected, "error");
        self.check(
            "error",
            &error,
            &expected_part(&error, &member(&record, "error")),
        );
    }

    /// External effects of the execution: requests, stored values, waits.
    fn of_effects(&mut self, expected: &Json, observed: &Observed) {
        let expected_requests = list(expected, "requests").into();
        self.check(
            "requests",
            &expected_requests,
            &requests(expected, observed),
        );
        let expected_values = expected.get("stored").cloned().unwrap_or_else(empty);
        self.check("stored", &expected_values, &stored(observed));
        let waited = expected.get("waited_ms").cloned();
        let waited = waited.unwrap_or(Json::from(0_i64));
        let got = crate::trace::milliseconds(observed.waited);
        self.check("waited_ms", &waited, &got);
        let delays = list(expected, "retry_delays_ms");
        let got = retry_delays(&delays, observed);
        self.check("retry_delays_ms", &delays.into(), &got);
    }
}

fn empty() -> Json {
    Json::Object(Object::default())
}

fn list(value: &Json, name: &str) -> Array {
    value
        .get(name)
        .and_then(Json::as_array)
        .cloned()
        .unwrap_or_default()
}

/// The members of these names.
fn only(value: &Json, names: &[&str]) -> Json {
    let members = names
        .iter()
        .map(|name| (*name, value.get(name).cloned().unwrap_or_default()));
    Json::object(members.collect::<Vec<_>>())
}

fn sorted(mut values: Vec<Json>) -> Json {
    values.sort_by_cached_key(ToString::to_string);
    values.into()
}

/// The part of a value that the expectation mentions.
fn expected_part(expected: &Json, got: &Json) -> Json {
    match (expected, got) {
        (Json::Object(expected), Json::Object(got)) => {
            let members = expected.iter().filter_map(|(name, expected)| {
                got.get(name)
                    .map(|got| (name.clone(), expected_part(expected, got)))
            });
            Json::Object(members.collect())
        }
        _ => got.clone(),
    }
}

/// The requests, without the content type unless the expectation has one.
fn requests(expected: &Json, observed: &Observed) -> Json {
    let expected = list(expected, "requests");
    let request = |(index, got): (usize, &Json)| {
        let expected = expected.get(index);
        let is_expected = |name: &Text| {
            let headers = expected.and_then(|expected| expected.get("headers"));
            headers.is_some_and(|headers| headers.get(name).is_some())
        };
        let members = got
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| {
                let Json::Object(headers) = value else {
                    return Some((name.clone(), value.clone()));
                };
                if name != "headers" {
                    return Some((name.clone(), value.clone()));
                }
                let is_compared = |name: &&Text| *name != "content-type" || is_expected(name);
                let headers = headers.iter().filter(|(name, _)| is_compared(name));
                let headers: Object = headers.map(|(n, v)| (n.clone(), v.clone())).collect();
                (!headers.is_empty()).then(|| (name.clone(), headers.into()))
            });
        Json::Object(members.collect())
    };
    observed
        .requests
        .iter()
        .enumerate()
        .map(request)
        .collect::<Vec<_>>()
        .into()
}

fn stored(observed: &Observed) -> Json {
    let mut storages = Object::default();
    for (storage, key, value) in &observed.stored {
        storages.change(&Text::from_static(storage.as_str()), |of_storage| {
            let mut members = of_storage.as_object().cloned().unwrap_or_default();
            members.insert(key.clone(), value.clone());
            *of_storage = members.into();
        });
    }
    storages.into()
}

/// The expected range if the delay is inside it, else the delay.
fn retry_delays(expected: &Array, observed: &Observed) -> Json {
    let delay = |(index, delay): (usize, &std::time::Duration)| {
        let delay = crate::trace::milliseconds(*delay);
        let range = expected.get(index);
        let bound = |of: usize| Some(range?.as_array()?.get(of)?.as_number()?.as_f64());
        match (
            bound(0),
            bound(1),
            delay.as_number().map(Number::as_f64),
            range,
        ) {
            (Some(min), Some(max), Some(ms), Some(range)) if min <= ms && ms <= max => {
                range.clone()
            }
            _ => delay,
        }
    };
    observed
        .retry_delays
        .iter()
        .enumerate()
        .map(delay)
        .collect::<Vec<_>>()
        .into()
}

/// A value, shortened to a line.
fn shorten(value: &impl ToString) -> String {
    const MAX_SHOWN: usize = 400;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
