//! Restores the order of an exchange: records arrive in any order, replies leave in sequence.
//!
//! ```text
//! open ── first final record ──> answered ── close ──> closed
//!  parts, in order                late parts            late
//! ```
//!
//! This module has no clock: the owner calls [`Fold::release`] when records were held back for
//! long enough, and [`Fold::close`] at the end of the grace period after the answer.

use std::collections::BTreeMap;

use crate::e2a::parts::Trust;
use crate::e2a::reply::{CallMode, Caller, Folded, Reply, part_for, reply_for};
use crate::e2a::response::E2aResponse;
use crate::e2a::write::{Form, json_bytes};
use crate::json::Object;

/// The sequence number of a keepalive.
const KEEPALIVE: i64 = -1;

/// The limits of an exchange. Source: docs/protocols/e2a.md §3 and §10.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoldLimits {
    /// The maximum number of records held back for an earlier one (default 256).
    pub max_held_records: usize,
    /// The maximum size of held records in bytes of JSON (default 8 MiB).
    pub max_held_bytes: usize,
    /// The maximum size of the collected text, and of a collected whole answer (default 6 MiB).
    pub max_folded_bytes: usize,
}

impl Default for FoldLimits {
    fn default() -> Self {
        Self {
            max_held_records: 256,
            max_held_bytes: 8 << 20,
            max_folded_bytes: 6 << 20,
        }
    }
}

/// The result of one record. Source: docs/protocols/e2a.md §10.3.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FoldStep {
    /// The role of the record.
    pub kind: FoldStepKind,
    /// Its sequence number.
    pub sequence: i64,
    /// The reply to the caller, if any.
    pub message: Option<Object>,
    /// Whether records are missing: directly before a part, or anywhere before an answer.
    pub gap: bool,
}

wire_enum! {
    /// The role of a record in its exchange. Source: docs/protocols/e2a.md §10.3.
    FoldStepKind {
        /// A part, in sequence.
        Part = "part",
        /// The record that decides the outcome.
        Answer = "answer",
        /// A record after the answer, within the grace period.
        LatePart = "late_part",
        /// An empty end after the answer.
        Sentinel = "sentinel",
        /// A record after the exchange is closed: a dead letter.
        Late = "late",
        /// A keepalive.
        Keepalive = "keepalive",
        /// An unsolicited record, outside the sequence.
        Push = "push",
        /// A record with a sequence number that was already used: it is dropped.
        Duplicate = "duplicate",
        /// A record that waits for an earlier one.
        Held = "held",
    }
}

/// Puts the records of one exchange in order for its caller.
/// Source: docs/protocols/e2a.md §10.3 and §10.4.
///
/// ```
/// use a2abus_models::e2a::{CallMode, Caller, E2aResponse, Fold, FoldLimits, Trust};
/// use a2abus_models::Json;
/// use a2abus_plugin::Limits;
///
/// let caller = Caller { id: None, mode: CallMode::Unary };
/// let mut fold = Fold::new(caller, Trust::Untrusted, FoldLimits::default());
/// let record = r#"{"sequence":0,"response_kind":"e2a.complete","is_final":true,"body":{"result":{"a":1}}}"#;
/// let record = Json::parse(record.as_bytes(), &Limits::default()).unwrap();
/// let steps = fold.take(E2aResponse::parse(&record).unwrap());
/// let answer = steps[0].message.as_ref().unwrap();
/// assert_eq!(answer.to_string(), r#"{"jsonrpc":"2.0","id":null,"result":{"a":1}}"#);
/// ```
#[derive(Debug)]
pub struct Fold {
    caller: Caller,
    trust: Trust,
    limits: FoldLimits,
    phase: Phase,
    /// The next expected sequence number.
    next: u64,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    folded: Folded,
    /// The number of parts that went into `folded`.
    collected: u32,
    duplicates: u64,
    gapped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Answered,
    Closed,
}

#[derive(Debug)]
struct Held {
    record: E2aResponse,
    bytes: usize,
}

impl Fold {
    /// An exchange without records. Pushes are accepted only from a trusted peer.
    #[must_use]
    pub fn new(caller: Caller, trust: Trust, limits: FoldLimits) -> Self {
        Self {
            caller,
            trust,
            limits,
            phase: Phase::Open,
            next: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            folded: Folded::new(limits.max_folded_bytes),
            collected: 0,
            duplicates: 0,
            gapped: false,
        }
    }

