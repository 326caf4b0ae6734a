//! The content of a message, by its type.

use std::fmt;

use super::record::{Content, Record};
use super::shape::Member;
use super::value::Violation;
use super::{
    chains, env, learn, mcp, memory, multi_agent, planning, proc, session, skills, toolkits, tools,
};
use crate::json::Object;
use a2abus_plugin::Text;

/// A message of an unknown type, or one whose members were not checked. `Debug` omits the members, because any of them
/// may be a secret.
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

/// Declares the enumeration of the message types.
macro_rules! bodies {
    ($($module:ident: $($name:ident)+;)+) => {
        /// The members of a message besides its base keys, by its type.
        // The large variants are those with results, which are common.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body {
            $($(
                #[doc = concat!("[`", stringify!($module), "::", stringify!($name), "`].")]
                $name($module::$name),
            )+)+
            /// Any other type, complete.
            Unknown(Unknown),
        }

        impl Body {
            /// The type strings of all variants.
            pub const TYPES: &[&str] = &[$($(<$module::$name as Content>::TYPE,)+)+];

            /// The type string.
            #[must_use]
            pub fn type_name(&self) -> &str {
                match self {
                    $($(Self::$name(_) => <$module::$name as Content>::TYPE,)+)+
                    Self::Unknown(unknown) => &unknown.type_name,
                }
            }

            /// The id of the request it belongs to; empty if there is none.
            #[must_use]
            pub fn req_id(&self) -> &str {
                match self {
                    $($(Self::$name(content) => content.req_id(),)+)+
                    Self::Unknown(unknown) => req_id_in(&unknown.members),
                }
            }

            /// The members as an object, including defaults.
            #[must_use]
            pub fn to_object(&self) -> Object {
                match self {
                    $($(Self::$name(content) => content.to_object(),)+)+
                    Self::Unknown(unknown) => unknown.members.clone(),
                }
            }

            pub(super) fn read(type_name: Text, members: Object) -> Result<Self, Vec<Violation>> {
                match type_name.as_str() {
                    // The SDK writes the answer with the type of the request.
                    <mcp::McpSampleRequest as Content>::TYPE if !req_id_in(&members).is_empty() => {
                        mcp::McpSampleResponse::from_object(members).map(Self::McpSampleResponse)
                    }
                    $($(<$module::$name as Content>::TYPE => {
                        $module::$name::from_object(members).map(Self::$name)
                    })+)+
                    _ => Ok(Self::Unknown(Unknown { type_name, members })),
                }
            }

            pub(super) fn members(type_name: &str) -> Option<&'static [Member]> {
                match type_name {
                    $($(<$module::$name as Content>::TYPE => Some($module::$name::members()),)+)+
                    _ => None,
                }
            }
        }

        $($(impl From<$module::$name> for Body {
            fn from(content: $module::$name) -> Self {
                Self::$name(content)
            }
        })+)+
    };
}

/// The members of a known type, without the base keys; `None` for an unknown type.
#[must_use]
pub fn members_of(type_name: &str) -> Option<&'static [Member]> {
    Body::members(type_name)
}

fn req_id_in(members: &Object) -> &str {
    let req_id = members.get("req_id").and_then(|value| value.as_str());
    req_id.unwrap_or_default()
}

bodies! {
    session: HandshakeRequest HandshakeResponse Ping Pong Shutdown ErrorMessage InvokeEvent;
    tools: ToolListRequest ToolListResponse ToolCallRequest ToolEvent ToolCallResponse;
    skills: SkillDiscoverRequest SkillDiscoverResponse SkillCallRequest SkillCallResponse SkillEvent;
    proc:
        ProcSpawnRequest ProcSpawnResponse ProcWriteRequest ProcWriteResponse ProcReadEvent
        ProcKillRequest ProcKillResponse ProcStatusRequest ProcStatusResponse;
    memory:
        MemoryInitRequest MemoryInitResponse MemoryStoreRequest MemoryStoreResponse
        MemoryRetrieveRequest MemoryRetrieveResponse MemoryForgetRequest MemoryForgetResponse;
    chains: ChainRequest ChainEvent ChainResponse;
    toolkits: ToolkitListRequest ToolkitListResponse ToolkitConfigureRequest ToolkitConfigureResponse;
    multi_agent:
        MultiAgentSpawnRequest MultiAgentDelegateRequest MultiAgentAwaitRequest
        MultiAgentListRequest MultiAgentTerminateRequest MultiAgentSpawnResponse
        MultiAgentDelegateResponse MultiAgentAwaitResponse MultiAgentListResponse
        MultiAgentTerminateResponse;
    planning:
        PlanningPlanCreateRequest PlanningPlanListRequest PlanningTaskAddRequest
        PlanningTaskUpdateRequest PlanningTaskListRequest PlanningPlanBoardRequest
        PlanningPlanCreateResponse PlanningPlanListResponse PlanningTaskAddResponse
        PlanningTaskUpdateResponse PlanningTaskListResponse PlanningPlanBoardResponse;
    env:
        EnvResetRequest EnvResetResponse EnvStepRequest EnvStepResponse EnvObserveRequest
        EnvObserveResponse EnvCloseRequest EnvCloseResponse EnvSpaceRequest EnvSpaceResponse
        EnvRenderRequest EnvRenderResponse EnvPlanRequest EnvPlanResponse EnvBatchStepRequest
        EnvBatchStepResponse EnvExpListRequest EnvExpListResponse EnvStatePush;
    learn:
        LearnFeedbackRequest LearnFeedbackResponse LearnExperienceRequest
        LearnExperienceResponse LearnAdaptRequest LearnAdaptResponse LearnStatsRequest
        LearnStatsResponse LearnRefinementPlanRequest LearnRefinementPlanResponse
        LearnRefinementApplyRequest LearnRefinementApplyResponse LearnRefinementRollbackRequest
        LearnRefinementRollbackResponse LearnRefinementReviewRequest
        LearnRefinementReviewResponse LearnRefinementHistoryRequest
        LearnRefinementHistoryResponse;
    mcp:
        McpServerListRequest McpServerListResponse McpServerRegisterRequest
        McpServerRegisterResponse McpServerUnregisterRequest McpServerUnregisterResponse
        McpResourceListRequest McpResourceListResponse McpResourceReadRequest
        McpResourceReadResponse McpResourceSubscribeRequest McpResourceSubscribeResponse
        McpPromptListRequest McpPromptListResponse McpPromptGetRequest McpPromptGetResponse
        McpRootListRequest McpRootListResponse McpSampleRequest McpSampleResponse McpServerPush;
}
