//! Why a call has no (further) answer: the errors, their metrics and their texts.

use std::fmt;
use std::time::Duration;

use a2abus_plugin::{Event, EventError, Text, extension};
use a2abus_transports::{Guarantee, TransportError, TransportErrorKind};

use crate::budget::BudgetExhausted;
use crate::bus::outbound::{Outgoing, RoutingError};
use crate::calls::reply_token::Rejection;
use crate::metrics::CallOutcome;
use crate::names::Mode;
use crate::pipeline::adapt::{CONVERT_FAILED, FIX_CONVERSION};
use crate::route::NamedBy;

/// Why a call has no (further) answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No route matches the request, or it names no agent.
    #[error("there is no agent {0:?}: no route matches the request")]
    AgentNotFound(Text),
    /// No answer arrived in time.
    #[error("{0}")]
    // Boxed, like the next one, because every waiting call has room for several of these.
    Timeout(Box<NoAnswer>),
    /// The destination of the request refuses it.
    #[error("{0}")]
    DestinationRefused(Box<DestinationRefused>),
    /// This bridge makes no calls.
    #[error("this bridge makes no calls (calls.enabled is false)")]
    Disabled,
    /// The bus is unavailable.
    #[error("the agent cannot be reached: {0}")]
    Unavailable(Text),
    /// The bus has reported that nothing subscribes to the destination of the request, such as `NATS subject
    /// agents.weather`.
    #[error("the agent cannot be reached: nothing subscribes to {0}")]
    NoSubscriber(Text),
    /// The bus became unavailable after the request was sent, so the agent may be at work on it.
    #[error("the bus became unavailable before the agent's answer arrived: {0}")]
    AnswerLost(Text),
    /// The limit of pending calls is reached.
    #[error("{0}")]
    Exhausted(Bound),
    /// The Kafka partition of the request moved before it was sent.
    #[error("the request was not sent: its partition moved while it waited")]
    Moved,
    /// The bridge is shutting down, and the request was not sent.
    #[error("the bridge is shutting down")]
    Draining,
    /// The bridge is shutting down, and the request was sent, so the agent may be at work on it.
    #[error("the bridge is shutting down, and the agent's answer has not arrived")]
    Drained,
    /// The same, and another replica receives the answer if one runs.
    #[error("the bridge is shutting down, and another replica may receive the agent's answer")]
    HandedOff,
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {0}")]
    Refused(Text),
    /// `convert` of its binding or route refuses the request.
    #[error("the request cannot be sent: {0}")]
    NotConverted(Text),
    /// The request is larger than its bus accepts.
    #[error("the request cannot be sent: {0}")]
    TooLarge(Text),
    /// Too many parts waited for the caller.
    #[error("the parts of the answer were not read as fast as they arrived")]
    SlowCaller,
    /// The agent has answered, but there was no memory for the answer (`calls.budget_bytes`).
    #[error("there was no memory for the agent's answer (calls.budget_bytes)")]
    AnswerDropped,
    /// The agent's answer cannot be used.
    #[error("the agent's answer cannot be used: {0}")]
    BadAnswer(Text),
    /// The agent has answered, but the requester's bus refuses the answer.
    #[error("the agent has answered, but the answer cannot be published to the reply address: {0}")]
    Undeliverable(Text),
}

/// A call that got no answer in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// How long the caller waited.
    pub after: Duration,
    /// The target agent; empty if the request names none.
    pub agent: Text,
    /// How far the request had come.
    pub request: RequestState,
    /// Why an answer was rejected, if one arrived.
    pub rejected: Option<Rejection>,
}

/// How far the request of a call without an answer had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    /// It had expired before the bridge read it.
    Expired,
    /// The rest of its HTTP request took all the time.
    Unsent,
    /// It waited in its binding.
    Queued,
    /// The bus had not accepted it; with the cause, if that is known.
    Unaccepted(Option<Text>),
    /// The bus had accepted it for this destination, and not confirmed it.
    Unconfirmed(Text),
    /// It was published to this destination, such as `Kafka topic agents.weather`.
    Published(Text),
    /// The agent has begun its answer, and then sent nothing for too long.
    Begun {
        /// How many parts it has sent.
        parts: u32,
    },
    /// The agent has asked its client a question, and the client has not answered it.
    Asked,
    /// The answer has taken too long, although the agent sends parts.
    Unended {
        /// How many parts it has sent.
        parts: u32,
        /// Whether it was ended by `calls.stream_timeout`, and not by its caller.
        is_longest: bool,
    },
}

