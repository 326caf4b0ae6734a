//! What an agent may ask of a client of 2026-07-28 with an `input_required` result: only what the client has declared.
//!
//! Source: docs/protocols/mcp.md §10; MCP 2026-07-28, "Multi round-trip requests" and "Per-request protocol fields".

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use a2abus_plugin::Text;
use a2abus_plugin::json::BYTE_ORDER_MARK;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::ProtocolMode;
use super::post::McpRequest;
use super::state::Mcp;
use crate::calls::Part;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::question::Abilities;

/// The client of a request that can be answered with `input_required`.
pub(super) struct InputClient {
    mcp: Arc<Mcp>,
    agent: Text,
    recipient: Recipient,
    declared: Abilities,
}

/// The members of a response that are read.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    result: InputRequired<'a>,
}

#[derive(Deserialize)]
struct InputRequired<'a> {
    #[serde(rename = "resultType", borrow)]
    kind: Cow<'a, str>,
    #[serde(rename = "inputRequests", borrow)]
    requests: BTreeMap<String, &'a RawValue>,
}

#[derive(Deserialize)]
struct InputRequest<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

const MESSAGE: &str = "the agent needs input, and the client has not declared that it can give it: add the capabilities in data.requiredCapabilities to io.modelcontextprotocol/clientCapabilities of params._meta, and send the request again";

// === impl InputClient ===

impl InputClient {
    /// The client of this request; `None` if the request cannot be answered with `input_required`.
    pub(super) fn of(request: &McpRequest<'_>) -> Option<Self> {
        let ProtocolMode::Stateless { abilities, .. } = request.mode else {
            return None;
        };
        let agent = request.common.target.name();
        request.mode.has_rounds(&request.method).then(|| Self {
            mcp: Arc::clone(request.mcp),
            agent: agent.map(Text::from).unwrap_or_default(),
            recipient: request.recipient.clone(),
            declared: abilities,
        })
    }

    /// The last part of an answer, or an error in its place if it asks for what the client has not declared.
    pub(super) fn checked(&self, part: Part) -> Part {
        let Some(missing) = undeclared(&part.body, self.declared) else {
            return part;
        };
        self.mcp.door.metrics.question_refused();
        if let Some(suppressed) = self.mcp.undeclared.allow() {
            let agent = &self.agent;
            tracing::warn!(
                %agent, %missing, suppressed,
                "an agent asks for input that the client of the call has not declared: the client gets an error"
            );
        }
        let failure = Failure::new(Reason::McpCapability, MESSAGE);
        let failure = failure.detail("requiredCapabilities", missing);
        Part {
            body: failure.render(&self.recipient),
            ..part
        }
    }
}

/// The capabilities that a response needs, and that its client has not declared; `None` if it needs none of them.
fn undeclared(response: &[u8], declared: Abilities) -> Option<Value> {
    let response = response.strip_prefix(BYTE_ORDER_MARK).unwrap_or(response);
    let Response { result } = serde_json::from_slice(response).ok()?;
    if result.kind != "input_required" {
        return None;
    }
    let mut missing = json!({});
    let requests = result.requests.values();
    // The client refuses one that is not valid by itself.
    let valid = requests.filter_map(|raw| serde_json::from_str::<InputRequest<'_>>(raw.get()).ok());
    for InputRequest { method, params } in valid {
        match &*method {
            "sampling/createMessage" if !declared.sampling => missing["sampling"] = json!({}),
            "elicitation/create" => {
                let (mode, is_declared) = match is_by_url(params) {
                    true => ("url", declared.url_elicitation),
                    false => ("form", declared.elicitation),
                };
                if !is_declared {
                    missing["elicitation"][mode] = json!({});
                }
            }
            "roots/list" if !declared.roots => missing["roots"] = json!({}),
            _ => {}
        }
    }
    let is_any = missing
        .as_object()
        .is_some_and(|missing| !missing.is_empty());
    is_any.then_some(missing)
}

/// Whether an elicitation asks the client to open a URL.
fn is_by_url(params: Option<&RawValue>) -> bool {
    #[derive(Deserialize)]
    struct Elicitation<'a> {
        #[serde(borrow)]
        mode: Cow<'a, str>,
    }
    let params = params.map(|params| serde_json::from_str::<Elicitation<'_>>(params.get()));
    params.is_some_and(|params| params.is_ok_and(|elicitation| elicitation.mode == "url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(requests: &Value, declared: Abilities) -> Option<Value> {
        let result = json!({ "resultType": "input_required", "inputRequests": requests });
        let response = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        undeclared(response.to_string().as_bytes(), declared)
    }

    #[test]
    fn only_undeclared_capabilities_are_missing() {
        let all = json!({
            "a": { "method": "sampling/createMessage", "params": { "messages": [] } },
            "b": { "method": "elicitation/create", "params": { "mode": "url", "url": "https://x" } },
            "c": { "method": "elicitation/create" },
            "d": { "method": "roots/list" },
            "e": { "method": "new/method" },
        });
        let none = Abilities::default();
        let expected =
            json!({ "sampling": {}, "elicitation": { "url": {}, "form": {} }, "roots": {} });
        assert_eq!(needs(&all, none), Some(expected));
        let some = Abilities {
            elicitation: true,
            roots: true,
            ..none
        };
        let expected = json!({ "sampling": {}, "elicitation": { "url": {} } });
        assert_eq!(needs(&all, some), Some(expected));
        let every = Abilities {
            sampling: true,
            url_elicitation: true,
            ..some
        };
        assert_eq!(needs(&all, every), None);
    }

    #[test]
    fn other_responses_need_nothing() {
        for response in [
            r#"{"result":{"resultType":"complete","inputRequests":{"a":{"method":"roots/list"}}}}"#,
            r#"{"result":{"resultType":"input_required","requestState":"s"}}"#,
            r#"{"result":{"content":[]}}"#,
            r#"{"error":{"code":1,"message":""}}"#,
            "[]",
        ] {
            let missing = undeclared(response.as_bytes(), Abilities::default());
            assert_eq!(missing, None, "{response}");
        }
    }
}
