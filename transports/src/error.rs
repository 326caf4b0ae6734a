//! Errors of transports, and how to handle them.

use std::fmt;

/// How the caller should handle an error. The pipeline branches on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// May succeed later: back off, try again, keep the order.
    Retry,
    /// This message can never be sent: make it a dead letter.
    DeadLetter,
    /// A person has to repair the set-up (missing topic, refused credentials, a full stream, a name used twice): wait
    /// and alarm, lose nothing.
    Pause,
}

/// The kind of a [`TransportError`]: small and comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// No connection to the server, or it was lost.
    Disconnected,
    /// No confirmation in time: the message may or may not be there.
    TimedOut,
    /// The client's queue is full.
    Saturated,
    /// The stream is full and accepts nothing until somebody makes room.
    Full,
    /// The message is larger than the server accepts.
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
    /// The client failed and must be replaced.
    Fatal,
    /// Another process uses our name. Retrying at once would make the two take the name from each other in turn.
    Fenced,
    /// Another message was stored first.
    Overtaken,
    /// The transport is closed.
    Closed,
    /// Anything else the client reported.
    Other,
}

impl TransportErrorKind {
    /// The name of this kind, which stays the same between versions.
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

    /// How to handle errors of this kind.
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

/// A transport failed: the kind of failure, what was attempted, and the client's own message.
#[derive(Debug, Clone)]
pub struct TransportError {
    kind: TransportErrorKind,
    what: String,
    last_sequence: Option<u64>,
    /// Whether the message certainly has not arrived, although the kind of the error leaves that open.
    is_unsent: bool,
    /// Whether an earlier attempt to send the same message may have succeeded.
    is_repeated: bool,
    cause: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

/// A fault in one key of the configuration of a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The key below that configuration: `jetstream.streams[0].name`.
    pub key: String,
    /// The problem and its fix.
    pub message: String,
}

/// The faults in the TLS files and the credentials of a transport, each under the key that names the file.
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

#[cfg(any(feature = "kafka", feature = "nats"))]
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
    /// An error of a kind. `what` describes the attempt, in lower case, without a full stop.
    pub fn new(kind: TransportErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            last_sequence: None,
            is_unsent: false,
            is_repeated: false,
            cause: None,
        }
    }

    /// Refuses a configuration that has problems.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn reject_problems(what: &str, problems: &[ConfigProblem]) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let what = format!("configure {what}: {}", problems.join("; "));
        Err(Self::new(TransportErrorKind::BadConfig, what))
    }

    /// A message is too large: its size, and the limit that it exceeds.
    pub(crate) fn too_large(bytes: usize, limit: impl fmt::Display) -> Self {
        Self::new(
            TransportErrorKind::TooLarge,
            format!("send a message of {bytes} bytes: {limit}"),
        )
    }

    /// Another message was stored first, at this sequence if it is known.
    #[cfg(feature = "nats")]
    pub(crate) fn overtaken(what: impl Into<String>, last_sequence: Option<u64>) -> Self {
        Self {
            last_sequence,
            ..Self::new(TransportErrorKind::Overtaken, what)
        }
    }

    /// The same error, of a message that certainly has not arrived.
    #[cfg(feature = "nats")]
    pub(crate) fn unsent(self) -> Self {
        Self {
            is_unsent: true,
            ..self
        }
    }

    /// The same error, of a message of which an earlier attempt may have arrived.
    #[must_use]
    pub fn after_unconfirmed(self) -> Self {
        Self {
            is_repeated: true,
            ..self
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

    /// The sequence of the message that was stored first, if there is one and the stream reported it.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.last_sequence
    }

    /// Whether the message may have arrived nevertheless, if the client had accepted it.
    #[must_use]
    pub fn leaves_open(&self) -> bool {
        let is_open = matches!(
            self.kind,
            TransportErrorKind::Disconnected
                | TransportErrorKind::TimedOut
                | TransportErrorKind::Fatal
                | TransportErrorKind::Closed
        );
        is_open && !self.is_unsent
    }

    /// How the caller should handle the error.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.kind.disposition()
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.kind.as_str())?;
        match self.is_repeated {
            true => f.write_str("; an earlier attempt may have been stored"),
            false => Ok(()),
        }
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause
            .as_ref()
            .map(|cause| &**cause as &(dyn std::error::Error + 'static))
    }
}
