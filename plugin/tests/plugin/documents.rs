//! Maps every example of the protocols' own documents. If a document writes `...` or a comment, the test inserts real
//! content. Source: EventMesh A2A section 5, A2A 0.3.0, E2A 1.0 sections 11 and 12.8, A2E message 1.0, A2E workflow
//! 1.0.0.

use a2abus_plugin::Family::{A2eMessage, A2eWorkflow, E2a, JsonRpc};
use a2abus_plugin::Kind::{Request, Response, Stream};
use a2abus_plugin::{
    EventId, Family, Hint, Ids, Kind, Limits, MapContext, MapOptions, Mapped, Source, Units, map,
};
use bytes::Bytes;

/// An example of a payload, and the expected attributes of its event.
struct Example {
    source: &'static str,
    payload: &'static str,
    family: Family,
    /// The extension `mcptype` has the same value.
    kind: Kind,
    a2amethod: Option<&'static str>,
    collaborationid: Option<&'static str>,
    targetagent: Option<&'static str>,
}

const fn example(
    source: &'static str,
    payload: &'static str,
    (family, kind): (Family, Kind),
    [a2amethod, collaborationid, targetagent]: [Option<&'static str>; 3],
) -> Example {
    Example {
        source,
        payload,
        family,
        kind,
        a2amethod,
        collaborationid,
        targetagent,
    }
}

fn mapped(payload: &'static str) -> Units<Mapped> {
    let context = MapContext {
        source: Source::new("/documents").unwrap(),
        time: None,
        ids: Ids::Payload(&|| EventId::new("<new>").unwrap()),
    };
    let payload = Bytes::from_static(payload.as_bytes());
    map(
        &payload,
        &Hint::default(),
        &Limits::default(),
        &MapOptions::default(),
        &context,
    )
}

#[test]
fn every_example_becomes_the_event_of_its_specification() {
    for example in EXAMPLES {
        let units = mapped(example.payload);
        assert_eq!(units.len(), 1, "{}", example.source);
        let Ok(unit) = &units[0] else {
            panic!("{}: {:?}", example.source, units[0]);
        };
        let text = |name| unit.event.extension_text(name).map(|text| text.as_str());
        assert_eq!(unit.detection.family, example.family, "{}", example.source);
        assert_eq!(unit.kind, example.kind, "{}", example.source);
        let four = ["a2amethod", "mcptype", "collaborationid", "targetagent"].map(text);
        let expected = [
            example.a2amethod,
            Some(example.kind.as_str()),
            example.collaborationid,
            example.targetagent,
        ];
        assert_eq!(four, expected, "{}", example.source);
        assert_eq!(unit.event.body(), example.payload, "{}", example.source);
    }
}

#[test]
fn a_single_workflow_definition_needs_a_collaboration_id() {
    let definition = r#"{"type":"operationUpdate","operationId":"op-1","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/users","headers":{},"outputPath":"/workflow/users"}}}"#;
    let units = mapped(definition);
    let error = &units[0].as_ref().unwrap_err().error;
    assert_eq!(error.kind().as_str(), "missing_collaborationid");
    let mut hint = Hint::default();
    hint.header("collaborationid", "exec-123");
    let context = MapContext {
        source: Source::new("/documents").unwrap(),
        time: None,
        ids: Ids::Payload(&|| EventId::new("<new>").unwrap()),
    };
    let payload = Bytes::from_static(definition.as_bytes());
    let units = map(
        &payload,
        &hint,
        &Limits::default(),
        &MapOptions::default(),
        &context,
    );
    let unit = units[0].as_ref().unwrap();
    assert_eq!(
        (unit.detection.family, unit.kind),
        (A2eWorkflow, Kind::Notification)
    );
    let text = |name| unit.event.extension_text(name).unwrap().as_str();
    assert_eq!(text("a2amethod"), "operationUpdate");
    assert_eq!(text("mcptype"), "notification");
    assert_eq!(text("collaborationid"), "exec-123");
    assert_eq!(text("targetagent"), "a2e-executor");
}

#[test]
fn a_batch_is_split_into_its_requests() {
    // EventMesh A2A section 4.2 B.
    let batch = r#"[{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_agentId":"weather"}},{"jsonrpc":"2.0","id":"b","method":"resources/read"}]"#;
    let units = mapped(batch);
    let methods: Vec<_> = units
        .iter()
        .map(|unit| {
            let event = &unit.as_ref().unwrap().event;
            let text = |name| event.extension_text(name).map(|text| text.to_string());
            (text("a2amethod"), text("mcptype"), text("targetagent"))
        })
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        methods,
        [
            (some("tools/call"), some("request"), some("weather")),
            (some("resources/read"), some("request"), None),
        ]
    );
}

