//! The card of an attached agent, from its server's description of itself.

use std::collections::HashSet;

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::link::ToolUse;
use crate::config::{AgentCardConfig, ListVersions, SkillConfig};
use crate::registry::card::{LeftOut, TWICE};

/// The members of an MCP tool that the bridge reads.
#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    pub(super) name: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    annotations: Option<Annotations>,
    /// Read only when it is needed: whatever it is, the tool is listed.
    #[serde(rename = "inputSchema", default)]
    arguments: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Annotations {
    #[serde(default)]
    title: Option<String>,
    #[serde(rename = "readOnlyHint", default)]
    reads: Option<bool>,
    #[serde(rename = "idempotentHint", default)]
    is_idempotent: Option<bool>,
}

/// A server's description of itself in its answer to `initialize`.
#[derive(Debug, Default, Deserialize)]
struct Profile {
    #[serde(rename = "serverInfo", default)]
    server: ServerInfo,
    #[serde(default)]
    instructions: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct ServerInfo {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

/// The longest texts of a card, in characters, and its most skills.
const DESCRIPTION: usize = 4_096;
const VERSION: usize = 64;
const NAME: usize = 256;
const MAX_SKILLS: usize = 1_000;
const TOO_MANY: &str = "comes after 1000 other tools";

// === impl Tool ===

impl Tool {
    /// How it may be called.
    pub(super) fn usage(&self) -> ToolUse {
        let schema: Value = (self.arguments.as_ref())
            .and_then(|schema| serde_json::from_str(schema.get()).ok())
            .unwrap_or_default();
        let text = match schema["required"].as_array().map(Vec::as_slice) {
            Some([Value::String(only)]) if schema["properties"][only]["type"] == "string" => {
                Some(only.clone())
            }
            _ => None,
        };
        let is_repeatable = (self.annotations.as_ref())
            .is_some_and(|it| it.reads == Some(true) || it.is_idempotent == Some(true));
        ToolUse {
            is_repeatable,
            text,
        }
    }

    fn skill(self) -> SkillConfig {
        let title = self.title.or_else(|| self.annotations?.title);
        let name = text(title, NAME);
        let description = text(self.description, DESCRIPTION);
        SkillConfig {
            description: description.unwrap_or_else(|| format!("The tool {}.", self.name)),
            id: self.name,
            name,
            tags: vec!["mcp".to_owned()],
            examples: Vec::new(),
        }
    }
}

/// The tools of a page of `tools/list`, each with its fault if it has one.
///
/// # Errors
/// When the page cannot be read.
pub(super) fn tools_of(page: &RawValue) -> Result<Vec<Result<Tool, String>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(default, borrow)]
        tools: Vec<&'a RawValue>,
    }
    let tool = |tool: &RawValue| {
        serde_json::from_str::<Tool>(tool.get()).map_err(|error| {
            // It may repeat a text of the server.
            let why = error.to_string();
            text(Some(why), NAME).unwrap_or_default()
        })
    };
    let page: Page<'_> = serde_json::from_str(page.get())?;
    Ok(page.tools.into_iter().map(tool).collect())
}

/// Whether the server has this ability.
pub(super) fn has(profile: &RawValue, ability: &str) -> bool {
    #[derive(Default, Deserialize)]
    struct Profile {
        #[serde(default)]
        capabilities: serde_json::Map<String, serde_json::Value>,
    }
    let profile: Profile = serde_json::from_str(profile.get()).unwrap_or_default();
    profile.capabilities.contains_key(ability)
}

/// The card of an MCP server. Its tools become skills, except those that have a fault or whose names are not valid skill
/// ids.
pub(super) fn of_tools(
    agent: &Text,
    (profile, lists): (&RawValue, ListVersions),
    tools: Vec<Result<Tool, String>>,
) -> (AgentCardConfig, LeftOut) {
    let profile: Profile = serde_json::from_str(profile.get()).unwrap_or_default();
    let server = profile.server;
    let described = text(server.description, DESCRIPTION);
    let described = described.or_else(|| text(profile.instructions, DESCRIPTION));
    let called = text(server.title.or(server.name), NAME);
    let called = called.unwrap_or_else(|| agent.to_string());
    let (skills, left_out) = skills(tools);
    let card = AgentCardConfig {
        description: described.unwrap_or_else(|| format!("The MCP server {called}.")),
        version: text(server.version, VERSION).unwrap_or_else(|| "1.0.0".to_owned()),
        to: None,
        attach: None,
        protocol: None,
        dialect: None,
        provider: None,
        documentation_url: None,
        icon_url: None,
        extensions: Vec::new(),
        lists: Some(lists),
        skills,
        streaming: false,
        input_modes: vec!["application/json".to_owned()],
        output_modes: ["text/plain", "application/json"].map(str::to_owned).into(),
    };
    (card, left_out)
}

