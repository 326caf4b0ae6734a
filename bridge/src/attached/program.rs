//! The program of an attached agent: an MCP server over stdio.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::splice;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use http::HeaderMap;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::lifecycle::{INITIALIZED, Lifecycle, MAX_MESSAGE, QUEUE, RunEnd, START, profile};
use super::link::{Disconnected, Line, Link, Log};
use super::members::{WithMeta, WithParams};
use crate::config::TextOrSecret;
use crate::lines::{Lines, on_one_line};
use crate::lock::lock;
use crate::object::{self, present};

/// A program and how to start it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, TextOrSecret>,
    pub(super) directory: Option<PathBuf>,
    pub(super) log: Arc<Log>,
}

/// Longer lines of its log are cut.
const MAX_LOG: usize = 4 << 10;
/// How long it may take to exit after its input is closed, and again after SIGTERM. Together less than the process
/// waits for its tasks when it ends.
const GRACE: Duration = Duration::from_secs(1);
/// How long to read its last lines after it has exited, and to wait for its exit after it has closed its output.
const LAST_LINES: Duration = Duration::from_secs(1);
/// The variables of the bridge's environment that it inherits.
const ENVIRONMENT: [&str; 9] = [
    "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];

/// The program and all processes that it has started. Dropping it kills those that are left.
struct Group(Option<Pid>);

/// The process groups of all programs. When the bridge exits at once, no destructor runs, so it kills them itself.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Kills all programs and the processes that they have started, before the process exits at once.
pub(crate) fn kill_programs() {
    for group in lock(&GROUPS).iter() {
        // An error means that all are gone already.
        let _ = kill_process_group(*group, Signal::KILL);
    }
}

// === impl Group ===

impl Group {
    fn of(child: &Child) -> Self {
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        lock(&GROUPS).extend(group);
        Self(group)
    }

    fn signal(&self, signal: Signal) {
        // An error means that all are gone already.
        let _ = self.0.map(|group| kill_process_group(group, signal));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        lock(&GROUPS).retain(|group| Some(*group) != self.0);
    }
}

// === impl Program ===

impl Program {
    /// One run of the program.
    pub(super) async fn once(&self, lifecycle: &Lifecycle, stop: &CancellationToken) -> RunEnd {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(why) => return RunEnd::Failed(why, false),
        };
        let group = Group::of(&child);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return RunEnd::Failed("it has no pipes".to_owned(), false);
        };
        let (input, queue) = mpsc::channel(QUEUE);
        let link = Link::new(
            input,
            lifecycle.is_single,
            Arc::clone(&lifecycle.watched),
            Arc::clone(&self.log),
        );
        let link = Arc::new(link);
        let last_line = Mutex::default();
        let listening = async { tokio::join!(read(stdout, &link), self.drain(stderr, &last_line)) };
        // It may end before it is polled again.
        let mut listening = std::pin::pin!(listening.map(drop).fuse());
        // The input is closed at the end of this block.
        let why = tokio::select! {
            () = stop.cancelled() => None,
            status = child.wait() => Some(shown(status)),
            // A program that exits closes its output first.
            () = &mut listening => tokio::select! {
                () = stop.cancelled() => None,
                status = timeout(LAST_LINES, child.wait()) => Some(match status {
                    Ok(status) => shown(status),
                    Err(_still_runs) => "it closed its output".to_owned(),
                }),
            },
            error = write(stdin, queue, &link) => Some(format!("it does not read its input: {error}")),
            why = self.greet(lifecycle, &link) => Some(why),
        };
        let ended = lifecycle.down(why);
        if matches!(ended, RunEnd::Failed(..)) && !listening.is_terminated() {
            // Read its last answers.
            let _ = timeout(LAST_LINES, &mut listening).await;
        }
        let last_line = std::mem::take(&mut *lock(&last_line));
        if matches!(ended, RunEnd::Failed(..)) && !last_line.is_empty() {
            // It usually has the cause, and it may be one of the lines that are not logged.
            tracing::warn!(agent = %self.log.agent, "the attached program has failed; the last line of its standard error: {last_line}");
        }
        link.close();
        let read = async {
            listening.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.end(&mut child, group) => {}
            () = read => {}
        }
        ended
    }

    /// Starts the program, or returns why it cannot be started.
    fn spawn(&self) -> Result<Child, String> {
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err("its command is empty".to_owned());
        };
        let own = self.env.iter().map(|(name, value)| {
            let value = value.reveal();
            let value = value.map_err(|error| format!("its environment: {name}: {error}"))?;
            Ok::<_, String>((name, value))
        });
        let own: Vec<_> = own.collect::<Result<_, _>>()?;
        let mut command = Command::new(program);
        let inherited = ENVIRONMENT.into_iter();
        let inherited = inherited.filter_map(|name| Some((name, std::env::var_os(name)?)));
        command
            .args(arguments)
            .env_clear()
            .envs(inherited)
            .envs(own)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In a terminal, Ctrl-C then reaches only the bridge, which stops the program in order.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(directory) = &self.directory {
            // The error of a start does not tell whether the program or the directory is at fault.
            let found = std::fs::metadata(directory)
                .map_err(|error| format!("its working directory {directory:?}: {error}"))?;
            if !found.is_dir() {
                return Err(format!(
                    "its working directory {directory:?} is not a directory"
                ));
            }
            command.current_dir(directory);
        }
        command
            .spawn()
            .map_err(|error| format!("{program:?} cannot be started: {error}"))
    }

    /// Stops the program after its input was closed.
    async fn end(&self, child: &mut Child, group: Group) {
        if timeout(GRACE, child.wait()).await.is_err() {
            group.signal(Signal::TERM);
            if timeout(GRACE, child.wait()).await.is_err() {
                tracing::warn!(agent = %self.log.agent, "the program of an attached agent ignores SIGTERM and is killed");
            }
        }
        drop(group);
        let _ = child.wait().await;
    }

    /// Initializes the MCP server and serves its calls. Returns why that ended.
    async fn greet(&self, lifecycle: &Lifecycle, link: &Arc<Link>) -> String {
        match timeout(START, initialize(lifecycle, link)).await {
            Err(_) => format!("it did not answer initialize within {START:?}"),
            Ok(Err(why)) => why,
            Ok(Ok(profile)) => lifecycle.serve(link, profile).await,
        }
    }

    /// Logs its standard error. Reads every line, so that the program never blocks.
    async fn drain(&self, stderr: impl AsyncRead + Unpin, last_line: &Mutex<String>) {
        let mut lines = Lines::new(stderr, MAX_LOG);
        while let Ok(Some(line)) = lines.next().await {
            if line.bytes.trim_ascii().is_empty() {
                continue;
            }
            let text = String::from_utf8_lossy(&line.bytes);
            lock(last_line).replace_range(.., &text);
            if let Some(suppressed) = self.log.stderr.allow() {
                tracing::info!(agent = %self.log.agent, suppressed, is_cut = line.is_cut, "standard error of the attached program: {text}");
            }
        }
    }
}

