//! Answers the requests for an attached agent, each before its deadline, and those that may have an effect only once.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::protocol::jsonrpc;
use a2abus_plugin::{Kind, Text};
use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::ask::Request;
use super::lifecycle::RunningServer;
use super::link::{Disconnected, Link, Parts};
use super::log_level::{SET_LEVEL, level_in};
use super::made_tasks;
use super::replies::Answer;
use super::server::{Server, ServerTransport};
use super::watched::refusal_in;
use super::{AttachedBinding, Bounds, Upstream, tool_call};
use crate::calls::CallError;
use crate::calls::callid::logged_id;
use crate::calls::failure::{self, Failure};
use crate::config::AttachProtocol;
use crate::lock::lock;
use crate::pipeline::held::Held;
use crate::results::{Claim, KeyState};

/// The time limits of one request.
struct Deadlines {
    /// For the answer, or for the next message that precedes it.
    next: Mutex<Instant>,
    /// How long the server may take after a message that precedes the answer.
    between_parts: Duration,
    /// For the answer, even if messages precede it.
    last: Instant,
}

/// The result of a request.
struct CallResult {
    answer: Answer,
    /// Whether the server may have executed the request.
    is_begun: bool,
}

/// Maximum number of messages that precede an answer and wait for the bus.
const QUEUE: usize = 64;
/// The error of a request is sent before its deadline, so that it arrives in time: earlier by the time that is left
/// divided by this, but at most by `MAX_EARLY`.
const EARLY_PART: u32 = 50;
const MAX_EARLY: Duration = Duration::from_millis(100);
/// The pause between attempts to claim a request.
const PAUSE: Duration = Duration::from_secs(1);

// === impl AttachedBinding ===

impl AttachedBinding {
    /// Answers a request that arrived after its deadline, without executing it. If it is redelivered, its first delivery
    /// may have been in time: then the answer is that of the first delivery.
    pub(super) async fn expired(
        &self,
        request: Box<Request>,
        cancelled: CancellationToken,
        held: Arc<Held>,
    ) {
        let deadlines = Deadlines::of(&request, self.bounds);
        let claim = request.claim(deadlines.last - Instant::now());
        let claim = claim.filter(|_| self.is_recorded(&request));
        let begun = async {
            let (key, claim) = claim.as_ref()?;
            self.begun_before(&request, (key, claim), &deadlines, LATE)
                .await
        };
        let begun = cancelled.run_until_cancelled(begun.boxed()).await;
        self.running().leave(&request.id, request.delivery);
        match begun {
            Some(Some(answer)) => self.publish(&request, answer, &held).await,
            Some(None) => {
                self.dropped(&held, "expired");
                let answer = Answer::failed(&late(EXPIRED), &request.recipient());
                self.publish(&request, answer, &held).await;
            }
            None => {
                tracing::debug!(binding = %self.intake.name, "a request was cancelled");
            }
        }
        held.done();
    }

    /// Whether the execution of a request leaves a record, as far as this is known without the server.
    fn is_recorded(&self, request: &Request) -> bool {
        let is_repeatable = match &*self.upstream {
            Upstream::Plain(plain) => request.is_repeatable(plain.protocol, |_| false),
            Upstream::Mcp(_) => {
                let up = self.now_up();
                let is_safe =
                    |tool: &str| up.as_ref().is_some_and(|up| up.link.is_repeatable(tool));
                request.is_repeatable(AttachProtocol::Mcp, is_safe)
            }
        };
        !is_repeatable
    }

    /// The answer to a request that was begun before, or else this error.
    async fn begun_or(
        &self,
        failure: Failure,
        request: &Request,
        claim: Option<&(String, Claim)>,
        deadlines: &Deadlines,
    ) -> Answer {
        let begun = match claim {
            Some((key, claim)) => {
                let why = failure.message();
                Box::pin(self.begun_before(request, (key, claim), deadlines, why)).await
            }
            None => None,
        };
        begun.unwrap_or_else(|| Answer::failed(&failure, &request.recipient()))
    }

