//! Refusals of the server, and the health that follows.

use super::*;

fn subscription(subject: &str, queue: RefusedQueue) -> Refusal {
    Refusal::Subscribe {
        subject: subject.into(),
        queue,
    }
}

#[test]
fn refusals_are_parsed_from_server_errors() {
    for (text, expected) in [
        (
            r#"Permissions Violation for Publish to "a.b""#,
            Some(Refusal::Publish("a.b".into())),
        ),
        (
            r#"Permissions Violation for Subscription to "A.>" using queue "q""#,
            Some(subscription("A.>", RefusedQueue::Named("q".into()))),
        ),
        (
            r#"Permissions Violation for Subscription to "a""#,
            Some(subscription("a", RefusedQueue::Without)),
        ),
        (
            r#"Permissions Violation for Subscription to "a" (sid "7")"#,
            Some(subscription("a", RefusedQueue::Unnamed)),
        ),
        ("Permissions Violation for Publish to", None),
        ("Maximum Payload Violation", None),
    ] {
        assert_eq!(Refusal::parse(text), expected);
    }
}

#[test]
fn a_refusal_is_about_subscriptions_in_its_queue_group() {
    let (g, other) = (Text::from_static("g"), Text::from_static("other"));
    let named = RefusedQueue::Named(g.clone());
    for (queue, expected) in [
        (RefusedQueue::Without, [true, false, false]),
        (named, [false, true, false]),
        (RefusedQueue::Unnamed, [true, true, true]),
    ] {
        let groups = [None, Some(&g), Some(&other)];
        assert_eq!(groups.map(|group| queue.may_be(group)), expected);
    }
}

#[tokio::test]
async fn the_end_of_the_client_is_noticed_while_the_servers_are_examined() {
    // It accepts connections, and never says anything.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("nats://{}", silent.local_addr().unwrap());
    // Together they take longer than this test waits.
    let config = NatsConfig::new(vec![address; 60]);
    let (link, client) = Link::connect(&config, 1, None).await.unwrap();
    link.is_unclear.store(true, Ordering::Relaxed);
    let stop = CancellationToken::new();
    let watched = Arc::clone(&link);
    let watching = tokio::spawn(async move { watched.watch(&client, &stop).await });
    let wait = Duration::from_secs(60);
    let begun = async {
        while link.is_unclear.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(wait, begun).await.unwrap();
    link.ended.cancel();
    assert!(tokio::time::timeout(wait, watching).await.unwrap().unwrap());
    let cause = link.cause();
    assert!(cause.starts_with("the NATS client has ended"), "{cause}");
}

#[tokio::test]
async fn a_report_about_the_api_lasts_until_a_later_one_or_a_new_connection() {
    // Nobody listens there.
    let config = NatsConfig::new(["nats://127.0.0.1:1"]);
    let (link, _client) = Link::connect(&config, 1, None).await.unwrap();
    link.set_connection(true, 1);
    let is_impaired = |asked_at, trouble: Option<&'static str>| {
        link.report_api(asked_at, trouble.map(Text::from_static));
        matches!(&*link.health().borrow(), Health::Impaired(_))
    };
    let asked_at = Instant::now();
    let later = asked_at + Duration::from_millis(1);
    assert!(is_impaired(asked_at, Some("silent")));
    assert!(!is_impaired(later, None));
    assert!(!is_impaired(asked_at, Some("silent")), "out of date");
    assert!(is_impaired(later, Some("silent")));
    link.set_connection(true, 2);
    assert_eq!(*link.health().borrow(), Health::Up);
    assert!(!is_impaired(asked_at, Some("silent")), "out of date");
}

#[test]
fn a_refused_permission_is_logged_once_a_minute_for_each_subject() {
    let (mut logged, now) = (LoggedRefusals::default(), Instant::now());
    let publish = |subject: &str| Refusal::Publish(subject.into());
    assert_eq!(logged.allow(&publish("a"), now), Some(0));
    assert_eq!(logged.allow(&publish("a"), now), None);
    let subscribe = subscription("a", RefusedQueue::Without);
    assert_eq!(logged.allow(&subscribe, now), Some(0));
    assert_eq!(logged.allow(&publish("b"), now), Some(0));
    assert_eq!(logged.allow(&publish("b"), now), None);
    assert!(logged.repeated(now).is_empty());
    let later = now + REFUSAL_LOGGED_EVERY;
    assert_eq!(logged.allow(&publish("a"), later), Some(1), "of its own");
    assert_eq!(logged.repeated(later), vec![(Text::from_static("b"), 1)]);
    assert!(logged.repeated(later).is_empty());
    assert_eq!(logged.unreported(later), 0);
}

