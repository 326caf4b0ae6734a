//! Do the buses give the bridge what its configuration needs? Connects, asks, and leaves no trace: nothing is published
//! and no group is joined.

use a2abus_transports::{AnyTransport, Transport as _, TransportError, TransportErrorKind};
use futures_util::future::join_all;
use serde::Serialize;

use super::super::reach::{self, LOG_IN, Patience, chain};
use crate::access::{self, Access, Operation};
use crate::config::{Config, Name, TransportConfig};
use crate::restart::GRANT;
use crate::state::LogLocation;
use crate::topics::on_bus::{self, ResourceState};
use crate::topics::{self, Defaults, Requirement, Resource};

/// The results of all tests.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connected {
    tests: Vec<Test>,
    rights: Vec<Rights>,
}

/// One test.
#[derive(Debug, Serialize)]
struct Test {
    transport: String,
    test: String,
    outcome: TestResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum TestResult {
    Ok,
    /// It works, and something should be known.
    Warning,
    /// It cannot be tested without a trace.
    Untested,
    Failed,
}

/// The rights that the bridge needs on one bus, as its tools take them.
#[derive(Debug, Serialize)]
pub(crate) struct Rights {
    transport: String,
    pub(crate) lines: Vec<String>,
    /// Agents may send requests on this bus, and name the topics where they expect the answers.
    #[serde(skip)]
    is_read: bool,
}

/// The tests of one transport.
struct Tester<'a> {
    name: &'a Name,
    tests: Vec<Test>,
}

/// Tests every transport of a configuration, side by side.
pub(super) async fn test(config: &Config) -> Connected {
    let transports = config.transports.iter();
    let tested = join_all(transports.map(async |(name, transport)| {
        let uses = access::uses(config, name);
        let tests = Vec::new();
        let mut tester = Tester { name, tests };
        let requirements =
            topics::requirements(config, name, transport, &uses, Defaults::default());
        tester.transport(transport, &uses, &requirements).await;
        (tester.tests, Rights::of(name, transport, &uses))
    }))
    .await;
    let mut connected = Connected::default();
    for (tests, rights) in tested {
        connected.tests.extend(tests);
        if !rights.lines.is_empty() {
            connected.rights.push(rights);
        }
    }
    connected
}

/// Whether the bridge changes it into what the configuration lists.
fn is_updated(config: &TransportConfig, resource: &Resource, differences: &[String]) -> bool {
    match (config, resource) {
        #[cfg(feature = "nats")]
        (TransportConfig::Nats(nats), Resource::Stream { name, .. }) => {
            let mut listed = nats.jetstream.streams.iter();
            // Nobody can change where a stream is stored.
            let can_change = !differences.iter().any(|it| it.starts_with("storage "));
            can_change && nats.jetstream.manage && listed.any(|stream| stream.name == *name)
        }
        _ => false,
    }
}

// === impl Connected ===

impl Connected {
    /// How many tests failed.
    pub(super) fn failures(&self) -> usize {
        let failed = |test: &&Test| test.outcome == TestResult::Failed;
        self.tests.iter().filter(failed).count()
    }

    /// As text: a line for each test, then the permissions.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.tests.iter().map(Test::line).collect();
        lines.extend(self.rights.iter().flat_map(Rights::shown));
        lines
    }
}

// === impl Rights ===

impl Rights {
    pub(crate) fn of(name: &Name, transport: &TransportConfig, uses: &[Access]) -> Self {
        let lines = match transport {
            #[cfg(feature = "kafka")]
            TransportConfig::Kafka(config) => access::kafka_acls(config, uses),
            #[cfg(feature = "nats")]
            TransportConfig::Nats(config) => access::nats_subjects(config, uses).block(),
            TransportConfig::Memory(_) => Vec::new(),
        };
        let reads = |used: &Access| {
            matches!(
                used.operation,
                Operation::Read { .. } | Operation::Durable { .. }
            )
        };
        Self {
            transport: name.to_string(),
            lines,
            is_read: uses.iter().any(reads),
        }
    }

