//! The outcome of answers: delivered, late, forwarded or rejected.

use std::sync::Mutex;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::Topic;
use bytes::Bytes;
use tokio::time::Instant;
use tracing::Level;

use crate::bus::outbound::Outgoing;
use crate::calls::answer_unit::AnswerUnit;
use crate::calls::callid::{CallId, Replica, ReplyId, shown_topic};
use crate::calls::reply_token::Rejection;
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::ReplyOutcome;
use crate::recent::Recent;

/// How one unit of a message on a reply topic was handled.
#[derive(Debug)]
pub enum AnswerOutcome {
    /// It was delivered to its caller.
    Delivered,
    /// It answers a call of this replica that has ended: it is late, or a duplicate.
    Late(CallId),
    /// It answers the cancel of a call, which some replica has sent.
    OfCancel(CallId),
    /// It answers a call of this replica that goes on with what other replicas record of its answer, since this one
    /// lost the bus.
    Recorded(CallId),
    /// It comes from a record that was handed over before: its partition has moved, and was read again.
    Repeated(CallId),
    /// It answers a call of another replica that reads this address too, or it is an E2A push for a call of another
    /// replica, which is not forwarded.
    Foreign(CallId),
    /// It answers a call of another replica, which reads a different address: send it there, then settle.
    Forward(Box<Outgoing>),
    /// It is the request itself.
    Request(CallId),
    /// It is rejected: the call keeps waiting.
    Rejected(CallId, Rejection),
    /// It was already forwarded once, and still belongs to a replica that reads a different address.
    Looped(CallId),
    /// The call that it answers is unknown.
    Uncorrelated(Unanswerable),
}

/// A unit whose call is unknown.
#[derive(Debug)]
pub struct Unanswerable {
    /// The error code.
    pub code: &'static str,
    /// The problem and its fix.
    pub detail: String,
    /// Which unit of the message, and its bytes; `None` for the message as a whole.
    pub unit: Option<(usize, Bytes)>,
}

impl AnswerOutcome {
    /// The outcome in metrics.
    #[must_use]
    pub fn outcome(&self) -> ReplyOutcome {
        match self {
            Self::Delivered => ReplyOutcome::Delivered,
            Self::Late(_) | Self::OfCancel(_) => ReplyOutcome::Late,
            Self::Recorded(_) => ReplyOutcome::Recorded,
            Self::Repeated(_) => ReplyOutcome::Repeated,
            Self::Foreign(_) => ReplyOutcome::Foreign,
            Self::Forward(_) => ReplyOutcome::Forwarded,
            Self::Request(_) | Self::Uncorrelated(_) | Self::Rejected(_, Rejection::OfStream) => {
                ReplyOutcome::Unknown
            }
            Self::Rejected(_, Rejection::NoToken | Rejection::WrongToken) => ReplyOutcome::Forged,
            Self::Rejected(_, Rejection::Shortened) => ReplyOutcome::Shortened,
            Self::Rejected(_, Rejection::WrongTopic) => ReplyOutcome::Misplaced,
            Self::Rejected(_, Rejection::Duplicate) => ReplyOutcome::Duplicate,
            Self::Looped(_) => ReplyOutcome::Looped,
        }
    }
}

/// The recently ended calls with their reply ids and agents, and the log lines for answers that reached no caller.
#[derive(Debug)]
pub(crate) struct EndedCalls {
    calls: Mutex<Recent<CallId, EndedCall>>,
    /// The other replicas whose answers were read here, and when that was last logged.
    others: Mutex<Recent<Replica, Instant>>,
    log: LogLimit,
    pub(crate) rejected: LogLimit,
    contradictory: LogLimit,
    foreign: LogLimit,
    repeated: LogLimit,
}

/// A call that no longer waits for answers from the bus.
#[derive(Debug)]
struct EndedCall {
    id: ReplyId,
    agent: Text,
    /// Whether it goes on with what other replicas record.
    is_recorded: bool,
}

/// Maximum number of ended calls that are remembered.
const MAX_ENDED: usize = 4_096;
/// Maximum number of other replicas that are remembered.
const MAX_OTHERS: usize = 1_024;
/// How often answers to calls of the same other replica are logged. They are normal while that replica runs.
const FOREIGN_EVERY: Duration = Duration::from_secs(600);

// === impl EndedCalls ===

impl EndedCalls {
    pub(crate) fn new(log: &LogLimits) -> Self {
        Self {
            calls: Mutex::new(Recent::new(MAX_ENDED)),
            others: Mutex::new(Recent::new(MAX_OTHERS)),
            log: log.limit(Level::WARN, "more answers reached no caller"),
            rejected: log.limit(Level::WARN, "more answers were rejected"),
            contradictory: log.limit(Level::WARN, "more answers named two calls"),
            foreign: log.limit(Level::INFO, "more answers were for calls of other replicas"),
            repeated: log.limit(Level::INFO, "more answers were read again"),
        }
    }

    /// Records that a call for this agent has ended.
    pub(crate) fn note(&self, id: ReplyId, agent: &Text) {
        self.insert(id, agent, false);
    }

    /// Records that a call for this agent goes on with what other replicas record of its answer.
    pub(crate) fn note_recorded(&self, id: ReplyId, agent: &Text) {
        self.insert(id, agent, true);
    }

