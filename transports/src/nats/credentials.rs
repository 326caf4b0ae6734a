//! Checks a file with a user's JWT and seed (`.creds`) without a server. Only a server can verify who signed the JWT.
//!
//! Source: NATS ADR-14.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde::Deserialize;

/// The two parts of the file.
struct Credentials<'a> {
    jwt: &'a str,
    seed: &'a str,
}

/// What the JWT says.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    /// The public key of the user.
    sub: Option<String>,
    iat: Option<u64>,
    exp: Option<u64>,
    nats: Option<NatsClaims>,
}

#[derive(Debug, Deserialize)]
struct NatsClaims {
    /// Whether anyone who has the JWT may use it, with any seed.
    #[serde(default)]
    bearer_token: bool,
}

/// Why almost no server would ever accept this file. The exception is a server that lets a program of the operator
/// decide about logins. The text quotes nothing of the file.
pub(super) fn problem_of(text: &str) -> Option<&'static str> {
    let credentials = Credentials::read(text)?;
    let Some(claims) = claims(credentials.jwt) else {
        return Some("its JWT cannot be read");
    };
    if !credentials.seed.starts_with("SU") {
        return Some("its seed is not that of a user (SU...)");
    }
    if claims.nats.is_some_and(|nats| nats.bearer_token) {
        return None;
    }
    let sub = claims.sub.as_deref()?;
    if !sub.starts_with('U') {
        return Some("its JWT is not that of a user");
    }
    let own = KeyPair::from_seed(credentials.seed).map(|pair| pair.public_key());
    let is_of_user = own.is_ok_and(|own| own == sub);
    (!is_of_user).then_some("its seed is not that of the user in its JWT")
}

/// What its JWT says; `None` if it cannot be read.
pub(super) fn claims_of(text: &str) -> Option<Claims> {
    claims(Credentials::read(text)?.jwt)
}

fn claims(jwt: &str) -> Option<Claims> {
    let parts: Vec<&str> = jwt.split('.').collect();
    let [_, payload, _] = parts.as_slice() else {
        return None;
    };
    let json = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice(&json).ok()
}

// === impl Credentials ===

impl<'a> Credentials<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let lines = text.lines().map(str::trim);
        let mut blocks = lines.clone().zip(lines.skip(1)).filter_map(|(head, body)| {
            (head.starts_with("---") && head.contains("BEGIN")).then_some(body)
        });
        Some(Self {
            jwt: blocks.next()?,
            seed: blocks.next()?,
        })
    }
}

// === impl Claims ===

impl Claims {
    /// When the JWT expires, if it does.
    pub(super) fn expires(&self) -> Option<SystemTime> {
        let seconds = self.exp.filter(|seconds| *seconds > 0)?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// How long it is valid in total, if it says so.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let seconds = self.exp?.checked_sub(self.iat?)?;
        Some(Duration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
    const USER: &str = "UAMMBNV2EYR65NYZZ7IAK5SIR5ODNTTERJOBOF4KJLMWI45YOXOSWULM";
    /// From the documentation of NATS.
    const OTHER: (&str, &str) = (
        "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
        "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
    );

    fn file(payload: &str, seed: &str) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        format!(
            "-----BEGIN NATS USER JWT-----\r\ne30.{payload}.x\r\n------END NATS USER JWT------\r\n\r\n\
             ************************* IMPORTANT *************************\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }

    #[test]
    fn the_seed_must_be_that_of_the_user_in_the_jwt() {
        let of = |user: &str| format!(r#"{{"sub":"{user}"}}"#);
        for (user, seed) in [(USER, SEED), (OTHER.1, OTHER.0)] {
            assert_eq!(problem_of(&file(&of(user), seed)), None, "{user}");
        }
        let account = SEED.replacen("SU", "SA", 1);
        let of_account = "its seed is not that of a user (SU...)";
        let other = "its seed is not that of the user in its JWT";
        for (payload, seed, expected) in [
            (of(USER), OTHER.0, other),
            (of(&USER[..40]), SEED, other),
            (of("ABC"), SEED, "its JWT is not that of a user"),
            (of(USER), account.as_str(), of_account),
            ("no JSON".to_owned(), SEED, "its JWT cannot be read"),
        ] {
            assert_eq!(problem_of(&file(&payload, seed)), Some(expected));
        }
        let two_parts = file("{}", SEED).replace("e30.", "");
        assert_eq!(problem_of(&two_parts), Some("its JWT cannot be read"));
    }

    #[test]
    fn the_end_of_a_jwt_is_read() {
        let claims = claims_of(&file(r#"{"iat":1000,"exp":4600}"#, SEED)).unwrap();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(4_600);
        assert_eq!(claims.expires(), Some(end));
        assert_eq!(claims.lifetime(), Some(Duration::from_secs(3_600)));
        for payload in [r#"{"iat":1000}"#, r#"{"exp":0}"#] {
            assert_eq!(claims_of(&file(payload, SEED)).unwrap().expires(), None);
        }
    }
}
