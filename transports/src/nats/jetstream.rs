//! JetStream publications: confirmed once a stream has stored them.
//!
//! ```text
//! send --Expected--> replies_for --Receipt--> Confirmation
//!      --publish, reply to INBOX.n--> server --answer on INBOX.n--^
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use a2abus_plugin::Text;
use async_nats::{Client, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::ApiError;
use super::core::Verdict;
use super::link::{Link, Refusal, connects};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::Receipt;

/// Answers that can be announced ahead of the task that waits for them, at most.
pub(super) const EXPECTED_QUEUE: usize = 1024;

/// An answer that will come on our inbox.
#[derive(Debug)]
pub(super) struct Expected {
    /// The last word of the subject it comes on.
    pub(super) token: u64,
    pub(super) answer: Answer,
    /// Where the question goes, to be told from a refusal.
    pub(super) subject: Topic,
    /// The number of connections there had been before it was asked.
    pub(super) connects: u64,
    pub(super) deadline: Instant,
    pub(super) verdict: Verdict,
    /// The right to have one more unanswered.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// What the answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A stream has stored the message, or says why not.
    Stored,
    /// Anything, which shows that the server has seen all that was sent before.
    Echo,
}

/// Waits for the answers on our inbox, for as long as somebody can ask.
pub(super) struct Replies {
    pub(super) client: Client,
    pub(super) link: Arc<Link>,
    pub(super) inbox: Subscriber,
    pub(super) expected: mpsc::Receiver<Expected>,
}

/// The questions without an answer. Deadlines are all as far away, so they pass in the order of asking.
#[derive(Debug, Default)]
struct Unanswered {
    by_token: HashMap<u64, Expected>,
    deadlines: VecDeque<(Instant, u64)>,
}

/// The answer of a stream.
#[derive(Debug, Deserialize)]
struct PubAck {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

// === impl Replies ===

impl Replies {
    /// Until it is stopped; what is unanswered then fails as closed.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut unanswered = Unanswered::default();
        let mut connection = self.link.connection();
        let mut refusals = self.link.refusals();
        loop {
            let next_deadline = unanswered.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                expected = self.expected.recv() => match expected {
                    Some(expected) => self.expect(&mut unanswered, expected),
                    None => return,
                },
                answer = self.inbox.next() => match answer {
                    Some(answer) => self.answered(&mut unanswered, &answer),
                    None => return,
                },
                Ok(()) = connection.changed() => self.fail_lost(&mut unanswered),
                refusal = refusals.recv() => unanswered.refused(refusal),
                () = tokio::time::sleep_until(next_deadline.unwrap_or_else(Instant::now)),
                    if next_deadline.is_some() => unanswered.expire(),
            }
        }
    }

    fn expect(&self, unanswered: &mut Unanswered, expected: Expected) {
        if self.is_lost(&expected) {
            expected.decide(Err(self.lost()));
        } else {
            unanswered.insert(expected);
        }
    }

    fn answered(&mut self, unanswered: &mut Unanswered, answer: &async_nats::Message) {
        // A question is announced before it is asked, but the announcement may still be on its way to us.
        while let Ok(expected) = self.expected.try_recv() {
            self.expect(unanswered, expected);
        }
        let token = answer.subject.rsplit('.').next().unwrap_or_default();
        // An answer that came too late, or that somebody made up, belongs to nothing.
        let expected = token
            .parse()
            .ok()
            .and_then(|token| unanswered.remove(token));
        if let Some(expected) = expected {
            let result = match expected.answer {
                Answer::Echo => Ok(Receipt { position: None }),
                Answer::Stored => stored(&expected.subject, answer),
            };
            expected.decide(result);
        }
    }

    /// Fails what was asked on a connection that is gone: its answer will not come.
    fn fail_lost(&self, unanswered: &mut Unanswered) {
        for expected in unanswered.take(|expected| self.is_lost(expected)) {
            expected.decide(Err(self.lost()));
        }
    }

    fn is_lost(&self, expected: &Expected) -> bool {
        !self.link.is_up() || expected.connects != connects(&self.client)
    }

    fn lost(&self) -> TransportError {
        self.link
            .disconnected("wait for the answer of NATS; the message may or may not be stored")
    }
}

// === impl Expected ===

impl Expected {
    fn decide(self, result: Result<Receipt, TransportError>) {
        drop(self.permit);
        // The caller may have stopped waiting.
        let _ = self.verdict.send(result);
    }
}

// === impl Unanswered ===

