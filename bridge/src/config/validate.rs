//! Do the values fit together?
//!
//! Each check is a function that reports everything it finds. The checks use the values that could be read
//! ([`Sections`]); a value that could not be read causes no further problem.

mod agents;
mod checker;
mod graph;
mod registry;
mod secrets;
#[cfg(feature = "nats")]
mod streams;
mod workflows;

use std::collections::BTreeSet;

use a2abus_plugin::Source;
use a2abus_plugin::extension;
use a2abus_transports::{Topic, TopicFilter, overlap};

use self::checker::{Checker, already, attributes_of};
use super::nearest::meant;
use super::path::ValuePath;
use super::problem::ConfigErrors;
use super::raw::Node;
use super::section::Sections;
use super::{
    AgentCardConfig, AsText, BindingConfig, Claim, ConditionConfig, DEFAULT_ROUTE,
    DestinationConfig, Names, OnUnknown, Role, StateLog, TransportConfig, TransportType,
};
use crate::names::{Attribute, Name, TemplatePart};

/// Runs all checks that need more than one value.
pub(super) fn check(sections: &Sections, root: &Node, problems: &mut ConfigErrors) {
    let mut checker = Checker {
        sections,
        root,
        problems,
    };
    checker.has_work();
    checker.names();
    checker.transports();
    checker.message_sizes();
    checker.bindings();
    #[cfg(feature = "nats")]
    streams::check(&mut checker);
    checker.destinations();
    checker.answering();
    checker.dead_letters();
    checker.calls();
    checker.doors();
    checker.state();
    checker.conditions();
    checker.attributes();
    graph::unreachable_routes(&mut checker);
    graph::loops(&mut checker);
    agents::check(&mut checker);
    registry::check(&mut checker);
    workflows::check(&mut checker);
    checker.unused_transports();
}

/// Reads every secret that the bridge needs to start.
pub(super) fn check_secrets(sections: &Sections, root: &Node, problems: &mut ConfigErrors) {
    secrets::check(&mut Checker {
        sections,
        root,
        problems,
    });
}

// === impl Checker ===

