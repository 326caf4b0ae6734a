//! `a2abus check`: checks the configuration, its secrets and TLS files, and, with `--connect`, the buses.

#[cfg(any(feature = "kafka", feature = "nats"))]
pub(super) mod connect;

use std::fmt;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

#[cfg(any(feature = "kafka", feature = "nats"))]
use self::connect::Connected;
use super::command::{ConfigFile, Status};
use super::output::{Output, complain_line, count};
use super::telemetry;
use crate::config::{Config, Problem, Severity};

/// Arguments of `a2abus check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus check -c a2abus.yaml
  a2abus check -c a2abus.yaml --json | jq .errors
  A2ABUS_HTTP__LISTEN=0.0.0.0:80 a2abus check   # with a value from the environment
  a2abus check --without-secrets                # on a machine without the secrets and TLS files
  a2abus check --connect                        # tests the brokers, prints the ACLs

Secrets are read to check that they exist; none is shown. Certificates and keys are read to check that they fit each \
other and are valid. A certificate that expires soon is a warning, and so is an agent whose program is not on this \
machine. Kafka clients are created, but do not connect: a combination of properties that librdkafka refuses is an \
error. --connect publishes nothing and joins no group, so permission to write to a Kafka topic is not tested, \
only that the topic is visible. If `state.log` is `memory`, a note says what replicas do not share.

Problems of the file go to standard error. The result for a valid file, the note, the tests and --json go to \
standard output. Exit status 1 if the configuration is invalid or a test fails; warnings do not count.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Check only the file, not its secrets, certificates, keys and programs, and create no Kafka client.
    #[arg(long)]
    without_secrets: bool,
    /// Test connections, logins, topics, streams and permissions, and print the permissions that the bridge needs.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    #[arg(long, conflicts_with = "without_secrets")]
    connect: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The note on a configuration whose state is in memory.
const ALONE: &str = "state.log is memory: replicas do not share A2A tasks and stored answers, and a restart loses them";

/// The verdict on a configuration.
#[derive(Debug, Default, Serialize)]
struct Report {
    ok: bool,
    file: String,
    #[serde(flatten)]
    counts: Option<Counts>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    /// What to know before there are several replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    /// The results of the connection tests.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    #[serde(flatten)]
    connected: Option<Connected>,
    /// Whether only secrets and TLS files are wrong.
    #[serde(skip)]
    lacks_only_secrets: bool,
}

/// What a valid configuration lists. The bindings and routes that the bridge adds for agents do not count.
#[derive(Debug, Serialize)]
struct Counts {
    transports: usize,
    bindings: usize,
    routes: usize,
    agents: usize,
}

/// Checks the configuration.
///
/// # Errors
/// When the verdict cannot be written, or `A2ABUS_LOG` is invalid; problems of the configuration are output, not errors.
pub(crate) async fn run(args: CheckArgs) -> anyhow::Result<Status> {
    telemetry::filter_of_environment()?;
    let verdict = Report::of(&args).await;
    let mut output = Output::new();
    if args.json {
        output.line(serde_json::to_vec(&verdict)?)?;
    } else {
        verdict.print(&mut output)?;
    }
    Ok(if verdict.ok {
        Status::Success
    } else {
        Status::Failure
    })
}

// === impl Report ===

impl Report {
    async fn of(args: &CheckArgs) -> Self {
        let environment = std::env::vars_os();
        let loaded = if args.without_secrets {
            Config::load(&args.config.path, environment)
        } else {
            Config::load_with_secrets(&args.config.path, environment)
        };
        match loaded {
            Ok(config) => {
                #[cfg(any(feature = "kafka", feature = "nats"))]
                let connected = match args.connect {
                    true => Some(connect::test(&config).await),
                    false => None,
                };
                let note = config.keeps_state_alone().then_some(ALONE);
                let mut warnings = config.warnings;
                let unverified = config.unverified;
                // `--connect` has looked for these on the bus.
                #[cfg(any(feature = "kafka", feature = "nats"))]
                let unverified = if args.connect { Vec::new() } else { unverified };
                warnings.extend(unverified);
                let report = Self {
                    file: args.config.path.display().to_string(),
                    counts: Some(Counts::of(&config.document)),
                    warnings,
                    note,
                    #[cfg(any(feature = "kafka", feature = "nats"))]
                    connected,
                    ..Self::default()
                };
                Self {
                    ok: report.failed_tests() == 0,
                    ..report
                }
            }
            Err(problems) => {
                let (errors, warnings): (Vec<Problem>, _) = problems
                    .problems()
                    .iter()
                    .cloned()
                    .partition(|problem| problem.severity == Severity::Error);
                // The properties of a client hold no secret, and name no file that this command reads.
                let is_property = |error: &Problem| error.path.to_string().contains(".properties.");
                let lacks_others = args.without_secrets || errors.iter().any(is_property);
                Self {
                    file: problems.file().to_owned(),
                    errors,
                    warnings,
                    lacks_only_secrets: !lacks_others
                        && Config::load(&args.config.path, std::env::vars_os()).is_ok(),
                    ..Self::default()
                }
            }
        }
    }

    /// How many connection tests failed.
    fn failed_tests(&self) -> usize {
        let failures = 0;
        #[cfg(any(feature = "kafka", feature = "nats"))]
        let failures = self
            .connected
            .as_ref()
            .map_or(failures, Connected::failures);
        failures
    }

    /// As text: warnings, errors, the note, the verdict, so that the most important line is the last on a terminal.
    fn print(&self, output: &mut Output) -> anyhow::Result<()> {
        for problem in self.warnings.iter().chain(&self.errors) {
            complain_line(&problem.in_file(&self.file).to_string());
        }
        #[cfg(any(feature = "kafka", feature = "nats"))]
        for line in self.connected.iter().flat_map(Connected::lines) {
            output.line(line)?;
        }
        if let Some(note) = self.note {
            output.line(format!("{}: note: {note}", self.file))?;
        }
        let failures = self.failed_tests();
        if failures > 0 {
            let failures = count(failures, "connection test");
            return output.line(format!("{}: {failures} failed", self.file));
        }
        let warnings = match self.warnings.len() {
            0 => String::new(),
            n => format!(", {}", count(n, "warning")),
        };
        match &self.counts {
            Some(counts) => output.line(format!("{}: OK: {counts}{warnings}", self.file)),
            None => {
                let hint = match self.errors.len() {
                    _ if !self.lacks_only_secrets => "",
                    1 => {
                        ", in a secret or TLS file. Everything else is OK (--without-secrets skips this check)."
                    }
                    _ => {
                        ", all in secrets and TLS files. Everything else is OK (--without-secrets skips this check)."
                    }
                };
                let errors = count(self.errors.len(), "error");
                complain_line(&format!("{}: {errors}{warnings}{hint}", self.file));
                Ok(())
            }
        }
    }
}

// === impl Counts ===

impl Counts {
    fn of(document: &Value) -> Self {
        let entries = |section: &str| match document.get(section) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        Self {
            transports: entries("transports"),
            bindings: entries("bindings"),
            routes: entries("routes"),
            agents: entries("agents"),
        }
    }
}

/// Counts of zero are left out.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = [
            (self.bindings, "binding"),
            (self.routes, "route"),
            (self.agents, "agent"),
        ];
        f.write_str(&count(self.transports, "transport"))?;
        let mut others = others.into_iter().filter(|(n, _)| *n > 0);
        others.try_for_each(|(n, noun)| write!(f, ", {}", count(n, noun)))
    }
}
