//! An attached MCP server: started, and restarted with a back-off when it ends.
//!
//! ```text
//! begin ─> initialize ─> tools/list ─> up ─┬─ it ends: its calls fail, or go on beside the next session ─> pause ─> begin
//!                                          └─ the bridge ends
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use prometheus::IntCounter;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::lifecycle::{Lifecycle, RunEnd};
use super::link::Log;
use super::program::Program;
use super::session::{Remaining, Session};
use crate::bus::delivery::jittered;

/// An attached MCP server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(super) lifecycle: Lifecycle,
    pub(super) transport: ServerTransport,
    pub(super) starts: IntCounter,
    pub(super) log: Arc<Log>,
}

/// The transport to a server.
#[derive(Debug)]
pub(super) enum ServerTransport {
    Program(Program),
    Session(Session),
}

/// The first and the longest pause between two starts. The longest is shorter for sessions, because opening one costs
/// less than starting a program.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
const MAX_SESSION_PAUSE: Duration = Duration::from_secs(4);
/// After a run of this length, the back-off starts again with the first pause.
const STEADY: Duration = Duration::from_secs(30);

/// How often the cause is logged again while a server does not start.
const REMIND: Duration = Duration::from_secs(60);

// === impl Server ===

impl Server {
    /// Keeps the server running until `stop`, then stops it.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let longest = match &self.transport {
            ServerTransport::Program(_) => PAUSES[1],
            ServerTransport::Session(_) => MAX_SESSION_PAUSE,
        };
        let mut pause = PAUSES[0];
        let mut former = FuturesUnordered::new();
        // Why the last start failed, as logged, and when.
        let mut reported: Option<(String, Instant)> = None;
        loop {
            let began = Instant::now();
            self.starts.inc();
            let once = async {
                match &self.transport {
                    ServerTransport::Program(program) => {
                        (program.once(&self.lifecycle, &stop).await, None)
                    }
                    ServerTransport::Session(session) => session.once(&self.lifecycle, &stop).await,
                }
            };
            let (ended, remaining) = Box::pin(beside(&mut former, once)).await;
            former.extend(remaining);
            let RunEnd::Failed(why, was_up) = ended else {
                return;
            };
            if began.elapsed() > STEADY {
                pause = PAUSES[0];
            }
            let is_known = |(known, at): &(String, Instant)| *known == why && at.elapsed() < REMIND;
            if was_up || !reported.as_ref().is_some_and(is_known) {
                let is_logged = self.report(&why, was_up, pause);
                reported = (is_logged && !was_up).then(|| (why.clone(), Instant::now()));
            }
            match (&self.transport, was_up) {
                (ServerTransport::Program(_), true) => self.lifecycle.away(&why),
                // The server may still be reachable; the next session shows that.
                (ServerTransport::Session(_), true) => {}
                (ServerTransport::Program(_), false) => {
                    let why = format!("the program of this agent does not start: {why}");
                    self.lifecycle.fails(why);
                }
                (ServerTransport::Session(_), false) => {
                    let why = format!("there is no session with the server of this agent: {why}");
                    self.lifecycle.fails(why);
                }
            }
            let pausing = stop.run_until_cancelled(sleep(jittered(pause)));
            if beside(&mut former, pausing).await.is_none() {
                return;
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Logs the end of a run. Returns whether the rate limit allowed it.
    fn report(&self, why: &str, was_up: bool, pause: Duration) -> bool {
        let Some(suppressed) = self.log.ends.allow() else {
            return false;
        };
        let (agent, pause_ms) = (&self.log.agent, pause.as_millis());
        match (&self.transport, was_up) {
            (ServerTransport::Program(_), true) => {
                tracing::error!(%agent, why, pause_ms, suppressed, "the program of an attached agent has exited: new calls wait until it is restarted");
            }
            (ServerTransport::Program(_), false) => {
                tracing::error!(%agent, why, pause_ms, suppressed, "the program of an attached agent did not start: its calls fail until it does");
            }
            (ServerTransport::Session(_), true) => {
                tracing::error!(%agent, why, pause_ms, suppressed, "the session with the server of an attached agent has ended: new calls wait for the next session");
            }
            (ServerTransport::Session(_), false) => {
                tracing::error!(%agent, why, pause_ms, suppressed, "cannot start a session with the server of an attached agent: its calls fail until one starts");
            }
        }
        true
    }
}

/// The result of `work`. Meanwhile the calls of former sessions go on.
async fn beside<T>(
    former: &mut FuturesUnordered<Remaining<'_>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return result,
            Some(()) = former.next() => {}
        }
    }
}
