//! Queries to agents over the bus: their profile and their MCP lists.
//!
//! Answers are cached, and a client waits at most a few seconds for all agents.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::{Hint, Text};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::agents::Agents;
use super::marked::MarkedParams;
use super::turns::Turns;
use crate::calls::failure::{Failure, Reason};
use crate::calls::{Answer, Calls, Request};
use crate::lock::lock;
use crate::rpc_response::RpcResponse;

/// A query to an agent about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AgentQuery {
    /// `initialize`: its name, capabilities and instructions.
    Profile,
    /// `tools/list`, and so on.
    Tools,
    Prompts,
    Resources,
    Templates,
}

/// The answer of an agent.
#[derive(Debug)]
pub(crate) enum QueryResult {
    /// The items of the list, unchanged; for a profile the whole result. Empty if the agent does not support the query.
    Items(Vec<Box<RawValue>>),
    /// No answer, and why.
    Nothing(Failure),
}

/// Queries agents, and keeps their answers.
#[derive(Debug)]
pub(crate) struct AgentQueries {
    /// `None` if calls are disabled.
    calls: Option<Arc<Calls>>,
    cache: Mutex<AnswerCache>,
    /// Only one task queries an agent at a time; others wait for its answer.
    turns: Turns<QueryKey>,
}

/// An agent and a query.
type QueryKey = (Text, AgentQuery);

/// The answers of agents, bounded in bytes.
#[derive(Debug, Default)]
struct AnswerCache {
    known: HashMap<QueryKey, CachedAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct CachedAnswer {
    /// When it expires.
    until: Instant,
    found: Arc<QueryResult>,
    /// The marked parameters of its tools; `None` if it marks none.
    marked: Option<Arc<MarkedParams>>,
    bytes: usize,
}

/// How long a query may take, for one agent and for all together.
pub(super) const AGENT_TIMEOUT: Duration = Duration::from_secs(2);
const TOTAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of agents that are queried concurrently.
const MAX_CONCURRENT: usize = 32;
/// How long an answer is cached, and how long an agent that did not answer is not queried again.
const CACHE_TTL: Duration = Duration::from_secs(60);
const NOT_AGAIN: Duration = Duration::from_secs(10);
/// Largest answer of one agent, in bytes, and most pages.
const LARGEST: usize = 256 << 10;
const MAX_PAGES: usize = 50;
/// Maximum number of bytes in the cache, and the overhead of one answer.
const MAX_BYTES: usize = 32 << 20;
const ANSWER_BYTES: usize = 512;
/// The MCP revision of queries.
const REVISION: &str = "2025-11-25";

// === impl AgentQuery ===

impl AgentQuery {
    fn method(self) -> &'static str {
        match self {
            Self::Profile => "initialize",
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The member of the result that contains the list.
    pub(crate) fn member(self) -> &'static str {
        match self {
            Self::Profile => "",
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    fn body(self, cursor: Option<&RawValue>) -> Bytes {
        let params = match self {
            Self::Profile => json!({
                "protocolVersion": REVISION,
                "capabilities": { "sampling": {}, "elicitation": { "form": {}, "url": {} }, "roots": {} },
                "clientInfo": { "name": "a2abus", "version": env!("CARGO_PKG_VERSION") },
            }),
            _ => cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor })),
        };
        let request =
            json!({ "jsonrpc": "2.0", "id": 1, "method": self.method(), "params": params });
        Bytes::from(request.to_string())
    }
}

// === impl QueryResult ===

impl QueryResult {
    /// The items, if the agent has answered.
    pub(crate) fn items(&self) -> &[Box<RawValue>] {
        match self {
            Self::Items(items) => items,
            Self::Nothing(_) => &[],
        }
    }

    /// Its approximate size in memory.
    fn bytes(&self) -> usize {
        let items = self.items().iter();
        let items = items.map(|item| size_of::<Box<RawValue>>() + item.get().len());
        ANSWER_BYTES + items.sum::<usize>()
    }
}

