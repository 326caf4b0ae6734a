//! `methods/list`: the methods of one agent or of all agents.
//!
//! The methods are the skills in the cards, and the tools of MCP agents. MCP agents are queried over the bus. Their
//! answers are cached, and a client waits at most a few seconds for all of them.

use std::collections::HashSet;
use std::sync::Arc;

use a2abus_plugin::Text;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::queries::{AGENT_TIMEOUT, AgentQuery, QueryResult};
use super::request::Params;
use super::{AnnouncementError, Registry, RequestOrigin};
use crate::calls::UNKNOWN_CALLER;
use crate::calls::failure::{Failure, Reason};
use crate::config::AgentCardConfig;

/// A method.
#[derive(Debug, Serialize)]
struct Callable {
    agent: Text,
    method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    skill: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<Box<RawValue>>,
}

// === impl Registry ===

impl Registry {
    /// The methods of the agent that the parameters name, or of all agents.
    pub(super) async fn methods(
        &self,
        params: &Params,
        origin: &RequestOrigin,
    ) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Answer {
            methods: Vec<Callable>,
            /// Agents that did not answer the query for their tools.
            unavailable: Vec<serde_json::Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_offset: Option<usize>,
        }
        let agents = self.now();
        let (limit, offset) = params.page()?;
        let selected: Vec<(Text, Arc<AgentCardConfig>)> = match &params.agent_id {
            Some(name) => {
                let unknown = || AnnouncementError::Unknown(name.as_str().into());
                let (name, shown) = agents.get(name).ok_or_else(unknown)?;
                vec![(name.clone(), Arc::clone(shown))]
            }
            None => {
                let page = agents.iter().skip(offset).take(limit);
                page.map(|(name, shown)| (name.clone(), Arc::clone(shown)))
                    .collect()
            }
        };
        let names = selected.iter().map(|(name, _)| name.clone()).collect();
        let caller = origin.caller.clone();
        let caller = caller.unwrap_or(Text::from_static(UNKNOWN_CALLER));
        let found = self.queries.all(names, AgentQuery::Tools, caller).await;
        let mut answer = Answer {
            methods: Vec::new(),
            unavailable: Vec::new(),
            next_offset: None,
        };
        let mut bytes = 0;
        for (index, (name, shown)) in selected.iter().enumerate() {
            let (callable, reason) = callable(name, shown, found.get(name).map(|it| &**it));
            let parts = callable
                .iter()
                .flat_map(|one| one.skill.iter().chain(&one.tool));
            bytes += parts.map(|raw| raw.get().len() + 64).sum::<usize>();
            if bytes > origin.page_bytes() && index > 0 {
                answer.next_offset = Some(offset + index);
                break;
            }
            answer.methods.extend(callable);
            if let Some(reason) = reason {
                let entry = json!({ "agent": name.as_str(), "reason": reason });
                answer.unavailable.push(entry);
            }
        }
        let reached = offset.saturating_add(selected.len());
        let total = agents.iter().count();
        if params.agent_id.is_none() && answer.next_offset.is_none() && reached < total {
            answer.next_offset = Some(reached);
        }
        serde_json::to_string(&answer).map_err(|error| Failure::bad_params(&error.to_string()))
    }
}

/// The methods of an agent, and why the list may be incomplete.
fn callable(
    name: &Text,
    shown: &AgentCardConfig,
    found: Option<&QueryResult>,
) -> (Vec<Callable>, Option<String>) {
    let of = |method, skill, tool| Callable {
        agent: name.clone(),
        method,
        skill,
        tool,
    };
    let names = found.map(tool_names).unwrap_or_default();
    // The card of an MCP server lists its tools as skills, but they are called as tools.
    let skills = shown
        .skills
        .iter()
        .filter(|skill| !names.contains(&skill.id));
    let skills = skills.filter_map(|skill| {
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
        Some(QueryResult::Items(tools)) => {
            let tools = tools.iter().cloned();
            all.extend(tools.map(|tool| of("tools/call", None, Some(tool))));
            None
        }
        // The caller cannot wait longer: the timeout of its own call does not count here.
        Some(QueryResult::Nothing(failure)) if failure.reason() == Reason::Timeout => Some(
            format!("it did not answer tools/list within {AGENT_TIMEOUT:?}"),
        ),
        Some(QueryResult::Nothing(failure)) => Some(failure.message().to_owned()),
        None => Some("its tools were not queried in time".to_owned()),
    };
    if all.is_empty() && reason.is_none() {
        all.push(of("message/send", None, None));
    }
    (all, reason)
}

/// The names of the tools that an agent has.
fn tool_names(found: &QueryResult) -> HashSet<String> {
    #[derive(Deserialize)]
    struct Tool {
        name: String,
    }
    let tools = found.items().iter();
    let tools = tools.filter_map(|tool| serde_json::from_str::<Tool>(tool.get()).ok());
    tools.map(|tool| tool.name).collect()
}
