//! Errors of transports, and what to do about them.

use std::fmt;

/// What the caller should do about an error; the only thing the pipeline branches on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It may work later: back off and try again, keep the order.
    Retry,
    /// This message can never be sent: dead-letter it.
    DeadLetter,
    /// A person has to repair the set-up (missing topic, refused credentials, a full stream, a name used twice): pause
    /// and alarm, lose nothing.
    Pause,
}

/// The small comparable part of a [`TransportError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// No connection to the server, or it was lost.
    Disconnected,
    /// No confirmation in time: the message may or may not be there.
    TimedOut,
    /// The client's queue is full.
    Saturated,
    /// The stream is full and takes nothing more until somebody makes room.
    Full,
    /// The message is larger than the server takes.
    TooLarge,
    /// The topic, stream or consumer does not exist.
    UnknownTopic,
    /// The server refused the credentials.
    Unauthenticated,
    /// The credentials do not allow this.
    Unauthorised,
    /// The message cannot be expressed on this transport.
    BadMessage,
    /// The configuration of the transport is wrong.
    BadConfig,
    /// The client broke and has to be rebuilt.
    Fatal,
    /// Another process goes by our name: to try again at once would only take the place from it, and it from us.
    Fenced,
    /// Something else was stored first.
    Overtaken,
    /// The transport is closed.
    Closed,
    /// Anything else the client reported.
    Other,
}

impl TransportErrorKind {
    /// The stable word of this kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::TimedOut => "timed_out",
            Self::Saturated => "saturated",
            Self::Full => "full",
            Self::TooLarge => "too_large",
            Self::UnknownTopic => "unknown_topic",
            Self::Unauthenticated => "unauthenticated",
            Self::Unauthorised => "unauthorised",
            Self::BadMessage => "bad_message",
            Self::BadConfig => "bad_config",
            Self::Fatal => "fatal",
            Self::Fenced => "fenced",
            Self::Overtaken => "overtaken",
            Self::Closed => "closed",
            Self::Other => "other",
        }
    }

    /// What to do about errors of this kind.
    #[must_use]
    pub fn disposition(self) -> Disposition {
        match self {
            Self::Disconnected
            | Self::TimedOut
            | Self::Saturated
            | Self::Fatal
            | Self::Overtaken
            | Self::Closed
            | Self::Other => Disposition::Retry,
            Self::TooLarge | Self::BadMessage => Disposition::DeadLetter,
            Self::Full
            | Self::UnknownTopic
            | Self::Unauthenticated
            | Self::Unauthorised
            | Self::BadConfig
            | Self::Fenced => Disposition::Pause,
        }
    }
}

/// A transport failed: what kind of failure, what was attempted, and the client's own words.
#[derive(Debug, Clone)]
pub struct TransportError {
    kind: TransportErrorKind,
    what: String,
    last_sequence: Option<u64>,
    cause: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

/// What is wrong with one key of the configuration of a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The key below that configuration: `jetstream.streams[0].name`.
    pub key: String,
    /// The problem and its fix.
    pub message: String,
}

/// What is wrong with the TLS files of a transport, each below the key that names the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct TlsFindings {
    /// Files that no client can use.
    pub unusable: Vec<ConfigProblem>,
    /// Certificates that are not valid now.
    pub invalid: Vec<ConfigProblem>,
    /// Certificates that expire soon.
    pub expiring: Vec<ConfigProblem>,
}

impl ConfigProblem {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

// === impl TransportError ===

impl TransportError {
    /// An error of a kind; `what` says what was attempted, in lower case, without a full stop.
    pub fn new(kind: TransportErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            last_sequence: None,
            cause: None,
        }
    }

    /// Refuses a configuration that has problems.
    pub(crate) fn unless_right(what: &str, problems: &[ConfigProblem]) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let what = format!("configure {what}: {}", problems.join("; "));
        Err(Self::new(TransportErrorKind::BadConfig, what))
    }

    /// A message is too large: its size, and what it is too large for.
    pub(crate) fn too_large(bytes: usize, limit: impl fmt::Display) -> Self {
        Self::new(
            TransportErrorKind::TooLarge,
            format!("send a message of {bytes} bytes: {limit}"),
        )
    }

    /// Something else was stored first, at this sequence if that is known.
    pub(crate) fn overtaken(what: impl Into<String>, last_sequence: Option<u64>) -> Self {
        Self {
            last_sequence,
            ..Self::new(TransportErrorKind::Overtaken, what)
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(std::sync::Arc::new(cause));
        self
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> TransportErrorKind {
        self.kind
    }

    /// The sequence of what was stored first, where something was and the stream said so.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.last_sequence
    }

    /// What the caller should do.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.kind.disposition()
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.kind.as_str())
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause
            .as_ref()
            .map(|cause| &**cause as &(dyn std::error::Error + 'static))
    }
}
