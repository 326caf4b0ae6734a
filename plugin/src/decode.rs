//! From bytes to envelopes: framing, then one unit after the other.
//!
//! ```text
//! payload ── framing ──> one object │ batch │ lines ── detect ──> family ── parse ──> Envelope
//! ```
//!
//! Everything happens in one pass over the bytes; a unit that is refused never takes its siblings with it, as long as
//! the JSON around it is whole. Source: `detection` section 1.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::detect::{Because, Facts, Member, Nested, ResultMarks, Wrapped, repeated};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::format;
use crate::json::{Kind, Reader, Span, unescape};
use crate::limits::Limits;
use crate::protocol::dialect::{self, Dialect};
use crate::protocol::jsonrpc::{Call, Id, JsonRpc, Part, RpcBody};
use crate::protocol::legacy::Legacy;
use crate::protocol::{Envelope, Family, MAX_ID_BYTES, is_method, is_target, is_topic};
use crate::text::{Text, check_utf8};

/// What the transport and the binding say about a payload before anybody reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    framing: Framing,
    dialect: Option<Dialect>,
    /// The one family the binding is declared to carry and demands; payloads of others are refused.
    pub only: Option<Family>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Framing {
    /// Told by the bytes.
    #[default]
    Auto,
    /// One value per line, whatever the bytes look like.
    Lines,
}

/// One unit of a payload, decoded. `B` is what a stage made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Which unit of the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, shared with the payload. A payload that is one object is its own unit, surrounding
    /// white space included.
    pub bytes: Bytes,
    /// Why it is of its family.
    pub because: Because,
    /// What it says.
    pub envelope: Envelope,
}

/// One unit of a payload, refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Which unit of the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit; of the payload where it has no units.
    pub bytes: Bytes,
    /// Why.
    pub error: DecodeError,
    /// The JSON-RPC id to answer with, where there is one beyond doubt.
    pub id: Option<Id>,
}

/// The units of a payload in order, at least one.
pub type Units = Vec<Result<Unit, Refused>>;

// === impl Hint ===

impl Hint {
    /// Notes a header that came with the payload: content type, A2A version headers. Others say nothing.
    /// Source: `detection` section 1, `a2a-http` section 3.4.
    pub fn header(&mut self, name: &str, value: &str) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-type") {
            let media_type = value
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase();
            let lines = [
                "application/x-ndjson",
                "application/ndjson",
                "application/jsonl",
                "application/x-jsonlines",
            ];
            if lines.contains(&media_type.as_str()) {
                self.framing = Framing::Lines;
            }
        } else if name.eq_ignore_ascii_case("a2a-version") {
            self.dialect = match value.split('.').next() {
                Some("1") => Some(Dialect::A2a10),
                Some("0") => Some(Dialect::A2a03),
                _ => self.dialect,
            };
        } else if name.eq_ignore_ascii_case("x-a2a-version")
            || (name.eq_ignore_ascii_case("x-a2a-client") && value.starts_with("jaf-"))
        {
            self.dialect = self.dialect.or(Some(Dialect::JafDoc));
        }
    }
}

/// Decodes a payload into its units.
///
/// Total: every byte string gives at least one unit, decoded or refused. Bodies are shared, not copied.
/// Source: `detection` sections 1 and 2.
#[must_use]
pub fn decode(payload: &Bytes, hint: &Hint, limits: &Limits) -> Units {
    let mut decoder = Decoder {
        payload,
        hint,
        limits,
        units: Vec::with_capacity(1),
    };
    match decoder.run() {
        Ok(()) => decoder.units,
        Err(error) => vec![Err(Refused {
            index: 0,
            bytes: payload.clone(),
            error,
            id: None,
        })],
    }
}

/// U+FEFF, which some writers put before JSON. Source: `a2a-http` section 6.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

struct Decoder<'a> {
    payload: &'a Bytes,
    hint: &'a Hint,
    limits: &'a Limits,
    units: Units,
}

