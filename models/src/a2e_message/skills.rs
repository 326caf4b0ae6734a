//! Skills: finding and calling them.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::header::Embedded;
use super::value::{Float, Generated, Integer, Secret};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Requests the list of skills.
    "skill/discover/req" => SkillDiscoverRequest {
        filter_tags: Vec<Text> = [],
        filter_categories: Vec<Text> = [],
    }
    /// The list of skills.
    "skill/discover/resp" => SkillDiscoverResponse {
        req_id: Text = "",
        skills: Vec<SkillDefinition> = [],
    }
    /// Calls a skill; `timeout` in seconds.
    "skill/call/req" => SkillCallRequest {
        name: Text = "",
        arguments: Object = {},
        correlation_id: Text = "",
        timeout: Integer = 60,
        streaming: bool = true,
        llm_override: Option<LlmConfig> = null,
        metadata: Object = {},
    }
    /// The result of a skill call.
    "skill/call/resp" => SkillCallResponse {
        req_id: Text = "",
        name: Text = "",
        data: Option<SkillResult>,
        error: Option<Object> = null,
        created_at: Generated<Float> = now,
    }
    /// Progress of a skill call.
    "skill/event" => SkillEvent {
        kind: Text = "status",
        req_id: Text = "",
        data: Object = {},
        seq: Integer = 0,
    }
    /// A skill. `arguments` is declared as a list of names, but its default is `{}`.
    SkillDefinition {
        name: Text,
        version: Text,
        description: Text,
        triggers: Vec<Text>,
        tools: Option<Vec<Json>> = null,
        toolkits: Option<Vec<Json>> = null,
        status: SkillStatus,
        input_schema: Object = {},
        output_schema: Object = {},
        instructions: Option<Text> = null,
        file_path: Option<Text> = null,
        llm_config: Option<LlmConfig> = null,
        arguments: Json = {},
        when_to_use: Text,
        argument_hint: Text,
        source: Text,
        category: Option<Text> = null,
        tags: Option<Vec<Text>> = null,
        max_turns: Option<Integer> = null,
        timeout_seconds: Option<Integer> = null,
        icon: Option<Text> = null,
        metadata: Option<Object> = null,
    }
    /// The result of a skill call; `duration_ms` in milliseconds. A failure may be reported in `success`.
    SkillResult {
        success: bool,
        data: Json = null,
        summary: Json = null,
        truncated: Option<bool> = false,
        error: Option<Text> = null,
        error_code: Option<Text> = null,
        duration_ms: Integer,
        events: Vec<Embedded<SkillEvent>> = [],
    }
    /// The model a skill runs on. `provider_config` is declared as an object, but its default is
    /// `false`.
    LlmConfig {
        provider_name: Text,
        provider_credentials: Secret<Object>,
        provider_config: Secret<Json> = false,
        is_default: Option<bool> = false,
    }
}

member_words! {
    /// The lifecycle status of a skill.
    SkillStatus {
        #[default]
        Created = "Created",
        Blocked = "Blocked",
        Published = "Published",
        Archived = "Archived",
    }
}
