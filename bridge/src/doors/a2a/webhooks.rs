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
        let forbidden = target.forbidden(&self.listed);
        let is_local = is_loopback(target);
        if let None | Some(Forbidden::NotEncrypted | Forbidden::NotGlobal) = forbidden
            && self.loopback
            && is_local
        {
            return Ok(Reach::Registered);
        }
        let cure = if is_local { LOCAL_CURE } else { CURE };
        if let Some(forbidden) = forbidden {
            return Err(match forbidden {
                Forbidden::Scheme => "its scheme must be https".to_owned(),
                Forbidden::UserInfo => "it contains a user or a password".to_owned(),
                Forbidden::NotEncrypted => format!("its scheme must be https{cure}"),
                Forbidden::NotGlobal => format!("its host is not globally reachable{cure}"),
                other => other.to_string(),
            });
        }
        if target.is_within(&self.listed) {
            return Ok(Reach::Registered);
        }
        if self.public {
            return Ok(Reach::Global);
        }
        Err(format!("only some URLs are allowed{cure}"))
    }
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
