//! Announcing, removing and watching agents over HTTP.

use std::sync::Arc;

use a2abus_plugin::Text;
use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::dialect::Dialect;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Request, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::shared::{A2a, agent_url};
use crate::budget::{Charge, ClientBudget};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::config::AgentCardConfig;
use crate::doors::door::{self, Refusal};
use crate::doors::permit::{Action, permit};
use crate::http::negotiate::{self, Accepts};
use crate::http::respond::{json_response, no_content, refusal};
use crate::http::sse::{Frame, charged_response};
use crate::metrics::HttpPath;
use crate::object;
use crate::registry::card::MIN_LEASE;
use crate::registry::request::Params;
use crate::registry::{Agents, Announcement, AnnouncementError, RequestOrigin};

/// The query of an announcement.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Announced {
    /// The lease, such as `90s` or `24h`.
    lease: Option<String>,
    org_id: Option<String>,
    unit_id: Option<String>,
}

/// The agent in the path, and the query.
fn path_and_query(
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<Announced>, QueryRejection>,
) -> Result<(String, Announced), Refusal> {
    let Path(name) = name.map_err(|error| bad_request(&error))?;
    let Query(query) = query.map_err(|error| bad_request(&error))?;
    Ok((name, query))
}

/// `PUT /a2a/agents/{agent}`: the body is the card.
pub(super) async fn put(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<Announced>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let done = match path_and_query(name, query) {
        Ok((name, query)) => announce_agent(&a2a, query.claim(name), request).await,
        Err(refusal) => Err(refusal),
    };
    let response = done.map(|receipt| json_response(StatusCode::OK, Bytes::from(receipt)));
    a2a.answered(HttpPath::A2aCards, response, dialect)
}

/// `DELETE /a2a/agents/{agent}`.
pub(super) async fn delete(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<Announced>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let done = match path_and_query(name, query) {
        Ok((name, query)) => remove_agent(&a2a, query.claim(name), request).await,
        Err(refusal) => Err(refusal),
    };
    let response = done.map(|()| no_content());
    a2a.answered(HttpPath::A2aCards, response, dialect)
}

/// Reads a request body, which is a JSON object.
pub(in crate::doors) fn read_body<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Refusal> {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    object::from_slice(body).map_err(|error| match error.classify() {
        // The text may be JSON of another type: then it is a syntax error, too.
        Category::Syntax | Category::Eof if serde_json::from_slice::<IgnoredAny>(body).is_err() => {
            (StatusCode::BAD_REQUEST, Failure::not_json(&error))
        }
        _ => bad_request(&error),
    })
}

/// The refusal of a request whose path, query or body is not valid.
pub(in crate::doors) fn bad_request(error: &dyn std::fmt::Display) -> Refusal {
    (
        StatusCode::BAD_REQUEST,
        Failure::bad_params(&error.to_string()),
    )
}

/// Announces the agent whose card is the body. Returns the receipt.
pub(in crate::doors) async fn announce_agent(
    a2a: &A2a,
    claim: Result<Announcement, Refusal>,
    request: Request<Body>,
) -> Result<String, Refusal> {
    let _charge = a2a.may_announce(&request)?;
    let claim = claim?;
    let body = a2a.door.body(request).await?;
    let registry = &a2a.settings.registry;
    let registered = registry.register(&body, &claim).await;
    let (agent, announced) = registered.map_err(|refused| card_refusal(refused, &body))?;
    Ok(registry.receipt(&agent, &announced))
}

/// Removes an announced agent.
pub(in crate::doors) async fn remove_agent(
    a2a: &A2a,
    claim: Result<Announcement, Refusal>,
    request: Request<Body>,
) -> Result<(), Refusal> {
    let _charge = a2a.may_announce(&request)?;
    drop(request);
    let removed = a2a.settings.registry.remove(&claim?).await;
    removed.map_err(|refused| refusal_of(refused.into()))
}

/// The refusal of the card in a body.
fn card_refusal(refused: AnnouncementError, body: &[u8]) -> Refusal {
    if matches!(refused, AnnouncementError::Invalid(_))
        && let Err(error) = serde_json::from_slice::<IgnoredAny>(body)
    {
        return (StatusCode::BAD_REQUEST, Failure::not_json(&error));
    }
    refusal_of(refused.into())
}

/// A failure of the registry, with the status that it has over HTTP.
pub(in crate::doors) fn refusal_of(failure: Failure) -> Refusal {
    let status = match failure.reason() {
        Reason::AgentNotFound | Reason::TaskNotFound => StatusCode::NOT_FOUND,
        Reason::AgentUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Reason::Exhausted | Reason::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Reason::Unsupported => StatusCode::FORBIDDEN,
        Reason::TaskNotCancelable => StatusCode::CONFLICT,
        Reason::Timeout | Reason::AnswerLost => StatusCode::GATEWAY_TIMEOUT,
        Reason::BadAgentReply | Reason::ReplyUndeliverable => StatusCode::BAD_GATEWAY,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, failure)
}

/// Whether the client asks for a stream of changes to the list of agents.
pub(super) fn is_watched(headers: &HeaderMap) -> bool {
    Accepts::of(headers) == Some(Accepts::Events)
}

