//! Does an answer come from somebody who has the request?
//!
//! A reply token is an HMAC-SHA-256 over the call id, the target agent and the deadline of a call, cut to 128 bits. It
//! travels after the call id in every place where an agent finds the id that it repeats ([`ReplyId`]), on the one copy
//! of the request that is to be answered. Someone who knows only the call id (from a log, a dead letter, an HTTP
//! header, another copy) cannot answer the call.
//!
//! The replica that made a call verifies its answers, since all others forward them to it, so that each process draws a
//! key of its own and no replica has to share one. Replicas that follow the answer in case this one stops know the hash
//! of the token. Source: docs/design.md §2 and §T3.

use a2abus_plugin::Text;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::calls::callid::{CallId, ReplyId, ReplyToken};
use crate::config::ReplyTokenMode;

/// Makes the reply tokens of this process, and verifies those that come back.
#[derive(Clone)]
pub struct ReplyTokens {
    mode: ReplyTokenMode,
    key: Hmac<Sha256>,
}

/// Why an answer is rejected; its call keeps waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// It has no token, and one is demanded.
    NoToken,
    /// Its token is not the one of the call.
    WrongToken,
    /// The id that it repeats lacks the end of the token.
    Shortened,
    /// It was read where no answers to this call are taken.
    WrongPlace,
}

// === impl ReplyTokens ===

impl ReplyTokens {
    /// With a new key.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub fn draw(mode: ReplyTokenMode) -> Result<Self, getrandom::Error> {
        let mut key = hmac::digest::Key::<Hmac<Sha256>>::default();
        getrandom::fill(&mut key)?;
        let key = Hmac::new(&key);
        Ok(Self { mode, key })
    }

    /// What the agent `target` repeats to answer a call until `deadline`.
    #[must_use]
    pub fn reply_id(&self, call: CallId, target: Option<&Text>, deadline: &str) -> ReplyId {
        let token = match self.mode {
            ReplyTokenMode::Off => None,
            ReplyTokenMode::IfPresent | ReplyTokenMode::Required => {
                let mut mac = self.key.clone();
                // The call id has one length, and no deadline holds the zero byte.
                mac.update(call.text().as_bytes());
                mac.update(deadline.as_bytes());
                mac.update(&[0]);
                mac.update(target.map_or(b"", |target| target.as_bytes()));
                let whole = mac.finalize().into_bytes();
                whole.first_chunk().copied().map(ReplyToken)
            }
        };
        ReplyId { call, token }
    }

    /// Whether an answer with this token may end or continue the call that was published as `asked`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn verify(&self, asked: ReplyId, given: Option<ReplyToken>) -> Result<(), Rejection> {
        match (asked.token, given) {
            (None, _) => Ok(()),
            (Some(token), Some(given)) if bool::from(token.ct_eq(&given)) => Ok(()),
            (Some(_), Some(_)) => Err(Rejection::WrongToken),
            (Some(_), None) => self.without_token(),
        }
    }

    fn without_token(&self) -> Result<(), Rejection> {
        match self.mode {
            ReplyTokenMode::Required => Err(Rejection::NoToken),
            ReplyTokenMode::Off | ReplyTokenMode::IfPresent => Ok(()),
        }
    }

    /// The same for a call of another replica, of whose token only the hash is known.
    ///
    /// # Errors
    /// Why the answer may not.
    pub(crate) fn verify_hashed(
        &self,
        asked: Option<&str>,
        given: Option<ReplyToken>,
    ) -> Result<(), Rejection> {
        match (asked, given) {
            (None, _) => Ok(()),
            (Some(hash), Some(given)) if *given.hash() == *hash => Ok(()),
            (Some(_), Some(_)) => Err(Rejection::WrongToken),
            (Some(_), None) => self.without_token(),
        }
    }
}

// === impl ReplyToken ===

impl ReplyToken {
    /// What may be written down of it: who knows the hash cannot answer.
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
    /// The problem of the answer, in words that the caller may see.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::NoToken => "it has no reply token",
            Self::WrongToken => "its reply token is not the one of the call",
            Self::Shortened => "the id that it repeats was shortened",
            Self::WrongPlace => "it was published where no answers are taken",
        }
    }

    /// The fix, for operators.
    #[must_use]
    pub fn cure(self) -> &'static str {
        match self {
            Self::NoToken => {
                "the agent must repeat the whole id of the request, or set calls.reply_token: if_present"
            }
            Self::WrongToken => {
                "if the agent is honest, it must repeat the id of the request unchanged"
            }
            Self::Shortened => {
                "the agent must keep all 52 characters of the id of the request, or exactly the first 26 with calls.reply_token: if_present"
            }
            Self::WrongPlace => {
                "the agent must answer at the reply address of the request, or on a topic that a binding with role: responses reads"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    fn tokens(mode: ReplyTokenMode) -> ReplyTokens {
        ReplyTokens::draw(mode).unwrap()
    }

    #[test]
    fn a_token_is_of_one_call_one_target_one_deadline_and_one_key() {
        let tokens = tokens(ReplyTokenMode::Required);
        let call = CallId::new(Replica(1)).unwrap();
        let (target, deadline) = (Text::from("weather"), "2026-01-01T00:00:00Z");
        let asked = tokens.reply_id(call, Some(&target), deadline);
        assert_eq!(tokens.verify(asked, asked.token), Ok(()));
        let others = [
            tokens.reply_id(CallId::new(Replica(1)).unwrap(), Some(&target), deadline),
            tokens.reply_id(call, Some(&"x".into()), deadline),
            tokens.reply_id(call, None, deadline),
            tokens.reply_id(call, Some(&target), "2026-01-01T00:00:01Z"),
            self::tokens(ReplyTokenMode::Required).reply_id(call, Some(&target), deadline),
        ];
        for other in others {
            let verified = tokens.verify(asked, other.token);
            assert_eq!(verified, Err(Rejection::WrongToken));
        }
    }

    #[test]
    fn what_is_demanded_is_configured() {
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
            let asked = tokens.reply_id(call, None, "d");
            assert_eq!(asked.token.is_none(), mode == ReplyTokenMode::Off);
            assert_eq!(tokens.verify(asked, None), without);
            assert_eq!(tokens.verify(asked, wrong), with_wrong);
        }
    }
}
