//! The configuration of NATS, and the client options derived from it.

mod jetstream;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_nats::{Auth, AuthError, ConnectOptions, ServerAddr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::credentials;
use crate::error::{ConfigProblem, TlsFindings, TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::secret::{Secret, SecretError};
use crate::tls_files::{TlsClient, TlsFiles};

pub(super) use jetstream::is_name;
pub use jetstream::{JetStreamConfig, StreamConfig, StreamStorage};

/// A connection to one NATS system. `bridge/CONFIGURATION.md` has the defaults and limits of all keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// The servers to connect to first, each `nats://host:port` or `tls://host:port`, without user or password. The
    /// client discovers the rest of the cluster. If none of them answers, the transport is unavailable until one does.
    #[schemars(extend("minItems" = 1))]
    pub servers: Vec<String>,

    /// The name of this client in the server's monitoring.
    #[serde(default = "default_name")]
    #[schemars(length(min = 1))]
    pub name: String,

    /// TLS to the servers. By default it is used if a password or token is sent (see `required`), or if a server or a
    /// `tls://` address requires it.
    #[serde(default)]
    pub tls: NatsTls,

    /// How to log in. If absent, the bridge connects anonymously.
    pub auth: Option<NatsAuth>,

    /// How often an idle connection is pinged; after two pings without an answer it is closed.
    ///
    /// Wrong: too long: a half-open connection is noticed late. Too short: more traffic.
    #[serde(default = "default_ping_interval", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["1s", "5m"]))]
    pub ping_interval: Duration,

    /// How long one attempt to connect may take, TLS and login included.
    #[serde(default = "default_timeout", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["100ms", "1m"]))]
    pub connect_timeout: Duration,

    /// How long the server may take to answer a request (subscribe, JetStream API).
    #[serde(default = "default_timeout", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["100ms", "1m"]))]
    pub request_timeout: Duration,

    /// How long a publish waits for a connection, and then for its confirmation.
    ///
    /// Wrong: too short: timeouts while a stream elects a leader. Too long: failures are reported late.
    #[serde(default = "default_timeout", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["100ms", "2m"]))]
    pub ack_timeout: Duration,

    /// Maximum number of JetStream publishes that wait for their confirmation. Further ones are sent later.
    #[serde(default = "default_max_ack_pending")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_ack_pending: u32,

    /// Prefix of the subjects on which the server answers the bridge: confirmations of stored messages and of
    /// subscriptions, and messages for durable consumers. Agents do not answer here, but below `calls.reply_topic`.
    /// Set it if the account gives each user its own inbox.
    ///
    /// Wrong: without permission to subscribe and publish to `{inbox_prefix}.>`, nothing can be stored and no
    /// subscription is confirmed.
    #[serde(default = "default_inbox_prefix")]
    pub inbox_prefix: String,

    /// The JetStream settings.
    #[serde(default)]
    pub jetstream: JetStreamConfig,
}

/// TLS to the servers. The server's certificate is always verified. The files are read for each connection, so a
/// renewed certificate needs no restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsTls {
    /// Refuse servers without TLS. By default `true` if `auth` sends a password or token, unless all `servers` are on
    /// the loopback interface (then other servers that they announce are ignored); otherwise `false`.
    ///
    /// Wrong: with `false`, anyone on the network can read a password or token.
    #[schemars(extend("default_words" = "by `auth`"))]
    pub required: Option<bool>,
    /// Certificates of the authorities that sign the servers' certificates. Path of a PEM file. By default, the
    /// system's certificates are used.
    pub ca_file: Option<PathBuf>,
    /// The client certificate with its chain, for servers that require one. Path of a PEM file; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The key of the client certificate. Path of a PEM file; needs `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Start TLS before the server sends its greeting, for servers with `handshake_first`.
    ///
    /// Wrong: with `true`, servers without `handshake_first` cannot be reached.
    #[serde(default)]
    pub first: bool,
}

