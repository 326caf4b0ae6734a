//! Announcements: who may announce an agent, for how long, and how long the log stores it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::agents::{Agent, Agents};
use super::announcement::{Announcement, AnnouncementError, RequestOrigin};
use super::card::{Card, Faults, check_name, too_large};
use super::destinations::AllowedDestinations;
use super::record::{self, AgentFold, AnnouncedAgent, Leases, Owner};
use super::turns::Turns;
use crate::bus::outbound::Outbound;
use crate::clock;
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::metrics::{Metrics, RegistryEvent};
use crate::names::Name;
use crate::state::{ATTENDED, Record, StateError, View};

/// How many records the registry may lag behind before it rebuilds everything.
pub(super) const BEHIND: usize = 1_024;
/// How often to retry a write after a conflict with another replica.
const MAX_TRIES: usize = 5;
/// How long an announcement stays in the log after its lease has expired.
const FORGET_AFTER: Duration = Duration::from_secs(10 * 60);
/// The same while there are more than `CROWDED` times as many announcements as agents are allowed.
const FORGET_SOON: Duration = Duration::from_secs(60);
const CROWDED: usize = 4;
/// How many expired announcements are removed at a time.
const MAX_CONCURRENT_REMOVALS: usize = 16;

/// The announced agents and their leases.
#[derive(Debug)]
pub(super) struct Announcements {
    pub(super) view: View<AgentFold>,
    pub(super) destinations: AllowedDestinations,
    pub(super) leases: Leases,
    pub(super) max_agents: usize,
    pub(super) max_card: usize,
    pub(super) outbound: Outbound,
    pub(super) metrics: Arc<Metrics>,
    /// Only one task of this process writes the record of an agent at a time.
    pub(super) writing: Turns<Text>,
    /// When the next lease expires. Locked while the list of agents is rebuilt.
    pub(super) next_expiry: Mutex<Option<Instant>>,
    /// The announcements in the log that could not be used when the list was last rebuilt. Each is logged once.
    pub(super) left_out: Mutex<Unusable>,
    pub(super) log: RegistryLogs,
}

/// Rate limits for log lines that any client can cause.
#[derive(Debug)]
pub(super) struct RegistryLogs {
    pub(super) refused: LogLimit,
    pub(super) changed: LogLimit,
}

/// The cards of announcements that cannot be used, by agent.
pub(super) type Unusable = HashMap<Text, Arc<Card>>;

// === impl Announcements ===

impl Announcements {
    pub(super) async fn register(
        &self,
        document: &[u8],
        claim: &Announcement,
    ) -> Result<Name, AnnouncementError> {
        let name = self
            .admitted(document, claim)
            .map_err(AnnouncementError::Invalid)?;
        let was_live = self.live(name.as_str()).is_some();
        if !was_live && self.is_full(self.max_agents) {
            return Err(AnnouncementError::Full(self.max_agents));
        }
        let transport = claim.origin.transport.as_ref();
        let transport = transport.filter(|name| self.destinations.has(name));
        let body = record::write(document, &claim.owner, transport, claim.lease)
            .map_err(|error| AnnouncementError::Invalid(Faults::one(error.to_string())))?;
        self.store(name.as_str(), |there| {
            check_owner(name.as_str(), there, &claim.owner)?;
            Ok(Some(body.clone()))
        })
        .await?;
        // If other agents were announced at the same time, and there are now too many, this one is removed again.
        // Otherwise `agents` would leave out the agent with the last name, which may have been announced earlier.
        if !was_live && self.is_full(self.max_agents + 1) {
            self.store(name.as_str(), |_| Ok(None)).await?;
            return Err(AnnouncementError::Full(self.max_agents));
        }
        Ok(name)
    }

    /// The name of the agent, if its card is valid, and the announcement may use the name and the destination.
    fn admitted(&self, document: &[u8], claim: &Announcement) -> Result<Name, Faults> {
        let (card, mut faults) = Card::read_with_faults(document, self.max_card)?;
        let Some(named) = claim.agent.as_ref().or(card.agent.as_ref()) else {
            return Err(faults);
        };
        faults.extend(&forged(named, &claim.origin));
        let transport = claim.origin.transport.as_ref();
        let transport = transport.filter(|name| self.destinations.has(name));
        let transport = card.transport.as_ref().or(transport);
        let admitted = check_name(named).and_then(|name| {
            self.destinations.route(&name, transport, &card)?;
            Ok(name)
        });
        match admitted {
            Ok(name) => faults.into_result(name),
            Err(fault) => {
                faults.extend(&Faults::one(fault));
                Err(faults)
            }
        }
    }

