//! Conversion to and from the event of the official CloudEvents SDK, for programs that use it.

use bytes::Bytes;
use cloudevents::event::ExtensionValue;
use cloudevents::{AttributesReader, EventBuilder, EventBuilderV10};

use crate::error::{EventError, EventErrorKind};
use crate::event::{Data, Event, Value};
use crate::text::Text;

/// Data become the SDK's `Binary`, so that their bytes stay as they are.
impl TryFrom<&Event> for cloudevents::Event {
    type Error = EventError;

    /// # Errors
    /// `InvalidAttributeValue` for what the SDK cannot hold, such as a leap second in `time`.
    fn try_from(event: &Event) -> Result<Self, EventError> {
        let mut builder = EventBuilderV10::new()
            .id(event.id().as_str())
            .source(event.source().as_str())
            .ty(event.ty().as_str());
        if let Some(subject) = event.subject() {
            builder = builder.subject(subject.as_str());
        }
        if let Some(time) = event.time() {
            builder = builder.time(time.as_str());
        }
        for (name, value) in event.extensions() {
            builder = match value {
                Value::String(text) => builder.extension(name, text.as_str()),
                Value::Integer(number) => builder.extension(name, i64::from(*number)),
                Value::Boolean(flag) => builder.extension(name, *flag),
            };
        }
        let schema = event.attribute("dataschema");
        builder = match (event.data(), event.datacontenttype(), schema) {
            (Some(data), Some(ty), Some(schema)) => {
                builder.data_with_schema(ty.as_str(), schema.as_str(), data.bytes().to_vec())
            }
            (Some(data), Some(ty), None) => builder.data(ty.as_str(), data.bytes().to_vec()),
            (Some(data), None, _) => {
                let ty = if matches!(data, Data::Json(_)) {
                    "application/json"
                } else {
                    "application/octet-stream"
                };
                builder.data(ty, data.bytes().to_vec())
            }
            (None, _, _) => builder,
        };
        builder.build().map_err(refused)
    }
}

impl TryFrom<cloudevents::Event> for Event {
    type Error = EventError;

    /// # Errors
    /// `InvalidAttributeName` or `InvalidAttributeValue` for what the SDK allows and CloudEvents forbids.
    fn try_from(mut event: cloudevents::Event) -> Result<Self, EventError> {
        let text = |text: &str| Text::from(text);
        let mut ours = Self::new(text(event.id()), text(event.source()), text(event.ty()))?;
        if let Some(subject) = event.subject() {
            ours.set("subject", subject)?;
        }
        if let Some(time) = event.time() {
            ours.set("time", Text::from(time.to_rfc3339().replace("+00:00", "Z")))?;
        }
        for (name, value) in event.iter_extensions() {
            let value = match value {
                ExtensionValue::String(text) => Value::from(text.as_str()),
                ExtensionValue::Boolean(flag) => Value::from(*flag),
                ExtensionValue::Integer(number) => {
                    i32::try_from(*number).map(Value::from).map_err(refused)?
                }
            };
            ours.set(name, value)?;
        }
        let (ty, schema, data) = event.take_data();
        if let Some(ty) = ty {
            ours.set("datacontenttype", ty.as_str())?;
        }
        if let Some(schema) = schema {
            ours.set("dataschema", schema.as_str())?;
        }
        ours.set_data(data.map(|data| match data {
            cloudevents::Data::Binary(bytes) => Data::Bytes(Bytes::from(bytes)),
            cloudevents::Data::String(text) => Data::Bytes(Bytes::from(text)),
            cloudevents::Data::Json(value) => Data::Json(Bytes::from(value.to_string())),
        }));
        Ok(ours)
    }
}

fn refused(error: impl std::fmt::Display) -> EventError {
    EventError::new(EventErrorKind::InvalidAttributeValue, "").because(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_sdk() {
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        for (name, value) in [
            ("subject", "a"),
            ("time", "2026-02-03T04:05:06Z"),
            ("datacontenttype", "application/json"),
            ("targetagent", "w"),
        ] {
            event.set(name, value).unwrap();
        }
        event.set("rpcerrorcode", -32_600).unwrap();
        event.set("isfinal", true).unwrap();
        event.set_data(Some(Data::Bytes(Bytes::from_static(b"{ \"a\" : 1.50 }"))));
        let theirs = cloudevents::Event::try_from(&event).unwrap();
        let back = Event::try_from(theirs).unwrap();
        assert_eq!(back.body(), event.body());
        for name in [
            "id",
            "source",
            "type",
            "subject",
            "time",
            "datacontenttype",
            "targetagent",
            "rpcerrorcode",
            "isfinal",
        ] {
            assert_eq!(back.attribute(name), event.attribute(name), "{name}");
        }
    }
}
