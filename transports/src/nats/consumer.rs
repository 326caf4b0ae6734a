//! The durable consumer on the server: finds, creates and updates it, and creates it again if it was deleted.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_plugin::Text;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::api::{Api, merge, nanoseconds};
use super::subjects::must_store;
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::{LAG_INTERVAL, TopicFilter, overlap};

/// A durable consumer that a subscription reads.
#[derive(Debug, Clone)]
pub(super) struct ConsumerRef {
    pub(super) api: Api,
    pub(super) stream: Text,
    pub(super) name: Text,
    pub(super) topics: Arc<[TopicFilter]>,
    /// Outstanding deliveries, for all readers of the consumer together.
    pub(super) max_ack_pending: u32,
}

/// The settings of the consumer that its reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// After this time without an acknowledgement a delivery goes to another reader.
    pub(super) ack_wait: Duration,
    /// The most that one pull may ask for; `None` means no limit.
    pub(super) max_batch: Option<u32>,
    pub(super) max_bytes: Option<u32>,
    pub(super) max_expires: Option<Duration>,
}

/// What the server says about the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConsumerState {
    pub(super) limits: Limits,
    /// All messages up to this sequence of the stream are acknowledged, by all its readers together.
    pub(super) settled: u64,
    /// When it was created. Another consumer of this name has another time.
    pub(super) created: Option<SystemTime>,
}

/// How far the clocks of two servers may differ. Each of them writes the time of what it creates.
const CLOCKS: Duration = Duration::from_secs(10);

/// The server's default acknowledgement timeout, if the consumer sets none.
const SERVER_ACK_WAIT: Duration = Duration::from_secs(30);

// === impl ConsumerRef ===

impl ConsumerRef {
    /// Its name in messages.
    pub(super) fn title(&self) -> Text {
        Text::from(format!("consumer {} of stream {}", self.name, self.stream))
    }

    /// The search for its malformed messages, as a name in the health of the transport.
    pub(super) fn search_title(&self) -> Text {
        Text::from(format!("malformed messages of {}", self.title()))
    }

    /// Its subjects, as a name in the health of the transport.
    fn subjects_title(&self) -> Text {
        Text::from(format!("subjects of {}", self.title()))
    }

    /// Finds the consumer, or creates or updates it if that is allowed. A new one begins after `settled`, where a
    /// consumer of that name, which was `created` then, had stopped, or with the first message of the stream if that is
    /// 0.
    ///
    /// # Errors
    /// `UnknownTopic` when it does not exist and may not be created; `BadConfig` when consumers of its kind cannot be
    /// read at least once, or when it would never get a message.
    pub(super) async fn ensure(
        &self,
        settled: u64,
        created: Option<SystemTime>,
    ) -> Result<ConsumerState, TransportError> {
        self.api.ensure_stream_named(&self.stream).await?;
        let found = self.api.consumer_info(&self.stream, &self.name).await?;
        if found.is_none() && !self.api.config().manage {
            return Err(self.missing());
        }
        self.must_get_messages(found.as_ref()).await?;
        let info = match found {
            Some(info) => self.update(info).await?,
            None => self.create(settled, created).await?,
        };
        check(&self.stream, &self.name, &info["config"])?;
        Ok(ConsumerState::read(&info))
    }

    /// The subjects that it reads, or will read once it is created or updated; none means all.
    fn filter<'a>(&'a self, info: Option<&'a Value>) -> BTreeSet<&'a str> {
        match info {
            Some(info) if !self.api.config().manage => filter_of(&info["config"]),
            _ => self.topics.iter().map(TopicFilter::as_str).collect(),
        }
    }

    /// Refuses a consumer of subjects that its stream does not store.
    async fn must_get_messages(&self, found: Option<&Value>) -> Result<(), TransportError> {
        let filter = self.filter(found);
        let is_as_found = found.is_some_and(|info| filter_of(&info["config"]) == filter);
        // There are messages to read: the stream may have stored them before its subjects were changed.
        if is_as_found && found.and_then(unsettled).is_some_and(|count| count > 0) {
            return Ok(());
        }
        // Without the permission to ask, nothing is known about the stream.
        match self.api.stream_info(&self.stream).await {
            Ok(Some(stream)) => {
                let is_stored = |subject: &&str| {
                    let one = BTreeSet::from([*subject]);
                    self.must_store("", &stream, &one).is_ok()
                };
                // The subjects that the stream lacks are reported while the consumer is read.
                match is_as_found && filter.iter().any(is_stored) {
                    true => Ok(()),
                    false => self.must_store(&format!("read {}", self.title()), &stream, &filter),
                }
            }
            Ok(None) | Err(_) => Ok(()),
        }
    }

