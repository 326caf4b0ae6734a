//! The URL of a call, with its values.
//!
//! Source: docs/protocols/a2e-workflows.md §D17.

use std::fmt::Write;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::target::{Target, UrlTemplate};
use a2abus_models::a2e_workflow::{Part, Path, Template};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::call::text::{BoundedText, invalid, scalar};
use crate::failure::Failure;
use crate::model::Model;

/// The longest URL that is sent, in bytes: the longest that HTTP libraries accept.
const MAX_URL_BYTES: usize = 65_534;

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A hint for a URL that cannot be parsed.
const WHOLE_URL: &str = "give a whole URL as a string, such as https://api.example.com/items?page=2, without spaces and braces";

/// The target of a call. Permissions are checked elsewhere.
pub(super) fn resolve(url: &UrlTemplate, model: &Model) -> Result<Target, Failure> {
    let text = match url {
        UrlTemplate::Text(template) => encoded(template, model)?,
        UrlTemplate::Reference(path) => raw(path, model)?,
    };
    let target =
        Target::parse(&text).map_err(|error| invalid(error.to_string()).suggest(WHOLE_URL))?;
    if target.as_str().len() > MAX_URL_BYTES {
        return Err(too_long());
    }
    Ok(target)
}

fn raw(path: &Path, model: &Model) -> Result<String, Failure> {
    let value = model.read(path)?;
    match value {
        Json::String(text) => Ok(text.as_str().to_owned()),
        other => {
            let message = format!("{path} is {}, not a URL", other.kind());
            let failure = invalid(message).with("path", path.to_string());
            Err(failure.suggest(WHOLE_URL))
        }
    }
}

fn encoded(template: &Template, model: &Model) -> Result<String, Failure> {
    let mut url = BoundedText::new(MAX_URL_BYTES);
    let mut dots = DotSegments::default();
    for part in template.parts() {
        match part {
            Part::Text(text) => {
                url.write_str(text).map_err(|_| too_long())?;
                dots.literal(text)?;
            }
            Part::Value(path) => {
                let value = scalar(model, path)?;
                dots.value(&value);
                write!(url, "{}", utf8_percent_encode(&value, RESERVED)).map_err(|_| too_long())?;
            }
        }
    }
    dots.end_segment()?;
    Ok(url.into_text())
}

fn too_long() -> Failure {
    invalid(format!("the URL is longer than {MAX_URL_BYTES} bytes"))
        .suggest("put shorter values into the URL, or send them in the body of a POST")
}

/// Checks that no value makes a path segment `.` or `..`, which would lead elsewhere.
#[derive(Default)]
struct DotSegments {
    /// The beginning of the current segment, as far as needed to decide.
    segment: String,
    has_value: bool,
    /// Whether the query or fragment has begun, where dots have no meaning.
    is_over: bool,
}

// === impl DotSegments ===

impl DotSegments {
    fn literal(&mut self, text: &str) -> Result<(), Failure> {
        for c in text.chars() {
            match c {
                _ if self.is_over => {}
                '?' | '#' => {
                    self.end_segment()?;
                    self.is_over = true;
                }
                // The URL standard treats a backslash as a slash.
                '/' | '\\' => self.end_segment()?,
                c => self.segment.push(c),
            }
        }
        Ok(())
    }

    fn value(&mut self, value: &str) {
        self.has_value = true;
        // Only a percent sign could begin an encoded dot, and it is encoded itself.
        self.segment.push_str(&value.replace('%', "%25"));
    }

