//! The methods of A2A, independent of their names.

/// A method of A2A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Send,
    Stream,
    Get,
    List,
    Cancel,
    Follow,
    /// Webhooks of a task.
    Push(Push),
    Card,
}

// === impl Method ===

impl Method {
    /// The label of its metric.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Stream => "stream",
            Self::Get => "get",
            Self::List => "list",
            Self::Cancel => "cancel",
            Self::Follow => "subscribe",
            Self::Push(_) => "push",
            Self::Card => "card",
        }
    }
}

/// A method for the webhooks of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Push {
    Set,
    Get,
    List,
    Delete,
}
