//! Whether an attached MCP server is up, and its description of itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::timeout;

use super::card;
use super::health::Health;
use super::link::{Link, Log};
use crate::calls::failure::{Failure, Reason};
use crate::registry::Registry;

/// The state of one server across all its runs.
#[derive(Debug)]
pub(super) struct Lifecycle {
    /// Whether it gets one call at a time.
    pub(super) is_single: bool,
    state: watch::Sender<State>,
    registry: Arc<Registry>,
    health: Health,
    log: Arc<Log>,
}

#[derive(Debug, Clone)]
enum State {
    /// It is starting.
    Starting,
    Up(Arc<RunningServer>),
    /// It ended before it was up, with this cause.
    Failing(Arc<str>),
}

/// A server that answers.
#[derive(Debug)]
pub(super) struct RunningServer {
    pub(super) link: Arc<Link>,
    /// Its answer to `initialize`.
    pub(super) profile: Box<RawValue>,
}

/// How a run ended.
pub(super) enum RunEnd {
    /// The bridge shuts down.
    Stopped,
    /// The cause, and whether the server was up before.
    Failed(String, bool),
}

/// Maximum number of messages that wait until the server reads them.
pub(super) const QUEUE: usize = 64;
/// The longest message of a server.
pub(super) const MAX_MESSAGE: usize = 64 << 20;
/// The time limit for the answer to `initialize`. It is long because a program may have to be downloaded first.
pub(super) const START: Duration = Duration::from_secs(60);
/// The client's notification after the answer to `initialize`.
pub(super) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
/// Maximum number of pages of its list of tools.
const MAX_PAGES: usize = 50;

// === impl Lifecycle ===

impl Lifecycle {
    pub(super) fn new(
        is_single: bool,
        registry: &Arc<Registry>,
        health: Health,
        log: &Arc<Log>,
    ) -> Self {
        Self {
            is_single,
            state: watch::Sender::new(State::Starting),
            registry: Arc::clone(registry),
            health,
            log: Arc::clone(log),
        }
    }

    /// Waits until the server is up.
    ///
    /// # Errors
    /// Why the server does not start.
    pub(super) async fn up(&self) -> Result<Arc<RunningServer>, Failure> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Starting));
        match settled.await.map(|state| state.clone()) {
            Ok(State::Up(up)) => Ok(up),
            Ok(State::Failing(why)) => Err(Failure::new(Reason::AgentUnavailable, &*why)),
            Ok(State::Starting) | Err(_) => {
                let message = "the server of this agent is not running";
                Err(Failure::new(Reason::AgentUnavailable, message))
            }
        }
    }

    /// The server, if it is up.
    pub(super) fn now_up(&self) -> Option<Arc<RunningServer>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Arc::clone(up)),
            State::Starting | State::Failing(_) => None,
        }
    }

    /// Whether its last run is up.
    pub(super) fn is_up(&self) -> bool {
        self.health.is_up()
    }

    /// Marks the server as unreachable until its restart. Calls wait for the restart.
    pub(super) fn away(&self, why: &str) {
        self.health.away(why);
    }

    /// Marks the server as failing: it ended before it was up. Calls fail with this cause.
    pub(super) fn fails(&self, why: String) {
        self.health.away(&why);
        self.state.send_replace(State::Failing(why.into()));
    }

    /// Ends this run. New calls wait for the next run.
    pub(super) fn down(&self, why: Option<String>) -> RunEnd {
        let Some(why) = why else {
            let message = "the bridge is shutting down and has stopped the server of this agent";
            self.state.send_replace(State::Failing(message.into()));
            return RunEnd::Stopped;
        };
        let was_up = self.state.send_if_modified(|state| {
            let was_up = matches!(state, State::Up(_));
            if was_up {
                *state = State::Starting;
            }
            was_up
        });
        RunEnd::Failed(why, was_up)
    }

    /// The parameters of `initialize`. `can_ask` tells whether the server may ask the clients of its calls.
    pub(super) fn introduction(can_ask: bool) -> String {
        let abilities = match can_ask {
            true => json!({ "sampling": {}, "elicitation": {}, "roots": {} }),
            false => json!({}),
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": abilities,
            "clientInfo": { "name": "a2abus", "version": env!("CARGO_PKG_VERSION") },
        });
        params.to_string()
    }

    /// Accepts calls for a server that has started, and keeps its tools up to date.
    pub(super) async fn serve<T>(&self, link: &Arc<Link>, profile: Box<RawValue>) -> T {
        self.refresh_tools(link, &profile).await;
        let up = RunningServer {
            link: Arc::clone(link),
            profile: profile.clone(),
        };
        self.state.send_replace(State::Up(Arc::new(up)));
        self.health.up();
        tracing::info!(agent = %self.log.agent, "the server of an attached agent is up");
        loop {
            link.lists_changed().await;
            self.refresh_tools(link, &profile).await;
        }
    }

    /// Reads its tools, with a time limit. A server that does not list them is up all the same.
    async fn refresh_tools(&self, link: &Arc<Link>, profile: &RawValue) {
        if timeout(START, self.read_tools(link, profile))
            .await
            .is_err()
        {
            link.strange("an attached server did not answer tools/list in time");
        }
    }

    /// Reads its tools, and which of them are safe to call twice.
    async fn read_tools(&self, link: &Arc<Link>, profile: &RawValue) {
        #[derive(Deserialize)]
        struct Answer {
            result: Page,
        }
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            tools: Vec<card::Tool>,
            #[serde(rename = "nextCursor", default)]
            next: Option<String>,
        }
        let lists = link.lists();
        let mut tools = Vec::new();
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let Ok(Ok(answer)) = link.ask("tools/list", &params.to_string()).await else {
                return;
            };
            // A server without tools answers with an error.
            let Ok(Answer { result: page }) = serde_json::from_slice(&answer) else {
                break;
            };
            tools.extend(page.tools);
            let Some(next) = page.next else { break };
            params = json!({ "cursor": next });
        }
        let safe = tools.iter().filter(|tool| tool.is_repeatable());
        let safe: HashSet<Text> = safe.map(|tool| tool.name.as_str().into()).collect();
        link.set_repeatable(safe);
        let profile = (profile, lists);
        let (card, left_out) = card::of_tools(&self.log.agent, profile, tools);
        self.log.leaves_out(&left_out);
        self.registry.describe(&self.log.agent, card);
    }
}

/// The result in an answer to `initialize`.
pub(super) fn profile(answer: &Bytes) -> Result<Box<RawValue>, String> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        result: Option<Box<RawValue>>,
        #[serde(default)]
        error: Option<Box<RawValue>>,
    }
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|error| format!("its answer to initialize: {error}"))?;
    answer.result.ok_or_else(|| {
        let error = answer.error.as_deref().map_or("no result", RawValue::get);
        format!("its answer to initialize: {error}")
    })
}
