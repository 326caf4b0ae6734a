//! Finds the call of an answer without `req_id`.
//! Source: docs/protocols/a2e-messages.md §5.2.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::json::Json;
use a2abus_plugin::DecodeError;
use a2abus_plugin::Kind;
use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::json::{Reader, Span};
use a2abus_plugin::protocol::a2e_message::{kind, operation};

/// The open calls of one connection, by operation and in order. Each operation takes logarithmic
/// time.
#[derive(Debug)]
pub struct CallMatcher {
    max_calls: usize,
    /// The sequence number of the next call.
    next: u64,
    calls: HashMap<Text, Call>,
    /// The ids of open calls by operation, the oldest first.
    by_operation: HashMap<Text, BTreeMap<u64, Text>>,
}

#[derive(Debug)]
struct Call {
    operation: Text,
    number: u64,
}

/// Why a call was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The maximum number of calls is open.
    #[error("too many calls are open")]
    Full,
    /// A call with this id is already open.
    #[error("a call with this id is already open")]
    AlreadyOpen,
}

/// The result for a message from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// The message needed no change.
    Unchanged,
    /// The message had no `req_id`, which was added.
    Completed {
        /// The id of the call.
        req_id: Text,
        /// The line; all other bytes are unchanged.
        line: Bytes,
    },
    /// An answer without `req_id`, while no call of its operation is open.
    Unmatched,
}

// === impl CallMatcher ===

impl CallMatcher {
    /// A connection without open calls; at most `max_calls` may be open at a time.
    #[must_use]
    pub fn new(max_calls: usize) -> Self {
        Self {
            max_calls,
            next: 0,
            calls: HashMap::new(),
            by_operation: HashMap::new(),
        }
    }

    /// The number of open calls.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Registers a sent request.
    ///
    /// # Errors
    /// The call is not registered: too many are open, or one with this id.
    pub fn open(&mut self, type_name: &str, id: &Text) -> Result<(), OpenError> {
        if self.calls.contains_key(id) {
            return Err(OpenError::AlreadyOpen);
        }
        if self.calls.len() >= self.max_calls {
            return Err(OpenError::Full);
        }
        let number = self.next;
        self.next += 1;
        let operation = Text::from(operation(type_name));
        let same = self.by_operation.entry(operation.clone()).or_default();
        same.insert(number, id.clone());
        self.calls.insert(id.clone(), Call { operation, number });
        Ok(())
    }

    /// Ends a call: by its answer, by its deadline, or because nobody waits for it.
    pub fn close(&mut self, id: &str) {
        let Some(call) = self.calls.remove(id) else {
            return;
        };
        let Some(same) = self.by_operation.get_mut(&call.operation) else {
            return;
        };
        same.remove(&call.number);
        if same.is_empty() {
            self.by_operation.remove(&call.operation);
        }
    }

    /// Processes a message from the peer. An answer ends its call; an answer without `req_id` (empty counts as
    /// none) belongs to the oldest open call of the same operation.
    ///
    /// # Errors
    /// The line is not a JSON object. Its call stays open.
    pub fn match_message(
        &mut self,
        type_name: &str,
        req_id: &str,
        line: &Bytes,
    ) -> Result<Matched, DecodeError> {
        if kind(type_name, req_id) != Kind::Response {
            return Ok(Matched::Unchanged);
        }
        if !req_id.is_empty() {
            self.close(req_id);
            return Ok(Matched::Unchanged);
        }
        let same = self.by_operation.get(operation(type_name));
        let oldest = same.and_then(BTreeMap::first_key_value);
        let Some(req_id) = oldest.map(|(_, id)| id.clone()) else {
            return Ok(Matched::Unmatched);
        };
        let line = with_req_id(line, &req_id)?;
        self.close(&req_id);
        Ok(Matched::Completed { req_id, line })
    }
}

/// The line with this `req_id`: replaced if it has one, otherwise added as the last member.
fn with_req_id(line: &Bytes, req_id: &Text) -> Result<Bytes, DecodeError> {
    let mut limits = Limits::default();
    limits.max_members = u32::MAX;
    let mut found: Option<Span> = None;
    let mut members = 0_u32;
    let mut reader = Reader::new(line, &limits);
    reader.skip_white_space();
    let object = reader.object(|reader, name| {
        let value = reader.value()?;
        members += 1;
        if name == b"req_id" {
            found = Some(value);
        }
        Ok(())
    })?;
    let token = format!("{:#}", Json::from(req_id.clone()));
    let (place, text) = match found {
        Some(value) => (value.range(), token),
        None => {
            let end = object.range().end - 1;
            let comma = if members == 0 { "" } else { "," };
            (end..end, format!("{comma}\"req_id\":{token}"))
        }
    };
    let before = line.get(..place.start).unwrap_or_default();
    let after = line.get(place.end..).unwrap_or_default();
    Ok([before, text.as_bytes(), after].concat().into())
}
