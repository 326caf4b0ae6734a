//! The permissions of a user, and which subjects they cover.

use serde::Deserialize;

use super::subjects::covers;

/// The permissions of a user, as its server reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Permissions {
    publish: Rights,
    subscribe: Rights,
}

/// Allowed and denied subjects; if none is allowed explicitly, all are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Rights {
    allow: Vec<String>,
    deny: Vec<String>,
}

// === impl Permissions ===

impl Permissions {
    /// Whether the user may publish to every subject of the pattern.
    #[must_use]
    pub fn may_publish(&self, pattern: &str) -> bool {
        self.publish.cover(pattern)
    }

    /// Whether the user may subscribe to the pattern.
    #[must_use]
    pub fn may_subscribe(&self, pattern: &str) -> bool {
        self.subscribe.cover(pattern)
    }
}

// === impl Rights ===

impl Rights {
    fn cover(&self, pattern: &str) -> bool {
        let allowed =
            self.allow.is_empty() || self.allow.iter().any(|allow| covers(allow, pattern));
        allowed && !self.deny.iter().any(|deny| covers(deny, pattern))
    }
}
