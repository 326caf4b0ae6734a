//! The health of the cluster: combines the errors that clients report with a thread that probes the cluster.

use std::error::Error as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::watch;

use super::error::{GRANT_WRITE, is_outage};
use crate::error::TransportError;
use crate::transport::Health;

/// A topic for probes. It need not exist or be visible; only the answer of a broker counts.
pub(super) const PROBE_TOPIC: &str = "__consumer_offsets";
/// How long an answer to a probe may take.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How many probes in a row must fail before the cluster is down. A single failure may come from a broker that is just
/// stopping or busy, and a cluster that is down fails every call. One failure is enough when the clients themselves
/// report that no broker is left.
const FAILURES: u32 = 2;
/// How many probes in a row must fail before a server that has never answered, and reports no error, is reported: a web
/// server may wait for the rest of what it takes for its own protocol.
const UNANSWERED: u32 = 3;
/// The fix if a server may not be a Kafka broker.
const CHECK: &str = "check `brokers`, `tls` and `sasl`: this may not be a Kafka broker";
/// Probe interval while the cluster does not answer.
const PROBE_WHEN_DOWN: Duration = Duration::from_millis(200);
/// How a client's message begins if a server that is no Kafka broker answers: the client reads the first four bytes as
/// a size.
const NO_BROKER: &str = "Receive failed: Invalid response size ";
/// That size if the server is a NATS server, whose greeting begins with `INFO`, or an HTTP server (`HTTP`).
const NATS_GREETING: &str = "1229866575";
const HTTP_GREETING: &str = "1213486160";
/// How a client explains, only in its log, why a broker ends a new connection: the listener has TLS, or SASL.
const WRONG_LISTENER: [&str; 2] = [NEEDS_TLS, NEEDS_SASL];
const NEEDS_TLS: &str = "connecting to a SSL listener?";
const NEEDS_SASL: &str = "broker might require SASL authentication";
/// What it says without an explanation: a broker with TLS ends the connection at the first request, and one with SASL
/// at the second.
const CLOSED: &str = "closed by peer";
const AT_FIRST: &str = "in state APIVERSION_QUERY";
const AT_SECOND: &str = "in state UP";
/// What a client says of a producer that may write to no topic, and calls fatal.
const NO_PRODUCER: &str = "Cluster authorization failed: Failed to acquire idempotence PID";
/// What a client says, and calls fatal, when another member has taken its place. The reader reports that itself, with
/// the `instance_id`.
const FENCED: &str = "Static consumer fenced by other consumer";
/// Interval between log lines about connections.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The probe interval while no client reports errors: detects dead connections.
const PROBE_WHEN_UP: Duration = Duration::from_secs(10);

/// The errors that all clients of a transport report to the thread that watches the cluster.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    state: Mutex<State>,
    changed: Condvar,
    /// When a new client was last tried, and whether it got an answer.
    newcomer: Mutex<Option<(Instant, bool)>>,
}

#[derive(Debug, Default)]
struct State {
    suspected: bool,
    stopped: bool,
    /// Since the last answered probe, a client reported that it has no broker left.
    all_down: bool,
    /// Since when every probe is answered; `None` if the last one was not.
    answers_since: Option<Instant>,
    last_error: Option<ReportedError>,
    /// Why a broker may have ended a connection, which is said as long as none has answered.
    hint: Option<String>,
    /// Why no new client can be created: a file of its secrets or certificates cannot be read.
    unreadable: Option<String>,
    /// When a line about a connection was last logged, and how many have been left out since.
    folded: Option<(Instant, u64)>,
}

/// The last error that a client reported, which is more specific than the timeout of a probe.
#[derive(Debug, Clone)]
struct ReportedError {
    reason: String,
    /// The brokers answer, but refuse us.
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
    /// Whether to log a line about a connection now (one a minute), and how many lines were suppressed before it.
    fn fold(&self, now: Instant) -> Option<u64> {
        let mut state = self.state();
        match &mut state.folded {
            Some((last, left_out)) if now < *last + LOG_INTERVAL => {
                *left_out += 1;
                None
            }
            folded => folded
                .replace((now, 0))
                .map_or(Some(0), |(_, left)| Some(left)),
        }
    }

