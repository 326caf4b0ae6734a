//! The tests of a NATS transport.

use a2abus_transports::nats::{Nats, NatsConfig};

use super::{TestResult, Tester};
use crate::access::nats::Subjects;
use crate::access::{Access, Operation, Storage};
use crate::state::LogLocation;
use crate::topics;

impl Tester<'_> {
    /// Looks for the stream of a log of the state.
    async fn nats_log(&mut self, nats: &Nats, stream: &str, is_created: bool, owner: &str) {
        let test = format!("stream {stream} ({owner})");
        let (outcome, detail) = match (nats.stream_config(stream).await, is_created) {
            (Ok(None), true) => (TestResult::Ok, "the bridge creates it when it starts"),
            (Ok(None), false) => (
                TestResult::Failed,
                "it does not exist: `a2abus topics apply` creates it",
            ),
            (found, _) => return self.result(test, found.map(drop)),
        };
        self.note(test, outcome, Some(detail.to_owned()));
    }

    /// Publishing cannot be tested without publishing, but the server reports the permissions of the user.
    pub(super) async fn nats_rights(&mut self, nats: &Nats, subjects: &Subjects) {
        let Some(permissions) = nats.permissions().await else {
            let detail = format!(
                "{} may not publish $SYS.REQ.USER.INFO, the query for its permissions",
                nats.user()
            );
            return self.note("permission to publish", TestResult::Untested, Some(detail));
        };
        for pattern in &subjects.unlisted {
            let test = format!("permission to publish {pattern}");
            let detail = "events name these subjects: allow those that your agents use";
            self.note(test, TestResult::Untested, Some(detail.to_owned()));
        }
        let publish = subjects
            .publish
            .iter()
            .map(|s| ("publish", s, permissions.may_publish(s)));
        let subscribe = subjects.subscribe.iter();
        let subscribe = subscribe.map(|s| ("subscribe", s, permissions.may_subscribe(s)));
        let missing: Vec<_> = publish
            .chain(subscribe)
            .filter(|(_, _, may)| !may)
            .collect();
        if missing.is_empty() {
            self.note("permissions", TestResult::Ok, None);
        }
        for (verb, subject, _) in missing {
            let detail = format!("not permitted to {}", nats.user());
            let test = format!("permission to {verb} {subject}");
            self.note(test, TestResult::Failed, Some(detail));
        }
    }

    /// Tests one use of the bus.
    pub(super) async fn nats(&mut self, nats: &Nats, config: &NatsConfig, used: &Access) {
        let owner = &used.owner;
        match &used.operation {
            Operation::Read { topics, .. } => {
                for topic in topics {
                    let test = format!("subscribe to {} ({owner})", topic.as_str());
                    let subscribed = nats.test_subscribe(topic.as_str()).await;
                    self.result(test, subscribed);
                }
            }
            Operation::Replies(topic) => {
                let subjects = format!("{topic}.>");
                let subscribed = nats.test_subscribe(&subjects).await;
                self.result(format!("subscribe to {subjects} ({owner})"), subscribed);
            }
            Operation::State {
                place: LogLocation::Stream { name, .. },
                is_created,
                ..
            } => self.nats_log(nats, name, *is_created, owner).await,
            Operation::State { .. } => {}
            Operation::Durable {
                stream,
                name,
                topics,
            } => {
                let test = format!("consumer {name} of stream {stream} ({owner})");
                let durable = (stream.as_str(), name.as_str());
                let found = nats.test_durable(&config.jetstream, durable, topics);
                self.result(test, found.await);
            }
            Operation::Write(write) => {
                if !write.is_stored() {
                    return;
                }
                let Some(topic) = write.target.topic() else {
                    let test = format!("streams for {} ({owner})", write.target);
                    let detail = topics::NAMED.to_owned();
                    return self.note(test, TestResult::Untested, Some(detail));
                };
                let test = format!("stream for {topic} ({owner})");
                match nats.stream_of(topic.as_str()).await {
                    Ok(None) if config.jetstream.manages(topic) => {
                        let detail = "the bridge creates it when it starts".to_owned();
                        self.note(test, TestResult::Ok, Some(detail));
                    }
                    Ok(None) if write.storage == Storage::StreamIfAny => {
                        let detail = "no JetStream stream stores it: dead letters are lost";
                        self.note(test, TestResult::Warning, Some(detail.to_owned()));
                    }
                    Ok(None) => {
                        let detail = "no stream stores it: `a2abus topics apply` creates one";
                        self.note(test, TestResult::Failed, Some(detail.to_owned()));
                    }
                    found => self.result(test, found.map(drop)),
                }
            }
        }
    }
}
