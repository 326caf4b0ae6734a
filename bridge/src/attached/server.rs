//! The program of an attached agent: started, started again with a back-off when it ends, stopped with the bridge.
//!
//! ```text
//! start ─> initialize ─> tools/list ─> up ─┬─ it ends: every call fails ─> pause ─> start
//!                                          └─ the bridge ends: stdin closed ─> SIGTERM ─> SIGKILL
//! ```

use std::collections::HashSet;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use prometheus::IntCounter;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::link::{Gone, Line, Link, Log};
use crate::bus::delivery::jittered;
use crate::calls::failure::{Failure, Reason};
use crate::config::AttachConfig;
use crate::lines::Lines;
use crate::metrics::Metrics;
use crate::seldom::LogLimits;

/// An attached program.
#[derive(Debug)]
pub(crate) struct Server {
    agent: Text,
    config: AttachConfig,
    state: watch::Sender<State>,
    starts: IntCounter,
    log: Arc<Log>,
}

#[derive(Debug, Clone)]
enum State {
    /// It is about to be up.
    Starting,
    Up(Arc<Up>),
    /// It ended before it was up, and why.
    Failing(Arc<str>),
}

/// A program that answers.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) link: Arc<Link>,
    /// What it answered to `initialize`.
    pub(super) profile: Box<RawValue>,
}

/// How a run ended.
enum Ended {
    /// The bridge ends.
    Stopped,
    /// Why, and whether it was up before.
    Failed(String, bool),
}

