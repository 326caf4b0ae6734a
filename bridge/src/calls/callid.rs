//! Call ids: 128 bits that name the replica that receives the answer, and that cannot be guessed.
//!
//! An agent receives the call id followed by a reply token, as one text ([`ReplyId`]). Whatever part of its request it
//! repeats to name the call (the JSON-RPC id, a header, the reply subject) also returns the token, so agents need not
//! know about the token. Logs, dead letters and HTTP headers show only the call id, which is not enough to answer.
//!
//! A JSON-RPC id does not identify a call, so the call id replaces it on the bus. Source: docs/design.md §1.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

use a2abus_plugin::{Event, Text, extension};
use bytes::Bytes;
use subtle::{Choice, ConstantTimeEq};

/// The identity of one call, written as 26 characters of base32.
///
/// 16 bits name the replica that made the call and receives its answer, 110 are random, and the last two tell whether
/// other replicas follow the answer, and whether the caller follows the task that the answer shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId(u128);

/// The proof that an answer was written by a receiver of the request: 128 bits. Its text is secret until the call ends.
#[derive(Clone, Copy)]
pub struct ReplyToken(pub(crate) [u8; 16]);

/// The id that an agent repeats to answer a call: the call id and, if there is one, the reply token, as one base32
/// text.
#[derive(Debug, Clone, Copy)]
pub struct ReplyId {
    /// The call.
    pub call: CallId,
    /// The token.
    pub token: Option<ReplyToken>,
}

/// Text that is not a call id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a call id: 26 characters of lower-case base32 are needed")]
pub struct NotACallId;

/// The replica that makes calls: the configured number, or 16 random bits chosen when the process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replica(pub u16);

/// Length of the text form of 128 bits, in bytes.
pub const CALL_ID_CHARS: usize = 26;

/// The bit of a call whose answer other replicas follow.
const FOLLOWED: u128 = 1;
/// The bit of a call that continues after an unfinished task, until the task ends.
const FOLLOWS_TASK: u128 = 2;

/// RFC 4648 base32, lower case, which is legal in topics and subjects and survives systems that fold case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Random bits from the operating system, fetched in batches: a system call for each id would cost more than the rest of
/// making it.
fn random_bits() -> Result<u128, getrandom::Error> {
    thread_local! {
        static UNUSED: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
    }
    UNUSED.with_borrow_mut(|unused| {
        if let Some(bits) = unused.pop() {
            return Ok(bits);
        }
        let mut bytes = [[0; 16]; 32];
        getrandom::fill(bytes.as_flattened_mut())?;
        let [bits, rest @ ..] = bytes.map(u128::from_ne_bytes);
        unused.extend(rest);
        Ok(bits)
    })
}

// === impl CallId ===

impl CallId {
    /// A new call id.
    ///
    /// # Errors
    /// When the operating system provides no random numbers.
    pub fn new(replica: Replica) -> Result<Self, getrandom::Error> {
        let low = random_bits()? >> 16 & !(FOLLOWED | FOLLOWS_TASK);
        Ok(Self(u128::from(replica.0) << 112 | low))
    }

    /// The id for a call whose answer other replicas follow: one of them receives it if this one stops.
    #[must_use]
    pub fn followed(self) -> Self {
        Self(self.0 | FOLLOWED)
    }

    /// The id for a call that continues after an unfinished task. An attached agent reports the states of the task to
    /// such calls only.
    #[must_use]
    pub fn following_task(self) -> Self {
        Self(self.0 | FOLLOWS_TASK)
    }

    /// Whether other replicas follow the answer.
    #[must_use]
    pub fn is_followed(self) -> bool {
        self.0 & FOLLOWED != 0
    }

    /// Whether the call continues after an unfinished task.
    #[must_use]
    pub fn follows_task(self) -> bool {
        self.0 & FOLLOWS_TASK != 0
    }

    /// Its text.
    #[must_use]
    pub fn text(self) -> Text {
        text_of(&base32(self.0)).into()
    }

    /// The characters of its text.
    pub(crate) fn characters(self) -> [u8; CALL_ID_CHARS] {
        base32(self.0)
    }

