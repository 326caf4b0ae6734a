//! The tools of revision 2026-07-28 that need input of the client: they answer with the inputs they need, and are called
//! again with them.

use serde_json::{Map, Value, json};

use super::lists::{self, Answered};

/// The inputs that a tool needs, by name.
type Needs = Vec<(&'static str, Value)>;

fn elicitation(message: &str, property: &str, kind: &str) -> Value {
    let schema = json!({
        "type": "object", "properties": { property: { "type": kind } }, "required": [property],
    });
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
    json!({ "method": "elicitation/create", "params": params })
}

fn sampling(question: &str) -> Value {
    let content = json!({ "type": "text", "text": question });
    let messages = [json!({ "role": "user", "content": content })];
    json!({ "method": "sampling/createMessage", "params": { "messages": messages, "maxTokens": 100 } })
}

fn roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}

/// A tool that needs input; `None` for any other.
pub(super) fn tool(name: &str, params: &Value) -> Option<Answered> {
    let abilities = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    if let Some(name) = name.strip_prefix("test_input_required_result_") {
        return needing(name, params, abilities);
    }
    Some(match name {
        "test_streaming_elicitation" => return needing("elicitation", params, abilities),
        "test_missing_capability" => match abilities.get("sampling") {
            Some(_) => Ok(lists::text("The client samples")),
            None => Err((
                -32_021,
                "this tool needs a client that samples".to_owned(),
                json!({ "requiredCapabilities": { "sampling": {} } }),
            )),
        },
        _ => return None,
    })
}

/// The tools named `test_input_required_result_…`.
fn needing(name: &str, params: &Value, abilities: &Value) -> Option<Answered> {
    Some(match name {
        "elicitation" => {
            let needs = vec![(
                "user_name",
                elicitation("What is your name?", "name", "string"),
            )];
            Ok(once(params, needs, None, |inputs| {
                let name = inputs["user_name"]["content"]["name"].as_str();
                format!("Hello, {}!", name.unwrap_or("stranger"))
            }))
        }
        "sampling" => {
            let needs = vec![(
                "capital_question",
                sampling("What is the capital of France?"),
            )];
            Ok(once(params, needs, None, |inputs| {
                inputs["capital_question"]["content"]["text"].to_string()
            }))
        }
        "list_roots" => Ok(once(
            params,
            vec![("client_roots", roots())],
            None,
            |inputs| inputs["client_roots"]["roots"].to_string(),
        )),
        "request_state" => Ok(once(
            params,
            vec![("confirm", elicitation("Please confirm", "ok", "boolean"))],
            Some("confirmed"),
            |_| "state-ok".to_owned(),
        )),
        "tampered_state" => match params.get("requestState") {
            Some(state) if state != "sealed" => Err((
                -32_602,
                "the requestState was changed".to_owned(),
                Value::Null,
            )),
            _ => Ok(once(
                params,
                vec![("confirm", elicitation("Please confirm", "ok", "boolean"))],
                Some("sealed"),
                |_| "state-ok".to_owned(),
            )),
        },
        _ => return needing_more(name, params, abilities),
    })
}

/// Those of them that need more than one input.
fn needing_more(name: &str, params: &Value, abilities: &Value) -> Option<Answered> {
    Some(match name {
        "multiple_inputs" => {
            let needs = vec![
                (
                    "user_name",
                    elicitation("What is your name?", "name", "string"),
                ),
                ("greeting", sampling("Generate a greeting")),
                ("client_roots", roots()),
            ];
            Ok(once(params, needs, Some("all"), |inputs| {
                inputs.to_string()
            }))
        }
        "multi_round" => Ok(round(params)),
        "capabilities" => {
            let all = [
                (
                    "elicitation",
                    "name",
                    elicitation("What is your name?", "name", "string"),
                ),
                (
                    "sampling",
                    "sample",
                    sampling("What is the capital of France?"),
                ),
                ("roots", "roots", roots()),
            ];
            let able = all.into_iter().filter(|it| abilities.get(it.0).is_some());
            let needs = able.map(|(_, key, need)| (key, need)).collect();
            Ok(once(params, needs, None, |inputs| inputs.to_string()))
        }
        _ => return None,
    })
}

/// The prompt that needs input.
pub(super) fn prompt(params: &Value) -> Value {
    let question = "What context should the prompt use?";
    let needs = vec![("user_context", elicitation(question, "context", "string"))];
    let inputs = &params["inputResponses"];
    if lacks(inputs, &needs) {
        return needed(needs, None);
    }
    let context = inputs["user_context"]["content"]["context"].as_str();
    let text = format!("Use this context: {}", context.unwrap_or_default());
    let content = json!({ "type": "text", "text": text });
    json!({ "resultType": "complete", "messages": [{ "role": "user", "content": content }] })
}

/// Two inputs, one after the other.
fn round(params: &Value) -> Value {
    let second = || {
        vec![(
            "step2",
            elicitation("Step 2: What is your favorite color?", "color", "string"),
        )]
    };
    if params["requestState"] == "round-2" {
        return once(params, second(), Some("round-2"), |inputs| {
            inputs.to_string()
        });
    }
    let first = vec![(
        "step1",
        elicitation("Step 1: What is your name?", "name", "string"),
    )];
    if lacks(&params["inputResponses"], &first) {
        return needed(first, Some("round-1"));
    }
    needed(second(), Some("round-2"))
}

/// The inputs that are needed, or the resulting text.
fn once(
    params: &Value,
    needs: Needs,
    state: Option<&str>,
    answered: impl Fn(&Value) -> String,
) -> Value {
    let inputs = &params["inputResponses"];
    if lacks(inputs, &needs) {
        return needed(needs, state);
    }
    let mut answer = lists::text(&answered(inputs));
    answer["resultType"] = "complete".into();
    answer
}

/// Whether a needed input is missing.
fn lacks(inputs: &Value, needs: &Needs) -> bool {
    needs.iter().any(|(name, _)| !inputs[*name].is_object())
}

fn needed(needs: Needs, state: Option<&str>) -> Value {
    let needs = needs.into_iter();
    let requests: Map<_, _> = needs.map(|(name, need)| (name.to_owned(), need)).collect();
    let mut answer = json!({ "resultType": "input_required", "inputRequests": requests });
    if let Some(state) = state {
        answer["requestState"] = state.into();
    }
    answer
}
