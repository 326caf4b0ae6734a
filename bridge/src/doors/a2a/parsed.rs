//! Reads requests: the method, and the dialect of the answer.
//!
//! Source: docs/protocols/a2a.md §2, §3 and §9.

use std::borrow::Cow;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{Refused, Text, Unit};
use bytes::Bytes;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_path_to_error::Segment;

use super::form::{Envelope, Form};
use super::method::{Method, Push};
use crate::calls::failure::{Failure, POINTER, Reason, Recipient};
use crate::object::Object;

/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) bytes: Bytes,
    /// The caller's id, as exact JSON; `null` if there is none.
    pub(super) id: Text,
    pub(super) method: Method,
    /// Its name, for the access log.
    pub(super) name: &'static str,
    pub(super) dialect: Dialect,
    /// The envelope of its answer.
    pub(super) envelope: Envelope,
}

/// The version in the head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    Absent,
    V0_3,
    V1_0,
    Other(String),
}

/// A method and its name.
type Named = (&'static str, Method);

/// The names of A2A 0.3 and of the JAF document, and one that EventMesh uses.
const EARLIER: [Named; 13] = [
    ("message/send", Method::Send),
    ("message/stream", Method::Stream),
    ("message/sendStream", Method::Stream),
    ("tasks/get", Method::Get),
    ("tasks/list", Method::List),
    ("tasks/cancel", Method::Cancel),
    ("tasks/resubscribe", Method::Follow),
    ("tasks/pushNotificationConfig/set", Method::Push(Push::Set)),
    ("tasks/pushNotificationConfig/get", Method::Push(Push::Get)),
    (
        "tasks/pushNotificationConfig/list",
        Method::Push(Push::List),
    ),
    (
        "tasks/pushNotificationConfig/delete",
        Method::Push(Push::Delete),
    ),
    ("agent/getAuthenticatedExtendedCard", Method::Card),
    ("agent/getExtendedCard", Method::Card),
];

/// The names of A2A 1.0.
const CURRENT: [Named; 12] = [
    ("SendMessage", Method::Send),
    ("SendStreamingMessage", Method::Stream),
    ("GetTask", Method::Get),
    ("ListTasks", Method::List),
    ("CancelTask", Method::Cancel),
    ("SubscribeToTask", Method::Follow),
    ("CreateTaskPushNotificationConfig", Method::Push(Push::Set)),
    ("GetTaskPushNotificationConfig", Method::Push(Push::Get)),
    ("ListTaskPushNotificationConfigs", Method::Push(Push::List)),
    (
        "DeleteTaskPushNotificationConfig",
        Method::Push(Push::Delete),
    ),
    ("GetExtendedAgentCard", Method::Card),
    // An earlier name.
    ("ListTaskPushNotificationConfig", Method::Push(Push::List)),
];

/// The names of all methods.
pub(super) fn methods() -> Vec<&'static str> {
    EARLIER
        .iter()
        .chain(&CURRENT)
        .map(|(name, _)| *name)
        .collect()
}

/// The name of a method in an official dialect.
pub(super) fn name_of(method: Method, dialect: Dialect) -> &'static str {
    let names: &[Named] = match dialect {
        Dialect::A2a10 => &CURRENT,
        _ => &EARLIER,
    };
    let named = names.iter().find(|(_, named)| *named == method);
    // Each method has a name in both.
    named.map_or("", |(name, _)| name)
}

/// The versions that are served.
pub(super) const VERSIONS: [&str; 2] = ["1.0", "0.3"];

/// The header or query parameter that names a version.
const VERSION: &str = "A2A-Version";

/// The parameters of a request.
#[derive(Deserialize)]
struct Params<T> {
    params: Option<Object<T>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

// === impl Version ===

impl Version {
    /// The version in the header of a request, else in its query.
    pub(super) fn of(head: &Parts) -> Self {
        let header = head.headers.get(VERSION);
        let header = header.and_then(|value| value.to_str().ok());
        let query = || {
            let mut members = head.uri.query()?.split('&');
            members.find_map(|member| {
                let (name, value) = member.split_once('=')?;
                name.eq_ignore_ascii_case(VERSION)
                    .then(|| percent_decode_str(value).decode_utf8_lossy())
            })
        };
        let named = header.map(Cow::from).or_else(query).unwrap_or_default();
        Self::read(named.trim())
    }

