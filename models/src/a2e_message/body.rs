//! What a message says, by its type.

use std::fmt;

use super::record::{Content, Record};
use super::shape::Member;
use super::value::Violation;
use super::{
    chains, env, learn, mcp, memory, multi_agent, planning, proc, session, skills, toolkits, tools,
};
use crate::json::Object;
use a2abus_plugin::Text;

/// A message of a type that is not known, or one whose members were not checked. `Debug` leaves the
/// members out, since any of them may be a secret.
#[derive(Clone, PartialEq)]
pub struct Unknown {
    /// The type string.
    pub type_name: Text,
    /// All members but the base keys.
    pub members: Object,
}

impl fmt::Debug for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unknown")
            .field("type_name", &self.type_name)
            .finish_non_exhaustive()
    }
}

/// Declares the sum of the message types.
macro_rules! bodies {
    ($($module:ident::$name:ident,)*) => {
        /// The members of a message beside its base keys, by its type.
        // The large ones are those that carry results: the common ones.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body {
            $(
                #[doc = concat!("[`", stringify!($module), "::", stringify!($name), "`].")]
                $name($module::$name),
            )*
            /// Any other type, kept whole.
            Unknown(Unknown),
        }

        impl Body {
            /// The type strings that have a variant.
            pub const TYPES: &[&str] = &[$(<$module::$name as Content>::TYPE),*];

            /// The type string.
            #[must_use]
            pub fn type_name(&self) -> &str {
                match self {
                    $(Self::$name(_) => <$module::$name as Content>::TYPE,)*
                    Self::Unknown(unknown) => &unknown.type_name,
                }
            }

            /// The id of the request it belongs to; empty for none.
            #[must_use]
            pub fn req_id(&self) -> &str {
                match self {
                    $(Self::$name(content) => content.req_id(),)*
                    Self::Unknown(unknown) => req_id_in(&unknown.members),
                }
            }

            /// The members as an object, defaults too.
            #[must_use]
            pub fn to_object(&self) -> Object {
                match self {
                    $(Self::$name(content) => content.to_object(),)*
                    Self::Unknown(unknown) => unknown.members.clone(),
                }
            }

            pub(super) fn read(type_name: Text, members: Object) -> Result<Self, Violation> {
                match type_name.as_str() {
                    // The SDK writes the answer with the type of the request.
                    <mcp::McpSampleRequest as Content>::TYPE if !req_id_in(&members).is_empty() => {
                        mcp::McpSampleResponse::from_object(members).map(Self::McpSampleResponse)
                    }
                    $(<$module::$name as Content>::TYPE => {
                        $module::$name::from_object(members).map(Self::$name)
                    })*
                    _ => Ok(Self::Unknown(Unknown { type_name, members })),
                }
            }

            pub(super) fn members(type_name: &str) -> Option<&'static [Member]> {
                match type_name {
                    $(<$module::$name as Content>::TYPE => Some($module::$name::members()),)*
                    _ => None,
                }
            }
        }

        $(impl From<$module::$name> for Body {
            fn from(content: $module::$name) -> Self {
                Self::$name(content)
            }
        })*
    };
}

/// The members of a known type, the base keys left out; `None` for an unknown type.
#[must_use]
pub fn members_of(type_name: &str) -> Option<&'static [Member]> {
    Body::members(type_name)
}

fn req_id_in(members: &Object) -> &str {
    let req_id = members.get("req_id").and_then(|value| value.as_str());
    req_id.unwrap_or_default()
}

