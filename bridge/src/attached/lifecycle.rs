//! Whether an attached MCP server is up, and its description of itself.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::card;
use super::health::Health;
use super::link::{Disconnected, Link, Log};
use super::log_level::{self, LogLevel, SET_LEVEL};
use super::watched::{Demand, Watched, refusal_in};
use crate::bus::delivery::jittered;
use crate::calls::failure::{Failure, Reason};
use crate::config::{AgentCardConfig, ListVersions};
use crate::lock::lock;
use crate::registry::Registry;
use crate::rpc_response::RpcResponse;

/// The state of one server across all its runs.
#[derive(Debug)]
pub(super) struct Lifecycle {
    /// Whether it gets one call at a time.
    pub(super) is_single: bool,
    state: watch::Sender<State>,
    registry: Arc<Registry>,
    health: Health,
    /// The versions of the server's lists when they were last read, in this run or an earlier one.
    versions: Mutex<ListVersions>,
    /// Whether a run has tried to read all lists.
    has_read_lists: AtomicBool,
    pub(super) watched: Arc<Watched>,
    pub(super) log_level: LogLevel,
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

/// The lists of a server whose changes are reported separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Tools,
    Prompts,
    /// Resources and resource templates.
    Resources,
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
/// Maximum number of pages of one of its lists.
const MAX_PAGES: usize = 50;
/// The shortest time between two reads of a server's lists.
const REREAD_PAUSE: Duration = Duration::from_secs(1);
/// The first and the longest pause before a list that could not be read is read again.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(600)];

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
            versions: Mutex::default(),
            has_read_lists: AtomicBool::new(false),
            watched: Arc::default(),
            log_level: LogLevel::default(),
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

