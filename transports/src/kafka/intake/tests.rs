//! The budget, its shares, and the partitions that are paused.

use super::*;

fn intake(keeping: PositionStorage, bytes: usize, messages: usize) -> (Arc<Intake>, u32, u64) {
    let intake = Arc::new(Intake::new(keeping, Budget { bytes, messages }));
    let lane = intake.lane("t", 3).unwrap();
    intake.assign(&[lane]);
    let (epoch, first) = intake.arrive(lane).unwrap();
    assert!(first);
    (intake, lane, epoch)
}

fn granted(admission: Admission) -> Box<Settlement> {
    match admission {
        Admission::Granted(settlement) => Box::new(settlement),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exhausted_budget_admits_nothing_until_a_delivery_settles() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let first = granted(intake.admit(lane, epoch, 0, 60));
    assert!(matches!(
        intake.admit(lane, epoch, 1, 60),
        Admission::NoRoom
    ));
    assert!(!intake.wait_for_room(60, Duration::from_millis(1)));
    first.settle(Outcome::Settled).unwrap();
    assert!(intake.wait_for_room(60, Duration::ZERO));
    granted(intake.admit(lane, epoch, 1, 60));
}

#[test]
fn the_reading_thread_is_not_woken_for_each_message() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 1600, 16);
    let admit = |offset| granted(intake.admit(lane, epoch, offset, 1));
    let mut out: Vec<_> = (0..16).map(admit).collect();
    let mut settle = || out.pop().unwrap().settle(Outcome::Settled).unwrap();
    let total = |total| Awaited { total, lane: None };
    intake.state().awaited = Some(total(intake.eighth(intake.before(1))));
    settle();
    assert!(!intake.state().is_awaited());
    assert!(intake.wait_for_room(1, Duration::ZERO), "there is room");
    intake.state().awaited = Some(total(intake.eighth(intake.before(1))));
    settle();
    assert!(intake.state().is_awaited());
}

#[test]
fn the_message_count_is_limited_too() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 1);
    let first = granted(intake.admit(lane, epoch, 0, 0));
    assert!(matches!(intake.admit(lane, epoch, 1, 0), Admission::NoRoom));
    first.settle(Outcome::Abandoned).unwrap();
    granted(intake.admit(lane, epoch, 1, 0));
}

#[test]
fn a_message_larger_than_the_budget_takes_all_of_it() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let huge = granted(intake.admit(lane, epoch, 0, 1_000_000));
    assert!(matches!(intake.admit(lane, epoch, 1, 1), Admission::NoRoom));
    huge.settle(Outcome::Settled).unwrap();
    assert!(intake.wait_for_half(Duration::ZERO));
}

#[test]
fn a_settled_prefix_moves_the_position_and_a_moved_partition_does_not() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let first = granted(intake.admit(lane, epoch, 7, 1));
    let second = granted(intake.admit(lane, epoch, 9, 1));
    second.settle(Outcome::Settled).unwrap();
    assert!(intake.take_moved().is_empty());
    first.settle(Outcome::Settled).unwrap();
    let moved = intake.take_moved();
    assert_eq!(moved, [(Topic::new("t").unwrap(), 3, 10)]);
    let late = granted(intake.admit(lane, epoch, 11, 1));
    assert!(late.is_current());
    intake.revoke(&[lane]);
    assert!(!late.is_current());
    late.settle(Outcome::Settled).unwrap();
    assert_eq!((intake.stale(), intake.positions(&[lane]).len()), (1, 0));
    assert!(matches!(intake.admit(lane, epoch, 12, 1), Admission::Stale));
}

