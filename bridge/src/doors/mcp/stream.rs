//! Resumable streams: any replica can send the parts that a client has missed.
//!
//! ```text
//! agent ── part ──> log ──> client, with the id CALL.N
//!                    └────> GET with Last-Event-ID: CALL.N, at any replica: the parts after the Nth
//! ```
//!
//! If the replica of the call stops, another one receives the answer and records it ([`crate::results::follower`]).

use std::convert::identity;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::session::Session;
use super::skill::response::SkillResponse;
use super::state::Mcp;
use crate::budget::ClientBudget;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::{CallError, Part};
use crate::doors::door::Refusal;
use crate::http::sse::{self, Frame, frames_response};
use crate::results::{Author, OpenedCall, RecordedPart, Results};

/// Maximum number of frames that wait for a client.
const FRAMES: usize = 16;
/// How long a client may take to read one frame while its answer is recorded.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A call whose answer is recorded, in the agent's own form.
pub(super) struct Recorded {
    pub(super) call: CallId,
    /// Converts the answer to the result of a tool.
    pub(super) skill_response: Option<SkillResponse>,
    /// Set once the client has an event id, with which it can come back.
    pub(super) has_event_id: Arc<AtomicBool>,
    /// Whether a question of the agent is open.
    pub(super) has_question: Arc<AtomicBool>,
}

/// An answer whose parts are recorded.
pub(super) struct ResumableStream {
    results: Arc<Results>,
    call: CallId,
    skill_response: Option<SkillResponse>,
    has_event_id: Arc<AtomicBool>,
    has_question: Arc<AtomicBool>,
    recipient: Recipient,
    /// The client's channel, while the client reads it.
    client: Option<mpsc::Sender<Frame>>,
    /// How many parts are recorded; `None` after a failure to record one.
    count: Option<usize>,
    /// Whether the client gets questions from the log too.
    records_questions: bool,
    /// Whether the client has disconnected, and cannot answer an open question.
    is_unanswerable: bool,
}

// === impl Recorded ===

impl Recorded {
    /// The first frame of a stream, without a message. With its id the client can resume.
    pub(super) fn beginning(&self) -> Frame {
        self.has_event_id.store(true, Ordering::Relaxed);
        Frame::with_id(event_id(self.call, 0), Bytes::new())
    }
}

// === impl ResumableStream ===

impl ResumableStream {
    /// The frames of an answer. The answer is recorded to its end even if the client disconnects.
    pub(super) fn frames(
        results: Arc<Results>,
        Recorded {
            call,
            skill_response,
            has_event_id,
            has_question,
        }: Recorded,
        recipient: Recipient,
        parts: impl Stream<Item = Result<Part, CallError>> + Send + 'static,
    ) -> impl Stream<Item = Frame> + Send {
        let (client, frames) = mpsc::channel(FRAMES);
        let resumable = Self {
            results,
            call,
            skill_response,
            has_event_id,
            has_question,
            recipient,
            client: Some(client),
            count: Some(0),
            records_questions: false,
            is_unanswerable: false,
        };
        let results = Arc::clone(&resumable.results);
        results.spawn(resumable.record(parts));
        stream::unfold(frames, |mut frames| async {
            Some((frames.recv().await?, frames))
        })
    }

    /// The answer to a call after its first question, which is recorded. Its client reads the log alone.
    pub(super) fn after_question(
        results: Arc<Results>,
        call: CallId,
        recipient: Recipient,
    ) -> Self {
        Self {
            results,
            call,
            skill_response: None,
            has_event_id: Arc::default(),
            has_question: Arc::default(),
            recipient,
            client: None,
            count: Some(1),
            records_questions: true,
            is_unanswerable: false,
        }
    }

    pub(super) async fn record(
        mut self,
        parts: impl Stream<Item = Result<Part, CallError>> + Send,
    ) {
        let mut parts = pin!(parts);
        loop {
            let (body, last, by) = match self.next(&mut parts).await {
                None => return,
                Some(Ok(part)) => (part.body, part.last, Author::Agent),
                Some(Err(failure)) => self.failed(&failure),
            };
            if self.take((body, last), by).await {
                return;
            }
        }
    }

