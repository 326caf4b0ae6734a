//! `message/send` and `message/stream`: checks a message, sends it to the agent, and answers with a message, a task or
//! a stream.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{RpcBody, splice};
use a2abus_plugin::{EventId, Hint, Text, Unit};
use bytes::Bytes;
use scopeguard::ScopeGuard;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::follow::{OwnAnswer, until_drained};
use super::method::Method;
use super::push::Checked;
use super::work::{A2aRequest, Reply, not_found, of_call};
use crate::calls::failure::{Failure, POINTER, Reason, SOON};
use crate::calls::{Answer, CallError};
use crate::doors::door::{self, Door};
use crate::doors::rpc::common::{CallOptions, TimeoutLimits};
use crate::object::Object;
use crate::shares::{Share, client_of};
use crate::state::{ATTENDED, STORED, StateError};
use crate::tasks::model::{Content, Message, new_id};
use crate::tasks::read::{self, AnswerPart, BadMessage, Sender};
use crate::tasks::write::WriteContext;
use crate::tasks::{AgentAnswer, Created, Event, Origin, Subscription, Task, plain_part};

/// How much longer a caller without a timeout of its own waits, so that it sees the failure of a silent agent.
const FAILURE_GRACE: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SendParams<'a> {
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    configuration: Option<Object<Configuration<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration<'a> {
    /// In milliseconds. A call reads it from the payload too.
    #[serde(deserialize_with = "crate::count::read")]
    timeout: Option<usize>,
    blocking: Option<bool>,
    #[serde(alias = "return_immediately")]
    return_immediately: Option<bool>,
    #[serde(alias = "history_length", deserialize_with = "crate::count::read")]
    history_length: Option<usize>,
    #[serde(borrow, alias = "push_notification_config")]
    push_notification_config: Option<&'a RawValue>,
    #[serde(borrow, alias = "task_push_notification_config")]
    task_push_notification_config: Option<&'a RawValue>,
}

/// The message of a request, and the task that it belongs to.
struct Outbound {
    task: Text,
    context: Text,
    message: Message,
    /// Whether the task already exists.
    is_continuation: bool,
}

/// A message that may be sent.
struct CheckedMessage<'a> {
    outbound: Outbound,
    configuration: Configuration<'a>,
    webhook: Option<Checked>,
    room: Room,
}

/// What a message reserves for its task.
struct Room {
    /// In its context, until the task exists.
    in_context: Option<Share<Text>>,
    /// In the memory for tasks, until the task has ended.
    in_memory: Option<Share<Text>>,
}

/// The first part of an answer.
enum FirstPart {
    /// The whole answer.
    Reply(Reply),
    /// A task update, and whether it is the last part.
    OfTask(AnswerPart, bool),
    /// None: the bridge shuts down, and other replicas receive the answer.
    HandedOff,
}

// === impl Outbound ===

impl Outbound {
    /// The options of its call. With `at_once`, the caller gets a stream or the task, and does not wait for the first
    /// part of the answer.
    fn options(&self, at_once: bool) -> CallOptions<'_> {
        let limits = match (at_once, self.is_continuation) {
            (true, _) => TimeoutLimits::Answer,
            // When the caller stops waiting, it gets the task, which continues.
            (false, true) => TimeoutLimits::Nothing,
            (false, false) => TimeoutLimits::FirstPart,
        };
        CallOptions {
            task: Some(&self.task),
            conversation: Some(&self.context),
            limits,
            ..CallOptions::default()
        }
    }
}

// === impl A2aRequest ===

