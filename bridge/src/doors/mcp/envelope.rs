//! The metadata of a request: its revision, and the headers that repeat parts of its body.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::revision::{Revision, VERSION};
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::Abilities;
use crate::doors::door::Refusal;
use crate::object::present;
use crate::registry::marked::MarkedParam;
use a2abus_plugin::json::BYTE_ORDER_MARK;

/// The members of `params` that the bridge reads, each as unchanged JSON.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Params<'a> {
    #[serde(rename = "_meta", default, borrow)]
    meta: Option<&'a RawValue>,
    #[serde(rename = "_agentId", default, borrow)]
    pub(super) agent: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) name: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) arguments: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) uri: Option<&'a RawValue>,
    #[serde(rename = "ref", default, borrow)]
    pub(super) reference: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) cursor: Option<&'a RawValue>,
    #[serde(rename = "protocolVersion", default, borrow)]
    protocol_version: Option<&'a RawValue>,
    #[serde(default, borrow)]
    capabilities: Option<&'a RawValue>,
    #[serde(rename = "requestId", default, borrow)]
    pub(super) request_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) notifications: Option<&'a RawValue>,
    #[serde(rename = "requestState", default, borrow)]
    pub(super) request_state: Option<&'a RawValue>,
    #[serde(rename = "inputResponses", default, borrow)]
    pub(super) input_responses: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) task: Option<&'a RawValue>,
    #[serde(rename = "taskId", default, borrow)]
    pub(super) task_id: Option<&'a RawValue>,
}

/// Params that are read in the same pass as the request around them. Params that are not an object count as absent.
#[derive(Default)]
struct Lenient<'a>(Params<'a>);

/// The session model of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolMode {
    /// With sessions, as in the older revisions.
    Sessions,
    /// Stateless, as in 2026-07-28.
    Stateless {
        /// Whether it asks for log messages.
        logs: bool,
        /// What the agent can ask its client.
        abilities: Abilities,
    },
}

/// The members that `_meta` of a stateless request must have.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const ABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// Methods that the newest revision has removed.
pub(super) const REMOVED: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];
const ROUND_METHODS: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", default, borrow)]
    version: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", default, borrow)]
    abilities: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/logLevel", default, borrow)]
    log_level: Option<&'a RawValue>,
    #[serde(default, borrow)]
    traceparent: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tracestate: Option<&'a RawValue>,
}

// === impl Lenient ===

impl<'de: 'a, 'a> Deserialize<'de> for Lenient<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor)
    }
}

struct LenientVisitor;

impl<'de> Visitor<'de> for LenientVisitor {
    type Value = Lenient<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("params")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Lenient<'de>, A::Error> {
        Params::deserialize(MapAccessDeserializer::new(members)).map(Lenient)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Lenient<'de>, A::Error> {
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Lenient::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Lenient<'de>, E> {
        Ok(Lenient::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Lenient<'de>, E> {
        Ok(Lenient::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Lenient<'de>, E> {
        Ok(Lenient::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Lenient<'de>, E> {
        Ok(Lenient::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Lenient<'de>, E> {
        Ok(Lenient::default())
    }
}

// === impl Params ===

impl<'a> Params<'a> {
    /// The params of a request or a notification.
    ///
    /// # Errors
    /// When a member occurs twice.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Framing<'a> {
            #[serde(default, borrow)]
            params: Option<Lenient<'a>>,
        }
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        let framing: Result<Framing<'_>, _> = serde_json::from_slice(body);
        let framing = framing.map_err(|error| Failure::bad_params(&error.to_string()))?;
        Ok(framing.params.unwrap_or_default().0)
    }

    /// The revision that `initialize` asks for.
    pub(super) fn asked_revision(&self) -> Option<String> {
        text(self.protocol_version)
    }

    /// What servers can ask the client of `initialize`.
    pub(super) fn abilities(&self) -> Abilities {
        abilities_in(self.capabilities)
    }

    /// The trace context in a request, as headers. Source: MCP 2026-07-28, "Trace context"; SEP-414.
    pub(super) fn trace(&self) -> HeaderMap {
        let meta = self.meta().unwrap_or_default();
        let members = [
            ("traceparent", meta.traceparent),
            ("tracestate", meta.tracestate),
        ];
        let headers = members.into_iter().filter_map(|(name, value)| {
            let value = HeaderValue::try_from(text(value)?).ok()?;
            Some((HeaderName::from_static(name), value))
        });
        headers.collect()
    }

    fn meta(&self) -> Result<Meta<'a>, Failure> {
        match self.meta {
            Some(meta) if is_object(meta) => serde_json::from_str(meta.get())
                .map_err(|error| Failure::bad_params(&format!("params._meta: {error}"))),
            _ => Ok(Meta::default()),
        }
    }
}