/// Queries one agent, page by page.
async fn ask(
    calls: &Arc<Calls>,
    agent: &Text,
    question: AgentQuery,
    caller: Text,
) -> Result<QueryResult, Failure> {
    let (mut items, mut bytes, mut cursor) = (Vec::new(), 0, None);
    for _ in 0..MAX_PAGES {
        let body = question.body(cursor.as_deref());
        let mut answer = called(calls, agent, &body, caller.clone()).await?;
        answer.set_own();
        let answer = last_of(answer).await?;
        bytes += answer.len();
        if bytes > LARGEST {
            let message = format!(
                "its answer to {} has more than {LARGEST} bytes",
                question.method()
            );
            return Err(Failure::new(Reason::BadAgentReply, message));
        }
        let (page, next) = page_of(&answer, question);
        items.extend(page);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    Ok(QueryResult::Items(items))
}

/// Sends one request to an agent.
async fn called(
    calls: &Arc<Calls>,
    agent: &Text,
    body: &Bytes,
    caller: Text,
) -> Result<Answer, Failure> {
    let unit = calls.unit_of(body, &Hint::default())?;
    let request = Request {
        arrived: std::time::Instant::now(),
        unit,
        data: None,
        call: None,
        target: Some(agent.clone()),
        timeout: Some(AGENT_TIMEOUT),
        bounds_first_part: false,
        accepts_parts: None,
        caller,
        key: None,
        headers: Vec::new(),
    };
    let answer = calls.call(request).await;
    answer.map_err(|error| Failure::call(&error))
}

/// The last part of an answer.
async fn last_of(mut answer: Answer) -> Result<Bytes, Failure> {
    loop {
        match answer.next().await {
            Some(Ok(part)) if part.last => return Ok(part.body),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(Failure::call(&error)),
            None => {
                let message = "its answer ended without a result";
                return Err(Failure::new(Reason::BadAgentReply, message));
            }
        }
    }
}

/// The items in an answer, and the cursor of the next page. Both are empty if the answer is an error or is not a list.
fn page_of(body: &[u8], question: AgentQuery) -> (Vec<Box<RawValue>>, Option<Box<RawValue>>) {
    let Some(result) = RpcResponse::of(body).result else {
        return (Vec::new(), None);
    };
    if question == AgentQuery::Profile {
        return (vec![result.to_owned()], None);
    }
    let members: HashMap<String, Box<RawValue>> =
        serde_json::from_str(result.get()).unwrap_or_default();
    let items = members.get(question.member());
    let items = items.and_then(|items| serde_json::from_str(items.get()).ok());
    let next = members.get("nextCursor").cloned();
    // Many servers write an empty cursor on the last page.
    let next = next.filter(|cursor| cursor.get().starts_with('"') && cursor.get() != "\"\"");
    (items.unwrap_or_default(), next)
}

// === impl AgentQueries ===

impl AgentQueries {
    pub(super) fn new(calls: Option<Arc<Calls>>) -> Self {
        Self {
            calls,
            cache: Mutex::default(),
            turns: Turns::default(),
        }
    }

    /// The answer of this agent, from the cache or if it arrives in time.
    pub(crate) async fn one(
        &self,
        agent: &Text,
        question: AgentQuery,
        caller: Text,
    ) -> Option<Arc<QueryResult>> {
        if let Some(cached) = self.cached(agent, question) {
            return Some(cached);
        }
        let mut found = self.all(vec![agent.clone()], question, caller).await;
        found.remove(agent)
    }

    /// The answers of these agents, from the cache or if they arrive in time.
    pub(crate) async fn all(
        &self,
        names: Vec<Text>,
        question: AgentQuery,
        caller: Text,
    ) -> HashMap<Text, Arc<QueryResult>> {
        let mut found: HashMap<Text, Arc<QueryResult>> = HashMap::new();
        let mut unknown = Vec::new();
        for name in names {
            match self.cached(&name, question) {
                Some(known) => drop(found.insert(name, known)),
                None => unknown.push(name),
            }
        }
        let Some(calls) = &self.calls else {
            return found;
        };
        let until = Instant::now() + TOTAL_TIMEOUT;
        let mut answers = stream::iter(unknown)
            .map(|name| async {
                let caller = caller.clone();
                let answer = self.in_turn(&name, question, ask(calls, &name, question, caller));
                let answer = answer.await;
                (name, answer)
            })
            .buffer_unordered(MAX_CONCURRENT);
        while let Ok(Some((name, answer))) = timeout_at(until, answers.next()).await {
            found.insert(name, answer);
        }
        found
    }

    /// Sends a request of the bridge itself to an agent.
    ///
    /// # Errors
    /// When the agent answers with an error, or not in time.
    pub(crate) async fn request(
        &self,
        agent: &Text,
        method: &str,
        params: &Value,
        caller: Text,
    ) -> Result<(), Failure> {
        let disabled = || Failure::new(Reason::AgentUnavailable, "calls are disabled");
        let calls = self.calls.as_ref().ok_or_else(disabled)?;
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let body = Bytes::from(request.to_string());
        let answered = last_of(called(calls, agent, &body, caller).await?).await?;
        match serde_json::from_slice(&answered) {
            Ok(RpcResponse { error: None, .. }) => Ok(()),
            Ok(RpcResponse {
                error: Some(error), ..
            }) => {
                let message = format!("the agent answered {error}");
                Err(Failure::new(Reason::BadAgentReply, message))
            }
            Err(error) => Err(Failure::new(Reason::BadAgentReply, error.to_string())),
        }
    }

    fn cache(&self) -> MutexGuard<'_, AnswerCache> {
        lock(&self.cache)
    }

    fn cached(&self, agent: &Text, question: AgentQuery) -> Option<Arc<QueryResult>> {
        let cache = self.cache();
        let known = cache.known.get(&(agent.clone(), question))?;
        (Instant::now() < known.until).then(|| Arc::clone(&known.found))
    }

    /// The marked parameters of an agent's tools. `None` if its list is not cached, or marks none.
    pub(crate) fn marked_params(&self, agent: &Text) -> Option<Arc<MarkedParams>> {
        let cache = self.cache();
        let known = cache.known.get(&(agent.clone(), AgentQuery::Tools))?;
        let marked = known.marked.as_ref()?;
        (Instant::now() < known.until).then(|| Arc::clone(marked))
    }

    /// Waits until no other task runs the same query, then runs it unless the answer is cached by then.
    async fn in_turn(
        &self,
        agent: &Text,
        question: AgentQuery,
        ask: impl Future<Output = Result<QueryResult, Failure>>,
    ) -> Arc<QueryResult> {
        let turn = self.turns.of((agent.clone(), question));
        let _turn = turn.lock().await;
        if let Some(known) = self.cached(agent, question) {
            return known;
        }
        let found = Arc::new(ask.await.unwrap_or_else(QueryResult::Nothing));
        // A limit of this caller does not apply to others.
        let is_of_caller = matches!(&*found, QueryResult::Nothing(failure)
            if matches!(failure.reason(), Reason::Exhausted | Reason::RateLimited));
        if !is_of_caller {
            let tools = (question == AgentQuery::Tools).then(|| found.items());
            // Before the cache is locked, because each call of a tool looks into it.
            let marked = tools.and_then(MarkedParams::of).map(Arc::new);
            self.cache().keep((agent.clone(), question), &found, marked);
        }
        found
    }

    /// Removes the answers of agents that are gone or whose card has changed.
    pub(super) fn forget_changed(&self, before: &Agents, now: &Agents) {
        let is_same = |name: &Text| match (before.get(name), now.get(name)) {
            (Some((_, before)), Some((_, now))) => before == now,
            (before, now) => before.is_none() && now.is_none(),
        };
        self.cache().retain(|(name, _), _| is_same(name));
    }
}

