//! A cache of results, so that they need not be computed or requested again.
//!
//! Source: docs/protocols/a2e-workflows.md §6.

mod key;
#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_models::a2e_workflow::OperationType;
use a2abus_plugin::Text;

pub(crate) use key::Key;

use crate::agent::Secret;
use crate::environment::Clock;
use a2abus_models::Json;

/// Results by their key, for all agents. A result is never given to another agent. The cache keeps at most 1,000
/// results and 64 MiB, and evicts the least recently used first.
pub(crate) struct Cache {
    clock: Arc<dyn Clock>,
    caching: Caching,
    /// Distinguishes secrets without revealing them.
    versions: RandomState,
    entries: Mutex<Entries>,
}

/// How long results are kept; zero keeps none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caching {
    /// Responses to GET (default 5 minutes).
    pub responses: Duration,
    /// Results of FilterData, TransformData and MergeData (default 1 minute).
    pub computed: Duration,
}

#[derive(Default)]
struct Entries {
    by_hash: HashMap<Hash, Entry>,
    /// The keys by the use count at their last use.
    by_use: BTreeMap<u64, Hash>,
    uses: u64,
    weight: usize,
    /// Recent evictions, the last first, so that a result requested before an eviction is not stored after it.
    evictions: VecDeque<Eviction>,
    /// The number of evictions so far.
    eviction_count: u64,
}

type Hash = [u8; 32];

struct Entry {
    value: Json,
    /// Values that the key identifies by their address: while they live, no other value has this address.
    _pinned: Vec<Json>,
    scope: Scope,
    expires: Duration,
    weight: usize,
    used: u64,
}

/// The owner of an entry.
struct Scope {
    agent: Text,
    kind: OperationType,
    origin: Option<Text>,
}

/// Which entries were evicted; `None` means all.
struct Eviction {
    agent: Option<Text>,
    kind: Option<OperationType>,
    origin: Option<Text>,
}

/// The moment of a cache miss. The result may be stored later unless a removal since then concerns it.
#[derive(Debug)]
pub(crate) struct Miss {
    eviction_count: u64,
}

const MAX_ENTRIES: usize = 1_000;
const MAX_WEIGHT: usize = 64 << 20;
/// The overhead of an entry, in bytes.
const ENTRY_WEIGHT: usize = 256;
/// How many evictions are remembered. A result that was requested before all of them is not stored.
const MAX_EVICTIONS: usize = 256;

// === impl Cache ===

impl Cache {
    /// An empty cache with this clock.
    pub(crate) fn new(clock: Arc<dyn Clock>, caching: Caching) -> Self {
        Self {
            clock,
            caching,
            versions: RandomState::new(),
            entries: Mutex::default(),
        }
    }

    /// Removes the results of one agent or all, and of one operation type or all. Returns how many there were.
    pub(crate) fn invalidate(&self, agent: Option<&str>, kind: Option<OperationType>) -> usize {
        self.lock().evict(Eviction {
            agent: agent.map(Text::from),
            kind,
            origin: None,
        })
    }

    /// Removes the responses that an agent had from an origin, because it changed something there.
    pub(crate) fn invalidate_origin(&self, agent: &Text, origin: &str) {
        self.lock().evict(Eviction {
            agent: Some(agent.clone()),
            kind: Some(OperationType::ApiCall),
            origin: Some(origin.into()),
        });
    }

    /// The result of a key.
    pub(crate) fn get(&self, key: &Key) -> Result<Json, Miss> {
        let now = self.clock.elapsed();
        self.lock().get(key.hash(), now)
    }

    /// Stores the result of a missing key. `origin` is that of a call.
    pub(crate) fn insert(&self, key: Key, miss: &Miss, value: Json, origin: Option<&str>) {
        let lifetime = self.caching.lifetime(key.kind);
        if lifetime.is_zero() {
            return;
        }
        let hash = key.hash();
        let pinned: usize = key.pinned.iter().map(Json::weight).sum();
        let entry = Entry {
            weight: ENTRY_WEIGHT + pinned + value.weight(),
            value,
            _pinned: key.pinned,
            scope: Scope {
                agent: key.agent,
                kind: key.kind,
                origin: origin.map(Text::from),
            },
            expires: self.clock.elapsed() + lifetime,
            used: 0,
        };
        self.lock().insert(hash, miss, entry);
    }

