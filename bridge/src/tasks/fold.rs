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
    /// The state to return to if the agent refuses all messages that it has. Its first status, artifact or progress clears
    /// it.
    waited: Option<State>,
    /// The last record.
    pub(crate) position: Position,
    /// The latest events, for subscribers that reconnect.
    pub(crate) events: VecDeque<(Position, Arc<Event>)>,
    /// Whether earlier events have been removed.
    pub(crate) has_forgotten: bool,
    /// The origin of the last event of each call, in the order in which the calls began. Several may work on a task. Once
    /// the task waits for its client, all of them count as ended, until one has another event.
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
mod tests {
    use super::*;
    use crate::tasks::model::{Content, Role};
    use proptest::prelude::*;

    fn message(id: &str) -> Message {
        let mut message = Message::of_agent(vec![Part::of(Content::Text(id.to_owned()))]);
        message.id = id.into();
        message.role = Role::User;
        message
    }

    fn status(state: State) -> Event {
        Event::Status(Status {
            state,
            message: Some(message(&format!("{state:?}"))),
            timestamp: "2026-02-02T02:40:00.000Z".into(),
            metadata: None,
        })
    }

    fn created() -> Event {
        Event::Created(Created {
            agent: "weather".into(),
            context: "c".into(),
            is_1_0: false,
            message: message("first"),
            timestamp: "2026-02-02T02:40:00.000Z".into(),
        })
    }

    /// Another version of the bridge reads the same log.
    #[test]
    fn the_names_of_the_events_in_the_log_stay() {
        let origin = Origin {
            call: "call".into(),
            part: 1,
            event: 1,
            ends: true,
            ends_answer: false,
        };
        let events = [
            ("created", created()),
            (
                "continued",
                Event::Continued {
                    message: message("m"),
                },
            ),
            ("named", Event::Named { task: "t".into() }),
            (
                "said",
                Event::Said {
                    message: message("m"),
                },
            ),
            ("status", status(State::Working)),
            ("artifact", chunk("a", "text", true)),
            (
                "from_call",
                Event::FromCall {
                    origin,
                    event: Box::new(Event::Taken),
                },
            ),
        ];
        for (name, event) in events {
            let event = serde_json::to_value(event).unwrap();
            assert_eq!(
                event.as_object().unwrap().keys().collect::<Vec<_>>(),
                [name]
            );
        }
        assert_eq!(serde_json::to_value(Event::Taken).unwrap(), "taken");
    }

    fn chunk(id: &str, text: &str, append: bool) -> Event {
        Event::Artifact {
            artifact: Artifact {
                id: id.into(),
                name: None,
                description: None,
                parts: vec![Part::of(Content::Text(text.to_owned()))],
                metadata: None,
                extensions: Vec::new(),
            },
            append,
            last: false,
            metadata: None,
        }
    }

    /// The task that these events make, and what each of them did.
    fn fold(events: &[Event]) -> (Option<Task>, Vec<Applied>) {
        let mut entry = None;
        let applied = events.iter().enumerate().map(|(index, event)| {
            let offset = index as u64;
            let record = Record {
                key: "t".into(),
                position: Position {
                    partition: 0,
                    offset,
                },
                time: 1_000 + offset,
                body: Some(body::write(event)),
            };
            TaskFold.apply(&mut entry, &record)
        });
        let applied = applied.collect();
        (entry, applied)
    }

    #[test]
    fn a_task_begins_once_and_nothing_leaves_the_end() {
        use Applied::{Changed, Unchanged};
        let events = [
            status(State::Working),
            created(),
            created(),
            status(State::Completed),
            status(State::Canceled),
            chunk("a", "late", false),
        ];
        let (task, applied) = fold(&events);
        assert_eq!(
            applied,
            [Unchanged, Changed, Unchanged, Changed, Unchanged, Unchanged]
        );
        let task = task.unwrap();
        assert_eq!(task.status.state, State::Completed);
        assert!(task.artifacts.is_empty());
        assert_eq!(task.position.offset, 3);
    }

    #[test]
    fn a_task_returns_to_its_state_until_the_agent_reports_something() {
        let continued = || Event::Continued {
            message: message("m"),
        };
        let taken = Event::Taken.from(Origin {
            call: "call".into(),
            part: 1,
            event: 1,
            ends: false,
            ends_answer: false,
        });
        let refused = Event::Said {
            message: message("no"),
        };
        for (then, found) in [
            (refused, State::InputRequired),
            (continued(), State::InputRequired),
            (taken, State::Working),
            (chunk("a", "text", true), State::Working),
            (status(State::Working), State::Working),
        ] {
            let name = format!("{then:?}");
            let asks = status(State::InputRequired);
            let (task, _) = fold(&[created(), asks, continued(), then]);
            assert_eq!(task.unwrap().found(), found, "{name}");
        }
    }