#[test]
fn truncated_payloads_are_refused() {
    for (source, part) in PARTS {
        let units = mapped(part);
        let error = &units[0].as_ref().unwrap_err().error;
        assert_eq!(error.kind().as_str(), "unknown", "{source}");
    }
}

const EXAMPLES: &[Example] = &[
    example(
        "EventMesh A2A 5.1",
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"weather_service","arguments":{"city":"New York"}},"id":"msg-101"}"#,
        (JsonRpc, Request),
        [Some("tools/call"), None, None],
    ),
    example(
        "EventMesh A2A 5.2",
        r#"{"jsonrpc":"2.0","result":{"temperature":22},"id":"msg-101"}"#,
        (JsonRpc, Response),
        [None, Some("msg-101"), None],
    ),
    example(
        "A2A 0.3.0, message/send",
        r#"{"jsonrpc":"2.0","id":"request-identifier","method":"message/send","params":{"message":{"role":"user","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"},"configuration":{"maxTurns":10,"timeout":30000,"priority":"normal"}}}"#,
        (JsonRpc, Request),
        [Some("message/send"), None, None],
    ),
    example(
        "A2A 0.3.0, message/send, success",
        r#"{"jsonrpc":"2.0","id":"request-identifier","result":{"kind":"completion","taskId":"generated-task-id","contextId":"conversation-context","message":{"role":"agent","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"},"final":true}}"#,
        (JsonRpc, Response),
        [None, Some("request-identifier"), None],
    ),
    example(
        "A2A 0.3.0, message/send, error",
        r#"{"jsonrpc":"2.0","id":"request-identifier","error":{"code":-32000,"message":"Agent not found","data":{"agentName":"RequestedAgent","availableAgents":["Agent1","Agent2"]}}}"#,
        (JsonRpc, Response),
        [None, Some("request-identifier"), None],
    ),
    example(
        "A2A 0.3.0, message/stream",
        r#"{"jsonrpc":"2.0","id":"request-identifier","method":"message/stream","params":{"message":{"role":"user","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"},"configuration":{"maxTurns":10,"timeout":30000,"priority":"normal"}}}"#,
        (JsonRpc, Request),
        [Some("message/stream"), None, None],
    ),
    example(
        "A2A 0.3.0, message/stream, status",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"status-update","taskId":"task-123","status":{"state":"working","timestamp":"2024-03-15T14:30:01Z"},"final":false}}"#,
        (JsonRpc, Stream),
        [None, Some("req-1"), None],
    ),
    example(
        "A2A 0.3.0, message/stream, part",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"partial-completion","taskId":"task-123","message":{"role":"agent","parts":[{"kind":"text","text":"I'm thinking about"}],"messageId":"resp-1","contextId":"ctx-1","kind":"message"},"final":false}}"#,
        (JsonRpc, Stream),
        [None, Some("req-1"), None],
    ),
    example(
        "A2A 0.3.0, message/stream, end",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"completion","taskId":"task-123","message":{"role":"agent","parts":[{"kind":"text","text":"I'm thinking about your question. Here's my response..."}],"messageId":"resp-1","contextId":"ctx-1","kind":"message"},"final":true}}"#,
        (JsonRpc, Response),
        [None, Some("req-1"), None],
    ),
    example(
        "A2A 0.3.0, tasks/get",
        r#"{"jsonrpc":"2.0","id":"query-identifier","method":"tasks/get","params":{"id":"task-identifier"}}"#,
        (JsonRpc, Request),
        [Some("tasks/get"), None, None],
    ),
    example(
        "A2A 0.3.0, tasks/get, answer",
        r#"{"jsonrpc":"2.0","id":"query-identifier","result":{"id":"task-identifier","contextId":"conversation-context","kind":"task","status":{"state":"completed","message":{"role":"agent","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"},"timestamp":"2024-03-15T14:30:05Z"}}}"#,
        (JsonRpc, Response),
        [None, Some("query-identifier"), None],
    ),
    example(
        "A2A 0.3.0, tasks/cancel",
        r#"{"jsonrpc":"2.0","id":"cancel-identifier","method":"tasks/cancel","params":{"id":"task-identifier","reason":"User requested cancellation"}}"#,
        (JsonRpc, Request),
        [Some("tasks/cancel"), None, None],
    ),
    example(
        "A2A 0.3.0, tasks/cancel, answer",
        r#"{"jsonrpc":"2.0","id":"cancel-identifier","result":{"id":"task-identifier","cancelled":true,"timestamp":"2024-03-15T14:30:02Z"}}"#,
        (JsonRpc, Response),
        [None, Some("cancel-identifier"), None],
    ),
    example(
        "A2A 0.3.0, error response",
        r#"{"jsonrpc":"2.0","id":"request-id","error":{"code":-32000,"message":"Agent not found","data":{"agentName":"NonExistentAgent","availableAgents":["MathTutor","ChatBot"],"timestamp":"2024-03-15T14:30:00Z","requestId":"request-id","traceId":"trace-12345"}}}"#,
        (JsonRpc, Response),
        [None, Some("request-id"), None],
    ),
    example(
        "A2A 0.3.0, events, status",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"status-update","taskId":"task-123","status":{"state":"working","timestamp":"2024-03-15T14:30:01Z"},"final":false}}"#,
        (JsonRpc, Stream),
        [None, Some("req-1"), None],
    ),
    example(
        "A2A 0.3.0, events, part",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"partial-completion","taskId":"task-123","message":{"role":"agent","parts":[{"kind":"text","text":"Partial response..."}],"messageId":"resp-1","contextId":"ctx-1","kind":"message"},"final":false}}"#,
        (JsonRpc, Stream),
        [None, Some("req-1"), None],
    ),
    example(
        "A2A 0.3.0, events, end",
        r#"{"jsonrpc":"2.0","id":"req-1","result":{"kind":"completion","taskId":"task-123","message":{"role":"agent","parts":[{"kind":"text","text":"Complete response here"}],"messageId":"resp-1","contextId":"ctx-1","kind":"message"},"final":true}}"#,
        (JsonRpc, Response),
        [None, Some("req-1"), None],
    ),
    example(
        "E2A 1.0, 11.1",
        r#"{"protocol_version":"1.0","request_id":"req_abc_01","session_id":"sess_xyz","channel":"web","method":"chat.send","is_stream":true,"timestamp":"2026-03-28T12:00:00+00:00","identity_origin":"user","user_id":"u_001","params":{"content":"Hello","mode":"plan","query":"Hello"},"provenance":{"source_protocol":"e2a"}}"#,
        (E2a, Request),
        [Some("chat.send"), Some("req_abc_01"), None],
    ),
    example(
        "E2A 1.0, 11.2",
        r#"{"request_id":"req_legacy_1","channel_id":"feishu","session_id":"sess_feishu_1","req_method":"chat.send","is_stream":true,"timestamp":1774524781.15,"params":{"content":"List desktop files","mode":"plan","query":"List desktop files"},"metadata":{"feishu_open_id":"ou_xxx","message_id":"om_xxx"}}"#,
        (E2a, Request),
        [Some("chat.send"), Some("req_legacy_1"), None],
    ),
    example(
        "E2A 1.0, 11.3",
        r#"{"protocol_version":"1.0","jsonrpc_id":42,"method":"session/prompt","params":{"session_id":"s1","prompt":[]},"provenance":{"source_protocol":"acp","details":{"jsonrpc_method":"session/prompt"}}}"#,
        (E2a, Request),
        [Some("session/prompt"), Some("42"), None],
    ),
    example(
        "E2A 1.0, 11.4",
        r#"{"jsonrpc":"2.0","id":42,"method":"session/prompt","params":{"session_id":"s1","prompt":[{"type":"text","text":"hi"}]}}"#,
        (JsonRpc, Request),
        [Some("session/prompt"), None, None],
    ),
    example(
        "E2A 1.0, 11.5",
        r#"{"method":"session/prompt","session_id":"s1","jsonrpc_id":1,"params":{"content_blocks":[{"type":"text","text":"Describe this image"},{"type":"image","mime_type":"image/png","data":"<base64 omitted>"}]}}"#,
        (E2a, Request),
        [Some("session/prompt"), Some("1"), None],
    ),
    example(
        "E2A 1.0, 12.8, first chunk",
        r#"{"protocol_version":"1.0","response_id":"r1","request_id":"req_1","sequence":0,"is_final":false,"status":"in_progress","response_kind":"e2a.chunk","timestamp":"2026-03-29T12:00:00+00:00","provenance":{"source_protocol":"e2a"},"body":{"delta_kind":"text","delta":"Hello"}}"#,
        (E2a, Stream),
        [None, Some("req_1"), None],
    ),
    example(
        "E2A 1.0, 12.8, second chunk",
        r#"{"protocol_version":"1.0","response_id":"r2","request_id":"req_1","sequence":1,"is_final":false,"status":"in_progress","response_kind":"e2a.chunk","timestamp":"2026-03-29T12:00:01+00:00","provenance":{"source_protocol":"e2a"},"body":{"delta_kind":"text","delta":" world"}}"#,
        (E2a, Stream),
        [None, Some("req_1"), None],
    ),
    example(
        "E2A 1.0, 12.8, final",
        r#"{"protocol_version":"1.0","response_id":"r3","request_id":"req_1","sequence":2,"is_final":true,"status":"succeeded","response_kind":"e2a.complete","timestamp":"2026-03-29T12:00:02+00:00","provenance":{"source_protocol":"e2a"},"body":{"result":{"content":"Hello world"}}}"#,
        (E2a, Response),
        [None, Some("req_1"), None],
    ),
    example(
        "A2E message 1.0, wire format, request",
        r#"{"a2e":"1.0","id":"a1b2c3","type":"tool/call/req","ts":1716123456.789}"#,
        (A2eMessage, Request),
        [Some("tool/call"), Some("a1b2c3"), None],
    ),
    example(
        "A2E message 1.0, wire format, answer",
        r#"{"a2e":"1.0","id":"d4e5f6","type":"tool/call/resp","ts":1716123457.012}"#,
        (A2eMessage, Response),
        [Some("tool/call"), None, None],
    ),
    example(
        "A2E workflow 1.0.0, begin execution",
        r#"{"type":"beginExecution","executionId":"exec-123","operationOrder":["op-1","op-2","op-3"]}"#,
        (A2eWorkflow, Request),
        [
            Some("workflows/execute"),
            Some("exec-123"),
            Some("a2e-executor"),
        ],
    ),
    example(
        "A2E workflow 1.0.0, complete workflow",
        r#"{"type":"operationUpdate","operationId":"fetch-users","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/users","outputPath":"/workflow/users"}}}
{"type":"operationUpdate","operationId":"filter-active","operation":{"FilterData":{"inputPath":"/workflow/users","conditions":[{"field":"status","operator":"==","value":"active"}],"outputPath":"/workflow/active-users"}}}
{"type":"beginExecution","executionId":"exec-123","operationOrder":["fetch-users","filter-active"]}"#,
        (A2eWorkflow, Request),
        [
            Some("workflows/execute"),
            Some("exec-123"),
            Some("a2e-executor"),
        ],
    ),
    example(
        "A2E workflow 1.0.0, example 1",
        r#"{"type":"operationUpdate","operationId":"fetch-data","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/data","outputPath":"/workflow/data"}}}
{"type":"beginExecution","executionId":"exec-1","operationOrder":["fetch-data"]}"#,
        (A2eWorkflow, Request),
        [
            Some("workflows/execute"),
            Some("exec-1"),
            Some("a2e-executor"),
        ],
    ),
    example(
        "A2E workflow 1.0.0, example 2",
        r#"{"type":"operationUpdate","operationId":"fetch-users","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/users","outputPath":"/workflow/users"}}}
{"type":"operationUpdate","operationId":"filter-active","operation":{"FilterData":{"inputPath":"/workflow/users","conditions":[{"field":"status","operator":"==","value":"active"}],"outputPath":"/workflow/active-users"}}}
{"type":"beginExecution","executionId":"exec-2","operationOrder":["fetch-users","filter-active"]}"#,
        (A2eWorkflow, Request),
        [
            Some("workflows/execute"),
            Some("exec-2"),
            Some("a2e-executor"),
        ],
    ),
    example(
        "A2E workflow 1.0.0, example 3",
        r#"{"type":"operationUpdate","operationId":"check-count","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/count","outputPath":"/workflow/count"}}}
{"type":"operationUpdate","operationId":"process-if-needed","operation":{"Conditional":{"condition":{"path":"/workflow/count","operator":">","value":0},"ifTrue":["process-data"],"ifFalse":["skip"]}}}
{"type":"beginExecution","executionId":"exec-3","operationOrder":["check-count","process-if-needed"]}"#,
        (A2eWorkflow, Request),
        [
            Some("workflows/execute"),
            Some("exec-3"),
            Some("a2e-executor"),
        ],
    ),
];

