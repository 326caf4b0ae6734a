//! `a2abus stdio` as an MCP client sees it that starts its servers as programs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than anything here takes, so that a test that hangs fails.
const SOON: Duration = Duration::from_secs(60);

/// A program that ends with its owner.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The client's side of `a2abus stdio`.
struct Session {
    program: Program,
    input: Option<ChildStdin>,
    output: mpsc::Receiver<Value>,
}

fn command(args: &[&str]) -> Command {
    let mut command = crate::program();
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The MCP server of the demonstration behind a bridge, and the URL of that.
fn everything() -> (Program, String) {
    let mut child = command(&[
        "demo",
        "--agents",
        "everything",
        "--serve",
        "--listen",
        "127.0.0.1:0",
    ])
    .spawn()
    .unwrap();
    let (serves, served) = mpsc::channel();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        // Without a reader it would end.
        let mut line = String::new();
        while printed.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some((_, url)) = line.split_once("MCP at ") {
                let (url, _) = url.split_once("/mcp/").unwrap();
                let _ = serves.send(url.to_owned());
            }
            line.clear();
        }
    });
    let url = served.recv_timeout(SOON).expect("the bridge serves");
    (Program(child), url)
}

impl Session {
    fn start(args: &[&str]) -> Self {
        let mut child = command(&[&["stdio"], args].concat()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("one JSON message on a line");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self {
            input: child.stdin.take(),
            program: Program(child),
            output,
        }
    }

    fn write(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.write(&message.to_string());
    }

    fn call(&mut self, id: u32, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
    }

    /// The next message of which this holds.
    #[track_caller]
    fn next(&self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.output.recv_timeout(SOON).expect("a message in time");
            if is(&message) {
                return message;
            }
        }
    }

    #[track_caller]
    fn answer(&self, id: u32) -> Value {
        self.next(|message| message["id"] == id && message.get("method").is_none())
    }

    fn open(&mut self) -> Value {
        let client = json!({ "name": "test", "version": "1" });
        let capabilities = json!({ "sampling": {}, "elicitation": {} });
        self.call(
            0,
            "initialize",
            &json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client }),
        );
        let profile = self.answer(0);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        profile
    }

    /// Ends the input; the exit status.
    fn end(mut self) -> i32 {
        drop(self.input.take());
        let status = self.program.0.wait().unwrap();
        status.code().unwrap_or(-1)
    }
}

#[test]
fn a_client_uses_an_agent_through_standard_input_and_output() {
    let (_bridge, url) = everything();
    let mut stdio = Session::start(&["--agent", "everything", "--url", &url]);
    let profile = stdio.open();
    assert_eq!(
        profile["result"]["protocolVersion"], "2025-11-25",
        "{profile}"
    );
    stdio.call(1, "tools/list", &json!({}));
    let tools = stdio.answer(1);
    assert!(
        tools["result"]["tools"].as_array().unwrap().len() > 5,
        "{tools}"
    );
    // Progress comes before the result.
    let call = json!({ "name": "test_tool_with_progress", "_meta": { "progressToken": "t" } });
    stdio.call(2, "tools/call", &call);
    let progress = stdio.next(|message| message["method"] == "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "t", "{progress}");
    assert!(stdio.answer(2)["result"].is_object());
    // The agent asks the client.
    let call = json!({ "name": "test_sampling", "arguments": { "prompt": "hello" } });
    stdio.call(3, "tools/call", &call);
    let question = stdio.next(|message| message["method"] == "sampling/createMessage");
    let result =
        json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hi" } });
    stdio.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }));
    let answer = stdio.answer(3);
    assert_eq!(
        answer["result"]["content"][0]["text"], "LLM response: hi",
        "{answer}"
    );
    assert_eq!(stdio.end(), 0);
}

#[test]
fn requests_that_are_read_before_the_end_are_answered() {
    let (_bridge, url) = everything();
    let mut stdio = Session::start(&["--url", &url]);
    stdio.open();
    stdio.call(
        1,
        "tools/call",
        &json!({ "name": "everything.test_tool_with_progress" }),
    );
    drop(stdio.input.take());
    assert!(stdio.answer(1)["result"].is_object());
    assert_eq!(stdio.end(), 0);
}

#[test]
fn a_cancelled_request_has_no_answer() {
    let (_bridge, url) = everything();
    let mut stdio = Session::start(&["--agent", "everything", "--url", &url]);
    stdio.open();
    let call = json!({ "name": "test_sampling", "arguments": { "prompt": "hello" } });
    stdio.call(1, "tools/call", &call);
    stdio.next(|message| message["method"] == "sampling/createMessage");
    let cancel = json!({ "requestId": 1, "reason": "enough" });
    stdio.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    stdio.call(2, "ping", &json!({}));
    let next = stdio.next(|message| message.get("method").is_none());
    assert_eq!(next["id"], 2, "{next}");
    // Without the cancel the end would wait for the answer to the question.
    assert_eq!(stdio.end(), 0);
}

