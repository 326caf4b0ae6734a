//! The resources of an attached MCP server that clients have subscribed to, and the changes that it reports.
//!
//! The server knows one client, the bridge, and forgets its subscriptions when it is restarted. Subscriptions reach it in
//! two ways: as requests on its topic, and through the log, which the replicas of a bridge share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock::lock;
use crate::results::containing;
use crate::rpc_response::RpcResponse;

/// The watched resources of one server, across all its runs.
#[derive(Debug, Default)]
pub(super) struct Watched {
    resources: Mutex<Resources>,
    to_settle: Notify,
    updated: Notify,
    list_changed: Notify,
}

#[derive(Debug, Default)]
struct Resources {
    /// Those of requests.
    requested: HashMap<Text, Requested>,
    /// The number of the last request.
    last: u64,
    /// Those of the log.
    logged: HashSet<Text>,
    /// Those that this run of the server was asked to watch.
    asked: HashSet<Text>,
    /// Those that this run must still be asked to watch, or not to watch any longer.
    to_settle: BTreeSet<Text>,
    /// Those that have changed. A resource that changes often is reported once.
    updated: BTreeSet<Text>,
    /// The one that was reported last.
    reported: Text,
}

/// The requests to watch one resource, since the last request to end that.
#[derive(Debug, Default)]
struct Requested {
    /// When the server last accepted one.
    accepted: Option<Instant>,
    /// The numbers of those that the server has not answered.
    unanswered: Vec<u64>,
}

/// How a request to watch a resource has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscribeEnd {
    Accepted,
    Refused,
    /// Without an answer. The server may have executed it, or may still do so.
    Unanswered,
}

/// A request of a client that is passed on to the server. If it is dropped before the server has accepted it, it does not
/// count.
#[derive(Debug)]
#[must_use]
pub(super) struct Tracked<'a> {
    watched: &'a Watched,
    /// The resource to which it subscribes, and the number of the request.
    subscribes: Option<(Text, u64)>,
    /// Whether it subscribes to one resource too many: its changes will not be reported.
    pub(super) is_surplus: bool,
}

/// What the server must be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Subscribe(Text),
    Unsubscribe(Text),
}

/// Maximum number of resources in each set.
const MOST: usize = 10_000;
/// How long a request counts. As long as a subscription in the log.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);

// === impl Watched ===

impl Watched {
    /// The server has reported that one of its lists has changed.
    pub(super) fn report_list_change(&self) {
        self.list_changed.notify_one();
    }

    /// Waits until the server reports that one of its lists has changed.
    pub(super) async fn list_change(&self) {
        self.list_changed.notified().await;
    }

