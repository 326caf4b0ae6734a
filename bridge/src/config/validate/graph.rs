//! Does the bridge read events that it has written itself?
//!
//! It does when a binding of the same transport reads the topic of a destination. The attributes of an event do not
//! change on the way, so the same route matches again, unless a condition on `binding` distinguishes the two passes.
//! That is a loop. The hop limit ends it, and the event becomes a dead letter.

use std::collections::{HashMap, VecDeque};

use a2abus_plugin::extension;
use a2abus_transports::{Topic, TopicFilter};

use super::checker::{Checker, attributes_of};
use crate::config::path::ValuePath;
use crate::config::{
    BindingConfig, Condition, ConditionConfig, DestinationConfig, Role, RouteConfig,
    condition_holds,
};
use crate::names::{Attribute, Name, Names, Template, TemplatePart};

/// How certain it is that something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    Possible,
    Certain,
}

/// A route destination whose topic a binding reads.
struct Delivery<'a> {
    path: ValuePath,
    /// `None` for the default route.
    route: Option<&'a RouteConfig>,
    /// The index among the bindings that read events.
    into: usize,
    topic: Certainty,
    /// The topic filter of the binding that matches.
    filter: String,
}

/// An edge in the graph of bindings: events of one binding are written to a topic that the other reads.
struct Edge<'d, 'a> {
    to: usize,
    delivery: &'d Delivery<'a>,
}

// === loops ===

pub(super) fn loops(checker: &mut Checker<'_>) {
    let bindings: Vec<&BindingConfig> = checker
        .each_binding()
        .map(|(_, binding)| binding)
        .filter(|binding| binding.role == Role::Events)
        .collect();
    let deliveries = deliveries(checker, &bindings);
    same_route(checker, &bindings, &deliveries);
    several_routes(checker, &bindings, &deliveries);
}

/// All pairs of a destination and a binding that reads it.
fn deliveries<'a>(checker: &Checker<'a>, bindings: &[&BindingConfig]) -> Vec<Delivery<'a>> {
    let routes = checker.each_route().flat_map(|(path, route)| {
        let to = path.key("to");
        let placed = route.to.iter().enumerate();
        placed.map(move |(index, config)| (to.index(index), Some(route), config))
    });
    let default = ValuePath::root().key("default_route");
    let defaults = checker.sections.default_route.iter().enumerate();
    let defaults =
        defaults.filter_map(|(index, config)| Some((default.index(index), None, config.as_ref()?)));
    let mut deliveries = Vec::new();
    for (path, route, destination) in routes.chain(defaults) {
        for (into, binding) in bindings.iter().enumerate() {
            if let Some((topic, filter)) = reads(binding, route, destination) {
                deliveries.push(Delivery {
                    path: path.key("topic"),
                    route,
                    into,
                    topic,
                    filter: filter.as_str().to_owned(),
                });
            }
        }
    }
    deliveries
}

/// Reports events that come back to the route that sent them.
fn same_route(checker: &mut Checker<'_>, bindings: &[&BindingConfig], deliveries: &[Delivery<'_>]) {
    for delivery in deliveries {
        let Some(binding) = bindings.get(delivery.into) else {
            continue;
        };
        if !accepts(delivery.route, binding) {
            continue;
        }
        let path = delivery.path.clone();
        let reader = format!("binding \"{}\" reads ({})", binding.name, delivery.filter);
        if delivery.topic == Certainty::Certain && !diverted(checker, delivery.route, binding) {
            let message = format!(
                "publishes to a topic that {reader}, and its events take this route again: a loop"
            );
            checker.error(path, message);
        } else {
            let message = format!(
                "can publish to a topic that {reader}: possible loop, stopped after limits.max_hops"
            );
            checker.warning(path, message);
        }
    }
}

