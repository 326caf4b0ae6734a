//! Calls that lose their bus while they wait.

use std::future::pending;

use a2abus_models::e2a::Trust;
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::memory::Memory;
use a2abus_transports::{Message, Topic};

use super::*;
use crate::account::Retry;
use crate::bus::delivery::Publisher;
use crate::bus::{BusId, Buses};
use crate::calls::AnswerOutcome;
use crate::calls::callid::Replica;
use crate::calls::cancel::Canceller;
use crate::calls::pending::Entry;
use crate::calls::reply::ReplyChannels;
use crate::calls::reply_source::FORWARDED_FROM;
use crate::calls::reply_token::ReplyTokens;
use crate::calls::resolve::{ReadAt, Reader};
use crate::calls::service::CallLimits;
use crate::config::Config;
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
default_route: [{ transport: bus, topic: agent }]
";

const LONG: Duration = Duration::from_secs(60);

fn calls() -> Arc<Calls> {
    let buses = Buses::new(Vec::new());
    let channels = channels(&buses, &[]);
    calls_with(buses, channels)
}

fn channels(buses: &Buses, called: &[BusId]) -> ReplyChannels {
    let topic = Topic::from_static("replies");
    ReplyChannels::new(buses, called, &topic, 1, Replica(1))
}

fn calls_with(buses: Buses, channels: ReplyChannels) -> Arc<Calls> {
    let config = Config::read("test.yaml", CONFIG, []).unwrap();
    let log = LogLimits::default();
    let publisher = Publisher::of_test(buses);
    let metrics = Arc::new(Metrics::new().unwrap());
    let (canceller, _) = Canceller::channel(metrics.cancels_dropped.clone(), &log);
    let tokens = ReplyTokens::random(config.calls.reply_token).unwrap();
    let limits = CallLimits {
        timeout: LONG,
        max_timeout: LONG,
        stream_timeout: LONG,
        question_timeout: LONG,
        max_pending: 1,
        max_pending_per_agent: 1,
        max_pending_per_caller: 1,
        budget_bytes: 1 << 20,
        max_parts_buffered: 8,
    };
    let made = (channels, tokens);
    let source = "/test".into();
    Arc::new(Calls::new(
        publisher, made, limits, source, canceller, metrics, &log,
    ))
}

/// A call whose bus does not confirm its request, and the sender of the parts of its answer.
fn unconfirmed(calls: &Arc<Calls>) -> (Box<Answer>, mpsc::Sender<Box<CallerMessage>>) {
    let (sender, parts) = mpsc::channel(8);
    let id = ReplyId {
        call: calls.new_call().unwrap(),
        token: None,
    };
    let opened = Opened {
        id,
        parts,
        cancel: Cancel::new(id, Dialect::JsonRpc, None, &[]),
        timeouts: Timeouts::new(LONG, LONG),
        is_rpc: false,
        may_have_arrived: Arc::new(AtomicBool::new(true)),
        client: None,
    };
    let account = Account::open(&calls.metrics, id.call, "caller".into(), Instant::now());
    let mut answer = opened.answer(account, calls);
    answer.publishing = Publishing(Some(Box::pin(pending())));
    (answer, sender)
}

async fn send(to: &mpsc::Sender<Box<CallerMessage>>, part: Result<Part, CallError>) {
    let message = CallerMessage::Part(part, None);
    to.send(Box::new(message)).await.unwrap();
}

/// The agent has evidently received the request, although the bus has not confirmed it.
#[tokio::test]
async fn an_answer_that_has_begun_goes_on_from_the_log() {
    let calls = calls();
    let (mut answer, bus) = unconfirmed(&calls);
    let (log, recorded) = mpsc::channel(8);
    answer.recorded = Some(Box::new(move |consumed: u32| {
        assert_eq!(consumed, 1);
        Some(recorded)
    }));
    send(&bus, Ok(Part::new("first".into(), false))).await;
    send(&bus, Err(CallError::AnswerLost("down".into()))).await;
    send(&log, Ok(Part::new("last".into(), true))).await;
    for expected in ["first", "last"] {
        let part = answer.next().await.unwrap().unwrap();
        assert_eq!(part.body, expected);
    }
    assert!(answer.next().await.is_none());
    // The same part may still arrive here.
    let outcome = calls.ended().outcome_of(answer.call_id());
    assert!(matches!(outcome, AnswerOutcome::Recorded(_)), "{outcome:?}");
}

