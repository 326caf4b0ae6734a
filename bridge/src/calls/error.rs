//! Why a call has no (further) answer, and how that is counted and worded.

use std::fmt;
use std::time::Duration;

use a2abus_plugin::{Event, EventError, Text, extension};
use a2abus_transports::{Guarantee, TransportError, TransportErrorKind};

use crate::budget::BudgetExhausted;
use crate::bus::outbound::{Outgoing, RoutingError};
use crate::calls::reply_token::Rejection;
use crate::metrics::CallOutcome;
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
    // Boxed, like the next: every waiting call has room for several of these.
    Timeout(Box<NoAnswer>),
    /// The topic, or the stream of a subject, that the request goes to does not take it.
    #[error("{0}")]
    NotTaken(Box<DestinationRefused>),
    /// No consumer listens at the destination, or the bus is unavailable.
    #[error("the agent cannot be reached: {0}")]
    Unavailable(Text),
    /// The limit of pending calls is reached.
    #[error("{0}")]
    Exhausted(Bound),
    /// The bridge is shutting down.
    #[error("the bridge is shutting down")]
    Draining,
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {0}")]
    Refused(Text),
    /// The caller reads its parts too slowly.
    #[error("the caller reads the parts of the answer too slowly")]
    SlowCaller,
    /// The agent answered with something that is no answer.
    #[error("the agent's answer cannot be used: {0}")]
    BadAnswer(Text),
    /// The agent has answered, and the requester's bus does not take the answer.
    #[error("the agent has answered, but the answer cannot be published to the reply address: {0}")]
    Undeliverable(Text),
}

/// A call that got no answer in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// How long the caller waited.
    pub after: Duration,
    /// The agent that the request is for; empty where it names none.
    pub agent: Text,
    /// Where the bus has the request, as `Kafka topic agents.weather`; `None` when the bus did not confirm it.
    pub published: Option<Text>,
    /// Why the bus did not confirm it, where it said so.
    pub cause: Option<Text>,
    /// Why an answer was rejected, where one came.
    pub rejected: Option<Rejection>,
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
    /// Of what the waiting requests of one agent may hold of the budget of their binding.
    #[error("too many or too large requests of this topic are waiting for the agent {0:?}")]
    AgentOfBinding(Text),
    /// Of what all waiting requests may hold of the budget of their binding.
    #[error("too many or too large requests of this topic are waiting for their answers")]
    Binding,
    /// Of the calls of one caller: `calls.max_pending_per_caller`.
    #[error("too many calls from here are waiting for their answers")]
    Caller,
    /// Of the memory for requests and answers in progress: `calls.budget_bytes`.
    #[error("{0}")]
    Memory(#[from] BudgetExhausted),
}

/// The bus error of a request that no agent received.
const NOBODY: &str = "no agent listens on its subject";

// === impl CallError ===

