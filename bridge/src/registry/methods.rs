//! `methods/list`: what can be called, of one agent or of all.
//!
//! The skills of the cards, and the tools of MCP agents: those are asked over the bus, each at most once in a while, and
//! nobody waits longer than a few seconds for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use a2abus_plugin::{Hint, Text, decode};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::request::Params;
use super::{Origin, Refused, Registry};
use crate::calls::failure::Failure;
use crate::calls::{Calls, Request, UNKNOWN_CALLER};
use crate::config::AgentCardConfig;

/// What agents have said about their tools, and until when that counts.
#[derive(Debug, Default)]
pub(super) struct Tools(Mutex<HashMap<Text, (Instant, Arc<Found>)>>);

/// What an agent has said about its tools.
#[derive(Debug)]
enum Found {
    /// These, each as MCP describes it; none of an agent that does not know the question.
    Tools(Vec<Box<RawValue>>),
    /// Nothing, and why.
    Nothing(String),
}

/// Something that can be called.
#[derive(Debug, Serialize)]
struct Callable {
    agent: Text,
    method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    skill: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<Box<RawValue>>,
}

/// How long one agent may take, and all together.
const EACH: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(5);
/// Agents that are asked at a time.
const AT_A_TIME: usize = 32;
/// How long tools are believed, and how long nobody asks again who did not answer.
const KEPT: Duration = Duration::from_secs(60);
const NOT_AGAIN: Duration = Duration::from_secs(10);
/// Largest answer of one agent that is used, in bytes.
const LARGEST: usize = 256 << 10;
/// Agents whose tools are kept, at most, and bytes of one answer.
const MOST_KEPT: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

// === impl Registry ===

impl Registry {
    /// What can be called, of the agent that the parameters name, or of all.
    pub(super) async fn methods(
        &self,
        params: &Params,
        origin: &Origin,
    ) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Answer {
            methods: Vec<Callable>,
            /// Agents that did not say whether they have tools.
            unavailable: Vec<serde_json::Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_offset: Option<usize>,
        }
        let agents = self.now();
        let (limit, offset) = params.page()?;
        let wanted: Vec<(Text, Arc<AgentCardConfig>)> = match &params.agent_id {
            Some(name) => {
                let found = agents.get(name);
                let (name, shown) = found.ok_or_else(|| Refused::Unknown(name.as_str().into()))?;
                vec![(name.clone(), Arc::clone(shown))]
            }
            None => {
                let page = agents.iter().skip(offset).take(limit);
                page.map(|(name, shown)| (name.clone(), Arc::clone(shown)))
                    .collect()
            }
        };
        let names = wanted.iter().map(|(name, _)| name.clone()).collect();
        let found = self.tools_of(names, origin).await;
        let mut answer = Answer {
            methods: Vec::new(),
            unavailable: Vec::new(),
            next_offset: None,
        };
        let mut bytes = 0;
        for (index, (name, shown)) in wanted.iter().enumerate() {
            let (callable, reason) = callable(name, shown, found.get(name).map(|it| &**it));
            let parts = callable
                .iter()
                .flat_map(|one| one.skill.iter().chain(&one.tool));
            bytes += parts.map(|raw| raw.get().len() + 64).sum::<usize>();
            if bytes > MOST_BYTES && index > 0 {
                answer.next_offset = Some(offset + index);
                break;
            }
            answer.methods.extend(callable);
            if let Some(reason) = reason {
                let entry = json!({ "agent": name.as_str(), "reason": reason });
                answer.unavailable.push(entry);
            }
        }
        let reached = offset.saturating_add(wanted.len());
        let total = agents.iter().count();
        if params.agent_id.is_none() && answer.next_offset.is_none() && reached < total {
            answer.next_offset = Some(reached);
        }
        serde_json::to_string(&answer).map_err(|error| Failure::bad_params(&error.to_string()))
    }

    /// The tools of these agents, as far as they are known, or say so in time.
    async fn tools_of(&self, names: Vec<Text>, origin: &Origin) -> HashMap<Text, Arc<Found>> {
        let mut found: HashMap<Text, Arc<Found>> = HashMap::new();
        let mut unknown = Vec::new();
        for name in names {
            match self.tools.known(&name) {
                Some(known) => drop(found.insert(name, known)),
                None => unknown.push(name),
            }
        }
        let Some(calls) = &self.calls else {
            return found;
        };
        let until = Instant::now() + ALL;
        let caller = origin
            .caller
            .clone()
            .unwrap_or(Text::from_static(UNKNOWN_CALLER));
        let mut asked = stream::iter(unknown)
            .map(|name| {
                let caller = caller.clone();
                async move {
                    let tools = ask(calls, &name, caller).await;
                    (name, tools)
                }
            })
            .buffer_unordered(AT_A_TIME);
        while let Ok(Some((name, tools))) = timeout_at(until, asked.next()).await {
            let tools = Arc::new(tools);
            self.tools.keep(&name, &tools);
            found.insert(name, tools);
        }
        found
    }
}