#[tokio::test]
async fn a_refused_subject_impairs_the_transport_until_it_is_permitted_or_forgotten() {
    // Nobody listens there.
    let config = NatsConfig::new(["nats://127.0.0.1:1"]);
    let (link, _client) = Link::connect(&config, 1, None).await.unwrap();
    link.set_connection(true, 1);
    let health = || link.health().borrow().clone();
    link.note_refused("$JS.API.INFO");
    assert_eq!(health(), Health::Up, "whoever asks gets the refusal");
    link.note_refused("a.b");
    assert!(matches!(health(), Health::Impaired(why) if why.contains("publishing to a.b")));
    assert!(link.is_refused("a.b") && !link.is_refused("a.c"));
    link.note_permitted("a.b");
    assert!(!link.is_refused("a.b"));
    assert_eq!(health(), Health::Up);
    for delivery in 0..3 {
        link.note_refused(&format!("$JS.ACK.S.c.1.{delivery}.1.1.0"));
    }
    assert!(matches!(health(), Health::Impaired(why) if why.contains("$JS.ACK.>")));
    link.forget_refused(Instant::now() + REFUSED_FOR);
    assert_eq!(health(), Health::Up);
    for subject in 0..=MAX_REFUSED {
        link.note_refused(&format!("a{subject}.b"));
    }
    assert_eq!(link.refused().len(), MAX_REFUSED);
    assert!(!link.is_refused("a0.b"), "the oldest");
}

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_back_is_not_reported_as_refused() {
    // Nobody listens there.
    let config = NatsConfig::new(["nats://127.0.0.1:1"]);
    let (link, _client) = Link::connect(&config, 1, None).await.unwrap();
    let text = "Permissions Violation for Publish to \"a.b\"";
    let refusal = Refusal::parse(text).unwrap();
    for _ in 0..2 {
        link.log_refusal(&refusal, text);
    }
    link.note_refused("a.b");
    link.note_permitted("a.b");
    let later = Instant::now() + REFUSAL_LOGGED_EVERY;
    assert!(link.logged_refusals().repeated(later).is_empty());
}

#[tokio::test]
async fn refused_answers_displace_no_other_subject_and_show_no_reply_token() {
    // Nobody listens there.
    let config = NatsConfig::new(["nats://127.0.0.1:1"]);
    let (link, _client) = Link::connect(&config, 1, None).await.unwrap();
    link.set_connection(true, 1);
    link.note_refused("orders.new");
    let token = "a".repeat(REPLY_ID_CHARS);
    for number in 0..MAX_REFUSED {
        link.note_refused(&format!("_INBOX.{number}.1"));
        link.note_refused(&format!("answers.{number}"));
        link.note_refused(&format!("a.replies.{token}"));
    }
    assert!(link.is_refused("orders.new"));
    let last = format!("answers.{}", MAX_REFUSED - 1);
    assert!(link.is_refused(&last) && !link.is_refused("answers.0"));
    assert_eq!(link.refused().len(), MAX_REFUSED / 2 + 3);
    let Health::Impaired(why) = link.health().borrow().clone() else {
        panic!("it is degraded");
    };
    assert!(why.contains("publishing to _INBOX.>"), "{why}");
    assert!(!why.contains(&token), "{why}");
    assert!(why.contains("publishing to a.replies.*"), "{why}");
}

#[tokio::test]
async fn many_refused_subjects_with_the_same_first_word_are_remembered_and_a_few_are_shown() {
    // Nobody listens there.
    let config = NatsConfig::new(["nats://127.0.0.1:1"]);
    let (link, _client) = Link::connect(&config, 1, None).await.unwrap();
    link.set_connection(true, 1);
    let subject = |number: usize| format!("agents.a{number}");
    for number in 0..100 {
        link.note_refused(&subject(number));
    }
    assert!((0..100).all(|number| link.is_refused(&subject(number))));
    let shown = || link.faults().subscriptions.len();
    assert_eq!(shown(), MAX_ALIKE);
    for number in 0..99 {
        link.note_permitted(&subject(number));
    }
    link.note_refused(&subject(99));
    assert_eq!(shown(), 1, "what is still refused is shown");
    // It is no reply subject of a bridge.
    let long = format!("agents.{}", "A".repeat(REPLY_ID_CHARS));
    link.note_refused(&long);
    assert!(link.is_refused(&long));
}

#[test]
fn answer_subjects_do_not_suppress_the_logging_of_others() {
    let (mut logged, now) = (LoggedRefusals::default(), Instant::now());
    let publish = |subject: String| Refusal::Publish(subject.into());
    let answers = (0..100).map(|n| publish(format!("_INBOX.{n}")));
    let allowed = answers.filter(|refusal| logged.allow(refusal, now).is_some());
    assert_eq!(allowed.count(), MAX_ALIKE);
    assert_eq!(
        logged.allow(&publish("orders".into()), now),
        Some(100 - MAX_ALIKE as u64)
    );
    // They do not use up the room of subscriptions either, and the left-out lines are reported.
    for n in 0..MAX_LOGGED * 2 {
        logged.allow(&publish(format!("word{n}")), now);
        let subscribe = subscription(&format!("agents.{n}"), RefusedQueue::Without);
        assert_eq!(logged.allow(&subscribe, now).is_some(), n < MAX_LOGGED);
    }
    assert_eq!(logged.unreported(now), 0);
    let left_out = 2 * MAX_LOGGED - (MAX_LOGGED - MAX_ALIKE - 1) + MAX_LOGGED;
    let later = now + REFUSAL_LOGGED_EVERY;
    assert_eq!(logged.unreported(later), left_out as u64);
    assert_eq!(logged.unreported(later), 0);
}

#[test]
fn jitter_is_a_part_of_the_whole() {
    for _ in 0..1000 {
        assert!(jitter(Duration::from_secs(1)) <= Duration::from_secs(1));
    }
}
