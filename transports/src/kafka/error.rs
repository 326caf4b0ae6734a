//! Maps librdkafka errors to errors of the bridge.

use std::fmt;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::{TransportError, TransportErrorKind as Kind};

/// After this time the same error of a reader is logged again.
pub(super) const LOG_AGAIN: Duration = Duration::from_secs(60);
/// The fix for a refused permission, for the log.
pub(super) const GRANT: &str = "`a2abus topics plan --acls` prints the permissions to grant";
/// The fix for a producer that may not even begin. Brokers before Kafka 2.8 want a permission for the cluster, later
/// ones a permission to write to any topic, and both report the same.
pub(super) const GRANT_WRITE: &str = "let this user write to a topic: `a2abus topics plan --acls` prints the permissions to grant; brokers before Kafka 2.8 also need IdempotentWrite on the cluster";
/// The fix for topics that no longer exist.
pub(super) const CREATE: &str = "create them again, or remove them from the configuration";
/// The fix for records that are removed before they are read.
pub(super) const KEEP: &str = "keep records for longer (retention.ms, retention.bytes of the topic), or read faster: more partitions and replicas";

/// The error of a failed attempt; `what` describes the attempt.
pub(super) fn failed(what: impl Into<String>, error: KafkaError) -> TransportError {
    match error {
        // librdkafka's text repeats the value, which may be a secret.
        KafkaError::ClientConfig(_, _, key, _) => TransportError::new(
            Kind::BadConfig,
            format!("use the property {key}: unknown, or not a valid value"),
        ),
        KafkaError::ClientCreation(_) | KafkaError::Nul(_) => {
            TransportError::new(Kind::BadConfig, what).caused_by(error)
        }
        KafkaError::Canceled => TransportError::new(Kind::Closed, what).caused_by(error),
        KafkaError::AdminOp(code) => refused(what, code),
        error => match error.rdkafka_error_code() {
            Some(code) => refused(what, code),
            None => TransportError::new(Kind::Other, what).caused_by(error),
        },
    }
}

/// The error of a failed attempt, by librdkafka's code.
pub(super) fn refused(what: impl Into<String>, code: Code) -> TransportError {
    TransportError::new(kind(code), what).caused_by(Cause(code))
}

/// The beginning of an error about sending to a topic. If the code is about the topic, it names the topic and the fix;
/// otherwise it is `what`.
pub(super) fn sending(topic: &str, what: &str, code: Option<Code>) -> String {
    match code {
        Some(Code::TopicAuthorizationFailed) => forbidden(topic),
        Some(
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopicId
            | Code::UnknownPartition,
        ) => format!(
            "send to the topic {topic}, which does not exist, or does not have the partition of the message"
        ),
        _ => what.to_owned(),
    }
}

/// The same for a topic that the user may not write to.
pub(super) fn forbidden(topic: &str) -> String {
    format!("send to the topic {topic}, which this Kafka user may not see or write to: {GRANT}")
}

/// The meaning of a code, and the fix; librdkafka's own text for codes without a better one.
#[derive(Debug)]
struct Cause(Code);

impl std::error::Error for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            Code::InvalidReplicationFactor => {
                "the replication factor exceeds the number of brokers: lower it, or add brokers"
            }
            Code::InvalidPartitions => "the brokers reject this number of partitions: use fewer",
            Code::PolicyViolation => {
                "a policy of the cluster forbids it: ask the administrators of the cluster"
            }
            Code::InvalidConfig => {
                "the brokers refuse one of the settings: compare them with the limits of the cluster"
            }
            Code::InvalidTopic => {
                "a topic cannot have this name: use 1 to 249 letters, digits, '.', '_' or '-'"
            }
            Code::TopicAuthorizationFailed => "this user may not do that with the topic",
            Code::GroupAuthorizationFailed => "this user may not use the group",
            Code::ClusterAuthorizationFailed => "this user may not do that in the cluster",
            Code::SaslAuthenticationFailed | Code::Authentication => {
                "the brokers refuse the login: check user, password and mechanism"
            }
            Code::UnknownTopic | Code::UnknownTopicOrPartition => {
                "the topic does not exist, or this user may not see it"
            }
            Code::InvalidRecord => {
                "the topic refuses the record: a compacted topic needs a key, for example"
            }
            Code::InvalidDifferentRecord => "the topic refuses another record of the same request",
            Code::InvalidTimestamp => {
                "the topic refuses the time of the record: check its message.timestamp settings"
            }
            Code::UnknownPartition => "the topic does not exist, or does not have this partition",
            Code::AllBrokersDown | Code::BrokerTransportFailure => {
                "no broker answers: check that they run, and that this machine reaches the addresses they advertise"
            }
            Code::DestroyBroker => {
                "the broker that was asked has left the cluster: another one will be asked"
            }
            Code::OperationTimedOut | Code::RequestTimedOut => {
                "the brokers did not answer in time: check their load, and the network"
            }
            Code::UnsupportedVersion | Code::UnsupportedFeature => {
                "the brokers do not support it: they may be too old"
            }
            other => return other.fmt(f),
        };
        write!(f, "{text} ({:?})", self.0)
    }
}

