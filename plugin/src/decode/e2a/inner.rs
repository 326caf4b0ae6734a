//! Messages inside E2A messages. A reader takes them in place of the message that carries them, so they must be the
//! same one. Source: docs/protocols/e2a.md §S1 and §S2.

use std::borrow::Cow;

use crate::decode::parser::Parser;
use crate::detect::MemberPath;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::json::{Reader, unescape_lossy};
use crate::limits::Limits;

/// The member of the context, or of older metadata, that carries a request which its sender could not normalise.
const REQUEST: &str = "_jiuwenswarm";
/// The members of `metadata` that carry a whole older answer.
const ANSWERS: [&str; 2] = [
    "_e2a_wire_legacy_agent_response",
    "_e2a_wire_legacy_agent_chunk",
];

impl Parser<'_> {
    /// Refuses a request with another one inside, unless its binding is trusted and both have the same id. In
    /// `metadata` it is refused in the same way, because the message is forwarded as it is, and readers of the original
    /// take it from there too. Source: docs/protocols/e2a.md §S1.
    pub(super) fn check_inner_request(&self) -> Result<(), DecodeError> {
        const UNTRUSTED: &str = "a request inside the request is accepted only by a binding with protocol: e2a or \
                                 e2a_trusted: true";
        const OTHER: &str = "the request inside has another request_id";
        for path in [MemberPath::ChannelContext, MemberPath::Metadata] {
            let Some(context) = self.facts.get(path) else {
                continue;
            };
            let refused = |at: usize, below: &str, message: &'static str| {
                let pointer = format!("{}/{REQUEST}{below}", path.pointer());
                DecodeError::new(DecodeErrorKind::BadValue, context.start() + at, message)
                    .at(pointer)
            };
            each_member(self.facts.token(context), |name, block, at| {
                if name != REQUEST.as_bytes() || block == "null" {
                    return Ok(());
                }
                if !self.hint.trusts_e2a() {
                    return Err(refused(at, "", UNTRUSTED));
                }
                let own = self.e2a_id(MemberPath::RequestId)?;
                each_member(block, |name, request, _| {
                    let is_request = name == b"legacy_agent_request" && request.starts_with('{');
                    if is_request && !has_id(request, own.as_deref())? {
                        return Err(refused(at, "/legacy_agent_request/request_id", OTHER));
                    }
                    Ok(())
                })
            })?;
        }
        Ok(())
    }

    /// Refuses a record with an older answer inside that has another id. Source: docs/protocols/e2a.md §S2.
    pub(super) fn check_inner_answer(&self) -> Result<(), DecodeError> {
        let Some(metadata) = self.facts.get(MemberPath::Metadata) else {
            return Ok(());
        };
        each_member(self.facts.token(metadata), |name, answer, at| {
            let Some(known) = ANSWERS.into_iter().find(|known| known.as_bytes() == name) else {
                return Ok(());
            };
            let own = self.e2a_id(MemberPath::RequestId)?;
            each_member(answer, |name, id, _| {
                if name != b"request_id" || matches!(id, "null" | "\"\"") {
                    return Ok(());
                }
                if scalar(id).is_some_and(|id| Some(&*id) == own.as_deref()) {
                    return Ok(());
                }
                let message = "the answer inside has another request_id";
                let at = metadata.start() + at;
                let error = DecodeError::new(DecodeErrorKind::BadValue, at, message);
                Err(error.at(format!("{}/{known}", MemberPath::Metadata.pointer())))
            })
        })
    }
}

/// Passes the members of an object that has been read before, also repeated ones: the name, the text of the value, and
/// its offset in the object. Another value has no members.
fn each_member(
    json: &str,
    mut visit: impl FnMut(&[u8], &str, usize) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    if !json.starts_with('{') {
        return Ok(());
    }
    let limits = Limits {
        max_members: u32::MAX,
        ..Limits::default()
    };
    let read = Reader::new(json.as_bytes(), &limits).object(|reader, name| {
        let value = reader.value()?;
        let text = json.get(value.range()).unwrap_or_default();
        visit(name, text, value.start())
    });
    read.map(drop)
}

/// Whether an object has this `request_id` and no other; null and the empty string count as absent.
fn has_id(object: &str, own: Option<&str>) -> Result<bool, DecodeError> {
    let mut same = None;
    each_member(object, |name, value, _| {
        if name == b"request_id" {
            let id = scalar(value).filter(|id| !id.is_empty());
            same = Some(id.as_deref() == own && same != Some(false));
        }
        Ok(())
    })?;
    Ok(same.unwrap_or(own.is_none()))
}

/// The text of a string or a number.
fn scalar(json: &str) -> Option<Cow<'_, str>> {
    let Some(rest) = json.strip_prefix('"') else {
        let is_number = json.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        return is_number.then_some(Cow::Borrowed(json));
    };
    let raw = rest.strip_suffix('"').unwrap_or(rest);
    if raw.contains('\\') {
        return unescape_lossy(raw.as_bytes()).map(Cow::Owned);
    }
    Some(Cow::Borrowed(raw))
}
