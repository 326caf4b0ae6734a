//! Tasks as a pure function of their records.
//!
//! The state machine of A2A: submitted, then any states, then a terminal state, which is final.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::model::{Artifact, Message, Part, Raw, State, Status};
use crate::calls::Answer;
use crate::calls::callid::CallId;
use crate::clock;
use crate::state::body;
use crate::state::{Applied, Fold, Groups, Position, Record};

/// An event of a task. The body of a record is `{"v":1,"event":…}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A client has sent an agent a message.
    Created(Created),
    /// A client has sent another message for the same task.
    Continued {
        /// The message.
        message: Message,
    },
    /// The agent has assigned its own id to the task.
    Named {
        /// That id.
        task: Text,
    },
    /// The agent has sent a message that does not change the state.
    Said {
        /// The message.
        message: Message,
    },
    /// The state has changed.
    Status(Status),
    /// The agent has sent an artifact, or a part of one.
    Artifact {
        /// The artifact.
        artifact: Artifact,
        /// Whether to append its parts to the artifact with the same id.
        append: bool,
        /// Whether this is the last part of the artifact.
        last: bool,
        /// Of the event. A JSON object.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Raw>,
    },
    /// A part of the answer to a call contained nothing new. The record tells replicas that follow the call that it was
    /// processed.
    Taken,
    /// An event from a part of the answer to a call.
    FromCall {
        /// The part.
        origin: Origin,
        /// The event.
        event: Box<Event>,
    },
}

/// The beginning of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Created {
    /// The agent.
    pub(crate) agent: Text,
    /// Its conversation.
    pub(crate) context: Text,
    /// Whether the request to the agent used A2A 1.0, so the agent understands it.
    pub(crate) is_1_0: bool,
    /// The first message.
    pub(crate) message: Message,
    /// The time, as RFC 3339.
    pub(crate) timestamp: Text,
}

/// The origin of an event: a part of the answer to a call. Several replicas may record it; the first record counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The call.
    pub(crate) call: Text,
    /// The number of the part, from 1; 0 is the message to the agent.
    pub(crate) part: u32,
    /// The number of the event in the part, from 1.
    pub(crate) event: u32,
    /// Whether it is the last event of the part.
    #[serde(default)]
    pub(crate) ends: bool,
    /// Whether it is also the last event of the answer: the agent no longer works on the message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ends_answer: bool,
}

/// A task, folded from its records.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) agent: Text,
    pub(crate) context: Text,
    pub(crate) is_1_0: bool,
    /// The agent's own id for the task.
    pub(crate) agents_id: Option<Text>,
    pub(crate) status: Status,
    pub(crate) history: Vec<Message>,
    pub(crate) artifacts: Vec<Artifact>,
    /// What the agent has reported with its states: a later member replaces an earlier one of the same name.
    pub(crate) metadata: BTreeMap<String, Raw>,
    /// When its status last changed, in milliseconds since 1970.
    pub(crate) changed: u64,
    /// When its last record was written, in milliseconds since 1970.
    pub(super) last_record: u64,
    /// When the last record that changed it was written, in milliseconds since 1970.
    pub(crate) updated: u64,
    /// The state to return to if the agent refuses all messages that it has. Its first status, artifact or progress
    /// clears it.
    waited: Option<State>,
    /// The last record.
    pub(crate) position: Position,
    /// The latest events, for subscribers that reconnect.
    pub(crate) events: VecDeque<(Position, Arc<Event>)>,
    /// Whether earlier events have been removed.
    pub(crate) has_forgotten: bool,
    /// The origin of the last event of each call, in the order in which the calls began. Several may work on a task.
    /// Once the task waits for its client, all of them count as ended, until one has another event.
    origins: VecDeque<Origin>,
    /// The call whose event was the first since the task came to rest.
    rested_by: Option<Text>,
    /// When the origin of a call was last removed to make room for another, in milliseconds since 1970; 0 if none was.
    forgot_call_at: u64,
    bytes: usize,
}

/// Folds records into tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskFold;

