//! The subjects that the user of the bridge needs on NATS.

use std::collections::BTreeSet;

use a2abus_transports::nats::{JetStreamConfig, NatsConfig};

use super::{Access, Operation, Target, literal_prefix};
use crate::names::{Name, Names, TemplatePart};
use crate::state::LogLocation;

/// The permissions of the user of the bridge.
#[derive(Debug, Default)]
pub(crate) struct Subjects {
    pub(crate) publish: BTreeSet<String>,
    pub(crate) subscribe: BTreeSet<String>,
    /// Other subjects that the bridge may publish to. Which of them it needs is known only to the operator, and a
    /// permission for all of them may include the API of JetStream.
    pub(crate) unlisted: BTreeSet<String>,
}

/// The subject on which a user requests its own permissions.
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// Every subject.
const ALL: &str = ">";
/// The prefix of inboxes, unless a client sets another one.
const DEFAULT_INBOX: &str = "_INBOX";

/// The subjects that the user of the bridge publishes and subscribes to.
pub(crate) fn subjects(config: &NatsConfig, uses: &[Access]) -> Subjects {
    let mut subjects = Subjects::default();
    let api = |request: String| match &config.jetstream.domain {
        Some(domain) => format!("$JS.{domain}.API.{request}"),
        None => format!("$JS.API.{request}"),
    };
    let inbox = format!("{}.>", config.inbox_prefix);
    subjects.publish.insert(inbox.clone());
    // The bridge does not need this, but `check --connect` does.
    subjects.publish.insert(USER_INFO.to_owned());
    subjects.subscribe.insert(inbox);
    // Requesters that use the client libraries of NATS wait for answers there.
    if config.inbox_prefix != DEFAULT_INBOX && uses.iter().any(Access::is_binding) {
        subjects.unlisted.insert(format!("{DEFAULT_INBOX}.>"));
    }
    for used in uses {
        match &used.operation {
            Operation::Read { topics, .. } => {
                let topics = topics.iter().map(|topic| topic.as_str().to_owned());
                subjects.subscribe.extend(topics);
            }
            Operation::Durable { stream, name, .. } => {
                let read = durable_requests(config, stream, name).into_iter();
                subjects.publish.extend(read.map(api));
                // In a domain, servers put its name and the account before the stream.
                subjects.publish.insert(match &config.jetstream.domain {
                    Some(_) => "$JS.ACK.>".to_owned(),
                    None => format!("$JS.ACK.{stream}.{name}.>"),
                });
            }
            Operation::Write(write) => {
                subjects.publish_to(&write.target);
                if write.is_stored() {
                    subjects.publish.insert(api("STREAM.NAMES".to_owned()));
                    // The bridge does not need this, but `topics plan` does. The stream is not known in advance.
                    subjects.publish.insert(api("STREAM.INFO.*".to_owned()));
                }
            }
            Operation::Replies(topic) => {
                subjects.subscribe.insert(format!("{topic}.>"));
                subjects.publish.insert(format!("{topic}.>"));
            }
            Operation::State {
                place: LogLocation::Stream { name, prefix },
                is_created,
                ..
            } => {
                subjects.publish.insert(format!("{prefix}.>"));
                let requests = log_requests(name, *is_created).into_iter();
                subjects.publish.extend(requests.map(api));
            }
            Operation::State { .. } => {}
        }
    }
    let of_streams = stream_requests(&config.jetstream).map(api);
    subjects.publish.extend(of_streams);
    subjects
}

/// The pattern of all subjects.
pub(crate) fn pattern(target: &Target) -> String {
    match target {
        Target::Topic(topic) => topic.to_string(),
        Target::Template { template, names } => {
            let parts = template.parts().iter().map(|part| match part {
                TemplatePart::Literal(text) => text.as_str(),
                TemplatePart::Attribute(_) => "\0",
            });
            let shape: String = parts.collect();
            let mut pattern = Vec::new();
            for word in shape.split('.') {
                match word.contains('\0') {
                    false => pattern.push(word),
                    // The value may contain dots, so it may be several tokens.
                    true if *names == Names::Dotted => {
                        pattern.push(">");
                        break;
                    }
                    true => pattern.push("*"),
                }
            }
            pattern.join(".")
        }
        Target::Matching(pattern) => match literal_prefix(pattern).rsplit_once('.') {
            // The rest of the subject may contain dots.
            Some((words, _)) => format!("{words}.>"),
            None => ALL.to_owned(),
        },
    }
}

/// The API requests for the listed streams.
fn stream_requests(config: &JetStreamConfig) -> impl Iterator<Item = String> {
    let requests: &[&str] = match config.manage {
        true => &["STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE"],
        // Only `topics plan` needs it.
        false => &["STREAM.INFO"],
    };
    let streams = config.streams.iter();
    streams.flat_map(move |stream| requests.iter().map(|it| format!("{it}.{}", stream.name)))
}

