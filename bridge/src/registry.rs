//! Which agents are there, and what can they do?
//!
//! ```text
//!  discovery topic ─┐                                        ┌─> routes of announced agents (Outbound::announce)
//!  HTTP, a2abus ────┼─> Registry::register ─> log ─> view ───┤
//!  agents ──────────┘    (every fault, or a record)          └─> Agents: cards, lists, who may be called
//! ```
//!
//! The agents of the configuration, and those that have announced themselves and whose lease has not run out. All replicas
//! read the same log, so they know the same agents. Nothing here depends on how agents are asked.
//!
//! Source: docs/protocols/eventmesh-a2a.md §4.

pub(crate) mod card;
mod destinations;
pub(crate) mod discovery;
mod methods;
pub(crate) mod queries;
mod record;
pub(crate) mod request;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use a2abus_plugin::Text;
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tracing::Level;

use crate::bus::outbound::Outbound;
use crate::calls::Calls;
use crate::clock;
use crate::config::{AgentCardConfig, Config};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{Metrics, RegistryEvent};
use crate::names::Name;
use crate::route::Route;
use crate::state::{AGENTS, Following, Lagged, Logs, Record, StateError, View};
use card::{Card, Faults, check_name};
use destinations::AllowedDestinations;
use queries::AgentQueries;
use record::{AHEAD, AgentFold, Leases};

pub(crate) use record::{AnnouncedAgent, Owner};

/// The agents that clients find, by name.
#[derive(Debug)]
pub(crate) struct Registry {
    listed: ArcSwap<Agents>,
    now: watch::Sender<Arc<Agents>>,
    announced: Option<Announcements>,
    /// Asks agents about themselves; `None` where no calls are made.
    calls: Option<Arc<Calls>>,
    /// Their answers.
    asked: AgentQueries,
    /// How attached servers describe themselves. Held while the list of agents is rebuilt.
    described: Mutex<BTreeMap<Text, AgentCardConfig>>,
}

/// A snapshot of the agents. Immutable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    agents: BTreeMap<Text, Agent>,
    /// The one that the configuration names.
    default: Option<Text>,
    /// When they last changed.
    changed: Option<SystemTime>,
}

#[derive(Debug, Clone)]
struct Agent {
    shown: Arc<AgentCardConfig>,
    /// What the configuration says of an attached agent, which its server completes.
    written: Option<Arc<AgentCardConfig>>,
    /// The card that it announced; `None` for one that the configuration lists.
    card: Option<Arc<Card>>,
    route: Option<Arc<Route>>,
}

/// The agents that announce themselves, and how long they stay.
#[derive(Debug)]
struct Announcements {
    view: View<AgentFold>,
    places: AllowedDestinations,
    leases: Leases,
    max_agents: usize,
    max_card: usize,
    outbound: Outbound,
    metrics: Arc<Metrics>,
    writing: AgentLocks,
    /// When the next lease runs out. Held while the list of agents is rebuilt.
    next_expiry: Mutex<Option<Instant>>,
    log: RegistryLogs,
}

/// Locks: only one task of this process writes an agent's record at a time.
#[derive(Debug)]
struct AgentLocks {
    locks: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
}

/// Limits for log lines that any client can cause.
#[derive(Debug)]
struct RegistryLogs {
    refused: LogLimit,
    changed: LogLimit,
}

/// An announcement, with the proof of who sent it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Announcement {
    /// The agent that is named beside the card.
    pub(crate) agent: Option<Text>,
    pub(crate) owner: Owner,
    pub(crate) lease: Option<Duration>,
    pub(crate) origin: RequestOrigin,
}

/// Where a request to the registry comes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestOrigin {
    /// The transport on which it came.
    pub(crate) transport: Option<Name>,
    /// The names of agents that its message shows: its key, a word of its subject. Who may publish there may speak for
    /// these, and for nobody else.
    pub(crate) shows: Vec<Text>,
    /// The sender, for calls that the request causes.
    pub(crate) caller: Option<Text>,
}

