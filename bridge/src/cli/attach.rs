//! `a2abus attach`: puts one server on a bus as an agent.
//!
//! It is `a2abus serve` with a configuration that contains only this agent and no listener.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{ArgGroup, Args, ValueEnum};
use serde_json::{Value, json};

use super::command::{Misuse, Status, checked, logged};
use super::output::complain_line;
use super::serve::{Signals, serve};
use super::telemetry;
use crate::config::{
    AttachConfig, Config, ConfigErrors, Name, Problem, Severity, SourceLocation, StateConfig,
    StateLog, TransportType, find_program,
};
use crate::reload::log_warnings;

/// The name of the configuration in problems if there is no file.
const NO_FILE: &str = "a2abus attach";

/// Arguments of `a2abus attach`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("server").required(true).args(["url", "command"]),
    group = ArgGroup::new("bus").required(true).args(["kafka", "nats", "config"]),
    after_help = "Examples:
  a2abus attach files --nats nats://127.0.0.1:4222 -- npx -y @modelcontextprotocol/server-filesystem /srv/files
  a2abus attach tickets --kafka 127.0.0.1:9092 --env TICKETS_TOKEN --directory /srv/tickets -- python3 server.py
  a2abus attach weather --kafka 127.0.0.1:9092 --url http://127.0.0.1:8000/mcp
  a2abus attach planner --nats nats://127.0.0.1:4222 --url http://127.0.0.1:9999/ --protocol a2a
  a2abus attach sums -c a2abus.yaml --url https://sums.example.com/rpc --protocol jsonrpc --header authorization=SUMS_TOKEN

Runs until SIGTERM or Ctrl-C: reads the topic, calls the server, and publishes each answer to the topic that its request names. \
A bridge that reads the topic of --announce with `role: discovery` finds the agent, and forgets it within 40 s after this process has stopped, unless another process announces it; \
any other bridge needs a route, such as `agents.NAME.to`, to call it. With -c it uses the transports of the file, and the state if that is on the bus; \
the file's bindings, other agents and listeners are not started. Without such a state, the record of \
completed requests is lost when the process ends. On Kafka the topics of --topic and --announce must exist."
)]
pub(crate) struct AttachArgs {
    /// The name of the agent.
    name: String,
    /// The URL of an HTTP server.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The protocol of the HTTP server.
    #[arg(long, value_enum, default_value = "mcp", conflicts_with = "command")]
    protocol: Protocol,
    /// A header of every request to the server, with the environment variable that contains its value.
    #[arg(
        long = "header",
        value_name = "HEADER=VARIABLE",
        conflicts_with = "command"
    )]
    headers: Vec<String>,
    /// An environment variable of the program: NAME=VALUE, or NAME to take the value from the environment of a2abus.
    #[arg(long = "env", value_name = "NAME[=VALUE]", conflicts_with = "url")]
    variables: Vec<String>,
    /// The working directory of the program [default: the current one].
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "url")]
    directory: Option<PathBuf>,
    /// The program of an MCP server that uses standard input and output.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// A Kafka broker, as host:port.
    #[arg(long, value_name = "BROKER")]
    kafka: Option<String>,
    /// A NATS server, as host:port or nats://host:port.
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// Use the transports of this configuration file.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The transport of the file, if it has several.
    #[arg(long, value_name = "NAME", requires = "config")]
    transport: Option<String>,
    /// The topic or subject to read requests from [default: agents.NAME].
    #[arg(long)]
    topic: Option<String>,
    /// A topic that requests may name for their answers, such as the calls.reply_topic of the bridges if it is not
    /// a2abus.replies (on NATS with .* after it); a pattern may contain * (any text), but not the NATS wildcard >.
    #[arg(long = "reply-topic", value_name = "PATTERN")]
    reply_topics: Vec<String>,
    /// The topic on which the agent is announced to other bridges [default: agents.discovery, on NATS
    /// agents.discovery.NAME].
    #[arg(long, value_name = "TOPIC", conflicts_with = "no_announce")]
    announce: Option<String>,
    /// Do not announce the agent; other bridges then have to list it.
    #[arg(long)]
    no_announce: bool,
    /// Maximum number of concurrent calls. Only with 1 can the bridge tell to which call a question of the server
    /// belongs, unless an HTTP server sends the question on the response stream of the call.
    #[arg(long, value_name = "CALLS")]
    concurrency: Option<u32>,
}