impl Unanswered {
    fn insert(&mut self, expected: Expected) {
        if self.deadlines.len() > 4 * self.by_token.len() + 1024 {
            // One slow answer at the front would keep the entries of all quick ones behind it.
            self.deadlines
                .retain(|(_, token)| self.by_token.contains_key(token));
        }
        self.deadlines
            .push_back((expected.deadline, expected.token));
        self.by_token.insert(expected.token, expected);
    }

    fn remove(&mut self, token: u64) -> Option<Expected> {
        let expected = self.by_token.remove(&token);
        if self.by_token.is_empty() {
            self.deadlines.clear();
        }
        expected
    }

    fn take(&mut self, which: impl Fn(&Expected) -> bool) -> Vec<Expected> {
        let taken = self.by_token.extract_if(|_, expected| which(expected));
        taken.map(|(_, expected)| expected).collect()
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, token)) = self.deadlines.front() {
            if self.by_token.contains_key(token) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let token = self.deadlines.pop_front().map(|(_, token)| token);
            if let Some(expected) = token.and_then(|token| self.by_token.remove(&token)) {
                let what = format!("wait for the answer of NATS to {}", expected.subject);
                expected.decide(Err(TransportError::new(TransportErrorKind::TimedOut, what)));
            }
        }
    }

    /// A refused publication gets no answer; its refusal comes as an error of the connection.
    fn refused(&mut self, refusal: Result<Refusal, broadcast::error::RecvError>) {
        // A lost refusal shows as a question that times out.
        let Ok(Refusal::Publish(subject)) = refusal else {
            return;
        };
        for expected in self.take(|expected| subject == expected.subject.as_str()) {
            let result = match expected.answer {
                // The server has read it, which was the question.
                Answer::Echo => Ok(Receipt { position: None }),
                Answer::Stored => Err(unauthorised(&format!("publish to {subject}"))),
            };
            expected.decide(result);
        }
    }
}

pub(super) fn unauthorised(what: &str) -> TransportError {
    TransportError::new(
        TransportErrorKind::Unauthorised,
        format!("{what}: this NATS user may not"),
    )
}

/// What the answer to a publication says.
fn stored(subject: &Topic, answer: &async_nats::Message) -> Result<Receipt, TransportError> {
    let what = format!("store a message in the stream of {subject}");
    if answer.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(TransportError::new(
            TransportErrorKind::UnknownTopic,
            format!("{what}: no JetStream stream takes this subject"),
        ));
    }
    let ack: PubAck = serde_json::from_slice(&answer.payload).map_err(|error| {
        TransportError::new(TransportErrorKind::Other, what.clone()).caused_by(error)
    })?;
    match ack.error {
        Some(error) => Err(TransportError::new(error.kind(), what).caused_by(error)),
        // A duplicate is stored too: at the sequence of the first.
        None => Ok(Receipt {
            position: Some(position(&ack.stream, ack.seq)),
        }),
    }
}

/// `j:STREAM/SEQUENCE`.
pub(super) fn position(stream: &str, sequence: u64) -> Text {
    Text::from(format!("j:{stream}/{sequence}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Option<StatusCode>, body: &str) -> async_nats::Message {
        async_nats::Message {
            subject: "_INBOX.a.1".into(),
            reply: None,
            payload: body.to_owned().into(),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    fn check(status: Option<StatusCode>, body: &str) -> Result<String, TransportErrorKind> {
        stored(&Topic::new("a.b").unwrap(), &answer(status, body))
            .map(|receipt| receipt.position.unwrap().to_string())
            .map_err(|error| error.kind())
    }

    #[test]
    fn answers_of_a_stream() {
        assert_eq!(check(None, r#"{"stream":"S","seq":7}"#), Ok("j:S/7".into()));
        assert_eq!(
            check(
                None,
                r#"{"stream":"S","seq":7,"domain":"d","duplicate":true}"#
            ),
            Ok("j:S/7".into())
        );
        assert_eq!(
            check(Some(StatusCode::NO_RESPONDERS), ""),
            Err(TransportErrorKind::UnknownTopic)
        );
        for (code, err_code, kind) in [
            (400, 10_054, TransportErrorKind::TooLarge),
            (503, 10_077, TransportErrorKind::Saturated),
            (503, 10_023, TransportErrorKind::Saturated),
            (503, 10_039, TransportErrorKind::BadConfig),
            (500, 1, TransportErrorKind::Other),
        ] {
            let body =
                format!(r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"x"}}}}"#);
            assert_eq!(check(None, &body), Err(kind));
        }
        assert_eq!(check(None, "not json"), Err(TransportErrorKind::Other));
    }
}
