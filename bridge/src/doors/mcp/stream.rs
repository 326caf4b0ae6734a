//! Streams that outlive their connection: what their client has not seen, any replica sends it again.
//!
//! ```text
//! agent ── part ──> log ──> client, with the id CALL.N
//!                    └────> GET with Last-Event-ID: CALL.N, at any replica: the parts after the Nth
//! ```
//!
//! When the replica that has the call stops, another one takes the answer and records it ([`crate::results::follower`]).

use std::convert::identity;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::Mcp;
use super::session::Session;
use super::skill::response::SkillResponse;
use crate::budget::ClientBudget;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::{CallError, Part};
use crate::doors::Refusal;
use crate::doors::a2a::not_read;
use crate::http::sse::{Frame, frames_response};
use crate::results::{Author, RecordedPart, Results};

/// The header with which a client comes back.
const LAST_EVENT: &str = "last-event-id";
/// Frames that wait for a client, at most.
const FRAMES: usize = 16;
/// How much longer than its call an answer may take to be recorded, by the clocks of all replicas.
const MARGIN: Duration = Duration::from_secs(10);
/// How long a client may take to read one frame while its answer is recorded.
const PATIENCE: Duration = Duration::from_secs(5);

/// A call whose answer is recorded, as its agent says it.
pub(super) struct Recorded {
    pub(super) call: CallId,
    /// What makes it the result of a tool.
    pub(super) skill_response: Option<SkillResponse>,
}

/// An answer whose parts are recorded.
pub(super) struct ResumableStream {
    results: Arc<Results>,
    call: CallId,
    skill_response: Option<SkillResponse>,
    recipient: Recipient,
    /// Where the client gets its frames, for as long as it takes them.
    client: Option<mpsc::Sender<Frame>>,
    /// How many parts are recorded; `None` once one could not be.
    count: Option<usize>,
}

// === impl ResumableStream ===

impl ResumableStream {
    /// The frames of an answer, which is recorded to its end whether the client stays or not.
    pub(super) fn frames(
        results: Arc<Results>,
        Recorded {
            call,
            skill_response,
        }: Recorded,
        recipient: Recipient,
        parts: impl Stream<Item = Result<Part, CallError>> + Send + 'static,
    ) -> impl Stream<Item = Frame> + Send {
        let (client, frames) = mpsc::channel(FRAMES);
        let resumable = Self {
            results,
            call,
            skill_response,
            recipient,
            client: Some(client),
            count: Some(0),
        };
        let results = Arc::clone(&resumable.results);
        results.spawn(resumable.record(parts));
        stream::unfold(frames, |mut frames| async {
            Some((frames.recv().await?, frames))
        })
    }

    async fn record(mut self, parts: impl Stream<Item = Result<Part, CallError>> + Send) {
        let mut parts = pin!(parts);
        loop {
            let (body, last, by) = match parts.next().await {
                Some(Ok(part)) => (part.body, part.last, Author::Agent),
                // Another replica goes on with it, and the client comes back there.
                Some(Err(CallError::Draining)) => return,
                Some(Err(error)) => self.failed(&Failure::call(&error)),
                None => {
                    let message = "the client has cancelled this request";
                    self.failed(&Failure::new(Reason::Cancelled, message))
                }
            };
            if self.take((body, last), by).await {
                return;
            }
        }
    }

    fn failed(&self, failure: &Failure) -> (Bytes, bool, Author) {
        (failure.render(&self.recipient), true, Author::Bridge)
    }

    /// Takes one part: nothing that a client knows by its id is missing on the log. Whether it is the last one.
    async fn take(&mut self, (body, last): (Bytes, bool), by: Author) -> bool {
        let mut id = None;
        // Only this replica takes the answer to a question.
        if !is_question(&body)
            && let Some(count) = self.count
        {
            let part = RecordedPart::new(&body, last, by);
            let is_kept = self.results.keep_part(self.call, count, part).await;
            self.count = is_kept.then_some(count + 1);
            id = self.count.map(|count| event_id(self.call, count));
        }
        let shown = shown(&mut self.skill_response, (body, last), by, &self.recipient);
        let Some((data, last)) = shown else {
            return last;
        };
        let frame = Frame {
            event: None,
            id,
            data,
        };
        // The answer is recorded whether its client reads or not; one that is too slow can come back for the rest.
        if let Some(client) = &self.client
            && !matches!(timeout(PATIENCE, client.send(frame)).await, Ok(Ok(())))
        {
            self.client = None;
        }
        last
    }
}

