//! What the cluster refuses, and for how long a member may wait for its partitions.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::super::error::{GRANT, LOG_AGAIN, is_outage, kind};
use super::super::questions::may_read;
use super::super::thread::spawn;
use super::{Session, Task, Unreadable};
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::Share;

/// For how long a refusal explains that a member gets no partitions.
const MAX_REFUSED_WAIT: Duration = Duration::from_secs(20 * 60);
/// After this time the cluster is asked again whether it still refuses topics.
const ASK_AGAIN: Duration = Duration::from_secs(10);

// === impl Task ===

impl Task {
    /// Asks whether the topics may be read. The answer comes when it is known; none if the question cannot be asked.
    fn ask_to_read(&self) -> std_mpsc::Receiver<Result<(), TransportError>> {
        let (answer, answered) = std_mpsc::sync_channel(1);
        let (config, pulse) = (Arc::clone(&self.plan.config), Arc::clone(&self.plan.pulse));
        let topics = self.plan.source.topics();
        let asking = spawn("a2abus-kafka-ask", move || {
            // Fails when the client that asked has ended.
            let _ = answer.send(may_read(&config, &pulse, &topics));
        });
        if let Err(error) = asking {
            tracing::warn!(reads = %self.plan.source, %error, "cannot ask whether topics may be read again");
        }
        answered
    }
}

// === impl Session ===

impl Session<'_> {
    /// Asks from time to time whether the cluster still refuses topics, and notes when it no longer does. Does not wait
    /// for the answer.
    pub(super) fn ask_again(&mut self) {
        let now = Instant::now();
        let Some(unreadable) = &mut self.unreadable else {
            return;
        };
        let Some((asked_at, answer)) = &unreadable.asked else {
            if now >= unreadable.ask_at {
                unreadable.asked = Some((now, self.task.ask_to_read()));
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
        match answer {
            Ok(()) if *asked_at > unreadable.refused_at => {
                self.unreadable = None;
                return self.client.context().set_records_refused(false);
            }
            // A topic was refused after the question.
            Ok(()) => {}
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => {}
            Err(error) => {
                tracing::debug!(reads = %self.task.plan.source, %error, "cannot tell whether topics may be read again");
            }
        }
        (unreadable.asked, unreadable.ask_at) = (None, now + ASK_AGAIN);
    }

    /// Whether the client waits for partitions that it may never get. librdkafka removes the brokers that a response
    /// about the cluster does not name. After a response that names none, as a single broker sends it while it returns
    /// to its cluster, the client sometimes never asks again.
    pub(super) fn is_stuck(&self) -> bool {
        let max_wait = self.task.max_wait();
        let is_answered = self.task.plan.pulse.answers_for() > max_wait;
        // A refused topic may be the reason why the partitions are gone.
        let waits = self.client.context().unassigned_for();
        let is_refused = self.unreadable.is_some() && waits < MAX_REFUSED_WAIT;
        let is_without = self.is_without_partitions(max_wait) && !is_refused;
        self.is_member() && is_answered && is_without
    }

    /// Whether the client has waited longer than this for partitions, and the cluster has not refused them since.
    pub(super) fn is_without_partitions(&self, longest: Duration) -> bool {
        let waits = self.client.context().unassigned_for();
        let since_refusal = self.refused_at.map(|at| at.elapsed());
        let is_refused = since_refusal.is_some_and(|since| since < waits.min(MAX_REFUSED_WAIT));
        waits > longest && !is_refused
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

    /// Shows that the cluster refuses a permission.
    pub(super) fn note_refusal(&mut self, code: Code) {
        let now = Instant::now();
        self.refused_at = Some(now);
        if code == Code::TopicAuthorizationFailed {
            let unreadable = self.unreadable.get_or_insert_with(|| Unreadable {
                refused_at: now,
                ask_at: now + ASK_AGAIN,
                asked: None,
            });
            unreadable.refused_at = now;
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