    fn must_store(
        &self,
        attempt: &str,
        stream: &Value,
        filter: &BTreeSet<&str>,
    ) -> Result<(), TransportError> {
        let stored = (self.stream.as_str(), &stream["config"]);
        must_store(attempt, stored, filter.iter().copied())
    }

    /// Polls the server for the number of messages that are not yet delivered or acknowledged, and for the state that
    /// its reader needs, because others may change the settings of the consumer and of the stream. Never ends.
    pub(super) async fn watch(
        &self,
        lag: watch::Sender<Option<u64>>,
        state: watch::Sender<ConsumerState>,
    ) -> Infallible {
        let mut turns = tokio::time::interval(LAG_INTERVAL);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_starved, mut may_ask) = (false, true);
        loop {
            turns.tick().await;
            match self.api.consumer_info(&self.stream, &self.name).await {
                Ok(info) => {
                    lag.send_replace(info.as_ref().and_then(unsettled));
                    if let Some(info) = &info {
                        state.send_replace(ConsumerState::read(info));
                        self.watch_subjects(info, &mut is_starved, &mut may_ask)
                            .await;
                    }
                }
                // The last known value stays. The unavailable bus is reported elsewhere.
                Err(error) => {
                    tracing::debug!(consumer = %self.name, %error, "its lag is unknown")
                }
            }
        }
    }

    /// Why the consumer reads nothing of what the binding names, if its own filter leaves all of that out.
    fn excludes_binding(&self, config: &Value) -> Option<TransportError> {
        let filter = filter_of(config);
        let is_read = |topic: &TopicFilter| filter.iter().any(|one| overlap(one, topic.as_str()));
        let reads_all = filter.is_empty() || self.topics.is_empty();
        if reads_all || self.topics.iter().any(is_read) {
            return None;
        }
        let what = format!(
            "read them: the filter of the consumer ({}) leaves out all subjects of the binding ({}); change one of the two",
            listed(filter),
            self.named_by_binding()
        );
        Some(TransportError::new(TransportErrorKind::BadConfig, what))
    }

    fn named_by_binding(&self) -> String {
        listed(self.topics.iter().map(TopicFilter::as_str))
    }

    /// Reports that the consumer reads nothing of what the binding names, or that the stream no longer stores what the
    /// consumer reads, until that has changed. `may_ask`: whether the user may ask what the stream stores.
    pub(super) async fn watch_subjects(
        &self,
        info: &Value,
        is_starved: &mut bool,
        may_ask: &mut bool,
    ) {
        let error = match self.excludes_binding(&info["config"]) {
            Some(error) => Some(error),
            None if !*may_ask => None,
            None => match self.api.stream_info(&self.stream).await {
                Ok(Some(stream)) => {
                    // The report and the log line name the consumer.
                    let filter = self.filter(Some(info));
                    self.must_store("read them", &stream, &filter).err()
                }
                // The reader notices that the stream is gone.
                Ok(None) => None,
                Err(error) => {
                    *may_ask = !matches!(
                        error.kind(),
                        TransportErrorKind::Unauthorised | TransportErrorKind::BadConfig
                    );
                    if *may_ask {
                        return;
                    }
                    None
                }
            },
        };
        let was_starved = std::mem::replace(is_starved, error.is_some());
        let (stream, consumer) = (&self.stream, &self.name);
        match &error {
            Some(error) if !was_starved => {
                tracing::warn!(%stream, %consumer, %error, "a durable consumer gets no new messages of some subjects");
            }
            // Without the permission to ask, nobody knows it.
            None if was_starved && *may_ask => {
                tracing::info!(%stream, %consumer, "the durable consumer gets new messages of its subjects again");
            }
            _ => {}
        }
        if was_starved || *is_starved {
            let trouble = error.map(|error| Text::from(error.to_string()));
            self.api.report_part(&self.subjects_title(), trouble);
        }
    }

    /// Takes back what [`ConsumerRef::watch`] has reported, once nobody reads the consumer.
    pub(super) fn unwatched(&self) {
        self.api.report_part(&self.subjects_title(), None);
    }

    async fn create(
        &self,
        settled: u64,
        created: Option<SystemTime>,
    ) -> Result<Value, TransportError> {
        let mut config = json!({
            "durable_name": self.name,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            // The bridge counts attempts itself; the server's limit would hide messages.
            "max_deliver": -1,
        });
        if settled > 0 && self.has_reached(settled, created).await? {
            let first = settled + 1;
            let start = json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": first });
            merge(&mut config, start);
        }
        merge(&mut config, self.settings());
        tracing::info!(stream = %self.stream, consumer = %self.name, "creating a durable consumer");
        self.api
            .write_consumer(&self.stream, &self.name, config)
            .await
    }

    /// Whether a consumer that was created at `created` can have read the stream up to that sequence. If not, the
    /// stream is a new one of the same name, or has lost its last messages, and must be read from the beginning.
    ///
    /// # Errors
    /// `UnknownTopic` while there is no such stream; or why JetStream did not answer.
    async fn has_reached(
        &self,
        settled: u64,
        created: Option<SystemTime>,
    ) -> Result<bool, TransportError> {
        let Some(info) = self.api.stream_info(&self.stream).await? else {
            let title = self.title();
            let what = format!(
                "create {title}: stream not found: create it again, or correct the binding"
            );
            return Err(TransportError::new(TransportErrorKind::UnknownTopic, what));
        };
        let last = info["state"]["last_seq"].as_u64().unwrap_or(0);
        // A consumer is younger than its stream.
        let is_new = created_at(&info)
            .zip(created)
            .and_then(|(stream, consumer)| stream.duration_since(consumer).ok())
            .is_some_and(|later| later > CLOCKS);
        if is_new || last < settled {
            tracing::error!(
                stream = %self.stream, last_sequence = last, read_up_to = settled, is_new,
                "the stream was created again after it was read, or has fewer messages than were read from it: reading it from the beginning"
            );
        }
        Ok(!is_new && last >= settled)
    }

    async fn update(&self, info: Value) -> Result<Value, TransportError> {
        let config = &info["config"];
        let mut desired = config.clone();
        if let Some(desired) = desired.as_object_mut() {
            desired.remove("filter_subject");
            desired.remove("filter_subjects");
        }
        merge(&mut desired, self.settings());
        if !self.api.config().manage {
            if filter_of(&desired) != filter_of(config)
                && (!filter_of(config).is_empty() || !self.is_whole_stream(&desired).await)
            {
                tracing::warn!(
                    stream = %self.stream, consumer = %self.name,
                    filter = listed(filter_of(config)), binding = self.named_by_binding(),
                    "the durable consumer reads other subjects than the binding names: its own filter is used; change one of the two, or set jetstream.manage"
                );
            }
            return Ok(info);
        }
        if desired == *config {
            return Ok(info);
        }
        tracing::info!(stream = %self.stream, consumer = %self.name, "updating a durable consumer");
        self.api
            .write_consumer(&self.stream, &self.name, desired)
            .await
    }

    /// Whether the stream has exactly the subjects of this filter, so that a consumer without a filter reads the same.
    /// Unknown if the user may not ask.
    async fn is_whole_stream(&self, desired: &Value) -> bool {
        let info = self.api.stream_info(&self.stream).await;
        let info = info.ok().flatten();
        info.is_some_and(|info| texts(&info["config"]["subjects"]) == filter_of(desired))
    }

    /// The settings that the subscription decides.
    fn settings(&self) -> Value {
        let mut settings = json!({
            "ack_wait": nanoseconds(self.api.config().ack_wait),
            "max_ack_pending": self.max_ack_pending,
        });
        let filter = match &*self.topics {
            [] => json!({}),
            [one] => json!({ "filter_subject": one.as_str() }),
            // Servers before 2.10 do not know this key and refuse the consumer.
            several => {
                let subjects: Vec<&str> = several.iter().map(TopicFilter::as_str).collect();
                json!({ "filter_subjects": subjects })
            }
        };
        merge(&mut settings, filter);
        settings
    }

    fn missing(&self) -> TransportError {
        let (stream, name) = (&self.stream, &self.name);
        TransportError::new(
            TransportErrorKind::UnknownTopic,
            format!(
                "read consumer {name} of stream {stream}: one of them does not exist; set jetstream.manage, or run: \
                 nats consumer add {stream} {name} --pull --ack explicit --deliver all --max-deliver=-1"
            ),
        )
    }
}

