//! The messages between the bridge and one run of an attached program: newline-delimited JSON-RPC, as an MCP client.
//!
//! Every request gets a number of its own, because the ids of different requesters may be equal. Nothing else of a
//! message changes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use a2abus_plugin::protocol::jsonrpc::{JsonRpc, splice};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::calls::with_token;
use crate::seldom::Seldom;

/// The way to the program, and the requests that it has not answered.
#[derive(Debug)]
pub(super) struct Link {
    input: mpsc::Sender<Bytes>,
    open: Mutex<Open>,
    /// Tools that may be called twice.
    repeatable: Mutex<HashSet<Text>>,
    /// At most one call is open, so that what names none belongs to it.
    is_single: bool,
    lists_changed: Notify,
    log: Arc<Log>,
}

/// The log lines that a program can cause.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) agent: Text,
    pub(super) strange: Seldom,
    pub(super) stderr: Seldom,
}

#[derive(Debug, Default)]
struct Open {
    calls: HashMap<u64, Call>,
    last: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Call {
    /// The requester's own id, as its JSON token.
    id: Text,
    /// The requester's own progress token.
    progress: Option<Text>,
    parts: Parts,
    answer: oneshot::Sender<Bytes>,
}

/// Where what comes before the answer goes.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) say: mpsc::Sender<Bytes>,
    /// The requester takes messages that he has not asked for: log messages, questions.
    pub(super) takes_all: bool,
}

/// A request that waits for its answer. Dropped before that, it cancels its request.
#[derive(Debug)]
pub(super) struct Waiting {
    link: Arc<Link>,
    number: u64,
    answer: oneshot::Receiver<Bytes>,
}

/// The program has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

/// What is read of a message.
#[derive(Debug, Deserialize)]
struct Message<'a> {
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
}

// === impl Link ===

impl Link {
    /// A link whose messages to the program go into `input`.
    pub(super) fn new(input: mpsc::Sender<Bytes>, is_single: bool, log: Arc<Log>) -> Self {
        Self {
            input,
            open: Mutex::default(),
            repeatable: Mutex::default(),
            is_single,
            lists_changed: Notify::new(),
            log,
        }
    }

    /// Sends a request of somebody else.
    pub(super) async fn request(
        self: &Arc<Self>,
        body: &Bytes,
        message: &JsonRpc,
        parts: Parts,
    ) -> Result<Waiting, Gone> {
        let Some(id) = &message.id else {
            return Err(Gone);
        };
        let progress = message.progress.as_deref();
        let own = (id.token().clone(), progress.map(|it| it.token().clone()));
        let waiting = self.begin(own, parts)?;
        let token = waiting.number.to_string();
        self.send(with_token(body, id, progress, &token)).await?;
        Ok(waiting)
    }

    /// Asks something in the name of the bridge.
    pub(super) async fn ask(self: &Arc<Self>, method: &str, params: &str) -> Result<Bytes, Gone> {
        let (say, _) = mpsc::channel(1);
        let parts = Parts {
            say,
            takes_all: false,
        };
        let waiting = self.begin((Text::from_static("0"), None), parts)?;
        let number = waiting.number;
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#);
        self.send(body.into()).await?;
        waiting.answer().await
    }

