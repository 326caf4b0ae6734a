"""The client of the A2A SDK for protocol 1.0 (PyPI a2a-sdk 1.x), which knows nothing but the URL of an agent."""

import asyncio
import os
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.helpers.proto_helpers import get_message_text, new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError


def ask(text):
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))


def state(event):
    """The state that an event of a stream shows, where it shows one."""
    match event.WhichOneof("payload"):
        case "task":
            return event.task.status.state
        case "status_update":
            return event.status_update.status.state
    return None


async def called(http, url):
    """The calls of a webhook, once the last one says that the task is cancelled."""
    for _ in range(600):
        calls = (await http.get(url)).json()
        if calls and "CANCELED" in str(calls[-1]["body"]):
            return calls
        await asyncio.sleep(0.05)
    raise AssertionError("the webhook was not called")


async def main(url, binding):
    async with httpx.AsyncClient(timeout=120) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        assert card.supported_interfaces[0].protocol_version == "1.0" and card.skills[0].id == "forecast", card

        plain = ClientFactory(ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])).create(card)
        answers = [answer async for answer in plain.send_message(ask("Oslo"))]
        assert [get_message_text(answer.message) for answer in answers] == ["Oslo: -3 degrees"], answers

        streaming = ClientFactory(ClientConfig(streaming=True, httpx_client=http, supported_protocol_bindings=[binding])).create(card)
        events = [event async for event in streaming.send_message(ask("Oslo"))]
        kinds = [event.WhichOneof("payload") for event in events]
        assert kinds == ["task", "status_update", *["artifact_update"] * 3, "status_update"], kinds
        task = events[0].task
        stored = await plain.get_task(GetTaskRequest(id=task.id))
        assert stored.status.state == TaskState.TASK_STATE_COMPLETED, stored
        assert [part.text for part in stored.artifacts[0].parts] == ["part 0", "part 1", "part 2"], stored
        listed = await plain.list_tasks(ListTasksRequest(context_id=task.context_id))
        assert [one.id for one in listed.tasks] == [task.id], listed

        # A task that goes on until it is cancelled, seen by two.
        first = streaming.send_message(ask("hold"))
        held = (await anext(first)).task
        while state(await anext(first)) != TaskState.TASK_STATE_WORKING:
            pass
        second = streaming.subscribe(SubscribeToTaskRequest(id=held.id))
        assert (await anext(second)).task.id == held.id
        hook = f"http://127.0.0.1:{os.environ['CLIENTS_HOOKS']}/{uuid.uuid4()}"
        config = TaskPushNotificationConfig(task_id=held.id, id="hook", url=hook, token="t0k")
        stored = await plain.create_task_push_notification_config(config)
        assert (stored.url, stored.id, stored.token) == (hook, "hook", "t0k"), stored
        name = {"task_id": held.id, "id": "hook"}
        assert (await plain.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**name))).url == hook
        listed = ListTaskPushNotificationConfigsRequest(task_id=held.id)
        assert len((await plain.list_task_push_notification_configs(listed)).configs) == 1
        cancelled = await plain.cancel_task(CancelTaskRequest(id=held.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED, cancelled
        for stream in (first, second):
            *_, last = [event async for event in stream]
            assert state(last) == TaskState.TASK_STATE_CANCELED, last
        assert all(call["token"] == "t0k" for call in await called(http, hook))
        await plain.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**name))
        assert not (await plain.list_task_push_notification_configs(listed)).configs

        try:
            await plain.get_task(GetTaskRequest(id="nobody"))
        except (A2AError, A2AClientError) as error:
            assert "task not found" in str(error), error
        else:
            raise AssertionError("a task that is not there was found")


asyncio.run(main(*sys.argv[1:]))