/// The API requests for a log. The names of the consumers that read it are not known in advance.
fn log_requests(stream: &str, is_created: bool) -> Vec<String> {
    let mut requests = vec![
        "STREAM.NAMES".to_owned(),
        format!("STREAM.INFO.{stream}"),
        // The client creates the first consumer without a name.
        format!("CONSUMER.CREATE.{stream}"),
        format!("CONSUMER.CREATE.{stream}.>"),
        format!("CONSUMER.DELETE.{stream}.>"),
        format!("CONSUMER.MSG.NEXT.{stream}.>"),
        // The client asks for its consumer after each reconnect.
        format!("CONSUMER.INFO.{stream}.>"),
        // For records that the client cannot read.
        format!("STREAM.MSG.GET.{stream}"),
    ];
    if is_created {
        requests.push(format!("STREAM.CREATE.{stream}"));
    }
    requests
}

/// The API requests for reading a durable consumer.
fn durable_requests(config: &NatsConfig, stream: &Name, name: &Name) -> Vec<String> {
    let mut requests = vec![
        format!("CONSUMER.INFO.{stream}.{name}"),
        format!("CONSUMER.MSG.NEXT.{stream}.{name}"),
        format!("STREAM.INFO.{stream}"),
        // For messages that the client cannot read.
        format!("STREAM.MSG.GET.{stream}"),
    ];
    if config.jetstream.manage {
        requests.push(format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"));
    }
    requests
}

// === impl Subjects ===

impl Subjects {
    fn publish_to(&mut self, target: &Target) {
        match pattern(target) {
            all if all == ALL => self.unlisted.insert(target.to_string()),
            subject => self.publish.insert(subject),
        };
    }

    /// The `permissions` block of the user in the server's configuration.
    pub(crate) fn block(&self) -> Vec<String> {
        let list = |key: &str, subjects: &BTreeSet<String>| {
            let subjects: Vec<String> = subjects.iter().map(|s| format!("\"{s}\"")).collect();
            format!("  {key}: {{ allow: [{}] }}", subjects.join(", "))
        };
        let mut lines = vec![
            "permissions: {".to_owned(),
            list("publish", &self.publish),
            list("subscribe", &self.subscribe),
            "}".to_owned(),
        ];
        lines.extend(self.unlisted.iter().map(|pattern| {
            format!(
                "# events may also name {pattern}: allow publishing to those that your agents use"
            )
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;
    use crate::config::{Config, TransportConfig};

    #[test]
    fn subjects_that_only_the_operator_knows_get_no_permission_for_all() {
        let text = "
transports: {n: {type: nats, servers: ['nats://a'], inbox_prefix: _BRIDGE}}
bindings:
- {name: in, transport: n, topics: [in], reply_topics: ['inbox-*', 'clients.*', named]}
default_route: [{transport: n, topic: out}]
";
        let config = Config::read("f", text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let (name, transport) = config.transports.first_key_value().unwrap();
        let TransportConfig::Nats(nats) = transport else {
            panic!("{transport:?}");
        };
        let subjects = subjects(nats, &access::uses(&config, name));
        for listed in ["clients.>", "named", "out"] {
            assert!(subjects.publish.contains(listed), "{subjects:?}");
        }
        assert!(!subjects.publish.contains(ALL), "{subjects:?}");
        let unlisted = ["_INBOX.>", "inbox-*"].map(str::to_owned);
        assert_eq!(subjects.unlisted, BTreeSet::from(unlisted));
        let lines = subjects.block();
        for pattern in unlisted_lines(&lines) {
            assert!(pattern.starts_with("# "), "{lines:?}");
        }
        assert_eq!(unlisted_lines(&lines).count(), 2);
    }

    #[test]
    fn the_reader_of_a_log_may_ask_for_its_consumer() {
        let text = "
transports: {n: {type: nats, servers: ['nats://a']}}
bindings: [{name: in, transport: n, topics: [in]}]
default_route: [{transport: n, topic: out}]
http: {listen: '127.0.0.1:0'}
state: {log: n}
";
        let config = Config::read("f", text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let (name, transport) = config.transports.first_key_value().unwrap();
        let TransportConfig::Nats(nats) = transport else {
            panic!("{transport:?}");
        };
        let subjects = subjects(nats, &access::uses(&config, name));
        let of_logs = |request: &str| {
            let request = format!("$JS.API.CONSUMER.{request}.");
            let all = subjects.publish.iter();
            all.filter(|subject| subject.starts_with(&request)).count()
        };
        assert!(of_logs("INFO") > 0, "{subjects:?}");
        assert_eq!(of_logs("INFO"), of_logs("MSG.NEXT"), "{subjects:?}");
    }

    fn unlisted_lines(lines: &[String]) -> impl Iterator<Item = &String> {
        lines
            .iter()
            .filter(|line| line.contains("events may also name"))
    }
}
