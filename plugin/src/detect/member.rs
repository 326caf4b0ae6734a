//! The members that any family uses: their paths and names.

use crate::json::Tree;

/// Declares the members as a tree.
macro_rules! paths {
    ($($parent:ident { $($name:literal => $path:ident),* $(,)? })*) => {
        /// The path of a member that detection or decoding reads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum MemberPath {
            Root,
            $($($path,)*)*
        }

        impl Tree for MemberPath {
            #[inline]
            fn member(self, name: &[u8]) -> Option<Self> {
                match self {
                    $(Self::$parent => match name {
                        $($name => Some(Self::$path),)*
                        _ => None,
                    },)*
                    _ => None,
                }
            }

            #[inline]
            fn has_members(self) -> bool {
                matches!(self, $(Self::$parent)|*)
            }
        }

        impl MemberPath {
            const ALL: &[Self] = &[Self::Root, $($(Self::$path,)*)*];

            /// Its parent, and its name there.
            const fn named(self) -> (Self, &'static str) {
                match self {
                    Self::Root => (Self::Root, ""),
                    $($(Self::$path => (Self::$parent, const { text($name) }),)*)*
                }
            }
        }
    };
}

/// Names are compared as bytes, and printed as text.
const fn text(name: &'static [u8]) -> &'static str {
    match str::from_utf8(name) {
        Ok(name) => name,
        Err(_) => "",
    }
}

paths! {
    Root {
        b"jsonrpc" => Jsonrpc,
        b"id" => Id,
        b"method" => Method,
        b"params" => Params,
        b"result" => Result,
        b"error" => Error,
        b"type" => Type,
        b"version" => Version,
        b"ts" => Ts,
        b"req_id" => ReqId,
        b"request_id" => RequestId,
        b"protocol_version" => ProtocolVersion,
        b"response_kind" => ResponseKind,
        b"body" => Body,
        b"sequence" => Sequence,
        b"is_final" => IsFinal,
        b"is_stream" => IsStream,
        b"status" => Status,
        b"response_id" => ResponseId,
        b"channel" => Channel,
        b"channel_id" => ChannelId,
        b"channel_context" => ChannelContext,
        b"metadata" => Metadata,
        b"provenance" => Provenance,
        b"agent_ref" => AgentRef,
        b"agent_id" => AgentId,
        b"source_agent_id" => SourceAgentId,
        b"session_id" => SessionId,
        b"task_id" => TaskId,
        b"context_id" => ContextId,
        b"correlation_id" => CorrelationId,
        b"timestamp" => Timestamp,
        b"jsonrpc_id" => JsonrpcId,
        b"identity_origin" => IdentityOrigin,
        b"ext_method" => ExtMethod,
        b"session_update_kind" => SessionUpdateKind,
        b"expected_output_modes" => ExpectedOutputModes,
        b"a2a_metadata" => A2aMetadata,
        b"acp_meta" => AcpMeta,
        b"req_method" => ReqMethod,
        b"ok" => Ok,
        b"payload" => Payload,
        b"is_complete" => IsComplete,
        b"event" => Event,
        b"specversion" => Specversion,
        b"source" => Source,
        b"protocol" => Protocol,
        b"messageType" => MessageType,
        b"sourceAgent" => SourceAgent,
        b"targetAgent" => TargetAgent,
        b"a2e" => A2e,
        b"_agentId" => OwnAgentId,
        b"_topic" => OwnTopic,
        b"kind" => Kind,
        b"seq" => Seq,
        b"code" => Code,
        b"retryable" => Retryable,
        b"capability_name" => CapabilityName,
        b"tool_name" => ToolName,
        b"name" => Name,
        b"toolkit_name" => ToolkitName,
        b"proc_id" => ProcId,
        b"memory_id" => MemoryId,
        b"episode_id" => EpisodeId,
        b"env_name" => EnvName,
        b"plan_id" => PlanId,
        b"subagent_id" => SubagentId,
        b"server_id" => ServerId,
        b"chain_id" => ChainId,
        b"component_name" => ComponentName,
        b"operationUpdate" => OperationUpdate,
        b"beginExecution" => BeginExecution,
        b"executionId" => ExecutionId,
    }
    Params {
        b"_agentId" => ParamsAgentId,
        b"_topic" => ParamsTopic,
        b"_seq" => ParamsSeq,
        b"protocolVersion" => ParamsProtocolVersion,
        b"id" => ParamsId,
        b"taskId" => ParamsTaskId,
        b"sessionId" => ParamsSessionId,
        b"reason" => ParamsReason,
        b"configuration" => ParamsConfiguration,
        b"message" => ParamsMessage,
        b"jsonrpc_id" => ParamsJsonrpcId,
        b"progressToken" => ParamsProgressToken,
        b"_meta" => ParamsMeta,
    }
    ParamsMeta {
        b"progressToken" => MetaProgressToken,
    }
    ParamsConfiguration {
        b"maxTurns" => ConfigurationMaxTurns,
        b"timeout" => ConfigurationTimeout,
        b"priority" => ConfigurationPriority,
    }
    ParamsMessage {
        b"role" => MessageRole,
    }
    Result {
        b"kind" => ResultKind,
        b"final" => ResultFinal,
        b"status" => ResultStatus,
        b"resultType" => ResultType,
        b"id" => ResultId,
        b"cancelled" => ResultCancelled,
        b"content" => ResultContent,
        b"protocolVersion" => ResultProtocolVersion,
        b"task" => ResultTask,
        b"message" => ResultMessage,
        b"statusUpdate" => ResultStatusUpdate,
        b"artifactUpdate" => ResultArtifactUpdate,
    }
    ResultStatus {
        b"state" => ResultState,
    }
    ResultTask {
        b"status" => TaskStatus,
    }
    TaskStatus {
        b"state" => TaskState,
    }
    ResultStatusUpdate {
        b"status" => UpdateStatus,
    }
    UpdateStatus {
        b"state" => UpdateState,
    }
    Error {
        b"code" => ErrorCode,
        b"message" => ErrorMessage,
        b"data" => ErrorData,
    }
    SourceAgent {
        b"agentId" => SourceAgentAgentId,
    }
    TargetAgent {
        b"agentId" => TargetAgentAgentId,
    }
    Metadata {
        b"correlationId" => MetadataCorrelationId,
        b"_jiuwenswarm_server_push" => MetadataServerPush,
    }
    Body {
        b"code" => BodyCode,
        b"method" => BodyMethod,
        b"id" => BodyId,
        b"event_type" => BodyEventType,
    }
    Payload {
        b"event_type" => PayloadEventType,
    }
    AgentRef {
        b"id" => AgentRefId,
    }
    ChannelContext {
        b"traceparent" => ContextTraceparent,
        b"tracestate" => ContextTracestate,
    }
    Provenance {
        b"source_protocol" => SourceProtocol,
    }
    BeginExecution {
        b"executionId" => WrappedExecutionId,
        b"_agentId" => WrappedAgentId,
    }
}

impl MemberPath {
    /// The number of members.
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// The bit of a member.
    #[inline]
    pub(crate) const fn bit(self) -> u128 {
        1 << self as u32
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        let (_, name) = self.named();
        name
    }

    /// Its JSON pointer.
    pub(crate) fn pointer(self) -> String {
        match self.named() {
            (Self::Root, "") => String::new(),
            (parent, _) => format!("{}/{}", parent.pointer(), self.name()),
        }
    }
}

// The repeated members are a bit set in one `u128`.
const _: () = assert!(MemberPath::COUNT <= 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_path_resolves_to_its_position() {
        for path in &MemberPath::ALL[1..] {
            let (parent, name) = path.named();
            assert_eq!(parent.member(name.as_bytes()), Some(*path));
            assert!(parent.has_members());
        }
        assert_eq!(MemberPath::ParamsAgentId.pointer(), "/params/_agentId");
        assert_eq!(MemberPath::TaskState.pointer(), "/result/task/status/state");
    }
}
