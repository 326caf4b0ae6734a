//! Open-ended streams, which notify clients when the lists of a server change (an agent is added or removed, or has a
//! new card), and when a resource changes that they have subscribed to.

use a2abus_plugin::protocol::jsonrpc;
use std::collections::VecDeque;
use std::sync::Arc;

use a2abus_plugin::Text;
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::OptionFuture;
use futures_util::{Stream, stream};
use http::StatusCode;
use http::request::Parts;
use prometheus::IntGauge;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::envelope::Params;
use super::handshake::Profile;
use super::post::McpRequest;
use super::revision::Revision;
use super::running::Cancellable;
use super::session::Session;
use super::state::Mcp;
use super::subscriptions::{StreamSubscriptions, WatchedResources, uris_of};
use crate::account::ANSWERED;
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::Abilities;
use crate::config::AgentCardConfig;
use crate::doors::door::Refusal;
use crate::doors::permit::Principal;
use crate::doors::rpc::common::Target;
use crate::http::negotiate::Accepts;
use crate::http::sse::{Frame, frames_response};
use crate::registry::Agents;

/// The lists that can change.
const LISTS: [&str; 3] = ["tools", "prompts", "resources"];

/// The notifications for one client.
struct Notifications {
    agents: watch::Receiver<Arc<Agents>>,
    /// The agents at the last notification.
    known: Arc<Agents>,
    /// The agent; `None` for all.
    agent: Option<Text>,
    /// The lists that it subscribes to.
    lists: Vec<&'static str>,
    resources: Option<WatchedResources>,
    /// The URIs that a stream without a session has subscribed to.
    agreed: Vec<Text>,
    /// Ends the subscriptions of this stream when it is dropped.
    unsubscribe: Option<StreamSubscriptions>,
    /// The id of its request, if every notification must contain it.
    subscription: Option<Text>,
    drain: CancellationToken,
    /// The stream of a session, which another one replaces.
    stream: Option<Cancellable>,
    /// The messages to send.
    queue: VecDeque<Bytes>,
    is_over: bool,
    _open: OpenStreams,
}

/// Counts a stream in the metrics, until it is dropped.
struct OpenStreams(IntGauge);

/// Which lists have changed, in the order of `LISTS`.
#[derive(Debug, Default)]
struct ListFlags([bool; 3]);

/// The name and the card of an agent.
type Named<'a> = (&'a Text, &'a Arc<AgentCardConfig>);

/// The notifications that a client of the newest revision subscribes to.
#[derive(Debug, Default, Deserialize)]
struct Requested<'a> {
    #[serde(rename = "toolsListChanged", default)]
    tools: bool,
    #[serde(rename = "promptsListChanged", default)]
    prompts: bool,
    #[serde(rename = "resourcesListChanged", default)]
    resources: bool,
    #[serde(rename = "resourceSubscriptions", default, borrow)]
    uris: Option<&'a RawValue>,
}

// === impl Mcp ===

