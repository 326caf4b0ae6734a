//! The URL under which clients reach the HTTP listener, for example that of a proxy.

use std::sync::Arc;

use a2abus_plugin::Text;
use arc_swap::ArcSwapOption;

use crate::config::A2aConfig;
use crate::http::hosts::without_default_port;

/// `a2a.public_url`, if it is set. All clones have the same value, which a reload replaces.
#[derive(Debug, Clone)]
pub(crate) struct PublicUrl(Arc<ArcSwapOption<Text>>);

// === impl PublicUrl ===

impl PublicUrl {
    /// The URL of a configuration.
    pub(crate) fn new(config: &A2aConfig) -> Self {
        let url = config.public_url.clone().map(Text::from);
        Self(Arc::new(ArcSwapOption::from_pointee(url)))
    }

    /// Replaces it after a reload.
    pub(super) fn replace(&self, config: &A2aConfig) {
        let url = config.public_url.clone().map(Text::from);
        self.0.store(url.map(Arc::new));
    }

    /// The URL, without a slash at its end.
    pub(super) fn get(&self) -> Option<Text> {
        self.0.load().as_deref().cloned()
    }

    /// The path by which clients reach this path of the listener.
    pub(super) fn path_to(&self, path: &str) -> String {
        let url = self.get();
        let prefix = url.as_ref().and_then(|url| Some(parts(url.as_str())?.2));
        [prefix.unwrap_or_default(), path].concat()
    }

    /// The path at the listener for a path below that of the URL: a client that reaches the listener directly may use
    /// such a path too.
    pub(super) fn path_from(&self, path: &str) -> Option<String> {
        let url = self.get()?;
        let (_, _, prefix) = parts(url.as_str())?;
        let rest = path.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
        rest.starts_with('/').then(|| rest.to_owned())
    }

    /// Whether this is the origin of the URL.
    pub(super) fn has_origin(&self, scheme: &str, authority: &str) -> bool {
        let url = self.get();
        let Some((own_scheme, own, _)) = url.as_ref().and_then(|url| parts(url.as_str())) else {
            return false;
        };
        let bare = |authority| without_default_port(scheme, authority);
        scheme == own_scheme && bare(authority).eq_ignore_ascii_case(bare(own))
    }
}

/// The scheme, the authority and the path of a URL.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Some((scheme, authority, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(url: &str) -> PublicUrl {
        PublicUrl::new(&A2aConfig {
            public_url: Some(url.to_owned()),
            ..A2aConfig::default()
        })
    }

    #[test]
    fn paths_are_below_the_path_of_the_url() {
        for (url, path) in [
            ("https://a.example", "/mcp"),
            ("https://a.example:8443/bus", "/bus/mcp"),
            ("http://a.example/x/bus", "/x/bus/mcp"),
        ] {
            assert_eq!(public(url).path_to("/mcp"), path, "{url}");
        }
        for (url, path, at_listener) in [
            ("https://a.example/bus", "/bus/mcp", Some("/mcp")),
            ("https://a.example/bus", "/business/mcp", None),
            ("https://a.example/bus", "/mcp", None),
            ("https://a.example", "/mcp", None),
        ] {
            let path = public(url).path_from(path);
            assert_eq!(path.as_deref(), at_listener, "{url}");
        }
        let unset = PublicUrl::new(&A2aConfig::default());
        assert_eq!(unset.path_to("/mcp"), "/mcp");
        assert!(!unset.has_origin("https", "a.example"));
    }

    #[test]
    fn the_default_port_of_the_scheme_makes_no_other_origin() {
        for (url, scheme, authority, is_own) in [
            ("https://a.example/bus", "https", "A.example", true),
            ("https://a.example/bus", "https", "a.example:443", true),
            ("https://a.example:443", "https", "a.example", true),
            ("https://a.example", "https", "a.example:80", false),
            ("https://a.example", "http", "a.example", false),
            ("https://a.example:8443", "https", "a.example", false),
            ("https://a.example", "https", "b.example", false),
        ] {
            let found = public(url).has_origin(scheme, authority);
            assert_eq!(found, is_own, "{url}: {scheme}://{authority}");
        }
    }
}
