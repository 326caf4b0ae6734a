//! Requests with an `Idempotency-Key`: a repeated request gets the same answer, and no agent executes it twice.
//!
//! The request continues if its caller disconnects, so the answer is available when the caller sends it again, to any
//! replica. Source: docs/design.md §7.5.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{Text, Unit, decode, extension};
use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response};
use tokio::join;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::common::{AdmittedRequest, Common};
use super::head::{CALL_ID, header_of};
use super::unit::Framed;
use crate::account::REPLAYED;
use crate::budget::Charge;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient, SOON};
use crate::clock;
use crate::doors::door::{Answering, Door, IDEMPOTENCY_KEY, Refusal};
use crate::http::respond::RETRY_AFTER_SECONDS;
use crate::http::{negotiate, sse};
use crate::metrics::{HttpPath, IdempotencyOutcome as Outcome};
use crate::results::{Claim, KeyState, Results, StoredResponse, digest_of, key_of};
use crate::state::{STORED, StateError};

/// The attributes of a CloudEvent that clients may set anew for each attempt.
const OF_AN_ATTEMPT: [&str; 5] = ["id", "time", "expirytime", "traceparent", "tracestate"];
/// The header of a stored answer.
const REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");
/// The longest key, in characters.
const MAX_KEY: usize = 255;
/// How long the claim of a key may take if the timeout of its caller has nearly passed.
const CLAIMED: Duration = Duration::from_millis(100);
/// How much longer than its call the answer to a request may take, including clock differences between replicas.
const MARGIN: Duration = Duration::from_secs(5);
/// Maximum number of pieces of a stream that wait for a slow caller.
const PIECES: usize = 16;

/// A request that this replica answers.
struct ClaimedRequest {
    results: Arc<Results>,
    /// The log key of its claim.
    key: String,
    call: Text,
    common: Common,
    /// The largest answer that is stored, in bytes.
    max_bytes: usize,
}

/// The JSON-RPC request with a key whose call continues after the timeout of its caller, who can get the answer later.
struct PatientRequest {
    recipient: Recipient,
    method: Text,
    /// The timeout of its caller.
    timeout: Duration,
    /// Whether the caller waits longer if parts of the answer come, because it sets no timeout.
    is_extended: bool,
}

/// What is known of a request that is refused; by default nothing.
#[derive(Debug, Default)]
pub(super) struct RefusedUnit {
    /// Its id, as its JSON token.
    pub(super) id: Option<Text>,
    /// Its method; empty if it has none.
    pub(super) method: Text,
}

// === impl RefusedUnit ===

impl RefusedUnit {
    fn of(unit: Option<&Unit>) -> Self {
        let method = unit.and_then(|unit| unit.extension_text(extension::A2A_METHOD));
        let id = unit.and_then(|unit| unit.json_rpc.as_ref()?.id.as_ref());
        Self {
            id: id.map(|id| id.token().clone()),
            method: method.cloned().unwrap_or_default(),
        }
    }
}

/// Has a request answered by `work`: a request with a key at most once. If it is refused because of its key, the error
/// contains the id and the method of the request.
pub(super) async fn answered(
    door: &Door,
    path: HttpPath,
    request: Box<AdmittedRequest>,
    work: impl FnOnce(Common, Parts, Bytes) -> Answering,
) -> Result<Response, (Refusal, RefusedUnit)> {
    match read_key(&request.head.headers) {
        Ok(None) => {
            let answered = {
                let AdmittedRequest { common, head, body } = *request;
                work(common, head, body)
            };
            let answered = answered.await;
            answered.map_err(|refusal| (refusal, RefusedUnit::default()))
        }
        Ok(Some(key)) => Box::pin(answered_once(door, path, *request, &key, work)).await,
        Err(refusal) => {
            let unit = only_unit(door, &request.common, &request.body);
            Err((refusal, RefusedUnit::of(unit.as_ref())))
        }
    }
}

