//! The executor as an agent on the bus.
//!
//! ```text
//! receive ─> Ask::of ─┬─ workflow ───────────────┬─> turn ─> run ─> answer ─> confirmed ─> settle
//!                     ├─ line ─> Assemblies ─────┘            └─> progress (best effort)
//!                     ├─ cancel ─> Waiting
//!                     └─ anything else ─> dead letter
//! ```
//!
//! Requests are independent: a long one delays no other, and a delivery is settled after its answer is confirmed. A
//! redelivered request finds its record and is answered again; nothing runs twice. Executions run on the threads of the
//! executor, not on those that serve the bus. Those parse workflows only to learn whether single lines are complete.
//!
//! | what is sent | when | order |
//! |---|---|---|
//! | `a2e.execution.started`, `a2e.operation.progress` | at once or never: a slow bus loses them | by `seq` |
//! | `a2e.execution.resp`, or a JSON-RPC response | once for each request, until it is confirmed | last |
//!
//! Source: docs/protocols/a2e-workflows.md §11.

mod answer;
mod ask;
mod assembly;
mod client;
mod execute;
mod refused;
mod send;
mod waiting;

use std::cell::Cell;
use std::sync::Arc;

use a2abus_executor::{Agent, Failure, FailureCode, Json, StoreError};
use a2abus_plugin::json::{BYTE_ORDER_MARK, Reader};
use a2abus_plugin::{Event, EventId, Hint, Ids, Limits, MapContext, Mapped, Text, extension};
use a2abus_transports::{Consumer, Delivery, Message, Origin};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use self::answer::{Disposition, EventFactory, WorkflowAnswer};
use self::ask::{Action, Ask, Cancel, Job, NotAWorkflow, Rejected};
use self::assembly::{Added, Assemblies, Budget, CompleteWorkflow, GivenUp, Incomplete};
use self::client::{AnswerTopics, Envelope, WorkflowClient, header_of_line};
use self::refused::{WorkflowRefusal, is_workflow};
use self::waiting::{CancellableRequests, Entry, StopSignals};
use super::Workflows;
use super::turns::AgentTurns;
use crate::bus::deadletter::{Reason, Stage};
use crate::bus::delivery::Publisher;
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::Outbound;
use crate::calls::callid::without_token;
use crate::calls::reply_address::{self, AllowedReplyAddresses};
use crate::config::{BindingConfig, WorkflowsConfig};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics;
use crate::pipeline::held::Held;
use crate::pipeline::intake::{Intake, Read, Refusal};

/// A binding whose messages are workflows.
#[derive(Debug)]
pub struct WorkflowBinding {
    /// Reads its messages.
    pub(crate) intake: Intake,
    places: AnswerTopics,
    /// The headers that answers keep.
    passed: PassedHeaders,
    outbound: Outbound,
    publisher: Publisher,
    workflows: Workflows,
    events: EventFactory,
    turns: AgentTurns,
    waiting: CancellableRequests,
    /// The budget of the subscription.
    budget: Budget,
    log: Log,
}

/// How the answers of a binding are sent.
pub(crate) struct AnswerSettings {
    /// The reply addresses that requests may name.
    pub(crate) places: AllowedReplyAddresses,
    /// The headers that answers keep.
    pub(crate) passed: PassedHeaders,
    /// Publishes the answers.
    pub(crate) publisher: Publisher,
}

/// Rate limits for log lines that any client can cause.
#[derive(Debug)]
struct Log {
    /// For incomplete workflows.
    incomplete: LogLimit,
    /// For lines that are replaced.
    replaced: LogLimit,
    /// For lines whose `seq` is not a number.
    unnumbered: LogLimit,
    /// For refused requests.
    refused: LogLimit,
    /// For reply addresses that the binding does not allow.
    forbidden: LogLimit,
    /// For answers that are too large or undeliverable.
    answers: LogLimit,
}

/// Why the executor does not execute the request in a message.
#[derive(Debug)]
pub(crate) struct NotExecuted {
    /// The reason of the dead letter, or the code of the error.
    pub(crate) code: String,
    pub(crate) detail: String,
    /// Whether the requester gets an error instead of a dead letter.
    pub(crate) is_answered: bool,
}

/// Requests that are being served.
type RequestTasks<'a> = FuturesUnordered<BoxFuture<'a, ()>>;

