"""The client of the A2A SDK for protocol 0.3 (PyPI a2a-sdk 0.3.x), with a card made by hand."""

import asyncio
import sys

from a2a.client import ClientConfig, ClientFactory
from a2a.client.errors import A2AClientJSONRPCError
from a2a.client.helpers import create_text_message_object
from a2a.types import AgentCapabilities, AgentCard, Message, TaskQueryParams, TaskState


async def main(url):
    card = AgentCard(
        name="weather",
        description="The weather of a city.",
        version="1.0",
        url=url,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[],
    )

    plain = ClientFactory(ClientConfig(streaming=False)).create(card)
    answers = [answer async for answer in plain.send_message(create_text_message_object(content="Oslo"))]
    assert len(answers) == 1 and isinstance(answers[0], Message), answers
    assert answers[0].parts[0].root.text == "Oslo: -3 degrees", answers

    streaming = ClientFactory(ClientConfig(streaming=True)).create(card)
    events = [event async for event in streaming.send_message(create_text_message_object(content="Oslo"))]
    assert len(events) == 5, events
    task, _ = events[-1]
    assert task.status.state == TaskState.completed, task
    assert [part.root.text for part in task.artifacts[0].parts] == ["part 0", "part 1", "part 2"], task

    try:
        await plain.get_task(TaskQueryParams(id="t-0"))
    except A2AClientJSONRPCError as error:
        assert error.error.code == -32001, error
    else:
        raise AssertionError("a task that is not there was found")


asyncio.run(main(*sys.argv[1:]))
