"""The client of JAF (PyPI jaf-py), which knows the URL of the bridge and the name of an agent.

It has functions for cards, messages and streams; requests of tasks and webhooks are sent by the function that it sends
all requests with, and what comes back is read by its own types. It has no function that follows a task: the events are
read as it reads those of its streams.
"""

import asyncio
import os
import sys
import uuid

# It would fetch a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import httpx  # noqa: E402
from jaf.a2a import client as jaf  # noqa: E402
from jaf.a2a.types import A2ATask  # noqa: E402


async def called(hook):
    """The calls of a webhook, once the last one says that the task is canceled."""
    async with httpx.AsyncClient() as http:
        for _ in range(300):
            calls = (await http.get(hook)).json()
            if calls and calls[-1]["body"]["status"]["state"] in ("canceled", "cancelled"):
                return calls
            await asyncio.sleep(0.1)
    raise AssertionError("the webhook was not called")


async def follow(url, id):
    """The events of a task, to its end."""
    body = {"jsonrpc": "2.0", "id": "req-follow", "method": "tasks/resubscribe", "params": {"id": id}}
    headers = {"Accept": "text/event-stream"}
    async with httpx.AsyncClient(timeout=60) as http, http.stream("POST", url, json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            if event := jaf.parse_sse_event(line):
                assert jaf.validate_a2a_response(event), event
                yield event["result"]


async def main(url):
    door, _, agent = url.rpartition("/a2a/agents/")
    client = jaf.create_a2a_client(door)
    card = await jaf.get_agent_card(client)
    assert f"{agent}-forecast" in [skill["id"] for skill in card["skills"]], card
    health = await jaf.check_a2a_health(client)
    assert health["status"] == "healthy" and agent in health["agents"], health
    capabilities = await jaf.get_a2a_capabilities(client)
    assert "message/stream" in capabilities["supportedMethods"], capabilities

    answer = await jaf.send_message_to_agent(client, agent, "Oslo")
    assert answer == "Oslo: -3 degrees", answer
    # With settings that only JAF's document has, its own kind of answer.
    answer = await jaf.send_message_to_agent(client, agent, "Oslo", {"maxTurns": 3})
    assert '"completion"' in answer and "Oslo: -3 degrees" in answer, answer

    events = [event async for event in jaf.stream_message_to_agent(client, agent, "Oslo")]
    kinds = [event["kind"] for event in events]
    assert kinds == ["task", "status-update", *["artifact-update"] * 3, "status-update"], kinds
    assert events[-1]["final"] is True, events[-1]
    id = events[0]["id"]

    async def ask(method, params):
        body = {"jsonrpc": "2.0", "id": f"req-{method}", "method": method, "params": params}
        answer = await jaf.send_http_request(url, body)
        assert jaf.validate_a2a_response(answer) and answer["id"] == body["id"], answer
        return answer

    task = A2ATask.model_validate((await ask("tasks/get", {"id": id}))["result"])
    assert task.status.state == "completed" and len(task.artifacts[0].parts) == 3, task
    listed = await ask("tasks/list", {"contextId": client.session_id})
    assert id in [one["id"] for one in listed["result"]["tasks"]], listed

    held = jaf.stream_message_to_agent(client, agent, "hold")
    id = (await anext(held))["id"]
    while (await anext(held))["status"]["state"] != "working":
        pass
    second = follow(url, id)
    assert (await anext(second))["id"] == id
    hook = f"http://127.0.0.1:{os.environ['CLIENTS_HOOKS']}/{uuid.uuid4()}"
    config = {"taskId": id, "pushNotificationConfig": {"id": "hook", "url": hook, "token": "t0k"}}
    assert (await ask("tasks/pushNotificationConfig/set", config))["result"] == config
    name = {"id": id, "pushNotificationConfigId": "hook"}
    assert (await ask("tasks/pushNotificationConfig/get", name))["result"] == config
    assert (await ask("tasks/pushNotificationConfig/list", {"id": id}))["result"] == [config]
    cancelled = A2ATask.model_validate((await ask("tasks/cancel", {"id": id}))["result"])
    assert cancelled.status.state == "canceled", cancelled
    for stream in (held, second):
        *_, last = [event async for event in stream]
        assert last["status"]["state"] == "canceled" and last["final"] is True, last
    assert all(call["token"] == "t0k" for call in await called(hook))
    assert "error" not in await ask("tasks/pushNotificationConfig/delete", name)
    refused = await ask("tasks/get", {"id": "nobody"})
    assert refused["error"]["code"] == -32001, refused


asyncio.run(main(*sys.argv[1:]))