// === impl Decoder ===

impl Decoder<'_> {
    fn run(&mut self) -> Result<(), DecodeError> {
        let bytes = self.payload.as_ref();
        self.limits.check_bytes(bytes)?;
        check_utf8(bytes)?;
        let mut reader = Reader::new(bytes, self.limits);
        if bytes.starts_with(BYTE_ORDER_MARK) {
            reader.seek(BYTE_ORDER_MARK.len());
        }
        reader.skip_white_space();
        match reader.peek() {
            None => Err(DecodeError::new(
                DecodeErrorKind::Empty,
                bytes.len(),
                "the payload is empty",
            )),
            Some(_) if self.hint.framing == Framing::Lines => self.lines(&mut reader),
            Some(b'[') => self.batch(&mut reader),
            Some(_) => self.document(&mut reader),
        }
    }

    /// One object, or the first line of several.
    fn document(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let value = Facts::read(reader)?;
        let line_ended = skip_to_line_end(reader);
        reader.skip_white_space();
        if reader.peek().is_none() {
            self.push(self.payload.clone(), 0, &value);
            return Ok(());
        }
        if !line_ended {
            return Err(reader.not_json("more text after the JSON value"));
        }
        let start = value.span.start();
        self.push(self.payload.slice(value.span.range()), start, &value);
        self.lines(reader)
    }

    /// A JSON array: every element is a unit.
    fn batch(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let start = reader.position();
        reader.array(|reader| {
            let value = Facts::read(reader)?;
            self.check_count(reader.position())?;
            self.push(
                self.payload.slice(value.span.range()),
                value.span.start(),
                &value,
            );
            Ok(())
        })?;
        reader.skip_white_space();
        if reader.peek().is_some() {
            return Err(reader.not_json("more text after the JSON array"));
        }
        if self.units.is_empty() {
            return Err(DecodeError::new(
                DecodeErrorKind::EmptyBatch,
                start,
                "a batch must not be empty",
            ));
        }
        Ok(())
    }

    /// One value per line. A line that is not JSON is refused alone; it never reaches into the next one, so that every
    /// byte is read once.
    fn lines(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let mut at = reader.position();
        while let Some(rest) = self.payload.get(at..).filter(|rest| !rest.is_empty()) {
            let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let end = at + length;
            reader.resume(at, end);
            reader.skip_white_space();
            let start = reader.position();
            if reader.peek().is_some() {
                self.check_count(start)?;
                match read_line(reader) {
                    Ok(value) => {
                        self.push(self.payload.slice(value.span.range()), start, &value);
                    }
                    Err(error) => {
                        let line = self.payload.get(start..end).unwrap_or_default();
                        let end = start + line.trim_ascii_end().len();
                        self.refuse(self.payload.slice(start..end), error, None);
                    }
                }
            }
            at = end + 1;
        }
        Ok(())
    }

    fn check_count(&self, offset: usize) -> Result<(), DecodeError> {
        if self.units.len() < self.limits.max_units {
            return Ok(());
        }
        let message = format!("more than {} units", self.limits.max_units);
        Err(DecodeError::new(DecodeErrorKind::TooLarge, offset, message))
    }

    fn refuse(&mut self, bytes: Bytes, error: DecodeError, id: Option<Id>) {
        self.units.push(Err(Refused {
            index: self.units.len(),
            bytes,
            error,
            id,
        }));
    }

    /// Judges one unit; `start` is where `bytes` begin in the payload.
    fn push(&mut self, bytes: Bytes, start: usize, facts: &Facts) {
        if facts.span.kind != Kind::Object {
            let error = DecodeError::new(
                DecodeErrorKind::NotAnObject,
                facts.span.start(),
                "not a JSON object",
            );
            return self.refuse(bytes, error, None);
        }
        let parser = Parser {
            payload: self.payload,
            base: start,
            facts,
            hint: self.hint,
        };
        match parser.envelope(&bytes, self.limits) {
            Ok((because, envelope)) => {
                let index = self.units.len();
                self.units.push(Ok(Unit {
                    index,
                    bytes,
                    because,
                    envelope,
                }));
            }
            Err(error) => {
                let id = match error.kind() {
                    DecodeErrorKind::DuplicateMember | DecodeErrorKind::BadId => None,
                    _ if facts.member(Member::Jsonrpc).is_none() => None,
                    _ if facts.refuse_repeated(&[Member::Id]).is_err() => None,
                    _ => parser.id().ok().flatten(),
                };
                self.refuse(bytes, error, id);
            }
        }
    }
}