    pub(super) async fn renew(
        &self,
        claim: &Announcement,
    ) -> Result<AnnouncedAgent, AnnouncementError> {
        let name = claimed(claim)?;
        self.store(&name, |there| {
            check_owner(&name, there, &claim.owner)?;
            let there = there.ok_or_else(|| AnnouncementError::Unknown(name.clone()))?;
            Ok(Some(there.body.clone()))
        })
        .await?;
        self.live(&name).ok_or(AnnouncementError::Lapsed(name))
    }

    pub(super) async fn remove(&self, claim: &Announcement) -> Result<(), AnnouncementError> {
        let name = claimed(claim)?;
        self.store(&name, |there| {
            check_owner(&name, there, &claim.owner)?;
            let there = there.ok_or_else(|| AnnouncementError::Unknown(name.clone()));
            there.map(|_| None)
        })
        .await
    }

    pub(super) fn next_expiry(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.next_expiry)
    }

    async fn store(
        &self,
        name: &str,
        update: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
    ) -> Result<(), AnnouncementError> {
        let turn = self.writing.of(name.into());
        let _turn = turn.lock().await;
        store(&self.view, self.leases, name, update).await
    }

    pub(super) fn live(&self, name: &str) -> Option<AnnouncedAgent> {
        let found = self.view.read(|agents| agents.get(name).cloned());
        found.filter(|agent| is_live(agent, self.leases))
    }

    /// Whether there are `most` agents. Expired announcements in the log do not count: its memory limits them.
    fn is_full(&self, most: usize) -> bool {
        let now = clock::milliseconds(clock::now());
        self.view.read(|agents| {
            let mut live = agents
                .iter()
                .filter(|(_, agent)| agent.is_live(now, self.leases));
            // Usually the first comparison decides, without counting.
            agents.len() >= most && live.nth(most.saturating_sub(1)).is_some()
        })
    }

    /// The current agents, and when the next lease expires.
    pub(super) fn agents(&self, listed: &Agents, before: &Agents) -> (Agents, Option<Instant>) {
        let now = clock::milliseconds(clock::now());
        let mut agents = listed.clone();
        let mut next: Option<u64> = None;
        let mut known = lock(&self.left_out);
        let mut unusable = Unusable::new();
        let mut leave_out = |name: Text, card: &Arc<Card>, why: &AnnouncementError| {
            if !known.get(&name).is_some_and(|it| Arc::ptr_eq(it, card)) {
                self.unusable(&name, why);
            }
            unusable.insert(name, Arc::clone(card));
        };
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
                let same = before.agents.get_key_value(name);
                if let Some((name, agent)) = same.filter(|(_, agent)| agent.is_of(entry)) {
                    agents.agents.insert(name.clone(), agent.clone());
                    continue;
                }
                match self.agent(name, entry) {
                    Ok(agent) => drop(agents.agents.insert(name.into(), agent)),
                    Err(fault) => {
                        let why = AnnouncementError::Invalid(Faults::one(fault));
                        leave_out(name.into(), &entry.card, &why);
                    }
                }
            }
        });
        // The log may contain more agents than `max_agents`. All replicas select the same ones.
        let most = listed.agents.len().saturating_add(self.max_agents);
        while agents.agents.len() > most {
            let mut agents_by_name = agents.agents.iter().rev();
            let last =
                agents_by_name.find_map(|(name, agent)| Some((name.clone(), agent.card.clone()?)));
            let Some((name, card)) = last else {
                break;
            };
            agents.agents.remove(&name);
            leave_out(name, &card, &AnnouncementError::Full(self.max_agents));
        }
        *known = unusable;
        let in_ms =
            |expires: u64| Instant::now() + Duration::from_millis(expires.saturating_sub(now));
        (agents, next.map(in_ms))
    }

    /// A new agent.
    ///
    /// # Errors
    /// Why its card cannot be used here. Its writer may have written it directly to the log.
    fn agent(&self, name: &str, entry: &AnnouncedAgent) -> Result<Agent, String> {
        let (bytes, most) = (entry.document.len(), self.max_card);
        if bytes > most {
            return Err(too_large(bytes, most));
        }
        let route = check_name(name).and_then(|name| {
            self.destinations
                .route(&name, entry.transport(), &entry.card)
        })?;
        Ok(Agent {
            shown: Arc::new(entry.card.shown.clone()),
            written: None,
            card: Some(Arc::clone(&entry.card)),
            route: route.map(Arc::new),
            away: None,
        })
    }

    /// Whether a record changes the list of agents, and not only a lease. Logs a record that cannot be used, because
    /// its writer may have written it directly to the log and gets no other answer.
    pub(super) fn noticed(&self, now: &Agents, record: &Record) -> bool {
        let entry = self.view.read(|agents| agents.get(&record.key).cloned());
        let known = now.agents.get(&record.key);
        let Some(entry) = entry else {
            if let Some(body) = &record.body
                && let Err(faults) = AnnouncedAgent::read(record, body)
            {
                self.metrics.registry(RegistryEvent::Refused);
                self.unusable(&record.key, &AnnouncementError::Invalid(faults));
            }
            return known.is_some_and(|known| known.card.is_some());
        };
        match known {
            Some(known) => known.card.is_some() && !known.is_of(&entry),
            None => !self.is_left_out(&record.key, &entry.card),
        }
    }

    /// Whether this announcement could not be used when the list was last rebuilt.
    fn is_left_out(&self, agent: &str, card: &Arc<Card>) -> bool {
        let left_out = lock(&self.left_out);
        let found = left_out.get(agent);
        found.is_some_and(|it| Arc::ptr_eq(it, card))
    }

    /// Counts a refused announcement; `asked` is what it asked for. The reader of a discovery topic logs those from
    /// there, with their positions. If the log did not store one, the reader tries again, so it does not count yet.
    pub(super) fn refused(
        &self,
        claim: &Announcement,
        asked: RegistryEvent,
        why: &AnnouncementError,
    ) {
        if claim.origin.transport.is_some() && why.is_transient() {
            return;
        }
        self.metrics.registry(RegistryEvent::Refused);
        if claim.origin.transport.is_none()
            && let Some(suppressed) = self.log.refused.allow()
        {
            let agent = claim.agent.as_deref().map(shortened);
            let caller = claim.origin.caller.as_deref();
            let what = match asked {
                RegistryEvent::Removed => "the removal of an agent",
                _ => "an announcement",
            };
            tracing::warn!(agent, caller, error = %why, suppressed, "{what} over HTTP is refused");
        }
    }

    fn unusable(&self, agent: &str, why: &AnnouncementError) {
        if let Some(suppressed) = self.log.refused.allow() {
            let agent = shortened(agent);
            tracing::warn!(agent, error = %why, suppressed, "an announcement in the log cannot be used");
        }
    }

    pub(super) fn report(&self, before: &Agents, after: &Agents) {
        for name in after
            .agents
            .keys()
            .filter(|name| !before.agents.contains_key(*name))
        {
            if let Some(suppressed) = self.log.changed.allow() {
                let what = if after.is_announced(name) {
                    "an agent has announced itself"
                } else {
                    "an agent was added to the configuration"
                };
                tracing::info!(agent = %name, suppressed, "{what}");
            }
        }
        for name in before
            .agents
            .keys()
            .filter(|name| !after.agents.contains_key(*name))
        {
            if !before.is_announced(name) {
                if let Some(suppressed) = self.log.changed.allow() {
                    tracing::info!(agent = %name, suppressed, "an agent was removed from the configuration");
                }
                continue;
            }
            let has_expired = self.view.read(|agents| agents.get(name).is_some());
            if has_expired {
                self.metrics.registry(RegistryEvent::Expired);
            }
            if let Some(suppressed) = self.log.changed.allow() {
                let why = if has_expired {
                    "its lease has expired"
                } else {
                    "it was removed"
                };
                tracing::info!(agent = %name, why, suppressed, "an agent is no longer known");
            }
        }
        let announced = after.agents.values().filter(|agent| agent.card.is_some());
        self.metrics.announced_agents(announced.count());
    }

    /// Removes announcements from the log whose lease expired long ago.
    pub(super) async fn forget(&self) {
        let now = clock::milliseconds(clock::now());
        let is_crowded = self.view.read(|agents| agents.len()) > CROWDED * self.max_agents;
        let after = match is_crowded {
            true => FORGET_SOON,
            false => FORGET_AFTER,
        };
        let oldest = now.saturating_sub(clock::whole_milliseconds(after));
        let is_old = |agent: &AnnouncedAgent| agent.expires(self.leases) < oldest;
        let old: Vec<Text> = self.view.read(|agents| {
            let old = agents.iter().filter(|(_, agent)| is_old(agent));
            old.map(|(name, _)| Text::from(name)).collect()
        });
        let forgotten = stream::iter(old).map(|name| async move {
            let done = self.forget_one(&name, is_old).await;
            done.map_err(|error| (name, error))
        });
        let mut forgotten = pin!(forgotten.buffer_unordered(MAX_CONCURRENT_REMOVALS));
        while let Some(done) = forgotten.next().await {
            if let Err((name, error)) = done {
                tracing::debug!(agent = %name, %error, "an old announcement was not removed: trying again later");
                return;
            }
        }
    }

    /// Removes one announcement. If a renewal was written at the same time, writes it again.
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
        let removed = match self.view.commit_next(name, None, Some(old), ATTENDED).await {
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
            self.view.append_within(name, Some(body), ATTENDED).await?;
        }
        Ok(())
    }
}

