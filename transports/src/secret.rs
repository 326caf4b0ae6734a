//! A credential that the configuration refers to but never contains.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// A reference to a secret: `{file: PATH}` or `{env: NAME}`.
///
/// The secret is read when a client is created, not when the configuration loads, so that the next connection uses a
/// rotated file. `Debug` and `Serialize` print `***`.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(Reference);

#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Reference {
    /// Path of a file that holds the secret; one line end after the secret is ignored.
    File(PathBuf),
    /// Name of an environment variable that holds the secret.
    Env(String),
}

/// The text of a secret, for as long as a client needs it. `Debug` prints `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Revealed(String);

/// A secret could not be read. Says where it should have been, never the secret itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret file {path}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The variable is not set, or is not UTF-8.
    #[error("the environment variable {name} is not set")]
    Env {
        /// The variable.
        name: String,
    },
    /// The secret is empty.
    #[error("the secret in {place} is empty")]
    Empty {
        /// The file or variable.
        place: String,
    },
}

// === impl Secret ===

impl Secret {
    /// A secret in a file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Reference::File(path.into()))
    }

    /// A secret in an environment variable.
    #[must_use]
    pub fn env(name: impl Into<String>) -> Self {
        Self(Reference::Env(name.into()))
    }

    /// The file to watch for changes, if the secret is in one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Reference::File(path) => Some(path),
            Reference::Env(_) => None,
        }
    }

    /// Reads the secret. Blocks as long as reading a small file does.
    ///
    /// # Errors
    /// When the file or variable does not exist, is not UTF-8 text, or is empty.
    pub fn reveal(&self) -> Result<Revealed, SecretError> {
        let (text, place) = match &self.0 {
            Reference::File(path) => (read(path)?, path.display().to_string()),
            Reference::Env(name) => {
                let text =
                    std::env::var(name).map_err(|_| SecretError::Env { name: name.clone() })?;
                (text, name.clone())
            }
        };
        if text.is_empty() {
            return Err(SecretError::Empty { place });
        }
        Ok(Revealed(text))
    }
}

fn read(path: &Path) -> Result<String, SecretError> {
    let mut text = std::fs::read_to_string(path).map_err(|source| SecretError::File {
        path: path.to_owned(),
        source,
    })?;
    // Editors and `echo` end a file with a line end that is not part of the password.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

// === impl SecretError ===

impl SecretError {
    /// Whether the secret is missing or empty, as opposed to temporarily unreadable.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            Self::Env { .. } | Self::Empty { .. } => true,
        }
    }

    /// The file or variable that the secret should be in.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Env { name } => name.clone(),
            Self::Empty { place } => place.clone(),
        }
    }
}

// === impl Revealed ===

impl Revealed {
    /// The secret itself. Give it to a client; keep it out of messages.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Revealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Secret, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn only_references_are_accepted() {
        assert_eq!(parse(r#"{"file":"/a"}"#).unwrap(), Secret::file("/a"));
        assert_eq!(parse(r#"{"env":"A"}"#).unwrap(), Secret::env("A"));
        for refused in [
            r#""hunter2""#,
            r#"{"value":"hunter2"}"#,
            "{}",
            r#"{"file":"/a","env":"A"}"#,
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_file_gives_its_content_without_the_line_end() {
        let path = std::env::temp_dir().join(format!("a2abus-secret-{}", std::process::id()));
        for (content, expected) in [
            ("s3cret\n", "s3cret"),
            ("s3cret\r\n", "s3cret"),
            ("s3cret", "s3cret"),
            ("a\nb\n", "a\nb"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(Secret::file(&path).reveal().unwrap().as_str(), expected);
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(
            Secret::file(&path).reveal(),
            Err(SecretError::Empty { .. })
        ));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            Secret::file(&path).reveal(),
            Err(SecretError::File { .. })
        ));
    }

    #[test]
    fn neither_the_secret_nor_its_location_is_printed() {
        let secret = Secret::env("CANARY_PLACE");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(serde_json::to_string(&secret).unwrap(), r#""***""#);
        assert_eq!(format!("{:?}", Revealed("canary".into())), "***");
        assert!(matches!(
            Secret::env("A2ABUS_NOT_SET").reveal(),
            Err(SecretError::Env { .. })
        ));
    }
}
