//! Where does an event go?
//!
//! ```text
//!  event, binding ──> RouteTable::route ──> Route ──> next_hops (loop guard)
//!                                             └─────> Destination::resolve ──> transport, address, key, mode
//! ```
//!
//! The first matching rule in the order of the file wins. Rules with a literal `targetagent`, or a prefix of it
//! (`weather-*`), are found by hash, so ten thousand of them cost the same as ten. All other rules are tried in order.
//! A lookup allocates nothing.

mod error;
mod explain;
mod template;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use a2abus_plugin::{Event, Text, Value, extension};
use a2abus_transports::{Address, Guarantee, Topic};
use bytes::Bytes;
use smallvec::SmallVec;

pub use self::error::RouteError;
pub use self::explain::{Explanation, Mismatch, RouteMatch, RuleCheck};

use crate::calls::callid::without_token;
use crate::config::{Anchor, Condition, DEFAULT_ROUTE, DestinationConfig, RouteConfig, answering};
use crate::names::{Attribute, Mode, Name, Names, Template, TemplatePart, with_extension};

/// All rules, compiled. Immutable; shared by all tasks.
#[derive(Debug)]
pub struct RouteTable {
    routes: Vec<Route>,
    /// Exact `targetagent` -> the rules that name it, in order; there is rarely a second.
    by_target: HashMap<Text, SmallVec<[Candidate; 1]>>,
    /// The rules that name a prefix of `targetagent`.
    by_prefix: Vec<Prefixes>,
    /// The rules that must be tried one by one, in order.
    others: Vec<usize>,
    default: Option<Route>,
}

/// The rules whose prefixes have the same number of bytes: prefix -> rules, in order.
#[derive(Debug)]
struct Prefixes {
    length: usize,
    rules: HashMap<Text, Vec<usize>>,
}

/// A rule that names a target.
#[derive(Debug)]
struct Candidate {
    index: usize,
    /// Whether it checks only the target, so that it matches without a further check.
    is_met: bool,
}

/// One rule.
#[derive(Debug)]
pub struct Route {
    name: Name,
    conditions: Vec<(Attribute, Condition)>,
    destinations: Vec<Destination>,
    /// The index of the destination that answers requests.
    answering: usize,
}

/// A destination of events.
#[derive(Debug)]
pub struct Destination {
    transport: Name,
    topic: Template,
    /// The topic, if it is the same for every event.
    fixed_topic: Option<Topic>,
    key: Option<Template>,
    mode: Mode,
    names: Names,
    guarantee: Guarantee,
    named_by: NamedBy,
}

/// The resolved destination of one event.
#[derive(Debug)]
pub struct Resolved<'a> {
    /// The transport's name in the configuration.
    pub transport: &'a Name,
    /// The topic, and what a confirmation must guarantee.
    pub address: Address,
    /// The key of the message.
    pub key: Option<Bytes>,
    /// The CloudEvents content mode.
    pub mode: Mode,
}

/// Who named the topic that a message goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// The configuration: if the topic does not exist, an operator has to create it.
    Config,
    /// The event, or the card of its agent: if the topic does not exist, the name is wrong.
    Event,
}

// === impl RouteTable ===

impl RouteTable {
    /// Compiles the rules.
    ///
    /// # Errors
    /// `BadGlob`, with the name of the route; [`crate::config::Config::load`] has already rejected such rules.
    pub fn build(
        routes: &[RouteConfig],
        default: &[DestinationConfig],
    ) -> Result<Self, (Name, RouteError)> {
        let mut table = Self {
            routes: Vec::with_capacity(routes.len()),
            by_target: HashMap::new(),
            by_prefix: Vec::new(),
            others: Vec::new(),
            default: (!default.is_empty()).then(|| Route {
                name: Name::from_static(DEFAULT_ROUTE),
                conditions: Vec::new(),
                destinations: default.iter().map(Destination::new).collect(),
                answering: answering(default),
            }),
        };
        for config in routes {
            let route = Route::new(config).map_err(|error| (config.name.clone(), error))?;
            table.add(route);
        }
        Ok(table)
    }

    fn add(&mut self, route: Route) {
        let index = self.routes.len();
        let Some((condition, anchors)) = route.targets() else {
            self.others.push(index);
            self.routes.push(route);
            return;
        };
        let is_met = route.conditions.len() == 1 && condition.is_list();
        for anchor in anchors {
            match anchor {
                Anchor::Whole(target) => {
                    let rules = self.by_target.entry(Text::from(target)).or_default();
                    rules.push(Candidate { index, is_met });
                }
                Anchor::Prefix(prefix) => add_prefix(&mut self.by_prefix, prefix, index),
            }
        }
        self.routes.push(route);
    }

