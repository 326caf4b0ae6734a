//! The messages between the bridge and one run of an attached MCP server, as its client, over the pipes of a program or
//! in the session of an HTTP server.
//!
//! Each request gets a new number as its id, because different requesters may use the same id. Each question of the
//! server gets a random id, so that only the client that was asked can answer it. Nothing else in a message changes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::{Id, JsonRpc, error, result, splice};
use a2abus_plugin::{Kind, Text};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use http::HeaderMap;
use prometheus::{IntCounter, IntGauge};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::made_tasks::MadeTasks;
use super::members::{WithMeta, WithParams};
use super::watched::Watched;
use crate::calls::failure::{Failure, Reason};
use crate::calls::with_token;
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::object;
use crate::registry::card::LeftOut;

/// The connection to the server, and its unanswered requests.
#[derive(Debug)]
pub(super) struct Link {
    input: mpsc::Sender<Line>,
    open: Mutex<Open>,
    /// The server's tools.
    tools: Mutex<Arc<Tools>>,
    /// Whether at most one call is open, so that a message without a call belongs to it.
    is_single: bool,
    lists_changed: Notify,
    /// The level of log messages that this run was last told.
    log_level: Mutex<Option<Text>>,
    /// The tasks that this run has made.
    pub(super) made_tasks: MadeTasks,
    watched: Arc<Watched>,
    log: Arc<Log>,
}

/// The tools of a server, by name.
pub(super) type Tools = HashMap<Text, ToolUse>;

/// How a tool may be called.
#[derive(Debug)]
pub(super) struct ToolUse {
    /// Whether it is safe to call it twice.
    pub(super) is_repeatable: bool,
    /// The argument that takes the text of a message: the only required one, if it is a string.
    pub(super) text: Option<String>,
}

/// Rate limits for log lines that a server can cause, and its counters.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) agent: Text,
    pub(super) strange: LogLimit,
    pub(super) dropped: LogLimit,
    pub(super) ends: LogLimit,
    /// Lines that it writes to standard error.
    pub(super) stderr: LogLimit,
    /// Dropped messages of the server.
    pub(super) drops: IntCounter,
    /// Messages for the agent that were passed on to other bridges.
    pub(super) passed_on: IntCounter,
    /// The number of skills left out of its card.
    pub(super) unusable: IntGauge,
    /// The skills left out, as last logged.
    pub(super) left_out: Mutex<LeftOut>,
}

/// A message to the server.
#[derive(Debug)]
pub(super) struct Line {
    bytes: Bytes,
    /// The call that it starts.
    call: Option<StartedCall>,
}

/// The call that a message starts.
#[derive(Debug, Clone)]
pub(super) struct StartedCall {
    pub(super) number: u64,
    /// Cancelled when nothing waits for the answer any more.
    pub(super) over: CancellationToken,
    /// Additional headers for an HTTP server.
    pub(super) headers: HeaderMap,
}

#[derive(Debug, Default)]
struct Open {
    calls: HashMap<u64, Call>,
    /// Open questions to clients, by the id that the clients see, as JSON.
    questions: HashMap<Text, Question>,
    /// Unanswered calls whose caller has stopped waiting, and when. The server may still work on them. Empty if several
    /// calls may be open.
    abandoned: HashMap<u64, Instant>,
    /// How many abandoned calls there may be before the old ones are removed.
    prune_at: usize,
    /// The calls that were answered last.
    answered: VecDeque<u64>,
    last: u64,
    is_closed: bool,
}

/// A question of the server to the client of a call.
#[derive(Debug)]
struct Question {
    call: u64,
    /// The server's own id, as JSON.
    id: Text,
}

/// Why a question cannot go to a client.
#[derive(Debug)]
struct Refused {
    code: i32,
    why: &'static str,
}

#[derive(Debug)]
struct Call {
    /// The requester's own id, as JSON.
    id: Text,
    /// The requester's own progress token.
    progress: Option<Text>,
    parts: Parts,
    /// The ids of the last elicitations of mode `url` that its client got, as JSON.
    elicitations: VecDeque<Text>,
    answer: oneshot::Sender<Result<Bytes, Failure>>,
    over: CancellationToken,
}