/// Why a request is answered that nobody reads again.
const STOPPING: &str = "the bridge shut down before it could answer";

// === impl NotExecuted ===

impl NotExecuted {
    /// Why the executor of `config` does not execute the request in an event; `None` if it does. `message` contains the
    /// event, `inside` describes its data, and `named` are the reply addresses that the request may name.
    pub(crate) fn of(
        (event, inside): (&Event, Option<&Mapped>),
        message: &Message,
        limits: &Limits,
        named: AllowedReplyAddresses,
        config: &WorkflowsConfig,
    ) -> Option<Self> {
        let places = AnswerTopics {
            named,
            replies: None,
            progress: None,
        };
        let envelope = Envelope {
            message,
            limits,
            headers: &[],
            reply_to: None,
            places: &places,
            rpc: config.rpc,
            collaboration_id: None,
            place: None,
        };
        let is_late = |job: &Job| {
            let deadline = job.client.deadline;
            deadline.is_some_and(|deadline| deadline <= crate::clock::now())
        };
        let (code, detail, is_answered) = match asked(&config.agent, event, inside, envelope) {
            Ok(Ask::Run(job)) if is_late(&job) => {
                let detail =
                    "its expirytime has passed: send it again with a later one, or without one";
                let code = FailureCode::ExecutionTimeout.as_str();
                (code.to_owned(), detail.to_owned(), true)
            }
            Ok(Ask::Run(_) | Ask::Line(..) | Ask::Cancel(_)) => return None,
            Ok(Ask::Refuse(_, refused)) => {
                let message = refused.error.get("message").and_then(Json::as_str);
                let message = message.unwrap_or_default().to_owned();
                (refused.code().to_owned(), message, true)
            }
            Ok(Ask::Forbidden(_, refused)) => {
                let code = reply_address::Refused::REASON;
                (code.to_owned(), refused.to_string(), false)
            }
            Err(why) => (why.code.to_owned(), why.detail.into_owned(), false),
        };
        Some(Self {
            code,
            detail,
            is_answered,
        })
    }
}

/// Reads the request to this executor in an event. `inside` describes its data.
fn asked(
    executor: &Text,
    event: &Event,
    inside: Option<&Mapped>,
    envelope: Envelope<'_>,
) -> Result<Ask, NotAWorkflow> {
    match event.extension_text(extension::TARGET_AGENT) {
        Some(target) if target != executor => Err(NotAWorkflow::other_agent(target, executor)),
        _ => Ask::of(event, inside, envelope),
    }
}

/// What a binding with this hint knows about the data of an event.
pub(crate) fn hint_of_data(hint: &Hint, event: &Event) -> Hint {
    let mut hint = hint.clone();
    hint.collaboration_id = event.extension_text(extension::COLLABORATION_ID).cloned();
    if let Some(content_type) = event.datacontenttype() {
        hint.header("content-type", content_type);
    }
    hint
}

// === impl WorkflowBinding ===

impl WorkflowBinding {
    /// The binding of the executor. Requests run as `run_as`, or as the agent that each event names. `instance` is the
    /// name of the bridge.
    pub(crate) fn new(
        mut intake: Intake,
        answers: AnswerSettings,
        config: &BindingConfig,
        workflows: Workflows,
        instance: &str,
        log: &LogLimits,
    ) -> Self {
        let subscription = config.subscription();
        let agent = workflows.name().clone();
        intake.hint.executor = Some(agent.clone());
        Self {
            places: AnswerTopics {
                named: answers.places,
                replies: config.replies.as_ref().map(|topic| topic.0.clone()),
                progress: config.progress.as_ref().map(|topic| topic.0.clone()),
            },
            budget: Budget {
                messages: subscription.budget_messages,
                bytes: subscription.budget_bytes,
            },
            log: Log::new(&intake.name, log),
            passed: answers.passed,
            outbound: answers.publisher.outbound().clone(),
            publisher: answers.publisher,
            events: EventFactory {
                source: format!("/a2abus/{instance}/{agent}").into(),
                agent,
                type_prefix: intake.options.type_prefix.text().clone(),
                run_as: config.run_as.as_ref().map(|agent| agent.text().clone()),
            },
            turns: AgentTurns::new(workflows.executor().limits().max_concurrent),
            waiting: CancellableRequests::default(),
            workflows,
            intake,
        }
    }