/// The kind of an error code.
pub(super) fn kind(code: Code) -> Kind {
    match code {
        code if is_fatal(code) => Kind::Fatal,

        Code::FencedInstanceId => Kind::Fenced,

        // The message may have been written. librdkafka knows, but its Rust client does not report it.
        Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::TimedOutQueue => Kind::TimedOut,

        // Not written. In another request the message can be.
        Code::QueueFull | Code::InvalidDifferentRecord => Kind::Saturated,

        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Kind::TooLarge
        }

        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::InvalidTopic => Kind::UnknownTopic,

        code if is_unauthenticated(code) => Kind::Unauthenticated,
        code if is_unauthorised(code) => Kind::Unauthorised,

        // The topic refuses this record, for example one without a key in a compacted topic, or with an invalid time.
        Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::BadMessage => Kind::BadMessage,

        code if is_misconfigured(code) => Kind::BadConfig,

        Code::BrokerDestroy | Code::Interrupted | Code::PurgeQueue | Code::PurgeInflight => {
            Kind::Closed
        }

        code if is_outage(code) => Kind::Disconnected,
        _ => Kind::Other,
    }
}

/// The idempotent producer lost its state, or another process took its place: only a new client helps.
fn is_fatal(code: Code) -> bool {
    matches!(
        code,
        Code::Fatal
            | Code::Inconsistent
            | Code::GaplessGuarantee
            | Code::OutOfOrderSequenceNumber
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::UnknownProducerId
            | Code::ProducerFenced
            | Code::Fenced
    )
}

/// The configuration cannot be applied.
fn is_misconfigured(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::InvalidConfig
            | Code::InvalidGroupId
            | Code::InvalidPartitions
            | Code::InvalidReplicaAssignment
            | Code::InvalidReplicationFactor
            | Code::InvalidRequiredAcks
            | Code::InvalidSessionTimeout
            | Code::InconsistentGroupProtocol
            | Code::NotConfigured
            | Code::NotImplemented
            | Code::PolicyViolation
            | Code::UnsupportedAssignor
            | Code::UnsupportedCompressionType
            | Code::UnsupportedFeature
            | Code::UnsupportedSASLMechanism
            | Code::UnsupportedVersion
    )
}

/// The brokers refuse the credentials.
fn is_unauthenticated(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::IllegalSASLState
            | Code::DelegationTokenExpired
    )
}

/// The credentials lack a permission.
fn is_unauthorised(code: Code) -> bool {
    matches!(
        code,
        Code::SecurityDisabled
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::DelegationTokenAuthorizationFailed
    )
}

