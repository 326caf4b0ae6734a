//! Requests to the registry: `agent/card/register|update|get|delete|list` and `methods/list`, from HTTP or the bus.
//!
//! Source: docs/protocols/eventmesh-a2a.md §4.

use std::sync::Arc;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::announcement::ANY;
use super::card::{AGENT_NAME, about};
use super::{
    Agents, AnnouncedAgent, Announcement, AnnouncementError, Owner, Registry, RequestOrigin,
};
use crate::calls::failure::{Failure, Reason};
use crate::clock;
use crate::config::AgentCardConfig;
use crate::metrics::RegistryEvent;
use crate::route::Destination;
use crate::state::StateError;

/// The methods of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Register,
    Update,
    Get,
    Delete,
    List,
    /// `methods/list`.
    Methods,
}

/// The parameters of all methods.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Params {
    #[serde(default)]
    pub(crate) org_id: Option<String>,
    #[serde(default)]
    pub(crate) unit_id: Option<String>,
    #[serde(default)]
    pub(crate) agent_id: Option<String>,
    /// The agent, under the name that other methods use.
    #[serde(default, rename = "_agentId")]
    target: Option<String>,
    #[serde(default)]
    card: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "crate::count::read")]
    pub(crate) limit: Option<usize>,
    #[serde(default, deserialize_with = "crate::count::read")]
    pub(crate) offset: Option<usize>,
}

/// An agent in a list.
#[derive(Debug, Serialize)]
struct AgentEntry {
    agent_id: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    org_id: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_id: Option<Text>,
    /// `configuration` or `announced`.
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<Text>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Text>,
    /// Whether its server can be reached, if this bridge has attached it.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<bool>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Text>,
    card: Box<RawValue>,
}

/// Entries of one page: the default and the maximum.
const PAGE: (usize, usize) = (100, 1_000);
/// What an entry takes besides its card, in bytes.
const ENTRY_BYTES: usize = 256;

// === impl Method ===

impl Method {
    /// The method with this name, if the registry has it.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "agent/card/register" => Self::Register,
            "agent/card/update" => Self::Update,
            "agent/card/get" => Self::Get,
            "agent/card/delete" => Self::Delete,
            "agent/card/list" => Self::List,
            "methods/list" => Self::Methods,
            _ => return None,
        })
    }

    /// Whether it changes the registry.
    pub(crate) fn is_change(self) -> bool {
        matches!(self, Self::Register | Self::Update | Self::Delete)
    }
}

// === impl Registry ===

