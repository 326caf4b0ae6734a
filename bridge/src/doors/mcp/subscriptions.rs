//! Subscriptions of clients to resources, and the changes that their streams report.
//!
//! ```text
//! resources/subscribe ─> log ─┐                          ┌─> stream of the session, at any replica
//!                             ├─> Running::follow ───────┤
//! change of a resource ─> log ┘  (every replica)         └─> subscriptions/listen
//! ```
//!
//! A change reaches a client under the URI that the client has used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use axum::body::{Body, to_bytes};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};
use tokio::time::sleep;

use super::envelope::{Params, text};
use super::post::McpRequest;
use super::relay::{NotRelayed, recorded};
use super::session::Session;
use super::state::Mcp;
use crate::calls::failure::{Failure, Reason};
use crate::doors::rpc::common::Target;
use crate::http::sse::is_stream;
use crate::results::{MAX_URI, ResourceEvent, Subscription, containing};
use crate::rpc_response::RpcResponse;

/// The resources that one stream reports.
pub(super) struct WatchedResources {
    mcp: Arc<Mcp>,
    events: broadcast::Receiver<Arc<ResourceEvent>>,
    subscriber: Text,
    /// The agent; `None` for all.
    agent: Option<Text>,
    /// The URIs that the client has used, by agent and by the agent's own URI.
    client_uris: HashMap<Text, HashMap<Text, Text>>,
    /// After a gap: the resources that may have changed in it.
    suspects: Vec<Text>,
}

/// The subscriptions that end with a stream. Dropping it ends them.
pub(super) struct StreamSubscriptions {
    mcp: Arc<Mcp>,
    caller: Text,
    subscriber: Text,
}

/// Maximum number of resources of one session, or of one stream without a session.
const MAX_RESOURCES: usize = 256;
/// So many subscriptions of one stream count as one message of a client to other replicas.
const PER_MESSAGE: usize = 32;
/// How long all agents may take to accept the subscriptions of one stream.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How many requests about subscriptions are sent at a time: to one agent when subscriptions begin, to all agents when
/// they end.
const MAX_CONCURRENT: usize = 16;

// === impl WatchedResources ===

