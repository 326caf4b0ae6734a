"""What an MCP server and an A2A agent of both generations answer, for the clients of their SDKs."""

import json


def answered(body):
    """The bodies that answer a JSON-RPC request, in order; none for a notification."""
    request = json.loads(body)
    id, method, params = request.get("id"), request["method"], request.get("params") or {}
    if id is None:
        return []
    head = {"jsonrpc": "2.0", "id": id}
    known = METHODS.get(method)
    if known is None:
        failed = {"code": -32601, "message": f"Method not found: {method}"}
        return [json.dumps({**head, "error": failed}).encode()]
    return [json.dumps(one if "method" in one else {**head, **one}).encode() for one in known(params)]


# ---- MCP ----


def initialize(params):
    """The version of the client is taken."""
    yield {
        "result": {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "weather", "version": "1.0"},
        }
    }


def tools_list(params):
    """One tool."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    yield {"result": {"tools": [{"name": "weather", "description": "The weather of a city.", "inputSchema": city}]}}


def tools_call(params):
    """Progress for those who want it, then the weather; no tool but this one is known."""
    if params["name"] != "weather":
        yield {"error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}}
        return
    token = (params.get("_meta") or {}).get("progressToken")
    for progress in (1, 2) if token is not None else ():
        notice = {"progressToken": token, "progress": progress, "total": 2}
        yield {"jsonrpc": "2.0", "method": "notifications/progress", "params": notice}
    text = f"{params['arguments']['city']}: -3 degrees"
    yield {"result": {"content": [{"type": "text", "text": text}], "isError": False}}


# ---- A2A 0.3 ----


def message_send_03(params):
    """A message, or a task where the text asks for one."""
    context = {"contextId": "c-1", "taskId": "t-1"}
    yield {"result": {"kind": "message", "role": "agent", "messageId": "m-1", "parts": [text_03(params)], **context}}


def message_stream_03(params):
    """A task, three pieces of its artifact, and its end; a task that goes on where the text asks for one."""
    task = {"taskId": "t-1", "contextId": "c-1"}
    yield {"result": {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}}}
    if text_of(params) == "hold":
        return
    for number in range(3):
        artifact = {"artifactId": "a-1", "parts": [{"kind": "text", "text": f"part {number}"}]}
        last = {"append": number > 0, "lastChunk": number == 2}
        yield {"result": {"kind": "artifact-update", **task, "artifact": artifact, **last}}
    yield {"result": {"kind": "status-update", **task, "status": {"state": "completed"}, "final": True}}


def tasks_get_03(params):
    """No task is known."""
    yield {"error": {"code": -32001, "message": "Task not found"}}


def tasks_cancel_03(params):
    """Every task can be cancelled."""
    yield {"result": {"kind": "task", "id": params["id"], "contextId": "c-1", "status": {"state": "canceled"}}}


def text_03(params):
    """The text of the message, with the weather."""
    return {"kind": "text", "text": f"{text_of(params)}: -3 degrees"}


def text_of(params):
    """The text of the message."""
    return params["message"]["parts"][0]["text"]


# ---- A2A 1.0 ----


def send_message(params):
    """A message."""
    text = {"text": f"{text_of(params)}: -3 degrees"}
    yield {"result": {"message": {"role": "ROLE_AGENT", "messageId": "m-1", "parts": [text], "contextId": "c-1"}}}


def send_streaming_message(params):
    """A task, three pieces of its artifact, and its end."""
    task = {"taskId": "t-1", "contextId": "c-1"}
    yield {"result": {"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}}}
    if text_of(params) == "hold":
        return
    for number in range(3):
        artifact = {"artifactId": "a-1", "parts": [{"text": f"part {number}"}]}
        last = {"append": number > 0, "lastChunk": number == 2}
        yield {"result": {"artifactUpdate": {**task, "artifact": artifact, **last}}}
    yield {"result": {"statusUpdate": {**task, "status": {"state": "TASK_STATE_COMPLETED"}}}}


def cancel_task(params):
    """Every task can be cancelled."""
    yield {"result": {"id": params["id"], "contextId": "c-1", "status": {"state": "TASK_STATE_CANCELED"}}}


METHODS = {
    "initialize": initialize,
    "tools/list": tools_list,
    "tools/call": tools_call,
    "ping": lambda params: [{"result": {}}],
    "message/send": message_send_03,
    "message/stream": message_stream_03,
    "tasks/get": tasks_get_03,
    "tasks/cancel": tasks_cancel_03,
    "SendMessage": send_message,
    "SendStreamingMessage": send_streaming_message,
    "GetTask": tasks_get_03,
    "CancelTask": cancel_task,
}