/// Where messages that precede the answer go.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) sender: mpsc::Sender<Part>,
    /// Set while there was no room for too long: nobody waits for it meanwhile.
    pub(super) is_stalled: Arc<AtomicBool>,
    /// Whether the requester accepts unsolicited messages: log messages and questions.
    pub(super) takes_all: bool,
    /// Set when the request is written. From then on the server may have executed it.
    pub(super) reached: Arc<AtomicBool>,
    /// Set once the request has been moved to a new session.
    pub(super) is_moved: Arc<AtomicBool>,
}

/// A message that precedes the answer, and its kind.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) body: Bytes,
    /// Whether the server waits for the requester's answer to it.
    pub(super) is_question: bool,
}

/// A request that waits for its answer. Dropping it before the answer cancels the request.
#[derive(Debug)]
pub(super) struct Waiting {
    link: Arc<Link>,
    begun: StartedCall,
    answer: oneshot::Receiver<Result<Bytes, Failure>>,
    /// Whether the server may ask questions while it works on it.
    may_ask: bool,
}

/// The server has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disconnected;

/// Maximum number of open questions.
const MAX_QUESTIONS: usize = 1_000;

/// The id of a question for its client, as JSON.
fn question_id(random: [u8; 16]) -> Text {
    format!("\"{:032x}\"", u128::from_be_bytes(random)).into()
}

/// Whether a client's answer may be one to a question of an attached server.
pub(super) fn is_question_id(id: &Id) -> bool {
    let token = id.token();
    let digits = token
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    digits.is_some_and(|it| it.len() == 32 && it.bytes().all(|it| it.is_ascii_hexdigit()))
}

/// How long the server may still work on a call after its cancel. MCP allows it not to answer the call.
const STOPPED: Duration = Duration::from_secs(60);
/// So many calls may be abandoned before the old ones are removed.
const MIN_ABANDONED: usize = 64;
/// How many answered calls are remembered, to tell a second answer from one that is late.
const REMEMBERED: usize = 256;
/// How many elicitations of one call are remembered, to pass on the messages that report their end.
const ELICITATIONS: usize = 64;
/// The longest id of an elicitation that is remembered, in bytes.
const ELICITATION_ID: usize = 256;
/// How long the messages of a program wait for room in the queue of one call.
const STALL: Duration = Duration::from_secs(5);

const NO_VERSION: &str = "the answer of the attached server lacks \"jsonrpc\":\"2.0\"";

/// The members that are read from a message.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(default, borrow)]
    jsonrpc: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, borrow)]
    method: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(rename = "progressToken", default, borrow)]
    progress: Option<&'a RawValue>,
    #[serde(rename = "requestId", default, borrow)]
    request: Option<&'a RawValue>,
    #[serde(rename = "elicitationId", default, borrow)]
    elicitation: Option<&'a RawValue>,
}

/// The member of `params._meta` that marks a request without a session: a server refuses it in a session. The other
/// members of such a request stay, because they tell the server what the client supports. Source: MCP 2026-07-28,
/// "Per-request protocol fields".
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// The request without the member that only a server without a session accepts. Nothing else changes.
fn without_version(request: Bytes) -> Bytes {
    let read = || {
        let WithParams { params } = object::from_slice(&request).ok()?;
        let WithMeta { meta } = object::from_slice(params?.get().as_bytes()).ok()?;
        let meta = meta?;
        let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(meta.get()).ok()?;
        members.remove(VERSION)?;
        let members = serde_json::to_string(&members).ok()?;
        Some((range_of(&request, meta.get()), members))
    };
    match read() {
        Some((meta, members)) => splice(&request, meta, &members),
        None => request,
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// Its parameters; the default if they are not as expected.
    fn params(&self) -> Params<'a> {
        let params = self.params.map(|raw| serde_json::from_str(raw.get()));
        params.and_then(Result::ok).unwrap_or_default()
    }
}

// === impl Parts ===