    /// Whether a rule names this agent exactly.
    #[must_use]
    pub fn names(&self, agent: &Text) -> bool {
        self.by_target.contains_key(agent)
    }

    /// The first rule that matches the event, else the default route, else `None`.
    #[must_use]
    pub fn route(&self, event: &Event, binding: &str) -> Option<&Route> {
        self.first_match(event, binding).or(self.default.as_ref())
    }

    /// The first rule that matches the event; never the default route.
    #[must_use]
    pub fn first_match(&self, event: &Event, binding: &str) -> Option<&Route> {
        let found = with_extension(event.extension(extension::TARGET_AGENT), |target| {
            let target = target?;
            let exact = self.by_target.get(target).and_then(|rules| {
                let takes =
                    |rule: &&Candidate| rule.is_met || self.takes(rule.index, event, binding);
                rules.iter().find(takes).map(|rule| rule.index)
            });
            let begun = self.by_prefix.iter().filter_map(|prefixes| {
                let prefix = target.get(..prefixes.length)?;
                prefixes.rules.get(prefix)
            });
            begun.fold(exact, |before, rules| {
                self.first(rules, before, event, binding)
            })
        });
        self.first(&self.others, found, event, binding)
            .and_then(|index| self.routes.get(index))
    }

    /// The first of these rules that matches the event, or `before`. Rules after `before` cannot win, so they are not
    /// checked.
    fn first(
        &self,
        rules: &[usize],
        before: Option<usize>,
        event: &Event,
        binding: &str,
    ) -> Option<usize> {
        rules
            .iter()
            .copied()
            .take_while(|index| before.is_none_or(|before| *index < before))
            .find(|index| self.takes(*index, event, binding))
            .or(before)
    }

    /// Explains the decision rule by rule, without the hash lookups of [`RouteTable::route`].
    #[must_use]
    pub fn explain(&self, event: &Event, binding: &str) -> Explanation {
        let mut steps = Vec::new();
        for route in &self.routes {
            let mismatch = route.explain(event, binding);
            let took = mismatch.is_none();
            steps.push(RuleCheck {
                route: route.name.clone(),
                mismatch,
            });
            if took {
                let chosen = RouteMatch::Route(route.name.clone());
                return Explanation { steps, chosen };
            }
        }
        let chosen = match self.default {
            Some(_) => RouteMatch::Default,
            None => RouteMatch::Nothing,
        };
        Explanation { steps, chosen }
    }

    fn takes(&self, index: usize, event: &Event, binding: &str) -> bool {
        self.routes
            .get(index)
            .is_some_and(|route| route.mismatch(event, binding).is_none())
    }

    /// The rules in order, without the default.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The default route.
    #[must_use]
    pub fn default_route(&self) -> Option<&Route> {
        self.default.as_ref()
    }
}

// === impl Route ===

impl Route {
    fn new(config: &RouteConfig) -> Result<Self, RouteError> {
        let conditions = config
            .when
            .iter()
            .map(|(attribute, condition)| {
                let condition = Condition::new(condition)
                    .map_err(|error| RouteError::BadGlob(error.to_string()))?;
                Ok((attribute.0.clone(), condition))
            })
            .collect::<Result<_, RouteError>>()?;
        Ok(Self {
            name: config.name.clone(),
            conditions,
            destinations: config.to.iter().map(Destination::new).collect(),
            answering: answering(&config.to),
        })
    }