#[test]
fn only_the_partition_behind_an_unsettled_offset_is_paused() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, usize::MAX, 10);
    let other = intake.lane("t", 4).unwrap();
    intake.assign(&[other]);
    let forgotten = granted(intake.admit(lane, epoch, 0, 1));
    assert_eq!((intake.next("t", 3), intake.next("t", 4)), (Some(1), None));
    for offset in 1..i64::try_from(MIN_HELD).unwrap() {
        granted(intake.admit(lane, epoch, offset, 1))
            .settle(Outcome::Settled)
            .unwrap();
    }
    assert!(matches!(
        intake.admit(lane, epoch, 5000, 1),
        Admission::LaneFull
    ));
    let pace = intake.pace(false);
    assert_eq!(pace.pause, [(Topic::new("t").unwrap(), 3)]);
    let full = [PausedPartition {
        partition: "t/3".into(),
        cause: PauseCause::Behind,
    }];
    assert_eq!(pace.full, full);
    assert_eq!(intake.pace(false).full, full, "as long as it is paused");
    forgotten.settle(Outcome::Settled).unwrap();
    let after = intake.pace(false);
    assert_eq!(after.resume, pace.pause);
    assert!(after.full.is_empty());
    assert!(intake.pace(true).full.is_empty(), "that is the budget");
}

#[test]
fn a_partition_that_is_paused_with_all_others_is_not_full_before_its_limit() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, usize::MAX, 10);
    let _oldest = granted(intake.admit(lane, epoch, 0, 1));
    // With the oldest, more than half of what it may hold.
    for offset in 1..=i64::try_from(MIN_HELD / 2).unwrap() {
        granted(intake.admit(lane, epoch, offset, 1))
            .settle(Outcome::Settled)
            .unwrap();
    }
    assert_eq!(intake.pace(true).pause.len(), 1);
    let after = intake.pace(false);
    assert!(after.full.is_empty());
    assert_eq!(after.resume.len(), 1);
}

#[test]
fn a_question_about_an_unknown_partition_does_not_add_it() {
    let (intake, ..) = intake(PositionStorage::Offsets, 100, 10);
    assert_eq!(
        (intake.next("u", 0), intake.unsettled("u", 0)),
        (None, None)
    );
    assert_eq!(intake.state().places.len(), 1);
}

/// Admits records until no more are admitted.
fn fill(intake: &Arc<Intake>, lane: u32, cost: usize) -> Vec<Settlement> {
    let (epoch, _) = intake.arrive(lane).unwrap();
    let mut out = Vec::new();
    while let Admission::Granted(settlement) =
        intake.admit(lane, epoch, i64::try_from(out.len()).unwrap(), cost)
    {
        out.push(settlement);
    }
    out
}

/// As if this much time had passed since the last progress.
fn wait_still(intake: &Arc<Intake>) {
    intake.note_progress();
    for place in &mut intake.state().places {
        place.oldest.1 -= STILL;
    }
}

#[test]
fn partitions_of_which_nothing_settles_do_not_count_and_the_others_get_equal_shares() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000_000, 100);
    let lanes = [
        lane,
        intake.lane("t", 4).unwrap(),
        intake.lane("t", 5).unwrap(),
    ];
    intake.assign(&lanes);
    let mut first = fill(&intake, lane, 1);
    assert_eq!(first.len(), 100, "as long as nothing is blocked");
    intake.note_progress();
    assert!(!intake.find_blocked(), "it may still settle");
    wait_still(&intake);
    assert!(intake.find_blocked());
    assert!(!intake.find_blocked(), "no other");
    let paused = intake.pace(false);
    assert_eq!(paused.pause, [(Topic::new("t").unwrap(), 3)]);
    assert_eq!(paused.full.len(), 1);
    assert_eq!(paused.full[0].cause, PauseCause::Blocked);
    let second = fill(&intake, lanes[1], 1);
    let third = fill(&intake, lanes[2], 1);
    assert_eq!((second.len(), third.len()), (33, 33));
    // With a new oldest delivery it is read again, and counts.
    Box::new(first.remove(0)).settle(Outcome::Settled).unwrap();
    intake.note_progress();
    assert_eq!(intake.pace(false).resume, paused.pause);
    assert!(fill(&intake, lanes[2], 1).is_empty());
    for settlement in first.into_iter().chain(second).chain(third) {
        Box::new(settlement).settle(Outcome::Settled).unwrap();
    }
    assert_eq!(intake.state().used, Budget::default());
}

