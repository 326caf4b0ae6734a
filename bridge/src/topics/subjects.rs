//! Which subjects of a list does a JetStream stream store?

use a2abus_transports::nats::{covers, stored_subjects};
use a2abus_transports::overlap;
use serde_json::{Map, Value};

/// The subjects in `whole` that a stream with this configuration does not store, or stores only in part, and those in
/// `part` of which it stores nothing.
pub(super) fn lacking<'a>(
    stream: &Map<String, Value>,
    whole: &'a [String],
    part: &'a [String],
) -> Vec<&'a str> {
    let Some(stored) = stored_subjects(stream) else {
        return Vec::new();
    };
    let whole = whole.iter().map(String::as_str);
    let whole = whole.filter(|subject| !stored.iter().any(|filter| covers(filter, subject)));
    let part = part.iter().map(String::as_str);
    let part = part.filter(|subject| !stored.iter().any(|filter| overlap(filter, subject)));
    whole.chain(part).collect()
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
}
