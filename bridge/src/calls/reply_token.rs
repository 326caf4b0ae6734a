//! Was an answer written by a receiver of the request?
//!
//! A reply token is an HMAC-SHA-256 over the call id, the target agent and the deadline of a call, truncated to 128
//! bits. It follows the call id wherever an agent reads the id that it has to repeat ([`ReplyId`]), on the one copy of
//! the request that is to be answered. Someone who knows only the call id (from a log, a dead letter, an HTTP header,
//! another copy) cannot answer the call.
//!
//! The replica that made a call verifies its answers, because all others forward them to it. So each process has its
//! own random key, and replicas share none. Replicas that follow the answer in case this one stops know the hash of the
//! token. Source: docs/design.md §2 and §T3.

use a2abus_plugin::Text;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::calls::callid::{CallId, ReplyId, ReplyToken};
use crate::config::ReplyTokenMode;

/// Creates and verifies the reply tokens of this process.
#[derive(Clone)]
pub struct ReplyTokens {
    mode: ReplyTokenMode,
    key: Hmac<Sha256>,
}

/// Why an answer is rejected. Its call keeps waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// It has no token, but one is required.
    NoToken,
    /// Its token is not the one of the call.
    WrongToken,
    /// The id that it repeats is truncated.
    Shortened,
    /// It was read at a topic that does not accept answers to this call.
    WrongTopic,
    /// It is the reply of a JetStream stream that takes the request, and not from an agent.
    OfStream,
    /// It is an E2A record with a `sequence` that was already used.
    Duplicate,
}

// === impl ReplyTokens ===

impl ReplyTokens {
    /// Creates a new random key.
    ///
    /// # Errors
    /// When the operating system provides no random numbers.
    pub fn random(mode: ReplyTokenMode) -> Result<Self, getrandom::Error> {
        let mut key = hmac::digest::Key::<Hmac<Sha256>>::default();
        getrandom::fill(&mut key)?;
        let key = Hmac::new(&key);
        Ok(Self { mode, key })
    }

    /// The id that the agent `target` repeats to answer a call until `deadline`.
    #[must_use]
    pub fn reply_id(&self, call: CallId, target: Option<&Text>, deadline: &str) -> ReplyId {
        let token = match self.mode {
            ReplyTokenMode::Off => None,
            ReplyTokenMode::IfPresent | ReplyTokenMode::Required => {
                let mut mac = self.key.clone();
                // The input is unambiguous: call ids have a fixed length, and deadlines contain no zero byte. With the
                // name of an agent it nearly always fits into one block of the hash.
                mac.update(&call.bytes());
                mac.update(deadline.as_bytes());
                mac.update(&[0]);
                mac.update(target.map_or(b"", |target| target.as_bytes()));
                let whole = mac.finalize().into_bytes();
                whole.first_chunk().copied().map(ReplyToken)
            }
        };
        ReplyId { call, token }
    }

    /// Checks that an answer with the token `given` may end or continue the call that was published with the id
    /// `expected`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn verify(&self, expected: ReplyId, given: Option<ReplyToken>) -> Result<(), Rejection> {
        self.compare(expected.token, given, |token, given| {
            token.ct_eq(&given).into()
        })
    }

    /// The same for an answer that another replica has passed on. Only the hash of its token is known.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn verify_passed(
        &self,
        expected: ReplyId,
        given: Option<&str>,
    ) -> Result<(), Rejection> {
        self.compare(expected.token, given, |token, hash| *token.hash() == *hash)
    }

    /// The same for a call of another replica. Only the hash of its token is known.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn verify_hashed(
        &self,
        expected: Option<&str>,
        given: Option<ReplyToken>,
    ) -> Result<(), Rejection> {
        self.compare(expected, given, |hash, token| *token.hash() == *hash)
    }

    fn compare<E, G>(
        &self,
        expected: Option<E>,
        given: Option<G>,
        is_same: impl FnOnce(E, G) -> bool,
    ) -> Result<(), Rejection> {
        let Some(expected) = expected else {
            return Ok(());
        };
        match (given.map(|given| is_same(expected, given)), self.mode) {
            (Some(true), _) | (None, ReplyTokenMode::Off | ReplyTokenMode::IfPresent) => Ok(()),
            (Some(false), _) => Err(Rejection::WrongToken),
            (None, ReplyTokenMode::Required) => Err(Rejection::NoToken),
        }
    }
}