/// Reports events that come back through other bindings, each with its own route.
fn several_routes(
    checker: &mut Checker<'_>,
    bindings: &[&BindingConfig],
    deliveries: &[Delivery<'_>],
) {
    let edges: Vec<Vec<Edge<'_, '_>>> = bindings
        .iter()
        .enumerate()
        .map(|(from, binding)| {
            deliveries
                .iter()
                .filter(|delivery| delivery.into != from && accepts(delivery.route, binding))
                // Routes that take their own events again are reported by `same_route`.
                .filter(|delivery| {
                    bindings
                        .get(delivery.into)
                        .is_some_and(|into| !accepts(delivery.route, into))
                })
                .map(|delivery| Edge {
                    to: delivery.into,
                    delivery,
                })
                .collect()
        })
        .collect();
    for start in 0..bindings.len() {
        let Some(cycle) = shortest_cycle(&edges, start) else {
            continue;
        };
        let names: Vec<&str> = std::iter::once(start)
            .chain(cycle.iter().map(|edge| edge.to))
            .filter_map(|index| bindings.get(index))
            .map(|binding| binding.name.as_str())
            .collect();
        let way = names.join(" -> ");
        let certain = cycle.iter().all(|edge| {
            edge.delivery.topic == Certainty::Certain
                && edge.delivery.route.is_some_and(only_asks_for_binding)
        });
        let Some(first) = cycle.first() else { continue };
        let path = first.delivery.path.clone();
        if certain {
            checker.error(path, format!("is part of a loop of the bindings {way}"));
        } else {
            let message = format!(
                "can be part of a loop of the bindings {way}: stopped after limits.max_hops"
            );
            checker.warning(path, message);
        }
    }
}

/// The shortest path from a binding back to itself through later bindings, so that each cycle is found once.
fn shortest_cycle<'e, 'd, 'a>(
    edges: &'e [Vec<Edge<'d, 'a>>],
    start: usize,
) -> Option<Vec<&'e Edge<'d, 'a>>> {
    let mut came_by: HashMap<usize, (usize, &Edge<'_, '_>)> = HashMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(from) = queue.pop_front() {
        for edge in edges.get(from).into_iter().flatten() {
            if edge.to == start {
                let mut cycle = vec![edge];
                let mut at = from;
                while let Some((before, edge)) = came_by.get(&at) {
                    cycle.push(edge);
                    at = *before;
                }
                cycle.reverse();
                return Some(cycle);
            }
            if edge.to > start && !came_by.contains_key(&edge.to) {
                came_by.insert(edge.to, (from, edge));
                queue.push_back(edge.to);
            }
        }
    }
    None
}

/// Whether events of the binding can take the route.
fn accepts(route: Option<&RouteConfig>, binding: &BindingConfig) -> bool {
    route
        .and_then(binding_condition)
        .is_none_or(|condition| condition_holds(condition, binding.name.as_str()))
}

/// Whether a route treats the events of two bindings differently: it takes those of only one, or `{binding}` in a topic
/// gives each its own destination.
pub(super) fn are_routed_apart(
    checker: &Checker<'_>,
    one: &BindingConfig,
    other: &BindingConfig,
) -> bool {
    let names_binding =
        |to: &DestinationConfig| attributes_of(&to.topic).any(Attribute::is_binding);
    let mut routes = checker.each_route();
    let mut default = checker.sections.default_route.iter().flatten().peekable();
    routes.any(|(_, route)| {
        let takes = accepts(Some(route), one);
        takes != accepts(Some(route), other)
            || (takes && !route.to.is_empty() && route.to.iter().all(names_binding))
    }) || (default.peek().is_some() && default.all(names_binding))
}

fn binding_condition(route: &RouteConfig) -> Option<&ConditionConfig> {
    route
        .when
        .iter()
        .find(|(name, _)| name.is_binding())
        .map(|(_, condition)| condition)
}

fn only_asks_for_binding(route: &RouteConfig) -> bool {
    route.when.keys().all(|name| name.is_binding())
}

/// Whether an earlier route with a condition on `binding` may match the events of the binding first.
fn diverted(checker: &Checker<'_>, route: Option<&RouteConfig>, binding: &BindingConfig) -> bool {
    checker
        .each_route()
        .map(|(_, earlier)| earlier)
        .take_while(|earlier| route.is_none_or(|route| !std::ptr::eq(*earlier, route)))
        .any(|earlier| binding_condition(earlier).is_some() && accepts(Some(earlier), binding))
}

