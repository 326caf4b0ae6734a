//! Whether any stream stores a subject. Asked when a stored publication had no responders.
//!
//! ```text
//! no responders --unheard--> known for a second ----------------------------> verdict
//!                            asked already: wait with the others --+
//!                            else STREAM.NAMES --found-------------+--------> verdict for all who wait
//! ```
//! A publication gets "no responders" both if no stream exists and while the stream elects its leader. The first needs
//! a person to repair it; the second is temporary. Only the API knows which it is. The bridge asks rarely, because the
//! electing cluster is busy: once at a time and once a second for each subject, and about few subjects at once.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::api::Api;
use super::expected::{Coverage, Expected};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// The API is asked about at most this many subjects at once.
const MAX_LOOKUPS: usize = 16;

/// At most this many answers are remembered.
const MAX_KNOWN: usize = 1024;

/// How long an answer is valid. Nobody asks once a stream stores the subject. A stream that is created within this time
/// and has no leader by its end counts as missing until then.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// How long the API may take, also to create a managed stream, if the request timeout of the client is not shorter.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The requests to the API and its latest answers. Waiting publications keep their permits, which bounds their number.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    waiting: HashMap<Topic, Vec<Expected>>,
    known: HashMap<Topic, (Instant, Coverage)>,
}

// === impl Lookups ===

impl Lookups {
    /// Adds a publication without responders. Returns the subject if the API must be asked about it.
    pub(super) fn no_responders(&mut self, expected: Expected, now: Instant) -> Option<Topic> {
        let subject = expected.subject.clone();
        if let Some((until, coverage)) = self.known.get(&subject)
            && *until > now
        {
            expected.no_responders(coverage.clone());
            return None;
        }
        if let Some(waiting) = self.waiting.get_mut(&subject) {
            waiting.push(expected);
            return None;
        }
        if self.waiting.len() >= MAX_LOOKUPS {
            expected.no_responders(Coverage::Undetermined(None));
            return None;
        }
        self.waiting.insert(subject.clone(), vec![expected]);
        Some(subject)
    }

    /// Records the answer of the API, and returns the publications that waited for it.
    pub(super) fn found(
        &mut self,
        subject: &Topic,
        coverage: &Coverage,
        now: Instant,
    ) -> Vec<Expected> {
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, (until, _)| *until > now);
        }
        if self.known.len() < MAX_KNOWN {
            let known = (now + CACHE_TTL, coverage.clone());
            self.known.insert(subject.clone(), known);
        }
        self.waiting.remove(subject).unwrap_or_default()
    }

    /// Takes the waiting publications to which this applies. Lookups for which none is left are forgotten.
    pub(super) fn take(&mut self, which: impl Fn(&Expected) -> bool) -> Vec<Expected> {
        let mut taken = Vec::new();
        self.waiting.retain(|_, waiting| {
            taken.extend(waiting.extract_if(.., |expected| which(expected)));
            !waiting.is_empty()
        });
        taken
    }

    /// The subjects for which publications wait.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &Topic> {
        self.waiting.keys()
    }
}

/// Asks the API whether a stream stores the subject. If none does, and one is managed, it is created.
pub(super) async fn look_up(api: Api, subject: Topic) -> (Topic, Coverage) {
    let coverage = match tokio::time::timeout(LOOKUP_TIMEOUT, ask(&api, &subject)).await {
        Ok(Ok(coverage)) => coverage,
        Ok(Err(error)) => Coverage::Undetermined(Some(error)),
        Err(_) => Coverage::Undetermined(Some(TransportError::new(
            TransportErrorKind::TimedOut,
            "ask JetStream which stream stores the subject",
        ))),
    };
    (subject, coverage)
}

async fn ask(api: &Api, subject: &Topic) -> Result<Coverage, TransportError> {
    let found = coverage(&api.stream_names(subject).await?);
    if !matches!(found, Coverage::NotCovered) {
        return Ok(found);
    }
    Ok(match api.ensure_topic(subject).await {
        Ok(true) => Coverage::Covered,
        Ok(false) => found,
        Err(error) if is_api_away(&error) => return Err(error),
        Err(error) => Coverage::NotCreated(error),
    })
}

/// Whether an error concerns the API, and not the stream that was asked for.
fn is_api_away(error: &TransportError) -> bool {
    matches!(
        error.kind(),
        TransportErrorKind::TimedOut | TransportErrorKind::Disconnected
    )
}

