//! Webhooks: URLs that the bridge calls when a task changes.
//!
//! Webhooks are the fold of a log that all replicas share. One replica at a time owns a webhook and calls it. It claims
//! the webhook in the log, and loses the claim if it does not renew it within [`LEASE`]. Deliveries are in the log too,
//! so another replica continues where the last one stopped. Source: docs/protocols/a2a.md §11.

use std::future::ready;
use std::time::Duration;

use a2abus_plugin::Text;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;

use tokio::time::timeout;

use super::model::new_id;
use crate::clock;
use crate::state::body;
use crate::state::seal::{SealError, SealKeys};
use crate::state::{
    ATTENDED, Applied, Fold, Following, Groups, LATEST, Logs, PUSH, Position, Record, StateError,
    UNATTENDED, View,
};

/// The webhooks of all tasks.
#[derive(Debug)]
pub(crate) struct Webhooks {
    view: View<WebhookFold>,
    /// This process, among those that share the log.
    replica: Text,
    keys: SealKeys,
    /// Whether the log leaves this process, so that secrets in it must be sealed.
    is_outside: bool,
    /// Whether only this process uses the log. Then any other owner of a webhook no longer runs.
    is_alone: bool,
}

/// The URL of a webhook, and the credentials of the bridge there. `Debug` shows neither token nor credentials.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Webhook {
    pub(crate) url: String,
    /// Sent with each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authentication: Option<Authentication>,
    /// The token and the credentials, if they are sealed; then the members have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
    /// Whether the client uses A2A 1.0, so it understands single events; other clients receive the whole task.
    pub(crate) is_1_0: bool,
}

/// The `Authorization` header. `Debug` does not show the credentials.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Authentication {
    pub(crate) scheme: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<String>,
}

/// What is sealed of a webhook.
#[derive(Serialize, Deserialize)]
struct Secrets {
    token: Option<String>,
    credentials: Option<String>,
}

/// A webhook of a task, folded from its records.
#[derive(Debug, Clone)]
pub(crate) struct StoredWebhook {
    pub(crate) task: Text,
    pub(crate) id: Text,
    pub(crate) webhook: Webhook,
    /// The last event of the task that was delivered or dropped.
    pub(crate) reached: Position,
    owner: Text,
    /// When the owner last renewed its claim, in milliseconds since 1970.
    claimed: u64,
    /// Whether everything has been delivered.
    pub(crate) is_over: bool,
}

/// An event of a webhook. The body of a record is `{"v":1,"event":…}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Set {
        task: Text,
        id: Text,
        webhook: Webhook,
        /// Events of the task up to this position are not delivered.
        after: String,
        owner: Text,
        /// Whether the task has ended, so there are no further events.
        #[serde(default)]
        last: bool,
    },
    Claimed {
        owner: Text,
        /// Whether only the owner's process uses the log, so claims of others are void.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        alone: bool,
    },
    /// The owner shuts down, so others need not wait until its claim expires.
    Released {
        owner: Text,
    },
    /// An event was delivered or dropped.
    Done {
        reached: String,
        /// Whether the task has ended.
        last: bool,
    },
    Deleted {},
}

/// Folds records into webhooks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WebhookFold;

/// How long a claim of a webhook is valid without renewal.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// How old a claim may be when a call starts, and while a webhook waits. An older one is renewed first.
pub(crate) const RENEW_FOR_CALL: Duration = Duration::from_secs(10);
pub(crate) const RENEW_WAITING: Duration = Duration::from_secs(30);
/// How long this replica may take to release its webhooks at shutdown, and how many it releases concurrently.
const RELEASE: Duration = Duration::from_secs(2);
const MAX_CONCURRENT_RELEASES: usize = 64;
/// How many records a follower may lag behind before it reads everything again.
const BEHIND: usize = 1_024;

// === impl Webhooks ===