/// Whether the binding reads what the route writes to the destination, and through which filter.
fn reads<'b>(
    binding: &'b BindingConfig,
    route: Option<&RouteConfig>,
    destination: &DestinationConfig,
) -> Option<(Certainty, &'b TopicFilter)> {
    if binding.transport != destination.transport {
        return None;
    }
    let topics = binding.topics.iter().map(|filter| &filter.0);
    topics
        .filter_map(|filter| Some((reaches(destination, route, filter)?, filter)))
        .max_by_key(|(certainty, _)| *certainty)
}

/// The placeholder for a value in the shape of a template: no topic contains it.
const VALUE: char = '\0';

fn reaches(
    destination: &DestinationConfig,
    route: Option<&RouteConfig>,
    filter: &TopicFilter,
) -> Option<Certainty> {
    let (template, names) = (&destination.topic, destination.names);
    if let Some(literal) = template.as_literal() {
        let topic = Topic::new(literal).ok()?;
        return filter.matches(&topic).then_some(Certainty::Certain);
    }
    let shape: String = template.parts().iter().map(shape_of).collect();
    let attributes: Vec<&Attribute> = attributes_of(template).collect();
    let fits = |shape: &str, pattern: &str, attributes: &[&Attribute]| {
        match (value(shape, pattern), attributes) {
            (None, _) => false,
            // Escaping has changed the value.
            (Some(value), _) if names == Names::Escape && value.contains("_x") => true,
            (Some(value), [only]) => can_be(route, only, value),
            (Some(_), _) => true,
        }
    };
    if names == Names::Dotted {
        let whole = filter.as_topic().is_none() || fits(&shape, filter.as_str(), &attributes);
        return (whole && may_begin(&shape, filter)).then_some(Certainty::Possible);
    }
    let (mut words, mut rest) = (shape.split('.'), attributes.as_slice());
    for pattern in filter.as_str().split('.') {
        let word = words.next()?;
        if pattern == ">" {
            return Some(Certainty::Possible);
        }
        let (of_word, after) = rest.split_at_checked(word.matches(VALUE).count())?;
        rest = after;
        if pattern != "*" && !fits(word, pattern, of_word) {
            return None;
        }
    }
    words.next().is_none().then_some(Certainty::Possible)
}

fn shape_of(part: &TemplatePart) -> String {
    match part {
        TemplatePart::Literal(text) => text.to_string(),
        TemplatePart::Attribute(_) => VALUE.to_string(),
    }
}

/// The part of `pattern` that takes the place of the shape's last value, if the shape can become `pattern`. For a shape
/// without values it is the whole text.
fn value<'w>(shape: &str, pattern: &'w str) -> Option<&'w str> {
    let (first, others) = shape.split_once(VALUE).unwrap_or((shape, ""));
    let (between, last) = others.rsplit_once(VALUE).unwrap_or(("", others));
    if !shape.contains(VALUE) {
        return (shape == pattern).then_some(pattern);
    }
    let mut rest = pattern.strip_prefix(first)?.strip_suffix(last)?;
    if shape.matches(VALUE).count() > 1 {
        for literal in between.split(VALUE) {
            // A value has at least one byte.
            let at = rest.get(1..)?.find(literal)?;
            rest = rest.get(1 + at + literal.len()..)?;
        }
    }
    (!rest.is_empty()).then_some(rest)
}

/// Whether the words of a shape before its first value can be those of the filter. The rest is not compared, because a
/// value may be several words.
fn may_begin(shape: &str, filter: &TopicFilter) -> bool {
    let words = shape.split('.').take_while(|word| !word.contains(VALUE));
    let mut pattern = filter.as_str().split('.');
    for word in words {
        match pattern.next() {
            Some(">") => return true,
            Some(pattern) if pattern == "*" || pattern == word => {}
            _ => return false,
        }
    }
    pattern.next().is_some()
}

/// Whether events that take the route can have the value.
fn can_be(route: Option<&RouteConfig>, attribute: &Attribute, value: &str) -> bool {
    let conditions = route.into_iter().flat_map(|route| &route.when);
    let mut conditions = conditions.filter(|(name, _)| name.0 == *attribute);
    conditions.all(|(_, condition)| condition_holds(condition, value))
}

// === routes that nothing reaches ===

/// Above this many conditions, subsets of a rule's conditions are not compared.
const MAX_CONDITIONS_COMPARED: usize = 6;

type Conditions<'a> = Vec<(&'a str, &'a ConditionConfig)>;