    /// The call that a text names, if it is another one than this. A text without a token does not count, because it
    /// may be something else of the same form. Nearly all texts begin with this call, so those are not parsed.
    pub(crate) fn other_in(self, text: &str) -> Option<Self> {
        if text.as_bytes().starts_with(&self.characters()) {
            return None;
        }
        let other = text.parse::<ReplyId>().ok()?;
        other.token.map(|_| other.call)
    }

    /// Its 128 bits.
    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The replica that made the call.
    #[must_use]
    pub fn replica(self) -> Replica {
        Replica((self.0 >> 112) as u16)
    }
}

impl Replica {
    /// A random number for this process.
    ///
    /// # Errors
    /// When the operating system provides no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 2];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u16::from_be_bytes(bytes)))
    }

    /// Its text: four hexadecimal digits.
    pub(crate) fn text(self) -> Text {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = [12, 8, 4, 0].map(|shift| DIGITS[usize::from(self.0 >> shift & 15)]);
        text_of(&digits).into()
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(text_of(&base32(self.0)))
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
        read_base32(text).map(Self).ok_or(NotACallId)
    }
}

/// A topic for logs and errors. If it is a reply subject, whose last word contains a reply token, the token is removed,
/// because anyone who knows it can answer the call.
pub(crate) fn shown_topic(topic: &str) -> Cow<'_, str> {
    let (rest, last) = topic.rsplit_once('.').unwrap_or(("", topic));
    match last.parse() {
        Ok(ReplyId {
            call,
            token: Some(_),
        }) if rest.is_empty() => call.to_string().into(),
        Ok(ReplyId {
            call,
            token: Some(_),
        }) => format!("{rest}.{call}").into(),
        _ => topic.into(),
    }
}

/// A 64-bit word holds 12 characters, which are 60 bits.
const WORD: usize = 12;

/// 128 bits as 26 characters. These hold 130 bits; the two lowest bits of the last one are zero.
fn base32(bits: u128) -> [u8; CALL_ID_CHARS] {
    let words = [(bits >> 68) as u64, (bits >> 8) as u64, (bits << 52) as u64];
    let mut text = [0; CALL_ID_CHARS];
    for (characters, word) in text.chunks_mut(WORD).zip(words) {
        let mut shift = 5 * WORD;
        for character in characters {
            shift -= 5;
            *character = ALPHABET[(word >> shift & 31) as usize];
        }
    }
    text
}

/// Base32 as text.
fn text_of(base32: &[u8]) -> &str {
    std::str::from_utf8(base32).unwrap_or_default()
}

/// The five bits of each character of the alphabet; [`NOT_BASE32`] for any other byte.
const DIGITS: [u8; 256] = {
    let mut digits = [NOT_BASE32; 256];
    let mut digit = 0;
    while digit < ALPHABET.len() {
        digits[ALPHABET[digit] as usize] = digit as u8;
        digit += 1;
    }
    digits
};
const NOT_BASE32: u8 = 0xff;

/// Whether a text is the text form of 128 bits. The two lowest bits of its last character are unused.
fn is_base32(text: &str) -> bool {
    let digit = |character: &u8| DIGITS[usize::from(*character)];
    let digits = text.as_bytes().iter().map(digit);
    let (seen, last) = digits.fold((0, 0), |(seen, _), digit| (seen | digit, digit));
    text.len() == CALL_ID_CHARS && seen < 32 && last & 3 == 0
}

fn read_base32(text: &str) -> Option<u128> {
    if !is_base32(text) {
        return None;
    }
    // Words of 60, 60 and 10 bits.
    let mut words = [0_u64; CALL_ID_CHARS.div_ceil(WORD)];
    for (word, characters) in words.iter_mut().zip(text.as_bytes().chunks(WORD)) {
        for character in characters {
            *word = *word << 5 | u64::from(DIGITS[usize::from(*character)]);
        }
    }
    let [high, middle, low] = words.map(u128::from);
    Some(high << 68 | middle << 8 | low >> 2)
}

// === impl ReplyToken ===

