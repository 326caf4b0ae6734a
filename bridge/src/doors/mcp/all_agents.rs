//! `/mcp`: all agents as one server. Tools and prompts are named `AGENT.NAME` (or with another separator), and URIs of
//! resources begin with `a2abus://AGENT/`. A request for one of them goes to its agent, with the agent's own name. A
//! name without a separator, or a URI without that scheme, belongs to the default agent, if there is one.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::splice;
use a2abus_plugin::{Text, Unit};
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::envelope::{Params, is_object, text};
use super::post::McpRequest;
use super::skill;
use super::state::Mcp;
use crate::calls::failure::Failure;
use crate::config::{AgentCardConfig, AgentProtocol, SkillConfig};
use crate::doors::rpc::common::Target;
use crate::object::range_of_member;
use crate::registry::Agents;
use crate::registry::queries::AgentQuery;

/// The naming scheme of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming<'s> {
    /// The agent, this separator, and the name: `agent.name`.
    Name(&'s str),
    /// `a2abus://agent/uri`.
    Uri,
}

/// Maximum number of items and of bytes of one page.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 1 << 20;
const SCHEME: &str = "a2abus://";

// === impl Naming ===

impl<'s> Naming<'s> {
    /// The scheme for items that are named by this member.
    fn of(member: &str, separator: &'s str) -> Self {
        match member {
            "name" => Self::Name(separator),
            _ => Self::Uri,
        }
    }

    /// The agent of a name, and the agent's own name. A name that can name no agent belongs to the default agent. One
    /// whose agent is unknown does not: it may be the tool of an agent that was here, or is mistyped.
    fn of_agent<'a>(self, agents: &'a Agents, name: &'a str) -> Option<(&'a str, &'a str)> {
        let named = self.of_known(agents, name);
        named.or_else(|| {
            let default = agents.default_agent()?.as_str();
            (!self.names_an_agent(name)).then_some((default, name))
        })
    }

    /// The agent that a name begins with, and the agent's own name. An agent of the configuration takes precedence: no
    /// agent that announces itself can take over its tools.
    fn of_known<'a>(self, agents: &Agents, name: &'a str) -> Option<(&'a str, &'a str)> {
        let is_known = |agent: &str| agents.get(agent).is_some();
        let is_listed = |agent: &str| is_known(agent) && !agents.is_announced(agent);
        let listed = self.split(name, is_listed);
        listed.or_else(|| self.split(name, is_known))
    }

    /// Whether a name has the form of an agent's name and the agent's own name.
    fn names_an_agent(self, name: &str) -> bool {
        match self {
            Self::Name(separator) => name.contains(separator),
            Self::Uri => name.starts_with(SCHEME),
        }
    }

    fn join(self, agent: &str, name: &str) -> String {
        match self {
            Self::Name(separator) => format!("{agent}{separator}{name}"),
            Self::Uri => format!("{SCHEME}{agent}/{name}"),
        }
    }

    /// Splits a name into the agent and the agent's own name. If several agents match, the longest wins.
    fn split(self, name: &str, is_agent: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
        let (rest, separator) = match self {
            Self::Name(separator) => (name, separator),
            Self::Uri => (name.strip_prefix(SCHEME)?, "/"),
        };
        // Matches may overlap: `a__` and `_tool`.
        let mut matches = rest.char_indices().rev().map(|(at, _)| at);
        let at = matches.find(|at| rest[*at..].starts_with(separator) && is_agent(&rest[..*at]))?;
        Some((&rest[..at], &rest[at + separator.len()..]))
    }

    /// Whether an item can be listed under this name, or why not.
    fn check(
        self,
        name: &str,
        (agent, own): (&str, &str),
        agents: &Agents,
    ) -> Result<(), &'static str> {
        if self != Self::Uri && SkillConfig::check_id(own).is_err() {
            Err("its name is empty, longer than 256 characters, or has a control character")
        } else if self.of_known(agents, name) == Some((agent, own)) {
            Ok(())
        } else {
            Err("its name belongs to another agent")
        }
    }
}

// === impl McpRequest ===

