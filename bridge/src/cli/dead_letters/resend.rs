//! Publishes dead letters again.

use std::collections::{BTreeMap, BTreeSet};

use a2abus_transports::{Address, AnyTransport, Guarantee, Topic, Transport as _, TransportError};
use anyhow::{anyhow, bail};
use serde_json::json;

use super::super::command::{Misuse, Status, load};
use super::super::output::{Output, complain_line, count, json_line, plain};
use super::super::reach;
use super::letter::Letter;
use super::reading::{Places, connect, has_binding};
use super::selection::Selection;
use crate::bus::outbound::confirmed;
use crate::config::{BindingConfig, Config, Role};
use crate::names::Name;
use crate::restart::chain;

/// The note about a dead letter with credentials.
const REDACTED: &str = "its credentials are \"***\", because dead letters do not keep them";

/// Publishes to the sources of bindings, and reports what happens to each dead letter.
struct Resender<'a> {
    config: &'a Config,
    /// The bindings of the configuration, and those for misplaced answers.
    bindings: &'a [BindingConfig],
    /// The positions that the user has named, and that were not found yet.
    unseen: BTreeSet<&'a str>,
    connected: BTreeMap<&'a Name, AnyTransport>,
    output: Output,
    is_json: bool,
    is_dry: bool,
    resent: usize,
    skipped: usize,
    failed: usize,
}

/// What happens to a dead letter.
enum Fate {
    Resent,
    WouldBeResent,
    Skipped(String),
    Failed(TransportError),
}

/// Resends the selected dead letters.
///
/// # Errors
/// When the configuration is invalid, a bus cannot be reached, or one cannot be published.
pub(super) async fn run(selection: &Selection, is_dry: bool) -> anyhow::Result<Status> {
    let config = load(&selection.common.config.path)?;
    let bindings = [config.bindings.clone(), config.reply_bindings()].concat();
    let mut resender = Resender {
        config: &config,
        bindings: &bindings,
        unseen: selection.positions.iter().map(String::as_str).collect(),
        connected: BTreeMap::new(),
        output: Output::new(),
        is_json: selection.common.json,
        is_dry,
        resent: 0,
        skipped: 0,
        failed: 0,
    };
    // Nothing is sent before all arguments are right.
    if let Some(name) = selection
        .bindings
        .iter()
        .find(|name| !has_binding(&config, name))
    {
        return Err(Misuse(format!(
            "--binding: the configuration has no binding {name}, so its dead letters have no destination: correct the name, or pass a file that still has this binding with -c; `a2abus dead-letters ls` shows the bindings"
        )).into());
    }
    let mut places = Places::of(&config, &selection.bindings);
    places.check(&selection.positions)?;
    let unread = |error: anyhow::Error| match selection.bindings.is_empty() {
        true => anyhow!(
            "{error:#}; with --binding, only the bus with the dead letters of that binding is read"
        ),
        false => error,
    };
    while let Some(batch) = places.next().await.map_err(unread)? {
        let selected: Vec<&Letter> = batch.iter().filter(|it| selection.takes(it)).collect();
        resender.resend(&selected).await?;
        if resender.failed > 0 {
            break;
        }
    }
    resender.end(&places).await
}

// === impl Resender ===

impl<'a> Resender<'a> {
    /// Publishes them in order, until one fails. Each is confirmed and reported before the next one is sent: what follows
    /// a failure is not sent, and nothing is sent without a report.
    async fn resend(&mut self, letters: &[&Letter]) -> anyhow::Result<()> {
        for letter in letters {
            let is_named = self.unseen.remove(letter.position.as_str());
            let Some(binding) = self.binding_of(letter) else {
                // Another deployment has the same dead-letter topic.
                if is_named {
                    let why = "the configuration does not have its binding".to_owned();
                    self.report(letter, &Fate::Skipped(why))?;
                }
                continue;
            };
            let to = match address_of(letter, binding) {
                Ok(to) => to,
                Err(why) => {
                    self.report(letter, &Fate::Skipped(why))?;
                    continue;
                }
            };
            if self.is_dry {
                self.report(letter, &Fate::WouldBeResent)?;
                continue;
            }
            let transport = self.transport(&binding.transport).await?;
            let sent = match transport.send(&to, letter.message()).await {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(_) => self.report(letter, &Fate::Resent)?,
                Err(error) => return self.report(letter, &Fate::Failed(error)),
            }
        }
        Ok(())
    }

