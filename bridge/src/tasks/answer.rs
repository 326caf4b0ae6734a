//! What the parts of an agent's answer mean for a task.

use a2abus_models::e2a::{DELTA_TEXT, EVENT_CHAT_FINAL, KIND_CHUNK};
use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::fold::{Event, MAX_MESSAGES, Task};
use super::model::{Artifact, Content, Message, Part, Raw, State, Status};
use super::read::{self, AnswerPart, ReportedTask};
use crate::calls;
use crate::object::{self, Object, present};

/// A part of an agent's answer, as JSON-RPC.
#[derive(Debug)]
pub(crate) enum AgentAnswer {
    /// A result.
    Result(AnswerPart),
    /// The agent's error, as the whole response.
    Error(calls::Part),
}

/// An error of an agent.
pub(super) struct AgentError {
    whole: Option<Raw>,
    text: Option<String>,
    pub(super) code: Option<i64>,
}

/// The largest error of an agent that the record of its task contains.
const MAX_ERROR: usize = 64 << 10;
/// The id of the artifact with the parts of an answer that is not A2A.
pub(super) const RESULT: Text = Text::from_static("result");

/// The events in a part of an answer that is not A2A. Each part is added to one artifact. `is_new` tells whether the
/// agent has reported nothing yet, `append` whether the task has the artifact. A last part that is `{}` only ends the
/// parts before it.
pub(super) fn plain_events(
    json: Raw,
    last: bool,
    (is_new, append): (bool, bool),
) -> Vec<(u32, Event)> {
    let begins = is_new && !last;
    let working = begins.then(|| (1, Event::Status(Status::now(State::Working, None))));
    let adds = !(last && append && is_empty_object(&json));
    let added = adds.then(|| {
        let artifact = Artifact {
            id: RESULT,
            name: None,
            description: None,
            parts: vec![plain_part(json)],
            metadata: None,
            extensions: Vec::new(),
        };
        let event = Event::Artifact {
            artifact,
            append,
            last,
            metadata: None,
        };
        (2, event)
    });
    let end = last.then(|| (3, Event::Status(Status::now(State::Completed, None))));
    working.into_iter().chain(added).chain(end).collect()
}

fn is_empty_object(json: &RawValue) -> bool {
    let inside = json.get().strip_prefix('{');
    let inside = inside.and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|members| members.trim_ascii().is_empty())
}

/// A result that is not A2A: a text, also one in a part of an E2A answer, as a text part, anything else as a data part.
pub(crate) fn plain_part(json: Raw) -> Part {
    let text = serde_json::from_str(json.get()).ok();
    match text.or_else(|| text_of_chunk(&json)) {
        Some(text) => Part::of(Content::Text(text)),
        None => Part::of(Content::Data(json)),
    }
}

/// The text for the user in a part of an E2A answer. A part that repeats the whole answer has none, so that no client
/// shows the text twice. Source: docs/protocols/e2a.md §10.4.
fn text_of_chunk(json: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Chunk {
        response_kind: Text,
        body: Object<Delta>,
    }
    #[derive(Deserialize)]
    struct Delta {
        delta_kind: Text,
        delta: String,
        event_type: Option<Text>,
    }
    let chunk: Chunk = object::from_slice(json.get().as_bytes()).ok()?;
    let Object(body) = chunk.body;
    let repeats = body.event_type.as_deref() == Some(EVENT_CHAT_FINAL);
    let is_text = chunk.response_kind == KIND_CHUNK && body.delta_kind == DELTA_TEXT && !repeats;
    is_text.then_some(body.delta)
}

