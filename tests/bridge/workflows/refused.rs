//! Answers that the bus does not accept: the delivery rules of the bridge apply to them too.

use std::num::NonZeroUsize;

use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{TopicFilter, TransportErrorKind as Kind};
use support::battery::within;
use support::service::Service;
use tokio::task::yield_now;

use super::{ReplyEvent, World, event, wait, workflow};
use crate::set_up::{next, read};

const EXECUTE: (&str, &str) = ("a2amethod", "workflows/execute");

fn topic(name: &str) -> TopicFilter {
    TopicFilter::new(name.to_owned()).unwrap()
}

#[tokio::test]
async fn a_reply_topic_that_the_bus_refuses_stops_no_other_request() {
    for kind in [
        Kind::Unauthorised,
        Kind::UnknownTopic,
        Kind::BadConfig,
        Kind::Full,
        Kind::Other,
        Kind::TooLarge,
    ] {
        let mut world = World::with("run_as: reporter, reply_topics: ['inbox.*']", "").await;
        world.memory.set_refused(topic("inbox.bad"), Some(kind));
        let mut inbox = read(&world.memory, "inbox.good").await;
        for (execution, reply_to) in [("e-1", "inbox.bad"), ("e-2", "inbox.good")] {
            let lines = workflow(execution, &[("w", wait(1))]);
            let attributes = [EXECUTE, ("replyto", reply_to)];
            world.publish(event(execution, &attributes, &lines)).await;
        }
        let answer = ReplyEvent::of(&next(&mut inbox).await);
        assert_eq!(answer.data["execution_id"], "e-2", "{kind:?}");
        let dead_letter = world.dead_letter().await;
        let header = |name| dead_letter.headers.get(name).unwrap();
        assert_eq!(header("bus-dlq-reason"), kind.as_str());
        assert_eq!(header("ce_id"), "e-1");
        let settled = "a2abus_settled_total{binding=\"work\"}";
        world.until_counted(settled, 2).await;
        world.end().await;
    }
}

#[tokio::test]
async fn a_topic_of_a_route_that_the_bus_refuses_holds_the_answer_until_it_is_repaired() {
    let routes = "[{ name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: agents.reporter }] }]";
    let memory = Memory::default();
    let refused = topic("agents.reporter");
    let service = Service::open().await;
    let mut world = World::routed(memory, service, "run_as: reporter", "", routes).await;
    world
        .memory
        .set_refused(refused.clone(), Some(Kind::Unauthorised));
    let lines = workflow("e-1", &[("w", wait(1))]);
    world.publish(event("1", &[EXECUTE], &lines)).await;
    within("the topic is reported", async {
        while world.readiness.report().degraded.is_empty() {
            yield_now().await;
        }
    })
    .await;
    let degraded = world.readiness.report().degraded;
    assert_eq!(degraded[0].name, "destination bus/agents.reporter");
    assert_eq!(world.count("a2abus_settled_total{binding=\"work\"}"), 0);
    world.memory.set_refused(refused, None);
    assert_eq!(world.answer().await.data["status"], "success");
    world
        .until_counted("a2abus_settled_total{binding=\"work\"}", 1)
        .await;
    assert!(world.readiness.report().degraded.is_empty());
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_sent_without_its_results() {
    let memory = Memory::new(MemoryConfig {
        max_message_bytes: NonZeroUsize::new(2_500).unwrap(),
        ..MemoryConfig::default()
    });
    let service = Service::open().await;
    let mut world = World::on(memory, service, "run_as: reporter", "").await;
    // Each line is an error, which takes many more bytes than the line.
    let lines = [r#"{"type":"x"}"#; 40].join("\n");
    let validate = ("a2amethod", "workflows/validate");
    world.publish(event("1", &[validate], &lines)).await;
    let answer = world.answer().await.data;
    assert_eq!(answer["valid"], false, "{answer}");
    assert_eq!(answer["error"]["code"], "response_too_large");
    let error = answer["error"].to_string();
    assert!(error.contains("POST /api/v1/workflows/validate"), "{error}");
    world.end().await;
}