/// The protocol of the server.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Protocol {
    Mcp,
    A2a,
    Jsonrpc,
}

/// The default topic of announcements.
const DISCOVERY: &str = "agents.discovery";
/// The name of the bus if there is no file.
const BUS: &str = "bus";

/// The variable that adds the agent to the configuration in a file.
const AGENTS: &str = "A2ABUS_AGENTS";
/// Parts of the paths of values, each with the argument that sets the value.
const ARGUMENTS: [(&str, &str); 14] = [
    (".to.topic", "--topic"),
    (".to.transport", "--transport"),
    (".attach.announce", "--announce"),
    (".attach.command", "COMMAND"),
    (".attach.concurrency", "--concurrency"),
    // The topic of dead letters is wrong only if the agent reads it.
    (".attach.dead_letter", "--topic"),
    (".attach.directory", "--directory"),
    (".attach.env", "--env"),
    (".attach.headers", "--header"),
    (".attach.protocol", "--protocol"),
    (".attach.reply_topics", "--reply-topic"),
    (".attach.url", "--url"),
    ("transports.bus.brokers", "--kafka"),
    ("transports.bus.servers", "--nats"),
];

/// The configuration of one agent.
struct Attached {
    config: Config,
    /// Whether the state of the file was ignored: it is in files, which only one process can open.
    ignores_state: bool,
}

/// Runs until a signal.
///
/// # Errors
/// [`Misuse`] when an argument is wrong; otherwise when the configuration is invalid or the bridge cannot start.
pub(crate) async fn run(args: AttachArgs) -> anyhow::Result<Status> {
    let mut signals = Signals::new()?;
    let Attached {
        config,
        ignores_state,
    } = match &args.config {
        Some(file) => args.with_file(file)?,
        None => args.without_file()?,
    };
    for (name, agent) in &config.agents {
        for (_, key, secret) in agent.attach.iter().flat_map(AttachConfig::secrets) {
            let read = secret.reveal();
            read.map_err(|error| Misuse(format!("{name}: {key}: {error}")))?;
        }
    }
    args.check_program()?;
    let log = telemetry::start(&config.telemetry)?;
    let file = args.config.as_deref().unwrap_or(Path::new(NO_FILE));
    log_warnings(&file.display().to_string(), &config.warnings);
    if ignores_state {
        tracing::warn!(
            "the configuration has `state.log: embedded`, whose files belong to `a2abus serve`: this process keeps its state \
             in memory, so it executes redelivered calls again after a restart; to prevent that, set state.log to a transport"
        );
    } else if config.state.place() == StateLog::Memory && may_redeliver(&config) {
        tracing::warn!(
            "this process keeps its state in memory, so after a restart it executes redelivered calls again: to prevent that, \
             pass -c with a file whose `state.log` names a transport, or add the server to `agents` in a file for `a2abus serve` that sets `state.log`"
        );
    }
    let format = config.telemetry.log_format;
    let done = serve(config, log, &mut signals).await;
    Ok(logged(format, done))
}

/// The configuration that the arguments give. Its problems name an argument, not a place in a file. Problems of the
/// file go to standard error.
fn of_arguments(loaded: Result<Config, ConfigErrors>) -> anyhow::Result<Config> {
    let errors = match loaded {
        Ok(config) => return Ok(config),
        Err(errors) => errors,
    };
    let is_own = |problem: &&Problem| match &problem.site {
        SourceLocation::Environment { variable } => variable == AGENTS,
        SourceLocation::File { .. } | SourceLocation::Whole {} => errors.file() == NO_FILE,
    };
    let (own, others): (Vec<_>, Vec<_>) = errors.problems().iter().partition(is_own);
    let own = own.iter().filter(|it| it.severity == Severity::Error);
    let own: Vec<String> = own
        .map(|it| format!("{}: {}", argument(&it.path.to_string()), it.message))
        .collect();
    if own.is_empty() {
        return checked(Err(errors));
    }
    for problem in others {
        complain_line(&problem.in_file(errors.file()).to_string());
    }
    Err(Misuse(own.join("; ")).into())
}