/// Shapes inside payloads, and the HTTP interfaces of the documents.
const PARTS: &[(&str, &str)] = &[
    (
        "A2A 0.3.0, A2AMessage",
        r#"{"role":"user","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"}"#,
    ),
    (
        "A2A 0.3.0, A2ATask",
        r#"{"id":"task-unique-identifier","contextId":"conversation-context-identifier","kind":"task","status":{"state":"submitted","message":{"role":"user","parts":[{"kind":"text","text":"Hello, how can you help me?"}],"messageId":"unique-message-identifier","contextId":"conversation-context-identifier","kind":"message","timestamp":"2024-03-15T14:30:00Z"},"timestamp":"2024-03-15T14:30:00Z"}}"#,
    ),
    (
        "A2A 0.3.0, A2AError",
        r#"{"code":-32000,"message":"Human-readable error description","data":{"additional":"error context","errorType":"AgentNotFound","timestamp":"2024-03-15T14:30:00Z"}}"#,
    ),
    (
        "A2A 0.3.0, agent card",
        r#"{"name":"MathTutor","description":"Specialized mathematical assistant","version":"1.0.0","protocolVersion":"0.3.0","url":"https://api.example.com/agents/mathtutor","capabilities":{"streaming":true,"pushNotifications":false,"stateTransitionHistory":true,"contextAccumulation":true},"skills":[{"id":"calculate","name":"Mathematical Calculation","description":"Perform arithmetic and algebraic calculations","tags":["math","calculation","arithmetic"],"examples":[{"input":"What is 15 * 7?","output":"15 * 7 = 105"}]}],"inputModes":["text","data"],"outputModes":["text","data"],"authentication":{"required":false,"schemes":["bearer","apikey"]},"rateLimit":{"requests":100,"window":60,"burst":20}}"#,
    ),
    (
        "A2A 0.3.0, context",
        r#"{"contextId":"user-123-session-456","messages":[{"messageId":"msg-1","contextId":"user-123-session-456","role":"user","parts":[{"kind":"text","text":"Hello"}]},{"messageId":"msg-2","contextId":"user-123-session-456","role":"agent","parts":[{"kind":"text","text":"Hi there!"}]}]}"#,
    ),
    (
        "A2A 0.3.0, message with metadata",
        r#"{"role":"user","parts":[{"kind":"text","text":"Hello"}],"messageId":"msg-1","contextId":"ctx-1","kind":"message","metadata":{"priority":"high","tags":["urgent","customer-facing"],"userId":"user-123","sessionInfo":{"userAgent":"Mozilla/5.0...","ipAddress":"192.168.1.1"}}}"#,
    ),
    (
        "A2E workflow 1.0.0, ApiCall",
        r#"{"ApiCall":{"method":"GET","url":"https://api.example.com/users","headers":{"Authorization":{"credentialRef":{"id":"api-key-123"}}},"outputPath":"/workflow/users"}}"#,
    ),
    (
        "A2E workflow 1.0.0, condition",
        r#"{"field":"status","operator":"==","value":"active"}"#,
    ),
    (
        "A2E workflow 1.0.0, FilterData",
        r#"{"FilterData":{"inputPath":"/workflow/users","conditions":[{"field":"points","operator":">","value":100},{"field":"status","operator":"==","value":"active"}],"outputPath":"/workflow/filtered-users"}}"#,
    ),
    (
        "A2E workflow 1.0.0, TransformData",
        r#"{"TransformData":{"inputPath":"/workflow/users","transform":"sort","config":{"field":"points","order":"desc"},"outputPath":"/workflow/sorted-users"}}"#,
    ),
    (
        "A2E workflow 1.0.0, Conditional",
        r#"{"Conditional":{"condition":{"path":"/workflow/count","operator":">","value":0},"ifTrue":["op-process"],"ifFalse":["op-skip"]}}"#,
    ),
    (
        "A2E workflow 1.0.0, Loop",
        r#"{"Loop":{"inputPath":"/workflow/users","operations":["op-process-user"],"outputPath":"/workflow/processed-users"}}"#,
    ),
    (
        "A2E workflow 1.0.0, StoreData",
        r#"{"StoreData":{"inputPath":"/workflow/results","storage":"localStorage","key":"workflow-results"}}"#,
    ),
    ("A2E workflow 1.0.0, Wait", r#"{"Wait":{"duration":1000}}"#),
    (
        "A2E workflow 1.0.0, MergeData",
        r#"{"MergeData":{"sources":["/workflow/users","/workflow/profiles"],"strategy":"deepMerge","outputPath":"/workflow/merged"}}"#,
    ),
    (
        "A2E workflow 1.0.0, data model",
        r#"{"/workflow":{"users":[],"filtered-users":[],"results":{}}}"#,
    ),
    (
        "A2E workflow 1.0.0, credentials",
        r#"{"headers":{"Authorization":{"credentialRef":{"id":"api-key-123"}}}}"#,
    ),
    (
        "A2E workflow 1.0.0, error response",
        r#"{"error":{"type":"ExecutionError","message":"API call failed","operationId":"op-1","details":{"statusCode":500,"response":"..."},"suggestions":["Check API endpoint availability","Verify credentials are valid"]}}"#,
    ),
    (
        "A2E workflow 1.0.0, 429 response",
        r#"{"error":"Rate limit exceeded","message":"Rate limit exceeded: 60 requests per minute","retry_after":15}"#,
    ),
    (
        "A2E workflow 1.0.0, health",
        r#"{"status":"healthy","service":"a2e-server"}"#,
    ),
    (
        "A2E workflow 1.0.0, capabilities",
        r#"{"agent_id":"agent-123","capabilities":{"availableApis":[],"availableCredentials":[],"supportedOperations":["ApiCall","FilterData"],"knowledgeBases":[],"securityConstraints":{"maxExecutionTime":30000,"maxOperations":20}}}"#,
    ),
    (
        "A2E workflow 1.0.0, validate and execute",
        r#"{"workflow":"{\"type\":\"operationUpdate\",...}\n{...}"}"#,
    ),
    (
        "A2E workflow 1.0.0, validate, answer",
        r#"{"valid":true,"errors":[],"warnings":[]}"#,
    ),
    (
        "A2E workflow 1.0.0, execute, answer",
        r#"{"execution_id":"exec-123","status":"success","results":{"op-1":{},"op-2":{}},"duration_ms":1234}"#,
    ),
    (
        "A2E workflow 1.0.0, execution status",
        r#"{"execution_id":"exec-123","status":"success","results":{},"started_at":"2025-12-17T10:00:00Z","completed_at":"2025-12-17T10:00:15Z"}"#,
    ),
    (
        "A2E workflow 1.0.0, rate limit",
        r#"{"agent_id":"agent-123","limits":{"requests_per_minute":60,"requests_per_hour":1000},"usage":{"requests_last_minute":15,"requests_last_hour":200},"remaining":{"requests_per_minute":45,"requests_per_hour":800}}"#,
    ),
];