async fn answered_once(
    door: &Door,
    path: HttpPath,
    AdmittedRequest {
        mut common,
        head,
        body,
    }: AdmittedRequest,
    key: &str,
    work: impl FnOnce(Common, Parts, Bytes) -> Answering,
) -> Result<Response, (Refusal, RefusedUnit)> {
    let unit = only_unit(door, &common, &body);
    let message = unit.as_ref().filter(|_| !common.is_event);
    let timeout = message.map_or(common.timeout, |unit| common.timeout_of(unit));
    let until = common.arrived + door.calls.timeout_for(timeout);
    let patient = message.and_then(|unit| PatientRequest::of(path, &common, unit));
    // The unit is not held while the agent works.
    let known = RefusedUnit::of(unit.as_ref());
    drop(unit);
    let longest = door.calls.longest() + MARGIN;
    let mut claim = Claim {
        digest: digest_of_request(&head, &body),
        call: common.call.to_string().into(),
        until: clock::milliseconds(clock::now() + longest),
    };
    let key = key_of(&common.caller, key);
    let state = Box::pin(claim_key(door, &key, (&mut claim, longest), until)).await;
    common.key = Some(Text::from(key.as_str()));
    // If the claim has used up the time, the call fails like any other.
    let patient = patient.filter(|patient| common.arrived + patient.timeout > Instant::now());
    common.is_patient = patient.is_some();
    door.metrics.keyed(outcome_of(&state));
    if let Ok(KeyState::RecordedElsewhere(call)) = &state {
        (common.call, common.is_resumed) = (*call, true);
    }
    match state {
        Ok(KeyState::Ours | KeyState::RecordedElsewhere(_)) => {
            let mine = ClaimedRequest {
                results: Arc::clone(&door.results),
                key,
                call: common.call.to_string().into(),
                common: common.clone(),
                max_bytes: door.largest_body(),
            };
            let done = mine.done(work(common.clone(), head, body));
            let done = Box::pin(PatientRequest::in_time(patient, (door, &common), done)).await;
            done.map_err(|refusal| (refusal, RefusedUnit::default()))
        }
        Ok(KeyState::Answered(stored)) => {
            replay(&mut common, stored, &known.method).map_err(|refusal| (refusal, known))
        }
        Ok(other) => Err((refused(&other), known)),
        Err(refusal) => Err((refusal, known)),
    }
}

/// The stored answer, for a caller that accepts its form.
fn replay(
    common: &mut Common,
    stored: Arc<StoredResponse>,
    method: &str,
) -> Result<Response, Refusal> {
    let response = replayed(&stored);
    if sse::is_stream(response.headers()) && !common.accepts.events() {
        return Err(refused(&KeyState::Answered(stored)));
    }
    // The log and the client have the same id: that of the first call.
    common.call = call_in(response.headers()).unwrap_or(common.call);
    let agent = common.target.name().unwrap_or_default();
    common.note(agent, method, REPLAYED);
    Ok(response)
}

/// The unit of a body that has only one.
fn only_unit(door: &Door, common: &Common, body: &Bytes) -> Option<Unit> {
    let units = decode(body, &common.hint, &door.calls.rules().limits);
    match Framed::of(body, units) {
        Framed::One(unit) => unit.ok(),
        Framed::Batch(_) | Framed::Lines => None,
    }
}

/// The hash of everything that makes a request another one: method, path, body, and the attributes of a CloudEvent in
/// binary mode.
fn digest_of_request(head: &Parts, body: &[u8]) -> Text {
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let (method, path) = (head.method.as_str().as_bytes(), path.as_bytes());
    if negotiate::is_binary_event(&head.headers) {
        return digest_of([method, path, body, &attributes_of(&head.headers)]);
    }
    digest_of([method, path, body])
}

/// The attributes of a CloudEvent in binary mode that are the same in each attempt.
fn attributes_of(headers: &HeaderMap) -> Vec<u8> {
    let attributes = headers.iter().filter(|(name, _)| {
        let name = name.as_str().strip_prefix("ce-");
        name.is_some_and(|name| !OF_AN_ATTEMPT.contains(&name))
    });
    // Neither names nor values contain line ends.
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        let line: [&[u8]; 4] = [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"];
        line.concat()
    };
    let mut lines: Vec<Vec<u8>> = attributes.map(line).collect();
    lines.sort_unstable();
    lines.concat()
}

/// A claim that may have been recorded. It is released if the caller disconnects before that is known, or if it stays
/// unknown.
struct ClaimGuard<'a> {
    results: &'a Arc<Results>,
    /// The key, and the call that has claimed it.
    claimed: Option<(String, Text)>,
}

// === impl ClaimGuard ===

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        let Some((key, call)) = self.claimed.take() else {
            return;
        };
        let results = Arc::clone(self.results);
        self.results
            .spawn(async move { results.release(&key, &call).await });
    }
}

