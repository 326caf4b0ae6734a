//! The URLs that a workflow may call: rules against server-side request forgery.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::a2e_workflow::path::Path;
use crate::a2e_workflow::template::{Part, Template};
use a2abus_plugin::Text;

/// The URL of a call: absolute text with values after the authority, or a single reference that is
/// not encoded. Source: docs/protocols/a2e-workflows.md §D17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlTemplate {
    /// Text; each value is percent-encoded.
    Text(Template),
    /// The whole URL is a value, so its target is known only at run time.
    Reference(Path),
}

/// The target of a call: an absolute URL, normalised by the WHATWG URL standard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    url: Url,
    has_userinfo: bool,
    /// Whether values are still missing, each replaced by a [`PLACEHOLDER`].
    is_template: bool,
}

/// The base URL of an API: scheme, host, port and path prefix. `Display` writes it.
/// Source: docs/protocols/a2e-workflows.md §7, permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiBase(Url);

/// Why a text is not a valid absolute URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A space or a control character.
    #[error("a URL has no spaces and no control characters")]
    Space,
    /// A brace outside a template, or a malformed template.
    #[error("braces in a URL hold a path that begins with /workflow/")]
    Brace,
    /// A missing or malformed scheme or host.
    #[error("a URL begins with a scheme and a valid host, maybe with a port")]
    NotAbsolute,
    /// A value in the scheme or the authority.
    #[error("a template may only follow the host and its slash")]
    TemplateInAuthority,
}

/// Why a target is forbidden for every agent. Source: docs/protocols/a2e-workflows.md §7, SSRF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Forbidden {
    /// Another scheme than HTTP.
    #[error("its scheme is neither https nor http")]
    Scheme,
    /// A user or a password in the URL.
    #[error("its URL contains a user or a password; use a credential")]
    UserInfo,
    /// HTTP without TLS and without a registered base.
    #[error(
        "its scheme is http, and no permitted API with http is registered for this host and port"
    )]
    NotEncrypted,
    /// A host for which [`is_forbidden_host`] holds, and that no registered base covers.
    #[error("it is not globally reachable, and no registered, permitted API covers the URL")]
    NotGlobal,
}

/// Stands for a value while its URL is checked before the run. This weakens no check, because the final URL is checked
/// too.
const PLACEHOLDER: &str = "%7B%7D";

// === impl UrlTemplate ===

impl UrlTemplate {
    /// Reads the URL of a call.
    ///
    /// # Errors
    /// The fault of the URL.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let template = Template::parse(text).map_err(|_| TargetError::Brace)?;
        if let Some(path) = template.as_reference() {
            return Ok(Self::Reference(path.clone()));
        }
        let first = match template.parts() {
            [Part::Text(first), ..] => first,
            [Part::Value(_), ..] => return Err(TargetError::TemplateInAuthority),
            [] => return Err(TargetError::NotAbsolute),
        };
        let ends = authority(first).is_some_and(|(_, after)| !after.is_empty());
        if template.parts().len() > 1 && !ends {
            return Err(TargetError::TemplateInAuthority);
        }
        let url = Self::Text(template);
        url.target().transpose()?;
        Ok(url)
    }

    /// The target, as far as it is known from the text; `None` for a reference.
    pub(super) fn target(&self) -> Option<Result<Target, TargetError>> {
        let Self::Text(template) = self else {
            return None;
        };
        let part = |part: &Part<Path>| match part {
            Part::Text(text) => text.clone(),
            Part::Value(_) => Text::from_static(PLACEHOLDER),
        };
        let text: String = template
            .parts()
            .iter()
            .fold(String::new(), |all, p| all + &part(p));
        Some(Target::parse(&text).map(|target| Target {
            is_template: template.references().next().is_some(),
            ..target
        }))
    }

    /// The references in order.
    #[must_use]
    pub fn references(&self) -> Vec<&Path> {
        match self {
            Self::Text(template) => template.references().collect(),
            Self::Reference(path) => vec![path],
        }
    }
}

impl std::fmt::Display for UrlTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(template) => template.fmt(f),
            Self::Reference(path) => write!(f, "{{{path}}}"),
        }
    }
}

/// The authority of a URL, and the rest.
fn authority(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once("://")?;
    Some(rest.split_at(rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len())))
}

// === impl Target ===

impl Target {
    /// Reads an absolute URL, of any scheme.
    ///
    /// # Errors
    /// The fault of the URL.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(TargetError::Space);
        }
        if text.contains(['{', '}']) {
            return Err(TargetError::Brace);
        }
        let url = Url::parse(text).map_err(|_| TargetError::NotAbsolute)?;
        let authority = authority(text)
            .map(|(authority, _)| authority)
            .unwrap_or_default();
        // The URL standard finds hosts in "https:x" and "https:///x", which is never intended.
        if is_http(&url) && authority.is_empty() {
            return Err(TargetError::NotAbsolute);
        }
        let has_userinfo = authority.contains('@');
        Ok(Self {
            url,
            has_userinfo,
            is_template: false,
        })
    }

    /// The normalised URL.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// The normalised host: lower case, addresses in their common form.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.url.host_str()
    }

    /// Whether a call of it uses TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Scheme, host and port, as the key of a cache or a quota.
    #[must_use]
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Why the rules forbid it for every agent; `None` if they do not. Another HTTP path of a registered origin is not
    /// forbidden, but only a base permits HTTP: check that, too. Source: docs/protocols/a2e-workflows.md §7, SSRF.
    #[must_use]
    pub fn forbidden(&self, registered: &[ApiBase]) -> Option<Forbidden> {
        let has_origin = |base: &ApiBase| base.has_origin_of(self);
        if !is_http(&self.url) {
            Some(Forbidden::Scheme)
        } else if self.has_userinfo {
            Some(Forbidden::UserInfo)
        } else if self.url.scheme() == "http" && !registered.iter().any(has_origin) {
            Some(Forbidden::NotEncrypted)
        } else if self.host().is_none_or(is_forbidden_host) && !self.is_within(registered) {
            Some(Forbidden::NotGlobal)
        } else {
            None
        }
    }

    /// Whether one of the bases covers it.
    #[must_use]
    pub fn is_within(&self, bases: &[ApiBase]) -> bool {
        bases.iter().any(|base| base.covers(self))
    }
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

