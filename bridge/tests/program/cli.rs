//! The commands as a shell sees them: output, errors, exit status.

mod call;
mod check;
mod explain;
mod map;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const CALL: &str = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather","name":"get"}}"#;
const RESULT: &str =
    r#"{"jsonrpc":"2.0","id":7,"result":{"kind":"task","status":{"state":"working"}}}"#;
const LEGACY: &str = r#"{"protocol":"A2A","messageType":"CFP","targetAgent":{"agentId":"b"},"metadata":{"correlationId":"c"}}"#;
const BAD_TARGET: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":7}}"#;

const CONFIG: &str = "
instance: t
transports: { bus: { type: memory } }
bindings:
  - { name: answers, transport: bus, topics: [answers], role: responses }
  - { name: in, transport: bus, topics: [in], mapping: { type_prefix: x. } }
routes:
  - { name: other, when: { targetagent: other }, to: [{ transport: bus, topic: other }] }
  - { name: door, when: { binding: 'htt?' }, to: [{ transport: bus, topic: door }] }
  - { name: agents, when: { mcptype: request, targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}', key: '{id}' }] }
  - { name: broken, when: { mcptype: notification }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }
";

/// How a run ended.
struct CommandOutput {
    status: i32,
    stdout: String,
    stderr: String,
}

impl CommandOutput {
    /// Standard output as JSON lines.
    fn lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[track_caller]
    fn one(&self) -> Value {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{}{}", self.stdout, self.stderr);
        lines.remove(0)
    }
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = crate::program();
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str], stdin: impl AsRef<[u8]>) -> CommandOutput {
    let mut child = command(args).spawn().unwrap();
    // A command that is misused does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_ref());
    child.wait_with_output().unwrap().into()
}

/// The text as a file that lives as long as its folder.
fn config(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a2abus.yaml");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

// === topics ===

#[test]
fn topics_refuses_options_that_no_transport_supports() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    let zero = "at least 1; without the option the broker chooses";
    for (arguments, reason) in [
        (["plan", "--partitions", "0"], zero),
        (["apply", "--partitions", "0"], zero),
        (["plan", "--replicas", "0"], zero),
        (
            ["plan", "--partitions", "100001"],
            "a number from 1 to 100000 is needed",
        ),
        (
            ["apply", "--replicas", "three"],
            "a number from 1 to 10000 is needed",
        ),
        (
            ["plan", "--cluster", "My_Cluster"],
            "1 to 63 lower-case letters, digits and inner hyphens",
        ),
        (
            ["apply", "--output", "strimzi"],
            "[possible values: human, json]",
        ),
    ] {
        let output = run(&[&["topics"], &arguments[..], &["-c", file]].concat(), "");
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (2, ""),
            "{arguments:?}"
        );
        assert!(
            output.stderr.contains(reason),
            "{arguments:?}: {}",
            output.stderr
        );
    }
    let help = run(&["topics", "apply", "--help"], "").stdout;
    assert!(
        !help.contains("strimzi") && !help.contains("--cluster"),
        "{help}"
    );
}

// === demo ===

#[test]
fn the_demo_names_the_route_only_if_one_matched() {
    let output = run(&["demo", "--json"], "");
    assert_eq!(output.status, 0, "{}", output.stdout);
    let lines = output.lines();
    let (verdict, steps) = lines.split_last().unwrap();
    assert_eq!(verdict["ok"], true);
    for step in steps {
        let unrouted = [
            "unknown agent",
            "workflow",
            "A2A: the agent's card",
            "A2A: the rest of that stream",
            "MCP: the tools of a program that the bridge has started",
            "MCP: a call of its tool, among those of all agents",
        ];
        let is_routed = !unrouted.contains(&step["step"].as_str().unwrap());
        let route = is_routed.then_some("agents");
        assert_eq!(step["route"], json!(route), "{step}");
    }
    assert!(steps.iter().any(|step| step["step"] == "unknown agent"));
}

// === convert ===

#[test]
fn a_misspelt_conversion_is_guessed() {
    let output = run(&["convert", "envelope_normalise"], "");
    assert_eq!(output.status, 2, "{}", output.stdout);
    let guess = "did you mean envelope_normalize?";
    assert!(output.stderr.contains(guess), "{}", output.stderr);
}

// === the program ===

#[test]
fn every_command_explains_itself_with_examples() {
    for name in ["map", "explain", "check", "serve", "call", "demo"] {
        let output = run(&[name, "--help"], "");
        assert_eq!(output.status, 0, "{name}");
        assert!(
            output.stdout.contains("Examples:\n  ") && output.stdout.contains("a2abus"),
            "{name}"
        );
        assert!(!output.stdout.contains('\\'), "{}", output.stdout);
    }
    let output = run(&["--help"], "");
    assert!(output.stdout.contains("Exit status:") && output.status == 0);
    assert!(run(&["--version"], "").stdout.starts_with("a2abus"));
}

#[test]
fn misuse_ends_with_2() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    for misuse in [
        &[][..],
        &["fly"],
        &["map", "--fly"],
        &["demo", "--agents", "tck"],
        &["map", "a", "b"],
        &["check", "extra"],
        &["call", "-t", "soon", "agent", "ping"],
        &["call", "-t", "0s", "-c", file, "agent", "ping"],
        &["call", "-t", "1h", "-c", file, "agent", "ping"],
        &["call", "-c", file, "no agent", "ping"],
        &["call", "-c", file, "agent", "no method"],
        &["call", "-c", file, "agent", "ping", "{"],
    ] {
        let output = run(misuse, "");
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (2, ""),
            "{misuse:?}"
        );
    }
}
