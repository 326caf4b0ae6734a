//! Kafka passes the battery.

use std::time::Duration;

use a2abus_transports::kafka::{Kafka, KafkaConfig};
use a2abus_transports::{Reading, Topic};
use support::battery::{self, CASES, Case, Environment, Feature};
use support::server::{Kind, Private, named};

struct Cluster {
    address: String,
    /// Our own broker, for cases that stop it.
    private: Option<Private>,
}

impl Environment for Cluster {
    type Transport = Kafka;

    async fn connect(&self) -> Kafka {
        let config = KafkaConfig {
            session_timeout: Duration::from_secs(6),
            ..KafkaConfig::new([self.address.as_str()])
        };
        Kafka::connect(config).unwrap()
    }

    fn durable(&self, topic: &Topic, name: &str) -> Reading {
        Reading::Group(format!("{topic}.{name}").into())
    }

    fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::NullHeaders
            | Feature::BinaryHeaders
            | Feature::Keys
            | Feature::OrderedRedelivery => true,
            Feature::Wildcards => false,
            Feature::Outage => self.private.is_some(),
        }
    }

    fn oversize_bytes(&self) -> usize {
        2_000_000
    }

    async fn stop(&self) {
        if let Some(broker) = &self.private {
            broker.kill().await;
        }
    }

    async fn start(&self) {
        if let Some(broker) = &self.private {
            broker.start().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_passes_the_battery() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let cluster = Cluster {
        address,
        private: None,
    };
    for case in CASES {
        println!("kafka: {case}");
        battery::run(case, &cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_survives_the_death_of_its_broker() {
    if named(Kind::Kafka).is_none() {
        return;
    }
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let cluster = Cluster {
        address: broker.address(),
        private: Some(broker),
    };
    battery::run(Case::ReconnectMidFlight, &cluster).await;
}
