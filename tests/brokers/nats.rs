//! NATS with JetStream passes the battery.

use std::time::Duration;

use a2abus_transports::nats::{JetStreamConfig, Nats, NatsConfig, StreamConfig, StreamStorage};
use a2abus_transports::{Guarantee, Reading, Topic};
use support::battery::{self, CASES, Case, Environment, Feature};
use support::server::{Kind, Private, named};

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
                ack_wait: Duration::from_secs(5),
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
            Feature::Wildcards => true,
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
