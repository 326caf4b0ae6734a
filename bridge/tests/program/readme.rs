//! The README's examples for curl, against the agent that they start, and its configuration of attached servers.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use regex::Regex;
use tempfile::TempDir;

const README: &str = include_str!("../../../README.md");
/// The address in the examples.
const DOOR: &str = "127.0.0.1:8080";

/// The blocks of a language in a section.
fn blocks(section: &str, language: &str) -> Vec<&'static str> {
    let (_, text) = README.split_once(&format!("\n## {section}\n")).unwrap();
    let (text, _) = text.split_once("\n## ").unwrap();
    let start = format!("```{language}\n");
    text.split(&start)
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0)
        .collect()
}

/// The commands of a block, and the lines that they print. A command goes on while a quote is open.
fn commands(block: &str) -> (Vec<String>, Vec<&str>) {
    let (mut commands, mut printed) = (Vec::<String>::new(), Vec::new());
    let mut is_open = false;
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push(command.to_owned()),
            None if is_open => *commands.last_mut().unwrap() += &format!("\n{line}"),
            None => {
                printed.push(line);
                continue;
            }
        }
        is_open = commands.last().unwrap().matches('\'').count() % 2 == 1;
    }
    (commands, printed)
}

/// A process that ends with the test, also if it fails.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_examples_for_curl_print_what_the_readme_shows() {
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for block in blocks("Try A2A with curl", "console") {
        let (commands, printed) = commands(block);
        script.extend(commands);
        expected.extend(printed);
    }
    // The first command starts the agent. Here it takes a free port.
    let start = script.remove(0);
    let start = start.replace(DOOR, "127.0.0.1:0");
    let arguments = start
        .strip_prefix("a2abus ")
        .unwrap()
        .trim_end_matches(" &");
    let mut served = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(KilledOnDrop)
        .unwrap();
    let mut lines = BufReader::new(served.0.stdout.take().unwrap()).lines();
    let door = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, url) = line.split_once("A2A at http://")?;
        url.split(' ').next().map(str::to_owned)
    });
    let directory = TempDir::new().unwrap();
    let script = script.join("\n").replace(DOOR, &door.unwrap());
    let script = script.replace("curl -s", "curl --max-time 60 -s");
    let output = Command::new("bash")
        .args(["-c", &format!("set -euo pipefail\n{script}")])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    drop(served);
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{printed}\n{errors}");
    let printed: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(printed.len(), expected.len(), "{printed:#?}");
    for (line, expected) in printed.iter().zip(expected) {
        // Dots stand for what differs each time.
        let pattern = regex::escape(expected).replace(r"\.\.\.", ".*");
        let pattern = Regex::new(&format!("^{pattern}$")).unwrap();
        assert!(pattern.is_match(line), "{line}\nis not\n{expected}");
    }
}

#[test]
fn the_configuration_of_attached_servers_is_valid() {
    let [config] = blocks("Attach your server", "yaml")[..] else {
        panic!("one configuration");
    };
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["check", "--without-secrets", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && errors.is_empty(), "{errors}");
    // The record of kcat names a topic for its answer.
    let [_, kcat] = blocks("Attach your server", "sh")[..] else {
        panic!("two commands");
    };
    let (_, topic) = kcat.split_once("kafka_replyTopic=").unwrap();
    let topic = topic.split(' ').next().unwrap();
    assert!(config.contains(&format!("reply_topics: [{topic}]")));
}