impl ProtocolMode {
    /// The mode of a request. Checks that its headers match its body.
    ///
    /// # Errors
    /// When they do not, the revision is not served, or it has removed the method.
    pub(super) fn of(
        params: &Params<'_>,
        method: &str,
        headers: &HeaderMap,
    ) -> Result<Self, Refusal> {
        let bad = |failure| (StatusCode::BAD_REQUEST, failure);
        let meta = params.meta().map_err(bad)?;
        let named = Revision::named(headers);
        if meta.version.is_none() && named != Some(Revision::V2026_07_28.as_str()) {
            return check_revision(headers).map(|()| Self::Sessions);
        }
        let is_complete = meta.version.is_some() && meta.abilities.is_some();
        if !is_complete && REMOVED.contains(&method) {
            let unknown = Failure::unknown_method(method, Vec::new());
            return Err((StatusCode::NOT_FOUND, unknown));
        }
        stateless(&meta, params, method, headers).map_err(bad)
    }

    pub(super) fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless { .. })
    }

    /// Whether a stateless request with this method can be answered with a question, and sent again with the response.
    /// Source: MCP 2026-07-28, "Multi round-trip requests".
    pub(super) fn has_rounds(self, method: &str) -> bool {
        self.is_stateless() && ROUND_METHODS.contains(&method)
    }
}

/// Checks that the revision in the headers, if any, is served.
///
/// # Errors
/// When it is not.
pub(super) fn check_revision(headers: &HeaderMap) -> Result<(), Refusal> {
    match Revision::named(headers) {
        Some(name) if Revision::of(name).is_none() => {
            let failure = not_served(name, Revision::names());
            Err((StatusCode::BAD_REQUEST, failure))
        }
        _ => Ok(()),
    }
}

/// Source: MCP 2026-07-28, "Per-request protocol fields" and "Standard headers".
fn stateless(
    meta: &Meta<'_>,
    params: &Params<'_>,
    method: &str,
    headers: &HeaderMap,
) -> Result<ProtocolMode, Failure> {
    for (key, value) in [(VERSION_KEY, meta.version), (ABILITIES_KEY, meta.abilities)] {
        if value.is_none() {
            return Err(Failure::bad_params(&format!("params._meta has no {key}")));
        }
    }
    let version = text(meta.version)
        .ok_or_else(|| Failure::bad_params(&format!("{VERSION_KEY} must be a string")))?;
    if !meta.abilities.is_some_and(is_object) {
        let message = format!("{ABILITIES_KEY} must be an object");
        return Err(Failure::bad_params(&message));
    }
    let mut same = vec![
        (VERSION, Some(version.clone())),
        ("mcp-method", Some(method.to_owned())),
    ];
    match method {
        "tools/call" | "prompts/get" => same.push(("mcp-name", text(params.name))),
        "resources/read" => same.push(("mcp-name", text(params.uri))),
        _ => {}
    }
    for (name, in_body) in same {
        // The agent refuses a request without a name.
        if let Some(in_body) = in_body {
            check_same(name, &in_body, headers)?;
        }
    }
    if version != Revision::V2026_07_28.as_str() {
        let served = vec![Revision::V2026_07_28.as_str()];
        return Err(not_served(&version, served));
    }
    let has_rounds = ROUND_METHODS.contains(&method);
    Ok(ProtocolMode::Stateless {
        logs: meta.log_level.is_some_and(|level| level.get() != "null"),
        abilities: abilities_in(meta.abilities.filter(|_| has_rounds)),
    })
}

/// Checks the headers that repeat marked parameters of a tool. A header that is missing passes: clients leave it out for
/// numbers that JavaScript rounds, those that have not listed the tools cannot know the marks, and `a2abus stdio` sends
/// none. Source: MCP 2026-07-28, "Custom headers from tool parameters".
///
/// # Errors
/// When one of them differs from its argument, or there is no such argument.
pub(super) fn check_marked(
    marked: &[MarkedParam],
    arguments: Option<&RawValue>,
    headers: &HeaderMap,
) -> Result<(), Failure> {
    let mut sent = marked
        .iter()
        .filter(|param| headers.contains_key(&param.header))
        .peekable();
    if sent.peek().is_none() {
        return Ok(());
    }
    // Arguments that only the agent can read, such as those with a lone surrogate, cannot be compared.
    let arguments = arguments.map_or(Ok(Value::Null), |raw| serde_json::from_str(raw.get()));
    let Ok(arguments) = arguments else {
        return Ok(());
    };
    for param in sent {
        let name = param.header.as_str();
        match param.in_arguments(&arguments) {
            // Only values without members can be marked.
            Some(Value::Array(_) | Value::Object(_)) => {}
            Some(argument) => check_header(name, headers, |value| is_same(argument, value))?,
            None => {
                let message =
                    format!("the body has no argument for the header {name}: omit the header");
                return Err(Failure::new(Reason::McpHeader, message));
            }
        }
    }
    Ok(())
}