/// A client that has asked the agent, was asked in return, and waits for nothing any more.
fn asked(url: &str) -> Session {
    let mut stdio = Session::start(&["--agent", "everything", "--url", url]);
    stdio.open();
    let call = json!({ "name": "test_sampling", "arguments": { "prompt": "hello" } });
    stdio.call(1, "tools/call", &call);
    stdio.next(|message| message["method"] == "sampling/createMessage");
    stdio
}

#[test]
fn a_question_is_declined_when_the_input_ends() {
    let (_bridge, url) = everything();
    let mut stdio = asked(&url);
    drop(stdio.input.take());
    // The tool learns that its question failed.
    let answer = stdio.answer(1);
    assert!(
        answer["error"].is_object() || answer["result"].is_object(),
        "{answer}"
    );
    assert_eq!(stdio.end(), 0);
}

/// A bridge whose only tool asks the client and never answers, and what it is sent. `end` is its response to DELETE.
fn asking_bridge(end: &'static str) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || serve(stream, &sender, end));
        }
    });
    (url, received)
}

/// Answers one HTTP request.
fn serve(mut stream: TcpStream, sender: &mpsc::Sender<Value>, end: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut length, mut is_end) = (0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None if line.trim_end().is_empty() => break,
            None if line.starts_with("DELETE ") => is_end = true,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let message: Value = match is_end {
        true => json!({ "method": "DELETE" }),
        false => serde_json::from_slice(&body).unwrap_or_default(),
    };
    let (head, body) = match message["method"].as_str() {
        Some("initialize") => (
            "200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s",
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
        ),
        Some("tools/call") => (
            "200 OK\r\ncontent-type: text/event-stream",
            "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"sampling/createMessage\"}\n\n",
        ),
        Some("DELETE") => (end, ""),
        _ => ("202 Accepted", ""),
    };
    let response = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(response.as_bytes()).unwrap();
    let is_call = message["method"] == "tools/call";
    let _ = sender.send(message);
    if is_call {
        // The answer stays open until the client closes it.
        let _ = reader.read(&mut [0]);
    }
}

