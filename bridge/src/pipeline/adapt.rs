//! The validation and conversion of records.
//!
//! ```text
//! event ─> adapter of its binding ─> route ─> adapter of the route ─> copies
//! ```
//!
//! A binding or route with `validate: true` refuses records that break the model of their family; with `convert: NAME`
//! it puts the converted record in place of the data, and the attributes that describe the data follow it.

use std::borrow::Cow;
use std::collections::HashMap;

use a2abus_models::convert::{Conversion, ConvertContext, ConvertError};
use a2abus_models::e2a::Trust;
use a2abus_models::{Fault, faults_of};
use a2abus_plugin::{
    Data, DecodeErrorKind, Event, EventError, Hint, Ids, Limits, MapContext, MapOptions, Source,
    Text, decode, extension, map,
};
use bytes::Bytes;

use crate::config::{BindingConfig, Config, RouteConfig};

/// The only conversion that puts a request into another one.
const FALLBACK: &str = "build_fallback_e2a";

/// The conversions and validations of all bindings and routes.
#[derive(Debug, Clone, Default)]
pub struct Adapters {
    bindings: HashMap<Text, Adapter>,
    routes: HashMap<Text, Adapter>,
    /// The mapping options of bindings, for records that their routes convert. Bindings with the defaults are left out.
    options: HashMap<Text, MapOptions>,
}

/// The conversions and validations of one binding or route.
#[derive(Debug, Clone)]
struct Adapter {
    validate: bool,
    convert: Option<&'static Conversion>,
    hint: Hint,
    limits: Limits,
}

/// Why a record was refused. It never contains a value of the record.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptError {
    /// It violates the model of its family, with all problems.
    #[error("the record is not valid: {}", listed(.0))]
    Invalid(Vec<Fault>),
    /// The conversion refused it.
    #[error("{conversion}: {error}{}", named(.error))]
    Refused {
        /// The name of the conversion.
        conversion: &'static str,
        /// Why.
        error: ConvertError,
    },
    /// The record has no counterpart in the target form.
    #[error("{0}: the record has no counterpart in the target form")]
    NoCounterpart(&'static str),
    /// The result is not a valid event.
    #[error("{conversion}: {error}")]
    NotAnEvent {
        /// The name of the conversion.
        conversion: &'static str,
        /// Why.
        error: EventError,
    },
}

/// The reason of the dead letter of a record that cannot be converted, and the cure.
pub(crate) const CONVERT_FAILED: &str = "convert_failed";
pub(crate) const FIX_CONVERSION: &str = "send a message that the conversion reads, or correct `convert` of the binding or route, or `when` of the route";

/// The attributes that describe the data. They are taken from the converted record.
const DESCRIBING: [&str; 20] = [
    "dataschema",
    extension::A2A_METHOD,
    extension::MCP_TYPE,
    extension::PROTOCOL,
    extension::PROTOCOL_VERSION,
    extension::MESSAGE_TYPE,
    extension::IS_FINAL,
    extension::RPC_ERROR_CODE,
    extension::TASK_STATE,
    extension::A2E_TYPE,
    extension::A2E_CAPABILITY,
    extension::A2E_OBJECT,
    extension::A2E_KIND,
    extension::A2E_CODE,
    extension::RETRYABLE,
    extension::E2A_CHANNEL,
    extension::E2A_KIND,
    extension::E2A_STATUS,
    extension::E2A_CODE,
    extension::SOURCE_PROTOCOL,
];

// === impl AdaptError ===

impl AdaptError {
    /// The code of the reason of its dead letter.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_record",
            Self::Refused { .. } | Self::NoCounterpart(_) | Self::NotAnEvent { .. } => {
                CONVERT_FAILED
            }
        }
    }
}

/// The stable name of the error and the member, unless the text begins with them.
fn named(error: &ConvertError) -> String {
    if error.message.starts_with(error.kind) {
        return String::new();
    }
    let at = if error.field.is_empty() { "" } else { " at " };
    format!(" ({}{at}{})", error.kind, error.field)
}

fn listed(faults: &[Fault]) -> String {
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}

// === impl Adapters ===