/// Reads the one value of a line, which the reader does not reach beyond.
fn read_line(reader: &mut Reader<'_>) -> Result<Facts, DecodeError> {
    let facts = Facts::read(reader)?;
    reader.skip_white_space();
    if reader.peek().is_some() {
        return Err(reader.not_json("more text after the JSON value of this line"));
    }
    Ok(facts)
}

/// Skips to the end of the line; whether nothing but white space was there.
fn skip_to_line_end(reader: &mut Reader<'_>) -> bool {
    while let Some(b' ' | b'\t' | b'\r') = reader.peek() {
        reader.seek(reader.position() + 1);
    }
    matches!(reader.peek(), None | Some(b'\n'))
}

/// Turns the facts of one object into its envelope.
struct Parser<'a> {
    payload: &'a Bytes,
    /// Where the unit's bytes begin in the payload.
    base: usize,
    facts: &'a Facts,
    hint: &'a Hint,
}

/// The members that must not occur twice in JSON-RPC. Source: `eventmesh-a2a` D10.
const JSONRPC_MEMBERS: [Member; 6] = [
    Member::Jsonrpc,
    Member::Id,
    Member::Method,
    Member::Params,
    Member::Result,
    Member::Error,
];

/// The same for legacy messages: the members that decide or route.
const LEGACY_MEMBERS: [Member; 5] = [
    Member::Protocol,
    Member::MessageType,
    Member::SourceAgent,
    Member::TargetAgent,
    Member::Metadata,
];

// === impl Parser ===