    /// Tracks a request of a client that is passed on to the server.
    pub(super) fn track(&self, method: &str, request: &[u8]) -> Tracked<'_> {
        let mut tracked = Tracked {
            watched: self,
            subscribes: None,
            is_surplus: false,
        };
        let Some(uri) = Some(request)
            .filter(|_| method == SUBSCRIBE || method == UNSUBSCRIBE)
            .and_then(uri_of)
        else {
            return tracked;
        };
        let mut resources = self.resources();
        resources.to_settle.remove(&uri);
        if method == UNSUBSCRIBE {
            resources.requested.remove(&uri);
            resources.logged.remove(&uri);
            resources.asked.remove(&uri);
            resources.updated.remove(&uri);
            return tracked;
        }
        tracked.is_surplus = !resources.has_room_for(&uri);
        if !tracked.is_surplus {
            // The changes that it reports from now on are for this client.
            resources.asked.insert(uri.clone());
            resources.last += 1;
            let number = resources.last;
            let requested = resources.requested.entry(uri.clone()).or_default();
            requested.unanswered.push(number);
            tracked.subscribes = Some((uri, number));
        }
        tracked
    }

    /// Ends a request to subscribe.
    fn ended(&self, (uri, number): (Text, u64), end: SubscribeEnd) {
        let mut resources = self.resources();
        let was_open = resources.close(&uri, number, end);
        match end {
            SubscribeEnd::Refused => {
                resources.asked.remove(&uri);
            }
            // A client has unsubscribed meanwhile. The server may execute the two requests in another order.
            SubscribeEnd::Accepted | SubscribeEnd::Unanswered
                if !was_open && !resources.is_watched(&uri) =>
            {
                resources.asked.insert(uri.clone());
            }
            // Without an answer, the server may watch it: if no other client does, it is asked to stop.
            SubscribeEnd::Accepted | SubscribeEnd::Unanswered => {}
        }
        // Other clients may have subscribed to it, and a server that was started again does not know of it.
        if resources.is_watched(&uri) != resources.asked.contains(&uri) {
            resources.to_settle.insert(uri);
        }
        drop(resources);
        self.to_settle.notify_one();
    }

    /// A client has subscribed to a resource, at any replica. If there is no room for it, the next comparison with the log
    /// says so.
    pub(super) fn add(&self, uri: Text) {
        let mut resources = self.resources();
        if resources.logged.len() >= MOST {
            return;
        }
        resources.logged.insert(uri.clone());
        if !resources.asked.contains(&uri) {
            resources.to_settle.insert(uri);
            drop(resources);
            self.to_settle.notify_one();
        }
    }

    /// Takes the resources that clients have subscribed to at any replica, and forgets requests that are old, or whose
    /// resource has left the log: another bridge may have received the request that ends them. Returns how many resources
    /// are too many: their changes will not be reported.
    pub(super) fn follow(&self, logged: BTreeSet<Text>) -> usize {
        let surplus = logged.len().saturating_sub(MOST);
        let mut guard = self.resources();
        let resources = &mut *guard;
        let (before, now) = (&resources.logged, Instant::now());
        resources.requested.retain(|uri, requested| {
            let accepted = requested.accepted;
            requested.accepted = accepted.filter(|at| now.duration_since(*at) < LIFE);
            let has_ended = before.contains(uri) && !logged.contains(uri);
            requested.is_open() && !has_ended
        });
        // The first in order, so that the choice is the same each time.
        resources.logged = logged.into_iter().take(MOST).collect();
        self.settle(guard);
        surplus
    }

    /// The server has started again, and watches nothing.
    pub(super) fn restarted(&self) {
        let mut resources = self.resources();
        resources.asked.clear();
        self.settle(resources);
    }

    fn settle(&self, mut resources: MutexGuard<'_, Resources>) {
        resources.settle();
        drop(resources);
        self.to_settle.notify_one();
    }

    /// What the server must be asked next.
    pub(super) async fn next_demand(&self) -> Demand {
        next(&self.to_settle, || self.resources().next_demand()).await
    }

    /// The server has answered, even if it refuses: it is not asked again in this run, unless the clients have changed
    /// their minds meanwhile.
    pub(super) fn answered(&self, demand: Demand) {
        let mut resources = self.resources();
        let (uri, is_asked) = match demand {
            Demand::Subscribe(uri) => (uri, true),
            Demand::Unsubscribe(uri) => (uri, false),
        };
        match is_asked {
            true => resources.asked.insert(uri.clone()),
            false => resources.asked.remove(&uri),
        };
        if resources.is_watched(&uri) != is_asked {
            resources.to_settle.insert(uri);
            drop(resources);
            self.to_settle.notify_one();
        }
    }

    /// Takes a change that the server reports. Returns `false` if no client has subscribed to the resource, or to one
    /// that contains it, or if too many changes wait to be reported.
    pub(super) fn report_change(&self, notification: &[u8]) -> bool {
        let Some(uri) = uri_of(notification) else {
            return false;
        };
        let mut resources = self.resources();
        let is_watched = containing(&uri).any(|(uri, _)| resources.is_watched(uri));
        if !is_watched || resources.updated.len() >= MOST {
            return false;
        }
        resources.updated.insert(uri);
        drop(resources);
        self.updated.notify_one();
        true
    }

    /// The next resource that has changed.
    pub(super) async fn next_updated(&self) -> Text {
        next(&self.updated, || self.resources().next_updated()).await
    }

    fn resources(&self) -> MutexGuard<'_, Resources> {
        lock(&self.resources)
    }
}

// === impl Resources ===

impl Resources {
    fn is_watched(&self, uri: &str) -> bool {
        self.requested.contains_key(uri) || self.logged.contains(uri)
    }

    fn has_room_for(&self, uri: &str) -> bool {
        (self.requested.contains_key(uri) || self.requested.len() < MOST)
            // If the server does not answer, resources stay in this set until it is asked to stop.
            && (self.asked.contains(uri) || self.asked.len() < 2 * MOST)
    }

