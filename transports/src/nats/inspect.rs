//! Tests what this user may do, and what exists. Leaves no trace: publishes only requests, and joins no queue group.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Nats;
use super::api::{api_error, merge};
use super::config::JetStreamConfig;
use super::consumer::{check, filter_of};
use super::permissions::Permissions;
use super::subjects::must_store;
use super::subscribe::{RefusalListener, subscribe_one};
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::TopicFilter;

/// The user, as the server sees it.
#[derive(Debug, Deserialize)]
struct UserInfo {
    data: UserData,
}

#[derive(Debug, Deserialize)]
struct UserData {
    /// Absent if nothing is restricted.
    #[serde(default)]
    permissions: Option<Permissions>,
}

/// The request for one's own permissions. Every server answers it if the user may ask.
const USER_INFO: &str = "$SYS.REQ.USER.INFO";
/// The replicas of a stream in a cluster, so that it survives the loss of a server.
const CLUSTER_REPLICAS: u32 = 3;
/// A refused request gets no answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

// === impl Nats ===

impl Nats {
    /// The permissions of the user that is logged in; `None` when the user may not ask for them.
    pub async fn permissions(&self) -> Option<Permissions> {
        let inner = self.inner();
        let request = inner.client.request(USER_INFO, "".into());
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, request)
            .await
            .ok()?
            .ok()?;
        let info: UserInfo = serde_json::from_slice(&answer.payload).ok()?;
        Some(info.data.permissions.unwrap_or_default())
    }

    /// The name of the user in messages, for example `user bridge`.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.shared.user
    }

    /// Subscribes and unsubscribes, outside every queue group.
    ///
    /// # Errors
    /// `Unauthorised`, or the reason why the server did not answer.
    pub async fn test_subscribe(&self, subject: &str) -> Result<(), TransportError> {
        let inner = self.inner();
        inner.link.up(inner.request_deadline()).await?;
        let mut listener = RefusalListener::new(&inner.link, vec![subject.into()], None);
        let subscriber = subscribe_one(&inner.client, subject.to_owned(), None).await?;
        inner.echo().await?;
        let outcome = listener.check(inner.link.user()).await;
        drop(subscriber);
        outcome
    }

    /// The stream that stores a subject, if there is one.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn stream_of(&self, subject: &str) -> Result<Option<String>, TransportError> {
        let question = json!({ "subject": subject });
        let answer = self.inner().api.command("STREAM.NAMES", &question).await?;
        let first = answer["streams"][0].as_str();
        Ok(first.map(str::to_owned))
    }

    /// The configuration of a stream in the form of the JetStream API; `None` when there is none.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn stream_config(&self, stream: &str) -> Result<Option<Value>, TransportError> {
        let info = self.inner().api.stream_info(stream).await?;
        Ok(info.map(|mut info| info["config"].take()))
    }

    /// The configuration of a durable consumer in the form of the JetStream API; `None` when there is none.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn consumer_config(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<Option<Value>, TransportError> {
        let info = self.inner().api.consumer_info(stream, name).await?;
        Ok(info.map(|mut info| info["config"].take()))
    }

    /// Creates a stream with these settings of the JetStream API, and no other limits. Unless they contain
    /// `num_replicas`, a cluster stores it three times, and a server without a cluster once.
    ///
    /// # Errors
    /// Why JetStream refuses, or did not answer.
    pub async fn create_stream(&self, name: &str, settings: Value) -> Result<(), TransportError> {
        let mut config = json!({
            "name": name, "retention": "limits", "discard": "old",
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
            "num_replicas": CLUSTER_REPLICAS,
        });
        let is_given = settings.get("num_replicas").is_some();
        merge(&mut config, settings);
        let request = format!("STREAM.CREATE.{name}");
        match self.inner().api.ask(&request, &config).await? {
            Err(error) if !is_given && error.refuses_replicas() => {
                if !error.is_single_server() {
                    tracing::warn!(stream = name, %error, "the cluster refuses {CLUSTER_REPLICAS} replicas, so the stream gets one and is lost with its server: once enough servers can store it, run `nats stream edit {name} --replicas {CLUSTER_REPLICAS}`");
                }
                config["num_replicas"] = json!(1);
                self.inner().api.command(&request, &config).await.map(drop)
            }
            answer => answer.map(drop).map_err(|error| api_error(&request, error)),
        }
    }

    /// Creates a durable pull consumer with these settings of the JetStream API.
    ///
    /// # Errors
    /// `BadConfig` when its stream does not store its subjects; or why JetStream refuses, or did not answer.
    pub async fn create_consumer(
        &self,
        stream: &str,
        name: &str,
        settings: Value,
    ) -> Result<(), TransportError> {
        let mut config = json!({"durable_name": name, "replay_policy": "instant"});
        merge(&mut config, settings);
        // Without the stream the server refuses the consumer.
        let found = self.stream_config(stream).await?.unwrap_or_default();
        must_store("create the consumer", (stream, &found), filter_of(&config))?;
        let written = self.inner().api.write_consumer(stream, name, config).await;
        written.map(drop)
    }

    /// Looks for a durable consumer of these topics that may be read, or that a bridge with this configuration would
    /// create.
    ///
    /// # Errors
    /// `UnknownTopic`, which names the missing stream or consumer; `BadConfig` when it cannot be read at least once, or
    /// when the stream does not store its subjects; or the reason why JetStream did not answer.
    pub async fn test_durable(
        &self,
        config: &JetStreamConfig,
        (stream, name): (&str, &str),
        topics: &[TopicFilter],
    ) -> Result<(), TransportError> {
        let inner = self.inner();
        let api = &inner.api;
        let missing = |what: String| TransportError::new(TransportErrorKind::UnknownTopic, what);
        let mut managed = config.streams.iter().filter(|_| config.manage);
        let managed = managed.find(|listed| listed.name == stream);
        let mut stored = self.stream_config(stream).await?;
        if stored.is_none() && managed.is_none() {
            return Err(missing(format!("find the JetStream stream {stream}")));
        }
        if let Some(listed) = managed {
            // The bridge updates the stream.
            let subjects = json!({ "subjects": listed.subjects });
            merge(stored.get_or_insert_with(|| json!({})), subjects);
        }
        let found = api.consumer_info(stream, name).await?;
        if let Some(info) = &found {
            check(stream, name, &info["config"])?;
        }
        let filter: BTreeSet<&str> = match &found {
            // The bridge makes the consumer read these topics.
            _ if config.manage => topics.iter().map(TopicFilter::as_str).collect(),
            Some(info) => filter_of(&info["config"]),
            None => {
                let what = format!("find the durable consumer {name} of the stream {stream}");
                return Err(missing(what));
            }
        };
        let attempt = format!("read consumer {name} of stream {stream}");
        must_store(&attempt, (stream, &stored.unwrap_or_default()), filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_read_as_servers_write_them() {
        let text = r#"{"server":{},"data":{"user":"u","account":"A","permissions":{
            "publish":{"allow":["a.>"],"deny":["a.x"]},"subscribe":{}}}}"#;
        let info: UserInfo = serde_json::from_str(text).unwrap();
        let permissions = info.data.permissions.unwrap();
        assert!(permissions.may_publish("a.b"));
        assert!(!permissions.may_publish("a.x"));
        assert!(!permissions.may_publish("b"));
        assert!(permissions.may_subscribe("anything.>"));
    }
}
