//! The revisions of MCP.

use http::HeaderMap;

/// A revision, from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Revision {
    /// Only its messages; it has a different transport.
    V2024_11_05,
    /// The only revision with batches.
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// Without sessions: each request contains all its metadata.
    V2026_07_28,
}

/// The header with the revision.
pub(super) const VERSION: &str = "mcp-protocol-version";

// === impl Revision ===

impl Revision {
    const ALL: [Self; 5] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_07_28,
    ];
    /// The newest revision with sessions.
    const NEWEST_OF_SESSIONS: Self = Self::V2025_11_25;

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == name)
    }

    /// Whether its clients open sessions.
    pub(super) fn has_sessions(self) -> bool {
        self < Self::V2026_07_28
    }

    /// The revision for a client that requests `requested` in `initialize`.
    pub(super) fn negotiated(requested: Option<&str>) -> Self {
        let known = requested.and_then(Self::of);
        let known = known.filter(|revision| revision.has_sessions());
        known.unwrap_or(Self::NEWEST_OF_SESSIONS)
    }

    /// All supported revisions.
    pub(super) fn names() -> Vec<&'static str> {
        Self::ALL.into_iter().map(Self::as_str).collect()
    }

    /// The revision in the header, supported or not.
    pub(super) fn named(headers: &HeaderMap) -> Option<&str> {
        headers.get(VERSION)?.to_str().ok().map(str::trim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_requested_revision_or_the_newest_with_sessions() {
        let version = |name| Revision::negotiated(name).as_str();
        assert_eq!(version(Some("2025-03-26")), "2025-03-26");
        assert_eq!(version(Some("2024-11-05")), "2024-11-05");
        assert_eq!(version(Some("2026-07-28")), "2025-11-25");
        assert_eq!(version(Some("1999-01-01")), "2025-11-25");
        assert_eq!(version(None), "2025-11-25");
    }
}
