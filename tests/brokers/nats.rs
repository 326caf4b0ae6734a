//! NATS with JetStream passes the battery.

use std::time::Duration;

use a2abus_transports::nats::{JetStreamConfig, Nats, NatsConfig, StreamConfig, StreamStorage};
use a2abus_transports::{
    Address, Guarantee, Health, Message, Outcome, Reading, Subscription, Topic, Transport as _,
    TransportErrorKind,
};
use async_nats::jetstream::consumer::DeliverPolicy;
use support::battery::{self, CASES, Case, Environment, Feature, unique, within};
use support::server::{Kind, Private, named};

use crate::plain::{jetstream_of, nats_client};

/// The stream of all cases; it is created by the first.
const STREAM: &str = "a2abus-battery";

struct System {
    url: String,
    /// Our own server, for cases that stop it.
    private: Option<Private>,
}

impl Environment for System {
    type Transport = Nats;

    async fn connect(&self) -> Nats {
        let stream = StreamConfig {
            name: STREAM.to_owned(),
            subjects: vec!["battery.>".to_owned()],
            replicas: 1,
            storage: StreamStorage::File,
            max_age: Some(Duration::from_secs(600)),
            duplicate_window: Duration::from_secs(120),
        };
        let config = NatsConfig {
            jetstream: JetStreamConfig {
                manage: true,
                ack_wait: Duration::from_secs(30),
                streams: vec![stream],
                ..JetStreamConfig::default()
            },
            ..NatsConfig::new([self.url.as_str()])
        };
        Nats::connect(config).await.unwrap()
    }

    fn durable(&self, topic: &Topic, name: &str) -> Reading {
        Reading::Durable {
            stream: STREAM.into(),
            name: format!("{topic}.{name}").replace('.', "-").into(),
        }
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Stored { message_id: None }
    }

    fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::NullHeaders
            | Feature::BinaryHeaders
            | Feature::Keys
            | Feature::OrderedRedelivery => false,
            Feature::Lag | Feature::Wildcards => true,
            Feature::Outage => self.private.is_some(),
        }
    }

    fn oversize_bytes(&self) -> usize {
        2 << 20
    }

    async fn stop(&self) {
        if let Some(server) = &self.private {
            server.kill().await;
        }
    }

    async fn start(&self) {
        if let Some(server) = &self.private {
            server.start().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_passes_the_battery() {
    let Some(url) = named(Kind::Nats) else {
        return;
    };
    let system = System { url, private: None };
    for case in CASES {
        println!("nats: {case}");
        battery::run(case, &system).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_survives_the_death_of_its_server() {
    if named(Kind::Nats).is_none() {
        return;
    }
    let Some(server) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let system = System {
        url: format!("nats://{}", server.address()),
        private: Some(server),
    };
    battery::run(Case::ReconnectMidFlight, &system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_stream_covers_is_unknown() {
    let Some(url) = named(Kind::Nats) else {
        return;
    };
    let nats = System { url, private: None }.connect().await;
    let nowhere = Address {
        guarantee: Guarantee::Stored { message_id: None },
        ..Address::topic(Topic::new(format!("nowhere.{}", unique())).unwrap())
    };
    // The second answer comes from the results of the first.
    for _ in 0..2 {
        let confirmation = nats.send(&nowhere, Message::plain("x")).await.unwrap();
        let error = within("a verdict", confirmation).await.unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::UnknownTopic, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_for_a_reconnect_are_confirmed_once_they_are_sent() {
    if named(Kind::Nats).is_none() {
        return;
    }
    let Some(server) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let config = NatsConfig {
        ack_timeout: Duration::from_secs(60),
        ..NatsConfig::new([format!("nats://{}", server.address())])
    };
    let nats = Nats::connect(config).await.unwrap();
    let mut health = nats.health();
    within("a connection", health.wait_for(|now| *now == Health::Up))
        .await
        .unwrap();
    server.kill().await;
    within("its loss", health.wait_for(|now| *now != Health::Up))
        .await
        .unwrap();
    let to = Address::topic(Topic::new("waiting").unwrap());
    let (confirmation, ()) = tokio::join!(
        within("the connection again", nats.send(&to, Message::plain("x"))),
        server.start()
    );
    within("a verdict", confirmation.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_does_not_wait_for_a_server_that_is_down() {
    if named(Kind::Nats).is_none() {
        return;
    }
    let Some(server) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let config = NatsConfig::new([format!("nats://{}", server.address())]);
    let nats = Nats::connect(config).await.unwrap();
    let mut health = nats.health();
    within("a connection", health.wait_for(|now| *now == Health::Up))
        .await
        .unwrap();
    let topic = Topic::new("stopping").unwrap();
    let subscription = Subscription {
        topics: vec![topic.into()],
        reading: Reading::Group("readers".into()),
        budget_bytes: 1 << 20,
        budget_messages: 16,
    };
    let mut reader = nats.subscribe(subscription).await.unwrap();
    server.kill().await;
    within("its loss", health.wait_for(|now| *now != Health::Up))
        .await
        .unwrap();
    reader.stop();
    assert!(within("its end", reader.recv()).await.is_none());
}

/// Core NATS does not answer. The first message may be confirmed before the refusal comes, but not the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn messages_on_a_subject_that_the_server_forbids_are_not_confirmed() {
    let permissions = r#"authorization { users: [
        { user: bridge, password: secret, permissions: { publish: { deny: ["forbidden"] } } } ] }"#
        .replace('\n', " ");
    let Some(server) = Private::start_with(Kind::Nats, &[&permissions]).await else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret").unwrap();
    let config = serde_json::json!({
        "servers": [format!("nats://{}", server.address())],
        "auth": { "user": "bridge", "password": { "file": password } },
    });
    let config: NatsConfig = serde_json::from_value(config).unwrap();
    let nats = Nats::connect(config).await.unwrap();
    let publish = async |topic: &str| {
        let to = Address::topic(Topic::new(topic).unwrap());
        let sent = nats.send(&to, Message::plain("x")).await.unwrap();
        within("a verdict", sent)
            .await
            .map_err(|error| error.kind())
    };
    let _first = publish("forbidden").await;
    let mut health = nats.health();
    let is_named = |now: &Health| matches!(now, Health::Impaired(why) if why.contains("forbidden"));
    drop(
        within("the refusal", health.wait_for(is_named))
            .await
            .unwrap(),
    );
    for _ in 0..3 {
        let refused = publish("forbidden").await;
        assert_eq!(refused.unwrap_err(), TransportErrorKind::Unauthorised);
        publish("permitted").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_burst_into_a_managed_stream_keeps_its_order() {
    let Some(url) = named(Kind::Nats) else {
        return;
    };
    let name = unique().to_string();
    let config = NatsConfig {
        jetstream: JetStreamConfig {
            manage: true,
            streams: vec![StreamConfig {
                name: format!("published-{name}"),
                subjects: vec![format!("published.{name}.>")],
                replicas: 1,
                storage: StreamStorage::File,
                max_age: Some(Duration::from_secs(600)),
                duplicate_window: Duration::from_secs(120),
            }],
            ..JetStreamConfig::default()
        },
        ..NatsConfig::new([url.as_str()])
    };
    let nats = Nats::connect(config).await.unwrap();
    let to = Address {
        guarantee: Guarantee::Stored { message_id: None },
        ..Address::topic(Topic::new(format!("published.{name}.x")).unwrap())
    };
    // Sent at once: nothing waits for the stream to be there.
    let mut confirmations = Vec::new();
    for number in 0..500 {
        let message = Message::plain(number.to_string());
        confirmations.push(nats.send(&to, message).await.unwrap());
    }
    for (sequence, confirmation) in (1..).zip(confirmations) {
        let receipt = within("it is stored", confirmation).await.unwrap();
        let position = format!("j:published-{name}/{sequence}");
        assert_eq!(receipt.position.as_deref(), Some(position.as_str()));
    }
}

/// More messages are outstanding than a reader could remember one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_durable_begins_again_with_what_was_not_settled() {
    const MESSAGES: usize = 5_000;
    const SETTLED: usize = 4_500;
    let Some(url) = named(Kind::Nats) else {
        return;
    };
    let name = format!("deleted-{}", unique());
    let config = NatsConfig {
        jetstream: JetStreamConfig {
            manage: true,
            streams: vec![StreamConfig {
                name: name.clone(),
                subjects: vec![format!("{name}.>")],
                replicas: 1,
                storage: StreamStorage::File,
                max_age: Some(Duration::from_secs(600)),
                duplicate_window: Duration::from_secs(120),
            }],
            ..JetStreamConfig::default()
        },
        ..NatsConfig::new([url.as_str()])
    };
    let nats = Nats::connect(config).await.unwrap();
    let topic = Topic::new(format!("{name}.a")).unwrap();
    let to = Address {
        guarantee: Guarantee::Stored { message_id: None },
        ..Address::topic(topic.clone())
    };
    let mut confirmations = Vec::new();
    for _ in 0..MESSAGES {
        confirmations.push(nats.send(&to, Message::plain("x")).await.unwrap());
    }
    for confirmation in confirmations {
        within("it is stored", confirmation).await.unwrap();
    }
    let subscription = Subscription {
        topics: vec![topic.into()],
        reading: Reading::Durable {
            stream: name.as_str().into(),
            name: "in".into(),
        },
        budget_bytes: 64 << 20,
        budget_messages: 2 * MESSAGES,
    };
    let mut consumer = nats.subscribe(subscription).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..MESSAGES {
        held.push(within("a delivery", consumer.recv()).await.unwrap());
    }
    for delivery in held.drain(..SETTLED) {
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
    let jetstream = jetstream_of(nats_client(&url).await);
    let stream = jetstream.get_stream(&name).await.unwrap();
    within("they are acknowledged", async {
        while stream.consumer_info("in").await.unwrap().num_ack_pending > MESSAGES - SETTLED {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // The reader learns the same from the server, before the lag is shown.
    let mut lag = consumer.lag().unwrap();
    let rest = Some((MESSAGES - SETTLED) as u64);
    let known = lag.wait_for(|lag| *lag == rest);
    within("the reader knows", known).await.unwrap();
    stream.delete_consumer("in").await.unwrap();
    let created = within("the consumer exists again", async {
        loop {
            match stream.consumer_info("in").await {
                Ok(info) => return info,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    let start_sequence = SETTLED as u64 + 1;
    assert_eq!(
        created.config.deliver_policy,
        DeliverPolicy::ByStartSequence { start_sequence }
    );
}