/// Otherwise its agent would work for nobody, or wait for an answer that cannot come.
#[tokio::test]
async fn only_a_call_without_an_open_question_whose_client_can_come_back_is_handed_over() {
    for (can_come_back, is_asked, expected) in [
        (true, false, CallError::HandedOff),
        (true, true, CallError::Drained),
        (false, false, CallError::Drained),
    ] {
        let calls = calls();
        let (mut answer, bus) = unconfirmed(&calls);
        let continues = Arc::new(AtomicBool::new(false));
        answer.continues_elsewhere = Some(Arc::clone(&continues));
        continues.store(can_come_back, Ordering::Relaxed);
        if is_asked {
            answer.open_questions.push("1".into());
        }
        send(&bus, Err(CallError::Draining)).await;
        let failed = answer.next().await.unwrap().unwrap_err();
        assert_eq!(failed, expected);
    }
}

/// On a topic that every replica reads whole.
#[tokio::test]
async fn a_binding_takes_an_answer_while_the_reply_channel_does_not_read() {
    let buses = Buses::of_test(Memory::default().into(), &Metrics::new().unwrap());
    let (bus, topic) = (BusId::FIRST, Topic::from_static("answers"));
    let mut channels = channels(&buses, &[bus]);
    channels.read_also(bus, vec![(topic.clone().into(), Trust::Untrusted)]);
    let calls = calls_with(buses, channels);
    let rules = calls.rules();
    let outcome_of = |call: CallId| {
        let id = ReplyId { call, token: None };
        let body = format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":1}}"#);
        let at = ReadAt {
            rules: &rules,
            bus,
            topic: &topic,
            origin: None,
            message: &Message::plain(body),
            reply_to: None,
            reader: Reader::Binding,
            trust: Trust::Untrusted,
        };
        let mut outcomes = calls.take_answers(at, ProtocolBinding::Memory);
        outcomes.pop().unwrap()
    };
    let own = calls.new_call().unwrap();
    // It is taken, although its call has ended.
    let outcome = outcome_of(own);
    assert!(matches!(outcome, AnswerOutcome::Late(_)), "{outcome:?}");
    let channel = calls.channels().iter().next().unwrap();
    channel.set_reading(true);
    let outcome = outcome_of(own);
    assert!(matches!(outcome, AnswerOutcome::Foreign(_)), "{outcome:?}");
    // The other process may not read the topic. If it does, it ignores the copy.
    let AnswerOutcome::Forward(copy) = outcome_of(CallId::new(Replica(2)).unwrap()) else {
        panic!("expected a copy");
    };
    let from = copy.message.headers.get(FORWARDED_FROM).unwrap();
    assert_eq!(from, "answers");
    assert!(calls.channels().is_read_here(bus, &copy.message));
}