    #[test]
    fn pieces_of_an_artifact_are_joined_and_a_whole_one_replaces_them() {
        let text = |task: &Task| -> Vec<String> {
            let parts = task.artifacts.iter().flat_map(|artifact| &artifact.parts);
            parts.map(|part| format!("{:?}", part.content)).collect()
        };
        let events = [created(), chunk("a", "1", true), chunk("a", "2", true)];
        let (task, _) = fold(&events);
        assert_eq!(text(&task.unwrap()).len(), 2);
        let events = [created(), chunk("a", "1", true), chunk("a", "2", false)];
        let (task, _) = fold(&events);
        assert_eq!(text(&task.unwrap()), [r#"Text("2")"#]);
    }

    #[test]
    fn a_repeated_message_id_of_a_client_is_accepted_and_one_of_an_agent_is_ignored() {
        let again = || Event::Continued {
            message: message("first"),
        };
        let message_event = || Event::Said {
            message: message("said"),
        };
        let (task, _) = fold(&[
            created(),
            again(),
            message_event(),
            message_event(),
            again(),
        ]);
        let ids: Vec<_> = task
            .unwrap()
            .history
            .into_iter()
            .map(|one| one.id)
            .collect();
        assert_eq!(ids, ["first", "first", "said", "first"]);
    }

    #[test]
    fn a_message_that_the_task_has_changes_nothing() {
        use Applied::{Changed, Unchanged};
        let said = || Event::Said {
            message: message("said"),
        };
        let (task, applied) = fold(&[created(), said(), said()]);
        assert_eq!(applied, [Changed, Changed, Unchanged]);
        assert_eq!(task.unwrap().position.offset, 1);
    }

    #[test]
    fn a_task_keeps_its_last_messages() {
        let said = (1..=MAX_MESSAGES + 2).map(|number| Event::Said {
            message: message(&number.to_string()),
        });
        let events: Vec<Event> = std::iter::once(created()).chain(said).collect();
        let (task, _) = fold(&events);
        let history = task.unwrap().history;
        let ends = history.first().zip(history.last());
        let (first, last) = ends.map(|(first, last)| (&first.id, &last.id)).unwrap();
        assert_eq!(history.len(), MAX_MESSAGES);
        assert_eq!((first.as_str(), last.as_str()), ("3", "1002"));
    }

    #[test]
    fn a_task_is_updated_by_every_event_that_changes_it() {
        let (artifact, ended) = (chunk("a", "1", true), status(State::Completed));
        let (task, _) = fold(&[created(), artifact.clone()]);
        let task = task.unwrap();
        assert_eq!((task.changed, task.updated), (1_000, 1_001));
        let (task, _) = fold(&[created(), ended, artifact]);
        assert_eq!(task.unwrap().updated, 1_001, "the last one came too late");
    }

    #[test]
    fn a_part_without_new_events_is_taken_and_a_part_with_missing_events_is_not() {
        let origin = |part, event, ends| Origin {
            call: "call".into(),
            part,
            event,
            ends,
            ends_answer: false,
        };
        let named = Event::Named { task: "t-1".into() };
        let (task, applied) = fold(&[
            created(),
            named.from(origin(1, 1, true)),
            Event::Taken.from(origin(2, 0, true)),
        ]);
        let task = task.unwrap();
        assert_eq!(applied.last(), Some(&Applied::Unchanged));
        assert!(task.events.is_empty());
        assert_eq!(task.parts_of("call"), 2);
        let working = Event::Status(Status::now(State::Working, None));
        let (task, _) = fold(&[created(), working.from(origin(3, 1, false))]);
        assert_eq!(task.unwrap().parts_of("call"), 2);
    }

    #[test]
    fn calls_for_the_same_task_are_distinguished() {
        let from = |call: &str, part| Origin {
            call: call.into(),
            part,
            event: 1,
            ends: true,
            ends_answer: false,
        };
        let named = |task: &str| Event::Named { task: task.into() };
        let (task, applied) = fold(&[
            created(),
            named("t-1").from(from("first", 1)),
            named("t-2").from(from("second", 1)),
            named("t-3").from(from("first", 1)),
            named("t-4").from(from("first", 2)),
        ]);
        let task = task.unwrap();
        assert_eq!(applied[3], Applied::Unchanged);
        assert_eq!((task.parts_of("first"), task.parts_of("second")), (2, 1));
        assert_eq!(task.agents_id.as_deref(), Some("t-4"));
    }

    #[test]
    fn a_call_works_on_its_task_until_its_answer_ends_or_the_task_waits() {
        let from = |call: &str, part, ends_answer| Origin {
            call: call.into(),
            part,
            event: 1,
            ends: true,
            ends_answer,
        };
        let begin = |call: &str| {
            let message = message("m");
            Event::Continued { message }.from(from(call, 0, false))
        };
        let working = |from| status(State::Working).from(from);
        let waits = |from| status(State::InputRequired).from(from);
        let check = |events: &[Event], expected: &[&str]| {
            let (task, _) = fold(&[&[created()], events].concat());
            let task = task.unwrap();
            let calls: Vec<&str> = task.unended_calls().map(Text::as_str).collect();
            assert_eq!(calls, expected, "{events:?}");
        };
        let two = [begin("a"), begin("b")];
        let then = |event: Event| [&two[..], &[event]].concat();
        check(&two, &["a", "b"]);
        check(&then(working(from("a", 1, false))), &["a", "b"]);
        check(&then(working(from("a", 1, true))), &["b"]);
        let taken = Event::Taken.from(from("b", 1, true));
        check(&then(taken), &["a"]);
        let waiting = then(waits(from("a", 1, false)));
        check(&waiting, &[]);
        let next = |event: Event| [&waiting[..], &[event]].concat();
        check(&next(begin("c")), &["c"]);
        check(&next(working(from("b", 1, false))), &["b"]);
    }

    /// An earlier version of the bridge has written it.
    #[test]
    fn an_origin_without_the_end_of_the_answer_is_read() {
        let old = r#"{"call":"a","part":1,"event":1,"ends":true}"#;
        let origin: Origin = serde_json::from_str(old).unwrap();
        assert!(!origin.ends_answer);
        assert_eq!(serde_json::to_string(&origin).unwrap(), old);
    }

    #[test]
    fn a_call_that_works_is_remembered_longer_than_calls_that_have_ended() {
        let from = |call: String, ends_answer| Origin {
            call: call.into(),
            part: 1,
            event: 1,
            ends: true,
            ends_answer,
        };
        let works = status(State::Working).from(from("works".to_owned(), false));
        let others = (0..2 * MAX_CALLS).map(|number| {
            let said = Event::Said {
                message: message(&number.to_string()),
            };
            said.from(from(format!("call {number}"), true))
        });
        let events: Vec<Event> = [created(), works].into_iter().chain(others).collect();
        let (task, _) = fold(&events);
        let task = task.unwrap();
        assert_eq!(task.parts_of("works"), 1);
        let forgot = task.last_record;
        assert!(!task.may_have_forgotten("works", forgot));
        assert!(task.may_have_forgotten("call 0", forgot));
        assert!(!task.may_have_forgotten("a new one", forgot + 1));
        let last = format!("call {}", 2 * MAX_CALLS - 1);
        assert_eq!(task.last_call(), Some(&Text::from(last)));
    }

    /// Its replica may have waited for the log for a long time.
    #[test]
    fn a_failure_that_another_replica_has_overtaken_changes_nothing() {
        let part = |part| Origin {
            call: "call".into(),
            part,
            event: 1,
            ends: true,
            ends_answer: false,
        };
        let failed = || status(State::Failed).from(part(2).next());
        let working = |number| status(State::Working).from(part(number));
        let (task, applied) = fold(&[created(), working(2), working(3), failed()]);
        assert_eq!(applied.last(), Some(&Applied::Unchanged));
        assert_eq!(task.unwrap().status.state, State::Working);
        let (task, _) = fold(&[created(), working(2), failed(), working(3)]);
        assert_eq!(task.unwrap().status.state, State::Failed);
    }

    #[test]
    fn unknown_events_are_counted_and_change_nothing() {
        let record = |body: &'static str| Record {
            key: "t".into(),
            position: Position {
                partition: 0,
                offset: 0,
            },
            time: 0,
            body: Some(Bytes::from_static(body.as_bytes())),
        };
        let mut entry = None;
        for body in [
            "",
            "{",
            r#"{"v":2,"event":{"named":{"task":"x"}}}"#,
            r#"{"v":1,"event":{"odd":{}}}"#,
        ] {
            assert_eq!(TaskFold.apply(&mut entry, &record(body)), Applied::Unknown);
            assert!(entry.is_none());
        }
    }

    proptest! {
        #[test]
        fn every_order_of_events_makes_a_task_that_keeps_the_rules(
            picks in prop::collection::vec(0_usize..7, 0..40),
        ) {
            let all = [
                created(),
                status(State::Working),
                status(State::InputRequired),
                status(State::Failed),
                chunk("a", "x", true),
                Event::Continued { message: message("next") },
                Event::Named { task: "own".into() },
            ];
            let events: Vec<Event> = picks.iter().filter_map(|pick| all.get(*pick).cloned()).collect();
            let (task, applied) = fold(&events);
            let (again, _) = fold(&events);
            // The same records make the same task.
            prop_assert_eq!(format!("{task:?}"), format!("{again:?}"));
            let begun = picks.iter().position(|pick| *pick == 0);
            prop_assert_eq!(task.is_some(), begun.is_some());
            if let Some(task) = task {
                let after = begun.and_then(|begun| applied.get(begun + 1..)).unwrap_or_default();
                let shown = after.iter().zip(picks.iter().skip(begun.unwrap_or_default() + 1));
                let shown = shown.filter(|(applied, pick)| {
                    **applied == Applied::Changed && matches!(**pick, 1..=4)
                });
                prop_assert_eq!(task.events.len(), shown.count());
                let positions: Vec<_> = task.events.iter().map(|(position, _)| *position).collect();
                prop_assert!(positions.is_sorted());
            }
        }
    }
}