    /// As text, with comments.
    pub(crate) fn shown(&self) -> Vec<String> {
        let name = &self.transport;
        let mut lines = vec![format!("# permissions that the bridge needs on {name}:")];
        lines.extend(self.lines.iter().cloned());
        if self.is_read {
            lines.push(format!(
                "# If agents send requests on {name}: also allow the bridge to write where they expect the answers."
            ));
        }
        lines
    }
}

impl Test {
    fn line(&self) -> String {
        let outcome = match self.outcome {
            TestResult::Ok => "ok",
            TestResult::Warning => "WARNING",
            TestResult::Untested => "untested",
            TestResult::Failed => "FAILED",
        };
        let detail = self.detail.as_ref().map(|detail| format!(": {detail}"));
        let detail = detail.unwrap_or_default();
        format!("{outcome:<8} {}: {}{detail}", self.transport, self.test)
    }
}

/// The fix for an error, if its kind says it.
fn cure(kind: TransportErrorKind) -> Option<&'static str> {
    match kind {
        TransportErrorKind::Unauthenticated => Some(LOG_IN),
        TransportErrorKind::Unauthorised => Some(GRANT),
        TransportErrorKind::UnknownTopic => Some("`a2abus topics apply` creates it"),
        _ => None,
    }
}

// === impl Tester ===

