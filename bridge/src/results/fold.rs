//! Stored answers as a pure function of their records.
//!
//! The first claim of a key and its first answer win. A released claim leaves no trace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::resources::Subscription;
use crate::calls::{Part, TAKEOVER};
use crate::clock;
use crate::state::body;
use crate::state::{Applied, Fold, Groups, Position, Record};

/// An event of a key or a call. The body of a record is `{"v":1,"event":…}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A replica has claimed this key for a request.
    Claimed(Claim),
    /// The replica that claimed this key is still working on its request.
    Renewed {
        /// The call of the claim.
        call: Text,
    },
    /// It was answered.
    Answered {
        /// The call of the claim.
        call: Text,
        /// The answer.
        response: StoredResponse,
    },
    /// It was answered, but the answer cannot be stored.
    Unkept {
        /// The call of the claim.
        call: Text,
    },
    /// No agent can have received the request, so another request may claim the key.
    Released {
        /// The call of the claim.
        call: Text,
    },
    /// A call was made, and other replicas follow its answer.
    Opened(Box<OpenedCall>),
    /// A part of the answer to the call. Its own replica may have missed it.
    Part {
        /// The index of the part, from 0.
        index: usize,
        #[serde(flatten)]
        part: RecordedPart,
    },
    /// An MCP session has ended, or its client has cancelled a request.
    Over,
    /// The answer of an MCP client to the question of an agent, for the replica that has asked it.
    ClientAnswer {
        /// The hash of the reply token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Text>,
        /// The log key of the client's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<Text>,
        /// The JSON-RPC response, with the agent's own id.
        body: Text,
    },
    /// A message for an attached agent, which another bridge with the same server has received.
    ForAgent {
        agent: Text,
        /// The JSON-RPC message: an answer of a client, or a cancel.
        body: Text,
    },
    /// An MCP client has subscribed to a resource.
    Subscribed(Subscription),
    /// It has ended the subscription.
    Unsubscribed(Subscription),
    /// A resource of an agent has changed.
    Updated {
        agent: Text,
        /// The agent's own URI.
        uri: Text,
    },
}

/// A part of an answer, as its caller receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedPart {
    /// Whether it is the last one.
    pub(crate) last: bool,
    pub(crate) body: Text,
    #[serde(default, skip_serializing_if = "Author::is_agent")]
    pub(crate) by: Author,
}

/// The prefix of the log keys of calls whose client has been asked a question and has no session.
pub(crate) const ROUND: &str = "mcp-round-";

/// Who wrote a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Author {
    #[default]
    Agent,
    /// The bridge: the error of a call that the agent did not answer.
    Bridge,
}

/// What other replicas need to receive the answer to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenedCall {
    /// The log key that its request has claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<Text>,
    /// The task that it creates or continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<Text>,
    /// The hash of its reply token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Text>,
    /// The log key of the MCP session, if its client can resume the stream, or of the call ([`ROUND`]), if its client
    /// has been asked a question and has no session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<Text>,
    /// The skill that it calls for that client. The parts become progress and the result of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skill: Option<Skill>,
    /// The caller's own id, as JSON.
    pub(crate) id: Text,
    /// The caller's own progress token, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Text>,
    /// Whether the answer comes in parts.
    pub(crate) streamed: bool,
    /// The agent; empty if the request names none.
    pub(crate) agent: Text,
    /// The deadline of the answer, in milliseconds since 1970.
    pub(crate) until: u64,
    /// When the call began, just before it was published, in milliseconds since 1970.
    pub(crate) began: u64,
    /// How long the agent may send nothing, in milliseconds. Without it, only the deadline counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part_timeout: Option<u64>,
}

/// What the answer to a skill call depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skill {
    /// The context of its message.
    pub(crate) context: Text,
    /// The client's own progress token, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Text>,
}

