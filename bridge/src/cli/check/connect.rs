//! Tests whether the buses provide what the configuration needs. It publishes nothing and joins no group.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;

use a2abus_transports::{AnyTransport, TransportError, TransportErrorKind};
use futures_util::future::join_all;
use serde::Serialize;

use super::super::reach::{self, ConnectWait, LOG_IN};
use crate::access::{self, Access};
use crate::config::{Config, Name, TransportConfig};
use crate::restart::{GRANT, chain};
#[cfg(feature = "nats")]
use crate::topics::Resource;
use crate::topics::on_bus::{self, ResourceState};
use crate::topics::{self, Defaults, Requirement};

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
    /// It works, with a reservation.
    Warning,
    /// It cannot be tested without publishing or joining.
    Untested,
    Failed,
}

/// The permissions that the bridge needs on one bus, in the syntax of its tools.
#[derive(Debug, Serialize)]
pub(crate) struct Rights {
    transport: String,
    pub(crate) lines: Vec<String>,
}

/// The tests of one transport.
struct Tester<'a> {
    name: &'a Name,
    tests: Vec<Test>,
}

/// Tests all transports of a configuration concurrently.
pub(super) async fn test(config: &Config) -> Connected {
    let transports = config.transports.iter();
    let tested = join_all(transports.map(async |(name, transport)| {
        let uses = access::uses(config, name);
        let tests = Vec::new();
        let mut tester = Tester { name, tests };
        let requirements =
            topics::requirements(config, (name, transport), &uses, Defaults::default());
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

/// Whether the bridge itself fixes all differences at start-up.
fn is_updated(config: &TransportConfig, requirement: &Requirement, differences: &[String]) -> bool {
    match (config, &requirement.resource, differences) {
        #[cfg(feature = "nats")]
        (TransportConfig::Nats(nats), Resource::Stream { name, .. }, differences) => {
            let mut listed = nats.jetstream.streams.iter();
            // The storage of a stream cannot be changed.
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
            TransportConfig::Kafka(config) => access::kafka::acls(config, uses),
            #[cfg(feature = "nats")]
            TransportConfig::Nats(config) => access::nats::subjects(config, uses).block(),
            TransportConfig::Memory(_) => Vec::new(),
        };
        Self {
            transport: name.to_string(),
            lines,
        }
    }

    /// As text, with comments.
    pub(crate) fn shown(&self) -> Vec<String> {
        let name = &self.transport;
        let mut lines = vec![format!("# permissions that the bridge needs on {name}:")];
        lines.extend(self.lines.iter().cloned());
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

/// The fix for an error of this kind, if it is known.
fn fix(kind: TransportErrorKind) -> Option<&'static str> {
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
                let detail = match fix(error.kind()) {
                    Some(fix) => format!("{}: {fix}", chain(&error)),
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
        match reach::connect(config, ConnectWait::Report).await {
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
                self.nats_rights(nats, &access::nats::subjects(config, uses))
                    .await;
                for used in uses {
                    self.nats(nats, config, used).await;
                }
            }
            _ => {}
        }
    }

    /// Compares an existing resource with its requirement, as `topics plan` does. Another test reports a missing one.
    async fn settings(
        &mut self,
        config: &TransportConfig,
        transport: &AnyTransport,
        requirement: &Requirement,
    ) {
        let (kind, name) = requirement.resource.names();
        let owners = Vec::from_iter(requirement.owners.iter().map(String::as_str)).join(", ");
        let test = format!("settings of {kind} {name} ({owners})");
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
            Ok(ResourceState::Exists(same)) if same.is_empty() => {
                self.note(test, TestResult::Ok, None)
            }
            Ok(ResourceState::Exists(differences))
                if is_updated(config, requirement, &differences) =>
            {
                let differences = differences.join("; ");
                let detail = format!("{differences}: the bridge updates it when it starts");
                self.note(test, TestResult::Warning, Some(detail));
            }
            Ok(ResourceState::Exists(differences)) => {
                self.note(test, TestResult::Failed, Some(differences.join("; ")));
            }
            // The bridge itself does not read the settings.
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => {
                self.note(test, TestResult::Untested, Some(chain(&error)));
            }
            Err(error) => self.result(test, Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_log_in_and_a_refused_permission_have_different_fixes() {
        let fix = |kind| fix(kind).unwrap();
        assert!(fix(TransportErrorKind::Unauthenticated).contains("password"));
        assert!(fix(TransportErrorKind::Unauthorised).contains("permissions"));
    }
}
