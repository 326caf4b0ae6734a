//! Which subjects a stream takes, so that messages for them are confirmed by it.

use std::collections::HashMap;
use std::error::Error as _;
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
use crate::error::{Disposition, TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::QUEUE_DEADLINE;

/// At most this many answers are remembered, and as many failures.
const MAX_KNOWN: usize = 1024;

/// How long an answer is valid. Meanwhile, messages for a new stream are published without its confirmation, and
/// messages for a deleted one fail and are sent again.
const CACHE_TTL: Duration = Duration::from_secs(10);

/// How long the API is not asked again after it gave no answer, or an error. After that, its servers may be back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is reported while the API does not answer.
const SILENT: &str = "the API does not answer: answers to requests from JetStream wait until it does; check leaf nodes, and the imports of the account";
/// What is reported while it answers with an error, or has no server any more.
const FAILS: &str = "the API fails: answers to requests from JetStream wait until it says which streams store their subjects";
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
    /// Why the API did not say it. A stream may take the subject then, and its message would be lost unnoticed. The
    /// kind of the error is one for which messages wait.
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
        let asked_at = Instant::now();
        let coverage = Box::pin(look_up(api.clone(), subject.clone())).await.1;
        let valid_for = match coverage {
            Coverage::Covered | Coverage::NotCovered => CACHE_TTL,
            Coverage::NotCreated(_) | Coverage::Undetermined(_) => RETRY_AFTER,
        };
        let has_answered = !matches!(coverage, Coverage::Undetermined(_));
        let answer = match coverage {
            Coverage::Covered => Ok(true),
            Coverage::NotCreated(error) | Coverage::Undetermined(Some(error))
                if !matches!(
                    error.kind(),
                    TransportErrorKind::Unauthorised | TransportErrorKind::BadConfig
                ) =>
            {
                Err(error)
            }
            Coverage::NotCovered | Coverage::NotCreated(_) | Coverage::Undetermined(_) => Ok(false),
        };
        let trouble = answer.as_ref().err().filter(|_| !has_answered);
        let trouble = trouble.and_then(trouble_of);
        let is_remembered = answer.is_ok() || trouble.is_some();
        let kind = answer.as_ref().err().map(TransportError::kind);
        // A lost connection is reported already.
        if kind != Some(TransportErrorKind::Disconnected) {
            api.report(asked_at, trouble);
        }
        let answer = answer.map_err(undecided);
        if is_remembered {
            self.known()
                .note(subject, &answer, valid_for, Instant::now());
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

    fn note(
        &mut self,
        subject: &Topic,
        answer: &Result<bool, TransportError>,
        valid_for: Duration,
        now: Instant,
    ) {
        let word = first_word(subject.as_str());
        match answer {
            Ok(is_taken) => {
                self.failed.remove(word);
                let taken = (now + valid_for, *is_taken);
                remember(&mut self.taken, subject.clone(), taken, now);
            }
            Err(error) => {
                let failed = (now + valid_for, error.clone());
                remember(&mut self.failed, word.to_owned(), failed, now);
            }
        }
    }
}

/// What an error says about the API. `None` for an error that somebody must repair.
fn trouble_of(error: &TransportError) -> Option<Text> {
    if error.kind() == TransportErrorKind::TimedOut {
        return Some(Text::from_static(SILENT));
    }
    let cause = error.source();
    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
    let concerns_api = error.disposition() == Disposition::Retry;
    concerns_api.then(|| Text::from(format!("{FAILS}: {cause}")))
}

/// The error of a message if it is not known whether a stream takes its subject. An error of the API says nothing about
/// the message, which must not become a dead letter because of it.
fn undecided(error: TransportError) -> TransportError {
    match error.kind() {
        TransportErrorKind::Disconnected
        | TransportErrorKind::TimedOut
        | TransportErrorKind::Saturated => error,
        _ => TransportError::new(
            TransportErrorKind::Disconnected,
            "ask JetStream which stream stores the subject",
        )
        .caused_by(error),
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
            known.note(&topic(&format!("s{name}")), &Ok(true), CACHE_TTL, now);
        }
        let last = format!("s{}", 2 * MAX_KNOWN - 1);
        assert_eq!(get(&known, "s0", now), Some(Ok(true)));
        assert_eq!(get(&known, &last, now), None);
        let later = now + CACHE_TTL;
        assert_eq!(get(&known, "s0", later), None);
        known.note(&topic(&last), &Ok(false), CACHE_TTL, later);
        assert_eq!(get(&known, &last, later), Some(Ok(false)));
    }

    #[test]
    fn a_failure_holds_for_a_moment_for_subjects_with_the_same_first_word() {
        let (mut known, now) = (Known::default(), Instant::now());
        let silent = TransportErrorKind::TimedOut;
        let failed = Err(TransportError::new(silent, "ask"));
        known.note(&topic("a.old"), &Ok(true), CACHE_TTL, now);
        known.note(&topic("a.b"), &failed, RETRY_AFTER, now);
        assert_eq!(get(&known, "a.c", now), Some(Err(silent)));
        assert_eq!(get(&known, "a.old", now), Some(Ok(true)));
        assert_eq!(get(&known, "b.c", now), None);
        assert_eq!(get(&known, "a.c", now + RETRY_AFTER), None);
        known.note(&topic("a.d"), &Ok(false), CACHE_TTL, now);
        assert_eq!(get(&known, "a.c", now), None);
        assert_eq!(get(&known, "a.d", now), Some(Ok(false)));
        // As after an error that means that there is no JetStream.
        known.note(&topic("a.d"), &Ok(false), RETRY_AFTER, now);
        assert_eq!(get(&known, "a.d", now + RETRY_AFTER), None);
    }
}
