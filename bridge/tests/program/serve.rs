//! `a2abus serve` and `a2abus demo --serve` as a shell and a caller see them: signals, logs, many calls.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here takes, so that a test that hangs fails.
const SOON: Duration = Duration::from_secs(60);

const CONFIG: &str = "
transports: { local: { type: memory } }
routes: [ { name: all, when: { targetagent: '*' }, to: [ { transport: local, topic: 'agents.{targetagent}' } ] } ]
http: { listen: '127.0.0.1:0' }
admin: { listen: '127.0.0.1:0' }
telemetry: { log_format: json }
";

/// A request whose agent does not answer.
const UNANSWERED: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":"a"}}"#;

/// A bridge that runs as a process, and its log.
struct Served {
    child: Child,
    log: mpsc::Receiver<Value>,
    door: String,
    admin: String,
    directory: TempDir,
}

impl Served {
    fn start(config: &str) -> Self {
        Self::start_in(config, "")
    }

    /// Starts it in a shell that has run `before`.
    fn start_in(config: &str, before: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("a2abus.yaml");
        std::fs::write(&file, config).unwrap();
        let script = format!("{before}\nexec \"$0\" serve -c \"$1\"");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_a2abus")])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut served = Self {
            child,
            log,
            door: String::new(),
            admin: String::new(),
            directory,
        };
        let started = served.next_line(|line| line["message"] == "started");
        served.door = started["door"].as_str().unwrap().to_owned();
        served.admin = started["admin"].as_str().unwrap().to_owned();
        while !get(&served.admin, "/readyz").contains(r#""ready":true"#) {
            std::thread::yield_now();
        }
        served
    }

    /// The next line of the log of which this holds. Every line is one of the log.
    #[track_caller]
    fn next_line(&self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.log.recv_timeout(SOON) {
                Ok(Value::String(line)) => panic!("not in the form of the log: {line}"),
                Ok(line) if is(&line) => return line,
                Ok(_) => {}
                Err(error) => panic!("no such line: {error}"),
            }
        }
    }

    fn next_access(&self) -> Value {
        self.next_line(|line| line["target"] == "a2abus::access")
    }

    /// The connection of a call that waits for its answer.
    fn pending_call(&self, headers: &str) -> TcpStream {
        let mut waiting = TcpStream::connect(&self.door).unwrap();
        let request = format!(
            "POST /rpc HTTP/1.1\r\nhost: {}\r\n{headers}content-length: {}\r\n\r\n{UNANSWERED}",
            self.door,
            UNANSWERED.len()
        );
        waiting.write_all(request.as_bytes()).unwrap();
        while !get(&self.admin, "/metrics").contains("a2abus_pending_calls 1") {
            std::thread::yield_now();
        }
        waiting
    }

    /// Sends signals one directly after the other.
    fn signal(&self, signals: &[&str]) {
        let pid = self.child.id();
        let kills: Vec<_> = signals.iter().map(|s| format!("kill -{s} {pid}")).collect();
        let sent = Command::new("sh").args(["-c", &kills.join("; ")]).status();
        assert!(sent.unwrap().success());
    }

    fn wait(mut self) -> i32 {
        let status = self.child.wait().unwrap();
        status.code().unwrap_or(-1)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = crate::program();
    command.args(args).stdin(Stdio::null());
    command
}

/// The whole answer to one request on a connection of its own.
fn send(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: &str, path: &str) -> String {
    send(
        address,
        &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"),
    )
}