bodies! {
    session::HandshakeRequest,
    session::HandshakeResponse,
    session::Ping,
    session::Pong,
    session::Shutdown,
    session::ErrorMessage,
    session::InvokeEvent,
    tools::ToolListRequest,
    tools::ToolListResponse,
    tools::ToolCallRequest,
    tools::ToolEvent,
    tools::ToolCallResponse,
    skills::SkillDiscoverRequest,
    skills::SkillDiscoverResponse,
    skills::SkillCallRequest,
    skills::SkillCallResponse,
    skills::SkillEvent,
    proc::ProcSpawnRequest,
    proc::ProcSpawnResponse,
    proc::ProcWriteRequest,
    proc::ProcWriteResponse,
    proc::ProcReadEvent,
    proc::ProcKillRequest,
    proc::ProcKillResponse,
    proc::ProcStatusRequest,
    proc::ProcStatusResponse,
    memory::MemoryInitRequest,
    memory::MemoryInitResponse,
    memory::MemoryStoreRequest,
    memory::MemoryStoreResponse,
    memory::MemoryRetrieveRequest,
    memory::MemoryRetrieveResponse,
    memory::MemoryForgetRequest,
    memory::MemoryForgetResponse,
    chains::ChainRequest,
    chains::ChainEvent,
    chains::ChainResponse,
    toolkits::ToolkitListRequest,
    toolkits::ToolkitListResponse,
    toolkits::ToolkitConfigureRequest,
    toolkits::ToolkitConfigureResponse,
    multi_agent::MultiAgentSpawnRequest,
    multi_agent::MultiAgentDelegateRequest,
    multi_agent::MultiAgentAwaitRequest,
    multi_agent::MultiAgentListRequest,
    multi_agent::MultiAgentTerminateRequest,
    multi_agent::MultiAgentSpawnResponse,
    multi_agent::MultiAgentDelegateResponse,
    multi_agent::MultiAgentAwaitResponse,
    multi_agent::MultiAgentListResponse,
    multi_agent::MultiAgentTerminateResponse,
    planning::PlanningPlanCreateRequest,
    planning::PlanningPlanListRequest,
    planning::PlanningTaskAddRequest,
    planning::PlanningTaskUpdateRequest,
    planning::PlanningTaskListRequest,
    planning::PlanningPlanBoardRequest,
    planning::PlanningPlanCreateResponse,
    planning::PlanningPlanListResponse,
    planning::PlanningTaskAddResponse,
    planning::PlanningTaskUpdateResponse,
    planning::PlanningTaskListResponse,
    planning::PlanningPlanBoardResponse,
    env::EnvResetRequest,
    env::EnvResetResponse,
    env::EnvStepRequest,
    env::EnvStepResponse,
    env::EnvObserveRequest,
    env::EnvObserveResponse,
    env::EnvCloseRequest,
    env::EnvCloseResponse,
    env::EnvSpaceRequest,
    env::EnvSpaceResponse,
    env::EnvRenderRequest,
    env::EnvRenderResponse,
    env::EnvPlanRequest,
    env::EnvPlanResponse,
    env::EnvBatchStepRequest,
    env::EnvBatchStepResponse,
    env::EnvExpListRequest,
    env::EnvExpListResponse,
    env::EnvStatePush,
    learn::LearnFeedbackRequest,
    learn::LearnFeedbackResponse,
    learn::LearnExperienceRequest,
    learn::LearnExperienceResponse,
    learn::LearnAdaptRequest,
    learn::LearnAdaptResponse,
    learn::LearnStatsRequest,
    learn::LearnStatsResponse,
    learn::LearnRefinementPlanRequest,
    learn::LearnRefinementPlanResponse,
    learn::LearnRefinementApplyRequest,
    learn::LearnRefinementApplyResponse,
    learn::LearnRefinementRollbackRequest,
    learn::LearnRefinementRollbackResponse,
    learn::LearnRefinementReviewRequest,
    learn::LearnRefinementReviewResponse,
    learn::LearnRefinementHistoryRequest,
    learn::LearnRefinementHistoryResponse,
    mcp::McpServerListRequest,
    mcp::McpServerListResponse,
    mcp::McpServerRegisterRequest,
    mcp::McpServerRegisterResponse,
    mcp::McpServerUnregisterRequest,
    mcp::McpServerUnregisterResponse,
    mcp::McpResourceListRequest,
    mcp::McpResourceListResponse,
    mcp::McpResourceReadRequest,
    mcp::McpResourceReadResponse,
    mcp::McpResourceSubscribeRequest,
    mcp::McpResourceSubscribeResponse,
    mcp::McpPromptListRequest,
    mcp::McpPromptListResponse,
    mcp::McpPromptGetRequest,
    mcp::McpPromptGetResponse,
    mcp::McpRootListRequest,
    mcp::McpRootListResponse,
    mcp::McpSampleRequest,
    mcp::McpSampleResponse,
    mcp::McpServerPush,
}
