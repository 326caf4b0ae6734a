//! The tests of a Kafka transport.

use a2abus_transports::kafka::Kafka;
use a2abus_transports::{Topic, Transport as _, TransportErrorKind};

use super::{TestResult, Tester};
use crate::access::{Access, Operation, Storage};
use crate::state::LogLocation;
use crate::topics;

impl Tester<'_> {
    /// Tests one use of the bus.
    pub(super) async fn kafka(&mut self, kafka: &Kafka, used: &Access) {
        let owner = &used.owner;
        match &used.operation {
            Operation::Read { topics, group } => {
                for topic in topics.iter().filter_map(|filter| filter.as_topic()) {
                    let test = format!("read topic {topic} in group {group} ({owner})");
                    let read = kafka.test_read(&topic, Some(group.as_str())).await;
                    self.result(test, read);
                }
            }
            #[cfg(feature = "nats")]
            Operation::Durable { .. } => {}
            Operation::Write(write) => {
                let Some(topic) = write.target.topic() else {
                    let test = format!("topics {} ({owner})", write.target);
                    let detail = topics::NAMED.to_owned();
                    return self.note(test, TestResult::Untested, Some(detail));
                };
                let test = format!("find topic {topic} ({owner})");
                let found = kafka.partitions(topic).await.map(drop);
                match found {
                    Err(error)
                        if error.kind() == TransportErrorKind::UnknownTopic
                            && write.is_stored() =>
                    {
                        let detail = "it does not exist: the bridge creates it when it starts";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    Err(error)
                        if error.kind() == TransportErrorKind::UnknownTopic
                            && write.storage == Storage::Requesters =>
                    {
                        let detail = "it does not exist: those who send requests create it";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    found => self.result(test, found),
                }
            }
            Operation::State {
                place: LogLocation::Topic(topic),
                is_created,
                ..
            } => self.kafka_log(kafka, topic, *is_created, owner).await,
            Operation::State { .. } => {}
            Operation::Replies(topic) => {
                let test = format!("read topic {topic} ({owner})");
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
    async fn kafka_log(&mut self, kafka: &Kafka, topic: &Topic, is_created: bool, owner: &str) {
        let test = format!("read topic {topic} ({owner})");
        match kafka.test_read(topic, None).await {
            Err(error) if is_created && error.kind() == TransportErrorKind::UnknownTopic => {
                let detail = "it does not exist: the bridge creates it when it starts";
                self.note(test, TestResult::Warning, Some(detail.to_owned()));
            }
            read => self.result(test, read),
        }
    }
}
