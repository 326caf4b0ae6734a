//! The arguments that `map` and `explain` share, and how they read payloads.
//!
//! ```text
//! FILE or standard input ── Documents ──> payload ── PayloadOptions::map_payload ──> Result<Mapped, Refusal> per unit
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::str::FromStr;

use a2abus_plugin::{
    DecodeErrorKind, Event, EventError, EventId, Family, Hint, Ids, Limits, MapContext, MapOptions,
    Mapped, Refused, Source, Text, Time, extension, map, wrap_unknown,
};
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::{Headers, Message};
use anyhow::Context as _;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::HeaderMap;
use serde_json::Value;

use super::command::Misuse;
use crate::calls::OVERRULED;
use crate::calls::reply_address::named_by;
use crate::clock;
use crate::config::{BindingConfig, Config, EventIds, MappingConfig, Role, check_mapping};
use crate::http::negotiate;
use crate::names::{DOOR, put};
use crate::pipeline::{ROUTING_ATTRIBUTES, fill_missing};

/// The payloads, and how they are read.
#[derive(Debug, Args)]
pub(crate) struct PayloadArgs {
    /// The family of the payloads. Messages without the usual markers of that family are then recognised too.
    #[arg(long, value_name = "FAMILY", value_parser = family)]
    family: Option<Family>,
    /// Refuse payloads of any other family.
    #[arg(long, requires = "family")]
    strict: bool,
    /// The media type of the payload: short for --header content-type=TYPE.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// A header of the message; ce-* headers make it a CloudEvent in binary mode.
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<Pair>,
    /// An option of the `mapping` section of a binding, such as type_prefix=x. or stream_mcptype=response.
    #[arg(long = "option", value_name = "NAME=VALUE")]
    options: Vec<Pair>,
    /// The time of the events: an RFC 3339 time, or `real`. By default the placeholder <now>.
    #[arg(long, value_name = "RFC3339|real", value_parser = now)]
    now: Option<Text>,
    /// Generated event ids: the fixed placeholder <new>, or random UUIDs.
    #[arg(long, value_enum, default_value_t)]
    ids: NewIds,
    /// Each line is one payload.
    #[arg(long)]
    lines: bool,
    /// The file to read; by default, or with `-`, standard input.
    file: Option<PathBuf>,
}

/// `NAME=VALUE`.
#[derive(Debug, Clone)]
struct Pair {
    name: String,
    value: String,
}

/// How new event ids are generated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum NewIds {
    /// The placeholder <new>, so that outputs can be compared.
    #[default]
    Stable,
    /// UUIDs.
    Random,
}

/// Where the payloads enter a bridge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryPoint<'a> {
    pub(crate) config: &'a Config,
    /// The binding; without it the HTTP listener.
    pub(crate) binding: Option<&'a BindingConfig>,
}

/// The options for reading payloads.
#[derive(Debug)]
pub(crate) struct PayloadOptions {
    hint: Hint,
    headers: Headers,
    limits: Limits,
    mapping: MappingConfig,
    options: MapOptions,
    source: Source,
    time: Time,
    id_rule: EventIds,
    ids: NewIds,
    /// Whether the payload is a request to the HTTP listener, whose events have the id of their call.
    is_http: bool,
}

/// A unit that was refused, by detection or as a CloudEvent of the transport.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) index: usize,
    pub(crate) kind: DecodeErrorKind,
    /// The reason of the dead letter.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) pointer: String,
    pub(crate) offset: usize,
    pub(crate) bytes: Bytes,
    /// Whether its sender waits for an error of its own family.
    pub(crate) has_sender: bool,
}

/// The result for one unit.
pub(crate) type UnitResult = Result<Box<Mapped>, Refusal>;

/// The payloads, one after the other.
pub(crate) struct Documents {
    input: Box<dyn BufRead>,
    framing: Framing,
    max_bytes: usize,
}

enum Framing {
    /// One payload per line.
    Lines,
    /// One payload, which has not been read yet.
    Whole,
    /// Nothing is left.
    Done,
}

// === impl PayloadArgs ===

