//! Decodes bytes into units: first framing, then each unit.
//!
//! ```text
//! payload ── framing ──> one object │ batch │ lines ── detect ──> family ── parse ──> Unit
//! ```
//!
//! Everything happens in one pass over the bytes. A refused unit does not affect the others, as long as the JSON around
//! it is complete. The lines of an A2E workflow are one unit, so one bad line refuses all. Source:
//! docs/protocols/detection.md §1.

mod a2e_message;
mod a2e_workflow;
mod draft;
mod e2a;
mod jsonrpc;
mod legacy;
mod parser;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::decode::a2e_workflow::Lines;
use crate::decode::parser::Parser;
use crate::detect::{Detection, Facts, MemberPath};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::event::Event;
use crate::extension;
use crate::hint::{Framing, Hint};
use crate::json::{BYTE_ORDER_MARK, Kind as JsonKind, Reader, check_utf8};
use crate::limits::Limits;
use crate::protocol::jsonrpc::{Id, JsonRpc, splice};
use crate::protocol::{Draft, Family, Kind};
use crate::text::Text;

/// One unit of a payload, decoded.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unit {
    /// The index of the unit in the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, shared with the payload. A payload of one object is one unit, including surrounding
    /// white space.
    pub bytes: Bytes,
    /// Its family, and the rule that detected it.
    pub detection: Detection,
    /// The JSON-RPC message, if it is one.
    pub json_rpc: Option<JsonRpc>,
    pub(crate) draft: Draft,
}

/// One unit of a payload, refused.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The index of the unit in the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, or of the payload if it has no units.
    pub bytes: Bytes,
    /// Why.
    pub error: DecodeError,
    /// The JSON-RPC id for the answer, if it is known for certain.
    pub id: Option<Id>,
    /// Its sender, if it is a message of another family than JSON-RPC.
    pub sender: Option<Box<RefusedSender>>,
}

/// The sender of a refused message, who understands errors of its own family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedSender {
    /// The family of the message: A2E messages, A2E workflows, E2A or legacy A2A.
    pub family: Family,
    /// The id of the message, which the error repeats, if it can be read. Of a workflow, the `collaborationid` that its
    /// event would have.
    pub id: Option<Text>,
    /// Whether the sender waits for an answer. It does not if the message is an answer itself (an error about it could
    /// cause an endless exchange), or the end of a connection.
    pub expects_answer: bool,
}

/// The units of a payload in order, at least one. `U` is the result of a stage for each unit. A single unit is stored
/// inline, because nearly every payload has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Units<U = Unit> {
    /// The only unit.
    only: Option<Result<U, Refused>>,
    /// All units, if there are several.
    several: Vec<Result<U, Refused>>,
}

/// Decodes a payload into its units.
///
/// Total: every byte string yields at least one unit, decoded or refused. Bodies are shared, not copied. Source:
/// docs/protocols/detection.md §1 and §2.
#[must_use]
pub fn decode(payload: &Bytes, hint: &Hint, limits: &Limits) -> Units {
    let mut units = Units::empty();
    decode_into(&mut units, payload, hint, limits, &mut |unit| unit);
    units
}

/// Like [`decode`], with `stage` applied to each unit as soon as it is decoded.
pub(crate) fn decode_into<U>(
    units: &mut Units<U>,
    payload: &Bytes,
    hint: &Hint,
    limits: &Limits,
    stage: &mut impl FnMut(Unit) -> U,
) {
    let decoded = text_of(payload, limits).and_then(|text| {
        let mut decoder = Decoder {
            payload,
            hint,
            limits,
            stage,
            facts: &mut Facts::new(text),
            lines: None,
            units,
        };
        decoder.run()
    });
    if let Err(error) = decoded {
        units.clear();
        units.push(Err(Refused {
            index: 0,
            bytes: payload.clone(),
            error,
            id: None,
            sender: None,
        }));
    }
}

fn text_of<'a>(payload: &'a Bytes, limits: &Limits) -> Result<&'a str, DecodeError> {
    limits.check_bytes(payload)?;
    check_utf8(payload)
}

struct Decoder<'a, 'b, U, S> {
    payload: &'a Bytes,
    hint: &'a Hint,
    limits: &'a Limits,
    stage: &'a mut S,
    facts: &'a mut Facts<'b>,
    /// The workflow lines read so far; `None` after a line of another family, and if the payload is not lines.
    lines: Option<Lines>,
    units: &'a mut Units<U>,
}