/// The claim of a key by a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The hash of the path and the body of the request.
    pub(crate) digest: Text,
    /// The call id that its response names.
    pub(crate) call: Text,
    /// The deadline of its answer, in milliseconds since 1970. Its replica also renews it while it works on the
    /// request.
    pub(crate) until: u64,
}

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    /// Its status.
    pub(crate) status: u16,
    /// Its headers.
    pub(crate) headers: Vec<(Text, Text)>,
    /// Its body.
    pub(crate) body: Text,
}

/// A key that a request has claimed.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedKey {
    pub(crate) claim: Claim,
    /// The position of the claim's record.
    pub(crate) at: Position,
    pub(crate) outcome: Option<ClaimOutcome>,
    bytes: usize,
}

/// The outcome of a claimed request.
#[derive(Debug, Clone)]
pub(crate) enum ClaimOutcome {
    /// It has this answer.
    Answered(Arc<StoredResponse>),
    /// Its answer is not stored.
    Unkept,
}

/// A call whose answer other replicas follow.
#[derive(Debug, Clone)]
pub(crate) struct FollowedCall {
    pub(crate) opened: Arc<OpenedCall>,
    /// The position of the call's record.
    pub(crate) at: Position,
    /// The recorded parts, by index. The first ones may be missing: the task has them, or a replica has not recorded
    /// them yet.
    parts: BTreeMap<usize, RecordedPart>,
    bytes: usize,
}

/// The entry of one key of the log.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A key of a request.
    Key(ClaimedKey),
    /// A call.
    Call(FollowedCall),
    /// A session or a request of an MCP client that has ended.
    Over,
    /// The subscription of an MCP client to a resource.
    Subscribed(Subscription),
    /// A message that was passed on, or a change of a resource. Only followers need it.
    Passed,
}

/// Folds records into claims and calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultFold;

// === impl ResultFold ===

impl Fold for ResultFold {
    type Entry = Entry;

    fn apply(&self, entry: &mut Option<Entry>, record: &Record) -> Applied {
        let Some(event) = body::read(record) else {
            return Applied::Unknown;
        };
        let bytes = record.body.as_ref().map_or(0, Bytes::len);
        match (&mut *entry, event) {
            (None, Event::Claimed(claim)) => {
                *entry = Some(Entry::Key(ClaimedKey::new(claim, record.position, bytes)));
            }
            (None, Event::Opened(opened)) => {
                *entry = Some(Entry::Call(FollowedCall::new(
                    *opened,
                    record.position,
                    bytes,
                )))
            }
            // A client may reuse an id and cancel it again.
            (None | Some(Entry::Over), Event::Over) => *entry = Some(Entry::Over),
            (None | Some(Entry::Passed), Event::ClientAnswer { .. }) => {
                *entry = Some(Entry::Passed);
            }
            // Each of them has a key of its own. A second record of it is a copy.
            (None, Event::Updated { .. } | Event::ForAgent { .. }) => *entry = Some(Entry::Passed),
            (None | Some(Entry::Subscribed(_)), Event::Subscribed(subscription)) => {
                *entry = Some(Entry::Subscribed(subscription));
            }
            (Some(Entry::Subscribed(_)), Event::Unsubscribed(_)) => *entry = None,
            (Some(Entry::Key(claimed)), Event::Released { call }) if claimed.is_open(&call) => {
                *entry = None;
            }
            (Some(Entry::Key(claimed)), Event::Renewed { call }) if claimed.is_open(&call) => {}
            (Some(Entry::Key(claimed)), event) => return claimed.end(event, bytes),
            (Some(Entry::Call(followed)), event) => return followed.take(event, bytes),
            (None | Some(Entry::Over | Entry::Passed | Entry::Subscribed(_)), _) => {
                return Applied::Unchanged;
            }
        }
        Applied::Changed
    }

    fn size_bytes(&self, entry: &Entry) -> usize {
        let bytes = match entry {
            Entry::Key(claimed) => claimed.bytes,
            Entry::Call(followed) => followed.bytes,
            Entry::Subscribed(subscription) => subscription.size_bytes(),
            Entry::Over | Entry::Passed => 0,
        };
        size_of::<Entry>() + bytes
    }