/// A destination that refuses the request until an operator has repaired it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRefused {
    /// The problem, for example `Kafka topic agents.weather does not exist`.
    pub what: Text,
    /// The kind of refusal.
    pub kind: TransportErrorKind,
    /// Whether the event or the configuration named its topic.
    pub named_by: NamedBy,
}

/// The limit that a call has exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Bound {
    /// Of all calls: `calls.max_pending`.
    #[error("too many calls are waiting for their answers")]
    Calls,
    /// Of the calls of one agent: `calls.max_pending_per_agent`.
    #[error("too many calls are waiting for the agent {0:?}")]
    Agent(Text),
    /// Of the waiting requests of one agent, within the budget of their binding.
    #[error("too many or too large requests of this topic are waiting for the agent {0:?}")]
    AgentOfBinding(Text),
    /// Of all waiting requests, within the budget of their binding.
    #[error("too many or too large requests of this topic are waiting for their answers")]
    Binding,
    /// Of the calls of one caller: `calls.max_pending_per_caller`.
    #[error("too many calls of this caller are waiting for their answers")]
    Caller,
    /// Of the memory for requests and answers in progress: `calls.budget_bytes`.
    #[error("{0}")]
    Memory(#[from] BudgetExhausted),
}

// === impl CallError ===

impl CallError {
    /// Whether the bridge has ended the call because it is shutting down.
    pub(crate) fn is_drain(&self) -> bool {
        matches!(self, Self::Draining | Self::Drained | Self::HandedOff)
    }

    /// The outcome of a call that fails with this error.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Timeout(_) => CallOutcome::Timeout,
            Self::Unavailable(_)
            | Self::NoSubscriber(_)
            | Self::AnswerLost(_)
            | Self::DestinationRefused(_) => CallOutcome::Unavailable,
            Self::AgentNotFound(_)
            | Self::Disabled
            | Self::Exhausted(_)
            | Self::Moved
            | Self::Draining
            | Self::Drained
            | Self::HandedOff
            | Self::Refused(_)
            | Self::NotConverted(_)
            | Self::TooLarge(_)
            | Self::SlowCaller
            | Self::AnswerDropped
            | Self::BadAnswer(_)
            | Self::Undeliverable(_) => CallOutcome::Failed,
        }
    }

    /// The error for a caller whose request is refused at the destination with this name.
    pub(super) fn refused_by_bus(copy: &Outgoing, name: &str, error: &TransportError) -> Self {
        let what = match error.kind() {
            TransportErrorKind::TooLarge => {
                let cure = match copy.mode {
                    Mode::Binary => "send less, or raise this limit",
                    Mode::Structured => {
                        "send less, raise this limit, or use `mode: binary` at the destination: a structured event has data that is neither JSON nor text as Base64, which is a third larger"
                    }
                };
                return Self::TooLarge(format!("{name}: {error}; {cure}").into());
            }
            TransportErrorKind::BadMessage => {
                return Self::Refused(format!("{name}: {error}").into());
            }
            TransportErrorKind::UnknownTopic => match copy.address.guarantee {
                Guarantee::Stored { .. } | Guarantee::StoredNext { .. } => {
                    format!("no JetStream stream stores {name}")
                }
                Guarantee::Default | Guarantee::StoredIfAny { .. } => {
                    format!("{name} does not exist")
                }
            },
            TransportErrorKind::Unauthenticated => {
                format!(
                    "the bus refuses the credentials of the bridge, so nothing can be published to {name}"
                )
            }
            TransportErrorKind::Unauthorised => format!("the bridge may not publish to {name}"),
            TransportErrorKind::Full => format!("{name} is full"),
            kind => format!("{name} accepts no messages ({})", kind.as_str()),
        };
        Self::DestinationRefused(Box::new(DestinationRefused {
            what: what.into(),
            kind: error.kind(),
            named_by: copy.named_by,
        }))
    }

    /// The error for a caller whose request cannot be routed.
    pub(crate) fn unroutable(error: &RoutingError, event: &Event) -> Self {
        match (error, event.extension_text(extension::TARGET_AGENT)) {
            (RoutingError::NoRoute, target) => {
                Self::AgentNotFound(target.cloned().unwrap_or_default())
            }
            (RoutingError::UnknownAgent(agent), _) => Self::AgentNotFound(agent.clone()),
            // Most destinations are built from the target.
            (RoutingError::Destination { .. }, None) => Self::AgentNotFound(Text::default()),
            // Only operators need to know the route.
            (RoutingError::Destination { route, cause }, Some(_)) => {
                tracing::debug!(%route, %cause, "the destination of a request cannot be built");
                Self::Refused(cause.to_string().into())
            }
            (RoutingError::NotAdapted(error), _) if error.reason() == CONVERT_FAILED => {
                Self::NotConverted(format!("{error}; {FIX_CONVERSION}").into())
            }
            (other, _) => Self::Refused(other.to_string().into()),
        }
    }

    pub(super) fn not_a_request() -> Self {
        Self::Refused(Text::from_static("not a JSON-RPC request"))
    }

    /// A message with an id whose method is a cancel.
    pub(super) fn cancel_with_id(method: &str) -> Self {
        let text = format!("{method} is a notification, so it has no `id`: send it without one");
        Self::Refused(text.into())
    }
}

