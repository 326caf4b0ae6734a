//! Keys and answers of several replicas, over one log.

use futures_util::FutureExt as _;

use super::*;
use crate::state::{MemoryLog, ViewTask};

const KEY: &str = "key-1";
const LONG: Duration = Duration::from_secs(300);

/// One of several replicas that share this log.
fn replica(log: &MemoryLog) -> (Results, ViewTask) {
    process(log, None)
}

/// A process that opened this log at this end, if only it uses the log.
fn process(log: &MemoryLog, opened_at: Option<Cursor>) -> (Results, ViewTask) {
    let (view, task) = View::start(log.clone(), ResultFold, 1 << 20);
    (Results::new(view, opened_at, &LogLimits::default()), task)
}

fn claim(call: &str) -> Claim {
    Claim {
        digest: "d".into(),
        call: call.into(),
        until: clock::milliseconds(clock::now() + LONG),
    }
}

/// Waits on another replica for the call "a", on which a replica works for so long and then dies. Returns how long
/// the wait took, and the state of the key after it; `None` if it is still waiting.
async fn waited(works: Duration) -> Option<(Duration, KeyState)> {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    let call = Text::from("a");
    let state = first.claim(KEY, &claim("a"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Ours), "{state:?}");
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Running(_)), "{state:?}");
    let started = Instant::now();
    let work = timeout(works, first.renewing(KEY, &call, pending::<()>()));
    let wait = timeout(LONG, second.until_settled(KEY, &call));
    let (_, settled) = tokio::join!(work, wait);
    settled.ok()?;
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    Some((started.elapsed(), state))
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_replica_that_has_stopped_is_lost() {
    let (waited, state) = waited(Duration::ZERO).await.unwrap();
    assert!(waited < 2 * SILENCE + RENEWAL, "{waited:?}");
    assert!(
        matches!(&state, KeyState::Lost(call) if **call == *"a"),
        "{state:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_of_an_earlier_process_is_lost_at_once_if_no_other_one_can_answer_it() {
    const LEFT: &str = "key-left";
    const ANSWERED: &str = "key-answered";
    const RECORDED: &str = "key-recorded";
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let (earlier, _earlier) = replica(&log);
    let recorded = CallId::new(crate::calls::callid::Replica(1)).unwrap();
    let name = Text::from(recorded.to_string());
    for (key, call) in [(LEFT, "left"), (ANSWERED, "answered"), (RECORDED, &*name)] {
        let state = earlier.claim(key, &claim(call), LONG).await.unwrap();
        assert!(matches!(state, KeyState::Ours), "{state:?}");
    }
    let response = StoredResponse {
        status: 200,
        headers: Vec::new(),
        body: "x".into(),
    };
    earlier.keep(ANSWERED, &"answered".into(), response).await;
    assert!(earlier.open_call(recorded, opened_with(RECORDED)).await);
    let part = RecordedPart::new(&Bytes::from_static(b"{}"), false, Author::Agent);
    assert!(earlier.keep_part(recorded, 0, part).await);
    let end = earlier.end().await.unwrap();
    let (results, _log) = process(&log, Some(end));
    results.view.caught_up().await.unwrap();
    let started = Instant::now();
    for (key, call) in [(LEFT, "left"), (ANSWERED, "answered"), (RECORDED, &*name)] {
        results.until_settled(key, &call.into()).await;
    }
    assert!(started.elapsed() < SILENCE, "{:?}", started.elapsed());
    let state = results.claim(LEFT, &claim("b"), LONG).await.unwrap();
    assert!(
        matches!(&state, KeyState::Lost(call) if **call == *"left"),
        "{state:?}"
    );
    let state = results.claim(ANSWERED, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Answered(_)), "{state:?}");
    let state = results.claim(RECORDED, &claim("b"), LONG).await.unwrap();
    assert!(
        matches!(state, KeyState::RecordedElsewhere(call) if call == recorded),
        "{state:?}"
    );
    // What this process has claimed itself is waited for.
    results.claim(KEY, &claim("own"), LONG).await.unwrap();
    let own = Text::from("own");
    let settled = timeout(SILENCE / 2, results.until_settled(KEY, &own));
    assert!(settled.await.is_err());
}

/// The agent may take this long for a part, and ten times as long for the whole answer.
const FOR_A_PART: Duration = Duration::from_secs(60);

fn opened_with(key: &str) -> OpenedCall {
    let now = clock::now();
    OpenedCall {
        key: Some(key.into()),
        task: None,
        until: clock::milliseconds(now + 10 * FOR_A_PART),
        began: clock::milliseconds(now),
        part_timeout: Some(clock::whole_milliseconds(FOR_A_PART)),
        ..OpenedCall::sample()
    }
}