    fn groups<'a>(&self, entry: &'a Entry) -> Groups<&'a str> {
        match entry.subscription() {
            Some(subscription) => [Some(&subscription.subscriber), Some(&subscription.agent)],
            None => Groups::default(),
        }
    }

    /// A call counts as ended, so that it can be removed when memory is short: its record is only needed if its replica
    /// stops. A call whose client has been asked a question needs its record until the end.
    fn has_ended(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Key(claimed) => claimed.outcome.is_some(),
            Entry::Subscribed(_) => false,
            Entry::Call(followed) => !followed.opened.has_rounds() || followed.is_whole(),
            Entry::Over | Entry::Passed => true,
        }
    }

    /// The keys of requests and of ended sessions are kept. Those of calls and messages are used only once.
    fn forgets_key(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Key(_) | Entry::Subscribed(_) | Entry::Over => false,
            Entry::Call(_) | Entry::Passed => true,
        }
    }

    /// An agent may report any number of changes. They must not displace answers.
    fn is_passing(&self, entry: &Entry) -> bool {
        matches!(entry, Entry::Passed)
    }
}

// === impl Entry ===

impl Entry {
    /// The entry as a call, if it is one.
    pub(crate) fn call(&self) -> Option<&FollowedCall> {
        match self {
            Self::Call(followed) => Some(followed),
            Self::Key(_) | Self::Subscribed(_) | Self::Over | Self::Passed => None,
        }
    }

    /// The entry as a subscription, if it is one.
    pub(crate) fn subscription(&self) -> Option<&Subscription> {
        match self {
            Self::Subscribed(subscription) => Some(subscription),
            Self::Key(_) | Self::Call(_) | Self::Over | Self::Passed => None,
        }
    }
}

// === impl RecordedPart, Author ===

impl RecordedPart {
    pub(crate) fn new(body: &Bytes, last: bool, by: Author) -> Self {
        let body = String::from_utf8_lossy(body).into_owned().into();
        Self { last, body, by }
    }
}

impl From<RecordedPart> for Part {
    fn from(RecordedPart { body, last, by: _ }: RecordedPart) -> Self {
        Self::new(Bytes::copy_from_slice(body.as_bytes()), last)
    }
}

impl Author {
    /// Takes a reference because serde requires it.
    #[expect(clippy::trivially_copy_pass_by_ref)]
    fn is_agent(&self) -> bool {
        *self == Self::Agent
    }
}

// === impl OpenedCall, FollowedCall ===

impl OpenedCall {
    /// Whether its client reads the rest of the answer from the log, after a question of the agent.
    fn has_rounds(&self) -> bool {
        let session = self.session.as_deref();
        session.is_some_and(|session| session.starts_with(ROUND))
    }

    /// Whether the answer is a single message. An answer of A2A may have several, even without a stream.
    pub(crate) fn has_one_part(&self) -> bool {
        let may_have_parts = self.streamed || self.progress.is_some();
        !may_have_parts && self.session.is_none() && self.task.is_none()
    }

    /// Whether clients get the parts by number: as a stream, or after they reconnect.
    pub(crate) fn has_numbered_parts(&self) -> bool {
        self.streamed || self.session.is_some()
    }

    /// The time left until the deadline.
    pub(crate) fn time_left(&self) -> Duration {
        let now = clock::milliseconds(clock::now());
        Duration::from_millis(self.until.saturating_sub(now))
    }

    /// The deadline of the call, if the agent sends nothing after `last`: in milliseconds since 1970.
    pub(crate) fn deadline_after(&self, last: u64) -> u64 {
        let takeover = clock::whole_milliseconds(TAKEOVER);
        let silent = |timeout| last.saturating_add(timeout).saturating_add(takeover);
        let silent = self.part_timeout.map(silent);
        silent.map_or(self.until, |silent| silent.min(self.until))
    }

    /// How long to wait for the next recorded part: if neither it nor a failure comes, the replica of the call has
    /// stopped, and the agent is silent.
    pub(crate) fn wait_for_part(&self) -> Duration {
        let left = self.time_left();
        let timeout = self.part_timeout.map(Duration::from_millis);
        timeout.map_or(left, |timeout| timeout.min(left)) + TAKEOVER
    }
}

