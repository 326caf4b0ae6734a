//! Types of values that YAML does not have.
//!
//! Durations, sizes, topics and the like are written as text. [`TextFormat`] defines how to read and write each type;
//! [`AsText`] wraps one in a configuration struct. The schema's `format` check and the typed value use the same parser,
//! so they always agree.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use a2abus_models::a2e_workflow::target::ApiBase;
use a2abus_models::convert::Conversion;
use a2abus_plugin::Text;
use a2abus_transports::{Topic, TopicFilter};
use bytesize::ByteSize;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::filter::LevelFilter;

use super::nearest::nearest;
use crate::names::{Attribute, GlobText, Name, Pattern, Template};

/// A value that the file writes as text.
pub trait TextFormat: Sized {
    /// The `format` of the JSON Schema.
    const FORMAT: &'static str;

    /// The JSON types the value may have.
    const JSON_TYPES: &'static [&'static str] = &["string"];

    /// Reads the text.
    ///
    /// # Errors
    /// The problem and its fix, phrased to follow the path of the value.
    fn read(text: &str) -> Result<Self, String>;

    /// Writes it so that [`TextFormat::read`] reads the same value.
    fn write(&self) -> String;
}

/// A value that the file writes as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AsText<T>(pub T);

/// A log filter in the syntax of `tracing_subscriber::EnvFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(Text);

/// Checks text against one `format`.
pub(super) type FormatCheck = fn(&str) -> Result<(), String>;

/// Every `format` of the schema with its check.
pub(super) const FORMATS: &[(&str, FormatCheck)] = &[
    check::<Duration>(),
    check::<ByteSize>(),
    check::<SocketAddr>(),
    check::<Topic>(),
    check::<TopicFilter>(),
    check::<Template>(),
    check::<Attribute>(),
    check::<Name>(),
    check::<LogFilter>(),
    check::<Pattern>(),
    check::<GlobText>(),
    check::<ApiBase>(),
    check::<&'static Conversion>(),
];

const fn check<T: TextFormat>() -> (&'static str, FormatCheck) {
    (T::FORMAT, |text| T::read(text).map(drop))
}

// === impl AsText ===

impl<T> Deref for AsText<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: TextFormat> Serialize for AsText<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.write())
    }
}

impl<'de, T: TextFormat> Deserialize<'de> for AsText<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(TextVisitor(std::marker::PhantomData))
            .map(Self)
    }
}

struct TextVisitor<T>(std::marker::PhantomData<T>);

impl<T: TextFormat> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::FORMAT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        T::read(&number.to_string()).map_err(E::custom)
    }
}

impl<T: TextFormat> JsonSchema for AsText<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::FORMAT.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match T::JSON_TYPES {
            [only] => json_schema!({ "type": only, "format": T::FORMAT }),
            several => json_schema!({ "type": several, "format": T::FORMAT }),
        }
    }
}

// === text formats ===

impl TextFormat for Duration {
    const FORMAT: &'static str = "duration";

    fn read(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text).map_err(|_| {
            "not a duration: write a number and a unit, such as 250ms, 30s or 2m".into()
        })
    }

    fn write(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

impl TextFormat for ByteSize {
    const FORMAT: &'static str = "size";
    const JSON_TYPES: &'static [&'static str] = &["string", "integer"];

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            "not a size: write a number of bytes, or a number and a unit such as 64MiB".into()
        })
    }

    fn write(&self) -> String {
        let bytes = self.0;
        for (unit, size) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if bytes >= size && bytes.is_multiple_of(size) {
                return format!("{}{unit}", bytes / size);
            }
        }
        bytes.to_string()
    }
}

impl TextFormat for SocketAddr {
    const FORMAT: &'static str = "socket-address";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            "not a socket address: write an IP address and a port, such as 0.0.0.0:8080 or [::]:8080"
                .into()
        })
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// Formats of types whose own constructor checks the text and explains the problem.
macro_rules! text_formats {
    ($($type:ident, $format:literal, $text:expr;)*) => {$(
        impl TextFormat for $type {
            const FORMAT: &'static str = $format;

            fn read(text: &str) -> Result<Self, String> {
                Self::new(text).map_err(|error| error.to_string())
            }

            fn write(&self) -> String {
                let text: fn(&Self) -> String = $text;
                text(self)
            }
        }
    )*};
}

text_formats! {
    Attribute, "attribute", ToString::to_string;
    GlobText, "glob", |glob| glob.text().to_string();
    Name, "name", ToString::to_string;
    Pattern, "pattern", |pattern| pattern.text().to_string();
    Template, "template", ToString::to_string;
    Topic, "topic", ToString::to_string;
    TopicFilter, "topic-filter", |filter| filter.as_str().to_owned();
}

impl TextFormat for ApiBase {
    const FORMAT: &'static str = "base-url";

    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|_| {
            "not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment"
                .into()
        })
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl TextFormat for &'static Conversion {
    const FORMAT: &'static str = "conversion";

    fn read(text: &str) -> Result<Self, String> {
        Conversion::find(text).ok_or_else(|| {
            let known: Vec<&str> = Conversion::all().map(|known| known.name).collect();
            let near = nearest(text, &known);
            let near = near.map_or_else(String::new, |near| format!(": did you mean {near}?"));
            format!("there is no conversion {text:?}{near} (a2abus convert --list shows all)")
        })
    }

    fn write(&self) -> String {
        self.name.to_owned()
    }
}

impl TextFormat for LogFilter {
    const FORMAT: &'static str = "log-filter";

    /// A word without `=` must be a level, and a target must be a path. `EnvFilter` takes a misspelt level for a target
    /// and then logs nothing from any other target.
    fn read(text: &str) -> Result<Self, String> {
        let not_a_filter = || {
            "not a log filter: write levels, such as info or info,a2abus_bridge=debug".to_owned()
        };
        // Span fields may contain commas.
        let directives = if text.contains('{') { "" } else { text };
        let directives = directives.split(',').map(str::trim);
        for directive in directives.filter(|directive| !directive.is_empty()) {
            let of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
            match directive.split_once(['=', '[']) {
                Some((target, _)) if target.chars().all(of_path) => {}
                Some(_) => return Err(not_a_filter()),
                None if directive.parse::<LevelFilter>().is_ok() => {}
                None => {
                    return Err(format!(
                        "there is no level {directive:?}: write error, warn, info, debug, trace or off; for one target TARGET=LEVEL"
                    ));
                }
            }
        }
        tracing_subscriber::EnvFilter::try_new(text)
            .map(|_| Self(text.into()))
            .map_err(|_| not_a_filter())
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}

// === impl LogFilter ===

impl LogFilter {
    /// Everything from INFO up.
    pub(super) const fn info() -> Self {
        Self(Text::from_static("info"))
    }

    /// Everything from WARN up.
    #[must_use]
    pub const fn warn() -> Self {
        Self(Text::from_static("warn"))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === Name is written without a wrapper ===

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AsText::<Self>::deserialize(deserializer).map(|written| written.0)
    }
}

impl JsonSchema for Name {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Self::FORMAT.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        AsText::<Self>::json_schema(generator)
    }
}
