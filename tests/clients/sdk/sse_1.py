"""The client of the MCP SDK (PyPI mcp 1.x) over HTTP+SSE, the transport of 2024-11-05."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.sse import sse_client


async def main(server):
    seen = []

    async def progress(done, total, message):
        seen.append((done, total))

    async with sse_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert [tool.name for tool in tools.tools] == ["weather"], tools
        answer = await session.call_tool("weather", {"city": "Oslo"}, progress_callback=progress)
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        assert seen == [(1, 2), (2, 2)], seen


asyncio.run(main(*sys.argv[1:]))
