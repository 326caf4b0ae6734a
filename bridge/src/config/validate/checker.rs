//! The state and the helpers that all checks of the configuration share.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use a2abus_transports::Topic;

use crate::config::nearest::nearest;
use crate::config::path::ValuePath;
use crate::config::problem::ConfigErrors;
use crate::config::raw::Node;
use crate::config::section::Sections;
use crate::config::{
    BindingConfig, Name, RegistryConfig, RouteConfig, TransportConfig, TransportType, answering,
};
use crate::names::{Attribute, Template, TemplatePart};

/// What the checks read, and where they report what they find.
pub(super) struct Checker<'a> {
    pub(super) sections: &'a Sections,
    pub(super) root: &'a Node,
    pub(super) problems: &'a mut ConfigErrors,
}

// === impl Checker ===

impl<'a> Checker<'a> {
    pub(super) fn error(&mut self, path: ValuePath, message: impl Into<String>) {
        let site = self.root.site(&path);
        self.problems.error(site, path, message);
    }

    pub(super) fn warning(&mut self, path: ValuePath, message: impl Into<String>) {
        let site = self.root.site(&path);
        self.problems.warning(site, path, message);
    }

    /// Like [`Checker::warning`], at the position of the key.
    pub(super) fn key_warning(&mut self, path: ValuePath, message: impl Into<String>) {
        let site = self.root.key_site(&path);
        self.problems.warning(site, path, message);
    }

    /// Reports a name that is not among the known ones.
    pub(super) fn require_known(
        &mut self,
        path: ValuePath,
        what: &str,
        name: &str,
        known: &[&str],
    ) {
        if known.contains(&name) {
            return;
        }
        let message = match nearest(name, known) {
            Some(near) => format!("there is no {what} {name}: did you mean {near}?"),
            None if known.is_empty() => {
                format!("there is no {what} {name}: no {what} is configured")
            }
            None => {
                let known = known.join(", ");
                format!("there is no {what} {name}: the {what}s are {known}")
            }
        };
        self.error(path, message);
    }

    /// Reports every duplicate; `message` gets the path of the first occurrence.
    pub(super) fn unique<T: Eq + Hash>(
        &mut self,
        values: impl IntoIterator<Item = (ValuePath, T)>,
        message: impl Fn(&ValuePath) -> String,
    ) {
        let mut first = HashMap::new();
        for (path, value) in values {
            match first.entry(value) {
                Entry::Occupied(first) => self.error(path, message(first.get())),
                Entry::Vacant(entry) => {
                    entry.insert(path);
                }
            }
        }
    }

    /// Whether there is an HTTP listener for callers.
    pub(super) fn has_http_listener(&self) -> bool {
        let http = self.sections.http.as_ref();
        http.is_none_or(|http| http.enabled)
    }

    /// The bindings that could be read, each with its path.
    pub(super) fn each_binding(
        &self,
    ) -> impl Iterator<Item = (ValuePath, &'a BindingConfig)> + use<'a> {
        let path = ValuePath::root().key("bindings");
        let bindings = self.sections.bindings.iter().enumerate();
        bindings.filter_map(move |(index, binding)| Some((path.index(index), binding.as_ref()?)))
    }

    /// The bindings of attached agents, each with the path of its `attach`.
    pub(super) fn each_attached(
        &self,
    ) -> impl Iterator<Item = (ValuePath, &'a BindingConfig)> + use<'a> {
        let agents = ValuePath::root().key("agents");
        let attached = self.sections.attached.iter();
        attached.map(move |(name, binding)| (agents.key(name).key("attach"), binding))
    }

    /// The routes that could be read, each with its path: those of `routes`, then those of agents.
    pub(super) fn each_route(
        &self,
    ) -> impl Iterator<Item = (ValuePath, &'a RouteConfig)> + use<'a> {
        let path = ValuePath::root().key("routes");
        let routes = self.sections.routes.iter().enumerate();
        let written =
            routes.filter_map(move |(index, route)| Some((path.index(index), route.as_ref()?)));
        let agents = ValuePath::root().key("agents");
        let of_agents = self.sections.agent_routes.iter();
        written.chain(of_agents.map(move |(name, route)| (agents.key(name), route)))
    }

    pub(super) fn transport_type(&self, name: &Name) -> Option<TransportType> {
        let transport = self.sections.transports.get(name.as_str())?;
        transport.as_ref().map(TransportConfig::transport_type)
    }

    /// The transports on which the bridge makes calls and reads their answers: those to which a route leads, those of
    /// announced agents and, if there are any, those where every replica reads answers.
    pub(super) fn called_transports(&self) -> BTreeSet<&'a Name> {
        let sections = self.sections;
        let calls = sections.calls.as_ref();
        if calls.is_none_or(|calls| !calls.enabled) {
            return BTreeSet::new();
        }
        let routes = self.each_route();
        let routed = routes.filter_map(|(_, route)| route.to.get(answering(&route.to)));
        let mut default = sections.default_route.iter().flatten();
        let first = default.clone().next();
        let default = default.find(|to| to.answers).or(first);
        let registry = sections.registry.iter();
        let announced = registry.flat_map(RegistryConfig::enabled_destinations);
        let announced = announced.map(|place| &place.to);
        let called = routed.chain(default).chain(announced);
        let mut called: BTreeSet<_> = called.map(|to| &to.transport).collect();
        if !called.is_empty() {
            let bindings = self.each_binding().map(|(_, binding)| binding);
            let read =
                bindings.filter(|it| it.reads_core_answers(self.transport_type(&it.transport)));
            called.extend(read.map(|it| &it.transport));
        }
        called
    }

    /// The binding that reads a topic of a transport.
    pub(super) fn reader(&self, transport: &Name, topic: &Topic) -> Option<&'a BindingConfig> {
        self.each_binding()
            .chain(self.each_attached())
            .map(|(_, binding)| binding)
            .find(|binding| {
                binding.transport == *transport && binding.topics.iter().any(|t| t.matches(topic))
            })
    }
}

/// The message for a name or id that an earlier entry already has; `first` is the path of that name.
pub(super) fn already(what: &str, first: &ValuePath) -> String {
    let first = first.parent();
    format!("is already the {what} of {first}: choose another one")
}

/// The attributes that a template uses.
pub(super) fn attributes_of(template: &Template) -> impl Iterator<Item = &Attribute> {
    template.parts().iter().filter_map(|part| match part {
        TemplatePart::Literal(_) => None,
        TemplatePart::Attribute(attribute) => Some(attribute),
    })
}
