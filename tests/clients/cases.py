"""The cases: the agents, the requests to them, and the right answers."""

import json

from agents import a2e, answers_for, family, json_rpc

BEHAVIOURS = ["unary", "stream", "error", "silence", "twice"]
AGENTS = {
    "nats-respond": "nats-py `respond`, which copies the headers",
    "nats-bare": "nats-py, the reply subject without headers",
    "nats-go": "nats.go `Respond`",
    "nats-e2a": "E2A records on NATS",
    "nats-a2e": "A2E messages on NATS",
    "nats-legacy": "legacy A2A on NATS",
    "nats-cloudevent": "CloudEvents on NATS, binary mode",
    "kafka-copies": "confluent-kafka, all headers copied",
    "kafka-plain": "Kafka, plain JSON to the reply topic by name",
    "kafka-spring": "Spring for Kafka, `@SendTo`",
    "kafka-e2a": "E2A records on Kafka",
    "kafka-a2e": "A2E messages on Kafka",
    "kafka-legacy": "legacy A2A on Kafka",
    "kafka-cloudevent": "CloudEvents on Kafka, structured mode",
}
# Spring holds no answers back.
HOLDING = [agent for agent in AGENTS if agent != "kafka-spring"]


def request(agent, id, behave, nonce):
    """A JSON-RPC request for an agent: a tool call, or for a stream a message of A2A 0.3."""
    if behave == "stream":
        method = "message/stream"
        message = {
            "kind": "message",
            "role": "user",
            "messageId": nonce,
            "parts": [{"kind": "text", "text": "weather"}],
        }
        params = {"message": message, "metadata": {"behave": behave, "nonce": nonce}}
    else:
        method = "tools/call"
        params = {"name": "weather", "arguments": {"behave": behave, "nonce": nonce}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {"_agentId": agent, **params}}).encode()


def nonce_in(value):
    """The nonce that stands anywhere in an answer."""
    if isinstance(value, dict):
        return value.get("nonce") or next(filter(None, map(nonce_in, value.values())), None)
    if isinstance(value, list):
        return next(filter(None, map(nonce_in, value)), None)
    return None


def right(agent, behave, kind, number, content):
    """The member of the JSON-RPC answer that one answer of an agent becomes, and its value. docs/messages.md, "How an agent answers"."""
    error = kind == "error"
    match family(agent).__name__:
        case "e2a" if kind == "part":
            return "result", {"response_kind": "e2a.chunk", "body": {"delta_kind": "custom", "delta": content}}
        case "a2e":
            message = lasting(a2e(None, behave, kind, number, content))
            failed = {"code": -32603, "message": content.get("message"), "data": message}
            return ("error", failed) if error else ("result", message)
        case "legacy" if error:
            return "error", {"code": -32603, "message": "the agent answered FAILURE", "data": content}
        case "json_rpc" if not error:
            return "result", json_rpc(None, behave, kind, number, content)["result"]
    return ("error" if error else "result"), content


def lasting(value):
    """Without what an A2E message has anew each time."""
    if not isinstance(value, dict):
        return value
    passing = ("id", "ts", "req_id", "created_at") if "version" in value and "type" in value else ()
    return {name: lasting(one) for name, one in value.items() if name not in passing}


def wrong(agent, behave, id, nonce, answers):
    """What is wrong with the answers of a cell."""
    for answer in answers:
        if answer.get("jsonrpc") != "2.0" or answer.get("id") != id or type(answer.get("id")) is not type(id):
            return f"not the requester's id {id!r}: {answer}"
    if behave == "silence":
        error = answers[0].get("error", {})
        reason = (error.get("data") or {}).get("reason")
        return None if reason == "timeout" and error["code"] == -32603 else f"no timeout: {answers}"
    expected = answers_for(behave, nonce)[: 1 if behave == "twice" else None]
    for answer, one in zip(answers, expected, strict=True):
        member, value = right(agent, behave, *one)
        if {name for name in answer} != {"jsonrpc", "id", member} or lasting(answer[member]) != value:
            return f"not the {member} {value}: {answer}"
    return None