/// The argument that sets the value at a path.
fn argument(path: &str) -> &'static str {
    let mut arguments = ARGUMENTS.iter();
    let argument = arguments.find(|(part, _)| path.contains(part));
    argument.map_or("NAME", |(_, argument)| *argument)
}

fn nats_url(server: &str) -> String {
    match server.contains("://") {
        true => server.to_owned(),
        false => format!("nats://{server}"),
    }
}

/// Whether requests can be delivered again after a restart. Core NATS delivers each at most once.
fn may_redeliver(config: &Config) -> bool {
    let agents = config.agents.values().filter_map(|agent| agent.to.as_ref());
    let mut transports = agents.filter_map(|to| config.transports.get(&to.transport));
    transports.any(|transport| transport.transport_type() != TransportType::Nats)
}

// === impl AttachArgs ===

impl AttachArgs {
    /// The transports of a file, and only this agent.
    fn with_file(&self, file: &Path) -> anyhow::Result<Attached> {
        let name = file.display().to_string();
        // Read only once: the file may be a pipe, and it may change.
        let text = checked(Config::text_of(file))?;
        let transports = checked(Config::transports_of(&name, &text, std::env::vars_os()))?;
        let transport = match &self.transport {
            Some(transport) => transport,
            None => {
                if transports.is_empty() {
                    // Reports all problems of the file.
                    checked(Config::read(&name, &text, std::env::vars_os()))?;
                }
                only_transport(&name, &transports)?
            }
        };
        let kind = transports.iter().find(|(name, _)| name == transport);
        let kind = kind.and_then(|(_, kind)| *kind);
        let own = [
            (AGENTS, self.agents(transport, kind)?.to_string()),
            ("A2ABUS_A2A__DEFAULT_AGENT", self.name.clone()),
            ("A2ABUS_BINDINGS", "[]".to_owned()),
            ("A2ABUS_ROUTES", "[]".to_owned()),
            ("A2ABUS_HTTP__ENABLED", "false".to_owned()),
            ("A2ABUS_ADMIN__ENABLED", "false".to_owned()),
            ("A2ABUS_WORKFLOWS__ENABLED", "false".to_owned()),
            // The bridges record answers and call webhooks. If this process shared that work, its death would delay it.
            ("A2ABUS_CALLS__ENABLED", "false".to_owned()),
            (
                "A2ABUS_A2A__PUSH_NOTIFICATIONS__ENABLED",
                "false".to_owned(),
            ),
        ];
        let own = own.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        // Not with `Config::load`: a reload would add the other parts of the file.
        let loaded = Config::read(&name, &text, std::env::vars_os().chain(own));
        let mut config = of_arguments(loaded)?;
        // The directory of the state and the replica number belong to `a2abus serve`.
        let ignores_state = config.state.place() == StateLog::Embedded;
        if ignores_state {
            config.state = StateConfig::default();
        }
        config.calls.replica = None;
        Ok(Attached {
            config,
            ignores_state,
        })
    }

    /// One bus, and this agent.
    fn without_file(&self) -> anyhow::Result<Attached> {
        let (transport, kind) = match (&self.kafka, &self.nats) {
            (Some(broker), _) => (
                json!({ "type": "kafka", "brokers": [broker] }),
                TransportType::Kafka,
            ),
            (None, Some(server)) => (
                json!({ "type": "nats", "servers": [nats_url(server)] }),
                TransportType::Nats,
            ),
            (None, None) => return Err(Misuse("give --kafka, --nats or -c".to_owned()).into()),
        };
        let document = json!({
            "transports": { BUS: transport }, "agents": self.agents(BUS, Some(kind))?,
            "http": { "enabled": false }, "admin": { "enabled": false }, "calls": { "enabled": false },
        });
        Ok(Attached {
            config: of_arguments(Config::read(NO_FILE, &document.to_string(), []))?,
            ignores_state: false,
        })
    }