    fn end_segment(&mut self) -> Result<(), Failure> {
        let dots = self.segment.to_ascii_lowercase().replace("%2e", ".");
        if self.has_value && !self.is_over && matches!(dots.as_str(), "." | "..") {
            return Err(
                invalid("a value makes a path segment . or .., which changes the path")
                    .suggest("put a value there that does not make the segment . or .."),
            );
        }
        self.segment.clear();
        self.has_value = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureCode;

    fn check(url: &str, input: &str) -> Result<String, FailureCode> {
        let root = crate::parse(input.as_bytes()).unwrap();
        let model = Model::new(root.as_object().unwrap().clone());
        resolve(&UrlTemplate::parse(url).unwrap(), &model)
            .map(|target| target.as_str().to_owned())
            .map_err(|failure| failure.code)
    }

    #[test]
    fn values_are_percent_encoded_except_unreserved_characters() {
        for (value, expected) in [
            (r#""a b/../c?d&é""#, "a%20b%2F..%2Fc%3Fd%26%C3%A9"),
            (r#""AZaz09-._~""#, "AZaz09-._~"),
            (r#""%2e""#, "%252e"),
            (
                r##""#@:+,;=!$'()*[]\\\"<>|^`{}""##,
                "%23%40%3A%2B%2C%3B%3D%21%24%27%28%29%2A%5B%5D%5C%22%3C%3E%7C%5E%60%7B%7D",
            ),
            (r#""\r\n\t\u0000""#, "%0D%0A%09%00"),
            ("3", "3"),
            ("-1.5", "-1.5"),
            ("true", "true"),
            ("1E+400", "1E%2B400"),
            (r#""""#, ""),
        ] {
            for url in [
                "https://h.example/p/{/workflow/x}/z",
                "https://h.example/?q={/workflow/x}&z",
            ] {
                let expected = url.replace("{/workflow/x}", expected);
                assert_eq!(
                    check(url, &format!(r#"{{"x":{value}}}"#)),
                    Ok(expected),
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn other_kinds_and_missing_values_are_refused() {
        for (value, code) in [
            ("null", FailureCode::InvalidValue),
            ("[1]", FailureCode::InvalidValue),
            ("{}", FailureCode::InvalidValue),
        ] {
            let input = format!(r#"{{"x":{value}}}"#);
            assert_eq!(check("https://h.example/{/workflow/x}", &input), Err(code));
        }
        let missing = check("https://h.example/{/workflow/y}", "{}");
        assert_eq!(missing, Err(FailureCode::PathNotFound));
    }

    #[test]
    fn no_value_creates_a_dot_segment() {
        let refused = Err(FailureCode::InvalidValue);
        for (url, x) in [
            ("https://h.example/a/{/workflow/x}/b", "."),
            ("https://h.example/a/{/workflow/x}/b", ".."),
            ("https://h.example/a/{/workflow/x}", ".."),
            ("https://h.example/a/{/workflow/x}?q", ".."),
            ("https://h.example/a/{/workflow/x}#f", ".."),
            ("https://h.example/a/.{/workflow/x}/b", "."),
            ("https://h.example/a/.{/workflow/x}/b", ""),
            ("https://h.example/a/%2e{/workflow/x}/b", "."),
            ("https://h.example/a/%2E{/workflow/x}/b", ""),
            ("https://h.example/a/{/workflow/x}{/workflow/x}/b", "."),
            ("https://h.example/a\\{/workflow/x}\\b", ".."),
        ] {
            let input = Json::object([("x", x.into())]).to_string();
            assert_eq!(check(url, &input), refused, "{url} with {x:?}");
        }
        for (url, x, expected) in [
            (
                "https://h.example/a/{/workflow/x}/b",
                "...",
                "https://h.example/a/.../b",
            ),
            (
                "https://h.example/a/{/workflow/x}/b",
                ".x",
                "https://h.example/a/.x/b",
            ),
            (
                "https://h.example/a/{/workflow/x}/b",
                "../..",
                "https://h.example/a/..%2F../b",
            ),
            (
                "https://h.example/a?b=/{/workflow/x}/",
                "..",
                "https://h.example/a?b=/../",
            ),
            (
                "https://h.example/a#/{/workflow/x}/",
                "..",
                "https://h.example/a#/../",
            ),
            // DotSegments in the author's own text are intended.
            (
                "https://h.example/a/../{/workflow/x}",
                "b",
                "https://h.example/b",
            ),
        ] {
            let input = Json::object([("x", x.into())]).to_string();
            assert_eq!(
                check(url, &input).as_deref(),
                Ok(expected),
                "{url} with {x:?}"
            );
        }
    }

    #[test]
    fn a_url_that_is_a_single_reference_is_not_encoded() {
        let url = "{/workflow/next}";
        let check = |next: &str| check(url, &format!(r#"{{"next":{next}}}"#));
        let page = "https://h.example/p%20q?cursor=a%2Fb&n=2";
        assert_eq!(check(&format!("\"{page}\"")).as_deref(), Ok(page));
        for bad in [
            "1",
            "null",
            "[]",
            r#""/relative""#,
            r#""""#,
            r#""https://""#,
            r#""https://h.example/a b""#,
            r#""https://h.example/\n""#,
            r#""h.example""#,
        ] {
            assert_eq!(check(bad), Err(FailureCode::InvalidValue), "{bad}");
        }
    }

    #[test]
    fn a_url_has_a_maximum_length() {
        let long = "x".repeat(MAX_URL_BYTES);
        for url in ["https://h.example/{/workflow/x}", "{/workflow/u}"] {
            let input = format!(r#"{{"x":"{long}","u":"https://h.example/{long}"}}"#);
            assert_eq!(check(url, &input), Err(FailureCode::InvalidValue));
        }
    }
}