    /// The patch number does not matter.
    fn read(text: &str) -> Self {
        let mut numbers = text.split('.');
        match (numbers.next(), numbers.next()) {
            (Some(""), None) => Self::Absent,
            (Some("1"), _) => Self::V1_0,
            (Some("0"), Some("3")) => Self::V0_3,
            _ => Self::Other(text.chars().take(64).collect()),
        }
    }

    /// The dialect of errors if the request cannot be read.
    pub(super) fn dialect(&self, fallback: Dialect) -> Dialect {
        match self {
            Self::V1_0 | Self::Other(_) => Dialect::A2a10,
            Self::V0_3 => Dialect::A2a03,
            Self::Absent if fallback == Dialect::JafDoc => Dialect::JafDoc,
            Self::Absent => Dialect::A2a03,
        }
    }
}

// === impl ParsedRequest ===

impl ParsedRequest {
    /// Reads a request from a unit, and returns the unit too. `fallback` is the dialect if the request shows none.
    ///
    /// # Errors
    /// Why it is refused, and the recipient of the error.
    pub(super) fn of(
        unit: Result<Unit, Refused>,
        version: &Version,
        fallback: Dialect,
    ) -> Result<(Self, Unit), (Failure, Recipient)> {
        let unit = unit.map_err(|refused| {
            let id = refused.id.as_ref().map(|id| id.token().clone());
            let id = id.unwrap_or_else(no_id);
            (
                Failure::refused(&refused.error),
                Recipient::new(id, fallback),
            )
        })?;
        let Some(message) = &unit.json_rpc else {
            let failure = Failure::other_family(unit.detection.family);
            return Err((failure, Recipient::unknown(fallback)));
        };
        let RpcBody::Call { .. } = message.body else {
            let what = "this is a JSON-RPC response; expected a request";
            let failure = Failure::new(Reason::InvalidRequest, what);
            return Err((failure, Recipient::unknown(fallback)));
        };
        // A request without an id is answered with `null`, so clients that forgot it see the error.
        let id = message.id.as_ref().map(|id| id.token().clone());
        let id = id.unwrap_or_else(no_id);
        let is_jaf = [message.dialect, fallback].contains(&Dialect::JafDoc);
        let refuse = |failure, dialect| (failure, Recipient::new(id.clone(), dialect));
        let request: Request<'_> = serde_json::from_slice(&unit.bytes).map_err(|error| {
            let failure = Failure::new(Reason::InvalidRequest, error.to_string());
            refuse(failure, fallback)
        })?;
        let ((name, method), dialect) =
            Self::known(&request.method, version, is_jaf).map_err(|failure| {
                // A name of 1.0 shows the dialect where no version does.
                let is_1_0 = *version == Version::Absent
                    && CURRENT.iter().any(|(name, _)| *name == request.method);
                let dialect = match is_1_0 {
                    true => Dialect::A2a10,
                    false => version.dialect(fallback),
                };
                refuse(failure, dialect)
            })?;
        let params = request.params.map_or("{}", RawValue::get);
        if !params.starts_with('{') && params != "null" {
            let failure = Failure::new(Reason::InvalidParams, "params must be an object");
            return Err(refuse(failure, dialect));
        }
        let parsed = Self {
            bytes: unit.bytes.clone(),
            id,
            method,
            name,
            dialect,
            envelope: Envelope::JsonRpc,
        };
        Ok((parsed, unit))
    }

    /// The form of its answers.
    pub(super) fn form(&self) -> Form {
        Form {
            envelope: self.envelope,
            method: self.method,
            id: self.id.clone(),
            dialect: self.dialect,
        }
    }

    /// The method with this name, and the dialect of its answer.
    fn known(name: &str, version: &Version, is_jaf: bool) -> Result<(Named, Dialect), Failure> {
        let find = |names: &[Named]| names.iter().find(|(known, _)| *known == name).copied();
        let (current, earlier) = (find(&CURRENT), find(&EARLIER));
        match (version, current, earlier) {
            (Version::Other(version), ..) => Err(Failure::version(
                &format!("A2A {version} is not served: send {VERSION}: 1.0 or 0.3"),
                &VERSIONS,
            )),
            (Version::V1_0, Some(method), _) => Ok((method, Dialect::A2a10)),
            (Version::Absent | Version::V0_3, Some(_), _) => Err(Failure::version(
                &format!("{name} is a method of A2A 1.0: send it with {VERSION}: 1.0"),
                &VERSIONS,
            )),
            (Version::Absent, _, Some(method)) if is_jaf => Ok((method, Dialect::JafDoc)),
            (_, _, Some(method)) => Ok((method, Dialect::A2a03)),
            (version, None, None) => {
                let names: &[_] = match version {
                    Version::V1_0 => &CURRENT,
                    _ => &EARLIER,
                };
                let names = names.iter().map(|(name, _)| *name).collect();
                Err(Failure::unknown_method(name, names))
            }
        }
    }

    /// The parameters.
    ///
    /// # Errors
    /// When they do not have the form that the method requires.
    pub(super) fn params<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        let read: Result<Params<T>, _> = serde_json::from_slice(&self.bytes);
        let read = read.map_err(|_| fault::<T>(&self.bytes))?;
        let params = read.params.map(|Object(params)| params);
        params.ok_or_else(|| Failure::bad_params("params are missing"))
    }
}