/// Claims a key, once no other request is using it. The claim then lasts for `longest`.
async fn claim_key(
    door: &Door,
    key: &str,
    (claim, longest): (&mut Claim, Duration),
    until: Instant,
) -> Result<KeyState, Refusal> {
    let results = &door.results;
    loop {
        claim.until = clock::milliseconds(clock::now() + longest);
        let mut unknown = ClaimGuard {
            results,
            claimed: Some((key.to_owned(), claim.call.clone())),
        };
        let left = until.saturating_duration_since(Instant::now());
        let state = results.claim(key, claim, left.max(CLAIMED)).await;
        // After any other error the claim may be stored.
        if matches!(&state, Ok(_) | Err(StateError::Unread { .. })) {
            unknown.claimed = None;
        }
        drop(unknown);
        let state = state.map_err(|error| {
            results.log_refused(&error);
            let message = "the record of idempotency keys cannot be reached: nothing was done; try again later";
            let failure = Failure::new(Reason::AgentUnavailable, message);
            (StatusCode::SERVICE_UNAVAILABLE, failure)
        })?;
        let KeyState::Running(call) = &state else {
            return Ok(state);
        };
        results.watch_over(key, call);
        let settled = results.until_settled(key, call);
        tokio::select! {
            settled = timeout_at(until, settled) => if settled.is_err() {
                return Ok(state);
            },
            () = door.calls.given_up() => return Ok(state),
        }
    }
}

fn outcome_of(state: &Result<KeyState, Refusal>) -> Outcome {
    match state {
        Ok(KeyState::Ours) => Outcome::First,
        Ok(KeyState::Answered(_)) => Outcome::Replayed,
        Ok(KeyState::RecordedElsewhere(_)) => Outcome::Resumed,
        Ok(KeyState::Differs(_)) => Outcome::Differs,
        Ok(KeyState::Running(_)) => Outcome::Running,
        Ok(KeyState::Lost(_) | KeyState::Forgotten) => Outcome::Lost,
        Err(_) => Outcome::Unavailable,
    }
}

/// The refusal of a request because of the state of its key.
fn refused(state: &KeyState) -> Refusal {
    let (status, reason, message, call) = match state {
        KeyState::Differs(call) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::KeyReused,
            "this Idempotency-Key was sent with another request: send a new key, or the same request with the same JSON-RPC id and progress token",
            Some(call),
        ),
        KeyState::Running(call) => (
            StatusCode::CONFLICT,
            Reason::InProgress,
            "the request with this Idempotency-Key is still being answered: send it again later",
            Some(call),
        ),
        KeyState::Lost(call) => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::AnswerLost,
            "the request with this Idempotency-Key was accepted, but its answer is not known: its agent may have executed it; send it with a new key to execute it again",
            Some(call),
        ),
        KeyState::Answered(_) => (
            StatusCode::NOT_ACCEPTABLE,
            Reason::ContentType,
            "the answer to this Idempotency-Key is a stream of events, and Accept does not allow text/event-stream: send the same request with an Accept that allows it",
            None,
        ),
        KeyState::RecordedElsewhere(_) | KeyState::Forgotten | KeyState::Ours => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::AnswerLost,
            "the request with this Idempotency-Key was answered, but the answer is no longer stored: send it with a new key to execute it again",
            None,
        ),
    };
    let failure = Failure::new(reason, message);
    let failure = match call {
        Some(call) => failure.detail("callId", call.as_str()),
        None => failure,
    };
    let failure = if status == StatusCode::CONFLICT {
        failure.detail("retryAfterSeconds", SOON)
    } else {
        failure
    };
    (status, failure)
}

/// The key of a request, without the quotes of a structured field.
fn read_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let key = key.to_str().unwrap_or_default().trim();
    let bare = key
        .strip_prefix('"')
        .and_then(|key| key.strip_suffix('"'))
        .unwrap_or(key);
    let is_visible = bare.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if keys.next().is_none() && is_visible && (1..=MAX_KEY).contains(&bare.len()) {
        return Ok(Some(bare.to_owned()));
    }
    let message =
        format!("Idempotency-Key must be one value of 1 to {MAX_KEY} printable ASCII characters");
    let failure = Failure::new(Reason::InvalidParams, message);
    Err((StatusCode::BAD_REQUEST, failure))
}

// === impl PatientRequest ===