/// It stays at its source, whatever the agent has answered, and its next reader sends it.
#[tokio::test]
async fn a_request_that_is_left_to_its_source_counts_as_left_and_nothing_else() {
    let answers = [
        Ok(Part::new("{}".into(), true)),
        Err(CallError::BadAnswer("not JSON".into())),
        Err(CallError::Moved),
    ];
    for received in answers {
        let calls = calls();
        let (mut answer, bus) = unconfirmed(&calls);
        answer.is_redeliverable = true;
        send(&bus, received).await;
        drop(answer.next().await.unwrap());
        answer.leave();
        drop(answer);
        let metrics = calls.metrics.render().unwrap();
        for outcome in CallOutcome::ALL {
            let (name, is_left) = (outcome.as_str(), outcome == CallOutcome::Left);
            let series = format!("a2abus_calls_total{{outcome=\"{name}\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
            assert_eq!(line, Some(if is_left { "1" } else { "0" }), "{name}");
        }
    }
}

/// However many requests get the answer to one call, the call is counted once: by the process that made it or took it
/// over.
#[tokio::test]
async fn a_request_that_gets_the_answer_to_an_earlier_one_is_not_counted_as_a_call() {
    for (is_retry, counted) in [(true, "0"), (false, "1")] {
        let calls = calls();
        let retry = is_retry.then(|| Retry {
            caller: "caller".into(),
            agent: "weather".into(),
            method: "echo".into(),
            arrived: Instant::now(),
        });
        let (log, recorded) = mpsc::channel(8);
        let (call, limits) = (calls.new_call().unwrap(), (LONG, LONG));
        let mut answer = calls.resume(call, "weather".into(), limits, 0, recorded, retry);
        send(&log, Ok(Part::new("last".into(), true))).await;
        assert_eq!(answer.next().await.unwrap().unwrap().body, "last");
        drop(answer);
        let metrics = calls.metrics.render().unwrap();
        for outcome in CallOutcome::ALL {
            let series = format!("a2abus_calls_total{{outcome=\"{}\"}} ", outcome.as_str());
            let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
            let is_answered = outcome == CallOutcome::Answered;
            let expected = if is_answered { counted } else { "0" };
            assert_eq!(line, Some(expected), "{series}");
        }
    }
}

/// The request may not have arrived, but must not be sent again.
#[tokio::test]
async fn an_unconfirmed_request_without_an_answer_fails_with_its_bus() {
    let calls = calls();
    let (mut answer, bus) = unconfirmed(&calls);
    let (_log, recorded) = mpsc::channel(8);
    answer.recorded = Some(Box::new(move |_: u32| Some(recorded)));
    send(&bus, Err(CallError::AnswerLost("down".into()))).await;
    let failed = answer.next().await.unwrap();
    let is_lost = matches!(failed, Err(CallError::AnswerLost(_)));
    assert!(is_lost, "{failed:?}");
}

#[tokio::test]
async fn an_answer_in_parts_has_the_time_of_a_stream() {
    let calls = calls();
    let (mut answer, bus) = unconfirmed(&calls);
    answer.begun_deadline = answer.last_deadline + LONG;
    assert!(answer.time_left() <= LONG);
    send(&bus, Ok(Part::new("first".into(), false))).await;
    answer.next().await.unwrap().unwrap();
    assert!(answer.time_left() > LONG);
    assert!(answer.next_deadline() < answer.last_deadline);
}

/// Enters the call of an answer in the table.
fn register(calls: &Calls, answer: &Answer, parts: mpsc::Sender<Box<CallerMessage>>) {
    let budget = calls.budget().for_client(None);
    let entry = Entry::of_test(answer.id, parts, budget);
    assert!(calls.pending().register(answer.call_id(), entry));
}

/// The process was suspended, and the part is still in a socket.
#[tokio::test]
async fn a_deadline_that_is_noticed_too_late_leaves_time_for_a_part() {
    let calls = calls();
    let (mut answer, bus) = unconfirmed(&calls);
    register(&calls, &answer, bus.clone());
    answer.deadline = Instant::now().checked_sub(2 * STALLED).unwrap();
    let early = tokio::time::timeout(Duration::ZERO, answer.next()).await;
    assert!(early.is_err(), "{early:?}");
    send(&bus, Ok(Part::new("part".into(), false))).await;
    let part = answer.next().await.unwrap().unwrap();
    assert_eq!(part.body, "part");
    assert!(answer.next_deadline() > Instant::now());
}

/// The caller gets only one answer, but its agent is at work.
#[tokio::test(start_paused = true)]
async fn collected_parts_extend_the_time_and_are_counted() {
    let calls = calls();
    let (mut answer, bus) = unconfirmed(&calls);
    register(&calls, &answer, bus);
    answer.deadline = Instant::now();
    let nothing = calls.pending().hand_over(answer.call_id(), |_, progress| {
        progress.collected = Some((3, Instant::now()));
        None
    });
    assert_eq!(nothing, HandOver::Nothing);
    let began = tokio::time::Instant::now();
    let failed = answer.next().await.unwrap().unwrap_err();
    assert!(began.elapsed() > LONG / 2, "{:?}", began.elapsed());
    assert_eq!(
        failed.to_string(),
        "the agent did not end its answer: nothing came for 60000 ms after part 3"
    );
}