/// The differences between a task as its agent reports it and the stored task, each with its number in the report.
pub(super) fn differences(reported: ReportedTask, task: &Task) -> Vec<(u32, Event)> {
    let named = reported.id.map(|task| Event::Named { task });
    // Earlier messages are no longer stored. They would come in again, after the later ones.
    let is_stored = |message: &Message| task.history.iter().any(|known| known.id == message.id);
    let first_stored = reported.history.iter().position(is_stored);
    let is_full = task.history.len() == MAX_MESSAGES;
    let forgotten = first_stored.filter(|_| is_full).unwrap_or(0);
    let left_out = reported.history.len().saturating_sub(MAX_MESSAGES);
    let left_out = left_out.max(forgotten);
    let messages = reported.history.into_iter().enumerate();
    let messages =
        messages.map(|(index, message)| (index >= left_out).then_some(Event::Said { message }));
    let artifacts = reported.artifacts.into_iter();
    // The agent may add to the artifacts of an unfinished task.
    let last = reported
        .status
        .as_ref()
        .is_none_or(|status| status.state.is_at_rest());
    let artifacts = artifacts.map(|artifact| Event::Artifact {
        artifact,
        append: false,
        last,
        metadata: None,
    });
    let status = reported.status.map(Event::Status);
    let events = named
        .into_iter()
        .map(Some)
        .chain(messages)
        .chain(artifacts.map(Some))
        .chain(status.map(Some));
    // JSON within an artifact can be compared only as text.
    let text = |artifact: &Artifact| serde_json::to_string(artifact).ok();
    let is_known = |event: &Event| match event {
        Event::Artifact { artifact, .. } => {
            let mut known = task.artifacts.iter();
            let known = known.find(|known| known.id == artifact.id);
            known.is_some_and(|known| text(known) == text(artifact))
        }
        Event::Status(status) => {
            let shown = task.status.message.as_ref().map(|message| &message.id);
            let is_shown = |message: &Message| shown == Some(&message.id);
            status.state == task.status.state
                && status.message.as_ref().is_none_or(is_shown)
                && task.has_metadata(status.metadata.as_deref())
        }
        Event::Named { task: named } => task.agents_id.as_ref() == Some(named),
        Event::Said { message } => is_stored(message),
        _ => false,
    };
    (1..)
        .zip(events)
        .filter_map(|(number, event)| Some((number, event.filter(|event| !is_known(event))?)))
        .collect()
}

/// The message of a task that has failed, with the reason.
pub(super) fn failure_message(why: &str) -> Message {
    Message::of_agent(vec![Part::of(Content::Text(why.to_owned()))])
}

// === impl AgentError ===

impl AgentError {
    pub(super) fn of(part: &calls::Part) -> Self {
        #[derive(Deserialize)]
        struct Response {
            error: Raw,
        }
        #[derive(Deserialize)]
        struct Error {
            code: Option<i64>,
            message: Option<String>,
        }
        let whole = serde_json::from_slice::<Response>(&part.body);
        let whole = whole.ok().map(|response| response.error);
        let read = whole.as_ref();
        let read = read.and_then(|error| serde_json::from_str::<Error>(error.get()).ok());
        let (text, code) = read.map_or((None, None), |error| (error.message, error.code));
        Self { whole, text, code }
    }

    /// The message of its task. Its metadata contains the whole error, unless it is large.
    pub(super) fn message(self) -> Message {
        let text = self.text.as_deref();
        let text = text.filter(|text| text.len() <= MAX_ERROR);
        let mut message = failure_message(text.unwrap_or("the agent answered with an error"));
        let kept = self.whole.filter(|error| error.get().len() <= MAX_ERROR);
        message.metadata = kept.and_then(|error| to_raw_value(&json!({ "error": error })).ok());
        message
    }
}

// === impl AgentAnswer ===

impl AgentAnswer {
    /// Reads a part; `None` if it is not a response.
    pub(crate) fn of(part: calls::Part) -> Option<Self> {
        #[derive(Deserialize)]
        struct Response<'a> {
            // `null` is a result.
            #[serde(borrow, default, deserialize_with = "present")]
            result: Option<&'a RawValue>,
            #[serde(borrow, default)]
            error: Option<&'a RawValue>,
        }
        let response: Response<'_> = serde_json::from_slice(&part.body).ok()?;
        if response.error.is_some() {
            return Some(Self::Error(part));
        }
        Some(Self::Result(read::result(response.result?)))
    }
}