impl McpRequest<'_> {
    pub(super) async fn of_all_agents(self) -> Response {
        let (question, member) = match self.method.as_str() {
            "tools/list" => (AgentQuery::Tools, "name"),
            "prompts/list" => (AgentQuery::Prompts, "name"),
            "resources/list" => (AgentQuery::Resources, "uri"),
            "resources/templates/list" => (AgentQuery::Templates, "uriTemplate"),
            _ => return self.ask_named_agent().await,
        };
        // Boxed, so that it does not enlarge the future of a tool call.
        match Box::pin(self.list(question, member)).await {
            Ok(result) => self.result(&result),
            Err(failure) => self.failed(&failure),
        }
    }

    /// A page of the combined lists of all agents.
    async fn list(&self, question: AgentQuery, member: &str) -> Result<String, Failure> {
        let params = Params::read(&self.unit.bytes)?;
        let start = match params.cursor {
            None => 0,
            Some(cursor) => text(Some(cursor))
                .and_then(|cursor| cursor.parse().ok())
                .ok_or_else(|| Failure::bad_params("this cursor is not from this server"))?,
        };
        let registry = &self.mcp.door.registry;
        let agents = registry.now();
        let is_a2a = |card: &AgentCardConfig| card.speaks() == Some(AgentProtocol::A2a);
        let to_ask = agents.iter().filter(|(_, card)| !is_a2a(card));
        let names = to_ask.map(|(name, _)| name.clone()).collect();
        let caller = self.common.caller.clone();
        let found = registry.queries.all(names, question, caller).await;
        let mut names = HashSet::new();
        let naming = Naming::of(member, &self.mcp.separator);
        let items = agents.iter().flat_map(|(agent, card)| {
            let found = found.get(agent).map(|found| found.items());
            let found = found.unwrap_or_default();
            let own = if found.is_empty() && card.speaks() != Some(AgentProtocol::Mcp) {
                Cow::Owned(skill::items(card, question))
            } else {
                Cow::Borrowed(found)
            };
            let renamed = own
                .iter()
                .filter_map(|item| renamed(agent, item, (member, naming)));
            let listed = renamed.filter_map(|Renamed { own, name, item }| {
                let why = match naming.check(&name, (agent, &own), &agents) {
                    Err(why) => why,
                    Ok(()) if names.contains(&name) => "another one has the same name",
                    Ok(()) => {
                        names.insert(name);
                        return Some(item);
                    }
                };
                self.mcp.note_unlisted(agent, &own, why);
                None
            });
            listed.collect::<Vec<_>>()
        });
        let (mut page, mut next) = (String::new(), None);
        for (index, item) in items.enumerate().skip(start) {
            let is_full = index - start >= PAGE || page.len() + item.len() > PAGE_BYTES;
            if is_full && index > start {
                next = Some(index);
                break;
            }
            if !page.is_empty() {
                page.push(',');
            }
            page.push_str(&item);
        }
        let next = next.map_or(String::new(), |next| format!(r#","nextCursor":"{next}""#));
        let list = question.member();
        Ok(format!(r#"{{"{list}":[{page}]{next}}}"#))
    }

    /// Sends a request to the agent that it names.
    async fn ask_named_agent(mut self) -> Response {
        match self.addressed() {
            Ok((agent, unit)) => {
                self.unit = unit;
                if let Some(agent) = agent {
                    self.common.target = Target::Agent(agent);
                }
                self.call_agent().await
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// The agent of a request, and the request for that agent.
    fn addressed(&self) -> Result<(Option<Text>, Unit), Failure> {
        #[derive(Deserialize)]
        struct Reference<'a> {
            #[serde(default, borrow)]
            name: Option<&'a RawValue>,
            #[serde(default, borrow)]
            uri: Option<&'a RawValue>,
        }
        let bytes = &self.unit.bytes;
        let params = Params::read(bytes)?;
        if params.agent.is_some() {
            // It names its agent itself and is not changed.
            return Ok((None, self.unit.clone()));
        }
        let by_name = Naming::Name(&self.mcp.separator);
        let (named, naming) = match self.method.as_str() {
            "tools/call" | "prompts/get" => (params.name, by_name),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                (params.uri, Naming::Uri)
            }
            "completion/complete" => {
                let reference = params.reference.filter(|raw| is_object(raw));
                let reference =
                    reference.and_then(|raw| serde_json::from_str::<Reference<'_>>(raw.get()).ok());
                match reference {
                    Some(Reference {
                        name: Some(name), ..
                    }) => (Some(name), by_name),
                    Some(Reference { uri, .. }) => (uri, Naming::Uri),
                    None => (None, by_name),
                }
            }
            method => return Err(Failure::unknown_method(method, Vec::new())),
        };
        let name = text(named).unwrap_or_default();
        let agents = self.mcp.door.registry.now();
        let (Some((agent, own)), Some(raw)) = (naming.of_agent(&agents, &name), named) else {
            return Err(unknown(naming, &name));
        };
        let mut edits = vec![(range_of(bytes, raw.get()), json!(own).to_string())];
        // This server offers no tasks. Source: MCP 2025-11-25, tasks: then `task` is ignored.
        if let Some(task) = params.task.filter(|_| self.method == "tools/call") {
            edits.push((range_of_member(bytes, task), String::new()));
        }
        let limits = self.mcp.door.calls.rules().limits;
        let mut unit = self.unit.clone();
        unit.replace(edits, &limits)
            .map_err(|error| Failure::refused(&error))?;
        Ok((Some(agent.into()), unit))
    }
}

// === impl Mcp ===

impl Mcp {
    /// The agent of a resource, and the agent's own URI.
    pub(super) fn split_uri<'a>(agents: &'a Agents, uri: &'a str) -> Option<(&'a str, &'a str)> {
        Naming::Uri.of_agent(agents, uri)
    }

    /// Logs that an item is left out of the lists.
    fn note_unlisted(&self, agent: &Text, name: &str, why: &str) {
        if let Some(suppressed) = self.unlisted.allow() {
            tracing::warn!(%agent, name, why, suppressed, "a tool, prompt or resource is left out of the lists at /mcp");
        }
    }
}

/// A list item, renamed for clients of `/mcp`.
struct Renamed {
    /// The agent's own name of the item.
    own: String,
    name: String,
    item: String,
}

/// Renames an item for clients of `/mcp`; `None` if it has no name.
fn renamed(agent: &str, item: &RawValue, (member, naming): (&str, Naming<'_>)) -> Option<Renamed> {
    let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(item.get()).ok()?;
    let raw = members.get(member)?;
    let own = text(Some(raw))?;
    let name = naming.join(agent, &own);
    let bytes = Bytes::copy_from_slice(item.get().as_bytes());
    let span = range_of(item.get().as_bytes(), raw.get());
    let renamed = splice(&bytes, span, &json!(name).to_string());
    let item = String::from_utf8(renamed.into()).ok()?;
    Some(Renamed { own, name, item })
}

fn unknown(naming: Naming<'_>, name: &str) -> Failure {
    let name: String = name.chars().take(256).collect();
    let form = match naming {
        Naming::Name(separator) => format!("AGENT{separator}NAME"),
        Naming::Uri => "a2abus://AGENT/URI".to_owned(),
    };
    Failure::bad_params(&format!(
        "no agent has {name:?}: names have the form {form}, as in the lists"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_agent_of_a_name_counts() {
        let is_agent = |name: &str| ["a", "a.b", "team/x"].contains(&name);
        let split = |naming: Naming<'_>, name| naming.split(name, is_agent);
        let dot = Naming::Name(".");
        assert_eq!(split(dot, "a.tool"), Some(("a", "tool")));
        assert_eq!(split(dot, "a.b.tool.v1"), Some(("a.b", "tool.v1")));
        assert_eq!(split(dot, "c.tool"), None);
        assert_eq!(split(dot, "tool"), None);
        let line = Naming::Name("__");
        assert_eq!(split(line, "a__tool__v1"), Some(("a", "tool__v1")));
        assert_eq!(split(line, "a_tool"), None);
        assert_eq!(split(line, "a___tool"), Some(("a", "_tool")));
        assert_eq!(line.join("a.b", "tool"), "a.b__tool");
        assert_eq!(split(line, "a.b__tool"), Some(("a.b", "tool")));
        let uri = "a2abus://team/x/file:///etc/motd";
        assert_eq!(
            split(Naming::Uri, uri),
            Some(("team/x", "file:///etc/motd"))
        );
        assert_eq!(split(Naming::Uri, "file:///etc/motd"), None);
        assert_eq!(Naming::Uri.join("team/x", "file:///etc/motd"), uri);
    }

    #[test]
    fn only_the_name_of_an_item_changes() {
        let item = RawValue::from_string(r#"{ "n":1.0, "name" : "x\u0041", "name2":"x" }"#.into());
        let renamed = renamed("agent", &item.unwrap(), ("name", Naming::Name("."))).unwrap();
        assert_eq!(
            renamed.item,
            r#"{ "n":1.0, "name" : "agent.xA", "name2":"x" }"#
        );
        assert_eq!(
            (renamed.own, renamed.name),
            ("xA".into(), "agent.xA".into())
        );
    }
}