    /// The next part, or the failure that ends the answer; `None` if another replica continues the call: the client can
    /// resume there.
    async fn next(
        &mut self,
        parts: &mut (impl Stream<Item = Result<Part, CallError>> + Send + Unpin),
    ) -> Option<Result<Part, Failure>> {
        let cancelled = |message: &'static str| Failure::new(Reason::Cancelled, message);
        loop {
            if self.is_unanswerable {
                let message = "the client has disconnected, so nobody can answer a question of the agent: the request is cancelled";
                return Some(Err(cancelled(message)));
            }
            tokio::select! {
                // First, because it takes the client's answers to questions.
                biased;
                part = parts.next() => return match part {
                    Some(Ok(part)) => Some(Ok(part)),
                    Some(Err(CallError::HandedOff)) => None,
                    Some(Err(error)) => Some(Err(Failure::call(&error))),
                    None => Some(Err(cancelled("the client has cancelled this request"))),
                },
                () = disconnected(self.client.as_ref()) => {
                    self.client = None;
                    let can_come_back = self.has_event_id.load(Ordering::Relaxed);
                    self.is_unanswerable =
                        !can_come_back && self.has_question.load(Ordering::Relaxed);
                }
            }
        }
    }

    fn failed(&self, failure: &Failure) -> (Bytes, bool, Author) {
        (failure.render(&self.recipient), true, Author::Bridge)
    }

    /// Records a part before sending it, so that every event id that a client has seen is in the log. Returns whether
    /// it is the last part.
    async fn take(&mut self, (body, last): (Bytes, bool), by: Author) -> bool {
        let (mut id, mut lost) = (None, None);
        // In a session, questions are not recorded: a client that got one twice could answer it twice.
        let is_unrecorded = !self.records_questions && is_question(&body);
        if !is_unrecorded && let Some(count) = self.count {
            let part = RecordedPart::new(&body, last, by);
            let is_kept = self.results.keep_part(self.call, count, part).await;
            self.count = is_kept.then_some(count + 1);
            lost = (!is_kept).then_some(count);
            id = self.count.map(|count| event_id(self.call, count));
        }
        let shown = shown(&mut self.skill_response, (body, last), by, &self.recipient);
        let is_last = shown.as_ref().map_or(last, |(_, last)| *last);
        if let Some((data, _)) = shown {
            self.send(Frame {
                event: None,
                id,
                data,
            })
            .await;
        }
        // The client does not get the question when it comes back.
        self.is_unanswerable = is_unrecorded && self.client.is_none();
        match lost {
            None => is_last,
            Some(index) => {
                self.record_loss(index);
                // Without the log, a client without a stream gets nothing more.
                is_last || self.records_questions
            }
        }
    }

    async fn send(&mut self, frame: Frame) {
        let Some(client) = &self.client else {
            return;
        };
        let has_id = frame.id.is_some();
        let sent = timeout(READ_TIMEOUT, client.send(frame)).await;
        if !matches!(sent, Ok(Ok(()))) {
            // A client that reads too slowly is disconnected and can resume later. The answer is recorded anyway.
            self.client = None;
        } else if has_id {
            self.has_event_id.store(true, Ordering::Relaxed);
        }
    }

    /// Records an error in place of a part that was not recorded. The part may be too large for the log. It may also be
    /// stored late: then the second record ends the answer; otherwise the second record has no effect. Neither the
    /// client nor its call waits for a log that may not answer.
    fn record_loss(&self, index: usize) {
        let message = "a part of the answer could not be recorded (log `results`)";
        let (body, ..) = self.failed(&Failure::new(Reason::AnswerLost, message));
        let (results, call) = (Arc::clone(&self.results), self.call);
        self.results.spawn(async move {
            for index in [index, index + 1] {
                let part = RecordedPart::new(&body, true, Author::Bridge);
                results.keep_part(call, index, part).await;
            }
        });
    }
}

/// Waits until the client disconnects; forever if it already has.
async fn disconnected(client: Option<&mpsc::Sender<Frame>>) {
    match client {
        Some(client) => client.closed().await,
        None => pending().await,
    }
}

/// The message for the client, if any, and whether it is the last one. Errors of the bridge are not converted.
fn shown(
    skill_response: &mut Option<SkillResponse>,
    (body, last): (Bytes, bool),
    by: Author,
    recipient: &Recipient,
) -> Option<(Bytes, bool)> {
    let Some(skill_response) = skill_response.as_mut().filter(|_| by == Author::Agent) else {
        return Some((body, last));
    };
    let part = skill_response.part(Part::new(body, last), recipient)?;
    Some((part.body, part.last))
}

fn event_id(call: CallId, count: usize) -> String {
    format!("{call}.{count}")
}

/// The call in an event id, and how many parts the client has received.
fn read_id(id: &str) -> Option<(CallId, usize)> {
    let (call, count) = id.split_once('.')?;
    Some((call.parse().ok()?, count.parse().ok()?))
}