/// How to log in: exactly one of user and password, token, credentials file, or nkey. A password or token is read for
/// each connection. After a change of the credentials file or the nkey, restart the bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "AuthKeys", into = "AuthKeys")]
pub enum NatsAuth {
    /// A user with a password, read again for each connection.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token, read again for each connection.
    Token(Secret),
    /// A file with a user's JWT and seed (`.creds`), read once.
    Credentials(PathBuf),
    /// The seed of an nkey, read once.
    Nkey(Secret),
}

/// The keys of [`NatsAuth`] as they are written.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AuthKeys {
    /// The user. Needs `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The password. Needs `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<Secret>,
    /// The token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Secret>,
    /// Path of a credentials file (JWT and seed).
    #[serde(skip_serializing_if = "Option::is_none")]
    creds_file: Option<PathBuf>,
    /// The seed of an nkey (`SU...`).
    #[serde(skip_serializing_if = "Option::is_none")]
    nkey: Option<Secret>,
}

// === impl NatsConfig ===

impl NatsConfig {
    /// The defaults, with these servers.
    #[must_use]
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            name: default_name(),
            tls: NatsTls::default(),
            auth: None,
            ping_interval: default_ping_interval(),
            connect_timeout: default_timeout(),
            request_timeout: default_timeout(),
            ack_timeout: default_timeout(),
            max_ack_pending: default_max_ack_pending(),
            inbox_prefix: default_inbox_prefix(),
            jetstream: JetStreamConfig::default(),
        }
    }

    /// The secrets that a client needs, each with the path of the key below this one: `auth.token`.
    #[must_use]
    pub fn secrets(&self) -> Vec<(&'static str, Secret)> {
        self.auth.iter().map(NatsAuth::secret).collect()
    }

    /// Why a client could not log in, although the secret can be read: a file without the credentials of a user, or no
    /// seed.
    #[must_use]
    pub fn login_problem(&self) -> Option<ConfigProblem> {
        let auth = self.auth.as_ref()?;
        let (key, secret) = auth.secret();
        let problem = auth.problem_of(&reveal(key, &secret).ok()?)?;
        Some(ConfigProblem::new(key, problem))
    }

    /// Everything that is wrong. Touches neither network nor files.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        let mut unless = |holds: bool, key: &str, message: &str| {
            problems.extend((!holds).then(|| ConfigProblem::new(key, message)));
        };
        unless(
            !self.servers.is_empty(),
            "servers",
            "at least one is needed",
        );
        for (index, server) in self.servers.iter().enumerate() {
            if let Err(problem) = server_address(server) {
                unless(false, &format!("servers[{index}]"), &problem);
            }
        }
        unless(!self.name.trim().is_empty(), "name", "must not be empty");
        unless(
            self.tls.cert_file.is_some() == self.tls.key_file.is_some(),
            "tls",
            "set both cert_file and key_file, or neither",
        );
        let second = Duration::from_secs(1);
        let (least, minute) = (Duration::from_millis(100), 60 * second);
        for (key, value, least, most) in [
            ("ping_interval", self.ping_interval, second, 5 * minute),
            ("connect_timeout", self.connect_timeout, least, minute),
            ("request_timeout", self.request_timeout, least, minute),
            ("ack_timeout", self.ack_timeout, least, 2 * minute),
            (
                "jetstream.ack_wait",
                self.jetstream.ack_wait,
                second,
                60 * minute,
            ),
        ] {
            let message = format!("must be {least:?} to {} seconds", most.as_secs());
            unless((least..=most).contains(&value), key, &message);
        }
        unless(
            (1..=100_000).contains(&self.max_ack_pending),
            "max_ack_pending",
            "must be 1 to 100000",
        );
        unless(
            is_plain_subject(&self.inbox_prefix),
            "inbox_prefix",
            "must be a subject without wildcards",
        );
        self.jetstream.problems(&mut unless);
        problems
    }

    /// Reads the TLS files and the credentials. Returns their problems.
    pub fn tls_findings(&self) -> TlsFindings {
        let mut findings = self.tls.findings();
        if let Some(NatsAuth::Credentials(path)) = &self.auth
            && let Ok(text) = Secret::file(path).reveal()
            && let Some(claims) = credentials::claims_of(text.as_str())
            && let Some(expires) = claims.expires()
        {
            let what = format!("the JWT in {}", path.display());
            let renewal = "create a new file with `nsc generate creds`, and restart the bridge";
            let (now, lifetime) = (SystemTime::now(), claims.lifetime());
            findings.of_end("auth.creds_file", &what, (expires, lifetime), now, renewal);
        }
        findings
    }

    /// The fix when the server refuses the login.
    pub(super) fn login_cure(&self) -> &'static str {
        match &self.auth {
            // They are read once: see `NatsAuth::options`.
            Some(NatsAuth::Credentials(_) | NatsAuth::Nkey(_)) => {
                "check `auth`, and the users of the server; new credentials and a new seed are read only at a restart"
            }
            _ => "check `auth`, and the users of the server",
        }
    }

    /// Values that are allowed but dangerous.
    #[must_use]
    pub fn warnings(&self) -> Vec<ConfigProblem> {
        let in_clear = self.sends_secret() && self.tls.required == Some(false) && !self.is_local();
        let warning = "false sends the password or token in clear to servers without TLS";
        let warning = in_clear.then(|| ConfigProblem::new("tls.required", warning));
        warning.into_iter().collect()
    }

    /// Whether the login sends a secret over the connection.
    fn sends_secret(&self) -> bool {
        matches!(
            self.auth,
            Some(NatsAuth::Password { .. } | NatsAuth::Token(_))
        )
    }

    /// Whether every server is on this machine.
    fn is_local(&self) -> bool {
        self.servers.iter().all(|server| {
            server_address(server).is_ok_and(|address| {
                let host = address.host();
                let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
                host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
            })
        })
    }

    /// Whether a server without TLS is refused.
    pub(super) fn requires_tls(&self) -> bool {
        let default = self.sends_secret() && !self.is_local();
        self.tls.required.unwrap_or(default)
    }

    /// The servers as people name them: `a:4222, b:4222`.
    pub(super) fn server_names(&self) -> String {
        let names = self.servers.iter();
        let names =
            names.map(|server| server.split_once("://").map_or(&**server, |(_, name)| name));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The name of the user in messages, for example `user bridge`.
    pub(super) fn user_name(&self) -> String {
        match &self.auth {
            None => "no user".to_owned(),
            Some(NatsAuth::Password { user, .. }) => format!("user {user}"),
            Some(NatsAuth::Token(_)) => "the user of the token".to_owned(),
            Some(NatsAuth::Credentials(file)) => format!("the user of {}", file.display()),
            Some(NatsAuth::Nkey(_)) => "the user of the nkey".to_owned(),
        }
    }

    /// The options of a client that comes up without the server and never gives up.
    pub(super) fn options(&self) -> Result<ConnectOptions, TransportError> {
        let mut options = match &self.auth {
            None => ConnectOptions::new(),
            Some(auth) => auth.options()?,
        };
        options = options
            .name(&self.name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ping_interval(self.ping_interval)
            .connection_timeout(self.connect_timeout)
            .request_timeout(Some(self.request_timeout))
            .custom_inbox_prefix(&self.inbox_prefix)
            .require_tls(self.requires_tls());
        if self.sends_secret() && !self.requires_tls() && self.tls.required.is_none() {
            // They may be elsewhere, and would be sent the secret.
            options = options.ignore_discovered_servers();
        }
        // The client would only say "TLS error".
        TransportError::reject_problems("NATS", &self.tls.findings().unusable)?;
        if let Some(file) = &self.tls.ca_file {
            options = options.add_root_certificates(file.clone());
        }
        if let (Some(cert), Some(key)) = (&self.tls.cert_file, &self.tls.key_file) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if self.tls.first {
            options = options.tls_first();
        }
        Ok(options)
    }

    /// The servers, parsed.
    pub(super) fn addresses(&self) -> Result<Vec<ServerAddr>, TransportError> {
        let parse = |server: &String| {
            server_address(server).map_err(|problem| bad_config(format!("servers: {problem}")))
        };
        self.servers.iter().map(parse).collect()
    }
}

// === impl NatsTls ===

impl NatsTls {
    /// The problems of the files.
    pub(super) fn findings(&self) -> TlsFindings {
        let files = TlsFiles {
            authorities: self.ca_file.as_deref(),
            certificate: self.cert_file.as_deref(),
            key: self.key_file.as_deref(),
            client: TlsClient::Rustls,
        };
        files.inspect()
    }
}

// === impl NatsAuth ===

impl NatsAuth {
    fn secret(&self) -> (&'static str, Secret) {
        match self {
            Self::Password { password, .. } => ("auth.password", password.clone()),
            Self::Token(token) => ("auth.token", token.clone()),
            Self::Credentials(path) => ("auth.creds_file", Secret::file(path)),
            Self::Nkey(seed) => ("auth.nkey", seed.clone()),
        }
    }

    /// Why the client could not log in with this secret; `None` if it could. Does not quote the secret.
    fn problem_of(&self, secret: &str) -> Option<String> {
        match self {
            Self::Password { .. } | Self::Token(_) => None,
            Self::Credentials(path) => {
                let (path, cure) = (path.display(), "create it with `nsc generate creds`");
                match with_credentials(secret) {
                    Err(_) => Some(format!("{path} holds no user JWT with its seed: {cure}")),
                    Ok(_) => credentials::problem_of(secret)
                        .map(|problem| format!("{path}: {problem}: {cure}")),
                }
            }
            Self::Nkey(_) => (!is_user_seed(secret.trim())).then(|| {
                "it is not the seed of a user (SU...): create one with `nk -gen user`".to_owned()
            }),
        }
    }

    /// Options that log in so. Passwords and tokens are read again for each connection, so that a rotated one is picked
    /// up; the signing kinds are read here.
    fn options(&self) -> Result<ConnectOptions, TransportError> {
        // Read once now in every case, so that a missing secret is reported at the start, with its key.
        match self {
            Self::Password { user, password } => {
                reveal("auth.password", password)?;
                let (user, password) = (user.clone(), password.clone());
                Ok(ConnectOptions::with_auth_callback(move |_nonce| {
                    let auth = with_secret(&password, |auth, secret| {
                        auth.username = Some(user.clone());
                        auth.password = Some(secret);
                    });
                    std::future::ready(auth)
                }))
            }
            Self::Token(token) => {
                reveal("auth.token", token)?;
                let token = token.clone();
                Ok(ConnectOptions::with_auth_callback(move |_nonce| {
                    let auth = with_secret(&token, |auth, secret| auth.token = Some(secret));
                    std::future::ready(auth)
                }))
            }
            Self::Credentials(path) => {
                let text = reveal("auth.creds_file", &Secret::file(path))?;
                // The cause is not kept: it may quote the file.
                let options =
                    with_credentials(&text).map_err(|_| self.unusable("auth.creds_file", &text))?;
                if let Some(problem) = self.problem_of(&text) {
                    tracing::warn!("auth.creds_file: {problem}");
                }
                Ok(options)
            }
            Self::Nkey(seed) => {
                let seed = reveal("auth.nkey", seed)?.trim().to_owned();
                // The client would only log that it cannot sign, at each attempt to connect.
                match is_user_seed(&seed) {
                    true => Ok(ConnectOptions::with_nkey(seed)),
                    false => Err(self.unusable("auth.nkey", &seed)),
                }
            }
        }
    }

    fn unusable(&self, key: &str, secret: &str) -> TransportError {
        let problem = self.problem_of(secret).unwrap_or_default();
        bad_config(format!("{key}: {problem}"))
    }
}

/// Options for the text of a credentials file. The client needs the line end of the last line, which a secret lacks.
fn with_credentials(text: &str) -> io::Result<ConnectOptions> {
    ConnectOptions::with_credentials(&format!("{text}\n"))
}

/// Whether the client can sign as a user with this seed. The client itself checks only seeds of credentials files.
fn is_user_seed(seed: &str) -> bool {
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\nnone\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------"
    );
    seed.starts_with("SU") && with_credentials(&credentials).is_ok()
}