impl Parser<'_> {
    fn envelope(&self, bytes: &Bytes, limits: &Limits) -> Result<(Because, Envelope), DecodeError> {
        let Some(because) = self.facts.family(self.payload)? else {
            let message = "no protocol recognises this object: no jsonrpc, specversion or protocol member that names one";
            return Err(DecodeError::new(
                DecodeErrorKind::Unknown,
                self.facts.span.start(),
                message,
            ));
        };
        if let Some(only) = self.hint.only
            && only != because.family
        {
            let message = format!(
                "this binding carries {} only, the payload is {}",
                only.as_str(),
                because.family.as_str()
            );
            return Err(DecodeError::new(
                DecodeErrorKind::WrongFamily,
                self.facts.span.start(),
                message,
            ));
        }
        let envelope = match because.family {
            Family::CloudEvent => Envelope::CloudEvent(self.cloud_event(bytes, limits)?),
            Family::JsonRpc => Envelope::JsonRpc(self.json_rpc()?),
            Family::Legacy => Envelope::Legacy(self.legacy()?),
            Family::A2eMessage | Family::A2eWorkflow | Family::E2a => {
                return Err(DecodeError::new(
                    DecodeErrorKind::Unknown,
                    self.facts.span.start(),
                    "not supported",
                ));
            }
        };
        Ok((because, envelope))
    }

    fn cloud_event(
        &self,
        bytes: &Bytes,
        limits: &Limits,
    ) -> Result<crate::event::Event, DecodeError> {
        let trimmed = if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.slice(BYTE_ORDER_MARK.len()..)
        } else {
            bytes.clone()
        };
        format::read(&trimmed, limits).map_err(|error| {
            let pointer = if error.attribute().is_empty() {
                String::new()
            } else {
                format!("/{}", error.attribute())
            };
            DecodeError::new(
                DecodeErrorKind::BadCloudEvent,
                self.facts.span.start(),
                error.to_string(),
            )
            .at(pointer)
        })
    }

    fn json_rpc(&self) -> Result<JsonRpc, DecodeError> {
        let facts = self.facts;
        facts.refuse_repeated(&JSONRPC_MEMBERS)?;
        let id = self.id()?;
        let (method, result, error) = (
            facts.member(Member::Method),
            facts.member(Member::Result),
            facts.member(Member::Error),
        );
        match (method, result, error) {
            (Some(method), None, None) => self.call(method, id),
            (None, Some(_), None) => {
                let dialect = result_dialect(&facts.result, self.payload);
                Ok(JsonRpc {
                    body: RpcBody::Result(part_of(&facts.result, self.payload)),
                    id,
                    dialect,
                })
            }
            (None, None, Some(error)) => self.error_response(error, id),
            (None, Some(_), Some(_)) => Err(self.refused(
                DecodeErrorKind::BothResultAndError,
                error,
                "/error",
                "both result and error",
            )),
            (Some(method), _, _) => {
                let message = "a method together with a result or an error";
                Err(self.refused(DecodeErrorKind::Invalid, Some(method), "/method", message))
            }
            (None, None, None) => Err(self.refused(
                DecodeErrorKind::Invalid,
                None,
                "",
                "neither method nor result nor error",
            )),
        }
    }

    fn refused(
        &self,
        kind: DecodeErrorKind,
        span: Option<Span>,
        pointer: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> DecodeError {
        DecodeError::new(kind, span.unwrap_or(self.facts.span).start(), message).at(pointer)
    }

    fn id(&self) -> Result<Option<Id>, DecodeError> {
        let Some(span) = self.facts.member(Member::Id) else {
            return Ok(None);
        };
        let refuse =
            |message| Err(self.refused(DecodeErrorKind::BadId, Some(span), "/id", message));
        match span.kind {
            Kind::String | Kind::Number | Kind::Null => {}
            Kind::Object | Kind::Array | Kind::Boolean => {
                return refuse("an id is a string, a number or null");
            }
        }
        if span.range().len() > MAX_ID_BYTES {
            return refuse("the id is longer than 1024 bytes");
        }
        let id = Id::new(self.slice(span.range()), span.start() - self.base);
        let legal = id.is_null()
            || id
                .text()
                .is_some_and(|text| text.chars().all(crate::event::is_string_char));
        if legal {
            Ok(Some(id))
        } else {
            refuse("the id holds a control character or half a surrogate pair")
        }
    }

    fn call(&self, method: Span, id: Option<Id>) -> Result<JsonRpc, DecodeError> {
        let facts = self.facts;
        let method = self.method(method, "/method")?;
        let hinted = self.hint.dialect;
        let dialect = match dialect::of_method(&method, facts.params) {
            Dialect::A2a03 => match hinted {
                Some(Dialect::JafDoc) => Dialect::JafDoc,
                _ => Dialect::A2a03,
            },
            dialect => dialect,
        };
        if let Some(params) = facts.member(Member::Params) {
            let legal = match params.kind {
                Kind::Object | Kind::Null => true,
                Kind::Array => !dialect.needs_object_params(),
                Kind::String | Kind::Number | Kind::Boolean => false,
            };
            if !legal {
                let message = "params of this method must be an object";
                return Err(self.refused(
                    DecodeErrorKind::BadParams,
                    Some(params),
                    "/params",
                    message,
                ));
            }
        }
        let target = self.name(
            facts.agent_id,
            DecodeErrorKind::BadTarget,
            "/params/_agentId",
            is_target,
        )?;
        let topic = self.name(
            facts.topic,
            DecodeErrorKind::BadTopic,
            "/params/_topic",
            is_topic,
        )?;
        let seq = self.seq()?;
        Ok(JsonRpc {
            body: RpcBody::Call(Call {
                method,
                target,
                topic,
                seq,
            }),
            id,
            dialect,
        })
    }

    /// A word that becomes `a2amethod` and part of `type`. Source: `eventmesh-a2a` D11, for every family `detection`
    /// section 3.
    fn method(&self, span: Span, pointer: &'static str) -> Result<Text, DecodeError> {
        let message =
            "a method is a string of 1 to 256 characters without spaces or control characters";
        self.text(span)
            .filter(|text| is_method(text))
            .ok_or_else(|| self.refused(DecodeErrorKind::BadMethod, Some(span), pointer, message))
    }

    /// A name that routing uses: a string that passes the check, or an error that says which member. Source: D6.
    fn name(
        &self,
        nested: Nested,
        kind: DecodeErrorKind,
        pointer: &'static str,
        check: fn(&str) -> bool,
    ) -> Result<Option<Text>, DecodeError> {
        let Some(span) = single(nested, pointer)? else {
            return Ok(None);
        };
        let message = "must be a string of letters, digits and . _ - / : @ + without \"..\", not empty, not too long";
        self.text(span)
            .filter(|text| check(text))
            .map(Some)
            .ok_or_else(|| self.refused(kind, Some(span), pointer, message))
    }

    fn seq(&self) -> Result<Option<Text>, DecodeError> {
        const POINTER: &str = "/params/_seq";
        let Some(span) = single(self.facts.seq, POINTER)? else {
            return Ok(None);
        };
        self.scalar(span).map(Some).ok_or_else(|| {
            self.refused(
                DecodeErrorKind::BadSeq,
                Some(span),
                POINTER,
                "must be a short string or a number",
            )
        })
    }

    fn error_response(&self, error: Span, id: Option<Id>) -> Result<JsonRpc, DecodeError> {
        let facts = self.facts;
        let code = facts
            .error_code
            .filter(|span| span.kind == Kind::Number)
            .map(|span| self.slice(span.range()));
        let has_message = facts
            .error_message
            .is_some_and(|span| span.kind == Kind::String);
        match code.filter(|token| !token.contains(['.', 'e', 'E']) && has_message) {
            Some(token) => {
                let dialect = if facts.error_data_is_list {
                    Dialect::A2a10
                } else {
                    Dialect::JsonRpc
                };
                Ok(JsonRpc {
                    body: RpcBody::Error(token.parse().ok()),
                    id,
                    dialect,
                })
            }
            None => {
                let message = "an error has an integer code and a string message";
                Err(self.refused(DecodeErrorKind::BadError, Some(error), "/error", message))
            }
        }
    }

    fn legacy(&self) -> Result<Legacy, DecodeError> {
        let facts = self.facts;
        facts.refuse_repeated(&LEGACY_MEMBERS)?;
        let message_type = facts
            .member(Member::MessageType)
            .filter(|span| span.kind != Kind::Null)
            .map(|span| self.method(span, "/messageType"))
            .transpose()?;
        let source_agent = self.optional(
            single(facts.source_agent_id, "/sourceAgent/agentId")?,
            "/sourceAgent/agentId",
        )?;
        let target_agent = self.name(
            facts.target_agent_id,
            DecodeErrorKind::BadTarget,
            "/targetAgent/agentId",
            is_target,
        )?;
        let correlation = single(facts.correlation_id, "/metadata/correlationId")?;
        let correlation_id = self.optional(correlation, "/metadata/correlationId")?;
        Ok(Legacy {
            message_type,
            source_agent,
            target_agent,
            correlation_id,
        })
    }

    /// A scalar that becomes an attribute; null counts as absent.
    fn optional(
        &self,
        span: Option<Span>,
        pointer: &'static str,
    ) -> Result<Option<Text>, DecodeError> {
        let Some(span) = span.filter(|span| span.kind != Kind::Null) else {
            return Ok(None);
        };
        self.scalar(span).map(Some).ok_or_else(|| {
            self.refused(
                DecodeErrorKind::BadMember,
                Some(span),
                pointer,
                "must be a short string or a number",
            )
        })
    }

    /// The text of a string or the token of a number, when it can be an attribute.
    fn scalar(&self, span: Span) -> Option<Text> {
        let text = match span.kind {
            Kind::String => self.text(span)?,
            Kind::Number => self.slice(span.range()),
            Kind::Object | Kind::Array | Kind::Boolean | Kind::Null => return None,
        };
        let legal = (1..=MAX_ID_BYTES).contains(&text.len())
            && text.chars().all(crate::event::is_string_char);
        legal.then_some(text)
    }

    /// The text of a string value.
    fn text(&self, span: Span) -> Option<Text> {
        if span.kind != Kind::String {
            return None;
        }
        let raw = self.payload.get(span.inside_quotes())?;
        if raw.contains(&b'\\') {
            return unescape(raw).map(Text::from);
        }
        Some(self.slice(span.inside_quotes()))
    }

    /// Text that shares the payload's bytes.
    fn slice(&self, range: Range<usize>) -> Text {
        Text::from_utf8(self.payload.slice(range)).unwrap_or_default()
    }
}