/// Its answer to `initialize`.
async fn initialize(lifecycle: &Lifecycle, link: &Arc<Link>) -> Result<Box<RawValue>, String> {
    let gone = |Disconnected| "it exited before it answered initialize".to_owned();
    let answer = link
        .ask("initialize", &Lifecycle::introduction(lifecycle.is_single))
        .await;
    let answer = answer.map_err(gone)?;
    let profile = profile(&answer.map_err(|failure| failure.message().to_owned())?)?;
    let initialized = Bytes::from_static(INITIALIZED.as_bytes());
    link.send(initialized).await.map_err(gone)?;
    Ok(profile)
}

fn shown(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match status.code() {
            Some(code) => format!("it exited with status {code}"),
            None => format!("it was ended by {status}"),
        },
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

async fn read(stdout: impl AsyncRead + Unpin, link: &Link) {
    let mut lines = Lines::new(stdout, MAX_MESSAGE);
    while let Ok(Some(line)) = lines.next().await {
        if line.is_cut {
            link.strange(&format!(
                "an attached program wrote a line of more than {MAX_MESSAGE} bytes"
            ));
        } else if !line.bytes.trim_ascii().is_empty() {
            link.until_room(None).await;
            let _answered = link.receive(&line.bytes, None);
        }
    }
}

/// Writes one message per line until that fails, and returns the error.
async fn write(
    mut stdin: ChildStdin,
    mut queue: mpsc::Receiver<Line>,
    link: &Link,
) -> std::io::Error {
    while let Some(line) = queue.recv().await {
        let Some((message, call)) = link.written(line) else {
            continue;
        };
        let message = match &call {
            Some(call) => traced(message, &call.headers),
            None => message,
        };
        if let Err(error) = stdin.write_all(&on_one_line(&message)).await {
            return error;
        }
    }
    std::io::ErrorKind::BrokenPipe.into()
}

/// Adds the trace context of the headers to `params._meta` of a request, unless it is already there. Nothing else
/// changes. Source: MCP 2026-07-28, "Trace context"; SEP-414.
fn traced(message: Bytes, headers: &HeaderMap) -> Bytes {
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(default, borrow, deserialize_with = "present")]
        traceparent: Option<&'a RawValue>,
        #[serde(default, borrow, deserialize_with = "present")]
        tracestate: Option<&'a RawValue>,
    }
    let Some(members) = trace_members(headers) else {
        return message;
    };
    // A message that is not an object, or has a duplicate member, stays unchanged.
    let read = || {
        let WithParams { params } = object::from_slice(&message).ok()?;
        let Some(params) = params else {
            let start = message.iter().position(|it| *it == b'{')? + 1;
            return Some((start, format!(r#""params":{{"_meta":{{{members}}}}},"#)));
        };
        let WithMeta { meta } = object::from_slice(params.get().as_bytes()).ok()?;
        let Some(meta) = meta else {
            let (start, comma) = within(&message, params);
            return Some((start, format!(r#""_meta":{{{members}}}{comma}"#)));
        };
        let own: Meta<'_> = object::from_slice(meta.get().as_bytes()).ok()?;
        let (start, comma) = within(&message, meta);
        (own.traceparent.is_none() && own.tracestate.is_none())
            .then(|| (start, format!("{members}{comma}")))
    };
    match read() {
        Some((start, inserted)) => splice(&message, start..start, &inserted),
        None => message,
    }
}

/// Where members can be inserted into an object, and the separator they need.
fn within(message: &Bytes, object: &RawValue) -> (usize, &'static str) {
    let start = range_of(message, object.get()).start + 1;
    let rest = object.get().get(1..).unwrap_or_default();
    match rest.trim_ascii_start().starts_with('}') {
        true => (start, ""),
        false => (start, ","),
    }
}

/// The trace context of headers, as members of a JSON object.
fn trace_members(headers: &HeaderMap) -> Option<String> {
    let parent = json!(headers.get("traceparent")?.to_str().ok()?);
    let state = headers.get("tracestate").and_then(|it| it.to_str().ok());
    let state = state.map(|state| format!(r#","tracestate":{}"#, json!(state)));
    Some(format!(
        r#""traceparent":{parent}{}"#,
        state.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_request_gets_the_trace_context_where_it_has_none() {
        let mut headers = HeaderMap::new();
        let relayed = |headers: &HeaderMap, message: &'static str| {
            let message = Bytes::from_static(message.as_bytes());
            String::from_utf8(traced(message, headers).to_vec()).unwrap()
        };
        let bare = r#"{"id":1,"method":"m"}"#;
        assert_eq!(relayed(&headers, bare), bare);
        headers.insert("traceparent", HeaderValue::from_static("00-a-b-01"));
        headers.insert("tracestate", HeaderValue::from_static("k=\"v\""));
        let added = r#""traceparent":"00-a-b-01","tracestate":"k=\"v\"""#;
        for (message, expected) in [
            (
                bare,
                format!(r#"{{"params":{{"_meta":{{{added}}}}},"id":1,"method":"m"}}"#),
            ),
            (
                r#" {"params":{ },"id":1}"#,
                format!(r#" {{"params":{{"_meta":{{{added}}} }},"id":1}}"#),
            ),
            (
                r#"{"params":{ "n":1.0e2},"id":1}"#,
                format!(r#"{{"params":{{"_meta":{{{added}}}, "n":1.0e2}},"id":1}}"#),
            ),
            (
                r#"{"params":{"n":1,"_meta":{"progressToken":7}},"id":1}"#,
                format!(r#"{{"params":{{"n":1,"_meta":{{{added},"progressToken":7}}}},"id":1}}"#),
            ),
        ] {
            assert_eq!(relayed(&headers, message), expected);
        }
        for unchanged in [
            r#"{"params":{"_meta":{"traceparent":"own"}},"id":1}"#,
            r#"{"params":{"_meta":{"tracestate":"own"}},"id":1}"#,
            r#"{"params":{"_meta":{"traceparent":null}},"id":1}"#,
            r#"{"params":[],"id":1}"#,
            r#"{"params":[1],"id":1}"#,
            r#"{"params":[{}],"id":1}"#,
            r#"{"params":null,"id":1}"#,
            r#"{"params":{"_meta":7},"id":1}"#,
            r#"{"params":{"_meta":[]},"id":1}"#,
            r#"{"params":{"_meta":null},"id":1}"#,
            r#"[{"params":{}}]"#,
            r#"{"params":{"_meta":{},"_meta":{}},"id":1}"#,
        ] {
            assert_eq!(relayed(&headers, unchanged), unchanged);
        }
    }
}