impl ConstantTimeEq for ReplyToken {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for ReplyToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

// === impl ReplyId ===

impl ReplyId {
    /// Its text.
    #[must_use]
    pub fn text(self) -> Text {
        let mut text = [0; 2 * CALL_ID_CHARS];
        let (call, token) = text.split_at_mut(CALL_ID_CHARS);
        call.copy_from_slice(&base32(self.call.0));
        let Some(ReplyToken(bytes)) = self.token else {
            return text_of(call).into();
        };
        token.copy_from_slice(&base32(u128::from_be_bytes(bytes)));
        text_of(&text).into()
    }
}

impl fmt::Display for ReplyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.call, f)?;
        match self.token {
            Some(ReplyToken(bytes)) => f.write_str(text_of(&base32(u128::from_be_bytes(bytes)))),
            None => Ok(()),
        }
    }
}

impl FromStr for ReplyId {
    type Err = NotACallId;

    fn from_str(text: &str) -> Result<Self, NotACallId> {
        let (call, token) = text.split_at_checked(CALL_ID_CHARS).ok_or(NotACallId)?;
        let token = match token {
            "" => None,
            token => {
                let bits = read_base32(token).ok_or(NotACallId)?;
                Some(ReplyToken(bits.to_be_bytes()))
            }
        };
        let call = call.parse()?;
        Ok(Self { call, token })
    }
}

/// Whether a JSON-RPC id, as JSON, is that of a call of a bridge.
pub(crate) fn is_reply_id(id: &str) -> bool {
    let text: Option<String> = serde_json::from_str(id).ok();
    text.is_some_and(|text| text.parse::<ReplyId>().is_ok())
}

/// The `callid` of an event without its token, for logs and dead letters.
#[must_use]
pub fn logged_call_id(event: &Event) -> Option<Text> {
    event.extension_text(extension::CALL_ID).map(without_token)
}

/// Removes the token from a reply id. Other text is returned unchanged.
pub(crate) fn without_token(text: &Text) -> Text {
    match text.split_at_checked(CALL_ID_CHARS) {
        Some((call, token)) if is_base32(call) && is_base32(token) => call.into(),
        _ => text.clone(),
    }
}

/// The id of a request, as JSON, for the log: a reply id without its token.
pub(crate) fn logged_id(id: &str) -> Text {
    let text: Result<String, _> = serde_json::from_str(id);
    text.map_or_else(|_| id.into(), |text| without_token(&text.into()))
}