// === impl ApiBase ===

impl ApiBase {
    /// Reads a base: an HTTP URL without user information, query and fragment.
    ///
    /// # Errors
    /// The fault of the base.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let Target {
            url, has_userinfo, ..
        } = Target::parse(text)?;
        let bare = url.query().is_none() && url.fragment().is_none() && !has_userinfo;
        if is_http(&url) && bare {
            Ok(Self(url))
        } else {
            Err(TargetError::NotAbsolute)
        }
    }

    fn has_origin_of(&self, target: &Target) -> bool {
        self.0.origin() == target.url.origin()
    }

    /// Whether a target has this scheme, host and port, and this path as a prefix that ends at a segment boundary. Dots
    /// that a service might decode must not lead out of the prefix.
    #[must_use]
    pub fn covers(&self, target: &Target) -> bool {
        let may_become = |segment: &str| target.is_template && segment.contains(PLACEHOLDER);
        let mut segments = target.url.path().split('/');
        let base = self.0.path().trim_end_matches('/');
        self.has_origin_of(target)
            && (base.is_empty() || !has_hidden_dots(target.url.path()))
            && base.split('/').all(|of_base| {
                segments
                    .next()
                    .is_some_and(|segment| segment == of_base || may_become(segment))
            })
    }
}

impl std::fmt::Display for ApiBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_str())
    }
}

// === paths ===

/// How often a path is decoded: more often than all services on its way would.
const MAX_DECODINGS: usize = 8;

/// Whether a segment of a path becomes `.` or `..` for a service that decodes it, maybe more than once, treats a
/// backslash as a slash, or drops the text after a semicolon. Plain dot segments do not occur in a normalised path.
fn has_hidden_dots(path: &str) -> bool {
    let is_dots = |segment: &[u8]| {
        let mut parts = segment.split(|byte| b";?#".contains(byte));
        matches!(parts.next(), Some(b"." | b".."))
    };
    let mut path = path.as_bytes().to_vec();
    for _ in 0..MAX_DECODINGS {
        if path.split(|byte| b"/\\".contains(byte)).any(is_dots) {
            return true;
        }
        // A percent sign without two hexadecimal digits stays.
        let decoded: Vec<u8> = percent_encoding::percent_decode(&path).collect();
        if decoded == path {
            return false;
        }
        path = decoded;
    }
    // A name encoded this often is meant to hide something.
    true
}

// === addresses ===

/// Whether a host in a URL is `localhost` or below it, or an address that is not globally reachable, in any form that
/// the URL standard accepts (decimal, hexadecimal, octal, IPv6 in brackets). A name does not show its addresses:
/// [`is_forbidden_address`] checks those. Source: docs/protocols/a2e-workflows.md §7, SSRF.
#[must_use]
pub fn is_forbidden_host(host: &str) -> bool {
    match Host::parse(host) {
        Ok(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name.is_empty() || name == "localhost" || name.ends_with(".localhost")
        }
        Ok(Host::Ipv4(address)) => is_forbidden_address(address.into()),
        Ok(Host::Ipv6(address)) => is_forbidden_address(address.into()),
        Err(_) => true,
    }
}

/// Whether an address is not globally reachable: loopback, private, link-local, shared (CGNAT),
/// multicast, unspecified, unique local, documentation, reserved, or of a metadata service.
/// Source: docs/protocols/a2e-workflows.md §7, SSRF; the IANA special-purpose address registries.
#[must_use]
pub fn is_forbidden_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => FORBIDDEN_V4.iter().any(|(net, bits)| {
            (address.to_bits() ^ Ipv4Addr::from(*net).to_bits()).leading_zeros() >= *bits
        }),
        IpAddr::V6(address) => match embedded(address) {
            Some(embedded) => is_forbidden_address(embedded.into()),
            None => {
                !is_in(address, GLOBAL_UNICAST)
                    || FORBIDDEN_V6.iter().any(|net| is_in(address, *net))
            }
        },
    }
}

/// A network: its address and the length of its prefix.
type Net<A> = (A, u32);

const FORBIDDEN_V4: [Net<[u8; 4]>; 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    // The platform service of Azure, which answers only inside its networks.
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

const GLOBAL_UNICAST: Net<[u16; 8]> = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const FORBIDDEN_V6: [Net<[u16; 8]>; 4] = [
    // Protocol assignments, Teredo among them.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    // 6to4: the destination is unknown, behind a third party's relay.
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

const MAPPED_V4: Net<[u16; 8]> = ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96);
const NAT64: Net<[u16; 8]> = ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

fn is_in(address: Ipv6Addr, (net, bits): Net<[u16; 8]>) -> bool {
    (address.to_bits() ^ Ipv6Addr::from(net).to_bits()).leading_zeros() >= bits
}

/// The IPv4 address embedded in an IPv6 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., a, b, c, d] = address.octets();
    (is_in(address, MAPPED_V4) || is_in(address, NAT64)).then(|| Ipv4Addr::new(a, b, c, d))
}
