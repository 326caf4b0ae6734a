"""The client of the A2A SDK for protocol 0.3 (PyPI a2a-sdk 0.3.x), which knows nothing but the URL of an agent."""

import asyncio
import os
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.client.helpers import create_text_message_object
from a2a.types import (
    GetTaskPushNotificationConfigParams,
    Message,
    PushNotificationConfig,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
)


async def called(http, url):
    """The calls of a webhook, once the last one says that the task is canceled."""
    for _ in range(600):
        calls = (await http.get(url)).json()
        if calls and calls[-1]["body"]["status"]["state"] == "canceled":
            return calls
        await asyncio.sleep(0.05)
    raise AssertionError("the webhook was not called")


async def main(url, binding):
    async with httpx.AsyncClient(timeout=120) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        assert card.protocol_version == "0.3.0" and card.skills[0].id == "forecast", card

        plain = ClientFactory(ClientConfig(streaming=False, httpx_client=http, supported_transports=[binding])).create(card)
        answers = [answer async for answer in plain.send_message(create_text_message_object(content="Oslo"))]
        assert len(answers) == 1 and isinstance(answers[0], Message), answers
        assert answers[0].parts[0].root.text == "Oslo: -3 degrees", answers

        streaming = ClientFactory(ClientConfig(streaming=True, httpx_client=http, supported_transports=[binding])).create(card)
        events = [event async for event in streaming.send_message(create_text_message_object(content="Oslo"))]
        task, _ = events[-1]
        assert task.status.state == TaskState.completed, task
        assert [part.root.text for part in task.artifacts[0].parts] == ["part 0", "part 1", "part 2"], task
        stored = await plain.get_task(TaskQueryParams(id=task.id))
        assert stored.status.state == TaskState.completed and stored.artifacts == task.artifacts, stored

        # A task that goes on until it is cancelled, seen by two.
        first = streaming.send_message(create_text_message_object(content="hold"))
        held, _ = await anext(first)
        while held.status.state != TaskState.working:
            held, _ = await anext(first)
        second = streaming.resubscribe(TaskIdParams(id=held.id))
        seen, _ = await anext(second)
        assert seen.id == held.id, seen
        hook = f"http://127.0.0.1:{os.environ['CLIENTS_HOOKS']}/{uuid.uuid4()}"
        config = PushNotificationConfig(id="hook", url=hook, token="t0k")
        config = TaskPushNotificationConfig(task_id=held.id, push_notification_config=config)
        assert await plain.set_task_callback(config) == config
        name = GetTaskPushNotificationConfigParams(id=held.id, push_notification_config_id="hook")
        assert await plain.get_task_callback(name) == config
        cancelled = await plain.cancel_task(TaskIdParams(id=held.id))
        assert cancelled.status.state == TaskState.canceled, cancelled
        for stream in (first, second):
            *_, (last, _) = [event async for event in stream]
            assert last.status.state == TaskState.canceled, last
        assert all(call["token"] == "t0k" for call in await called(http, hook))

        try:
            await plain.get_task(TaskQueryParams(id="nobody"))
        except A2AClientJSONRPCError as error:
            assert binding == "JSONRPC" and error.error.code == -32001, error
        except A2AClientHTTPError as error:
            assert binding == "HTTP+JSON" and error.status_code == 404, error
        else:
            raise AssertionError("a task that is not there was found")


asyncio.run(main(*sys.argv[1:]))
