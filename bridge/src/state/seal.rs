//! Encryption of the secrets in records of the state.
//!
//! A sealed text is the Base64 of a random nonce and of what AES-256-GCM makes of the text.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// The keys that seal and open secrets. `Debug` shows only how many there are.
pub(crate) struct SealKeys(Vec<LessSafeKey>);

/// A sealed text cannot be opened, or a text cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There are no keys.
    #[error("a2a.push_notifications.keys is empty, so the secret of a webhook cannot be stored")]
    NoKey,
    /// The operating system or the cipher failed.
    #[error("the secret of a webhook cannot be encrypted")]
    Failed,
    /// None of the keys fits, or the text was changed.
    #[error(
        "no key in a2a.push_notifications.keys decrypts the secret of this webhook: restore the old key"
    )]
    NotOpened,
}

// === impl SealKeys ===

impl SealKeys {
    /// Keys from secret texts. The first one seals, all open.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        Self(secrets.into_iter().filter_map(key).collect())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Seals a text for one place, which is needed to open it.
    ///
    /// # Errors
    /// When there is no key, or no random number.
    pub(crate) fn seal(&self, place: &str, text: &str) -> Result<String, SealError> {
        let key = self.0.first().ok_or(SealError::NoKey)?;
        let mut nonce = [0; NONCE_LEN];
        let random = SystemRandom::new().fill(&mut nonce);
        random.map_err(|_| SealError::Failed)?;
        let mut sealed = text.as_bytes().to_vec();
        let at = Nonce::assume_unique_for_key(nonce);
        let done = key.seal_in_place_append_tag(at, Aad::from(place), &mut sealed);
        done.map_err(|_| SealError::Failed)?;
        sealed.splice(..0, nonce);
        Ok(STANDARD.encode(sealed))
    }

    /// Opens a text that was sealed for this place.
    ///
    /// # Errors
    /// When no key opens it.
    pub(crate) fn open(&self, place: &str, sealed: &str) -> Result<String, SealError> {
        let bytes = STANDARD.decode(sealed).map_err(|_| SealError::NotOpened)?;
        let (nonce, sealed) = bytes.split_first_chunk().ok_or(SealError::NotOpened)?;
        let opened = self.0.iter().find_map(|key| {
            let mut text = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let text = key.open_in_place(nonce, Aad::from(place), &mut text).ok()?;
            String::from_utf8(text.to_vec()).ok()
        });
        opened.ok_or(SealError::NotOpened)
    }
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKeys({})", self.0.len())
    }
}

/// The key of a secret text. `None` cannot happen: its length is that of the cipher's keys.
fn key(secret: &str) -> Option<LessSafeKey> {
    let derived = Salt::new(HKDF_SHA256, b"a2abus state").extract(secret.as_bytes());
    let derived = derived.expand(&[b"seal"], &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(derived)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_opened_at_its_place_with_any_of_the_keys() {
        let old = SealKeys::new(["one"]);
        let sealed = old.seal("task/1", "s3cret").unwrap();
        assert_ne!(sealed, old.seal("task/1", "s3cret").unwrap());
        assert!(!sealed.contains("s3cret"));
        let both = SealKeys::new(["two", "one"]);
        assert_eq!(both.open("task/1", &sealed).unwrap(), "s3cret");
        let renewed = both.seal("task/1", "s3cret").unwrap();
        assert_eq!(old.open("task/1", &renewed), Err(SealError::NotOpened));
    }

    #[test]
    fn anything_else_is_refused() {
        let keys = SealKeys::new(["one"]);
        let sealed = keys.seal("task/1", "s3cret").unwrap();
        let mut changed = STANDARD.decode(&sealed).unwrap();
        changed[NONCE_LEN] ^= 1;
        let changed = STANDARD.encode(changed);
        for (place, sealed) in [
            ("task/2", sealed.as_str()),
            ("task/1", changed.as_str()),
            ("task/1", ""),
            ("task/1", "AAAA"),
            ("task/1", "not Base64"),
        ] {
            assert_eq!(keys.open(place, sealed), Err(SealError::NotOpened));
        }
        let none = SealKeys::new([]);
        assert!(none.is_empty());
        assert_eq!(none.seal("task/1", "s3cret"), Err(SealError::NoKey));
        assert_eq!(none.open("task/1", &sealed), Err(SealError::NotOpened));
    }
}
