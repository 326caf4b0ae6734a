//! When webhooks are called: first, after failures, and beside others.

use super::*;

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_pauses() {
    let start = Instant::now();
    let mut failing = None;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let now = Instant::now();
        let next = FailedDelivery::after(failing.as_ref(), Some((now, Duration::ZERO)), now);
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
        let called = Some((now, pause_in(&headers).unwrap_or_default()));
        let failed = FailedDelivery::after(None, called, now);
        assert_eq!((failed.next - now).as_secs(), expected, "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_for_retries_may_pass_while_one_waits_for_its_turn() {
    let (limit, delay) = (Duration::from_secs(600), Duration::from_secs(10));
    let began = Instant::now();
    let failing = |since: Option<Instant>, due: u64| FailedDelivery {
        since,
        times: 1,
        next: began + Duration::from_secs(due),
    };
    let is_too_late = |failing: FailedDelivery| failing.is_too_late(limit, delay);
    tokio::time::advance(limit - Duration::from_secs(1)).await;
    assert!(!is_too_late(failing(Some(began), 60)), "there is time left");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(is_too_late(failing(Some(began), 60)));
    assert!(!is_too_late(failing(None, 60)), "only the log failed");
    // It was due in time, or is not due yet.
    for due in [590, 599, 660] {
        assert!(!is_too_late(failing(Some(began), due)), "{due}");
    }
    assert!(is_too_late(failing(Some(began), 589)));
}

#[tokio::test(start_paused = true)]
async fn claims_of_failing_webhooks_are_renewed_wherever_they_wait() {
    let mut schedule = DeliverySchedule::default();
    let [pauses, due, held_back, queued, called] =
        ["pauses", "due", "held_back", "queued", "called"].map(Text::from);
    for key in [&due, &held_back, &queued, &called] {
        finish(&mut schedule, key, failed());
    }
    let now = Instant::now() + PAUSES.0;
    tokio::time::advance(PAUSES.0).await;
    finish(&mut schedule, &pauses, failed());
    schedule
        .due
        .retain(|(_, key)| [&due, &pauses].contains(&key));
    schedule.held_back.insert((now, held_back.clone()));
    let queues = &mut schedule.queues;
    for key in [&queued, &"queued later".into()] {
        queues.push(key.clone(), "host".to_owned(), true, now);
    }
    schedule.in_progress.extend([retrying(&called)]);
    schedule.renew_claims();
    let mut renewed: Vec<Text> = iter::from_fn(|| schedule.next_renewal()).collect();
    renewed.sort();
    assert_eq!(renewed, ["due", "held_back", "pauses", "queued"]);
    assert_eq!(next_key(&mut schedule), None);
    for key in &renewed {
        let step = DeliveryStep {
            key: key.clone(),
            outcome: DeliveryResult::Wait,
            share: None,
        };
        schedule.finish(step, |_| "host".to_owned());
    }
    // Those whose turn came meanwhile are due since then. The others wait where they did.
    let later = now + PAUSES.0;
    let expected = [(now, due), (now, held_back), (later, pauses)];
    assert_eq!(Vec::from_iter(schedule.due), expected);
    let (_, next) = schedule.queues.pop("host", true).unwrap();
    assert_eq!(next, queued);
}

#[tokio::test(start_paused = true)]
async fn a_limited_number_of_claims_is_renewed_at_a_time() {
    let mut schedule = DeliverySchedule::default();
    for key in 0..=MAX_RENEWALS {
        finish(&mut schedule, &key.to_string().into(), failed());
    }
    schedule.renew_claims();
    let renewed: Vec<Text> = iter::from_fn(|| schedule.next_renewal()).collect();
    assert_eq!(renewed.len(), MAX_RENEWALS);
    let step = DeliveryStep {
        key: renewed[0].clone(),
        outcome: DeliveryResult::Wait,
        share: None,
    };
    schedule.finish(step, |_| "host".to_owned());
    assert!(schedule.next_renewal().is_some());
    assert!(schedule.to_renew.is_empty());
    let steps = schedule.in_progress.len();
    assert_eq!(steps, schedule.renewals(), "none of them is a call");
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
    assert_eq!(next_key(&mut schedule), None);
    tokio::time::advance(POSTPONED).await;
    assert_eq!(next_key(&mut schedule), Some(key));
}

fn failed() -> DeliveryResult {
    DeliveryResult::Failed {
        began: Instant::now(),
        pause: None,
    }
}

fn wait(schedule: &mut DeliverySchedule, key: &str, host: &str) {
    let queues = &mut schedule.queues;
    queues.push(key.into(), host.to_owned(), false, Instant::now());
}

fn next_key(schedule: &mut DeliverySchedule) -> Option<Text> {
    let (_, key) = schedule.next_key(Instant::now())?;
    Some(key)
}

fn running(key: &Text) -> (Text, RunningStep) {
    (key.clone(), RunningStep::default())
}

fn retrying(key: &Text) -> (Text, RunningStep) {
    let step = RunningStep {
        retries_at: Some("host".to_owned()),
        ..RunningStep::default()
    };
    (key.clone(), step)
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
        share: Some(share),
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
    finish(&mut schedule, &key, failed());
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
        finish(&mut schedule, key, failed());
    }
    let (last, called) = keys.split_last().unwrap();
    schedule.in_progress.extend(called.iter().map(retrying));
    assert!(schedule.is_held_back(last));
    assert!(!schedule.is_held_back(&"works".into()));
    // Nor does a webhook wait for them if only the log failed.
    let unclaimed = Text::from("unclaimed");
    finish(&mut schedule, &unclaimed, DeliveryResult::NotStored);
    assert!(schedule.failing.contains_key(&unclaimed));
    assert!(!schedule.is_held_back(&unclaimed));
    schedule.in_progress.extend([running(&"works".into())]);
    finish(&mut schedule, &called[0], failed());
    assert!(!schedule.is_held_back(last));
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_are_held_back_are_called_in_order() {
    let mut schedule = DeliverySchedule::default();
    let called: Vec<Text> = (0..MAX_RETRIES).map(|key| key.to_string().into()).collect();
    let (first, second) = (Text::from("z"), Text::from("a"));
    for key in called.iter().chain([&first]) {
        finish(&mut schedule, key, failed());
    }
    tokio::time::advance(Duration::from_millis(1)).await;
    finish(&mut schedule, &second, failed());
    schedule.in_progress.extend(called.iter().map(retrying));
    schedule.due.retain(|(_, key)| !called.contains(key));
    tokio::time::advance(PAUSES.0).await;
    assert_eq!(next_key(&mut schedule), None);
    assert!(schedule.due.is_empty());
    for (ended, next) in called.iter().zip([&first, &second]) {
        finish(&mut schedule, ended, DeliveryResult::Idle);
        assert_eq!(next_key(&mut schedule).as_ref(), Some(next));
        schedule.in_progress.extend([retrying(next)]);
        assert_eq!(next_key(&mut schedule), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_is_set_again_is_due_at_once_but_its_failures_count() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    let began = Instant::now();
    finish(&mut schedule, &key, failed());
    for times in [1, 3, 5] {
        tokio::time::advance(Duration::from_millis(1)).await;
        schedule.set(key.clone());
        assert_eq!(next_key(&mut schedule).as_ref(), Some(&key));
        assert!(schedule.is_retry(&key));
        // It may also be set while it is called.
        let share = in_progress(&mut schedule, &key);
        schedule.set(key.clone());
        let step = DeliveryStep {
            key: key.clone(),
            outcome: failed(),
            share: Some(share),
        };
        schedule.finish(step, |_| "host".to_owned());
        let failing = schedule.failing[&key];
        assert_eq!((failing.since, failing.times), (Some(began), times));
        assert_eq!(next_key(&mut schedule).as_ref(), Some(&key));
        finish(&mut schedule, &key, failed());
    }
    // A webhook that takes its place has not failed.
    schedule.delete(&key);
    schedule.set(key.clone());
    assert!(!schedule.is_retry(&key));
    assert_eq!(next_key(&mut schedule), Some(key));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_is_set_again_while_it_is_held_back_waits_once() {
    let mut schedule = DeliverySchedule::default();
    let key = Text::from("t/c");
    finish(&mut schedule, &key, failed());
    let called: Vec<Text> = (0..MAX_RETRIES).map(|key| key.to_string().into()).collect();
    schedule.in_progress.extend(called.iter().map(retrying));
    tokio::time::advance(PAUSES.0).await;
    for _ in 0..3 {
        assert_eq!(next_key(&mut schedule), None);
        schedule.set(key.clone());
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(schedule.held_back.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_webhook_begins_with_its_own_first_call() {
    let now = Instant::now();
    let unclaimed = FailedDelivery::after(None, None, now);
    assert_eq!((unclaimed.since, unclaimed.times), (None, 0));
    tokio::time::advance(Duration::from_secs(600)).await;
    let began = Instant::now();
    tokio::time::advance(Duration::from_secs(10)).await;
    let called = Some((began, Duration::ZERO));
    let failed = FailedDelivery::after(Some(&unclaimed), called, Instant::now());
    assert_eq!((failed.since, failed.times), (Some(began), 1));
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_fail_leave_calls_to_the_others_of_their_host() {
    let mut schedule = DeliverySchedule::default();
    let take = |schedule: &mut DeliverySchedule, key: &Text, is_retry: bool| {
        let host_of = |_: &Text| "host".to_owned();
        let share = schedule.take((key, Instant::now()), "host", is_retry, host_of)?;
        let running = RunningStep {
            retries_at: is_retry.then(|| "host".to_owned()),
            ..RunningStep::default()
        };
        schedule.in_progress.insert(key.clone(), running);
        Some(share)
    };
    let keys: Vec<Text> = (0..=MAX_RETRIES_PER_HOST)
        .map(|key| key.to_string().into())
        .collect();
    let (last, called) = keys.split_last().unwrap();
    let mut shares: Vec<_> = called
        .iter()
        .map(|key| take(&mut schedule, key, true).unwrap())
        .collect();
    // Half of the slots are free, but not for it: another one gets them.
    let works = Text::from("works");
    wait(&mut schedule, &works, "host");
    assert!(take(&mut schedule, last, true).is_none());
    assert_eq!(next_key(&mut schedule).as_ref(), Some(&works));
    let share = take(&mut schedule, &works, false).unwrap();
    let finish = |schedule: &mut DeliverySchedule, key: &Text, share: Share<String>| {
        let step = DeliveryStep {
            key: key.clone(),
            outcome: DeliveryResult::Idle,
            share: Some(share),
        };
        schedule.finish(step, |_| "host".to_owned());
    };
    finish(&mut schedule, &works, share);
    assert_eq!(next_key(&mut schedule), None);
    finish(&mut schedule, &called[0], shares.remove(0));
    assert_eq!(next_key(&mut schedule).as_ref(), Some(last));
    assert!(take(&mut schedule, last, true).is_some());
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
    wait(&mut schedule, &last, "a");
    let share = shares.pop().unwrap();
    schedule.release_share(share, Instant::now(), |_| "a".to_owned());
    assert_eq!(schedule.due.first().unwrap().1, last);
    assert!(!schedule.queues.contains(&last) && schedule.queues.hosts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_goes_to_a_webhook_that_still_has_its_host() {
    let mut schedule = DeliverySchedule::default();
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    for key in ["deleted", "moved", "next", "waits"] {
        wait(&mut schedule, key, "a");
    }
    schedule.release_share(share, Instant::now(), |key| match key.as_str() {
        "deleted" => String::new(),
        "moved" => "b".to_owned(),
        _ => "a".to_owned(),
    });
    let due: Vec<&str> = schedule.due.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(due, ["deleted", "moved", "next"]);
    let (_, next) = schedule.queues.pop("a", true).unwrap();
    assert_eq!(next, "waits");
}

#[tokio::test(start_paused = true)]
async fn a_slot_goes_to_a_webhook_that_can_start_now() {
    let mut schedule = DeliverySchedule::default();
    let (held_back, renews) = (Text::from("held_back"), Text::from("renews"));
    finish(&mut schedule, &held_back, failed());
    tokio::time::advance(PAUSES.0).await;
    schedule.due.clear();
    let due = Instant::now();
    let called: Vec<Text> = (0..MAX_RETRIES).map(|key| key.to_string().into()).collect();
    schedule.in_progress.extend(called.iter().map(retrying));
    schedule.in_progress.extend([running(&renews)]);
    let queues = &mut schedule.queues;
    for (key, is_retry) in [(&held_back, true), (&renews, false)] {
        queues.push(key.clone(), "a".to_owned(), is_retry, due);
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    wait(&mut schedule, "works", "a");
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    schedule.release_share(share, Instant::now(), |_| "a".to_owned());
    assert!(schedule.queues.hosts().is_empty());
    assert_eq!(next_key(&mut schedule), Some("works".into()));
    assert_eq!(next_key(&mut schedule), None);
    assert_eq!(schedule.in_progress[&renews].due, Some(due));
    // Since when it has waited is kept.
    schedule.in_progress.clear();
    let next = schedule.next_key(Instant::now());
    assert_eq!(next, Some((due, held_back.clone())));
    let shares: Vec<_> = iter::from_fn(|| schedule.hosts.take(&"a".to_owned())).collect();
    let host_of = |_: &Text| "a".to_owned();
    let taken = schedule.take((&held_back, due), "a", true, host_of);
    assert!(taken.is_none());
    drop(shares);
    assert_eq!(schedule.queues.pop("a", true), Some((due, held_back)));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_does_not_wait_while_its_host_has_a_free_slot() {
    let mut schedule = DeliverySchedule::default();
    for key in ["first", "second"] {
        wait(&mut schedule, key, "a");
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
    wait(&mut schedule, &key, "a");
    schedule.add(vec![key.clone()]);
    assert!(schedule.due.is_empty());
    schedule.set(key.clone());
    assert_eq!(schedule.due.len(), 1);
    // It waits for one host at a time.
    wait(&mut schedule, &key, "a");
    wait(&mut schedule, &key, "b");
    assert_eq!(schedule.queues.hosts().len(), 2);
    schedule.due.clear();
    let share = schedule.hosts.take(&"a".to_owned()).unwrap();
    schedule.release_share(share, Instant::now(), |_| "b".to_owned());
    assert!(schedule.due.is_empty());
    let share = schedule.hosts.take(&"b".to_owned()).unwrap();
    schedule.release_share(share, Instant::now(), |_| "b".to_owned());
    assert_eq!(schedule.due.first().unwrap().1, key);
}
