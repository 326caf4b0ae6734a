"""The client of the MCP SDK (PyPI mcp 1.x): over HTTP, or with the command of a server that it starts."""

import asyncio
import contextlib
import sys

from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


@contextlib.asynccontextmanager
async def connected(server, arguments):
    if arguments:
        async with stdio_client(StdioServerParameters(command=server, args=list(arguments))) as (read, write):
            yield read, write
    else:
        async with streamable_http_client(server) as (read, write, _):
            yield read, write


async def main(server, *arguments):
    seen = []

    async def progress(done, total, message):
        seen.append((done, total))

    async with connected(server, arguments) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert [tool.name for tool in tools.tools] == ["weather"], tools
        answer = await session.call_tool("weather", {"city": "Oslo"})
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        answer = await session.call_tool("weather", {"city": "Oslo"}, progress_callback=progress)
        assert answer.content[0].text == "Oslo: -3 degrees", answer
        assert seen == [(1, 2), (2, 2)], seen
        try:
            await session.call_tool("tides", {"city": "Oslo"})
        except McpError as error:
            assert "Unknown tool: tides" in str(error), error
        else:
            raise AssertionError("a tool that is not there was called")


asyncio.run(main(*sys.argv[1:]))
