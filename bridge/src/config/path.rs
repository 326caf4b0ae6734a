//! The path of a value in the configuration.

use std::fmt;

use serde::{Serialize, Serializer};

/// The path from the root to a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValuePath(Vec<Segment>);

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment {
    Key(String),
    Index(usize),
}

// === impl ValuePath ===

impl ValuePath {
    pub(super) const fn root() -> Self {
        Self(Vec::new())
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// The path of the enclosing value; the root's parent is the root.
    pub(super) fn parent(&self) -> Self {
        let mut path = self.clone();
        path.0.pop();
        path
    }

    /// The path one step further.
    pub(super) fn with(&self, step: Segment) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }

    /// The steps from the root.
    pub(super) fn steps(&self) -> &[Segment] {
        &self.0
    }

    /// The path of a value below this one, written like `streams[0].name`.
    pub(super) fn below(&self, place: &str) -> Self {
        let segments = place
            .split(['.', '['])
            .filter(|segment| !segment.is_empty());
        segments.fold(self.clone(), |path, segment| {
            match segment
                .strip_suffix(']')
                .and_then(|index| index.parse().ok())
            {
                Some(index) => path.index(index),
                None => path.key(segment),
            }
        })
    }
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_plain(key) => {
                    let dot = if index == 0 { "" } else { "." };
                    write!(f, "{dot}{key}")?;
                }
                Segment::Key(key) => write!(f, "[{key:?}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

impl Serialize for ValuePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
