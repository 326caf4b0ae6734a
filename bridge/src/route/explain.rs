//! Which rule matched an event, and why did the earlier rules not match?

use std::fmt;

use serde::Serialize;

use crate::names::Name;

/// The routing decision for one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The rules that were checked, in order. If one matched, it is the last.
    pub steps: Vec<RuleCheck>,
    /// The rule that matched.
    pub chosen: RouteMatch,
}

/// The rule that an event matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteMatch {
    /// A rule.
    Route(Name),
    /// No rule, so `default_route`.
    Default,
    /// No rule, and there is no default: a dead letter with the reason `no_route`.
    Nothing,
}

/// One rule that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleCheck {
    /// The rule.
    pub route: Name,
    /// Why it did not match; `None` if it did.
    pub mismatch: Option<Mismatch>,
}

/// A condition that an event does not meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The attribute.
    pub attribute: String,
    /// The expected value.
    pub condition: String,
    /// The actual value; `None` if the event lacks it.
    pub value: Option<String>,
}

/// One line per rule, then the outcome.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match &step.mismatch {
                None => writeln!(f, "route {}: matches", step.route)?,
                Some(why) => writeln!(f, "route {}: no, {why}", step.route)?,
            }
        }
        match &self.chosen {
            RouteMatch::Route(name) => write!(f, "goes to route {name}"),
            RouteMatch::Default => write!(f, "goes to the default route"),
            RouteMatch::Nothing => {
                write!(f, "goes to no route: it becomes a dead letter (no_route)")
            }
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attribute,
            condition,
            value,
        } = self;
        match value {
            Some(value) => write!(f, "{attribute} is {value:?}, not {condition}"),
            None => write!(f, "{attribute} is absent, not {condition}"),
        }
    }
}