impl PayloadArgs {
    /// How to read payloads: as the given binding does, if there is one; the arguments take precedence.
    ///
    /// # Errors
    /// [`Misuse`] for an option that does not exist or has a wrong value.
    pub(crate) fn options_at(
        &self,
        entry: Option<EntryPoint<'_>>,
    ) -> Result<PayloadOptions, Misuse> {
        let mut payload_options = entry.map_or_else(PayloadOptions::anywhere, PayloadOptions::at);
        for Pair { name, value } in &self.options {
            payload_options.set_option(name, value)?;
        }
        if self.family.is_some() {
            payload_options.hint.family = self.family;
            payload_options.hint.strict = self.strict;
        }
        let content_type = self
            .content_type
            .as_deref()
            .map(|value| ("content-type", value));
        let headers = self
            .headers
            .iter()
            .map(|pair| (pair.name.as_str(), pair.value.as_str()));
        for (name, value) in content_type.into_iter().chain(headers) {
            payload_options.hint.header(name, value);
            payload_options
                .headers
                .push(name, Bytes::copy_from_slice(value.as_bytes()));
        }
        if let Some(now) = &self.now {
            payload_options.time =
                Time::new(now.clone()).map_err(|error| Misuse(error.to_string()))?;
        }
        payload_options.ids = self.ids;
        Ok(payload_options)
    }

    /// Opens the input.
    ///
    /// # Errors
    /// [`Misuse`] when the file cannot be opened.
    pub(crate) fn documents(&self, payload_options: &PayloadOptions) -> Result<Documents, Misuse> {
        let input: Box<dyn BufRead> = match &self.file {
            Some(path) if path.as_os_str() != "-" => {
                let file = File::open(path).map_err(|error| {
                    Misuse(format!("{} cannot be read: {error}", path.display()))
                })?;
                Box::new(BufReader::new(file))
            }
            _ => Box::new(io::stdin().lock()),
        };
        let framing = if self.lines {
            Framing::Lines
        } else {
            Framing::Whole
        };
        Ok(Documents {
            input,
            framing,
            max_bytes: payload_options.limits.max_bytes,
        })
    }
}

/// With `-` for `_` too, as the specifications write some families.
fn family(name: &str) -> Result<Family, String> {
    let names = Family::ALL.map(Family::as_str).join(", ");
    Family::from_name(&name.replace('-', "_")).ok_or_else(|| format!("expected one of {names}"))
}

pub(super) fn now(text: &str) -> Result<Text, String> {
    if text == "real" {
        return Ok(clock::rfc3339(clock::now()));
    }
    Time::new(text).map(Text::from).map_err(|_| {
        "expected an RFC 3339 time, such as 2026-02-03T04:05:06Z, or the word real".to_owned()
    })
}

/// The time of events without one; it is shown as the word <now>.
const TIME_PLACEHOLDER: &str = "0001-01-01T00:00:00Z";

/// Shown in place of the position of a message.
pub(crate) const POSITION_PLACEHOLDER: &str = "<position>";

/// Shown in place of the id of a call over HTTP.
const CALL_PLACEHOLDER: &str = "<call>";

/// The address of the caller in the `source` of a call over HTTP.
const LOCAL_CALLER: &str = "127.0.0.1";

/// The value of an attribute as it is printed.
pub(crate) fn display_value(value: &str) -> &str {
    if value == TIME_PLACEHOLDER {
        "<now>"
    } else {
        value
    }
}

fn fixed_event_id(placeholder: &str) -> EventId {
    EventId::new(placeholder).unwrap_or_else(|_| clock::new_event_id())
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => Ok(Self {
                name: name.trim().to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("expected NAME=VALUE".to_owned()),
        }
    }
}

// === impl EntryPoint ===

impl EntryPoint<'_> {
    /// The value of `binding` in routes.
    pub(crate) fn name(&self) -> &str {
        self.binding.map_or(DOOR, |binding| binding.name.as_str())
    }

    /// The `source` of its events.
    pub(crate) fn source(&self) -> Source {
        let configured = |binding: &BindingConfig| binding.mapping.source.clone();
        let own = || {
            let source = format!("/a2abus/{}/{}", self.config.instance, self.name());
            Text::from(match self.binding {
                Some(_) => source,
                None => format!("{source}/{LOCAL_CALLER}"),
            })
        };
        let source = self.binding.and_then(configured).unwrap_or_else(own);
        // A configuration that was loaded has no other sources.
        Source::new(source).unwrap_or_default()
    }
}