/// What a client gets for a part, if anything, and whether it is the last that it gets. An error of the bridge stays one.
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

/// The first frame of a stream that has nothing to say yet: from then on its client can come back.
pub(super) fn beginning(call: CallId) -> Frame {
    Frame {
        event: None,
        id: Some(event_id(call, 0)),
        data: Bytes::new(),
    }
}

fn event_id(call: CallId, count: usize) -> String {
    format!("{call}.{count}")
}

/// The call of an event, and how many parts its client has.
fn read_id(id: &str) -> Option<(CallId, usize)> {
    let (call, count) = id.split_once('.')?;
    Some((call.parse().ok()?, count.parse().ok()?))
}

fn is_question(body: &[u8]) -> bool {
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
    /// The rest of a stream, for a client that comes back; `None` for one that does not.
    ///
    /// # Errors
    /// When nothing is kept of this stream.
    pub(super) async fn resumed(
        &self,
        session: Option<&Session>,
        headers: &HeaderMap,
        purse: &ClientBudget,
    ) -> Result<Option<Response>, Refusal> {
        let Some(last) = headers.get(LAST_EVENT) else {
            return Ok(None);
        };
        let unknown = || {
            let message = "nothing is kept of the stream of this Last-Event-ID, or it belongs to another session: send the request again";
            let failure = Failure::new(Reason::InvalidParams, message);
            (StatusCode::BAD_REQUEST, failure)
        };
        let last = last.to_str().ok().and_then(read_id);
        let (Some((call, taken)), Some(session)) = (last, session) else {
            return Err(unknown());
        };
        let results = &self.door.results;
        let opened = results.lasting(call, &session.key()).await;
        let opened = opened.map_err(|error| {
            let failure = not_read("results", &error);
            (StatusCode::SERVICE_UNAVAILABLE, failure)
        })?;
        let opened = opened.ok_or_else(unknown)?;
        // Each part of a tool's result depends on those before it.
        let most = self.door.largest_body();
        let skill_response = opened.skill.clone();
        let skill_response =
            skill_response.map(|skill| SkillResponse::new(skill, Some(session.revision()), most));
        let heard = if skill_response.is_some() { 0 } else { taken };
        let rest = ResumedStream {
            parts: Some(results.replay(call, heard, identity)),
            skill_response,
            heard,
            call,
            taken,
            until: Instant::now() + opened.time_left() + MARGIN,
            recipient: Recipient::new(opened.id.clone(), Dialect::Mcp),
        };
        let drain = self.drain.clone().cancelled_owned();
        let frames = rest.frames().take_until(drain);
        Ok(Some(frames_response(frames, purse.clone())))
    }
}

/// The rest of a recorded answer.
struct ResumedStream {
    /// `None` after the last one.
    parts: Option<mpsc::Receiver<Result<RecordedPart, CallError>>>,
    skill_response: Option<SkillResponse>,
    /// How many parts came from the log, with those before it begins.
    heard: usize,
    call: CallId,
    /// How many of them the client has.
    taken: usize,
    until: Instant,
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
            match timeout_at(self.until, parts.recv()).await {
                Ok(Some(Ok(part))) => {
                    if let Some(frame) = self.part(part) {
                        return Some(frame);
                    }
                }
                // The client may come back once more.
                Ok(Some(Err(CallError::Draining)) | None) => return None,
                Ok(Some(Err(error))) => break Failure::call(&error),
                Err(_late) => {
                    let message =
                        "the answer was not recorded in time: its agent may have done the work";
                    break Failure::new(Reason::AnswerLost, message);
                }
            }
        };
        self.parts = None;
        Some(Frame {
            event: None,
            id: None,
            data: failure.render(&self.recipient),
        })
    }

    /// The frame of a part that the client does not have.
    fn part(&mut self, RecordedPart { body, last, by }: RecordedPart) -> Option<Frame> {
        self.heard += 1;
        let body = Bytes::copy_from_slice(body.as_bytes());
        let shown = shown(&mut self.skill_response, (body, last), by, &self.recipient);
        if last || shown.as_ref().is_some_and(|(_, last)| *last) {
            self.parts = None;
        }
        let (data, _) = shown.filter(|_| self.heard > self.taken)?;
        Some(Frame {
            event: None,
            id: Some(event_id(self.call, self.heard)),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    #[test]
    fn an_event_says_how_many_parts_its_client_has() {
        let call = CallId::new_followed(Replica(3)).unwrap();
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