impl CallError {
    /// The stable word of this error: in the access log, and as `data.reason` of a JSON-RPC error.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::AgentNotFound(_) => "agent_not_found",
            Self::Timeout(_) => "timeout",
            Self::NotTaken(place) if place.is_misnamed() => "agent_not_found",
            Self::Unavailable(_) | Self::NotTaken(_) | Self::Draining => "agent_unavailable",
            Self::Exhausted(_) | Self::SlowCaller => "exhausted",
            Self::Refused(_) => "invalid_params",
            Self::BadAnswer(_) => "bad_agent_reply",
            Self::Undeliverable(_) => "reply_undeliverable",
        }
    }

    /// The error of a request that the bus has taken and nobody listens to.
    pub(crate) fn nobody_there() -> Self {
        Self::Unavailable(Text::from_static(NOBODY))
    }

    /// Whether the bus has said that nobody got the request.
    pub(crate) fn is_nobody_there(&self) -> bool {
        matches!(self, Self::Unavailable(why) if *why == NOBODY)
    }

    /// How a call ends that fails with it.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Timeout(_) => CallOutcome::Timeout,
            Self::Unavailable(_) | Self::NotTaken(_) => CallOutcome::Unavailable,
            Self::AgentNotFound(_)
            | Self::Exhausted(_)
            | Self::Draining
            | Self::Refused(_)
            | Self::SlowCaller
            | Self::BadAnswer(_)
            | Self::Undeliverable(_) => CallOutcome::Failed,
        }
    }

    /// What it means to a caller that the bus refuses a copy of its request, which goes to the place of this name.
    pub(super) fn refused_by_bus(copy: &Outgoing, name: &str, error: &TransportError) -> Self {
        let what = match error.kind() {
            TransportErrorKind::TooLarge | TransportErrorKind::BadMessage => {
                return Self::Refused(format!("{name}: {error}").into());
            }
            TransportErrorKind::UnknownTopic => match copy.address.guarantee {
                Guarantee::Stored { .. } | Guarantee::StoredNext { .. } => {
                    format!("no JetStream stream stores {name}")
                }
                Guarantee::Default => format!("{name} does not exist"),
            },
            TransportErrorKind::Unauthenticated => {
                format!("the bus refuses the credentials of the bridge, and so messages for {name}")
            }
            TransportErrorKind::Unauthorised => format!("the bridge may not publish to {name}"),
            TransportErrorKind::Full => format!("{name} is full"),
            kind => format!("{name} takes no messages ({})", kind.as_str()),
        };
        Self::NotTaken(Box::new(DestinationRefused {
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
            // Most destinations are formed of the target.
            (RoutingError::Destination { .. }, None) => Self::AgentNotFound(Text::default()),
            // Which route it was is the business of operators.
            (RoutingError::Destination { route, cause }, Some(_)) => {
                tracing::debug!(%route, %cause, "the destination of a request cannot be formed");
                Self::Refused(cause.to_string().into())
            }
            (other, _) => Self::Refused(other.to_string().into()),
        }
    }

    pub(super) fn not_a_request() -> Self {
        Self::Refused(Text::from_static("not a JSON-RPC request"))
    }
}

impl From<EventError> for CallError {
    fn from(error: EventError) -> Self {
        Self::Refused(error.to_string().into())
    }
}

// === impl NoAnswer ===

impl NoAnswer {
    /// A request whose time was over before the bridge read it.
    pub(crate) fn expired(event: &Event) -> Self {
        Self::unpublished(Duration::ZERO, event)
    }

    /// A request whose time was over before the bus had it.
    pub(super) fn unpublished(after: Duration, event: &Event) -> Self {
        let agent = event.extension_text(extension::TARGET_AGENT).cloned();
        Self {
            after,
            agent: agent.unwrap_or_default(),
            published: None,
            cause: None,
            rejected: None,
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            agent,
            published,
            cause,
            rejected,
        } = self;
        if after.is_zero() {
            return f.write_str("the request had expired before the bridge read it");
        }
        // Rounded up, as callers ask for whole ones.
        let millis = after.as_micros().div_ceil(1_000);
        let Some(published) = published else {
            write!(
                f,
                "not sent within {millis} ms: the bus did not confirm the request"
            )?;
            return match cause {
                Some(cause) => write!(f, " ({cause})"),
                None => Ok(()),
            };
        };
        f.write_str("no answer")?;
        if !agent.is_empty() {
            write!(f, " from agent {:?}", agent.as_str())?;
        }
        write!(f, " within {millis} ms (published to {published})")?;
        match rejected {
            Some(why) => write!(f, "; an answer came but was rejected: {}", why.what()),
            None => Ok(()),
        }
    }
}

// === impl DestinationRefused ===

impl DestinationRefused {
    /// Whether the request names a place that does not exist: its sender is at fault.
    #[must_use]
    pub fn is_misnamed(&self) -> bool {
        self.kind == TransportErrorKind::UnknownTopic && self.named_by == NamedBy::Event
    }

    /// The fix, for an operator.
    #[must_use]
    pub fn cure(&self) -> &'static str {
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
