//! Counts in the parameters of requests.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Reads an optional count. The error for clients does not mention a Rust type.
///
/// # Errors
/// When it is neither a whole number from 0 nor null.
pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    from.deserialize_option(Count)
}

struct Count;

impl<'de> Visitor<'de> for Count {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        // Not `deserialize_any`: the text of a query is only read as a number if a number is requested.
        from.deserialize_u64(self)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Self::Value, E> {
        let too_many = |_| E::invalid_value(Unexpected::Unsigned(count), &self);
        usize::try_from(count).map(Some).map_err(too_many)
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Params {
        #[serde(default, deserialize_with = "super::read")]
        count: Option<usize>,
    }

    #[test]
    fn the_error_for_a_wrong_count_names_the_expected_count() {
        let read = |json: &str| {
            let params: Result<Params, _> = serde_json::from_str(json);
            params
                .map(|params| params.count)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#"{"count":null}"#), Ok(None));
        assert_eq!(read(r#"{"count":7}"#), Ok(Some(7)));
        let query = |text: &str| Query::<Params>::try_from_uri(&text.parse().unwrap());
        assert_eq!(query("/?count=7").unwrap().count, Some(7));
        assert!(query("/?count=x").is_err());
        for wrong in ["-1", "1.5", "\"7\"", "true", "[]", "{}"] {
            let error = read(&format!(r#"{{"count":{wrong}}}"#)).unwrap_err();
            assert!(error.contains("expected a whole number from 0"), "{error}");
        }
    }
}
