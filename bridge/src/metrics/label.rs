//! The values of labels: fixed sets, so that no payload can create a series.

/// How a call ended: the label of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The last part reached the caller.
    Answered,
    /// No answer arrived in time.
    Timeout,
    /// The caller disconnected.
    Cancelled,
    /// The agent or the bus could not be reached.
    Unavailable,
    /// Its request stays at its source, and another reader sends it.
    Left,
    /// Anything else.
    Failed,
}

/// How an answer from the bus was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// Handed to the call that waits for it.
    Delivered,
    /// The call was over.
    Late,
    /// The call goes on with what other replicas record.
    Recorded,
    /// Its record was read again, and had been handed over before.
    Repeated,
    /// It names no call, or is the request itself.
    Unknown,
    /// Forwarded to the replica that waits for it.
    Forwarded,
    /// It answers a call of another replica, which reads the same address, unless that replica no longer runs.
    Foreign,
    /// It names a call, but its reply token is missing or wrong, or it comes from another MCP session.
    Forged,
    /// The id that it repeats lacks the end of the reply token.
    Shortened,
    /// It was read at an address where answers are not accepted.
    Misplaced,
    /// It has already been forwarded, and still belongs to another replica.
    Looped,
    /// It is an E2A record with a `sequence` that was already used.
    Duplicate,
}

/// The paths of the HTTP listener, as a label: never the path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpPath {
    /// `/rpc`.
    Rpc,
    /// `/rpc/{agent}`.
    RpcAgent,
    /// `/a2a`.
    A2a,
    /// `/a2a/agents/{name}`.
    A2aAgent,
    /// `/a2a/tasks` and below.
    A2aTasks,
    /// The paths of the HTTP+JSON binding of A2A.
    A2aRest,
    /// The cards and lists of agents, and other documents for A2A clients.
    A2aCards,
    /// `/mcp`.
    Mcp,
    /// `/mcp/agents/{agent}`.
    McpAgent,
    /// Below `/api`.
    Api,
    /// `/health`.
    Health,
    /// Any path that is not served.
    Other,
}

// === impl CallOutcome ===

impl CallOutcome {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 6] = [
        Self::Answered,
        Self::Timeout,
        Self::Cancelled,
        Self::Unavailable,
        Self::Left,
        Self::Failed,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::Left => "left",
            Self::Failed => "failed",
        }
    }
}

// === impl ReplyOutcome ===

impl ReplyOutcome {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::Delivered,
        Self::Late,
        Self::Recorded,
        Self::Repeated,
        Self::Unknown,
        Self::Forwarded,
        Self::Foreign,
        Self::Forged,
        Self::Shortened,
        Self::Misplaced,
        Self::Looped,
        Self::Duplicate,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Late => "late",
            Self::Recorded => "recorded",
            Self::Repeated => "repeated",
            Self::Unknown => "unknown",
            Self::Forwarded => "forwarded",
            Self::Foreign => "foreign",
            Self::Forged => "forged",
            Self::Shortened => "shortened",
            Self::Misplaced => "misplaced",
            Self::Looped => "looped",
            Self::Duplicate => "duplicate",
        }
    }
}

// === impl HttpPath ===

impl HttpPath {
    /// How many there are.
    pub(super) const COUNT: usize = Self::Other as usize + 1;

    /// Whether requests to this path create tasks.
    #[must_use]
    pub fn has_tasks(self) -> bool {
        matches!(
            self,
            Self::A2a | Self::A2aAgent | Self::A2aTasks | Self::A2aRest
        )
    }

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rpc => "/rpc",
            Self::RpcAgent => "/rpc/{agent}",
            Self::A2a => "/a2a",
            Self::A2aAgent => "/a2a/agents/{agent}",
            Self::A2aTasks => "/a2a/tasks",
            Self::A2aRest => "a2a rest",
            Self::A2aCards => "agent cards",
            Self::Mcp => "/mcp",
            Self::McpAgent => "/mcp/agents/{agent}",
            Self::Api => "/api",
            Self::Health => "/health",
            Self::Other => "other",
        }
    }
}
