//! The identity of a call: 128 bits that say where its answer belongs and that nobody can guess.
//!
//! Source: docs/design.md §1. A JSON-RPC id is never an identity; this is what takes its place on the bus.

use std::fmt;
use std::str::FromStr;

/// The identity of one call, written as 26 characters of base32.
///
/// 16 bits name the replica that made the call, which is where its answer belongs, and 112 are random.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId(u128);

/// Text that is not a call id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a call id: 26 characters of lower-case base32 are needed")]
pub struct NotACallId;

/// The replica that makes calls: 16 random bits drawn when the process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replica(pub u16);

/// Length of the text form, in bytes.
pub const CALL_ID_CHARS: usize = 26;

/// RFC 4648 base32, lower case, which is legal in topics and subjects and survives systems that fold case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

// === impl CallId ===

impl CallId {
    /// A new call id.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub fn new(replica: Replica) -> Result<Self, getrandom::Error> {
        let mut random = [0; 16];
        getrandom::fill(random.get_mut(2..).unwrap_or_default())?;
        let low = u128::from_be_bytes(random);
        Ok(Self(u128::from(replica.0) << 112 | low))
    }

    /// The replica that made the call.
    #[must_use]
    pub fn replica(self) -> Replica {
        Replica((self.0 >> 112) as u16)
    }
}

impl Replica {
    /// A replica for this process.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 2];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u16::from_be_bytes(bytes)))
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; CALL_ID_CHARS];
        // 26 characters hold 130 bits: the two lowest of the last are zero.
        for (index, slot) in text.iter_mut().enumerate() {
            let shift = 123_i32 - 5 * index as i32;
            let five = if shift >= 0 {
                self.0 >> shift
            } else {
                self.0 << -shift
            };
            *slot = ALPHABET
                .get((five & 31) as usize)
                .copied()
                .unwrap_or_default();
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CallId {
    type Err = NotACallId;

    fn from_str(text: &str) -> Result<Self, NotACallId> {
        if text.len() != CALL_ID_CHARS {
            return Err(NotACallId);
        }
        let mut bits: u128 = 0;
        for (index, byte) in text.bytes().enumerate() {
            let five = u128::from(match byte {
                b'a'..=b'z' => byte - b'a',
                b'2'..=b'7' => byte - b'2' + 26,
                _ => return Err(NotACallId),
            });
            if index + 1 < CALL_ID_CHARS {
                bits = bits << 5 | five;
            } else if five & 3 == 0 {
                bits = bits << 3 | five >> 2;
            } else {
                return Err(NotACallId);
            }
        }
        Ok(Self(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_bits_are_one_to_one(bits: u128) {
            let id = CallId(bits);
            let text = id.to_string();
            prop_assert_eq!(text.len(), CALL_ID_CHARS);
            prop_assert_eq!(text.parse(), Ok(id));
        }

        #[test]
        fn other_text_is_refused(text in "[a-z2-7A-Z01]{0,30}") {
            if let Ok(id) = text.parse::<CallId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn a_call_id_names_its_replica() {
        let id = CallId::new(Replica(0xbeef)).unwrap();
        assert_eq!(id.replica(), Replica(0xbeef));
        assert_ne!(id, CallId::new(Replica(0xbeef)).unwrap());
    }
}
