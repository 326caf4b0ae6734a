//! Which subjects a stream takes, so that messages for them are confirmed by it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::api::Api;
use super::expected::Coverage;
use super::link::first_word;
use super::lookup::look_up;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::QUEUE_DEADLINE;

/// At most this many answers are remembered, and as many failures.
const MAX_KNOWN: usize = 1024;

/// How long an answer is valid. Meanwhile, messages for a new stream are published without its confirmation, and
/// messages for a deleted one fail and are sent again.
const CACHE_TTL: Duration = Duration::from_secs(10);

/// How long the API is not asked again when it has not answered.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is reported while the API does not answer.
const SILENT: &str = "the API does not answer: answers to requests from JetStream wait until it does; check jetstream.domain, leaf nodes, and the imports of the account";
/// The API is asked at most this many questions at once.
const MAX_QUESTIONS: usize = 64;

/// The latest answers of the API, and the questions to it.
#[derive(Debug)]
pub(super) struct TakenSubjects {
    known: Mutex<Known>,
    questions: Semaphore,
}

/// What is known, and until when.
#[derive(Debug, Default)]
struct Known {
    taken: HashMap<Topic, (Instant, bool)>,
    /// Why the API has not answered, by the first word of the subject: each requester has a subject of its own, and all
    /// of them would ask an API that does not answer.
    failed: HashMap<String, (Instant, TransportError)>,
}

// === impl TakenSubjects ===

impl TakenSubjects {
    pub(super) fn new() -> Self {
        Self {
            known: Mutex::default(),
            questions: Semaphore::new(MAX_QUESTIONS),
        }
    }

    /// Whether a stream takes the subject. If JetStream is off, or the user may not ask, none does.
    ///
    /// # Errors
    /// Why the API did not answer. A stream may take the subject then, and its message would be lost unnoticed.
    pub(super) async fn is_taken(
        &self,
        api: &Api,
        subject: &Topic,
    ) -> Result<bool, TransportError> {
        if let Some(known) = self.known().get(subject, Instant::now()) {
            return known;
        }
        let place = tokio::time::timeout(QUEUE_DEADLINE, self.questions.acquire()).await;
        let Ok(Ok(_place)) = place else {
            return Err(TransportError::new(
                TransportErrorKind::Saturated,
                format!("wait to ask JetStream which stream stores {subject}"),
            ));
        };
        // An earlier question may have been answered meanwhile.
        if let Some(known) = self.known().get(subject, Instant::now()) {
            return known;
        }
        let answer = match Box::pin(look_up(api.clone(), subject.clone())).await.1 {
            Coverage::Covered => Ok(true),
            Coverage::Undetermined(Some(error))
                if !matches!(
                    error.kind(),
                    TransportErrorKind::Unauthorised | TransportErrorKind::BadConfig
                ) =>
            {
                Err(error)
            }
            Coverage::NotCovered | Coverage::Undetermined(_) => Ok(false),
        };
        let kind = answer.as_ref().err().map(TransportError::kind);
        let is_silent = kind == Some(TransportErrorKind::TimedOut);
        api.report(is_silent.then_some(Text::from_static(SILENT)));
        // Other errors concern the stream of this subject only.
        if kind.is_none() || is_silent || kind == Some(TransportErrorKind::Disconnected) {
            self.known().note(subject, &answer, Instant::now());
        }
        answer
    }

    /// Never held over an await. A panic while it is held cannot leave it half written.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    fn get(&self, subject: &Topic, now: Instant) -> Option<Result<bool, TransportError>> {
        if let Some((until, is_taken)) = self.taken.get(subject)
            && *until > now
        {
            return Some(Ok(*is_taken));
        }
        let (until, error) = self.failed.get(first_word(subject.as_str()))?;
        (*until > now).then(|| Err(error.clone()))
    }

    fn note(&mut self, subject: &Topic, answer: &Result<bool, TransportError>, now: Instant) {
        let word = first_word(subject.as_str());
        match answer {
            Ok(is_taken) => {
                self.failed.remove(word);
                let taken = (now + CACHE_TTL, *is_taken);
                remember(&mut self.taken, subject.clone(), taken, now);
            }
            Err(error) => {
                let failed = (now + RETRY_AFTER, error.clone());
                remember(&mut self.failed, word.to_owned(), failed, now);
            }
        }
    }
}

/// Adds what is known until a time, if there is room.
fn remember<K: Eq + Hash, V>(
    known: &mut HashMap<K, (Instant, V)>,
    key: K,
    value: (Instant, V),
    now: Instant,
) {
    if known.len() >= MAX_KNOWN {
        known.retain(|_, (until, _)| *until > now);
    }
    if known.len() < MAX_KNOWN {
        known.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    /// What is known: whether a stream takes the subject, or why that is not known.
    fn get(known: &Known, name: &str, now: Instant) -> Option<Result<bool, TransportErrorKind>> {
        let known = known.get(&topic(name), now)?;
        Some(known.map_err(|error| error.kind()))
    }

    #[test]
    fn answers_are_remembered_for_a_while_and_not_too_many() {
        let (mut known, now) = (Known::default(), Instant::now());
        for name in 0..2 * MAX_KNOWN {
            known.note(&topic(&format!("s{name}")), &Ok(true), now);
        }
        let last = format!("s{}", 2 * MAX_KNOWN - 1);
        assert_eq!(get(&known, "s0", now), Some(Ok(true)));
        assert_eq!(get(&known, &last, now), None);
        let later = now + CACHE_TTL;
        assert_eq!(get(&known, "s0", later), None);
        known.note(&topic(&last), &Ok(false), later);
        assert_eq!(get(&known, &last, later), Some(Ok(false)));
    }

    #[test]
    fn a_failure_holds_for_a_moment_for_subjects_with_the_same_first_word() {
        let (mut known, now) = (Known::default(), Instant::now());
        let silent = TransportErrorKind::TimedOut;
        let failed = Err(TransportError::new(silent, "ask"));
        known.note(&topic("a.old"), &Ok(true), now);
        known.note(&topic("a.b"), &failed, now);
        assert_eq!(get(&known, "a.c", now), Some(Err(silent)));
        assert_eq!(get(&known, "a.old", now), Some(Ok(true)));
        assert_eq!(get(&known, "b.c", now), None);
        assert_eq!(get(&known, "a.c", now + RETRY_AFTER), None);
        known.note(&topic("a.d"), &Ok(false), now);
        assert_eq!(get(&known, "a.c", now), None);
    }
}
