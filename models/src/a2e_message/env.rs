//! Environments: episodes of steps and observations.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::header::Embedded;
use super::value::{Float, Generated, Integer};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Starts an episode.
    "env/reset/req" => EnvResetRequest {
        env_name: Text,
        seed: Option<Integer> = null,
        options: Object = {},
    }
    /// The first observation of an episode.
    "env/reset/resp" => EnvResetResponse {
        req_id: Text = "",
        obs: EnvObservation,
    }
    /// Acts in an episode.
    "env/step/req" => EnvStepRequest {
        episode_id: Text,
        action: Object,
    }
    /// The observation after an action.
    "env/step/resp" => EnvStepResponse {
        req_id: Text = "",
        obs: EnvObservation,
    }
    /// Requests the state of an episode.
    "env/observe/req" => EnvObserveRequest {
        episode_id: Text,
    }
    /// The state of an episode.
    "env/observe/resp" => EnvObserveResponse {
        req_id: Text = "",
        obs: EnvObservation,
    }
    /// Ends an episode.
    "env/close/req" => EnvCloseRequest {
        episode_id: Text,
    }
    /// Whether the episode ended. It has no `req_id`.
    "env/close/resp" => EnvCloseResponse {
        closed: bool = true,
    }
    /// Requests the actions and states of an environment.
    "env/space/req" => EnvSpaceRequest {
        env_name: Text,
    }
    /// The actions and states of an environment. It has no `req_id`.
    "env/space/resp" => EnvSpaceResponse {
        action_space: Object,
        state_schema: Object,
    }
    /// Requests a rendered image of an episode.
    "env/render/req" => EnvRenderRequest {
        episode_id: Text,
        mode: Option<Text> = "screenshot",
    }
    /// A rendered image of an episode. It has no `req_id`.
    "env/render/resp" => EnvRenderResponse {
        render: Json,
    }
    /// Requests suggested actions. Documented, but not registered in the SDK.
    "env/plan/req" => EnvPlanRequest {
        episode_id: Option<Text> = null,
        state: Option<Object> = null,
    }
    /// The suggested actions. It has no `req_id`.
    "env/plan/resp" => EnvPlanResponse {
        suggested_actions: Vec<Object> = [],
    }
    /// Acts in several episodes.
    "env/batch_step/req" => EnvBatchStepRequest {
        episode_ids: Vec<Text>,
        actions: Vec<Object>,
    }
    /// The observations after several actions. It has no `req_id`.
    "env/batch_step/resp" => EnvBatchStepResponse {
        results: Vec<Embedded<EnvStepResponse>>,
    }
    /// Requests the list of recorded episodes.
    "env/exp/list/req" => EnvExpListRequest {
        episode_id: Text = "",
        limit: Integer = 100,
    }
    /// The recorded episodes.
    "env/exp/list/resp" => EnvExpListResponse {
        req_id: Text = "",
        episodes: Vec<Object> = [],
    }
    /// An unsolicited change of state.
    "env/state/push" => EnvStatePush {
        episode_id: Text,
        step_id: Integer,
        action_id: Option<Text> = null,
        event_type: Text,
        reason: Text = "",
        delta: Object = {},
        reward: Option<Float> = null,
        reward_info: Option<Object> = {},
        terminal: bool = false,
    }
    /// The agent's view of an episode.
    EnvObservation {
        episode_id: Text,
        step_num: Integer,
        state: Object,
        done: bool = false,
        truncated: bool = false,
        reward: Option<Float> = 0.0,
        created_at: Generated<Float> = now,
        metadata: Option<Object> = {},
    }
}
