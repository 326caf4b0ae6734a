"""The client of the MCP SDK (PyPI mcp 1.x) and an agent that speaks A2A: its skill is a tool."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(server):
    seen = []

    async def progress(done, total, message):
        seen.append((done, message))

    async with streamable_http_client(server) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert [tool.name for tool in tools.tools] == ["forecast"], tools
        answer = await session.call_tool("forecast", {"text": "Oslo"})
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        assert not answer.isError and answer.structuredContent["state"] == "completed", answer
        answer = await session.call_tool("forecast", {"text": "Oslo"}, progress_callback=progress)
        assert [part.text for part in answer.content] == ["part 0", "part 1", "part 2"], answer
        assert seen == [(1, "working"), (2, "part 0"), (3, "part 1"), (4, "part 2")], seen
        refused = await session.call_tool("forecast", {"city": "Oslo"})
        assert refused.isError, refused


asyncio.run(main(*sys.argv[1:]))