/// The failure of parameters that cannot be read, with the member at fault. They are read a second time, because keeping
/// track of the member makes reading slower.
fn fault<'a, T: Deserialize<'a>>(request: &'a [u8]) -> Failure {
    let mut reader = serde_json::Deserializer::from_slice(request);
    let read: Result<Params<T>, _> = serde_path_to_error::deserialize(&mut reader);
    let Err(error) = read else {
        return Failure::bad_params("params cannot be read");
    };
    let segments = error.path().iter();
    let pointer: String = segments.map(pointer_to).collect();
    let what = error.inner().to_string();
    let what = what
        .rsplit_once(" at line ")
        .map_or(&*what, |(what, _)| what);
    let failure = Failure::bad_params(&format!("{}: {what}", error.path()));
    failure.detail(POINTER, pointer)
}

/// A step of a JSON pointer (RFC 6901).
fn pointer_to(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } | Segment::Enum { variant: key } => {
            format!("/{}", key.replace('~', "~0").replace('/', "~1"))
        }
        Segment::Unknown => String::new(),
    }
}

fn no_id() -> Text {
    Text::from_static("null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_without_their_last_number() {
        assert_eq!(Version::read(""), Version::Absent);
        assert_eq!(Version::read("1.0"), Version::V1_0);
        assert_eq!(Version::read("1"), Version::V1_0);
        assert_eq!(Version::read("1.2.3"), Version::V1_0);
        assert_eq!(Version::read("0.3"), Version::V0_3);
        assert_eq!(Version::read("0.3.0"), Version::V0_3);
        for other in ["0.5", "2.0", "10.0", "x", "0"] {
            assert_eq!(Version::read(other), Version::Other(other.to_owned()));
        }
    }

    #[test]
    fn the_version_may_be_in_the_query() {
        for (uri, version) in [
            ("/a2a?x=1&a2a-version=1%2E0", Version::V1_0),
            ("/a2a?A2A-Version=0.3", Version::V0_3),
            ("/a2a?A2A-Version=%FF", Version::Other("\u{fffd}".into())),
            ("/a2a?A2A-Version", Version::Absent),
        ] {
            let (head, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
            assert_eq!(Version::of(&head), version, "{uri}");
        }
    }

    #[test]
    fn the_dialect_follows_the_version_and_then_the_name() {
        let known = |name, version, jaf| {
            let known = ParsedRequest::known(name, &version, jaf);
            known
                .map(|((_, method), dialect)| (method, dialect))
                .map_err(|failure| failure.reason_code())
        };
        use Dialect::{A2a03, A2a10, JafDoc};
        assert_eq!(
            known("SendMessage", Version::V1_0, false),
            Ok((Method::Send, A2a10))
        );
        // A method of 0.3 is served as 0.3, whatever the header says.
        assert_eq!(
            known("message/send", Version::V1_0, false),
            Ok((Method::Send, A2a03))
        );
        assert_eq!(
            known("message/send", Version::V1_0, true),
            Ok((Method::Send, A2a03))
        );
        assert_eq!(
            known("message/send", Version::Absent, false),
            Ok((Method::Send, A2a03))
        );
        assert_eq!(
            known("message/send", Version::Absent, true),
            Ok((Method::Send, JafDoc))
        );
        assert_eq!(
            known("message/send", Version::V0_3, true),
            Ok((Method::Send, A2a03))
        );
        let refused = Err("version_not_supported");
        assert_eq!(known("SendMessage", Version::Absent, false), refused);
        assert_eq!(known("SendMessage", Version::V0_3, false), refused);
        assert_eq!(
            known("message/send", Version::Other("2".into()), false),
            refused
        );
        assert_eq!(
            known("foo", Version::Absent, false),
            Err("method_not_found")
        );
    }
}