/// Why an announcement is refused.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AnnouncementError {
    /// Agents cannot announce themselves.
    #[error(
        "agents cannot announce themselves here: set registry.enabled, or list the agent in agents"
    )]
    Disabled,
    /// The card cannot be used.
    #[error("the announcement is refused: {0}")]
    Invalid(Faults),
    /// The name belongs to somebody else.
    #[error("the agent {agent} belongs to {org}/{unit}, until its lease runs out")]
    Taken { agent: Text, org: Text, unit: Text },
    /// Too many agents.
    #[error("there are {0} announced agents already (registry.max_agents)")]
    Full(usize),
    /// Nobody of that name has announced itself.
    #[error("no agent {0:?} has announced itself, or its lease has run out")]
    Unknown(Text),
    /// The log did not take it.
    #[error("the announcement was not stored: {0}")]
    NotStored(StateError),
}

/// How long a record may take until it is read back.
const APPLIED: Duration = Duration::from_secs(10);
/// How often a record is written again that others have overtaken.
const MOST_TRIES: usize = 5;
/// Records that the registry may be behind before it reads all again.
const BEHIND: usize = 1_024;
/// How long an announcement stays in the log after its lease has run out.
const FORGET_AFTER: Duration = Duration::from_secs(10 * 60);
/// How often such announcements are looked for, and how many are removed at a time.
const FORGET_EVERY: Duration = Duration::from_secs(60);
const FORGOTTEN_AT_A_TIME: usize = 16;
/// Agents that are written at a time.
const WRITERS: u64 = 64;
/// Announcements in the log for each agent that may be there.
const CROWD: usize = 4;
/// Names in a list of what there is, at most.
const MOST_NAMES: usize = 100;

// === impl Registry ===