impl FollowedCall {
    fn new(opened: OpenedCall, at: Position, bytes: usize) -> Self {
        Self {
            opened: Arc::new(opened),
            at,
            parts: BTreeMap::new(),
            bytes,
        }
    }

    /// The parts from index `first` up to the first gap.
    pub(crate) fn parts_from(&self, first: usize) -> Vec<RecordedPart> {
        let numbered = self.parts.range(first..).zip(first..);
        let next = numbered.take_while(|((number, _), expected)| **number == *expected);
        next.map(|((_, part), _)| part.clone()).collect()
    }

    /// Whether so many parts can have been sent: the last of them is recorded.
    pub(crate) fn has(&self, count: usize) -> bool {
        let last = count.checked_sub(1);
        last.is_none_or(|last| self.parts.contains_key(&last))
    }

    /// Whether the last part is recorded, and precedes index `next`.
    pub(crate) fn ends_before(&self, next: usize) -> bool {
        let last = self.parts.last_key_value();
        last.is_some_and(|(number, part)| part.last && *number < next)
    }

    /// Whether any part of its answer is recorded.
    pub(crate) fn is_recorded_elsewhere(&self) -> bool {
        !self.parts.is_empty()
    }

    /// How many consecutive parts are recorded from the first; `usize::MAX` once the last part is among them.
    pub(crate) fn count(&self) -> usize {
        let numbered = self.parts.keys().zip(0..);
        let in_order = numbered.take_while(|(number, expected)| *number == expected);
        if self.is_whole() {
            usize::MAX
        } else {
            in_order.count()
        }
    }

    /// Whether the last part is recorded.
    fn is_whole(&self) -> bool {
        self.parts.values().any(|part| part.last)
    }

    /// Whether a part is new: not recorded yet, and not after the last part.
    fn is_new(&self, index: usize) -> bool {
        let last = self.parts.last_key_value();
        let is_after_last = last.is_some_and(|(number, part)| part.last && index > *number);
        !is_after_last && !self.parts.contains_key(&index)
    }

    /// Adds a part. Several replicas may record the same part, and each may start with a different one.
    fn take(&mut self, event: Event, bytes: usize) -> Applied {
        match event {
            Event::Part { index, part } if self.is_new(index) => {
                self.parts.insert(index, part);
                self.bytes += bytes;
                Applied::Changed
            }
            _ => Applied::Unchanged,
        }
    }
}

// === impl ClaimedKey ===

impl ClaimedKey {
    fn new(claim: Claim, at: Position, bytes: usize) -> Self {
        Self {
            claim,
            at,
            outcome: None,
            bytes,
        }
    }

    fn end(&mut self, event: Event, bytes: usize) -> Applied {
        let outcome = match event {
            // Also if another replica has taken it for lost.
            Event::Answered { call, response }
                if *self.claim.call == *call && !self.is_answered() =>
            {
                ClaimOutcome::Answered(Arc::new(response))
            }
            Event::Unkept { call } if self.is_open(&call) => ClaimOutcome::Unkept,
            _ => return Applied::Unchanged,
        };
        self.outcome = Some(outcome);
        self.bytes += bytes;
        Applied::Changed
    }

    fn is_answered(&self) -> bool {
        matches!(self.outcome, Some(ClaimOutcome::Answered(_)))
    }

    /// Whether this call has claimed the key and not answered yet.
    pub(crate) fn is_open(&self, call: &str) -> bool {
        *self.claim.call == *call && self.outcome.is_none()
    }
}

#[cfg(test)]
impl OpenedCall {
    /// A streamed call for a task.
    pub(super) fn sample() -> Self {
        Self {
            key: None,
            task: Some("t".into()),
            session: None,
            skill: None,
            token: None,
            id: "1".into(),
            progress: None,
            streamed: true,
            agent: "weather".into(),
            until: 1,
            began: 0,
            part_timeout: None,
        }
    }
}

#[cfg(test)]
mod tests;
