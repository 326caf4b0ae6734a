//! The subjects that the user of the bridge needs on NATS.

use std::collections::BTreeSet;

use a2abus_transports::nats::{JetStreamConfig, NatsConfig};

use super::{Access, Operation, Storage, Target, literal_prefix};
use crate::names::{Name, Names, TemplatePart};
use crate::state::LogLocation;

/// The permissions of the user of the bridge.
#[derive(Debug, Default)]
pub(crate) struct Subjects {
    pub(crate) publish: BTreeSet<String>,
    pub(crate) subscribe: BTreeSet<String>,
}

/// The subject on which a user requests its own permissions.
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

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
    for used in uses {
        match &used.operation {
            Operation::Read { topics, .. } => {
                let topics = topics.iter().map(|topic| topic.as_str().to_owned());
                subjects.subscribe.extend(topics);
            }
            Operation::Durable { stream, name } => {
                let read = durable_requests(config, stream, name).into_iter();
                subjects.publish.extend(read.map(api));
                // In a domain, servers put its name and the account before the stream.
                subjects.publish.insert(match &config.jetstream.domain {
                    Some(_) => "$JS.ACK.>".to_owned(),
                    None => format!("$JS.ACK.{stream}.{name}.>"),
                });
            }
            Operation::Write(write) => {
                subjects.publish.insert(pattern(&write.target));
                if write.storage != Storage::Readers {
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
    let requests = stream_requests(&config.jetstream);
    subjects.publish.extend(requests.map(api));
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
            None => ">".to_owned(),
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
    /// The `permissions` block of the user in the server's configuration.
    pub(crate) fn block(&self) -> Vec<String> {
        let list = |key: &str, subjects: &BTreeSet<String>| {
            let subjects: Vec<String> = subjects.iter().map(|s| format!("\"{s}\"")).collect();
            format!("  {key}: {{ allow: [{}] }}", subjects.join(", "))
        };
        vec![
            "permissions: {".to_owned(),
            list("publish", &self.publish),
            list("subscribe", &self.subscribe),
            "}".to_owned(),
        ]
    }
}
