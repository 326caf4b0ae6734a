//! The rules that a reload of the configuration replaces while messages are in flight.
//!
//! ```text
//!  a message ── Outbound::rules ──> one Rules, from reading to its copies and dead letters
//!  a reload  ── CurrentRules::replace ──> the next message has the new ones
//!  an announced agent ── CurrentRules::announce ──> the next message has its route
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use a2abus_plugin::{Event, Kind, Limits, Text, extension};
use arc_swap::{ArcSwap, Guard};

use crate::config::{Config, UnknownAgents};
use crate::pipeline::adapt::Adapters;
use crate::route::{Route, RouteError, RouteTable};

/// The rules for a message. They are immutable: the same rules apply from its first byte to its last copy.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The routes.
    pub routes: Arc<RouteTable>,
    /// How bindings and routes validate and convert records.
    pub adapters: Arc<Adapters>,
    /// Limits of payloads.
    pub limits: Limits,
    /// How many routes an event may pass.
    pub max_hops: u32,
    /// The agents that the configuration lists; set only if requests for unknown agents are refused.
    listed: Option<Arc<BTreeSet<Text>>>,
    announced: Arc<AnnouncedRoutes>,
}

/// The routes of announced agents, by agent; `None` for an agent without a destination of its own.
pub(crate) type AnnouncedRoutes = HashMap<Text, Option<Arc<Route>>>;

/// Why an event has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrouted {
    /// No route matches it.
    NoRoute,
    /// Its target agent is unknown.
    UnknownAgent,
}

/// The rules for messages that are read from now on.
#[derive(Debug)]
pub struct CurrentRules(ArcSwap<Rules>);

// === impl Rules ===

impl Rules {
    /// The rules of a configuration.
    ///
    /// # Errors
    /// The first invalid route, and the cause.
    pub fn new(config: &Config) -> Result<Self, (Text, RouteError)> {
        let routes = RouteTable::build(&config.routes, &config.default_route);
        let listed = || config.agents.keys().map(|name| name.text().clone());
        let only_known = config.registry.unknown_agents == UnknownAgents::Known;
        Ok(Self {
            routes: Arc::new(routes.map_err(|(route, error)| (route.text().clone(), error))?),
            adapters: Arc::new(Adapters::new(config)),
            limits: Limits::from(&config.limits),
            max_hops: config.limits.max_hops,
            listed: only_known.then(|| Arc::new(listed().collect())),
            announced: Arc::default(),
        })
    }

    /// The route of an event: the first configured route that matches, otherwise that of its announced agent, otherwise the
    /// default route.
    ///
    /// # Errors
    /// When no route matches it.
    pub fn route(&self, event: &Event, binding: &str) -> Result<&Route, Unrouted> {
        let target = event.extension_text(extension::TARGET_AGENT);
        if let Some(target) = target
            && is_call(event)
            && !self.may_be_called(target)
        {
            return Err(Unrouted::UnknownAgent);
        }
        let announced = || self.announced.get(target?)?.as_deref();
        let found = self.routes.first_match(event, binding).or_else(announced);
        found
            .or(self.routes.default_route())
            .ok_or(Unrouted::NoRoute)
    }

    /// Whether a route names this agent exactly, or the agent has announced itself.
    #[must_use]
    pub fn names(&self, agent: &Text) -> bool {
        self.routes.names(agent) || self.announced.contains_key(agent)
    }

    fn may_be_called(&self, agent: &Text) -> bool {
        let listed = self.listed.as_ref();
        listed.is_none_or(|listed| listed.contains(agent)) || self.names(agent)
    }
}

/// Whether an event is addressed to its agent, and not an answer.
fn is_call(event: &Event) -> bool {
    let kind = event.extension_text(extension::MCP_TYPE);
    kind.is_none_or(|kind| *kind != *Kind::Response.as_str() && *kind != *Kind::Stream.as_str())
}

// === impl CurrentRules ===

impl CurrentRules {
    /// Starts with these rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(ArcSwap::from_pointee(rules))
    }

    /// The current rules, for one message.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<Rules>> {
        self.0.load()
    }

    /// Replaces the rules for messages that are read from now on. The routes of announced agents stay.
    pub fn replace(&self, rules: &Rules) {
        self.0.rcu(|now| Rules {
            announced: Arc::clone(&now.announced),
            ..rules.clone()
        });
    }

    /// Replaces the routes of announced agents, for messages that are read from now on.
    pub fn announce(&self, routes: AnnouncedRoutes) {
        let announced = Arc::new(routes);
        self.0.rcu(|now| Rules {
            announced: Arc::clone(&announced),
            ..Rules::clone(now)
        });
    }
}
