//! Messages that can go nowhere, kept with the reason.
//!
//! A dead letter is the original bytes, key and headers, untouched, under headers that begin `bus-dlq-`. It can be
//! read, mended and sent again. Source: `design` section 5.

use std::time::SystemTime;

use a2abus_plugin::{Text, blank_secrets};
use a2abus_transports::content_mode::Binding;
use a2abus_transports::{Address, Guarantee, Headers, Message, Topic, TransportError};
use bytes::Bytes;

use crate::bus::BusId;
use crate::config::Mode;
use crate::headers::carries;
use crate::outbound::{Outgoing, Place};

/// Where a binding's dead letters go.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    /// The bus.
    pub bus: BusId,
    /// How that bus writes headers.
    pub binding: Binding,
    /// The topic.
    pub topic: Topic,
    /// Whether a letter has to be stored before its message is settled: always, but where the source itself is at most
    /// once.
    pub stored: bool,
}

/// Why a message, or one unit of it, is a dead letter.
#[derive(Debug, Clone)]
pub struct Reason {
    /// A stable word.
    pub code: &'static str,
    /// The step of the path that refused it.
    pub stage: Stage,
    /// What a person should know.
    pub detail: String,
    /// Which unit of the message it is about, where the rest of the message went its way.
    pub unit: Option<usize>,
}

/// A step of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading the message's headers.
    Receive,
    /// Telling what the payload is.
    Detect,
    /// Finding where it goes.
    Route,
    /// Sending it there.
    Publish,
    /// Finding the call it answers.
    Resolve,
    /// Executing the workflow it asks for.
    Execute,
}

impl Stage {
    /// The word of this step.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Detect => "detect",
            Self::Route => "route",
            Self::Publish => "publish",
            Self::Resolve => "resolve",
            Self::Execute => "execute",
        }
    }
}

/// What the letter's own topic would not take.
const OMITTED: &str = "bus-dlq-omitted";

fn is_ours(name: &str) -> bool {
    name.starts_with("bus-dlq-")
}

/// The longest detail, in bytes.
const MAX_DETAIL_BYTES: usize = 512;

// === impl DeadLetters ===

impl DeadLetters {
    /// The dead letter of a message, or of one unit of it whose bytes are `body`.
    #[must_use]
    pub fn letter(
        &self,
        original: &Message,
        body: Option<Bytes>,
        binding: &str,
        origin: Option<&Text>,
        reason: &Reason,
    ) -> Outgoing {
        let mut message = Message {
            key: original.key.clone(),
            headers: self.headers_of(original),
            body: body
                .or_else(|| original.body.clone())
                .map(|body| blank_secrets(&body)),
        };
        let mut say =
            |name: &'static str, value: &str| message.headers.push(name, self.header_text(value));
        say("bus-dlq-reason", reason.code);
        say("bus-dlq-stage", reason.stage.as_str());
        say("bus-dlq-detail", cut(&reason.detail));
        say("bus-dlq-binding", binding);
        say("bus-dlq-time", &crate::clock::rfc3339(SystemTime::now()));
        say("bus-dlq-bridge", env!("CARGO_PKG_VERSION"));
        if let Some(origin) = origin {
            say("bus-dlq-origin", origin);
        }
        if let Some(unit) = reason.unit {
            say("bus-dlq-unit", &unit.to_string());
        }
        let mut address = Address::topic(self.topic.clone());
        if self.stored {
            let unit = reason.unit.unwrap_or_default();
            let id = origin.map(|origin| format!("{binding}/{origin}/{unit}/{}", reason.code));
            address.guarantee = Guarantee::Stored {
                message_id: id.map(Text::from),
            };
        }
        Outgoing {
            bus: self.bus,
            address,
            message,
            place: Place::Configured,
            mode: Mode::default(),
        }
    }

    /// What is kept of a letter that its own topic refuses for good, as too large: everything but the body and the
    /// foreign headers.
    #[must_use]
    pub fn reduced(&self, letter: Outgoing, error: &TransportError) -> Outgoing {
        let mut headers = Headers::new();
        for header in letter
            .message
            .headers
            .iter()
            .filter(|header| is_ours(&header.name))
        {
            headers.push(
                header.name.clone(),
                header.value.clone().unwrap_or_default(),
            );
        }
        let size = letter.message.body.as_ref().map_or(0, Bytes::len);
        headers.push(OMITTED, self.header_text(&format!("{size} bytes: {error}")));
        Outgoing {
            message: Message {
                key: None,
                headers,
                body: None,
            },
            ..letter
        }
    }

    /// Whether the letter is one that was made smaller.
    #[must_use]
    pub fn is_reduced(letter: &Outgoing) -> bool {
        letter.message.headers.get(OMITTED).is_some()
    }

    /// The headers of the original that the bus of the letters can carry, without what an earlier letter said.
    fn headers_of(&self, original: &Message) -> Headers {
        let mut headers = Headers::new();
        for header in original.headers.iter() {
            if is_ours(&header.name) || !carries(self.binding, header) {
                continue;
            }
            match &header.value {
                Some(value) => headers.push(header.name.clone(), value.clone()),
                None => headers.push_null(header.name.clone()),
            }
        }
        headers
    }

    /// A detail may quote foreign text: NATS headers hold visible ASCII only.
    fn header_text(&self, value: &str) -> Bytes {
        match self.binding {
            Binding::Kafka | Binding::Memory => Bytes::copy_from_slice(value.as_bytes()),
            Binding::Nats | Binding::Http => {
                let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
                Bytes::from(value.chars().map(plain).collect::<String>())
            }
        }
    }
}

fn cut(detail: &str) -> &str {
    let end = (0..=MAX_DETAIL_BYTES.min(detail.len()))
        .rev()
        .find(|end| detail.is_char_boundary(*end));
    detail.get(..end.unwrap_or(0)).unwrap_or_default()
}
