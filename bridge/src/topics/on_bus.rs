//! How is a needed thing on its bus, and how is it created there?

use a2abus_transports::{AnyTransport, TransportError, TransportErrorKind};
use serde_json::{Map, Value, json};

use super::{Requirement, Resource, lacking, words};

/// The state of a required resource.
#[derive(Debug)]
pub(crate) enum ResourceState {
    Missing,
    /// It exists. Where it is not as it has to be, in words.
    There(Vec<String>),
}

/// Looks for a thing, and compares it with what is needed.
///
/// # Errors
/// `Unauthorised` when this user may not see it or its settings; or what kept the bus from saying so.
pub(crate) async fn find(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<ResourceState, TransportError> {
    let found = settings(connected, requirement).await?;
    Ok(found.map_or(ResourceState::Missing, |found| {
        ResourceState::There(requirement.differences(&found))
    }))
}

/// The settings of an existing thing by name; `None` when it does not exist.
async fn settings(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<Option<Map<String, Value>>, TransportError> {
    match (connected, &requirement.resource) {
        #[cfg(feature = "kafka")]
        (AnyTransport::Kafka(kafka), Resource::Topic(topic)) => {
            let Some(topic) = kafka.topic_settings(topic).await? else {
                return Ok(None);
            };
            let settings = topic.settings.into_iter();
            let mut found: Map<_, _> = settings.map(|(name, text)| (name, number(text))).collect();
            found.insert("partitions".to_owned(), json!(topic.partitions));
            found.insert("replicas".to_owned(), json!(topic.replicas));
            Ok(Some(found))
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Stream { name, subject }) => {
            let name = match subject {
                Some(subject) => nats.stream_of(subject).await?,
                None => Some(name.clone()),
            };
            match name {
                Some(name) => Ok(object(nats.stream_config(&name).await?)),
                None => Ok(None),
            }
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Consumer { stream, name }) => {
            Ok(object(nats.consumer_config(stream, name).await?))
        }
        _ => Ok(None),
    }
}

/// Kafka writes every setting as text.
#[cfg(feature = "kafka")]
fn number(text: String) -> Value {
    match text.parse::<i64>() {
        Ok(number) => json!(number),
        Err(_) => Value::String(text),
    }
}

#[cfg(feature = "nats")]
fn object(value: Option<Value>) -> Option<Map<String, Value>> {
    match value {
        Some(Value::Object(members)) => Some(members),
        _ => None,
    }
}

/// Creates a thing on its bus. That it exists by now is no error on Kafka.
///
/// # Errors
/// When it cannot be created. A consumer of a stream that does not store its subjects would read nothing: `BadConfig`.
pub(crate) async fn create(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<(), TransportError> {
    let mut settings = requirement.creation();
    match (connected, &requirement.resource) {
        #[cfg(feature = "kafka")]
        (AnyTransport::Kafka(kafka), Resource::Topic(topic)) => {
            let mut count = |name| {
                let count = settings.remove(name)?.as_u64()?;
                u32::try_from(count).ok()
            };
            let (partitions, replicas) = (count("partitions"), count("replicas"));
            let settings = settings
                .iter()
                .map(|(name, value)| (name.clone(), words(name, value)));
            let settings = settings.collect();
            kafka
                .create_topic(topic, partitions, replicas, &settings)
                .await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Stream { name, .. }) => {
            nats.create_stream(name, Value::Object(settings)).await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Consumer { stream, name }) => {
            must_store(object(nats.stream_config(stream).await?), stream, &settings)?;
            nats.create_consumer(stream, name, Value::Object(settings))
                .await
        }
        _ => Ok(()),
    }
}

/// A server creates a consumer of subjects that its stream does not store, and it waits for ever.
#[cfg(feature = "nats")]
fn must_store(
    found: Option<Map<String, Value>>,
    stream: &str,
    consumer: &Map<String, Value>,
) -> Result<(), TransportError> {
    let (one, several) = (
        consumer.get("filter_subject"),
        consumer.get("filter_subjects"),
    );
    let several = several.and_then(Value::as_array).into_iter().flatten();
    let filters = one.into_iter().chain(several).filter_map(Value::as_str);
    let filters: Vec<String> = filters.map(str::to_owned).collect();
    // Without the stream the server refuses the consumer.
    let missing = found.map_or_else(String::new, |found| lacking(&found, &filters).join(", "));
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("create the consumer: the stream {stream} does not store {missing}");
    Err(TransportError::new(TransportErrorKind::BadConfig, what))
}
