//! JetStream publications: confirmed once a stream has stored them.
//!
//! ```text
//! send --Expected--> Replies --Receipt--> Confirmation
//!      --publish, reply to INBOX.n--> server --answer on INBOX.n--^
//!                       no responders --Lookups--> does any stream take the subject?
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use a2abus_plugin::Text;
use async_nats::{Client, StatusCode, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, ReadyChunks};
use serde::Deserialize;
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{Api, ApiError};
use super::core::after;
use super::expected::{Answer, Expected, Notice, storing};
use super::link::{Link, PUBLICATION_GRACE, Refusal, connects, unauthorised};
use super::lookup::{Lookups, look_up};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::Receipt;

/// At most this many questions can be announced ahead of the task that waits for their answers; each has room for two
/// notices.
pub(super) const NOTICES: usize = 2 * 1024;
/// How many answers are read at once.
pub(super) const CHUNK: usize = 256;
/// At most this many subjects are remembered with the number of refusals that are still to come.
const MAX_TO_COME: usize = 64;

/// Waits for the answers on our inbox, as long as there can be questions.
pub(super) struct Replies {
    pub(super) client: Client,
    pub(super) link: Arc<Link>,
    pub(super) api: Api,
    pub(super) inbox: ReadyChunks<Subscriber>,
    pub(super) notices: mpsc::Receiver<Notice>,
}

/// The open questions. Their deadlines do not expire in the order of asking, because an echo and a publication may take
/// different times.
#[derive(Debug, Default)]
struct Unanswered {
    by_token: HashMap<u64, Expected>,
    /// The earliest first. Entries of answered questions stay until they expire.
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The first refusal of a subject decides all stored publications on it: how many of theirs are still to come.
    to_come: HashMap<Text, usize>,
}

/// What an answer means for its question.
enum Verdict {
    Known(Result<Receipt, TransportError>),
    /// Nobody has got the message.
    NoResponders,
}

/// The answer of a stream: either the first two members, or the last. Others who read the subject may answer too, in
/// any form.
#[derive(Debug, Deserialize)]
struct PubAck {
    stream: Option<String>,
    seq: Option<u64>,
    error: Option<ApiError>,
}

// === impl Replies ===

