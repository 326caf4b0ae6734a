//! `a2abus topics`: shows and creates the topics, streams and consumers that the configuration needs.

mod manifests;

use std::path::PathBuf;

use a2abus_transports::{AnyTransport, TransportError, TransportErrorKind};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::check::connect::Rights;
use super::output::Output;
use super::reach::{self, ConnectWait, LOG_IN};
use super::{Misuse, Status, load};
use crate::access;
use crate::config::{Config, Name, TransportConfig};
use crate::restart::chain;
use crate::topics::on_bus::{self, ResourceState};
use crate::topics::{self, Defaults, Requirement, Resource, display};

/// Arguments of `a2abus topics`.
#[derive(Debug, Args)]
pub(crate) struct TopicsArgs {
    #[command(subcommand)]
    command: TopicsCommand,
}

#[derive(Debug, Subcommand)]
enum TopicsCommand {
    /// Shows what the configuration needs, what is missing and what differs. Changes nothing.
    #[command(after_help = "Examples:
  a2abus topics plan -c a2abus.yaml
  a2abus topics plan -c a2abus.yaml --acls                        permissions: kafka-acls.sh and NATS
  a2abus topics plan --output strimzi --acls | kubectl apply -f - KafkaTopic and KafkaUser
  a2abus topics plan --output nack                                Stream and Consumer

The permissions that --acls prints are enough for plan. Exit status 1 if something is missing or differs, unless \
the bridge creates it when it starts (`at start`). With --acls, strimzi and nack it does not connect. The manifests \
for Strimzi need 0.49 or newer (kafka.strimzi.io/v1).")]
    Plan(PlanArgs),
    /// Creates what is missing. Shows how existing topics, streams and consumers differ, but does not change them.
    #[command(after_help = "Examples:
  a2abus topics apply -c a2abus.yaml --partitions 12 --replicas 3

It needs the permission to create: on Kafka the operation Create, on NATS $JS.API.STREAM.CREATE.* and \
$JS.API.CONSUMER.DURABLE.CREATE.*.*. Exit status 1 if something could not be created or differs.")]
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
struct PlanArgs {
    #[command(flatten)]
    common: Common,
    /// Show the permissions that the bridge needs instead of topics (with strimzi: the KafkaUser as well).
    #[arg(long)]
    acls: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "human")]
    output: PlanFormat,
    /// The name of the Kafka cluster in Strimzi, for its manifests.
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "NAME", default_value = "kafka", value_parser = cluster_name)]
    cluster: String,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    #[command(flatten)]
    common: Common,
    /// How to print.
    #[arg(long, value_enum, default_value = "human")]
    output: Format,
}

#[derive(Debug, Args)]
struct Common {
    /// The configuration file.
    #[arg(
        short,
        long,
        env = "A2ABUS_CONFIG",
        value_name = "FILE",
        default_value = "a2abus.yaml"
    )]
    config: PathBuf,
    /// Only this transport.
    #[arg(long, value_name = "NAME")]
    transport: Option<String>,
    /// Partitions of Kafka topics for which the configuration sets none; an existing topic must have at least as many.
    /// Default: the broker's.
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| count(text, MAX_PARTITIONS))]
    partitions: Option<u32>,
    /// Replicas of topics, and of streams that the configuration does not list; existing ones must have at least as
    /// many. Default: the broker's.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| count(text, MAX_REPLICAS))]
    replicas: Option<u32>,
}

/// How to print the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each topic, stream and consumer.
    Human,
    /// One JSON object.
    Json,
}

/// How to print the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// A line for each topic, stream and consumer.
    Human,
    /// One JSON object.
    Json,
    #[cfg(feature = "kafka")]
    /// Manifests for Strimzi 0.49 or newer: KafkaTopic.
    Strimzi,
    #[cfg(feature = "nats")]
    /// Manifests for NACK, the JetStream controller: Stream, Consumer.
    Nack,
}

/// Whether missing resources are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Plan,
    Create,
}

/// The result for one needed item.
#[derive(Debug, Serialize)]
struct Item {
    transport: String,
    kind: &'static str,
    name: String,
    #[serde(rename = "for")]
    owners: Vec<String>,
    #[serde(flatten)]
    state: State,
    /// The settings it is created with.
    needed: Map<String, Value>,
}

/// Its state.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    /// It exists and has the needed settings.
    Ok,
    Missing {
        /// The settings it would lack if the bridge created it at start-up.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        lacks_at_start: Vec<String>,
    },
    /// It is missing, and the bridge creates it at start-up.
    AtStart,
    Created,
    Differs {
        differences: Vec<String>,
    },
    /// Its state cannot be determined.
    #[cfg(feature = "kafka")]
    Unknown {
        cause: String,
    },
    Failed {
        cause: String,
    },
}

