//! The resources of an attached MCP server that clients have subscribed to, and the changes that it reports.
//!
//! The server knows one client, the bridge, and forgets its subscriptions when it is restarted.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::results::containing;

/// The watched resources of one server, across all its runs.
#[derive(Debug, Default)]
pub(super) struct Watched {
    resources: Mutex<Resources>,
    to_subscribe: Notify,
    updated: Notify,
}

#[derive(Debug, Default)]
struct Resources {
    watched: BTreeSet<Text>,
    /// Those that this run of the server must still be asked to watch.
    to_subscribe: BTreeSet<Text>,
    /// Those that have changed. A resource that changes often is reported once.
    updated: BTreeSet<Text>,
}

/// Maximum number of watched resources.
const MOST: usize = 10_000;

// === impl Watched ===

impl Watched {
    /// Tracks a request of a client that is passed on to the server.
    pub(super) fn track(&self, method: &str, request: &[u8]) {
        let Some(uri) = Some(request)
            .filter(|_| method == SUBSCRIBE || method == "resources/unsubscribe")
            .and_then(uri_of)
        else {
            return;
        };
        let mut resources = self.resources();
        if method != SUBSCRIBE {
            resources.watched.remove(&uri);
            resources.to_subscribe.remove(&uri);
            resources.updated.remove(&uri);
        } else if resources.watched.len() < MOST {
            resources.watched.insert(uri);
        }
    }

    /// Adds the resources that clients have subscribed to before this process began.
    pub(super) fn add(&self, uris: Vec<Text>) {
        let mut resources = self.resources();
        for uri in uris {
            if resources.watched.len() < MOST && resources.watched.insert(uri.clone()) {
                resources.to_subscribe.insert(uri);
            }
        }
        drop(resources);
        self.to_subscribe.notify_one();
    }

    /// The server has started again: it must be asked to watch all resources.
    pub(super) fn restarted(&self) {
        let mut resources = self.resources();
        resources.to_subscribe = resources.watched.clone();
        drop(resources);
        self.to_subscribe.notify_one();
    }

    /// The next resource that the server must be asked to watch.
    pub(super) async fn next_to_subscribe(&self) -> Text {
        next(&self.to_subscribe, || {
            self.resources().to_subscribe.pop_first()
        })
        .await
    }

    /// Takes a change that the server reports. Returns `false` if no client has subscribed to the resource, or to one
    /// that contains it, or if too many changes wait to be reported.
    pub(super) fn report_change(&self, notification: &[u8]) -> bool {
        let Some(uri) = uri_of(notification) else {
            return false;
        };
        let mut resources = self.resources();
        let is_watched = containing(&uri).any(|(uri, _)| resources.watched.contains(uri));
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
        next(&self.updated, || self.resources().updated.pop_first()).await
    }

    // Ignores poisoning: each change leaves the sets consistent.
    fn resources(&self) -> MutexGuard<'_, Resources> {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The method that asks a server to watch a resource.
pub(super) const SUBSCRIBE: &str = "resources/subscribe";

async fn next(more: &Notify, pop: impl Fn() -> Option<Text>) -> Text {
    loop {
        if let Some(uri) = pop() {
            return uri;
        }
        more.notified().await;
    }
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

    #[test]
    fn only_changes_of_watched_resources_are_reported_and_each_once() {
        let watched = Watched::default();
        watched.track(SUBSCRIBE, &message("file:///a"));
        watched.track("resources/read", &message("file:///b"));
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
        watched.track("resources/unsubscribe", &message("file:///a"));
        assert_eq!(next(), None);
        assert!(!watched.report_change(&message("file:///a")));
    }

    #[test]
    fn a_restarted_server_is_asked_again() {
        let watched = Watched::default();
        watched.track(SUBSCRIBE, &message("b"));
        let next = || watched.next_to_subscribe().now_or_never();
        assert_eq!(next(), None);
        watched.add(vec!["a".into(), "b".into()]);
        assert_eq!([next(), next()], [Some("a".into()), None]);
        watched.restarted();
        assert_eq!(
            [next(), next(), next()],
            [Some("a".into()), Some("b".into()), None]
        );
    }
}
