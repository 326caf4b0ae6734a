"""The client of the A2A SDK for protocol 1.0 (PyPI a2a-sdk 1.x) calls a tool of an MCP server, a skill in its card."""

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import get_message_text
from a2a.types.a2a_pb2 import Message, Role, SendMessageRequest
from google.protobuf.json_format import ParseDict


async def main(url, binding, tool, arguments, expected):
    async with httpx.AsyncClient(timeout=120) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        skill = next(skill for skill in card.skills if skill.name == tool or skill.id == tool)
        message = ParseDict({"parts": [{"data": json.loads(arguments)}], "metadata": {"skillId": skill.id}}, Message())
        message.role, message.message_id = Role.ROLE_USER, "m-1"
        for streaming in (False, True):
            config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
            client = ClientFactory(config).create(card)
            answers = [answer async for answer in client.send_message(SendMessageRequest(message=message))]
            assert [expected in get_message_text(answer.message) for answer in answers] == [True], answers


asyncio.run(main(*sys.argv[1:]))
