"""The client of the A2A SDK for protocol 1.0 (PyPI a2a-sdk 1.x), with a card made by hand."""

import asyncio
import sys

from a2a.client import ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.helpers.proto_helpers import get_message_text, new_text_message
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, GetTaskRequest, Role, SendMessageRequest
from a2a.utils.errors import A2AError


async def main(url, version):
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
    card = AgentCard(
        name="weather",
        description="The weather of a city.",
        version="1.0",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    request = SendMessageRequest(message=new_text_message("Oslo", role=Role.ROLE_USER))

    plain = ClientFactory(ClientConfig(streaming=False)).create(card)
    answers = [answer async for answer in plain.send_message(request)]
    assert [get_message_text(answer.message) for answer in answers] == ["Oslo: -3 degrees"], answers

    streaming = ClientFactory(ClientConfig(streaming=True)).create(card)
    events = [event.WhichOneof("payload") async for event in streaming.send_message(request)]
    assert events == ["task", *["artifact_update"] * 3, "status_update"], events

    try:
        await plain.get_task(GetTaskRequest(id="t-0"))
    except (A2AError, A2AClientError) as error:
        assert "Task not found" in str(error), error
    else:
        raise AssertionError("a task that is not there was found")


asyncio.run(main(*sys.argv[1:]))