fn post(address: &str, path: &str, headers: &str, body: &str) -> String {
    send(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
}

fn call_id(answer: &str) -> &str {
    let header = answer
        .lines()
        .find_map(|line| line.strip_prefix("x-a2abus-call-id: "));
    header.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn version_names_the_program() {
    let output = command(&["--version"]).output().unwrap();
    let expected = format!("a2abus {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn readyz_ends_with_a_newline() {
    let served = Served::start(CONFIG);
    for path in ["/readyz", "/healthz", "/metrics"] {
        let answer = get(&served.admin, path);
        assert!(
            answer.ends_with("}\n") || path == "/metrics" && answer.ends_with('\n'),
            "{answer}"
        );
    }
}

#[test]
fn a_hangup_reads_the_configuration_again() {
    let served = Served::start(CONFIG);
    served.signal(&["HUP"]);
    let read = served.next_line(|line| line["message"] == "the configuration was read again");
    assert_eq!(
        (&read["applied"], &read["not_in_use"]),
        (&0.into(), &0.into())
    );
    assert!(get(&served.admin, "/healthz").contains("alive"));
    served.signal(&["TERM"]);
    assert_eq!(served.wait(), 0);
}

/// Sends a signal to a process.
fn kill(child: &Child, signal: &str) {
    let kill = Command::new("kill")
        .args([format!("-{signal}"), child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

#[test]
#[cfg(target_os = "linux")]
fn signals_are_heeded_before_the_configuration_is_read() {
    let directory = TempDir::new().unwrap();
    // Opening it waits for a writer.
    let file = directory.path().join("a2abus.yaml");
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["serve", "-c", file.to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let expected = (1_u64 << (1 - 1)) | (1 << (15 - 1));
    let until = Instant::now() + SOON;
    loop {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        if caught & expected == expected {
            break;
        }
        assert!(Instant::now() < until, "no handler: {text}");
        std::thread::yield_now();
    }
    kill(&child, "HUP");
    kill(&child, "TERM");
    std::fs::write(&file, CONFIG).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn systemd_is_notified_when_the_bridge_is_up() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let directory = TempDir::new().unwrap();
    let (path, file) = (
        directory.path().join("notify"),
        directory.path().join("a2abus.yaml"),
    );
    std::fs::write(&file, CONFIG).unwrap();
    let name = format!("a2abus-test-{}", std::process::id());
    let named = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, place) in [
        (UnixDatagram::bind(&path), path.display().to_string()),
        (UnixDatagram::bind_addr(&named), format!("@{name}")),
    ] {
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_a2abus"))
            .args(["serve", "-c", file.to_str().unwrap()])
            .env("NOTIFY_SOCKET", place)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reported = [0; 64];
        let length = socket.recv(&mut reported).unwrap();
        assert_eq!(&reported[..length], b"READY=1");
        // Whatever systemd sends from here on is heeded.
        kill(&child, "HUP");
        kill(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_idle_client_leaves_no_warning() {
    let config = CONFIG.replace("http: {", "http: { idle_timeout: 100ms,");
    let served = Served::start(&config.replace("log_format", "log: debug, log_format"));
    // Returns when the bridge closes the connection.
    let answer = send(&served.door, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(answer.contains("404"), "{answer}");
    let closed = served.next_line(|line| line["why"] == "idle");
    assert_eq!(closed["level"], "DEBUG", "{closed}");
}

#[test]
fn an_incomplete_request_at_the_end_of_the_grace_period_is_no_message_of_a_bus() {
    let served = Served::start(&CONFIG.replace("http: {", "http: { drain_grace: 1s,"));
    let mut client = TcpStream::connect(&served.door).unwrap();
    let request = b"POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    client.write_all(request).unwrap();
    // The bridge reads the body now.
    let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut interim = vec![0; expected.len()];
    client.read_exact(&mut interim).unwrap();
    assert_eq!(interim, expected);
    served.signal(&["TERM"]);
    let warned = served.next_line(|line| line["level"] == "WARN");
    let expected = "the grace period is over: open HTTP connections are cut off";
    assert_eq!(warned["message"], expected);
    assert_eq!(served.wait(), 0);
}

#[test]
fn changes_of_a_reload_are_logged_at_any_level() {
    let served = Served::start(CONFIG);
    // The first change also hides everything below WARN; the last one comes after that.
    for (log, hops) in [("warn", 5), ("warn", 6), ("error", 7)] {
        let config = CONFIG.replace("log_format", &format!("log: {log}, log_format"));
        let config = format!("{config}limits: {{ max_hops: {hops} }}\n");
        std::fs::write(served.directory.path().join("a2abus.yaml"), config).unwrap();
        served.signal(&["HUP"]);
        let changed = served.next_line(|line| line["setting"] == "limits.max_hops");
        assert_eq!(
            (&changed["message"], &changed["after"]),
            (&"a setting has changed".into(), &hops.to_string().into())
        );
        let read = served.next_line(|line| line["message"] == "the configuration was read again");
        assert_eq!(read["level"], "INFO");
    }
    let config = CONFIG.replace("log_format", "log: error, log_format");
    let config = format!("{config}calls: {{ timeout: 7s }}\nlimits: {{ max_hops: 7 }}\n");
    std::fs::write(served.directory.path().join("a2abus.yaml"), config).unwrap();
    served.signal(&["HUP"]);
    let waits = served.next_line(|line| line["message"] == "a changed setting is not in use");
    assert_eq!(waits["setting"], "calls.timeout");
    served.signal(&["TERM"]);
    assert_eq!(served.wait(), 0);
}

#[test]
fn warnings_about_the_configuration_are_lines_of_the_log() {
    let config = format!("state: {{ directory: /tmp }}{CONFIG}");
    let is_warning = |line: &Value| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.contains("a2abus.yaml:1:21: warning: state.directory: ")
    };
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, &config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["serve", "-c", file.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let before: Vec<Value> = lines
        .take_while(|line| line["message"] != "started")
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(before.iter().any(is_warning), "{before:?}");

    // So are those of a file that takes the place of another.
    let served = Served::start(CONFIG);
    std::fs::write(served.directory.path().join("a2abus.yaml"), config).unwrap();
    served.signal(&["HUP"]);
    served.next_line(is_warning);

    // A reload does not repeat them.
    let is_read = |line: &Value| line["message"] == "the configuration was read again";
    served.next_line(is_read);
    served.signal(&["HUP"]);
    let next = served.next_line(|line| is_warning(line) || is_read(line));
    assert!(is_read(&next), "{next}");
}

#[test]
fn a_refused_reload_names_an_error_and_not_the_warning_before_it() {
    let served = Served::start(CONFIG);
    let file = served.directory.path().join("a2abus.yaml");
    let wrong = format!("state: {{ directory: /tmp }}{CONFIG}limits: {{ max_hops: many }}\n");
    std::fs::write(&file, wrong).unwrap();
    served.signal(&["HUP"]);
    for (level, part) in [
        ("WARN", "a2abus.yaml:1:21: warning: state.directory: "),
        ("ERROR", "a2abus.yaml:7:21: limits.max_hops: "),
        ("ERROR", "the changed configuration is invalid"),
    ] {
        let line = served.next_line(|line| line["level"] == "WARN" || line["level"] == "ERROR");
        let message = line["message"].as_str().unwrap_or_default();
        assert!(line["level"] == level && message.contains(part), "{line}");
    }
    let report = get(&served.admin, "/readyz");
    let cause = "the changed file is invalid and not in use: ";
    assert!(
        report.contains(cause) && report.contains("limits.max_hops"),
        "{report}"
    );
    assert!(!report.contains("state.directory"), "{report}");
}

/// Sends so many notifications that the log has a line for each.
fn notify(served: &Served, count: usize) {
    const BATCH: usize = 50;
    let one = r#"{"jsonrpc":"2.0","method":"m","params":{"_agentId":"a"}}"#;
    let batch = format!("[{}]", vec![one; BATCH].join(","));
    for _ in 0..count.div_ceil(BATCH) {
        let answer = post(&served.door, "/rpc", "", &batch);
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    }
}

fn is_losing_lines(served: &Served) -> bool {
    !get(&served.admin, "/metrics").contains("a2abus_log_lines_lost_total 0\n")
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    // A reader that stops reading after the line with the addresses.
    let before = r#"
        mkfifo "$1.log"
        (
            exec 3< "$1.log" 4>&2 2> /dev/null
            grep -m 1 started <&3 >&4
            exec 4>&-
            while kill -0 $$; do sleep 0.2; done
        ) &
        exec > "$1.log" 2>&1"#;
    let served = Served::start_in(CONFIG, before);
    // Until the pipe and the queue are full.
    while !is_losing_lines(&served) {
        notify(&served, 1_000);
    }
    served.signal(&["TERM"]);
    assert_eq!(served.wait(), 0);
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let mut served = Served::start(CONFIG);
    // The thread that reads the log closes its end of the pipe when it has a line for nobody.
    served.log = mpsc::channel().1;
    while !is_losing_lines(&served) {
        notify(&served, 1);
    }
    served.signal(&["TERM"]);
    assert_eq!(served.wait(), 0);
}

#[test]
fn a_second_signal_directly_after_the_first_is_the_same_order() {
    let served = Served::start(CONFIG);
    // A call that is still to be answered holds the drain open.
    let mut waiting = served.pending_call("x-a2a-timeout: 2000\r\n");
    served.signal(&["TERM", "INT"]);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""reason":"timeout""#), "{answer}");
    assert_eq!(served.wait(), 0);
}

#[test]
fn a_second_signal_later_ends_at_once() {
    let served = Served::start(CONFIG);
    let _waiting = served.pending_call("");
    ends_at_the_second_signal(served);
}

/// Sends signals to a bridge with an unanswered call until it ends.
fn ends_at_the_second_signal(served: Served) {
    served.signal(&["TERM"]);
    served.next_line(|line| line["message"] == "draining");
    // Signals within 100 ms of the first are the same order; one of these comes later.
    let pid = served.child.id();
    let script = format!("while kill -TERM {pid} 2>/dev/null; do sleep 0.05; done");
    let mut again = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    assert_eq!(served.wait(), 130);
    again.wait().unwrap();
}

/// Whether a process is there that has not ended.
fn is_alive(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    state.is_some_and(|state| state != "Z")
}

#[test]
fn a_second_signal_kills_the_attached_programs() {
    let directory = TempDir::new().unwrap();
    let server = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/support/mcp_server.py"
    );
    let effects = directory.path().join("effects");
    let served = Served::start(&format!(
        "{CONFIG}agents: {{ fixture: {{ to: {{ transport: local, topic: agents.fixture }}, attach: {{ command: [python3, {server:?}], env: {{ EFFECTS: {effects:?}, STUBBORN: 'yes' }} }} }} }}\n"
    ));
    let call = |tool: &str| {
        let params = json!({ "name": tool });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
    };
    let answer = post(&served.door, "/rpc/fixture", "", &call("processes"));
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(answer).unwrap();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    let processes: Vec<&str> = text.split(' ').collect();
    assert_eq!(processes.len(), 2, "{answer}");
    assert!(processes.iter().all(|it| is_alive(it)), "{answer}");
    // A call holds the drain open, so that the program is not stopped yet.
    let mut waiting = TcpStream::connect(&served.door).unwrap();
    let body = call("hang");
    let head = format!(
        "POST /rpc/fixture HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{body}",
        served.door,
        body.len()
    );
    waiting.write_all(head.as_bytes()).unwrap();
    while !effects.exists() {
        std::thread::yield_now();
    }
    ends_at_the_second_signal(served);
    let begun = Instant::now();
    while processes.iter().any(|it| is_alive(it)) {
        assert!(begun.elapsed() < SOON, "{processes:?} are still there");
        std::thread::yield_now();
    }
}

#[test]
fn every_request_leaves_a_line_in_the_access_log() {
    let agents = "agents: { weather: { description: W., to: { transport: local, topic: w } } }";
    let served = Served::start(&format!("{CONFIG}{agents}\n"));
    let body = |agent: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_agentId": agent}})
            .to_string()
    };
    let answer = post(
        &served.door,
        "/rpc",
        "x-a2a-timeout: 500\r\n",
        &body("weather"),
    );
    let line = served.next_access();
    assert_eq!(line["call"], call_id(&answer));
    assert_eq!(line["caller"], "127.0.0.1");
    assert_eq!(line["agent"], "weather");
    assert_eq!(line["method"], "tools/call");
    assert_eq!(line["outcome"], "timeout");
    assert!(line["ms"].as_u64().unwrap() >= 500, "{line}");
    assert_eq!(line["level"], "INFO");

    let note = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"weather"}}"#;
    let answer = post(&served.door, "/rpc", "", note);
    let line = served.next_access();
    assert_eq!(line["call"], call_id(&answer));
    assert_eq!(
        (&line["outcome"], &line["method"]),
        (&json!("sent"), &json!("note"))
    );

    for (path, headers, body, outcome) in [
        ("/rpc", "", "{".to_owned(), "not_json"),
        (
            "/rpc",
            "content-type: text/plain\r\n",
            body("a"),
            "content_type",
        ),
        ("/rpc", "", body(""), "bad_target"),
        (
            "/rpc",
            "",
            r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#.to_owned(),
            "agent_not_found",
        ),
    ] {
        let answer = post(&served.door, path, headers, &body);
        let line = served.next_access();
        assert_eq!(line["outcome"], outcome, "{line} {answer}");
        assert_eq!(line["call"], call_id(&answer), "{line}");
    }

    // A name that a caller chose is a value, and of bounded length.
    let method = format!("m/{}", "x".repeat(200));
    let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"_agentId":"a"}}}}"#);
    post(&served.door, "/rpc", "", &body);
    let line = served.next_access();
    assert_eq!(line["method"].as_str().unwrap().len(), 128, "{line}");

    // Each request has one line, also if its call fails.
    let call = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    let parts = json!([{ "kind": "text", "text": "t" }]);
    let message = json!({ "message": { "messageId": "m", "role": "user", "kind": "message", "parts": parts } });
    let (mcp, a2a, soon) = (
        "/mcp/agents/weather",
        "/a2a/agents/weather",
        "x-a2a-timeout: 500\r\n",
    );
    let bad_key = "idempotency-key: a\r\nidempotency-key: b\r\n";
    let tool = json!({ "name": "t" });
    for (path, headers, method, params, outcome) in [
        (mcp, soon, "tools/call", tool.clone(), "timeout"),
        (mcp, "", "ping", json!({}), "answered"),
        ("/mcp", "", "nope", json!({}), "method_not_found"),
        (a2a, soon, "message/send", message, "timeout"),
        ("/rpc/weather", bad_key, "", tool, "invalid_params"),
    ] {
        let answer = post(&served.door, path, headers, &call(method, params));
        let line = served.next_access();
        assert_eq!(line["outcome"], outcome, "{line} {answer}");
        assert_eq!(line["call"], call_id(&answer), "{line}");
        assert_eq!(line["method"], method, "{line}");
        let agent = if path == "/mcp" { "" } else { "weather" };
        assert_eq!(line["agent"], agent, "{line}");
    }
}

/// What `a2abus agents` prints about a bridge.
fn agents_of(served: &Served, arguments: &[&str]) -> Output {
    let url = format!("http://{}", served.door);
    let arguments = [&["agents"][..], arguments, &["--url", &url]].concat();
    command(&arguments).output().unwrap()
}

#[test]
fn the_commands_for_agents_say_that_a_bridge_has_none() {
    let served = Served::start(CONFIG);
    for arguments in [&["ls"][..], &["show", "weather"], &["watch"]] {
        let output = agents_of(&served, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("registry.enabled"), "{error}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn the_commands_for_agents_use_the_same_names() {
    let agents = "agents: { weather: { description: W., to: { transport: local, topic: w } } }";
    let served = Served::start(&format!("{CONFIG}{agents}\n"));
    for arguments in [&["ls", "--json"][..], &["show", "weather", "--json"]] {
        let output = agents_of(&served, arguments);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(shown["name"], "weather", "{shown}");
        assert_eq!(shown["card"]["description"], "W.", "{shown}");
        // Nobody knows whether an agent on the bus is available.
        assert_eq!(shown.get("available"), None, "{shown}");
    }
}

#[test]
fn the_access_log_names_the_method_wherever_it_is_known() {
    let served = Served::start(CONFIG);
    let note = |method: &str| {
        let params = json!({ "_agentId": "weather" });
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    };
    let get = |org: &str| {
        let params = json!({ "agent_id": "gone", "org_id": org });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "agent/card/get", "params": params })
            .to_string()
    };
    let key = "idempotency-key: k\r\n";
    // The event has no method of its own.
    let event = "ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-targetagent: weather\r\n";
    for (headers, body, method, outcome) in [
        (key, note("a"), "a", "sent"),
        (key, note("a"), "a", "replayed"),
        (key, note("b"), "b", "idempotency_key_reused"),
        (event, note("c"), "c", "sent"),
        ("", get("o"), "agent/card/get", "agent_not_found"),
        ("", "{".to_owned(), "", "not_json"),
    ] {
        let answer = post(&served.door, "/rpc", headers, &body);
        let line = served.next_access();
        assert_eq!(line["outcome"], outcome, "{line} {answer}");
        assert_eq!(line["method"], method, "{line} {answer}");
    }
}

#[test]
fn the_access_log_names_a_method_that_a2a_does_not_have() {
    let agents = "agents: { weather: { description: W., to: { transport: local, topic: w } } }";
    let served = Served::start(&format!("{CONFIG}{agents}\n"));
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "foo/bar" }).to_string();
    let answer = post(&served.door, "/a2a/agents/weather", "", &body);
    let line = served.next_access();
    assert_eq!(line["outcome"], "method_not_found", "{line} {answer}");
    assert_eq!(line["method"], "foo/bar", "{line} {answer}");
    assert_eq!(line["agent"], "weather", "{line} {answer}");
}

