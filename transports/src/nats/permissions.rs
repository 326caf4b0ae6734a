//! The permissions of a user, and which subjects they cover.

use serde::Deserialize;

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

/// Whether every subject of the second pattern is one of the first.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    let mut narrow = narrow.split('.');
    for word in wide.split('.') {
        match (word, narrow.next()) {
            (">", Some(_)) => return true,
            ("*", Some(narrow)) if narrow != ">" => {}
            (word, Some(narrow)) if word == narrow => {}
            _ => return false,
        }
    }
    narrow.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_covered_when_all_of_it_is() {
        for (wide, narrow, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.>", "a.b.*", true),
            ("a.>", "a.>", true),
            ("a.b", "a.*", false),
            ("a.*", "a.>", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a", false),
            ("a.b.c", "a.b", false),
        ] {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }
}