impl Registry {
    /// The agents of a configuration, and the log of those that announce themselves.
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
            Ok(places) if registry.enabled => Some(Announcements {
                view: logs.view(AGENTS, AgentFold).await?,
                places,
                leases: Leases {
                    default: registry.lease.0,
                    longest: registry.max_lease.0,
                },
                max_agents: registry.max_agents as usize,
                max_card: usize::try_from(registry.max_card.0.as_u64()).unwrap_or(usize::MAX),
                outbound: outbound.clone(),
                metrics: Arc::clone(metrics),
                writing: AgentLocks::default(),
                next_expiry: Mutex::new(None),
                log: RegistryLogs {
                    refused: log.seldom(Level::WARN, "more announcements were refused"),
                    changed: log.seldom(Level::INFO, "more agents came or went"),
                },
            }),
            // The patterns were read with the configuration.
            _ => None,
        };
        Ok(Arc::new(Self {
            now: watch::Sender::new(Arc::new(listed.clone())),
            listed: ArcSwap::from_pointee(listed),
            announced,
            calls: config.calls.enabled.then(|| Arc::clone(calls)),
            asked: AgentQueries::default(),
            described: Mutex::default(),
        }))
    }

    /// Whether there is no agent, and none can announce itself.
    pub(crate) fn is_closed(&self) -> bool {
        self.listed.load().agents.is_empty() && self.announced.is_none()
    }

    /// The agents of another configuration are listed from now on. Agents whose card stays the same stay as they are.
    pub(crate) fn relist(&self, config: &Config) {
        let mut listed = Agents::listed(config);
        let described = lock(&self.described);
        for (name, said) in described.iter() {
            listed.complete(name, said);
        }
        let before = self.listed.load();
        for (name, agent) in &mut listed.agents {
            if let Some(known) = before.agents.get(name)
                && known.shown == agent.shown
            {
                agent.shown = Arc::clone(&known.shown);
            }
        }
        let is_same = listed.is_as(&before) && listed.default == before.default;
        self.listed.store(Arc::new(listed));
        drop(described);
        if !is_same {
            self.refresh();
        }
    }

    /// The server of an attached agent says this about itself. What the configuration says of the agent wins.
    pub(crate) fn describe(&self, agent: &Text, said: AgentCardConfig) {
        let mut described = lock(&self.described);
        let mut listed = Agents::clone(&self.listed.load());
        let is_new = listed.complete(agent, &said);
        described.insert(agent.clone(), said);
        if !is_new {
            return;
        }
        self.listed.store(Arc::new(listed));
        drop(described);
        self.refresh();
    }

    /// Whether the server of an attached agent has said anything about itself.
    pub(crate) fn is_described(&self, agent: &Text) -> bool {
        lock(&self.described).contains_key(agent)
    }

    /// The agents of this moment.
    pub(crate) fn now(&self) -> Arc<Agents> {
        Arc::clone(&self.now.borrow())
    }

    /// The agents, and every change of them.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Agents>> {
        self.now.subscribe()
    }

    /// The announcement of an agent whose lease has not run out.
    pub(crate) fn announced(&self, agent: &str) -> Option<AnnouncedAgent> {
        self.announced.as_ref()?.live(agent)
    }

    /// When its lease runs out, in milliseconds since 1970.
    pub(crate) fn expires(&self, announced: &AnnouncedAgent) -> u64 {
        let announcements = self.announced.as_ref();
        announcements.map_or(0, |it| announced.expires(it.leases))
    }

    /// Takes an announcement: checks it, stores it, and waits until this replica knows the agent.
    ///
    /// # Errors
    /// Why not, with everything that is wrong with the card.
    pub(crate) async fn register(
        &self,
        document: &[u8],
        claim: &Announcement,
    ) -> Result<(Text, AnnouncedAgent), AnnouncementError> {
        let announcements = self.announced.as_ref().ok_or(AnnouncementError::Disabled)?;
        let registered = announcements.register(document, claim).await;
        let done = match registered {
            Ok(name) => match announcements.live(name.as_str()) {
                Some(announced) => Ok((name.text().clone(), announced)),
                None => Err(AnnouncementError::Unknown(name.text().clone())),
            },
            Err(refused) => Err(refused),
        };
        let agent = done.as_ref().ok().map(|(name, _)| name.as_str());
        self.done(agent, done.is_ok(), RegistryEvent::Registered);
        done
    }

    /// Renews the lease of an agent.
    ///
    /// # Errors
    /// When nobody of that name has announced itself.
    pub(crate) async fn renew(
        &self,
        claim: &Announcement,
    ) -> Result<AnnouncedAgent, AnnouncementError> {
        let announcements = self.announced.as_ref().ok_or(AnnouncementError::Disabled)?;
        let renewed = announcements.renew(claim).await;
        self.done(
            claim.agent.as_deref(),
            renewed.is_ok(),
            RegistryEvent::Renewed,
        );
        renewed
    }

    /// Removes an agent before its lease runs out.
    ///
    /// # Errors
    /// When nobody of that name has announced itself.
    pub(crate) async fn remove(&self, claim: &Announcement) -> Result<(), AnnouncementError> {
        let announcements = self.announced.as_ref().ok_or(AnnouncementError::Disabled)?;
        let removed = announcements.remove(claim).await;
        self.done(
            claim.agent.as_deref(),
            removed.is_ok(),
            RegistryEvent::Removed,
        );
        removed
    }

    /// What was done is visible here before its answer.
    fn done(&self, agent: Option<&str>, is_ok: bool, event: RegistryEvent) {
        let Some(announcements) = &self.announced else {
            return;
        };
        if !is_ok {
            return announcements.metrics.registry(RegistryEvent::Refused);
        }
        announcements.metrics.registry(event);
        let entry = agent.and_then(|agent| announcements.live(agent));
        let now = self.now();
        let known = agent.and_then(|agent| now.agents.get(agent));
        let is_visible = match (&entry, known) {
            (Some(entry), Some(known)) => known.card.is_none() || known.is_of(entry),
            (None, known) => known.is_none_or(|known| known.card.is_none()),
            (Some(_), None) => false,
        };
        if !is_visible {
            self.refresh();
        }
    }

    /// Follows the log, and the clock: the agents of this moment and their routes are those whose lease has not run out.
    /// Ends with the log.
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
            let mut looks = tokio::time::interval(FORGET_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                announcements.forget().await;
            }
        };
        tokio::join!(follow, forget);
    }

    /// Until the log ends (`None`), or records were missed.
    async fn follow(&self, announcements: &Announcements, mut records: Following) -> Option<()> {
        self.refresh();
        loop {
            // Whoever registers an agent refreshes too, before its record comes here.
            let expiry = *announcements.next_expiry();
            tokio::select! {
                record = records.next() => match record {
                    Err(Lagged) => return Some(()),
                    Ok(None) => return None,
                    Ok(Some(record)) => {
                        let mut has_changed = announcements.noticed(&self.now(), &record);
                        // What came together is one change.
                        while let Some(record) = records.now() {
                            has_changed |= announcements.noticed(&self.now(), &record);
                        }
                        if has_changed {
                            self.refresh();
                        }
                    }
                },
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    self.refresh();
                }
            }
        }
    }

    /// Makes the agents of this moment, and their routes.
    fn refresh(&self) {
        let listed = self.listed.load();
        let Some(announcements) = &self.announced else {
            let mut agents = Agents::clone(&listed);
            agents.changed = Some(clock::now());
            self.asked.forget_changed(&self.now(), &agents);
            self.now.send_replace(Arc::new(agents));
            return;
        };
        let mut next_expiry = announcements.next_expiry();
        let before = self.now();
        let (mut agents, next) = announcements.agents(&listed, &before);
        *next_expiry = next;
        if agents.is_as(&before) && agents.default == before.default {
            return;
        }
        announcements.report(&before, &agents);
        self.asked.forget_changed(&before, &agents);
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

// === impl AgentLocks ===

impl AgentLocks {
    /// Waits until nobody else writes the agent of this name.
    async fn of(&self, name: &str) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let lock = self.hasher.hash_one(name) % WRITERS;
        match self.locks.get(usize::try_from(lock).unwrap_or_default()) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }
}