/// Whether the value of a header is this argument.
fn is_same(argument: &Value, value: &str) -> bool {
    match argument {
        Value::String(text) => text == value,
        Value::Number(number) => match serde_json::from_str(value) {
            // `42.0` is 42.
            Ok(Value::Number(other)) if number.is_f64() || other.is_f64() => {
                number.as_f64() == other.as_f64()
            }
            Ok(Value::Number(other)) => *number == other,
            _ => false,
        },
        Value::Bool(flag) => value.parse() == Ok(*flag),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn check_same(name: &str, in_body: &str, headers: &HeaderMap) -> Result<(), Failure> {
    check_header(name, headers, |value| value == in_body)
}

/// Checks that a header occurs once, with a value of which this holds.
fn check_header(
    name: &str,
    headers: &HeaderMap,
    is_same: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let mut values = headers.get_all(name).iter();
    let is_right = values.next().is_some_and(|value| match value.to_str() {
        Ok(value) => decoded(value).is_some_and(|value| is_same(&value)),
        // The SDK for Go sends text outside ASCII as it is.
        Err(_) => std::str::from_utf8(value.as_bytes().trim_ascii()).is_ok_and(&is_same),
    });
    if is_right && values.next().is_none() {
        return Ok(());
    }
    let message = format!(
        "the header {name} must occur once, with the same value as in the body; encode non-ASCII text as =?base64?...?="
    );
    Err(Failure::new(Reason::McpHeader, message))
}

/// A header value, which may be base64 between `=?base64?` and `?=`.
fn decoded(value: &str) -> Option<String> {
    let value = value.trim();
    let encoded = value.strip_prefix("=?base64?");
    match encoded.and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

fn not_served(requested: &str, served: Vec<&'static str>) -> Failure {
    let requested: String = requested.chars().take(64).collect();
    let message = format!("this revision of MCP is not served: {requested:?}");
    Failure::new(Reason::McpVersion, message)
        .detail("supported", served)
        .detail("requested", requested)
}

/// The questions that a client supports, from its capabilities.
fn abilities_in(capabilities: Option<&RawValue>) -> Abilities {
    let declared = capabilities.filter(|raw| is_object(raw));
    let declared = declared.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let has = |path: &str| {
        let declared = declared.as_ref();
        let declared = declared.and_then(|declared| declared.pointer(path));
        declared.is_some_and(Value::is_object)
    };
    Abilities {
        sampling: has("/sampling"),
        // Without a mode it means forms. Source: MCP 2025-11-25, elicitation.
        elicitation: has("/elicitation/form") || (has("/elicitation") && !has("/elicitation/url")),
        url_elicitation: has("/elicitation/url"),
        roots: has("/roots"),
    }
}

/// A JSON string as text.
pub(super) fn text(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}

pub(super) fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::marked::MarkedParams;

    /// Whoever cannot read the arguments cannot say that they differ.
    #[test]
    fn headers_of_arguments_that_only_the_agent_can_read_pass() {
        let tool = r#"{"name":"t","inputSchema":{"properties":{"n":{"x-mcp-header":"N"}}}}"#;
        let tool = RawValue::from_string(tool.to_owned()).unwrap();
        let marked = MarkedParams::of(&[tool]).unwrap();
        let headers =
            HeaderMap::from_iter([("mcp-param-n".parse().unwrap(), "1".parse().unwrap())]);
        for (arguments, is_accepted) in [
            (r#"{"n":1}"#, true),
            (r#"{"n":2}"#, false),
            (r#"{"n":1,"z":"\ud83d"}"#, true),
            (r#"{"n":1,"z":1e400}"#, true),
        ] {
            let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
            let checked = check_marked(marked.of_tool("t"), Some(&arguments), &headers);
            assert_eq!(checked.is_ok(), is_accepted, "{arguments}");
        }
    }
}
