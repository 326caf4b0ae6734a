//! The rate-limited log lines about failing destinations.

use a2abus_plugin::Text;
use a2abus_transports::{Disposition, TransportError};
use tokio::time::Instant;
use tracing::Level;

use crate::bus::Buses;
use crate::bus::outbound::Outgoing;
use crate::calls::callid::shown_topic;
use crate::log_limit::{LogLimit, LogLimits};

#[derive(Debug)]
pub(super) struct DestinationLog {
    failures: LogLimit,
    reminders: LogLimit,
    recoveries: LogLimit,
    losses: LogLimit,
    unconfirmed: LogLimit,
}

/// The name of a destination in logs and in `/readyz`.
pub(super) struct DestinationName<'a> {
    pub(super) transport: &'a str,
    pub(super) topic: String,
}

/// How long a destination has failed, how many senders wait, and the number of suppressed reminders.
pub(super) struct Reminder {
    pub(super) since: Instant,
    pub(super) waiting: usize,
    pub(super) suppressed: u64,
}

// === impl DestinationLog ===

impl DestinationLog {
    pub(super) fn new(log: &LogLimits) -> Self {
        let warn = |what| log.limit(Level::WARN, what);
        Self {
            failures: warn("more destinations started to fail"),
            reminders: warn("more reminders of destinations that still fail"),
            recoveries: log.limit(Level::INFO, "more destinations accept messages again"),
            losses: warn("more messages of callers were not published"),
            unconfirmed: warn("more messages of callers were not confirmed"),
        }
    }

    pub(super) fn failed(
        &self,
        DestinationName { transport, topic }: &DestinationName<'_>,
        error: &TransportError,
    ) {
        let Some(suppressed) = self.failures.allow() else {
            return;
        };
        if needs_repair(error) {
            tracing::error!(transport, %topic, %error, suppressed,
                "the destination refuses messages: check that the topic exists, that the bridge may write to it, and that it has room. Until then, messages of bindings wait for it, dead letters of core NATS are lost, and calls fail");
        } else {
            tracing::warn!(transport, %topic, %error, suppressed,
                "the destination is temporarily unavailable: lanes wait and retry");
        }
    }

    /// Whether a reminder may be logged now, with the number of suppressed ones since the last.
    pub(super) fn allows_reminder(&self) -> Option<u64> {
        self.reminders.allow()
    }

    pub(super) fn still_fails(
        &self,
        DestinationName { transport, topic }: &DestinationName<'_>,
        error: &TransportError,
        reminder: &Reminder,
    ) {
        let Reminder {
            since,
            waiting,
            suppressed,
        } = reminder;
        let seconds = since.elapsed().as_secs();
        if needs_repair(error) {
            tracing::error!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination still refuses messages: check that the topic exists, its permissions and its space");
        } else {
            tracing::warn!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination is still unavailable");
        }
    }

    pub(super) fn works(
        &self,
        DestinationName { transport, topic }: &DestinationName<'_>,
        copies: u64,
        since: Instant,
    ) {
        if let Some(suppressed) = self.recoveries.allow() {
            tracing::info!(
                transport,
                %topic,
                copies_not_accepted = copies,
                seconds = since.elapsed().as_secs_f64(),
                suppressed,
                "the destination accepts messages again: waiting messages are sent"
            );
        }
    }

    pub(super) fn forgotten(
        &self,
        DestinationName { transport, topic }: &DestinationName<'_>,
        error: &TransportError,
    ) {
        if let Some(suppressed) = self.recoveries.allow() {
            tracing::info!(transport, %topic, %error, suppressed,
                "no message waits for this destination any more; the next one will be tried");
        }
    }

    /// Counts and logs a copy that is not sent again; `is_open` is whether it may have arrived.
    pub(super) fn lost(
        &self,
        buses: &Buses,
        copy: &Outgoing,
        error: &TransportError,
        is_open: bool,
    ) {
        let Some(bus) = buses.get(copy.bus) else {
            return;
        };
        bus.metrics.given_up(error.kind());
        let (limit, what) = match is_open {
            true => (
                &self.unconfirmed,
                "a message of a caller was not confirmed: it may not have arrived, and is not sent again",
            ),
            false => (&self.losses, "a message of a caller was not published"),
        };
        if let Some(suppressed) = limit.allow() {
            tracing::warn!(
                transport = %bus.name.text(), topic = %shown_topic(copy.address.topic.as_str()), %error, suppressed,
                call = copy.call.as_ref().map(Text::as_str), agent = copy.agent.as_ref().map(Text::as_str),
                "{what}"
            );
        }
    }
}

/// Whether an operator has to repair the destination.
pub(in crate::bus::delivery) fn needs_repair(error: &TransportError) -> bool {
    error.disposition() == Disposition::Pause
}