    /// The answer to a request that was begun before; `None` if no such execution is recorded. `why` says why it is not
    /// executed now.
    async fn begun_before(
        &self,
        request: &Request,
        (key, claim): (&str, &Claim),
        deadlines: &Deadlines,
        why: &str,
    ) -> Option<Answer> {
        let failed = |failure: Failure| Some(Answer::failed(&failure, &request.recipient()));
        // Reading the log has its own time limit: the deadline may have passed already.
        let Ok(mut state) = self.results.latest_state(key, claim).await else {
            // It may have been executed before.
            return failed(unread(why));
        };
        loop {
            match state {
                Some(KeyState::Answered(stored)) => return Some(Answer::from(&*stored)),
                Some(KeyState::Running(call)) => {
                    if !self.settles(request, (key, &call), deadlines).await {
                        return failed(lost());
                    }
                }
                // The server did not get it, or the record is that of another request.
                None | Some(KeyState::Differs(_)) => return None,
                // `Ours` cannot be: the claim is new.
                Some(
                    KeyState::Ours
                    | KeyState::RecordedElsewhere(_)
                    | KeyState::Lost(_)
                    | KeyState::Forgotten,
                ) => return failed(lost()),
            }
            state = self.results.key_state(key, claim);
        }
    }

    /// Waits until the call that executes a redelivered request ends. Returns whether it ends in time.
    async fn settles(
        &self,
        request: &Request,
        (key, call): (&str, &Text),
        deadlines: &Deadlines,
    ) -> bool {
        if let Some(suppressed) = self.log.begun.allow() {
            tracing::warn!(binding = %self.intake.name, id = %logged_id(&request.id), suppressed, "a redelivered request was already started, so it is not executed again: waiting for its answer; if the bridge that started it has stopped, the requester gets answer_lost: at once with `state.log: embedded`, otherwise within about 20 s");
        }
        let settled = self.results.until_settled(key, call);
        timeout_at(deadlines.last, settled).await.is_ok()
    }

    /// Answers a request, then settles it.
    pub(super) async fn serve(
        &self,
        request: Box<Request>,
        cancelled: CancellationToken,
        held: Arc<Held>,
    ) {
        let deadlines = Deadlines::of(&request, self.bounds);
        let claim = request.claim(deadlines.last - Instant::now());
        let answered = self.answered(&request, claim.as_ref(), &deadlines).boxed();
        let answer = tokio::select! {
            biased;
            // First, so that no request begins in the turn of one that fails here. A request with an identity is
            // redelivered.
            () = self.ending.cancelled(), if request.identity.is_none() => {
                Some(self.stopped(&request))
            }
            answer = cancelled.run_until_cancelled(answered) => answer,
        };
        self.running().leave(&request.id, request.delivery);
        match answer {
            Some(answer) => self.publish(&request, answer, &held).await,
            None => {
                tracing::debug!(binding = %self.intake.name, "a request was cancelled");
                if let Some((key, claim)) = claim {
                    let results = Arc::clone(&self.results);
                    self.results
                        .spawn(async move { results.give_up(&key, &claim.call).await });
                }
            }
        }
        held.done();
    }

    /// The error of a request that has not ended when this process stops.
    fn stopped(&self, request: &Request) -> Answer {
        let is_executed = self.running().is_executed(&request.id, request.delivery);
        let failure = match is_executed {
            true => Failure::new(failure::Reason::AnswerLost, STOPPED),
            false => Failure::new(failure::Reason::AgentUnavailable, NOT_BEGUN),
        };
        if let Some(suppressed) = self.log.late.allow() {
            tracing::warn!(binding = %self.intake.name, id = %logged_id(&request.id), reason = failure.reason_code(), suppressed, "this process stops before the answer to a request: its requester gets an error");
        }
        Answer::failed(&failure, &request.recipient())
    }