/// Maximum number of events of a task that are stored for subscribers that reconnect.
const MAX_EVENTS: usize = 1_024;
/// Maximum number of calls of a task whose progress is stored. Those that have ended are forgotten first.
const MAX_CALLS: usize = 16;
/// Maximum number of messages in the history of a task. A longer history keeps only the last ones.
pub(super) const MAX_MESSAGES: usize = 1_000;

// === impl Origin ===

impl Origin {
    /// The origin of the message that a call sends to an agent.
    pub(crate) fn beginning(call: CallId) -> Self {
        Self {
            call: call.to_string().into(),
            part: 0,
            event: 0,
            ends: false,
            ends_answer: false,
        }
    }

    /// The origin of the last part of an answer that its caller received, which may be the last one of all.
    pub(crate) fn of_part(answer: &Answer, ends_answer: bool) -> Self {
        Self {
            part: answer.consumed(),
            ends: true,
            ends_answer,
            ..Self::beginning(answer.call_id())
        }
    }

    /// The origin of what takes the place of the next part.
    pub(crate) fn next(&self) -> Self {
        Self {
            part: self.part.saturating_add(1),
            ..self.at(1, true)
        }
    }

    /// The same for the end of the answer.
    pub(crate) fn ending(self) -> Self {
        Self {
            ends_answer: true,
            ..self
        }
    }

    /// The origin of what follows all events of this part and takes the place of none.
    pub(crate) fn after(&self) -> Self {
        self.at(u32::MAX, true)
    }

    /// An event of this part; `ends` tells whether it is the last.
    pub(crate) fn at(&self, event: u32, ends: bool) -> Self {
        Self {
            event,
            ends,
            ends_answer: self.ends_answer && ends,
            ..self.clone()
        }
    }
}

// === impl Event ===

impl Event {
    /// Adds the origin to an event.
    pub(crate) fn from(self, origin: Origin) -> Self {
        let event = Box::new(self);
        Self::FromCall { origin, event }
    }

    /// The event without its origin.
    pub(crate) fn itself(&self) -> &Self {
        match self {
            Self::FromCall { event, .. } => event.itself(),
            event => event,
        }
    }

    /// The event and its origin.
    pub(crate) fn parted(self) -> (Self, Option<Origin>) {
        match self {
            Self::FromCall { origin, event } => (event.parted().0, Some(origin)),
            event => (event, None),
        }
    }

    /// Whether subscribers receive it.
    pub(crate) fn is_shown(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Artifact { .. })
    }
}

// === impl TaskFold ===

impl Fold for TaskFold {
    type Entry = Task;

    fn apply(&self, entry: &mut Option<Task>, record: &Record) -> Applied {
        let Some((event, from)) = body::read(record).map(Event::parted) else {
            return Applied::Unknown;
        };
        let bytes = record.body.as_ref().map_or(0, Bytes::len);
        if let Some(task) = &mut *entry {
            task.last_record = task.last_record.max(record.time);
        }
        let applied = match (&mut *entry, event) {
            (None, Event::Created(created)) => {
                *entry = Some(Task::new(created, record));
                Applied::Changed
            }
            (Some(task), _) if from.as_ref().is_some_and(|from| task.has(from)) => {
                Applied::Unchanged
            }
            (Some(task), Event::Taken) if !task.status.state.is_terminal() => {
                task.waited = None;
                task.note(from.clone(), record.time);
                Applied::Unchanged
            }
            // Each replica that follows the call may record it.
            (Some(task), Event::Said { message }) if from.is_none() && task.knows(&message) => {
                Applied::Unchanged
            }
            (Some(task), event) if !task.status.state.is_terminal() => task.take(event, record),
            (None | Some(_), _) => Applied::Unchanged,
        };
        if let (Applied::Changed, Some(task)) = (applied, entry) {
            task.position = record.position;
            task.updated = record.time;
            task.bytes += 2 * bytes;
            task.note(from, record.time);
        }
        applied
    }

