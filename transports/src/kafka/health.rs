//! Can the cluster be reached? What the clients report, and a thread that asks when they complain.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::watch;

use super::error::is_outage;
use crate::error::TransportError;
use crate::transport::Health;

/// A topic that most clusters have; whether it exists or may be seen does not matter, only that somebody answers.
pub(super) const PROBE_TOPIC: &str = "__consumer_offsets";
/// The cause before anything is known.
pub(super) const CONNECTING: &str = "connecting";
/// How long an answer to a probe may take.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between probes while the cluster does not answer.
const PROBE_WHEN_DOWN: Duration = Duration::from_millis(200);
/// Between probes while nobody complains: finds the connection that is dead and does not know it.
const PROBE_WHEN_UP: Duration = Duration::from_secs(10);

/// What all clients of one transport tell the thread that watches the cluster.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    suspected: bool,
    stopped: bool,
    complaint: Option<Complaint>,
}

/// The last error a client reported, which says more than the timeout of a probe does.
#[derive(Debug, Clone)]
struct Complaint {
    reason: String,
    /// The brokers answer, but not to us.
    refused: bool,
}

/// The events of one client: logs go to `tracing`, errors to the [`Pulse`].
#[derive(Debug, Clone)]
pub(super) struct Events {
    client: &'static str,
    pulse: Arc<Pulse>,
}

// === impl Pulse ===

impl Pulse {
    /// Ends the thread that watches.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Whether the brokers refuse our credentials: no question to them is answered then.
    pub(super) fn is_refused(&self) -> bool {
        self.state()
            .complaint
            .as_ref()
            .is_some_and(|complaint| complaint.refused)
    }

    fn suspect(&self, complaint: Option<Complaint>) {
        let mut state = self.state();
        state.suspected = true;
        state.complaint = complaint.or(state.complaint.take());
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the next probe is due; false when there is none.
    fn wait(&self, health: &Health) -> bool {
        let mut state = self.state();
        match health {
            Health::Up => {
                state = self
                    .changed
                    .wait_timeout_while(state, PROBE_WHEN_UP, |state| {
                        !state.suspected && !state.stopped
                    })
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            // Complaints do not hurry it: while the cluster is away there are many.
            Health::Down(_) => {
                state = self
                    .changed
                    .wait_timeout_while(state, PROBE_WHEN_DOWN, |state| !state.stopped)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        state.suspected = false;
        !state.stopped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the cluster does not answer.
    fn cause(&self, error: &TransportError) -> Text {
        match &self.state().complaint {
            Some(complaint) => Text::from(complaint.reason.as_str()),
            None => Text::from(error.to_string()),
        }
    }
}

/// Probes until the pulse stops, and publishes what it finds. Runs on a thread of its own, because a probe blocks.
pub(super) fn watch(
    pulse: &Pulse,
    health: &watch::Sender<Health>,
    probe: impl Fn() -> Result<(), TransportError>,
) {
    loop {
        let found = match probe() {
            Ok(()) => {
                pulse.state().complaint = None;
                Health::Up
            }
            Err(error) => Health::Down(pulse.cause(&error)),
        };
        health.send_if_modified(|current| change(current, &found));
        if !pulse.wait(&found) {
            return;
        }
    }
}

/// The first cause of an outage stands until the outage is over: clients word the same refusal in many ways.
fn change(current: &mut Health, found: &Health) -> bool {
    let changed = match (&*current, found) {
        (Health::Up, Health::Up) => false,
        (Health::Down(cause), Health::Down(_)) => cause == CONNECTING,
        (Health::Up, Health::Down(_)) | (Health::Down(_), Health::Up) => true,
    };
    if changed {
        match found {
            Health::Up => tracing::info!("the Kafka cluster answers"),
            Health::Down(cause) => tracing::warn!(%cause, "the Kafka cluster does not answer"),
        }
        current.clone_from(found);
    }
    changed
}

// === impl Events ===

impl Events {
    pub(super) fn new(client: &'static str, pulse: Arc<Pulse>) -> Self {
        Self { client, pulse }
    }
}

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let client = self.client;
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(client, facility, "{message}");
            }
            // Properties of the other kind of client in `properties`, and what passes while a broker starts: by the
            // hundred, and no news.
            _ if matches!(facility, "CONFWARN" | "GETPID" | "METADATAUPDATE") => {
                tracing::debug!(client, facility, "{message}");
            }
            // Connections come and go; `health` tells when it matters.
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning
                if matches!(facility, "DISCONN" | "ERROR" | "FAIL" | "REQTMOUT") =>
            {
                tracing::info!(client, facility, "{message}");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
                tracing::warn!(client, facility, "{message}");
            }
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(client, facility, "{message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(client, facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(client = self.client, %error, reason, "the Kafka client reports an error");
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        let refused = code == Code::Authentication;
        if code == Code::AllBrokersDown {
            // It repeats a count, not the reason that the errors before it gave.
            self.pulse.suspect(None);
        } else if refused || is_outage(code) {
            self.pulse.suspect(Some(Complaint {
                reason: reason.to_owned(),
                refused,
            }));
        }
    }
}
