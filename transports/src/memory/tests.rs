use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use tokio::time::timeout;

use super::*;
use crate::delivery::{Delivery, Outcome};
use crate::transport::{Reading, TopicFilter};

const SOON: Duration = Duration::from_secs(60);

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn reading(pattern: &str, reading: Reading) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(pattern).unwrap()],
        reading,
        budget_bytes: 1 << 20,
        budget_messages: 1_000,
    }
}

fn group(pattern: &str, name: &str) -> Subscription {
    reading(pattern, Reading::Group(name.into()))
}

fn live(pattern: &str) -> Subscription {
    reading(pattern, Reading::Live { partition: None })
}

fn keyed(key: &str, body: &str) -> Message {
    Message {
        key: Some(key.to_owned().into()),
        ..Message::plain(body.to_owned())
    }
}

async fn publish(bus: &Memory, to: &str, message: Message) {
    let to = Address::topic(topic(to));
    bus.send(&to, message).await.unwrap().await.unwrap();
}

async fn next(consumer: &mut Consumer) -> Delivery {
    timeout(SOON, consumer.recv()).await.unwrap().unwrap()
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.body.clone().unwrap().to_vec()).unwrap()
}

async fn settle_next(consumer: &mut Consumer) -> String {
    let delivery = next(consumer).await;
    let text = body(&delivery);
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn messages_from_before_the_first_group_are_kept_and_ordered_per_key() {
    let bus = Memory::default();
    for number in 0..20 {
        publish(
            &bus,
            "t",
            keyed(&format!("k{}", number % 5), &number.to_string()),
        )
        .await;
    }
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    let mut last = std::collections::HashMap::new();
    for _ in 0..20 {
        let delivery = next(&mut consumer).await;
        let number: i32 = body(&delivery).parse().unwrap();
        let before = last.insert(delivery.message.key.clone(), number);
        assert!(before.is_none_or(|before| before < number));
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn positions_are_stable_over_redelivery_and_attempts_count() {
    let bus = Memory::default();
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    publish(&bus, "t", keyed("k", "x")).await;
    let first = next(&mut consumer).await;
    let origin = first.origin.clone().unwrap().position;
    assert!(
        origin.starts_with("m:t/") && origin.ends_with("/0"),
        "{origin}"
    );
    assert_eq!(first.attempt, 1);
    drop(first);
    let second = next(&mut consumer).await;
    assert_eq!(
        (second.origin.clone(), second.attempt),
        (Some(origin.into()), 2)
    );
}

#[tokio::test(start_paused = true)]
async fn deliveries_of_a_leaving_member_go_to_the_next_in_order() {
    let bus = Memory::default();
    let mut first = bus.subscribe(group("t", "g")).await.unwrap();
    for number in 0..6 {
        publish(&bus, "t", keyed("k", &number.to_string())).await;
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&mut first).await);
    }
    held.remove(1)
        .acknowledger
        .settle(Outcome::Settled)
        .unwrap();
    drop(first);
    let mut second = bus.subscribe(group("t", "g")).await.unwrap();
    assert!(
        timeout(Duration::from_millis(1), second.recv())
            .await
            .is_ok_and(|d| d.is_some())
    );
    drop(second);
    let late: Vec<_> = held
        .into_iter()
        .map(|delivery| delivery.acknowledger.settle(Outcome::Settled))
        .collect();
    assert!(
        late.iter().all(Result::is_err),
        "verdicts after the end are refused"
    );
    let mut third = bus.subscribe(group("t", "g")).await.unwrap();
    for expected in ["0", "2", "3", "4", "5"] {
        assert_eq!(settle_next(&mut third).await, expected);
    }
    assert!(third.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_outstanding_deliveries_until_the_deadline() {
    let bus = Memory::default();
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    publish(&bus, "t", Message::plain("x")).await;
    let delivery = next(&mut consumer).await;
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        delivery.acknowledger.settle(Outcome::Settled)
    });
    consumer.close(Duration::from_secs(2)).await.unwrap();
    later.await.unwrap().unwrap();

    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    assert!(consumer.try_recv().is_none());
    publish(&bus, "t", Message::plain("y")).await;
    let delivery = next(&mut consumer).await;
    let error = consumer.close(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::TimedOut);
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    assert_eq!(settle_next(&mut consumer).await, "y");
    drop(delivery);
}

#[tokio::test(start_paused = true)]
async fn a_full_topic_makes_senders_wait_and_then_saturates() {
    let config = MemoryConfig {
        capacity_messages: NonZeroUsize::new(2).unwrap(),
        ..MemoryConfig::default()
    };
    let bus = Memory::new(config);
    let to = Address::topic(topic("t"));
    publish(&bus, "t", Message::plain("0")).await;
    publish(&bus, "t", Message::plain("1")).await;
    let started = Instant::now();
    let error = bus.send(&to, Message::plain("2")).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Saturated);
    assert_eq!(started.elapsed(), QUEUE_DEADLINE);

    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    let waiting = tokio::spawn({
        let bus = bus.clone();
        async move { bus.send(&to, Message::plain("2")).await.map(drop) }
    });
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        seen.insert(settle_next(&mut consumer).await);
    }
    waiting.await.unwrap().unwrap();
    assert_eq!(seen, ["0", "1", "2"].map(String::from).into());
}