// === impl PayloadOptions ===

impl PayloadOptions {
    fn anywhere() -> Self {
        Self {
            hint: Hint::default(),
            headers: Headers::new(),
            limits: Limits::default(),
            mapping: MappingConfig::default(),
            options: MapOptions::default(),
            source: Source::new("/a2abus/map").unwrap_or_default(),
            time: Time::new(TIME_PLACEHOLDER).unwrap_or_else(|_| clock::time()),
            id_rule: EventIds::Payload,
            ids: NewIds::default(),
            is_http: false,
        }
    }

    fn at(entry: EntryPoint<'_>) -> Self {
        let mut payload_options = Self {
            limits: Limits::from(&entry.config.limits),
            source: entry.source(),
            is_http: entry.binding.is_none(),
            ..Self::anywhere()
        };
        let Some(binding) = entry.binding else {
            payload_options.hint = negotiate::hint(&HeaderMap::new());
            return payload_options;
        };
        payload_options.hint = binding.hint();
        // A configuration that was loaded has no other sources.
        let set = payload_options.set_mapping(binding.mapping.clone());
        debug_assert!(set.is_ok());
        payload_options.id_rule = binding.mapping.ids;
        match binding.role {
            Role::Workflows => {
                payload_options.hint.executor = Some(entry.config.workflows.agent.clone());
            }
            // Answers may be of any family. The binding declares only whether it trusts E2A records.
            Role::Responses => {
                let trusts_e2a = payload_options.hint.trusts_e2a();
                payload_options.hint = Hint::default();
                payload_options.hint.e2a_trusted = trusts_e2a;
            }
            Role::Events | Role::Discovery | Role::Agent => {}
        }
        payload_options
    }

    /// Sets an option of the `mapping` section of a binding.
    fn set_option(&mut self, name: &str, value: &str) -> Result<(), Misuse> {
        let member = match name {
            "e2a.stream_mcptype" => "stream_mcptype".to_owned(),
            name => name.replace('.', "_"),
        };
        let wrong = |why: &dyn std::fmt::Display| Misuse(format!("--option {name}={value}: {why}"));
        let written = match value {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            text => Value::from(text),
        };
        let mut mapping = serde_json::to_value(&self.mapping).map_err(|error| wrong(&error))?;
        if let Some(members) = mapping.as_object_mut() {
            members.insert(member, written);
        }
        let read = serde_json::from_value(mapping.clone()).map_err(|error| wrong(&error))?;
        check_mapping(&mapping).map_err(|why| wrong(&why))?;
        self.set_mapping(read).map_err(|error| wrong(&error))?;
        if name == "ids" {
            self.id_rule = self.mapping.ids;
        }
        Ok(())
    }

    fn set_mapping(&mut self, mapping: MappingConfig) -> Result<(), EventError> {
        if let Some(source) = &mapping.source {
            self.source = Source::new(source.clone())?;
        }
        self.options = MapOptions::from(&mapping);
        mapping.add_to(&mut self.hint);
        self.mapping = mapping;
        Ok(())
    }

    /// Reads one payload: as a CloudEvent if its headers say so, otherwise by detection. Only an empty batch of
    /// CloudEvents has no result.
    pub(crate) fn map_payload(&self, payload: &Bytes) -> Vec<UnitResult> {
        let message = self.message(payload);
        let binding = self.binding();
        if let Some(batch) = content_mode::read_batch(&message, &self.limits).transpose() {
            let events = match batch {
                Ok(events) => events,
                Err(error) => vec![Err(error)],
            };
            let numbered = events.into_iter().enumerate();
            return numbered
                .map(|(index, event)| outcome_of(index, event, payload))
                .collect();
        }
        match content_mode::read(binding, &message, &self.limits) {
            Ok(Content::Event(event)) => vec![outcome_of(0, Ok(event), payload)],
            Err(error) => vec![outcome_of(0, Err(error), payload)],
            Ok(Content::Plain { body, .. }) => {
                let context = self.context();
                let units = map(&body, &self.hint, &self.limits, &self.options, &context);
                units
                    .into_iter()
                    .map(|unit| unit.map(Box::new).map_err(Refusal::from))
                    .collect()
            }
        }
    }