    fn size_bytes(&self, task: &Task) -> usize {
        size_of::<Task>() + task.bytes
    }

    fn has_ended(&self, task: &Task) -> bool {
        task.status.state.is_terminal()
    }

    fn groups<'a>(&self, task: &'a Task) -> Groups<&'a str> {
        [Some(&task.context), None]
    }
}

// === impl Task ===

impl Task {
    fn new(created: Created, record: &Record) -> Self {
        Self {
            agent: created.agent,
            context: created.context,
            is_1_0: created.is_1_0,
            agents_id: None,
            status: Status {
                state: State::Submitted,
                message: None,
                timestamp: created.timestamp,
                metadata: None,
            },
            history: vec![created.message],
            artifacts: Vec::new(),
            metadata: BTreeMap::new(),
            changed: record.time,
            last_record: record.time,
            updated: record.time,
            waited: None,
            position: record.position,
            events: VecDeque::new(),
            has_forgotten: false,
            origins: VecDeque::new(),
            rested_by: None,
            forgot_call_at: 0,
            bytes: 0,
        }
    }

    /// Its approximate size in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many complete parts of the answer to a call the task has.
    pub(crate) fn parts_of(&self, call: &str) -> usize {
        let parts = |origin: &Origin| origin.part - u32::from(!origin.ends && origin.part > 0);
        self.origin_of(call).map_or(0, parts) as usize
    }

    /// The state to return to if a new message is refused.
    pub(super) fn found(&self) -> State {
        self.waited.unwrap_or(self.status.state)
    }

    /// The state of the task before the unanswered messages, if it waited for them.
    pub(super) fn waited(&self) -> Option<State> {
        self.waited
    }

    /// The call that began last.
    pub(super) fn last_call(&self) -> Option<&Text> {
        self.origins.back().map(|origin| &origin.call)
    }

    /// Whether it has ended, or rests with an event of this call. With that of another one, the answer to this call may
    /// still be missing.
    pub(super) fn rests_for(&self, call: &str) -> bool {
        let state = self.status.state;
        let by = self.rested_by.as_deref();
        state.is_terminal() || (state.is_at_rest() && by == Some(call))
    }

    /// The calls whose answers have not ended, as far as the log shows.
    pub(super) fn unended_calls(&self) -> impl Iterator<Item = &Text> {
        let unended = self.origins.iter().filter(|origin| !origin.ends_answer);
        unended.map(|origin| &origin.call)
    }

    /// Whether the progress of a call that began at this time may have been forgotten, because there were too many. The
    /// first event of a call may arrive here after its answer.
    pub(super) fn may_have_forgotten(&self, call: &str, began: u64) -> bool {
        began <= self.forgot_call_at && self.origin_of(call).is_none()
    }

    fn origin_of(&self, call: &str) -> Option<&Origin> {
        self.origins
            .iter()
            .rev()
            .find(|origin| *origin.call == *call)
    }

    /// Whether the task already has the event with this origin.
    fn has(&self, from: &Origin) -> bool {
        self.origin_of(&from.call)
            .is_some_and(|origin| (origin.part, origin.event) >= (from.part, from.event))
    }

    /// Stores the origin of an event whose record was written at this time.
    fn note(&mut self, from: Option<Origin>, time: u64) {
        let Some(mut from) = from else { return };
        if self.status.state.is_at_rest() {
            from.ends_answer = true;
            self.rested_by.get_or_insert_with(|| from.call.clone());
        }
        let mut origins = self.origins.iter_mut();
        if let Some(known) = origins.find(|origin| origin.call == from.call) {
            *known = from;
            return;
        }
        if self.origins.len() == MAX_CALLS {
            let ended = self.origins.iter().position(|origin| origin.ends_answer);
            self.origins.remove(ended.unwrap_or(0));
            self.forgot_call_at = self.forgot_call_at.max(time);
        }
        self.origins.push_back(from);
    }

