//! Exchanges: the replies to a JSON-RPC caller. Source: docs/protocols/e2a.md §10.3 and §10.4.

use a2abus_models::e2a::{
    CallMode, Caller, E2aResponse, Fold, FoldLimits, FoldStep, FoldStepKind, JsonRpcId, Trust,
};

use super::{check, check_error, json};

fn fold(mode: CallMode) -> Fold {
    fold_within(mode, FoldLimits::default())
}

fn fold_within(mode: CallMode, limits: FoldLimits) -> Fold {
    let id = JsonRpcId::from_json(&json("7"));
    Fold::new(Caller { id, mode }, Trust::Trusted, limits)
}

fn record(text: &str) -> E2aResponse {
    E2aResponse::parse(&json(text)).unwrap()
}

fn part(sequence: i64, text: &str) -> E2aResponse {
    record(&format!(
        r#"{{"sequence":{sequence},"response_kind":"e2a.chunk",
            "body":{{"delta_kind":"text","delta":"{text}"}}}}"#
    ))
}

fn end(sequence: i64, result: &str) -> E2aResponse {
    record(&format!(
        r#"{{"sequence":{sequence},"response_kind":"e2a.complete","is_final":true,
            "status":"succeeded","jsonrpc_id":"not yours","body":{{"result":{result}}}}}"#
    ))
}

fn keepalive() -> E2aResponse {
    record(r#"{"sequence":-1,"response_kind":"e2a.chunk","body":{"event_type":"keepalive"}}"#)
}

fn push() -> E2aResponse {
    record(
        r#"{"sequence":0,"response_kind":"cron","is_final":true,"status":"succeeded",
            "body":{"action":"add"},"metadata":{"_jiuwenswarm_server_push":true}}"#,
    )
}

fn kinds(steps: &[FoldStep]) -> Vec<FoldStepKind> {
    steps.iter().map(|step| step.kind).collect()
}

fn answers(steps: &[FoldStep]) -> Vec<String> {
    let answer = |step: &&FoldStep| step.kind == FoldStepKind::Answer;
    let text = |step: &FoldStep| step.message.as_ref().unwrap().to_string();
    steps.iter().filter(answer).map(text).collect()
}

fn take(fold: &mut Fold, records: impl IntoIterator<Item = E2aResponse>) -> Vec<FoldStep> {
    records
        .into_iter()
        .flat_map(|record| fold.take(record))
        .collect()
}

#[test]
fn a_unary_caller_gets_the_final_part_of_a_stream_that_ends_empty() {
    let chat_final = record(
        r#"{"sequence":2,"response_kind":"e2a.chunk","body":{"delta_kind":"custom",
            "delta":{"event_type":"chat.final","content":"Hello world"}}}"#,
    );
    let mut fold = fold(CallMode::Unary);
    let records = [part(0, "Hel"), part(1, "lo"), chat_final, end(3, "{}")];
    let steps = take(&mut fold, records);
    assert_eq!(
        answers(&steps),
        [concat!(
            r#"{"jsonrpc":"2.0","id":7,"result":{"event_type":"chat.final","#,
            r#""content":"Hello world"}}"#
        )]
    );
    assert!(
        steps
            .iter()
            .all(|step| step.kind == FoldStepKind::Answer || step.message.is_none())
    );
}

