//! The form of answers: JSON-RPC or the HTTP+JSON binding.
//!
//! The results are the same. JSON-RPC wraps them in an envelope with the caller's id; HTTP+JSON sends results without
//! an envelope, and errors with an HTTP status.

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc;
use bytes::Bytes;
use http::StatusCode;

use super::method::Method;
use super::v0_3;
use crate::calls::failure::{Failure, Recipient};

/// The envelope of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Envelope {
    /// A JSON-RPC response.
    JsonRpc,
    /// None, only HTTP.
    Http,
}

/// The form of the answers to one request.
#[derive(Debug, Clone)]
pub(super) struct Form {
    pub(super) envelope: Envelope,
    pub(super) method: Method,
    /// The caller's id, as JSON.
    pub(super) id: Text,
    pub(super) dialect: Dialect,
}

// === impl Form ===

impl Form {
    /// Wraps a result, which is JSON of the dialect.
    pub(super) fn result(&self, result: &str) -> Bytes {
        match (self.envelope, self.dialect) {
            (Envelope::JsonRpc, _) => jsonrpc::result(&self.id, result),
            (Envelope::Http, Dialect::A2a10) => Bytes::copy_from_slice(result.as_bytes()),
            (Envelope::Http, _) => v0_3::result(self.method, result).into(),
        }
    }

    /// The body of an error response, and its HTTP status; `None` leaves the default.
    pub(super) fn failure(&self, failure: &Failure) -> (Option<StatusCode>, Bytes) {
        match self.envelope {
            Envelope::JsonRpc => {
                let recipient = Recipient::new(self.id.clone(), self.dialect);
                (failure.status(), failure.render(&recipient))
            }
            Envelope::Http => {
                let status = failure.http_status(self.dialect);
                (Some(status), failure.document(status, self.dialect))
            }
        }
    }

    /// The same for an error of the agent, which is a JSON-RPC response. JSON-RPC clients get it unchanged.
    pub(super) fn agents_failure(&self, response: Bytes) -> (Option<StatusCode>, Bytes) {
        match self.envelope {
            Envelope::JsonRpc => (None, response),
            Envelope::Http => self.failure(&Failure::of_agent(&response)),
        }
    }

    /// The labels of its metric: the method, the version and the binding.
    pub(super) fn labels(&self) -> [&'static str; 3] {
        let version = match self.dialect {
            Dialect::A2a10 => "1.0",
            Dialect::JafDoc => "jaf",
            _ => "0.3",
        };
        let binding = match self.envelope {
            Envelope::JsonRpc => "jsonrpc",
            Envelope::Http => "http+json",
        };
        [self.method.as_str(), version, binding]
    }

    /// The type of an event that is an error.
    pub(super) fn error_event(&self) -> Option<&'static str> {
        error_event(self.envelope, self.dialect)
    }
}

/// The type of an event that is an error.
pub(super) fn error_event(envelope: Envelope, dialect: Dialect) -> Option<&'static str> {
    let is_named = envelope == Envelope::Http || dialect == Dialect::JafDoc;
    is_named.then_some("error")
}
