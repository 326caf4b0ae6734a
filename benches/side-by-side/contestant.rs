//! The programs that are compared, each a process of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::brokers::{Brokers, Scenario};

/// For a contestant to end by itself.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    A2aBus,
    /// A loop over the clients, with nothing else.
    ByHand,
    /// The same, with the headers that the bridge writes.
    ByHandWithHeaders,
    MqBridge,
    Bento,
}

/// A running contestant; it ends when this is dropped.
pub(crate) struct Process {
    child: Child,
    /// Its configuration.
    file: Option<PathBuf>,
}

/// What a process has used.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) peak_bytes: u64,
}

// === impl Contestant ===

impl Contestant {
    /// Those that can be started; the first is ours.
    pub(crate) fn all(scenario: Scenario) -> Vec<Self> {
        let given = |name: &str| std::env::var_os(name).is_some();
        let mut all = vec![Self::A2aBus, Self::ByHand, Self::ByHandWithHeaders];
        if given("MQ_BRIDGE") && scenario.is_from_kafka() {
            all.push(Self::MqBridge);
        }
        if given("BENTO") {
            all.push(Self::Bento);
        }
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A2aBus => "a2abus",
            Self::ByHand => "by hand",
            Self::ByHandWithHeaders => "by hand, with the same headers",
            Self::MqBridge => "mq-bridge",
            Self::Bento => "Bento",
        }
    }

    fn configuration(
        self,
        scenario: Scenario,
        brokers: &Brokers,
        from: &str,
        to: &str,
    ) -> Option<String> {
        match self {
            Self::A2aBus => Some(a2abus(scenario, brokers, from, to)),
            Self::MqBridge => Some(mq_bridge(scenario, brokers, from, to)),
            Self::Bento => Some(bento(scenario, brokers, from, to)),
            Self::ByHand | Self::ByHandWithHeaders => None,
        }
    }

    fn command(
        self,
        scenario: Scenario,
        brokers: &Brokers,
        from: &str,
        to: &str,
        file: &str,
    ) -> Command {
        let program = |name: &str| std::env::var_os(name).map(PathBuf::from);
        match self {
            Self::A2aBus => {
                let mut command = Command::new(bridge());
                command.args(["serve", "-c", file]);
                command
            }
            Self::MqBridge => {
                let mut command = Command::new(program("MQ_BRIDGE").expect("given"));
                command.args(["--config", file]);
                command
            }
            Self::Bento => {
                let mut command = Command::new(program("BENTO").expect("given"));
                command.args(["-c", file]);
                command
            }
            Self::ByHand | Self::ByHandWithHeaders => {
                let headers = self == Self::ByHandWithHeaders;
                let (name, kafka, nats) = (scenario.name(), &brokers.kafka, &brokers.nats);
                let work = format!("{name} {kafka} {nats} {from} {to} {headers}");
                let mut command = Command::new(std::env::current_exe().expect("a path"));
                command.args(["by-hand", &work]);
                command
            }
        }
    }
}

/// The binary of the bridge: the one that is given, or what was built with this program.
pub(crate) fn bridge() -> PathBuf {
    let built = || {
        let this = std::env::current_exe().expect("a path");
        this.ancestors().nth(2).expect("a folder").join("a2abus")
    };
    std::env::var_os("A2ABUS").map_or_else(built, PathBuf::from)
}

fn a2abus(scenario: Scenario, brokers: &Brokers, from: &str, to: &str) -> String {
    let (kafka, nats) = (&brokers.kafka, &brokers.nats);
    let binding = if scenario.is_from_kafka() {
        format!("transport: kafka, topics: [{from}], group: {to}")
    } else {
        format!("transport: nats, topics: ['{from}.>'], stream: {from}, durable: {to}")
    };
    let destination = match scenario {
        Scenario::KafkaToNats => format!("transport: nats, topic: {to}"),
        Scenario::KafkaToJetStream => format!("transport: nats, topic: {to}, stored: true"),
        Scenario::KafkaToKafka | Scenario::JetStreamToKafka => {
            format!("transport: kafka, topic: {to}")
        }
    };
    format!(
        "transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true }} }}
bindings: [{{ name: in, {binding}, dead_letter: {{ transport: kafka, topic: side-by-side-dead }} }}]
routes: [{{ name: out, when: {{ targetagent: weather }}, to: [{{ {destination} }}] }}]
http: {{ enabled: false }}
admin: {{ enabled: false }}
"
    )
}