#[test]
fn the_access_log_names_the_method_of_a_refused_mcp_message() {
    let agents = "agents: { weather: { description: W., to: { transport: local, topic: w } } }";
    let served = Served::start(&format!("{CONFIG}{agents}\n"));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let list = |id: Value| {
        let params = json!({ "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": params }).to_string()
    };
    let note = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned();
    let (newest, unknown) = (
        "mcp-protocol-version: 2026-07-28\r\n",
        "mcp-protocol-version: 1999-01-01\r\n",
    );
    for (headers, body, method, outcome) in [
        (newest, list(json!(1)), "tools/list", "header_mismatch"),
        (newest, list(json!(1.5)), "tools/list", "invalid_request"),
        (unknown, note, "notifications/x", "version_not_supported"),
    ] {
        let answer = post(&served.door, "/mcp/agents/weather", headers, &body);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let line = served.next_access();
        assert_eq!(line["outcome"], outcome, "{line} {answer}");
        assert_eq!(line["method"], method, "{line} {answer}");
        assert_eq!(line["agent"], "weather", "{line} {answer}");
        assert_eq!(line["call"], call_id(&answer), "{line}");
    }
}

#[test]
fn a_handshake_that_an_agent_answers_leaves_one_line_in_the_access_log() {
    let server = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/support/mcp_server.py"
    );
    let served = Served::start(&format!(
        "{CONFIG}agents: {{ fixture: {{ to: {{ transport: local, topic: agents.fixture }}, attach: {{ command: [python3, {server:?}] }} }} }}\n"
    ));
    served.next_line(|line| line["message"] == "the server of an attached agent is up");
    for method in ["initialize", "ping"] {
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = post(&served.door, "/mcp/agents/fixture", "", &body.to_string());
        let line = served.next_access();
        assert_eq!(line["call"], call_id(&answer), "{line} {answer}");
        assert_eq!(line["method"], method, "{line}");
        assert_eq!(line["outcome"], "answered", "{line}");
    }
}