/// Messages that wait until the program reads them.
const QUEUE: usize = 64;
/// The longest line of its output, and of its log.
const MOST: usize = 64 << 20;
const MOST_LOG: usize = 4 << 10;
/// How long it may take to answer `initialize`: it may have to be downloaded first.
const START: Duration = Duration::from_secs(60);
/// The pauses between two starts, the first and the longest, and how long a run has to last to begin with the first.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
const STEADY: Duration = Duration::from_secs(30);
/// How long it may take to end after its input is closed, and after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// How long its last lines may take after it has ended.
const LAST_LINES: Duration = Duration::from_secs(1);
/// What of the bridge's environment it gets.
const ENVIRONMENT: [&str; 9] = [
    "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];
/// The most pages of its list of tools.
const MOST_PAGES: usize = 50;

// === impl Server ===

impl Server {
    pub(crate) fn new(
        agent: &Text,
        config: &AttachConfig,
        metrics: &Metrics,
        log: &LogLimits,
    ) -> Self {
        Self {
            agent: agent.clone(),
            config: config.clone(),
            state: watch::Sender::new(State::Starting),
            starts: metrics.attached_starts(agent),
            log: Arc::new(Log {
                agent: agent.clone(),
                strange: log.seldom_of(agent, Level::WARN, "more mistakes of its program"),
                dropped: log.seldom_of(
                    agent,
                    Level::WARN,
                    "more messages of its program went to nobody",
                ),
                drops: metrics.attached_drops(agent),
                stderr: log.seldom_of(agent, Level::INFO, "more lines of its program's log"),
            }),
        }
    }

    /// The program, once it answers.
    ///
    /// # Errors
    /// Why it does not start.
    pub(super) async fn up(&self) -> Result<Arc<Up>, Failure> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Starting));
        match settled.await.map(|state| state.clone()) {
            Ok(State::Up(up)) => Ok(up),
            Ok(State::Failing(why)) => Err(Failure::new(Reason::AgentUnavailable, &*why)),
            Ok(State::Starting) | Err(_) => {
                let message = "the program of this agent is not running";
                Err(Failure::new(Reason::AgentUnavailable, message))
            }
        }
    }

    /// The program, if it answers now.
    pub(super) fn now_up(&self) -> Option<Arc<Up>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Arc::clone(up)),
            State::Starting | State::Failing(_) => None,
        }
    }

    /// Keeps the program running until `stop`, and ends it then.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut pause = PAUSES[0];
        loop {
            let began = Instant::now();
            self.starts.inc();
            let Ended::Failed(why, was_up) = self.once(&stop).await else {
                return;
            };
            if began.elapsed() > STEADY {
                pause = PAUSES[0];
            }
            let agent = &self.agent;
            tracing::error!(%agent, why, pause_ms = pause.as_millis(), "the program of an attached agent has ended: its calls fail, and it is started again");
            if !was_up {
                let why = format!("the program of this agent does not start: {why}");
                self.state.send_replace(State::Failing(why.into()));
            }
            if stop
                .run_until_cancelled(sleep(jittered(pause)))
                .await
                .is_none()
            {
                return;
            }
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// One run of the program.
    async fn once(&self, stop: &CancellationToken) -> Ended {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => {
                let program = self.config.command.first().map_or("", String::as_str);
                return Ended::Failed(format!("{program:?} cannot be started: {error}"), false);
            }
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Ended::Failed("it has no pipes".to_owned(), false);
        };
        let (input, queue) = mpsc::channel(QUEUE);
        let link = Link::new(input, self.config.concurrency == 1, Arc::clone(&self.log));
        let link = Arc::new(link);
        let listening = async { tokio::join!(read(stdout, &link), self.drain(stderr)) };
        // It may end before it is waited for again.
        let mut listening = std::pin::pin!(listening.map(drop).fuse());
        // At the end of this its input is closed.
        let why = tokio::select! {
            () = stop.cancelled() => None,
            status = child.wait() => Some(shown(status)),
            () = &mut listening => Some("it has closed its output".to_owned()),
            error = write(stdin, queue, &link) => Some(format!("it does not read its input: {error}")),
            why = self.greet(&link) => Some(why),
        };
        let ended = self.down(why);
        if matches!(ended, Ended::Failed(..)) && !listening.is_terminated() {
            // Its last answers.
            let _ = timeout(LAST_LINES, &mut listening).await;
        }
        link.close();
        let heard = async {
            listening.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.end(&mut child, group) => {}
            () = heard => {}
        }
        ended
    }

    /// No call is for this run any more: those that come now wait for the next one.
    fn down(&self, why: Option<String>) -> Ended {
        let Some(why) = why else {
            let message = "the program of this agent is ended with the bridge";
            self.state.send_replace(State::Failing(message.into()));
            return Ended::Stopped;
        };
        let was_up = self.state.send_if_modified(|state| {
            let was_up = matches!(state, State::Up(_));
            if was_up {
                *state = State::Starting;
            }
            was_up
        });
        Ended::Failed(why, was_up)
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let [program, arguments @ ..] = self.config.command.as_slice() else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        let inherited = ENVIRONMENT.into_iter();
        let inherited = inherited.filter_map(|name| Some((name, std::env::var_os(name)?)));
        command
            .args(arguments)
            .env_clear()
            .envs(inherited)
            .envs(&self.config.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for the bridge, which ends the program in order.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(directory) = &self.config.directory {
            command.current_dir(directory);
        }
        command.spawn()
    }

    /// Ends the program, whose input is closed.
    async fn end(&self, child: &mut Child, group: Option<Pid>) {
        let signal = |signal| {
            // Without the process there is nothing to do.
            let _ = group.map(|group| kill_process_group(group, signal));
        };
        if timeout(GRACE, child.wait()).await.is_err() {
            signal(Signal::TERM);
            if timeout(GRACE, child.wait()).await.is_err() {
                tracing::warn!(agent = %self.agent, "the program of an attached agent ignores SIGTERM: it is killed");
            }
        }
        // It, or what it has started itself.
        signal(Signal::KILL);
        let _ = child.wait().await;
    }

    /// Begins as an MCP client, and keeps up with its tools. Why it failed.
    async fn greet(&self, link: &Arc<Link>) -> String {
        match timeout(START, self.initialize(link)).await {
            Err(_) => return format!("it has not answered initialize within {START:?}"),
            Ok(Err(why)) => return why,
            Ok(Ok(profile)) => {
                let up = Up {
                    link: Arc::clone(link),
                    profile,
                };
                self.state.send_replace(State::Up(Arc::new(up)));
                tracing::info!(agent = %self.agent, "the program of an attached agent is up");
            }
        }
        loop {
            link.tools_changed().await;
            self.look_at_tools(link).await;
        }
    }

    async fn initialize(&self, link: &Arc<Link>) -> Result<Box<RawValue>, String> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            result: Option<Box<RawValue>>,
            #[serde(default)]
            error: Option<Box<RawValue>>,
        }
        let abilities = match self.config.concurrency {
            1 => json!({ "sampling": {}, "elicitation": {}, "roots": {} }),
            _ => json!({}),
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": abilities,
            "clientInfo": { "name": "a2abus", "version": env!("CARGO_PKG_VERSION") },
        });
        let gone = |Gone| "it has ended before it answered initialize".to_owned();
        let answer = link.ask("initialize", &params.to_string()).await;
        let answer: Answer = serde_json::from_slice(&answer.map_err(gone)?)
            .map_err(|error| format!("its answer to initialize: {error}"))?;
        let profile = answer.result.ok_or_else(|| {
            let error = answer.error.as_deref().map_or("no result", RawValue::get);
            format!("its answer to initialize: {error}")
        })?;
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let initialized = Bytes::from_static(initialized.as_bytes());
        link.send(initialized).await.map_err(gone)?;
        self.look_at_tools(link).await;
        Ok(profile)
    }

    /// Reads which tools may be called twice.
    async fn look_at_tools(&self, link: &Arc<Link>) {
        #[derive(Deserialize)]
        struct Answer {
            result: Page,
        }
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            tools: Vec<Tool>,
            #[serde(rename = "nextCursor", default)]
            next: Option<String>,
        }
        #[derive(Deserialize)]
        struct Tool {
            name: String,
            #[serde(default)]
            annotations: Annotations,
        }
        #[derive(Default, Deserialize)]
        struct Annotations {
            #[serde(rename = "readOnlyHint", default)]
            reads: bool,
            #[serde(rename = "idempotentHint", default)]
            is_idempotent: bool,
        }
        let mut repeatable = HashSet::new();
        let mut params = json!({});
        for _ in 0..MOST_PAGES {
            let Ok(answer) = link.ask("tools/list", &params.to_string()).await else {
                return;
            };
            // A server without tools answers with an error.
            let Ok(Answer { result: page }) = serde_json::from_slice(&answer) else {
                break;
            };
            let safe = |tool: &Tool| tool.annotations.reads || tool.annotations.is_idempotent;
            let tools = page.tools.into_iter().filter(safe);
            repeatable.extend(tools.map(|tool| Text::from(tool.name)));
            let Some(next) = page.next else { break };
            params = json!({ "cursor": next });
        }
        link.set_repeatable(repeatable);
    }

    /// Logs what it writes to standard error. Every line is read, so that it never waits.
    async fn drain(&self, stderr: impl AsyncRead + Unpin) {
        let mut lines = Lines::new(stderr, MOST_LOG);
        while let Ok(Some(line)) = lines.next().await {
            if !line.bytes.is_empty()
                && let Some(suppressed) = self.log.stderr.allow()
            {
                let text = String::from_utf8_lossy(&line.bytes);
                tracing::info!(agent = %self.agent, suppressed, is_cut = line.is_cut, "its program: {text}");
            }
        }
    }
}

fn shown(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("it has ended with {status}"),
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

async fn read(stdout: impl AsyncRead + Unpin, link: &Link) {
    let mut lines = Lines::new(stdout, MOST);
    while let Ok(Some(line)) = lines.next().await {
        if line.is_cut {
            link.strange(&format!(
                "an attached program has written a line of more than {MOST} bytes"
            ));
        } else if !line.bytes.trim_ascii().is_empty() {
            link.hear(&line.bytes);
        }
    }
}

/// Writes one message on each line; why that is not possible any more.
async fn write(
    mut stdin: ChildStdin,
    mut queue: mpsc::Receiver<Line>,
    link: &Link,
) -> std::io::Error {
    while let Some(line) = queue.recv().await {
        let Some(message) = link.written(line) else {
            continue;
        };
        // Between the tokens of JSON, the only place where it can have line ends, a space means the same.
        let ends = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let mut line: Vec<u8> = message.to_vec();
        line.iter_mut()
            .filter(|byte| ends(byte))
            .for_each(|byte| *byte = b' ');
        line.push(b'\n');
        if let Err(error) = stdin.write_all(&line).await {
            return error;
        }
    }
    std::io::ErrorKind::BrokenPipe.into()
}