/// Removes the token from each reply id in the bytes that `is_secret`. Finds reply ids that are whole words: as a JSON
/// string, in a string within a string, or in a subject, even if the JSON is invalid.
pub(crate) fn without_tokens(bytes: &Bytes, is_secret: impl Fn(ReplyId) -> bool) -> Bytes {
    let (mut output, mut copied, mut at) = (Vec::new(), 0, 0);
    for word in bytes.split(|byte| !matches!(byte, b'a'..=b'z' | b'2'..=b'7')) {
        let end = at + word.len();
        // The letter of an escape, as in `\n`, is not part of the word.
        let follows_backslash = at > 0 && bytes.get(at - 1) == Some(&b'\\');
        let word = match word.split_first() {
            Some((_, rest)) if follows_backslash && rest.len() == 2 * CALL_ID_CHARS => rest,
            _ => word,
        };
        let id = std::str::from_utf8(word)
            .ok()
            .and_then(|it| it.parse().ok());
        if id.is_some_and(|id: ReplyId| id.token.is_some() && is_secret(id)) {
            let token = end - CALL_ID_CHARS;
            output.extend_from_slice(bytes.get(copied..token).unwrap_or_default());
            copied = end;
        }
        at = end + 1;
    }
    if copied == 0 {
        return bytes.clone();
    }
    output.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    output.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

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
    fn a_reply_id_is_the_call_id_and_its_token() {
        let call = CallId::new(Replica(7)).unwrap();
        for token in [None, Some(ReplyToken([0xa5; 16]))] {
            let id = ReplyId { call, token };
            let text = id.to_string();
            assert!(text.starts_with(&call.to_string()));
            let read: ReplyId = text.parse().unwrap();
            assert_eq!(read.call, call);
            assert_eq!(read.token.map(|it| it.0), token.map(|it| it.0));
            assert!(
                !format!("{id:?}").contains(text.get(CALL_ID_CHARS..).unwrap_or("-"))
                    || token.is_none()
            );
        }
        let call = call.to_string();
        for text in [
            "",
            "a",
            &call[1..],
            &format!("{call}a"),
            &format!("{call}{}", call.to_uppercase()),
        ] {
            assert!(text.parse::<ReplyId>().is_err(), "{text}");
        }
        assert!("é".repeat(26).parse::<ReplyId>().is_err());
    }

    #[test]
    fn another_call_is_one_with_a_token() {
        let call = CallId::new(Replica(7)).unwrap();
        let other = CallId::new(Replica(7)).unwrap();
        let with_token = |call| {
            let token = Some(ReplyToken([0xa5; 16]));
            ReplyId { call, token }.to_string()
        };
        assert_eq!(call.other_in(&with_token(other)), Some(other));
        for text in [with_token(call), other.to_string(), "an id".to_owned()] {
            assert_eq!(call.other_in(&text), None, "{text}");
        }
    }

    #[test]
    fn ids_are_logged_without_their_token() {
        let call = CallId::new(Replica(7)).unwrap();
        let token = Some(ReplyToken([0xa5; 16]));
        let id = ReplyId { call, token }.to_string();
        assert_eq!(logged_id(&format!("\"{id}\"")).as_str(), call.to_string());
        for other in ["7", "\"a\"", "null", &format!("\"x{id}\"")] {
            assert_eq!(logged_id(other).as_str(), other.trim_matches('"'));
        }
    }

    #[test]
    fn tokens_are_removed_wherever_they_are_whole_words() {
        let call = CallId::new(Replica(7)).unwrap();
        let token = Some(ReplyToken([0xa5; 16]));
        let id = ReplyId { call, token }.to_string();
        let cut = |text: &str, is_secret: fn(ReplyId) -> bool| {
            let text = Bytes::from(text.replace("ID", &id));
            String::from_utf8(without_tokens(&text, is_secret).into()).unwrap()
        };
        let call = call.to_string();
        for text in [
            "ID",
            r#"{"id":"ID","_meta":{"progressToken":"ID"}}"#,
            r#"{"data":"{\"id\":\"ID\"}\nID"#,
            "replies.ID ID\nID",
            "IDé",
        ] {
            assert_eq!(cut(text, |_| true), text.replace("ID", &call), "{text}");
            assert_eq!(cut(text, |_| false), text.replace("ID", &id), "{text}");
        }
        for text in ["", "xID", "IDx", "\\nxID", "no reply id"] {
            assert_eq!(cut(text, |_| true), text.replace("ID", &id), "{text}");
        }
    }

    #[test]
    fn ids_differ_over_several_batches_of_random_bits() {
        let batches = || -> Vec<_> { (0..100).map(|_| CallId::new(Replica(7)).unwrap()).collect() };
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(batches)).collect();
            let threads = threads.into_iter();
            threads.flat_map(|thread| thread.join().unwrap()).collect()
        });
        let different: HashSet<_> = ids.iter().collect();
        assert_eq!((ids.len(), different.len()), (400, 400));
    }

    #[test]
    fn a_call_id_names_its_replica() {
        let id = CallId::new(Replica(0xbeef)).unwrap();
        assert_eq!(id.replica(), Replica(0xbeef));
        assert_ne!(id, CallId::new(Replica(0xbeef)).unwrap());
    }

    #[test]
    fn a_call_id_tells_who_follows_what() {
        for _ in 0..100 {
            let id = CallId::new(Replica(7)).unwrap();
            let is = |id: CallId| {
                let id: CallId = id.to_string().parse().unwrap();
                (id.is_followed(), id.follows_task())
            };
            assert_eq!(is(id), (false, false));
            assert_eq!(is(id.followed()), (true, false));
            assert_eq!(is(id.following_task()), (false, true));
            assert_eq!(is(id.followed().following_task()), (true, true));
            assert_eq!(id.followed().following_task().replica(), id.replica());
        }
    }
}
