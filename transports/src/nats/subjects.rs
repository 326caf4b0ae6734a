//! Which subjects does a JetStream stream store?

use serde_json::{Map, Value};

use crate::error::{TransportError, TransportErrorKind};
use crate::transport::overlap;

/// Whether every subject of the second pattern is one of the first.
#[must_use]
pub fn covers(wide: &str, narrow: &str) -> bool {
    let mut narrow = narrow.split('.');
    for word in wide.split('.') {
        match (word, narrow.next()) {
            (">", Some(_)) => return true,
            ("*", Some(narrow)) if narrow != ">" => {}
            (word, Some(narrow)) if word == narrow => {}
            _ => return false,
        }
    }
    narrow.next().is_none()
}

/// The subjects that a stream with this configuration stores; `None` if its configuration does not list all of them,
/// because it copies other streams or renames subjects.
#[must_use]
pub fn stored_subjects(stream: &Map<String, Value>) -> Option<Vec<&str>> {
    let others = ["mirror", "sources", "subject_transform"];
    let is_set = |key: &str| stream.get(key).is_some_and(|value| !value.is_null());
    if others.into_iter().any(is_set) {
        return None;
    }
    let subjects = stream.get("subjects")?.as_array()?;
    Some(subjects.iter().filter_map(Value::as_str).collect())
}

/// Refuses to read subjects of which a stream with this configuration stores nothing. A server would create a consumer
/// for them that never gets a message. `attempt` describes what needs the subjects.
///
/// # Errors
/// `BadConfig`, which names the subjects and the fix.
pub(super) fn must_store<'a>(
    attempt: &str,
    (name, config): (&str, &Value),
    subjects: impl IntoIterator<Item = &'a str>,
) -> Result<(), TransportError> {
    let Some(stored) = config.as_object().and_then(stored_subjects) else {
        return Ok(());
    };
    let is_missing = |subject: &&str| !stored.iter().any(|other| overlap(other, subject));
    let missing: Vec<&str> = subjects.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{attempt}: the stream {name} does not store {}: add this to its subjects (in jetstream.streams, if the \
         bridge manages it), or correct the binding",
        missing.join(", ")
    );
    Err(TransportError::new(TransportErrorKind::BadConfig, what))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_is_covered_when_all_of_it_is() {
        for (wide, narrow, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.>", "a.b.*", true),
            ("a.>", "a.*", true),
            ("a.>", "a.>", true),
            ("*.b", "a.b", true),
            (">", "a", true),
            ("a.b", "a.c", false),
            ("a.b", "a.*", false),
            ("a.*", "a.>", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a", false),
            ("a", "a.b", false),
            ("a.b.c", "a.b", false),
        ] {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }

    #[test]
    fn subjects_of_which_the_stream_stores_nothing_are_refused() {
        for (config, refused) in [
            (json!({"subjects": ["a.b"]}), Some("x")),
            (json!({"subjects": ["a.b", "x2"]}), Some("x")),
            (json!({"subjects": ["a.*.c", "x"]}), Some("a.*, a.b")),
            // The stream stores a part of what matches `a.*`.
            (json!({"subjects": ["a.b", "x"]}), None),
            (json!({"subjects": [">"]}), None),
            // Others may have stored anything.
            (json!({"subjects": ["y"], "sources": [{"name": "S"}]}), None),
            (json!({"mirror": {"name": "S"}}), None),
            (
                json!({"subjects": ["y"], "subject_transform": {"src": "y", "dest": "x"}}),
                None,
            ),
            (json!({"subjects": ["x", "a.b"], "sources": null}), None),
            (json!(null), None),
        ] {
            let read = ["a.*", "a.b", "x"];
            let result = must_store("read", ("S", &config), read);
            let error = result.err().map(|error| error.to_string());
            let expected = refused.map(|refused| format!("does not store {refused}: "));
            match (&error, &expected) {
                (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
                (error, expected) => assert_eq!((error, expected), (&None, &None), "{config}"),
            }
        }
    }
}
