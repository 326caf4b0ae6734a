//! What a person can do about a refused payload.

use a2abus_plugin::DecodeErrorKind;

/// What would make it right, in one sentence.
pub(super) fn of(kind: DecodeErrorKind) -> &'static str {
    use DecodeErrorKind as K;
    match kind {
        K::Empty => "send a payload; an empty record is often a tombstone of a compacted topic",
        K::NotUtf8 => {
            "encode the payload as UTF-8; compressed or Avro records must be decoded before they come here"
        }
        K::NotJson => "make the payload one JSON value, or one per line; look at the marked place",
        K::TooLarge => {
            "make the payload smaller or split the batch, or raise limits.max_bytes, max_members or max_units"
        }
        K::TooDeep => "nest the payload less deeply, or raise limits.max_depth (128 at most)",
        K::NotAnObject => "send a JSON object, or an array of objects for a batch",
        K::EmptyBatch => "put at least one message into the batch, or send nothing",
        K::UnsupportedVersion => {
            "write \"jsonrpc\":\"2.0\" (a string), or \"specversion\":\"1.0\" for a CloudEvent"
        }
        K::DuplicateMember => "write the member once: two readers could see two different values",
        K::BadId => {
            "use a string, a number or null as the id, up to 1024 bytes, without control characters"
        }
        K::BadMethod => "use a method of 1 to 256 characters without spaces or control characters",
        K::BadParams => {
            "make params an object; only methods of no known protocol may have an array"
        }
        K::BadError => "give the error an integer \"code\" and a string \"message\"",
        K::BadTarget => "name the agent with 1 to 256 of A-Z a-z 0-9 . _ - / : @ + and no \"..\"",
        K::BadTopic => "name the topic with 1 to 249 of A-Z a-z 0-9 . _ - / : @ + and no \"..\"",
        K::BadSeq => "make params._seq a short string or a number",
        K::BadMember => "make the member a short string or a number, or leave it out",
        K::BothResultAndError => {
            "answer with a result or with an error, not with both (\"error\":null counts as one)"
        }
        K::Invalid => {
            "a JSON-RPC message has a method, or a result, or an error: exactly one of them"
        }
        K::BadCloudEvent => {
            "fix the attribute that is named; CloudEvents 1.0 says what it may hold"
        }
        K::Unknown => {
            "add \"jsonrpc\":\"2.0\", or set on_unknown: wrap at the binding to carry it as it is"
        }
        K::WrongFamily => "send it to a binding of its own family, or drop `strict` from this one",
        _ => "look at the message",
    }
}
