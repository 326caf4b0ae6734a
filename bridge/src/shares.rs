//! Limits how much of a resource one holder may have, so that something is left for others.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use a2abus_plugin::Text;
use dashmap::DashMap;

/// The units of each holder, and the most that one may have. A holder that nothing refers to uses no memory.
#[derive(Debug)]
pub(crate) struct Shares<K: Eq + Hash> {
    holders: DashMap<K, Weak<Holder<K>>>,
    limit: AtomicUsize,
}

/// One holder. It is known as long as anything refers to it.
#[derive(Debug)]
pub(crate) struct Holder<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    key: K,
    held: AtomicUsize,
}

/// Units of a holder. Dropping them releases them.
#[derive(Debug)]
#[must_use = "dropping a share releases it"]
pub struct Share<K: Eq + Hash> {
    holder: Arc<Holder<K>>,
    units: usize,
}

// === impl Shares ===

impl<K: Eq + Hash + Clone> Shares<K> {
    /// Shares without holders. Each holder may have `limit` units.
    #[must_use]
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            holders: DashMap::new(),
            limit: AtomicUsize::new(limit),
        })
    }

    /// One unit for `holder`; `None` when it has reached the limit.
    #[must_use]
    pub(crate) fn take(self: &Arc<Self>, holder: &K) -> Option<Share<K>> {
        let mut share = self.begin(holder);
        share.grow(1).then_some(share)
    }

    /// A share without units, which can grow.
    pub(crate) fn begin(self: &Arc<Self>, holder: &K) -> Share<K> {
        self.holder(holder).begin()
    }

    /// The holder with this key. Whoever takes many shares keeps it.
    #[must_use]
    pub(crate) fn holder(self: &Arc<Self>, key: &K) -> Arc<Holder<K>> {
        let mut entry = self.holders.entry(key.clone()).or_default();
        if let Some(holder) = entry.upgrade() {
            return holder;
        }
        let holder = Arc::new(Holder {
            shares: Arc::clone(self),
            key: key.clone(),
            held: AtomicUsize::new(0),
        });
        *entry = Arc::downgrade(&holder);
        holder
    }

    /// The units of a holder.
    #[must_use]
    pub(crate) fn held_by(&self, holder: &K) -> usize {
        let holder = self.holders.get(holder).and_then(|holder| holder.upgrade());
        holder.map_or(0, |holder| holder.held.load(Ordering::Relaxed))
    }

    /// The most that each may have.
    #[must_use]
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the most that each may have. A holder with more keeps it.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }
}

// === impl Holder ===

impl<K: Eq + Hash> Holder<K> {
    /// A share without units, which can grow.
    pub(crate) fn begin(self: &Arc<Self>) -> Share<K> {
        Share {
            holder: Arc::clone(self),
            units: 0,
        }
    }

    /// Takes units. Returns `false`, and takes none, if that would exceed the limit.
    #[must_use]
    pub(crate) fn take(&self, units: usize) -> bool {
        self.take_within(units, self.shares.limit.load(Ordering::Relaxed))
    }

    /// Takes units within another limit.
    fn take_within(&self, units: usize, limit: usize) -> bool {
        let grown = |held: usize| held.checked_add(units).filter(|grown| *grown <= limit);
        let grown = (self.held).fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        grown.is_ok()
    }

    /// Takes units also beyond the limit, if at most half of it is taken so far.
    #[must_use]
    pub(crate) fn take_large(&self, units: usize) -> bool {
        let limit = self.shares.limit.load(Ordering::Relaxed);
        let grown = |held: usize| {
            let grown = held.checked_add(units);
            grown.filter(|grown| *grown <= limit || held <= limit / 2)
        };
        let grown = (self.held).fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        grown.is_ok()
    }

    /// Takes units, even beyond the limit.
    pub(crate) fn take_anyway(&self, units: usize) {
        self.held.fetch_add(units, Ordering::Relaxed);
    }

    /// The key.
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    /// Releases units that were taken.
    pub(crate) fn release(&self, units: usize) {
        self.held.fetch_sub(units, Ordering::Relaxed);
    }
}

