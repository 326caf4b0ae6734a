//! What the cluster refuses, which topics do not exist, and for how long a member may wait for its partitions.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::super::error::{CREATE, GRANT, LOG_AGAIN, is_outage, kind};
use super::super::questions::may_read;
use super::super::thread::spawn;
use super::{Readable, Session, Task, Unreadable};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::Share;

/// For how long a refusal explains that a member gets no partitions.
const MAX_REFUSED_WAIT: Duration = Duration::from_secs(20 * 60);
/// After this time the cluster is asked again whether it still refuses topics, and which do not exist.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(10);

// === impl Unreadable ===

impl Unreadable {
    /// The first question, at this time.
    fn at(ask_at: Instant) -> Self {
        Self {
            refused_at: None,
            missing_at: None,
            logged_at: None,
            ask_at,
            asked: None,
        }
    }

    /// Asks now, because a topic does not exist.
    pub(super) fn missing(now: Instant) -> Self {
        Self {
            missing_at: Some(now),
            ..Self::at(now)
        }
    }
}

// === impl Task ===

impl Task {
    /// Asks which topics do not exist and, if `tests_reading`, whether the others may be read. The answer comes when it
    /// is known; none if the question cannot be asked.
    fn ask_to_read(&self, tests_reading: bool) -> std_mpsc::Receiver<Readable> {
        let (answer, answered) = std_mpsc::sync_channel(1);
        let (config, pulse) = (Arc::clone(&self.plan.config), Arc::clone(&self.plan.pulse));
        let topics = self.plan.source.topics();
        let asking = spawn("a2abus-kafka-ask", move || {
            // Fails when the client that asked has ended.
            let _ = answer.send(may_read(&config, &pulse, &topics, tests_reading));
        });
        if let Err(error) = asking {
            tracing::warn!(reads = %self.plan.source, %error, "cannot ask whether topics may be read again");
        }
        answered
    }
}

// === impl Session ===

