//! Which agents exist, and what can they do?
//!
//! ```text
//!  discovery topic ─┐                                        ┌─> routes of announced agents (Outbound::announce)
//!  HTTP, a2abus ────┼─> Registry::register ─> log ─> view ───┤
//!  agents ──────────┘    (every fault, or a record)          └─> Agents: cards, lists, who may be called
//! ```
//!
//! The registry knows the agents of the configuration and the announced agents whose lease is valid. All replicas read
//! the same log, so they know the same agents. The registry does not depend on the protocol of the client.
//!
//! Source: docs/protocols/eventmesh-a2a.md §4.

mod agents;
mod announcement;
mod announcements;
pub(crate) mod card;
mod destinations;
pub(crate) mod discovery;
pub(crate) mod marked;
mod methods;
pub(crate) mod queries;
mod record;
pub(crate) mod request;
mod turns;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::Text;
use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tracing::Level;

use crate::bus::outbound::Outbound;
use crate::calls::Calls;
use crate::clock;
use crate::config::{AgentCardConfig, Config};
use crate::lock::lock;
use crate::log_limit::LogLimits;
use crate::metrics::{Metrics, RegistryEvent};
use crate::state::{AGENTS, Following, Lagged, Logs, StateError};
use announcements::{Announcements, BEHIND, RegistryLogs};
use destinations::AllowedDestinations;
use queries::AgentQueries;
use record::{AgentFold, Leases};
use turns::Turns;

pub(crate) use agents::Agents;
pub(crate) use announcement::{Announcement, AnnouncementError, RequestOrigin};
pub(crate) use record::{AnnouncedAgent, Owner};

/// The agents that clients can find, by name.
#[derive(Debug)]
pub(crate) struct Registry {
    listed: ArcSwap<Agents>,
    now: watch::Sender<Arc<Agents>>,
    announced: Option<Announcements>,
    /// The changes in progress.
    changes: TaskTracker,
    pub(crate) queries: AgentQueries,
    /// The state of attached servers. Locked while the list of agents is rebuilt and published.
    attached: Mutex<AttachedServers>,
    rebuilds: Rebuilds,
}

/// The rebuilds of the list of agents that announcements cause. The cost of each grows with the number of agents, so
/// they may take only a part of the time: changes that come in the meantime share the next one.
#[derive(Debug)]
struct Rebuilds {
    /// How many have begun.
    begun: AtomicU64,
    /// When the next one may begin. Locked while a rebuild waits for this, and while it lasts.
    next: tokio::sync::Mutex<Instant>,
}

/// How long a starting bridge waits for the announcements in the log.
const FIRST_READ: Duration = Duration::from_secs(5);
/// How often announcements whose lease expired long ago are removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// How long the pause after a rebuild is, as a multiple of the rebuild.
const PAUSE: u32 = 1;

/// The state of attached servers, by agent.
#[derive(Debug, Default)]
struct AttachedServers {
    /// Their descriptions of themselves.
    described: BTreeMap<Text, AgentCardConfig>,
    /// Why they cannot be reached, for those that cannot.
    away: BTreeMap<Text, Text>,
}

// === impl Registry ===