impl PatientRequest {
    /// The request of a message; `None` if its caller may get the answer in parts, or waits as long as any call may
    /// take.
    fn of(path: HttpPath, common: &Common, unit: &Unit) -> Option<Self> {
        // Other paths answer with tasks and streams, which have deadlines of their own.
        if !matches!(path, HttpPath::Rpc | HttpPath::RpcAgent) || common.accepts.is_events_only() {
            return None;
        }
        let message = unit.json_rpc.as_ref()?;
        let is_whole = matches!(message.body, RpcBody::Call { streaming: false })
            && message.id.is_some()
            && message.progress.is_none()
            && matches!(message.dialect, Dialect::JsonRpc | Dialect::Mcp);
        let requested = common.timeout_of(unit);
        let timeout = common.calls.timeout_for(requested);
        (is_whole && timeout < common.calls.patience(requested)).then(|| Self {
            recipient: Recipient::of(unit),
            method: unit.method().map(Text::from).unwrap_or_default(),
            timeout,
            is_extended: requested.is_none(),
        })
    }

    /// The response, or the error `timeout` after the timeout of the caller.
    async fn in_time(
        patient: Option<Self>,
        (door, common): (&Door, &Common),
        response: impl Future<Output = Result<Response, Refusal>>,
    ) -> Result<Response, Refusal> {
        let Some(patient) = patient else {
            return response.await;
        };
        let calls = &common.calls;
        let mut response = pin!(response);
        let mut until = common.arrived + patient.timeout;
        loop {
            if let Ok(response) = timeout_at(until, &mut response).await {
                return response;
            }
            let request = calls.pending().request(common.call);
            let came = request.and_then(|request| request.came());
            let later = came
                .filter(|_| patient.is_extended)
                .map(|(_, last)| Instant::from_std(last) + calls.timeout_for(None))
                .filter(|later| *later > until);
            let Some(later) = later else {
                let parts = came.map_or(0, |(parts, _)| parts);
                return Ok(patient.timed_out((door, common), until, parts));
            };
            // Without further parts the call itself ends by then, and its own error says more.
            if later >= common.arrived + calls.patience(None) {
                return response.await;
            }
            until = later;
        }
    }

    fn timed_out(self, (door, common): (&Door, &Common), until: Instant, parts: u32) -> Response {
        let waited = until.saturating_duration_since(common.arrived);
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let what = match parts {
            0 => format!("no answer within {millis} ms; the agent may still answer"),
            parts => format!(
                "the agent did not end its answer within {millis} ms ({parts} parts came); it may still do so"
            ),
        };
        let message = format!(
            "{what}: send the request again with the same Idempotency-Key to get its answer"
        );
        let failure = Failure::new(Reason::Timeout, message).detail("timeoutMs", millis);
        door.metrics.keyed(Outcome::TimedOut);
        let agent = common.target.name().unwrap_or_default();
        common.note(agent, &self.method, failure.reason_code());
        let mut response = common.whole(failure.render(&self.recipient));
        let call = header_of(&[common.call]);
        response.headers_mut().insert(CALL_ID, call);
        response
    }
}

// === impl ClaimedRequest ===

impl ClaimedRequest {
    /// Executes it, even if its caller disconnects.
    async fn done(self, work: Answering) -> Result<Response, Refusal> {
        let (to_caller, response) = oneshot::channel();
        let results = Arc::clone(&self.results);
        results.spawn(async move {
            let (results, key) = (Arc::clone(&self.results), self.key.clone());
            let call = self.call.clone();
            let answered = AssertUnwindSafe(self.answered(work, to_caller).boxed());
            let answered = results.renewing(&key, &call, answered.catch_unwind());
            match answered.await {
                Ok(Some(rest)) => drop(rest.hand_over().await),
                Ok(None) => {}
                // The panic has been logged. An agent may have received the request.
                Err(_) => results.give_up(&key, &call).await,
            }
        });
        response.await.unwrap_or_else(|_| {
            let message = "the request was given up because the bridge failed or is shutting down; its agent may have executed it: send it again with the same Idempotency-Key";
            let failure = Failure::new(Reason::AnswerLost, message);
            Err((StatusCode::GATEWAY_TIMEOUT, failure))
        })
    }