impl Adapters {
    /// The adapters of a configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let limits = Limits::from(&config.limits);
        let binding = |binding: &BindingConfig| {
            let adapter = Adapter::new(binding.validate, binding.convert, binding.hint(), limits)?;
            Some((binding.name.text().clone(), adapter))
        };
        let route = |route: &RouteConfig| {
            let hint = Hint::default();
            let adapter = Adapter::new(route.validate, route.convert, hint, limits)?;
            Some((route.name.text().clone(), adapter))
        };
        let options = config.bindings.iter().map(|binding| {
            let options = MapOptions::from(&binding.mapping);
            (binding.name.text().clone(), options)
        });
        Self {
            bindings: config.bindings.iter().filter_map(binding).collect(),
            routes: config.routes.iter().filter_map(route).collect(),
            options: options
                .filter(|(_, options)| *options != MapOptions::default())
                .collect(),
        }
    }

    /// The event after its binding.
    ///
    /// # Errors
    /// Why the binding refused it.
    pub fn at_binding<'e>(
        &self,
        binding: &str,
        event: &'e Event,
    ) -> Result<Cow<'e, Event>, AdaptError> {
        self.adapt(self.bindings.get(binding), binding, event)
    }

    /// The event after its route; `binding` received it.
    ///
    /// # Errors
    /// Why the route refused it.
    pub fn at_route<'e>(
        &self,
        route: &str,
        binding: &str,
        event: &'e Event,
    ) -> Result<Cow<'e, Event>, AdaptError> {
        self.adapt(self.routes.get(route), binding, event)
    }

    fn adapt<'e>(
        &self,
        adapter: Option<&Adapter>,
        binding: &str,
        event: &'e Event,
    ) -> Result<Cow<'e, Event>, AdaptError> {
        let Some(adapter) = adapter else {
            return Ok(Cow::Borrowed(event));
        };
        if adapter.validate {
            adapter.check(&event.body())?;
        }
        let Some(conversion) = adapter.convert else {
            return Ok(Cow::Borrowed(event));
        };
        let body = adapter.converted(conversion, event)?;
        let default = MapOptions::default();
        let options = self.options.get(binding).unwrap_or(&default);
        let conversion = conversion.name;
        let event = adapter.described(event.clone(), conversion, body, options);
        let event = event.map_err(|error| AdaptError::NotAnEvent { conversion, error })?;
        Ok(Cow::Owned(event))
    }
}

// === impl Adapter ===

impl Adapter {
    /// `None` if records do not change.
    fn new(
        validate: bool,
        convert: Option<crate::config::AsText<&'static Conversion>>,
        hint: Hint,
        limits: Limits,
    ) -> Option<Self> {
        let convert = convert.map(|conversion| conversion.0);
        (validate || convert.is_some()).then_some(Self {
            validate,
            convert,
            hint,
            limits,
        })
    }

    /// Checks each record against the model of its family. Bodies that contain no record pass.
    fn check(&self, body: &Bytes) -> Result<(), AdaptError> {
        let trust = Trust::from(&self.hint);
        let mut faults = Vec::new();
        for unit in decode(body, &self.hint, &self.limits) {
            match unit {
                Ok(unit) => faults.extend(faults_of(&unit, trust, &self.limits)),
                Err(refused) if is_no_record(refused.error.kind()) => {}
                Err(refused) => faults.push(Fault::from(&refused.error)),
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(AdaptError::Invalid(faults))
        }
    }

    fn converted(
        &self,
        conversion: &'static Conversion,
        event: &Event,
    ) -> Result<Bytes, AdaptError> {
        let context = ConvertContext {
            now: crate::clock::rfc3339(crate::clock::now()),
            converter: Text::from_static("a2abus"),
            // A redelivered message gets the same id. A call keeps its id, which correlates the answer.
            new_id: event.id().clone(),
        };
        let converted = conversion.run_on_message(&event.body(), &self.limits, &context);
        match converted {
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(AdaptError::NoCounterpart(conversion.name)),
            Err(error) => Err(AdaptError::Refused {
                conversion: conversion.name,
                error,
            }),
        }
    }

    /// The event with other data and the attributes that describe them. It keeps its identity and its routing: `id`,
    /// `source`, `targetagent`, `collaborationid`, and the reply address.
    fn described(
        &self,
        mut event: Event,
        conversion: &str,
        body: Bytes,
        options: &MapOptions,
    ) -> Result<Event, EventError> {
        let mut hint = Hint::default();
        // The bridge has put the request inside there itself.
        hint.e2a_trusted = conversion == FALLBACK;
        // Only its attributes are used.
        let context = MapContext {
            source: Source::default(),
            time: None,
            ids: Ids::Payload(&crate::clock::new_event_id),
        };
        let units = map(&body, &hint, &self.limits, options, &context);
        if let Ok(Ok(inner)) = units.into_only() {
            for name in DESCRIBING {
                event.remove(name);
            }
            event.set("type", inner.event.ty().clone())?;
            for (name, value) in inner.event.extensions() {
                if event.extension(name).is_none() {
                    event.set(name, value.clone())?;
                }
            }
        }
        event.set("datacontenttype", "application/json")?;
        event.set_data(Some(Data::from(body)));
        Ok(event)
    }
}

fn is_no_record(kind: DecodeErrorKind) -> bool {
    matches!(
        kind,
        DecodeErrorKind::Empty
            | DecodeErrorKind::NotUtf8
            | DecodeErrorKind::NotJson
            | DecodeErrorKind::NotAnObject
            | DecodeErrorKind::EmptyBatch
            | DecodeErrorKind::Unknown
            | DecodeErrorKind::MissingCollaborationId
    )
}