impl Replies {
    /// Runs until it is stopped, or until the client has ended; open questions then fail.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut unanswered = Unanswered::default();
        let mut lookups = Lookups::default();
        let mut open_lookups = FuturesUnordered::new();
        let mut connection = self.link.connection();
        let mut refusals = self.link.refusals();
        loop {
            let next_deadline = unanswered.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some((topic, coverage)) = open_lookups.next() => {
                    for expected in lookups.found(&topic, &coverage, Instant::now()) {
                        expected.no_responders(coverage.clone());
                    }
                }
                notice = self.notices.recv() => match notice {
                    Some(notice) => {
                        self.notice(&mut unanswered, notice);
                        self.notices(&mut unanswered);
                    }
                    None => return,
                },
                answers = self.inbox.next() => match answers {
                    Some(answers) => {
                        // Questions are announced before they are sent, but announcements may still be queued.
                        self.notices(&mut unanswered);
                        for answer in answers {
                            let no_responders = self.answered(&mut unanswered, &answer);
                            let topic = no_responders.and_then(|expected| lookups.no_responders(expected, Instant::now()));
                            open_lookups.extend(topic.map(|topic| look_up(self.api.clone(), topic)));
                        }
                    }
                    // The client has ended.
                    None => {
                        self.notices(&mut unanswered);
                        let waiting = lookups.take(|_| true);
                        for expected in unanswered.take(|_| true).into_iter().chain(waiting) {
                            expected.decide(Err(self.lost()));
                        }
                        return;
                    }
                },
                Ok(()) = connection.changed() => {
                    if self.fail_lost(&mut unanswered, &mut lookups) {
                        open_lookups.clear();
                        let again = lookups.subjects().cloned();
                        open_lookups.extend(again.map(|topic| look_up(self.api.clone(), topic)));
                    }
                }
                refusal = refusals.recv() => self.refused(&mut unanswered, refusal),
                () = tokio::time::sleep_until(next_deadline.unwrap_or_else(Instant::now)),
                    if next_deadline.is_some() => self.expire(&mut unanswered),
            }
        }
    }

    /// Takes the queued notices.
    fn notices(&mut self, unanswered: &mut Unanswered) {
        while let Ok(notice) = self.notices.try_recv() {
            self.notice(unanswered, notice);
        }
    }

    fn notice(&self, unanswered: &mut Unanswered, notice: Notice) {
        match notice {
            Notice::Expected(expected) if self.is_lost(&expected) => {
                expected.decide(Err(self.lost()));
            }
            Notice::Expected(expected) => unanswered.insert(expected),
            Notice::NotSent(token) => drop(unanswered.remove(token)),
        }
    }

    /// Decides a question, unless the answer is not that of a stream: then the stream may still answer. Returns a
    /// publication without a listener, for which the streams must be checked first.
    fn answered(
        &self,
        unanswered: &mut Unanswered,
        answer: &async_nats::Message,
    ) -> Option<Expected> {
        let token = answer.subject.rsplit('.').next().unwrap_or_default();
        // An answer that is late or invented belongs to no question.
        let token = token.parse().ok()?;
        let (expected, verdict) = unanswered.take_answered(token, answer)?;
        match verdict {
            Verdict::NoResponders => Some(expected),
            Verdict::Known(result) => {
                if result.is_ok() && self.link.is_refused(expected.subject.as_str()) {
                    self.link.note_permitted(expected.subject.as_str());
                }
                expected.decide(result);
                None
            }
        }
    }

    fn refused(
        &self,
        unanswered: &mut Unanswered,
        refusal: Result<Refusal, broadcast::error::RecvError>,
    ) {
        if let Some(subject) = unanswered.refused(refusal, self.link.user()) {
            self.link.note_refused(&subject);
        }
    }

    fn expire(&self, unanswered: &mut Unanswered) {
        for subject in unanswered.expire() {
            self.link.note_permitted(subject.as_str());
        }
    }

    /// Fails the questions on a lost connection, also those that wait for a lookup: their answers will not come.
    /// Returns whether lookups have lost their answers too.
    fn fail_lost(&self, unanswered: &mut Unanswered, lookups: &mut Lookups) -> bool {
        unanswered.to_come.clear();
        let lost = unanswered.take(|expected| self.is_lost(expected));
        let waiting = lookups.take(|expected| self.is_lost(expected));
        let is_lookup_lost = !waiting.is_empty();
        for expected in lost.into_iter().chain(waiting) {
            expected.decide(Err(self.lost()));
        }
        is_lookup_lost
    }

    fn is_lost(&self, expected: &Expected) -> bool {
        !self.link.is_up() || expected.connects != connects(&self.client)
    }

    fn lost(&self) -> TransportError {
        self.link
            .disconnected("wait for the answer of NATS; the message may or may not be stored")
    }
}

// === impl Unanswered ===

impl Unanswered {
    fn insert(&mut self, expected: Expected) {
        if self.deadlines.len() > 4 * self.by_token.len() + 1024 {
            // As long as there is always an open question, entries of answered ones would pile up.
            self.deadlines
                .retain(|Reverse((_, token))| self.by_token.contains_key(token));
        }
        self.deadlines
            .push(Reverse((expected.deadline, expected.token)));
        self.by_token.insert(expected.token, expected);
    }

    fn remove(&mut self, token: u64) -> Option<Expected> {
        let expected = self.by_token.remove(&token);
        self.forget_deadlines();
        expected
    }

    /// Takes a question, and what its answer means. An answer that does not come from a stream leaves it open.
    fn take_answered(
        &mut self,
        token: u64,
        answer: &async_nats::Message,
    ) -> Option<(Expected, Verdict)> {
        let Entry::Occupied(entry) = self.by_token.entry(token) else {
            return None;
        };
        if entry.get().answer == Answer::Permitted {
            let expected = Expected {
                answer: Answer::Unrefused,
                deadline: after(PUBLICATION_GRACE),
                ..entry.remove()
            };
            self.insert(expected);
            return None;
        }
        let expected = entry.get();
        let verdict = match expected.answer {
            Answer::Echo | Answer::Permitted | Answer::Unrefused => {
                Verdict::Known(Ok(Receipt { position: None }))
            }
            Answer::Stored if answer.status == Some(StatusCode::NO_RESPONDERS) => {
                Verdict::NoResponders
            }
            Answer::Stored => match stored(expected, answer) {
                Some(result) => Verdict::Known(result),
                None => {
                    tracing::debug!(topic = %expected.subject, "an answer to a stored message is ignored, because no stream has sent it");
                    return None;
                }
            },
        };
        let expected = entry.remove();
        self.forget_deadlines();
        Some((expected, verdict))
    }