#[test]
fn text_is_joined_when_no_part_is_the_whole_answer() {
    let reasoning = record(
        r#"{"sequence":1,"response_kind":"e2a.chunk",
            "body":{"delta_kind":"reasoning","delta":"hm"}}"#,
    );
    let steps = take(
        &mut fold(CallMode::Unary),
        [part(0, "Hel"), reasoning, part(2, "lo"), end(3, "null")],
    );
    let joined = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"Hello"}}"#;
    assert_eq!(answers(&steps), [joined]);
    let steps = take(
        &mut fold(CallMode::Unary),
        [part(0, "a"), end(1, r#"{"own":1}"#)],
    );
    assert_eq!(
        answers(&steps),
        [r#"{"jsonrpc":"2.0","id":7,"result":{"own":1}}"#]
    );
    let steps = take(&mut fold(CallMode::Unary), [end(0, "{}")]);
    assert_eq!(answers(&steps), [r#"{"jsonrpc":"2.0","id":7,"result":{}}"#]);
}

/// 10,000 parts with keepalives, a push, a duplicate, two neighbours swapped and a trailing end.
fn long_stream() -> Vec<E2aResponse> {
    let mut records = Vec::new();
    for sequence in 0..10_000 {
        records.push(part(sequence, &format!("{sequence} ")));
        if sequence % 1_000 == 0 {
            records.push(keepalive());
        }
    }
    let at = |records: &[E2aResponse], sequence| {
        let mut records = records.iter();
        records
            .position(|record| record.sequence == sequence)
            .unwrap()
    };
    let (one, other) = (at(&records, 5_001), at(&records, 5_002));
    records.swap(one, other);
    let place = at(&records, 7_777);
    records.insert(place + 1, part(7_777, "again "));
    records.insert(place + 2, push());
    records.push(end(10_000, "{}"));
    records.push(end(10_001, "{}"));
    records
}

#[test]
fn a_long_stream_reaches_a_unary_caller_as_one_answer() {
    let mut fold = fold(CallMode::Unary);
    let steps = take(&mut fold, long_stream());
    let text: String = (0..10_000).map(|sequence| format!("{sequence} ")).collect();
    let answer = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"content":"{text}"}}}}"#);
    assert_eq!(answers(&steps), [answer]);
    assert!(steps.iter().all(|step| !step.gap));
    let count = |kind| steps.iter().filter(|step| step.kind == kind).count();
    assert_eq!(count(FoldStepKind::Duplicate), 1);
    assert_eq!(count(FoldStepKind::Held), 1);
    assert_eq!(count(FoldStepKind::Push), 1);
    assert_eq!(count(FoldStepKind::Keepalive), 10);
    assert_eq!(count(FoldStepKind::Sentinel), 1);
}

#[test]
fn a_long_stream_reaches_a_streaming_caller_in_order() {
    let mut fold = fold(CallMode::Streaming);
    let steps = take(&mut fold, long_stream());
    let parts: Vec<i64> = steps
        .iter()
        .filter(|step| step.kind == FoldStepKind::Part)
        .map(|step| step.sequence)
        .collect();
    assert_eq!(parts, (0..10_000).collect::<Vec<_>>());
    let first = steps.first().unwrap().message.as_ref().unwrap();
    assert_eq!(
        first.to_string(),
        concat!(
            r#"{"jsonrpc":"2.0","id":7,"result":{"response_kind":"e2a.chunk","#,
            r#""body":{"delta_kind":"text","delta":"0 "}}}"#
        )
    );
    assert_eq!(answers(&steps), [r#"{"jsonrpc":"2.0","id":7,"result":{}}"#]);
    let messages = steps.iter().filter(|step| step.message.is_some()).count();
    assert_eq!(messages, 10_000 + 1 + 1);
}

/// The agent waits for the answer to its question.
#[test]
fn a_caller_of_one_answer_gets_questions_and_no_other_part() {
    let question = r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission"}"#;
    let asked = |sequence: i64, body: &str| {
        record(&format!(
            r#"{{"sequence":{sequence},"response_kind":"acp.output_request","body":{body}}}"#
        ))
    };
    let mut fold = fold(CallMode::Unary);
    let records = [
        part(0, "a"),
        asked(1, question),
        // These ask nothing.
        asked(2, r#"{"jsonrpc":"2.0","method":"m"}"#),
        asked(3, r#"{"id":9,"method":"m"}"#),
        end(4, "{}"),
    ];
    let steps = take(&mut fold, records);
    let messages = steps.iter().filter_map(|step| step.message.as_ref());
    let messages: Vec<_> = messages.map(ToString::to_string).collect();
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"a"}}"#;
    assert_eq!(messages, [question, answer]);
    assert_eq!(fold.collected(), 3);
}

#[test]
fn records_without_a_sequence_are_appended() {
    let mut fold = fold(CallMode::Unary);
    for text in ["a", "b"] {
        assert_eq!(kinds(&fold.append(part(0, text))), [FoldStepKind::Part]);
    }
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"ab"}}"#;
    assert_eq!(answers(&fold.append(end(0, "{}"))), [answer]);
}

