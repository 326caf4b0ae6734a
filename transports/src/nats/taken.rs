//! Which subjects a stream takes, so that messages for them are confirmed by it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::api::Api;
use super::expected::Coverage;
use super::lookup::look_up;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// At most this many answers are remembered.
const MAX_KNOWN: usize = 1024;

/// How long an answer is valid. Meanwhile, messages for a new stream are published without its confirmation, and
/// messages for a deleted one fail and are sent again.
const CACHE_TTL: Duration = Duration::from_secs(10);

/// The latest answers of the API.
#[derive(Debug, Default)]
pub(super) struct TakenSubjects(Mutex<HashMap<Topic, (Instant, bool)>>);

// === impl TakenSubjects ===

impl TakenSubjects {
    /// Whether a stream takes the subject. If JetStream is off, or the user may not ask, none does.
    ///
    /// # Errors
    /// Why the API did not answer. A stream may take the subject then, and its message would be lost unnoticed.
    pub(super) async fn is_taken(
        &self,
        api: &Api,
        subject: &Topic,
    ) -> Result<bool, TransportError> {
        if let Some(is_taken) = self.known(subject, Instant::now()) {
            return Ok(is_taken);
        }
        let is_taken = match Box::pin(look_up(api.clone(), subject.clone())).await.1 {
            Coverage::Covered => true,
            Coverage::Undetermined(Some(error))
                if !matches!(
                    error.kind(),
                    TransportErrorKind::Unauthorised | TransportErrorKind::BadConfig
                ) =>
            {
                return Err(error);
            }
            Coverage::NotCovered | Coverage::Undetermined(_) => false,
        };
        self.note(subject, is_taken, Instant::now());
        Ok(is_taken)
    }

    fn known(&self, subject: &Topic, now: Instant) -> Option<bool> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, is_taken) = known.get(subject)?;
        (*until > now).then_some(*is_taken)
    }

    fn note(&self, subject: &Topic, is_taken: bool, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.retain(|_, (until, _)| *until > now);
        }
        if known.len() < MAX_KNOWN {
            known.insert(subject.clone(), (now + CACHE_TTL, is_taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_remembered_for_a_while_and_not_too_many() {
        let (subjects, now) = (TakenSubjects::default(), Instant::now());
        let topic = |name: usize| Topic::new(format!("s{name}")).unwrap();
        for name in 0..2 * MAX_KNOWN {
            subjects.note(&topic(name), true, now);
        }
        assert_eq!(subjects.known(&topic(0), now), Some(true));
        assert_eq!(subjects.known(&topic(2 * MAX_KNOWN - 1), now), None);
        let later = now + CACHE_TTL;
        assert_eq!(subjects.known(&topic(0), later), None);
        subjects.note(&topic(2 * MAX_KNOWN), false, later);
        assert_eq!(subjects.known(&topic(2 * MAX_KNOWN), later), Some(false));
    }
}