    /// Whether its last run is up, and its card has the versions of all lists that can be read. Until then, the versions
    /// differ from those that an earlier process announced, although no list has changed.
    pub(super) fn is_complete(&self) -> bool {
        self.health.is_up() && self.has_read_lists.load(Ordering::Acquire)
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
            true => json!({
                "sampling": {}, "elicitation": { "form": {}, "url": {} }, "roots": {},
            }),
            false => json!({}),
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": abilities,
            "clientInfo": { "name": "a2abus", "version": env!("CARGO_PKG_VERSION") },
        });
        params.to_string()
    }

    /// Accepts calls for a server that has started, and keeps its lists up to date.
    pub(super) async fn serve<T>(&self, link: &Arc<Link>, profile: Box<RawValue>) -> T {
        let card = self.refresh_tools(link, &profile).await;
        let up = RunningServer {
            link: Arc::clone(link),
            profile: profile.clone(),
        };
        self.state.send_replace(State::Up(Arc::new(up)));
        self.health.up();
        tracing::info!(agent = %self.log.agent, "the server of an attached agent is up");
        self.watched.restarted();
        tokio::select! {
            never = self.keep_lists(link, &profile, card) => match never {},
            never = self.settle_subscriptions(link) => match never {},
            never = self.settle_log_level(link) => match never {},
        }
    }

    /// Reads all lists of the server when one has changed, and those that could not be read again after a pause. The
    /// tools were read before: `card` is the result.
    async fn keep_lists(
        &self,
        link: &Arc<Link>,
        profile: &RawValue,
        mut card: Option<AgentCardConfig>,
    ) -> Infallible {
        let mut unread = Vec::new();
        if card.is_none() && card::has(profile, "tools") {
            unread.push(List::Tools);
        }
        let mut wanted = vec![List::Prompts, List::Resources];
        let mut pause = RETRY_PAUSES[0];
        loop {
            let begun = Instant::now();
            for list in wanted {
                unread.retain(|it| *it != list);
                if !self.refresh(list, link, profile, &mut card).await {
                    unread.push(list);
                }
            }
            if let Some(card) = &mut card {
                card.lists = Some(self.versions());
                self.registry.describe(&self.log.agent, card.clone());
            }
            self.has_read_lists.store(true, Ordering::Release);
            if unread.is_empty() {
                pause = RETRY_PAUSES[0];
            }
            // A server that is slow to fail is asked less often.
            let retry = pause.max(begun.elapsed() * 10).min(RETRY_PAUSES[1]);
            let next_read = Instant::now() + REREAD_PAUSE;
            wanted = tokio::select! {
                () = link.lists_changed() => vec![List::Tools, List::Prompts, List::Resources],
                () = sleep(jittered(retry)), if !unread.is_empty() => {
                    pause = (pause * 2).min(RETRY_PAUSES[1]);
                    unread.clone()
                }
            };
            // Many changes in a row cause one read.
            sleep_until(next_read).await;
        }
    }

    /// Asks the server to watch exactly the resources that clients have subscribed to.
    async fn settle_subscriptions(&self, link: &Arc<Link>) -> Infallible {
        loop {
            let demand = self.watched.next_demand().await;
            let (method, uri) = (demand.method(), demand.uri().clone());
            let params = json!({ "uri": uri }).to_string();
            let refused = match timeout(START, link.ask(method, &params)).await {
                Ok(Ok(answer)) => {
                    self.watched.answered(demand);
                    match answer {
                        Ok(answer) => refusal_in(&answer),
                        Err(failure) => Some(failure.message().to_owned()),
                    }
                }
                // The next run is asked again.
                Ok(Err(Disconnected)) => None,
                // To ask again for the end of a subscription would only delay other demands.
                Err(_) if matches!(demand, Demand::Unsubscribe(_)) => {
                    self.watched.answered(demand);
                    Some("it did not answer in time".to_owned())
                }
                Err(_) => Some("it did not answer in time, and is asked again".to_owned()),
            };
            if let Some(why) = refused {
                link.strange(&format!(
                    "an attached server does not accept {method} of {uri:.256}: {why:.256}"
                ));
            }
        }
    }

    /// Tells the server the level of log messages that clients have set in an earlier run, or at another bridge.
    async fn settle_log_level(&self, link: &Arc<Link>) -> Infallible {
        let mut wanted = self.log_level.watch();
        loop {
            let level = wanted.borrow_and_update().clone();
            if let Some(level) = level.filter(|level| !link.has_log_level(level)) {
                link.note_log_level(level.clone());
                let params = log_level::params(&level);
                let refused = match timeout(START, link.ask(SET_LEVEL, &params)).await {
                    Ok(Ok(Ok(answer))) => refusal_in(&answer),
                    Ok(Ok(Err(failure))) => Some(failure.message().to_owned()),
                    // The next run is told.
                    Ok(Err(Disconnected)) => None,
                    Err(_) => Some("it did not answer in time".to_owned()),
                };
                if let Some(why) = refused {
                    link.strange(&format!(
                        "an attached server does not accept {SET_LEVEL} of {level:.64}: {why:.256}"
                    ));
                }
            }
            if wanted.changed().await.is_err() {
                // The server is not used any more.
                return pending().await;
            }
        }
    }

    /// Reads the server's tools and how they may be called, and describes the server. A server that does not list its
    /// tools is up all the same; then there is no description.
    async fn refresh_tools(&self, link: &Arc<Link>, profile: &RawValue) -> Option<AgentCardConfig> {
        let pages = pages_of(link, "tools/list").await?;
        let mut tools = Vec::new();
        for page in &pages {
            let read = card::tools_of(page);
            let read = read.inspect_err(|error| unreadable(link, "tools/list", error));
            tools.extend(read.ok()?);
        }
        self.versions_mut().tools = version(&pages);
        let uses = tools
            .iter()
            .flatten()
            .map(|tool| (tool.name.as_str().into(), tool.usage()));
        link.set_tools(uses.collect());
        let profile = (profile, self.versions());
        let (card, left_out) = card::of_tools(&self.log.agent, profile, tools);
        self.log.leaves_out(&left_out);
        self.registry.describe(&self.log.agent, card.clone());
        Some(card)
    }

    /// Reads a list. No call waits for it. Returns `false` if the server has the list and it could not be read: then
    /// its version stays as it is.
    async fn refresh(
        &self,
        list: List,
        link: &Arc<Link>,
        profile: &RawValue,
        card: &mut Option<AgentCardConfig>,
    ) -> bool {
        match list {
            List::Tools => match self.refresh_tools(link, profile).await {
                Some(read) => *card = Some(read),
                None => return !card::has(profile, "tools"),
            },
            List::Prompts if card::has(profile, "prompts") => {
                let Some(pages) = pages_of(link, "prompts/list").await else {
                    return false;
                };
                self.versions_mut().prompts = version(&pages);
            }
            List::Resources if card::has(profile, "resources") => {
                let Some(mut pages) = pages_of(link, "resources/list").await else {
                    return false;
                };
                let Some(templates) = pages_of(link, "resources/templates/list").await else {
                    return false;
                };
                pages.extend(templates);
                self.versions_mut().resources = version(&pages);
            }
            List::Prompts | List::Resources => {}
        }
        true
    }

    fn versions(&self) -> ListVersions {
        *self.versions_mut()
    }

    fn versions_mut(&self) -> MutexGuard<'_, ListVersions> {
        lock(&self.versions)
    }
}

/// The pages of a list; no pages if the server does not know the method. `None` if the list cannot be read now.
async fn pages_of(link: &Arc<Link>, method: &str) -> Option<Vec<Box<RawValue>>> {
    let Ok(pages) = timeout(START, pages(link, method)).await else {
        link.strange(&format!(
            "an attached server did not answer {method} in time"
        ));
        return None;
    };
    pages
}

