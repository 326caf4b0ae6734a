"""The client of the MCP SDK (PyPI mcp 2.x) and an agent that speaks A2A: its skill is a tool."""

import asyncio
import sys

from mcp import Client


async def main(server):
    seen = []

    async def progress(done, total, message):
        seen.append((done, message))

    async with Client(server) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools] == ["forecast"], tools
        answer = await client.call_tool("forecast", {"text": "Oslo"})
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        assert not answer.is_error and answer.structured_content["state"] == "completed", answer
        answer = await client.call_tool("forecast", {"text": "Oslo"}, progress_callback=progress)
        assert [part.text for part in answer.content] == ["part 0", "part 1", "part 2"], answer
        assert seen == [(1, "working"), (2, "part 0"), (3, "part 1"), (4, "part 2")], seen
        refused = await client.call_tool("forecast", {"city": "Oslo"})
        assert refused.is_error, refused


asyncio.run(main(*sys.argv[1:]))