    /// Without open questions, no deadline is needed.
    fn forget_deadlines(&mut self) {
        if self.by_token.is_empty() {
            self.deadlines.clear();
        }
    }

    fn take(&mut self, which: impl Fn(&Expected) -> bool) -> Vec<Expected> {
        let taken = self.by_token.extract_if(|_, expected| which(expected));
        taken.map(|(_, expected)| expected).collect()
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(Reverse((deadline, token))) = self.deadlines.peek() {
            if self.by_token.contains_key(token) {
                return Some(*deadline);
            }
            self.deadlines.pop();
        }
        None
    }

    /// Returns the subjects that the server has permitted after it had refused them.
    fn expire(&mut self) -> Vec<Topic> {
        let (now, mut permitted) = (Instant::now(), Vec::new());
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let token = self.deadlines.pop().map(|Reverse((_, token))| token);
            // Not if the deadline is an earlier one of a question whose echo has come.
            let is_due = |token: &u64| {
                let expected = self.by_token.get(token);
                expected.is_some_and(|expected| expected.deadline <= now)
            };
            let due = token.filter(is_due);
            let Some(expected) = due.and_then(|token| self.by_token.remove(&token)) else {
                continue;
            };
            if expected.answer == Answer::Unrefused {
                permitted.push(expected.subject.clone());
                expected.decide(Ok(Receipt { position: None }));
                continue;
            }
            let what = format!("wait for the answer of NATS to {}", expected.subject);
            expected.decide(Err(TransportError::new(TransportErrorKind::TimedOut, what)));
        }
        permitted
    }

    /// A refused publication gets no answer; its refusal comes as an error of the connection. Returns its subject if
    /// the publication may have been one of core NATS, which was confirmed before.
    fn refused(
        &mut self,
        refusal: Result<Refusal, broadcast::error::RecvError>,
        user: &str,
    ) -> Option<Text> {
        // A lost refusal shows as a question that times out.
        let Ok(Refusal::Publish(subject)) = refusal else {
            return None;
        };
        let mut stored = 0;
        let mut is_core = true;
        for expected in self.take(|expected| subject == expected.subject.as_str()) {
            let result = match expected.answer {
                // The server has read it, and the question was only that.
                Answer::Echo => Ok(Receipt { position: None }),
                Answer::Stored | Answer::Permitted | Answer::Unrefused => {
                    Err(unauthorised(&format!("publish to {subject}"), user))
                }
            };
            is_core &= !matches!(expected.answer, Answer::Echo | Answer::Stored);
            stored += usize::from(expected.answer == Answer::Stored);
            expected.decide(result);
        }
        if is_core && self.came(&subject) {
            return None;
        }
        if stored > 1 {
            if self.to_come.len() >= MAX_TO_COME {
                self.to_come.clear();
            }
            *self.to_come.entry(subject.clone()).or_default() += stored - 1;
        }
        is_core.then_some(subject)
    }

    /// Whether a refusal was still to come for this subject: then it has come now.
    fn came(&mut self, subject: &Text) -> bool {
        let Some(to_come) = self.to_come.get_mut(subject) else {
            return false;
        };
        *to_come -= 1;
        if *to_come == 0 {
            self.to_come.remove(subject);
        }
        true
    }
}

/// The acknowledgement of a publication. `None` for the answer of somebody else.
fn stored(
    expected: &Expected,
    answer: &async_nats::Message,
) -> Option<Result<Receipt, TransportError>> {
    let ack: PubAck = serde_json::from_slice(&answer.payload).ok()?;
    let Some(error) = ack.error else {
        // A duplicate is stored too: at the sequence of the first message.
        let position = position(&ack.stream?, ack.seq?);
        return Some(Ok(Receipt {
            position: Some(position),
        }));
    };
    // Every error of a stream has a code of its own.
    let is_of_stream = error.err_code != 0;
    is_of_stream.then(|| Err(refused(expected, error)))
}