impl Parts {
    /// Whether there is no room for another message.
    fn is_full(&self) -> bool {
        let is_full = self.sender.capacity() == 0;
        if !is_full {
            self.is_stalled.store(false, Ordering::Relaxed);
        }
        is_full
    }
}

// === impl Log ===

impl Log {
    /// Counts the skills left out of the card, and logs them once.
    pub(super) fn leaves_out(&self, left_out: &LeftOut) {
        self.unusable
            .set(i64::try_from(left_out.count).unwrap_or(i64::MAX));
        let mut logged = lock(&self.left_out);
        if *logged == *left_out {
            return;
        }
        logged.clone_from(left_out);
        if left_out.count > 0 || !left_out.faults.0.is_empty() {
            let (agent, count, why) = (&self.agent, left_out.count, &left_out.faults);
            tracing::warn!(%agent, count, %why, "skills of an attached server are left out of its card; the tools of an MCP server stay in its list, and can be called");
        }
    }
}

// === impl Link ===

impl Link {
    /// Creates a link that sends messages to the server through `input`.
    pub(super) fn new(
        input: mpsc::Sender<Line>,
        is_single: bool,
        watched: Arc<Watched>,
        log: Arc<Log>,
    ) -> Self {
        Self {
            input,
            open: Mutex::default(),
            tools: Mutex::default(),
            is_single,
            lists_changed: Notify::new(),
            log_level: Mutex::default(),
            made_tasks: MadeTasks::default(),
            watched,
            log,
        }
    }

    /// Sends a request of a requester.
    pub(super) async fn request(
        self: &Arc<Self>,
        body: &Bytes,
        message: &JsonRpc,
        (parts, headers): (Parts, HeaderMap),
    ) -> Result<Waiting, Disconnected> {
        let Some(id) = &message.id else {
            return Err(Disconnected);
        };
        let progress = message.progress.as_deref();
        let own = (id.token().clone(), progress.map(|it| it.token().clone()));
        let waiting = self.begin(own, parts, headers)?;
        let token = waiting.begun.number.to_string();
        let bytes = with_token(body, id, progress, &token);
        self.begin_with(without_version(bytes), &waiting).await?;
        Ok(waiting)
    }

    /// Sends a request of the bridge itself.
    pub(super) async fn ask(
        self: &Arc<Self>,
        method: &str,
        params: &str,
    ) -> Result<Result<Bytes, Failure>, Disconnected> {
        let (sender, _) = mpsc::channel(1);
        let parts = Parts {
            is_stalled: Arc::default(),
            sender,
            takes_all: false,
            reached: Arc::default(),
            // The next session asks again anyway, so a 404 ends no session.
            is_moved: Arc::new(AtomicBool::new(true)),
        };
        let mut waiting = self.begin((Text::from_static("0"), None), parts, HeaderMap::new())?;
        // It asks for a list or for a subscription. If it is late, questions of later calls must not be refused.
        waiting.may_ask = false;
        let number = waiting.begun.number;
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#);
        self.begin_with(body.into(), &waiting).await?;
        waiting.answer().await
    }

    async fn begin_with(&self, bytes: Bytes, waiting: &Waiting) -> Result<(), Disconnected> {
        let call = Some(waiting.begun.clone());
        let sent = self.input.send(Line { bytes, call }).await;
        sent.map_err(|_| Disconnected)
    }

