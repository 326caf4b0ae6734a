"""The client of the A2A SDK for protocol 0.3 (PyPI a2a-sdk 0.3.x) calls a tool of an MCP server, a skill in its card."""

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, Role


async def main(url, binding, tool, arguments, expected):
    async with httpx.AsyncClient(timeout=120) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        skill = next(skill for skill in card.skills if skill.name == tool or skill.id == tool)
        parts = [Part(root=DataPart(data=json.loads(arguments)))]
        message = Message(role=Role.user, message_id="m-1", parts=parts, metadata={"skillId": skill.id})
        for streaming in (False, True):
            config = ClientConfig(streaming=streaming, httpx_client=http, supported_transports=[binding])
            client = ClientFactory(config).create(card)
            answers = [answer async for answer in client.send_message(message)]
            assert [expected in answer.parts[0].root.text for answer in answers] == [True], answers


asyncio.run(main(*sys.argv[1:]))