/// What an agent can be called for, and why that may not be all.
fn callable(
    name: &Text,
    shown: &AgentCardConfig,
    found: Option<&Found>,
) -> (Vec<Callable>, Option<String>) {
    let of = |method, skill, tool| Callable {
        agent: name.clone(),
        method,
        skill,
        tool,
    };
    let skills = shown.skills.iter().filter_map(|skill| {
        let skill = json!({
            "id": skill.id,
            "name": skill.name.as_deref().unwrap_or(&skill.id),
            "description": skill.description,
            "tags": skill.tags,
        });
        RawValue::from_string(skill.to_string()).ok()
    });
    let mut all: Vec<Callable> = skills
        .map(|skill| of("message/send", Some(skill), None))
        .collect();
    let reason = match found {
        Some(Found::Tools(tools)) => {
            let tools = tools.iter().cloned();
            all.extend(tools.map(|tool| of("tools/call", None, Some(tool))));
            None
        }
        Some(Found::Nothing(reason)) => Some(reason.clone()),
        None => Some("it was not asked for its tools in time".to_owned()),
    };
    if all.is_empty() && reason.is_none() {
        all.push(of("message/send", None, None));
    }
    (all, reason)
}

/// Asks one agent for its tools.
async fn ask(calls: &Arc<Calls>, agent: &Text, caller: Text) -> Found {
    let nothing = |reason: &dyn std::fmt::Display| Found::Nothing(reason.to_string());
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#);
    let limits = calls.rules().limits;
    let unit = match decode(&body, &Hint::default(), &limits).into_only() {
        Ok(Ok(unit)) => unit,
        Ok(Err(refused)) => return nothing(&refused.error),
        Err(_) => return nothing(&"the question cannot be written"),
    };
    let request = Request {
        unit,
        call: None,
        target: Some(agent.clone()),
        timeout: Some(EACH),
        caller,
        headers: Vec::new(),
    };
    let mut answer = match calls.call(request).await {
        Ok(answer) => answer,
        Err(error) => return nothing(&error),
    };
    loop {
        match answer.next().await {
            Some(Ok(part)) if part.last => return tools_in(&part.body),
            Some(Ok(_)) => {}
            Some(Err(error)) => return nothing(&error),
            None => return nothing(&"its answer ended without a result"),
        }
    }
}

/// The tools in an answer to `tools/list`. An agent that answers with an error, or with something else, has none.
fn tools_in(body: &[u8]) -> Found {
    #[derive(Deserialize)]
    struct Response {
        #[serde(default)]
        result: Option<Listed>,
    }
    #[derive(Deserialize)]
    struct Listed {
        #[serde(default)]
        tools: Vec<Box<RawValue>>,
    }
    if body.len() > LARGEST {
        return Found::Nothing(format!("its list of tools has more than {LARGEST} bytes"));
    }
    let response: Option<Response> = serde_json::from_slice(body).ok();
    let listed = response.and_then(|response| response.result);
    Found::Tools(listed.map(|listed| listed.tools).unwrap_or_default())
}

// === impl Tools ===

impl Tools {
    fn known(&self, agent: &Text) -> Option<Arc<Found>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, found) = kept.get(agent)?;
        (Instant::now() < *until).then(|| Arc::clone(found))
    }

    fn keep(&self, agent: &Text, found: &Arc<Found>) {
        let now = Instant::now();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (until, _)| now < *until);
        }
        if kept.len() < MOST_KEPT || kept.contains_key(agent) {
            let time = match **found {
                Found::Tools(_) => KEPT,
                Found::Nothing(_) => NOT_AGAIN,
            };
            kept.insert(agent.clone(), (now + time, Arc::clone(found)));
        }
    }
}