#[test]
fn a_task_of_eventmesh_that_is_refused_leaves_a_line_in_the_access_log() {
    let agents = "agents: { weather: { description: W., to: { transport: local, topic: w } } }";
    let served = Served::start(&format!("{CONFIG}{agents}\n"));
    // The bridge puts it into a request, which is then nested too deeply.
    let message = format!("{}1{}", r#"{"a":"#.repeat(125), "}".repeat(125));
    let body = format!(r#"{{"targetAgent":"weather","message":{message}}}"#);
    let answer = post(&served.door, "/a2a/tasks", "", &body);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let line = served.next_access();
    assert_eq!(line["call"], call_id(&answer), "{line}");
    assert_eq!(
        (&line["agent"], &line["outcome"]),
        (&json!("weather"), &json!("too_deep")),
        "{line}"
    );
}

#[test]
fn a_refused_announcement_leaves_a_line_in_the_log() {
    let registry = "registry: { enabled: true, destinations: [ { to: { transport: local, topic: 'agents.{targetagent}' } } ] }";
    let served = Served::start(&format!("{CONFIG}{registry}\n"));
    let card = r#"{"name":"Weather","url":"nats:elsewhere"}"#;
    let announcement = |method: &str, path: &str, body: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", served.door);
        let length = body.len();
        let head = format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n");
        send(&served.door, &format!("{head}{body}"))
    };
    let request = |method: &str, params: serde_json::Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    let delete = request("agent/card/delete", json!({ "agent_id": "gone" }));
    let new = json!({ "agent_id": "new", "card": { "name": "New", "url": "nats:agents.new" } });
    let update = request("agent/card/update", new);
    let (announced, removed) = ("an announcement", "the removal of an agent");
    for (method, path, body, agent, what) in [
        ("PUT", "/a2a/agents/weather", card, "weather", announced),
        ("DELETE", "/a2a/agents/rain", "", "rain", removed),
        ("POST", "/rpc", &delete, "gone", removed),
        ("POST", "/rpc", &update, "new", announced),
    ] {
        let answer = announcement(method, path, body);
        let expected = format!("{what} over HTTP is refused");
        let line = served.next_line(|line| line["message"] == expected.as_str());
        assert_eq!(line["agent"], agent, "{line} {answer}");
        assert_eq!(line["level"], "WARN", "{line}");
        assert!(!line["error"].as_str().unwrap().is_empty(), "{line}");
    }
}

#[test]
fn the_access_log_can_be_switched_off() {
    let config = CONFIG.replace(
        "log_format: json",
        "log_format: json, log: 'info,a2abus::access=off'",
    );
    let served = Served::start(&config);
    post(&served.door, "/rpc", "", "{");
    served.signal(&["TERM"]);
    served.next_line(|line| {
        assert_ne!(line["target"], "a2abus::access");
        line["message"] == "draining"
    });
    assert_eq!(served.wait(), 0);
}

#[test]
fn connections_leave_file_descriptors_for_the_rest() {
    let config = CONFIG.replace(
        "http: { listen: '127.0.0.1:0' }",
        "http: { listen: '127.0.0.1:0', header_timeout: 60s, max_connections_per_client: 4096 }",
    );
    let served = Served::start_in(&config, "ulimit -n 300");
    // A quarter of 300 are for callers, since less is left of them after 256. The others wait in the kernel, which may
    // have room for 128 only.
    let clients: Vec<_> = (0..150)
        .map(|_| TcpStream::connect(&served.door).unwrap())
        .collect();
    while !get(&served.admin, "/metrics").contains("a2abus_http_connections{door=\"http\"} 75") {
        std::thread::yield_now();
    }
    assert!(get(&served.admin, "/healthz").contains("alive"));
    drop(clients);
    let answer = post(&served.door, "/rpc", "", "{");
    assert!(answer.contains("not_json"), "{answer}");
}

/// `A2ABUS_SOAK_CALLS` makes it as long as you like.
#[test]
fn the_demonstration_serves_as_many_calls_as_anybody_makes() {
    let calls: usize =
        std::env::var("A2ABUS_SOAK_CALLS").map_or(1_000, |calls| calls.parse().unwrap());
    let mut child = command(&["demo", "--serve"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| {
        let line = line.unwrap();
        let address = line.split("http://").nth(1)?;
        line.contains("curl")
            .then(|| address.split('/').next().unwrap().to_owned())
    });
    let address = url.unwrap();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let start = Instant::now();
    for call in 0..calls {
        let body = json!({"jsonrpc": "2.0", "id": call, "method": "tools/call",
            "params": {"_agentId": "echo", "name": "n", "arguments": {"call": call}}});
        let body = body.to_string();
        let request = format!(
            "POST /rpc HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut answers);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["id"], call, "{answer}");
        assert!(answer["result"].is_object(), "{answer}");
    }
    println!("{calls} calls in {:?}", start.elapsed());
    let pid = child.id();
    let stopped = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status();
    assert!(stopped.unwrap().success());
    assert!(child.wait().unwrap().success());
}

/// The body of one answer on a connection that stays open.
fn read_answer(answers: &mut impl std::io::BufRead) -> String {
    let mut length = 0;
    loop {
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

/// Tasks are in a file, and their agent never answers.
fn with_tasks(directory: &TempDir, calls: &str) -> String {
    let directory = directory.path().display();
    format!(
        "{CONFIG}calls: {{ {calls} }}\nstate: {{ log: embedded, directory: {directory} }}\nagents: {{ silent: {{ description: It says nothing. }} }}\n"
    )
}

/// The result of a method of A2A 0.3.
fn a2a(served: &Served, method: &str, params: &Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let headers = "content-type: application/json\r\n";
    let answer = post(
        &served.door,
        "/a2a/agents/silent",
        headers,
        &body.to_string(),
    );
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(body).unwrap();
    answer["result"].clone()
}

#[test]
fn a_task_whose_bridge_was_killed_ends() {
    let directory = TempDir::new().unwrap();
    let first = Served::start(&with_tasks(&directory, "timeout: 60s"));
    let part = json!({ "kind": "text", "text": "hello" });
    let message = json!({ "role": "user", "messageId": "m", "kind": "message", "parts": [part] });
    let params = json!({ "message": message, "configuration": { "blocking": false } });
    let task = a2a(&first, "message/send", &params);
    assert_eq!(task["status"]["state"], "submitted", "{task}");
    first.signal(&["KILL"]);
    first.wait();
    // The deadline of the call has not passed, but no other process can follow it.
    let second = Served::start(&with_tasks(&directory, "timeout: 60s"));
    let left = second.next_line(|line| line["tasks"].is_u64());
    assert_eq!(left["tasks"], 1, "{left}");
    assert_eq!(left["level"], "WARN", "{left}");
    second.next_line(|line| {
        line["task"] == task["id"]
            && line["message"].as_str().is_some_and(|message| {
                message.contains("the bridge that followed the task has stopped")
            })
    });
    let task = a2a(&second, "tasks/get", &json!({ "id": task["id"] }));
    assert_eq!(task["status"]["state"], "failed", "{task}");
}

#[test]
fn the_answer_to_a_key_whose_bridge_was_killed_is_lost_at_once() {
    const KEY: &str = "idempotency-key: k\r\n";
    let directory = TempDir::new().unwrap();
    let first = Served::start(&with_tasks(&directory, "timeout: 60s"));
    let _waiting = first.pending_call(KEY);
    first.signal(&["KILL"]);
    first.wait();
    // If another replica could still answer, the request would get 409 at its timeout.
    let second = Served::start(&with_tasks(&directory, "timeout: 5s"));
    let answer = post(&second.door, "/rpc", KEY, UNANSWERED);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("answer_lost"), "{answer}");
}

#[test]
fn a_call_can_be_made_beside_a_bridge_whose_state_is_in_files() {
    let directory = TempDir::new().unwrap();
    let served = Served::start(&with_tasks(&directory, "timeout: 60s"));
    let file = served.directory.path().join("a2abus.yaml");
    let call = ["call", "--notify", "silent", "notifications/message", "-c"];
    let mut call = command(&call);
    let output = call.arg(file).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
}

/// How much memory a bridge has that has so many attached servers, which nobody calls.
fn resident_kib(servers: usize) -> u64 {
    let server = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/support/mcp_server.py"
    );
    let agents: String = (0..servers)
        .map(|number| format!("  a{number}: {{ to: {{ transport: local, topic: t.{number} }}, attach: {{ command: [python3, {server:?}] }} }}\n"))
        .collect();
    let served = Served::start(&format!("{CONFIG}agents:\n{agents}"));
    for _ in 0..servers {
        served.next_line(|line| line["message"] == "the server of an attached agent is up");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn an_idle_attached_server_costs_the_bridge_less_than_a_mebibyte() {
    const MORE: u64 = 20;
    let (few, many) = (resident_kib(1), resident_kib(1 + MORE as usize));
    let each = many.saturating_sub(few) / MORE;
    println!("{few} KiB with 1 idle server, {many} KiB with 21: {each} KiB for each");
    assert!(each < 1_024, "{each} KiB for each idle server");
}

#[test]
fn attach_says_that_it_leaves_the_files_of_a_state_to_the_bridge_that_serves() {
    let directory = TempDir::new().unwrap();
    let state = format!(
        "state: {{ log: embedded, directory: {:?} }}\n",
        directory.path()
    );
    let warnings = warnings_of_attach(directory.path(), "memory", &state);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("`state.log: embedded`"),
        "{warnings:?}"
    );
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 1, "the files belong to another process");
}

#[test]
fn attach_says_how_to_keep_its_state() {
    let directory = TempDir::new().unwrap();
    let warnings = warnings_of_attach(directory.path(), "memory", "");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let cure = "pass -c with a file whose `state.log` names a transport";
    assert!(warnings[0].contains(cure), "{warnings:?}");
    // Core NATS delivers a request at most once, so nothing can be executed again.
    let nats = "nats, servers: ['nats://127.0.0.1:9']";
    let warnings = warnings_of_attach(directory.path(), nats, "");
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn attach_says_that_it_ignores_a_hangup() {
    let directory = TempDir::new().unwrap();
    let (mut child, mut lines) = attach(directory.path(), "memory", "");
    assert!(lines.any(|line| line.contains("started")));
    kill(&child, "HUP");
    let line = lines.find(|line| line.contains("SIGHUP")).unwrap();
    assert!(line.contains("SIGHUP is ignored"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// `a2abus attach` with a transport of this type and more configuration, and the lines that it logs.
fn attach(
    directory: &Path,
    transport: &str,
    more: &str,
) -> (Child, impl Iterator<Item = String> + use<>) {
    let file = directory.join("a2abus.yaml");
    let config = format!("transports: {{ local: {{ type: {transport} }} }}\n{more}");
    std::fs::write(&file, config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["attach", "sums", "--protocol", "jsonrpc"])
        .args(["--url", "http://127.0.0.1:9/", "-c"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    (child, lines.map_while(Result::ok))
}

/// The warnings that `a2abus attach` logs before it starts, with a transport of this type and more configuration.
fn warnings_of_attach(directory: &Path, transport: &str, more: &str) -> Vec<String> {
    let (mut child, mut lines) = attach(directory, transport, more);
    let before = lines.by_ref().take_while(|line| !line.contains("started"));
    let warnings = before.filter(|line| line.contains("WARN")).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    warnings
}

/// What `a2abus serve` writes to standard error when it cannot start, line by line.
fn failed_start(config: &str) -> Vec<String> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    let output = command(&["serve", "-c", file.to_str().unwrap()]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn an_error_at_the_start_is_a_line_of_the_log_and_names_the_key_and_a_cure() {
    let used = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap().to_string();
    for (key, free) in [("http", "admin"), ("admin", "http")] {
        let config = CONFIG.replace(
            &format!("{key}: {{ listen: '127.0.0.1:0' }}"),
            &format!("{key}: {{ listen: '{address}' }}"),
        );
        assert!(config.contains(&format!("{free}: {{ listen: '127.0.0.1:0' }}")));
        let lines = failed_start(&config);
        let lines = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        let last = lines.last().unwrap();
        let message = last["message"].as_str().unwrap();
        let start = format!("{key}.listen: cannot listen on {address}: ");
        let cure = ": another process uses this port: choose another one";
        assert!(message.starts_with(&start), "{last}");
        assert!(message.ends_with(cure), "{last}");
        assert_eq!(last["level"], "ERROR");
        assert!(last["timestamp"].is_string() && last["target"] == "a2abus");

        let lines = failed_start(&config.replace("log_format: json", "log_format: text"));
        let line = lines.last().unwrap();
        assert!(line.starts_with(&format!("a2abus: {start}")), "{line}");
    }
    // The format is unknown while the configuration is invalid.
    let lines = failed_start(&CONFIG.replace("routes", "rotes"));
    assert!(lines.iter().all(|line| !line.starts_with('{')), "{lines:?}");
}