    /// Sends what has no answer.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), Gone> {
        self.input.send(message).await.map_err(|_| Gone)
    }

    fn begin(
        self: &Arc<Self>,
        (id, progress): (Text, Option<Text>),
        parts: Parts,
    ) -> Result<Waiting, Gone> {
        let (said, answer) = oneshot::channel();
        let mut open = self.open();
        if open.is_closed {
            return Err(Gone);
        }
        open.last += 1;
        let number = open.last;
        let call = Call {
            id,
            progress,
            parts,
            answer: said,
        };
        open.calls.insert(number, call);
        Ok(Waiting {
            link: Arc::clone(self),
            number,
            answer,
        })
    }

    /// The program has ended: every request fails.
    pub(super) fn close(&self) {
        let mut open = self.open();
        open.is_closed = true;
        open.calls.clear();
    }

    /// Takes a line of the program.
    pub(super) fn hear(&self, line: &Bytes) {
        let message: Result<Message<'_>, _> = serde_json::from_slice(line);
        match message {
            Ok(Message {
                method: None,
                id: Some(id),
                ..
            }) => self.answered(line, id),
            Ok(message) if message.method.is_some() => self.said(line, &message),
            Ok(_) => self.strange("a message with neither a method nor an id"),
            Err(error) => self.strange(&format!("a line that is no JSON-RPC message: {error}")),
        }
    }

    fn answered(&self, line: &Bytes, id: &RawValue) {
        let call = number(id).and_then(|number| self.open().calls.remove(&number));
        match call {
            Some(call) => {
                let answer = splice(line, span(line, id), &call.id);
                // Without a receiver its deadline has just passed.
                let _ = call.answer.send(answer);
            }
            None => {
                tracing::debug!(agent = %self.log.agent, id = id.get(), "an answer to a request that nobody waits for")
            }
        }
    }

    fn said(&self, line: &Bytes, message: &Message<'_>) {
        match (message.method.as_deref().unwrap_or_default(), message.id) {
            ("ping", Some(id)) => self.reply(&format!(r#""result":{{}},"id":{}"#, id.get())),
            (method, Some(id)) => {
                if !self.pass_on(line) {
                    let why = format!("no client of a call can be asked for {method}");
                    let why = serde_json::json!({ "code": -32_601, "message": why });
                    self.reply(&format!(r#""error":{why},"id":{}"#, id.get()));
                }
            }
            ("notifications/progress", None) => self.progressed(line, message),
            ("notifications/tools/list_changed", None) => self.lists_changed.notify_one(),
            (method, None) => {
                if !self.pass_on(line) {
                    let said = String::from_utf8_lossy(line);
                    let said: String = said.chars().take(1_000).collect();
                    tracing::debug!(agent = %self.log.agent, method, said, "a notification that belongs to no call");
                }
            }
        }
    }

    fn progressed(&self, line: &Bytes, message: &Message<'_>) {
        let params = message.params.map(|raw| serde_json::from_str(raw.get()));
        let params: Params<'_> = params.and_then(Result::ok).unwrap_or_default();
        let Some(token) = params.progress else { return };
        let open = self.open();
        let call = number(token).and_then(|number| open.calls.get(&number));
        if let Some(call) = call
            && let Some(own) = &call.progress
        {
            self.part(call, splice(line, span(line, token), own));
        }
    }

    /// Passes on what names no call, if it can belong to one only that takes it.
    fn pass_on(&self, line: &Bytes) -> bool {
        let open = self.open();
        let mut calls = open.calls.values().filter(|call| call.parts.takes_all);
        let (Some(call), None, true) = (calls.next(), calls.next(), self.is_single) else {
            return false;
        };
        self.part(call, line.clone());
        true
    }

    fn part(&self, call: &Call, part: Bytes) {
        if call.parts.say.try_send(part).is_err() {
            self.strange("more messages before an answer than the bus takes: some are lost");
        }
    }

    fn reply(&self, members: &str) {
        let reply = Bytes::from(format!(r#"{{"jsonrpc":"2.0",{members}}}"#));
        if self.input.try_send(reply).is_err() {
            self.strange("more requests than it reads answers: one is not answered");
        }
    }

    /// Notes something that the program should not have written.
    pub(super) fn strange(&self, what: &str) {
        if let Some(suppressed) = self.log.strange.allow() {
            let agent = &self.log.agent;
            tracing::warn!(%agent, suppressed, "an attached program has written {what}");
        }
    }

    /// Waits until the program says that its tools have changed.
    pub(super) async fn tools_changed(&self) {
        self.lists_changed.notified().await;
    }

    /// The tools that may be called twice, from now on.
    pub(super) fn set_repeatable(&self, tools: HashSet<Text>) {
        *lock(&self.repeatable) = tools;
    }

    /// Whether a tool may be called twice.
    pub(super) fn is_repeatable(&self, tool: &str) -> bool {
        lock(&self.repeatable).contains(tool)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

// === impl Waiting ===

impl Waiting {
    /// The answer, with the requester's own id. Dropping this cancels the request.
    pub(super) async fn answer(mut self) -> Result<Bytes, Gone> {
        (&mut self.answer).await.map_err(|_| Gone)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.link.open().calls.remove(&self.number).is_none() {
            return;
        }
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
            self.number
        );
        if self.link.input.try_send(cancel.into()).is_err() {
            self.link
                .strange("nothing for so long that a cancel cannot be sent to it");
        }
    }
}

fn number(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

/// Where a token stands in the line that it was read from.
fn span(line: &Bytes, token: &RawValue) -> Range<usize> {
    let start = token.get().as_ptr() as usize - line.as_ptr() as usize;
    start..start + token.get().len()
}

/// Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