impl Webhooks {
    /// Opens the log of webhooks.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) async fn open(logs: &Logs, keys: SealKeys) -> Result<Self, StateError> {
        Ok(Self {
            view: logs.view(PUSH, WebhookFold).await?,
            replica: new_id(),
            keys,
            is_outside: !logs.is_in_memory(),
            is_alone: !logs.is_shared(),
        })
    }

    /// Whether webhooks may have secrets.
    pub(crate) fn takes_secrets(&self) -> bool {
        !self.is_outside || !self.keys.is_empty()
    }

    /// Waits until this replica has applied everything in the log.
    ///
    /// # Errors
    /// When the log is unavailable, or is not read in time.
    pub(crate) async fn latest(&self) -> Result<(), StateError> {
        self.view.latest(LATEST).await
    }

    /// The webhook with this id.
    pub(crate) fn get(&self, task: &str, id: &str) -> Option<StoredWebhook> {
        self.stored(&key(task, id))
    }

    /// The webhook with this key.
    pub(crate) fn stored(&self, key: &str) -> Option<StoredWebhook> {
        self.view.read(|stored| stored.get(key).cloned())
    }

    /// The webhooks of a task, ordered by id.
    pub(crate) fn of_task(&self, task: &str) -> Vec<StoredWebhook> {
        let mut found: Vec<_> = self.view.read(|stored| {
            stored
                .group(task)
                .map(|(_, stored)| stored.clone())
                .collect()
        });
        found.sort_by(|a: &StoredWebhook, b| a.id.cmp(&b.id));
        found
    }

    /// The webhooks with undelivered or future events: the key of each, its task, and the last event that was delivered
    /// or dropped.
    pub(crate) fn unfinished(&self) -> Vec<(Text, Text, Position)> {
        self.view.read(|stored| {
            let open = stored.iter().filter(|(_, stored)| !stored.is_over);
            open.map(|(key, stored)| (key.into(), stored.task.clone(), stored.reached))
                .collect()
        })
    }

    /// The keys of a task's webhooks.
    pub(crate) fn keys_of(&self, task: &str) -> Vec<Text> {
        self.view
            .read(|stored| stored.group(task).map(|(key, _)| Text::from(key)).collect())
    }

    /// Stores a webhook. It is called for events of the task after the position `after`, unless `last` is set. One with
    /// the same id is replaced: the new one is called for the events that the old one has not reached.
    ///
    /// # Errors
    /// When it is not stored. Without keys, webhooks with secrets are not stored outside of this process.
    pub(crate) async fn set(
        &self,
        task: &str,
        id: &str,
        mut webhook: Webhook,
        (after, last): (Position, bool),
    ) -> Result<(), StateError> {
        if self.is_outside {
            let sealed = webhook.seal(&self.keys, &key(task, id));
            let name = PUSH.name;
            sealed.map_err(|error| StateError::NotSealed { name, error })?;
        }
        let event = Event::Set {
            task: task.into(),
            id: id.into(),
            webhook,
            after: after.to_string(),
            owner: self.replica.clone(),
            last,
        };
        self.record(&key(task, id), &event).await
    }

    /// Deletes a webhook.
    ///
    /// # Errors
    /// When the deletion is not stored.
    pub(crate) async fn delete(&self, task: &str, id: &str) -> Result<(), StateError> {
        self.record(&key(task, id), &Event::Deleted {}).await
    }

    /// Records the progress of a webhook; `last` if there are no further events.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn done(
        &self,
        key: &str,
        reached: Position,
        last: bool,
    ) -> Result<(), StateError> {
        let reached = reached.to_string();
        self.record_again(key, &Event::Done { reached, last }).await
    }

    /// Claims a webhook if no replica owns it, or renews this replica's claim if it is older than `renew`. Returns whether
    /// this replica owns it.
    ///
    /// # Errors
    /// When the claim is not stored.
    pub(crate) async fn claim(&self, key: &str, renew: Duration) -> Result<bool, StateError> {
        let now = clock::milliseconds(clock::now());
        let age =
            |stored: &StoredWebhook| Duration::from_millis(now.saturating_sub(stored.claimed));
        let Some(stored) = self.stored(key) else {
            return Ok(false);
        };
        let is_ours = stored.owner == self.replica;
        // The log keeps every claim for days, so none is recorded without need.
        if is_ours && (self.is_alone || age(&stored) < renew) {
            return Ok(true);
        }
        if !is_ours && !self.is_alone && age(&stored) < LEASE {
            return Ok(false);
        }
        let claimed = Event::Claimed {
            owner: self.replica.clone(),
            alone: self.is_alone,
        };
        self.record_again(key, &claimed).await?;
        let stored = self.stored(key);
        Ok(stored.is_some_and(|stored| stored.owner == self.replica))
    }

    /// Releases the webhooks that this replica owns.
    pub(crate) async fn release(&self) {
        let now = clock::milliseconds(clock::now());
        let is_owned = |stored: &StoredWebhook| {
            let age = Duration::from_millis(now.saturating_sub(stored.claimed));
            stored.owner == self.replica && !stored.is_over && age < LEASE
        };
        let keys: Vec<Text> = self.view.read(|stored| {
            let owned = stored.iter().filter(|(_, stored)| is_owned(stored));
            owned.map(|(key, _)| Text::from(key)).collect()
        });
        let owner = self.replica.clone();
        let event = body::write(&Event::Released { owner });
        let released = stream::iter(keys).map(|key| {
            let event = event.clone();
            async move { self.view.append(&key, Some(event)).await }
        });
        let failed = released
            .buffer_unordered(MAX_CONCURRENT_RELEASES)
            .filter(|released| ready(released.is_err()))
            .count();
        let failed = timeout(RELEASE, failed).await;
        if failed != Ok(0) {
            tracing::warn!(
                "not all webhooks were released: other replicas take up to a minute to call them"
            );
        }
    }

    /// A stored webhook with its secrets.
    ///
    /// # Errors
    /// When none of the keys opens them.
    pub(crate) fn opened(&self, stored: &StoredWebhook) -> Result<Webhook, SealError> {
        stored
            .webhook
            .opened(&self.keys, &key(&stored.task, &stored.id))
    }

    /// Follows webhooks from now on, as they are set.
    pub(crate) fn follow(&self) -> Following {
        self.view.follow(None, BEHIND, |_| ()).1
    }

    /// Stores an event for a caller.
    async fn record(&self, key: &str, event: &Event) -> Result<(), StateError> {
        let event = Some(body::write(event));
        self.view.commit(key, event, ATTENDED).await.map(drop)
    }

    /// The same for an event that no caller waits for: an outage of the log delays it.
    async fn record_again(&self, key: &str, event: &Event) -> Result<(), StateError> {
        let event = Some(body::write(event));
        let stored = self.view.commit_again(key, event, UNATTENDED);
        stored.await.map(drop)
    }
}