    /// Ends a request. Returns `false` if a client has unsubscribed from the resource since the request.
    fn close(&mut self, uri: &Text, number: u64, end: SubscribeEnd) -> bool {
        let Some(requested) = self.requested.get_mut(uri) else {
            return false;
        };
        let before = requested.unanswered.len();
        requested.unanswered.retain(|open| *open != number);
        let was_open = requested.unanswered.len() < before;
        if was_open && end == SubscribeEnd::Accepted {
            requested.accepted = Some(Instant::now());
        }
        if !requested.is_open() {
            self.requested.remove(uri);
        }
        was_open
    }

    /// Finds the resources about which the server and the clients disagree.
    fn settle(&mut self) {
        let requested = self.requested.iter();
        // The server gets the request of the client, if it has not answered that.
        let accepted = requested.filter(|(_, it)| it.accepted.is_some());
        let watched = accepted.map(|(uri, _)| uri).chain(&self.logged);
        let missing = watched.filter(|uri| !self.asked.contains(*uri));
        let surplus = self.asked.iter().filter(|uri| !self.is_watched(uri));
        self.to_settle = missing.chain(surplus).cloned().collect();
    }

    /// The next resource that has changed: each in turn, so that none waits for others that change all the time.
    fn next_updated(&mut self) -> Option<Text> {
        let after = (Bound::Excluded(&self.reported), Bound::Unbounded);
        let mut later = self.updated.range::<Text, _>(after);
        let next = later.next().or_else(|| self.updated.first())?.clone();
        self.updated.remove(&next);
        self.reported.clone_from(&next);
        Some(next)
    }

    fn next_demand(&mut self) -> Option<Demand> {
        while let Some(uri) = self.to_settle.pop_first() {
            match (self.is_watched(&uri), self.asked.contains(&uri)) {
                (true, false) => return Some(Demand::Subscribe(uri)),
                (false, true) => return Some(Demand::Unsubscribe(uri)),
                (true, true) | (false, false) => {}
            }
        }
        None
    }
}

// === impl Requested ===

impl Requested {
    /// Whether one was accepted, or may be.
    fn is_open(&self) -> bool {
        self.accepted.is_some() || !self.unanswered.is_empty()
    }
}

// === impl Tracked ===

impl Tracked<'_> {
    /// Takes the answer of the server. The request counts unless the server refuses it.
    pub(super) fn answered(mut self, answer: &[u8]) {
        if let Some(request) = self.subscribes.take() {
            let end = match refusal_in(answer) {
                Some(_) => SubscribeEnd::Refused,
                None => SubscribeEnd::Accepted,
            };
            self.watched.ended(request, end);
        }
    }
}

impl Drop for Tracked<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.subscribes.take() {
            self.watched.ended(request, SubscribeEnd::Unanswered);
        }
    }
}

// === impl Demand ===

impl Demand {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Subscribe(_) => SUBSCRIBE,
            Self::Unsubscribe(_) => UNSUBSCRIBE,
        }
    }

    pub(super) fn uri(&self) -> &Text {
        match self {
            Self::Subscribe(uri) | Self::Unsubscribe(uri) => uri,
        }
    }
}

/// The method that asks a server to watch a resource.
const SUBSCRIBE: &str = "resources/subscribe";
/// The method that ends it.
const UNSUBSCRIBE: &str = "resources/unsubscribe";

async fn next<T>(more: &Notify, pop: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(next) = pop() {
            return next;
        }
        more.notified().await;
    }
}

/// The error in an answer, as JSON.
pub(super) fn refusal_in(answer: &[u8]) -> Option<String> {
    let error = RpcResponse::of(answer).error?;
    Some(error.get().to_owned())
}