// === impl AnswerCache ===

impl AnswerCache {
    /// Caches an answer. If there is no room, removes those that expire first.
    fn keep(&mut self, key: QueryKey, found: &Arc<QueryResult>, marked: Option<Arc<MarkedParams>>) {
        let of_marks = marked.as_ref().map_or(0, |marked| marked.bytes());
        let (now, bytes) = (Instant::now(), found.bytes() + of_marks);
        self.retain(|known, answer| *known != key && now < answer.until);
        while self.bytes + bytes > MAX_BYTES {
            let first = self.known.iter().min_by_key(|(_, known)| known.until);
            let Some(first) = first.map(|(key, _)| key.clone()) else {
                return;
            };
            self.retain(|key, _| *key != first);
        }
        let time = match **found {
            QueryResult::Items(_) => CACHE_TTL,
            QueryResult::Nothing(_) => NOT_AGAIN,
        };
        self.bytes += bytes;
        let known = CachedAnswer {
            until: now + time,
            found: Arc::clone(found),
            marked,
            bytes,
        };
        self.known.insert(key, known);
    }

    fn retain(&mut self, stays: impl Fn(&QueryKey, &CachedAnswer) -> bool) {
        self.known.retain(|key, known| stays(key, known));
        self.bytes = self.known.values().map(|known| known.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_answers_is_limited_in_bytes() {
        let mut answers = AnswerCache::default();
        let item = RawValue::from_string(format!("\"{}\"", "x".repeat(LARGEST - 2))).unwrap();
        let found = Arc::new(QueryResult::Items(vec![item]));
        for agent in 0..4_000 {
            let key = (Text::from(format!("a-{agent}")), AgentQuery::Tools);
            answers.keep(key, &found, None);
            assert!(answers.bytes <= MAX_BYTES);
        }
        assert_eq!(answers.bytes, answers.known.len() * found.bytes());
        assert!(answers.known.len() > 100);
        assert!(
            answers
                .known
                .contains_key(&("a-3999".into(), AgentQuery::Tools))
        );
        assert!(
            !answers
                .known
                .contains_key(&("a-0".into(), AgentQuery::Tools))
        );
    }
}
