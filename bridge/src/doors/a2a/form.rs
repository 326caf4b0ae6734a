//! How is the answer to a request written: as JSON-RPC, or as the HTTP+JSON binding has it?
//!
//! The results are the same. JSON-RPC puts them in an envelope with the caller's id; HTTP+JSON sends them as they are, and
//! errors with a status.

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc;
use bytes::Bytes;
use http::StatusCode;

use super::former;
use super::method::Method;
use crate::calls::failure::{Failure, Recipient};

/// What goes around a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Envelope {
    /// A JSON-RPC response.
    JsonRpc,
    /// Nothing: HTTP says the rest.
    Http,
}

/// How the answers to one request are written.
#[derive(Debug, Clone)]
pub(super) struct Form {
    pub(super) envelope: Envelope,
    pub(super) method: Method,
    /// The caller's id, as its JSON token.
    pub(super) id: Text,
    pub(super) dialect: Dialect,
}

// === impl Form ===

impl Form {
    /// A result, which is JSON in the words of the dialect.
    pub(super) fn result(&self, result: &str) -> Bytes {
        match (self.envelope, self.dialect) {
            (Envelope::JsonRpc, _) => jsonrpc::result(&self.id, result),
            (Envelope::Http, Dialect::A2a10) => Bytes::copy_from_slice(result.as_bytes()),
            (Envelope::Http, _) => former::result(self.method, result).into(),
        }
    }

    /// An error, and the status of a response that is nothing else, where it has one of its own.
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

    /// An error that an agent answered with, as a JSON-RPC response. There it is passed on as it is.
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
        let is_named = self.envelope == Envelope::Http || self.dialect == Dialect::JafDoc;
        is_named.then_some("error")
    }
}