/// Maximum number of partitions that librdkafka requests.
#[cfg(feature = "kafka")]
const MAX_PARTITIONS: u32 = 100_000;
const MAX_REPLICAS: u32 = 10_000;

/// The fix for a refused permission.
const GRANT: &str = "this user lacks a permission: `a2abus topics plan --acls` prints those that the bridge needs; apply \
    also needs to create (`a2abus topics apply --help`)";

/// Shows or creates the resources.
///
/// # Errors
/// When the configuration is invalid, or the output cannot be written.
pub(crate) async fn run(args: TopicsArgs) -> anyhow::Result<Status> {
    match args.command {
        TopicsCommand::Plan(args) => plan(&args).await,
        TopicsCommand::Apply(ApplyArgs { common, output }) => {
            let config = load(&common.config)?;
            let transports = chosen(&config, &common)?;
            items(&config, &transports, &common, Action::Create, output).await
        }
    }
}

async fn plan(args: &PlanArgs) -> anyhow::Result<Status> {
    let common = &args.common;
    let config = load(&common.config)?;
    let transports = chosen(&config, common)?;
    let format = match args.output {
        PlanFormat::Human => Format::Human,
        PlanFormat::Json => Format::Json,
        #[cfg(feature = "kafka")]
        PlanFormat::Strimzi => return manifests::strimzi::print(&config, &transports, args),
        #[cfg(feature = "nats")]
        PlanFormat::Nack if args.acls => {
            return Err(Misuse(
                "NACK has no resource for users: --acls alone prints the permissions of the bridge"
                    .to_owned(),
            )
            .into());
        }
        #[cfg(feature = "nats")]
        PlanFormat::Nack => return manifests::nack::print(&config, &transports, common),
    };
    match args.acls {
        true => permissions(&config, &transports, format),
        false => items(&config, &transports, common, Action::Plan, format).await,
    }
}

fn count(text: &str, most: u32) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("at least 1; without the option the broker chooses".to_owned()),
        Ok(count) if count <= most => Ok(count),
        Ok(_) | Err(_) => Err(format!("a number from 1 to {most} is needed")),
    }
}

/// The name of a cluster, which Strimzi puts in a label.
#[cfg(feature = "kafka")]
fn cluster_name(text: &str) -> Result<String, String> {
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let is_label = (1..=63).contains(&text.len())
        && text.bytes().all(|byte| is_inner(&byte))
        && !text.starts_with('-')
        && !text.ends_with('-');
    match is_label {
        true => Ok(text.to_owned()),
        false => Err(
            "the name of a Kafka resource is 1 to 63 lower-case letters, digits and inner hyphens"
                .to_owned(),
        ),
    }
}

fn chosen<'a>(
    config: &'a Config,
    common: &Common,
) -> anyhow::Result<Vec<(&'a Name, &'a TransportConfig)>> {
    let only = common.transport.as_deref();
    let all = config.transports.iter();
    let chosen: Vec<_> = all
        .filter(|(name, _)| only.is_none_or(|only| name.as_str() == only))
        .collect();
    match (only, chosen.is_empty()) {
        (Some(only), true) => {
            Err(Misuse(format!("--transport: there is no transport named {only}")).into())
        }
        _ => Ok(chosen),
    }
}

fn permissions(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    format: Format,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let (mut all, mut is_any) = (Map::new(), false);
    for (name, transport) in transports {
        let rights = Rights::of(name, transport, &access::uses(config, name));
        if format == Format::Json {
            all.insert(name.to_string(), json!(rights.lines));
            continue;
        }
        if rights.lines.is_empty() {
            continue;
        }
        is_any = true;
        for line in rights.shown() {
            output.line(line)?;
        }
    }
    if format == Format::Json {
        output.line(serde_json::to_vec(&json!({ "acls": all }))?)?;
    } else if !is_any {
        output.line("# the configuration needs no permissions")?;
    }
    Ok(Status::Success)
}