/// Whether a record of the log sets a webhook.
pub(crate) fn is_set(record: &Record) -> bool {
    matches!(body::read(record), Some(Event::Set { .. }))
}

/// Whether the owner of a webhook gives it up with this record of the log.
pub(crate) fn is_released(record: &Record) -> bool {
    matches!(body::read(record), Some(Event::Released { .. }))
}

/// Whether a record of the log deletes a webhook.
pub(crate) fn is_deleted(record: &Record) -> bool {
    matches!(body::read(record), Some(Event::Deleted {}))
}

/// The bridge generates task ids, and they contain no slash.
fn key(task: &str, id: &str) -> String {
    format!("{task}/{id}")
}

// === impl Webhook ===

impl Webhook {
    /// A webhook with these secrets.
    pub(crate) fn new(
        url: String,
        token: Option<String>,
        authentication: Option<Authentication>,
        is_1_0: bool,
    ) -> Self {
        Self {
            url,
            token,
            authentication,
            sealed: None,
            is_1_0,
        }
    }

    /// Whether it has a token or credentials.
    pub(crate) fn has_secrets(&self) -> bool {
        let credentials = self.authentication.as_ref();
        let credentials = credentials.and_then(|it| it.credentials.as_ref());
        self.token.is_some() || credentials.is_some() || self.sealed.is_some()
    }

    fn seal(&mut self, keys: &SealKeys, place: &str) -> Result<(), SealError> {
        if !self.has_secrets() {
            return Ok(());
        }
        let credentials = self.authentication.as_mut();
        let secrets = Secrets {
            token: self.token.take(),
            credentials: credentials.and_then(|it| it.credentials.take()),
        };
        let text = serde_json::to_string(&secrets).map_err(|_| SealError::Failed)?;
        self.sealed = Some(keys.seal(&self.bound_to(place), &text)?);
        Ok(())
    }

