//! Can the agents of the `agents` section be reached, and can their cards be served?

use http::{HeaderName, HeaderValue};

use super::checker::{Checker, already};
use crate::config::path::ValuePath;
use crate::config::{
    AgentCardConfig, AttachProtocol, ConditionConfig, SkillConfig, StateLog, TextOrSecret,
    TransportType, condition_holds,
};
use crate::names::Name;

pub(super) fn check(checker: &mut Checker<'_>) {
    names(checker);
    descriptions(checker);
    attached(checker);
    shared_with_attached(checker);
    announced(checker);
    servers(checker);
    skills(checker);
    default_agent(checker);
    webhook_keys(checker);
    public_url(checker);
}

/// Checks that the name of an agent's route is unique and not too long.
fn names(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let section = ValuePath::root().key("agents");
    for (name, agent) in &sections.agents {
        let Some(agent) = agent.as_ref().filter(|agent| agent.to.is_some()) else {
            continue;
        };
        let path = section.key(name);
        let Some(route) = agent.route(name) else {
            checker.error(path, "is too long: at most 58 characters are allowed");
            continue;
        };
        let mut written = sections.partial.routes.iter();
        if let Some((first, _)) = written.find(|(_, written)| *written == route.name) {
            let message = format!(
                "its route is named {}, as {first} is already: rename that one",
                route.name
            );
            checker.error(path.key("to"), message);
        }
    }
}

/// Checks that an attached agent reads one topic, and that no other attached agent reads it.
fn attached(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let section = ValuePath::root().key("agents");
    for (name, agent) in &sections.agents {
        let Some(agent) = agent.as_ref() else {
            continue;
        };
        let (Some(attach), path) = (&agent.attach, section.key(name)) else {
            continue;
        };
        let Some(to) = &agent.to else {
            let message = "is missing: an attached agent reads its requests there";
            checker.error(path.key("to"), message);
            continue;
        };
        let topic = to.topic.0.as_literal();
        let first = topic.and_then(|topic| attached_reader(checker, &to.transport, topic));
        if let Some(first) = first.filter(|first| first != name) {
            let message = format!(
                "is also the request topic of the attached agent {first}, so each would refuse the requests of the other: use one topic per agent"
            );
            checker.error(path.key("to").key("topic"), message);
        }
        let transport = checker.transport_type(&to.transport);
        match agent.binding(name) {
            Some(binding) => checker.reading(&path.key("attach"), &binding),
            // The agent's name or the topic is invalid, and reported as such.
            None if topic.is_some() => {}
            None => checker.error(
                path.key("to").key("topic"),
                "must be one topic: an attached agent reads it",
            ),
        }
        let is_stored = attach.durable.is_some() || transport != Some(TransportType::Nats);
        if to.stored && !is_stored {
            let message =
                "is missing: to.stored needs a stream, so read it with stream and durable";
            checker.error(path.key("attach").key("durable"), message);
        }
    }
}

/// Warns about an agent without a server whose requests an attached server reads.
fn shared_with_attached(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    for (name, agent) in &sections.agents {
        let agent = agent.as_ref().filter(|agent| agent.attach.is_none());
        let Some(to) = agent.and_then(|agent| agent.to.as_ref()) else {
            continue;
        };
        let topic = to.topic.0.as_literal();
        let reader = topic.and_then(|topic| attached_reader(checker, &to.transport, topic));
        if let Some(reader) = reader {
            let message = format!(
                "is the request topic of the attached agent {reader}, so its server also receives these requests: use one topic per agent"
            );
            let path = ValuePath::root().key("agents").key(name);
            checker.warning(path.key("to").key("topic"), message);
        }
    }
}

/// The attached agent that reads its requests from a topic.
fn attached_reader<'a>(checker: &Checker<'a>, transport: &Name, topic: &str) -> Option<&'a str> {
    let mut agents = checker.sections.agents.iter();
    let reader = agents.find(|(_, agent)| {
        let agent = agent.as_ref().filter(|agent| agent.attach.is_some());
        let to = agent.and_then(|agent| agent.to.as_ref());
        to.is_some_and(|to| to.transport == *transport && to.topic.0.as_literal() == Some(topic))
    });
    reader.map(|(name, _)| name.as_str())
}

/// Checks that cards are not announced on the request topic of an attached agent, or on a topic for answers.
fn announced(checker: &mut Checker<'_>) {
    const CURE: &str = "use a topic for cards only, such as agents.discovery";
    let sections = checker.sections;
    for (name, agent) in &sections.agents {
        let agent = agent.as_ref();
        let Some((to, attach)) = agent.and_then(|it| Some((it.to.as_ref()?, it.attach.as_ref()?)))
        else {
            continue;
        };
        let Some(announce) = &attach.announce else {
            continue;
        };
        let path = ValuePath::root().key("agents").key(name);
        let path = path.key("attach").key("announce");
        if let Some(reader) = attached_reader(checker, &to.transport, announce.as_str()) {
            let message =
                format!("is the request topic of agent {reader}, which reads no cards: {CURE}");
            checker.error(path, message);
            continue;
        }
        let named = attach.reply_topics.iter().any(|pattern| {
            let pattern = ConditionConfig::Pattern(pattern.clone());
            condition_holds(&pattern, announce.as_str())
        });
        let kind = checker.transport_type(&to.transport);
        let calls = sections.calls.as_ref().map(|calls| &calls.reply_topic.0);
        let is_of_calls = calls.is_some_and(|calls| match kind {
            Some(TransportType::Kafka) => **announce == *calls,
            Some(TransportType::Nats | TransportType::Memory) | None => {
                let rest = announce.as_str().strip_prefix(calls.as_str());
                rest.is_some_and(|rest| rest.starts_with('.'))
            }
        });
        if named || is_of_calls {
            let message =
                format!("is a topic for answers (reply_topics or calls.reply_topic): {CURE}");
            checker.error(path, message);
        }
    }
}