    /// The topic on which the agent is announced.
    fn announced(&self, kind: Option<TransportType>) -> Result<Option<String>, Misuse> {
        if self.no_announce || self.announce.is_some() {
            return Ok(self.announce.clone());
        }
        Ok(Some(match kind {
            // On NATS, permissions for the last word of the subject decide who may announce which agent.
            Some(TransportType::Nats) if self.name.contains('.') => {
                return Err(Misuse(format!(
                    "{}: announcements on NATS need a name without dots: choose another name, or use --no-announce",
                    self.name
                )));
            }
            Some(TransportType::Nats) => format!("{DISCOVERY}.{}", self.name),
            Some(TransportType::Kafka | TransportType::Memory) | None => DISCOVERY.to_owned(),
        }))
    }

    /// Whether the program can be started. The bridge would try for ever.
    fn check_program(&self) -> Result<(), Misuse> {
        let Some(program) = self.command.first() else {
            return Ok(());
        };
        let directory = self.directory.as_deref().unwrap_or(Path::new("."));
        if !directory.is_dir() {
            let message = format!("--directory {}: no such directory", directory.display());
            return Err(Misuse(message));
        }
        let mut own = self
            .variables
            .iter()
            .filter_map(|it| it.strip_prefix("PATH="));
        let path = own.next_back().map(OsString::from);
        let path = path
            .or_else(|| std::env::var_os("PATH"))
            .unwrap_or_default();
        let found = find_program(program, directory, &path);
        found.map_err(|why| Misuse(format!("{program}: {why}")))
    }

    /// The environment of the program. A variable without a value is read at each start, as a secret.
    fn environment(&self) -> serde_json::Map<String, Value> {
        let variables = self.variables.iter();
        let variables = variables.map(|variable| match variable.split_once('=') {
            Some((name, value)) => (name.to_owned(), json!(value)),
            None => (variable.clone(), json!({ "env": variable })),
        });
        variables.collect()
    }

    /// The section `agents`; `kind` is that of the transport, if there is one of this name.
    fn agents(&self, transport: &str, kind: Option<TransportType>) -> anyhow::Result<Value> {
        Name::new(&self.name).map_err(|why| Misuse(format!("NAME {:?}: {why}", self.name)))?;
        let topic = self.topic.clone();
        let topic = topic.unwrap_or_else(|| format!("agents.{}", self.name));
        let headers = self.headers.iter().map(|header| {
            let parts = header.split_once('=');
            let wrong = || Misuse(format!("--header {header}: write HEADER=VARIABLE"));
            let (name, variable) = parts.ok_or_else(wrong)?;
            Ok((name.to_owned(), json!({ "env": variable })))
        });
        let headers: serde_json::Map<_, _> = headers.collect::<Result<_, Misuse>>()?;
        let mut attach = match &self.url {
            Some(url) => {
                json!({ "url": url, "protocol": self.protocol.as_str(), "headers": headers })
            }
            None => json!({
                "command": self.command, "env": self.environment(), "directory": self.directory,
            }),
        };
        attach["reply_topics"] = json!(self.reply_topics);
        attach["announce"] = json!(self.announced(kind)?);
        if let Some(concurrency) = self.concurrency {
            attach["concurrency"] = concurrency.into();
        }
        let to = json!({ "transport": transport, "topic": topic });
        Ok(json!({ self.name.as_str(): { "to": to, "attach": attach } }))
    }
}

/// The only transport of a configuration.
fn only_transport<'a>(
    file: &str,
    transports: &'a [(String, Option<TransportType>)],
) -> anyhow::Result<&'a String> {
    match transports {
        [] => bail!("{file}: transports: add one, of type kafka or nats"),
        [(only, _)] => return Ok(only),
        _ => {}
    }
    let names: Vec<&str> = transports.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let message = format!("the file has these transports: {names}; choose one with --transport");
    Err(Misuse(message).into())
}

// === impl Protocol ===

impl Protocol {
    fn as_str(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::A2a => "a2a",
            Self::Jsonrpc => "jsonrpc",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: AttachArgs,
    }

