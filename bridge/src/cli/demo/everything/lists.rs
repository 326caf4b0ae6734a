//! The lists, and the constant answers.

use serde_json::{Value, json};

/// The outcome of a method: a result, or the code, message and data of an error.
pub(super) type Answered = Result<Value, (i64, String, Value)>;

/// A red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// An empty sound.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

pub(super) fn profile(params: &Value) -> Value {
    json!({
        "protocolVersion": params["protocolVersion"],
        "capabilities": {
            "tools": {}, "prompts": {}, "resources": { "subscribe": true }, "logging": {}, "completions": {},
        },
        "serverInfo": { "name": "everything", "version": env!("CARGO_PKG_VERSION") },
    })
}

/// The tools without arguments.
const PLAIN: [(&str, &str); 22] = [
    ("test_simple_text", "Returns a text"),
    ("test_image_content", "Returns an image"),
    ("test_audio_content", "Returns a sound"),
    ("test_embedded_resource", "Returns a resource"),
    (
        "test_multiple_content_types",
        "Returns a text, an image and a resource",
    ),
    ("test_tool_with_logging", "Logs while it works"),
    ("test_logging_tool", "Logs once"),
    ("test_tool_with_progress", "Reports its progress"),
    ("test_error_handling", "Fails"),
    (
        "test_elicitation_sep1034_defaults",
        "Asks the user, with defaults",
    ),
    ("test_elicitation_sep1330_enums", "Asks the user to choose"),
    ("test_missing_capability", "Needs a client that samples"),
    ("test_streaming_elicitation", "Needs what the user says"),
    (
        "test_input_required_result_elicitation",
        "Needs the name of the user",
    ),
    ("test_input_required_result_sampling", "Needs a sample"),
    ("test_input_required_result_list_roots", "Needs the roots"),
    (
        "test_input_required_result_request_state",
        "Gets its state back",
    ),
    (
        "test_input_required_result_multiple_inputs",
        "Needs three things",
    ),
    (
        "test_input_required_result_multi_round",
        "Needs two things, one after the other",
    ),
    (
        "test_input_required_result_tampered_state",
        "Checks its state",
    ),
    (
        "test_input_required_result_capabilities",
        "Asks only what the client can answer",
    ),
    ("test_trigger_tool_change", "Does nothing"),
];

pub(super) fn tools() -> Vec<Value> {
    let plain = PLAIN.iter().map(|(name, description)| {
        let schema = json!({ "type": "object", "properties": {} });
        json!({ "name": name, "description": description, "inputSchema": schema })
    });
    let with = |name: &str, description: &str, argument: &str| {
        let schema = json!({
            "type": "object",
            "properties": { argument: { "type": "string", "description": description } },
            "required": [argument],
        });
        json!({ "name": name, "description": description, "inputSchema": schema })
    };
    let rest = [
        with(
            "test_sampling",
            "Asks the model of the client this",
            "prompt",
        ),
        with("test_elicitation", "Asks the user this", "message"),
        json!({
            "name": "json_schema_2020_12_tool",
            "description": "Tool with JSON Schema 2020-12 features",
            "inputSchema": schema_2020_12(),
        }),
    ];
    plain.chain(rest).collect()
}

fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "addressDef", "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

pub(super) fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// The tools with a constant answer.
pub(super) fn tool(name: &str) -> Answered {
    let image = json!({ "type": "image", "data": PNG, "mimeType": "image/png" });
    Ok(match name {
        "test_simple_text" => text("This is a simple text response for testing."),
        "test_image_content" => json!({ "content": [image] }),
        "test_audio_content" => {
            json!({ "content": [{ "type": "audio", "data": WAV, "mimeType": "audio/wav" }] })
        }
        "test_embedded_resource" => json!({ "content": [{ "type": "resource", "resource": {
            "uri": "test://embedded-resource", "mimeType": "text/plain",
            "text": "This is an embedded resource content.",
        } }] }),
        "test_multiple_content_types" => json!({ "content": [
            { "type": "text", "text": "Multiple content types test:" },
            image,
            { "type": "resource", "resource": {
                "uri": "test://mixed-content-resource", "mimeType": "application/json",
                "text": r#"{"test":"data","value":123}"#,
            } },
        ] }),
        "test_error_handling" => {
            let mut failed = text("This tool intentionally returns an error for testing");
            failed["isError"] = true.into();
            failed
        }
        "test_trigger_tool_change" | "json_schema_2020_12_tool" => text("Done"),
        _ => return Err((-32_602, format!("Unknown tool: {name}"), Value::Null)),
    })
}