impl Default for AgentLocks {
    fn default() -> Self {
        Self {
            locks: (0..WRITERS)
                .map(|_| tokio::sync::Mutex::default())
                .collect(),
            hasher: RandomState::new(),
        }
    }
}

// === impl Announcements ===

impl Announcements {
    async fn register(
        &self,
        document: &[u8],
        claim: &Announcement,
    ) -> Result<Name, AnnouncementError> {
        let card = Card::read(document, self.max_card).map_err(AnnouncementError::Invalid)?;
        let name = self
            .admitted(&card, claim)
            .map_err(AnnouncementError::Invalid)?;
        if self.is_full(self.max_agents) && self.live(name.as_str()).is_none() {
            return Err(AnnouncementError::Full(self.max_agents));
        }
        let transport = claim.origin.transport.as_ref();
        let transport = transport.filter(|name| self.places.has(name));
        let body = record::write(document, &claim.owner, transport, claim.lease)
            .map_err(|error| AnnouncementError::Invalid(Faults::one(error.to_string())))?;
        self.store(name.as_str(), |there| {
            check_owner(name.as_str(), there, &claim.owner)?;
            Ok(Some(body.clone()))
        })
        .await?;
        // Others may have come at the same time. Rather one too few than one that replaces an agent of before.
        if self.is_full(self.max_agents + 1) {
            self.store(name.as_str(), |_| Ok(None)).await?;
            return Err(AnnouncementError::Full(self.max_agents));
        }
        Ok(name)
    }

    /// The name of the agent, if the announcement may have it and its requests can go where the card says.
    fn admitted(&self, card: &Card, claim: &Announcement) -> Result<Name, Faults> {
        let name = claim.agent.as_ref().or(card.agent.as_ref());
        let name = name.ok_or_else(|| Faults::one("the card names no agent"))?;
        let name = check_name(name).map_err(Faults::one)?;
        let mut faults = forged(name.as_str(), &claim.origin).0;
        let transport = claim.origin.transport.as_ref();
        let transport = transport.filter(|name| self.places.has(name));
        let transport = card.transport.as_ref().or(transport);
        if let Err(fault) = self.places.route(&name, transport, card) {
            faults.push(fault);
        }
        if faults.is_empty() {
            Ok(name)
        } else {
            Err(Faults(faults))
        }
    }

    async fn renew(&self, claim: &Announcement) -> Result<AnnouncedAgent, AnnouncementError> {
        let name = claimed(claim)?;
        self.store(&name, |there| {
            check_owner(&name, there, &claim.owner)?;
            let there = there.ok_or_else(|| AnnouncementError::Unknown(name.clone()))?;
            Ok(Some(there.body.clone()))
        })
        .await?;
        self.live(&name).ok_or(AnnouncementError::Unknown(name))
    }

