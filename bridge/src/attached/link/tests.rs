//! Calls, questions and cancels between the bridge and an attached server.

use tracing::Level;

use super::*;
use crate::log_limit::LogLimits;

/// Servers of MCP need not answer a cancelled call.
#[tokio::test(start_paused = true)]
async fn a_cancelled_call_keeps_the_server_from_asking_for_a_minute() {
    let mut open = Open {
        last: 1,
        ..Open::default()
    };
    open.abandon(1);
    let refused = |open: &Open| open.owner(None, true).map(drop).unwrap_err().why;
    assert!(refused(&open).contains("an earlier call"));
    tokio::time::advance(STOPPED).await;
    assert!(refused(&open).contains("no open call"));
    // An answer ends it at once.
    open.last = 2;
    open.abandon(2);
    assert!(open.ended(2).1);
    assert!(refused(&open).contains("no open call"));
    assert!(!open.ended(3).1);
}

#[test]
fn a_second_answer_differs_from_a_late_one() {
    let mut open = Open::default();
    for number in 1..=3 {
        open.calls.insert(number, call(true));
        open.last = number;
    }
    assert!(open.answered(1).0.is_some());
    // The bridge fails this one, and its caller leaves that one.
    assert!(open.ended(2).0.is_some());
    open.calls.remove(&3);
    for late in [2, 3] {
        assert!(open.answered(late).0.is_none());
    }
    assert_eq!(open.answered, [1]);
}

#[test]
fn the_calls_that_were_answered_last_are_remembered() {
    let (mut open, most) = (Open::default(), REMEMBERED as u64);
    for number in 1..=most + 1 {
        open.calls.insert(number, call(true));
        open.last = number;
        assert!(open.answered(number).0.is_some());
    }
    assert_eq!(open.answered.len(), REMEMBERED);
    assert_eq!(open.answered.front(), Some(&2));
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_abandoned_long_ago_are_forgotten() {
    let mut open = Open::default();
    (0..200).for_each(|number| open.abandon(number));
    tokio::time::advance(STOPPED).await;
    (200..300).for_each(|number| open.abandon(number));
    assert_eq!(open.abandoned.len(), 100);
}

/// The server may still send messages for an abandoned call, and some name no call. If several calls may be open, all
/// messages that name no call are refused, so abandoned calls need not be known.
#[tokio::test]
async fn an_abandoned_call_counts_only_if_at_most_one_call_is_open() {
    for is_single in [true, false] {
        let (link, _lines) = link(is_single);
        let own = ("1".into(), None);
        let waiting = link.begin(own, call(true).parts, HeaderMap::new());
        drop(waiting.unwrap());
        assert_eq!(link.open().abandoned.len(), usize::from(is_single));
    }
}

#[tokio::test(start_paused = true)]
async fn all_full_calls_are_waited_for_at_the_same_time() {
    let (link, _lines) = link(false);
    let mut receivers = Vec::new();
    for number in 0..3 {
        let (sender, receiver) = mpsc::channel(1);
        let mut call = call(true);
        call.parts.sender = sender;
        assert!(link.part(&call, Bytes::new(), false));
        link.open().calls.insert(number, call);
        receivers.push(receiver);
    }
    let begun = Instant::now();
    link.until_room(None).await;
    assert!(begun.elapsed() >= STALL && begun.elapsed() < 2 * STALL);
    // While there is no room, nobody waits for them again.
    link.until_room(None).await;
    assert!(begun.elapsed() < 2 * STALL);
    assert!(receivers.iter_mut().all(|it| it.try_recv().is_ok()));
}

fn link(is_single: bool) -> (Arc<Link>, mpsc::Receiver<Line>) {
    let (input, lines) = mpsc::channel(8);
    let limit = || LogLimits::default().limit(Level::WARN, "more");
    let log = Log {
        agent: "a".into(),
        strange: limit(),
        dropped: limit(),
        ends: limit(),
        stderr: limit(),
        drops: IntCounter::new("drops", "drops").unwrap(),
        passed_on: IntCounter::new("passed_on", "passed_on").unwrap(),
        unusable: IntGauge::new("unusable", "unusable").unwrap(),
        left_out: Mutex::default(),
    };
    let link = Link::new(input, is_single, Arc::default(), Arc::new(log));
    (Arc::new(link), lines)
}

/// A list that the server never answers must not keep it from asking.
#[tokio::test]
async fn a_late_request_of_the_bridge_does_not_keep_the_server_from_asking() {
    let (link, mut lines) = link(true);
    let mut asked = Box::pin(link.ask("tools/list", "{}"));
    assert!((&mut asked).now_or_never().is_none());
    let line = lines.try_recv().unwrap();
    assert!(link.written(line).is_some());
    drop(asked);
    let cancel = lines.try_recv().unwrap().bytes;
    assert!(std::str::from_utf8(&cancel).unwrap().contains("cancelled"));
    assert!(!link.open().works_on_abandoned());
}

#[test]
fn progress_after_the_answer_is_counted() {
    let (link, _lines) = link(false);
    let (sender, mut parts) = mpsc::channel(2);
    let mut call = call(true);
    call.parts.sender = sender;
    call.progress = Some("\"own\"".into());
    link.open().calls.insert(1, call);
    let progress = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
    );
    link.receive(&progress, None);
    assert_eq!(link.log.drops.get(), 0);
    assert!(parts.try_recv().is_ok());
    link.receive(
        &Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        None,
    );
    link.receive(&progress, None);
    assert_eq!(link.log.drops.get(), 1);
    assert!(parts.try_recv().is_err());
}

