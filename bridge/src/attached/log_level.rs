//! The level of log messages that clients have set at an attached MCP server (`logging/setLevel`).
//!
//! The server has one client, the bridge, so the last level that a client sets applies to all clients. The server forgets
//! it when it is restarted, so each run is told again. Bridges that attach the server and share the state tell each
//! other.

use std::borrow::Cow;
use std::sync::Mutex;
use std::time::Duration;

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::lock::lock;

/// The level of one server, across all its runs.
#[derive(Debug)]
pub(super) struct LogLevel {
    wanted: watch::Sender<Option<Text>>,
    was_set_here: Notify,
    /// When other bridges were last told.
    told: Mutex<Option<Instant>>,
}

/// The method that sets the level.
pub(super) const SET_LEVEL: &str = "logging/setLevel";
/// How often other bridges are told an unchanged level, at most: only those that have started since need it.
const REPEAT: Duration = Duration::from_secs(60);

// === impl LogLevel ===

impl Default for LogLevel {
    fn default() -> Self {
        Self {
            wanted: watch::Sender::new(None),
            was_set_here: Notify::new(),
            told: Mutex::default(),
        }
    }
}

impl LogLevel {
    /// A client of this bridge has set the level, and the server has accepted it. Many clients set the same one.
    pub(super) fn set_here(&self, level: Text) {
        let is_new = self.wanted.borrow().as_ref() != Some(&level);
        self.follow(level);
        let mut told = lock(&self.told);
        if is_new || told.is_none_or(|at| at.elapsed() >= REPEAT) {
            *told = Some(Instant::now());
            self.was_set_here.notify_one();
        }
    }

    /// A client of some bridge has set the level.
    pub(super) fn follow(&self, level: Text) {
        self.wanted.send_replace(Some(level));
    }

    /// The level, and its changes.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Text>> {
        self.wanted.subscribe()
    }

    /// Waits until a client of this bridge sets the level. Returns the message that tells other bridges.
    pub(super) async fn next_message(&self) -> String {
        loop {
            self.was_set_here.notified().await;
            if let Some(level) = &*self.wanted.borrow() {
                return message(level);
            }
        }
    }
}

/// The parameters of the request that sets a level.
pub(super) fn params(level: &str) -> String {
    json!({ "level": level }).to_string()
}

fn message(level: &str) -> String {
    let params = params(level);
    format!(r#"{{"jsonrpc":"2.0","method":"{SET_LEVEL}","params":{params}}}"#)
}

/// The level that a message sets, if it does.
pub(super) fn level_in(message: &[u8]) -> Option<Text> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(borrow)]
        params: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Params {
        level: String,
    }
    let message: Message<'_> = serde_json::from_slice(message).ok()?;
    let params: Params = serde_json::from_str(message.params.get()).ok()?;
    (message.method == SET_LEVEL).then(|| params.level.into())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_bridges_learn_of_the_level_that_was_set_here_last() {
        let level = LogLevel::default();
        level.follow("error".into());
        assert_eq!(level.next_message().now_or_never(), None);
        level.set_here("info".into());
        level.set_here("debug".into());
        let message = level.next_message().now_or_never().unwrap();
        assert_eq!(level_in(message.as_bytes()), Some("debug".into()));
        level.set_here("debug".into());
        assert_eq!(level.next_message().now_or_never(), None);
        // A bridge may have started since.
        tokio::time::advance(REPEAT).await;
        level.set_here("debug".into());
        assert!(level.next_message().now_or_never().is_some());
    }

    #[test]
    fn only_a_request_for_it_sets_the_level() {
        for other in [
            "",
            "[]",
            r#"{"method":"ping","params":{"level":"info"}}"#,
            r#"{"method":"logging/setLevel"}"#,
            r#"{"method":"logging/setLevel","params":{"level":7}}"#,
        ] {
            assert_eq!(level_in(other.as_bytes()), None, "{other}");
        }
    }
}