#[test]
fn large_records_have_shares_too() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000, 100);
    let other = intake.lane("t", 4).unwrap();
    intake.assign(&[other]);
    let blocked = fill(&intake, lane, 300);
    assert_eq!(blocked.len(), 3);
    wait_still(&intake);
    assert!(intake.find_blocked());
    assert_eq!(fill(&intake, other, 300).len(), 2, "half of all, and one");
}

#[test]
fn a_request_that_waits_blocks_no_partition() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000, 10);
    intake.assign(&[intake.lane("t", 4).unwrap()]);
    let out = fill(&intake, lane, 1);
    for request in &out {
        request.set_waiting(true);
    }
    wait_still(&intake);
    assert!(!intake.find_blocked());
    assert!(!intake.wait_for_room(1, Duration::ZERO), "they count");
    out[0].set_waiting(false);
    wait_still(&intake);
    assert!(!intake.find_blocked(), "it uses less than its share");
    for settlement in out {
        Box::new(settlement).settle(Outcome::Settled).unwrap();
    }
    assert_eq!(intake.state().used, Budget::default());
    assert_eq!(intake.state().places[0].used, Budget::default());
}

#[test]
fn a_blocked_partition_that_comes_back_is_read() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000, 10);
    intake.assign(&[intake.lane("t", 4).unwrap()]);
    let out = fill(&intake, lane, 1);
    wait_still(&intake);
    assert!(intake.find_blocked());
    assert_eq!(intake.pace(false).pause.len(), 1);
    intake.revoke(&[lane]);
    intake.assign(&[lane]);
    intake.note_progress();
    assert_eq!(intake.pace(false).resume.len(), 1);
    // What is outstanding of the earlier assignment still counts.
    assert!(!intake.wait_for_room(1, Duration::ZERO));
    drop(out);
}

/// Otherwise nothing of any partition would be read until they settle.
#[test]
fn deliveries_of_an_earlier_assignment_of_which_nothing_settles_do_not_count() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000, 10);
    let lanes = [lane, intake.lane("t", 4).unwrap()];
    intake.assign(&lanes);
    let out = fill(&intake, lane, 1);
    intake.revoke(&lanes);
    intake.assign(&lanes);
    intake.note_progress();
    assert!(!intake.find_blocked(), "they may still settle");
    wait_still(&intake);
    assert!(intake.find_blocked());
    assert_eq!(fill(&intake, lanes[1], 1).len(), 5, "an equal share");
    intake.note_progress();
    assert!(fill(&intake, lane, 1).is_empty());
    for settlement in out {
        Box::new(settlement).settle(Outcome::Settled).unwrap();
    }
    intake.note_progress();
    assert!(!fill(&intake, lane, 1).is_empty());
}

#[test]
fn a_partition_that_has_used_its_share_is_held_until_half_of_it_is_free() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, usize::MAX, 100);
    let other = intake.lane("t", 4).unwrap();
    intake.assign(&[other]);
    let _blocked = fill(&intake, lane, 1);
    wait_still(&intake);
    assert!(intake.find_blocked());
    let mut out = fill(&intake, other, 1);
    assert_eq!(out.len(), 50);
    let (epoch, _) = intake.arrive(other).unwrap();
    assert!(matches!(
        intake.admit(other, epoch, 50, 1),
        Admission::NoShare
    ));
    assert!(!intake.wait_for_share(other));
    assert!(matches!(
        intake.admit(other, epoch, 50, 1),
        Admission::LaneFull
    ));
    assert_eq!(intake.pace(false).pause.len(), 2);
    intake.note_progress();
    assert_eq!(intake.pace(false).full.len(), 1, "it may still settle");
    wait_still(&intake);
    assert_eq!(intake.pace(false).full.len(), 2);
    let mut settle = |count: usize| {
        for settlement in out.drain(..count) {
            Box::new(settlement).settle(Outcome::Settled).unwrap();
        }
    };
    settle(25);
    assert!(intake.pace(false).resume.is_empty());
    settle(1);
    assert_eq!(intake.pace(false).resume, [(Topic::new("t").unwrap(), 4)]);
    assert!(intake.wait_for_share(other));
}