fn single(nested: Nested, pointer: &'static str) -> Result<Option<Span>, DecodeError> {
    match nested {
        Nested::Absent => Ok(None),
        Nested::Once(span) => Ok(Some(span)),
        Nested::Twice(span) => {
            let name = pointer.rsplit('/').next().unwrap_or(pointer);
            Err(repeated(name, pointer.to_owned(), Some(span)))
        }
    }
}

fn inside(span: Option<Span>, document: &[u8]) -> Option<&[u8]> {
    let span = span.filter(|span| span.kind == Kind::String)?;
    document.get(span.inside_quotes())
}

/// The dialect a result shows by its shape. Source: `a2a-http` section 6.
fn result_dialect(marks: &ResultMarks, document: &[u8]) -> Dialect {
    match inside(marks.kind, document) {
        Some(b"completion" | b"partial-completion" | b"error") => Dialect::JafDoc,
        Some(b"task" | b"message" | b"status-update" | b"artifact-update") => Dialect::A2a03,
        _ if marks.mcp => Dialect::Mcp,
        _ if marks.wrapped.is_some() => Dialect::A2a10,
        _ => Dialect::JsonRpc,
    }
}

/// Whether more parts follow a result. Source: `a2a-http` sections 2.5, 3.2.
fn part_of(marks: &ResultMarks, document: &[u8]) -> Part {
    let unfinished = |part| {
        if inside(marks.state, document).is_some_and(is_last_state) {
            Part::Final
        } else {
            part
        }
    };
    if let Some(is_final) = marks.is_final {
        return if is_final { Part::Final } else { Part::Partial };
    }
    match (inside(marks.kind, document), marks.wrapped) {
        (Some(b"artifact-update" | b"partial-completion"), _)
        | (_, Some(Wrapped::ArtifactUpdate)) => Part::Partial,
        (Some(b"status-update"), _) | (_, Some(Wrapped::StatusUpdate)) => unfinished(Part::Partial),
        (Some(b"task"), _) | (_, Some(Wrapped::Task)) => unfinished(Part::Snapshot),
        _ => Part::Final,
    }
}

/// States in which an agent says nothing more of its own accord: terminal, or waiting for the caller.
fn is_last_state(state: &[u8]) -> bool {
    const LAST: [&str; 6] = [
        "completed",
        "canceled",
        "cancelled",
        "failed",
        "rejected",
        "input_required",
    ];
    let Ok(state) = std::str::from_utf8(state) else {
        return false;
    };
    let word = state
        .strip_prefix("TASK_STATE_")
        .unwrap_or(state)
        .to_ascii_lowercase()
        .replace('-', "_");
    LAST.contains(&word.as_str()) || word == "auth_required"
}
