use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::agent::Rates;
use crate::testing::{START, VirtualClock};

const SECOND: Duration = Duration::from_secs(1);

fn quotas(max_keys: usize) -> (Arc<VirtualClock>, Quotas) {
    let clock = Arc::new(VirtualClock::default());
    let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    (clock, Quotas::new(shared, max_keys))
}

#[test]
fn the_minute_window_slides_and_admits_up_to_its_limit() {
    let (clock, quotas) = quotas(100);
    let limits = [Limit::new(3, Window::Minute)];
    for expected in [2, 1, 0] {
        let admitted = quotas.admit("a", &limits).unwrap();
        assert_eq!((admitted.limit, admitted.remaining), (3, expected));
        assert_eq!(admitted.reset_unix_seconds(), START.as_secs() + 60);
        clock.advance(10 * SECOND);
    }
    let refused = quotas.admit("a", &limits).unwrap_err();
    assert_eq!((refused.limit, refused.window), (3, Window::Minute));
    assert_eq!(refused.retry_after, 30);
    assert_eq!(refused.reset_unix_seconds(), START.as_secs() + 60);
    assert!(quotas.admit("b", &limits).is_ok(), "others count apart");

    clock.advance(30 * SECOND - Duration::from_millis(1));
    assert_eq!(quotas.admit("a", &limits).unwrap_err().retry_after, 1);
    clock.advance(Duration::from_millis(1));
    assert!(quotas.admit("a", &limits).is_ok(), "the first has left");
    assert_eq!(quotas.admit("a", &limits).unwrap_err().retry_after, 10);
}

#[test]
fn seconds_to_wait_are_rounded_up() {
    let (clock, quotas) = quotas(100);
    let limits = [Limit::new(1, Window::Minute)];
    quotas.admit("a", &limits).unwrap();
    clock.advance(Duration::from_millis(44_300));
    let refused = quotas.admit("a", &limits).unwrap_err();
    assert_eq!(refused.retry_after, 16);
    assert_eq!(refused.reset_unix_seconds(), START.as_secs() + 60);
}

#[test]
fn the_limit_of_an_hour_is_kept_for_the_whole_hour() {
    let (clock, quotas) = quotas(100);
    let limits = Rates::default().requests();
    // 50 a minute stay below the limit per minute and reach the limit per hour after 20 minutes.
    for _ in 0..20 {
        for _ in 0..50 {
            quotas.admit("a", &limits).unwrap();
        }
        clock.advance(60 * SECOND);
    }
    let refused = quotas.admit("a", &limits).unwrap_err();
    assert_eq!((refused.limit, refused.window), (1_000, Window::Hour));
    assert_eq!(refused.retry_after, 40 * 60);
    clock.advance(40 * 60 * SECOND);
    assert!(quotas.admit("a", &limits).is_ok());
}

#[test]
fn the_limit_of_a_day_is_kept_for_the_whole_day() {
    let (clock, quotas) = quotas(100);
    let limits = Rates::default().requests();
    // 900 an hour, so that the day is full after eleven hours and a part.
    let (mut admitted, mut first_refusal) = (0, None);
    for _ in 0..23 {
        for _ in 0..18 {
            for _ in 0..50 {
                match quotas.admit("a", &limits) {
                    Ok(_) => admitted += 1,
                    Err(refused) => {
                        first_refusal.get_or_insert((clock.elapsed(), refused));
                    }
                }
            }
            clock.advance(200 * SECOND);
        }
    }
    assert_eq!(admitted, 10_000);
    let (at, refused) = first_refusal.unwrap();
    assert_eq!((refused.limit, refused.window), (10_000, Window::Day));
    let first_slot = Duration::from_secs(24 * 60 * 60);
    assert_eq!(u64::from(refused.retry_after), (first_slot - at).as_secs());
    assert_eq!(quotas.usage("a").day, 10_000);
    clock.advance(first_slot - clock.elapsed());
    assert!(quotas.admit("a", &limits).is_ok());
}

#[test]
fn the_longest_wait_of_several_reached_limits_is_reported() {
    let (_, quotas) = quotas(100);
    let limits = [Limit::new(2, Window::Minute), Limit::new(2, Window::Hour)];
    quotas.admit("a", &limits).unwrap();
    quotas.admit("a", &limits).unwrap();
    let refused = quotas.admit("a", &limits).unwrap_err();
    assert_eq!(
        (refused.window, refused.retry_after),
        (Window::Hour, 60 * 60)
    );
}