    /// Runs until `stop`, then finishes running executions and leaves waiting requests to other replicas. Dropping the
    /// future abandons unfinished deliveries, which the source then redelivers.
    pub async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let limits = self.workflows.executor().limits().workflow;
        let mut assemblies = Assemblies::new(limits, self.budget);
        let mut work = RequestTasks::new();
        let (mut open, mut wanted) = (true, true);
        loop {
            let due = assemblies.next_due();
            tokio::select! {
                biased;
                Some(()) = work.next() => {}
                () = stop.cancelled(), if wanted && open => {
                    wanted = false;
                    consumer.stop();
                    if self.intake.is_redelivered() {
                        // Dropping a delivery that was not processed abandons it. Others are read to the end, and
                        // answered.
                        while consumer.try_recv().is_some() {}
                        open = false;
                    }
                    self.leave_lines(&mut assemblies, &work, STOPPING);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.give_up(&mut assemblies, &work);
                }
                delivery = consumer.recv(), if open => match delivery {
                    Some(delivery) => {
                        self.receive(delivery, &mut assemblies, &work, &stop);
                        self.give_up(&mut assemblies, &work);
                    }
                    None => {
                        let why = match wanted {
                            true => "the subscription ended before all lines of the workflow had arrived",
                            false => STOPPING,
                        };
                        self.leave_lines(&mut assemblies, &work, why);
                        open = false;
                    }
                },
                else => return consumer,
            }
        }
    }

    /// Answers incomplete workflows that stop waiting for lines.
    fn give_up<'a>(&'a self, assemblies: &mut Assemblies, work: &RequestTasks<'a>) {
        for given_up in assemblies.given_up() {
            let (part, why, arrived) = match given_up {
                GivenUp::Incomplete { part, why, arrived } => (part, why, arrived),
                GivenUp::Copies(held) => {
                    self.drop_copies(held);
                    continue;
                }
            };
            self.workflows.refused(match why {
                Incomplete::Idle | Incomplete::Overdue => metrics::RefusalReason::Expired,
                Incomplete::Crowded => metrics::RefusalReason::Busy,
            });
            if let Some(suppressed) = self.log.incomplete.allow() {
                let client = &part.job.client;
                let requester = client.requester.as_ref().map_or("unknown", Text::as_str);
                let named = client.collaboration_id.as_ref();
                let named = named.map(|id| shortened(&without_token(id)));
                let collaborationid = named.as_deref();
                tracing::warn!(binding = %self.intake.name, requester, collaborationid, lines = %arrived, suppressed,
                    "an incomplete workflow (sent line by line) is not executed: {}", why.message());
            }
            let answer = WorkflowAnswer::refused(why.refused());
            work.push(self.conclude(part, answer).boxed());
        }
    }

    /// Reads a message and starts its requests.
    fn receive<'a>(
        &'a self,
        delivery: Delivery,
        assemblies: &mut Assemblies,
        work: &RequestTasks<'a>,
        stop: &CancellationToken,
    ) {
        let span = self.intake.receive(&delivery);
        let _receive = span.entered();
        let (held, reply_to) = Held::new(delivery, self.intake.metrics.clone());
        let limits = self.outbound.rules().limits;
        let headers = self.passed.of(self.intake.binding, &held.message);
        let collaboration_id = collaboration_id_of(&held.message);
        let whole = Envelope {
            message: &held.message,
            limits: &limits,
            headers: &headers,
            reply_to: reply_to.as_ref(),
            places: &self.places,
            rpc: self.workflows.rpc(),
            collaboration_id: None,
            place: None,
        };
        // The envelope of one unit of a plain body.
        let of_unit = Envelope {
            collaboration_id: collaboration_id.as_ref(),
            ..whole
        };
        let new_id = stable_ids(held.origin.as_ref().map(Origin::identity));
        let context = || self.context(&new_id);
        let take = |read| match read {
            Read::CloudEvent(event, unit) => {
                let envelope = if unit.is_some() { of_unit } else { whole };
                let ask_result = self.event(&event, envelope);
                let body = unit.map(|unit| unit.bytes);
                self.begin(ask_result, body, Arc::clone(&held), assemblies, work, stop);
            }
            Read::Mapped(mapped) => {
                let place = position_of(&held, mapped.index);
                let envelope = Envelope {
                    place: Some(&place),
                    ..of_unit
                };
                let ask_result = self.ask(&mapped.event, Some(&mapped), envelope);
                let body = Some(mapped.bytes);
                self.begin(ask_result, body, Arc::clone(&held), assemblies, work, stop);
            }
            Read::Refused(refusal) => {
                let error = self.error_for(&refusal, &held, whole, of_unit, &context());
                let body = refusal.unit().map(|refused| refused.bytes.clone());
                let held = Arc::clone(&held);
                work.push(self.reject(held, body, refusal.reason(), error).boxed());
            }
        };
        let collaboration_id = collaboration_id.as_ref();
        self.intake
            .read(&held.message, &limits, collaboration_id, context, take);
        // Settles the delivery if all its units are done, else the last unit settles it.
        held.done();
    }

    /// The client that waits for an answer to a message, or a unit of its body, that is not an event, and the error for
    /// it.
    fn error_for(
        &self,
        refusal: &Refusal,
        held: &Held,
        whole: Envelope<'_>,
        of_unit: Envelope<'_>,
        context: &MapContext<'_>,
    ) -> Option<(Box<WorkflowClient>, WorkflowRefusal)> {
        let (bytes, index, envelope) = match refusal.unit() {
            Some(refused) => (refused.bytes.clone(), refused.index, of_unit),
            None => (whole.message.body.clone().unwrap_or_default(), 0, whole),
        };
        let mut event = self.intake.wrapped(&bytes, index, context);
        if let Refusal::Unreadable(_, sender) = refusal {
            sender.describe(&mut event);
        }
        let is_plain = match refusal {
            Refusal::Unreadable(..) => false,
            Refusal::Undecoded(refused) => !is_event(&refused.bytes, envelope.limits),
            Refusal::Repeats(_) => true,
        };
        let place = is_plain.then(|| position_of(held, index));
        let envelope = Envelope {
            place: place.as_ref(),
            ..envelope
        };
        let error = WorkflowRefusal::unread(refusal);
        let workflow = refusal.unit().filter(|refused| is_workflow(refused));
        let Some(sender) = workflow.and_then(|refused| refused.sender.as_ref()) else {
            return Some((WorkflowClient::waiting(&event, envelope)?, error));
        };
        let mut client = Box::new(WorkflowClient::of(&event, envelope));
        let own = client.collaboration_id.take();
        client.collaboration_id = sender.id.clone().or(own);
        // Like the answer of any other workflow, the error may take the routes.
        let is_routed = client.address_refused.is_none() && self.events.run_as.is_some();
        (is_routed || client.reply_to.is_some()).then_some((client, error))
    }

    fn context<'a>(&self, new_id: &'a dyn Fn() -> EventId) -> MapContext<'a> {
        MapContext {
            source: self.intake.source.clone(),
            time: None,
            ids: Ids::Payload(new_id),
        }
    }

    /// Reads the request in a CloudEvent.
    fn event(&self, event: &Event, envelope: Envelope<'_>) -> Result<Ask, Rejected> {
        let hint = hint_of_data(&self.intake.hint, event);
        // Malformed text may still be a workflow; then the answer explains the fault.
        let inside = self.intake.inside(event, &hint, envelope.limits);
        self.ask(event, inside.as_ref(), envelope)
    }

    /// Reads the request in an event. `inside` describes its data.
    fn ask(
        &self,
        event: &Event,
        inside: Option<&Mapped>,
        envelope: Envelope<'_>,
    ) -> Result<Ask, Rejected> {
        asked(self.workflows.name(), event, inside, envelope)
            .map_err(|why| Rejected::new(why, event, inside, envelope))
    }

    fn begin<'a>(
        &'a self,
        ask_result: Result<Ask, Rejected>,
        body: Option<Bytes>,
        held: Arc<Held>,
        assemblies: &mut Assemblies,
        work: &RequestTasks<'a>,
        stop: &CancellationToken,
    ) {
        let whole = match ask_result {
            Ok(Ask::Run(job)) if job.is_begin_line => {
                self.note_bad_seq(&job.client);
                self.added(assemblies.begin(job, held), work)
            }
            Ok(Ask::Run(job)) => {
                let held = vec![held];
                Some(CompleteWorkflow { job, held })
            }
            Ok(Ask::Line(client, line)) => {
                self.note_bad_seq(&client);
                if assemblies.replaces(&client, &line) {
                    self.note_replaced(&client);
                }
                self.added(assemblies.line(*client, line, held), work)
            }
            Ok(Ask::Cancel(cancel)) => {
                self.end_named(&cancel, assemblies, work);
                held.done();
                None
            }
            Ok(Ask::Refuse(client, refused)) => {
                work.push(self.refuse(client, refused, held).boxed());
                None
            }
            Ok(Ask::Forbidden(client, refused)) => {
                work.push(self.forbid(client, refused, body, held).boxed());
                None
            }
            Err(Rejected { why, client }) => {
                let detail = why.detail.into_owned();
                let refused = WorkflowRefusal::message(why.code, detail.clone());
                let error = client.map(|client| (client, refused));
                let reason = Reason {
                    code: why.code,
                    stage: Stage::Execute,
                    detail,
                    unit: None,
                };
                work.push(self.reject(held, body, reason, error).boxed());
                None
            }
        };
        if let Some(mut whole) = whole {
            let limits = self.workflows.executor().limits().workflow;
            whole.job.read_execution_id(&limits);
            // At once, because its cancel may follow in the same message.
            let cancel = self.waiting.enter(&whole.job);
            work.push(self.serve(whole, cancel, stop.clone()).boxed());
        }
    }

    /// The workflow that a line completes. Answers or drops a line whose workflow was answered before.
    fn added<'a>(&'a self, added: Added, work: &RequestTasks<'a>) -> Option<CompleteWorkflow> {
        match added {
            Added::Waits => {}
            Added::Whole(whole) => return Some(whole),
            Added::Cancelled(line) => {
                let answer = WorkflowAnswer::cancelled(&line.job);
                work.push(self.conclude(line, answer).boxed());
            }
            Added::Late(held) => self.drop_line(held, "workflow_ended"),
            Added::Copies(held) => self.drop_copies(held),
        }
        None
    }

    /// Drops lines of an execution that has begun: its sender gets no other answer than that of the execution.
    fn drop_copies(&self, held: Vec<Arc<Held>>) {
        for line in held {
            self.drop_line(line, "line_repeated");
        }
    }

    fn drop_line(&self, held: Arc<Held>, reason: &'static str) {
        let of = held.undelivered();
        self.intake.dead_letters.dropped(&of, reason);
        held.done();
    }

    /// Reports that the number of a line cannot be read.
    fn note_bad_seq(&self, client: &WorkflowClient) {
        if client.has_bad_seq
            && let Some(suppressed) = self.log.unnumbered.allow()
        {
            tracing::warn!(binding = %self.intake.name, source = %client.source,
                collaborationid = client.collaboration_id.as_ref().map(Text::as_str), suppressed,
                "the seq of a line of a workflow is not a number and is ignored: its lines stay in the order of arrival");
        }
    }

    /// Reports that a line of an incomplete workflow replaces an earlier one.
    fn note_replaced(&self, client: &WorkflowClient) {
        self.intake.metrics.dropped("line_replaced");
        if let Some(suppressed) = self.log.replaced.allow() {
            tracing::warn!(binding = %self.intake.name, source = %client.source, seq = client.seq,
                collaborationid = client.collaboration_id.as_ref().map(Text::as_str), suppressed,
                "a line of a workflow replaces another one with the same seq");
        }
    }

    /// Cancels everything with this name: waiting and running requests, and incomplete workflows.
    fn end_named<'a>(
        &'a self,
        cancel: &Cancel,
        assemblies: &mut Assemblies,
        work: &RequestTasks<'a>,
    ) {
        let was_there = self.cancel(cancel);
        if !was_there {
            work.push(self.cancel_elsewhere(cancel.clone()).boxed());
        }
        match assemblies.cancel(cancel) {
            // These are redelivered lines of a running workflow.
            Some(part) if was_there => part.held.into_iter().for_each(Held::done),
            Some(part) => {
                let answer = WorkflowAnswer::cancelled(&part.job);
                work.push(self.conclude(part, answer).boxed());
            }
            None if was_there => {}
            None => {
                tracing::debug!(binding = %self.intake.name, "cancel ignored: unknown execution");
            }
        }
    }

    /// Answers with the reason of a refusal, then settles.
    async fn refuse(&self, client: Box<WorkflowClient>, refused: WorkflowRefusal, held: Arc<Held>) {
        if let Some(suppressed) = self.log.refused.allow() {
            tracing::warn!(binding = %self.intake.name, source = %client.source, reason = refused.code(), suppressed,
                "a request to the executor is refused");
        }
        self.workflows.refused(refused.counts_as());
        let answer = WorkflowAnswer::refused(refused);
        self.answer(&client, Action::Execute, &answer, &held).await;
        held.done();
    }

    /// Executes a request, answers it, then settles.
    async fn serve(&self, whole: CompleteWorkflow, cancel: Entry, stop: CancellationToken) {
        let CompleteWorkflow { mut job, held } = whole;
        let early = StopSignals {
            cancel: &cancel,
            stop: &stop,
            is_redeliverable: held.iter().all(|held| held.origin.is_some()),
        };
        let outcome = self.outcome(&mut job, early).await;
        drop(cancel);
        match outcome {
            Disposition::Answered(answer) => {
                self.conclude(CompleteWorkflow { job, held }, answer).await
            }
            Disposition::GivenUp => self.leave(CompleteWorkflow { job, held }, STOPPING).await,
        }
    }

    /// Leaves incomplete workflows.
    fn leave_lines<'a>(
        &'a self,
        assemblies: &mut Assemblies,
        work: &RequestTasks<'a>,
        why: &'static str,
    ) {
        for part in assemblies.give_up() {
            work.push(self.leave(part, why).boxed());
        }
    }

    /// Leaves a request to the next reader of its source. If the source delivers nothing again, answers it.
    async fn leave(&self, whole: CompleteWorkflow, why: &'static str) {
        if whole.held.iter().all(|held| held.origin.is_some()) {
            return whole.held.into_iter().for_each(Held::give_up);
        }
        let failure = Failure::new(FailureCode::Stopped, why);
        let answer = WorkflowAnswer::failed(&failure);
        self.conclude(whole, answer).await;
    }

    /// Answers a request, then settles.
    async fn conclude(&self, whole: CompleteWorkflow, answer: WorkflowAnswer) {
        let CompleteWorkflow { job, held } = whole;
        let answer = answer.of_request(&job);
        if let Some(first) = held.first() {
            self.answer(&job.client, job.action, &answer, first).await;
        }
        held.into_iter().for_each(Held::done);
    }

    /// Makes a dead letter of a request whose reply address the binding does not allow. Nothing is sent to that
    /// address; a requester that waits at the inbox of the message gets the error.
    async fn forbid(
        &self,
        client: Box<WorkflowClient>,
        refused: reply_address::Refused,
        body: Option<Bytes>,
        held: Arc<Held>,
    ) {
        let reason = Reason {
            code: reply_address::Refused::REASON,
            stage: Stage::Execute,
            detail: refused.to_string(),
            unit: None,
        };
        if let Some(suppressed) = self.log.forbidden.allow() {
            tracing::warn!(binding = %self.intake.name, origin = held.position().unwrap_or("unknown"),
                requester = client.requester.as_ref().map_or("unknown", |agent| agent.as_str()), %refused, suppressed,
                "a workflow is not executed");
        }
        self.dead_letter(&held, body, &reason).await;
        if client.reply_to.is_some() {
            let refused = WorkflowRefusal::place(reason.detail);
            let answer = WorkflowAnswer::refused(refused);
            self.answer(&client, Action::Execute, &answer, &held).await;
        }
        held.done();
    }

    /// Makes a dead letter of a message that is not a request to the executor. A waiting requester gets the error at
    /// once.
    async fn reject(
        &self,
        held: Arc<Held>,
        body: Option<Bytes>,
        reason: Reason,
        error: Option<(Box<WorkflowClient>, WorkflowRefusal)>,
    ) {
        if let Some((client, refused)) = error {
            self.workflows.refused(refused.counts_as());
            let answer = WorkflowAnswer::refused(refused);
            self.answer(&client, Action::Execute, &answer, &held).await;
        }
        self.dead_letter(&held, body, &reason).await;
        held.done();
    }

    /// Asks the replicas that run executions with this name to cancel them.
    async fn cancel_elsewhere(&self, cancel: Cancel) {
        let named = self.events.run_as.as_ref().or(cancel.requester.as_ref());
        if let Some(agent) = named.and_then(|name| self.workflows.agent(name)) {
            let executor = self.workflows.executor();
            let name = cancel.shared_name(&self.intake.name);
            let cancelled = executor.cancel_named_elsewhere(agent.id(), &name).await;
            if self.note_cancelled(&cancel.name, cancelled) {
                return;
            }
        }
        if let Some(agent) = self.owner_of(&cancel) {
            self.end_anywhere(&agent, &cancel.name).await;
        }
    }

    /// Cancels an execution on any replica.
    async fn end_anywhere(&self, agent: &Agent, execution_id: &str) {
        let executor = self.workflows.executor();
        let cancelled = executor.cancel_anywhere(agent.id(), execution_id).await;
        self.note_cancelled(execution_id, cancelled);
    }

    /// Logs the result of a cancel. Returns whether the execution was there.
    fn note_cancelled(&self, name: &str, cancelled: Result<bool, StoreError>) -> bool {
        match &cancelled {
            Ok(was_there) => {
                tracing::debug!(binding = %self.intake.name, name, was_there, "cancelled");
            }
            Err(error) => tracing::error!(
                binding = %self.intake.name, name, error = error as &dyn std::error::Error,
                "an execution that runs on another replica cannot be cancelled"
            ),
        }
        cancelled.unwrap_or(false)
    }

    /// The agent whose executions this cancel may end: the requester's own.
    fn owner_of(&self, cancel: &Cancel) -> Option<Arc<Agent>> {
        let requester = cancel.requester.as_ref();
        let own = requester.filter(|_| self.events.run_as.is_none());
        own.and_then(|requester| self.workflows.agent(requester))
    }

    /// Cancels waiting and running requests with this name. Returns whether there were any. A requester that runs as
    /// itself can also cancel executions that it started over HTTP.
    fn cancel(&self, cancel: &Cancel) -> bool {
        let is_known = self.waiting.cancel(cancel);
        let ends = |agent: Arc<Agent>| self.workflows.executor().cancel(agent.id(), &cancel.name);
        is_known || self.owner_of(cancel).is_some_and(ends)
    }
}

