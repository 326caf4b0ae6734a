//! The facts about an operation that validation needs, even if its configuration is partly invalid.

use std::time::Duration;

use crate::a2e_workflow::path::{OutputPath, Path};
use crate::a2e_workflow::storage::Storage;
use crate::a2e_workflow::target::Target;
use crate::json::Json;
use a2abus_plugin::Text;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) reads: Vec<Read>,
    pub(super) write: Option<(OutputPath, Kind)>,
    /// The operations of its branches.
    pub(super) branches: Vec<Text>,
    /// The operations of its body.
    pub(super) body: Vec<Text>,
    pub(super) wait: Option<Duration>,
    pub(super) target: Option<Target>,
    /// The credentials of headers: where they stand, and their ids.
    pub(super) credentials: Vec<(String, Text)>,
    pub(super) storage: Option<Storage>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Read {
    pub(super) path: Path,
    pub(super) need: Requirement,
}

/// What a reader requires of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    /// It must exist.
    Any,
    /// Nothing: the reader tests whether it exists.
    Nothing,
    /// It must be an array.
    Array,
    /// It must be an array or an object.
    ArrayOrObject,
}

/// The type of a value, as far as it is known before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unknown,
    Array,
    Object,
    Scalar,
}

// === impl Facts ===

impl Facts {
    /// The operations it controls.
    pub(super) fn controls(&self) -> impl DoubleEndedIterator<Item = &Text> {
        self.branches.iter().chain(&self.body)
    }
}

// === impl Kind ===

impl Kind {
    pub(super) fn of(json: &Json) -> Self {
        match json {
            Json::Array(_) => Self::Array,
            Json::Object(_) => Self::Object,
            _ => Self::Scalar,
        }
    }

    pub(super) fn fits(self, need: Requirement) -> bool {
        match need {
            Requirement::Any | Requirement::Nothing => true,
            Requirement::Array => matches!(self, Self::Unknown | Self::Array),
            Requirement::ArrayOrObject => self != Self::Scalar,
        }
    }
}
