"""The client of the MCP SDK (PyPI mcp 2.x): over HTTP, or with the command of a server that it starts."""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError


async def main(server, *arguments):
    if arguments:
        server = stdio_client(StdioServerParameters(command=server, args=list(arguments)))
    seen = []

    async def progress(done, total, message):
        seen.append((done, total))

    async with Client(server) as client:
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