#[tokio::test(start_paused = true)]
async fn a_live_reader_makes_room_for_others_but_hides_nothing_from_a_later_group() {
    let config = MemoryConfig {
        capacity_messages: NonZeroUsize::new(2).unwrap(),
        ..MemoryConfig::default()
    };
    let bus = Memory::new(config);
    publish(&bus, "t", Message::plain("before")).await;
    let mut reader = bus.subscribe(live("t")).await.unwrap();
    for number in 0..5 {
        publish(&bus, "t", Message::plain(number.to_string())).await;
        assert_eq!(settle_next(&mut reader).await, number.to_string());
    }
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    assert!(settle_next(&mut consumer).await.parse::<i32>().is_ok());
    drop(reader);
    publish(&bus, "t", Message::plain("after")).await;
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_pauses_and_resumes() {
    let bus = Memory::default();
    let mut subscription = group("t", "g");
    subscription.budget_messages = 3;
    let mut consumer = bus.subscribe(subscription).await.unwrap();
    for number in 0..10 {
        publish(&bus, "t", keyed("k", &number.to_string())).await;
    }
    let held: Vec<_> = std::iter::from_fn(|| consumer.try_recv()).collect();
    assert_eq!(held.len(), 3);
    for delivery in held.into_iter().rev() {
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
    for expected in 3..10 {
        assert_eq!(settle_next(&mut consumer).await, expected.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn one_message_larger_than_the_byte_budget_still_passes_alone() {
    let bus = Memory::default();
    let mut subscription = group("t", "g");
    subscription.budget_bytes = 10;
    let mut consumer = bus.subscribe(subscription).await.unwrap();
    for size in [100, 5, 5, 5] {
        publish(&bus, "t", keyed("k", &"x".repeat(size - 1))).await;
    }
    let large = consumer.try_recv().unwrap();
    assert!(consumer.try_recv().is_none());
    large.acknowledger.settle(Outcome::Settled).unwrap();
    let two = (consumer.try_recv().unwrap(), consumer.try_recv().unwrap());
    assert!(consumer.try_recv().is_none());
    drop(two);
}

#[tokio::test(start_paused = true)]
async fn a_wildcard_group_gets_topics_that_come_later() {
    let bus = Memory::default();
    publish(&bus, "agents.a.in", Message::plain("0")).await;
    let mut star = bus.subscribe(group("agents.*.in", "star")).await.unwrap();
    let mut rest = bus.subscribe(live("agents.>")).await.unwrap();
    publish(&bus, "agents.b.in", Message::plain("1")).await;
    publish(&bus, "agents.b.out", Message::plain("2")).await;
    assert_eq!(settle_next(&mut star).await, "0");
    assert_eq!(settle_next(&mut star).await, "1");
    assert!(star.try_recv().is_none());
    assert_eq!(settle_next(&mut rest).await, "1");
    assert_eq!(settle_next(&mut rest).await, "2");
}

#[tokio::test(start_paused = true)]
async fn partitions_can_be_chosen_and_read_alone() {
    let bus = Memory::default();
    bus.ensure_topic(&topic("r"), 8).await.unwrap();
    assert_eq!(bus.partitions(&topic("r")).await.unwrap(), 8);
    let partition = |partition| {
        reading(
            "r",
            Reading::Live {
                partition: Some(partition),
            },
        )
    };
    let mut seven = bus.subscribe(partition(7)).await.unwrap();
    let error = bus.subscribe(partition(8)).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::UnknownTopic);
    for number in [6, 7] {
        let to = Address {
            partition: Some(number),
            reply_to: Some(topic("back")),
            ..Address::topic(topic("r"))
        };
        let sent = bus
            .send(&to, Message::plain(number.to_string()))
            .await
            .unwrap();
        assert_eq!(
            sent.await.unwrap().position.unwrap(),
            format!("m:r/{number}/0").as_str()
        );
    }
    let delivery = next(&mut seven).await;
    assert_eq!((body(&delivery).as_str(), delivery.lane), ("7", 7));
    assert_eq!(delivery.reply_to, Some(topic("back")));
    assert!(seven.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_subject_that_only_a_live_reader_matches_has_one_partition_unless_a_message_names_one() {
    let bus = Memory::default();
    let all = bus.partitions(&topic("replies.none")).await.unwrap();
    assert!(all > 3);
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    publish(&bus, "replies.one", Message::plain("1")).await;
    assert_eq!(bus.partitions(&topic("replies.one")).await.unwrap(), 1);
    assert_eq!(settle_next(&mut replies).await, "1");
    let mut later = bus.subscribe(group("replies.one", "g")).await.unwrap();
    publish(&bus, "replies.one", keyed("k", "2")).await;
    assert_eq!(settle_next(&mut replies).await, "2");
    assert_eq!(settle_next(&mut later).await, "1");
    assert_eq!(settle_next(&mut later).await, "2");

    let to = Address {
        partition: Some(3),
        ..Address::topic(topic("replies.three"))
    };
    let sent = bus.send(&to, Message::plain("3")).await.unwrap();
    assert_eq!(sent.await.unwrap().position.unwrap(), "m:replies.three/3/0");
    assert_eq!(bus.partitions(&topic("replies.three")).await.unwrap(), all);
    assert_eq!(settle_next(&mut replies).await, "3");
}

#[tokio::test(start_paused = true)]
async fn subjects_that_live_readers_have_read_are_forgotten_except_the_last() {
    let bus = Memory::default();
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    publish(&bus, "replies.unsettled", Message::plain("unsettled")).await;
    let unsettled = next(&mut replies).await;
    for number in 0..1_000 {
        let subject = format!("replies.{number}");
        publish(&bus, &subject, Message::plain(number.to_string())).await;
        assert_eq!(settle_next(&mut replies).await, number.to_string());
    }
    let mut later = bus.subscribe(group("replies.>", "g")).await.unwrap();
    let kept: Vec<_> = std::iter::from_fn(|| later.try_recv()).collect();
    let kept: BTreeSet<_> = kept.iter().map(body).collect();
    assert!(
        kept.contains("unsettled") && kept.contains("999"),
        "{kept:?}"
    );
    assert!(kept.len() < 100, "{kept:?}");
    drop(unsettled);
}

#[tokio::test(start_paused = true)]
async fn an_outage_refuses_sends_keeps_what_is_there_and_redelivers() {
    let bus = Memory::default();
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    let mut health = bus.health();
    publish(&bus, "t", keyed("k", "0")).await;
    let held = next(&mut consumer).await;
    bus.set_down("no network");
    assert_eq!(
        *health.borrow_and_update(),
        Health::Down("no network".into())
    );
    let error = bus
        .send(&Address::topic(topic("t")), keyed("k", "1"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Disconnected);
    let error = held.acknowledger.settle(Outcome::Settled).unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Disconnected);
    assert!(consumer.try_recv().is_none());
    bus.set_up();
    assert_eq!(*health.borrow_and_update(), Health::Up);
    publish(&bus, "t", keyed("k", "1")).await;
    assert_eq!(settle_next(&mut consumer).await, "0");
    assert_eq!(settle_next(&mut consumer).await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_ends_its_consumers_and_leaves_the_bus() {
    let bus = Memory::default();
    let other = bus.connect();
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    publish(&other, "t", Message::plain("x")).await;
    bus.close(SOON).await.unwrap();
    let held = next(&mut consumer).await;
    assert!(timeout(SOON, consumer.recv()).await.unwrap().is_none());
    let error = bus
        .send(&Address::topic(topic("t")), Message::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Closed);
    let mut consumer = other.subscribe(group("t", "g")).await.unwrap();
    assert_eq!(settle_next(&mut consumer).await, "x");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn members_share_lanes_and_hand_them_over_only_when_settled() {
    let bus = Memory::default();
    let mut first = bus.subscribe(group("t", "g")).await.unwrap();
    for number in 0..40 {
        publish(&bus, "t", keyed(&format!("k{number}"), "x")).await;
    }
    let held: Vec<_> = std::iter::from_fn(|| first.try_recv()).collect();
    assert_eq!(held.len(), 40);
    let mut second = bus.subscribe(group("t", "g")).await.unwrap();
    for number in 0..40 {
        publish(&bus, "t", keyed(&format!("k{number}"), "y")).await;
    }
    assert!(
        second.try_recv().is_none(),
        "the first still holds every lane"
    );
    for delivery in held {
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
    let all = |consumer: &mut Consumer| -> Vec<Delivery> {
        std::iter::from_fn(|| consumer.try_recv()).collect()
    };
    let (one, two) = (all(&mut first), all(&mut second));
    assert_eq!(one.len() + two.len(), 40);
    let lanes = |held: &[Delivery]| -> BTreeSet<u32> { held.iter().map(|d| d.lane).collect() };
    let (one, two) = (lanes(&one), lanes(&two));
    assert_eq!((one.len(), two.len()), (2, 2));
    assert!(one.is_disjoint(&two));
}

/// A fault plan, a seed: what was received, and how often sending failed.
async fn run_with_faults(seed: u64) -> (Vec<String>, u32) {
    let plan = FaultPlan {
        refuse: 0.1,
        drop_confirmation: 0.1,
        duplicate: 0.1,
        delay: 0.1,
        disconnect: 0.05,
        ..FaultPlan::default()
    };
    let bus = Memory::with_faults(seed, plan);
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    let mut failures = 0;
    let mut health = bus.health();
    for number in 0..100 {
        let to = Address::topic(topic("t"));
        loop {
            let sent = bus
                .send(&to, keyed(&format!("k{}", number % 7), &number.to_string()))
                .await;
            let confirmed = match sent {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            match confirmed {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), TransportErrorKind::Disconnected),
            }
            failures += 1;
            health
                .wait_for(|health| *health == Health::Up)
                .await
                .unwrap();
        }
    }
    let mut received = Vec::new();
    while let Ok(Some(delivery)) = timeout(Duration::from_secs(5), consumer.recv()).await {
        received.push(body(&delivery));
        // During an outage the verdict is refused and the delivery comes again.
        let _ = delivery.acknowledger.settle(Outcome::Settled);
    }
    (received, failures)
}

#[tokio::test(start_paused = true)]
async fn seeded_faults_lose_nothing_and_repeat() {
    for seed in 0..20 {
        let (received, failures) = run_with_faults(seed).await;
        let distinct: BTreeSet<_> = received.iter().collect();
        assert_eq!(distinct.len(), 100, "seed {seed}");
        assert!(failures > 0 && received.len() > 100, "seed {seed}");
        assert_eq!(
            run_with_faults(seed).await,
            (received, failures),
            "seed {seed}"
        );
    }
}

#[test]
fn configuration_has_defaults_and_refuses_unknown_keys() {
    let config: MemoryConfig = serde_json::from_str("{\"partitions\": 2}").unwrap();
    assert_eq!(config.partitions.get(), 2);
    assert_eq!(
        config.capacity_messages,
        MemoryConfig::default().capacity_messages
    );
    assert!(serde_json::from_str::<MemoryConfig>("{\"partitions\": 0}").is_err());
    assert!(serde_json::from_str::<MemoryConfig>("{\"lanes\": 1}").is_err());
}

#[tokio::test(start_paused = true)]
async fn topics_that_live_readers_have_read_make_room_for_others() {
    let bus = Memory::new(MemoryConfig {
        max_topics: NonZeroUsize::new(4).unwrap(),
        ..MemoryConfig::default()
    });
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    bus.ensure_topic(&topic("kept"), 2).await.unwrap();
    publish(
        &bus,
        "unread",
        Message::plain("for a group that comes later"),
    )
    .await;
    for number in 0..100 {
        let subject = format!("replies.{number}");
        publish(&bus, &subject, Message::plain(number.to_string())).await;
        assert_eq!(settle_next(&mut replies).await, number.to_string());
    }
    assert_eq!(bus.partitions(&topic("kept")).await.unwrap(), 2);
    let mut later = bus.subscribe(group("unread", "g")).await.unwrap();
    assert_eq!(
        settle_next(&mut later).await,
        "for a group that comes later"
    );
    // Unsettled messages keep their topic.
    publish(&bus, "replies.a", Message::plain("a")).await;
    publish(&bus, "replies.b", Message::plain("b")).await;
    let (a, b) = (next(&mut replies).await, next(&mut replies).await);
    let to = Address::topic(topic("replies.c"));
    let refused = bus.send(&to, Message::plain("c")).await.unwrap_err();
    assert_eq!(refused.kind(), TransportErrorKind::UnknownTopic);
    a.acknowledger.settle(Outcome::Settled).unwrap();
    b.acknowledger.settle(Outcome::Settled).unwrap();
    publish(&bus, "replies.c", Message::plain("c")).await;
    assert_eq!(settle_next(&mut replies).await, "c");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_topics_that_nobody_reads_make_room_for_others() {
    let bus = Memory::new(MemoryConfig {
        max_topics: NonZeroUsize::new(8).unwrap(),
        ..MemoryConfig::default()
    });
    let mut agent = bus.subscribe(group("agents.real", "g")).await.unwrap();
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    bus.ensure_topic(&topic("kept"), 2).await.unwrap();
    for number in 0..100 {
        let name = format!("agents.none-{number}");
        publish(&bus, &name, Message::plain(number.to_string())).await;
        publish(&bus, "agents.real", Message::plain("request")).await;
        assert_eq!(settle_next(&mut agent).await, "request");
        let reply = format!("replies.{number}");
        publish(&bus, &reply, Message::plain("answer")).await;
        assert_eq!(settle_next(&mut replies).await, "answer");
    }
    assert_eq!(bus.partitions(&topic("kept")).await.unwrap(), 2);
    let dropped = bus.dropped_messages();
    assert!((90..100).contains(&dropped), "{dropped} are dropped");
    let mut later = bus.subscribe(group("agents.>", "later")).await.unwrap();
    let kept: Vec<_> = std::iter::from_fn(|| later.try_recv()).collect();
    let kept: Vec<String> = kept.iter().map(body).collect();
    assert!(kept.contains(&"99".to_owned()), "{kept:?}");
    assert!(!kept.contains(&"0".to_owned()), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn topics_that_nobody_reads_hold_together_as_much_as_one_topic_may() {
    let bus = Memory::new(MemoryConfig {
        capacity_bytes: NonZeroUsize::new(1_000).unwrap(),
        ..MemoryConfig::default()
    });
    let mut read = bus.subscribe(group("read.*", "g")).await.unwrap();
    for number in 0..10 {
        let large = || Message::plain(vec![b'0' + number; 400]);
        publish(&bus, &format!("unread.{number}"), large()).await;
        publish(&bus, &format!("read.{number}"), large()).await;
    }
    assert_eq!(bus.dropped_messages(), 8);
    let settled: Vec<_> = std::iter::from_fn(|| read.try_recv()).collect();
    assert_eq!(settled.len(), 10, "what a group reads is not dropped");
    let mut later = bus.subscribe(group("unread.*", "g")).await.unwrap();
    let kept: Vec<_> = std::iter::from_fn(|| later.try_recv()).collect();
    let kept: BTreeSet<String> = kept.iter().map(|it| body(it)[..1].to_owned()).collect();
    assert_eq!(kept, ["8", "9"].map(String::from).into());
}

#[tokio::test(start_paused = true)]
async fn no_more_topics_give_way_than_a_large_one_needs() {
    let bus = Memory::new(MemoryConfig {
        capacity_bytes: NonZeroUsize::new(1_000).unwrap(),
        ..MemoryConfig::default()
    });
    for _ in 0..6 {
        publish(&bus, "large", Message::plain(vec![b'x'; 100])).await;
    }
    for number in 0..4 {
        let small = Message::plain(vec![b'0' + number; 100]);
        publish(&bus, &format!("small.{number}"), small).await;
    }
    assert_eq!(bus.dropped_messages(), 0);
    // It leaves 300 bytes to the others, of which half are to be free.
    publish(&bus, "large", Message::plain(vec![b'x'; 100])).await;
    assert_eq!(bus.dropped_messages(), 3);
    let mut later = bus.subscribe(group("small.*", "g")).await.unwrap();
    let kept: Vec<_> = std::iter::from_fn(|| later.try_recv()).collect();
    let kept: Vec<String> = kept.iter().map(|it| body(it)[..1].to_owned()).collect();
    assert_eq!(kept, ["3"], "the oldest give way");
}

#[tokio::test(start_paused = true)]
async fn messages_that_live_readers_have_read_do_not_count_as_dropped() {
    let bus = Memory::new(MemoryConfig {
        max_topics: NonZeroUsize::new(2).unwrap(),
        ..MemoryConfig::default()
    });
    publish(&bus, "replies.before", Message::plain("unread")).await;
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    publish(&bus, "replies.after", Message::plain("read")).await;
    assert_eq!(settle_next(&mut replies).await, "read");
    replies.close(SOON).await.unwrap();
    for (name, dropped) in [("a", 1), ("b", 1), ("c", 2)] {
        publish(&bus, name, Message::plain("unread")).await;
        assert_eq!(bus.dropped_messages(), dropped, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_waits_for_room_finds_it_if_a_subscription_makes_its_topic_give_way() {
    let bus = Memory::new(MemoryConfig {
        max_topics: NonZeroUsize::MIN,
        capacity_messages: NonZeroUsize::MIN,
        ..MemoryConfig::default()
    });
    publish(&bus, "t", Message::plain("first")).await;
    let to = Address::topic(topic("t"));
    let mut waiting = pin!(bus.send(&to, Message::plain("second")));
    let early = timeout(Duration::from_millis(1), &mut waiting).await;
    assert!(early.is_err(), "the topic is full");
    bus.ensure_topic(&topic("u"), 1).await.unwrap();
    // Its next attempt tells that there is no room for its topic any more.
    let sent = timeout(Duration::from_millis(1), waiting).await.unwrap();
    assert_eq!(sent.unwrap_err().kind(), TransportErrorKind::UnknownTopic);
}

/// Bytes that tell whether anybody still holds them.
struct Charged {
    _charge: Arc<()>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        b"body"
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_nobody_reads_does_not_hold_the_memory_of_its_sender() {
    let bus = Memory::default();
    let charge = Arc::new(());
    let charged = || {
        let _charge = Arc::clone(&charge);
        Message::plain(bytes::Bytes::from_owner(Charged { _charge }))
    };
    publish(&bus, "t", charged()).await;
    assert_eq!(Arc::strong_count(&charge), 1);
    let mut consumer = bus.subscribe(group("t", "g")).await.unwrap();
    assert_eq!(settle_next(&mut consumer).await, "body");
    // One that is read at once is not copied.
    publish(&bus, "t", charged()).await;
    assert_eq!(Arc::strong_count(&charge), 2);
    assert_eq!(settle_next(&mut consumer).await, "body");
    assert_eq!(Arc::strong_count(&charge), 1);
}

#[tokio::test(start_paused = true)]
async fn read_topics_are_forgotten_beside_unread_ones() {
    let bus = Memory::default();
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    let mut unsettled = Vec::new();
    for number in 0..10 {
        let subject = format!("replies.unsettled-{number}");
        publish(&bus, &subject, Message::plain("unsettled")).await;
        unsettled.push(next(&mut replies).await);
    }
    for number in 0..20_000 {
        let subject = format!("replies.{number}");
        publish(&bus, &subject, Message::plain(number.to_string())).await;
        settle_next(&mut replies).await;
    }
    let mut later = bus.subscribe(group("replies.>", "g")).await.unwrap();
    // A dropped delivery comes again, so they are collected.
    let kept: Vec<_> = std::iter::from_fn(|| later.try_recv()).collect();
    assert!(kept.len() < 100, "{} topics are kept", kept.len());
}

#[tokio::test(start_paused = true)]
async fn topics_that_come_back_have_new_positions() {
    let bus = Memory::default();
    let mut replies = bus.subscribe(live("replies.>")).await.unwrap();
    let mut positions = BTreeSet::new();
    for _ in 0..3 {
        for number in 0..100 {
            let subject = format!("replies.{number}");
            publish(&bus, &subject, Message::plain("x")).await;
            let delivery = next(&mut replies).await;
            assert!(positions.insert(delivery.origin.clone().unwrap().position));
            delivery.acknowledger.settle(Outcome::Settled).unwrap();
        }
    }
}
