//! An agent that gets requests and their cancels.

use std::collections::HashSet;

use serde_json::Value;

/// The requests that an agent works on, until it gets `tools/list`.
#[derive(Debug, Default)]
pub struct AgentWork {
    working: HashSet<String>,
    is_last: bool,
}

impl AgentWork {
    /// Takes a request, or the cancel of one.
    ///
    /// # Panics
    /// When a cancel names no request that the agent works on.
    pub fn take(&mut self, message: &Value) {
        match message["method"].as_str() {
            Some("notifications/cancelled") => {
                let cancelled = message["params"]["requestId"].as_str().expect("an id");
                assert!(self.working.remove(cancelled), "{cancelled} is not known");
            }
            Some("tools/list") => self.is_last = true,
            _ => {
                let id = message["id"].as_str().expect("a reply id");
                self.working.insert(id.to_owned());
            }
        }
    }

    /// Whether every request was cancelled, and `tools/list` has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_last && self.working.is_empty()
    }
}