#[test]
fn a_limit_of_zero_admits_nothing() {
    let (_, quotas) = quotas(100);
    let refused = quotas.admit("a", &[Limit::new(0, Window::Minute)]);
    assert_eq!(refused.unwrap_err().retry_after, 60);
    assert_eq!(quotas.usage("a"), Usage::default());
}

#[test]
fn refused_requests_are_not_counted() {
    let (clock, quotas) = quotas(100);
    let limits = [Limit::new(1, Window::Minute)];
    quotas.admit("a", &limits).unwrap();
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(59));
        assert!(quotas.admit("a", &limits).is_err());
    }
    clock.advance(SECOND);
    assert!(quotas.admit("a", &limits).is_ok());
}

#[test]
fn usage_distinguishes_the_windows() {
    let (clock, quotas) = quotas(100);
    let limits = Rates::default().requests();
    quotas.admit("a", &limits).unwrap();
    clock.advance(2 * 60 * 60 * SECOND);
    quotas.admit("a", &limits).unwrap();
    clock.advance(30 * 60 * SECOND);
    quotas.admit("a", &limits).unwrap();
    let usage = quotas.usage("a");
    assert_eq!((usage.minute, usage.hour, usage.day), (1, 2, 3));
    assert_eq!(quotas.usage("unknown"), Usage::default());
}

#[test]
fn the_number_of_keys_is_bounded_and_recent_keys_stay() {
    let (_, quotas) = quotas(100);
    let limits = [Limit::new(1, Window::Minute)];
    quotas.admit("kept", &limits).unwrap();
    for peer in 0..10_000 {
        quotas.admit(&format!("peer-{peer}"), &limits).unwrap();
        assert!(quotas.admit("kept", &limits).is_err(), "after {peer} peers");
        let logs = quotas.lock();
        assert!(logs.young.len() + logs.old.len() <= 100);
    }
    for peer in 9_960..10_000 {
        assert!(quotas.admit(&format!("peer-{peer}"), &limits).is_err());
    }
}

#[test]
fn idle_keys_are_dropped() {
    let (clock, quotas) = quotas(1_000);
    let limits = [Limit::new(5, Window::Minute)];
    for peer in 0..100 {
        quotas.admit(&format!("peer-{peer}"), &limits).unwrap();
    }
    for _ in 0..3 {
        clock.advance(60 * SECOND);
        quotas.admit("other", &limits).unwrap();
    }
    let logs = quotas.lock();
    assert!(logs.young.len() + logs.old.len() <= 2);
}

proptest! {
    /// Compared with a list of all times ever admitted.
    #[test]
    fn windows_match_a_complete_log(
        gaps in proptest::collection::vec(0_u64..40_000, 1..200),
        minute in 1_u32..6,
        hour in 1_u32..20,
    ) {
        let (clock, quotas) = quotas(2);
        let limits = [Limit::new(minute, Window::Minute), Limit::new(hour, Window::Hour)];
        let mut all = VecDeque::new();
        for gap in gaps {
            clock.advance(Duration::from_millis(gap));
            let now = clock.elapsed();
            let used = |window: Window| {
                all.iter().filter(|time| **time + window.length() > now).count()
            };
            let free = used(Window::Minute) < minute as usize && used(Window::Hour) < hour as usize;
            let answer = quotas.admit("a", &limits);
            prop_assert_eq!(answer.is_ok(), free);
            match answer {
                Ok(admitted) => {
                    let expected = minute as usize - used(Window::Minute) - 1;
                    prop_assert_eq!(admitted.remaining as usize, expected);
                    all.push_back(now);
                }
                Err(refused) => {
                    // One millisecond before the slot frees, it is still taken.
                    let wait = refused.reset.duration_since(clock.now()).unwrap();
                    let window = refused.window.length();
                    let max = refused.limit as usize;
                    let later = |by: Duration| {
                        all.iter().filter(|time| **time + window > now + by).count()
                    };
                    prop_assert!(later(wait) < max);
                    prop_assert!(later(wait - Duration::from_millis(1)) >= max);
                }
            }
            prop_assert!(quotas.lock().young["a"].0.len() <= hour.max(minute) as usize);
        }
    }
}