/// Requires a description, unless an attached server can describe itself.
fn descriptions(checker: &mut Checker<'_>) {
    let section = ValuePath::root().key("agents");
    for (name, agent) in &checker.sections.agents {
        let is_missing = |agent: &&AgentCardConfig| agent.description.is_empty();
        let agent = agent.as_ref().filter(is_missing);
        if agent.is_some_and(|agent| agent.attach.is_none()) {
            let message =
                "is missing: what the agent does, for people and for models that choose an agent";
            checker.error(section.key(name).key("description"), message);
        }
    }
}

/// Checks that an attached agent is either a program or an HTTP server, without settings of the other.
fn servers(checker: &mut Checker<'_>) {
    let section = ValuePath::root().key("agents");
    for (name, agent) in &checker.sections.agents {
        let Some(attach) = agent.as_ref().and_then(|agent| agent.attach.as_ref()) else {
            continue;
        };
        let path = section.key(name).key("attach");
        match (&attach.command, &attach.url) {
            (Some(command), None) => {
                if command.first().is_some_and(String::is_empty) {
                    let path = path.key("command").index(0);
                    checker.error(path, "is empty: write the program");
                }
                if attach.protocol != AttachProtocol::Mcp {
                    let message = "needs url: a program is an MCP server";
                    checker.error(path.key("protocol"), message);
                }
                if !attach.headers.is_empty() {
                    checker.error(path.key("headers"), "needs url: a program takes no headers");
                }
                let is_wrong = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
                for name in attach.env.keys().filter(is_wrong) {
                    let message = "is not the name of an environment variable: it is empty, or has '=' or a NUL";
                    checker.error(path.key("env").key(name), message);
                }
            }
            (None, Some(_)) => {
                if !attach.env.is_empty() {
                    checker.error(
                        path.key("env"),
                        "needs command: an HTTP server is not started by the bridge",
                    );
                }
                if attach.directory.is_some() {
                    checker.error(
                        path.key("directory"),
                        "needs command: an HTTP server is not started by the bridge",
                    );
                }
                for (name, value) in &attach.headers {
                    if let Err(why) = check_header(name, value) {
                        checker.error(path.key("headers").key(name), why);
                    }
                }
            }
            (Some(_), Some(_)) => checker.error(path, "set only one of command and url"),
            (None, None) => checker.error(path, "needs either command or url"),
        }
    }
}

/// Checks that a configured header is valid and not one that the bridge sets itself.
fn check_header(name: &str, value: &TextOrSecret) -> Result<(), &'static str> {
    const OWN: [&str; 9] = [
        "accept",
        "connection",
        "content-length",
        "content-type",
        "host",
        "mcp-protocol-version",
        "mcp-session-id",
        "te",
        "transfer-encoding",
    ];
    let header = HeaderName::from_bytes(name.as_bytes());
    let header = header.map_err(|_| "is not a valid header name")?;
    if OWN.contains(&header.as_str()) {
        return Err("is set by the bridge itself");
    }
    match value {
        TextOrSecret::Text(text) => HeaderValue::from_str(text)
            .map(drop)
            .map_err(|_| "is not a valid header value: use visible ASCII"),
        TextOrSecret::Secret(_) => Ok(()),
    }
}

fn skills(checker: &mut Checker<'_>) {
    let section = ValuePath::root().key("agents");
    for (name, agent) in &checker.sections.agents {
        let path = section.key(name).key("skills");
        let skills = agent.iter().flat_map(|agent| &agent.skills).enumerate();
        for (index, skill) in skills.clone() {
            if let Err(why) = SkillConfig::check_id(&skill.id) {
                checker.error(path.index(index).key("id"), why);
            }
        }
        let ids = skills.map(|(index, skill)| (path.index(index).key("id"), &skill.id));
        checker.unique(ids, |first| already("id", first));
    }
}

fn default_agent(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let Some(agent) = sections
        .a2a
        .as_ref()
        .and_then(|a2a| a2a.default_agent.as_ref())
    else {
        return;
    };
    if !sections.is_broken("agents") {
        let known: Vec<&str> = sections.agents.keys().map(String::as_str).collect();
        let path = ValuePath::root().key("a2a").key("default_agent");
        checker.require_known(path, "agent", agent.as_str(), &known);
    }
}

/// Warns if clients may set webhooks but no webhook with a token or credentials is accepted.
fn webhook_keys(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let (Some(a2a), Some(state)) = (&sections.a2a, &sections.state) else {
        return;
    };
    let push = &a2a.push_notifications;
    if push.enabled && push.keys.is_empty() && state.place() != StateLog::Memory {
        let section = ValuePath::root().key("a2a").key("push_notifications");
        checker.warning(
            section.key("keys"),
            "is missing: webhooks with a token or credentials are refused, because the state would hold them unencrypted",
        );
    }
}

/// Checks that card URLs are not built from a `Host` that any client can choose.
fn public_url(checker: &mut Checker<'_>) {
    let sections = checker.sections;
    let (Some(http), Some(a2a)) = (&sections.http, &sections.a2a) else {
        return;
    };
    let any_host = http.allowed_hosts.iter().any(|host| host == "*");
    let is_open = sections.registry.as_ref().is_some_and(|it| it.enabled);
    let has_cards = is_open || !sections.agents.is_empty();
    if http.enabled && any_host && has_cards && a2a.public_url.is_none() {
        checker.error(
            ValuePath::root().key("a2a").key("public_url"),
            "is missing: http.allowed_hosts accepts any name, so the URLs of agent cards cannot be built from Host",
        );
    }
}