impl Checker<'_> {
    fn has_work(&mut self) {
        let sections = self.sections;
        // An agent with an error may be attached.
        let is_attached = |agent: &Option<AgentCardConfig>| {
            agent.as_ref().is_none_or(|agent| agent.attach.is_some())
        };
        let none = sections.bindings.is_empty()
            && !sections.is_broken("bindings")
            && !sections.is_broken("agents")
            && !sections.agents.values().any(is_attached);
        if none && !self.has_http_listener() {
            self.error(
                ValuePath::root(),
                "nothing to do: add a binding, or enable http",
            );
        }
        let routed = !sections.routes.is_empty()
            || !sections.default_route.is_empty()
            || !sections.agent_routes.is_empty()
            || sections.registry.as_ref().is_none_or(|it| it.enabled)
            || sections.is_broken("routes")
            || sections.is_broken("default_route");
        let needs_route = |binding: &Option<BindingConfig>| {
            binding.as_ref().is_none_or(|it| it.role == Role::Events)
        };
        if sections.bindings.iter().any(needs_route) && !routed {
            self.warning(
                ValuePath::root().key("routes"),
                "there is no route, so every event becomes a dead letter",
            );
        }
    }

    fn names(&mut self) {
        let partial = &self.sections.partial;
        for (path, name) in &partial.routes {
            if name.as_str() == DEFAULT_ROUTE {
                let message = "is the name of default_route: choose another one";
                self.error(path.clone(), message);
            }
        }
        for named in [&partial.bindings, &partial.routes] {
            let named = named.iter().map(|(path, name)| (path.clone(), name));
            self.unique(named, |first| already("name", first));
        }
        let added = self.added_bindings();
        for (path, name) in &partial.bindings {
            if let Some((of, _)) = added.iter().find(|(_, added)| added == name) {
                let message = format!(
                    "is the name of the binding that the bridge adds for {of}: choose another one"
                );
                self.error(path.clone(), message);
            }
        }
    }

    /// The names of the bindings that the bridge adds, each with the path of what it adds it for.
    fn added_bindings(&self) -> Vec<(ValuePath, Name)> {
        let attached = self.each_attached();
        let attached = attached.map(|(path, binding)| (path, binding.name.clone()));
        let replies = self.kafka_callers().filter_map(|(path, name)| {
            let binding = BindingConfig::of_replies(&name)?;
            Some((path, binding.name))
        });
        attached.chain(replies).collect()
    }

    /// The Kafka transports on which the bridge makes calls, each with its path: it adds a binding for each.
    fn kafka_callers(&self) -> impl Iterator<Item = (ValuePath, Name)> {
        let called = self.called_transports().into_iter();
        called.filter_map(move |name| {
            let path = ValuePath::root().key("transports").key(name.as_str());
            let is_kafka = self.transport_type(name) == Some(TransportType::Kafka);
            is_kafka.then(|| (path, name.clone()))
        })
    }

    fn transports(&mut self) {
        let sections = self.sections;
        let are_known = !sections.is_broken("transports");
        let known: Vec<&str> = sections.transports.keys().map(String::as_str).collect();
        for (path, name) in sections.partial.transports.iter().filter(|_| are_known) {
            self.require_known(path.clone(), "transport", name.as_str(), &known);
        }
        let section = ValuePath::root().key("transports");
        for (name, transport) in &sections.transports {
            for problem in transport.iter().flat_map(TransportConfig::problems) {
                self.error(section.key(name).below(&problem.key), problem.message);
            }
            for problem in transport.iter().flat_map(TransportConfig::warnings) {
                self.warning(section.key(name).below(&problem.key), problem.message);
            }
        }
        let too_long: Vec<ValuePath> = self
            .kafka_callers()
            .filter(|(_, name)| BindingConfig::of_replies(name).is_none())
            .map(|(path, _)| path)
            .collect();
        for path in too_long {
            let message = "its name is too long: at most 56 characters are allowed, because the bridge adds the binding replies-NAME";
            self.error(path, message);
        }
    }

    /// Warns if a transport cannot carry the largest payload: such payloads always become dead letters.
    fn message_sizes(&mut self) {
        let Some(limits) = &self.sections.limits else {
            return;
        };
        let largest = limits.max_bytes.0;
        let section = ValuePath::root().key("transports");
        for (name, transport) in &self.sections.transports {
            let most = transport
                .as_ref()
                .and_then(TransportConfig::max_message_bytes);
            if let Some(most) = most.filter(|most| *most < largest.as_u64()) {
                let message = format!(
                    "{most} bytes are less than limits.max_bytes ({} bytes): larger payloads become dead letters; raise it, or lower limits.max_bytes",
                    largest.as_u64()
                );
                self.warning(section.key(name).key("max_message_bytes"), message);
            }
        }
    }

    /// Checks that `state.log` exists and can store the state.
    fn state(&mut self) {
        let Some(state) = &self.sections.state else {
            return;
        };
        let section = ValuePath::root().key("state");
        let is_embedded = state.place() == StateLog::Embedded;
        match (is_embedded, &state.directory) {
            (true, None) => {
                let message = "log: embedded needs the directory of its files";
                self.error(section.key("directory"), message);
            }
            (false, Some(_)) => {
                self.warning(
                    section.key("directory"),
                    "has no effect without log: embedded",
                );
            }
            _ => {}
        }
        match state.place() {
            StateLog::Transport(name)
                if self.transport_type(name) == Some(TransportType::Memory) =>
            {
                let message = format!(
                    "{name} is of type memory, which keeps no state: write memory, embedded, or the name of a Kafka or NATS transport"
                );
                self.error(section.key("log"), message);
            }
            StateLog::Memory | StateLog::Embedded if state.create => {
                let message = "has no effect: only logs on a transport are topics or streams";
                self.warning(section.key("create"), message);
            }
            _ => {}
        }
    }

    /// Warns of transports that nothing uses. Runs only when there are no errors, because an entry with an error may
    /// use the transport.
    fn unused_transports(&mut self) {
        let named = self.sections.partial.transports.iter();
        let used: BTreeSet<&str> = named.map(|(_, name)| name.as_str()).collect();
        let transports = &self.sections.transports;
        if transports.len() == 1 || self.problems.has_errors() {
            return;
        }
        let unused = transports
            .keys()
            .filter(|name| !used.contains(name.as_str()));
        for name in unused {
            let path = ValuePath::root().key("transports").key(name);
            self.warning(path, "is not used");
        }
    }

    fn bindings(&mut self) {
        for (path, binding) in self.each_binding() {
            self.reading(&path, binding);
            if binding.strict && binding.protocol.is_none() {
                let message = "needs protocol: the only family that is accepted";
                self.error(path.key("strict"), message);
            }
            if let Some(source) = &binding.mapping.source
                && let Err(error) = Source::new(source.clone())
            {
                self.error(path.key("mapping").key("source"), error.to_string());
            }
            if binding.role != Role::Events {
                let trusts = !binding.trusts.is_empty() && binding.role != Role::Workflows;
                let adapts = [
                    ("convert", binding.convert.is_some()),
                    ("trusts", trusts),
                    ("validate", binding.validate),
                ];
                for (key, _) in adapts.into_iter().filter(|(_, written)| *written) {
                    let message = "is only for role: events: nothing else is converted";
                    self.error(path.key(key), message);
                }
            }
            if binding.workers > 1 && !matches!(binding.role, Role::Events | Role::Responses) {
                let message = "is only for role: events and role: responses: others have one task";
                self.error(path.key("workers"), message);
            }
            if binding.convert.is_some() && binding.on_unknown == OnUnknown::Pass {
                let message = "on_unknown: pass leaves payloads unchanged and convert changes them: write one of the two";
                self.error(path.key("on_unknown"), message);
            }
            let limits = self.sections.limits.as_ref();
            if limits.is_some_and(|limits| binding.budget_bytes.0 < limits.max_bytes.0) {
                let message = "is less than limits.max_bytes: the largest message would never fit";
                self.error(path.key("budget_bytes"), message);
            }
        }
        self.shared_topics();
        self.reply_topics();
    }

    /// Rejects topics that a request may never name.
    fn reply_topics(&mut self) {
        let bindings = self.each_binding();
        let bindings = bindings.map(|(path, binding)| (path, &binding.reply_topics));
        let agents = ValuePath::root().key("agents");
        let attached = self.sections.agents.iter().filter_map(|(name, agent)| {
            let attach = agent.as_ref()?.attach.as_ref()?;
            Some((agents.key(name).key("attach"), &attach.reply_topics))
        });
        for (path, patterns) in bindings.chain(attached) {
            for (index, pattern) in patterns.iter().enumerate() {
                let message = if pattern.text().starts_with(['_', '$']) {
                    "is reserved: a request may not name a topic that begins with '_' or '$'"
                } else if !pattern.may_match_a_topic() {
                    "matches no topic: topics have only letters, digits, '.', '_' and '-'; '*' stands for any text, including dots"
                } else {
                    continue;
                };
                self.error(path.key("reply_topics").index(index), message);
            }
        }
    }

    /// Checks what can be read from a bus of this type.
    fn reading(&mut self, path: &ValuePath, binding: &BindingConfig) {
        let transport = self.transport_type(&binding.transport);
        if transport == Some(TransportType::Kafka) {
            for (index, topic) in binding.topics.iter().enumerate() {
                if topic.as_topic().is_none() {
                    let path = path.key("topics").index(index);
                    self.error(
                        path,
                        "Kafka topics are read by name: wildcards are not supported",
                    );
                }
            }
        }
        let jetstream = [("stream", &binding.stream), ("durable", &binding.durable)];
        for (key, value) in jetstream {
            if value.is_some() && transport.is_some_and(|t| t != TransportType::Nats) {
                self.error(
                    path.key(key),
                    "is only for JetStream, on a transport of type nats",
                );
            }
        }
        match (&binding.stream, &binding.durable) {
            (Some(_), None) => self.error(path.key("durable"), "is missing: stream needs it"),
            (None, Some(_)) => self.error(path.key("stream"), "is missing: durable needs it"),
            _ => {}
        }
    }

    /// Warns of topics that one binding lists twice, or that two bindings read: this is rarely intended.
    fn shared_topics(&mut self) {
        let bindings: Vec<_> = self.each_binding().collect();
        for (index, (path, later)) in bindings.iter().enumerate() {
            self.repeated_topics(path, later);
            let mut earlier = bindings.iter().take(index);
            if let Some(message) = earlier.find_map(|(_, earlier)| self.sharing(earlier, later)) {
                self.warning(path.key("topics"), message);
            }
        }
        for (path, attached) in self.each_attached() {
            // A binding for events may watch the requests of an agent.
            let mut others = bindings.iter().filter(|(_, it)| it.role != Role::Events);
            if let Some(message) = others.find_map(|(_, other)| self.sharing(other, attached)) {
                self.warning(path.parent().key("to").key("topic"), message);
            }
        }
    }

    fn repeated_topics(&mut self, path: &ValuePath, binding: &BindingConfig) {
        let path = path.key("topics");
        for (index, topic) in binding.topics.iter().enumerate() {
            let mut earlier = binding.topics.iter().take(index);
            if let Some(first) = earlier.position(|earlier| earlier == topic) {
                let message = format!("is the same topic as {}: remove it", path.index(first));
                self.warning(path.index(index), message);
            }
        }
    }

    /// What happens to the messages of a topic that two bindings read, unless that is clearly intended.
    fn sharing(&self, earlier: &BindingConfig, later: &BindingConfig) -> Option<String> {
        let reads = |topic: &AsText<TopicFilter>| {
            let mut topics = earlier.topics.iter();
            topics.any(|other| overlap(other.as_str(), topic.as_str()))
        };
        // A server refuses streams with overlapping subjects, so two streams store one subject only if one copies the
        // other.
        let is_copied = |topic: &AsText<TopicFilter>| {
            topic.as_topic().is_some() && earlier.topics.contains(topic)
        };
        let streams = earlier.stream.as_ref().zip(later.stream.as_ref());
        let is_apart =
            streams.is_some_and(|(one, other)| one != other) && !later.topics.iter().any(is_copied);
        if earlier.transport != later.transport || is_apart || !later.topics.iter().any(reads) {
            return None;
        }
        let name = &earlier.name;
        if earlier.subscription().reading == later.subscription().reading {
            let share = match &later.durable {
                Some(durable) => format!("the durable {durable}"),
                None => format!("the group {}", later.group),
            };
            return Some(format!(
                "shares a topic and {share} with the binding {name}: each receives only part of the messages"
            ));
        }
        if earlier.role != later.role {
            return Some(format!(
                "shares a topic with the binding {name}, which has another role: each message is processed by both, and one that does not fit a role becomes a dead letter; use one topic per role"
            ));
        }
        let (fate, cure) = match later.role {
            Role::Events if graph::are_routed_apart(self, earlier, later) => return None,
            Role::Events => (
                "routed",
                format!("use one binding, or a route with when: {{binding: {name}}}"),
            ),
            Role::Responses | Role::Workflows => ("processed", "use one binding".to_owned()),
            // The registry may read a card twice; `attached` refuses two agents on one topic.
            Role::Discovery | Role::Agent => return None,
        };
        Some(format!(
            "shares a topic with the binding {name}, and both get every message: each is {fate} twice; {cure}"
        ))
    }

    fn destinations(&mut self) {
        for (path, config) in &self.sections.partial.destinations {
            let transport = self.transport_type(&config.transport);
            if config.stored && transport.is_some_and(|t| t != TransportType::Nats) {
                let message = "is only for JetStream, on a transport of type nats";
                self.error(path.key("stored"), message);
            }
            self.template(path.key("topic"), config);
        }
    }

    /// At most one destination of a route answers requests.
    fn answering(&mut self) {
        let routes = self.each_route();
        let routes =
            routes.map(|(path, route)| (path.key("to"), route.to.iter().map(Some).collect()));
        let default = self.sections.default_route.iter().map(Option::as_ref);
        let default = (ValuePath::root().key("default_route"), default.collect());
        let all: Vec<(ValuePath, Vec<Option<&DestinationConfig>>)> =
            routes.chain([default]).collect();
        for (path, destinations) in all {
            let marked = destinations.into_iter().enumerate();
            let marked = marked.filter(|(_, destination)| {
                destination.is_some_and(|destination| destination.answers)
            });
            for (index, _) in marked.skip(1) {
                let message = "only one destination of a route may have answers: true";
                self.error(path.index(index).key("answers"), message);
            }
        }
    }

    /// Checks that the literal parts are valid, and that a payload cannot choose the whole topic.
    fn template(&mut self, path: ValuePath, config: &DestinationConfig) {
        let sample: String = config
            .topic
            .parts()
            .iter()
            .map(|part| match part {
                TemplatePart::Literal(text) => text.as_str(),
                TemplatePart::Attribute(_) => "x",
            })
            .collect();
        if let Err(error) = Topic::new(sample.clone()) {
            return self.error(path, error.to_string());
        }
        if sample.starts_with('_') {
            return self.error(path, "is reserved: a topic must not begin with '_'");
        }
        let Some(TemplatePart::Attribute(attribute)) = config.topic.parts().first() else {
            return;
        };
        match config.names {
            _ if attribute.is_binding() => {}
            Names::Dotted => self.error(
                path,
                "begins with an attribute, and with names: dotted a payload can choose any topic: put a fixed prefix before it",
            ),
            Names::Refuse | Names::Escape => self.warning(
                path,
                "begins with an attribute, so a payload can choose any topic without dots: put a fixed prefix before it",
            ),
        }
    }

    fn dead_letters(&mut self) {
        for (path, binding) in self.each_binding() {
            let path = path.key("dead_letter").key("topic");
            self.looping_letters(path.clone(), binding);
            self.unstored_letters(path, binding);
        }
        for (path, binding) in self.each_attached() {
            let path = path.key("dead_letter");
            self.looping_letters(path.clone(), binding);
            self.unstored_letters(path, binding);
        }
    }

    /// Refuses dead letters that a binding reads.
    fn looping_letters(&mut self, path: ValuePath, binding: &BindingConfig) {
        let topic = &binding.dead_letter.topic.0;
        if let Some(reader) = self.reader(binding.dead_letter_transport(), topic) {
            let message = format!(
                "{topic} is read by the binding {}: its dead letters would loop forever",
                reader.name
            );
            self.error(path, message);
        }
    }

    /// Warns of dead letters of core NATS: like its messages, they are lost unless a stream stores them.
    fn unstored_letters(&mut self, path: ValuePath, binding: &BindingConfig) {
        let is_core = self.transport_type(&binding.transport) == Some(TransportType::Nats)
            && binding.durable.is_none()
            && binding.stream.is_none();
        let to = binding.dead_letter_transport();
        let transport = self.sections.transports.get(to.as_str());
        let topic = &binding.dead_letter.topic.0;
        let Some(Some(transport)) = transport.filter(|_| is_core) else {
            return;
        };
        if transport.transport_type() == TransportType::Nats && !transport.manages(topic) {
            let message = format!(
                "dead letters of core NATS are lost unless a JetStream stream stores {topic}: `a2abus topics apply` creates one, and `a2abus check --connect` looks for it"
            );
            self.problems
                .unverified(self.root.site(&path), path, message);
        }
    }

    fn calls(&mut self) {
        let Some(calls) = self.sections.calls.as_ref().filter(|calls| calls.enabled) else {
            return;
        };
        let section = ValuePath::root().key("calls");
        // An executor that is reached only over HTTP needs no bus.
        let workflows = self.sections.workflows.as_ref();
        let needs_bus = workflows.is_none_or(|workflows| !workflows.enabled);
        let no_bus = self.sections.transports.is_empty();
        if needs_bus && no_bus && !self.sections.is_broken("transports") {
            let path = ValuePath::root().key("transports");
            self.error(
                path,
                "add a transport, of type kafka or nats: calls go to agents through it",
            );
        }
        if calls.timeout.0 > calls.max_timeout.0 {
            self.error(section.key("timeout"), "is longer than calls.max_timeout");
        }
        // Off Kafka, answers go to topics below the reply topic: REPLICA.CALLID, or REPLICA.followed.CALLID.
        let below = ["*.*", "*.*.*"].map(|last| format!("{}.{last}", calls.reply_topic.0));
        let called = self.called_transports();
        let mut bindings = self.each_binding();
        let reader = bindings.find(|(_, binding)| {
            let is_kafka = self.transport_type(&binding.transport) == Some(TransportType::Kafka);
            let reads_answers = |topic: &AsText<TopicFilter>| match is_kafka {
                true => topic.matches(&calls.reply_topic),
                false => below.iter().any(|below| overlap(topic.as_str(), below)),
            };
            called.contains(&binding.transport) && binding.topics.iter().any(reads_answers)
        });
        if let Some((_, binding)) = reader {
            let message = format!(
                "is read by the binding {}: the bridge already reads it",
                binding.name
            );
            self.error(section.key("reply_topic"), message);
        }
    }

    fn doors(&mut self) {
        let (Some(http), Some(admin)) = (&self.sections.http, &self.sections.admin) else {
            return;
        };
        let both = http.enabled && admin.enabled;
        if both && http.listen == admin.listen && http.listen.port() != 0 {
            let path = ValuePath::root().key("admin").key("listen");
            self.error(
                path,
                "is also the address of http.listen: choose another port",
            );
        }
        let open = "listens on every address, without authentication";
        if http.enabled && http.listen.ip().is_unspecified() {
            let path = ValuePath::root().key("http").key("listen");
            let message = format!(
                "{open}: anyone who can reach it can call every agent; write 127.0.0.1:{0} and put an authenticating proxy in front of it",
                http.listen.port()
            );
            self.warning(path, message);
        }
        if admin.enabled && admin.listen.ip().is_unspecified() {
            let path = ValuePath::root().key("admin").key("listen");
            let message = format!("{open}: anyone who can reach it sees metrics and topic names");
            self.warning(path, message);
        }
    }

    /// Checks that conditions on `binding` name existing bindings.
    fn conditions(&mut self) {
        // Calls over HTTP are routed as if a binding named `http` had read them.
        let bindings = self.each_binding().map(|(_, b)| b.name.as_str());
        let known: Vec<&str> = bindings.chain([crate::names::DOOR]).collect();
        for (path, route) in self.each_route() {
            let condition = route.when.iter().find(|(name, _)| name.is_binding());
            let Some((_, ConditionConfig::Pattern(name))) = condition else {
                continue;
            };
            if !self.lacks_bindings() && !name.is_glob() {
                let path = path.key("when").key("binding");
                self.require_known(path, "binding", name.text(), &known);
            }
        }
    }

    /// Whether there are bindings that could not be read.
    fn lacks_bindings(&self) -> bool {
        let bindings = &self.sections.bindings;
        self.sections.is_broken("bindings") || bindings.iter().any(Option::is_none)
    }

    /// Whether any binding accepts `sourceagent` from writers.
    fn has_source_agents(&self) -> bool {
        let mut bindings = self.each_binding().map(|(_, binding)| binding);
        self.lacks_bindings()
            || bindings.any(|binding| {
                binding.role == Role::Workflows || binding.trusts.contains(&Claim::SourceAgent)
            })
    }

    /// Warns of misspelt attributes. Events may have any attribute, so only a name close to a known one counts.
    fn attributes(&mut self) {
        for (path, route) in self.each_route() {
            for attribute in route.when.keys() {
                let path = path.key("when").key(attribute.as_str());
                if attribute.as_str() == extension::SOURCE_AGENT && !self.has_source_agents() {
                    let message = "never matches: no binding has trusts: [sourceagent]";
                    self.key_warning(path.clone(), message);
                }
                if let Some(message) = misspelt(attribute) {
                    self.key_warning(path, message);
                }
            }
        }
        for (path, destination) in &self.sections.partial.destinations {
            let topic = [("topic", &destination.topic.0)];
            let key = destination.key.iter().map(|key| ("key", &key.0));
            for (place, template) in topic.into_iter().chain(key) {
                for message in attributes_of(template).filter_map(misspelt) {
                    self.warning(path.key(place), message);
                }
            }
        }
    }
}