    /// Ends the thread that watches.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Whether the connection is closed.
    pub(super) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Whether the last probe was answered.
    pub(super) fn is_answered(&self) -> bool {
        self.state().answers_since.is_some()
    }

    /// Whether the brokers refuse our credentials: then they answer no questions.
    pub(super) fn is_refused(&self) -> bool {
        self.state()
            .last_error
            .as_ref()
            .is_some_and(|last_error| last_error.refused)
    }

    /// Whether new clients get answers. For the time `shared`, all clients of the transport use one result of `ask`.
    pub(super) fn answers_newcomers(&self, shared: Duration, ask: impl FnOnce() -> bool) -> bool {
        let mut last = self.newcomer.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((at, is_answered)) if at.elapsed() < shared => is_answered,
            _ => {
                let is_answered = ask();
                *last = Some((Instant::now(), is_answered));
                is_answered
            }
        }
    }

    /// For how long every probe has been answered.
    pub(super) fn answers_for(&self) -> Duration {
        let since = self.state().answers_since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn suspect(&self, last_error: ReportedError) {
        let mut state = self.state();
        state.suspected = true;
        state.last_error = Some(last_error);
        drop(state);
        self.changed.notify_all();
    }

    fn note_hint(&self, hint: String) {
        self.state().hint = Some(hint);
    }

    /// Records that a client has no broker left. Keeps the reason from earlier errors, because this report contains
    /// only a count.
    fn all_down(&self) {
        let mut state = self.state();
        state.suspected = true;
        state.all_down = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the next probe is due after this many failures; false when there is none.
    fn wait(&self, failures: u32) -> bool {
        let mut state = self.state();
        match failures {
            0 => {
                state = self
                    .changed
                    .wait_timeout_while(state, PROBE_WHEN_UP, |state| {
                        !state.suspected && !state.stopped
                    })
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            // Complaints do not bring the probe forward: there are many of them while the cluster is unavailable.
            _ => {
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

    /// Notes whether a new client can be created. Creating one reads the files of secrets and certificates again.
    pub(super) fn note_new_client(&self, made: Result<(), &TransportError>) {
        let unreadable = made.err().map(with_causes);
        let mut state = self.state();
        if state.unreadable != unreadable {
            if let Some(cause) = &unreadable {
                tracing::warn!(%cause, "no new Kafka client can be created: the running ones keep the old secrets and certificates");
            }
            state.unreadable = unreadable;
        }
    }

    /// The reason why the cluster does not answer.
    pub(super) fn cause(&self, error: &TransportError) -> Text {
        let state = self.state();
        let reason = match &state.last_error {
            Some(last_error) => last_error.reason.clone(),
            None => error.to_string(),
        };
        Text::from(match &state.unreadable {
            Some(cause) => format!("{reason}; {cause}: the old value is used"),
            None => reason,
        })
    }
}

/// Which client a broker has answered.
pub(super) enum Answer {
    /// The producer.
    Producer,
    /// Another one; this is the health of the cluster.
    Other(Health),
}

/// Probes until the pulse stops, and publishes the result. Has its own thread, because a probe blocks.
pub(super) fn watch(
    pulse: &Pulse,
    health: &watch::Sender<Health>,
    mut probe: impl FnMut() -> Result<Answer, TransportError>,
) {
    let mut failures: u32 = 0;
    // What it is doing, until a broker has answered.
    let mut connecting = match &*health.borrow() {
        Health::Connecting(connecting) => Some(connecting.clone()),
        _ => None,
    };
    loop {
        let found = match probe() {
            Ok(answer) => {
                let mut state = pulse.state();
                state.last_error = None;
                state.all_down = false;
                failures = 0;
                connecting = None;
                match answer {
                    Answer::Producer => {
                        state.answers_since.get_or_insert_with(Instant::now);
                        Some(Health::Up)
                    }
                    // The producer may have lost the cluster.
                    Answer::Other(found) => {
                        state.answers_since = None;
                        Some(found)
                    }
                }
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                let mut state = pulse.state();
                state.answers_since = None;
                let is_down = failures >= FAILURES || state.all_down;
                let silent = connecting.as_ref().filter(|_| state.last_error.is_none());
                let hint = state.hint.clone();
                drop(state);
                match silent {
                    // It is normal that nobody answers yet.
                    Some(connecting) => (failures >= UNANSWERED).then(|| {
                        let hint = hint.unwrap_or_else(|| format!("no answer: {CHECK}"));
                        Health::Down(format!("{connecting}: {hint}").into())
                    }),
                    None => is_down.then(|| Health::Down(pulse.cause(&error))),
                }
            }
        };
        if let Some(found) = found {
            health.send_if_modified(|current| change(current, &found));
        }
        if !pulse.wait(failures) {
            return;
        }
    }
}

/// Shows the newest cause of an outage, because the first may be over while another keeps the cluster unavailable. The
/// same text about another broker is not a new cause.
fn change(current: &mut Health, found: &Health) -> bool {
    let changed = match (&*current, found) {
        (Health::Down(shown), Health::Down(newest)) => cause_of(shown) != cause_of(newest),
        (before, now) => before != now,
    };
    if changed {
        match found {
            Health::Up => tracing::debug!("the Kafka cluster answers"),
            Health::Impaired(cause) => tracing::debug!(%cause, "the Kafka cluster answers in part"),
            Health::Connecting(cause) | Health::Down(cause) => {
                tracing::debug!(%cause, "the Kafka cluster does not answer")
            }
        }
        current.clone_from(found);
    }
    changed
}

/// A cause without the name of its broker.
fn cause_of(cause: &str) -> &str {
    cause.split_once(": ").map_or(cause, |(_, cause)| cause)
}

/// An error with its causes.
fn with_causes(error: &TransportError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A client's message about a broker, human-readable: `127.0.0.1:9092: connection refused`.
fn plain(reason: &str) -> String {
    // As `sasl_plaintext://127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after
    // 0ms in state CONNECT)`.
    let (place, message) = match reason.split_once(": ") {
        Some((place, message)) if !place.contains(' ') => (place, message),
        _ => ("", reason),
    };
    let place = place.split_once("://").map_or(place, |(_, place)| place);
    let place = place.split('/').next().unwrap_or_default();
    let message = message
        .split_once(" (after ")
        .map_or(message, |(message, _)| message);
    let message = if message.contains("Request not valid in current SASL state") {
        "this listener has no SASL: remove `sasl` from the transport, or use the port of a listener with SASL"
            .to_owned()
    } else if message.contains("connecting to a PLAINTEXT broker listener?") {
        "this listener has no TLS: remove `tls` from the transport, or use the port of a listener with TLS".to_owned()
    } else if message.contains(NEEDS_TLS) {
        "the broker ends the connection: if this listener has TLS, add `tls` to the transport"
            .to_owned()
    } else if message.contains(NEEDS_SASL) {
        "the broker ends the connection: if this listener has SASL, add `sasl` to the transport"
            .to_owned()
    } else if message.contains("certificate verify failed") {
        // OpenSSL gives one reason for all of these.
        "the certificate of the broker was not accepted: it has expired, is for another host name, or its issuer is not in `tls.ca_file` (without that file: not in the certificates of the system)"
            .to_owned()
    } else if is_client_certificate(message) {
        format!(
            "the broker does not accept the certificate of this client, or wants one: check `tls.cert_file` and `tls.key_file` ({message})"
        )
    } else if message.starts_with("Send failed: ") {
        // A listener with SASL does this when it gets a request without a login.
        format!(
            "the broker ends the connection ({message}): if this lasts, check whether this listener needs `sasl` or `tls`"
        )
    } else if let Some(size) = message.strip_prefix(NO_BROKER) {
        not_a_broker(message, size)
    } else if message.starts_with("SASL authentication error") {
        format!("{message}: check `sasl`, and the users of the cluster")
    } else if let Some((_, cause)) = message
        .rsplit_once(" failed: ")
        .filter(|_| message.starts_with("Connect to "))
    {
        cause.to_ascii_lowercase()
    } else {
        message.to_owned()
    };
    if place.is_empty() {
        message
    } else {
        format!("{place}: {message}")
    }
}

/// The cause if a server that is not a Kafka broker answers, by the beginning of its answer.
fn not_a_broker(message: &str, size: &str) -> String {
    let server = match size.split(' ').next() {
        Some(NATS_GREETING) => "a NATS server",
        Some(HTTP_GREETING) => "an HTTP server",
        _ => return format!("{message}, or {CHECK}"),
    };
    format!("this is {server}, not a Kafka broker: correct `brokers`")
}

/// Whether a broker ends a connection because of the client's certificate, as in `ssl/tls alert bad certificate`.
fn is_client_certificate(message: &str) -> bool {
    message
        .split_once(" alert ")
        .is_some_and(|(_, alert)| alert.contains("certificate") || alert.starts_with("unknown ca"))
}

/// Why a broker may have ended a connection, from a line of the log that begins with the name of a thread.
fn hint(line: &str) -> Option<String> {
    let reason = line
        .strip_prefix("[thrd:")
        .and_then(|line| line.split_once("]: "))
        .map_or(line, |(_, reason)| reason);
    if WRONG_LISTENER.iter().any(|why| line.contains(why)) {
        return Some(plain(reason));
    }
    let (place, message) = reason.split_once(": ")?;
    let (has_tls, has_sasl) = (place.contains("ssl://"), place.starts_with("sasl_"));
    let needed = match message.contains(CLOSED) {
        true if message.contains(AT_FIRST) && !has_tls => NEEDS_TLS,
        true if message.contains(AT_SECOND) && !has_sasl => NEEDS_SASL,
        _ => return None,
    };
    Some(plain(&format!("{place}: {needed}")))
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
        // The keys of the configuration have other names than the properties of the client.
        let message = message.replace("ssl.ca.location", "tls.ca_file");
        if facility == "FAIL"
            && let Some(hint) = hint(&message)
        {
            self.pulse.note_hint(hint);
        }
        match level {
            // Another producer takes its place, and begins once it may.
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical
                if message.contains(NO_PRODUCER) =>
            {
                tracing::warn!(client, facility, fix = GRANT_WRITE, "{message}");
            }
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical
                if message.contains(FENCED) =>
            {
                tracing::debug!(client, facility, "{message}");
            }
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(client, facility, "{message}");
            }
            // Properties of the other kind of client in `properties`, and messages during the start of a broker: there
            // are hundreds, and none is useful. A consumer reports itself that it could not commit.
            _ if matches!(
                facility,
                "COMMITFAIL" | "CONFWARN" | "GETPID" | "METADATAUPDATE"
            ) =>
            {
                tracing::debug!(client, facility, "{message}");
            }
            // Connections open and close, and each client logs that for each broker. `health` reports the ones that
            // matter.
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning
                if matches!(facility, "DISCONN" | "ERROR" | "FAIL" | "REQTMOUT") =>
            {
                match self.pulse.fold(Instant::now()) {
                    Some(0) => tracing::info!(client, facility, "{message}"),
                    Some(more) => tracing::info!(
                        client,
                        facility,
                        more_in_the_last_minute = more,
                        "{message}"
                    ),
                    None => tracing::debug!(client, facility, "{message}"),
                }
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
        let is_no_broker = code == Code::BadMessage && reason.contains(NO_BROKER);
        if code == Code::AllBrokersDown {
            self.pulse.all_down();
        } else if refused || is_no_broker || is_outage(code) {
            self.pulse.suspect(ReportedError {
                reason: plain(reason),
                refused,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::TransportErrorKind;

    /// The result of one probe.
    #[derive(Debug, Clone, Copy)]
    enum Probe {
        Answered,
        Failed,
        /// Failed, and a client has no broker left.
        FailedAllDown,
    }

    /// Whether the cluster was up after each of the probes.
    fn check(probes: &[Probe], expected: &[bool]) {
        let (pulse, health) = (
            Pulse::default(),
            watch::Sender::new(Health::Connecting(Text::from_static("connecting"))),
        );
        let (script, seen) = (
            RefCell::new(probes.iter()),
            RefCell::new(Vec::<bool>::new()),
        );
        watch(&pulse, &health, || {
            seen.borrow_mut().push(*health.borrow() == Health::Up);
            let next = script.borrow_mut().next();
            match next {
                // Asks for the next probe at once.
                Some(Probe::Answered) => pulse.state().suspected = true,
                Some(Probe::Failed) => {}
                Some(Probe::FailedAllDown) => pulse.all_down(),
                None => pulse.stop(),
            }
            match next {
                Some(Probe::Answered) => Ok(Answer::Producer),
                _ => Err(TransportError::new(TransportErrorKind::TimedOut, "probe")),
            }
        });
        assert_eq!(&seen.borrow()[1..], expected, "{probes:?}");
    }

    #[test]
    fn reasons_are_plain_text() {
        for (reason, expected) in [
            (
                "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
                "127.0.0.1:1: connection refused",
            ),
            (
                "sasl_plaintext://127.0.0.1:1/bootstrap: SASL SCRAM-SHA-512 mechanism handshake failed: Broker: Request not valid in current SASL state: broker's supported mechanisms:  (after 1ms in state AUTH_HANDSHAKE)",
                "127.0.0.1:1: this listener has no SASL: remove `sasl` from the transport, or use the port of a listener with SASL",
            ),
            (
                "ssl://127.0.0.1:1/bootstrap: SSL handshake failed: Disconnected: SSL connection closed by peer: connecting to a PLAINTEXT broker listener? (after 1ms in state SSL_HANDSHAKE)",
                "127.0.0.1:1: this listener has no TLS: remove `tls` from the transport, or use the port of a listener with TLS",
            ),
            (
                "127.0.0.1:1/bootstrap: Disconnected while requesting ApiVersion: might be caused by incorrect security.protocol configuration (connecting to a SSL listener?) or broker version is < 0.10 (see api.version.request) (after 3ms in state APIVERSION_QUERY)",
                "127.0.0.1:1: the broker ends the connection: if this listener has TLS, add `tls` to the transport",
            ),
            (
                "sasl_plaintext://127.0.0.1:1/1: SASL authentication error: Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512 (after 211ms in state AUTH_REQ)",
                "127.0.0.1:1: SASL authentication error: Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512: check `sasl`, and the users of the cluster",
            ),
            (
                "127.0.0.1:1/bootstrap: Send failed: Broken pipe (after 2ms in state UP)",
                "127.0.0.1:1: the broker ends the connection (Send failed: Broken pipe): if this lasts, check whether this listener needs `sasl` or `tls`",
            ),
            (
                "127.0.0.1:1/bootstrap: Receive failed: Invalid response size 1229866575 (0..100000000): increase receive.message.max.bytes (after 1ms in state APIVERSION_QUERY)",
                "127.0.0.1:1: this is a NATS server, not a Kafka broker: correct `brokers`",
            ),
            (
                "127.0.0.1:1/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): increase receive.message.max.bytes (after 1ms in state APIVERSION_QUERY)",
                "127.0.0.1:1: this is an HTTP server, not a Kafka broker: correct `brokers`",
            ),
            (
                "127.0.0.1:1/bootstrap: Receive failed: Invalid response size 353697794 (0..100000000): increase receive.message.max.bytes (after 1ms in state APIVERSION_QUERY)",
                "127.0.0.1:1: Receive failed: Invalid response size 353697794 (0..100000000): increase receive.message.max.bytes, or check `brokers`, `tls` and `sasl`: this may not be a Kafka broker",
            ),
            (
                "127.0.0.1:1/bootstrap: Disconnected: verify that security.protocol is correctly configured, broker might require SASL authentication (after 3ms in state UP)",
                "127.0.0.1:1: the broker ends the connection: if this listener has SASL, add `sasl` to the transport",
            ),
            (
                "ssl://127.0.0.1:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be verified, verify that ssl.ca.location is correctly configured or root CA certificates are installed (install ca-certificates package) (after 5ms in state SSL_HANDSHAKE)",
                "127.0.0.1:1: the certificate of the broker was not accepted: it has expired, is for another host name, or its issuer is not in `tls.ca_file` (without that file: not in the certificates of the system)",
            ),
            (
                "ssl://127.0.0.1:1/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42 (after 5ms in state APIVERSION_QUERY)",
                "127.0.0.1:1: the broker does not accept the certificate of this client, or wants one: check `tls.cert_file` and `tls.key_file` (Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42)",
            ),
            ("anything else", "anything else"),
        ] {
            assert_eq!(plain(reason), expected);
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_again_is_part_of_the_cause() {
        let pulse = Pulse::default();
        let refused = TransportError::new(TransportErrorKind::TimedOut, "probe");
        let unread = TransportError::new(TransportErrorKind::BadConfig, "read sasl.password");
        let unread = unread.caused_by(std::io::Error::other("gone"));
        pulse.note_new_client(Err(&unread));
        let cause = pulse.cause(&refused);
        assert!(cause.contains("probe"), "{cause}");
        assert!(cause.contains("read sasl.password"), "{cause}");
        assert!(cause.contains("gone"), "{cause}");
        pulse.note_new_client(Ok(()));
        assert_eq!(pulse.cause(&refused).as_str(), refused.to_string());
    }

    #[test]
    fn one_line_a_minute_counts_the_suppressed_ones() {
        let (pulse, now) = (Pulse::default(), Instant::now());
        assert_eq!(pulse.fold(now), Some(0));
        assert_eq!(pulse.fold(now), None);
        assert_eq!(pulse.fold(now + LOG_INTERVAL / 2), None);
        assert_eq!(pulse.fold(now + LOG_INTERVAL), Some(2));
        assert_eq!(pulse.fold(now + LOG_INTERVAL * 2), Some(0));
    }

    #[test]
    fn the_newest_cause_of_an_outage_is_shown() {
        let (pulse, health) = (Pulse::default(), watch::Sender::new(Health::Up));
        let script = RefCell::new(["first", "first", "second", "second"].iter());
        watch(&pulse, &health, || {
            let Some(cause) = script.borrow_mut().next() else {
                pulse.stop();
                return Err(TransportError::new(TransportErrorKind::TimedOut, "second"));
            };
            Err(TransportError::new(TransportErrorKind::TimedOut, *cause))
        });
        let Health::Down(cause) = health.borrow().clone() else {
            panic!("it is not down");
        };
        assert!(cause.starts_with("second"), "{cause}");
    }

    #[test]
    fn a_server_that_never_answers_is_reported_with_the_fix() {
        let connecting = Health::Connecting(Text::from_static("connecting"));
        let (pulse, health) = (Pulse::default(), watch::Sender::new(connecting.clone()));
        let seen = RefCell::new(Vec::new());
        watch(&pulse, &health, || {
            seen.borrow_mut().push(health.borrow().clone());
            if seen.borrow().len() > 3 {
                pulse.stop();
            }
            Err(TransportError::new(TransportErrorKind::TimedOut, "probe"))
        });
        let down = Health::Down(format!("connecting: no answer: {CHECK}").into());
        let expected = [connecting.clone(), connecting.clone(), connecting, down];
        assert_eq!(seen.borrow()[..], expected);
    }

    #[test]
    fn a_broker_that_ends_new_connections_is_reported_with_the_reason() {
        let connecting = Health::Connecting(Text::from_static("connecting"));
        for (line, expected) in [
            (
                "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Disconnected: verify that security.protocol is correctly configured, broker might require SASL authentication (after 3ms in state UP)",
                "connecting: 127.0.0.1:1: the broker ends the connection: if this listener has SASL, add `sasl` to the transport",
            ),
            (
                "[thrd:[::1]:1/bootstrap]: [::1]:1/bootstrap: Disconnected: requesting ApiVersion: might be caused by incorrect security.protocol configuration (connecting to a SSL listener?) or broker version is < 0.10 (see api.version.request) (after 3ms in state APIVERSION_QUERY)",
                "connecting: [::1]:1: the broker ends the connection: if this listener has TLS, add `tls` to the transport",
            ),
            (
                "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN (after 1ms in state APIVERSION_QUERY)",
                "connecting: 127.0.0.1:1: the broker ends the connection: if this listener has TLS, add `tls` to the transport",
            ),
            (
                "[thrd:ssl://127.0.0.1:1/bootstrap]: ssl://127.0.0.1:1/bootstrap: Disconnected: SSL connection closed by peer (after 4ms in state UP)",
                "connecting: 127.0.0.1:1: the broker ends the connection: if this listener has SASL, add `sasl` to the transport",
            ),
        ] {
            let (pulse, health) = (
                Arc::new(Pulse::default()),
                watch::Sender::new(connecting.clone()),
            );
            let events = Events::new("producer", Arc::clone(&pulse));
            events.log(RDKafkaLogLevel::Info, "FAIL", line);
            watch(&pulse, &health, || {
                if !matches!(*health.borrow(), Health::Connecting(_)) {
                    pulse.stop();
                }
                Err(TransportError::new(TransportErrorKind::TimedOut, "probe"))
            });
            assert_eq!(*health.borrow(), Health::Down(expected.into()));
        }
    }

    #[test]
    fn one_failed_probe_is_not_down_and_two_are() {
        use Probe::{Answered, Failed};
        check(
            &[Answered, Failed, Answered, Failed, Failed, Answered],
            &[true, true, true, true, false, true],
        );
    }

    #[test]
    fn a_cluster_answers_from_the_first_answer_until_a_probe_fails() {
        let (pulse, health) = (Pulse::default(), watch::Sender::new(Health::Up));
        let (probes, seen) = (RefCell::new(0), RefCell::new(Vec::new()));
        watch(&pulse, &health, || {
            seen.borrow_mut().push(pulse.state().answers_since);
            *probes.borrow_mut() += 1;
            // Asks for the next probe at once.
            pulse.state().suspected = true;
            match *probes.borrow() {
                1 | 2 | 4 => Ok(Answer::Producer),
                3 => Err(TransportError::new(TransportErrorKind::TimedOut, "probe")),
                _ => {
                    pulse.stop();
                    Ok(Answer::Producer)
                }
            }
        });
        let [before, first, second, failed, again] = seen.borrow()[..] else {
            panic!("{seen:?}");
        };
        assert!(before.is_none() && first.is_some() && first == second);
        assert!(failed.is_none() && again > first);
    }

    #[test]
    fn one_failure_means_down_if_no_other_broker_remains() {
        use Probe::{Answered, Failed, FailedAllDown};
        check(
            &[Answered, FailedAllDown, Answered, Failed],
            &[true, false, true, true],
        );
    }
}
