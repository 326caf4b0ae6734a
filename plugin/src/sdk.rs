//! Converts events to and from those of the official CloudEvents SDK.

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use cloudevents::event::{AttributesWriter as _, ExtensionValue};
use cloudevents::{AttributesReader, EventBuilder, EventBuilderV10};
use url::Url;

use crate::attribute::is_leap_second;
use crate::error::{EventError, EventErrorKind};
use crate::event::{Data, Event, Value};
use crate::format::is_json;
use crate::json::{BYTE_ORDER_MARK, is_one_json_value};
use crate::text::Text;

/// Anything that the SDK cannot represent is an error. `time` becomes the same instant in UTC, because the SDK has no
/// offsets. Data become the SDK's `Binary`, so their bytes stay unchanged. JSON data without a `datacontenttype` get
/// `application/json`, which they have implicitly.
impl TryFrom<&Event> for cloudevents::Event {
    type Error = EventError;

    /// # Errors
    /// `InvalidAttributeValue` with the name of the attribute: a `time` with a leap second or finer than nanoseconds,
    /// or a `dataschema` that the SDK would write differently.
    fn try_from(event: &Event) -> Result<Self, EventError> {
        let builder = EventBuilderV10::new()
            .id(event.id().as_str())
            .source(event.source().as_str())
            .ty(event.ty().as_str());
        let mut theirs: Self = builder.build().map_err(|error| refused("", error))?;
        theirs.set_subject(event.subject().map(|text| text.to_string()));
        theirs.set_time(event.time().map(|text| instant(text)).transpose()?);
        let data = event.data();
        let is_bare_json = event.datacontenttype().is_none() && data.is_some_and(Data::is_json);
        let ty = match event.datacontenttype() {
            Some(ty) => Some(ty.as_str()),
            None => is_bare_json.then_some("application/json"),
        };
        theirs.set_datacontenttype(ty);
        let schema = event.attribute("dataschema");
        theirs.set_dataschema(schema.map(|text| url(&text)).transpose()?);
        for (name, value) in event.extensions() {
            match value {
                Value::String(text) => theirs.set_extension(name, text.as_str()),
                Value::Integer(number) => theirs.set_extension(name, i64::from(*number)),
                Value::Boolean(flag) => theirs.set_extension(name, *flag),
            }
        }
        if let Some(data) = data {
            theirs.set_data_unchecked(data.bytes().to_vec());
        }
        Ok(theirs)
    }
}

impl TryFrom<cloudevents::Event> for Event {
    type Error = EventError;

    /// # Errors
    /// `InvalidAttributeName` or `InvalidAttributeValue` for values that the SDK allows and CloudEvents forbids.
    fn try_from(mut event: cloudevents::Event) -> Result<Self, EventError> {
        let text = |text: &str| Text::from(text);
        let mut ours = Self::new(text(event.id()), text(event.source()), text(event.ty()))?;
        if let Some(subject) = event.subject() {
            ours.set("subject", subject)?;
        }
        if let Some(time) = event.time() {
            let time = time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
            ours.set("time", Text::from(time))?;
        }
        for (name, value) in event.iter_extensions() {
            let value = match value {
                ExtensionValue::String(text) => Value::from(text.as_str()),
                ExtensionValue::Boolean(flag) => Value::from(*flag),
                ExtensionValue::Integer(number) => i32::try_from(*number)
                    .map(Value::from)
                    .map_err(|error| refused(name, error))?,
            };
            ours.set(name, value)?;
        }
        let (ty, schema, data) = event.take_data();
        if let Some(ty) = &ty {
            ours.set("datacontenttype", ty.as_str())?;
        }
        if let Some(schema) = schema {
            ours.set("dataschema", schema.as_str())?;
        }
        let is_json = ty.is_some_and(|ty| is_json(&ty));
        ours.set_data(data.map(|data| match data {
            cloudevents::Data::Binary(bytes) => data_of(bytes.into(), is_json),
            cloudevents::Data::String(text) => data_of(text.into(), is_json),
            cloudevents::Data::Json(value) => data_of(value.to_string().into(), true),
        }));
        Ok(ours)
    }
}

/// Marks data that are declared as JSON as such, if they are valid JSON.
fn data_of(bytes: Bytes, is_json: bool) -> Data {
    let value = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    if is_json && is_one_json_value(value) {
        Data::known_json(bytes)
    } else {
        Data::from(bytes)
    }
}

fn instant(time: &str) -> Result<DateTime<Utc>, EventError> {
    let digits = time.get(20..).filter(|_| time.get(19..20) == Some("."));
    let digits = digits.map_or("", |rest| {
        rest.trim_end_matches(|c: char| !c.is_ascii_digit())
    });
    let fraction = digits.split(|c: char| !c.is_ascii_digit()).next();
    if is_leap_second(time) || fraction.is_some_and(|digits| digits.len() > 9) {
        return Err(refused("time", "a leap second, or finer than nanoseconds"));
    }
    let time = DateTime::parse_from_rfc3339(time).map_err(|error| refused("time", error))?;
    Ok(time.to_utc())
}

fn url(schema: &str) -> Result<Url, EventError> {
    let url = Url::parse(schema).map_err(|error| refused("dataschema", error))?;
    if url.as_str() == schema {
        return Ok(url);
    }
    let detail = format!("the SDK would write it as {url}");
    Err(refused("dataschema", detail))
}

fn refused(attribute: &str, error: impl std::fmt::Display) -> EventError {
    EventError::new(EventErrorKind::InvalidAttributeValue, attribute).with_detail(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_with_a_byte_order_mark_stays_json_through_the_sdk() {
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        event.set("datacontenttype", "application/json").unwrap();
        event.set_data(Some(Data::known_json(Bytes::from("\u{feff}{}\n "))));
        let theirs = cloudevents::Event::try_from(&event).unwrap();
        assert_eq!(Event::try_from(theirs).unwrap(), event);
    }

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
        event.set_data(Some(Data::from(Bytes::from_static(b"{ \"a\" : 1.50 }"))));
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

    fn event_with(attributes: &[(&str, &str)]) -> Event {
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        for (name, value) in attributes {
            event.set(name, *value).unwrap();
        }
        event
    }

    #[test]
    fn nothing_is_lost_without_data() {
        let event = event_with(&[
            ("datacontenttype", "text/plain"),
            ("dataschema", "https://example.com/s"),
        ]);
        let theirs = cloudevents::Event::try_from(&event).unwrap();
        assert_eq!(Event::try_from(theirs).unwrap(), event);
        let mut event = event_with(&[("dataschema", "urn:example:s")]);
        event.set_data(Some(Data::from(Bytes::from_static(b"\x00"))));
        let theirs = cloudevents::Event::try_from(&event).unwrap();
        assert_eq!(Event::try_from(theirs).unwrap(), event);
    }

    #[test]
    fn attributes_the_sdk_cannot_represent_are_errors_with_their_name() {
        for (name, value) in [
            ("time", "2016-12-31T23:59:60Z"),
            ("time", "2016-12-31T23:59:59.1234567891Z"),
            ("dataschema", "HTTPS://example.com"),
        ] {
            let error = cloudevents::Event::try_from(&event_with(&[(name, value)])).unwrap_err();
            assert_eq!(error.attribute(), name, "{value}");
        }
        let builder = EventBuilderV10::new().id("1").source("/s").ty("t");
        let theirs = builder.extension("seq", i64::MAX).build().unwrap();
        assert_eq!(Event::try_from(theirs).unwrap_err().attribute(), "seq");
    }
}
