//! Kept answers as a pure function of their records.
//!
//! The first claim of a key wins, and the first answer to it. A claim that was given back leaves nothing.

use std::sync::Arc;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::state::body;
use crate::state::{Applied, Fold, Record};

/// What happened to a key or to a call. The body of a record is `{"v":1,"event":…}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A replica has taken a request with this key.
    Claimed(Claim),
    /// It was answered.
    Answered {
        /// The call of the claim.
        call: Text,
        /// The answer.
        response: Kept,
    },
    /// It was answered, and the answer cannot be kept.
    Unkept {
        /// The call of the claim.
        call: Text,
    },
    /// No agent can have got it: another request may claim the key.
    Released {
        /// The call of the claim.
        call: Text,
    },
}

/// Who answers the request with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The hash of the path and the body of the request.
    pub(crate) digest: Text,
    /// The call id that its response names.
    pub(crate) call: Text,
    /// When it has an answer at the latest, in milliseconds since 1970.
    pub(crate) until: u64,
}

/// A response as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Its status.
    pub(crate) status: u16,
    /// Its headers.
    pub(crate) headers: Vec<(Text, Text)>,
    /// Its body.
    pub(crate) body: Text,
}

/// A key that a request has claimed.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    pub(crate) outcome: Option<Outcome>,
    bytes: usize,
}

/// How a claimed request ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// With this answer.
    Answered(Arc<Kept>),
    /// With one that is not kept.
    Unkept,
}

/// Makes claims of records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultFold;

// === impl ResultFold ===

impl Fold for ResultFold {
    type Entry = Claimed;

    fn apply(&self, entry: &mut Option<Claimed>, record: &Record) -> Applied {
        let Some(event) = body::read(record) else {
            return Applied::Unknown;
        };
        let bytes = record.body.as_ref().map_or(0, Bytes::len);
        let outcome = match (&*entry, event) {
            (None, Event::Claimed(claim)) => {
                *entry = Some(Claimed {
                    claim,
                    outcome: None,
                    bytes,
                });
                return Applied::Changed;
            }
            (Some(claimed), Event::Released { call }) if claimed.is_open(&call) => {
                *entry = None;
                return Applied::Changed;
            }
            (Some(claimed), Event::Answered { call, response }) if claimed.is_open(&call) => {
                Outcome::Answered(Arc::new(response))
            }
            (Some(claimed), Event::Unkept { call }) if claimed.is_open(&call) => Outcome::Unkept,
            (None | Some(_), _) => return Applied::Unchanged,
        };
        if let Some(claimed) = entry {
            claimed.outcome = Some(outcome);
            claimed.bytes += bytes;
        }
        Applied::Changed
    }

    fn size_bytes(&self, claimed: &Claimed) -> usize {
        size_of::<Claimed>() + claimed.bytes
    }

    fn has_ended(&self, claimed: &Claimed) -> bool {
        claimed.outcome.is_some()
    }
}

// === impl Claimed ===

impl Claimed {
    /// Whether this call is to answer it, and has not.
    fn is_open(&self, call: &str) -> bool {
        *self.claim.call == *call && self.outcome.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Position;
    use proptest::prelude::*;

    fn claimed(call: &str) -> Event {
        Event::Claimed(Claim {
            digest: "d".into(),
            call: call.into(),
            until: 1,
        })
    }

    fn answered(call: &str, body: &str) -> Event {
        Event::Answered {
            call: call.into(),
            response: Kept {
                status: 200,
                headers: Vec::new(),
                body: body.into(),
            },
        }
    }

    fn released(call: &str) -> Event {
        Event::Released { call: call.into() }
    }

    fn fold(events: &[Event]) -> (Option<Claimed>, Vec<Applied>) {
        let mut entry = None;
        let applied = events.iter().enumerate().map(|(index, event)| {
            let record = Record {
                key: "k".into(),
                position: Position {
                    partition: 0,
                    offset: index as u64,
                },
                time: 0,
                body: Some(body::write(event)),
            };
            ResultFold.apply(&mut entry, &record)
        });
        let applied = applied.collect();
        (entry, applied)
    }

    #[test]
    fn the_first_claim_and_the_first_answer_win() {
        use Applied::{Changed, Unchanged};
        let (entry, applied) = fold(&[
            answered("a", "too early"),
            claimed("a"),
            claimed("b"),
            answered("b", "of another"),
            answered("a", "first"),
            answered("a", "second"),
            released("a"),
        ]);
        assert_eq!(
            applied,
            [
                Unchanged, Changed, Unchanged, Unchanged, Changed, Unchanged, Unchanged
            ]
        );
        let outcome = entry.unwrap().outcome;
        assert!(matches!(outcome, Some(Outcome::Answered(kept)) if &*kept.body == "first"));
    }

    #[test]
    fn a_key_that_was_given_back_may_be_claimed_again() {
        let (entry, _) = fold(&[claimed("a"), released("b"), released("a"), claimed("b")]);
        assert_eq!(entry.unwrap().claim.call, "b");
    }

    proptest! {
        #[test]
        fn an_answer_is_never_replaced(picks in prop::collection::vec(0_usize..7, 0..40)) {
            let all = [
                claimed("a"), claimed("b"), released("a"), released("b"),
                answered("a", "1"), answered("b", "2"), Event::Unkept { call: "a".into() },
            ];
            let events: Vec<Event> = picks.iter().filter_map(|pick| all.get(*pick).cloned()).collect();
            let mut ended: Option<String> = None;
            for length in 0..=events.len() {
                let (entry, _) = fold(events.get(..length).unwrap_or_default());
                let now = entry.and_then(|entry| entry.outcome).map(|outcome| format!("{outcome:?}"));
                if let Some(ended) = &ended {
                    prop_assert_eq!(now.as_ref(), Some(ended));
                }
                ended = now;
            }
        }
    }
}