impl Registry {
    /// Opens the registry: the agents of the configuration, and the log of announced agents.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) async fn open(
        config: &Config,
        logs: &Logs,
        outbound: &Outbound,
        calls: &Arc<Calls>,
        (metrics, log): (&Arc<Metrics>, &LogLimits),
    ) -> Result<Arc<Self>, StateError> {
        let listed = Agents::listed(config);
        let registry = &config.registry;
        let announced = match AllowedDestinations::new(config) {
            Ok(destinations) if registry.enabled => Some(Announcements {
                view: logs.view(AGENTS, AgentFold).await?,
                destinations,
                leases: Leases {
                    default: registry.lease.0,
                    longest: registry.max_lease.0,
                },
                max_agents: registry.max_agents as usize,
                max_card: usize::try_from(registry.max_card.0.as_u64()).unwrap_or(usize::MAX),
                outbound: outbound.clone(),
                metrics: Arc::clone(metrics),
                writing: Turns::default(),
                next_expiry: Mutex::new(None),
                left_out: Mutex::default(),
                log: RegistryLogs {
                    refused: log.limit(Level::WARN, "more announcements were refused"),
                    changed: log.limit(Level::INFO, "more agents were announced or removed"),
                },
            }),
            // The configuration has already checked the patterns.
            _ => None,
        };
        Ok(Arc::new(Self {
            now: watch::Sender::new(Arc::new(listed.clone())),
            listed: ArcSwap::from_pointee(listed),
            announced,
            changes: TaskTracker::new(),
            queries: AgentQueries::new(config.calls.enabled.then(|| Arc::clone(calls))),
            attached: Mutex::default(),
            rebuilds: Rebuilds::new(),
        }))
    }

    /// Replaces the agents of the configuration after a reload. Agents with an unchanged card are not touched.
    pub(crate) fn relist(&self, config: &Config) {
        let mut listed = Agents::listed(config);
        let attached = lock(&self.attached);
        for (name, card) in &attached.described {
            listed.complete(name, card);
        }
        for (name, why) in &attached.away {
            listed.set_away(name, Some(why));
        }
        let before = self.listed.load();
        for (name, agent) in &mut listed.agents {
            if let Some(known) = before.agents.get(name)
                && known.shown == agent.shown
            {
                agent.shown = Arc::clone(&known.shown);
            }
        }
        let is_same = listed.is_same_as(&before) && listed.default == before.default;
        self.listed.store(Arc::new(listed));
        drop(attached);
        if !is_same {
            self.refresh();
        }
    }

    /// Stores how the server of an attached agent describes itself. The configuration of the agent takes precedence.
    pub(crate) fn describe(&self, agent: &Text, card: AgentCardConfig) {
        let mut attached = lock(&self.attached);
        let mut listed = Agents::clone(&self.listed.load());
        let is_new = listed.complete(agent, &card);
        attached.described.insert(agent.clone(), card);
        if !is_new {
            return;
        }
        self.listed.store(Arc::new(listed));
        drop(attached);
        self.refresh();
    }

    /// Checks that the sender of a message may act for an agent that clients can find.
    fn check_sender(&self, agent: &Text, origin: &RequestOrigin) -> Result<(), AnnouncementError> {
        announcements::check_sender(agent, origin)?;
        let found = self.now().get(agent).map(drop);
        found.ok_or_else(|| AnnouncementError::Unknown(agent.clone()))
    }

    /// Stores why the server of an attached agent cannot be reached; `None` if it can be reached again.
    pub(crate) fn set_away(&self, agent: &Text, why: Option<Text>) {
        let mut attached = lock(&self.attached);
        let mut listed = Agents::clone(&self.listed.load());
        let is_new = listed.set_away(agent, why.as_ref());
        match why {
            Some(why) => attached.away.insert(agent.clone(), why),
            None => attached.away.remove(agent),
        };
        if !is_new {
            return;
        }
        self.listed.store(Arc::new(listed));
        drop(attached);
        self.refresh();
    }

    /// Whether the server of an attached agent has described itself.
    pub(crate) fn is_described(&self, agent: &Text) -> bool {
        lock(&self.attached).described.contains_key(agent)
    }

    /// The current agents.
    pub(crate) fn now(&self) -> Arc<Agents> {
        Arc::clone(&self.now.borrow())
    }

    /// The agents, with notification of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Agents>> {
        self.now.subscribe()
    }

    /// The announcement of an agent, if its lease is valid.
    pub(crate) fn announced(&self, agent: &str) -> Option<AnnouncedAgent> {
        self.announced.as_ref()?.live(agent)
    }

    /// When its lease expires, in milliseconds since 1970.
    pub(crate) fn expires(&self, announced: &AnnouncedAgent) -> u64 {
        let announcements = self.announced.as_ref();
        announcements.map_or(0, |it| announced.expires(it.leases))
    }

    /// Checks an announcement, stores it, and waits until this replica knows the agent.
    ///
    /// # Errors
    /// Why it is refused, with all faults of the card.
    pub(crate) async fn register(
        self: &Arc<Self>,
        document: &Bytes,
        claim: &Announcement,
    ) -> Result<(Text, AnnouncedAgent), AnnouncementError> {
        let (registry, document, claim) = (Arc::clone(self), document.clone(), claim.clone());
        let change = async move { registry.register_now(&document, &claim).await };
        self.to_the_end(change).await
    }

    async fn register_now(
        &self,
        document: &[u8],
        claim: &Announcement,
    ) -> Result<(Text, AnnouncedAgent), AnnouncementError> {
        let announcements = self.announced.as_ref().ok_or(AnnouncementError::Disabled)?;
        let registered = announcements.register(document, claim).await;
        let done = match registered {
            Ok(name) => match announcements.live(name.as_str()) {
                Some(announced) => Ok((name.text().clone(), announced)),
                None => Err(AnnouncementError::Lapsed(name.text().clone())),
            },
            Err(refused) => Err(refused),
        };
        let agent = done.as_ref().ok().map(|(name, _)| name.as_str());
        self.done(claim, agent, done.as_ref().err(), RegistryEvent::Registered)
            .await;
        done
    }

    /// Renews the lease of an agent.
    ///
    /// # Errors
    /// When no agent with this name is announced.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        claim: &Announcement,
    ) -> Result<AnnouncedAgent, AnnouncementError> {
        let (registry, claim) = (Arc::clone(self), claim.clone());
        let change = async move {
            let announcements = registry.announced.as_ref();
            let announcements = announcements.ok_or(AnnouncementError::Disabled)?;
            let renewed = announcements.renew(&claim).await;
            let (agent, refused) = (claim.agent.as_deref(), renewed.as_ref().err());
            registry
                .done(&claim, agent, refused, RegistryEvent::Renewed)
                .await;
            renewed
        };
        self.to_the_end(change).await
    }

    /// Removes an agent before its lease expires.
    ///
    /// # Errors
    /// When no agent with this name is announced.
    pub(crate) async fn remove(
        self: &Arc<Self>,
        claim: &Announcement,
    ) -> Result<(), AnnouncementError> {
        let (registry, claim) = (Arc::clone(self), claim.clone());
        let change = async move {
            let announcements = registry.announced.as_ref();
            let announcements = announcements.ok_or(AnnouncementError::Disabled)?;
            let removed = announcements.remove(&claim).await;
            let removed = removed.map_err(|refused| registry.unless_listed(refused));
            let (agent, refused) = (claim.agent.as_deref(), removed.as_ref().err());
            registry
                .done(&claim, agent, refused, RegistryEvent::Removed)
                .await;
            removed
        };
        self.to_the_end(change).await
    }

    /// The error for an agent that has not announced itself, but is in the configuration.
    fn unless_listed(&self, refused: AnnouncementError) -> AnnouncementError {
        match refused {
            AnnouncementError::Unknown(agent) if self.listed.load().agents.contains_key(&agent) => {
                AnnouncementError::Listed(agent)
            }
            other => other,
        }
    }

    /// Makes a change, also if its caller disconnects: a record that was written may have to be corrected.
    async fn to_the_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, AnnouncementError>> + Send + 'static,
    ) -> Result<T, AnnouncementError> {
        match self.changes.spawn(change).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(_) => Err(AnnouncementError::NotStored(StateError::Closed(
                    AGENTS.name,
                ))),
            },
        }
    }

    /// Waits for the changes in progress.
    pub(crate) async fn until_changed(&self) {
        self.changes.close();
        self.changes.wait().await;
    }

    /// Applies a change to this replica before the request is answered, and counts it.
    async fn done(
        &self,
        claim: &Announcement,
        agent: Option<&str>,
        refused: Option<&AnnouncementError>,
        event: RegistryEvent,
    ) {
        let Some(announcements) = &self.announced else {
            return;
        };
        if let Some(why) = refused {
            return announcements.refused(claim, event, why);
        }
        announcements.metrics.registry(event);
        let is_visible = || {
            let entry = agent.and_then(|agent| announcements.live(agent));
            let now = self.now();
            let known = agent.and_then(|agent| now.agents.get(agent));
            match (&entry, known) {
                (Some(entry), Some(known)) => known.card.is_none() || known.is_of(entry),
                (None, known) => known.is_none_or(|known| known.card.is_none()),
                (Some(_), None) => false,
            }
        };
        if !is_visible() {
            // A rebuild that waits or is in progress may make it visible.
            drop(self.rebuilds.next.lock().await);
        }
        if !is_visible() {
            self.refresh_soon().await;
        }
    }

    /// Waits for the announcements that are in the log at the start, so that their agents are not unknown. If the log
    /// does not answer, the bridge starts with the agents of the configuration.
    pub(crate) async fn first_read(&self) {
        let Some(announcements) = &self.announced else {
            return;
        };
        // Readiness reports a log that is not read.
        let _ = timeout(FIRST_READ, announcements.view.caught_up()).await;
        self.refresh();
    }

    /// Keeps the current agents and their routes up to date with the log and with expiring leases. Ends with the log.
    pub(crate) async fn follow_log(self: Arc<Self>) {
        let Some(announcements) = &self.announced else {
            return std::future::pending().await;
        };
        let follow = async {
            loop {
                let ((), following) = announcements.view.follow(None, BEHIND, |_| ());
                if self.follow(announcements, following).await.is_none() {
                    return std::future::pending().await;
                }
            }
        };
        let forget = async {
            let mut checks = tokio::time::interval(FORGET_EVERY);
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                checks.tick().await;
                announcements.forget().await;
            }
        };
        tokio::join!(follow, forget);
    }

    /// Follows the log until it ends (`None`) or records were missed.
    async fn follow(&self, announcements: &Announcements, mut records: Following) -> Option<()> {
        self.refresh_soon().await;
        loop {
            // `register` also refreshes, possibly before its record arrives here.
            let expiry = *announcements.next_expiry();
            tokio::select! {
                record = records.next() => match record {
                    Err(Lagged) => return Some(()),
                    Ok(None) => return None,
                    Ok(Some(record)) => {
                        let mut has_changed = announcements.noticed(&self.built(), &record);
                        // Records that arrived together are one change.
                        while let Some(record) = records.now() {
                            has_changed |= announcements.noticed(&self.built(), &record);
                        }
                        if has_changed {
                            self.refresh_soon().await;
                        }
                    }
                },
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    self.refresh_soon().await;
                }
            }
        }
    }

    /// The current agents, once no rebuild is in progress: the next one sees all records that are applied now.
    fn built(&self) -> Arc<Agents> {
        let _attached = lock(&self.attached);
        self.now()
    }

    /// Waits for a rebuild that begins from now on, so that all records that are applied now have their effect.
    async fn refresh_soon(&self) {
        let rebuilds = &self.rebuilds;
        let before = rebuilds.begun.load(Ordering::Relaxed);
        let mut next = rebuilds.next.lock().await;
        if rebuilds.begun.load(Ordering::Relaxed) != before {
            // Another task has made it.
            return;
        }
        sleep_until(*next).await;
        rebuilds.begun.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        self.refresh();
        let end = Instant::now();
        *next = end + (end - begin) * PAUSE;
    }

    /// Rebuilds the current agents and their routes. The lock makes sure that the newest list is published last.
    fn refresh(&self) {
        let _attached = lock(&self.attached);
        let listed = self.listed.load();
        let Some(announcements) = &self.announced else {
            let mut agents = Agents::clone(&listed);
            agents.changed = Some(clock::now());
            self.queries.forget_changed(&self.now(), &agents);
            self.now.send_replace(Arc::new(agents));
            return;
        };
        let mut next_expiry = announcements.next_expiry();
        let before = self.now();
        let (mut agents, next) = announcements.agents(&listed, &before);
        *next_expiry = next;
        if agents.is_same_as(&before) && agents.default == before.default {
            return;
        }
        announcements.report(&before, &agents);
        self.queries.forget_changed(&before, &agents);
        let announced = agents
            .agents
            .iter()
            .filter(|(_, agent)| agent.card.is_some());
        let routes = announced.map(|(name, agent)| (name.clone(), agent.route.clone()));
        announcements.outbound.announce(routes.collect());
        agents.changed = Some(clock::now());
        self.now.send_replace(Arc::new(agents));
    }
}