    /// A number that identifies a secret in a cache key without revealing it; it changes when the secret changes.
    pub(crate) fn version(&self, secret: &Secret) -> u64 {
        self.versions.hash_one(secret.expose())
    }

    /// Every change is complete before its lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

// === impl Caching ===

impl Caching {
    /// Every operation is executed again.
    pub const OFF: Self = Self {
        responses: Duration::ZERO,
        computed: Duration::ZERO,
    };

    const fn lifetime(&self, kind: OperationType) -> Duration {
        match kind {
            OperationType::ApiCall => self.responses,
            OperationType::FilterData | OperationType::TransformData | OperationType::MergeData => {
                self.computed
            }
            OperationType::Conditional
            | OperationType::Loop
            | OperationType::StoreData
            | OperationType::Wait => Duration::ZERO,
        }
    }
}

impl Default for Caching {
    fn default() -> Self {
        Self {
            responses: Duration::from_secs(300),
            computed: Duration::from_secs(60),
        }
    }
}

// === impl Entries ===

impl Entries {
    fn get(&mut self, hash: Hash, now: Duration) -> Result<Json, Miss> {
        let miss = Miss {
            eviction_count: self.eviction_count,
        };
        let Some(entry) = self.by_hash.get_mut(&hash) else {
            return Err(miss);
        };
        if entry.expires <= now {
            self.remove(&hash);
            return Err(miss);
        }
        self.uses += 1;
        self.by_use.remove(&entry.used);
        self.by_use.insert(self.uses, hash);
        entry.used = self.uses;
        Ok(entry.value.clone())
    }

    fn insert(&mut self, hash: Hash, miss: &Miss, mut entry: Entry) {
        if entry.weight > MAX_WEIGHT || self.is_invalidated(miss, &entry.scope) {
            return;
        }
        self.remove(&hash);
        while self.by_hash.len() >= MAX_ENTRIES || self.weight + entry.weight > MAX_WEIGHT {
            let Some(oldest) = self.by_use.values().next().copied() else {
                break;
            };
            self.remove(&oldest);
        }
        self.uses += 1;
        entry.used = self.uses;
        self.weight += entry.weight;
        self.by_use.insert(self.uses, hash);
        self.by_hash.insert(hash, entry);
    }

    fn remove(&mut self, hash: &Hash) {
        if let Some(entry) = self.by_hash.remove(hash) {
            self.by_use.remove(&entry.used);
            self.weight -= entry.weight;
        }
    }

    /// Whether an eviction since this miss covers the result, or may cover it.
    fn is_invalidated(&self, miss: &Miss, scope: &Scope) -> bool {
        let since = self.eviction_count - miss.eviction_count;
        let since = usize::try_from(since).unwrap_or(usize::MAX);
        let mut recent = self.evictions.iter().take(since);
        since > self.evictions.len() || recent.any(|what| what.covers(scope))
    }

    fn evict(&mut self, what: Eviction) -> usize {
        let hashes: Vec<Hash> = self
            .by_hash
            .iter()
            .filter(|(_, entry)| what.covers(&entry.scope))
            .map(|(hash, _)| *hash)
            .collect();
        hashes.iter().for_each(|hash| self.remove(hash));
        self.eviction_count += 1;
        self.evictions.truncate(MAX_EVICTIONS - 1);
        self.evictions.push_front(what);
        hashes.len()
    }
}

// === impl Eviction ===

impl Eviction {
    fn covers(&self, scope: &Scope) -> bool {
        self.agent.as_ref().is_none_or(|it| *it == scope.agent)
            && self.kind.is_none_or(|it| it == scope.kind)
            && (self.origin.is_none() || self.origin == scope.origin)
    }
}