/// The answer is waited for while another replica may receive it, but not once the agent has been silent for too long.
#[tokio::test(start_paused = true)]
async fn the_answer_of_a_silent_agent_is_lost_after_the_time_for_a_part() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    let second = Arc::new(second);
    let call = CallId::new(crate::calls::callid::Replica(1)).unwrap();
    let name = call.to_string();
    first.claim(KEY, &claim(&name), LONG).await.unwrap();
    assert!(first.open_call(call, opened_with(KEY)).await);
    let (started, name) = (Instant::now(), Text::from(name));
    let settled = second.until_settled(KEY, &name);
    // Its agent sends a part, and then nothing more.
    let part = async {
        sleep(FOR_A_PART).await;
        second.renew_for(&KEY.into(), call);
    };
    let _ = timeout(LONG, async { tokio::join!(settled, part) }).await;
    let (waited, limit) = (started.elapsed(), 2 * FOR_A_PART + crate::calls::TAKEOVER);
    assert!(
        waited >= limit && waited < limit + 2 * SILENCE,
        "{waited:?}"
    );
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Lost(_)), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_task_whose_last_call_is_recorded_has_a_deadline() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    let [recorded, other] =
        [(); 2].map(|()| CallId::new(crate::calls::callid::Replica(1)).unwrap());
    let tasks = |last: CallId| {
        let task = Unfinished {
            last_call: last.to_string().into(),
            last_record: 0,
        };
        HashMap::from([(Text::from("t"), task)])
    };
    // The other replica has not read the record yet.
    assert!(first.open_call(recorded, OpenedCall::sample()).await);
    let deadlines = second.deadlines(&tasks(recorded)).await;
    assert_eq!(deadlines, HashMap::from([(Text::from("t"), 1)]));
    assert!(second.deadlines(&tasks(other)).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_ended_without_room_for_its_entry() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let (view, _task) = View::start(log, ResultFold, 20_000);
    let results = Results::new(view, None, &LogLimits::default());
    let session = "mcp-session-first";
    results.note_over(session).await.unwrap();
    let is_stored = || results.view.read(|entries| entries.get(session).is_some());
    let mut others = 0;
    while is_stored() {
        others += 1;
        let other = format!("mcp-session-{others}");
        results.note_over(&other).await.unwrap();
    }
    assert!(results.is_over(session));
    assert!(!results.is_over("mcp-session-open"));
    assert!(results.subscriptions_of(session).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_entry_was_removed_is_not_free() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let (view, _task) = View::start(log, ResultFold, 20_000);
    let results = Results::new(view, None, &LogLimits::default());
    results.claim(KEY, &claim("a"), LONG).await.unwrap();
    results.give_up(KEY, &"a".into()).await;
    let mut others = 0;
    while results.view.read(|entries| entries.get(KEY).is_some()) {
        others += 1;
        let other = format!("mcp-session-{others}");
        results.note_over(&other).await.unwrap();
    }
    let state = results.key_state(KEY, &claim("b"));
    assert!(matches!(state, Some(KeyState::Forgotten)), "{state:?}");
    assert!(results.key_state("key-2", &claim("b")).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_latest_state_of_a_key_includes_the_records_of_other_replicas() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    second.view.latest(LATEST).await.unwrap();
    first.claim(KEY, &claim("a"), LONG).await.unwrap();
    let state = second.latest_state(KEY, &claim("b")).await.unwrap();
    assert!(matches!(state, Some(KeyState::Running(_))), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_works_for_long_is_waited_for() {
    let works = 8 * SILENCE;
    let (waited, state) = waited(works).await.unwrap();
    assert!(
        waited > works && waited < works + 2 * SILENCE + RENEWAL,
        "{waited:?}"
    );
    assert!(matches!(state, KeyState::Lost(_)), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_lost_in_time_though_nobody_waits_that_long() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    let (second, call) = (Arc::new(second), Text::from("a"));
    first.claim(KEY, &claim("a"), LONG).await.unwrap();
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Running(_)), "{state:?}");
    for _ in 0..2 {
        second.watch_over(KEY, &call);
    }
    assert_eq!(second.feeds.len(), 1);
    sleep(2 * SILENCE + RENEWAL).await;
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Lost(_)), "{state:?}");
    assert!(second.watched().is_empty());
}

/// The claim of a request that was refused may reach the log late, and is released only after the next request.
#[tokio::test(start_paused = true)]
async fn a_key_whose_earlier_claim_is_released_late_is_claimed() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let (results, _log) = replica(&log);
    let append = |event| {
        let appended = log.append(KEY, Some(body::write(&event)));
        appended.now_or_never().unwrap().unwrap();
    };
    append(Event::Claimed(claim("a")));
    // The view has not applied that.
    let next = claim("b");
    let mut claiming = std::pin::pin!(results.claim(KEY, &next, LONG));
    assert!(claiming.as_mut().now_or_never().is_none());
    append(Event::Released { call: "a".into() });
    let state = claiming.await.unwrap();
    assert!(matches!(state, KeyState::Ours), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_another_call_ends_the_wait() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let (results, _log) = replica(&log);
    results.claim(KEY, &claim("b"), LONG).await.unwrap();
    let other = Text::from("a");
    let settled = timeout(LONG, results.until_settled(KEY, &other));
    settled.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_answer_ends_the_wait() {
    let log = MemoryLog::new(RESULTS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    let call = Text::from("a");
    first.claim(KEY, &claim("a"), LONG).await.unwrap();
    let response = StoredResponse {
        status: 200,
        headers: Vec::new(),
        body: "x".into(),
    };
    tokio::join!(
        second.until_settled(KEY, &call),
        first.keep(KEY, &call, response)
    );
    let state = second.claim(KEY, &claim("b"), LONG).await.unwrap();
    assert!(matches!(state, KeyState::Answered(_)), "{state:?}");
}