// === impl Decoder ===

impl<U, S: FnMut(Unit) -> U> Decoder<'_, '_, U, S> {
    fn run(&mut self) -> Result<(), DecodeError> {
        let bytes = self.payload.as_ref();
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
        let start = reader.position();
        if let Err(error) = self.facts.read(reader) {
            self.refuse_all(reader, start, error);
            return Ok(());
        }
        let line_ended = skip_to_line_end(reader);
        reader.skip_white_space();
        if reader.peek().is_none() {
            self.push(self.payload.clone(), 0);
            return Ok(());
        }
        // Indented JSON is not a line, and neither is what follows it.
        let first = self.payload.get(self.facts.span.range());
        let is_line = line_ended && !first.is_some_and(|first| first.contains(&b'\n'));
        if !is_line {
            let why = match line_ended {
                true => {
                    "more text after a JSON value of several lines (write one value per line, or an array)"
                }
                false => "more text after the JSON value",
            };
            let error = reader.not_json(why);
            if line_ended {
                let sender = self.sender_of_broken(&error);
                self.refuse(self.payload.clone(), error, None, sender);
            } else {
                self.refuse_all(reader, start, error);
            }
            return Ok(());
        }
        self.lines = Some(Lines::default());
        self.push_value();
        self.rest_of_lines(reader)
    }

    /// Refuses the payload because its first value, which begins at `start`, cannot be read. If further lines are those
    /// of a workflow, this is a workflow with a line that cannot be read, and its requester gets the number of the line.
    #[cold]
    fn refuse_all(&mut self, reader: &mut Reader<'_>, start: usize, error: DecodeError) {
        let sender = self.sender_of_broken(&error);
        let read = self.payload.get(start..error.offset()).unwrap_or_default();
        // Indented JSON is not a line, and neither is what is in it.
        let is_line = !read.trim_ascii_end().contains(&b'\n');
        if sender.is_none() && is_line {
            reader.seek(start);
            let is_read = self.lines(reader).is_ok();
            if is_read && self.units.is_refused_workflow() {
                return;
            }
            self.lines = None;
            self.units.clear();
        }
        self.refuse(self.payload.clone(), error, None, sender);
    }