#[test]
fn a_new_assignment_is_paused_again_when_everything_is() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 100, 10);
    assert_eq!(intake.pace(true).pause.len(), 1);
    assert!(intake.pace(true).pause.is_empty());
    intake.revoke(&[lane]);
    assert!(intake.pace(true).resume.is_empty());
    intake.assign(&[lane]);
    assert_eq!(intake.pace(true).pause.len(), 1);
    assert_eq!(intake.pace(false).resume.len(), 1);
}

#[test]
fn a_partition_that_was_paused_when_it_left_is_resumed_when_it_comes_back() {
    let (intake, lane, _) = intake(PositionStorage::Offsets, 100, 10);
    assert_eq!(intake.pace(true).pause.len(), 1);
    intake.revoke(&[lane]);
    assert!(intake.pace(false).resume.is_empty(), "it is not assigned");
    intake.assign(&[lane]);
    assert_eq!(intake.pace(false).resume.len(), 1);
    assert_eq!(intake.pace(true).pause.len(), 1);
    // A client that replaces this one has paused nothing.
    intake.revoke_all();
    intake.assign(&[lane]);
    assert!(intake.pace(false).resume.is_empty());
}

#[test]
fn a_live_reader_tracks_only_the_budget() {
    let (intake, lane, epoch) = intake(PositionStorage::Nothing, 100, 1);
    let first = granted(intake.admit(lane, epoch, 0, 1));
    assert!(matches!(intake.admit(lane, epoch, 1, 1), Admission::NoRoom));
    first.settle(Outcome::Abandoned).unwrap();
    granted(intake.admit(lane, epoch, 1, 1));
    assert!(intake.take_moved().is_empty());
}

#[test]
fn waiting_for_outcomes_ends_with_the_last_one_or_at_the_deadline() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let out = granted(intake.admit(lane, epoch, 0, 1));
    let soon = Instant::now() + Duration::from_millis(5);
    assert!(!intake.wait_for_outcomes(&[lane], || soon));
    out.settle(Outcome::Abandoned).unwrap();
    assert!(intake.wait_for_outcomes(&[lane], || soon));
}

#[test]
fn a_revocation_waits_for_publications_but_not_for_answers() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let request = granted(intake.admit(lane, epoch, 0, 1));
    let event = granted(intake.admit(lane, epoch, 1, 1));
    let now = Instant::now();
    request.set_waiting(true);
    assert!(!intake.wait_for_outcomes(&[lane], || now));
    event.settle(Outcome::Settled).unwrap();
    assert!(intake.wait_for_outcomes(&[lane], || now));
    assert!(!intake.wait_for_all(now), "it is still to be answered");
    // Its answer is on its way to the requester.
    request.set_waiting(false);
    assert!(!intake.wait_for_outcomes(&[lane], || now));
    request.set_waiting(true);
    assert_eq!(intake.take_moved(), [], "nothing behind it is passed");
    request.settle(Outcome::Settled).unwrap();
    assert!(intake.wait_for_all(now));
    assert_eq!(intake.take_moved(), [(Topic::new("t").unwrap(), 3, 2)]);
}

#[test]
fn messages_of_a_lost_partition_change_nothing() {
    let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
    let request = granted(intake.admit(lane, epoch, 0, 1));
    intake.revoke(&[lane]);
    intake.assign(&[lane]);
    request.set_waiting(true);
    let (epoch, _) = intake.arrive(lane).unwrap();
    let again = granted(intake.admit(lane, epoch, 0, 1));
    request.settle(Outcome::Settled).unwrap();
    assert!(!intake.wait_for_outcomes(&[lane], Instant::now));
    again.settle(Outcome::Settled).unwrap();
    assert!(intake.wait_for_outcomes(&[lane], Instant::now));
}