/// The form for the user.
pub(super) fn form(tool: &str) -> Value {
    match tool {
        "test_elicitation_sep1034_defaults" => json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "default": "John Doe" },
                "age": { "type": "integer", "default": 30 },
                "score": { "type": "number", "default": 95.5 },
                "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
                "verified": { "type": "boolean", "default": true },
            },
        }),
        "test_elicitation_sep1330_enums" => {
            let titled = |names: [&str; 3]| {
                let titles = ["First", "Second", "Third"].into_iter().zip(names);
                let titled = titles.map(|(title, name)| json!({ "const": name, "title": title }));
                titled.collect::<Vec<_>>()
            };
            let (options, values) = (
                ["option1", "option2", "option3"],
                ["value1", "value2", "value3"],
            );
            json!({
                "type": "object",
                "properties": {
                    "untitledSingle": { "type": "string", "enum": options },
                    "titledSingle": { "type": "string", "oneOf": titled(values) },
                    "legacyEnum": {
                        "type": "string", "enum": ["opt1", "opt2", "opt3"],
                        "enumNames": ["Option One", "Option Two", "Option Three"],
                    },
                    "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
                    "titledMulti": { "type": "array", "items": { "anyOf": titled(values) } },
                },
            })
        }
        _ => json!({
            "type": "object",
            "properties": {
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            },
            "required": ["username", "email"],
        }),
    }
}

pub(super) fn prompts() -> Value {
    let argument = |name: &str| json!({ "name": name, "description": name, "required": true });
    json!([
        { "name": "test_simple_prompt", "description": "A prompt without arguments" },
        {
            "name": "test_prompt_with_arguments", "description": "A prompt with two arguments",
            "arguments": [argument("arg1"), argument("arg2")],
        },
        {
            "name": "test_prompt_with_embedded_resource", "description": "A prompt with a resource",
            "arguments": [argument("resourceUri")],
        },
        { "name": "test_prompt_with_image", "description": "A prompt with an image" },
        { "name": "test_input_required_result_prompt", "description": "A prompt that asks the user" },
    ])
}

pub(super) fn prompt(name: &str, arguments: &Value) -> Answered {
    let message = |content: Value| json!({ "role": "user", "content": content });
    let text = |text: &str| message(json!({ "type": "text", "text": text }));
    let argument = |name: &str| arguments[name].as_str().unwrap_or_default();
    let messages = match name {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (one, two) = (argument("arg1"), argument("arg2"));
            vec![text(&format!(
                "Prompt with arguments: arg1='{one}', arg2='{two}'"
            ))]
        }
        "test_prompt_with_embedded_resource" => vec![
            message(json!({ "type": "resource", "resource": {
                "uri": argument("resourceUri"), "mimeType": "text/plain",
                "text": "Embedded resource content for testing.",
            } })),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image" => vec![
            message(json!({ "type": "image", "data": PNG, "mimeType": "image/png" })),
            text("Please analyze the image above."),
        ],
        _ => return Err((-32_602, format!("Unknown prompt: {name}"), Value::Null)),
    };
    Ok(json!({ "messages": messages }))
}

pub(super) fn resources() -> Value {
    let resource = |uri: &str, kind: &str| json!({ "uri": uri, "name": uri, "description": uri, "mimeType": kind });
    json!([
        resource("test://static-text", "text/plain"),
        resource("test://static-binary", "image/png"),
        resource("test://watched-resource", "text/plain"),
    ])
}

pub(super) fn templates() -> Value {
    json!([{
        "uriTemplate": "test://template/{id}/data", "name": "template",
        "description": "Data by id", "mimeType": "application/json",
    }])
}

pub(super) fn resource(uri: &str) -> Answered {
    let text = |kind: &str, text: &str| json!({ "uri": uri, "mimeType": kind, "text": text });
    let templated = uri
        .strip_prefix("test://template/")
        .and_then(|rest| rest.strip_suffix("/data"));
    let content = match (uri, templated) {
        ("test://static-text", _) => text(
            "text/plain",
            "This is the content of the static text resource.",
        ),
        ("test://watched-resource", _) => text("text/plain", "Nothing happens"),
        ("test://static-binary", _) => json!({ "uri": uri, "mimeType": "image/png", "blob": PNG }),
        (_, Some(id)) => {
            let data =
                json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            text("application/json", &data.to_string())
        }
        _ => {
            return Err((
                -32_602,
                "Resource not found".to_owned(),
                json!({ "uri": uri }),
            ));
        }
    };
    Ok(json!({ "contents": [content] }))
}