    /// A JSON array: every element is a unit.
    fn batch(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let start = reader.position();
        reader.array(|reader| {
            self.facts.read(reader)?;
            self.check_count(reader.position())?;
            self.push_value();
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

    fn lines(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.lines = Some(Lines::default());
        self.rest_of_lines(reader)
    }

    /// One value per line. A line that is not JSON is refused without affecting the others, unless the others are a
    /// workflow. Reading never crosses a line end, so every byte is read once.
    fn rest_of_lines(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let mut at = reader.position();
        while let Some(rest) = self.payload.get(at..).filter(|rest| !rest.is_empty()) {
            let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let end = at + length;
            reader.resume(at, end);
            reader.skip_white_space();
            let start = reader.position();
            if reader.peek().is_some() {
                self.check_count(start)?;
                match self.read_line(reader) {
                    Ok(()) => self.push_value(),
                    Err(error) => {
                        let line = self.payload.get(start..end).unwrap_or_default();
                        let end = start + line.trim_ascii_end().len();
                        let sender = self.sender_of_broken(&error);
                        self.note_broken(&error, sender.as_deref());
                        self.refuse(self.payload.slice(start..end), error, None, sender);
                    }
                }
            }
            at = end + 1;
        }
        self.join_workflow();
        Ok(())
    }

    /// Joins the lines into one unit if they are a workflow.
    fn join_workflow(&mut self) {
        let lines = self.lines.take().filter(|_| self.units.len() > 1);
        let Some((mut lines, detection)) = lines.and_then(Lines::into_workflow) else {
            return;
        };
        self.units.clear();
        if let Some(error) = lines.refusal.take() {
            let sender = RefusedSender {
                family: Family::A2eWorkflow,
                id: lines.collaboration_id(self.hint),
                expects_answer: true,
            };
            return self.refuse(self.payload.clone(), error, None, Some(Box::new(sender)));
        }
        let unit = Unit {
            index: 0,
            bytes: self.payload.clone(),
            detection,
            json_rpc: None,
            draft: lines.draft(self.hint),
        };
        self.units.push(Ok((self.stage)(unit)));
    }

    /// Notes a refused line, which is not recognised as one of a workflow. Unless it belongs to another family, it may
    /// still be one: without it, the others would be another workflow than the one that was sent.
    #[cold]
    fn note_broken(&mut self, error: &DecodeError, sender: Option<&RefusedSender>) {
        use DecodeErrorKind as K;
        let may_be_workflow = match error.kind() {
            K::WrongFamily => true,
            K::NotJson | K::TooDeep | K::TooLarge | K::NotAnObject | K::Unknown => sender.is_none(),
            _ => false,
        };
        match &mut self.lines {
            Some(lines) if may_be_workflow => {
                let before = self.payload.get(..error.offset()).unwrap_or_default();
                lines.refuse(before, error);
            }
            lines => *lines = None,
        }
    }

    /// Reads the only value of a line; the reader is limited to the line.
    fn read_line(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.facts.read(reader)?;
        reader.skip_white_space();
        if reader.peek().is_some() {
            return Err(reader.not_json("more text after the JSON value of this line"));
        }
        Ok(())
    }

    fn check_count(&self, offset: usize) -> Result<(), DecodeError> {
        if self.units.len() < self.limits.max_units {
            return Ok(());
        }
        let message = format!(
            "more than {} elements or lines (limits.max_units): send them in parts",
            self.limits.max_units
        );
        Err(DecodeError::new(DecodeErrorKind::TooLarge, offset, message))
    }

    fn refuse(
        &mut self,
        bytes: Bytes,
        error: DecodeError,
        id: Option<Id>,
        sender: Option<Box<RefusedSender>>,
    ) {
        self.units.push(Err(Refused {
            index: self.units.len(),
            bytes,
            error,
            id,
            sender,
        }));
    }

    /// The sender of an A2E request that is not JSON, from the members before the error. The type of other messages
    /// does not tell whether they are answers, which get no error.
    #[cold]
    fn sender_of_broken(&self, error: &DecodeError) -> Option<Box<RefusedSender>> {
        let ty = self.facts.text(MemberPath::Type)?;
        if error.kind() != DecodeErrorKind::NotJson || !ty.ends_with("/req") {
            return None;
        }
        let parser = Parser {
            base: 0,
            facts: self.facts,
            hint: self.hint,
        };
        parser
            .sender()
            .filter(|sender| sender.family == Family::A2eMessage)
    }

    /// Adds the value as a unit with exactly its bytes.
    fn push_value(&mut self) {
        let span = self.facts.span;
        self.push(self.payload.slice(span.range()), span.start());
    }

    /// Detects and decodes the value, and adds it as a unit; `start` is the offset of the unit's `bytes` in the
    /// payload.
    fn push(&mut self, bytes: Bytes, start: usize) {
        let facts = &*self.facts;
        if facts.span.kind() != JsonKind::Object {
            let at = facts.span.start();
            let error = DecodeError::new(DecodeErrorKind::NotAnObject, at, "not a JSON object");
            self.note_broken(&error, None);
            return self.refuse(bytes, error, None, None);
        }
        let parser = Parser {
            base: start,
            facts,
            hint: self.hint,
        };
        match parser.draft(&bytes, self.limits, &mut self.lines) {
            Ok((detection, json_rpc, draft)) => {
                let index = self.units.len();
                let unit = Unit {
                    index,
                    bytes,
                    detection,
                    json_rpc,
                    draft,
                };
                self.units.push(Ok((self.stage)(unit)));
            }
            Err(error) => {
                let id = match error.kind() {
                    DecodeErrorKind::DuplicateMember | DecodeErrorKind::BadId => None,
                    _ if !facts.has(MemberPath::Jsonrpc) => None,
                    _ if facts.refuse_repeated(&[MemberPath::Id]).is_err() => None,
                    _ => parser.id().ok().flatten(),
                };
                let sender = parser.sender();
                // A line that executors ignore refuses no workflow.
                let is_ignored = self.lines.is_some()
                    && error.kind() == DecodeErrorKind::Unknown
                    && parser.is_ignored_line();
                if !is_ignored && !parser.is_workflow_line() {
                    self.note_broken(&error, sender.as_deref());
                }
                self.refuse(bytes, error, id, sender);
            }
        }
    }
}

/// Skips to the end of the line. Returns whether there was only white space.
fn skip_to_line_end(reader: &mut Reader<'_>) -> bool {
    while let Some(b' ' | b'\t' | b'\r') = reader.peek() {
        reader.seek(reader.position() + 1);
    }
    matches!(reader.peek(), None | Some(b'\n'))
}

// === impl Unit ===

impl Unit {
    /// A unit for an event that was not a single body, for example in binary mode.
    #[must_use]
    pub fn of_event(event: Event) -> Self {
        Self {
            index: 0,
            bytes: event.body(),
            detection: Detection::EVENT,
            json_rpc: None,
            draft: Draft::of_event(event),
        }
    }

    /// Replaces values of the payload, such as a name that means something else to the recipient. Only for values that
    /// no attribute of the event is made of, because the event stays as it is.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn replace(
        &mut self,
        mut edits: Vec<(Range<usize>, String)>,
        limits: &Limits,
    ) -> Result<(), DecodeError> {
        // From the end, so that earlier positions stay valid.
        edits.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        for (span, text) in edits {
            if let Some(message) = &mut self.json_rpc {
                message.shift(span.start, text.len(), span.len());
            }
            self.bytes = splice(&self.bytes, span, &text);
        }
        limits.check_bytes(&self.bytes)
    }

    /// The event, if the unit is a CloudEvent.
    #[must_use]
    pub fn event(&self) -> Option<&Event> {
        self.draft.form.is_none().then_some(&self.draft.event)
    }

    /// Its role in the exchange.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.draft.kind
    }

    /// The `a2amethod` that its event will have: the method of a JSON-RPC call.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.extension_text(extension::A2A_METHOD).map(Text::as_str)
    }