/// Warns of rules that never match, because an earlier rule requires a subset of their conditions, or takes the
/// requests of their agent with a pattern.
pub(super) fn unreachable_routes(checker: &mut Checker<'_>) {
    let mut earlier: HashMap<Conditions<'_>, &RouteConfig> = HashMap::new();
    let mut patterns: Vec<(Condition, &RouteConfig)> = Vec::new();
    for (path, route) in checker.each_route() {
        let conditions: Conditions<'_> = route
            .when
            .iter()
            .map(|(name, condition)| (name.as_str(), condition))
            .collect();
        let taker = subsets(&conditions).find_map(|subset| earlier.get(&subset).copied());
        let taker = taker.or_else(|| taken_by_pattern(&patterns, route));
        if let Some(taker) = taker {
            let message = format!(
                "never matches: the earlier route {} matches every event that meets its conditions",
                taker.name
            );
            checker.warning(path.clone(), message);
        }
        earlier.entry(conditions).or_insert(route);
        patterns.extend(pattern_of(route).map(|pattern| (pattern, route)));
    }
}

/// The earlier route that takes all requests of the route's agent elsewhere.
fn taken_by_pattern<'a>(
    patterns: &[(Condition, &'a RouteConfig)],
    route: &RouteConfig,
) -> Option<&'a RouteConfig> {
    let agent = agent_of(only_target(route)?)?;
    let taker = patterns
        .iter()
        .find(|(pattern, _)| pattern.holds(Some(agent)));
    let taker = taker.map(|(_, taker)| *taker)?;
    (!sends_alike(taker, route, agent)).then_some(taker)
}

/// The condition of a route that asks for agents only, but not for one by its name.
fn pattern_of(route: &RouteConfig) -> Option<Condition> {
    let target = only_target(route)?;
    match agent_of(target) {
        Some(_) => None,
        None => Condition::new(target).ok(),
    }
}

/// The condition on the agent, if the route has no other.
fn only_target(route: &RouteConfig) -> Option<&ConditionConfig> {
    let mut conditions = route.when.iter();
    match (conditions.next(), conditions.next()) {
        (Some((name, condition)), None) if name.as_str() == extension::TARGET_AGENT => {
            Some(condition)
        }
        _ => None,
    }
}

/// The agent that a condition names.
fn agent_of(condition: &ConditionConfig) -> Option<&str> {
    match condition {
        ConditionConfig::Pattern(name) if !name.is_glob() => Some(name.text().as_str()),
        _ => None,
    }
}

/// Whether the requests of an agent that take the earlier route are treated as by the later one.
fn sends_alike(earlier: &RouteConfig, later: &RouteConfig, agent: &str) -> bool {
    let is_reached = |to: &DestinationConfig| {
        let place = place_of(to, agent);
        place.is_some() && earlier.to.iter().any(|to| place_of(to, agent) == place)
    };
    earlier.convert == later.convert
        && earlier.validate == later.validate
        && later.to.iter().all(is_reached)
}

/// The transport and the topic of a destination for an agent, if its topic needs no other attribute.
fn place_of<'t>(to: &'t DestinationConfig, agent: &str) -> Option<(&'t Name, String)> {
    let template: &Template = &to.topic;
    let parts = template.parts().iter().map(|part| match part {
        TemplatePart::Literal(text) => Some(text.to_string()),
        TemplatePart::Attribute(name) if name.as_str() == extension::TARGET_AGENT => {
            Some(agent.to_owned())
        }
        TemplatePart::Attribute(_) => None,
    });
    Some((&to.transport, parts.collect::<Option<String>>()?))
}

/// All subsets of the conditions; only the empty and the full set if there are many.
fn subsets<'c, 'a>(conditions: &'c Conditions<'a>) -> impl Iterator<Item = Conditions<'a>> + 'c {
    let count = conditions.len();
    let masks: Vec<u64> = if count <= MAX_CONDITIONS_COMPARED {
        (0..1 << count).collect()
    } else {
        vec![0, u64::MAX]
    };
    masks.into_iter().map(move |mask| {
        let chosen = conditions.iter().enumerate();
        chosen
            .filter(|(index, _)| *index >= 64 || mask & (1 << index) != 0)
            .map(|(_, condition)| *condition)
            .collect()
    })
}