async fn pages(link: &Arc<Link>, method: &str) -> Option<Vec<Box<RawValue>>> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(rename = "nextCursor", default)]
        next: Option<Value>,
    }
    let mut pages = Vec::new();
    let mut params = json!({});
    for _ in 0..MAX_PAGES {
        let answer = link.ask(method, &params.to_string()).await.ok()?;
        let result = match answer.map_err(|failure| failure.message().to_owned()) {
            Ok(answer) => result_in(&answer),
            Err(why) => Err(Some(why)),
        };
        let result = match result {
            Ok(result) => result,
            // It has no such lists.
            Err(None) => return Some(pages),
            Err(Some(why)) => {
                link.strange(&format!(
                    "an attached server does not answer {method}: {why:.256}"
                ));
                return None;
            }
        };
        let page: Result<Page, _> = serde_json::from_str(result.get());
        let page = page.inspect_err(|error| unreadable(link, method, error));
        let Page { next } = page.ok()?;
        pages.push(result);
        match next {
            Some(Value::String(next)) if !next.is_empty() => params = json!({ "cursor": next }),
            // Some servers send an empty text with the last page.
            None | Some(Value::String(_)) => return Some(pages),
            Some(_) => {
                link.strange(&format!(
                    "a cursor of {method} of an attached server is not a string: the rest is ignored"
                ));
                return Some(pages);
            }
        }
    }
    link.strange(&format!(
        "{method} of an attached server has more than {MAX_PAGES} pages: the rest is ignored"
    ));
    Some(pages)
}

/// Logs that a page of a list cannot be read.
fn unreadable(link: &Link, method: &str, error: &serde_json::Error) {
    let why = error.to_string();
    link.strange(&format!(
        "a page of {method} of an attached server cannot be read: {why:.256}"
    ));
}

/// The result in an answer, or why it has none: `None` if the server does not know the method.
fn result_in(answer: &[u8]) -> Result<Box<RawValue>, Option<String>> {
    #[derive(Deserialize)]
    struct Answer {
        result: Option<Box<RawValue>>,
        error: Option<RpcError>,
    }
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice(answer) {
        Ok(Answer {
            result: Some(result),
            ..
        }) => Ok(result),
        Ok(Answer {
            error: Some(RpcError { code: -32_601, .. }),
            ..
        }) => Err(None),
        Ok(Answer { error, .. }) => Err(Some(error.map(|it| it.message).unwrap_or_default())),
        Err(error) => Err(Some(error.to_string())),
    }
}

/// The version of a list: a number that depends on its content alone, so that several bridges that attach the same
/// server agree about it. It is exact in JSON.
fn version(pages: &[Box<RawValue>]) -> u64 {
    let hash = pages
        .iter()
        .fold(Sha256::new(), |hash, page| hash.chain_update(page.get()));
    let hash = hash.finalize();
    let first = hash.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(first) >> 11
}

/// The result in an answer to `initialize`.
pub(super) fn profile(answer: &Bytes) -> Result<Box<RawValue>, String> {
    let answer: RpcResponse<'_> = serde_json::from_slice(answer)
        .map_err(|error| format!("its answer to initialize: {error}"))?;
    answer.result.map(ToOwned::to_owned).ok_or_else(|| {
        let error = answer.error.map_or("no result", RawValue::get);
        match has_no_sessions(&answer) {
            true => format!("{NO_SESSIONS} ({error})"),
            false => format!("its answer to initialize: {error}"),
        }
    })
}

/// Why a server that speaks only the newest revision cannot be attached.
const NO_SESSIONS: &str = "it was reached, but it accepts no client of MCP 2025-11-25 or earlier, and the bridge is such a client: let the server accept `initialize` too (in the TypeScript SDK, `legacy: 'stateless'`)";

/// Whether an error for `initialize` says that the server does not know this method or its revisions: MCP 2026-07-28 has
/// no sessions.
fn has_no_sessions(answer: &RpcResponse<'_>) -> bool {
    matches!(answer.code(), Some(-32_022 | -32_601))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_sessions_is_named_with_the_cure() {
        let why = |error: &str| {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":0,"error":{error}}}"#);
            profile(&answer.into()).unwrap_err()
        };
        for error in [
            r#"{"code":-32022,"message":"Unsupported protocol version: 2025-11-25","data":{"supported":["2026-07-28"]}}"#,
            r#"{"code":-32601,"message":"Method not found"}"#,
        ] {
            let why = why(error);
            assert!(why.contains("it was reached"), "{why}");
            assert!(why.contains("let the server accept `initialize`"), "{why}");
            assert!(why.contains(error), "{why}");
        }
        let other = r#"{"code":-32603,"message":"no disk"}"#;
        let expected = format!("its answer to initialize: {other}");
        assert_eq!(why(other), expected);
    }
}