/// Ends a client by a signal.
fn terminate(mut stdio: Session) {
    let pid = stdio.program.0.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(sent.success());
    assert_eq!(stdio.program.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_ends_the_session_and_declines_the_questions() {
    let (url, received) = asking_bridge("204 No Content");
    terminate(asked(&url));
    // The bridge cancels the requests of a session that ends.
    let (mut is_over, mut is_declined) = (false, false);
    while !(is_over && is_declined) {
        let message = received.recv_timeout(SOON).expect("an end and an answer");
        is_over |= message["method"] == "DELETE";
        is_declined |= message["id"] == "q" && message["error"].is_object();
    }
}

#[test]
fn a_signal_cancels_the_requests_of_a_session_that_the_bridge_does_not_end() {
    let (url, received) = asking_bridge("429 Too Many Requests");
    terminate(asked(&url));
    loop {
        let message = received.recv_timeout(SOON).expect("a cancel");
        if message["method"] == "notifications/cancelled" {
            assert_eq!(message["params"]["requestId"], 1, "{message}");
            return;
        }
    }
}

/// A client that crashes closes both pipes. The next message shows that nobody reads any more.
#[test]
fn a_client_that_stops_reading_leaves_no_session_behind() {
    let (url, received) = asking_bridge("204 No Content");
    let args = ["stdio", "--agent", "everything", "--url", &url];
    let mut program = Program(command(&args).spawn().unwrap());
    let mut input = program.0.stdin.take().unwrap();
    let mut output = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    writeln!(input, "{initialize}").unwrap();
    output.next().unwrap().unwrap();
    let params = json!({ "name": "test_sampling" });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    writeln!(input, "{call}").unwrap();
    let question = output.next().unwrap().unwrap();
    assert!(question.contains("sampling/createMessage"), "{question}");
    drop(output);
    writeln!(input, "this is no JSON").unwrap();
    let (mut is_over, mut is_declined) = (false, false);
    while !(is_over && is_declined) {
        let message = received.recv_timeout(SOON).expect("an end and an answer");
        is_over |= message["method"] == "DELETE";
        is_declined |= message["id"] == "q" && message["error"].is_object();
    }
    program.0.wait().unwrap();
}

#[test]
fn nothing_but_messages_is_written_without_a_session() {
    let (_bridge, url) = everything();
    // `Session` fails at a line that is no JSON.
    let mut stdio = Session::start(&["--agent", "everything", "--url", &url]);
    stdio.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    stdio.call(1, "ping", &json!({}));
    let first = stdio.next(|_| true);
    assert_eq!(first["id"], 1, "{first}");
    assert_eq!(stdio.end(), 0);
}

#[test]
fn a_request_takes_no_longer_than_its_timeout() {
    let (_bridge, url) = everything();
    let args = ["--agent", "everything", "--url", &url];
    let mut stdio = Session::start(&[&args[..], &["--timeout", "2s"]].concat());
    assert!(stdio.open()["result"].is_object());
    let call = json!({ "name": "test_sampling", "arguments": { "prompt": "hello" } });
    stdio.call(1, "tools/call", &call);
    // Nobody answers the question.
    let error = stdio.answer(1);
    assert_eq!(error["error"]["data"]["reason"], "timeout", "{error}");
    assert_eq!(stdio.end(), 0);
}

#[test]
fn a_stateless_request_gets_its_headers() {
    let (_bridge, url) = everything();
    let mut stdio = Session::start(&["--agent", "everything", "--url", &url]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    });
    stdio.call(1, "server/discover", &json!({ "_meta": meta }));
    let response = stdio.answer(1);
    assert!(
        response["result"]["supportedVersions"].is_array(),
        "{response}"
    );
    stdio.call(
        2,
        "tools/call",
        &json!({ "name": "test_simple_text", "_meta": meta }),
    );
    let response = stdio.answer(2);
    assert_eq!(response["result"]["resultType"], "complete", "{response}");
    assert_eq!(stdio.end(), 0);
}

#[test]
fn failures_are_errors_with_the_id_of_their_request() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let mut stdio = Session::start(&["--url", &url]);
    stdio.call(7, "tools/list", &json!({}));
    let error = stdio.answer(7);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("cannot be reached"), "{message}");
    assert!(message.contains("--url"), "{message}");
    let reason = &error["error"]["data"]["reason"];
    assert_eq!(reason, "agent_unavailable", "{error}");
    stdio.write("this is no JSON");
    let error = stdio.next(|message| message["id"].is_null());
    assert_eq!(error["error"]["code"], -32_700, "{error}");
    // Such requests would wait for ever if they were taken for notifications.
    for id in ["null", "1.5", r#"{"a":1}"#] {
        stdio.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        let error = stdio.next(|message| message["id"].is_null());
        assert_eq!(error["error"]["code"], -32_600, "{id}: {error}");
    }
    // It goes on after all of them.
    stdio.call(8, "tools/list", &json!({}));
    assert!(stdio.answer(8)["error"].is_object());
    assert_eq!(stdio.end(), 0);

    let (_bridge, url) = everything();
    let mut stdio = Session::start(&["--agent", "nobody", "--url", &url]);
    stdio.call(9, "tools/list", &json!({}));
    let error = stdio.answer(9);
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("nobody"),
        "{error}"
    );
    assert_eq!(stdio.end(), 0);
}

#[test]
fn a_request_whose_connection_breaks_may_have_been_executed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The bridge ends after it has begun to read the request.
            let _ = stream.read(&mut [0]);
        }
    });
    let mut stdio = Session::start(&["--url", &url]);
    stdio.call(1, "tools/call", &json!({ "name": "a.pay" }));
    let error = stdio.answer(1);
    let reason = &error["error"]["data"]["reason"];
    assert_eq!(reason, "answer_lost", "{error}");
    assert_eq!(stdio.end(), 0);
}

#[test]
fn a_configuration_can_replace_a_running_bridge() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("a2abus.yaml");
    let config = "
transports: { local: { type: memory } }
agents: { maps: { description: Maps., to: { transport: local, topic: agents.maps } } }
";
    std::fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap();
    let mut stdio = Session::start(&["--agent", "maps", "-c", file]);
    let profile = stdio.open();
    assert_eq!(profile["result"]["serverInfo"]["name"], "maps", "{profile}");
    stdio.call(1, "ping", &json!({}));
    assert_eq!(stdio.answer(1)["result"], json!({}));
    assert_eq!(stdio.end(), 0);
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_read() {
    for (args, why) in [
        (["--agent", "a b"], "is not a valid agent name"),
        (["--url", "https://bridge"], "http://HOST:8080"),
        (["-c", "missing.yaml"], "missing.yaml"),
    ] {
        let mut child = command(&[&["stdio"][..], &args].concat())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut complaint = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut complaint).unwrap();
        assert!(complaint.contains(why), "{complaint}");
        assert_ne!(child.wait().unwrap().code(), Some(0));
    }
}