fn skills(tools: Vec<Result<Tool, String>>) -> (Vec<SkillConfig>, LeftOut) {
    let (mut seen, mut skills) = (HashSet::new(), Vec::new());
    let mut left_out = LeftOut::default();
    for (index, tool) in tools.into_iter().enumerate() {
        let tool = match tool {
            Ok(tool) => tool,
            Err(why) => {
                left_out.add(&format!("/tools/{index}"), &why);
                continue;
            }
        };
        let is_new = seen.insert(tool.name.clone());
        let checked = SkillConfig::check_id(&tool.name);
        let checked = checked.and(is_new.then_some(()).ok_or(TWICE));
        let has_room = skills.len() < MAX_SKILLS;
        match checked.and(has_room.then_some(()).ok_or(TOO_MANY)) {
            Ok(()) => skills.push(tool.skill()),
            Err(why) => left_out.add(&format!("/tools/{index}/name"), why),
        }
    }
    (skills, left_out)
}

/// A non-empty text, cut to `most` characters.
fn text(text: Option<String>, most: usize) -> Option<String> {
    let text = text.filter(|text| !text.trim().is_empty())?;
    Some(text.chars().take(most).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools of a page with these items.
    fn tools(items: &str) -> Vec<Result<Tool, String>> {
        let page = RawValue::from_string(format!(r#"{{"tools":[{items}]}}"#)).unwrap();
        tools_of(&page).unwrap()
    }

    #[test]
    fn the_tools_of_a_server_are_the_skills_of_its_card() {
        let profile = r#"{"serverInfo":{"name":"files","version":"2.1"},"instructions":" "}"#;
        let profile = RawValue::from_string(profile.to_owned()).unwrap();
        let tools = tools(
            r#"{"name":"read","title":"Read","description":"Reads.","annotations":{"readOnlyHint":true}},
            {"name":"write","inputSchema":{}}, {"name":" "}, {"name":"read"}, {"name":"a\u0000"}"#,
        );
        let is_repeatable = |index: usize| tools[index].as_ref().unwrap().usage().is_repeatable;
        assert!(is_repeatable(0) && !is_repeatable(1));
        let (card, left_out) = of_tools(&"f".into(), (&profile, ListVersions::default()), tools);
        assert_eq!(card.description, "The MCP server files.");
        assert_eq!(card.version, "2.1");
        let skills = card.skills.iter();
        let skills: Vec<_> = skills
            .map(|skill| (skill.id.as_str(), skill.description.as_str()))
            .collect();
        assert_eq!(skills, [("read", "Reads."), ("write", "The tool write.")]);
        assert_eq!(left_out.count, 3);
    }

    #[test]
    fn a_malformed_tool_hides_no_other() {
        let tools = tools(
            r#"{"name":"a","title":7}, {"title":"B"}, 7, {"name":"c","annotations":null},
            {"name":"d","annotations":{"readOnlyHint":null,"idempotentHint":true}}"#,
        );
        let is_repeatable = |index: usize| tools[index].as_ref().unwrap().usage().is_repeatable;
        assert!(!is_repeatable(3) && is_repeatable(4));
        let (skills, left_out) = skills(tools);
        let ids: Vec<_> = skills.iter().map(|skill| skill.id.as_str()).collect();
        assert_eq!(ids, ["c", "d"]);
        assert_eq!(left_out.count, 3);
        let faults = &left_out.faults.0;
        for (fault, why) in faults.iter().zip(["invalid type", "missing field `name`"]) {
            assert!(fault.contains(why), "{faults:?}");
        }
    }

    #[test]
    fn a_page_of_tools_that_cannot_be_read_is_an_error() {
        for (page, is_read) in [
            ("{}", true),
            (r#"{"tools":[]}"#, true),
            (r#"{"tools":null}"#, false),
            (r#"{"tools":{}}"#, false),
            ("[7]", false),
        ] {
            let page = RawValue::from_string(page.to_owned()).unwrap();
            assert_eq!(tools_of(&page).is_ok(), is_read, "{page}");
        }
    }

    #[test]
    fn the_only_required_argument_takes_a_text_if_it_is_a_string() {
        let text_of = |schema: &str| {
            let tool = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
            let tool: Tool = serde_json::from_str(&tool).unwrap();
            tool.usage().text
        };
        let city = r#""properties":{"city":{"type":"string"},"days":{"type":"integer"}}"#;
        let of = |required: &str| text_of(&format!(r#"{{"required":{required},{city}}}"#));
        assert_eq!(of(r#"["city"]"#).as_deref(), Some("city"));
        for required in [
            r#"["days"]"#,
            r#"["city","days"]"#,
            r#"["none"]"#,
            "[]",
            "null",
            "[1]",
        ] {
            assert_eq!(of(required), None, "{required}");
        }
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for schema in [
            "null",
            "true",
            "[]",
            r#"{"required":["a"],"properties":[]}"#,
            &deep,
        ] {
            assert_eq!(text_of(schema), None, "{schema}");
        }
    }
}