impl Session<'_> {
    /// Asks from time to time whether the cluster still refuses topics, and which do not exist, until it refuses none
    /// and all exist. Does not wait for the answer.
    pub(super) fn ask_again(&mut self) {
        let now = Instant::now();
        let Some(unreadable) = &mut self.unreadable else {
            return;
        };
        let Some((asked_at, answer)) = &unreadable.asked else {
            if now >= unreadable.ask_at {
                let was_refused = unreadable.refused_at.is_some();
                unreadable.asked = Some((now, self.task.ask_to_read(was_refused)));
            }
            return;
        };
        let answer = match answer.try_recv() {
            Err(std_mpsc::TryRecvError::Empty) => return,
            Ok(answer) => answer,
            // The thread that asks could not be started.
            Err(std_mpsc::TryRecvError::Disconnected) => Err(TransportError::new(
                TransportErrorKind::Other,
                "ask whether topics may be read",
            )),
        };
        let asked_at = *asked_at;
        (unreadable.asked, unreadable.ask_at) = (None, now + ASK_AGAIN);
        match answer {
            Ok(missing) => self.note_readable(asked_at, missing),
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => {}
            Err(error) => {
                tracing::debug!(reads = %self.task.plan.source, %error, "cannot tell whether topics may be read again");
            }
        }
    }

    /// Notes that the cluster refused no topic when it was asked, and which did not exist.
    fn note_readable(&mut self, asked_at: Instant, missing: Vec<Topic>) {
        let Some(unreadable) = &mut self.unreadable else {
            return;
        };
        // A topic may have been refused after the question.
        let is_permitted = unreadable.refused_at.is_some_and(|at| asked_at > at);
        if is_permitted {
            unreadable.refused_at = None;
        }
        // Another broker may learn later that a topic is gone.
        let is_believed = unreadable
            .missing_at
            .is_none_or(|at| asked_at >= at + ASK_AGAIN);
        let is_known = is_believed || !missing.is_empty();
        if is_known {
            unreadable.missing_at = (!missing.is_empty()).then_some(asked_at);
        }
        if unreadable.refused_at.is_none() && unreadable.missing_at.is_none() {
            self.unreadable = None;
        }
        if is_permitted {
            self.client.context().set_records_refused(false);
        }
        if is_known {
            self.report_missing(missing);
        }
    }

    /// Shows which topics do not exist, and logs it now and then.
    fn report_missing(&mut self, missing: Vec<Topic>) {
        let (reads, now) = (&self.task.plan.source, Instant::now());
        let is_news = *self.task.missing.borrow() != missing;
        let last = self.unreadable.as_ref().and_then(|it| it.logged_at);
        let is_due = last.is_none_or(|at| now >= at + LOG_AGAIN);
        if missing.is_empty() {
            if is_news {
                tracing::info!(%reads, "all topics of this reader exist again: they are read within about a minute");
                self.client.context().wait_anew();
            }
        } else if is_news || is_due {
            let names: Vec<&str> = missing.iter().map(Topic::as_str).collect();
            let names = names.join(", ");
            let follows = match missing.len() < reads.topics().len() {
                true => "the other topics are read; these are read once they exist again",
                false => "nothing is read until they exist again",
            };
            tracing::warn!(%reads, missing = names, fix = CREATE, "topics that are read no longer exist: {follows}");
            if let Some(unreadable) = &mut self.unreadable {
                unreadable.logged_at = Some(now);
            }
        }
        if is_news {
            self.task.missing.send_replace(missing);
        }
    }

    /// Whether the client waits for partitions that it may never get. librdkafka removes the brokers that a response
    /// about the cluster does not name. After a response that names none, as a single broker sends it while it returns
    /// to its cluster, the client sometimes never asks again.
    pub(super) fn is_stuck(&self) -> bool {
        let max_wait = self.task.max_wait();
        let is_answered = self.task.plan.pulse.answers_for() > max_wait;
        // A refused topic may be the reason why the partitions are gone.
        let waits = self.client.context().unassigned_for();
        let unreadable = self.unreadable.as_ref();
        let is_refused =
            unreadable.is_some_and(|it| it.refused_at.is_some()) && waits < MAX_REFUSED_WAIT;
        let is_without = self.is_without_partitions(max_wait) && !is_refused;
        self.is_member() && is_answered && is_without
    }

    /// Whether the client has waited longer than this for partitions that exist, and the cluster has not refused them
    /// since.
    pub(super) fn is_without_partitions(&self, longest: Duration) -> bool {
        let waits = self.client.context().unassigned_for();
        let since_refusal = self.refused_at.map(|at| at.elapsed());
        let is_refused = since_refusal.is_some_and(|since| since < waits.min(MAX_REFUSED_WAIT));
        waits > longest && !is_refused && !self.has_no_topic()
    }

    /// Whether none of its topics exists.
    pub(super) fn has_no_topic(&self) -> bool {
        self.task.missing.borrow().len() == self.task.plan.source.topics().len()
    }

    /// Logs an error once, and again when it changes or persists.
    pub(super) fn note(&mut self, error: &KafkaError) {
        let task = self.task;
        let reads = &task.plan.source;
        let Some(code) = error.rdkafka_error_code() else {
            return tracing::warn!(%reads, %error, "the Kafka consumer reports an error");
        };
        // A live reader has no group, so it needs no permission for one.
        let groupless = code == Code::GroupAuthorizationFailed && !self.is_member();
        let is_refusal = kind(code) == TransportErrorKind::Unauthorised && !groupless;
        if is_refusal {
            self.note_refusal(code);
        }
        let is_missing = match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => true,
            // A reader without a group has no other sign. A topic with fewer partitions has it too.
            Code::UnknownPartition => !self.is_member(),
            _ => false,
        };
        if is_missing {
            self.note_missing();
        }
        let is_reported = self
            .last_error
            .is_some_and(|(last, at)| last == code && at.elapsed() < LOG_AGAIN);
        if is_reported || groupless || is_outage(code) {
            return tracing::debug!(%reads, %error, "the Kafka consumer reports an error");
        }
        self.last_error = Some((code, Instant::now()));
        if is_refusal {
            tracing::error!(%reads, %error, fix = GRANT, "the Kafka cluster denies this reader a permission");
        } else {
            tracing::warn!(%reads, %error, "the Kafka consumer reports an error");
        }
    }

    /// Asks which topics do not exist.
    fn note_missing(&mut self) {
        let now = Instant::now();
        let unreadable = self
            .unreadable
            .get_or_insert_with(|| Unreadable::missing(now));
        unreadable.missing_at = Some(now);
    }

    /// Shows that the cluster refuses a permission.
    pub(super) fn note_refusal(&mut self, code: Code) {
        let now = Instant::now();
        self.refused_at = Some(now);
        if code == Code::TopicAuthorizationFailed {
            let unreadable = self
                .unreadable
                .get_or_insert_with(|| Unreadable::at(now + ASK_AGAIN));
            unreadable.refused_at = Some(now);
            self.client.context().set_records_refused(true);
        }
        self.task.share.send_if_modified(|share| {
            let waits = *share == Share::Waiting;
            if waits {
                *share = Share::Refused;
            }
            waits
        });
    }
}