impl Mcp {
    /// `GET`: the stream of a session, or a resumed stream.
    pub(super) async fn listen(
        self: &Arc<Self>,
        target: &Target,
        principal: Principal,
        head: Parts,
    ) -> Result<Response, Refusal> {
        let headers = &head.headers;
        if !takes_events(headers) {
            let message = "GET opens a stream of an MCP session, with Accept: text/event-stream; send requests with POST";
            let failure = Failure::new(Reason::InvalidRequest, message);
            return Err((StatusCode::METHOD_NOT_ALLOWED, failure));
        }
        let session = Session::of(headers, &self.door.results)?;
        let budget = self.door.client_budget(&head.extensions);
        if let Some(rest) = self.resumed(session.as_ref(), headers, &budget).await? {
            return Ok(rest);
        }
        self.door.check_running()?;
        // Registered before anything is awaited, so that a DELETE ends it from now on.
        let stream = self.running.listen(session.as_ref());
        let agent = target.name().map(Text::from);
        let caller = principal.name.clone();
        let lists = self
            .lists_of(agent.as_ref(), principal.name, session.is_some())
            .await?;
        let mut notifications = self.notifications(agent.clone(), lists, None);
        notifications.stream = Some(stream);
        // A client without a session is one of 2024-11-05, whatever revision it names: on this transport the AI SDK
        // names a newer one.
        if let Some(session) = session {
            notifications.resources = Some(self.watched_by(&session, agent));
            return Ok(frames_response(notifications.frames(), budget));
        }
        let random = self
            .door
            .calls
            .new_call()
            .map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, Failure::call(&error)))?;
        let session = Session::new(Revision::V2024_11_05, Abilities::default(), random);
        notifications.resources = Some(self.watched_by(&session, agent));
        notifications.unsubscribe = Some(self.unsubscribe_on_drop(&caller, session.key()));
        let path = self.door.public_url.path_to(head.uri.path());
        let notifications = notifications.frames();
        let frames = self
            .streams
            .open(&path, &session, notifications, self.drain.clone());
        Ok(frames_response(frames, budget))
    }

    /// The lists whose changes a stream reports. The stream does not need the agent: if the agent is not known or does
    /// not answer, all lists count. In a session, 404 would tell the client that the session has ended.
    async fn lists_of(
        &self,
        agent: Option<&Text>,
        caller: Text,
        is_in_session: bool,
    ) -> Result<Vec<&'static str>, Refusal> {
        match self.profile(agent, caller).await {
            Ok(profile) => {
                let lists = LISTS.into_iter().filter(|list| profile.may_have(list));
                Ok(lists.collect())
            }
            Err(failure) if !is_in_session && failure.reason() == Reason::AgentNotFound => {
                Err((StatusCode::NOT_FOUND, failure))
            }
            Err(failure) => {
                let (agent, why) = (agent.map(Text::as_str), failure.message());
                tracing::debug!(agent, why, "a stream reports changes of all lists");
                Ok(LISTS.to_vec())
            }
        }
    }

    fn notifications(
        &self,
        agent: Option<Text>,
        lists: Vec<&'static str>,
        subscription: Option<Text>,
    ) -> Notifications {
        let agents = self.door.registry.watch();
        let known = Arc::clone(&agents.borrow());
        Notifications {
            agents,
            known,
            agent,
            lists,
            resources: None,
            agreed: Vec::new(),
            unsubscribe: None,
            subscription,
            drain: self.drain.clone(),
            stream: None,
            queue: VecDeque::new(),
            is_over: false,
            _open: OpenStreams::add(self.door.metrics.mcp_streams()),
        }
    }
}

/// Whether the client accepts event streams. A browser that opens the URL accepts anything, and names web pages.
fn takes_events(headers: &http::HeaderMap) -> bool {
    let lines = headers.get_all(http::header::ACCEPT).iter();
    let lines: Vec<_> = lines.filter_map(|line| line.to_str().ok()).collect();
    let names = |range: &str| lines.iter().any(|line| line.contains(range));
    let is_browser = names("text/html") && !names("text/event-stream");
    !lines.is_empty() && !is_browser && Accepts::of(headers).is_some_and(Accepts::events)
}

// === impl McpRequest ===

impl McpRequest<'_> {
    /// `subscriptions/listen`.
    pub(super) async fn listen(self) -> Response {
        if self.common.key.is_some() {
            let message = "subscriptions/listen has no answer that could be stored: send it without Idempotency-Key";
            return self.failed(&Failure::new(Reason::InvalidRequest, message));
        }
        if !self.common.accepts.events() {
            let message = "subscriptions/listen answers with a stream: accept text/event-stream";
            return self.failed(&Failure::new(Reason::InvalidRequest, message));
        }
        let profile = match self.profile().await {
            Ok(profile) => profile,
            Err(failure) => return self.failed(&failure),
        };
        let (lists, uris) = match self.requested(&profile) {
            Ok(requested) => requested,
            Err(failure) => return self.failed(&failure),
        };
        let agent = self.common.target.name().map(Text::from);
        let id = self.recipient.id().clone();
        let mut notifications = self.mcp.notifications(agent, lists, Some(id));
        if !uris.is_empty() {
            let place = (&self.common.caller, &self.common.target);
            let stream = Text::from(format!("mcp-stream-{}", self.common.call));
            let unsubscribe = self
                .mcp
                .unsubscribe_on_drop(&self.common.caller, stream.clone());
            let (agreed, watched) = match self.mcp.subscribe_all(place, stream, uris).await {
                Ok(subscribed) => subscribed,
                Err(error) => return self.failed(&error.refusal().1),
            };
            notifications.resources = Some(watched);
            notifications.agreed = agreed;
            notifications.unsubscribe = Some(unsubscribe);
        }
        notifications.acknowledge();
        self.note(ANSWERED);
        frames_response(notifications.frames(), self.common.budget)
    }

    fn requested(&self, profile: &Profile) -> Result<(Vec<&'static str>, Vec<String>), Failure> {
        let params = Params::read(&self.unit.bytes)?;
        let bad = || Failure::bad_params("params.notifications must list what to listen to");
        let requested = params.notifications.ok_or_else(bad)?;
        let requested: Requested<'_> = serde_json::from_str(requested.get()).map_err(|_| bad())?;
        let uris = uris_of(requested.uris)?;
        let requested = [requested.tools, requested.prompts, requested.resources];
        let lists = LISTS.into_iter().zip(requested);
        let lists = lists.filter(|(list, requested)| *requested && profile.may_have(list));
        Ok((lists.map(|(list, _)| list).collect(), uris))
    }
}