    async fn remove(&self, claim: &Announcement) -> Result<(), AnnouncementError> {
        let name = claimed(claim)?;
        self.store(&name, |there| {
            check_owner(&name, there, &claim.owner)?;
            let there = there.ok_or_else(|| AnnouncementError::Unknown(name.clone()));
            there.map(|_| None)
        })
        .await
    }

    fn next_expiry(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.next_expiry)
    }

    async fn store(
        &self,
        name: &str,
        wanted: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
    ) -> Result<(), AnnouncementError> {
        let _alone = self.writing.of(name).await;
        store(&self.view, self.leases, name, wanted).await
    }

    fn live(&self, name: &str) -> Option<AnnouncedAgent> {
        let found = self.view.read(|agents| agents.get(name).cloned());
        found.filter(|agent| is_live(agent, self.leases))
    }

    /// Whether there are `most` agents, or so many announcements whose lease has run out that there is no room for more.
    fn is_full(&self, most: usize) -> bool {
        self.view.read(|agents| {
            let live = agents
                .iter()
                .filter(|(_, agent)| is_live(agent, self.leases));
            // Most of the time nobody has to be counted.
            agents.len() >= most && (agents.len() >= CROWD * most || live.count() >= most)
        })
    }

    /// The agents of this moment, and when the next lease runs out.
    fn agents(&self, listed: &Agents, before: &Agents) -> (Agents, Option<Instant>) {
        let now = clock::milliseconds(clock::now());
        let mut agents = listed.clone();
        let mut next: Option<u64> = None;
        self.view.read(|entries| {
            for (name, entry) in entries
                .iter()
                .filter(|(_, it)| it.is_live(now, self.leases))
            {
                let expires = entry.expires(self.leases);
                next = Some(next.map_or(expires, |next| next.min(expires)));
                // The configuration wins.
                if listed.agents.contains_key(name) {
                    continue;
                }
                let same = before.agents.get(name).filter(|agent| agent.is_of(entry));
                let agent = same.cloned().or_else(|| self.agent(name, entry));
                if let Some(agent) = agent {
                    agents.agents.insert(name.into(), agent);
                }
            }
        });
        // Writers of the log may have written more than this replica takes: all replicas take the same.
        let most = listed.agents.len().saturating_add(self.max_agents);
        while agents.agents.len() > most {
            let last = agents
                .agents
                .iter()
                .rfind(|(_, agent)| agent.card.is_some());
            let Some(name) = last.map(|(name, _)| name.clone()) else {
                break;
            };
            agents.agents.remove(&name);
            self.refused(&name, &AnnouncementError::Full(self.max_agents));
        }
        let in_ms =
            |expires: u64| Instant::now() + Duration::from_millis(expires.saturating_sub(now));
        (agents, next.map(in_ms))
    }

    /// An agent that is new here; `None` where its requests may not go where its card says.
    fn agent(&self, name: &str, entry: &AnnouncedAgent) -> Option<Agent> {
        let routed = check_name(name)
            .and_then(|name| self.places.route(&name, entry.transport(), &entry.card));
        match routed {
            Ok(route) => Some(Agent {
                shown: Arc::new(entry.card.shown.clone()),
                written: None,
                card: Some(Arc::clone(&entry.card)),
                route: route.map(Arc::new),
            }),
            Err(fault) => {
                self.refused(name, &AnnouncementError::Invalid(Faults::one(fault)));
                None
            }
        }
    }

    /// Whether a record changes more than how long an agent is known. One that cannot be used is reported here: who wrote
    /// it into the log itself has no other answer.
    fn noticed(&self, now: &Agents, record: &Record) -> bool {
        let entry = self.view.read(|agents| agents.get(&record.key).cloned());
        match (&entry, &record.body) {
            (Some(entry), _) => {
                let known = now.agents.get(&record.key);
                known.is_none_or(|known| known.card.is_some() && !known.is_of(entry))
            }
            (None, Some(body)) => {
                if let Err(faults) = AnnouncedAgent::read(record, body) {
                    self.metrics.registry(RegistryEvent::Refused);
                    self.refused(&record.key, &AnnouncementError::Invalid(faults));
                }
                true
            }
            (None, None) => true,
        }
    }

    fn refused(&self, agent: &str, refused: &AnnouncementError) {
        if let Some(suppressed) = self.log.refused.allow() {
            let agent: String = agent.chars().take(64).collect();
            tracing::warn!(agent, %refused, suppressed, "an announcement in the log cannot be used");
        }
    }

    fn report(&self, before: &Agents, after: &Agents) {
        for name in after
            .agents
            .keys()
            .filter(|name| !before.agents.contains_key(*name))
        {
            if let Some(suppressed) = self.log.changed.allow() {
                tracing::info!(agent = %name, suppressed, "an agent has announced itself");
            }
        }
        for name in before
            .agents
            .keys()
            .filter(|name| !after.agents.contains_key(*name))
        {
            let has_expired = self.view.read(|agents| agents.get(name).is_some());
            if has_expired {
                self.metrics.registry(RegistryEvent::Expired);
            }
            if let Some(suppressed) = self.log.changed.allow() {
                let why = if has_expired {
                    "its lease has run out"
                } else {
                    "it was removed"
                };
                tracing::info!(agent = %name, why, suppressed, "an agent is not known any more");
            }
        }
        let announced = after.agents.values().filter(|agent| agent.card.is_some());
        self.metrics.announced_agents(announced.count());
    }

    /// Removes announcements from the log whose lease ran out long ago, or at all where there are many.
    async fn forget(&self) {
        let now = clock::milliseconds(clock::now());
        let is_crowded = self.view.read(|agents| agents.len() > 2 * self.max_agents);
        let age = if is_crowded { AHEAD } else { FORGET_AFTER };
        let oldest = now.saturating_sub(clock::whole_milliseconds(age));
        let is_old = |agent: &AnnouncedAgent| agent.expires(self.leases) < oldest;
        let old: Vec<Text> = self.view.read(|agents| {
            let old = agents.iter().filter(|(_, agent)| is_old(agent));
            old.map(|(name, _)| Text::from(name)).collect()
        });
        let forgotten = stream::iter(old).map(|name| async move {
            let done = self.forget_one(&name, is_old).await;
            done.map_err(|error| (name, error))
        });
        let mut forgotten = pin!(forgotten.buffer_unordered(FORGOTTEN_AT_A_TIME));
        while let Some(done) = forgotten.next().await {
            if let Err((name, error)) = done {
                tracing::debug!(agent = %name, %error, "an old announcement was not removed: trying again later");
                return;
            }
        }
    }

    /// Removes one, unless it comes back meanwhile: what the removal has overtaken is written once more.
    async fn forget_one(
        &self,
        name: &Text,
        is_old: impl Fn(&AnnouncedAgent) -> bool,
    ) -> Result<(), StateError> {
        let (old, mut following) = self.view.follow(Some(name), BEHIND, |agents| {
            let old = agents.get(name).filter(|agent| is_old(agent));
            old.map(|agent| agent.at)
        });
        let Some(old) = old else { return Ok(()) };
        let removed = match self.view.commit_next(name, None, Some(old), APPLIED).await {
            Ok(removed) => removed,
            Err(StateError::Overtaken { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut again = None;
        while let Some(record) = following.now() {
            if record.position < removed {
                again = record.body;
            }
        }
        if let Some(body) = again {
            self.view.append(name, Some(body)).await?;
        }
        Ok(())
    }
}

/// Writes what is wanted over the announcement that is there, if its lease has not run out; `None` removes it. The log
/// keeps the last record of a key whatever others make of it. JetStream refuses a record that overwrites one that this
/// replica has not seen: then it looks again. Elsewhere a record that another replica has written meanwhile is looked for
/// afterwards, and what is wanted over that one, or the record itself where nothing is, is written in the end.
async fn store(
    view: &View<AgentFold>,
    leases: Leases,
    name: &str,
    wanted: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
) -> Result<(), AnnouncementError> {
    let (mut seen, mut tries) = (None, 0);
    let (stored, body, mut following) = loop {
        let (there, following) =
            view.follow(Some(name), BEHIND, |agents| agents.get(name).cloned());
        let last = seen.max(there.as_ref().map(|agent| agent.at));
        let body = wanted(there.filter(|agent| is_live(agent, leases)).as_ref())?;
        match view.commit_next(name, body.clone(), last, APPLIED).await {
            Ok(stored) => break (stored, body, following),
            // It may be a removal, which leaves no entry.
            Err(StateError::Overtaken {
                last: Some(last), ..
            }) if seen < Some(last) => {
                let applied = view.applied(last, APPLIED).await;
                applied.map_err(AnnouncementError::NotStored)?;
                seen = Some(last);
            }
            // The server does not say by which.
            Err(StateError::Overtaken { .. }) if tries < MOST_TRIES => {
                tries += 1;
                view.latest(APPLIED)
                    .await
                    .map_err(AnnouncementError::NotStored)?;
            }
            Err(error) => return Err(AnnouncementError::NotStored(error)),
        }
    };
    let mut overtaken = None;
    while let Some(record) = following.now() {
        if record.position < stored {
            overtaken = Some(record);
        }
    }
    let Some(record) = overtaken else {
        return Ok(());
    };
    let there = record.body.as_ref();
    let there = there.and_then(|body| AnnouncedAgent::read(&record, body).ok());
    let (right, done) = match wanted(there.filter(|agent| is_live(agent, leases)).as_ref()) {
        Ok(right) => (right, Ok(())),
        Err(refused) => (record.body, Err(refused)),
    };
    if right != body {
        let again = view.commit(name, right, APPLIED).await;
        again.map_err(AnnouncementError::NotStored)?;
    }
    done
}

/// Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_live(agent: &AnnouncedAgent, leases: Leases) -> bool {
    agent.is_live(clock::milliseconds(clock::now()), leases)
}

/// Two organisations may have agents of one name; the first has it here.
fn check_owner(
    name: &str,
    there: Option<&AnnouncedAgent>,
    owner: &Owner,
) -> Result<(), AnnouncementError> {
    match there {
        Some(known) if known.owner != *owner && known.owner != Owner::default() => {
            Err(AnnouncementError::Taken {
                agent: name.into(),
                org: known.owner.org.clone().unwrap_or_default(),
                unit: known.owner.unit.clone().unwrap_or_default(),
            })
        }
        _ => Ok(()),
    }
}

/// The agent that a claim names, if its message may be from it.
fn claimed(claim: &Announcement) -> Result<Text, AnnouncementError> {
    let name = claim.agent.clone().unwrap_or_default();
    let forged = forged(&name, &claim.origin);
    if forged.0.is_empty() {
        Ok(name)
    } else {
        Err(AnnouncementError::Invalid(forged))
    }
}

/// What a message shows about its sender and its agent's name does not fit.
fn forged(name: &str, origin: &RequestOrigin) -> Faults {
    let others = origin.shows.iter().filter(|shown| shown.as_str() != name);
    let faults = others.map(|shown| {
        let shown: String = shown.chars().take(64).collect();
        format!("the agent is {name:?}, but the key or subject of the message says {shown:?}")
    });
    Faults(faults.collect())
}

// === impl Agents ===

impl Agents {
    /// Those of a configuration.
    fn listed(config: &Config) -> Self {
        let agents = config.agents.iter().map(|(name, agent)| {
            let written = agent.attach.is_some().then(|| Arc::new(agent.clone()));
            let agent = Agent {
                shown: Arc::new(agent.clone().described()),
                written,
                card: None,
                route: None,
            };
            (name.text().clone(), agent)
        });
        let default = config.a2a.default_agent.as_ref();
        Self {
            agents: agents.collect(),
            default: default.map(|name| name.text().clone()),
            changed: None,
        }
    }

    /// Completes the card of an attached agent by what its server says; whether that changes it.
    fn complete(&mut self, name: &Text, said: &AgentCardConfig) -> bool {
        let Some(agent) = self.agents.get_mut(name) else {
            return false;
        };
        let Some(written) = &agent.written else {
            return false;
        };
        let shown = written.completed_by(said.clone()).described();
        let is_new = *agent.shown != shown;
        if is_new {
            agent.shown = Arc::new(shown);
        }
        is_new
    }

    /// Whether they are the same agents with the same cards.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let same = |(one, other): ((&Text, &Agent), (&Text, &Agent))| {
            one.0 == other.0 && Arc::ptr_eq(&one.1.shown, &other.1.shown)
        };
        self.agents.len() == other.agents.len() && self.agents.iter().zip(&other.agents).all(same)
    }

    /// The agent of this name.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &Arc<AgentCardConfig>)> {
        let (name, agent) = self.agents.get_key_value(name)?;
        Some((name, &agent.shown))
    }

    /// The agents in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &Arc<AgentCardConfig>)> {
        self.agents.iter().map(|(name, agent)| (name, &agent.shown))
    }

    /// Whether it has announced itself; `false` for one that the configuration lists.
    pub(crate) fn is_announced(&self, name: &str) -> bool {
        self.agents
            .get(name)
            .is_some_and(|agent| agent.card.is_some())
    }

    /// Their names, for somebody who named none of them: the first hundred.
    pub(crate) fn names(&self) -> Vec<&str> {
        let names = self.agents.keys().map(Text::as_str);
        names.take(MOST_NAMES).collect()
    }

    /// The agent of a request that names none: the one that the configuration says, else the only one.
    pub(crate) fn default_agent(&self) -> Option<&Text> {
        let only = || self.agents.keys().next().filter(|_| self.agents.len() == 1);
        self.default.as_ref().or_else(only)
    }

    /// When they last changed; `None` since the start.
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        self.changed
    }
}