/// The error of a publication that a stream refused, with what the stream says.
fn refused(expected: &Expected, error: ApiError) -> TransportError {
    let what = storing(&expected.subject);
    match error.kind_of_publication() {
        // The server does not say how large a message may be.
        TransportErrorKind::TooLarge => {
            let limit = format!("max_msg_size of the stream of {} is less", expected.subject);
            TransportError::too_large(expected.bytes, limit).caused_by(error)
        }
        TransportErrorKind::Overtaken => {
            TransportError::overtaken(what, error.last_sequence()).caused_by(error)
        }
        // An earlier attempt is being stored, or this one has been on its way to the store.
        kind @ TransportErrorKind::TimedOut => {
            TransportError::new(kind, format!("{what}: {error}"))
        }
        kind => TransportError::new(kind, format!("{what}: {error}")).unsent(),
    }
}

/// `j:STREAM/SEQUENCE`.
pub(super) fn position(stream: &str, sequence: u64) -> Text {
    Text::concat(&["j:", stream, "/", itoa::Buffer::new().format(sequence)])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::expected::expected;
    use super::*;

    fn answer(body: &str) -> async_nats::Message {
        async_nats::Message {
            subject: "_INBOX.a.1".into(),
            reply: None,
            payload: body.to_owned().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        }
    }

    fn check(body: &str) -> Option<Result<String, TransportErrorKind>> {
        let (expected, _verdict) = expected("a.b", 0, Answer::Stored, 5);
        let result = stored(&expected, &answer(body))?;
        let result = result.map(|receipt| receipt.position.unwrap().to_string());
        Some(result.map_err(|error| error.kind()))
    }

    #[test]
    fn answers_of_a_stream() {
        for body in [
            r#"{"stream":"S","seq":7}"#,
            r#"{"stream":"S","seq":7,"domain":"d","duplicate":true}"#,
        ] {
            assert_eq!(check(body), Some(Ok("j:S/7".into())));
        }
        for (code, err_code, kind) in [
            (400, 10_054, TransportErrorKind::TooLarge),
            (503, 10_077, TransportErrorKind::Full),
            (503, 10_023, TransportErrorKind::Saturated),
            (503, 10_039, TransportErrorKind::BadConfig),
            // Its caller waits, and its lane: the stream may store it later.
            (409, 10_158, TransportErrorKind::TimedOut),
            (503, 10_008, TransportErrorKind::Disconnected),
            (500, 10_118, TransportErrorKind::Disconnected),
            (429, 10_167, TransportErrorKind::Saturated),
            (503, 10_163, TransportErrorKind::Saturated),
            // Somebody has to make room, or to repair it.
            (400, 10_002, TransportErrorKind::Full),
            (400, 10_109, TransportErrorKind::BadConfig),
            (400, 10_060, TransportErrorKind::BadMessage),
            (400, 10_166, TransportErrorKind::BadMessage),
            (500, 1, TransportErrorKind::Other),
        ] {
            let body =
                format!(r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"x"}}}}"#);
            assert_eq!(check(&body), Some(Err(kind)));
        }
        let (expected, _verdict) = expected("a.b", 0, Answer::Stored, 5);
        for (err_code, description, last) in [
            (10_071, "wrong last sequence: 17", Some(17)),
            (10_164, "wrong last sequence", None),
        ] {
            let body = format!(
                r#"{{"error":{{"code":400,"err_code":{err_code},"description":"{description}"}}}}"#
            );
            let error = stored(&expected, &answer(&body)).unwrap().unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::Overtaken);
            assert_eq!(error.last_sequence(), last);
        }
    }

    #[test]
    fn the_reason_of_a_store_failure_is_in_its_description() {
        let (expected, _verdict) = expected("a.b", 0, Answer::Stored, 5);
        for (description, kind, leaves_open) in [
            ("maximum messages exceeded", TransportErrorKind::Full, false),
            ("message too large", TransportErrorKind::TooLarge, false),
            ("store is closed", TransportErrorKind::TimedOut, true),
        ] {
            let body = format!(
                r#"{{"error":{{"code":503,"err_code":10077,"description":"{description}"}}}}"#
            );
            let error = stored(&expected, &answer(&body)).unwrap().unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.leaves_open(), leaves_open);
        }
    }

    #[test]
    fn the_error_of_a_publication_says_what_the_stream_says() {
        let (expected, _verdict) = expected("a.b", 0, Answer::Stored, 5);
        let body =
            r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}"#;
        let error = stored(&expected, &answer(body)).unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "store a message in the stream of a.b: maximum messages exceeded (503, 10077) (full)"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_echo_confirms_a_doubtful_publication_only_if_no_refusal_follows() {
        for is_refused in [false, true] {
            let mut unanswered = Unanswered::default();
            let (expected, mut verdict) = expected("a.b", 1, Answer::Permitted, 5);
            unanswered.insert(expected);
            assert!(unanswered.take_answered(1, &answer("")).is_none());
            assert!(verdict.now().is_none(), "the refusal may be on its way");
            if is_refused {
                let refusal = Refusal::Publish("a.b".into());
                let noted = unanswered.refused(Ok(refusal), "u");
                assert_eq!(noted.as_deref(), Some("a.b"));
                let error = verdict.now().unwrap().unwrap_err();
                assert_eq!(error.kind(), TransportErrorKind::Unauthorised);
                continue;
            }
            tokio::time::sleep_until(unanswered.next_deadline().unwrap()).await;
            assert_eq!(unanswered.expire(), [Topic::new("a.b").unwrap()]);
            assert!(verdict.now().unwrap().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_an_echo_does_not_end_the_wait_for_a_refusal() {
        let mut unanswered = Unanswered::default();
        let (mut expected, mut verdict) = expected("a.b", 1, Answer::Permitted, 0);
        expected.deadline = after(PUBLICATION_GRACE / 2);
        unanswered.insert(expected);
        assert!(unanswered.take_answered(1, &answer("")).is_none());
        tokio::time::advance(PUBLICATION_GRACE / 2).await;
        assert!(unanswered.expire().is_empty());
        assert!(verdict.now().is_none(), "the refusal may be on its way");
        tokio::time::advance(PUBLICATION_GRACE / 2).await;
        assert_eq!(unanswered.expire(), [Topic::new("a.b").unwrap()]);
        assert!(verdict.now().unwrap().is_ok());
    }

    #[tokio::test]
    async fn the_refusals_of_stored_publications_concern_no_other_ones() {
        let mut unanswered = Unanswered::default();
        let mut verdicts: Vec<_> = (0..3)
            .map(|token| {
                let (expected, verdict) = expected("a.b", token, Answer::Stored, 5);
                unanswered.insert(expected);
                verdict
            })
            .collect();
        let mut refuse = || unanswered.refused(Ok(Refusal::Publish("a.b".into())), "u");
        assert_eq!(refuse(), None);
        for verdict in &mut verdicts {
            let error = verdict.now().unwrap().unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::Unauthorised);
        }
        assert_eq!([refuse(), refuse()], [None, None]);
        let of_core = refuse();
        assert_eq!(of_core.as_deref(), Some("a.b"));
        assert!(unanswered.to_come.is_empty());
    }

    #[test]
    fn answers_of_others_decide_nothing() {
        for body in [
            "",
            "not json",
            "{}",
            r#"{"stream":"S"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"x"}}"#,
            r#"{"error":{"code":500,"message":"x"}}"#,
            r#"{"error":"x"}"#,
        ] {
            assert_eq!(check(body), None, "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_echo_delays_no_deadline_behind_it() {
        let mut unanswered = Unanswered::default();
        let mut ask = |token, answer, seconds| {
            let (expected, verdict) = expected("a.b", token, answer, seconds);
            unanswered.insert(expected);
            verdict
        };
        let mut echo = ask(1, Answer::Echo, 60);
        let mut second = ask(2, Answer::Stored, 2);
        let mut first = ask(3, Answer::Stored, 1);
        let start = Instant::now();
        for (seconds, verdict) in [(1, &mut first), (2, &mut second), (60, &mut echo)] {
            let next = unanswered.next_deadline().unwrap();
            assert_eq!(next - start, Duration::from_secs(seconds));
            tokio::time::sleep_until(next).await;
            unanswered.expire();
            let error = verdict.now().unwrap().unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::TimedOut);
        }
        assert_eq!(unanswered.next_deadline(), None);
    }

    #[tokio::test]
    async fn deadlines_of_answered_requests_do_not_accumulate() {
        let mut unanswered = Unanswered::default();
        let (slow, _verdict) = expected("a.b", 0, Answer::Echo, 60);
        unanswered.insert(slow);
        for token in 1..100_000 {
            let (quick, _verdict) = expected("a.b", token, Answer::Stored, 5);
            unanswered.insert(quick);
            assert!(unanswered.remove(token).is_some());
            assert!(unanswered.deadlines.len() <= 2 * 1024);
        }
    }
}