    /// The route of an announced agent, whose card may name the topic.
    ///
    /// # Errors
    /// As [`RouteTable::build`].
    pub(crate) fn announced(config: &RouteConfig) -> Result<Self, RouteError> {
        let mut route = Self::new(config)?;
        for destination in &mut route.destinations {
            destination.named_by = NamedBy::Event;
        }
        Ok(route)
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The destinations; an event goes to all of them.
    #[must_use]
    pub fn destinations(&self) -> &[Destination] {
        &self.destinations
    }

    /// The index of the destination that answers requests. Only its copies have the call id and the reply address.
    #[must_use]
    pub fn answering(&self) -> usize {
        self.answering
    }

    /// The first condition that the event does not meet.
    fn mismatch(&self, event: &Event, binding: &str) -> Option<&(Attribute, Condition)> {
        self.conditions.iter().find(|(attribute, condition)| {
            !attribute.with_value(event, binding, |value| condition.holds(value))
        })
    }

    fn explain(&self, event: &Event, binding: &str) -> Option<Mismatch> {
        let (attribute, condition) = self.mismatch(event, binding)?;
        Some(Mismatch {
            attribute: attribute.to_string(),
            condition: condition.to_string(),
            value: attribute.with_value(event, binding, |value| value.map(str::to_owned)),
        })
    }

    /// The rule's condition on `targetagent` and its literal texts, if they can be looked up by hash.
    fn targets(&self) -> Option<(&Condition, Vec<Anchor<'_>>)> {
        let is_target = |(attribute, _): &&(Attribute, Condition)| {
            attribute.as_str() == extension::TARGET_AGENT
        };
        let (_, condition) = self.conditions.iter().find(is_target)?;
        Some((condition, condition.anchors()?))
    }
}

fn add_prefix(by_prefix: &mut Vec<Prefixes>, prefix: &str, index: usize) {
    let length = prefix.len();
    let position = by_prefix.iter().position(|group| group.length == length);
    let position = position.unwrap_or_else(|| {
        by_prefix.push(Prefixes {
            length,
            rules: HashMap::new(),
        });
        by_prefix.len() - 1
    });
    if let Some(group) = by_prefix.get_mut(position) {
        let rules = group.rules.entry(Text::from(prefix)).or_default();
        // A rule may name one prefix several times.
        if rules.last() != Some(&index) {
            rules.push(index);
        }
    }
}

/// The value of `hops` in copies of the event.
///
/// # Errors
/// `TooManyHops` when the event has reached the limit.
pub fn next_hops(event: &Event, limit: u32) -> Result<i32, RouteError> {
    let hops = hops(event);
    if hops >= limit {
        return Err(RouteError::TooManyHops { hops, limit });
    }
    Ok(i32::try_from(hops).unwrap_or(i32::MAX).saturating_add(1))
}

/// How many routes the event has passed. An invalid value counts as 0; the bridge overwrites what agents write here.
fn hops(event: &Event) -> u32 {
    match event.extension(extension::HOPS) {
        Some(Value::Integer(hops)) => u32::try_from(*hops).unwrap_or(0),
        Some(Value::String(hops)) => hops.parse().unwrap_or(0),
        Some(Value::Boolean(_)) | None => 0,
    }
}

// === impl Destination ===

impl Destination {
    fn new(config: &DestinationConfig) -> Self {
        let topic = config.topic.0.clone();
        let fixed_topic = template::fixed_topic(&topic);
        let from_event = |part: &TemplatePart| matches!(part, TemplatePart::Attribute(_));
        let is_from_event = topic.parts().iter().any(from_event);
        Self {
            named_by: if is_from_event {
                NamedBy::Event
            } else {
                NamedBy::Config
            },
            transport: config.transport.clone(),
            topic,
            fixed_topic,
            key: config.key.as_ref().map(|key| key.0.clone()),
            mode: config.mode,
            names: config.names,
            guarantee: if config.stored {
                Guarantee::Stored { message_id: None }
            } else {
                Guarantee::Default
            },
        }
    }

    /// The transport's name in the configuration.
    #[must_use]
    pub fn transport(&self) -> &Name {
        &self.transport
    }

    /// The topic template.
    #[must_use]
    pub fn topic(&self) -> &Template {
        &self.topic
    }

    /// Who names the topic: the configuration, or the event through an attribute value.
    #[must_use]
    pub fn named_by(&self) -> NamedBy {
        self.named_by
    }

    /// Where an event goes. `source_key` is the key of the event's message. The key of the copy is the configured one,
    /// else `source_key`, else the `collaborationid` without its reply token, else none.
    ///
    /// # Errors
    /// `MissingAttribute`, `BadName` or `BadTopic`.
    pub fn resolve(
        &self,
        event: &Event,
        binding: &str,
        source_key: Option<&Bytes>,
    ) -> Result<Resolved<'_>, RouteError> {
        let topic = match &self.fixed_topic {
            Some(topic) => topic.clone(),
            None => template::topic(&self.topic, event, binding, self.names)?,
        };
        let mut address = Address::topic(topic);
        address.guarantee = self.guarantee.clone();
        let key = self
            .key
            .as_ref()
            .and_then(|key| template::text(key, event, binding))
            .map(Bytes::from)
            .or_else(|| source_key.cloned())
            .or_else(|| {
                let id = event.extension_text(extension::COLLABORATION_ID)?;
                // Tools and logs show keys, so a key must not contain a token.
                Some(without_token(id).to_bytes())
            });
        Ok(Resolved {
            transport: &self.transport,
            address,
            key,
            mode: self.mode,
        })
    }
}
