//! When webhooks are called: first, after failures, and beside others.

use super::*;

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_pauses() {
    let start = Instant::now();
    let mut failing = None;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let now = Instant::now();
        let next = FailedDelivery::after(failing.as_ref(), Some(Duration::ZERO), now);
        assert_eq!(next.since, Some(start));
        pauses.push((next.next - now).as_secs());
        failing = Some(next);
        tokio::time::advance(next.next - now).await;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_may_ask_for_a_longer_pause() {
    let now = Instant::now();
    for (asked, expected) in [("0", 1), ("5", 5), ("600", 60), ("soon", 1)] {
        let headers = [("retry-after".to_owned(), asked.to_owned())];
        let called = Some(pause_in(&headers).unwrap_or_default());
        let failed = FailedDelivery::after(None, called, now);
        assert_eq!((failed.next - now).as_secs(), expected, "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn steps_that_only_renew_claims_leave_calls_to_retries() {
    let mut schedule = DeliverySchedule::default();
    let keys: Vec<Text> = (0..=MAX_RETRIES)
        .map(|key| key.to_string().into())
        .collect();
    for key in &keys {
        finish(&mut schedule, key, DeliveryResult::Failed(None));
    }
    let (last, renewing) = keys.split_last().unwrap();
    assert!(schedule.only_renews(last, Instant::now()));
    schedule.in_progress.extend(renewing.iter().map(running));
    let renew = |schedule: &mut DeliverySchedule, only_renews: bool| {
        let steps = schedule.in_progress.values_mut();
        steps.for_each(|step| step.only_renews = only_renews);
    };
    renew(&mut schedule, true);
    tokio::time::advance(PAUSES.0).await;
    assert!(!schedule.only_renews(last, Instant::now()));
    renew(&mut schedule, false);
    assert!(schedule.only_renews(last, Instant::now()));
    finish(&mut schedule, &renewing[0], DeliveryResult::Wait);
    assert!(!schedule.only_renews(last, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_memory_is_tried_again_and_has_not_failed() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    finish(&mut schedule, &key, DeliveryResult::NoRoom);
    assert!(schedule.failing.is_empty());
    // Its next events do not make it due more often.
    schedule.add(vec![key.clone()]);
    assert_eq!(schedule.due.len(), 1);
    assert_eq!(schedule.next_key(Instant::now()), None);
    tokio::time::advance(POSTPONED).await;
    assert_eq!(schedule.next_key(Instant::now()), Some(key));
}

fn running(key: &Text) -> (Text, RunningStep) {
    (key.clone(), RunningStep::default())
}

fn in_progress(schedule: &mut DeliverySchedule, key: &Text) -> Share<String> {
    schedule.in_progress.entry(key.clone()).or_default();
    schedule.hosts.take(&"host".to_owned()).unwrap()
}

fn finish(schedule: &mut DeliverySchedule, key: &Text, outcome: DeliveryResult) {
    let share = in_progress(schedule, key);
    let key = key.clone();
    let step = DeliveryStep {
        key,
        outcome,
        share,
    };
    schedule.finish(step, |_| "host".to_owned());
}

#[tokio::test(start_paused = true)]
async fn events_during_a_step_are_processed_after_it() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    schedule.in_progress.extend([running(&key)]);
    schedule.add(vec![key.clone()]);
    assert!(schedule.due.is_empty());
    finish(&mut schedule, &key, DeliveryResult::Idle);
    assert_eq!(schedule.due.len(), 1);
    // A delivery that fails waits for its time, whatever else happens.
    schedule.due.clear();
    finish(&mut schedule, &key, DeliveryResult::Failed(None));
    schedule.add(vec![key]);
    assert_eq!(schedule.due.len(), 1);
    assert!(schedule.due.first().unwrap().0 > Instant::now());
}

#[tokio::test(start_paused = true)]
async fn a_webhook_is_due_once_for_all_events_before_its_step() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    for _ in 0..3 {
        schedule.add(vec![key.clone()]);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(schedule.due.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_fail_leave_calls_to_the_others() {
    let mut schedule = DeliverySchedule::default();
    let keys: Vec<Text> = (0..=MAX_RETRIES)
        .map(|key| key.to_string().into())
        .collect();
    for key in &keys {
        finish(&mut schedule, key, DeliveryResult::Failed(None));
    }
    let (last, called) = keys.split_last().unwrap();
    schedule.in_progress.extend(called.iter().map(running));
    let is_held_back = |schedule: &DeliverySchedule, key: &Text| {
        let now = Instant::now();
        schedule.is_held_back(key, now)
    };
    assert!(!is_held_back(&schedule, last), "it only renews its claim");
    tokio::time::advance(PAUSES.0).await;
    assert!(is_held_back(&schedule, last));
    assert!(!is_held_back(&schedule, &"works".into()));
    schedule.in_progress.extend([running(&"works".into())]);
    finish(&mut schedule, &called[0], DeliveryResult::Failed(None));
    assert!(!is_held_back(&schedule, last));
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_are_held_back_renew_their_claims_and_are_called_in_order() {
    let mut schedule = DeliverySchedule::default();
    let called: Vec<Text> = (0..MAX_RETRIES).map(|key| key.to_string().into()).collect();
    let (first, second) = (Text::from("z"), Text::from("a"));
    for key in called.iter().chain([&first]) {
        finish(&mut schedule, key, DeliveryResult::Failed(None));
    }
    tokio::time::advance(Duration::from_millis(1)).await;
    finish(&mut schedule, &second, DeliveryResult::Failed(None));
    schedule.in_progress.extend(called.iter().map(running));
    schedule.due.clear();
    tokio::time::advance(PAUSES.0).await;
    // Steps that only renew the claim.
    for _ in 0..2 {
        for key in [&second, &first] {
            assert!(schedule.is_held_back(key, Instant::now()));
            finish(&mut schedule, key, DeliveryResult::Wait);
        }
        assert_eq!(schedule.next_key(Instant::now()), None);
        tokio::time::advance(RENEW).await;
        for key in [&second, &first] {
            assert_eq!(schedule.next_key(Instant::now()).as_ref(), Some(key));
        }
    }
    for (ended, next) in called.iter().zip([&first, &second]) {
        finish(&mut schedule, ended, DeliveryResult::Idle);
        assert_eq!(schedule.next_key(Instant::now()).as_ref(), Some(next));
        schedule.in_progress.extend([running(next)]);
        assert_eq!(schedule.next_key(Instant::now()), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_is_set_again_starts_over() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    finish(&mut schedule, &key, DeliveryResult::Failed(None));
    schedule.set(key.clone());
    assert!(schedule.failing.is_empty());
    assert_eq!(schedule.due.first().unwrap().0, Instant::now());
    // It does not inherit the result of a call to its previous URL either.
    schedule.due.clear();
    let share = in_progress(&mut schedule, &key);
    schedule.set(key.clone());
    let outcome = DeliveryResult::Failed(None);
    let step = DeliveryStep {
        key,
        outcome,
        share,
    };
    schedule.finish(step, |_| "host".to_owned());
    assert!(schedule.failing.is_empty());
    assert_eq!(schedule.due.first().unwrap().0, Instant::now());
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_webhook_begins_with_its_own_first_failure() {
    let now = Instant::now();
    let unclaimed = FailedDelivery::after(None, None, now);
    assert_eq!((unclaimed.since, unclaimed.times), (None, 0));
    tokio::time::advance(Duration::from_secs(600)).await;
    let now = Instant::now();
    let failed = FailedDelivery::after(Some(&unclaimed), Some(Duration::ZERO), now);
    assert_eq!((failed.since, failed.times), (Some(now), 1));
}

#[tokio::test(start_paused = true)]
async fn one_host_gets_a_limited_part_of_the_calls() {
    let mut schedule = DeliverySchedule::default();
    let keys: Vec<Text> = (0..=MAX_PER_HOST)
        .map(|key| key.to_string().into())
        .collect();
    let mut shares: Vec<_> = keys
        .iter()
        .map_while(|_| schedule.hosts.take(&"a".into()))
        .collect();
    assert_eq!(shares.len(), MAX_PER_HOST);
    assert!(schedule.hosts.take(&"b".into()).is_some());
    let last = keys.last().unwrap().clone();
    schedule.wait(last.clone(), "a".to_owned());
    let share = shares.pop().unwrap();
    schedule.release_share(share, Instant::now(), |_| "a".to_owned());
    assert_eq!(schedule.due.first().unwrap().1, last);
    assert!(schedule.waiting.is_empty() && schedule.queues.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_goes_to_a_webhook_that_still_has_its_host() {
    let mut schedule = DeliverySchedule::default();
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    for key in ["deleted", "moved", "next", "waits"] {
        schedule.wait(key.into(), "a".to_owned());
    }
    schedule.release_share(share, Instant::now(), |key| match key.as_str() {
        "deleted" => String::new(),
        "moved" => "b".to_owned(),
        _ => "a".to_owned(),
    });
    let due: Vec<&str> = schedule.due.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(due, ["deleted", "moved", "next"]);
    assert_eq!(schedule.queues["a"], ["waits"]);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_does_not_wait_while_its_host_has_a_free_slot() {
    let mut schedule = DeliverySchedule::default();
    for key in ["first", "second"] {
        schedule.wait(key.into(), "a".to_owned());
    }
    let taken = (1..MAX_PER_HOST).map(|_| schedule.hosts.take(&"a".to_owned()));
    let taken: Vec<_> = taken.map(Option::unwrap).collect();
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    schedule.use_free_slots(|_| "a".to_owned());
    assert!(schedule.due.is_empty(), "all slots are taken");
    drop(share);
    schedule.use_free_slots(|_| "a".to_owned());
    let due: Vec<&str> = schedule.due.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(due, ["first"]);
    drop(taken);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_waits_for_its_host_is_due_only_if_it_is_set_again() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    schedule.wait(key.clone(), "a".to_owned());
    schedule.add(vec![key.clone()]);
    assert!(schedule.due.is_empty());
    schedule.set(key.clone());
    assert_eq!(schedule.due.len(), 1);
    // It waits for one host at a time.
    schedule.wait(key.clone(), "a".to_owned());
    schedule.wait(key.clone(), "b".to_owned());
    assert_eq!(
        (schedule.queues["a"].len(), schedule.queues["b"].len()),
        (1, 1)
    );
    schedule.due.clear();
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    schedule.release_share(share, Instant::now(), |_| "b".to_owned());
    assert!(schedule.due.is_empty());
    let share = schedule.hosts.take(&"b".to_owned()).unwrap();
    schedule.release_share(share, Instant::now(), |_| "b".to_owned());
    assert_eq!(schedule.due.first().unwrap().1, key);
}
