//! How a secret is sent, and the forms in which it may come back.
//!
//! Source: docs/protocols/a2e-workflows.md §7, credentials.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::agent::{Credential, CredentialKind};

/// Shorter forms occur in too many texts by chance.
const MIN_CHARS: usize = 6;

/// The value of the header.
pub(super) fn header_text(credential: &Credential) -> Zeroizing<String> {
    let secret = credential.secret.expose();
    Zeroizing::new(match credential.kind {
        CredentialKind::BearerToken => format!("Bearer {}", bare_token(secret)),
        CredentialKind::Basic => format!("Basic {}", STANDARD.encode(secret)),
        CredentialKind::ApiKey | CredentialKind::Password | CredentialKind::Custom => {
            secret.to_owned()
        }
    })
}

/// A token without a leading scheme word, so that the word is not sent twice.
fn bare_token(secret: &str) -> &str {
    match secret.split_at_checked("Bearer ".len()) {
        Some((word, token)) if word.eq_ignore_ascii_case("Bearer ") => token.trim_start(),
        _ => secret,
    }
}

/// Every text that reveals the secret: the secret, the password in it, the value sent, and all of these in hexadecimal,
/// and as Base64 at any position in a longer text. Percent-encoded and escaped forms are decoded before the search.
pub(super) fn forms(credential: &Credential) -> Vec<String> {
    let secret = credential.secret.expose();
    let (core, others) = match credential.kind {
        CredentialKind::BearerToken => (bare_token(secret), [None, None]),
        CredentialKind::Basic => {
            let password = secret
                .split_once(':')
                .map(|(_, password)| password.to_owned());
            (secret, [password, Some(STANDARD.encode(secret))])
        }
        CredentialKind::ApiKey | CredentialKind::Password | CredentialKind::Custom => {
            (secret, [None, None])
        }
    };
    let mut forms = Vec::new();
    let own = [core, core.trim()].map(|text| Some(text.to_owned()));
    for text in own.into_iter().chain(others).flatten() {
        push_encoded(&text, &mut forms);
        forms.push(text);
    }
    let header = header_text(credential);
    let is_short = |text: &str| text.chars().count() < MIN_CHARS;
    if is_short(core) {
        push_encoded(&header, &mut forms);
        forms.push(header.to_string());
    }
    forms.retain(|form| !is_short(form));
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// The text in hexadecimal, in lower and upper case, and in Base64, in both alphabets. In a longer text its first byte
/// may be the first, second or third of a group of Base64. The characters that depend only on the text are the same
/// whatever surrounds it.
fn push_encoded(text: &str, forms: &mut Vec<String>) {
    if text.chars().count() < MIN_CHARS {
        return;
    }
    let hexadecimal: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    forms.push(hexadecimal.to_ascii_uppercase());
    forms.push(hexadecimal);
    forms.push(STANDARD.encode(text));
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        forms.push(engine.encode(text));
        for before in 0..3 {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(text.as_bytes());
            let encoded = engine.encode(&bytes);
            let whole = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
            let own = encoded.get(whole).unwrap_or_default();
            forms.push(own.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Secret;
    use a2abus_models::a2e_workflow::Apis;

    fn header(kind: CredentialKind, secret: &str) -> String {
        let credential = Credential {
            kind,
            secret: Secret::new(secret.to_owned()),
            apis: Apis::default(),
            description: None,
        };
        header_text(&credential).to_string()
    }

    #[test]
    fn each_credential_kind_has_its_header_form() {
        for (kind, secret, expected) in [
            (CredentialKind::BearerToken, "tok", "Bearer tok"),
            (CredentialKind::BearerToken, "Bearer tok", "Bearer tok"),
            (CredentialKind::BearerToken, "bearer  tok", "Bearer tok"),
            (CredentialKind::BearerToken, "Bearertok", "Bearer Bearertok"),
            (CredentialKind::BearerToken, "Bearé tok", "Bearer Bearé tok"),
            (
                CredentialKind::Basic,
                "Aladdin:open sesame",
                "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            ),
            (CredentialKind::ApiKey, "k-1", "k-1"),
            (CredentialKind::Password, "p w", "p w"),
            (CredentialKind::Custom, "HMAC x=y", "HMAC x=y"),
        ] {
            assert_eq!(header(kind, secret), expected);
        }
    }
}