// === impl ConsumerState ===

impl ConsumerState {
    /// Reads an answer of the API.
    fn read(info: &Value) -> Self {
        Self {
            limits: Limits::read(&info["config"]),
            settled: info["ack_floor"]["stream_seq"].as_u64().unwrap_or(0),
            created: created_at(info),
        }
    }
}

/// How many messages the consumer has not delivered, or not got acknowledged.
fn unsettled(info: &Value) -> Option<u64> {
    let count = |name: &str| info.get(name)?.as_u64();
    let both = count("num_pending").zip(count("num_ack_pending"));
    both.map(|(pending, unacknowledged)| pending + unacknowledged)
}

/// When a stream or a consumer was created.
fn created_at(info: &Value) -> Option<SystemTime> {
    let time = info["created"].as_str()?;
    humantime::parse_rfc3339(time).ok()
}

// === impl Limits ===

impl Limits {
    fn read(config: &Value) -> Self {
        let nanos = |value: &Value| value.as_u64().filter(|n| *n > 0).map(Duration::from_nanos);
        let count = |value: &Value| {
            value
                .as_u64()
                .filter(|n| *n > 0)
                .and_then(|n| u32::try_from(n).ok())
        };
        // With a back-off the server uses its steps instead of the ack wait.
        let steps = config["backoff"].as_array().into_iter().flatten();
        let ack_wait = steps
            .filter_map(nanos)
            .min()
            .or_else(|| nanos(&config["ack_wait"]))
            .unwrap_or(SERVER_ACK_WAIT);
        Self {
            ack_wait,
            max_batch: count(&config["max_batch"]),
            max_bytes: count(&config["max_bytes"]),
            max_expires: nanos(&config["max_expires"]),
        }
    }
}

