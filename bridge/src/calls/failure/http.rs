//! A failure as an HTTP response that is not JSON-RPC: the HTTP+JSON binding of A2A.
//!
//! A2A 1.0 sends the JSON form of `google.rpc.Status`; A2A 0.3 one object with the code of JSON-RPC.
//! Source: A2A 1.0 section 11.6; docs/protocols/a2a.md §5 and §10.

use a2abus_plugin::protocol::dialect::Dialect;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, Reason};
use crate::metrics::CallOutcome;

/// The codes of one reason over HTTP.
struct Row {
    /// In A2A 1.0.
    v1_0: StatusCode,
    /// In A2A 0.3.
    v0_3: StatusCode,
    /// `google.rpc.Code`.
    canonical: &'static str,
    /// The name of the error in A2A 0.3.
    name: &'static str,
}

// === impl Reason ===

impl Reason {
    #[rustfmt::skip]
    fn http(self) -> Row {
        const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
        use StatusCode as S;
        let (v1_0, v0_3, canonical, name) = match self {
            Self::Parse => (S::BAD_REQUEST, S::BAD_REQUEST, "INVALID_ARGUMENT", "JSONParseError"),
            Self::InvalidRequest => (S::BAD_REQUEST, S::BAD_REQUEST, "INVALID_ARGUMENT", "InvalidRequestError"),
            Self::InvalidParams => (S::BAD_REQUEST, UNPROCESSABLE, "INVALID_ARGUMENT", "InvalidParamsError"),
            Self::AgentNotFound => (S::NOT_FOUND, S::NOT_FOUND, "NOT_FOUND", "InvalidParamsError"),
            Self::AgentUnavailable => (S::SERVICE_UNAVAILABLE, S::SERVICE_UNAVAILABLE, "UNAVAILABLE", "InternalError"),
            Self::Timeout => (S::GATEWAY_TIMEOUT, S::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED", "InternalError"),
            Self::TaskNotFound => (S::NOT_FOUND, S::NOT_FOUND, "NOT_FOUND", "TaskNotFoundError"),
            Self::TaskNotCancelable => (S::BAD_REQUEST, S::CONFLICT, "FAILED_PRECONDITION", "TaskNotCancelableError"),
            Self::RateLimited | Self::Exhausted => (S::TOO_MANY_REQUESTS, S::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", "InternalError"),
            Self::ContentType => (S::BAD_REQUEST, S::UNSUPPORTED_MEDIA_TYPE, "INVALID_ARGUMENT", "ContentTypeNotSupportedError"),
            Self::MethodNotFound => (S::NOT_FOUND, S::NOT_FOUND, "NOT_FOUND", "MethodNotFoundError"),
            Self::VersionNotSupported => (S::BAD_REQUEST, S::BAD_REQUEST, "FAILED_PRECONDITION", "VersionNotSupportedError"),
            Self::Unsupported | Self::StreamInBatch => (S::BAD_REQUEST, S::NOT_IMPLEMENTED, "FAILED_PRECONDITION", "UnsupportedOperationError"),
            Self::PushUnsupported => (S::BAD_REQUEST, S::NOT_IMPLEMENTED, "FAILED_PRECONDITION", "PushNotificationNotSupportedError"),
            Self::BadAgentReply => (S::INTERNAL_SERVER_ERROR, S::BAD_GATEWAY, "INTERNAL", "InvalidAgentResponseError"),
            Self::KeyReused => (UNPROCESSABLE, UNPROCESSABLE, "FAILED_PRECONDITION", "InvalidRequestError"),
            Self::InProgress => (S::CONFLICT, S::CONFLICT, "ABORTED", "InternalError"),
            Self::AnswerLost => (S::GATEWAY_TIMEOUT, S::GATEWAY_TIMEOUT, "UNKNOWN", "InternalError"),
            Self::Cancelled => (S::CONFLICT, S::CONFLICT, "CANCELLED", "InternalError"),
            Self::McpHeader | Self::McpCapability | Self::McpVersion => (S::BAD_REQUEST, S::BAD_REQUEST, "INVALID_ARGUMENT", "InvalidRequestError"),
            Self::AgentError | Self::ReplyUndeliverable => (S::INTERNAL_SERVER_ERROR, S::INTERNAL_SERVER_ERROR, "INTERNAL", "InternalError"),
        };
        Row { v1_0, v0_3, canonical, name }
    }

    /// The reason that has this code in official A2A.
    fn of_code(code: i64) -> Self {
        match code {
            -32_700 => Self::Parse,
            -32_600 => Self::InvalidRequest,
            -32_601 => Self::MethodNotFound,
            -32_602 => Self::InvalidParams,
            -32_001 => Self::TaskNotFound,
            -32_002 => Self::TaskNotCancelable,
            -32_003 => Self::PushUnsupported,
            -32_004 => Self::Unsupported,
            -32_005 => Self::ContentType,
            -32_006 => Self::BadAgentReply,
            _ => Self::AgentError,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// The failure for an error response of an agent.
    pub(crate) fn of_agent(response: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Response {
            error: Error,
        }
        #[derive(Deserialize)]
        struct Error {
            code: i64,
            message: String,
            #[serde(default)]
            data: Option<Value>,
        }
        let Ok(Response { error }) = serde_json::from_slice(response) else {
            return Self::new(
                Reason::BadAgentReply,
                "the agent answered with an error that cannot be read",
            );
        };
        let failure = Self::new(Reason::of_code(error.code), error.message);
        let failure = failure.detail("code", error.code);
        match error.data {
            Some(data) => failure.detail("data", data),
            None => failure,
        }
    }

    /// The failure for an error that a bridge has written in place of an attached server, which is written again
    /// because that bridge may not know the caller's dialect. `None` for all other outcomes.
    pub(crate) fn of_bridge(outcome: CallOutcome, response: &[u8]) -> Option<Self> {
        let reason = match outcome {
            CallOutcome::Timeout => Reason::Timeout,
            CallOutcome::Unavailable => Reason::AgentUnavailable,
            CallOutcome::Failed => Reason::AnswerLost,
            CallOutcome::Answered | CallOutcome::Cancelled | CallOutcome::Left => return None,
        };
        let written = Self::of_agent(response);
        let mut failure = Self::new(reason, written.message);
        let data = written
            .details
            .into_iter()
            .find(|(name, _)| *name == "data");
        for name in ["agent", "timeoutMs"] {
            if let Some(value) = data.as_ref().and_then(|(_, data)| data.get(name)) {
                failure = failure.detail(name, value.clone());
            }
        }
        Some(failure)
    }

    /// The status of the response.
    pub(crate) fn http_status(&self, dialect: Dialect) -> StatusCode {
        let row = self.reason.http();
        match dialect {
            Dialect::A2a03 => row.v0_3,
            _ => row.v1_0,
        }
    }

    /// The body of a response with this status.
    pub(crate) fn document(&self, status: StatusCode, dialect: Dialect) -> Bytes {
        let now = crate::clock::rfc3339(crate::clock::now());
        let (row, http) = (self.reason.row(), self.reason.http());
        let document = match dialect {
            Dialect::A2a03 => json!({
                "code": row.a2a,
                "message": self.message,
                "type": http.name,
                // Without this member, the SDK for Java fails on the error. Other SDKs do not read it.
                "error": format!("io.a2a.spec.{}", http.name),
                "data": self.data_object(&now),
            }),
            _ => json!({ "error": {
                "code": status.as_u16(),
                "status": http.canonical,
                "message": self.message,
                "details": self.data_array(row.error_info, &now),
            }}),
        };
        Bytes::from(document.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(failure: &Failure, dialect: Dialect) -> (u16, Value) {
        let status = failure.http_status(dialect);
        let document = serde_json::from_slice(&failure.document(status, dialect)).unwrap();
        (status.as_u16(), document)
    }

    #[test]
    fn each_version_has_its_own_document() {
        let failure = Failure::new(Reason::TaskNotCancelable, "no").detail("n", 1);
        let (status, document) = read(&failure, Dialect::A2a10);
        assert_eq!(status, 400);
        let error = &document["error"];
        assert_eq!(error["code"], 400);
        assert_eq!(error["status"], "FAILED_PRECONDITION");
        assert_eq!(error["message"], "no");
        let info = &error["details"][0];
        assert_eq!(info["reason"], "TASK_NOT_CANCELABLE");
        assert_eq!(info["metadata"]["n"], "1");
        let (status, document) = read(&failure, Dialect::A2a03);
        assert_eq!(status, 409);
        assert_eq!(document["code"], -32_002);
        assert_eq!(document["type"], "TaskNotCancelableError");
        assert_eq!(document["error"], "io.a2a.spec.TaskNotCancelableError");
        assert_eq!(document["data"]["n"], 1);
    }

    #[test]
    fn the_error_of_an_agent_keeps_its_code_and_its_data() {
        let response = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone","data":{"x":[1]}}}"#;
        let (status, document) = read(&Failure::of_agent(response), Dialect::A2a10);
        assert_eq!(status, 404);
        let info = &document["error"]["details"][0];
        assert_eq!(info["reason"], "TASK_NOT_FOUND");
        assert_eq!(info["metadata"]["code"], "-32001");
        assert_eq!(info["metadata"]["data"], r#"{"x":[1]}"#);
        for (code, expected) in [(-32_603, 500), (-32_099, 500), (7, 500), (-32_006, 502)] {
            let response =
                format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"no"}}}}"#);
            let failure = Failure::of_agent(response.as_bytes());
            let (status, document) = read(&failure, Dialect::A2a03);
            assert_eq!(
                (status, &document["data"]["code"]),
                (expected, &json!(code))
            );
        }
        let (status, document) = read(&Failure::of_agent(b"{}"), Dialect::A2a03);
        assert_eq!((status, &document["code"]), (502, &json!(-32_006)));
    }
}