    /// Answers the request, and stores the answer. Returns what its caller has not received yet.
    async fn answered(
        self,
        work: Answering,
        to_caller: oneshot::Sender<Result<Response, Refusal>>,
    ) -> Option<UnreadPieces> {
        match work.await {
            Ok(response) => self.answer(response, to_caller).await,
            Err(refusal) => {
                let released = async {
                    // The first replica has sent the call of a resumed request.
                    if self.common.is_resumed || self.common.sent_calls.is_handed_off() {
                        return;
                    }
                    // Usually nothing was sent.
                    match self.common.sent_calls.is_empty() {
                        true => self.results.release(&self.key, &self.call).await,
                        false => self.results.give_up(&self.key, &self.call).await,
                    }
                };
                let mut released = pin!(released);
                let is_released = timeout(STORED, &mut released).await.is_ok();
                drop(to_caller.send(Err(refusal)));
                if !is_released {
                    released.await;
                }
                None
            }
        }
    }

    /// Sends a response to the caller, and stores it. Returns the parts of a stream that the caller has not received
    /// yet.
    async fn answer(
        self,
        mut response: Response,
        to_caller: oneshot::Sender<Result<Response, Refusal>>,
    ) -> Option<UnreadPieces> {
        if !response.headers().contains_key(CALL_ID) {
            let call = header_of(&[self.common.call]);
            response.headers_mut().insert(CALL_ID, call);
        }
        if self.common.is_resumed {
            mark_as_replay(response.headers_mut());
        }
        let is_stream = sse::is_stream(response.headers());
        let (mut head, body) = response.into_parts();
        let mut collected = CollectedBody::new(self.common.budget.charge(0).ok(), self.max_bytes);
        let (mut pieces, receiver) = mpsc::channel(PIECES);
        let sent = if is_stream {
            let live = stream::unfold(receiver, |mut receiver| async move {
                let piece: BodyChunk = receiver.recv().await?;
                Some((piece, receiver))
            });
            let live = Response::from_parts(head.clone(), Body::from_stream(live));
            drop(to_caller.send(Ok(live)));
            collected.stream(body, &mut pieces).await;
            None
        } else {
            collected.document(body).await;
            // Clients repeat such a request by themselves, and get the answer from the replica that receives it.
            if self.common.sent_calls.is_handed_off() && head.status == StatusCode::OK {
                head.status = StatusCode::SERVICE_UNAVAILABLE;
                head.headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
            }
            Some(to_caller)
        };
        self.stored(head, collected, (pieces, sent)).await
    }

    /// Stores an answer, and sends the rest of it to the caller. `document` is for a caller who has received nothing
    /// yet.
    async fn stored(
        self,
        head: response::Parts,
        collected: CollectedBody,
        (pieces, document): (
            mpsc::Sender<BodyChunk>,
            Option<oneshot::Sender<Result<Response, Refusal>>>,
        ),
    ) -> Option<UnreadPieces> {
        let CollectedBody {
            whole,
            charge,
            waiting,
            ..
        } = collected;
        let mut whole = whole.freeze();
        if document.is_some() {
            // Its pieces, which were charged, are dropped.
            whole = self.common.budget.replace(whole);
        }
        let mut kept = pin!(self.keep(&head, charge.is_some().then_some(&*whole)));
        let is_kept = timeout(STORED, &mut kept).await.is_ok();
        let Some(to_caller) = document else {
            let rest = UnreadPieces {
                waiting,
                pieces,
                charge,
            };
            if !is_kept {
                // The body stays in the budget until both are done.
                drop(join!(kept, rest.hand_over()));
                return None;
            }
            return Some(rest);
        };
        let response = Response::from_parts(head.clone(), Body::from(whole.clone()));
        drop(to_caller.send(Ok(response)));
        if !is_kept {
            kept.await;
        }
        None
    }

    /// Stores the body, unless it is too large.
    async fn keep(&self, head: &response::Parts, body: Option<&[u8]>) {
        let sent_calls = &self.common.sent_calls;
        if sent_calls.is_handed_off() {
            return;
        }
        if sent_calls.is_empty() {
            // The first replica has sent the call of a resumed request.
            if !self.common.is_resumed {
                self.results.release(&self.key, &self.call).await;
            }
            return;
        }
        match body.and_then(|body| stored_response(head, body)) {
            Some(stored_response) => {
                self.results
                    .keep(&self.key, &self.call, stored_response)
                    .await
            }
            None => self.results.give_up(&self.key, &self.call).await,
        }
    }
}

