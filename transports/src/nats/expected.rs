//! A publication that waits for the answer of a stream, and what the lack of responders means.

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::{Decision, Receipt};

/// An expected answer on the inbox.
#[derive(Debug)]
pub(super) struct Expected {
    /// The last token of the subject on which it arrives.
    pub(super) token: u64,
    pub(super) answer: Answer,
    /// The size of the question.
    pub(super) bytes: usize,
    /// The subject of the request, to distinguish it from a refusal.
    pub(super) subject: Topic,
    /// How many connections there had been before the question.
    pub(super) connects: u64,
    pub(super) deadline: Instant,
    pub(super) verdict: Decision,
    /// The permit for one more unanswered question.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// A notice to the task that waits for answers.
#[derive(Debug)]
pub(super) enum Notice {
    /// The request is about to be sent.
    Expected(Expected),
    /// The request was not sent, so no answer will arrive for this token.
    NotSent(u64),
}

/// Reports on drop that a request was not sent, unless it was.
pub(super) struct NotSentGuard<'a> {
    pub(super) token: u64,
    /// Room for the report; `None` once the question was sent.
    pub(super) room: Option<mpsc::PermitIterator<'a, Notice>>,
}

/// The kind of answer that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A stream has stored the message, or says why it has not.
    Stored,
    /// Any message, which shows that the server has seen all that was sent before.
    Echo,
    /// The same, after a publication that the server may refuse.
    Permitted,
    /// The echo has come, and the refusal may still be on its way: the client reports both separately.
    Unrefused,
}

/// Whether a stream stores a subject.
#[derive(Debug, Clone)]
pub(super) enum Coverage {
    /// A stream stores it.
    Covered,
    /// No stream does.
    NotCovered,
    /// No stream does, and the one that the bridge manages cannot be created.
    NotCreated(TransportError),
    /// The API did not say. Without an error: it was not asked, because too many questions are open.
    Undetermined(Option<TransportError>),
}

// === impl NotSentGuard ===

impl Drop for NotSentGuard<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.room.as_mut().and_then(Iterator::next) {
            room.send(Notice::NotSent(self.token));
        }
    }
}

// === impl Expected ===

impl Expected {
    /// Notifies the waiting task.
    pub(super) fn decide(self, result: Result<Receipt, TransportError>) {
        drop(self.permit);
        self.verdict.decide(result);
    }

    /// Fails a publication without responders. A stream without a leader looks like a missing stream, so only an answer
    /// of the API makes the topic unknown.
    pub(super) fn no_responders(self, coverage: Coverage) {
        let what = storing(&self.subject);
        let disconnected = |why| {
            let what = format!("{what}: {why}");
            TransportError::new(TransportErrorKind::Disconnected, what).unsent()
        };
        let error = match coverage {
            Coverage::NotCovered => TransportError::new(
                TransportErrorKind::UnknownTopic,
                format!("{what}: no JetStream stream stores this subject"),
            ),
            Coverage::Covered => disconnected("the stream has no leader at the moment"),
            Coverage::Undetermined(None) => {
                disconnected("no stream stored it, and too many subjects are being looked up")
            }
            Coverage::NotCreated(cause) | Coverage::Undetermined(Some(cause)) => {
                disconnected("no stream stored it, and JetStream did not say whether one would")
                    .caused_by(cause)
            }
        };
        self.decide(Err(error));
    }
}

/// A description of the publication, for errors.
pub(super) fn storing(subject: &Topic) -> String {
    format!("store a message in the stream of {subject}")
}

/// A question, and where its verdict comes.
#[cfg(test)]
pub(super) fn expected(
    subject: &str,
    token: u64,
    answer: Answer,
    seconds: u64,
) -> (Expected, crate::transport::Confirmation) {
    let (verdict, waiting) = crate::transport::Confirmation::waiting();
    let expected = Expected {
        token,
        answer,
        bytes: 7,
        subject: Topic::new(subject).unwrap(),
        connects: 1,
        deadline: super::core::after(std::time::Duration::from_secs(seconds)),
        verdict,
        permit: None,
    };
    (expected, waiting)
}
