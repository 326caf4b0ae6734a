"""The client of the MCP SDK (PyPI mcp 2.x), in the revision that it chooses, with a tool that adds."""

import asyncio
import sys

from mcp import Client


async def main(url):
    async with Client(url) as client:
        answer = await client.call_tool("add", {"a": 3, "b": 4})
        assert answer.content[0].text == "the sum is 7", answer


asyncio.run(main(sys.argv[1]))
