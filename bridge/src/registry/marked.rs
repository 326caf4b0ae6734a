//! The parameters of tools that clients repeat in headers, so that proxies can read them.
//!
//! Source: MCP 2026-07-28, "Custom headers from tool parameters".

use std::collections::{HashMap, HashSet};

use http::HeaderName;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The marked parameters of an agent's tools, by tool.
#[derive(Debug)]
pub(crate) struct MarkedParams(HashMap<String, Vec<MarkedParam>>);

/// A parameter that is marked in the schema of its tool.
#[derive(Debug)]
pub(crate) struct MarkedParam {
    /// The header that repeats it.
    pub(crate) header: HeaderName,
    /// The members that lead to it in the arguments.
    path: Vec<String>,
}

/// What marks a parameter: its value is the end of the name of the header.
const MARK: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";
/// The most marks of a tool. One with more counts as unmarked: each mark stores its path.
const MAX_MARKS: usize = 64;

// === impl MarkedParams ===

impl MarkedParams {
    /// Reads the items of `tools/list`. `None` if no parameter is marked.
    pub(crate) fn of(tools: &[Box<RawValue>]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Tool {
            name: String,
            #[serde(rename = "inputSchema")]
            schema: Value,
        }
        let mut marked = HashMap::new();
        for item in tools.iter().filter(|item| item.get().contains(MARK)) {
            let Ok(tool) = serde_json::from_str::<Tool>(item.get()) else {
                continue;
            };
            let mut params = Vec::new();
            collect(&tool.schema, &mut Vec::new(), &mut params);
            let headers: HashSet<_> = params.iter().map(|param| &param.header).collect();
            // A tool that marks two parameters with one header is not valid: no header could match both.
            let is_valid = headers.len() == params.len() && params.len() <= MAX_MARKS;
            if is_valid && !params.is_empty() {
                marked.entry(tool.name).or_insert(params);
            }
        }
        (!marked.is_empty()).then_some(Self(marked))
    }

    /// The marked parameters of a tool.
    pub(crate) fn of_tool(&self, name: &str) -> &[MarkedParam] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Their approximate size in memory.
    pub(super) fn bytes(&self) -> usize {
        let of_text = |text: &String| size_of::<String>() + text.len();
        let of_param = |param: &MarkedParam| {
            let path = param.path.iter().map(of_text).sum::<usize>();
            size_of::<MarkedParam>() + param.header.as_str().len() + path
        };
        let tools = self.0.iter();
        tools
            .map(|(name, params)| of_text(name) + params.iter().map(of_param).sum::<usize>())
            .sum()
    }
}

/// Collects the marked properties of a schema. Only those count that `properties` alone lead to.
fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<MarkedParam>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, property) in properties {
        if found.len() > MAX_MARKS {
            return;
        }
        path.push(name.clone());
        let mark = property[MARK].as_str().filter(|mark| !mark.is_empty());
        let header = mark.and_then(|mark| HeaderName::try_from(format!("{PREFIX}{mark}")).ok());
        if let Some(header) = header {
            let path = path.clone();
            found.push(MarkedParam { header, path });
        }
        collect(property, path, found);
        path.pop();
    }
}

// === impl MarkedParam ===

impl MarkedParam {
    /// Its value in the arguments of a call; `None` if it is absent or `null`.
    pub(crate) fn in_arguments<'a>(&self, arguments: &'a Value) -> Option<&'a Value> {
        let mut names = self.path.iter();
        let value = names.try_fold(arguments, |value, name| value.get(name))?;
        (!value.is_null()).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_count_wherever_properties_lead_to_them() {
        let schema = json!({ "type": "object", "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "page": { "type": "object", "properties": { "rows": { "x-mcp-header": "Rows" } } },
            "list": { "items": { "properties": { "a": { "x-mcp-header": "Item" } } } },
            "bad": { "x-mcp-header": "a b" }, "empty": { "x-mcp-header": "" }, "no": true,
        } });
        let tool = |name: &str, schema: &Value| {
            let tool = json!({ "name": name, "inputSchema": schema });
            RawValue::from_string(tool.to_string()).unwrap()
        };
        let tools = [tool("plain", &json!({})), tool("marked", &schema)];
        assert!(MarkedParams::of(&tools[..1]).is_none());
        let marked = MarkedParams::of(&tools).unwrap();
        assert!(marked.of_tool("plain").is_empty());
        let arguments = json!({ "region": null, "page": { "rows": 7 } });
        let mut found: Vec<_> = marked.of_tool("marked").iter().collect();
        found.sort_by_key(|param| param.header.as_str().to_owned());
        let found: Vec<_> = found
            .into_iter()
            .map(|param| (param.header.as_str(), param.in_arguments(&arguments)))
            .collect();
        let rows = json!(7);
        let expected = [("mcp-param-region", None), ("mcp-param-rows", Some(&rows))];
        assert_eq!(found, expected);
        assert!(marked.bytes() > size_of::<MarkedParam>() * 2);
        let same = json!({ "properties": {
            "from": { "x-mcp-header": "Place" }, "to": { "x-mcp-header": "place" },
        } });
        let many = (0..=MAX_MARKS).map(|number| {
            (
                number.to_string(),
                json!({ "x-mcp-header": number.to_string() }),
            )
        });
        let many = json!({ "properties": many.collect::<serde_json::Map<_, _>>() });
        assert!(MarkedParams::of(&[tool("same", &same), tool("many", &many)]).is_none());
    }
}