    /// Whether the caller has its answer.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.phase != Phase::Open
    }

    /// The sequence number of the first missing record, if others wait for it.
    #[must_use]
    pub fn missing(&self) -> Option<u64> {
        (!self.held.is_empty()).then_some(self.next)
    }

    /// The size of the held records and of the collected parts, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held_bytes + self.folded.bytes()
    }

    /// How many parts were collected for a caller of one answer. Questions do not count.
    #[must_use]
    pub fn collected(&self) -> u32 {
        self.collected
    }

    /// How many records were dropped because their sequence number was already used.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Adds a record without a sequence number ([`E2aResponse::has_sequence`]) when it arrives, so it is never a
    /// duplicate. Only the first record counts as 0; a later one takes no number from a record that has it. A final one
    /// comes after those that wait. Source: docs/protocols/e2a.md §10.3.
    pub fn append(&mut self, mut record: E2aResponse) -> Vec<FoldStep> {
        if self.is_push(&record) {
            return vec![self.push(&record)];
        }
        if record.is_keepalive() {
            return vec![step(FoldStepKind::Keepalive, &record)];
        }
        let last_held = self.held.last_key_value().map(|(last, _)| *last);
        let (place, is_numbered) = match last_held {
            Some(last) if record.is_final => (last.saturating_add(1), true),
            _ => (self.next, self.next == 0),
        };
        record.sequence = i64::try_from(place).unwrap_or(i64::MAX);
        match is_numbered {
            true => self.add_at(place, record),
            false => vec![self.deliver(&record, false)],
        }
    }

    /// Adds a record with a sequence number. Returns the results of this record and of those that waited for it.
    /// Source: docs/protocols/e2a.md §10.3.
    pub fn take(&mut self, record: E2aResponse) -> Vec<FoldStep> {
        if self.is_push(&record) {
            return vec![self.push(&record)];
        }
        match u64::try_from(record.sequence) {
            Err(_) if record.sequence != KEEPALIVE => self.duplicate(&record),
            Err(_) if !record.is_final => vec![step(FoldStepKind::Keepalive, &record)],
            // A final record without a sequence number comes after all others.
            Err(_) => {
                let mut steps = self.release();
                steps.push(self.deliver(&record, false));
                steps
            }
            Ok(place) => self.add_at(place, record),
        }
    }

    /// Releases the held records, in order and with gaps marked, when the wait for the missing
    /// ones is over. Source: docs/protocols/e2a.md §10.3.
    pub fn release(&mut self) -> Vec<FoldStep> {
        let mut steps = Vec::with_capacity(self.held.len());
        while self.release_first(&mut steps) {}
        steps
    }

    /// Ends the exchange: held records are released, and all later records are late. Source: docs/protocols/e2a.md
    /// §10.3.
    pub fn close(&mut self) -> Vec<FoldStep> {
        let steps = self.release();
        self.phase = Phase::Closed;
        self.discard_parts();
        steps
    }

    fn add_at(&mut self, place: u64, record: E2aResponse) -> Vec<FoldStep> {
        if place < self.next || self.held.contains_key(&place) {
            return self.duplicate(&record);
        }
        if self.phase == Phase::Closed {
            return vec![step(FoldStepKind::Late, &record)];
        }
        if place > self.next {
            return self.hold(place, record);
        }
        let mut steps = vec![self.deliver(&record, false)];
        self.next = place + 1;
        self.drain(&mut steps);
        steps
    }

    fn hold(&mut self, place: u64, record: E2aResponse) -> Vec<FoldStep> {
        let bytes = json_bytes(&record.to_object(Form::Compact)) + json_bytes(&record.extras);
        let mut steps = vec![step(FoldStepKind::Held, &record)];
        self.held_bytes += bytes;
        self.held.insert(place, Held { record, bytes });
        while self.held.len() > self.limits.max_held_records
            || self.held_bytes > self.limits.max_held_bytes
        {
            if !self.release_first(&mut steps) {
                break;
            }
        }
        steps
    }

    /// Skips the gap before the first held record. Returns whether there was one.
    fn release_first(&mut self, steps: &mut Vec<FoldStep>) -> bool {
        let Some((place, held)) = self.held.pop_first() else {
            return false;
        };
        self.held_bytes -= held.bytes;
        self.gapped = true;
        steps.push(self.deliver(&held.record, true));
        self.next = place + 1;
        self.drain(steps);
        true
    }

    /// Delivers the held records that are now in sequence.
    fn drain(&mut self, steps: &mut Vec<FoldStep>) {
        while let Some(held) = self.held.remove(&self.next) {
            self.held_bytes -= held.bytes;
            self.next += 1;
            steps.push(self.deliver(&held.record, false));
        }
    }

    fn deliver(&mut self, record: &E2aResponse, gap: bool) -> FoldStep {
        let (kind, reply) = match self.phase {
            Phase::Open if record.is_final => {
                self.phase = Phase::Answered;
                let reply = reply_for(&self.caller, record, &self.folded);
                self.discard_parts();
                (FoldStepKind::Answer, reply)
            }
            Phase::Open => {
                if self.caller.mode == CallMode::Unary {
                    self.folded.absorb(record);
                    let is_part = !record.is_question();
                    self.collected = self.collected.saturating_add(is_part.into());
                }
                (FoldStepKind::Part, part_for(&self.caller, record))
            }
            Phase::Answered if record.is_sentinel() => (FoldStepKind::Sentinel, Reply::Nothing),
            Phase::Answered => (FoldStepKind::LatePart, part_for(&self.caller, record)),
            Phase::Closed => (FoldStepKind::Late, Reply::Nothing),
        };
        FoldStep {
            message: message(reply),
            gap: gap || (kind == FoldStepKind::Answer && self.gapped),
            ..step(kind, record)
        }
    }

    fn duplicate(&mut self, record: &E2aResponse) -> Vec<FoldStep> {
        self.duplicates += 1;
        vec![step(FoldStepKind::Duplicate, record)]
    }

    fn is_push(&self, record: &E2aResponse) -> bool {
        self.trust == Trust::Trusted && record.is_server_push()
    }

    fn push(&self, record: &E2aResponse) -> FoldStep {
        FoldStep {
            message: message(part_for(&self.caller, record)),
            ..step(FoldStepKind::Push, record)
        }
    }

    fn discard_parts(&mut self) {
        self.folded = Folded::new(self.limits.max_folded_bytes);
    }
}

fn step(kind: FoldStepKind, record: &E2aResponse) -> FoldStep {
    FoldStep {
        kind,
        sequence: record.sequence,
        message: None,
        gap: false,
    }
}

fn message(reply: Reply) -> Option<Object> {
    match reply {
        Reply::Nothing => None,
        Reply::Part(message) | Reply::Answer(message) => Some(message),
    }
}
