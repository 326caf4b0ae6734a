//! The members of a message that the relay reads, to forward it and to recognise its answer.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The members of one message that are read.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(default, borrow)]
    pub(super) method: Option<Cow<'a, str>>,
    /// Its JSON token, which may be `null`.
    #[serde(default, borrow, deserialize_with = "token")]
    pub(super) id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(rename = "_meta", default, borrow)]
    meta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    uri: Option<Cow<'a, str>>,
    #[serde(rename = "requestId", default, borrow)]
    request: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", default, borrow)]
    revision: Option<Cow<'a, str>>,
}

/// Reads `null` as a value: a request with such an id is not a notification.
fn token<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

// === impl Message ===

impl<'a> Message<'a> {
    fn params(&self) -> Params<'a> {
        let params = self.params.map(|params| serde_json::from_str(params.get()));
        params.and_then(Result::ok).unwrap_or_default()
    }

    /// The request that `notifications/cancelled` names, as its JSON token.
    pub(super) fn cancelled(&self) -> Option<&'a str> {
        self.params().request.map(RawValue::get)
    }

    /// The headers of a request without a session, which repeat parts of it; standard input has no headers.
    /// Source: MCP 2026-07-28, "Standard headers".
    pub(super) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let (Some(method), params) = (&self.method, self.params()) else {
            return Vec::new();
        };
        let meta = params.meta.map(|meta| serde_json::from_str(meta.get()));
        let meta: Meta<'_> = meta.and_then(Result::ok).unwrap_or_default();
        let Some(revision) = meta.revision else {
            return Vec::new();
        };
        let name = match &**method {
            "tools/call" | "prompts/get" => params.name,
            "resources/read" => params.uri,
            _ => None,
        };
        let all = [
            ("mcp-protocol-version", Some(&revision)),
            ("mcp-method", Some(method)),
            ("mcp-name", name.as_ref()),
        ];
        let all = all
            .into_iter()
            .filter_map(|(header, text)| Some((HeaderName::from_static(header), value_of(text?)?)));
        all.collect()
    }
}

/// A text as a header value, in base64 if necessary.
fn value_of(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    if is_plain && text.trim() == text && !text.starts_with("=?base64?") {
        return HeaderValue::from_str(text).ok();
    }
    HeaderValue::try_from(format!("=?base64?{}?=", STANDARD.encode(text))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(message: &str) -> Vec<String> {
        let message: Message<'_> = serde_json::from_str(message).unwrap();
        let all = message.headers().into_iter();
        all.map(|(_, value)| value.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn requests_without_a_session_have_headers() {
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"NAME","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(
            headers(&call.replace("NAME", "sum")),
            ["2026-07-28", "tools/call", "sum"]
        );
        assert_eq!(headers(&call.replace("NAME", "ü"))[2], "=?base64?w7w=?=");
        assert_eq!(headers(&call.replace("NAME", " a"))[2], "=?base64?IGE=?=");
        let list = r#"{"id":1,"method":"tools/list","params":{"cursor":"x"}}"#;
        assert!(headers(list).is_empty());
    }

    #[test]
    fn null_is_an_id() {
        let id = |message: &str| {
            let message: Message<'_> = serde_json::from_str(message).unwrap();
            message.id.map(|id| id.get().to_owned())
        };
        assert_eq!(
            id(r#"{"id":null,"method":"ping"}"#).as_deref(),
            Some("null")
        );
        assert_eq!(
            id(r#"{"id": "a" ,"method":"ping"}"#).as_deref(),
            Some(r#""a""#)
        );
        assert_eq!(id(r#"{"method":"ping"}"#), None);
    }

    #[test]
    fn a_cancellation_names_its_request() {
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":"7"}}"#;
        let cancel: Message<'_> = serde_json::from_str(cancel).unwrap();
        assert_eq!(cancel.cancelled(), Some(r#""7""#));
    }
}