    /// What the secrets are bound to: whoever can write to the log cannot send them to another URL.
    fn bound_to(&self, place: &str) -> String {
        let scheme = self.authentication.as_ref().map(|it| &it.scheme);
        json!([place, self.url, scheme]).to_string()
    }

    fn opened(&self, keys: &SealKeys, place: &str) -> Result<Self, SealError> {
        let mut opened = self.clone();
        let Some(sealed) = opened.sealed.take() else {
            return Ok(opened);
        };
        let text = keys.open(&self.bound_to(place), &sealed)?;
        let secrets: Secrets = serde_json::from_str(&text).map_err(|_| SealError::NotOpened)?;
        opened.token = secrets.token;
        if let Some(authentication) = &mut opened.authentication {
            authentication.credentials = secrets.credentials;
        }
        Ok(opened)
    }
}

// === impl StoredWebhook ===

impl StoredWebhook {
    /// A replica claims it at this time; `alone` if only its process uses the log.
    fn apply_claim(&mut self, owner: Text, alone: bool, time: u64) -> Applied {
        let free = self.claimed + clock::whole_milliseconds(LEASE);
        if self.owner != owner && !alone && time < free {
            return Applied::Unchanged;
        }
        self.owner = owner;
        self.claimed = time;
        Applied::Changed
    }
}

// === impl WebhookFold ===

impl Fold for WebhookFold {
    type Entry = StoredWebhook;

    fn apply(&self, entry: &mut Option<StoredWebhook>, record: &Record) -> Applied {
        match (body::read(record), entry) {
            (None, _) => Applied::Unknown,
            // Clients repeat requests, and put the same webhook into each message. Events that wait must not be lost,
            // and only one replica at a time may call the webhook.
            (Some(Event::Set { webhook, .. }), Some(stored)) => {
                stored.webhook = webhook;
                Applied::Changed
            }
            (
                Some(Event::Set {
                    task,
                    id,
                    webhook,
                    after,
                    owner,
                    last,
                }),
                entry,
            ) => {
                let Ok(after) = after.parse() else {
                    return Applied::Unknown;
                };
                *entry = Some(StoredWebhook {
                    task,
                    id,
                    webhook,
                    reached: after,
                    owner,
                    claimed: record.time,
                    is_over: last,
                });
                Applied::Changed
            }
            (Some(Event::Deleted {}), entry) => match entry.take() {
                Some(_) => Applied::Changed,
                None => Applied::Unchanged,
            },
            (Some(_), None) => Applied::Unchanged,
            (Some(Event::Claimed { owner, alone }), Some(stored)) => {
                stored.apply_claim(owner, alone, record.time)
            }
            (Some(Event::Released { owner }), Some(stored)) => {
                if stored.owner != owner {
                    return Applied::Unchanged;
                }
                stored.claimed = 0;
                Applied::Changed
            }
            (Some(Event::Done { reached, last }), Some(stored)) => {
                let Ok(reached) = reached.parse() else {
                    return Applied::Unknown;
                };
                stored.reached = stored.reached.max(reached);
                stored.is_over |= last;
                Applied::Changed
            }
        }
    }

    fn size_bytes(&self, stored: &StoredWebhook) -> usize {
        let Webhook {
            url,
            token,
            authentication,
            sealed,
            ..
        } = &stored.webhook;
        let texts = [
            token,
            sealed,
            &authentication
                .as_ref()
                .and_then(|it| it.credentials.clone()),
        ];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<StoredWebhook>() + url.len() + texts + stored.task.len() + stored.id.len()
    }

    fn has_ended(&self, stored: &StoredWebhook) -> bool {
        stored.is_over
    }

    fn groups<'a>(&self, stored: &'a StoredWebhook) -> Groups<&'a str> {
        [Some(&stored.task), None]
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("url", &self.url)
            .field("authentication", &self.authentication)
            .finish_non_exhaustive()
    }
}

// === impl Authentication ===