    /// Publishes an answer. If that is impossible, for example because it is too large, the requester gets the reason.
    async fn publish(&self, request: &Request, answer: Answer, held: &Held) {
        let publisher = &self.reply_publisher;
        let (identity, requester) = (request.identity.as_ref(), &request.requester);
        let published = publisher.answer(&self.intake, requester, (identity, answer));
        let Err(error) = published.await else {
            return;
        };
        self.unanswered(held, &error).await;
        if requester.waits() {
            let failure = Failure::on_bus(&CallError::Undeliverable(error.to_string().into()));
            let answer = (identity, Answer::failed(&failure, &request.recipient()));
            let published = publisher.answer(&self.intake, requester, answer);
            if let Err(error) = published.await {
                tracing::debug!(binding = %self.intake.name, %error, "the error in place of an answer is not delivered");
            }
        }
    }

    /// The answer to a request: the server's, the stored one of a redelivered request, or an error.
    async fn answered(
        &self,
        request: &Request,
        claim: Option<&(String, Claim)>,
        deadlines: &Deadlines,
    ) -> Answer {
        let failed = |failure: Failure| Answer::failed(&failure, &request.recipient());
        let until = deadlines.next();
        let mut replaced = None;
        let is_repeatable = match &*self.upstream {
            Upstream::Plain(plain) => request.is_repeatable(plain.protocol, |_| false),
            Upstream::Mcp(server) => {
                let up = match self.up_or_answer(server, request, claim, deadlines).await {
                    Ok(up) => up,
                    Err(answer) => return answer,
                };
                if request.method == "initialize" {
                    let profile = self.profile_for_clients(server, &up);
                    return Answer::from(jsonrpc::result(&request.id, &profile));
                }
                if request.is_a2a() {
                    let sent = match tool_call::sent(&request.method, &request.body) {
                        Ok(sent) => sent,
                        Err(failure) => return failed(failure),
                    };
                    match tool_call::request(request, sent, &up.link.tools()) {
                        Ok(tool_call) => replaced = Some(tool_call),
                        // The server may have had the tool when the request was delivered before.
                        Err(failure) => {
                            return self.begun_or(failure, request, claim, deadlines).await;
                        }
                    }
                } else {
                    replaced = self.without_task(server, &up, request);
                }
                let request = replaced.as_ref().unwrap_or(request);
                if let Err(failure) = request.check_params() {
                    return failed(failure);
                }
                request.is_repeatable(AttachProtocol::Mcp, |tool| up.link.is_repeatable(tool))
            }
        };
        let request = replaced.as_ref().unwrap_or(request);
        match claim.filter(|_| !is_repeatable) {
            Some((key, claim)) => self.once(request, (key, claim), deadlines).await,
            None => match timeout_at(until, self.turns.acquire()).await {
                Ok(_turn) => self.worked(request, deadlines).await.answer,
                Err(_) => failed(late(BUSY)),
            },
        }
    }

    /// Whether other bridges may run the program of the server too.
    fn is_one_of_several(&self, server: &Server) -> bool {
        self.results.is_shared() && matches!(server.transport, ServerTransport::Program(_))
    }

    /// The request without `params.task`, if it has that member and clients are not offered tasks. Source: MCP
    /// 2025-11-25, tasks: then `task` is ignored, and the request is processed normally.
    fn without_task(
        &self,
        server: &Server,
        up: &RunningServer,
        request: &Request,
    ) -> Option<Request> {
        if !self.is_one_of_several(server) {
            return None;
        }
        let without = request.without_task()?;
        up.link.strange("a client asks an attached server to run a tool call as a task, but the bridge offers no tasks for it: the tool is called without a task");
        Some(without)
    }

