//! Questions of agents to the clients whose requests they work on: sampling, elicitation, roots.
//!
//! A question comes to the reply address of its call, as a JSON-RPC request with an id of the agent. The client gets it
//! under an id that says which call it belongs to, so that the client's answer finds the way back: to the place of the
//! request, with the agent's own id. Source: docs/protocols/mcp.md §10.

use a2abus_plugin::protocol::jsonrpc::{self, Id, splice};
use a2abus_plugin::{Hint, Unit, decode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde_json::{Value, json};

use super::service::Calls;
use crate::calls::callid::ReplyId;
use crate::calls::pending::{CallerMessage, Form};

/// The questions that a client supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) sampling: bool,
    pub(crate) elicitation: bool,
    pub(crate) roots: bool,
}

/// What to do with a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The client gets it, in this form.
    Client(Bytes),
    /// The agent gets this answer from the bridge.
    Agent(Bytes),
}

/// What the error says that a client answers with which cannot be asked. Source: JSON-RPC 2.0 section 5.1.
const NOT_ABLE: i32 = -32_601;

// === impl Abilities ===

impl Abilities {
    fn has(self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation,
            "roots/list" => self.roots,
            _ => false,
        }
    }

    /// What becomes of a part of an answer that is a question; `None` for any other part.
    pub(crate) fn asked(
        self,
        call: ReplyId,
        part: &Bytes,
        limits: &a2abus_plugin::Limits,
    ) -> Option<Question> {
        let unit = only(part, limits)?;
        let (message, method) = (unit.json_rpc.as_ref()?, unit.method()?);
        let id = message.id.as_ref().filter(|_| message.is_call())?;
        let own = id.token();
        if self.has(method) {
            let name = URL_SAFE_NO_PAD.encode(own.as_bytes());
            let named = splice(&unit.bytes, id.span(), &format!("\"{call}.{name}\""));
            return Some(Question::Client(named));
        }
        let answer = if method == "ping" {
            jsonrpc::result(own, "{}")
        } else {
            let message = json!(format!(
                "the client of this call cannot be asked for {method}"
            ));
            let error = format!(r#"{{"code":{NOT_ABLE},"message":{message}}}"#);
            jsonrpc::error(own, &error)
        };
        Some(Question::Agent(answer))
    }
}

fn only(bytes: &Bytes, limits: &a2abus_plugin::Limits) -> Option<Unit> {
    decode(bytes, &Hint::default(), limits)
        .into_only()
        .ok()?
        .ok()
}

/// The call of a question, and the agent's own id of it, as a client repeats them.
fn named(id: &Id) -> Option<(ReplyId, String)> {
    let text = id.text()?;
    let (call, name) = text.split_once('.')?;
    let own = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    let is_id =
        serde_json::from_str(&own).is_ok_and(|own: Value| own.is_string() || own.is_number());
    is_id.then_some((call.parse().ok()?, own))
}

// === impl Calls ===

impl Calls {
    /// Takes what a client says to a question; whether it was asked here, and its call still waits.
    pub(crate) fn client_said(&self, unit: &Unit) -> bool {
        let id = unit
            .json_rpc
            .as_ref()
            .and_then(|message| message.id.as_ref());
        let Some((id, (reply_id, own))) = id.and_then(|id| Some((id, named(id)?))) else {
            return false;
        };
        let takes_questions =
            |form: &Form| matches!(form, Form::JsonRpc { takes_questions, .. } if *takes_questions);
        let asked = self.pending().asked(reply_id.call);
        let asked = asked.filter(|asked| takes_questions(&asked.form));
        let verified = asked.map(|asked| self.tokens().verify(asked.id, reply_id.token));
        if !matches!(verified, Some(Ok(()))) {
            return false;
        }
        let answer = splice(&unit.bytes, id.span(), &own);
        self.pending()
            .say(reply_id.call, CallerMessage::ClientAnswer, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::{CallId, Replica};
    use a2abus_plugin::Limits;

    #[test]
    fn an_answer_finds_its_question() {
        let call = ReplyId {
            call: CallId::new(Replica(3)).unwrap(),
            token: None,
        };
        let limits = Limits::default();
        let able = Abilities {
            elicitation: true,
            ..Abilities::default()
        };
        let ask = |method: &str, id: &str| {
            let body = format!(r#"{{ "method":"{method}","id": {id},"jsonrpc":"2.0"}}"#);
            able.asked(call, &Bytes::from(body), &limits)
        };
        for own in ["1", r#""q.1""#, r#""\u00e9""#] {
            let Some(Question::Client(question)) = ask("elicitation/create", own) else {
                panic!("{own}: the client is not asked")
            };
            let unit = only(&question, &limits).unwrap();
            let id = unit.json_rpc.unwrap().id.unwrap();
            let (of, found) = named(&id).unwrap();
            assert_eq!((of.call, found.as_str()), (call.call, own));
        }
        let Some(Question::Agent(refused)) = ask("sampling/createMessage", "7") else {
            panic!("the client is asked what it cannot do")
        };
        let refused: Value = serde_json::from_slice(&refused).unwrap();
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&json!(7), &json!(-32_601))
        );
        let pong = Bytes::from_static(br#"{"jsonrpc":"2.0","id":8,"result":{}}"#);
        assert_eq!(ask("ping", "8"), Some(Question::Agent(pong)));
        let progress =
            Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
        assert_eq!(able.asked(call, &progress, &limits), None);
    }
}
