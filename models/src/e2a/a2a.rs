//! Requests and records as A2A. Source: docs/protocols/e2a.md §7.2 and §7.5.

use crate::e2a::constants::{
    A2A_STREAM_BRANCHES, KIND_A2A_STREAM_EVENT, METHOD_SESSION_PROMPT, SOURCE_PROTOCOL_A2A,
};
use crate::e2a::envelope::E2aEnvelope;
use crate::e2a::parts::{E2aContext, IdentityOrigin, Provenance};
use crate::e2a::read::text_of;
use crate::e2a::response::E2aResponse;
use crate::e2a::write::text_block;
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// An A2A message to be converted to a request. Source: docs/protocols/e2a.md §7.2.
#[derive(Debug, Clone, PartialEq)]
pub struct A2aSendMessage {
    /// The task.
    pub task_id: Option<Text>,
    /// The context.
    pub context_id: Option<Text>,
    /// The A2A message.
    pub message: Json,
    /// The metadata of the call.
    pub metadata: Object,
    /// The configuration of the call.
    pub configuration: Object,
    /// The channel through which it arrived.
    pub channel: Option<Text>,
    /// The kind of the sender.
    pub identity_origin: IdentityOrigin,
    /// Additional `provenance.details`, which override existing ones.
    pub details: Object,
}

/// Converts an A2A message to a request. The ids inside the message are not copied.
/// Source: docs/protocols/e2a.md §7.2.
#[must_use]
pub fn envelope_from_a2a_send_message(
    send: A2aSendMessage,
    context: &E2aContext<'_>,
) -> E2aEnvelope {
    let modes = send.configuration.get("acceptedOutputModes");
    let expected_output_modes = modes
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .map(|mode| Json::String(text_of(mode)))
        .collect();
    let mut params = Object::new();
    params.insert("message", send.message);
    params.insert("configuration", send.configuration);
    let mut details = Object::new();
    details.insert("kind", "a2a_send_message");
    details.insert("abstract_operation", "SendMessage");
    details.extend(&send.details);
    E2aEnvelope {
        provenance: Provenance::converted(SOURCE_PROTOCOL_A2A, details, context),
        task_id: send.task_id,
        context_id: send.context_id,
        channel: send.channel,
        identity_origin: send.identity_origin,
        method: Some(Text::from_static(METHOD_SESSION_PROMPT)),
        params,
        expected_output_modes,
        a2a_metadata: send.metadata,
        ..E2aEnvelope::default()
    }
}

/// The content blocks of an ACP prompt for the parts of an A2A message. Reads the parts of A2A 0.3 (`kind`) and 1.0; a
/// part of unknown form becomes the text of its JSON, so nothing is lost. Source: docs/protocols/e2a.md §7.2.
#[must_use]
pub fn a2a_message_to_prompt(message: &Object) -> Vec<Json> {
    let parts = message.get("parts").and_then(Json::as_array);
    parts.into_iter().flatten().map(block).collect()
}

fn block(part: &Json) -> Json {
    let string = |name| part.get(name).and_then(Json::as_text).cloned();
    if let Some(text) = string("text") {
        return text_block(text);
    }
    let file = part.get("file").unwrap_or(part);
    if let Some(file) = File::read(file) {
        return file.block();
    }
    text_block(Text::from(part.get("data").unwrap_or(part).to_string()))
}

/// A file of either version of A2A.
struct File {
    content: Content,
    name: Option<Text>,
    media_type: Option<Text>,
}

enum Content {
    /// Base64.
    Bytes(Text),
    Uri(Text),
}

impl File {
    fn read(file: &Json) -> Option<Self> {
        let string = |names: [&str; 2]| {
            let mut values = names
                .into_iter()
                .filter_map(|name| file.get(name)?.as_text());
            values.next().cloned()
        };
        let bytes = string(["bytes", "raw"]).map(Content::Bytes);
        Some(Self {
            content: bytes.or_else(|| string(["uri", "url"]).map(Content::Uri))?,
            name: string(["name", "filename"]),
            media_type: string(["mimeType", "mediaType"]),
        })
    }

    fn block(self) -> Json {
        match self.content {
            Content::Uri(uri) => {
                let name = self.name.unwrap_or_else(|| uri.clone());
                let link = [
                    ("type", Json::from("resource_link")),
                    ("uri", uri.into()),
                    ("name", name.into()),
                ];
                with_media_type(link, self.media_type)
            }
            Content::Bytes(data) => match media_kind(self.media_type.as_deref()) {
                Some(kind) => with_media_type(
                    [("type", Json::from(kind)), ("data", data.into())],
                    self.media_type,
                ),
                None => {
                    // ACP requires a URI for every resource; this one has none.
                    let name = self.name.as_deref().unwrap_or("file");
                    let uri = Json::from(format!("attachment:{name}"));
                    let resource =
                        with_media_type([("uri", uri), ("blob", data.into())], self.media_type);
                    Json::object([("type", Json::from("resource")), ("resource", resource)])
                }
            },
        }
    }
}

/// The ACP block for a media type, if there is one.
fn media_kind(media_type: Option<&str>) -> Option<&'static str> {
    let main = media_type?.split('/').next()?;
    ["image", "audio"]
        .into_iter()
        .find(|kind| main.eq_ignore_ascii_case(kind))
}

fn with_media_type<const N: usize>(
    members: [(&'static str, Json); N],
    media_type: Option<Text>,
) -> Json {
    let media_type = media_type.map(|media_type| ("mimeType", Json::String(media_type)));
    Json::object(members.into_iter().chain(media_type))
}

/// The event of an A2A stream in an `a2a.stream_event`, an object of one member; `None` for all other kinds and for an
/// event without a branch. Source: docs/protocols/e2a.md §7.5.
#[must_use]
pub fn e2a_response_to_a2a_stream_payload(record: &E2aResponse) -> Option<Object> {
    if record.response_kind != KIND_A2A_STREAM_EVENT {
        return None;
    }
    let projection = record.projections.get("a2a").and_then(Json::as_object);
    if let Some(event) = projection.filter(|event| is_stream_event(event)) {
        return Some(event.clone());
    }
    let branch = record.body.get("branch")?.as_str()?;
    let (_, name) = A2A_STREAM_BRANCHES
        .iter()
        .find(|(word, _)| *word == branch)?;
    let payload = record.body.get("payload")?.as_object()?;
    let mut event = Object::new();
    event.insert(Text::from_static(name), payload.clone());
    Some(event)
}

fn is_stream_event(event: &Object) -> bool {
    let is_branch = |name: &str| {
        A2A_STREAM_BRANCHES
            .iter()
            .any(|(_, branch)| *branch == name)
    };
    event.len() == 1 && event.iter().all(|(name, _)| is_branch(name))
}