impl Registry {
    /// The result of a request, as JSON. `named` is the agent in the path of the URL, which takes precedence.
    ///
    /// # Errors
    /// Why the request failed.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        method: Method,
        params: Option<&RawValue>,
        named: Option<&str>,
        origin: RequestOrigin,
    ) -> Result<String, Failure> {
        let params = params.map_or("{}", RawValue::get);
        let params: Option<Params> = serde_json::from_str(params)
            .map_err(|error| Failure::bad_params(&error.to_string()))?;
        let mut params = params.unwrap_or_default();
        if let Some(named) = named {
            params.agent_id = Some(named.to_owned());
        }
        params.agent_id = params.agent_id.or(params.target.take());
        match method {
            Method::Register => self.registered(&params, origin).await,
            Method::Update => {
                let agent = params.agent()?;
                if self.announced(&agent).is_none() {
                    let (claim, why) = (params.claim(origin)?, AnnouncementError::Unknown(agent));
                    self.done(&claim, None, Some(&why), RegistryEvent::Registered)
                        .await;
                    return Err(why.into());
                }
                self.registered(&params, origin).await
            }
            Method::Delete => {
                let claim = params.claim(origin)?;
                self.remove(&claim).await?;
                Ok(json!({ "agent_id": claim.agent.as_deref(), "deleted": true }).to_string())
            }
            Method::Get => {
                let (agents, agent) = (self.now(), params.agent()?);
                let is_taken = params.takes(&self.owner_of(&agents, &agent));
                let entry = self.entry(&agents, &agent).filter(|_| is_taken);
                let (org, unit) = (params.org_id.as_deref(), params.unit_id.as_deref());
                let unknown = || AnnouncementError::unknown_in(agent.clone(), org, unit);
                let entry = entry.ok_or_else(unknown)?;
                serde_json::to_string(&entry).map_err(|error| unwritable(&error))
            }
            Method::List => self.list(&params, &origin),
            Method::Methods => self.methods(&params, &origin).await,
        }
    }

    async fn registered(
        self: &Arc<Self>,
        params: &Params,
        origin: RequestOrigin,
    ) -> Result<String, Failure> {
        let card = params.card.as_ref();
        let card = card.ok_or_else(|| Failure::bad_params("card is missing"))?;
        let card = Bytes::copy_from_slice(card.get().as_bytes());
        let claim = params.claim(origin)?;
        let (agent, announced) = self.register(&card, &claim).await?;
        Ok(self.receipt(&agent, &announced))
    }

    /// The answer to an announcement.
    pub(crate) fn receipt(&self, agent: &str, announced: &AnnouncedAgent) -> String {
        let expires = clock::rfc3339(clock::since_1970(self.expires(announced)));
        let is_listed = !self.now().is_announced(agent);
        let status = if is_listed { "listed" } else { "registered" };
        json!({ "agent_id": agent, "status": status, "expires_at": expires.as_str() }).to_string()
    }

    /// All agents that match the parameters, ordered by name.
    pub(crate) fn list(&self, params: &Params, origin: &RequestOrigin) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Page {
            cards: Vec<AgentEntry>,
            total: usize,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_offset: Option<usize>,
        }
        params.check(true)?;
        let (limit, offset) = params.page()?;
        let agents = self.now();
        let agent = params.agent_id.as_deref().filter(|agent| *agent != ANY);
        let names = agents.iter().map(|(name, _)| name);
        let named = names.filter(|name| agent.is_none_or(|agent| name.as_str() == agent));
        let found: Vec<&Text> = match params.takes_any() {
            true => named.collect(),
            false => named
                .filter(|name| params.takes(&self.owner_of(&agents, name)))
                .collect(),
        };
        let total = found.len();
        // Only the cards of this page are read.
        let (mut cards, mut bytes, mut reached) = (Vec::new(), 0, offset);
        for name in found.into_iter().skip(offset).take(limit) {
            let entry = self.entry(&agents, name);
            let size = |entry: &AgentEntry| entry.card.get().len() + ENTRY_BYTES;
            bytes += entry.as_ref().map_or(0, size);
            if bytes > origin.page_bytes() && !cards.is_empty() {
                break;
            }
            cards.extend(entry);
            reached += 1;
        }
        let page = Page {
            next_offset: (reached < total).then_some(reached),
            cards,
            total,
        };
        serde_json::to_string(&page).map_err(|error| unwritable(&error))
    }

    /// The owner of an agent. An agent of the configuration has none.
    fn owner_of(&self, agents: &Agents, agent: &str) -> Owner {
        let announced = agents.is_announced(agent).then(|| self.announced(agent));
        let owner = announced.flatten().map(|announced| announced.owner);
        owner.unwrap_or_default()
    }

    /// The list entry of an agent.
    fn entry(&self, agents: &Agents, agent: &str) -> Option<AgentEntry> {
        let (name, shown) = agents.get(agent)?;
        let announced = agents.is_announced(agent).then(|| self.announced(agent));
        let Some(announced) = announced.flatten() else {
            let card = listed_card(name, shown);
            let place = shown.to.as_ref();
            return Some(AgentEntry {
                agent_id: name.clone(),
                org_id: None,
                unit_id: None,
                source: "configuration",
                transport: place.map(|to| to.transport.text().clone()),
                topic: place.map(|to| to.topic.0.to_string().into()),
                expires_at: None,
                available: agents.available(name),
                cause: agents.away(name).cloned(),
                card: RawValue::from_string(card.to_string()).ok()?,
            });
        };
        // Without a transport of its own, an agent has the first of `registry.destinations`.
        let routed = agents
            .agents
            .get(name)
            .and_then(|agent| agent.route.as_ref());
        let routed = routed.and_then(|route| route.destinations().first());
        let transport = announced.transport().or(routed.map(Destination::transport));
        let expires = clock::since_1970(self.expires(&announced));
        let document = std::str::from_utf8(&announced.document).ok()?;
        Some(AgentEntry {
            agent_id: name.clone(),
            source: "announced",
            transport: transport.map(|name| name.text().clone()),
            topic: announced.card.topic.clone(),
            expires_at: Some(clock::rfc3339(expires)),
            available: None,
            cause: None,
            org_id: announced.owner.org,
            unit_id: announced.owner.unit,
            card: RawValue::from_string(document.to_owned()).ok()?,
        })
    }
}

/// The card of an agent of the configuration.
fn listed_card(name: &str, shown: &AgentCardConfig) -> serde_json::Value {
    let mut card = json!({
        "name": name,
        "description": shown.description,
        "version": shown.version,
        "capabilities": { "streaming": shown.streaming },
        "defaultInputModes": shown.input_modes,
        "defaultOutputModes": shown.output_modes,
        "skills": shown.skills.iter().map(|skill| json!({
            "id": skill.id,
            "name": skill.name.as_deref().unwrap_or(&skill.id),
            "description": skill.description,
            "tags": skill.tags,
            "examples": skill.examples,
        })).collect::<Vec<_>>(),
    });
    if let serde_json::Value::Object(members) = &mut card {
        members.extend(about(shown));
    }
    if !shown.extensions.is_empty() {
        card["capabilities"]["extensions"] = json!(shown.extensions);
    }
    card
}

