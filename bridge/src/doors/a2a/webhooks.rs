//! The settings of webhooks, and the URLs that they may have.
//!
//! Source: docs/design.md §T11.

use a2abus_executor::Reach;
use a2abus_models::a2e_workflow::target::{ApiBase, Forbidden, Target};

use crate::config::PushConfig;
use crate::tasks::push::Webhooks;

/// The webhooks, and the URLs that they may have.
#[derive(Debug)]
pub(crate) struct PushSettings {
    pub(crate) webhooks: Webhooks,
    pub(crate) allowed: AllowedUrls,
    /// Maximum number of webhooks of one task.
    pub(crate) max: usize,
}

/// The URLs that may be called.
#[derive(Debug)]
pub(crate) struct AllowedUrls {
    listed: Vec<ApiBase>,
    /// Whether other URLs are allowed, if they use TLS and public addresses.
    public: bool,
    /// Whether URLs of this machine are allowed.
    loopback: bool,
}

/// How a URL can be allowed.
const CURE: &str = ", unless it is below one of a2a.push_notifications.allowed_urls";
/// How a URL of this machine can be allowed.
const LOCAL_CURE: &str = ", unless it is below one of a2a.push_notifications.allowed_urls, or a2a.push_notifications.loopback is true";
/// Why a URL is refused if only some are allowed.
const NOT_LISTED: &str = "it must be below one of a2a.push_notifications.allowed_urls, because a2a.push_notifications.public_urls is false";

// === impl AllowedUrls ===

impl AllowedUrls {
    /// The settings of a configuration.
    pub(crate) fn new(config: &PushConfig) -> Self {
        Self {
            listed: config
                .allowed_urls
                .iter()
                .map(|url| url.0.clone())
                .collect(),
            public: config.public_urls,
            loopback: config.loopback,
        }
    }

    /// Which addresses a URL may lead to.
    ///
    /// # Errors
    /// Why it may not be called.
    pub(crate) fn reach(&self, target: &Target) -> Result<Reach, String> {
        if target.origin().ends_with(":0") {
            return Err("its port is 0, which no receiver can have".to_owned());
        }
        let forbidden = target.forbidden(&self.listed);
        let is_local = is_loopback(target);
        if let None | Some(Forbidden::NotEncrypted | Forbidden::NotGlobal) = forbidden
            && self.loopback
            && is_local
        {
            return Ok(Reach::Registered);
        }
        let cure = if is_local { LOCAL_CURE } else { CURE };
        let why = match forbidden {
            Some(Forbidden::Scheme) => "its scheme must be https".to_owned(),
            Some(Forbidden::UserInfo) => "it contains a user or a password".to_owned(),
            None if target.is_within(&self.listed) => return Ok(Reach::Registered),
            _ if !self.public && !is_local => NOT_LISTED.to_owned(),
            Some(Forbidden::NotGlobal) => format!("its host is not globally reachable{cure}"),
            // Another URL of the same host may be listed.
            Some(Forbidden::NotEncrypted) | None if !target.is_encrypted() => {
                format!("its scheme must be https{cure}")
            }
            Some(other) => other.to_string(),
            None => return Self::reach_of_public(target),
        };
        Err(why)
    }

    /// Which addresses a URL may lead to that is not listed.
    fn reach_of_public(target: &Target) -> Result<Reach, String> {
        match target.host().is_some_and(is_possible) {
            true => Ok(Reach::Global),
            false => Err("its host is not a valid DNS name: the name may have at most 253 characters; each part between dots has 1 to 63 letters, digits, - or _, and does not begin or end with -".to_owned()),
        }
    }
}

/// Whether a normalised host is an address, or a name that DNS can have. The URL standard accepts more names. `_` is
/// not for hosts, but in use. Source: RFC 1123 section 2.1.
fn is_possible(host: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_legal)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    host.starts_with('[') || (name.len() <= 253 && name.split('.').all(is_label))
}

