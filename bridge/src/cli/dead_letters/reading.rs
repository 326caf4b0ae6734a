//! Reads dead-letter topics from their beginning to what is their end now.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use a2abus_transports::{
    AnyTransport, LogBatch, LogBounds, LogReader, LogRecord, LogSource, Topic, TransportError,
    TransportErrorKind,
};
use anyhow::{anyhow, bail};
use tokio::time::timeout;

use super::super::command::Misuse;
use super::super::output::{complain_line, plain};
use super::super::reach::{self, ConnectWait};
use super::letter::Letter;
use crate::config::{Config, TransportConfig};
use crate::names::Name;
use crate::restart::chain;

/// The dead-letter topics of some bindings, one after the other.
pub(super) struct Places<'a> {
    config: &'a Config,
    left: VecDeque<Listed>,
    current: Option<Place>,
    /// The streams that were read.
    streams: BTreeSet<String>,
    /// The bindings of the dead letters that were read.
    bindings: BTreeSet<String>,
}

/// A dead-letter topic.
struct Listed {
    transport: Name,
    topic: Topic,
    /// Whether the configuration names it. The topic of misplaced answers may never be needed.
    is_named: bool,
}

/// One that is being read.
struct Place {
    transport: AnyTransport,
    topic: Topic,
    source: LogSource,
    reader: LogReader,
    /// The ends of the partitions that are not read to their end yet.
    left: BTreeMap<u32, u64>,
}

/// The longest time without a record.
const SILENCE: Duration = Duration::from_secs(30);

// === impl Places ===

impl<'a> Places<'a> {
    /// The topics of the bindings with these names; of all bindings if no name is given, or if the configuration lacks
    /// one of them: its dead letters can be on any topic.
    pub(super) fn of(config: &'a Config, bindings: &[String]) -> Self {
        let own = config.reply_bindings();
        let is_all = bindings.is_empty() || bindings.iter().any(|name| !has_binding(config, name));
        let all = config.bindings.iter().chain(&own).enumerate();
        let chosen =
            all.filter(|(_, it)| is_all || bindings.iter().any(|name| it.name.as_str() == name));
        let (mut seen, mut left) = (BTreeSet::new(), VecDeque::new());
        for (index, binding) in chosen {
            let (transport, topic) = (
                binding.dead_letter_transport(),
                &binding.dead_letter.topic.0,
            );
            if seen.insert((transport.as_str(), topic.as_str())) {
                left.push_back(Listed {
                    transport: transport.clone(),
                    topic: topic.clone(),
                    is_named: index < config.bindings.len(),
                });
            }
        }
        Self {
            config,
            left,
            current: None,
            streams: BTreeSet::new(),
            bindings: BTreeSet::new(),
        }
    }

    /// Checks that each of these names is that of a binding in the configuration or in a dead letter. Call it once
    /// everything was read.
    ///
    /// # Errors
    /// When a name is in neither.
    pub(super) fn check_bindings(&self, names: &[String]) -> Result<(), Misuse> {
        let is_known =
            |name: &&String| self.bindings.contains(*name) || has_binding(self.config, name);
        let Some(unknown) = names.iter().find(|name| !is_known(name)) else {
            return Ok(());
        };
        let known = Vec::from_iter(self.bindings.iter().map(|name| plain(name))).join(", ");
        let known = match known.as_str() {
            "" => "there are no dead letters at all".to_owned(),
            known => format!("there are dead letters of {known}"),
        };
        Err(Misuse(format!(
            "--binding: the configuration has no binding {unknown}, and there are no dead letters of it; {known}"
        )))
    }

    /// Checks that these topics include those of the positions. Which streams they are in is known only later: see
    /// [`Places::missing`].
    ///
    /// # Errors
    /// When a position is on another topic.
    pub(super) fn check(
        &self,
        positions: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<(), Misuse> {
        for position in positions {
            let position = position.as_ref();
            let on_kafka = position.strip_prefix("k:");
            let Some(topic) = on_kafka.and_then(|rest| rest.rsplitn(3, '/').nth(2)) else {
                continue;
            };
            let known = BTreeSet::from_iter(self.left.iter().map(|it| it.topic.as_str()));
            if !known.contains(topic) {
                let known = Vec::from_iter(known).join(", ");
                return Err(Misuse(format!(
                    "{position}: {topic} is not a dead-letter topic of this configuration or binding: name one of {known}"
                )));
            }
        }
        Ok(())
    }

    /// Why there is no dead letter at a position. To be called once everything was read.
    ///
    /// # Errors
    /// When the position is in a stream without dead letters of this configuration.
    pub(super) fn missing(&self, position: &str) -> Result<String, Misuse> {
        let in_jetstream = position.strip_prefix("j:");
        let stream = in_jetstream.and_then(|rest| rest.rsplit_once('/').map(|(stream, _)| stream));
        if let Some(stream) = stream.filter(|stream| !self.streams.contains(*stream)) {
            let known = Vec::from_iter(self.streams.iter().map(String::as_str)).join(", ");
            let known = match known.as_str() {
                "" => "no stream has any".to_owned(),
                known => format!("name one of {known}"),
            };
            return Err(Misuse(format!(
                "{position}: {stream} is not a stream with dead letters of this configuration or binding: {known}"
            )));
        }
        Ok(format!("there is no dead letter at {position}"))
    }

    /// The next dead letters; `None` at the end.
    ///
    /// # Errors
    /// When a topic cannot be read, or a bus cannot be reached. The next call goes on with the others.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<Letter>>> {
        loop {
            if let Some(place) = &mut self.current {
                let next = place.next().await;
                if let Ok(Some(letters)) = &next {
                    let bindings = letters.iter().filter_map(Letter::binding);
                    self.bindings.extend(bindings.map(str::to_owned));
                    return next;
                }
                reach::close(&place.transport).await;
                self.current = None;
                next?;
            }
            let Some(listed) = self.left.pop_front() else {
                return Ok(None);
            };
            let transport = match connect(self.config, &listed.transport).await {
                Ok(transport) => transport,
                Err(error) => {
                    self.left.retain(|it| it.transport != listed.transport);
                    return Err(error);
                }
            };
            self.current = match open(transport.clone(), &listed).await {
                Ok(Some(place)) => Some(place),
                other => {
                    reach::close(&transport).await;
                    other?
                }
            };
            if let Some(LogSource::Stream(stream)) = self.current.as_ref().map(|it| &it.source) {
                self.streams.insert(stream.clone());
            }
        }
    }
}