type BodyChunk = Result<Bytes, std::convert::Infallible>;

/// The body of a response, as far as it has been collected.
struct CollectedBody {
    whole: BytesMut,
    /// The charge for `whole`; `None` once it is too large to be stored.
    charge: Option<Charge>,
    /// The largest body that is stored, in bytes.
    max_bytes: usize,
    /// The parts that the caller has not received yet.
    waiting: VecDeque<Bytes>,
}

/// The pieces of a stream that the caller has not received yet.
struct UnreadPieces {
    waiting: VecDeque<Bytes>,
    pieces: mpsc::Sender<BodyChunk>,
    /// Their bytes are in the budget of the caller until they are sent.
    charge: Option<Charge>,
}

// === impl CollectedBody ===

impl CollectedBody {
    fn new(charge: Option<Charge>, max_bytes: usize) -> Self {
        Self {
            whole: BytesMut::new(),
            charge,
            max_bytes,
            waiting: VecDeque::new(),
        }
    }

    /// Reads a document, which is in memory already.
    async fn document(&mut self, body: Body) {
        let mut stream = body.into_data_stream();
        while let Some(Ok(piece)) = stream.next().await {
            self.whole.extend_from_slice(&piece);
        }
    }

    /// Reads a stream, and sends its pieces to the caller while it is connected. A slow caller does not delay the
    /// agent's answer, unless the answer is too large to be stored: then nobody else needs it.
    async fn stream(&mut self, body: Body, to_caller: &mut mpsc::Sender<BodyChunk>) {
        let mut stream = body.into_data_stream();
        let mut is_there = true;
        loop {
            let is_waiting = !self.waiting.is_empty();
            tokio::select! {
                piece = stream.next(), if self.charge.is_some() || !is_waiting => match piece {
                    Some(Ok(piece)) => {
                        self.add(&piece);
                        if is_there {
                            self.waiting.push_back(piece);
                        }
                    }
                    Some(Err(_)) | None => return,
                },
                room = to_caller.reserve(), if is_waiting => match (room, self.waiting.pop_front()) {
                    (Ok(room), Some(piece)) => room.send(Ok(piece)),
                    // The caller has disconnected.
                    _ => {
                        is_there = false;
                        self.waiting.clear();
                    }
                },
            }
        }
    }

    fn add(&mut self, piece: &Bytes) {
        let fits = self.whole.len() + piece.len() <= self.max_bytes;
        let charge = self.charge.as_mut().filter(|_| fits);
        if charge.is_some_and(|charge| charge.grow(piece.len()).is_ok()) {
            self.whole.extend_from_slice(piece);
        } else {
            self.charge = None;
            self.whole = BytesMut::new();
        }
    }
}

// === impl UnreadPieces ===

impl UnreadPieces {
    /// Sends them, and ends the stream. Returns their charge.
    async fn hand_over(self) -> Option<Charge> {
        for piece in self.waiting {
            if self.pieces.send(Ok(piece)).await.is_err() {
                break;
            }
        }
        self.charge
    }
}

/// A response as it is stored; `None` if it is not text.
fn stored_response(head: &response::Parts, body: &[u8]) -> Option<StoredResponse> {
    let headers = head.headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.as_str().into(), value.into()))
    });
    Some(StoredResponse {
        status: head.status.as_u16(),
        headers: headers.collect(),
        body: std::str::from_utf8(body).ok()?.into(),
    })
}

/// The id of the first call of a response.
fn call_in(headers: &HeaderMap) -> Option<CallId> {
    let calls = headers.get(CALL_ID)?.to_str().ok()?;
    calls.split(',').next()?.trim().parse().ok()
}

/// The body of a stored response. All replays share it, because they are not charged.
struct StoredBody(Text);

impl AsRef<[u8]> for StoredBody {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn replayed(stored_response: &StoredResponse) -> Response {
    let body = Bytes::from_owner(StoredBody(stored_response.body.clone()));
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(stored_response.status).unwrap_or_default();
    let headers = response.headers_mut();
    for (name, value) in &stored_response.headers {
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::try_from(value.as_str()),
        ) {
            headers.insert(name, value);
        }
    }
    mark_as_replay(headers);
    response
}

/// The response to an earlier request.
fn mark_as_replay(headers: &mut HeaderMap) {
    headers.insert(REPLAY, HeaderValue::from_static("true"));
}

#[cfg(test)]
mod tests;
