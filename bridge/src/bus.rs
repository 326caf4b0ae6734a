//! The buses of one bridge, by name and by number.

pub(crate) mod deadletter;
pub(crate) mod delivery;
pub(crate) mod headers;
pub(crate) mod line;
pub(crate) mod outbound;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use a2abus_transports::{AnyTransport, Health, Transport as _};
use futures_util::future::join_all;
use tokio::sync::watch;

use crate::metrics::TransportMetrics;
use crate::names::Name;

/// The number of a bus in [`Buses`]; by default, of the first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BusId(usize);

/// A connected transport and its name in the configuration.
#[derive(Debug, Clone)]
pub struct Bus {
    /// The name.
    pub name: Name,
    /// The connection.
    pub transport: AnyTransport,
    /// Its counters.
    pub metrics: TransportMetrics,
}

/// All buses; cheap to clone.
#[derive(Debug, Clone)]
pub struct Buses {
    list: Arc<[Bus]>,
    by_name: Arc<HashMap<Name, BusId>>,
    /// The health of each bus. Kept, because each call looks at it, and a new receiver changes counters that all calls
    /// share.
    health: Arc<[watch::Receiver<Health>]>,
}

// === impl BusId ===

#[cfg(test)]
impl BusId {
    pub(crate) const FIRST: Self = Self(0);
}

// === impl Buses ===

#[cfg(test)]
impl Buses {
    /// One bus, [`BusId::FIRST`], with the name `bus`.
    pub(crate) fn of_test(transport: AnyTransport, metrics: &crate::metrics::Metrics) -> Self {
        let name = Name::from_static("bus");
        Self::new(vec![Bus {
            metrics: metrics.transport(name.text()),
            transport,
            name,
        }])
    }
}

impl Buses {
    /// The buses in the given order.
    #[must_use]
    pub fn new(list: Vec<Bus>) -> Self {
        let by_name = list
            .iter()
            .enumerate()
            .map(|(index, bus)| (bus.name.clone(), BusId(index)))
            .collect();
        Self {
            health: list.iter().map(|bus| bus.transport.health()).collect(),
            list: list.into(),
            by_name: Arc::new(by_name),
        }
    }

    /// The bus with this name.
    #[must_use]
    pub fn find(&self, name: &Name) -> Option<BusId> {
        self.by_name.get(name).copied()
    }

    /// The bus with this number, which must come from [`Buses::find`] or [`Buses::iter`] of the same set.
    #[must_use]
    pub fn get(&self, id: BusId) -> Option<&Bus> {
        self.list.get(id.0)
    }

    /// Whether the bus with this number answers at all. If it does, a refusal concerns the message or its destination.
    pub(crate) fn is_up(&self, id: BusId) -> bool {
        let health = self.health.get(id.0);
        health.is_some_and(|health| health.borrow().is_up())
    }

    /// All buses.
    pub fn iter(&self) -> impl Iterator<Item = (BusId, &Bus)> {
        self.list
            .iter()
            .enumerate()
            .map(|(index, bus)| (BusId(index), bus))
    }

    /// Flushes and closes all buses concurrently, each within the deadline.
    pub async fn close(&self, deadline: Duration) {
        let closing = self.list.iter().map(|bus| async move {
            if let Err(error) = bus.transport.close(deadline).await {
                tracing::error!(transport = %bus.name, %error, "a bus was closed before it had confirmed everything: messages that their source stores are delivered again, others may be lost; if the bus was available, raise http.drain_grace");
            }
        });
        join_all(closing).await;
    }
}
