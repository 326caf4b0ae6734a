//! Subscriptions of clients to resources, and the changes that their streams report.
//!
//! ```text
//! resources/subscribe ─> log ─┐                          ┌─> stream of the session, at any replica
//!                             ├─> Running::follow ───────┤
//! change of a resource ─> log ┘  (every replica)         └─> subscriptions/listen
//! ```
//!
//! A change reaches a client under the URI that the client has used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use axum::body::{Body, to_bytes};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};
use tokio::time::sleep;

use super::envelope::{Params, text};
use super::post::McpRequest;
use super::relay::NotRelayed;
use super::session::Session;
use super::state::Mcp;
use crate::calls::failure::{Failure, Reason};
use crate::doors::rpc::common::Target;
use crate::http::sse::is_stream;
use crate::results::{MAX_URI, ResourceEvent, Subscription, containing};

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
/// How many agents are asked at a time.
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
            self.relay.admit(caller)?;
        }
        let mut watched = self.watched(stream.clone(), target.name().map(Text::from));
        let wanted = uris
            .iter()
            .filter_map(|named| self.subscription(stream.clone(), target, named));
        let asked = stream::iter(wanted.collect::<Vec<_>>()).map(|subscription| async {
            self.subscribe(caller, &subscription)
                .await
                .then_some(subscription)
        });
        let asked = asked
            .buffered(MAX_CONCURRENT)
            .take_until(sleep(TOTAL_TIMEOUT));
        let agreed: Vec<_> = asked.filter_map(std::future::ready).collect().await;
        agreed.iter().for_each(|it| watched.add(it));
        Ok((
            agreed.into_iter().map(|it| it.client_uri).collect(),
            watched,
        ))
    }

    /// Records a subscription, and subscribes at the agent. Returns whether both succeeded.
    async fn subscribe(&self, caller: &Text, subscription: &Subscription) -> bool {
        let noted = self.door.results.subscribe(subscription.clone()).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "a subscription to a resource was not recorded");
            return false;
        }
        let is_accepted = self
            .ask_agent("resources/subscribe", caller, subscription)
            .await;
        if !is_accepted {
            self.unsubscribe_all(caller, vec![subscription.clone()])
                .await;
        }
        is_accepted
    }

    /// Ends subscriptions. An agent is told only if no other client has subscribed to the resource.
    pub(super) async fn unsubscribe_all(&self, caller: &Text, subscriptions: Vec<Subscription>) {
        let all = stream::iter(&subscriptions);
        let ended = all.for_each_concurrent(MAX_CONCURRENT, |it| self.unsubscribe(caller, it));
        ended.await;
    }

    async fn unsubscribe(&self, caller: &Text, subscription: &Subscription) {
        let results = &self.door.results;
        match results.unsubscribe(subscription).await {
            Ok(true) => {}
            Ok(false) => {
                self.ask_agent("resources/unsubscribe", caller, subscription)
                    .await;
                self.subscribe_again(caller, subscription).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the end of a subscription was not recorded: it expires after a day");
            }
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
        let subscription = match self.own_subscription() {
            Ok(Some(subscription)) => subscription,
            // The agent names the fault.
            Ok(None) => return self.forwarded().await,
            Err(failure) => return self.failed(&failure),
        };
        let (mcp, caller) = (Arc::clone(self.mcp), self.common.caller.clone());
        if self.method == "resources/unsubscribe" {
            return match mcp.relay.unsubscribe(&caller, &subscription).await {
                // The agent knows only one client, the bridge: its other clients would get no more changes.
                Ok(true) => self.result_of_change("{}"),
                Ok(false) => self.unsubscribed(subscription).await,
                Err(error) => self.failed(&error.refusal().1),
            };
        }
        let results = Arc::clone(&mcp.door.results);
        let is_renewal = results.has_subscription(&subscription);
        let count = results.subscriptions_of(&subscription.subscriber).len();
        if count >= MAX_RESOURCES && !is_renewal {
            let message = format!("this session has {MAX_RESOURCES} subscriptions: end some first");
            return self.failed(&Failure::new(Reason::Exhausted, message));
        }
        if let Err(error) = mcp.relay.subscribe(&caller, subscription.clone()).await {
            return self.failed(&error.refusal().1);
        }
        let (response, is_refused) = refused(self.forwarded().await).await;
        // After a failed renewal, the agent may still have the earlier subscription.
        if is_refused && !is_renewal {
            let ended = async move { mcp.unsubscribe(&caller, &subscription).await };
            // The client may disconnect meanwhile. A panic has been logged.
            drop(results.spawn(ended).await);
        }
        response
    }

    /// Tells the agent that the last of its clients has unsubscribed.
    async fn unsubscribed(self, subscription: Subscription) -> Response {
        let (mcp, caller) = (Arc::clone(self.mcp), self.common.caller.clone());
        let results = Arc::clone(&mcp.door.results);
        let (asked, is_asked) = oneshot::channel::<()>();
        let again = results.spawn(async move {
            // Nothing is ever sent, so this is always an error: the agent has answered, or the client has disconnected.
            // In both cases the agent gets the request.
            let _ = is_asked.await;
            mcp.subscribe_again(&caller, &subscription).await;
        });
        let response = self.forwarded().await;
        drop(asked);
        // A panic has been logged.
        drop(again.await);
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
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        error: Option<IgnoredAny>,
    }
    if is_stream(response.headers()) {
        return (response, false);
    }
    let (head, body) = response.into_parts();
    // The body is in memory, so reading it does not fail.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let answer: Option<Answer> = serde_json::from_slice(&body).ok();
    let is_refused = answer.is_none_or(|answer| answer.error.is_some());
    (Response::from_parts(head, Body::from(body)), is_refused)
}

/// Reads the URIs in a subscription request.
///
/// # Errors
/// When they are not a list of strings, or there are too many.
pub(super) fn uris_of(list: Option<&RawValue>) -> Result<Vec<String>, Failure> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let uris: Vec<String> = serde_json::from_str(list.get())
        .map_err(|_| Failure::bad_params("resourceSubscriptions must be a list of URIs"))?;
    if uris.len() > MAX_RESOURCES {
        let message = format!("resourceSubscriptions has more than {MAX_RESOURCES} URIs");
        return Err(Failure::bad_params(&message));
    }
    Ok(uris)
}