/// Whether the configuration has a binding with this name.
pub(super) fn has_binding(config: &Config, name: &str) -> bool {
    let own = config.reply_bindings();
    let mut all = config.bindings.iter().chain(&own);
    all.any(|it| it.name.as_str() == name)
}

/// Connects to a transport of the configuration.
pub(super) async fn connect(config: &Config, name: &Name) -> anyhow::Result<AnyTransport> {
    let transport = config.transports.get(name);
    let transport: &TransportConfig =
        transport.ok_or_else(|| anyhow!("there is no transport {}", name.as_str()))?;
    let connected = reach::connect(transport, ConnectWait::Report).await;
    connected.map_err(|cause| anyhow!("transport {}: {cause}", name.as_str()))
}

/// Starts to read a topic. `None` if it does not exist. Only a place that is returned closes the transport.
async fn open(transport: AnyTransport, listed: &Listed) -> anyhow::Result<Option<Place>> {
    let (name, topic) = (&listed.transport, &listed.topic);
    let failed = |error: TransportError| anyhow!("transport {}: {}", name.as_str(), chain(&error));
    let missing = || {
        if !listed.is_named {
            return;
        }
        complain_line(&format!(
            "transport {}: nothing stores {}, so there are no dead letters",
            name.as_str(),
            topic.as_str()
        ));
    };
    let Some(source) = source_of(&transport, topic).await.map_err(failed)? else {
        missing();
        return Ok(None);
    };
    let bounds = match transport.log_bounds(&source).await {
        Err(error) if error.kind() == TransportErrorKind::UnknownTopic => {
            missing();
            return Ok(None);
        }
        bounds => bounds.map_err(failed)?,
    };
    let reader = transport.read_log(&source, &[]).await.map_err(failed)?;
    let has_records = |bounds: &LogBounds| bounds.start < bounds.end;
    let left = bounds.into_iter().filter(has_records);
    Ok(Some(Place {
        transport,
        topic: topic.clone(),
        source,
        reader,
        left: left.map(|it| (it.partition, it.end)).collect(),
    }))
}

/// The log that stores a topic.
async fn source_of(
    transport: &AnyTransport,
    topic: &Topic,
) -> Result<Option<LogSource>, TransportError> {
    match transport {
        #[cfg(feature = "nats")]
        AnyTransport::Nats(nats) => {
            let stream = nats.stream_of(topic.as_str()).await?;
            Ok(stream.map(LogSource::Stream))
        }
        _ => Ok(Some(LogSource::Topic(topic.clone()))),
    }
}

// === impl Place ===

impl Place {
    async fn next(&mut self) -> anyhow::Result<Option<Vec<Letter>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let (topic, silence) = (self.topic.as_str(), SILENCE.as_secs());
        let LogBatch { records, reached } = match timeout(SILENCE, self.reader.next()).await {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                let why = self.reader.ended_because().unwrap_or("the bus was closed");
                bail!("reading {topic} stopped: {why}")
            }
            Err(_) => bail!("reading {topic} stopped: no record arrived within {silence} s"),
        };
        let mut letters = Vec::new();
        for record in records {
            let position = record.position;
            // What comes later has become a dead letter meanwhile.
            if self.left.contains_key(&position.partition) {
                letters.extend(self.letter(record));
                self.pass(position.partition, position.offset + 1);
            }
        }
        for position in reached {
            self.pass(position.partition, position.offset);
        }
        Ok(Some(letters))
    }

    fn pass(&mut self, partition: u32, next: u64) {
        if self.left.get(&partition).is_some_and(|end| next >= *end) {
            self.left.remove(&partition);
        }
    }

    fn letter(&self, record: LogRecord) -> Option<Letter> {
        let (partition, offset) = (record.position.partition, record.position.offset);
        let position = match &self.source {
            LogSource::Topic(topic) => format!("k:{}/{partition}/{offset}", topic.as_str()),
            LogSource::Stream(stream) => format!("j:{stream}/{offset}"),
        };
        if record.is_unreadable()
            && let LogSource::Stream(stream) = &self.source
        {
            complain_line(&format!(
                "the message at {position} is skipped: the NATS client cannot read its headers or its subject; `nats stream get {stream} {offset}` shows it, `nats stream rmm {stream} {offset}` deletes it"
            ));
            return None;
        }
        // The stream may have other subjects, too.
        let is_here = record
            .topic
            .as_ref()
            .is_none_or(|topic| *topic == self.topic);
        Letter::new(position, record).filter(|_| is_here)
    }
}