// === impl Agent ===

impl Agent {
    /// Whether it is of this announcement.
    fn is_of(&self, entry: &AnnouncedAgent) -> bool {
        let card = self.card.as_ref();
        card.is_some_and(|card| Arc::ptr_eq(card, &entry.card))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::state::{Kind, Log as _, LogSpec, MemoryLog, ViewOptions};

    const LEASES: Leases = Leases {
        default: Duration::from_secs(600),
        longest: Duration::from_secs(600),
    };

    fn owner(org: &str) -> Owner {
        Owner {
            org: Some(org.into()),
            unit: None,
        }
    }

    fn card(description: &str, owner: &Owner) -> Bytes {
        let card = format!(r#"{{"name":"weather","description":"{description}"}}"#);
        record::write(card.as_bytes(), owner, None, None).unwrap()
    }

    /// Writes over what is there, while somebody else writes `other` between the look at it and the record; what came of
    /// it, and who has the agent then.
    async fn at_the_same_time(
        before: Option<Bytes>,
        other: Bytes,
        wanted: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
    ) -> (Result<(), AnnouncementError>, Option<Bytes>) {
        // One that keeps what is overwritten for a while, as Kafka does.
        let kind = Kind::Events {
            max_age: Duration::from_secs(600),
        };
        let log = MemoryLog::new(LogSpec { kind, ..AGENTS }, 1 << 20);
        let options = ViewOptions {
            memory_bytes: 1 << 20,
        };
        let (view, _task) = View::start(log.clone(), AgentFold, options);
        if before.is_some() {
            view.commit("weather", before, APPLIED).await.unwrap();
        }
        let is_first = Cell::new(true);
        let wanted = |there: Option<&AnnouncedAgent>| {
            let wanted = wanted(there);
            if is_first.replace(false) {
                let appended = log.append("weather", Some(other.clone())).now_or_never();
                appended.unwrap().unwrap();
            }
            wanted
        };
        let done = store(&view, LEASES, "weather", wanted).await;
        let last = view.read(|agents| agents.get("weather").map(|agent| agent.body.clone()));
        (done, last)
    }

    #[tokio::test]
    async fn of_two_owners_who_come_at_the_same_time_the_first_has_the_agent() {
        let (first, second) = (owner("one"), owner("two"));
        let theirs = card("Rain.", &first);
        let (done, last) = at_the_same_time(None, theirs.clone(), |there| {
            check_owner("weather", there, &second)?;
            Ok(Some(card("Sun.", &second)))
        })
        .await;
        assert!(
            matches!(done, Err(AnnouncementError::Taken { .. })),
            "{done:?}"
        );
        assert_eq!(last, Some(theirs));
    }

    #[tokio::test]
    async fn a_renewal_takes_nothing_back_that_was_written_meanwhile() {
        let owner = owner("one");
        let (old, new) = (card("Rain.", &owner), card("Sun.", &owner));
        let renewal = |there: Option<&AnnouncedAgent>| {
            let there = there.ok_or(AnnouncementError::Unknown("weather".into()))?;
            Ok(Some(there.body.clone()))
        };
        let (done, last) = at_the_same_time(Some(old), new.clone(), renewal).await;
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(last, Some(new));
    }
}
