//! NATS over TLS: the log, `check` and the readiness report name the cause of a failed connection and the cure.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, program};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// An authority, and a directory with its certificate (`ca.pem`) and those that it issues.
struct Authority {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { directory, issuer }
    }

    /// Issues `{file}.pem` and `{file}.key` for a host, valid until the first day of a year.
    fn issue(&self, file: &str, host: &str, until: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.file(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A server with a certificate of this authority, and further keys of its `tls` block.
    async fn server(&self, file: &str, more: &str) -> Option<Private> {
        let [cert, key, ca] = [
            format!("{file}.pem"),
            format!("{file}.key"),
            "ca.pem".into(),
        ]
        .map(|name| self.file(&name).display().to_string());
        let tls =
            format!(r#"tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}"{more} }}"#);
        Private::start_with(Kind::Nats, &[&tls]).await
    }

    /// `ca_file`, and, for a client, `cert_file` and `key_file`.
    fn keys(&self, client: Option<&str>) -> String {
        let ca = self.file("ca.pem");
        let own = client.map(|name| {
            let [cert, key] = ["pem", "key"].map(|end| self.file(&format!("{name}.{end}")));
            format!(
                ", cert_file: {}, key_file: {}",
                cert.display(),
                key.display()
            )
        });
        format!(
            "tls: {{ ca_file: {}{} }}",
            ca.display(),
            own.unwrap_or_default()
        )
    }
}

fn configuration(server: &str, tls: &str) -> String {
    format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{server}'], {tls} }} }}
default_route: [{{ transport: bus, topic: 'agents.{{targetagent}}' }}]
"
    )
}

fn written(directory: &Path, config: &str) -> PathBuf {
    let file = directory.join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    file
}

/// The line of `check --connect` about the connection.
async fn connect(config: String) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(program())
        .args(["check", "--connect", "-c"])
        .arg(written(directory.path(), &config))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the check ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("bus: connect"));
    line.unwrap_or(&text).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_a_tls_failure_is_reported_with_its_fix() {
    let (ours, other) = (Authority::new(), Authority::new());
    ours.issue("server", "127.0.0.1", 2999);
    ours.issue("elsewhere", "nats.example", 2999);
    ours.issue("expired", "127.0.0.1", 2020);
    for authority in [&ours, &other] {
        authority.issue("client", "client", 2999);
    }
    let Some(plain) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let good = ours.server("server", "").await.unwrap();
    let elsewhere = ours.server("elsewhere", "").await.unwrap();
    let expired = ours.server("expired", "").await.unwrap();
    let asking = ours.server("server", ", verify: true").await.unwrap();
    let (trusting, foreign) = (ours.keys(None), other.keys(None));
    let ca = other.file("ca.pem").display().to_string();
    // Signed by an authority that the server does not know.
    let stranger = other.keys(Some("client")).replace(
        &format!("ca_file: {ca}"),
        &format!("ca_file: {}", ours.file("ca.pem").display()),
    );
    let stranger_file = other.file("client.pem").display().to_string();
    let cases = [
        (&good, trusting.clone(), None),
        (&asking, ours.keys(Some("client")), None),
        (
            &good,
            foreign,
            Some(format!(
                "no authority in tls.ca_file {ca} has signed the certificate of the server: add the one that has"
            )),
        ),
        (
            &good,
            "name: system".to_owned(),
            Some("this system does not know the authority that signed the certificate of the server: set tls.ca_file to that authority's certificate".to_owned()),
        ),
        (
            &elsewhere,
            trusting.clone(),
            Some("the certificate of the server is for nats.example: use such a name in servers, or a certificate with this one".to_owned()),
        ),
        (
            &expired,
            trusting.clone(),
            Some("the certificate of the server expired on 2020-01-01T00:00:00Z: renew it there".to_owned()),
        ),
        (
            &plain,
            "tls: { required: true }".to_owned(),
            Some("the server has no TLS, and tls.required is true: turn TLS on in the server".to_owned()),
        ),
        (
            &plain,
            "tls: { first: true }".to_owned(),
            Some("the server does not begin with TLS: set tls.first to false, or handshake_first in the server".to_owned()),
        ),
        (
            &asking,
            trusting.clone(),
            Some("the server asks for a client certificate: set tls.cert_file and tls.key_file".to_owned()),
        ),
        (
            &asking,
            stranger,
            Some(format!(
                "the server refuses the client certificate {stranger_file}: it does not know the authority that signed it, so use one whose authority is in the server's ca_file"
            )),
        ),
    ];
    let errors = cases.iter().map(async |(server, keys, _)| {
        let address = server.address();
        connect(configuration(&format!("nats://{address}"), keys)).await
    });
    for (error, (server, keys, trouble)) in join_all(errors).await.into_iter().zip(&cases) {
        let expected = match trouble {
            None => "ok       bus: connect".to_owned(),
            Some(trouble) => format!(
                "FAILED   bus: connect: no connection: {}: {trouble}",
                server.address()
            ),
        };
        assert_eq!(error, expected, "{keys}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_and_the_readiness_name_the_cause_of_a_tls_failure() {
    let ours = Authority::new();
    ours.issue("server", "127.0.0.1", 2999);
    let Some(server) = (match Private::start_new(Kind::Nats).await {
        Some(_) => ours.server("server", "").await,
        None => None,
    }) else {
        return;
    };
    let address = server.address();
    let config = configuration(&format!("nats://{address}"), "name: test");
    let trouble = format!("{address}: this system does not know the authority");

    let bridge = Running::launch(&config).await;
    let reported = async {
        while !format!("{:?}", bridge.report()).contains(&trouble) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within("the readiness names it", reported).await;
    bridge.stop().await;

    // One line has the cause, another the part that does not start because of it.
    let lines = logged(&config, "a part of the bridge did not start").await;
    let reported = lines.iter().filter(|line| line.contains(&trouble));
    let reported: Vec<&String> = reported
        .filter(|line| !line.contains("did not start"))
        .collect();
    assert!(
        reported.len() == 1
            && reported[0].contains("WARN")
            && reported[0].contains("transport=bus"),
        "{lines:?}"
    );
    assert!(
        !lines.iter().any(|line| line.contains("async_nats")),
        "{lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_a_certificate_that_has_expired() {
    let ours = Authority::new();
    ours.issue("old", "127.0.0.1", 2020);
    let file = ours.file("old.pem").display().to_string();
    // Nobody listens on this port.
    let config = configuration("nats://127.0.0.1:1", &format!("tls: {{ ca_file: {file} }}"));
    let lines = logged(&config, "WARN").await;
    let trouble = format!("in {file} expired on 2020-01-01T00:00:00Z: renew it");
    assert!(lines.last().unwrap().contains(&trouble), "{lines:?}");
}

/// The log of the program that serves this configuration, up to a line with this text.
pub(crate) async fn logged(config: &str, last: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let doors = "http: { listen: '127.0.0.1:0' }\nadmin: { enabled: false }\n";
    let mut command = Command::new(program());
    command
        .args(["serve", "-c"])
        .arg(written(directory.path(), &format!("{config}{doors}")));
    logged_by(command, last).await
}

/// What a command logs until a line that contains `last`. Ends the command.
pub(crate) async fn logged_by(mut command: Command, last: &str) -> Vec<String> {
    let mut serving = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(serving.stderr.take().unwrap()).lines();
    let mut lines = Vec::new();
    let logged = async {
        while let Some(line) = log.next_line().await.unwrap() {
            let is_last = line.contains(last);
            lines.push(line);
            if is_last {
                return;
            }
        }
        panic!("the bridge ended");
    };
    within("the log has the line", logged).await;
    lines
}