// === impl Rebuilds ===

impl Rebuilds {
    fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            next: tokio::sync::Mutex::new(Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use tokio::sync::oneshot;

    use super::*;

    /// A registry without announcements.
    fn registry() -> Registry {
        let config = "
instance: test
transports: { local: { type: memory } }
agents: { a: { description: d, to: { transport: local, topic: t }, attach: { command: [x] } } }
";
        let config = Config::read("test.yaml", config, []).unwrap();
        let listed = Agents::listed(&config);
        Registry {
            now: watch::Sender::new(Arc::new(listed.clone())),
            listed: ArcSwap::from_pointee(listed),
            announced: None,
            changes: TaskTracker::new(),
            queries: AgentQueries::new(None),
            attached: Mutex::default(),
            rebuilds: Rebuilds::new(),
        }
    }

    #[tokio::test]
    async fn a_change_continues_if_its_caller_disconnects() {
        let registry = registry();
        let (go_on, goes_on) = oneshot::channel();
        let (sender, corrected) = oneshot::channel();
        let change = registry.to_the_end(async move {
            drop(goes_on.await);
            let _ = sender.send("corrected");
            Ok(())
        });
        assert!(change.now_or_never().is_none(), "it is dropped unfinished");
        go_on.send(()).unwrap();
        assert_eq!(corrected.await, Ok("corrected"));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_during_the_pause_after_a_rebuild_share_the_next_one() {
        let registry = registry();
        let may_begin = Instant::now() + Duration::from_secs(1);
        *registry.rebuilds.next.lock().await = may_begin;
        join_all((0..100).map(|_| registry.refresh_soon())).await;
        assert!(Instant::now() >= may_begin);
        assert_eq!(registry.rebuilds.begun.load(Ordering::Relaxed), 1);
        // A change after it needs another one.
        registry.refresh_soon().await;
        assert_eq!(registry.rebuilds.begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_last_state_of_a_server_is_published() {
        let registry = registry();
        let (agent, both) = (Text::from_static("a"), Barrier::new(2));
        for _ in 0..1_000 {
            std::thread::scope(|scope| {
                for why in [None, Some(Text::from_static("gone"))] {
                    scope.spawn(|| {
                        both.wait();
                        registry.set_away(&agent, why);
                    });
                }
            });
            let last = registry.listed.load().away("a").cloned();
            assert_eq!(registry.now().away("a").cloned(), last);
        }
    }
}