    fn insert(&self, id: ReplyId, agent: &Text, is_recorded: bool) {
        let ended = EndedCall {
            id,
            agent: agent.clone(),
            is_recorded,
        };
        let mut calls = lock(&self.calls);
        calls.insert(id.call, ended);
    }

    /// The outcome of an answer to a call that is not pending.
    pub(crate) fn outcome_of(&self, call: CallId) -> AnswerOutcome {
        let calls = lock(&self.calls);
        match calls.get(&call).is_some_and(|ended| ended.is_recorded) {
            true => AnswerOutcome::Recorded(call),
            false => AnswerOutcome::Late(call),
        }
    }

    /// The reply id of a call that ended recently.
    pub(crate) fn reply_id(&self, call: CallId) -> Option<ReplyId> {
        let calls = lock(&self.calls);
        calls.get(&call).map(|ended| ended.id)
    }

    /// Logs, at most once in a while per replica, that answers to its calls are read here: it may have stopped.
    pub(crate) fn log_foreign(&self, call: CallId, topic: &Topic) {
        let (replica, now) = (call.replica(), Instant::now());
        let mut others = lock(&self.others);
        let is_logged = |last: &Instant| now.duration_since(*last) < FOREIGN_EVERY;
        if others.get(&replica).is_some_and(is_logged) {
            return;
        }
        if let Some(suppressed) = self.foreign.allow() {
            others.insert(replica, now);
            tracing::info!(
                %replica, %call, topic = %shown_topic(topic.as_str()), suppressed,
                "an answer is for a call of another process (a replica or a command such as `a2abus call`), which reads it itself; it is lost only if that process no longer runs"
            );
        }
    }

    /// Logs that an answer names another call than the one that got it: in its body, or in `headers`, which are those
    /// of the message and its subject.
    pub(crate) fn log_contradiction(
        &self,
        call: CallId,
        (unit, headers): (&AnswerUnit, Option<CallId>),
        topic: &Topic,
    ) {
        let in_headers = headers.map(|other| (other, "headers or subject"));
        let other = in_headers.or_else(|| Some((unit.other_call_in_body(call)?, "body")));
        if let Some((other, other_in)) = other
            && let Some(suppressed) = self.contradictory.allow()
        {
            tracing::warn!(
                %call, %other, other_in, topic = %shown_topic(topic.as_str()), suppressed,
                fix = "let the agent repeat only the ids of the request that it answers",
                "an answer names two calls: it goes only to the one that is found first, in the order: attribute `callid`, headers, subject, body"
            );
        }
    }

    fn log_repeated(&self, call: CallId, topic: &Topic) {
        if let Some(suppressed) = self.repeated.allow() {
            tracing::info!(
                %call, topic = %shown_topic(topic.as_str()), suppressed,
                "an answer is dropped: it was already handed over, and its record was read again because the replica that read it first has left the group or did not settle it"
            );
        }
    }

    /// Logs an answer that reached no caller, with the reason. No other replica reads an answer that a binding has read
    /// (`is_of_binding`).
    pub(crate) fn log(&self, answered: &AnswerOutcome, topic: &Topic, is_of_binding: bool) {
        let (call, why) = match answered {
            // Replicas that share a reply partition read each other's answers.
            AnswerOutcome::Delivered
            | AnswerOutcome::Forward(_)
            | AnswerOutcome::Foreign(_)
            | AnswerOutcome::Rejected(..) => return,
            AnswerOutcome::OfCancel(call) => {
                tracing::debug!(%call, topic = %shown_topic(topic.as_str()), "an agent has answered the cancel of a call");
                return;
            }
            AnswerOutcome::Recorded(call) if is_of_binding => (
                Some(*call),
                "its call lost the bus of its request, and goes on with the answers that other replicas read at its reply address: they do not read this one",
            ),
            AnswerOutcome::Recorded(call) => {
                tracing::debug!(%call, topic = %shown_topic(topic.as_str()), "an answer is not used: its call goes on with what other replicas record");
                return;
            }
            AnswerOutcome::Repeated(call) => return self.log_repeated(*call, topic),
            AnswerOutcome::Late(call) => (
                Some(*call),
                "the call had already ended: this answer is late or a duplicate, or another replica read it and forwarded it after the last part",
            ),
            AnswerOutcome::Looped(call) => (
                Some(*call),
                "another replica has forwarded it here, but it belongs to a third one: the replicas disagree about the number of partitions of the reply topic",
            ),
            AnswerOutcome::Request(call) => (
                Some(*call),
                "it is the request itself: something echoes requests to the reply address",
            ),
            AnswerOutcome::Uncorrelated(unit) => (None, unit.detail.as_str()),
        };
        let Some(suppressed) = self.log.allow() else {
            return;
        };
        let topic = shown_topic(topic.as_str());
        let calls = lock(&self.calls);
        let agent = call
            .and_then(|call| calls.get(&call))
            .map(|ended| ended.agent.as_str());
        let call = call.map(|call| call.to_string());
        tracing::warn!(
            call, agent, %topic,
            reason = answered.outcome().as_str(), why, suppressed,
            "an answer reached no caller"
        );
    }
}