    /// The server's answer to `initialize`, for clients. If other bridges may run the program too, it has no tasks: only
    /// the program that has made a task knows it, and requests about it reach any of them.
    fn profile_for_clients<'p>(&self, server: &Server, up: &'p RunningServer) -> Cow<'p, str> {
        let profile = up.profile.get();
        match made_tasks::without_tasks(profile).filter(|_| self.is_one_of_several(server)) {
            Some(without) => {
                if up.link.made_tasks.is_to_log() {
                    tracing::info!(agent = %server.log.agent, "the program of an attached agent offers tasks, which clients are not offered: bridges share the state, so several may run this program, and each of its processes knows only its own tasks; run it with `a2abus attach` in one process to offer them");
                }
                without.into()
            }
            None => profile.into(),
        }
    }

    /// The running server. If it does not run, the answer of a request that was begun before, or an error.
    async fn up_or_answer(
        &self,
        server: &Server,
        request: &Request,
        claim: Option<&(String, Claim)>,
        deadlines: &Deadlines,
    ) -> Result<Arc<RunningServer>, Answer> {
        let failure = match timeout_at(deadlines.next(), server.lifecycle.up()).await {
            Ok(Ok(up)) => return Ok(up),
            Ok(Err(failure)) => failure,
            Err(_) => late("its server did not start in time"),
        };
        Err(self.begun_or(failure, request, claim, deadlines).await)
    }

    /// The answer to a request that must be executed only once, however often it is delivered.
    async fn once(
        &self,
        request: &Request,
        (key, claim): (&str, &Claim),
        deadlines: &Deadlines,
    ) -> Answer {
        let failed = |failure: Failure| Answer::failed(&failure, &request.recipient());
        let until = deadlines.next();
        loop {
            // The wait for another bridge may have taken longer: then the request is no longer started.
            if Instant::now() >= until {
                return self.at_deadline(request, (key, claim));
            }
            let Ok(turn) = timeout_at(until, self.turns.acquire()).await else {
                return failed(late(BUSY));
            };
            let left = until.saturating_duration_since(Instant::now());
            match self.results.claim(key, claim, left).await {
                Ok(KeyState::Ours) => {
                    let call = &claim.call;
                    let work = Box::pin(self.worked(request, deadlines));
                    let done = self.results.renewing(key, call, work).await;
                    let kept = done.is_begun.then(|| done.answer.stored());
                    self.results.keep_in_background(key, call, kept).await;
                    return done.answer;
                }
                // A different request with the same key: its source position was used before.
                Ok(KeyState::Differs(_)) => {
                    return Box::pin(self.worked(request, deadlines)).await.answer;
                }
                Ok(KeyState::Answered(stored)) => return Answer::from(&*stored),
                Ok(KeyState::Running(call)) => {
                    drop(turn);
                    if !self.settles(request, (key, &call), deadlines).await {
                        return failed(lost());
                    }
                }
                Ok(KeyState::RecordedElsewhere(_) | KeyState::Lost(_) | KeyState::Forgotten) => {
                    return failed(lost());
                }
                Err(error) => {
                    drop(turn);
                    let is_over = Instant::now() >= until;
                    match self.log.unclaimed.allow() {
                        Some(suppressed) if is_over => {
                            tracing::warn!(binding = %self.intake.name, waited = ?left, %error, suppressed, "the deadline of a request passed while it was being recorded in the log: it is not executed");
                        }
                        Some(suppressed) => {
                            tracing::warn!(binding = %self.intake.name, %error, suppressed, "a request cannot be recorded in the log: it waits, so that it is not executed twice");
                        }
                        None => {}
                    }
                    if timeout_at(until, sleep(PAUSE)).await.is_err() {
                        return failed(late("the request could not be recorded in the log"));
                    }
                }
            }
        }
    }

    /// The answer to a request whose deadline has passed while it waited.
    fn at_deadline(&self, request: &Request, (key, claim): (&str, &Claim)) -> Answer {
        let failure = match self.results.key_state(key, claim) {
            Some(KeyState::Answered(stored)) => return Answer::from(&*stored),
            Some(_) => lost(),
            None => late(BUSY),
        };
        Answer::failed(&failure, &request.recipient())
    }

    /// The server's answer. Messages that precede it are published meanwhile.
    async fn worked(&self, request: &Request, deadlines: &Deadlines) -> CallResult {
        self.running().execute(&request.id, request.delivery);
        let began = Instant::now();
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let parts = Parts {
            sender,
            is_stalled: Arc::default(),
            // Clients of A2A answer no questions of a tool.
            takes_all: request.requester.is_call() && request.message_context.is_none(),
            reached: Arc::default(),
            is_moved: Arc::default(),
        };
        let reached = Arc::clone(&parts.reached);
        let work = Box::pin(self.with_server(request, parts));
        let publishing = async {
            while let Some(part) = receiver.recv().await {
                let (is_question, kind) = (part.is_question, part.kind);
                let publisher = &self.reply_publisher;
                let published = publisher.part(&self.intake, &request.requester, part);
                match Box::pin(published).await {
                    Ok(()) => deadlines.extend(is_question),
                    Err(error) => {
                        self.upstream.log().drops.inc();
                        if let Some(suppressed) = self.log.unanswered.allow() {
                            tracing::warn!(binding = %self.intake.name, id = %logged_id(&request.id), kind = kind.as_str(), %error, suppressed, "a message that precedes an answer is not delivered");
                        }
                        // Without this part, the answer would be wrong.
                        if kind == Kind::Stream {
                            let lost = CallError::Undeliverable(error.to_string().into());
                            return Err(Failure::on_bus(&lost));
                        }
                    }
                }
            }
            Ok(())
        };
        // The channel of parts closes when the work ends; the last parts are published before the answer.
        let work = async { Ok(work.await) };
        let both = async { tokio::try_join!(work, publishing).and_then(|(answer, ())| answer) };
        let answer = deadlines.limit(pin!(both)).await;
        let answer = answer.unwrap_or_else(|| {
            if let Some(suppressed) = self.log.late.allow() {
                tracing::warn!(binding = %self.intake.name, id = %logged_id(&request.id), waited = ?began.elapsed(), suppressed, "the server of an attached agent did not answer a request in time");
            }
            Err(late("its server did not answer in time"))
        });
        CallResult {
            answer: match answer {
                Ok(body) => match &request.message_context {
                    Some(context) => tool_call::answer(request, context, body),
                    None => Answer::from(body),
                },
                Err(failure) => Answer::failed(&failure, &request.recipient()),
            },
            is_begun: reached.load(Ordering::Acquire),
        }
    }

    /// The answer of the server.
    async fn with_server(&self, request: &Request, parts: Parts) -> Result<Bytes, Failure> {
        match &*self.upstream {
            Upstream::Plain(plain) => plain.request(request, &parts).await,
            Upstream::Mcp(server) => with_mcp(server, request, parts).await,
        }
    }
}

