//! The rules that a reload of the configuration replaces while messages are on their way.
//!
//! ```text
//!  a message ── Outbound::rules ──> one Rules, from reading to its copies and dead letters
//!  a reload  ── CurrentRules::replace ──> the next message has the new ones
//! ```

use std::sync::Arc;

use a2abus_plugin::{Limits, Text};
use arc_swap::{ArcSwap, Guard};

use crate::config::Config;
use crate::pipeline::adapt::Adapters;
use crate::route::{RouteError, RouteTable};

/// What decides about one message. Immutable; a message has the same rules from its first byte to its last copy.
#[derive(Debug)]
pub struct Rules {
    /// Where events go.
    pub routes: RouteTable,
    /// How bindings and routes validate and convert records.
    pub adapters: Adapters,
    /// What a payload may cost.
    pub limits: Limits,
}

/// The rules for messages that are read from now on.
#[derive(Debug)]
pub struct CurrentRules(ArcSwap<Rules>);

// === impl Rules ===

impl Rules {
    /// Those of a configuration.
    ///
    /// # Errors
    /// The first route that cannot be used, and why.
    pub fn new(config: &Config) -> Result<Self, (Text, RouteError)> {
        let routes = RouteTable::build(
            &config.routes,
            &config.default_route,
            config.limits.max_hops,
        );
        Ok(Self {
            routes: routes.map_err(|(route, error)| (route.text().clone(), error))?,
            adapters: Adapters::new(config),
            limits: Limits::from(&config.limits),
        })
    }
}

// === impl CurrentRules ===

impl CurrentRules {
    /// These, until they are replaced.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(ArcSwap::from_pointee(rules))
    }

    /// The rules of this moment, for one message.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<Rules>> {
        self.0.load()
    }

    /// Other rules count for messages that are read from now on.
    pub fn replace(&self, rules: Rules) {
        self.0.store(Arc::new(rules));
    }
}