    fn take(&mut self, event: Event, record: &Record) -> Applied {
        match &event {
            Event::Created(_) | Event::Taken | Event::FromCall { .. } => {
                return Applied::Unchanged;
            }
            Event::Named { task } if self.agents_id.as_ref() == Some(task) => {
                return Applied::Unchanged;
            }
            Event::Named { task } => self.agents_id = Some(task.clone()),
            Event::Continued { message } => {
                let found = Some(self.found()).filter(|state| state.is_at_rest());
                let goes_on = Status {
                    state: State::Working,
                    message: None,
                    timestamp: clock::rfc3339(clock::since_1970(record.time)),
                    metadata: None,
                };
                self.changes(goes_on, record);
                self.waited = found;
                self.keep(message.clone());
            }
            Event::Said { message } => self.remember(message.clone()),
            Event::Status(status) => self.changes(status.clone(), record),
            Event::Artifact {
                artifact, append, ..
            } => {
                self.waited = None;
                self.put(artifact, *append);
            }
        }
        if event.is_shown() {
            self.events.push_back((record.position, Arc::new(event)));
            if self.events.len() > MAX_EVENTS {
                self.events.pop_front();
                self.has_forgotten = true;
            }
        }
        Applied::Changed
    }

    fn changes(&mut self, status: Status, record: &Record) {
        self.metadata.extend(members_of(status.metadata.as_deref()));
        let before = std::mem::replace(&mut self.status, status);
        (self.waited, self.rested_by) = (None, None);
        self.changed = record.time;
        if let Some(message) = before.message {
            self.remember(message);
        }
        if self.status.state.is_at_rest() {
            for origin in &mut self.origins {
                origin.ends_answer = true;
            }
        }
    }

    /// Adds an agent's message to the history, unless it is there already: agents repeat their messages.
    fn remember(&mut self, message: Message) {
        if !self.knows(&message) {
            self.keep(message);
        }
    }

    fn knows(&self, message: &Message) -> bool {
        self.history.iter().any(|known| known.id == message.id)
    }

    /// Adds a message to the history, even with a known id: clients reuse ids. At the limit, removes the oldest one.
    fn keep(&mut self, message: Message) {
        if self.history.len() == MAX_MESSAGES {
            let removed = serde_json::to_vec(&self.history.remove(0));
            // As it was counted, see `apply`.
            let bytes = removed.map_or(0, |removed| 2 * removed.len());
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        self.history.push(message);
    }

    fn put(&mut self, artifact: &Artifact, append: bool) {
        let mut known = self.artifacts.iter_mut();
        match known.find(|known| known.id == artifact.id) {
            Some(known) if append => known.parts.extend(artifact.parts.iter().cloned()),
            Some(known) => *known = artifact.clone(),
            None => self.artifacts.push(artifact.clone()),
        }
    }

    /// Whether it contains this metadata already.
    pub(super) fn has_metadata(&self, metadata: Option<&RawValue>) -> bool {
        let mut members = members_of(metadata).into_iter();
        members.all(|(name, value)| {
            let known = self.metadata.get(&name);
            known.is_some_and(|known| known.get() == value.get())
        })
    }

    /// The task for the sender of a message that was refused, or not answered: the reason is the message of its status,
    /// and not of its history.
    pub(super) fn refused(mut self, why: Message) -> Self {
        self.history.retain(|known| known.id != why.id);
        if let Some(before) = self.status.message.replace(why) {
            self.remember(before);
        }
        self
    }

    /// The message for a caller that expects a single answer: the last message, or the content of the artifacts.
    pub(crate) fn answer(&self) -> Message {
        self.status.message.clone().unwrap_or_else(|| {
            let parts = self.artifacts.iter().flat_map(|artifact| &artifact.parts);
            let parts: Vec<Part> = parts.cloned().collect();
            Message::of_agent(parts)
        })
    }
}

/// The members of a JSON object.
fn members_of(object: Option<&RawValue>) -> BTreeMap<String, Raw> {
    let members = object.and_then(|object| serde_json::from_str(object.get()).ok());
    members.unwrap_or_default()
}

#[cfg(test)]
mod tests;
