//! Real servers: those that the environment names, and private ones that a test may stop and start.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::battery::within;

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Apache Kafka, named by `A2ABUS_TEST_KAFKA` (`host:port`).
    Kafka,
    /// A NATS server with JetStream, named by `A2ABUS_TEST_NATS` (a URL).
    Nats,
}

/// The address of the server that the environment names. Without one the test is skipped, with a printed line.
///
/// # Panics
/// If there is none and `A2ABUS_REQUIRE_BROKERS` is set to a value other than `0`.
#[must_use]
pub fn named(kind: Kind) -> Option<String> {
    let variable = match kind {
        Kind::Kafka => "A2ABUS_TEST_KAFKA",
        Kind::Nats => "A2ABUS_TEST_NATS",
    };
    let address = std::env::var(variable)
        .ok()
        .filter(|address| !address.is_empty());
    if address.is_none() {
        leave_out(&format!("{variable} names no server"));
    }
    address
}

/// A server of the test's own, on a free port of the loopback interface; it ends with the test.
#[derive(Debug)]
pub struct Private {
    kind: Kind,
    port: u16,
    directory: TempDir,
    /// Lines of its configuration, in addition to the defaults.
    settings: Vec<String>,
    process: Mutex<Option<Child>>,
}

// === impl Private ===

impl Private {
    /// Starts a server and waits until it answers. Prints a line and returns `None` if the machine has no such server.
    ///
    /// # Panics
    /// When there is none and `A2ABUS_REQUIRE_BROKERS` is set, and not `0`, or when it does not come up.
    pub async fn start_new(kind: Kind) -> Option<Self> {
        Self::start_with(kind, &[]).await
    }

    /// As [`Private::start_new`], with further lines of the server's configuration; `{port}` in them is its port.
    ///
    /// # Panics
    /// As [`Private::start_new`].
    pub async fn start_with(kind: Kind, settings: &[&str]) -> Option<Self> {
        if !can_start(kind).await {
            leave_out(&format!("this machine has no {kind:?} to start"));
            return None;
        }
        let port = free_port().await;
        // A Kafka that was killed is let in again only once its old session is over.
        let session: &[&str] = match kind {
            Kind::Kafka => &["broker.session.timeout.ms=3000"],
            Kind::Nats => &[],
        };
        let settings = session.iter().chain(settings);
        let settings = settings.map(|line| line.replace("{port}", &port.to_string()));
        let server = Self {
            kind,
            port,
            directory: tempfile::tempdir().expect("a temporary directory"),
            settings: settings.collect(),
            process: Mutex::new(None),
        };
        server.start().await;
        Some(server)
    }

    /// A Kafka with a second listener, for a user with the password `secret` who has no permission yet; and the address
    /// of that listener. The anonymous user of the first listener may do anything.
    ///
    /// # Panics
    /// As [`Private::start_new`].
    pub async fn start_kafka_with_user(user: &str) -> Option<(Self, String)> {
        let sasl = format!("127.0.0.1:{}", free_port().await);
        let settings = [
            &format!("listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://{sasl}"),
            "sasl.enabled.mechanisms=SCRAM-SHA-256",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
            &format!("--add-scram=SCRAM-SHA-256=[name={user},password=secret]"),
        ];
        let broker = Self::start_with(Kind::Kafka, &settings).await?;
        Some((broker, sasl))
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it again with the data it had, and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn start(&self) {
        // The script becomes the server (exec), so that killing the child kills the server.
        let child = Command::new(script(self.kind))
            .arg("start")
            .arg(self.directory.path())
            .arg(self.port.to_string())
            .args(&self.settings)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the server starts");
        *self.process.lock().await = Some(child);
        within("the server answers", async {
            loop {
                let answers = self.answers().await;
                // Checked last: another server may answer while this one ends because the port is taken.
                let ended = match self.process.lock().await.as_mut() {
                    Some(child) => child.try_wait().expect("the child is ours"),
                    None => None,
                };
                assert!(ended.is_none(), "the server ended: {ended:?}");
                if answers {
                    break;
                }
                sleep(Duration::from_millis(200)).await;
            }
        })
        .await;
    }

    /// Runs a tool of Apache Kafka against it.
    ///
    /// # Panics
    /// When the tool fails.
    pub async fn kafka_tool(&self, class: &str, arguments: &[&str]) {
        let status = Command::new(script(Kind::Kafka))
            .args(["tool", class, "--bootstrap-server", &self.address()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .status();
        let status = within("the tool ends", status)
            .await
            .expect("the tool runs");
        assert!(status.success(), "{class} {arguments:?}: {status}");
    }

    /// Kills it like a power cut. The stored data stays.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub async fn kill(&self) {
        if let Some(mut child) = self.process.lock().await.take() {
            child.kill().await.expect("the server is killed");
        }
    }

    /// Lets it answer nothing any more, while its connections stay open.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn freeze(&self) {
        self.signal("-STOP").await;
    }

    /// Lets it answer again.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn thaw(&self) {
        self.signal("-CONT").await;
    }

    async fn signal(&self, signal: &str) {
        let process = self.process.lock().await;
        let id = process.as_ref().and_then(Child::id).expect("it runs");
        let arguments = [signal, &id.to_string()];
        let status = Command::new("kill").args(arguments).status().await;
        assert!(status.expect("kill runs").success());
    }

    async fn answers(&self) -> bool {
        let status = Command::new(script(self.kind))
            .arg("ready")
            .arg(self.port.to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await;
        status.is_ok_and(|status| status.success())
    }
}

async fn can_start(kind: Kind) -> bool {
    let override_variable = match kind {
        Kind::Kafka => "A2ABUS_KAFKA_HOME",
        Kind::Nats => "A2ABUS_NATS_SERVER",
    };
    if std::env::var_os(override_variable).is_some() {
        return true;
    }
    let status = Command::new(script(kind))
        .arg("have")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await;
    status.is_ok_and(|status| status.success())
}

/// The script that starts servers of this kind and checks them.
#[must_use]
pub fn script(kind: Kind) -> PathBuf {
    brokers().join(match kind {
        Kind::Kafka => "kafka",
        Kind::Nats => "nats",
    })
}

fn brokers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("brokers")
}

/// A port outside the range that clients get theirs from, so that a server can have it again after a restart.
///
/// # Panics
/// When there is none.
pub async fn free_port() -> u16 {
    let output = Command::new(brokers().join("free-port"))
        .stdin(Stdio::null())
        .output()
        .await
        .expect("tests/brokers/free-port runs");
    let port = String::from_utf8(output.stdout).expect("a number");
    port.trim().parse().expect("a number")
}

/// The program `a2abus`, which cargo builds next to the tests of the workspace.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("the path of the tests");
    let directory = tests.ancestors().nth(2).expect("a target directory");
    let program = directory.join("a2abus");
    assert!(
        program.exists(),
        "{} is missing: run `cargo build -p a2abus-bridge` first",
        program.display()
    );
    program
}

fn leave_out(reason: &str) {
    // The scripts have the same rule.
    let required = std::env::var("A2ABUS_REQUIRE_BROKERS")
        .is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
    assert!(!required, "{reason}, and A2ABUS_REQUIRE_BROKERS is set");
    println!("left out: {reason}");
}