fn with_secret(secret: &Secret, fill: impl FnOnce(&mut Auth, String)) -> Result<Auth, AuthError> {
    let revealed = secret.reveal().map_err(AuthError::new)?;
    let mut auth = Auth::new();
    fill(&mut auth, revealed.as_str().to_owned());
    Ok(auth)
}

fn reveal(key: &str, secret: &Secret) -> Result<String, TransportError> {
    secret
        .reveal()
        .map(|text| text.as_str().to_owned())
        .map_err(|error: SecretError| bad_config(format!("read {key}")).caused_by(error))
}

impl TryFrom<AuthKeys> for NatsAuth {
    type Error = &'static str;

    fn try_from(keys: AuthKeys) -> Result<Self, Self::Error> {
        match keys {
            AuthKeys {
                user: Some(user),
                password: Some(password),
                token: None,
                creds_file: None,
                nkey: None,
            } => Ok(Self::Password { user, password }),
            AuthKeys {
                user: None,
                password: None,
                token: Some(token),
                creds_file: None,
                nkey: None,
            } => Ok(Self::Token(token)),
            AuthKeys {
                user: None,
                password: None,
                token: None,
                creds_file: Some(path),
                nkey: None,
            } => Ok(Self::Credentials(path)),
            AuthKeys {
                user: None,
                password: None,
                token: None,
                creds_file: None,
                nkey: Some(seed),
            } => Ok(Self::Nkey(seed)),
            AuthKeys { .. } => {
                Err("auth takes exactly one of: user with password, token, creds_file, nkey")
            }
        }
    }
}