async fn items(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    common: &Common,
    then: Action,
    format: Format,
) -> anyhow::Result<Status> {
    let (mut items, mut output) = (Vec::new(), Output::new());
    for (name, transport) in transports {
        let uses = access::uses(config, name);
        let requirements =
            topics::requirements(config, (name, transport), &uses, common.defaults());
        if requirements.is_empty() {
            continue;
        }
        let connected = reach::connect(transport, ConnectWait::Start).await;
        for requirement in requirements {
            let state = match &connected {
                Ok(connected) => state(connected, &requirement, then).await,
                Err(cause) => State::Failed {
                    cause: cause.clone(),
                },
            };
            items.push(Item::new(name, requirement, state));
        }
        if let Ok(connected) = connected {
            reach::close(&connected).await;
        }
    }
    let is_right = items.iter().all(|item| item.state.is_right());
    if format == Format::Json {
        output.line(serde_json::to_vec(
            &json!({ "ok": is_right, "items": items }),
        )?)?;
    } else {
        for item in &items {
            output.line(item.line())?;
        }
        if items.is_empty() {
            output.line("the configuration needs no topics, streams or consumers")?;
        }
    }
    Ok(if is_right {
        Status::Success
    } else {
        Status::Failure
    })
}

async fn state(connected: &AnyTransport, requirement: &Requirement, then: Action) -> State {
    #[cfg(feature = "kafka")]
    if let Resource::Named(_) = requirement.resource {
        return State::Unknown {
            cause: topics::NAMED.to_owned(),
        };
    }
    let failed = |error: TransportError| State::Failed {
        cause: match error.kind() {
            TransportErrorKind::Unauthenticated => format!("{}: {LOG_IN}", chain(&error)),
            TransportErrorKind::Unauthorised => format!("{}: {GRANT}", chain(&error)),
            _ => chain(&error),
        },
    };
    match on_bus::find(connected, requirement).await {
        Ok(ResourceState::Exists(same)) if same.is_empty() => State::Ok,
        Ok(ResourceState::Exists(differences)) => State::Differs { differences },
        Ok(ResourceState::Missing) if then == Action::Create => {
            let created = on_bus::create(connected, requirement).await;
            created.map_or_else(failed, |()| State::Created)
        }
        Ok(ResourceState::Missing) => match requirement.lacks_at_start() {
            Some(lacks) if lacks.is_empty() => State::AtStart,
            lacks => State::Missing {
                lacks_at_start: lacks.unwrap_or_default(),
            },
        },
        Err(error) => failed(error),
    }
}

// === impl Common ===

impl Common {
    fn defaults(&self) -> Defaults {
        Defaults {
            #[cfg(feature = "kafka")]
            partitions: self.partitions,
            replicas: self.replicas,
        }
    }
}

// === impl State ===

impl State {
    fn is_right(&self) -> bool {
        !matches!(
            self,
            Self::Missing { .. } | Self::Differs { .. } | Self::Failed { .. }
        )
    }
}

// === impl Item ===

impl Item {
    fn new(transport: &Name, requirement: Requirement, state: State) -> Self {
        let settings = requirement.creation();
        let (kind, name) = match (&requirement.resource, &state) {
            // The stream has, or would get, this name.
            #[cfg(feature = "nats")]
            (
                Resource::Stream { name, .. },
                State::Missing { .. } | State::AtStart | State::Created | State::Failed { .. },
            ) => ("stream", name.clone()),
            (resource, _) => resource.names(),
        };
        Self {
            transport: transport.to_string(),
            kind,
            name,
            owners: requirement.owners.into_iter().collect(),
            state,
            needed: settings,
        }
    }

    fn line(&self) -> String {
        let settings = || {
            let settings = self.needed.iter();
            let settings = settings.map(|(name, value)| format!("{name}={}", display(name, value)));
            settings.collect::<Vec<_>>().join(" ")
        };
        let (label, detail) = match &self.state {
            State::Ok => ("ok", String::new()),
            State::Missing { lacks_at_start } if lacks_at_start.is_empty() => {
                ("MISSING", format!(": {}", settings()))
            }
            State::Missing { lacks_at_start } => {
                let lacks = lacks_at_start.join(" ");
                let detail = format!(
                    ": {}; the bridge would create it without {lacks}",
                    settings()
                );
                ("MISSING", detail)
            }
            State::AtStart => {
                let detail = format!(": {}; the bridge creates it when it starts", settings());
                ("at start", detail)
            }
            State::Created => ("created", format!(": {}", settings())),
            State::Differs { differences } => ("DIFFERS", format!(": {}", differences.join("; "))),
            #[cfg(feature = "kafka")]
            State::Unknown { cause } => ("unknown", format!(": {cause}")),
            State::Failed { cause } => ("FAILED", format!(": {cause}")),
        };
        let Self {
            transport,
            kind,
            name,
            owners,
            ..
        } = self;
        let owners = owners.join(", ");
        format!("{label:<8} {transport}: {kind} {name} ({owners}){detail}")
    }
}
