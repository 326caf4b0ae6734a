//! Text whose memory is counted before it grows.

use std::fmt::{self, Write};

use a2abus_models::Json;
use a2abus_models::a2e_workflow::{FieldTemplate, Part};

use crate::failure::Failure;
use crate::meter::Meter;
use crate::model::field;

/// Text in the making.
pub(super) struct MeteredText<'a> {
    text: String,
    meter: &'a Meter<'a>,
    refused: Option<Failure>,
}

/// The text that is written, counted.
pub(super) fn text<'a>(
    meter: &'a Meter<'a>,
    write: impl FnOnce(&mut MeteredText<'a>) -> fmt::Result,
) -> Result<String, Failure> {
    let mut counted = MeteredText {
        text: String::new(),
        meter,
        refused: None,
    };
    // Writing fails only at the limit.
    let _refused = write(&mut counted);
    counted.refused.map_or(Ok(counted.text), Err)
}

/// Writes a string as it is and everything else as compact JSON.
pub(super) fn write_plain(out: &mut MeteredText<'_>, value: &Json) -> fmt::Result {
    match value {
        Json::String(text) => out.write_str(text),
        other => write!(out, "{other}"),
    }
}

/// The text of a template with the fields of an element; null and missing are empty.
pub(super) fn fill(
    template: &FieldTemplate,
    item: &Json,
    meter: &Meter<'_>,
) -> Result<String, Failure> {
    text(meter, |out| {
        template.parts().iter().try_for_each(|part| match part {
            Part::Text(text) => out.write_str(text),
            Part::Value(path) => match field(item, path).as_deref() {
                None | Some(Json::Null) => Ok(()),
                Some(value) => write_plain(out, value),
            },
        })
    })
}

// === impl MeteredText ===

impl Write for MeteredText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let counted = self.meter.weigh(text.len());
        let counted = counted.and_then(|()| self.meter.step());
        if let Err(failure) = counted {
            self.refused = Some(failure);
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