    fn binding_of(&self, letter: &Letter) -> Option<&'a BindingConfig> {
        let name = letter.binding()?;
        let mut bindings = self.bindings.iter();
        let binding = bindings.find(|binding| binding.name.as_str() == name)?;
        // Every deployment has a binding of this name for misplaced answers.
        let is_of_replies = binding.topics.is_empty() && binding.role == Role::Responses;
        let replies = self.config.calls.reply_topic.0.as_str();
        (!is_of_replies || letter.topic() == Some(replies)).then_some(binding)
    }

    async fn transport(&mut self, name: &'a Name) -> anyhow::Result<AnyTransport> {
        if let Some(transport) = self.connected.get(name) {
            return Ok(transport.clone());
        }
        let transport = connect(self.config, name).await?;
        self.connected.insert(name, transport.clone());
        Ok(transport)
    }

    fn report(&mut self, letter: &Letter, fate: &Fate) -> anyhow::Result<()> {
        let (what, why) = match fate {
            Fate::Resent => ("resent", None),
            Fate::WouldBeResent => ("would be resent", None),
            Fate::Skipped(why) => ("skipped", Some(why.clone())),
            Fate::Failed(error) => ("failed", Some(chain(error))),
        };
        match fate {
            Fate::Resent | Fate::WouldBeResent => self.resent += 1,
            Fate::Skipped(_) => self.skipped += 1,
            Fate::Failed(_) => self.failed += 1,
        }
        let is_sent = matches!(fate, Fate::Resent | Fate::WouldBeResent);
        let note = (is_sent && letter.is_redacted()).then_some(REDACTED);
        let topic = letter.topic().unwrap_or("-");
        if self.is_json {
            let line = json!({ "position": letter.position, "topic": topic, "result": what, "cause": why, "note": note });
            return self.output.line(json_line(&line));
        }
        let why = why.map(|why| format!(": {}", plain(&why)));
        let why = why.or_else(|| note.map(|note| format!(": {note}")));
        let (position, topic) = (plain(&letter.position), plain(topic));
        let why = why.unwrap_or_default();
        self.output
            .line(format!("{what}: {position} to {topic}{why}"))
    }

    /// Closes the connections.
    async fn end(self, places: &Places<'_>) -> anyhow::Result<Status> {
        for transport in self.connected.values() {
            reach::close(transport).await;
        }
        let what = match self.is_dry {
            true => "would be resent",
            false => "resent",
        };
        let resent = format!("{} {what}", count(self.resent, "dead letter"));
        if self.failed > 0 {
            bail!(
                "{resent}, {} failed: resend these and the later ones once the cause is repaired",
                self.failed
            );
        }
        for position in &self.unseen {
            let why = match places.missing(position) {
                Ok(why) => why,
                Err(misuse) if self.resent == 0 => return Err(misuse.into()),
                Err(misuse) => misuse.to_string(),
            };
            complain_line(&why);
        }
        if !self.is_json {
            complain_line(&resent);
        }
        Ok(match self.skipped + self.unseen.len() {
            0 => Status::Success,
            _ => Status::Failure,
        })
    }
}