    /// Sends a message that has no answer.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), Disconnected> {
        let line = Line {
            bytes: message,
            call: None,
        };
        self.input.send(line).await.map_err(|_| Disconnected)
    }

    /// The bytes to write for a line, and the call that it starts; `None` if its caller no longer waits.
    pub(super) fn written(&self, line: Line) -> Option<(Bytes, Option<StartedCall>)> {
        if let Some(begun) = &line.call {
            let open = self.open();
            let reached = &open.calls.get(&begun.number)?.parts.reached;
            reached.store(true, Ordering::Release);
        }
        Some((line.bytes, line.call))
    }

    /// Records that the server has not received a call after all.
    pub(super) fn unwritten(&self, call: u64) {
        if let Some(call) = self.open().calls.get(&call) {
            call.parts.reached.store(false, Ordering::Release);
        }
    }

    /// Whether the next session may make a call again: once, while its caller waits.
    pub(super) fn may_move(&self, call: u64) -> bool {
        let open = self.open();
        let call = open.calls.get(&call);
        call.is_some_and(|call| !call.parts.is_moved.load(Ordering::Acquire))
    }

    /// Lets the next session make a call that the server has not executed.
    pub(super) fn move_on(&self, call: u64) {
        if let Some(call) = self.open().calls.get(&call) {
            call.parts.is_moved.store(true, Ordering::Release);
            call.parts.reached.store(false, Ordering::Release);
        }
    }

    /// Fails a call that will get no answer.
    pub(super) fn fail(&self, call: u64, failure: Failure) {
        let (Some(call), _) = self.open().ended(call) else {
            // Nobody waits for it any more.
            return;
        };
        self.strange(&format!(
            "a call of an attached server has failed: {}",
            failure.message()
        ));
        // If the receiver is gone, the deadline has just passed.
        let _ = call.answer.send(Err(failure));
    }

    /// Whether a question is open.
    pub(super) fn is_asking(&self) -> bool {
        !self.open().questions.is_empty()
    }

    /// Whether a question with this id is open.
    pub(super) fn asks(&self, id: &Id) -> bool {
        self.open().questions.contains_key(id.token())
    }

    /// Passes a client's answer on to the server, with the server's own id. Returns whether it answers an open
    /// question.
    pub(super) async fn reply(&self, body: &Bytes, id: &Id) -> Result<bool, Disconnected> {
        let question = self.open().questions.remove(id.token());
        let Some(question) = question else {
            return Ok(false);
        };
        self.send(splice(body, id.span(), &question.id)).await?;
        Ok(true)
    }

    fn begin(
        self: &Arc<Self>,
        (id, progress): (Text, Option<Text>),
        parts: Parts,
        headers: HeaderMap,
    ) -> Result<Waiting, Disconnected> {
        let (answers, answer) = oneshot::channel();
        let over = CancellationToken::new();
        let mut open = self.open();
        if open.is_closed {
            return Err(Disconnected);
        }
        open.last += 1;
        let number = open.last;
        let call = Call {
            id,
            progress,
            parts,
            elicitations: VecDeque::new(),
            answer: answers,
            over: over.clone(),
        };
        open.calls.insert(number, call);
        Ok(Waiting {
            link: Arc::clone(self),
            begun: StartedCall {
                number,
                over,
                headers,
            },
            answer,
            may_ask: true,
        })
    }

    /// Fails the requests that the server has not received, so that its next run gets them, and those with a question,
    /// whose answer could not reach the server. The others stay open.
    pub(super) fn close_to_new_calls(&self) {
        self.open().close_to_new_calls();
    }

    /// Fails all requests when the server has ended.
    pub(super) fn close(&self) {
        let mut open = self.open();
        open.is_closed = true;
        open.calls.clear();
        open.questions.clear();
    }

    /// Processes a message of the server and returns the call that it answers. `of` is the call whose HTTP response
    /// contains the message; a message that names no call belongs to it.
    pub(super) fn receive(&self, line: &Bytes, of: Option<u64>) -> Option<u64> {
        let message: Result<Message<'_>, _> = serde_json::from_slice(line);
        match message {
            Ok(Message {
                method: None,
                id: Some(id),
                jsonrpc,
                ..
            }) => return self.answered(line, id, jsonrpc.as_deref()),
            Ok(message) if message.method.is_some() => self.requested(line, &message, of),
            Ok(_) => {
                self.strange("an attached server sent a message with neither a method nor an id")
            }
            Err(error) => self.strange(&format!(
                "an attached server sent a message that is not JSON-RPC: {error}"
            )),
        }
        None
    }

    fn answered(&self, line: &Bytes, id: &RawValue, version: Option<&str>) -> Option<u64> {
        let number = number(id);
        let (call, is_late) = match number {
            Some(number) => self.open().answered(number),
            None => (None, false),
        };
        match call {
            Some(call) => {
                // Without a version, its requester would take it for a result as a whole.
                let answer = match version {
                    Some("2.0") => Ok(splice(line, range_of(line, id.get()), &call.id)),
                    _ => Err(Failure::new(Reason::BadAgentReply, NO_VERSION)),
                };
                // If the receiver is gone, the deadline has just passed.
                let _ = call.answer.send(answer);
            }
            None if number.is_some_and(|number| self.open().answered.contains(&number)) => {
                self.log.drops.inc();
                self.strange(&format!(
                    "dropped a second answer of an attached server to the request with the id {:.100}",
                    id.get()
                ));
            }
            None if is_late => {
                self.log.drops.inc();
                tracing::debug!(agent = %self.log.agent, id = id.get(), "dropped an answer to a call that was cancelled or timed out");
            }
            None => {
                self.log.drops.inc();
                self.strange(&format!(
                    "dropped an answer of an attached server: no call waits for the id {:.100}",
                    id.get()
                ));
            }
        }
        number
    }

    /// Processes a request or a notification of the server.
    fn requested(&self, line: &Bytes, message: &Message<'_>, of: Option<u64>) {
        match (message.method.as_deref().unwrap_or_default(), message.id) {
            ("ping", Some(id)) => self.answer(result(id.get(), "{}")),
            (method, Some(id)) => {
                if let Err(Refused { code, why }) = self.question((line, message), id, of) {
                    let why =
                        format!("{method} cannot be forwarded to the client of a call: {why}");
                    self.dropped(method, code, &why);
                    self.answer(refusal(id.get(), code, &why));
                }
            }
            ("notifications/progress", None) => self.progressed(line, message),
            (method @ "notifications/cancelled", None) => {
                if !self.question_cancelled(line, message, of) {
                    let why = "it cancels no open question";
                    self.dropped(method, Refused::NEVER, why);
                }
            }
            (
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed",
                None,
            ) => {
                self.lists_may_have_changed();
            }
            (method @ "notifications/resources/updated", None) => {
                if !self.watched.report_change(line) {
                    self.dropped(
                        method,
                        Refused::NEVER,
                        "no client has subscribed to the resource, or too many changes wait",
                    );
                }
            }
            (method, None) => {
                let open = self.open();
                let owner = match (method, of) {
                    ("notifications/elicitation/complete", None) => open.asked_for(message),
                    // A call that has ended may have named the elicitation, for example in an error.
                    ("notifications/elicitation/complete", Some(_)) => open
                        .asked_for(message)
                        .or_else(|_| open.owner(of, self.is_single)),
                    ("notifications/message", _) | (_, Some(_)) => open.owner(of, self.is_single),
                    // It may belong to the task of another client, for example.
                    _ => Err(Refused::never(
                        "it names no call: of such messages, only log messages and questions go to the only open call",
                    )),
                };
                match owner {
                    Ok((_, call)) => drop(self.part(call, line.clone(), false)),
                    Err(Refused { code, why }) => self.dropped(method, code, why),
                }
            }
        }
    }

    fn progressed(&self, line: &Bytes, message: &Message<'_>) {
        let token = message.params().progress;
        let open = self.open();
        let call = token
            .and_then(number)
            .and_then(|number| open.calls.get(&number));
        let asked = call.and_then(|call| Some((call, call.progress.as_ref()?)));
        match (token, asked) {
            (Some(token), Some((call, own))) => {
                self.part(call, splice(line, range_of(line, token.get()), own), false);
            }
            // MCP forbids progress after the answer, but some servers write the last one late.
            _ => self.dropped(
                "notifications/progress",
                Refused::NEVER,
                "its token is that of no open call",
            ),
        }
    }

    /// Forwards a question to the client of its call, with an unguessable id.
    fn question(
        &self,
        (line, message): (&Bytes, &Message<'_>),
        id: &RawValue,
        of: Option<u64>,
    ) -> Result<(), Refused> {
        let mut open = self.open();
        if open.is_closed {
            return Err(Refused::now("the session of the call has ended"));
        }
        let (number, call) = open.owner(of, self.is_single)?;
        if open.questions.len() >= MAX_QUESTIONS {
            return Err(Refused::now("too many questions are unanswered"));
        }
        let mut random = [0; 16];
        let drawn = getrandom::fill(&mut random);
        drawn.map_err(|_| Refused::now("the system's random number generator failed"))?;
        let shown = question_id(random);
        if !self.part(call, splice(line, range_of(line, id.get()), &shown), true) {
            return Err(Refused::now(
                "messages arrive faster than the bus accepts them",
            ));
        }
        let question = Question {
            call: number,
            id: id.get().into(),
        };
        open.questions.insert(shown, question);
        let elicitation = message.params().elicitation;
        if let Some(elicitation) = elicitation.filter(|it| it.get().len() <= ELICITATION_ID) {
            open.note_elicitation(number, elicitation);
        }
        Ok(())
    }

    /// Forwards the cancel of a question to the client that was asked, with the id that the client knows. Returns
    /// whether there is such a question.
    fn question_cancelled(&self, line: &Bytes, message: &Message<'_>, of: Option<u64>) -> bool {
        let Some(id) = message.params().request else {
            return false;
        };
        let mut open = self.open();
        let Some((shown, number)) = open.question(id.get(), of) else {
            return false;
        };
        if let Some(call) = open.calls.get(&number)
            && self.part(call, splice(line, range_of(line, id.get()), &shown), false)
        {
            open.questions.remove(&shown);
        }
        true
    }

    /// Queues a message that precedes an answer. Returns whether there was room.
    fn part(&self, call: &Call, body: Bytes, is_question: bool) -> bool {
        let part = Part {
            kind: Kind::Notification,
            body,
            is_question,
        };
        let is_queued = call.parts.sender.try_send(part).is_ok();
        if !is_queued {
            self.log.drops.inc();
            self.strange(
                "an attached server sends messages faster than the bus accepts them: some are lost",
            );
        }
        is_queued
    }

    fn answer(&self, bytes: Bytes) {
        if self.input.try_send(Line { bytes, call: None }).is_err() {
            self.strange(
                "an attached server asks questions faster than it reads the answers: one question is not answered",
            );
        }
    }

    fn dropped(&self, method: &str, code: i32, why: &str) {
        self.log.drops.inc();
        if code == Refused::NEVER {
            tracing::debug!(agent = %self.log.agent, method, why, "a message from an attached server was dropped: no waiting call can take it");
        } else if let Some(suppressed) = self.log.dropped.allow() {
            let agent = &self.log.agent;
            tracing::warn!(%agent, method, why, suppressed, "a message from an attached server was dropped: no waiting call can take it");
        }
    }

    /// Logs a protocol error of the server.
    pub(super) fn strange(&self, what: &str) {
        if let Some(suppressed) = self.log.strange.allow() {
            let agent = &self.log.agent;
            tracing::warn!(%agent, suppressed, "{what}");
        }
    }

    /// Waits until the server reports that one of its lists has changed.
    pub(super) async fn lists_changed(&self) {
        self.lists_changed.notified().await;
    }

    /// Makes this bridge and others that attach the server read its lists again.
    pub(super) fn lists_may_have_changed(&self) {
        self.reread_lists();
        self.watched.report_list_change();
    }

    /// Makes the bridge read the lists of the server again.
    pub(super) fn reread_lists(&self) {
        self.lists_changed.notify_one();
    }

    /// Waits until there is room for one more message before the answer to this call, or to each call that is full, but
    /// then not for long: a slow caller must not stop the others. Without room, a message would be lost.
    pub(super) async fn until_room(&self, of: Option<u64>) {
        let is_waited_for = |parts: &Parts| {
            parts.is_full() && (of.is_some() || !parts.is_stalled.load(Ordering::Relaxed))
        };
        let full: Vec<Parts> = {
            let open = self.open();
            let calls = open.calls.iter();
            let wanted = calls.filter(|(number, _)| of.is_none_or(|of| of == **number));
            let parts = wanted.map(|(_, call)| &call.parts);
            let full = parts.filter(|parts| is_waited_for(parts));
            full.cloned().collect()
        };
        let room = full.iter().map(|parts| async move {
            // An error means that the call is over.
            drop(parts.sender.reserve().await);
        });
        let room = join_all(room).map(drop);
        if of.is_some() {
            return room.await;
        }
        if timeout(STALL, room).await.is_err() {
            for parts in &full {
                let is_stalled = parts.is_full();
                parts.is_stalled.store(is_stalled, Ordering::Relaxed);
            }
        }
    }

    /// Notes the level of log messages that this run has been told.
    pub(super) fn note_log_level(&self, level: Text) {
        *lock(&self.log_level) = Some(level);
    }

    /// Whether this is the level of log messages that this run was last told.
    pub(super) fn has_log_level(&self, level: &Text) -> bool {
        lock(&self.log_level).as_ref() == Some(level)
    }

    /// Sets the server's tools.
    pub(super) fn set_tools(&self, tools: Tools) {
        *lock(&self.tools) = Arc::new(tools);
    }

    /// Whether a tool is safe to call twice.
    pub(super) fn is_repeatable(&self, tool: &str) -> bool {
        let tools = self.tools();
        tools.get(tool).is_some_and(|tool| tool.is_repeatable)
    }

    /// The server's tools.
    pub(super) fn tools(&self) -> Arc<Tools> {
        Arc::clone(&lock(&self.tools))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

// === impl Waiting ===

impl Waiting {
    /// Waits for the answer, with the requester's own id, or the failure. Dropping the future cancels the request.
    pub(super) async fn answer(mut self) -> Result<Result<Bytes, Failure>, Disconnected> {
        (&mut self.answer).await.map_err(|_| Disconnected)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let question_ids = {
            let mut open = self.link.open();
            let Some(call) = open.calls.remove(&self.begun.number) else {
                return;
            };
            call.over.cancel();
            if !call.parts.reached.load(Ordering::Acquire) {
                // The request is never written.
                return;
            }
            if self.may_ask && self.link.is_single {
                open.abandon(self.begun.number);
            }
            open.asked_by(self.begun.number)
        };
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
            self.begun.number
        );
        let line = Line {
            bytes: cancel.into(),
            call: None,
        };
        // A server that has stopped needs no cancel.
        if let Err(TrySendError::Full(_)) = self.link.input.try_send(line) {
            self.link.log.drops.inc();
            self.link.strange(
                "too many messages wait for an attached server, so a cancel was not sent to it",
            );
        }
        for id in question_ids {
            self.link
                .answer(refusal(&id, Refused::NOW, "the call has ended"));
        }
    }
}

// === impl Open ===

impl Open {
    /// Removes a call that the server has answered. Returns also whether a call ever had this number.
    fn ended(&mut self, number: u64) -> (Option<Call>, bool) {
        self.abandoned.remove(&number);
        drop(self.asked_by(number));
        let is_known = (1..=self.last).contains(&number);
        (self.calls.remove(&number), is_known)
    }

    /// The same for an answer, which is remembered if a call has waited for it.
    fn answered(&mut self, number: u64) -> (Option<Call>, bool) {
        let ended = self.ended(number);
        if ended.0.is_some() {
            if self.answered.len() >= REMEMBERED {
                self.answered.pop_front();
            }
            self.answered.push_back(number);
        }
        ended
    }

    /// Marks a call as abandoned: its answer is no longer needed.
    fn abandon(&mut self, number: u64) {
        // Not at each call, because this looks at all abandoned calls.
        if self.abandoned.len() >= self.prune_at {
            self.abandoned.retain(|_, since| since.elapsed() < STOPPED);
            self.prune_at = (2 * self.abandoned.len()).max(MIN_ABANDONED);
        }
        self.abandoned.insert(number, Instant::now());
    }

    /// Whether the server may still work on a call that nobody waits for.
    fn works_on_abandoned(&self) -> bool {
        let mut since = self.abandoned.values();
        since.any(|since| since.elapsed() < STOPPED)
    }

    /// Closes the questions of a call, and returns the server's own ids of them.
    fn asked_by(&mut self, call: u64) -> Vec<Text> {
        let closed = self
            .questions
            .extract_if(|_, question| question.call == call);
        closed.map(|(_, question)| question.id).collect()
    }

    /// The open question with the server's own id: the id that its client knows, and its call. If a call is given, the
    /// question must be one of that call.
    fn question(&self, id: &str, of: Option<u64>) -> Option<(Text, u64)> {
        let is_it =
            |question: &Question| *question.id == *id && of.is_none_or(|of| of == question.call);
        let mut found = self.questions.iter().filter(|(_, it)| is_it(it));
        match (found.next(), found.next()) {
            (Some((shown, question)), None) => Some((shown.clone(), question.call)),
            _ => None,
        }
    }

    /// Fails the calls that the server has not received, and those with a question.
    fn close_to_new_calls(&mut self) {
        self.is_closed = true;
        let asking: HashSet<u64> = self.questions.drain().map(|(_, it)| it.call).collect();
        let failed = self.calls.extract_if(|number, call| {
            !call.parts.reached.load(Ordering::Acquire) || asking.contains(number)
        });
        // Their requests to the server end, too.
        failed.for_each(|(_, call)| call.over.cancel());
    }

    /// Remembers that the client of a call was asked for this elicitation.
    fn note_elicitation(&mut self, call: u64, elicitation: &RawValue) {
        if let Some(call) = self.calls.get_mut(&call) {
            if call.elicitations.len() >= ELICITATIONS {
                call.elicitations.pop_front();
            }
            call.elicitations.push_back(elicitation.get().into());
        }
    }

    /// The call of a message that reports the end of an elicitation: the one whose client was asked for it.
    fn asked_for(&self, message: &Message<'_>) -> Result<(u64, &Call), Refused> {
        let elicitation = message.params().elicitation.map(RawValue::get);
        let is_asked = |call: &Call| {
            let mut asked = call.elicitations.iter().map(Text::as_str);
            asked.any(|asked| Some(asked) == elicitation)
        };
        let found = self.calls.iter().find(|(_, call)| is_asked(call));
        let found = found.map(|(number, call)| (*number, call));
        found.ok_or(Refused::never(
            "no client of an open call was asked for the elicitation",
        ))
    }

    /// The call of a message that names none: the call whose HTTP response contains it, or else the only open call.
    /// Fails if the requester of that call does not accept such messages.
    fn owner(&self, of: Option<u64>, is_single: bool) -> Result<(u64, &Call), Refused> {
        if let Some(number) = of {
            let call = self.calls.get(&number);
            let call = call.ok_or(Refused::now("the call has ended"))?;
            return match call.parts.takes_all {
                true => Ok((number, call)),
                false => Err(Refused::never(
                    "the client of the call does not accept such messages",
                )),
            };
        }
        if !is_single {
            let why = "the agent may process several calls at a time, and the message does not name its call: set `concurrency` of the agent to 1";
            return Err(Refused::never(why));
        }
        if self.works_on_abandoned() {
            let why = "the message may belong to an earlier call that was cancelled or timed out";
            return Err(Refused::now(why));
        }
        let mut calls = self.calls.iter().filter(|(_, call)| call.parts.takes_all);
        match (calls.next(), calls.next()) {
            (Some((number, call)), None) => Ok((*number, call)),
            _ => Err(Refused::never("no open call accepts such messages")),
        }
    }
}

// === impl Refused ===

impl Refused {
    /// JSON-RPC: method not found, internal error.
    const NEVER: i32 = -32_601;
    const NOW: i32 = -32_603;

    fn never(why: &'static str) -> Self {
        let code = Self::NEVER;
        Self { code, why }
    }

    fn now(why: &'static str) -> Self {
        let code = Self::NOW;
        Self { code, why }
    }
}

fn refusal(id: &str, code: i32, why: &str) -> Bytes {
    let why = serde_json::json!({ "code": code, "message": why });
    error(id, &why.to_string())
}

fn number(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

#[cfg(test)]
mod tests;
