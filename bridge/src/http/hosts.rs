//! Which `Host` names are accepted?
//!
//! A web page can make its own DNS name point to an address in its visitor's network (DNS rebinding), and the browser
//! then treats this process as part of the page's site. The browser still sends the name in `Host`, so names that are
//! not listed are refused. Addresses and `localhost` cannot be redirected this way, and are always accepted.

use std::net::IpAddr;
use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, Version, header};

/// The names that `Host` may have, in addition to addresses and `localhost`. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts(Arc<[String]>);

/// Why a request is not for this server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WrongHost {
    /// It does not name exactly one host.
    #[error("the request must have one Host header, with the name or the address of this server")]
    NotOne,
    /// What it names is not a host with an optional port.
    #[error(
        "the Host of the request is not valid: expected the name or the address of this server, and optionally a port"
    )]
    Invalid,
    /// It names another host.
    #[error("the host {0:?} is not allowed: add it to {1}")]
    Other(String, &'static str),
}

// === impl WrongHost ===

impl WrongHost {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotOne | Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Other(..) => StatusCode::MISDIRECTED_REQUEST,
        }
    }
}

/// Every name is accepted.
const ANY: &str = "*";

// === impl Hosts ===

impl Hosts {
    /// Addresses, `localhost`, and these names, in any case; `*` is every name.
    #[must_use]
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// Checks that a request is for this server; `key` is the configuration key that lists its names.
    pub(crate) fn check(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
        key: &'static str,
    ) -> Result<(), WrongHost> {
        let Some(authority) = authority(uri, headers)? else {
            // No browser uses HTTP/1.0.
            return if version < Version::HTTP_11 {
                Ok(())
            } else {
                Err(WrongHost::NotOne)
            };
        };
        let host = authority.host();
        if self.admits(host) {
            return Ok(());
        }
        Err(WrongHost::Other(host.chars().take(64).collect(), key))
    }

    fn admits(&self, host: &str) -> bool {
        self.names(host) || self.0.iter().any(|name| name == ANY)
    }

    /// Whether a host certainly is this server, and is not only accepted because every name is.
    pub(crate) fn names(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The host that a request names, if it names one.
pub(crate) fn authority(uri: &Uri, headers: &HeaderMap) -> Result<Option<Authority>, WrongHost> {
    let mut named = headers.get_all(header::HOST).iter();
    match (uri.authority(), named.next(), named.next()) {
        (_, _, Some(_)) => Err(WrongHost::NotOne),
        (Some(authority), _, None) if is_host_and_port(authority) => Ok(Some(authority.clone())),
        (Some(_), _, None) => Err(WrongHost::Invalid),
        (None, Some(host), None) => {
            let authority = host.to_str().ok().and_then(|host| host.parse().ok());
            let authority = authority.filter(is_host_and_port);
            authority.map(Some).ok_or(WrongHost::Invalid)
        }
        (None, None, None) => Ok(None),
    }
}

/// An authority without the port that its scheme has by default. Browsers leave it out of origins.
pub(crate) fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let port = match scheme {
        "https" => ":443",
        _ => ":80",
    };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Whether it consists of a host and, optionally, a port. Cards contain it. Source: RFC 9110 section 7.2.
fn is_host_and_port(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|rest| match rest.strip_prefix(':') {
        Some(port) => port.is_empty() || authority.port_u16().is_some(),
        None => rest.is_empty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_host_has_no_user_and_its_port_is_a_number() {
        for (host, is_right) in [
            ("localhost", true),
            ("localhost:8080", true),
            ("[::1]:8080", true),
            ("127.0.0.1:", true),
            ("user@localhost", false),
            ("localhost:evil", false),
            ("127.0.0.1:99999", false),
        ] {
            assert_eq!(check(&[], "/", &[host]).is_ok(), is_right, "{host}");
        }
    }

    fn check(names: &[&str], uri: &str, hosts: &[&str]) -> Result<(), WrongHost> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        let names = Hosts::new(names.iter().map(|name| (*name).to_owned()));
        names.check(Version::HTTP_11, &uri.parse().unwrap(), &headers, "key")
    }

    #[test]
    fn addresses_localhost_and_listed_names_are_accepted() {
        for host in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
            "localhost",
            "LocalHost:1",
        ] {
            assert_eq!(check(&[], "/rpc", &[host]), Ok(()), "{host}");
        }
        assert_eq!(check(&["a2abus.svc"], "/rpc", &["A2abus.SVC:80"]), Ok(()));
        assert_eq!(check(&["*"], "/rpc", &["evil.example"]), Ok(()));
        // HTTP/2 has it in the request target.
        assert_eq!(check(&[], "http://localhost/rpc", &[]), Ok(()));
    }

    #[test]
    fn other_names_are_refused() {
        let hostile = [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0x7f.1",
        ];
        for host in hostile {
            let refused = check(&["a2abus.svc"], "/rpc", &[host]);
            assert_eq!(refused, Err(WrongHost::Other(host.to_owned(), "key")));
        }
        assert!(check(&[], "http://evil.example/rpc", &["localhost"]).is_err());
        assert_eq!(check(&[], "/rpc", &[]), Err(WrongHost::NotOne));
        assert_eq!(check(&[], "/rpc", &["a", "a"]), Err(WrongHost::NotOne));
        assert_eq!(check(&[], "/rpc", &["a b"]), Err(WrongHost::Invalid));
    }
}