/// Whether a message of the agent is a request to the client.
pub(super) fn is_question(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Request {
        #[serde(rename = "id")]
        _id: IgnoredAny,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    serde_json::from_slice::<Request>(body).is_ok()
}

// === impl Mcp ===

impl Mcp {
    /// The rest of a stream for a client that resumes it; `None` if the request is not a resumption.
    ///
    /// # Errors
    /// When the stream is not recorded.
    pub(super) async fn resumed(
        &self,
        session: Option<&Session>,
        headers: &HeaderMap,
        budget: &ClientBudget,
    ) -> Result<Option<Response>, Refusal> {
        let Some(last) = headers.get(sse::LAST_EVENT) else {
            return Ok(None);
        };
        let unknown = || {
            let message = "the stream of this Last-Event-ID is no longer stored, or belongs to another session: send the request again";
            let failure = Failure::new(Reason::InvalidParams, message);
            (StatusCode::BAD_REQUEST, failure)
        };
        let last = last.to_str().ok().and_then(read_id);
        let (Some((call, received)), Some(session)) = (last, session) else {
            return Err(unknown());
        };
        let results = &self.door.results;
        // No other replica has the rest of a call that only this process has recorded.
        let ends_here = results.has_alone(call, self.door.calls.pending().contains(call));
        if !ends_here {
            self.door.check_running()?;
        }
        let opened = results.lasting(call, received, &session.key()).await;
        let opened = opened.map_err(|error| {
            let failure = self.door.not_read("results", &error);
            (StatusCode::SERVICE_UNAVAILABLE, failure)
        })?;
        let opened = opened.ok_or_else(unknown)?;
        // Each part of a tool result depends on the earlier ones.
        let max_bytes = self.door.largest_body();
        let skill_response = opened.skill.clone();
        let skill_response = skill_response
            .map(|skill| SkillResponse::new(skill, Some(session.revision()), max_bytes));
        let read = if skill_response.is_some() {
            0
        } else {
            received
        };
        let rest = ResumedStream {
            parts: Some(results.replay(call, read, identity)),
            skill_response,
            read,
            call,
            received,
            recipient: Recipient::new(opened.id.clone(), Dialect::Mcp),
            opened,
        };
        let frames = rest.frames().take_until(self.drained(ends_here));
        Ok(Some(frames_response(frames, budget.clone())))
    }
}

/// The rest of a recorded answer.
struct ResumedStream {
    /// `None` after the last one.
    parts: Option<mpsc::Receiver<Result<RecordedPart, CallError>>>,
    skill_response: Option<SkillResponse>,
    /// How many parts were read, including those before the log begins.
    read: usize,
    call: CallId,
    /// How many of them the client has received.
    received: usize,
    opened: Arc<OpenedCall>,
    recipient: Recipient,
}

// === impl ResumedStream ===

impl ResumedStream {
    fn frames(self) -> impl Stream<Item = Frame> + Send {
        stream::unfold(self, |mut rest| async {
            let frame = rest.next().await?;
            Some((frame, rest))
        })
    }

    async fn next(&mut self) -> Option<Frame> {
        let failure = loop {
            let parts = self.parts.as_mut()?;
            match timeout(self.opened.wait_for_part(), parts.recv()).await {
                Ok(Some(Ok(part))) => {
                    if let Some(frame) = self.part(part) {
                        return Some(frame);
                    }
                }
                // The client can resume again.
                Ok(Some(Err(CallError::Draining | CallError::HandedOff)) | None) => return None,
                Ok(Some(Err(error))) => break Failure::call(&error),
                Err(_late) => {
                    let message = "the answer was not recorded in time: the agent may have executed the request";
                    break Failure::new(Reason::AnswerLost, message);
                }
            }
        };
        self.parts = None;
        Some(Frame::of(failure.render(&self.recipient)))
    }

    /// The frame of a part, unless the client has it already.
    fn part(&mut self, RecordedPart { body, last, by }: RecordedPart) -> Option<Frame> {
        self.read += 1;
        let body = Bytes::copy_from_slice(body.as_bytes());
        let shown = shown(&mut self.skill_response, (body, last), by, &self.recipient);
        if last || shown.as_ref().is_some_and(|(_, last)| *last) {
            self.parts = None;
        }
        let (data, _) = shown.filter(|_| self.read > self.received)?;
        Some(Frame::with_id(event_id(self.call, self.read), data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    #[test]
    fn an_event_id_has_the_number_of_parts_that_its_client_has() {
        let call = CallId::new(Replica(3)).unwrap().followed();
        assert_eq!(read_id(&event_id(call, 12)), Some((call, 12)));
        for bad in ["", "1", "x.1", &format!("{call}"), &format!("{call}.-1")] {
            assert_eq!(read_id(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_question_has_an_id_and_a_method() {
        assert!(is_question(
            br#"{"jsonrpc":"2.0","method":"roots/list","id":1}"#
        ));
        assert!(!is_question(
            br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#
        ));
        assert!(!is_question(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    }
}
