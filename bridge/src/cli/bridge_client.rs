//! The HTTP client of the commands that call a running bridge.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::bail;
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, Response, Url};

use super::output::plain;

/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the bridge may be silent. It sends a comment on its streams every 15 s.
const SILENCE: Duration = Duration::from_secs(60);

/// A client for the bridge at `url`. A bridge on this machine is called without a proxy.
pub(super) fn client(url: &Url) -> ClientBuilder {
    let client = Client::builder().connect_timeout(CONNECT);
    match url.host_str().is_some_and(is_here) {
        true => client.no_proxy(),
        false => client,
    }
}

/// A request to the bridge. It follows no redirects, because they could take an API key to another server.
///
/// # Errors
/// When the scheme of the URL is not `http`, or the client cannot be created.
pub(super) fn request(method: Method, url: Url) -> anyhow::Result<RequestBuilder> {
    if url.scheme() != "http" {
        // The user has not typed the path of the command.
        let mut base = url;
        base.set_path("");
        base.set_query(None);
        bail!(not_http(&base));
    }
    let client = client(&url).read_timeout(SILENCE).redirect(Policy::none());
    Ok(client.build()?.request(method, url))
}

/// Why a command does not call the bridge at a URL whose scheme is not `http`, and what to do.
pub(super) fn not_http(url: &Url) -> String {
    format!(
        "--url {url}: this command does not support {}: run it where it can reach the HTTP listener of the bridge, \
         such as http://HOST:8080",
        url.scheme()
    )
}

/// Refuses a redirect, because it is not followed.
///
/// # Errors
/// The response is a redirect. The error names its destination.
pub(super) fn refuse_redirect(response: &Response) -> anyhow::Result<()> {
    let location = response.headers().get(LOCATION);
    match location.filter(|_| response.status().is_redirection()) {
        Some(location) => {
            let location = plain(&String::from_utf8_lossy(location.as_bytes()));
            let url = response.url();
            bail!(
                "{url} redirects to {location}, which is not followed: give --url the address of the bridge itself, \
                 such as http://HOST:8080; this command does not support https"
            )
        }
        None => Ok(()),
    }
}

/// Whether a host is this machine, which needs no proxy.
fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_refused_with_its_destination() {
        let answered = |status: u16| {
            let response = http::Response::builder().status(status);
            let response = response.header("location", "https://bridge/a2a/agents");
            refuse_redirect(&Response::from(response.body("").unwrap()))
        };
        let refused = answered(308).unwrap_err().to_string();
        assert!(refused.contains("https://bridge/a2a/agents"), "{refused}");
        assert!(answered(201).is_ok());
    }

    #[test]
    fn https_is_refused_with_the_way_out() {
        let url: Url = "https://bridge/a2a/agents".parse().unwrap();
        let refused = request(Method::GET, url).unwrap_err().to_string();
        assert!(refused.contains("does not support https"), "{refused}");
        assert!(!refused.contains("a2a"), "{refused}");
        assert!(refused.contains("http://HOST:8080"), "{refused}");
    }

    #[test]
    fn this_machine_needs_no_proxy() {
        for (url, expected) in [
            ("http://localhost:8080/", true),
            ("http://127.0.0.1:8080/", true),
            ("http://[::1]:8080/", true),
            ("http://bridge:8080/", false),
            ("http://10.0.0.1:8080/", false),
        ] {
            let url: Url = url.parse().unwrap();
            assert_eq!(url.host_str().is_some_and(is_here), expected, "{url}");
        }
    }
}
