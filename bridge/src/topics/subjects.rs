//! Which subjects does a JetStream stream store?

use serde_json::{Map, Value};

/// Which of these subjects a stream with this configuration does not store.
pub(super) fn lacking<'a>(stream: &Map<String, Value>, subjects: &'a [String]) -> Vec<&'a str> {
    // The configuration of a mirror does not list its subjects.
    if stream.contains_key("mirror") || stream.contains_key("sources") {
        return Vec::new();
    }
    let stored = stream.get("subjects").and_then(Value::as_array);
    let stored = stored.into_iter().flatten().filter_map(Value::as_str);
    let stored: Vec<&str> = stored.collect();
    let subjects = subjects.iter().map(String::as_str);
    subjects
        .filter(|subject| !stored.iter().any(|filter| covers(filter, subject)))
        .collect()
}

/// Whether everything that matches `subject` also matches `filter`.
pub(super) fn covers(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(word)) if word != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

/// The subjects that no other subject in the list covers, in their order. A server refuses overlapping subjects, both
/// within one stream and in two streams.
pub(super) fn broadest(subjects: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for subject in subjects {
        if !kept.iter().any(|other| covers(other, subject)) {
            kept.retain(|other| !covers(subject, other));
            kept.push(subject.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broadest_subjects_cover_all_others_once() {
        let subjects = ["a.x", "a.*", "b", "a.>", "b", "c.*", "c.y"].map(str::to_owned);
        assert_eq!(broadest(&subjects), ["b", "a.>", "c.*"]);
    }

    #[test]
    fn a_filter_covers_a_subject_if_it_matches_everything_the_subject_matches() {
        for (filter, subject) in [
            ("a.b", "a.b"),
            ("a.>", "a.b"),
            ("a.>", "a.*"),
            ("a.>", "a.>"),
            ("*.b", "a.b"),
            (">", "a"),
        ] {
            assert!(covers(filter, subject), "{filter} {subject}");
        }
        for (filter, subject) in [
            ("a.b", "a.c"),
            ("a.b", "a"),
            ("a", "a.b"),
            ("a.*", "a.>"),
            ("a.b", "a.*"),
            ("a.>", "a"),
        ] {
            assert!(!covers(filter, subject), "{filter} {subject}");
        }
    }
}