// === impl Deadlines ===

impl Deadlines {
    fn of(request: &Request, bounds: Bounds) -> Self {
        Self::new(request.left, request.requester.is_call(), bounds)
    }

    /// `wanted` is the time limit that the request sets. Only calls from a bridge may be extended: that bridge cancels
    /// the call when its caller stops waiting. Nobody would cancel other requests.
    fn new(wanted: Option<Duration>, is_call: bool, bounds: Bounds) -> Self {
        let now = Instant::now();
        let left = wanted.unwrap_or(bounds.usual).min(bounds.longest);
        let (between_parts, longest) = match is_call {
            true => (bounds.usual.max(left), bounds.longest_stream.max(left)),
            false => (left, left),
        };
        // The requester of a request without a time limit may wait longer.
        let early = wanted.map_or(Duration::ZERO, |_| (left / EARLY_PART).min(MAX_EARLY));
        Self {
            next: Mutex::new(now + left - early),
            between_parts,
            last: now + longest,
        }
    }

    fn next(&self) -> Instant {
        *lock(&self.next)
    }

    /// Moves the deadline after a message that precedes the answer. The answer to a question may take as long as the
    /// whole call.
    fn extend(&self, is_question: bool) {
        let extended = if is_question {
            self.last
        } else {
            self.last.min(Instant::now() + self.between_parts)
        };
        let mut next = lock(&self.next);
        *next = extended.max(*next);
    }

    /// The result of `work`; `None` if the deadline passes first.
    async fn limit<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        loop {
            let next = self.next();
            match timeout_at(next, work.as_mut()).await {
                Ok(result) => return Some(result),
                Err(_) if next < self.next() => {}
                Err(_) => return None,
            }
        }
    }
}