// === impl ReplyToken ===

impl ReplyToken {
    /// The hash, which may be stored: it is not enough to answer.
    pub(crate) fn hash(self) -> Text {
        let digits = Sha256::digest(self.0);
        let digits = digits.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>().into()
    }
}

impl std::fmt::Debug for ReplyTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyTokens")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

// === impl Rejection ===

impl Rejection {
    /// The problem of the answer, as the caller may see it.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::NoToken => "it has no reply token",
            Self::WrongToken => "its reply token is not the one of the call",
            Self::Shortened => "the id that it repeats was shortened",
            Self::WrongTopic => "it was published to a topic that does not accept answers",
            Self::OfStream => {
                "it is the reply of a JetStream stream that stores the subject of the request"
            }
            Self::Duplicate => {
                "an earlier E2A record has its `sequence`, or a higher one was already delivered"
            }
        }
    }

    /// The fix, for operators.
    #[must_use]
    pub fn fix(self) -> &'static str {
        match self {
            Self::NoToken => {
                "make the agent repeat the whole id of the request, or set calls.reply_token: if_present in the bridge"
            }
            Self::WrongToken => {
                "make the agent repeat the id of the request unchanged; if it does, somebody is forging answers"
            }
            Self::Shortened => {
                "make the agent keep all 52 characters of the id of the request, or exactly the first 26 with calls.reply_token: if_present in the bridge"
            }
            Self::WrongTopic => {
                "make the agent answer at the reply address of the request, or on a topic that a binding with role: responses reads"
            }
            Self::OfStream => {
                "set `stored: true` at the destination of the route, or take the subject out of the stream"
            }
            Self::Duplicate => {
                "make the agent number the records of each answer 0, 1, 2, ..., the last one too, or leave `sequence` out of all of them; if it does, it has sent the record twice"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    fn tokens(mode: ReplyTokenMode) -> ReplyTokens {
        ReplyTokens::random(mode).unwrap()
    }

    #[test]
    fn a_token_depends_on_its_call_target_deadline_and_key() {
        let tokens = tokens(ReplyTokenMode::Required);
        let call = CallId::new(Replica(1)).unwrap();
        let (target, deadline) = (Text::from("weather"), "2026-01-01T00:00:00Z");
        let expected = tokens.reply_id(call, Some(&target), deadline);
        assert_eq!(tokens.verify(expected, expected.token), Ok(()));
        let others = [
            tokens.reply_id(CallId::new(Replica(1)).unwrap(), Some(&target), deadline),
            tokens.reply_id(call, Some(&"x".into()), deadline),
            tokens.reply_id(call, None, deadline),
            tokens.reply_id(call, Some(&target), "2026-01-01T00:00:01Z"),
            self::tokens(ReplyTokenMode::Required).reply_id(call, Some(&target), deadline),
        ];
        for other in others {
            let verified = tokens.verify(expected, other.token);
            assert_eq!(verified, Err(Rejection::WrongToken));
        }
    }

    #[test]
    fn the_mode_decides_which_tokens_are_accepted() {
        let call = CallId::new(Replica(1)).unwrap();
        let wrong = Some(ReplyToken([0; 16]));
        for (mode, without, with_wrong) in [
            (ReplyTokenMode::Off, Ok(()), Ok(())),
            (
                ReplyTokenMode::IfPresent,
                Ok(()),
                Err(Rejection::WrongToken),
            ),
            (
                ReplyTokenMode::Required,
                Err(Rejection::NoToken),
                Err(Rejection::WrongToken),
            ),
        ] {
            let tokens = tokens(mode);
            let expected = tokens.reply_id(call, None, "d");
            assert_eq!(expected.token.is_none(), mode == ReplyTokenMode::Off);
            assert_eq!(tokens.verify(expected, None), without);
            assert_eq!(tokens.verify(expected, wrong), with_wrong);
        }
    }
}