impl From<EventError> for CallError {
    fn from(error: EventError) -> Self {
        Self::Refused(error.to_string().into())
    }
}

// === impl NoAnswer ===

impl NoAnswer {
    /// The error of a request that was not published, which waited for so long.
    pub(crate) fn unpublished(after: Duration, event: &Event, request: RequestState) -> Self {
        let agent = event.extension_text(extension::TARGET_AGENT).cloned();
        Self {
            after,
            agent: agent.unwrap_or_default(),
            request,
            rejected: None,
        }
    }
}

fn named(agent: &str) -> String {
    match agent {
        "" => "the agent".to_owned(),
        agent => format!("agent {agent:?}"),
    }
}

/// What an agent did not do within this time.
fn unended(parts: u32, is_longest: bool, millis: u128) -> String {
    let limit = match is_longest {
        true => " (calls.stream_timeout)",
        false => "",
    };
    format!("did not end its answer within {millis} ms{limit}: {parts} parts came")
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            agent,
            request,
            rejected,
        } = self;
        // Rounded up, because callers ask for whole milliseconds.
        let millis = after.as_micros().div_ceil(1_000);
        let named = named(agent);
        let text = match request {
            RequestState::Published(destination) => {
                let from = match agent.as_str() {
                    "" => String::new(),
                    agent => format!(" from agent {agent:?}"),
                };
                format!("no answer{from} within {millis} ms (published to {destination})")
            }
            RequestState::Expired => "the request had expired before the bridge read it".to_owned(),
            RequestState::Unsent => format!(
                "not sent within {millis} ms: earlier requests of the batch, or waiting for the shared state, used up the time"
            ),
            RequestState::Queued => format!(
                "not sent within {millis} ms: it waited in the bridge, probably behind messages for a destination that fails or has no room; /readyz and the log name it"
            ),
            RequestState::Unaccepted(cause) => {
                let cause = cause.as_deref().map(|cause| format!(" ({cause})"));
                let cause = cause.unwrap_or_default();
                format!("not sent within {millis} ms: the bus did not accept the request{cause}")
            }
            RequestState::Unconfirmed(destination) => format!(
                "the bus did not confirm the request within {millis} ms ({destination}): the agent may still get it"
            ),
            RequestState::Begun { parts } => format!(
                "{named} did not end its answer: nothing came for {millis} ms after part {parts}"
            ),
            RequestState::Asked => format!(
                "the client did not answer a question of {named} in time (calls.question_timeout)"
            ),
            RequestState::Unended { parts, is_longest } => {
                format!("{named} {}", unended(*parts, *is_longest, millis))
            }
        };
        f.write_str(&text)?;
        match rejected {
            Some(why)
                if matches!(
                    request,
                    RequestState::Published(_)
                        | RequestState::Begun { .. }
                        | RequestState::Unended { .. }
                ) =>
            {
                write!(f, "; an answer came but was rejected: {}", why.message())
            }
            _ => Ok(()),
        }
    }
}

// === impl DestinationRefused ===

impl DestinationRefused {
    /// Whether the request names a destination that does not exist, so that its sender is at fault.
    #[must_use]
    pub fn is_misnamed(&self) -> bool {
        self.kind == TransportErrorKind::UnknownTopic && self.named_by == NamedBy::Event
    }

    /// The fix, for an operator.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match (self.kind, self.named_by) {
            (TransportErrorKind::UnknownTopic, NamedBy::Event) => {
                "check the name of the agent, or create it"
            }
            (TransportErrorKind::UnknownTopic, NamedBy::Config) => "create it, or change the route",
            (TransportErrorKind::Unauthenticated, _) => "correct the credentials of the transport",
            (TransportErrorKind::Unauthorised, _) => "grant the permission, or change the route",
            (TransportErrorKind::Full, _) => "make room in it",
            _ => "repair it, or change the route",
        }
    }
}

impl fmt::Display for DestinationRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
