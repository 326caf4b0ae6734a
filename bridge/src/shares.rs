//! Limits how much of a resource one holder may have, so that something is left for others.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use a2abus_plugin::Text;
use dashmap::DashMap;

/// The units of each holder, and the most that one may have. Holders without units use no memory.
#[derive(Debug)]
pub struct Shares<K: Eq + Hash> {
    held: DashMap<K, usize>,
    limit: AtomicUsize,
}

/// Units of a holder. Dropping them releases them.
#[derive(Debug)]
#[must_use = "dropping a share releases it"]
pub struct Share<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    holder: K,
    units: usize,
}

// === impl Shares ===

impl<K: Eq + Hash + Clone> Shares<K> {
    /// Shares without holders. Each holder may have `limit` units.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            held: DashMap::new(),
            limit: AtomicUsize::new(limit),
        })
    }

    /// One unit for `holder`; `None` when it has reached the limit.
    #[must_use]
    pub fn take(self: &Arc<Self>, holder: &K) -> Option<Share<K>> {
        let mut share = self.begin(holder);
        share.grow(1).then_some(share)
    }

    /// A share without units, which can grow.
    pub fn begin(self: &Arc<Self>, holder: &K) -> Share<K> {
        Share {
            shares: Arc::clone(self),
            holder: holder.clone(),
            units: 0,
        }
    }

    /// The units of a holder.
    #[must_use]
    pub fn held_by(&self, holder: &K) -> usize {
        self.held.get(holder).map_or(0, |held| *held)
    }

    /// The most that each may have.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the most that each may have. A holder with more keeps it.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether there are no holders.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

// === impl Share ===

impl<K: Eq + Hash + Clone> Share<K> {
    /// Adds units. Returns `false`, and adds none, if the holder would exceed the limit.
    #[must_use]
    pub fn grow(&mut self, units: usize) -> bool {
        let mut held = self.shares.held.entry(self.holder.clone()).or_insert(0);
        let grown = held.checked_add(units);
        let fits = grown.filter(|grown| *grown <= self.shares.limit());
        if let Some(grown) = fits {
            *held = grown;
            self.units += units;
        }
        drop(held);
        if fits.is_none() {
            self.forget();
        }
        fits.is_some()
    }

    /// Adds units, even beyond the limit.
    pub fn grow_anyway(&mut self, units: usize) {
        *self.shares.held.entry(self.holder.clone()).or_insert(0) += units;
        self.units += units;
    }
}

impl<K: Eq + Hash> Share<K> {
    /// The holder.
    #[must_use]
    pub fn holder(&self) -> &K {
        &self.holder
    }

    /// Releases units.
    pub fn shrink(&mut self, units: usize) {
        let units = units.min(self.units);
        self.units -= units;
        if let Some(mut held) = self.shares.held.get_mut(&self.holder) {
            *held -= units;
        }
        self.forget();
    }

    /// Removes a holder without units.
    fn forget(&self) {
        self.shares
            .held
            .remove_if(&self.holder, |_, held| *held == 0);
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        self.shrink(self.units);
    }
}

/// The client of an address: for IPv6 its /64 network, so that one client does not count as many.
#[must_use]
pub fn client(address: IpAddr) -> IpAddr {
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
        assert!(
            shares.held.is_empty(),
            "holders without units use no memory"
        );
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
        assert!(shares.held.is_empty());
    }
}
