//! Tests what this user may do, and what exists. Leaves no trace: writes nothing and joins no group.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode as Code;

use super::error::{failed, refused};
use super::health::Events;
use super::questions::{REQUEST_TIMEOUT, RETRY_PAUSE, consumer, read_end};
use super::topics::TopicSettings;
use super::{Kafka, TOPIC_PROPAGATION, admin_options};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

impl Kafka {
    /// An existing topic; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unauthorised` when the user may not see the topic or its settings; or the reason why the cluster did not
    /// answer.
    pub async fn topic_settings(
        &self,
        topic: &Topic,
    ) -> Result<Option<TopicSettings>, TransportError> {
        let found = match self.look_up(topic, Duration::ZERO).await {
            Err(error) if error.kind() == TransportErrorKind::UnknownTopic => return Ok(None),
            found => found?,
        };
        let admin = self.admin()?;
        let which = [ResourceSpecifier::Topic(topic.as_str())];
        let described = admin.describe_configs(&which, &admin_options()).await;
        // Dropping it waits for threads, which nobody needs to wait for.
        drop(tokio::task::spawn_blocking(move || drop(admin)));
        let what = || format!("read the settings of the topic {topic}");
        let described = described.map_err(|error| failed(what(), error))?;
        let settings = match described.into_iter().next() {
            Some(Ok(resource)) if !resource.entries.is_empty() => {
                let entries = resource.entries.into_iter();
                let entries = entries.filter_map(|entry| Some((entry.name, entry.value?)));
                entries.collect()
            }
            // rdkafka 0.39 drops the error of a resource. A topic that may be described has settings.
            Some(Ok(_) | Err(Code::TopicAuthorizationFailed)) | None => {
                let what = format!("{}, which needs the permission DescribeConfigs", what());
                return Err(TransportError::new(TransportErrorKind::Unauthorised, what));
            }
            Some(Err(code)) => {
                return Err(refused(what(), code));
            }
        };
        Ok(Some(TopicSettings {
            partitions: count(found.ids.len()),
            replicas: count(found.replicas),
            settings,
        }))
    }

    /// Reads the end of one partition of a topic, and the position of a group if one is given.
    ///
    /// # Errors
    /// `UnknownTopic`; `Unauthorised` when the user may not read the topic, or may not be a member of the group; or the
    /// reason why the cluster did not answer.
    pub async fn test_read(
        &self,
        topic: &Topic,
        group: Option<&str>,
    ) -> Result<(), TransportError> {
        let partitions = self.look_up(topic, TOPIC_PROPAGATION).await?;
        let Some(partition) = partitions.to_ask() else {
            return Ok(());
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let (topic, group) = (topic.clone(), group.map(str::to_owned));
        let read = move || {
            let name = group.as_deref().unwrap_or("a2abus.check");
            let consumer = consumer(&shared.config, &shared.pulse, name)?;
            if let Some(group) = &group {
                position(&consumer, &topic, partition, group)?;
            }
            read_end(&consumer, &topic, partition)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(read) => read,
            Err(error) => {
                let what = "test a Kafka topic";
                Err(TransportError::new(TransportErrorKind::Other, what).caused_by(error))
            }
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Asks for the position of a group. Only a user who may be a member of the group gets an answer.
fn position(
    consumer: &BaseConsumer<Events>,
    topic: &Topic,
    partition: i32,
    group: &str,
) -> Result<(), TransportError> {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic.as_str(), partition);
    let until = Instant::now() + REQUEST_TIMEOUT;
    loop {
        let asked = consumer.committed_offsets(list.clone(), REQUEST_TIMEOUT);
        let Err(error) = asked else { return Ok(()) };
        let error = failed(format!("use the group {group}"), error);
        // A coordinator that moves or starts says nothing about the group.
        if error.kind() != TransportErrorKind::Disconnected || Instant::now() >= until {
            return Err(error);
        }
        drop(consumer.poll(RETRY_PAUSE));
    }
}