// === impl ListFlags ===

impl ListFlags {
    /// Adds the lists of an agent that differ between two cards. All do if the agent does not tell their versions.
    fn add(&mut self, before: Option<Named<'_>>, now: Option<Named<'_>>) {
        let versions = |card: &AgentCardConfig| {
            let lists = card.lists?;
            Some([lists.tools, lists.prompts, lists.resources])
        };
        let changed = match (before, now) {
            (None, None) => return,
            // An agent may announce an unchanged card again, with another lease.
            (Some((_, before)), Some((_, now))) if before == now => return,
            (Some((_, before)), Some((_, now))) => versions(before).zip(versions(now)),
            (None, Some(_)) | (Some(_), None) => None,
        };
        for (index, flag) in self.0.iter_mut().enumerate() {
            *flag |= changed.is_none_or(|(before, now)| before[index] != now[index]);
        }
    }

    fn has(&self, list: &str) -> bool {
        LISTS
            .iter()
            .zip(self.0)
            .any(|(name, flag)| *name == list && flag)
    }
}

// === impl OpenStreams ===

impl OpenStreams {
    fn add(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenStreams {
    fn drop(&mut self) {
        self.0.dec();
    }
}

// === impl Notifications ===

impl Notifications {
    /// Queues the first message, which confirms the subscription.
    fn acknowledge(&mut self) {
        let agreed = self.lists.iter();
        let mut agreed: serde_json::Map<_, _> = agreed
            .map(|list| (format!("{list}ListChanged"), Value::Bool(true)))
            .collect();
        if self.resources.is_some() {
            agreed.insert("resourceSubscriptions".to_owned(), json!(self.agreed));
        }
        let params = json!({ "notifications": agreed });
        self.queue_notification("notifications/subscriptions/acknowledged", params);
    }

    fn queue_notification(&mut self, method: &str, mut params: Value) {
        if let Some(meta) = self.meta() {
            params["_meta"] = meta;
        }
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.queue.push_back(Bytes::from(message.to_string()));
    }

    fn meta(&self) -> Option<Value> {
        let id: Box<RawValue> =
            RawValue::from_string(self.subscription.as_ref()?.to_string()).ok()?;
        Some(json!({ "io.modelcontextprotocol/subscriptionId": id }))
    }

    fn frames(self) -> impl Stream<Item = Frame> + Send {
        stream::unfold(self, |mut notifications| async move {
            let data = notifications.next().await?;
            Some((Frame::of(data), notifications))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                return Some(message);
            }
            if self.is_over {
                return None;
            }
            let ended = self.stream.as_ref().map(Cancellable::token);
            let ended = OptionFuture::from(ended.map(CancellationToken::cancelled));
            let updated = self.resources.as_mut().map(WatchedResources::next);
            tokio::select! {
                Some(()) = ended => return None,
                Some(uri) = OptionFuture::from(updated) => {
                    self.queue_notification("notifications/resources/updated", json!({ "uri": uri }));
                }
                changed = self.agents.changed() => match changed {
                    Ok(()) => self.compare(),
                    Err(_) => self.end(),
                },
                () = self.drain.cancelled() => self.end(),
            }
        }
    }

    fn compare(&mut self) {
        let now = Arc::clone(&self.agents.borrow_and_update());
        let before = std::mem::replace(&mut self.known, Arc::clone(&now));
        let mut changed = ListFlags::default();
        match &self.agent {
            Some(name) => changed.add(before.get(name), now.get(name)),
            None => {
                for (name, _) in before.iter().chain(now.iter()) {
                    changed.add(before.get(name), now.get(name));
                }
            }
        }
        for list in self.lists.clone() {
            if changed.has(list) {
                self.queue_notification(&format!("notifications/{list}/list_changed"), json!({}));
            }
        }
    }

    /// Ends the stream when the bridge shuts down. A client of the newest revision gets the result of its request.
    fn end(&mut self) {
        self.is_over = true;
        if let (Some(id), Some(meta)) = (&self.subscription, self.meta()) {
            let result = json!({ "resultType": "complete", "_meta": meta });
            let message = jsonrpc::result(id, &result.to_string());
            self.queue.push_back(message);
        }
    }
}