impl WatchedResources {
    /// The next change, as the URI that the client knows.
    pub(super) async fn next(&mut self) -> String {
        loop {
            if let Some(suspect) = self.suspects.pop() {
                return suspect.to_string();
            }
            match self.events.recv().await {
                Ok(event) => {
                    if let Some(named) = self.apply(&event) {
                        return named;
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    if let Some(suppressed) = self.mcp.missed.allow() {
                        tracing::warn!(
                            missed,
                            suppressed,
                            "the stream of an MCP client was read too slowly: it reports all its resources as changed"
                        );
                    }
                    self.mend_gap();
                }
                // The bridge is shutting down.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    fn apply(&mut self, event: &ResourceEvent) -> Option<String> {
        match event {
            ResourceEvent::Subscribed(subscription) => self.add(subscription),
            ResourceEvent::Unsubscribed(subscription) => self.remove(subscription),
            ResourceEvent::Updated { agent, uri } => return self.changed(agent, uri),
            ResourceEvent::Missed => self.mend_gap(),
        }
        None
    }

    fn add(&mut self, subscription: &Subscription) {
        let is_other = |agent: &Text| *agent != subscription.agent;
        if subscription.subscriber != self.subscriber || self.agent.as_ref().is_some_and(is_other) {
            return;
        }
        let of_agent = self
            .client_uris
            .entry(subscription.agent.clone())
            .or_default();
        of_agent.insert(subscription.uri.clone(), subscription.client_uri.clone());
    }

    fn remove(&mut self, subscription: &Subscription) {
        if subscription.subscriber == self.subscriber
            && let Some(of_agent) = self.client_uris.get_mut(&subscription.agent)
        {
            of_agent.remove(&subscription.uri);
        }
    }

    /// Reads the subscriptions again. Any of the resources may have changed.
    fn mend_gap(&mut self) {
        self.read_again();
        let named = self.client_uris.values().flat_map(HashMap::values);
        self.suspects = named.cloned().collect();
    }

    fn read_again(&mut self) {
        self.client_uris.clear();
        let results = Arc::clone(&self.mcp.door.results);
        for subscription in results.subscriptions_of(&self.subscriber) {
            self.add(&subscription);
        }
    }

    /// The client's URI of a resource that has changed, if the client has subscribed to it or to one that contains it.
    fn changed(&self, agent: &str, uri: &str) -> Option<String> {
        let of_agent = self.client_uris.get(agent)?;
        containing(uri).find_map(|(container, rest)| {
            let named = of_agent.get(container)?;
            Some(format!("{named}{rest}"))
        })
    }
}

// === impl StreamSubscriptions ===

impl Drop for StreamSubscriptions {
    fn drop(&mut self) {
        let (mcp, caller) = (Arc::clone(&self.mcp), self.caller.clone());
        let subscriber = self.subscriber.clone();
        self.mcp.door.results.spawn(async move {
            // Some may have been recorded just now.
            let results = &mcp.door.results;
            let subscriptions = results.latest_subscriptions_of(&subscriber).await;
            mcp.unsubscribe_all(&caller, subscriptions).await;
        });
    }
}

// === impl Mcp ===

impl Mcp {
    /// The resources that a session has subscribed to, at one agent or at all.
    pub(super) fn watched_by(
        self: &Arc<Self>,
        session: &Session,
        agent: Option<Text>,
    ) -> WatchedResources {
        let mut watched = self.watched(session.key(), agent);
        watched.read_again();
        watched
    }

    fn watched(self: &Arc<Self>, subscriber: Text, agent: Option<Text>) -> WatchedResources {
        WatchedResources {
            mcp: Arc::clone(self),
            events: self.running.resource_events(),
            subscriber,
            agent,
            client_uris: HashMap::new(),
            suspects: Vec::new(),
        }
    }

    /// The agent of a resource, and the agent's own URI. `named` is the URI that the client uses.
    fn subscription(&self, subscriber: Text, target: &Target, named: &str) -> Option<Subscription> {
        let agents = self.door.registry.now();
        let (agent, uri) = match target {
            Target::Agent(agent) => (agent.as_str(), named),
            Target::InPayload => Self::split_uri(&agents, named)?,
            Target::NotAName => return None,
        };
        let (agent, _) = agents.get(agent)?;
        let is_legal = named.len() <= MAX_URI && !self.is_a2a(Some(agent));
        is_legal.then(|| Subscription {
            subscriber,
            agent: agent.clone(),
            uri: uri.into(),
            client_uri: named.into(),
        })
    }

    /// The subscriptions of a stream or session that end with the returned value.
    pub(super) fn unsubscribe_on_drop(
        self: &Arc<Self>,
        caller: &Text,
        subscriber: Text,
    ) -> StreamSubscriptions {
        StreamSubscriptions {
            mcp: Arc::clone(self),
            caller: caller.clone(),
            subscriber,
        }
    }

    /// Subscribes to resources for a stream without a session, and returns the URIs that their agents have accepted.
    ///
    /// # Errors
    /// When the client has subscribed too often recently.
    pub(super) async fn subscribe_all(
        self: &Arc<Self>,
        (caller, target): (&Text, &Target),
        stream: Text,
        uris: Vec<String>,
    ) -> Result<(Vec<Text>, WatchedResources), NotRelayed> {
        for _ in 0..uris.len().div_ceil(PER_MESSAGE) {
            self.relay.admit(caller, "a subscription")?;
        }
        let mut watched = self.watched(stream.clone(), target.name().map(Text::from));
        let wanted = uris
            .iter()
            .filter_map(|named| self.subscription(stream.clone(), target, named));
        let wanted: Vec<Subscription> = wanted.collect();
        let mut agreed = self.subscribed_of(caller, &wanted).await;
        agreed.sort_unstable();
        let is_agreed = |(index, _): &(usize, Subscription)| agreed.binary_search(index).is_ok();
        let numbered = wanted.into_iter().enumerate();
        let (agreed, refused): (Vec<_>, Vec<_>) = numbered.partition(is_agreed);
        let refused = refused.into_iter().map(|(_, it)| it).collect();
        self.unsubscribe_later(caller.clone(), refused);
        agreed.iter().for_each(|(_, it)| watched.add(it));
        let agreed = agreed.into_iter().map(|(_, it)| it.client_uri);
        Ok((agreed.collect(), watched))
    }

    /// Subscribes to resources, at all agents at once: an agent that does not answer delays no other. Returns the
    /// indices of those that succeed in time.
    async fn subscribed_of(&self, caller: &Text, wanted: &[Subscription]) -> Vec<usize> {
        let mut by_agent: HashMap<Text, Vec<(usize, Subscription)>> = HashMap::new();
        for (index, it) in wanted.iter().enumerate() {
            let of_agent = by_agent.entry(it.agent.clone()).or_default();
            of_agent.push((index, it.clone()));
        }
        let asked = stream::select_all(by_agent.into_values().map(|of_agent| {
            let asked = stream::iter(of_agent).map(move |(index, it)| async move {
                self.subscribe(caller, &it).await.then_some(index)
            });
            asked.buffer_unordered(MAX_CONCURRENT).boxed()
        }));
        let asked = asked.take_until(sleep(TOTAL_TIMEOUT));
        asked.filter_map(std::future::ready).collect().await
    }

    /// Records a subscription, and subscribes at the agent. Returns whether both succeeded.
    async fn subscribe(&self, caller: &Text, subscription: &Subscription) -> bool {
        let recorded = self.relay.subscribe(caller, subscription).await;
        recorded.is_ok()
            && self
                .ask_agent("resources/subscribe", caller, subscription)
                .await
    }

    /// Ends those of these subscriptions that were recorded, although their agents have not accepted them.
    fn unsubscribe_later(self: &Arc<Self>, caller: Text, mut refused: Vec<Subscription>) {
        if refused.is_empty() {
            return;
        }
        let mcp = Arc::clone(self);
        self.door.results.spawn(async move {
            refused.retain(|it| mcp.door.results.has_subscription(it));
            mcp.unsubscribe_all(&caller, refused).await;
        });
    }

    /// Ends subscriptions. An agent is told only if no other client has subscribed to the resource.
    pub(super) async fn unsubscribe_all(&self, caller: &Text, subscriptions: Vec<Subscription>) {
        let all = stream::iter(&subscriptions);
        let ended = all.for_each_concurrent(MAX_CONCURRENT, |it| self.unsubscribe(caller, it));
        ended.await;
    }

    async fn unsubscribe(&self, caller: &Text, subscription: &Subscription) {
        // A failure has been logged.
        if let Ok(false) = self.relay.unsubscribe(caller, subscription).await {
            self.ask_agent("resources/unsubscribe", caller, subscription)
                .await;
            self.subscribe_again(caller, subscription).await;
        }
    }

    /// Subscribes again after the agent got the end of a subscription: a client may have subscribed meanwhile, and the
    /// agent may have received that first.
    async fn subscribe_again(&self, caller: &Text, subscription: &Subscription) {
        if self.door.results.is_subscribed(subscription) {
            self.ask_agent("resources/subscribe", caller, subscription)
                .await;
        }
    }

    async fn ask_agent(&self, method: &str, caller: &Text, subscription: &Subscription) -> bool {
        let Subscription { agent, uri, .. } = subscription;
        let params = json!({ "uri": uri });
        let registry = &self.door.registry;
        let asked = registry
            .queries
            .request(agent, method, &params, caller.clone());
        let failed = asked.await.err();
        if let Some(failure) = &failed {
            let error = failure.message();
            tracing::debug!(%agent, %uri, method, error, "the agent did not change a subscription");
        }
        failed.is_none()
    }
}

// === impl McpRequest ===

impl McpRequest<'_> {
    /// `resources/subscribe` and `resources/unsubscribe`.
    pub(super) async fn change_subscription(self) -> Response {
        match self.own_subscription() {
            Ok(Some(subscription)) if self.method == "resources/unsubscribe" => {
                self.unsubscribed(subscription).await
            }
            Ok(Some(subscription)) => self.subscribed(subscription).await,
            // The agent names the fault.
            Ok(None) => self.forwarded().await,
            Err(failure) => self.failed(&failure),
        }
    }

    /// Records a subscription, and ends it again if the agent refuses it, even if the client disconnects.
    async fn subscribed(self, subscription: Subscription) -> Response {
        let (mcp, caller) = (Arc::clone(self.mcp), self.common.caller.clone());
        let results = Arc::clone(&mcp.door.results);
        let is_renewal = results.has_subscription(&subscription);
        let count = results.subscriptions_of(&subscription.subscriber).len();
        if count >= MAX_RESOURCES && !is_renewal {
            let message = format!("this session has {MAX_RESOURCES} subscriptions: end some first");
            return self.failed(&Failure::new(Reason::Exhausted, message));
        }
        if let Err(error) = mcp.relay.admit(&caller, "a subscription") {
            return self.failed(&error.refusal().1);
        }
        let (stored, is_stored) = oneshot::channel();
        let (answered, is_refused) = oneshot::channel();
        let change = results.spawn(async move {
            let result = mcp.relay.subscribe(&caller, &subscription).await;
            let is_recorded = result.is_ok();
            drop(stored.send(result));
            if !is_recorded {
                return;
            }
            let is_refused = match is_refused.await {
                Ok(is_refused) => is_refused,
                // The client has disconnected, perhaps before the agent got its request.
                Err(_) => {
                    let asked = mcp.ask_agent("resources/subscribe", &caller, &subscription);
                    !asked.await
                }
            };
            // After a failed renewal, the agent may still have the earlier subscription.
            if is_refused && !is_renewal {
                mcp.unsubscribe(&caller, &subscription).await;
            }
        });
        let response = match recorded(is_stored).await {
            Ok(()) => {
                let (response, is_refused) = refused(self.forwarded().await).await;
                // The task has panicked if nobody receives it.
                let _: Result<(), bool> = answered.send(is_refused);
                response
            }
            Err(error) => self.failed(&error.refusal().1),
        };
        // A panic has been logged.
        drop(change.await);
        response
    }

    /// Records the end of a subscription. If it was the last one, the agent is told, even if the client disconnects.
    async fn unsubscribed(self, subscription: Subscription) -> Response {
        let (mcp, caller) = (Arc::clone(self.mcp), self.common.caller.clone());
        if let Err(error) = mcp.relay.admit(&caller, "the end of a subscription") {
            return self.failed(&error.refusal().1);
        }
        let results = Arc::clone(&mcp.door.results);
        let (stored, is_stored) = oneshot::channel();
        let (told, is_told) = oneshot::channel::<()>();
        let change = results.spawn(async move {
            let result = mcp.relay.unsubscribe(&caller, &subscription).await;
            let was_last = matches!(result, Ok(false));
            drop(stored.send(result));
            if !was_last {
                return;
            }
            // The client may have disconnected before the agent got its request, and another one may have subscribed.
            if is_told.await.is_err() && !mcp.door.results.is_subscribed(&subscription) {
                mcp.ask_agent("resources/unsubscribe", &caller, &subscription)
                    .await;
            }
            mcp.subscribe_again(&caller, &subscription).await;
        });
        let response = match recorded(is_stored).await {
            // The agent knows only one client, the bridge: its other clients would get no more changes.
            Ok(true) => self.result_of_change("{}"),
            Ok(false) => {
                let response = self.forwarded().await;
                let _: Result<(), ()> = told.send(());
                response
            }
            Err(error) => self.failed(&error.refusal().1),
        };
        // A panic has been logged.
        drop(change.await);
        response
    }

    fn own_subscription(&self) -> Result<Option<Subscription>, Failure> {
        let params = Params::read(&self.unit.bytes)?;
        let Some(uri) = text(params.uri) else {
            return Ok(None);
        };
        if uri.len() > MAX_URI {
            let message = format!("params.uri has more than {MAX_URI} bytes");
            return Err(Failure::bad_params(&message));
        }
        let Some(session) = self.session else {
            let message = "a subscription needs a session, whose stream reports the changes: send initialize, and repeat its Mcp-Session-Id";
            return Err(Failure::new(Reason::InvalidRequest, message));
        };
        let agent = text(params.agent).map(|agent| Target::Agent(agent.into()));
        let target = match &self.common.target {
            Target::InPayload => agent.as_ref().unwrap_or(&Target::InPayload),
            target => target,
        };
        Ok(self.mcp.subscription(session.key(), target, &uri))
    }
}

/// Whether a response is an error. Streams are passed on unread.
async fn refused(response: Response) -> (Response, bool) {
    if is_stream(response.headers()) {
        return (response, false);
    }
    let (head, body) = response.into_parts();
    // The body is in memory, so reading it does not fail.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let answer: Option<RpcResponse<'_>> = serde_json::from_slice(&body).ok();
    let is_refused = answer.is_none_or(|answer| answer.error.is_some());
    (Response::from_parts(head, Body::from(body)), is_refused)
}

/// Reads the URIs in a subscription request, each of them once.
///
/// # Errors
/// When they are not a list of strings, or there are too many.
pub(super) fn uris_of(list: Option<&RawValue>) -> Result<Vec<String>, Failure> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let mut uris: Vec<String> = serde_json::from_str(list.get())
        .map_err(|_| Failure::bad_params("resourceSubscriptions must be a list of URIs"))?;
    if uris.len() > MAX_RESOURCES {
        let message = format!("resourceSubscriptions has more than {MAX_RESOURCES} URIs");
        return Err(Failure::bad_params(&message));
    }
    let mut known = HashSet::new();
    uris.retain(|uri| known.insert(uri.clone()));
    Ok(uris)
}