#[test]
fn a_record_without_a_sequence_is_never_a_duplicate() {
    let unnumbered = |rest: &str| record(&format!(r#"{{"response_kind":{rest}}}"#));
    let chunk = || unnumbered(r#""e2a.chunk","body":{"delta_kind":"text","delta":"b"}"#);
    let last = || unnumbered(r#""e2a.complete","is_final":true"#);
    let mut open = fold(CallMode::Unary);
    assert_eq!(kinds(&open.take(part(0, "a"))), [FoldStepKind::Part]);
    assert_eq!(kinds(&open.append(chunk())), [FoldStepKind::Part]);
    let alive = unnumbered(r#""e2a.chunk","body":{"event_type":"keepalive"}"#);
    assert_eq!(kinds(&open.append(alive)), [FoldStepKind::Keepalive]);
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"ab"}}"#;
    assert_eq!(answers(&open.append(last())), [answer]);
    // A trusted push ends nothing.
    assert_eq!(kinds(&open.append(push())), [FoldStepKind::Push]);
    // The end does not overtake the records that are held.
    let mut open = fold(CallMode::Unary);
    open.take(part(0, "a"));
    assert_eq!(kinds(&open.take(part(2, "c"))), [FoldStepKind::Held]);
    assert_eq!(kinds(&open.append(last())), [FoldStepKind::Held]);
    let joined = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"abc"}}"#;
    assert_eq!(answers(&open.take(part(1, "b"))), [joined]);
    assert_eq!(open.duplicates(), 0);
    open.take(part(1, "b"));
    assert_eq!(open.duplicates(), 1);
    // Its place is not that of a record with a number.
    let mut open = fold(CallMode::Unary);
    open.take(part(0, "a"));
    assert_eq!(kinds(&open.append(chunk())), [FoldStepKind::Part]);
    assert_eq!(kinds(&open.take(part(2, "c"))), [FoldStepKind::Held]);
    assert_eq!(
        kinds(&open.take(part(1, "d"))),
        [FoldStepKind::Part, FoldStepKind::Part]
    );
    let joined = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"abdc"}}"#;
    assert_eq!(answers(&open.append(last())), [joined]);
    assert_eq!(open.duplicates(), 0);
}

#[test]
fn a_push_is_accepted_only_from_a_trusted_peer() {
    let caller = Caller {
        id: None,
        mode: CallMode::Unary,
    };
    let mut open = Fold::new(caller.clone(), Trust::Untrusted, FoldLimits::default());
    assert_eq!(kinds(&open.take(push())), [FoldStepKind::Answer]);
    let mut trusted = Fold::new(caller, Trust::Trusted, FoldLimits::default());
    assert_eq!(kinds(&trusted.take(push())), [FoldStepKind::Push]);
    assert!(!trusted.is_answered());
}