fn mq_bridge(scenario: Scenario, brokers: &Brokers, from: &str, to: &str) -> String {
    let (kafka, nats) = (&brokers.kafka, &brokers.nats);
    let output = match scenario {
        Scenario::KafkaToNats => {
            format!("nats: {{ url: '{nats}', subject: {to}, no_jetstream: true }}")
        }
        Scenario::KafkaToJetStream => {
            format!("nats: {{ url: '{nats}', subject: {to}, stream: {to} }}")
        }
        Scenario::KafkaToKafka | Scenario::JetStreamToKafka => {
            format!("kafka: {{ url: '{kafka}', topic: {to} }}")
        }
    };
    format!(
        "routes:
  scenario:
    concurrency: 4
    batch_size: 256
    input: {{ kafka: {{ url: '{kafka}', topic: {from}, group_id: {to}, consumer_options: [[auto.offset.reset, earliest]] }} }}
    output: {{ {output} }}
"
    )
}

fn bento(scenario: Scenario, brokers: &Brokers, from: &str, to: &str) -> String {
    let (kafka, nats) = (&brokers.kafka, &brokers.nats);
    let input = if scenario.is_from_kafka() {
        format!(
            "kafka_franz: {{ seed_brokers: ['{kafka}'], topics: [{from}], consumer_group: {to}, start_from_oldest: true, checkpoint_limit: 1024 }}"
        )
    } else {
        format!(
            "nats_jetstream: {{ urls: ['{nats}'], stream: {from}, durable: {to}, bind: false, subject: '{from}.>', deliver: all, max_ack_pending: 1024 }}"
        )
    };
    let output = match scenario {
        Scenario::KafkaToNats => {
            format!("nats: {{ urls: ['{nats}'], subject: {to}, max_in_flight: 256 }}")
        }
        Scenario::KafkaToJetStream => {
            format!("nats_jetstream: {{ urls: ['{nats}'], subject: {to}, max_in_flight: 256 }}")
        }
        Scenario::KafkaToKafka | Scenario::JetStreamToKafka => format!(
            "kafka_franz: {{ seed_brokers: ['{kafka}'], topic: {to}, max_in_flight: 256, batching: {{ count: 256, period: 5ms }} }}"
        ),
    };
    format!(
        "http: {{ enabled: false }}\nlogger: {{ level: ERROR }}\ninput: {{ {input} }}\noutput: {{ {output} }}\n"
    )
}

fn write(name: &str, text: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("{name}.yaml"));
    std::fs::write(&file, text).expect("written");
    file
}

// === impl Process ===

impl Process {
    pub(crate) fn start(
        who: Contestant,
        scenario: Scenario,
        brokers: &Brokers,
        from: &str,
        to: &str,
    ) -> Self {
        let file = who
            .configuration(scenario, brokers, from, to)
            .map(|text| write(to, &text));
        let path = file
            .as_ref()
            .map_or("", |file| file.to_str().expect("text"));
        Self::spawn(who.command(scenario, brokers, from, to, path), file)
    }

    /// Starts the bridge with this configuration; `name` is a unique name for its file.
    pub(crate) fn bridge(name: &str, text: &str) -> Self {
        let file = write(name, text);
        let mut command = Command::new(bridge());
        command.args(["serve", "-c"]).arg(&file);
        Self::spawn(command, Some(file))
    }

    /// Starts a program. `file` is removed when it ends.
    pub(crate) fn spawn(mut command: Command, file: Option<PathBuf>) -> Self {
        let output = if std::env::var_os("SIDE_BY_SIDE_VERBOSE").is_some() {
            Stdio::inherit
        } else {
            Stdio::null
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        Self {
            child: child.spawn().expect("the program starts"),
            file,
        }
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn usage(&self) -> Result<Usage, String> {
        let read = |what| {
            let path = format!("/proc/{}/{what}", self.child.id());
            std::fs::read_to_string(path).map_err(|error| error.to_string())
        };
        let (stat, status) = (read("stat")?, read("status")?);
        // The name of the program, in parentheses, may hold spaces.
        let fields = stat.rsplit(')').next().expect("the fields after the name");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks
            .map(|field| field.parse::<u64>().expect("a number"))
            .sum();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok());
        Ok(Usage {
            // A tick is 10 ms on Linux.
            cpu: Duration::from_millis(ticks * 10),
            peak_bytes: peak.ok_or("it has ended")? << 10,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What is left of its work does not matter, and a profiler around it writes what it has.
        let id = self.child.id().to_string();
        drop(Command::new("kill").args(["-TERM", &id]).status());
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > FAREWELL {
                drop(self.child.kill());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(file) = &self.file {
            drop(std::fs::remove_file(file));
        }
    }
}