impl<K: Eq + Hash> Drop for Holder<K> {
    fn drop(&mut self) {
        // A new holder with this key may have taken the place of this one.
        self.shares
            .holders
            .remove_if(&self.key, |_, holder| holder.strong_count() == 0);
    }
}

// === impl Share ===

impl<K: Eq + Hash> Share<K> {
    /// The key of the holder.
    #[must_use]
    pub fn holder(&self) -> &K {
        &self.holder.key
    }

    /// Adds units. Returns `false`, and adds none, if the holder would exceed the limit.
    #[must_use]
    pub fn grow(&mut self, units: usize) -> bool {
        let has_room = self.holder.take(units);
        if has_room {
            self.units += units;
        }
        has_room
    }

    /// Like [`Share::grow`], within another limit.
    #[must_use]
    pub(crate) fn grow_within(&mut self, units: usize, limit: usize) -> bool {
        let has_room = self.holder.take_within(units, limit);
        if has_room {
            self.units += units;
        }
        has_room
    }

    /// Like [`Share::grow`], but the holder may exceed the limit if its other shares have at most half of it: otherwise
    /// something that is larger could never get a share.
    #[must_use]
    pub(crate) fn grow_large(&mut self, units: usize) -> bool {
        let limit = self.holder.shares.limit.load(Ordering::Relaxed);
        let own = self.units;
        let grown = |held: usize| {
            let grown = held.checked_add(units);
            grown.filter(|grown| *grown <= limit || held.saturating_sub(own) <= limit / 2)
        };
        let held = &self.holder.held;
        let has_room = held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .is_ok();
        if has_room {
            self.units += units;
        }
        has_room
    }

    /// Changes the number of units, even beyond the limit.
    pub(crate) fn set(&mut self, units: usize) {
        match units.checked_sub(self.units) {
            Some(more) => {
                self.holder.take_anyway(more);
                self.units = units;
            }
            None => self.shrink(self.units - units),
        }
    }

    /// Releases units.
    pub fn shrink(&mut self, units: usize) {
        let units = units.min(self.units);
        self.units -= units;
        self.holder.release(units);
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        self.shrink(self.units);
    }
}

/// The client of an address: for IPv6 its /64 network, so that one client does not count as many.
#[must_use]
pub(crate) fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The client of a caller: that of its address, or its name.
#[must_use]
pub(crate) fn client_of(caller: &Text) -> Text {
    // Only IPv6 addresses differ from their client.
    let address = caller.contains(':').then(|| caller.parse());
    match address {
        Some(Ok(address)) => client(address).to_string().into(),
        Some(Err(_)) | None => caller.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_network_are_one_client() {
        let check = |text: &str, expected: &str| {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(client(address).to_string(), expected);
            assert_eq!(client_of(&text.into()), expected);
        };
        check("192.0.2.7", "192.0.2.7");
        check("::ffff:192.0.2.7", "192.0.2.7");
        check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::");
    }

    #[test]
    fn each_holder_has_its_own_limit_and_can_release_its_units() {
        let shares = Shares::new(2);
        let (first, second) = (shares.take(&"a").unwrap(), shares.take(&"a").unwrap());
        assert!(shares.take(&"a").is_none());
        let other = shares.take(&"b").unwrap();
        drop(first);
        let third = shares.take(&"a").unwrap();
        assert!(shares.take(&"a").is_none());
        drop((second, third, other));
        assert!(shares.is_empty(), "holders without shares use no memory");
    }

    #[test]
    fn a_large_share_fits_if_the_others_of_its_holder_are_small() {
        let shares = Shares::new(10);
        let (mut large, mut other) = (shares.begin(&"a"), shares.begin(&"a"));
        assert!(other.grow(5));
        assert!(large.grow_large(4) && large.grow_large(40));
        assert!(!other.grow_large(1), "the large share takes all");
        other.set(6);
        assert!(!large.grow_large(1), "the other one takes more than half");
        large.set(1);
        assert_eq!(shares.held_by(&"a"), 7);
    }

    #[test]
    fn shares_survive_many_threads() {
        let shares = Shares::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        drop(shares.take(&7));
                    }
                });
            }
        });
        assert!(shares.is_empty());
    }
}
