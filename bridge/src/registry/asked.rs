//! What agents say about themselves when they are asked over the bus: who they are, and their MCP lists.
//!
//! Each is asked at most once in a while, and nobody waits longer than a few seconds for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use a2abus_plugin::{Hint, Text, decode};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::{Agents, Registry};
use crate::calls::failure::{Failure, Reason};
use crate::calls::{Calls, Request};

/// What an agent is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// `initialize`: its name, its capabilities, its instructions.
    Profile,
    /// `tools/list`, and so on.
    Tools,
    Prompts,
    Resources,
    Templates,
}

/// What an agent has said.
#[derive(Debug)]
pub(crate) enum Found {
    /// The items of the list, each as the agent wrote it; of a profile the whole result. Empty where the agent does not
    /// know the question.
    Items(Vec<Box<RawValue>>),
    /// Nothing, and why.
    Nothing(Failure),
}

/// What agents have said, and until when that counts.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashMap<(Text, Question), Known>>);

/// Until when it counts, and what it is.
type Known = (Instant, Arc<Found>);

/// How long one agent may take, and all together.
const EACH: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(5);
/// Agents that are asked at a time.
const AT_A_TIME: usize = 32;
/// How long an answer counts, and how long nobody asks again who did not answer.
const KEPT: Duration = Duration::from_secs(60);
const NOT_AGAIN: Duration = Duration::from_secs(10);
/// Largest answer of one agent that is used, in bytes, and the most pages of it.
const LARGEST: usize = 256 << 10;
const MOST_PAGES: usize = 50;
/// Answers that are kept, at most.
const MOST_KEPT: usize = 4_000;
/// The revision of MCP that agents are asked in.
const REVISION: &str = "2025-11-25";

// === impl Question ===

impl Question {
    fn method(self) -> &'static str {
        match self {
            Self::Profile => "initialize",
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The member of the result that has the list.
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
                "capabilities": { "sampling": {}, "elicitation": {}, "roots": {} },
                "clientInfo": { "name": "a2abus", "version": env!("CARGO_PKG_VERSION") },
            }),
            _ => cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor })),
        };
        let request =
            json!({ "jsonrpc": "2.0", "id": 1, "method": self.method(), "params": params });
        Bytes::from(request.to_string())
    }
}

// === impl Found ===

impl Found {
    /// The items, if the agent has said any.
    pub(crate) fn items(&self) -> &[Box<RawValue>] {
        match self {
            Self::Items(items) => items,
            Self::Nothing(_) => &[],
        }
    }
}

// === impl Registry ===

impl Registry {
    /// What this agent says, as far as it is known, or says so in time.
    pub(crate) async fn asked(
        &self,
        agent: &Text,
        question: Question,
        caller: Text,
    ) -> Option<Arc<Found>> {
        let mut found = self.asked_all(vec![agent.clone()], question, caller).await;
        found.remove(agent)
    }

    /// What these agents say, as far as it is known, or they say so in time.
    pub(crate) async fn asked_all(
        &self,
        names: Vec<Text>,
        question: Question,
        caller: Text,
    ) -> HashMap<Text, Arc<Found>> {
        let mut found: HashMap<Text, Arc<Found>> = HashMap::new();
        let mut unknown = Vec::new();
        for name in names {
            match self.asked.known(&name, question) {
                Some(known) => drop(found.insert(name, known)),
                None => unknown.push(name),
            }
        }
        let Some(calls) = &self.calls else {
            return found;
        };
        let until = Instant::now() + ALL;
        let mut asked = stream::iter(unknown)
            .map(|name| {
                let caller = caller.clone();
                async move {
                    let said = ask(calls, &name, question, caller).await;
                    (name, said)
                }
            })
            .buffer_unordered(AT_A_TIME);
        while let Ok(Some((name, said))) = timeout_at(until, asked.next()).await {
            let said = Arc::new(said.unwrap_or_else(Found::Nothing));
            self.asked.keep(&name, question, &said);
            found.insert(name, said);
        }
        found
    }
}

/// Asks one agent, page after page.
async fn ask(
    calls: &Arc<Calls>,
    agent: &Text,
    question: Question,
    caller: Text,
) -> Result<Found, Failure> {
    let (mut items, mut bytes, mut cursor) = (Vec::new(), 0, None);
    for _ in 0..MOST_PAGES {
        let body = question.body(cursor.as_deref());
        let answer = answer(calls, agent, &body, caller.clone()).await?;
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
    Ok(Found::Items(items))
}

/// The answer of an agent to one request.
async fn answer(
    calls: &Arc<Calls>,
    agent: &Text,
    body: &Bytes,
    caller: Text,
) -> Result<Bytes, Failure> {
    let limits = calls.rules().limits;
    let unit = match decode(body, &Hint::default(), &limits).into_only() {
        Ok(Ok(unit)) => unit,
        Ok(Err(refused)) => return Err(Failure::refused(&refused)),
        Err(_) => return Err(Failure::bad_params("the question cannot be written")),
    };
    let request = Request {
        unit,
        data: None,
        call: None,
        target: Some(agent.clone()),
        timeout: Some(EACH),
        caller,
        headers: Vec::new(),
    };
    let answer = calls.call(request).await;
    let mut answer = answer.map_err(|error| Failure::call(&error))?;
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

/// The items in an answer, and the cursor of the next page. An agent that answers with an error, or with something
/// else, has none.
fn page_of(body: &[u8], question: Question) -> (Vec<Box<RawValue>>, Option<Box<RawValue>>) {
    #[derive(Deserialize)]
    struct Response {
        #[serde(default)]
        result: Option<Box<RawValue>>,
    }
    let response: Option<Response> = serde_json::from_slice(body).ok();
    let Some(result) = response.and_then(|response| response.result) else {
        return (Vec::new(), None);
    };
    if question == Question::Profile {
        return (vec![result], None);
    }
    let members: HashMap<String, Box<RawValue>> =
        serde_json::from_str(result.get()).unwrap_or_default();
    let items = members.get(question.member());
    let items = items.and_then(|items| serde_json::from_str(items.get()).ok());
    let next = members.get("nextCursor").cloned();
    let next = next.filter(|cursor| cursor.get().starts_with('"'));
    (items.unwrap_or_default(), next)
}

// === impl Asked ===

impl Asked {
    fn known(&self, agent: &Text, question: Question) -> Option<Arc<Found>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, found) = kept.get(&(agent.clone(), question))?;
        (Instant::now() < *until).then(|| Arc::clone(found))
    }

    fn keep(&self, agent: &Text, question: Question, found: &Arc<Found>) {
        // A limit of the one who asked says nothing to others.
        if let Found::Nothing(failure) = &**found
            && matches!(failure.reason(), Reason::Exhausted | Reason::RateLimited)
        {
            return;
        }
        let (now, key) = (Instant::now(), (agent.clone(), question));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (until, _)| now < *until);
        }
        if kept.len() < MOST_KEPT || kept.contains_key(&key) {
            let time = match **found {
                Found::Items(_) => KEPT,
                Found::Nothing(_) => NOT_AGAIN,
            };
            kept.insert(key, (now + time, Arc::clone(found)));
        }
    }

    /// Forgets what agents have said whose card is another one now, or who are gone.
    pub(super) fn forget_changed(&self, before: &Agents, now: &Agents) {
        let is_same = |name: &Text| match (before.get(name), now.get(name)) {
            (Some((_, before)), Some((_, now))) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(name, _), _| is_same(name));
    }
}
