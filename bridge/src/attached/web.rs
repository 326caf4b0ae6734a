//! The HTTP server of an attached agent: the common part of all requests to it, and their errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use a2abus_executor::{Client, ClientError, ClientOptions, NoResponse};
use a2abus_models::a2e_workflow::target::ApiBase;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use serde::de::IgnoredAny;

use super::lifecycle::MAX_MESSAGE;
use crate::calls::failure::{Failure, Reason};
use crate::config::TextOrSecret;
use crate::http::messages::Messages;
use crate::lock::lock;
use crate::rpc_response::RpcResponse;

/// The server at one URL.
pub(super) struct Web {
    client: Box<Client>,
    url: Uri,
    configured: BTreeMap<String, TextOrSecret>,
    /// The headers of every request, with their secrets; `None` until they are read.
    headers: Mutex<Option<HeaderMap>>,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) struct SendError {
    /// Whether the server may have received the request.
    pub(super) may_be_sent: bool,
    pub(super) why: String,
}

/// How many bytes of an error response are read.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// The longest text of an error that is repeated, in characters.
const MAX_TEXT: usize = 1_000;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("a2abus/", env!("CARGO_PKG_VERSION")));

// === impl Web ===

impl fmt::Debug for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Web");
        shown.field("url", &self.url).finish_non_exhaustive()
    }
}

impl Web {
    /// The server at `url`, with at most this many idle connections.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(
        url: Uri,
        headers: &BTreeMap<String, TextOrSecret>,
        concurrency: usize,
    ) -> Result<Self, ClientError> {
        let client = Client::new(&ClientOptions {
            idle_per_host: Some(concurrency),
            ..ClientOptions::default()
        })?;
        Ok(Self {
            client: Box::new(client),
            url,
            configured: headers.clone(),
            headers: Mutex::default(),
        })
    }

    /// Posts a JSON-RPC message.
    ///
    /// # Errors
    /// When there is no response.
    pub(super) async fn post(
        &self,
        body: Bytes,
        more: HeaderMap,
    ) -> Result<Response<Incoming>, SendError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.extend(more);
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, BOTH);
        self.send(request).await
    }

    /// Sends a request without a body.
    ///
    /// # Errors
    /// When there is no response.
    pub(super) async fn ask(
        &self,
        method: Method,
        url: Uri,
        more: HeaderMap,
    ) -> Result<Response<Incoming>, SendError> {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        *request.uri_mut() = url;
        request.headers_mut().extend(more);
        self.send(request).await
    }

    /// Connects to the server without sending a request.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn reach(&self) -> Result<(), SendError> {
        self.configured().map_err(SendError::before)?;
        Ok(self.client.reach(self.url.clone()).await?)
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, SendError> {
        let own = self.configured().map_err(SendError::before)?;
        request.headers_mut().insert(USER_AGENT, AGENT);
        let again = (!own.is_empty()).then(|| request.clone());
        request.headers_mut().extend(own.clone());
        let response = self.client.open(request).await?;
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // The secret may have changed.
            *self.headers() = None;
        }
        // The server has executed nothing.
        let Some(mut again) = again.filter(|_| status == StatusCode::UNAUTHORIZED) else {
            return Ok(response);
        };
        match self.configured() {
            Ok(now) if now != own => {
                again.headers_mut().extend(now);
                Ok(self.client.open(again).await?)
            }
            _ => {
                *self.headers() = None;
                Ok(response)
            }
        }
    }

    /// The configured headers, or why they cannot be read.
    fn configured(&self) -> Result<HeaderMap, String> {
        if let Some(headers) = &*self.headers() {
            return Ok(headers.clone());
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &self.configured {
            let bad = |why: &dyn fmt::Display| format!("its header {name}: {why}");
            let text = value.reveal().map_err(|error| bad(&error))?;
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| bad(&"the secret is not a valid header value"))?;
            value.set_sensitive(true);
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| bad(&error))?;
            headers.insert(name, value);
        }
        *self.headers() = Some(headers.clone());
        Ok(headers)
    }

    fn headers(&self) -> MutexGuard<'_, Option<HeaderMap>> {
        lock(&self.headers)
    }

    pub(super) fn url(&self) -> &Uri {
        &self.url
    }
}

/// The URL of a server, for requests.
pub(super) fn url_of(base: &ApiBase) -> Result<Uri, http::uri::InvalidUri> {
    base.to_string().parse()
}

/// The messages of a response.
pub(super) fn messages(response: Response<Incoming>) -> Messages<Incoming> {
    let most = match response.status().is_success() {
        true => MAX_MESSAGE,
        false => MAX_ERROR_BYTES,
    };
    Messages::of(response, most)
}

// === impl SendError ===

impl SendError {
    /// The server has received nothing.
    fn before(why: String) -> Self {
        let may_be_sent = false;
        Self { may_be_sent, why }
    }

    /// The error for the caller.
    pub(super) fn failure(&self) -> Failure {
        match self.may_be_sent {
            true => lost(&self.why),
            false => unavailable(&format!("it cannot be reached: {}", self.why)),
        }
    }
}

impl From<NoResponse> for SendError {
    fn from(error: NoResponse) -> Self {
        Self {
            may_be_sent: error.may_be_sent,
            why: explained(error.to_string()),
        }
    }
}

/// The cause of a failed connection, with the cure for an error of the TLS client that does not show it.
fn explained(why: String) -> String {
    match why.contains("InvalidContentType") {
        true => format!("its port does not speak TLS: use http:// in the URL ({why})"),
        false => why,
    }
}

/// The error for a request that the server has not executed.
fn unavailable(why: &str) -> Failure {
    let message = format!("no answer from the server of this agent: {why}");
    Failure::new(Reason::AgentUnavailable, message)
}

/// The error for a request that the server may have executed.
fn lost(why: &str) -> Failure {
    let message = format!(
        "no answer from the server of this agent: {why}; the request may have been executed"
    );
    Failure::new(Reason::AnswerLost, message)
}

/// The error for a successful response in which there is no answer.
pub(super) fn no_answer(status: StatusCode, content_type: Option<&HeaderValue>) -> Failure {
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or("no content type");
    lost(&format!(
        "its response (HTTP {status}, {content_type}) contains no JSON-RPC answer with the id of the request"
    ))
}

/// Whether a status says that the request was not executed. A server may have failed half way, a redirect may follow
/// the work, and a proxy may have waited in vain.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT
}

/// The error for a server that answered with a status, and possibly with the text of an error.
pub(super) fn refused(status: StatusCode, text: Option<&str>) -> Failure {
    let text = text.map_or_else(String::new, |text| format!(": {text}"));
    let why = format!("it answered with HTTP {status}{text}");
    match is_refusal(status) {
        true => unavailable(&why),
        false => lost(&why),
    }
}

/// Whether a body is JSON. Proxies send errors as HTML or text.
pub(super) fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

/// The text of a JSON-RPC error that names no request.
pub(super) fn error_text(message: &[u8]) -> Option<String> {
    let text = RpcResponse::of(message).message()?;
    Some(text.chars().take(MAX_TEXT).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_does_not_speak_tls_is_named() {
        let corrupt = "received corrupt message of type InvalidContentType";
        let why = explained(corrupt.to_owned());
        assert!(why.contains("http://") && why.contains(corrupt), "{why}");
        assert_eq!(explained("refused".to_owned()), "refused");
    }
}