impl From<NatsAuth> for AuthKeys {
    fn from(auth: NatsAuth) -> Self {
        let mut keys = Self::default();
        match auth {
            NatsAuth::Password { user, password } => {
                keys.user = Some(user);
                keys.password = Some(password);
            }
            NatsAuth::Token(token) => keys.token = Some(token),
            NatsAuth::Credentials(path) => keys.creds_file = Some(path),
            NatsAuth::Nkey(seed) => keys.nkey = Some(seed),
        }
        keys
    }
}

fn bad_config(what: String) -> TransportError {
    TransportError::new(TransportErrorKind::BadConfig, what)
}

fn server_address(server: &str) -> Result<ServerAddr, String> {
    let Some((scheme, rest)) = server.split_once("://") else {
        return Err("must be nats://host:port or tls://host:port".to_owned());
    };
    if !matches!(scheme, "nats" | "tls") {
        return Err("the scheme must be nats or tls".to_owned());
    }
    if rest.contains('@') {
        // Not quoted: it holds a password.
        return Err("a user or password belongs in auth, not in the address".to_owned());
    }
    let address: ServerAddr = server
        .parse()
        .map_err(|_| format!("{server:?} is not an address"))?;
    if address.host().is_empty() {
        return Err(format!("{server:?} has no host"));
    }
    Ok(address)
}

fn is_plain_subject(subject: &str) -> bool {
    Topic::new(subject).is_ok()
}

fn default_name() -> String {
    "a2abus".to_owned()
}

fn default_ping_interval() -> Duration {
    Duration::from_secs(10)
}

fn default_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_max_ack_pending() -> u32 {
    1000
}

fn default_inbox_prefix() -> String {
    "_INBOX".to_owned()
}

#[cfg(test)]
mod tests;