    /// The value of this extension on its event, as text.
    #[must_use]
    pub fn extension_text(&self, name: &str) -> Option<&Text> {
        self.draft.event.extension_text(name)
    }
}

/// Omits the payload, which can be large and confidential.
impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit")
            .field("index", &self.index)
            .field("bytes", &self.bytes.len())
            .field("because", &self.detection)
            .finish_non_exhaustive()
    }
}

// === impl Refused ===

/// Omits the payload, which can be large and confidential.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("index", &self.index)
            .field("bytes", &self.bytes.len())
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

// === impl Units ===

impl<U> Units<U> {
    pub(crate) const fn empty() -> Self {
        Self {
            only: None,
            several: Vec::new(),
        }
    }

    /// Inlined, so that a unit is built in place.
    #[inline(always)]
    fn push(&mut self, unit: Result<U, Refused>) {
        if self.only.is_none() && self.several.is_empty() {
            self.only = Some(unit);
        } else {
            self.several.extend(self.only.take());
            self.several.push(unit);
        }
    }

    fn clear(&mut self) {
        *self = Self::empty();
    }

    /// Whether they are a workflow with a line that cannot be read.
    fn is_refused_workflow(&self) -> bool {
        let Some(Err(Refused { sender, .. })) = &self.only else {
            return false;
        };
        let family = sender.as_ref().map(|sender| sender.family);
        family == Some(Family::A2eWorkflow)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Result<U, Refused>> {
        self.only.iter_mut().chain(&mut self.several)
    }

    /// The number of members.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is always one.
    pub fn len(&self) -> usize {
        (**self).len()
    }

    /// The only unit.
    ///
    /// # Errors
    /// All units, if there are several.
    pub fn into_only(self) -> Result<Result<U, Refused>, Self> {
        match self.only {
            Some(unit) => Ok(unit),
            None => Err(self),
        }
    }
}

impl<U> From<Result<U, Refused>> for Units<U> {
    fn from(unit: Result<U, Refused>) -> Self {
        Self {
            only: Some(unit),
            several: Vec::new(),
        }
    }
}

impl<U> std::ops::Deref for Units<U> {
    type Target = [Result<U, Refused>];

    fn deref(&self) -> &Self::Target {
        match &self.only {
            Some(unit) => std::slice::from_ref(unit),
            None => &self.several,
        }
    }
}

impl<U> IntoIterator for Units<U> {
    type Item = Result<U, Refused>;
    type IntoIter = IntoIter<U>;

    fn into_iter(self) -> IntoIter<U> {
        IntoIter {
            only: self.only,
            several: self.several.into_iter(),
        }
    }
}

/// An iterator over the units. See [`Units`].
#[derive(Debug)]
pub struct IntoIter<U> {
    only: Option<Result<U, Refused>>,
    several: std::vec::IntoIter<Result<U, Refused>>,
}

impl<U> Iterator for IntoIter<U> {
    type Item = Result<U, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        self.only.take().or_else(|| self.several.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = usize::from(self.only.is_some()) + self.several.len();
        (count, Some(count))
    }
}

impl<U> ExactSizeIterator for IntoIter<U> {}