/// The cluster, or the part of it that is needed, is unavailable at the moment.
pub(super) fn is_outage(code: Code) -> bool {
    matches!(
        code,
        Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::DestroyBroker
            | Code::Resolve
            | Code::SSL
            | Code::ISRInsufficient
            | Code::WaitingForCoordinator
            | Code::BrokerNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::KafkaStorageError
            | Code::LeaderNotAvailable
            | Code::ListenerNotFound
            | Code::NetworkException
            | Code::NotCoordinator
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::NotLeaderForPartition
            | Code::ReplicaNotAvailable
            | Code::RebootstrapRequired
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Disposition;

    #[test]
    fn error_codes_have_a_kind_that_decides_the_reaction() {
        for (code, expected) in [
            (Code::TopicAuthorizationFailed, Kind::Unauthorised),
            (Code::SaslAuthenticationFailed, Kind::Unauthenticated),
            (Code::UnknownTopicOrPartition, Kind::UnknownTopic),
            (Code::UnknownTopic, Kind::UnknownTopic),
            (Code::UnknownPartition, Kind::UnknownTopic),
            (Code::MessageSizeTooLarge, Kind::TooLarge),
            (Code::MessageBatchTooLarge, Kind::TooLarge),
            (Code::NotEnoughReplicas, Kind::Disconnected),
            (Code::NotEnoughReplicasAfterAppend, Kind::Disconnected),
            (Code::MessageTimedOut, Kind::TimedOut),
            (Code::RequestTimedOut, Kind::TimedOut),
            (Code::AllBrokersDown, Kind::Disconnected),
            (Code::BrokerTransportFailure, Kind::Disconnected),
            (Code::DestroyBroker, Kind::Disconnected),
            (Code::QueueFull, Kind::Saturated),
            (Code::InvalidDifferentRecord, Kind::Saturated),
            (Code::Fatal, Kind::Fatal),
            (Code::FencedInstanceId, Kind::Fenced),
            (Code::OutOfOrderSequenceNumber, Kind::Fatal),
            (Code::InvalidRecord, Kind::BadMessage),
            (Code::InvalidReplicationFactor, Kind::BadConfig),
            (Code::PurgeInflight, Kind::Closed),
            (Code::Unknown, Kind::Other),
        ] {
            assert_eq!(kind(code), expected, "{code:?}");
        }
    }

    #[test]
    fn a_code_is_reported_with_a_fix() {
        let error = failed(
            "create the topic t",
            KafkaError::AdminOp(Code::InvalidReplicationFactor),
        );
        let cause = std::error::Error::source(&error).unwrap();
        assert_eq!(
            (
                error.to_string().as_str(),
                cause.to_string().as_str(),
                cause.source().is_none()
            ),
            (
                "create the topic t (bad_config)",
                "the replication factor exceeds the number of brokers: lower it, or add brokers (InvalidReplicationFactor)",
                true
            )
        );
        let unknown = refused("commit", Code::IllegalGeneration);
        let cause = std::error::Error::source(&unknown).unwrap();
        assert!(
            cause.to_string().starts_with("IllegalGeneration ("),
            "{cause}"
        );
    }

    #[test]
    fn an_error_about_a_topic_names_it() {
        let of = |code| refused(sending("t", "deliver the message", Some(code)), code).to_string();
        for code in [Code::UnknownPartition, Code::UnknownTopicOrPartition] {
            let expected = "send to the topic t, which does not exist, or does not have the partition of the message (unknown_topic)";
            assert_eq!(of(code), expected);
        }
        let forbidden = of(Code::TopicAuthorizationFailed);
        let expected = "send to the topic t, which this Kafka user may not see or write to: ";
        assert!(
            forbidden.starts_with(expected) && forbidden.contains("topics plan --acls"),
            "{forbidden}"
        );
        assert_eq!(of(Code::MessageTimedOut), "deliver the message (timed_out)");
    }

    #[test]
    fn only_errors_of_the_message_itself_are_dead_letters() {
        for code in [
            Code::NotEnoughReplicas,
            Code::TopicAuthorizationFailed,
            Code::UnknownTopicOrPartition,
            Code::MessageTimedOut,
            Code::KafkaStorageError,
            Code::Unknown,
            Code::InvalidMessage,
            Code::ThrottlingQuotaExceeded,
        ] {
            assert_ne!(
                kind(code).disposition(),
                Disposition::DeadLetter,
                "{code:?}"
            );
        }
    }

    #[test]
    fn a_refused_property_does_not_show_its_value() {
        let config = rdkafka::ClientConfig::new()
            .set("linger.ms", "canary")
            .create::<rdkafka::producer::BaseProducer>();
        let error = failed("create the client", config.err().unwrap());
        assert_eq!(error.kind(), Kind::BadConfig);
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text += &error.to_string();
            cause = error.source();
        }
        assert!(
            text.contains("linger.ms") && !text.contains("canary"),
            "{text}"
        );
    }
}