/// The answer in a list of stream names: a server writes an empty list as `null` or `[]`.
fn coverage(answer: &Value) -> Coverage {
    match answer.get("streams") {
        Some(Value::Array(streams)) if !streams.is_empty() => Coverage::Covered,
        Some(Value::Array(_) | Value::Null) => Coverage::NotCovered,
        _ => Coverage::Undetermined(Some(TransportError::new(
            TransportErrorKind::Other,
            "ask JetStream for STREAM.NAMES: the response does not match the request",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::expected::{Answer, expected};
    use super::*;

    /// Asks about a subject at a time after the start. Returns whether the API is asked, and the verdict if there is
    /// one.
    fn ask(
        lookups: &mut Lookups,
        subject: &str,
        now: Instant,
    ) -> (bool, Option<TransportErrorKind>) {
        let (expected, mut verdict) = expected(subject, 1, Answer::Stored, 5);
        let is_lookup = lookups.no_responders(expected, now).is_some();
        let verdict = verdict.now();
        (
            is_lookup,
            verdict.map(|verdict| verdict.unwrap_err().kind()),
        )
    }

    #[test]
    fn lists_of_streams() {
        for (answer, expected) in [
            (json!({"streams": ["S"]}), "Covered"),
            (json!({"streams": []}), "NotCovered"),
            (json!({"total": 0, "streams": null}), "NotCovered"),
            (json!({}), "Undetermined"),
            (json!({"streams": "S"}), "Undetermined"),
        ] {
            let found = format!("{:?}", coverage(&answer));
            assert!(found.starts_with(expected), "{answer}: {found}");
        }
    }

    #[tokio::test]
    async fn one_lookup_answers_all_waiting_publications_for_a_second() {
        let (mut lookups, now) = (Lookups::default(), Instant::now());
        let topic = Topic::new("a").unwrap();
        assert_eq!(ask(&mut lookups, "a", now), (true, None));
        assert_eq!(ask(&mut lookups, "a", now), (false, None));
        assert_eq!(ask(&mut lookups, "b", now), (true, None));
        assert_eq!(lookups.found(&topic, &Coverage::NotCovered, now).len(), 2);
        let unknown = Some(TransportErrorKind::UnknownTopic);
        assert_eq!(ask(&mut lookups, "a", now), (false, unknown));
        assert_eq!(ask(&mut lookups, "a", now + CACHE_TTL), (true, None));
    }

    #[tokio::test]
    async fn a_publication_of_a_lost_connection_does_not_wait_for_its_lookup() {
        let (mut lookups, now) = (Lookups::default(), Instant::now());
        for connects in [1, 2] {
            let (mut expected, _verdict) = expected("a", connects, Answer::Stored, 5);
            expected.connects = connects;
            lookups.no_responders(expected, now);
        }
        let lost = lookups.take(|expected| expected.connects == 1);
        assert_eq!(lost.len(), 1);
        let topic = Topic::new("a").unwrap();
        assert_eq!(lookups.subjects().collect::<Vec<_>>(), [&topic]);
        assert_eq!(lookups.found(&topic, &Coverage::NotCovered, now).len(), 1);
    }

    #[tokio::test]
    async fn a_publication_after_a_reconnect_does_not_wait_for_a_lookup_before_it() {
        let (mut lookups, now) = (Lookups::default(), Instant::now());
        assert_eq!(ask(&mut lookups, "a", now), (true, None));
        assert_eq!(lookups.take(|_| true).len(), 1);
        assert_eq!(lookups.subjects().count(), 0);
        assert_eq!(ask(&mut lookups, "a", now), (true, None));
    }

    #[tokio::test]
    async fn open_lookups_and_cached_answers_are_bounded() {
        let (mut lookups, now) = (Lookups::default(), Instant::now());
        for subject in 0..MAX_LOOKUPS {
            assert!(ask(&mut lookups, &subject.to_string(), now).0);
        }
        let retry = Some(TransportErrorKind::Disconnected);
        assert_eq!(ask(&mut lookups, "more", now), (false, retry));
        for subject in 0..2 * MAX_KNOWN {
            let topic = Topic::new(subject.to_string()).unwrap();
            lookups.found(&topic, &Coverage::Covered, now);
        }
        assert_eq!(lookups.known.len(), MAX_KNOWN);
        lookups.found(
            &Topic::new("later").unwrap(),
            &Coverage::Covered,
            now + CACHE_TTL,
        );
        assert_eq!(lookups.known.len(), 1);
    }
}
