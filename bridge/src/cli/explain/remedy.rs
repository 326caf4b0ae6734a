//! How to fix a refused payload.

use a2abus_plugin::DecodeErrorKind;
use serde::Serialize;

use super::routing::{NAME_THE_CALL, Routing, UNCORRELATED};
use crate::cli::payload::Refusal;
use crate::config::Role;

/// The members of a refused unit that `map` does not print.
#[derive(Debug, Serialize)]
pub(super) struct Fix {
    /// The reason of the dead letter or, over HTTP, of the error.
    pub(super) reason: &'static str,
    pub(super) fix: &'static str,
}

// === impl Fix ===

impl Fix {
    /// `routing` is that of the entry point that refuses the unit. A binding for answers has reasons of its own.
    pub(super) fn of(refusal: &Refusal, routing: Option<&Routing<'_>>) -> Self {
        let binding = routing.and_then(Routing::binding);
        let is_for_answers = binding.is_some_and(|binding| binding.role == Role::Responses);
        if !is_for_answers || refusal.is_of_event() {
            return Self {
                reason: refusal.code,
                fix: of(refusal),
            };
        }
        match refusal.kind {
            DecodeErrorKind::Unknown | DecodeErrorKind::NotAnObject => Self {
                reason: UNCORRELATED,
                fix: NAME_THE_CALL,
            },
            _ => Self {
                reason: "unreadable",
                fix: of(refusal),
            },
        }
    }
}

/// The fix, in one sentence.
fn of(refusal: &Refusal) -> &'static str {
    use DecodeErrorKind as K;
    match refusal.kind {
        K::Empty => "send a payload; an empty record is often a tombstone of a compacted topic",
        K::NotUtf8 => {
            "encode the payload as UTF-8; decompress or decode compressed and Avro records first"
        }
        K::NotJson => {
            "make the payload one JSON value, or one per line; decode records that begin with other bytes (Avro, Protobuf, a schema registry's zero byte and schema id) first"
        }
        K::TooLarge => {
            "make the payload smaller or split the batch, or raise limits.max_bytes, max_members or max_units"
        }
        K::TooDeep => "nest the payload less deeply, or raise limits.max_depth (128 at most)",
        K::NotAnObject => "send a JSON object, or an array of objects for a batch",
        K::EmptyBatch => "put at least one message into the batch, or send nothing",
        K::UnsupportedVersion => {
            "write a version that the bridge reads: \"jsonrpc\":\"2.0\" (a string), \"specversion\":\"1.0\", or 1.x for A2E and E2A"
        }
        K::DuplicateMember => "remove the duplicate: two readers could see two different values",
        K::BadId => of_bad_id(refusal),
        K::BadMethod => of_bad_method(refusal),
        K::BadParams => {
            "make params an object; only methods of no known protocol may have an array"
        }
        K::BadError => "give the error an integer \"code\" and a string \"message\"",
        K::BadTarget => {
            "name one agent, the same wherever the message names it, with 1 to 256 of A-Z a-z 0-9 . _ - / : @ + and no \"..\""
        }
        K::BadTopic => "name the topic with 1 to 249 of A-Z a-z 0-9 . _ - / : @ + and no \"..\"",
        K::BadSeq => "make params._seq a short string or a number",
        K::BadMember => "make the member a short string or a number, or leave it out",
        K::BadValue => {
            "give the message inside the request_id of the message around it, or remove it; a request inside also needs a binding of trusted peers (protocol: e2a or e2a_trusted: true)"
        }
        K::BothResultAndError => {
            "answer with a result or with an error, not with both (\"error\":null counts as one)"
        }
        K::Invalid => {
            "a JSON-RPC message has a method, or a result, or an error: exactly one of them"
        }
        K::BadCloudEvent => "fix the named attribute; CloudEvents 1.0 defines its values",
        K::Unknown => of_unknown(refusal),
        K::WrongFamily => {
            "send it to a binding of its own family, or remove `strict` from this one"
        }
        K::MissingVersion => "add the protocol_version to the answer",
        K::MissingId => "add an id, or remove strict_ids from the mapping of the binding",
        K::MissingCollaborationId => {
            "send the whole workflow as one message, or its lines, with the same collaborationid, to a binding with role: workflows"
        }
        K::LinkLocal => {
            "do not send messages about a connection (handshake, ping, pong, shutdown) to the bus, or wrap them in a CloudEvent"
        }
        _ => "see the message",
    }
}

/// The type of an A2E message contains its method.
fn of_bad_method(refusal: &Refusal) -> &'static str {
    match refusal.pointer.as_str() {
        "/type" => {
            "put the name of an operation before /req or /resp; use 1 to 256 characters without spaces or control characters"
        }
        _ => "use a method of 1 to 256 characters without spaces or control characters",
    }
}

/// An object that lacks only its id needs no other mark.
fn of_unknown(refusal: &Refusal) -> &'static str {
    match refusal.pointer.as_str() {
        "/id" => {
            "give the A2E message a string id; a message with a type that A2E defines may have a string req_id instead"
        }
        _ => {
            "add what marks its protocol: \"jsonrpc\":\"2.0\" or, for a CloudEvent, the strings specversion, id, source and type; or set on_unknown on the binding: wrap makes an event of it, pass publishes the bytes unchanged"
        }
    }
}

/// Families differ in what an id may be.
fn of_bad_id(refusal: &Refusal) -> &'static str {
    match (refusal.pointer.as_str(), refusal.has_sender) {
        ("/id", false) => {
            "use a string, a number or null as the id, up to 1024 bytes, without control characters"
        }
        ("/id", true) => "use a string as the id, or leave it out",
        _ => {
            "use a string of at most 256 characters or a number as the id, without control characters"
        }
    }
}
