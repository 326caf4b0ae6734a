//! What a client of 2026-07-28 gets when an agent asks it a question, and what it repeats with its response.
//!
//! Source: docs/protocols/mcp.md §10; MCP 2026-07-28, "Multi round-trip requests".

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::jsonrpc::{self, splice};
use a2abus_plugin::{Hint, Limits, Text, decode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::envelope::{Params, is_object, text};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::question::{question_id, split_question_id};
use crate::results::{ROUND, digest_of};

/// What the client repeats as `requestState`. Only the client of the call knows its secret.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundState {
    /// The call, with the token that proves that a response is for it. The log has no token.
    pub(super) call: ReplyId,
    /// How many parts are recorded up to the question, which is the last of them.
    pub(super) received: usize,
    pub(super) secret: CallId,
}

/// Tells a state of the bridge from one of an agent.
const PREFIX: &str = "a2abus.";

// === impl RoundState ===

impl fmt::Display for RoundState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            received,
            secret,
        } = self;
        write!(f, "{PREFIX}{call}.{received}.{secret}")
    }
}

impl RoundState {
    /// The state in a request that its client has sent again; `None` if it has none, or that of an agent.
    ///
    /// # Errors
    /// When it is one of the bridge and malformed. The agent must not execute the request again.
    pub(super) fn of(params: &Params<'_>) -> Result<Option<Self>, Failure> {
        let Some(state) = text(params.request_state).filter(|text| text.starts_with(PREFIX)) else {
            return Ok(None);
        };
        let malformed = || Failure::bad_params("params.requestState is malformed");
        Self::parse(&state).map(Some).ok_or_else(malformed)
    }

    fn parse(state: &str) -> Option<Self> {
        let mut members = state.strip_prefix(PREFIX)?.split('.');
        let state = Self {
            call: members.next()?.parse().ok()?,
            received: members.next()?.parse().ok().filter(|count| *count > 0)?,
            secret: members.next()?.parse().ok()?,
        };
        members.next().is_none().then_some(state)
    }

    /// The log key of the call for its client. It does not reveal the secret.
    pub(super) fn key(&self) -> Text {
        format!("{ROUND}{}", digest_of([self.secret.text().as_bytes()])).into()
    }

    /// The client's response to a recorded question, as JSON-RPC; `None` if the request has none.
    ///
    /// # Errors
    /// When its responses cannot be read.
    pub(super) fn response_in(
        &self,
        params: &Params<'_>,
        question: &[u8],
    ) -> Result<Option<Bytes>, Failure> {
        let responses = params.input_responses.filter(|raw| is_object(raw));
        let responses = responses.map_or("{}", RawValue::get);
        let responses: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(responses)
            .map_err(|error| Failure::bad_params(&format!("params.inputResponses: {error}")))?;
        let name = Question::read(question).map(|question| question.id);
        let response = name.and_then(|name| Some((responses.get(&name)?, name)));
        let Some((response, name)) = response else {
            return Ok(None);
        };
        if !is_object(response) {
            let message = format!("params.inputResponses[{name:?}] must be an object");
            return Err(Failure::bad_params(&message));
        }
        let id = Value::from(question_id(self.call, &name));
        Ok(Some(jsonrpc::result(&id.to_string(), response.get())))
    }

    /// The answer to a request whose client is asked this recorded question; `None` if the question is unreadable.
    pub(super) fn input_required(&self, question: &[u8], recipient: &Recipient) -> Option<Bytes> {
        let Question { id, method, params } = Question::read(question)?;
        let (id, method) = (Value::from(id), Value::from(method));
        // The SDK for Go does not read a question without params.
        let params = params.map_or("{}", RawValue::get);
        let result = format!(
            r#"{{"resultType":"input_required","inputRequests":{{{id}:{{"method":{method},"params":{params}}}}},"requestState":"{self}"}}"#
        );
        Some(jsonrpc::result(recipient.id(), &result))
    }
}

/// A question.
#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

impl<'a> Question<'a> {
    fn read(question: &'a [u8]) -> Option<Self> {
        let question = question.strip_prefix(BYTE_ORDER_MARK).unwrap_or(question);
        serde_json::from_slice(question).ok()
    }
}

/// A question as it is recorded, without the call in its id.
pub(super) fn recorded_question(question: &Bytes, limits: &Limits) -> Bytes {
    let unit = decode(question, &Hint::default(), limits).into_only();
    let unit = unit.ok().and_then(Result::ok);
    let recorded = unit.and_then(|unit| {
        let id = unit.json_rpc?.id?;
        let (_, name) = split_question_id(&id)?;
        Some(splice(
            &unit.bytes,
            id.span(),
            &Value::from(name).to_string(),
        ))
    });
    recorded.unwrap_or_else(|| question.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    fn state() -> RoundState {
        RoundState {
            call: ReplyId {
                call: CallId::new(Replica(3)).unwrap(),
                token: None,
            },
            received: 2,
            secret: CallId::new(Replica(4)).unwrap(),
        }
    }

    #[test]
    fn a_state_is_read_back_and_nothing_else_is() {
        let state = state();
        let text = state.to_string();
        let parse = |text: &str| RoundState::parse(text).map(|state| state.to_string());
        assert_eq!(parse(&text).as_ref(), Some(&text));
        assert!(!state.key().contains(&state.secret.to_string()));
        for bad in [
            "",
            "sealed",
            "a2abus.",
            &format!("{text}.1"),
            &text.replacen(".2.", ".0.", 1),
            &text.replacen(".2.", ".-1.", 1),
            &text.replacen(PREFIX, "", 1),
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_recorded_question_does_not_name_its_call() {
        let call = CallId::new(Replica(3)).unwrap();
        let question = |id: &str| {
            Bytes::from(format!(
                r#"{{ "id":"{id}","method":"roots/list","jsonrpc":"2.0" }}"#
            ))
        };
        let recorded = recorded_question(&question(&format!("{call}.cQ")), &Limits::default());
        assert_eq!(recorded, question("cQ"));
    }

    #[test]
    fn a_question_keeps_the_bytes_of_its_params() {
        let state = state();
        let recipient = Recipient::new("7".into(), a2abus_plugin::protocol::dialect::Dialect::Mcp);
        let asked = |question: &str| state.input_required(question.as_bytes(), &recipient);
        let answer =
            asked(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{ "n":1.0 }}"#);
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"resultType":"input_required","inputRequests":{{"q":{{"method":"roots/list","params":{{ "n":1.0 }}}}}},"requestState":"{state}"}}}}"#
        );
        assert_eq!(answer.unwrap(), expected);
        let without = asked(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).unwrap();
        let without: Value = serde_json::from_slice(&without).unwrap();
        let question = &without["result"]["inputRequests"]["q"];
        assert_eq!(question["params"], serde_json::json!({}));
        assert_eq!(asked("{}"), None);
    }
}