    /// The event that `on_unknown` makes of a payload of no known family.
    pub(crate) fn wrapped(&self, bytes: &Bytes) -> Event {
        wrap_unknown(bytes, 0, &self.options, &self.context())
    }

    /// What is known about the payloads.
    pub(crate) fn hint(&self) -> &Hint {
        &self.hint
    }

    /// The message of a payload.
    pub(crate) fn message(&self, payload: &Bytes) -> Message {
        Message {
            key: None,
            headers: self.headers.clone(),
            body: Some(payload.clone()),
        }
    }

    /// The reply address that a request names.
    pub(crate) fn reply_address(&self, event: &Event) -> Option<Text> {
        named_by(event, &self.message(&Bytes::new())).map(|(name, _)| name)
    }

    /// Fills in the missing routing attributes of an event from its data, as the bridge does with `fill_from_data`.
    /// Returns their names.
    pub(crate) fn fill_from_data(&self, event: &mut Event) -> Vec<&'static str> {
        let missing: Vec<_> = ROUTING_ATTRIBUTES
            .into_iter()
            .filter(|name| event.attribute(name).is_none())
            .collect();
        if let Some(inside) = self.inside(event, &self.hint) {
            fill_missing(event, &inside.event);
        }
        let is_filled = |name: &&str| event.attribute(name).is_some();
        missing.into_iter().filter(is_filled).collect()
    }

    /// The data of an event, mapped, if they are one message.
    pub(crate) fn inside(&self, event: &Event, hint: &Hint) -> Option<Mapped> {
        let context = self.context();
        let units = map(&event.body(), hint, &self.limits, &self.options, &context);
        units.into_only().ok()?.ok()
    }

    /// Overrides the attributes of a CloudEvent that callers over HTTP may not choose, as the bridge does.
    pub(crate) fn override_claims(&self, event: &mut Event) {
        put(event, "source", Text::from(self.source.clone()));
        put(event, "id", Text::from(fixed_event_id(CALL_PLACEHOLDER)));
        let has_expiry = clock::expiry(event).is_some();
        let is_kept = |name: &str| name == extension::EXPIRY_TIME && has_expiry;
        for name in OVERRULED.into_iter().filter(|name| !is_kept(name)) {
            event.remove(name);
        }
    }

    /// Gives an event the id that the bridge gives to the unit at this index of a message.
    pub(crate) fn set_position(&self, event: &mut Event, index: usize) {
        let id = format!("{POSITION_PLACEHOLDER}#{index}");
        put(event, "id", Text::from(id));
    }

    /// The source of event ids: as the binding configures it, otherwise the payload. Over HTTP it is the call.
    fn event_ids(&self) -> Ids<'static> {
        if self.is_http {
            return Ids::Fresh(&|| fixed_event_id(CALL_PLACEHOLDER));
        }
        let new: &dyn Fn() -> EventId = match self.ids {
            NewIds::Stable => &|| fixed_event_id("<new>"),
            NewIds::Random => &clock::new_event_id,
        };
        match self.id_rule {
            EventIds::Position => Ids::Given(fixed_event_id(POSITION_PLACEHOLDER)),
            EventIds::Fresh => Ids::Fresh(new),
            EventIds::Payload => Ids::Payload(new),
        }
    }

    fn context(&self) -> MapContext<'_> {
        MapContext {
            source: self.source.clone(),
            time: Some(self.time.clone()),
            ids: self.event_ids(),
        }
    }

    /// Headers with the prefix of Kafka are read as Kafka's, others as HTTP's.
    pub(crate) fn binding(&self) -> ProtocolBinding {
        if self
            .headers
            .iter()
            .any(|header| header.name.starts_with("ce_"))
        {
            ProtocolBinding::Kafka
        } else {
            ProtocolBinding::Http
        }
    }
}

