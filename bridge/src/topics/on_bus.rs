//! Finds and creates needed resources on their bus.

use a2abus_transports::{AnyTransport, TransportError};
use serde_json::{Map, Value};

use super::requirement::{Requirement, Resource};

/// The state of a required resource.
#[derive(Debug)]
pub(crate) enum ResourceState {
    Missing,
    /// It exists, with these wrong settings, as text.
    Exists(Vec<String>),
}

/// Looks for a resource, and compares its settings with those needed.
///
/// # Errors
/// `Unauthorised` when this user may not see it or its settings; `BadConfig` when it is a missing stream that could not
/// be created, because another one stores its subjects; or why the bus did not answer.
pub(crate) async fn find(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<ResourceState, TransportError> {
    if let Some(found) = settings(connected, requirement).await? {
        return Ok(ResourceState::Exists(requirement.differences(&found)));
    }
    #[cfg(feature = "nats")]
    if let (AnyTransport::Nats(nats), Resource::Stream { subject: None, .. }) =
        (connected, &requirement.resource)
    {
        super::nats::must_be_free(nats, requirement).await?;
    }
    Ok(ResourceState::Missing)
}

/// The settings of an existing resource by name; `None` when it does not exist.
async fn settings(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<Option<Map<String, Value>>, TransportError> {
    match (connected, &requirement.resource) {
        #[cfg(feature = "kafka")]
        (AnyTransport::Kafka(kafka), Resource::Topic(topic)) => {
            super::kafka::settings(kafka, topic).await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Stream { name, subject }) => {
            super::nats::stream_settings(nats, name, subject.as_deref()).await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Consumer { stream, name }) => {
            super::nats::consumer_settings(nats, stream, name).await
        }
        _ => Ok(None),
    }
}

/// Creates a resource on its bus. On Kafka it is no error if it exists by now.
///
/// # Errors
/// When it cannot be created. A consumer of a stream that does not store its subjects would read nothing: `BadConfig`.
pub(crate) async fn create(
    connected: &AnyTransport,
    requirement: &Requirement,
) -> Result<(), TransportError> {
    let settings = requirement.creation();
    match (connected, &requirement.resource) {
        #[cfg(feature = "kafka")]
        (AnyTransport::Kafka(kafka), Resource::Topic(topic)) => {
            super::kafka::create(kafka, topic, settings).await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Stream { name, .. }) => {
            nats.create_stream(name, Value::Object(settings)).await
        }
        #[cfg(feature = "nats")]
        (AnyTransport::Nats(nats), Resource::Consumer { stream, name }) => {
            nats.create_consumer(stream, name, Value::Object(settings))
                .await
        }
        _ => Ok(()),
    }
}