/// Otherwise the client waits for a question that the server has withdrawn.
#[test]
fn a_question_whose_cancel_is_lost_stays_open() {
    let (link, _lines) = link(true);
    let (sender, mut parts) = mpsc::channel(1);
    let mut call = call(true);
    call.parts.sender = sender;
    link.open().calls.insert(1, call);
    let question = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}"#,
    );
    let cancel = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#,
    );
    link.receive(&question, Some(1));
    // There is no room for the cancel.
    link.receive(&cancel, Some(1));
    assert_eq!(link.open().questions.len(), 1);
    assert!(parts.try_recv().unwrap().is_question);
    link.receive(&cancel, Some(1));
    assert!(!parts.try_recv().unwrap().is_question);
    assert!(link.open().questions.is_empty());
}

/// The task may be that of another client.
#[test]
fn of_messages_without_a_call_only_log_messages_belong_to_the_only_open_call() {
    let (link, _lines) = link(true);
    let (sender, mut parts) = mpsc::channel(4);
    let mut call = call(true);
    call.parts.sender = sender;
    link.open().calls.insert(1, call);
    let notify = |method: &str, of| {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"taskId":"t"}}}}"#
        );
        link.receive(&Bytes::from(line), of);
    };
    notify("tasks/status", None);
    notify("vendor/news", None);
    assert!(parts.try_recv().is_err());
    assert_eq!(link.log.drops.get(), 2);
    notify("message", None);
    assert!(parts.try_recv().is_ok());
    // It comes on the response to the call.
    notify("tasks/status", Some(1));
    assert!(parts.try_recv().is_ok());
    assert_eq!(link.log.drops.get(), 2);
}

#[test]
fn the_end_of_an_elicitation_is_reported_to_the_client_that_was_asked() {
    let (link, _lines) = link(true);
    let (sender, mut parts) = mpsc::channel(4);
    let mut call = call(true);
    call.parts.sender = sender;
    link.open().calls.insert(1, call);
    let question = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e"}}"#,
    );
    link.receive(&question, None);
    assert!(parts.try_recv().unwrap().is_question);
    // On the response to a call, it is for the client of that call.
    let cases = [
        ("e", None, true),
        ("of_another_call", None, false),
        ("e", Some(1), true),
        ("of_an_ended_call", Some(1), true),
    ];
    for (id, of, is_reported) in cases {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":"{id}"}}}}"#
        );
        link.receive(&Bytes::from(line), of);
        assert_eq!(parts.try_recv().is_ok(), is_reported, "{id}");
    }
    assert_eq!(link.log.drops.get(), 1);
}

fn call(is_reached: bool) -> Call {
    Call {
        id: "1".into(),
        progress: None,
        elicitations: VecDeque::new(),
        parts: Parts {
            sender: mpsc::channel(1).0,
            is_stalled: Arc::default(),
            takes_all: true,
            reached: Arc::new(AtomicBool::new(is_reached)),
            is_moved: Arc::default(),
        },
        answer: oneshot::channel().0,
        over: CancellationToken::new(),
    }
}

#[test]
fn the_requests_of_calls_that_fail_with_their_session_end() {
    let mut open = Open::default();
    let over = [(1, true), (2, true), (3, false)].map(|(number, is_reached)| {
        let call = call(is_reached);
        let over = call.over.clone();
        open.calls.insert(number, call);
        over
    });
    let id = "0".into();
    let question = Question { call: 2, id };
    open.questions.insert("\"x\"".into(), question);
    open.close_to_new_calls();
    let is_over = over.map(|over| over.is_cancelled());
    assert_eq!(is_over, [false, true, true]);
    assert_eq!(open.calls.len(), 1);
}

#[test]
fn the_server_cancels_a_question_by_its_own_id() {
    let mut open = Open::default();
    for (shown, call, id) in [("a", 1, "0"), ("b", 2, "0"), ("c", 2, "7")] {
        let id = id.into();
        open.questions.insert(shown.into(), Question { call, id });
    }
    // Two questions have this id.
    assert_eq!(open.question("0", None), None);
    assert_eq!(open.question("7", Some(1)), None);
    assert_eq!(open.question("7", None), Some(("c".into(), 2)));
    assert_eq!(open.question("0", Some(1)), Some(("a".into(), 1)));
    open.questions.remove("a");
    assert_eq!(open.question("0", Some(1)), None);
}

#[test]
fn a_request_in_a_session_does_not_say_that_it_stands_alone() {
    let without = |request: &'static str| without_version(Bytes::from_static(request.as_bytes()));
    assert_eq!(
        without(
            r#"{"id":1,"params":{"_meta":{"io.modelcontextprotocol\/protocolVersion":"2026-07-28","n": 1.0e2,"io.modelcontextprotocol/clientCapabilities":{"sampling":{ }}}, "name":"x"}}"#
        ),
        r#"{"id":1,"params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{ }},"n":1.0e2}, "name":"x"}}"#
    );
    for other in [
        r#"{"id":1,"params":{"_meta":{"n": 1}}}"#,
        r#"{"id":1,"params":[1]}"#,
        r#"{"id":1}"#,
    ] {
        assert_eq!(without(other), other);
    }
}