#[test]
fn a_gap_is_passed_over_when_too_much_is_held() {
    let mut limits = FoldLimits::default();
    limits.max_held_records = 2;
    let mut fold = fold_within(CallMode::Streaming, limits);
    let steps = take(&mut fold, [part(1, "b"), part(2, "c")]);
    assert_eq!(kinds(&steps), [FoldStepKind::Held; 2]);
    let steps = fold.take(part(4, "e"));
    assert_eq!(
        kinds(&steps),
        [FoldStepKind::Held, FoldStepKind::Part, FoldStepKind::Part]
    );
    assert_eq!(
        steps.iter().map(|s| s.gap).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert_eq!(kinds(&fold.take(part(0, "a"))), [FoldStepKind::Duplicate]);
    let steps = take(&mut fold, [part(3, "d"), end(5, "{}")]);
    assert_eq!(
        kinds(&steps),
        [FoldStepKind::Part, FoldStepKind::Part, FoldStepKind::Answer]
    );
    assert!(
        steps.last().unwrap().gap,
        "the answer tells that a part is missing"
    );

    let mut limits = FoldLimits::default();
    limits.max_held_bytes = 1;
    let mut fold = fold_within(CallMode::Unary, limits);
    let steps = fold.take(part(9, "x"));
    assert_eq!(kinds(&steps), [FoldStepKind::Held, FoldStepKind::Part]);
}

#[test]
fn held_records_are_released_in_order() {
    let mut fold = fold(CallMode::Unary);
    let records = [end(5, "{}"), part(3, "d"), part(2, "c"), part(3, "again")];
    assert_eq!(
        kinds(&take(&mut fold, records)),
        [
            FoldStepKind::Held,
            FoldStepKind::Held,
            FoldStepKind::Held,
            FoldStepKind::Duplicate
        ]
    );
    let steps = fold.release();
    let gaps: Vec<_> = steps.iter().map(|step| (step.sequence, step.gap)).collect();
    assert_eq!(gaps, [(2, true), (3, false), (5, true)]);
    let joined = r#"{"jsonrpc":"2.0","id":7,"result":{"content":"cd"}}"#;
    assert_eq!(answers(&steps), [joined]);
    assert!(fold.release().is_empty());
}

#[test]
fn after_the_answer_come_late_parts_and_then_nothing() {
    let mut fold = fold(CallMode::Streaming);
    let steps = take(
        &mut fold,
        [end(0, r#"{"a":1}"#), part(1, "x"), end(2, "{}")],
    );
    assert_eq!(
        kinds(&steps),
        [
            FoldStepKind::Answer,
            FoldStepKind::LatePart,
            FoldStepKind::Sentinel
        ]
    );
    assert_eq!(
        steps.iter().filter(|step| step.message.is_some()).count(),
        2
    );
    assert!(fold.close().is_empty());
    let steps = take(
        &mut fold,
        [part(3, "y"), end(4, "{}"), part(0, "z"), keepalive()],
    );
    assert_eq!(
        kinds(&steps),
        [
            FoldStepKind::Late,
            FoldStepKind::Late,
            FoldStepKind::Duplicate,
            FoldStepKind::Keepalive
        ]
    );
    assert!(steps.iter().all(|step| step.message.is_none()));
}

#[test]
fn extreme_sequence_numbers_do_no_harm() {
    let mut fold = fold(CallMode::Unary);
    let steps = take(
        &mut fold,
        [part(i64::MAX, "x"), part(-2, "y"), part(i64::MIN, "z")],
    );
    assert_eq!(
        kinds(&steps),
        [
            FoldStepKind::Held,
            FoldStepKind::Duplicate,
            FoldStepKind::Duplicate
        ]
    );
    let steps = fold.take(end(-1, "{}"));
    assert_eq!(kinds(&steps), [FoldStepKind::Part, FoldStepKind::Answer]);
    assert_eq!(
        kinds(&fold.take(part(i64::MAX, "x"))),
        [FoldStepKind::Duplicate]
    );
}

#[test]
fn parts_over_the_limit_are_an_error() {
    let mut limits = FoldLimits::default();
    limits.max_folded_bytes = 10;
    let mut fold = fold_within(CallMode::Unary, limits);
    let steps = take(
        &mut fold,
        [
            part(0, "123456"),
            part(1, "123456"),
            part(2, "1"),
            end(3, "{}"),
        ],
    );
    let answer = answers(&steps).remove(0);
    assert!(answer.contains(r#""code":-32603"#), "{answer}");
    assert!(answer.contains("response_too_large"), "{answer}");
}

#[test]
fn every_kind_answers_under_the_id_of_the_caller() {
    let reply = |record: &str| format!(r#"{{"call":{{"id":"c"}},"record":{record}}}"#);
    for (record, outcome) in [
        (
            r#"{"response_kind":"acp.prompt_result","body":{"stopReason":"end_turn"}}"#,
            r#""result":{"stopReason":"end_turn"}"#,
        ),
        (
            r#"{"response_kind":"a2a.task","body":{"id":"t"}}"#,
            r#""result":{"id":"t"}"#,
        ),
        (
            r#"{"response_kind":"a2a.stream_event","body":{"branch":"task","payload":{"id":1}}}"#,
            r#""result":{"id":1}"#,
        ),
        (
            r#"{"response_kind":"ext","body":{"a":1}}"#,
            r#""result":{"response_kind":"ext","body":{"a":1}}"#,
        ),
        (
            r#"{"response_kind":"acp.jsonrpc_error","body":{"code":5,"message":"m","data":1}}"#,
            r#""error":{"code":5,"message":"m","data":1}"#,
        ),
        (
            r#"{"response_kind":"acp.jsonrpc_error","body":{"code":"x"}}"#,
            r#""error":{"code":-32603,"message":"","data":{"e2a_code":"x"}}"#,
        ),
        (
            r#"{"response_kind":"a2a.task","status":"failed","body":{"message":"m"}}"#,
            r#""error":{"code":-32603,"message":"m"}"#,
        ),
        (
            r#"{"response_kind":"e2a.error","body":{},
                "projections":{"acp":{"jsonrpc":"2.0","id":"c","result":1}}}"#,
            r#""result":1"#,
        ),
        (
            r#"{"projections":{"acp":{"jsonrpc":"2.0","id":"other","result":1}},"body":{}}"#,
            r#""result":{"response_kind":"","body":{}}"#,
        ),
        (
            r#"{"projections":{"acp":{"jsonrpc":"2.0","result":null,"error":"x"}}}"#,
            r#""error":{"code":-32603,"message":""}"#,
        ),
    ] {
        let record = record.replacen('{', r#"{"is_final":true,"jsonrpc_id":1,"#, 1);
        let answer = format!(r#"{{"answer":{{"jsonrpc":"2.0","id":"c",{outcome}}}}}"#);
        check("reply_for", &reply(&record), &answer);
    }
    check(
        "reply_for",
        r#"{"call":{"id":1},"record":{"response_kind":"e2a.complete","is_final":true},
            "parts":[{"response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":"a"}}]}"#,
        r#"{"answer":{"jsonrpc":"2.0","id":1,"result":{"content":"a"}}}"#,
    );
    // An empty array is a result.
    check(
        "reply_for",
        r#"{"call":{"id":1},"record":{"response_kind":"e2a.complete","is_final":true,"body":{"result":[]}},
            "parts":[{"response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":"a"}}]}"#,
        r#"{"answer":{"jsonrpc":"2.0","id":1,"result":[]}}"#,
    );
    check_error(
        "reply_for",
        r#"{"call":{"mode":"odd"},"record":{}}"#,
        "bad_value(mode)",
    );
    check_error(
        "reply_for",
        r#"{"call":{"id":[]},"record":{}}"#,
        "bad_type(id)",
    );
    check_error("reply_for", r#"{"call":{}}"#, "bad_input(record)");
}

#[test]
fn a_streaming_caller_gets_parts_in_its_own_protocol() {
    let reply =
        |record: &str| format!(r#"{{"call":{{"id":1,"mode":"stream"}},"record":{record}}}"#);
    for (record, part) in [
        (
            r#"{"response_kind":"acp.session_update","session_id":"s",
                "body":{"sessionUpdate":"plan"}}"#,
            concat!(
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","#,
                r#""update":{"sessionUpdate":"plan"}}}"#
            ),
        ),
        (
            r#"{"response_kind":"acp.session_update","body":{"sessionId":"t","update":{"a":1}}}"#,
            concat!(
                r#"{"jsonrpc":"2.0","method":"session/update","#,
                r#""params":{"sessionId":"t","update":{"a":1}}}"#
            ),
        ),
        (
            r#"{"response_kind":"a2a.stream_event",
                "body":{"branch":"status_update","payload":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"statusUpdate":{}}}"#,
        ),
        (
            r#"{"response_kind":"acp.output_request",
                "body":{"jsonrpc":"2.0","id":9,"method":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":9,"method":"m"}"#,
        ),
    ] {
        check(
            "reply_for",
            &reply(record),
            &format!(r#"{{"part":{part}}}"#),
        );
    }
    check(
        "reply_for",
        r#"{"call":{"id":1},"record":{"response_kind":"e2a.chunk"}}"#,
        "null",
    );
}

#[test]
fn the_named_conversion_fold_folds_an_exchange() {
    check(
        "fold",
        r#"{"call":{"id":1},"records":[
            {"sequence":1,"is_final":true,"response_kind":"e2a.complete"},
            {"sequence":0,"response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":"a"}}]}"#,
        concat!(
            r#"[{"kind":"held","sequence":1,"message":null,"gap":false},"#,
            r#"{"kind":"part","sequence":0,"message":null,"gap":false},"#,
            r#"{"kind":"answer","sequence":1,"#,
            r#""message":{"jsonrpc":"2.0","id":1,"result":{"content":"a"}},"gap":false}]"#
        ),
    );
    check(
        "fold",
        r#"{"call":{"id":1},"records":[
            {"response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":"a"}},
            {"sequence":null,"is_final":true,"response_kind":"e2a.complete"}]}"#,
        concat!(
            r#"[{"kind":"part","sequence":0,"message":null,"gap":false},"#,
            r#"{"kind":"answer","sequence":1,"#,
            r#""message":{"jsonrpc":"2.0","id":1,"result":{"content":"a"}},"gap":false}]"#
        ),
    );
    check_error("fold", r#"{"call":{},"records":{}}"#, "bad_input(records)");
}