// === impl Log ===

impl Log {
    fn new(binding: &Text, limits: &LogLimits) -> Self {
        let limit = |more| limits.limit_of(binding, Level::WARN, more);
        Self {
            incomplete: limit("more incomplete workflows were not executed"),
            replaced: limit("more lines of workflows were replaced"),
            unnumbered: limit("more lines of workflows had a seq that is not a number"),
            refused: limit("more requests to the executor were refused"),
            forbidden: limit("more workflows were not executed: reply address not allowed"),
            answers: limit("more answers were reduced or not delivered"),
        }
    }
}

/// The identity of one unit of a message. It stays the same when the message is redelivered.
fn position_of(held: &Held, index: usize) -> Text {
    match &held.origin {
        Some(origin) => format!("{}/{index}", origin.identity()).into(),
        // A message without a position is not redelivered.
        None => crate::clock::new_event_id().into(),
    }
}

/// Whether a refused unit is meant as a CloudEvent, which its message does not declare.
#[cold]
fn is_event(unit: &[u8], limits: &Limits) -> bool {
    let mut reader = Reader::new(unit.strip_prefix(BYTE_ORDER_MARK).unwrap_or(unit), limits);
    let mut is_marked = false;
    // Why the unit is refused is known already.
    let _error = reader.object(|reader, name| {
        is_marked |= name == b"specversion";
        reader.value().map(drop)
    });
    is_marked
}

/// Generates ids for events whose payload has none. They stay the same when the message is redelivered.
fn stable_ids(message: Option<Text>) -> impl Fn() -> EventId {
    let next = Cell::new(0_u64);
    move || {
        let numbered = message.as_ref().map(|message| {
            let number = next.replace(next.get() + 1);
            EventId::new(format!("{message}/{number}"))
        });
        // A message without a position is not redelivered.
        let numbered = numbered.and_then(Result::ok);
        numbered.unwrap_or_else(crate::clock::new_event_id)
    }
}

/// A name of a client, for a log line.
fn shortened(name: &str) -> String {
    const MAX_CHARS: usize = 100;
    name.chars().take(MAX_CHARS).collect()
}

/// The workflow to which the lines in the body of a message belong.
fn collaboration_id_of(message: &Message) -> Option<Text> {
    let id = header_of_line(message, extension::COLLABORATION_ID)?;
    let mut hint = Hint::default();
    hint.header(extension::COLLABORATION_ID, std::str::from_utf8(id).ok()?);
    hint.collaboration_id
}