impl Tester<'_> {
    fn note(&mut self, test: impl Into<String>, outcome: TestResult, detail: Option<String>) {
        self.tests.push(Test {
            transport: self.name.to_string(),
            test: test.into(),
            outcome,
            detail,
        });
    }

    fn result(&mut self, test: impl Into<String>, result: Result<(), TransportError>) {
        match result {
            Ok(()) => self.note(test, TestResult::Ok, None),
            Err(error) => {
                let detail = match cure(error.kind()) {
                    Some(cure) => format!("{}: {cure}", chain(&error)),
                    None => chain(&error),
                };
                self.note(test, TestResult::Failed, Some(detail));
            }
        }
    }

    async fn transport(
        &mut self,
        config: &TransportConfig,
        uses: &[Access],
        requirements: &[Requirement],
    ) {
        match reach::connect(config, Patience::Report).await {
            Ok(transport) => {
                self.note("connect", TestResult::Ok, None);
                self.uses(config, &transport, uses).await;
                for requirement in requirements {
                    self.settings(config, &transport, requirement).await;
                }
                reach::close(&transport).await;
            }
            Err(cause) => self.note("connect", TestResult::Failed, Some(cause)),
        }
    }

    async fn uses(&mut self, config: &TransportConfig, transport: &AnyTransport, uses: &[Access]) {
        match (transport, config) {
            #[cfg(feature = "kafka")]
            (AnyTransport::Kafka(kafka), _) => {
                for used in uses {
                    self.kafka(kafka, used).await;
                }
            }
            #[cfg(feature = "nats")]
            (AnyTransport::Nats(nats), TransportConfig::Nats(config)) => {
                self.nats_rights(nats, &access::nats_subjects(config, uses))
                    .await;
                for used in uses {
                    self.nats(nats, config, used).await;
                }
            }
            _ => {}
        }
    }

    /// Compares what exists with what is needed, as `topics plan` does. What is missing has a test of its own.
    async fn settings(
        &mut self,
        config: &TransportConfig,
        transport: &AnyTransport,
        requirement: &Requirement,
    ) {
        let (kind, name) = requirement.resource.names();
        let whose = Vec::from_iter(requirement.whose.iter().map(String::as_str)).join(", ");
        let test = format!("settings of {kind} {name} ({whose})");
        match on_bus::find(transport, requirement).await {
            Ok(ResourceState::Missing) => match requirement.lacks_at_start() {
                Some(lacks) if !lacks.is_empty() => {
                    let lacks = lacks.join(" ");
                    let detail = format!(
                        "the bridge would create it without {lacks}: see `a2abus topics apply`"
                    );
                    self.note(test, TestResult::Failed, Some(detail));
                }
                _ => {}
            },
            Ok(ResourceState::There(same)) if same.is_empty() => {
                self.note(test, TestResult::Ok, None)
            }
            Ok(ResourceState::There(differences))
                if is_updated(config, &requirement.resource, &differences) =>
            {
                let differences = differences.join("; ");
                let detail = format!("{differences}: the bridge updates it when it starts");
                self.note(test, TestResult::Warning, Some(detail));
            }
            Ok(ResourceState::There(differences)) => {
                self.note(test, TestResult::Failed, Some(differences.join("; ")));
            }
            // The bridge itself does not ask for them.
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => {
                self.note(test, TestResult::Untested, Some(chain(&error)));
            }
            Err(error) => self.result(test, Err(error)),
        }
    }

    #[cfg(feature = "kafka")]
    async fn kafka(&mut self, kafka: &a2abus_transports::kafka::Kafka, used: &Access) {
        let whose = &used.whose;
        match &used.operation {
            Operation::Read { topics, group } => {
                for topic in topics.iter().filter_map(|filter| filter.as_topic()) {
                    let test = format!("read topic {topic} in group {group} ({whose})");
                    let read = kafka.test_read(&topic, Some(group.as_str())).await;
                    self.result(test, read);
                }
            }
            Operation::Durable { .. } => {}
            Operation::Write(write) => {
                let Some(topic) = &write.topic else {
                    let test = format!("topics {} ({whose})", write.place);
                    let detail = topics::NAMED.to_owned();
                    return self.note(test, TestResult::Untested, Some(detail));
                };
                let test = format!("find topic {topic} ({whose})");
                let found = kafka.partitions(topic).await.map(drop);
                match found {
                    Err(error)
                        if error.kind() == TransportErrorKind::UnknownTopic
                            && write.storage != access::Storage::Readers =>
                    {
                        let detail = "it does not exist: the bridge creates it when it starts";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    found => self.result(test, found),
                }
            }
            Operation::State {
                place: LogLocation::Topic(topic),
                is_created,
                ..
            } => self.kafka_log(kafka, topic, *is_created, whose).await,
            Operation::State { .. } => {}
            Operation::Replies(topic) => {
                let test = format!("read topic {topic} ({whose})");
                match kafka
                    .test_read(topic, Some(&format!("{topic}.forward")))
                    .await
                {
                    Err(error) if error.kind() == TransportErrorKind::UnknownTopic => {
                        let detail = "it does not exist: the bridge creates it when it starts";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    read => self.result(test, read),
                }
            }
        }
    }

    /// Reads the topic of a log of the state.
    #[cfg(feature = "kafka")]
    async fn kafka_log(
        &mut self,
        kafka: &a2abus_transports::kafka::Kafka,
        topic: &a2abus_transports::Topic,
        is_created: bool,
        whose: &str,
    ) {
        let test = format!("read topic {topic} ({whose})");
        match kafka.test_read(topic, None).await {
            Err(error) if is_created && error.kind() == TransportErrorKind::UnknownTopic => {
                let detail = "it does not exist: the bridge creates it when it starts";
                self.note(test, TestResult::Warning, Some(detail.to_owned()));
            }
            read => self.result(test, read),
        }
    }

    /// Looks for the stream of a log of the state.
    #[cfg(feature = "nats")]
    async fn nats_log(
        &mut self,
        nats: &a2abus_transports::nats::Nats,
        stream: &str,
        is_created: bool,
        whose: &str,
    ) {
        let test = format!("stream {stream} ({whose})");
        let (outcome, detail) = match (nats.stream_config(stream).await, is_created) {
            (Ok(None), true) => (TestResult::Ok, "the bridge makes it when it starts"),
            (Ok(None), false) => (
                TestResult::Failed,
                "it does not exist: `a2abus topics apply` creates it",
            ),
            (found, _) => return self.result(test, found.map(drop)),
        };
        self.note(test, outcome, Some(detail.to_owned()));
    }

    /// Publishing cannot be tested without publishing, but the server reports the permissions of the user.
    #[cfg(feature = "nats")]
    async fn nats_rights(
        &mut self,
        nats: &a2abus_transports::nats::Nats,
        subjects: &access::Subjects,
    ) {
        let Some(permissions) = nats.permissions().await else {
            let detail = format!(
                "{} may not publish $SYS.REQ.USER.INFO, the question for its permissions",
                nats.user()
            );
            return self.note("permission to publish", TestResult::Untested, Some(detail));
        };
        let publish = subjects
            .publish
            .iter()
            .map(|s| ("publish", s, permissions.may_publish(s)));
        let subscribe = subjects.subscribe.iter();
        let subscribe = subscribe.map(|s| ("subscribe", s, permissions.may_subscribe(s)));
        let missing: Vec<_> = publish
            .chain(subscribe)
            .filter(|(_, _, may)| !may)
            .collect();
        if missing.is_empty() {
            self.note("permissions", TestResult::Ok, None);
        }
        for (verb, subject, _) in missing {
            let detail = format!("not permitted to {}", nats.user());
            let test = format!("permission to {verb} {subject}");
            self.note(test, TestResult::Failed, Some(detail));
        }
    }

    #[cfg(feature = "nats")]
    async fn nats(
        &mut self,
        nats: &a2abus_transports::nats::Nats,
        config: &a2abus_transports::nats::NatsConfig,
        used: &Access,
    ) {
        let whose = &used.whose;
        match &used.operation {
            Operation::Read { topics, .. } => {
                for topic in topics {
                    let test = format!("subscribe to {} ({whose})", topic.as_str());
                    let subscribed = nats.test_subscribe(topic.as_str()).await;
                    self.result(test, subscribed);
                }
            }
            Operation::Replies(topic) => {
                let subjects = format!("{topic}.>");
                let subscribed = nats.test_subscribe(&subjects).await;
                self.result(format!("subscribe to {subjects} ({whose})"), subscribed);
            }
            Operation::State {
                place: LogLocation::Stream { name, .. },
                is_created,
                ..
            } => self.nats_log(nats, name, *is_created, whose).await,
            Operation::State { .. } => {}
            Operation::Durable { stream, name } => {
                let test = format!("consumer {name} of stream {stream} ({whose})");
                let found = nats.test_durable(&config.jetstream, stream.as_str(), name.as_str());
                let found = found.await;
                self.result(test, found);
            }
            Operation::Write(write) => {
                if write.storage == access::Storage::Readers {
                    return;
                }
                let Some(topic) = &write.topic else {
                    let test = format!("streams for {} ({whose})", write.place);
                    let detail = topics::NAMED.to_owned();
                    return self.note(test, TestResult::Untested, Some(detail));
                };
                let test = format!("stream for {topic} ({whose})");
                match nats.stream_of(topic.as_str()).await {
                    Ok(None) if config.jetstream.manages(topic) => {
                        let detail = "the bridge makes it when it starts".to_owned();
                        self.note(test, TestResult::Ok, Some(detail));
                    }
                    Ok(None) if write.storage == access::Storage::StreamIfAny => {
                        let detail = "no JetStream stream takes it: dead letters are lost";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    Ok(None) => {
                        let detail = "no stream takes it: `a2abus topics apply` creates one";
                        self.note(test, TestResult::Failed, Some(detail.to_owned()));
                    }
                    found => self.result(test, found.map(drop)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_that_is_refused_is_no_question_of_permissions() {
        let cure = |kind| cure(kind).unwrap();
        assert!(cure(TransportErrorKind::Unauthenticated).contains("password"));
        assert!(cure(TransportErrorKind::Unauthorised).contains("permissions"));
    }
}
