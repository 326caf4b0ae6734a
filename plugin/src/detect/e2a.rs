//! The kind of an E2A record. Source: docs/protocols/e2a.md §10.1, docs/protocols/detection.md §2, rule 8.

use super::facts::Facts;
use super::member::MemberPath;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::hint::Hint;
use crate::json::{Kind, Reader};
use crate::limits::Limits;
use crate::protocol::Family;

/// An E2A record, classified by its members. Source: docs/protocols/e2a.md §10.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Control,
    Request,
    Response,
    LegacyResponse,
    LegacyChunk,
    LegacyRequest,
}

impl Facts<'_> {
    /// The kind of E2A record, and the decisive member; `None` if it is not E2A.
    ///
    /// # Errors
    /// `UnsupportedVersion` for an unsupported version, and for a response without a version.
    pub(crate) fn e2a(&self, hint: &Hint) -> Result<Option<(Shape, MemberPath)>, DecodeError> {
        let carries_e2a = hint.family == Some(Family::E2a);
        if self.equals(MemberPath::Type, "event") {
            let is_control = carries_e2a && self.is(MemberPath::Event, Kind::String);
            return Ok(is_control.then_some((Shape::Control, MemberPath::Event)));
        }
        let has_request_id = self.non_null(MemberPath::RequestId).is_some();
        let is_response = self
            .string(MemberPath::ResponseKind)
            .is_some_and(|kind| !is_blank(&kind));
        if self.non_null(MemberPath::ProtocolVersion).is_some() {
            let marked = self.is(MemberPath::Params, Kind::Object)
                || self.has(MemberPath::Method)
                || has_request_id
                || self.is(MemberPath::Provenance, Kind::Object);
            if is_response || marked {
                if !self
                    .string(MemberPath::ProtocolVersion)
                    .is_some_and(|version| is_e2a_version_1(&version))
                {
                    let message = "protocol_version must be \"1\" or \"1.\" and digits";
                    return Err(self.unsupported(MemberPath::ProtocolVersion, message));
                }
                let shape = if is_response {
                    Shape::Response
                } else {
                    Shape::Request
                };
                return Ok(Some((shape, MemberPath::ProtocolVersion)));
            }
        } else if is_response && (has_request_id || self.is(MemberPath::Body, Kind::Object)) {
            let message = "a response without protocol_version";
            let offset = self.span.start();
            let error = DecodeError::new(DecodeErrorKind::MissingVersion, offset, message);
            return Err(error.at(MemberPath::ProtocolVersion.pointer()));
        }
        if hint.e2a_versions_only {
            return Ok(None);
        }
        Ok(self.e2a_without_version(has_request_id))
    }

    fn e2a_without_version(&self, has_request_id: bool) -> Option<(Shape, MemberPath)> {
        let has_channel_id = self.has(MemberPath::ChannelId);
        if has_request_id && has_channel_id && self.has(MemberPath::Ok) {
            return Some((Shape::LegacyResponse, MemberPath::Ok));
        }
        if has_request_id
            && has_channel_id
            && self.has(MemberPath::IsComplete)
            && self.has(MemberPath::Payload)
        {
            return Some((Shape::LegacyChunk, MemberPath::IsComplete));
        }
        if has_request_id && self.is(MemberPath::ReqMethod, Kind::String) {
            return Some((Shape::LegacyRequest, MemberPath::ReqMethod));
        }
        if has_request_id && has_channel_id && self.is(MemberPath::Params, Kind::Object) {
            return Some((Shape::LegacyRequest, MemberPath::ChannelId));
        }
        if !self.is(MemberPath::Method, Kind::String) {
            return None;
        }
        const MARKERS: [MemberPath; 10] = [
            MemberPath::JsonrpcId,
            MemberPath::IdentityOrigin,
            MemberPath::IsStream,
            MemberPath::Provenance,
            MemberPath::ChannelContext,
            MemberPath::A2aMetadata,
            MemberPath::AcpMeta,
            MemberPath::ExtMethod,
            MemberPath::SessionUpdateKind,
            MemberPath::ExpectedOutputModes,
        ];
        let mark = MARKERS
            .into_iter()
            .find(|path| self.has(*path))
            .or_else(|| {
                let both = self.has(MemberPath::RequestId) && self.has(MemberPath::Channel);
                both.then_some(MemberPath::RequestId)
            });
        mark.map(|path| (Shape::Request, path))
    }
}

fn is_blank(text: &str) -> bool {
    text.trim_ascii().is_empty()
}

/// Whether the `protocol_version` of an E2A message is supported: `1` or `1.` and digits. Source:
/// docs/protocols/e2a.md §10.1.
#[must_use]
pub fn is_e2a_version_1(version: &str) -> bool {
    match version.as_bytes() {
        b"1" => true,
        [b'1', b'.', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// The class of a JSON object on a connection that carries E2A, named as in docs/protocols/e2a.md §10.1:
/// `e2a.request`, `e2a.response`, `e2a.legacy_request`, `e2a.legacy_response`, `e2a.legacy_chunk`, `e2a.control`,
/// `not_e2a`, `invalid:unsupported_version` or `invalid:missing_version`. Text that is not JSON is `not_e2a`.
#[must_use]
pub fn e2a_class(json: &str) -> &'static str {
    let hint = Hint {
        family: Some(Family::E2a),
        ..Hint::default()
    };
    let mut facts = Facts::new(json);
    let mut reader = Reader::new(json.as_bytes(), &Limits::default());
    if facts.read(&mut reader).is_err() {
        return "not_e2a";
    }
    match facts.family(&hint) {
        Ok(Some(detection)) if detection.family == Family::E2a => {
            let shape = facts.e2a(&hint).ok().flatten();
            shape.map_or("not_e2a", |(shape, _)| shape.class())
        }
        Err(error) if error.pointer() == MemberPath::ProtocolVersion.pointer() => {
            match error.kind() {
                DecodeErrorKind::MissingVersion => "invalid:missing_version",
                _ => "invalid:unsupported_version",
            }
        }
        _ => "not_e2a",
    }
}

impl Shape {
    const fn class(self) -> &'static str {
        match self {
            Self::Control => "e2a.control",
            Self::Request => "e2a.request",
            Self::Response => "e2a.response",
            Self::LegacyResponse => "e2a.legacy_response",
            Self::LegacyChunk => "e2a.legacy_chunk",
            Self::LegacyRequest => "e2a.legacy_request",
        }
    }
}