/// Checks that a durable consumer can be read at least once.
///
/// # Errors
/// `BadConfig`, which says what is wrong with it.
pub(super) fn check(stream: &str, name: &str, config: &Value) -> Result<(), TransportError> {
    let refuse = |why: &str| {
        let what = format!("read consumer {name} of stream {stream}: {why}");
        Err(TransportError::new(TransportErrorKind::BadConfig, what))
    };
    if config["deliver_subject"].is_string() {
        return refuse("it is a push consumer, and a pull consumer is needed");
    }
    if config["ack_policy"] != "explicit" {
        return refuse("its ack policy must be explicit, or messages are lost");
    }
    if config["headers_only"] == true {
        return refuse("it delivers headers only, so the bodies would be lost");
    }
    let groups = config["priority_groups"].as_array();
    if groups.is_some_and(|groups| !groups.is_empty()) {
        return refuse("it has priority groups, which the bridge does not support");
    }
    if config["max_deliver"].as_i64().is_some_and(|most| most > 0) {
        tracing::warn!(
            stream,
            consumer = name,
            "the durable consumer drops a message after max_deliver deliveries; set max_deliver to -1"
        );
    }
    Ok(())
}

/// The filter subjects in the configuration of a consumer; none means all.
pub(super) fn filter_of(config: &Value) -> BTreeSet<&str> {
    let mut filter = texts(&config["filter_subjects"]);
    filter.extend(
        config["filter_subject"]
            .as_str()
            .filter(|one| !one.is_empty()),
    );
    filter
}

/// Subjects in one text.
fn listed<'a>(subjects: impl IntoIterator<Item = &'a str>) -> String {
    let subjects: Vec<&str> = subjects.into_iter().collect();
    subjects.join(", ")
}

fn texts(list: &Value) -> BTreeSet<&str> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_configuration_of_the_consumer() {
        let none = Limits {
            ack_wait: Duration::from_secs(30),
            max_batch: None,
            max_bytes: None,
            max_expires: None,
        };
        assert_eq!(Limits::read(&json!({})), none);
        assert_eq!(
            Limits::read(
                &json!({"ack_wait": 5_000_000_000_u64, "max_batch": 7, "max_bytes": -1,
                "max_expires": 1_000_000_000})
            ),
            Limits {
                ack_wait: Duration::from_secs(5),
                max_batch: Some(7),
                max_bytes: None,
                max_expires: Some(Duration::from_secs(1)),
            }
        );
        assert_eq!(
            Limits::read(
                &json!({"ack_wait": 5_000_000_000_u64, "backoff": [2_000_000_000_u64, 9]})
            )
            .ack_wait,
            Duration::from_nanos(9)
        );
    }
}