/// Where a dead letter is published.
///
/// # Errors
/// Why it cannot be resent.
fn address_of(letter: &Letter, binding: &BindingConfig) -> Result<Address, String> {
    if letter.is_reduced() {
        return Err(
            "its body was too large for the dead-letter topic: read it at its origin".to_owned(),
        );
    }
    if letter.has_hops_in_body() {
        return Err(
            "its `hops` are in its body, which is not changed, so it would be refused again: raise `limits.max_hops`, or publish the event without `hops`"
                .to_owned(),
        );
    }
    if letter.has_expired_in_body() {
        return Err(
            "its `expirytime` has passed and is in its body, which is not changed, so it would be dropped: publish the event without `expirytime`"
                .to_owned(),
        );
    }
    // A request to an attached agent becomes a dead letter at these stages only if its answer cannot be published.
    if binding.role == Role::Agent && matches!(letter.stage(), Some("publish" | "route")) {
        return Err(
            "the attached agent has executed this request, and its answer could not be published: resending it would execute it again. To do that, publish it yourself, with a reply address that works"
                .to_owned(),
        );
    }
    let topic = letter.topic().unwrap_or_default();
    let topic = Topic::new(topic.to_owned()).map_err(|error| error.to_string())?;
    let mut to = Address::topic(topic);
    to.partition = letter.partition();
    if binding.stream.is_some() {
        // An answer goes to its requester, whose subject a stream need not store.
        if letter.is_answer() {
            to = confirmed(&to);
        } else {
            to.guarantee = Guarantee::Stored { message_id: None };
        }
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use a2abus_transports::memory::{FaultPlan, Memory};
    use a2abus_transports::{Headers, LogPosition, LogRecord, Reading, Subscription, TopicFilter};

    use super::*;

    const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
bindings: [{ name: in, transport: bus, topics: [in] }]
default_route: [{ transport: bus, topic: out }]
";

    fn letter(offset: u64, stage: &str, body: &str) -> Letter {
        let mut headers = Headers::new();
        for (name, value) in [
            ("bus-dlq-reason", "no_route"),
            ("bus-dlq-stage", stage),
            ("bus-dlq-binding", "in"),
            ("bus-dlq-topic", "in"),
        ] {
            headers.push(name, value.as_bytes().to_vec());
        }
        let record = LogRecord {
            position: LogPosition {
                partition: 0,
                offset,
            },
            time: 0,
            topic: None,
            key: None,
            headers,
            body: Some(body.to_owned().into()),
        };
        Letter::new(format!("k:dlq/0/{offset}"), record).unwrap()
    }

    #[test]
    fn a_dead_letter_tells_whether_its_credentials_were_replaced() {
        for (body, is_redacted) in [
            (
                r#"{"protocol_version":"1.0","auth":{"bearer_token":"***"}}"#,
                true,
            ),
            (r#"{"type":"handshake/req","auth_token":"***"}"#, true),
            (
                r#"{"protocol_version":"1.0","auth":{"method_id":"m"}}"#,
                false,
            ),
            (r#"{"jsonrpc":"2.0","params":{"auth_token":"***"}}"#, false),
            ("", false),
        ] {
            assert_eq!(
                letter(0, "route", body).is_redacted(),
                is_redacted,
                "{body}"
            );
        }
    }

    /// A bus that stores each message, and loses its confirmation.
    #[tokio::test]
    async fn nothing_is_resent_after_the_first_failure() {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let plan = FaultPlan {
            drop_confirmation: 1.0,
            ..FaultPlan::default()
        };
        let memory = Memory::with_faults(0, plan);
        let reading = Subscription {
            topics: vec![TopicFilter::new("in").unwrap()],
            reading: Reading::Group("test".into()),
            budget_bytes: 1 << 20,
            budget_messages: 10,
        };
        let mut sent = memory.subscribe(reading).await.unwrap();
        let transport = &config.bindings[0].transport;
        let mut resender = Resender {
            config: &config,
            bindings: &config.bindings,
            unseen: BTreeSet::new(),
            connected: BTreeMap::from([(transport, AnyTransport::Memory(memory))]),
            output: Output::new(),
            is_json: false,
            is_dry: false,
            resent: 0,
            skipped: 0,
            failed: 0,
        };
        let letters = [0, 1, 2].map(|offset| letter(offset, "route", "a message"));
        let letters: Vec<&Letter> = letters.iter().collect();
        resender.resend(&letters).await.unwrap();
        assert_eq!((resender.resent, resender.failed), (0, 1));
        let first = sent.recv().await.unwrap();
        assert!(sent.try_recv().is_none());
        drop(first);
    }

    #[test]
    fn an_answer_is_stored_only_if_a_stream_takes_it() {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let mut binding = config.bindings[0].clone();
        binding.stream = serde_json::from_str("\"requests\"").unwrap();
        let guarantee = |stage| {
            let to = address_of(&letter(0, stage, "a message"), &binding);
            to.unwrap().guarantee
        };
        let stored = Guarantee::Stored { message_id: None };
        assert_eq!(guarantee("route"), stored);
        let answer = guarantee("answer");
        assert!(
            matches!(answer, Guarantee::StoredIfAny { .. }),
            "{answer:?}"
        );
    }

    #[test]
    fn an_expired_event_that_cannot_be_changed_is_not_resent() {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let binding = &config.bindings[0];
        let is_resent = |stage, expiry: &str| {
            let body = format!(r#"{{"specversion":"1.0","expirytime":"{expiry}"}}"#);
            address_of(&letter(0, stage, &body), binding).is_ok()
        };
        assert!(!is_resent("route", "2020-01-01T00:00:00Z"));
        assert!(is_resent("route", "2999-01-01T00:00:00Z"));
        assert!(is_resent("answer", "2020-01-01T00:00:00Z"));
        let data = r#"{"expirytime":"2020-01-01T00:00:00Z"}"#;
        assert!(address_of(&letter(0, "route", data), binding).is_ok());
    }
}
