//! The command line of `a2abus topics`.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::command::ConfigFile;
use crate::topics::Defaults;

/// Arguments of `a2abus topics`.
#[derive(Debug, Args)]
pub(crate) struct TopicsArgs {
    #[command(subcommand)]
    pub(super) command: TopicsCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum TopicsCommand {
    /// Shows what the configuration needs, what is missing and what differs. Changes nothing.
    #[command(after_help = "Examples:
  a2abus topics plan -c a2abus.yaml
  # Permissions, for kafka-acls.sh and NATS:
  a2abus topics plan -c a2abus.yaml --acls
  # KafkaTopic and KafkaUser:
  a2abus topics plan --output strimzi --acls | kubectl apply -f -
  # Stream and Consumer, for NACK (the JetStream controller):
  a2abus topics plan --output nack

The permissions that --acls prints are enough for plan. Exit status 1 if something is missing or differs, unless \
the bridge creates it when it starts (`at start`). With --acls, --output strimzi or --output nack, `plan` does not connect. The manifests \
for Strimzi need 0.49 or newer (kafka.strimzi.io/v1).")]
    Plan(PlanArgs),
    /// Creates what is missing. Shows how existing topics, streams and consumers differ, but does not change them.
    #[command(after_help = "Examples:
  a2abus topics apply -c a2abus.yaml --partitions 12 --replicas 3

`apply` needs permission to create: on Kafka the operation Create, on NATS $JS.API.STREAM.CREATE.* and \
$JS.API.CONSUMER.DURABLE.CREATE.*.*. Exit status 1 if something could not be created or differs.")]
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Show the permissions that the bridge needs instead of topics (with strimzi: the KafkaUser as well).
    #[arg(long)]
    pub(super) acls: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "human")]
    pub(super) output: PlanFormat,
    /// The name of the Kafka cluster in Strimzi, for its manifests.
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "NAME", default_value = "kafka", value_parser = cluster_name)]
    pub(super) cluster: String,
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How to print.
    #[arg(long, value_enum, default_value = "human")]
    pub(super) output: Format,
}

#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Only this transport.
    #[arg(long, value_name = "NAME")]
    pub(super) transport: Option<String>,
    /// Partitions of Kafka topics for which the configuration sets none; an existing topic must have at least as many.
    /// Default: the broker's.
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| count(text, MAX_PARTITIONS))]
    pub(super) partitions: Option<u32>,
    /// Replicas of topics, and of streams that the configuration does not list; existing ones must have at least as
    /// many. Default: the broker's on Kafka; three for streams in a NATS cluster.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| count(text, MAX_REPLICAS))]
    pub(super) replicas: Option<u32>,
}

/// How to print the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A line for each topic, stream and consumer.
    Human,
    /// One JSON object.
    Json,
}

/// How to print the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanFormat {
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

/// Maximum number of partitions that librdkafka requests.
#[cfg(feature = "kafka")]
const MAX_PARTITIONS: u32 = 100_000;
const MAX_REPLICAS: u32 = 10_000;

// === impl Common ===

impl Common {
    pub(super) fn defaults(&self) -> Defaults {
        Defaults {
            #[cfg(feature = "kafka")]
            partitions: self.partitions,
            replicas: self.replicas,
        }
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