impl std::fmt::Debug for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authentication")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{MemoryLog, ViewTask};

    fn set(owner: &str) -> Event {
        Event::Set {
            task: "t".into(),
            id: "c".into(),
            webhook: Webhook::new("https://hooks.example.com/".to_owned(), None, None, true),
            after: "0-7".to_owned(),
            owner: owner.into(),
            last: false,
        }
    }

    fn claimed(owner: &str) -> Event {
        Event::Claimed {
            owner: owner.into(),
            alone: false,
        }
    }

    fn done(offset: u64, last: bool) -> Event {
        let reached = format!("0-{offset}");
        Event::Done { reached, last }
    }

    /// What events at these times make, and what each of them did.
    fn fold(events: &[(u64, Event)]) -> (Option<StoredWebhook>, Vec<Applied>) {
        let mut entry = None;
        let applied = events.iter().zip(0..).map(|((time, event), offset)| {
            let record = Record {
                key: "t/c".into(),
                position: Position::at(offset),
                time: *time,
                body: Some(body::write(event)),
            };
            WebhookFold.apply(&mut entry, &record)
        });
        let applied = applied.collect();
        (entry, applied)
    }

    #[test]
    fn one_replica_owns_a_webhook_until_it_is_silent() {
        use Applied::{Changed, Unchanged};
        let lease = clock::whole_milliseconds(LEASE);
        let (stored, applied) = fold(&[
            (0, set("a")),
            (lease - 1, claimed("b")),
            (lease - 1, claimed("a")),
            (lease, claimed("b")),
            (2 * lease, claimed("b")),
            (2 * lease, claimed("c")),
        ]);
        assert_eq!(
            applied,
            [Changed, Unchanged, Changed, Unchanged, Changed, Unchanged]
        );
        assert_eq!(stored.unwrap().owner, "b");
    }

    #[test]
    fn a_webhook_released_by_its_owner_is_free() {
        use Applied::{Changed, Unchanged};
        let released = |owner: &str| {
            let owner = owner.into();
            Event::Released { owner }
        };
        let lease = clock::whole_milliseconds(LEASE);
        let (stored, applied) = fold(&[
            (lease, set("a")),
            (lease, released("b")),
            (lease, claimed("b")),
            (lease, released("a")),
            (lease, claimed("b")),
            (lease, claimed("c")),
        ]);
        assert_eq!(
            applied,
            [Changed, Unchanged, Unchanged, Changed, Changed, Unchanged]
        );
        assert_eq!(stored.unwrap().owner, "b");
    }

    /// A process that uses this log, alone or beside others.
    fn process(log: &MemoryLog, is_alone: bool) -> (Webhooks, ViewTask) {
        let (view, task) = View::start(log.clone(), WebhookFold, 1 << 20);
        let webhooks = Webhooks {
            view,
            replica: new_id(),
            keys: SealKeys::new(["a key"]),
            is_outside: false,
            is_alone,
        };
        (webhooks, task)
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_an_earlier_process_are_void_if_only_one_process_uses_the_log() {
        let log = MemoryLog::new(PUSH, 1 << 20);
        let (killed, _killed) = process(&log, true);
        let url = "https://hooks.example.com/".to_owned();
        let webhook = Webhook::new(url, None, None, true);
        let set = killed.set("t", "c", webhook, (Position::at(7), false));
        set.await.unwrap();
        for is_alone in [false, true] {
            let (next, _next) = process(&log, is_alone);
            next.latest().await.unwrap();
            assert_eq!(next.claim("t/c", RENEW_FOR_CALL).await.unwrap(), is_alone);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_others_see_that_a_process_releases_its_webhooks() {
        let log = MemoryLog::new(PUSH, 1 << 20);
        let (stops, _stops) = process(&log, false);
        let (next, _next) = process(&log, false);
        let mut seen = next.follow();
        let url = "https://hooks.example.com/".to_owned();
        let webhook = Webhook::new(url, None, None, true);
        let set = stops.set("t", "c", webhook, (Position::at(7), false));
        set.await.unwrap();
        let record = seen.next().await.unwrap().unwrap();
        assert!(is_set(&record) && !is_released(&record));
        assert!(!next.claim("t/c", RENEW_FOR_CALL).await.unwrap());
        stops.release().await;
        let record = seen.next().await.unwrap().unwrap();
        assert!(is_released(&record) && !is_deleted(&record));
        assert!(next.claim(&record.key, RENEW_FOR_CALL).await.unwrap());
        next.delete("t", "c").await.unwrap();
        let records = [seen.next().await, seen.next().await];
        let deleted = records.map(|record| is_deleted(&record.unwrap().unwrap()));
        assert_eq!(deleted, [false, true], "first the claim");
    }

    #[test]
    fn a_webhook_that_is_set_again_keeps_the_events_that_wait_and_its_owner() {
        let mut again = set("b");
        if let Event::Set {
            webhook,
            after,
            last,
            ..
        } = &mut again
        {
            webhook.url = "https://other.example.com/".to_owned();
            *after = "0-9".to_owned();
            *last = true;
        }
        let (stored, _) = fold(&[(0, set("a")), (1, done(8, false)), (2, again.clone())]);
        let stored = stored.unwrap();
        assert_eq!(stored.webhook.url, "https://other.example.com/");
        assert_eq!((stored.reached.offset, stored.is_over), (8, false));
        assert_eq!(stored.owner, "a");
        // Otherwise all events would be delivered once more.
        let (stored, _) = fold(&[(0, set("a")), (1, done(9, true)), (2, again.clone())]);
        assert!(stored.unwrap().is_over);
        let (stored, _) = fold(&[(0, set("a")), (1, Event::Deleted {}), (2, again)]);
        let stored = stored.unwrap();
        assert_eq!((stored.reached.offset, stored.is_over), (9, true));
    }

    #[test]
    fn the_position_of_a_webhook_does_not_go_back() {
        let (stored, _) = fold(&[(0, set("a")), (1, done(9, false)), (2, done(8, false))]);
        let stored = stored.unwrap();
        assert_eq!(stored.reached.offset, 9);
        assert!(!WebhookFold.has_ended(&stored));
        let (stored, _) = fold(&[(0, set("a")), (1, done(9, true))]);
        assert!(WebhookFold.has_ended(&stored.unwrap()));
    }

    #[test]
    fn a_webhook_of_a_task_that_has_ended_waits_for_nothing() {
        let mut event = set("a");
        if let Event::Set { last, .. } = &mut event {
            *last = true;
        }
        let (stored, _) = fold(&[(0, event)]);
        assert!(WebhookFold.has_ended(&stored.unwrap()));
    }

    #[test]
    fn a_deleted_webhook_stays_deleted() {
        use Applied::{Changed, Unchanged};
        let deleted = Event::Deleted {};
        let (stored, applied) = fold(&[
            (0, set("a")),
            (1, deleted.clone()),
            (2, deleted),
            (3, done(9, false)),
        ]);
        assert!(stored.is_none());
        assert_eq!(applied, [Changed, Changed, Unchanged, Unchanged]);
    }

    fn secret() -> Webhook {
        let authentication = Authentication {
            scheme: "Bearer".to_owned(),
            credentials: Some("s3cret".to_owned()),
        };
        let url = "https://hooks.example.com/".to_owned();
        Webhook::new(url, Some("t0ken".to_owned()), Some(authentication), true)
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", secret());
        assert!(
            !shown.contains("s3cret") && !shown.contains("t0ken"),
            "{shown}"
        );
    }

    #[test]
    fn secrets_are_sealed_for_one_webhook_and_its_url() {
        let keys = SealKeys::new(["a key"]);
        let mut sealed = secret();
        sealed.seal(&keys, "t/c").unwrap();
        let text = serde_json::to_string(&sealed).unwrap();
        assert!(
            !text.contains("s3cret") && !text.contains("t0ken"),
            "{text}"
        );
        assert_eq!(sealed.opened(&keys, "t/c"), Ok(secret()));
        assert_eq!(sealed.opened(&keys, "t/d"), Err(SealError::NotOpened));
        sealed.url = "https://evil.example.com/".to_owned();
        assert_eq!(sealed.opened(&keys, "t/c"), Err(SealError::NotOpened));
    }
}