impl A2aRequest<'_> {
    /// Checks the message of `unit`, and sends it.
    pub(super) async fn send(&self, agent: &Text, unit: Unit) -> Result<Reply, Failure> {
        let checked = Box::pin(self.checked(agent, unit)).await;
        // The access log has a line for the call, once there is one.
        let (outgoing, unit) =
            checked.inspect_err(|failure| self.note(agent, failure.reason_code()))?;
        self.sent(agent, outgoing, unit).await
    }

    async fn checked(
        &self,
        agent: &Text,
        unit: Unit,
    ) -> Result<(CheckedMessage<'_>, Unit), Failure> {
        let params: SendParams<'_> = self.parsed.params()?;
        let configuration = params
            .configuration
            .map(|Object(it)| it)
            .unwrap_or_default();
        configuration.check()?;
        let webhooks = configuration.webhooks();
        let [v1_0, v0_3] = webhooks;
        let webhook = self.webhook_in(v1_0.or(v0_3))?;
        let streams = self.parsed.method == Method::Stream;
        if streams {
            self.check_streaming(agent)?;
            self.check_accepts()?;
        }
        let (outbound, unit) = self
            .outbound(agent, (unit, params.message), webhooks)
            .await?;
        if let Some(webhook) = &webhook {
            self.check_webhook_room(&outbound.task, webhook)?;
        }
        let room = self.room_in(&outbound, streams || configuration.is_at_once())?;
        let checked = CheckedMessage {
            outbound,
            configuration,
            webhook,
            room,
        };
        Ok((checked, unit))
    }

    async fn sent(
        &self,
        agent: &Text,
        checked: CheckedMessage<'_>,
        unit: Unit,
    ) -> Result<Reply, Failure> {
        let CheckedMessage {
            outbound,
            configuration,
            webhook,
            mut room,
        } = checked;
        let streams = self.parsed.method == Method::Stream;
        let at_once = configuration.is_at_once();
        let call = (!self.in_batch).then_some(self.common.call);
        let options = outbound.options(streams || at_once);
        let answer = Box::pin(self.common.call(unit, call, options)).await;
        let mut answer = answer.map_err(|error| of_call(&error))?;
        let mut first = None;
        let until = self.response_deadline(configuration.timeout);
        if !streams && !at_once && !outbound.is_continuation {
            let part;
            let started = (agent, &outbound, &webhook);
            ((answer, room), part) = self.awaited(started, (answer, room), until).await;
            first = match part? {
                FirstPart::Reply(reply) => return Ok(reply),
                FirstPart::OfTask(update, last) => Some((update, last)),
                FirstPart::HandedOff => {
                    let beginning = self.beginning(agent, &outbound, &answer);
                    return Err(self.handed_off((&outbound.task, beginning), webhook).await);
                }
            };
        }
        let (tasks, id) = (&self.a2a.settings.tasks, outbound.task.clone());
        let is_continuation = outbound.is_continuation;
        let beginning = self.beginning(agent, &outbound, &answer);
        let begun = self.begun((&id, room), webhook, streams);
        let call = answer.call_id().text();
        let (begun, over) = tasks.begin((id.clone(), beginning), answer, first, begun);
        let (registered, subscribed) = in_time(begun, until, (&id, &self.a2a.door)).await?;
        registered.map_err(|failure| webhook_not_stored(&id, &failure))?;
        if streams {
            let mut subscribed = subscribed.ok_or_else(|| not_found(&id))?;
            let history = configuration.history_length;
            if is_continuation && history.is_none() {
                // The client has the earlier messages of a task that it continues. Some clients would show them again.
                // The last message of the task may already be that of another client.
                subscribed.0.history = vec![outbound.message];
            }
            let own = OwnAnswer { call, over };
            return self.stream(id, subscribed, (None, Some(own)), history);
        }
        let mut rested = None;
        if !at_once {
            // On timeout, and when the bridge shuts down, the caller gets the current task.
            let resting = tasks.at_rest_for((&id, &call), over);
            rested = until_drained(self.a2a, (&id, until), resting).await;
        }
        self.task_as_reply(&id, rested.flatten(), configuration.history_length)
    }

    /// This task, or the current one, for the sender of a message.
    fn task_as_reply(
        &self,
        id: &Text,
        task: Option<Task>,
        history: Option<usize>,
    ) -> Result<Reply, Failure> {
        let task = task.or_else(|| self.a2a.settings.tasks.get(id));
        let task = task.ok_or_else(|| not_found(id))?;
        let of = WriteContext::task(self.parsed.dialect, id, &task);
        let result = self.parsed.form().result(&of.answer(&task, history));
        let charged = door::charged_if_large(&self.common.budget, result);
        let body = charged.map_err(|_| {
            let but = format!(
                "its task {id} is large, and there is no memory for it now (calls.budget_bytes): get the task later"
            );
            sent_but(id, &but)
        })?;
        Ok(Reply::Whole(body))
    }

    /// What to do once the task has the message: stores the webhook, and subscribes if the caller follows the task. Until
    /// then the task needs its reserved room in its context.
    fn begun(
        &self,
        (id, room): (&Text, Room),
        webhook: Option<Checked>,
        streams: bool,
    ) -> impl Future<Output = (Result<(), Failure>, Option<(Task, Subscription)>)> + Send + use<>
    {
        let registering = self.webhook_of_task(id, webhook);
        let (tasks, id) = (Arc::clone(&self.a2a.settings.tasks), id.clone());
        async move {
            drop(room.in_context);
            tasks.keep_room(&id, room.in_memory);
            let registered = registering.await;
            let subscribed = streams.then(|| tasks.follow(&id, None));
            (registered, subscribed.flatten())
        }
    }

    fn check_streaming(&self, agent: &Text) -> Result<(), Failure> {
        if self.agent(agent)?.streaming {
            return Ok(());
        }
        let message = "this agent does not stream: send the message without streaming";
        Err(Failure::new(Reason::Unsupported, message))
    }

    /// How long a caller without a stream waits for the end of its task; then it gets the current task. The call itself
    /// may last longer while its agent reports progress.
    fn response_deadline(&self, configured: Option<usize>) -> Instant {
        let configured = configured.map(|millis| Duration::from_millis(millis as u64));
        let timeout = self.common.timeout.or(configured);
        let until = self.common.arrived + self.common.calls.timeout_for(timeout);
        match timeout {
            Some(_) => until,
            // A task whose agent is silent fails at the same time. The caller gets it as failed.
            None => until + FAILURE_GRACE,
        }
    }

    /// Reserves a task within the limit of the message's context, until the message has created a task. Tasks that wait
    /// for the client do not count. A message for an existing task is accepted even if that exceeds the limit, as long
    /// as the task has room for it. If the message creates a task at once, the log of tasks must answer and have room.
    fn room_in(&self, outbound: &Outbound, at_once: bool) -> Result<Room, Failure> {
        let tasks = &self.a2a.settings.tasks;
        let can_be_stored = match (at_once, outbound.is_continuation) {
            (true, false) => tasks.check_new(&outbound.task),
            (true, true) => tasks.check_read(),
            (false, _) => Ok(()),
        };
        can_be_stored.map_err(|error| self.a2a.door.not_stored("tasks", &error))?;
        // The task of a resumed request may have the message already.
        if outbound.is_continuation && !self.common.is_resumed {
            self.check_room_in_task(&outbound.task)?;
        }
        // The task of a resumed request counts already, if the first replica has created it.
        let exists = self.common.is_resumed && tasks.get(&outbound.task).is_some();
        let begins = !outbound.is_continuation && !exists;
        let in_context = begins.then(|| self.room_in_context(&outbound.context));
        let in_context = in_context.transpose()?;
        let in_memory =
            (!self.common.is_resumed).then(|| self.room_in_memory(outbound.is_continuation));
        let in_memory = in_memory.transpose()?;
        Ok(Room {
            in_context,
            in_memory,
        })
    }

    fn room_in_context(&self, context: &Text) -> Result<Share<Text>, Failure> {
        let settings = &self.a2a.settings;
        let active = settings.tasks.active_in(context);
        let metrics = &self.a2a.door.metrics;
        settings.at_a_time.task(context, active, metrics)
    }

    /// Reserves memory within the limit of the client. A task that has not ended cannot be removed, so without this limit
    /// one client could take the room of all others. A message for an existing task may use more, because it may end this
    /// task. A message that creates no task releases it with the answer.
    fn room_in_memory(&self, is_continuation: bool) -> Result<Share<Text>, Failure> {
        let (tasks, door) = (&self.a2a.settings.tasks, &self.a2a.door);
        let (client, bytes) = (client_of(&self.common.caller), self.parsed.bytes.len());
        if let Some(room) = tasks.room_for(&client, bytes, is_continuation) {
            return Ok(room);
        }
        door.metrics.budget_refused.inc();
        let part = match is_continuation {
            true => "three quarters",
            false => "half",
        };
        if let Some(suppressed) = door.state_lines.full.allow() {
            tracing::warn!(%client, bytes, suppressed, "a message is refused: the unfinished tasks of this client take {part} of the memory for tasks (state.memory)");
        }
        let message = format!(
            "the unfinished tasks of this client take {part} of the memory for tasks, which is the limit for one client (state.memory): wait until some of them end, or cancel them"
        );
        Err(Failure::new(Reason::Exhausted, message).detail("retryAfterSeconds", SOON))
    }

    /// Checks that a task has room for another message of its client.
    fn check_room_in_task(&self, task: &Text) -> Result<(), Failure> {
        let (tasks, door) = (&self.a2a.settings.tasks, &self.a2a.door);
        let bytes = self.parsed.bytes.len();
        if tasks.is_too_large(task, bytes) {
            door.metrics.budget_refused.inc();
            if let Some(suppressed) = door.state_lines.full.allow() {
                tracing::warn!(%task, bytes, suppressed, "a message is refused: with it, its task would take more than a quarter of the memory for tasks (state.memory)");
            }
            let message = format!(
                "with this message, the task {task:?} would take more than a quarter of the memory for tasks (state.memory): send the message without its taskId, to begin another task"
            );
            return Err(Failure::new(Reason::Exhausted, message));
        }
        let checked = tasks.check_message(bytes);
        checked.map_err(|error| door.not_stored("messages of tasks", &error))
    }

    /// Waits for the first part. If the caller disconnects meanwhile, the call becomes a task with its webhook.
    async fn awaited(
        &self,
        (agent, outbound, webhook): (&Text, &Outbound, &Option<Checked>),
        waiting: (Box<Answer>, Room),
        until: Instant,
    ) -> ((Box<Answer>, Room), Result<FirstPart, Failure>) {
        let on_drop = |(answer, room): (Box<Answer>, Room)| {
            let id = outbound.task.clone();
            let beginning = self.beginning(agent, outbound, &answer);
            let begun = self.begun((&id, room), webhook.clone(), false);
            let tasks = &self.a2a.settings.tasks;
            drop(tasks.begin((id, beginning), answer, None, begun));
        };
        let mut waiting = scopeguard::guard(waiting, on_drop);
        let first = self.first(&mut waiting.0, &outbound.context, until).await;
        (ScopeGuard::into_inner(waiting), first)
    }

    /// Makes a task of a call whose answer only other replicas can still receive, so that its caller finds the answer in
    /// the task. A caller with an idempotency key gets it with the key. Returns the error for the caller.
    async fn handed_off(
        &self,
        (id, beginning): (&Text, Event),
        webhook: Option<Checked>,
    ) -> Failure {
        if self.common.key.is_some() {
            return of_call(&CallError::HandedOff);
        }
        let registering = self.webhook_of_task(id, webhook);
        let (tasks, task) = (Arc::clone(&self.a2a.settings.tasks), id.clone());
        // It continues if the client disconnects.
        let begun = self.a2a.settings.tasks.spawn(async move {
            let stored = tasks.record_again(&task, &beginning).await;
            (stored, registering.await)
        });
        match begun.await {
            Ok((Ok(()), Ok(()))) => {
                let but = format!(
                    "this replica is shutting down: another one receives the answer if one runs; get the task {id} there"
                );
                sent_but(id, &but)
            }
            Ok((Ok(()), Err(failure))) => webhook_not_stored(id, &failure),
            Ok((Err(error), _)) => cannot_be_stored((id, &self.a2a.door), &error),
            Err(_) => of_call(&CallError::Drained),
        }
    }

    /// Waits for the first part that shows the type of the answer: a task, or an answer without a task.
    async fn first(
        &self,
        answer: &mut Answer,
        context: &str,
        until: Instant,
    ) -> Result<FirstPart, Failure> {
        let is_jaf = self.parsed.dialect == Dialect::JafDoc;
        loop {
            let part = answer.next_before(Some(until.into_std())).await;
            let part = part.unwrap_or_else(|| {
                Err(CallError::BadAnswer(Text::from_static(
                    "it ended without a result",
                )))
            });
            let part = match part {
                Err(CallError::HandedOff) => return Ok(FirstPart::HandedOff),
                Err(error) => return Err(self.unanswered(answer, &error)),
                Ok(part) => part,
            };
            let last = part.last;
            let of = WriteContext {
                dialect: self.parsed.dialect,
                task: None,
                context: Some(context),
            };
            return Ok(match AgentAnswer::of(part) {
                Some(AgentAnswer::Error(part)) => {
                    if let Some(failure) = Failure::of_bridge(part.outcome, &part.body) {
                        return Err(failure);
                    }
                    FirstPart::Reply(match self.parsed.form().agents_failure(part.body) {
                        (Some(status), body) => Reply::WithStatus(status, body),
                        (None, body) => Reply::Whole(body),
                    })
                }
                Some(AgentAnswer::Result(AnswerPart::Message(message))) if last && !is_jaf => {
                    FirstPart::Reply(self.whole(&of.message(&message)))
                }
                Some(AgentAnswer::Result(AnswerPart::Plain(json))) if last && !is_jaf => {
                    let message = Message::of_agent(vec![plain_part(json)]);
                    FirstPart::Reply(self.whole(&of.message(&message)))
                }
                Some(AgentAnswer::Result(update)) => FirstPart::OfTask(update, last),
                None if last => {
                    let error =
                        CallError::BadAnswer(Text::from_static("it is no JSON-RPC response"));
                    return Err(of_call(&error));
                }
                None => continue,
            });
        }
    }

    /// The error of a call without an answer.
    fn unanswered(&self, answer: &Answer, error: &CallError) -> Failure {
        let failure = of_call(error);
        let is_timeout = matches!(error, CallError::Timeout(_));
        // If the agent has not got the message, its key is released.
        match is_timeout && self.common.key.is_some() && !answer.is_undelivered(error) {
            true => failure.and(
                "this error is now the answer to this Idempotency-Key: if the agent may execute the message again, send it with a new key",
            ),
            false => failure,
        }
    }

    /// The record with which the task of a message begins or continues. Each request of a batch has its own call.
    fn beginning(&self, agent: &Text, outbound: &Outbound, answer: &Answer) -> Event {
        let message = outbound.message.clone();
        let event = if outbound.is_continuation {
            Event::Continued { message }
        } else {
            Event::Created(Created {
                agent: agent.clone(),
                context: outbound.context.clone(),
                is_1_0: self.parsed.dialect == Dialect::A2a10,
                message,
                timestamp: crate::clock::rfc3339(crate::clock::now()),
            })
        };
        event.from(Origin::beginning(answer.call_id()))
    }

    /// Checks a message, and prepares the request for the agent: adds the context, and replaces the id of an existing
    /// task by the agent's own id. Nothing else changes.
    async fn outbound(
        &self,
        agent: &Text,
        (unit, message): (Unit, Option<&RawValue>),
        webhooks: [Option<&RawValue>; 2],
    ) -> Result<(Outbound, Unit), Failure> {
        let raw = message.ok_or_else(|| bad_message(&BadMessage::Missing(vec!["message"])))?;
        let (message, addressed) =
            read::message(raw, Sender::Client).map_err(|error| bad_message(&error))?;
        self.check_size(&message)?;
        let bytes = &self.parsed.bytes;
        let raw = raw.get();
        let (task_id, context_id) = (text_of(addressed.task_id)?, text_of(addressed.context_id)?);
        let task = match &task_id {
            Some((id, _)) => {
                let context = context_id.as_ref().map(|(id, _)| id);
                Some(Box::pin(self.continued(agent, id, context)).await?)
            }
            None => None,
        };
        // Remove the webhooks: the bridge calls them, and they contain secrets of the client.
        let private = webhooks.into_iter().flatten();
        let private = private.map(|raw| (range_of(bytes, raw.get()), "null".to_owned()));
        let mut edits: Vec<_> = private.collect();
        let context = match (&context_id, &task) {
            (Some((context, _)), _) => Text::from(context.as_str()),
            (None, task) => {
                let context = task
                    .as_ref()
                    .map_or_else(|| self.new_id("context"), |task| task.context.clone());
                match addressed.context_id {
                    // The member is present, as `null`.
                    Some(null) => edits.push((range_of(bytes, null.get()), quoted(&context))),
                    None => {
                        let start = range_of(bytes, raw).start + 1;
                        edits.push((
                            start..start,
                            format!(r#""contextId":{},"#, quoted(&context)),
                        ));
                    }
                }
                context
            }
        };
        if let (Some((_, token)), Some(own)) = (
            &task_id,
            task.as_ref().and_then(|task| task.agents_id.as_ref()),
        ) {
            edits.push((range_of(bytes, token.get()), quoted(own)));
        }
        let is_continuation = task.is_some();
        let unit = self.rewritten(unit, edits)?;
        let outbound = Outbound {
            task: task_id.map_or_else(|| self.new_id("task"), |(id, _)| id.into()),
            context,
            message,
            is_continuation,
        };
        Ok((outbound, unit))
    }

    /// A new id, which is the same on every replica that continues this call.
    fn new_id(&self, of: &str) -> Text {
        if self.in_batch {
            return new_id();
        }
        let call = self.common.call.text();
        let hash = Sha256::digest([of, " ", &call].concat());
        let bytes = hash.first_chunk().copied().unwrap_or_default();
        let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
        EventId::of_uuid(uuid.as_u128()).into()
    }

    /// The request with these replacements. Its answer may have several parts even without streaming, because an agent
    /// may report a task before the task ends.
    fn rewritten(
        &self,
        mut unit: Unit,
        edits: Vec<(std::ops::Range<usize>, String)>,
    ) -> Result<Unit, Failure> {
        let limits = self.a2a.door.calls.rules().limits;
        unit.replace(edits, &limits)
            .map_err(|error| Failure::refused(&error))?;
        let message = unit.json_rpc.as_mut();
        let Some(message) = message.filter(|message| message.id.is_some()) else {
            let start = unit.bytes.iter().position(|byte| *byte == b'{');
            let start = start.map_or(0, |at| at + 1);
            let bytes = splice(&unit.bytes, start..start, r#""id":null,"#);
            return self.unit(&bytes, &self.common.hint);
        };
        message.body = RpcBody::Call { streaming: true };
        Ok(unit)
    }

    pub(super) fn unit(&self, bytes: &Bytes, hint: &Hint) -> Result<Unit, Failure> {
        let mut unit = self.a2a.door.calls.unit_of(bytes, hint)?;
        if let Some(message) = &mut unit.json_rpc {
            message.body = RpcBody::Call { streaming: true };
        }
        Ok(unit)
    }

    fn check_size(&self, message: &Message) -> Result<(), Failure> {
        let limits = self.a2a.settings.live.load().limits;
        if message.parts.len() > limits.max_parts {
            let (has, max) = (message.parts.len(), limits.max_parts);
            return Err(Failure::bad_params(&format!(
                "the message has {has} parts, more than the limit of {max} (a2a.max_parts)"
            )));
        }
        for (index, part) in message.parts.iter().enumerate() {
            let (has, max, key) = match &part.content {
                Content::Text(text) => (text.len(), limits.max_text_part, "max_text_part"),
                Content::Data(raw) | Content::Other(raw) => {
                    (raw.get().len(), limits.max_data_part, "max_data_part")
                }
                Content::Bytes(text) | Content::Url(text) => {
                    (text.len(), limits.max_data_part, "max_data_part")
                }
            };
            if has > max {
                return Err(Failure::bad_params(&format!(
                    "parts[{index}] has {has} bytes, more than the limit of {max} (a2a.{key})"
                )));
            }
        }
        Ok(())
    }

    /// The existing task that a message continues.
    async fn continued(
        &self,
        agent: &Text,
        id: &str,
        context: Option<&String>,
    ) -> Result<Task, Failure> {
        let task = self.task(id).await?;
        if task.agent != *agent {
            return Err(not_found(id));
        }
        if context.is_some_and(|context| *task.context != **context) {
            let message = format!("the task {id:?} belongs to another contextId");
            return Err(Failure::bad_params(&message));
        }
        if task.status.state.is_terminal() && !self.common.is_resumed {
            let message = format!("the task {id:?} has ended: send the message without its taskId");
            return Err(Failure::new(Reason::Unsupported, message));
        }
        Ok(task)
    }
}

impl<'a> Configuration<'a> {
    fn check(&self) -> Result<(), Failure> {
        if self.timeout == Some(0) {
            let message = "configuration.timeout must be a positive number of milliseconds";
            let failure = Failure::bad_params(message);
            return Err(failure.detail(POINTER, "/params/configuration/timeout"));
        }
        Ok(())
    }

    /// Whether the caller does not wait for the end of the task.
    fn is_at_once(&self) -> bool {
        self.return_immediately.unwrap_or(false) || self.blocking == Some(false)
    }

    /// The webhooks in the message, in order of precedence.
    fn webhooks(&self) -> [Option<&'a RawValue>; 2] {
        [
            self.task_push_notification_config,
            self.push_notification_config,
        ]
    }
}

/// Waits until a task is stored, for a caller that waits until then, but not for an outage of the log.
async fn in_time<T>(
    begun: oneshot::Receiver<Result<T, StateError>>,
    until: Instant,
    (task, door): (&Text, &Door),
) -> Result<T, Failure> {
    let now = Instant::now();
    let begun = timeout_at(until.clamp(now + STORED, now + ATTENDED), begun).await;
    let begun = begun.map_err(|_| not_stored_yet(task, door))?;
    let begun = begun.unwrap_or(Err(StateError::Closed("tasks")));
    begun.map_err(|error| cannot_be_stored((task, door), &error))
}

/// The error when the agent has a message, but its task cannot be stored.
fn cannot_be_stored((task, door): (&Text, &Door), error: &StateError) -> Failure {
    let why = match door.not_stored("tasks", error).reason() {
        Reason::Exhausted => ", because the memory for tasks is full (state.memory)",
        _ => "",
    };
    let but =
        format!("its task {task} cannot be stored{why}: the agent may have executed the message");
    sent_but(task, &but)
}

/// The error when the agent has a message, but its task, or the webhook in it, was not stored in time.
fn not_stored_yet(task: &Text, door: &Door) -> Failure {
    if let Some(suppressed) = door.state_lines.unstored.allow() {
        tracing::error!(%task, suppressed, "a task was not stored in time: its caller gets an error, and the task continues");
    }
    let but = format!("its task {task} was not stored in time: get the task later");
    sent_but(task, &but)
}

/// The error when the agent has a message, but the webhook in it was not stored.
fn webhook_not_stored(task: &Text, failure: &Failure) -> Failure {
    let why = failure.message();
    let but = format!(
        "the push notification configuration of its task {task} was not stored ({why}): the task continues; get it, and set the configuration again"
    );
    sent_but(task, &but)
}

/// The error when the agent has a message, but not all of it is stored. Its reason tells the client not to send the
/// message again.
fn sent_but(task: &Text, but: &str) -> Failure {
    let message = format!("the message was sent to the agent, but {but}");
    Failure::new(Reason::AnswerLost, message).detail("taskId", task.as_str())
}

/// The error for an invalid message, with the same details as JAF's server.
fn bad_message(error: &BadMessage) -> Failure {
    let failure = Failure::bad_params(&error.to_string());
    match error {
        BadMessage::Missing(members) => failure.detail("missing_fields", members.clone()),
        BadMessage::NoParts => failure.detail("minimum_parts", 1),
        BadMessage::EmptyPart(part) | BadMessage::SeveralContents { part, .. } => failure
            .detail("part_index", *part)
            .detail(POINTER, format!("/params/message/parts/{part}")),
        BadMessage::NotBase64 { part, member } => {
            let member = member.replace('.', "/");
            failure
                .detail("part_index", *part)
                .detail(POINTER, format!("/params/message/parts/{part}/{member}"))
        }
        BadMessage::Role(_) | BadMessage::Kind | BadMessage::Unreadable(_) => failure,
    }
}

/// A text as JSON.
fn quoted(text: &Text) -> String {
    // Text can always be written as JSON.
    serde_json::to_string(text.as_str()).unwrap_or_default()
}

/// An id in a message, with its JSON; `None` if it is absent, null or empty.
fn text_of(token: Option<&RawValue>) -> Result<Option<(String, &RawValue)>, Failure> {
    let Some(token) = token.filter(|token| token.get() != "null") else {
        return Ok(None);
    };
    let id: String = serde_json::from_str(token.get())
        .map_err(|_| Failure::bad_params("taskId and contextId must be strings"))?;
    // In A2A 1.0, an empty id means none.
    Ok((!id.is_empty()).then_some((id, token)))
}