/// `params.uri` of a message.
fn uri_of(message: &[u8]) -> Option<Text> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        params: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Params {
        uri: String,
    }
    let message: Message<'_> = serde_json::from_slice(message).ok()?;
    let params: Params = serde_json::from_str(message.params.get()).ok()?;
    Some(params.uri.into())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn message(uri: &str) -> Vec<u8> {
        serde_json::json!({ "params": { "uri": uri } })
            .to_string()
            .into_bytes()
    }

    const RESULT: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;

    /// A client subscribes, and the server accepts. Returns whether there was room.
    fn subscribe(watched: &Watched, uri: &str) -> bool {
        let tracked = watched.track(SUBSCRIBE, &message(uri));
        let has_room = !tracked.is_surplus;
        tracked.answered(RESULT);
        has_room
    }

    fn unsubscribe(watched: &Watched, uri: &str) {
        watched.track(UNSUBSCRIBE, &message(uri)).answered(RESULT);
    }

    /// All that the server is asked now, and answers.
    fn demands(watched: &Watched) -> Vec<String> {
        let next = || watched.next_demand().now_or_never();
        std::iter::from_fn(next)
            .map(|demand| {
                let shown = format!("{} {}", demand.method(), demand.uri());
                watched.answered(demand);
                shown
            })
            .collect()
    }

    #[test]
    fn a_resource_that_changes_all_the_time_keeps_no_other_waiting() {
        let watched = Watched::default();
        for name in ["a", "b", "c"] {
            subscribe(&watched, name);
            assert!(watched.report_change(&message(name)));
        }
        let reported = (0..4).map(|_| {
            let uri = watched.next_updated().now_or_never().unwrap();
            assert!(watched.report_change(&message("a")));
            uri.to_string()
        });
        assert_eq!(reported.collect::<Vec<_>>(), ["a", "b", "c", "a"]);
    }

    #[test]
    fn only_changes_of_watched_resources_are_reported_and_each_once() {
        let watched = Watched::default();
        subscribe(&watched, "file:///a");
        watched
            .track("resources/read", &message("file:///b"))
            .answered(RESULT);
        assert!(!watched.report_change(&message("file:///b")));
        assert!(!watched.report_change(b"{}"));
        for _ in 0..3 {
            assert!(watched.report_change(&message("file:///a")));
        }
        assert!(watched.report_change(&message("file:///a/c")));
        let next = || watched.next_updated().now_or_never();
        assert_eq!(next(), Some("file:///a".into()));
        assert_eq!(next(), Some("file:///a/c".into()));
        assert_eq!(next(), None);
        assert!(watched.report_change(&message("file:///a")));
        unsubscribe(&watched, "file:///a");
        assert_eq!(next(), None);
        assert!(!watched.report_change(&message("file:///a")));
    }

    #[test]
    fn a_restarted_server_is_asked_again() {
        let watched = Watched::default();
        assert!(subscribe(&watched, "b"));
        assert_eq!(demands(&watched), [""; 0]);
        watched.follow(["a".into(), "b".into()].into());
        assert_eq!(demands(&watched), ["resources/subscribe a"]);
        watched.restarted();
        let again = ["resources/subscribe a", "resources/subscribe b"];
        assert_eq!(demands(&watched), again);
    }

    #[test]
    fn the_server_follows_the_log() {
        let watched = Watched::default();
        watched.follow(["a".into(), "b".into()].into());
        // This time the server does not answer.
        assert!(watched.next_demand().now_or_never().is_some());
        assert_eq!(demands(&watched), ["resources/subscribe b"]);
        watched.follow(["a".into(), "b".into()].into());
        assert_eq!(demands(&watched), ["resources/subscribe a"]);
        watched.follow(["b".into()].into());
        assert_eq!(demands(&watched), ["resources/unsubscribe a"]);
        assert!(!watched.report_change(&message("a")));
        assert!(watched.report_change(&message("b")));
    }

    #[test]
    fn a_subscription_that_is_recorded_counts_at_once() {
        let watched = Watched::default();
        watched.add("a".into());
        assert_eq!(demands(&watched), ["resources/subscribe a"]);
        assert!(watched.report_change(&message("a")));
        watched.add("a".into());
        // The request of the client came first.
        subscribe(&watched, "b");
        watched.add("b".into());
        assert_eq!(demands(&watched), [""; 0]);
    }

    #[test]
    fn the_end_of_a_subscription_in_the_log_applies_to_the_request_for_it() {
        let watched = Watched::default();
        // This one is not in the log: its client uses no bridge that shares it.
        subscribe(&watched, "plain");
        subscribe(&watched, "a");
        watched.follow(["a".into()].into());
        // This one begins and ends between two comparisons.
        watched.add("b".into());
        subscribe(&watched, "b");
        // The server has not answered this request yet.
        watched.add("c".into());
        let open = watched.track(SUBSCRIBE, &message("c"));
        assert_eq!(demands(&watched), [""; 0]);
        watched.follow(BTreeSet::new());
        let ended = ["a", "b", "c"].map(|uri| format!("resources/unsubscribe {uri}"));
        assert_eq!(demands(&watched), ended);
        // It may have received the end before the beginning.
        open.answered(RESULT);
        assert_eq!(demands(&watched), ["resources/unsubscribe c"]);
        for uri in ["a", "b", "c"] {
            assert!(!watched.report_change(&message(uri)), "{uri}");
        }
        assert!(watched.report_change(&message("plain")));
    }

    #[test]
    fn a_client_that_leaves_while_the_server_is_asked_ends_the_subscription() {
        let watched = Watched::default();
        watched.add("a".into());
        let demand = watched.next_demand().now_or_never().unwrap();
        unsubscribe(&watched, "a");
        watched.answered(demand);
        assert_eq!(demands(&watched), ["resources/unsubscribe a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_expires() {
        let watched = Watched::default();
        subscribe(&watched, "a");
        tokio::time::advance(LIFE / 2).await;
        subscribe(&watched, "b");
        watched.follow(BTreeSet::new());
        assert_eq!(demands(&watched), [""; 0]);
        tokio::time::advance(LIFE / 2).await;
        watched.follow(BTreeSet::new());
        assert_eq!(demands(&watched), ["resources/unsubscribe a"]);
    }

    const REFUSED: &[u8] = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#;

    #[test]
    fn a_subscription_that_the_server_does_not_accept_does_not_count() {
        let watched = Watched::default();
        for n in 0..=MOST {
            let tracked = watched.track(SUBSCRIBE, &message(&n.to_string()));
            assert!(!tracked.is_surplus);
            tracked.answered(REFUSED);
        }
        assert!(!watched.report_change(&message("0")));
        assert_eq!(demands(&watched), [""; 0]);
        // The first change may come before the answer.
        let tracked = watched.track(SUBSCRIBE, &message("a"));
        assert!(watched.report_change(&message("a")));
        tracked.answered(REFUSED);
        assert!(!watched.report_change(&message("a")));
        // An earlier subscription stays.
        subscribe(&watched, "b");
        watched.track(SUBSCRIBE, &message("b")).answered(REFUSED);
        assert!(watched.report_change(&message("b")));
        assert_eq!(demands(&watched), ["resources/subscribe b"]);
    }

    #[test]
    fn a_subscription_that_the_server_has_not_answered_is_ended() {
        let watched = Watched::default();
        drop(watched.track(SUBSCRIBE, &message("a")));
        assert!(!watched.report_change(&message("a")));
        assert_eq!(demands(&watched), ["resources/unsubscribe a"]);
        // Unless another client has subscribed.
        subscribe(&watched, "b");
        drop(watched.track(SUBSCRIBE, &message("b")));
        assert!(watched.report_change(&message("b")));
        assert_eq!(demands(&watched), [""; 0]);
    }

    #[test]
    fn the_end_of_a_subscription_applies_to_requests_without_an_answer() {
        let watched = Watched::default();
        let first = watched.track(SUBSCRIBE, &message("a"));
        unsubscribe(&watched, "a");
        first.answered(RESULT);
        assert!(!watched.report_change(&message("a")));
        // The server may have accepted it last.
        assert_eq!(demands(&watched), ["resources/unsubscribe a"]);
        // It does not apply to later requests.
        let first = watched.track(SUBSCRIBE, &message("b"));
        unsubscribe(&watched, "b");
        let second = watched.track(SUBSCRIBE, &message("b"));
        first.answered(RESULT);
        second.answered(RESULT);
        assert!(watched.report_change(&message("b")));
        assert_eq!(demands(&watched), [""; 0]);
    }

    #[test]
    fn unanswered_subscriptions_are_limited_until_they_are_ended() {
        let watched = Watched::default();
        for n in 0..2 * MOST {
            let tracked = watched.track(SUBSCRIBE, &message(&n.to_string()));
            assert!(!tracked.is_surplus, "{n}");
        }
        assert!(!subscribe(&watched, "x"));
        assert_eq!(demands(&watched).len(), 2 * MOST);
        assert!(subscribe(&watched, "x"));
    }

    #[test]
    fn there_is_a_limit() {
        let watched = Watched::default();
        for n in 0..MOST {
            assert!(subscribe(&watched, &n.to_string()));
        }
        assert!(!subscribe(&watched, "x"));
        assert!(subscribe(&watched, "7"));
        let logged: BTreeSet<Text> = (0..=MOST).map(|n| Text::from(n.to_string())).collect();
        assert_eq!(watched.follow(logged), 1);
    }
}