fn unwritable(error: &serde_json::Error) -> Failure {
    Failure::new(
        Reason::BadAgentReply,
        format!("the answer cannot be written: {error}"),
    )
}

// === impl Params ===

impl Params {
    /// The parameters that name an agent.
    pub(crate) fn of(org: Option<String>, unit: Option<String>, agent: String) -> Self {
        Self {
            org_id: org,
            unit_id: unit,
            agent_id: Some(agent),
            ..Self::default()
        }
    }

    /// The agent that the parameters name.
    pub(super) fn agent(&self) -> Result<Text, Failure> {
        let agent = self.agent_id.as_deref();
        let agent = agent.ok_or_else(|| Failure::bad_params("agent_id is missing"))?;
        Ok(Text::from(agent))
    }

    /// The size and the offset of the page.
    pub(super) fn page(&self) -> Result<(usize, usize), Failure> {
        let limit = self.limit.unwrap_or(PAGE.0);
        if !(1..=PAGE.1).contains(&limit) {
            return Err(Failure::bad_params(&format!(
                "limit must be 1 to {}",
                PAGE.1
            )));
        }
        Ok((limit, self.offset.unwrap_or(0)))
    }

    /// The owner and name of the agent in the parameters, as a claim.
    pub(crate) fn claim(&self, origin: RequestOrigin) -> Result<Announcement, Failure> {
        self.check(false)?;
        let text = |segment: &Option<String>| segment.as_deref().map(Text::from);
        Ok(Announcement {
            agent: text(&self.agent_id),
            owner: Owner {
                org: text(&self.org_id),
                unit: text(&self.unit_id),
            },
            lease: None,
            origin,
        })
    }

    /// Checks the segments of the identity.
    fn check(&self, may_be_any: bool) -> Result<(), Failure> {
        let segments = [
            ("org_id", &self.org_id),
            ("unit_id", &self.unit_id),
            ("agent_id", &self.agent_id),
        ];
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        for (name, segment) in segments {
            let Some(segment) = segment else { continue };
            let is_any = may_be_any && segment == ANY;
            let is_legal = (1..=64).contains(&segment.len()) && segment.bytes().all(legal);
            if !is_any && !is_legal {
                // A longer name of an agent is refused together with the faults of its card.
                let most = if name == "agent_id" { AGENT_NAME } else { 64 };
                let message = format!("{name} is not 1 to {most} letters, digits, '.', '_' or '-'");
                return Err(Failure::bad_params(&message));
            }
        }
        Ok(())
    }

    /// Whether the parameters select agents of any owner.
    fn takes_any(&self) -> bool {
        let is_any = |expected: &Option<String>| expected.as_deref().is_none_or(|it| it == ANY);
        is_any(&self.org_id) && is_any(&self.unit_id)
    }

    /// Whether the parameters select the agents of an owner.
    fn takes(&self, owner: &Owner) -> bool {
        let fits = |expected: &Option<String>, is: &Option<Text>| {
            let expected = expected.as_deref().filter(|expected| *expected != ANY);
            expected.is_none_or(|expected| is.as_deref() == Some(expected))
        };
        fits(&self.org_id, &owner.org) && fits(&self.unit_id, &owner.unit)
    }
}

// === impl AnnouncementError ===

impl From<AnnouncementError> for Failure {
    fn from(refused: AnnouncementError) -> Self {
        let message = refused.to_string();
        match refused {
            AnnouncementError::Disabled => Self::new(Reason::Unsupported, message),
            AnnouncementError::Invalid(faults) => {
                Self::new(Reason::InvalidParams, message).detail("reasons", faults.0)
            }
            AnnouncementError::Taken { agent, .. }
            | AnnouncementError::Lapsed(agent)
            | AnnouncementError::Listed(agent) => {
                Self::new(Reason::InvalidParams, message).detail("agentName", agent.as_str())
            }
            AnnouncementError::Full(most) => {
                Self::new(Reason::Exhausted, message).detail("limit", most)
            }
            AnnouncementError::Unknown(agent) | AnnouncementError::UnknownIn { agent, .. } => {
                Self::new(Reason::AgentNotFound, message).detail("agentName", agent.as_str())
            }
            AnnouncementError::NotStored(error) => {
                let reason = match error {
                    StateError::Full { .. } => Reason::Exhausted,
                    error if error.is_transient() => Reason::AgentUnavailable,
                    _ => Reason::InvalidParams,
                };
                Self::new(reason, message)
            }
        }
    }
}