    fn args(line: &str) -> Result<AttachArgs, clap::Error> {
        let arguments = ["attach"].into_iter().chain(line.split(' '));
        Line::try_parse_from(arguments).map(|line| line.args)
    }

    #[test]
    fn a_server_and_a_bus_give_a_configuration() {
        for line in [
            "files --nats nats://127.0.0.1:4222 -- npx server",
            "w --kafka 127.0.0.1:9092 --url http://127.0.0.1:8000/mcp --header authorization=T",
            "p --nats nats://a:1 --url http://b:2/ --protocol a2a --topic t --concurrency 1",
            "p --nats a:1 -- x",
        ] {
            let config = args(line).unwrap().without_file().unwrap().config;
            assert_eq!(config.bindings.len(), 1, "{line}");
            // It reads no answers to the calls of bridges.
            assert!(config.reply_bindings().is_empty(), "{line}");
        }
        for (line, announced) in [
            ("a --nats nats://a:1 -- x", Some("agents.discovery.a")),
            ("a --kafka a:1 -- x", Some("agents.discovery")),
            ("a --kafka a:1 --announce t -- x", Some("t")),
            ("a --kafka a:1 --no-announce -- x", None),
        ] {
            let config = args(line).unwrap().without_file().unwrap().config;
            let attach = config.agents.values().next().unwrap().attach.as_ref();
            let topic = attach.unwrap().announce.as_ref();
            assert_eq!(topic.map(|topic| topic.as_str()), announced, "{line}");
        }
        for line in [
            "w --kafka 127.0.0.1:9092",
            "w --url http://127.0.0.1:8000/mcp",
            "w --kafka a:1 --url http://b/ -- npx server",
            "w --kafka a:1 --nats nats://a:1 -- npx server",
            "w --kafka a:1 --url http://b/ --env A",
            "w --kafka a:1 --url http://b/ --directory /",
        ] {
            assert!(args(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_program_gets_its_environment_and_directory() {
        let line = "a --kafka b:1 --env LEVEL=a=b --env A2ABUS_TEST_NOT_SET --directory /srv -- x";
        let config = args(line).unwrap().without_file().unwrap().config;
        let attach = config.agents.values().next().unwrap().attach.as_ref();
        let attach = attach.unwrap();
        assert_eq!(attach.directory.as_deref(), Some(Path::new("/srv")));
        let value = |name: &str| attach.env[name].reveal();
        assert_eq!(value("LEVEL").unwrap(), "a=b");
        // It is read from the variable of the same name, which is not set here.
        let error = value("A2ABUS_TEST_NOT_SET").unwrap_err().to_string();
        assert_eq!(
            error,
            "the environment variable A2ABUS_TEST_NOT_SET is not set"
        );
    }

    #[test]
    fn a_program_that_does_not_exist_is_refused() {
        let checked = |line: &str| {
            let checked = args(line).unwrap().check_program();
            checked.map_err(|Misuse(message)| message)
        };
        assert_eq!(checked("a --kafka b:1 -- sh -c true"), Ok(()));
        assert_eq!(checked("a --kafka b:1 -- /bin/sh"), Ok(()));
        assert_eq!(checked("a --kafka b:1 --directory /bin -- ./sh"), Ok(()));
        assert_eq!(checked("a --kafka b:1 --url http://c/"), Ok(()));
        for (line, expected) in [
            (
                "-- no-such-program",
                "no-such-program: there is no such program in PATH: install it, or give its path",
            ),
            (
                "--env PATH=/nowhere -- sh",
                "sh: there is no such program in PATH: install it, or give its path",
            ),
            (
                "-- /bin/no-such-program",
                "/bin/no-such-program: no such program",
            ),
            ("-- /bin", "/bin: no such program"),
            (
                concat!(
                    "--directory ",
                    env!("CARGO_MANIFEST_DIR"),
                    " -- ./Cargo.toml"
                ),
                "./Cargo.toml: is not executable: run chmod +x on it",
            ),
            (
                "--directory /nowhere -- sh",
                "--directory /nowhere: no such directory",
            ),
        ] {
            let refused = checked(&format!("a --kafka b:1 {line}"));
            assert_eq!(refused, Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_wrong_argument_is_reported_by_its_name() {
        let refused = |read: anyhow::Result<Attached>| {
            let error = read.err().unwrap();
            assert!(error.is::<Misuse>(), "{error}");
            error.to_string()
        };
        for (line, expected) in [
            ("_a --nats a:1 -- x", "NAME \"_a\": not a name: "),
            (
                "a --nats a:1 --topic x..y -- x",
                "--topic: \"x..y\" is not a topic name: no segment between dots may be empty",
            ),
            ("a --nats a:1 --topic a2abus.dlq -- x", "--topic: "),
            (
                "a --nats a:1 --concurrency 0 -- x",
                "--concurrency: out of bounds: ",
            ),
            ("a --nats a:1 --url ftp://b/", "--url: not a base URL: "),
            (
                "a --kafka a:port -- x",
                "--kafka: write at least one broker",
            ),
        ] {
            let message = refused(args(line).unwrap().without_file());
            assert!(message.starts_with(expected), "{message}");
        }
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("a2abus.yaml");
        std::fs::write(
            &file,
            "transports: { k: { type: kafka, brokers: ['a:1'] } }",
        )
        .unwrap();
        let line = format!("a -c {} --transport zz --url http://b/", file.display());
        let message = refused(args(&line).unwrap().with_file(&file));
        assert_eq!(
            message,
            "--transport: there is no transport zz: the transports are k"
        );
    }

    #[test]
    fn reply_topics_are_no_nats_wildcards() {
        let read = |pattern: &str| {
            let line = format!("a --nats nats://a:1 --reply-topic {pattern} -- x");
            args(&line).unwrap().without_file()
        };
        assert!(read("clients.*").is_ok());
        assert!(read("clients.>").is_err());
    }

    #[test]
    fn a_file_is_read_once() {
        let directory = tempfile::TempDir::new().unwrap();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let line = format!("mine -c {} --url http://b/", pipe.display());
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = pipe.clone();
        std::thread::spawn(move || {
            let attached = args(&line).unwrap().with_file(&reader).unwrap();
            sender.send(attached.config.agents.len()).unwrap();
        });
        std::fs::write(
            &pipe,
            "transports: { k: { type: kafka, brokers: ['a:1'] } }",
        )
        .unwrap();
        // A second read of the pipe would never return.
        let agents = receiver.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(agents, Ok(1));
    }

    #[test]
    fn a_file_without_transports_is_refused_as_a_configuration() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("a2abus.yaml");
        let line = format!("mine -c {} --url http://b/", file.display());
        for (text, expected) in [
            ("{}", "is invalid"),
            ("transport: {}", "is invalid"),
            ("calls: { enabled: false }", "transports: add one"),
        ] {
            std::fs::write(&file, text).unwrap();
            let refused = args(&line).unwrap().with_file(&file).err().unwrap();
            assert!(refused.to_string().contains(expected), "{text}: {refused}");
            assert!(!refused.is::<Misuse>(), "{text}");
        }
    }

    #[test]
    fn only_the_transports_of_a_file_are_used() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("a2abus.yaml");
        let text = "
transports: { k: { type: kafka, brokers: ['a:1'] } }
bindings: [{ name: b, transport: k, topics: [t], group: g }]
agents: { other: { description: Other., to: { transport: k, topic: o } } }
a2a: { default_agent: other, push_notifications: { enabled: true } }
";
        std::fs::write(&file, text).unwrap();
        let line = format!(
            "Mine -c {} --url http://b/ --protocol jsonrpc",
            file.display()
        );
        let config = args(&line).unwrap().with_file(&file).unwrap().config;
        let names: Vec<&str> = config.agents.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["Mine"]);
        let topics = config.bindings.iter().flat_map(|binding| &binding.topics);
        let topics: Vec<&str> = topics.map(|topic| topic.as_str()).collect();
        assert_eq!(topics, ["agents.Mine"]);
        assert!(!config.http.enabled && !config.admin.enabled);
        assert!(config.reply_bindings().is_empty());
        assert!(!config.a2a.push_notifications.enabled);
    }
}
