//! The logs on a transport of the configuration.

use a2abus_transports::{AnyTransport, TransportError, TransportErrorKind};

use super::super::bus::BusLog;
use super::super::location::LogLocation;
use super::super::log::{LogSpec, StateError};
use crate::access::{self, Access};
use crate::bus::Buses;
use crate::config::{Config, Name, TransportConfig};
use crate::topics;

/// The transport on which the logs are.
#[derive(Debug)]
pub(super) struct OnBus {
    transport: AnyTransport,
    config: Config,
    name: Name,
    settings: TransportConfig,
}

// === impl OnBus ===

impl OnBus {
    /// The logs on the transport of this name; `None` if there is none.
    pub(super) fn new(config: &Config, buses: &Buses, name: &Name) -> Option<Self> {
        let bus = buses.get(buses.find(name)?)?;
        Some(Self {
            transport: bus.transport.clone(),
            settings: config.transports.get(name)?.clone(),
            config: config.clone(),
            name: name.clone(),
        })
    }

    pub(super) fn open(&self, spec: LogSpec) -> Result<BusLog, StateError> {
        let name = spec.name;
        let used = access::log_use(&self.config, self.settings.transport_type(), spec.clone());
        let place = used.as_ref().and_then(Access::place);
        let (Some(used), Some(place)) = (&used, place) else {
            let what = format!(
                "store the state on {}: this transport has no logs",
                self.name
            );
            let error = TransportError::new(TransportErrorKind::BadConfig, what);
            return Err(StateError::Bus { name, error });
        };
        let place: LogLocation = place.clone();
        let missing = topics::of_log(&self.config, &self.settings, used);
        Ok(match missing.filter(|_| self.config.state.create) {
            Some(missing) => BusLog::or_create(spec, self.transport.clone(), place, missing),
            None => BusLog::new(spec, self.transport.clone(), place),
        })
    }
}