/// Whether a URL names this machine, without asking DNS.
fn is_loopback(target: &Target) -> bool {
    matches!(target.host(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(listed: &[&str], public: bool) -> AllowedUrls {
        AllowedUrls {
            listed: listed
                .iter()
                .map(|url| ApiBase::parse(url).unwrap())
                .collect(),
            public,
            loopback: false,
        }
    }

    #[test]
    fn only_public_urls_over_tls_and_those_that_are_listed_are_called() {
        let reach = |allowed: &AllowedUrls, url: &str| {
            let target = Target::parse(url).map_err(|error| error.to_string())?;
            allowed.reach(&target)
        };
        let any = allowed(&[], true);
        assert_eq!(
            reach(&any, "https://hooks.example.com/x"),
            Ok(Reach::Global)
        );
        for url in [
            "http://hooks.example.com/x",
            "ftp://hooks.example.com/x",
            "https://user:word@hooks.example.com/x",
            "https://localhost/x",
            "https://sub.localhost./x",
            "https://127.0.0.1/x",
            "https://127.1/x",
            "https://2130706433/x",
            "https://0x7f.1/x",
            "https://0177.0.0.1/x",
            "https://0/x",
            "https://10.1.2.3/x",
            "https://172.16.0.1/x",
            "https://192.168.1.1/x",
            "https://100.64.0.1/x",
            "https://169.254.169.254/latest/meta-data/",
            "https://168.63.129.16/x",
            "https://198.18.0.1/x",
            "https://224.0.0.1/x",
            "https://255.255.255.255/x",
            "https://[::1]/x",
            "https://[::]/x",
            "https://[fe80::1]/x",
            "https://[fc00::1]/x",
            "https://[fd00:ec2::254]/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://[::ffff:7f00:1]/x",
            "https://[64:ff9b::7f00:1]/x",
            "https://[2002:7f00:1::]/x",
            "https://[ff02::1]/x",
            "https://[2001:db8::1]/x",
            "https://hooks.example.com\u{0}/x",
            "https://hooks example.com/x",
            "https:///x",
            "https:x",
            "//hooks.example.com/x",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "",
            "hooks.example.com",
        ] {
            assert!(reach(&any, url).is_err(), "{url}");
        }
        let listed = allowed(&["http://127.0.0.1:8080/hooks"], false);
        let url = "http://127.0.0.1:8080/hooks/1";
        assert_eq!(reach(&listed, url), Ok(Reach::Registered));
        for url in [
            "http://127.0.0.1:8080/other",
            "http://127.0.0.1:8081/hooks/1",
            "https://hooks.example.com/x",
        ] {
            assert!(reach(&listed, url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_listed_url_allows_http_only_below_itself() {
        let any = allowed(&["http://hooks.example.com/a2a"], true);
        let reach = |url: &str| any.reach(&Target::parse(url).unwrap());
        assert_eq!(
            reach("http://hooks.example.com/a2a/x"),
            Ok(Reach::Registered)
        );
        assert_eq!(reach("https://hooks.example.com/other"), Ok(Reach::Global));
        for url in [
            "http://hooks.example.com/other",
            "http://hooks.example.com/a2ab",
            "http://hooks.example.com/",
            "http://other.example.com/a2a",
        ] {
            let why = reach(url).unwrap_err();
            assert!(
                why.starts_with("its scheme must be https, unless"),
                "{url}: {why}"
            );
        }
        let listed = allowed(&["http://hooks.example.com/a2a"], false);
        for url in [
            "http://hooks.example.com/other",
            "https://other.example.com/",
        ] {
            let why = listed.reach(&Target::parse(url).unwrap()).unwrap_err();
            assert!(why.contains("public_urls is false"), "{url}: {why}");
        }
    }

    #[test]
    fn port_0_is_refused() {
        let any = AllowedUrls {
            loopback: true,
            ..allowed(&[], true)
        };
        for url in [
            "https://8.8.8.8:0/x",
            "https://[2606:4700::1111]:00/",
            "http://localhost:0/",
        ] {
            let why = any.reach(&Target::parse(url).unwrap()).unwrap_err();
            assert!(why.contains("port"), "{url}: {why}");
        }
    }

    #[test]
    fn hosts_that_dns_cannot_have_are_refused() {
        let any = allowed(&[], true);
        let is_allowed = |url: &str| Target::parse(url).is_ok_and(|it| any.reach(&it).is_ok());
        for url in [
            "https://..",
            "https://./x",
            "https://.example.com/x",
            "https://hooks..example.com/x",
            "https://hooks.example.com../x",
            "https://-a-",
            "https://-hooks.example.com/x",
            "https://hooks-.example.com/x",
            "https://hooks*.example.com/x",
            &format!("https://{}.example.com/x", "a".repeat(64)),
            &format!("https://{}example.com/x", "a23456789.".repeat(25)),
        ] {
            assert!(!is_allowed(url), "{url}");
        }
        for url in [
            "https://hooks.example.com./x",
            "https://a--b.my_hooks.example.com:8443/x",
            "https://b\u{fc}cher.example/x",
            "https://8.8.8.8/x",
            "https://[2606:4700::1111]/x",
            &format!("https://{}.example.com/x", "a".repeat(63)),
        ] {
            assert!(is_allowed(url), "{url}");
        }
    }

    #[test]
    fn urls_of_this_machine_are_called_if_the_operator_says_so() {
        let allowed = AllowedUrls {
            loopback: true,
            ..allowed(&[], false)
        };
        let is_allowed = |url: &str| allowed.reach(&Target::parse(url).unwrap()).is_ok();
        for url in [
            "http://localhost:43210/webhook",
            "https://localhost/x",
            "http://127.0.0.1:1/",
            "http://[::1]:8080/x",
        ] {
            assert!(is_allowed(url), "{url}");
        }
        for url in [
            "http://10.1.2.3/x",
            "http://localhost.example.com/x",
            "http://user:word@localhost/x",
            "ftp://localhost/x",
            "https://hooks.example.com/x",
        ] {
            assert!(!is_allowed(url), "{url}");
        }
    }
}