/// A payload that the transport marks as a CloudEvent: rule 1 of detection.
fn outcome_of(index: usize, event: Result<Event, EventError>, payload: &Bytes) -> UnitResult {
    let event = event.map_err(|error| Refusal {
        index,
        kind: DecodeErrorKind::BadCloudEvent,
        code: error.kind().as_str(),
        message: error.to_string(),
        pointer: match error.attribute() {
            "" => String::new(),
            attribute => format!("/{attribute}"),
        },
        offset: 0,
        bytes: payload.clone(),
        has_sender: false,
    })?;
    let bytes = payload.clone();
    Ok(Box::new(Mapped::of_event(index, bytes, event)))
}

// === impl Refusal ===

impl Refusal {
    /// Whether the transport marks it as a CloudEvent, whose reasons are not those of detection.
    pub(crate) fn is_of_event(&self) -> bool {
        self.code != self.kind.as_str()
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self {
            index: refused.index,
            kind: refused.error.kind(),
            code: refused.error.kind().as_str(),
            message: refused.error.to_string(),
            pointer: refused.error.pointer().to_owned(),
            offset: refused.error.offset(),
            bytes: refused.bytes,
            has_sender: refused.sender.is_some(),
        }
    }
}

// === impl Documents ===

impl Documents {
    /// The next payload; `None` after the last. If a payload is too large, only one byte more than the limit is read,
    /// which is enough to refuse it.
    ///
    /// # Errors
    /// When reading fails.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        match self.framing {
            Framing::Done => Ok(None),
            Framing::Lines => self.line().context("reading failed"),
            Framing::Whole => {
                self.framing = Framing::Done;
                let mut payload = Vec::new();
                self.bounded(1)
                    .read_to_end(&mut payload)
                    .context("reading failed")?;
                Ok(Some(payload.into()))
            }
        }
    }

    fn line(&mut self) -> io::Result<Option<Bytes>> {
        let mut line = Vec::new();
        // Room for a line end after the longest line.
        if self.bounded(3).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        } else {
            self.input.skip_until(b'\n')?;
        }
        Ok(Some(line.into()))
    }

    fn bounded(&mut self, more: usize) -> io::Take<&mut Box<dyn BufRead>> {
        let limit = self.max_bytes.saturating_add(more);
        self.input
            .by_ref()
            .take(u64::try_from(limit).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2abus_plugin::{Notifications, Streams};

    #[test]
    fn every_option_of_the_mapping_can_be_set() {
        let mut payload_options = PayloadOptions::anywhere();
        for (name, value) in [
            ("type_prefix", "x."),
            ("source", "/x"),
            ("notifications", "as_requests"),
            ("e2a.stream_mcptype", "response"),
            ("executor", "runner"),
            ("validate_workflows", "true"),
            ("e2a.shapes", "strict"),
            ("e2a.trusted", "true"),
            ("strict_ids", "true"),
        ] {
            payload_options.set_option(name, value).unwrap();
        }
        assert_eq!(
            (
                &*payload_options.options.type_prefix,
                &*payload_options.source
            ),
            ("x.", "/x")
        );
        assert_eq!(
            payload_options.options.notifications,
            Notifications::AsRequests
        );
        assert_eq!(payload_options.options.streams, Streams::AsResponses);
        assert_eq!(payload_options.hint.executor.as_deref(), Some("runner"));
        let hint = &payload_options.hint;
        let flags = [
            hint.validate_workflows,
            hint.e2a_versions_only,
            hint.e2a_trusted,
            hint.strict_ids,
        ];
        assert_eq!(flags, [true; 4]);
        for (name, value) in [
            ("type_prefix", "a b"),
            ("source", ""),
            ("notifications", "never"),
            ("strict_ids", "yes"),
            ("colour", "red"),
        ] {
            assert!(
                payload_options.set_option(name, value).is_err(),
                "{name}={value}"
            );
        }
    }

    #[test]
    fn lines_are_bounded_and_cut_at_their_ends() {
        let text: &'static [u8] = b"a\r\n\n123456789\nlast";
        let mut documents = Documents {
            input: Box::new(text),
            framing: Framing::Lines,
            max_bytes: 4,
        };
        let mut read = Vec::new();
        while let Some(line) = documents.next().unwrap() {
            read.push(line);
        }
        assert_eq!(read, ["a", "", "1234567", "last"]);
    }
}
