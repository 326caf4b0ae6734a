"""The client of the MCP SDK (PyPI mcp 2.x)."""

import asyncio
import sys

from mcp import Client
from mcp.shared.exceptions import MCPError


async def main(url):
    seen = []

    async def progress(done, total, message):
        seen.append((done, total))

    async with Client(url) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools] == ["weather"], tools
        answer = await client.call_tool("weather", {"city": "Oslo"})
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        answer = await client.call_tool("weather", {"city": "Oslo"}, progress_callback=progress)
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        assert seen == [(1, 2), (2, 2)], seen
        try:
            await client.call_tool("tides", {"city": "Oslo"})
        except MCPError as error:
            assert "Unknown tool: tides" in str(error), error
        else:
            raise AssertionError("a tool that is not there was called")


asyncio.run(main(*sys.argv[1:]))