fn misspelt(attribute: &Attribute) -> Option<String> {
    let name = attribute.as_str();
    let near = meant(name, KNOWN_ATTRIBUTES)?;
    Some(format!(
        "a2abus sets no attribute {name}: did you mean {near}?"
    ))
}

/// The attributes of CloudEvents and of this bridge, and `binding`.
const KNOWN_ATTRIBUTES: &[&str] = &[
    "binding",
    "datacontenttype",
    "dataschema",
    "id",
    "source",
    "specversion",
    "subject",
    "time",
    "type",
    extension::A2A_METHOD,
    extension::A2E_CAPABILITY,
    extension::A2E_CODE,
    extension::A2E_KIND,
    extension::A2E_OBJECT,
    extension::A2E_TYPE,
    extension::CALL_ID,
    extension::COLLABORATION_ID,
    extension::CONTEXT_ID,
    extension::CORRELATION_ID,
    extension::E2A_CHANNEL,
    extension::E2A_CODE,
    extension::E2A_KIND,
    extension::E2A_STATUS,
    extension::EXPIRY_TIME,
    extension::HOPS,
    extension::IS_FINAL,
    extension::MCP_TYPE,
    extension::MESSAGE_TYPE,
    extension::ORIGIN,
    extension::PROGRESS_TO,
    extension::PROTOCOL,
    extension::PROTOCOL_VERSION,
    extension::REPLY_PARTITION,
    extension::REPLY_TO,
    extension::RETRYABLE,
    extension::RPC_ERROR_CODE,
    extension::SEQ,
    extension::SESSION_ID,
    extension::SOURCE_AGENT,
    extension::SOURCE_PROTOCOL,
    extension::TARGET_AGENT,
    extension::TASK_ID,
    extension::TASK_STATE,
    extension::TRACE_PARENT,
    extension::TRACE_STATE,
];