/// The answer of an MCP server. If a run ends before it has received the request, the next run gets it.
async fn with_mcp(server: &Server, request: &Request, parts: Parts) -> Result<Bytes, Failure> {
    let watched = &server.lifecycle.watched;
    let tracked = watched.track(&request.method, &request.body);
    loop {
        let up: Arc<RunningServer> = server.lifecycle.up().await?;
        let link = &up.link;
        if tracked.is_surplus {
            link.strange("clients have subscribed to too many resources of an attached server: changes of more are dropped");
        }
        let how = (parts.clone(), request.requester.traced());
        let answer = match link.request(&request.body, &request.message, how).await {
            Ok(waiting) => waiting.answer().await,
            Err(gone) => Err(gone),
        };
        match answer {
            Ok(Ok(answer)) => {
                tracked.answered(&answer);
                return Ok(noted(server, link, request, answer));
            }
            Ok(Err(failure)) => return Err(failure),
            Err(Disconnected) if parts.reached.load(Ordering::Acquire) => {
                return Err(Failure::new(failure::Reason::AnswerLost, GONE));
            }
            Err(Disconnected) => {}
        }
    }
}

/// The answer of a run, for its requester. Notes what has to be known when the run has ended, or at other bridges.
fn noted(server: &Server, link: &Link, request: &Request, answer: Bytes) -> Bytes {
    let (method, sent) = (request.method.as_str(), &request.body);
    match method {
        "tools/call" => link.made_tasks.note(sent, &answer),
        SET_LEVEL if refusal_in(&answer).is_none() => {
            if let Some(level) = level_in(sent) {
                link.note_log_level(level.clone());
                server.lifecycle.log_level.set_here(level);
            }
        }
        _ => {}
    }
    match link.made_tasks.explained(method, sent, &answer) {
        Some(explained) => {
            link.strange(&format!("an attached server does not know the task that a {method} names, and its current run did not create that task: if several bridges attach the server, attach it at one of them only"));
            explained
        }
        None => answer,
    }
}

/// Why calls fail when their program or session has ended.
const GONE: &str = "the server of this agent exited, or its session ended, during the request, which may have been executed";

/// Why requests that still wait for their turn fail when their process stops.
const NOT_BEGUN: &str = "the bridge of this agent stopped before it began the request";
/// Why requests in progress fail when their process stops.
const STOPPED: &str =
    "the bridge of this agent stopped during the request, which may have been executed";

/// Why a request is not executed now, if the log cannot tell whether it was executed before.
const LATE: &str = "the request arrived after its deadline";
/// Why a request did not reach the server.
const BUSY: &str = "the agent is busy with other requests";
/// The error of a request that arrived after its deadline. Requests that may be repeated leave no record, so nobody knows
/// whether they were executed before.
const EXPIRED: &str = "the request arrived after its deadline, so it is not executed now; no earlier execution of it is recorded";

fn late(why: &str) -> Failure {
    let message = format!("no answer before the deadline: {why}");
    Failure::new(failure::Reason::Timeout, message)
}

fn unread(why: &str) -> Failure {
    let message = format!(
        "{why}; and the log that tells whether the request was executed before cannot be read"
    );
    Failure::new(failure::Reason::AnswerLost, message)
}

fn lost() -> Failure {
    let message = "this request was started before and its answer is unknown: it is not repeated, because it may have had an effect";
    Failure::new(failure::Reason::AnswerLost, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bridge that made the call stops waiting at the deadline, and would then name another cause.
    #[tokio::test(start_paused = true)]
    async fn an_error_is_sent_a_little_before_the_deadline_of_the_requester() {
        let bounds = Bounds {
            concurrency: 1,
            usual: Duration::from_secs(30),
            longest: Duration::from_secs(60),
            longest_stream: Duration::from_secs(600),
        };
        let limit = |milliseconds: Option<u64>, is_call| {
            let wanted = milliseconds.map(Duration::from_millis);
            let deadlines = Deadlines::new(wanted, is_call, bounds);
            (deadlines.next() - Instant::now()).as_millis()
        };
        for (wanted, expected) in [
            (None, 30_000),
            (Some(0), 0),
            (Some(1_000), 980),
            (Some(5_000), 4_900),
            (Some(100_000), 59_900),
        ] {
            for is_call in [true, false] {
                assert_eq!(limit(wanted, is_call), expected, "{wanted:?} {is_call}");
            }
        }
    }
}