/// Stores the announcement that `update` returns for the current one, which is `None` if its lease has expired; a
/// result of `None` removes the announcement. The log keeps the last record of each key, even if two replicas write
/// concurrently. JetStream rejects a write if this replica has not seen the latest record of the key; then this
/// function retries with that record. On other logs it checks after the write whether another replica has written in
/// between. If so, it writes the result of `update` for that record, or restores that record if `update` refuses.
async fn store(
    view: &View<AgentFold>,
    leases: Leases,
    name: &str,
    update: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
) -> Result<(), AnnouncementError> {
    let (mut seen, mut tries) = (None, 0);
    let (stored, body, mut following) = loop {
        let (there, following) =
            view.follow(Some(name), BEHIND, |agents| agents.get(name).cloned());
        let last = seen.max(there.as_ref().map(|agent| agent.at));
        let body = update(there.filter(|agent| is_live(agent, leases)).as_ref())?;
        match view.commit_next(name, body.clone(), last, ATTENDED).await {
            Ok(stored) => break (stored, body, following),
            // That record may be a removal, which leaves no entry.
            Err(StateError::Overtaken {
                last: Some(last), ..
            }) if seen < Some(last) => {
                let applied = view.applied(last, ATTENDED).await;
                applied.map_err(AnnouncementError::NotStored)?;
                seen = Some(last);
            }
            // The server does not say which record conflicts.
            Err(StateError::Overtaken { .. }) if tries < MAX_TRIES => {
                tries += 1;
                view.latest(ATTENDED)
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
    let (right, done) = match update(there.filter(|agent| is_live(agent, leases)).as_ref()) {
        Ok(right) => (right, Ok(())),
        Err(refused) => (record.body, Err(refused)),
    };
    if right != body {
        let again = view.commit(name, right, ATTENDED).await;
        again.map_err(AnnouncementError::NotStored)?;
    }
    done
}

fn is_live(agent: &AnnouncedAgent, leases: Leases) -> bool {
    agent.is_live(clock::milliseconds(clock::now()), leases)
}

/// Checks the owner. If two organisations use the same name, the first one keeps it.
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

/// The agent that a claim names, if its sender may act for that agent.
fn claimed(claim: &Announcement) -> Result<Text, AnnouncementError> {
    let name = claim.agent.clone().unwrap_or_default();
    check_sender(&name, &claim.origin)?;
    Ok(name)
}

/// Checks that the sender of a message may act for an agent.
pub(super) fn check_sender(name: &str, origin: &RequestOrigin) -> Result<(), AnnouncementError> {
    let forged = forged(name, origin);
    if forged.0.is_empty() {
        Ok(())
    } else {
        Err(AnnouncementError::Invalid(forged))
    }
}

/// The fault of a message whose key or subject names another agent.
fn forged(name: &str, origin: &RequestOrigin) -> Faults {
    let others = origin.shows.iter().filter(|shown| shown.as_str() != name);
    let faults = others.map(|shown| {
        let shown = shortened(shown);
        format!("the agent is {name:?}, but the key or subject of the message says {shown:?}")
    });
    Faults(faults.collect())
}

/// The start of a name that may be of any length.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::state::{AGENTS, Kind, LogSpec, MemoryLog};

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

    /// Writes a record while another replica writes `other` after this one has read the current record. Returns the
    /// result, and the owner of the agent afterwards.
    async fn at_the_same_time(
        before: Option<Bytes>,
        other: Bytes,
        update: impl Fn(Option<&AnnouncedAgent>) -> Result<Option<Bytes>, AnnouncementError>,
    ) -> (Result<(), AnnouncementError>, Option<Bytes>) {
        // A log that keeps overwritten records for a while, like Kafka.
        let kind = Kind::Events {
            life: Duration::from_secs(600),
            max_life: Duration::from_secs(600),
        };
        let log = MemoryLog::new(LogSpec { kind, ..AGENTS }, 1 << 20);
        let (view, _task) = View::start(log.clone(), AgentFold, 1 << 20);
        if before.is_some() {
            view.commit("weather", before, ATTENDED).await.unwrap();
        }
        let is_first = Cell::new(true);
        let update = |there: Option<&AnnouncedAgent>| {
            let update = update(there);
            if is_first.replace(false) {
                let appended = log.append("weather", Some(other.clone())).now_or_never();
                appended.unwrap().unwrap();
            }
            update
        };
        let done = store(&view, LEASES, "weather", update).await;
        let last = view.read(|agents| agents.get("weather").map(|agent| agent.body.clone()));
        (done, last)
    }

    #[tokio::test]
    async fn the_first_of_two_concurrent_owners_has_the_agent() {
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