/// An agent in the list of agents.
pub(super) fn entry(agents: &Agents, name: &Text, agent: &AgentCardConfig, base: &str) -> Value {
    let mut entry = json!({
        "name": name.as_str(),
        "description": agent.description,
        "version": agent.version,
        "url": agent_url(base, name),
        "cardUrl": format!("{base}/a2a/agents/{name}/card"),
    });
    if let Some(available) = agents.available(name) {
        entry["available"] = available.into();
    }
    if let Some(why) = agents.away(name) {
        entry["cause"] = why.as_str().into();
    }
    entry
}

// === impl Announced ===

impl Announced {
    fn claim(self, name: String) -> Result<Announcement, Refusal> {
        let lease = self.lease.map(|text| humantime::parse_duration(&text));
        let lease = lease.transpose();
        let lease =
            lease.map_err(|_| bad_request(&"lease must be a duration such as 90s, 10m or 24h"))?;
        if lease.is_some_and(|lease| lease < MIN_LEASE) {
            return Err(bad_request(&"lease must be at least 1s"));
        }
        let params = Params::of(self.org_id, self.unit_id, name);
        let claim = params.claim(RequestOrigin::default()).map_err(refusal_of)?;
        Ok(Announcement { lease, ..claim })
    }
}

// === impl A2a ===

impl A2a {
    /// Checks that the sender may announce agents. Returns the charge for the request head.
    pub(in crate::doors) fn may_announce(
        &self,
        request: &Request<Body>,
    ) -> Result<Charge, Refusal> {
        let charge = self.door.check_in(request)?;
        self.door.check_change(request)?;
        permit(request.extensions(), Action::Announce)
            .map_err(|failure| (StatusCode::FORBIDDEN, failure))?;
        Ok(charge)
    }

    /// The response or the refusal; counts the request.
    pub(in crate::doors) fn answered(
        &self,
        path: HttpPath,
        response: Result<Response, Refusal>,
        dialect: Dialect,
    ) -> Response {
        let response = response.unwrap_or_else(|(status, failure)| {
            refusal(status, &failure, &Recipient::unknown(dialect))
        });
        self.door.metrics.http_request(path, response.status());
        response
    }

    /// A stream of the current agents and all changes: one event for each agent that is `registered`, `changed` or
    /// `removed`.
    pub(super) fn watched(
        &self,
        base: String,
        request: &Request<Body>,
    ) -> Result<Response, Refusal> {
        let mut watching = Watching {
            agents: self.settings.registry.watch(),
            sent: Arc::default(),
            base,
            budget: self.door.client_budget(request.extensions()),
            dialect: negotiate::dialect(request.headers()),
        };
        let first = event_of(&watching.update());
        let first = door::charged_large(&watching.budget, first.text()).map_err(refusal_of)?;
        let rest = stream::unfold(
            Some(watching),
            |watching| async move { watching?.next().await },
        );
        let rest = rest.take_until(self.drain.clone().cancelled_owned());
        Ok(charged_response(stream::iter([first]).chain(rest)))
    }
}

/// The last event of a stream that ends because it has failed.
pub(in crate::doors) fn failed(failure: &Failure, dialect: Dialect) -> Frame {
    Frame::named("error", failure.render(&Recipient::unknown(dialect)))
}

/// Changes as an event.
fn event_of(changes: &[Value]) -> Frame {
    Frame::named("agents", json!({ "changes": changes }).to_string())
}

/// A stream of changes to the list of agents.
struct Watching {
    agents: watch::Receiver<Arc<Agents>>,
    /// The agents as last sent to the client.
    sent: Arc<Agents>,
    base: String,
    budget: ClientBudget,
    /// The dialect of errors.
    dialect: Dialect,
}

// === impl Watching ===

impl Watching {
    /// The next changes, charged; simultaneous changes are one event. `None` when the bridge shuts down. If there is no
    /// room for many changes, the stream ends: the client can read the list again.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            self.agents.changed().await.ok()?;
            let changes = self.update();
            if changes.is_empty() {
                continue;
            }
            let charged = door::charged_if_large(&self.budget, event_of(&changes).text());
            return Some(match charged {
                Ok(event) => (event, Some(self)),
                Err(failure) => {
                    let last = failed(&failure, self.dialect).text();
                    (self.budget.replace(last), None)
                }
            });
        }
    }

    /// The changes since the last event.
    fn update(&mut self) -> Vec<Value> {
        let now = Arc::clone(&self.agents.borrow_and_update());
        let before = std::mem::replace(&mut self.sent, Arc::clone(&now));
        self.changes(&before, &now)
    }

    fn changes(&self, before: &Agents, now: &Agents) -> Vec<Value> {
        let mut changes = Vec::new();
        for (name, agent) in now.iter() {
            let change = match before.get(name) {
                None => "registered",
                Some((_, known))
                    if !Arc::ptr_eq(known, agent) || before.away(name) != now.away(name) =>
                {
                    "changed"
                }
                Some(_) => continue,
            };
            changes.push(json!({ "change": change, "agent": entry(now, name, agent, &self.base) }));
        }
        for (name, agent) in before.iter().filter(|(name, _)| now.get(name).is_none()) {
            changes.push(
                json!({ "change": "removed", "agent": entry(before, name, agent, &self.base) }),
            );
        }
        changes
    }
}
