"""The clients of the MCP SDKs in Python (PyPI mcp 1.x and 2.x) at two replicas: the stream of a call is cut off after its
first event and goes on at the other one, and a cancel comes to the other one."""

import asyncio
import contextlib
import importlib.metadata
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

IS_1 = importlib.metadata.version("mcp").startswith("1.")
if IS_1:
    import httpx
else:
    import httpx2 as httpx

    from mcp import Client

STEPS = 5


class Cut(httpx.AsyncByteStream):
    """A body up to the end of its first event."""

    def __init__(self, body):
        self.body = body

    async def __aiter__(self):
        text = b""
        async for piece in self.body:
            text += piece
            if b"\n\n" in text:
                yield text[: text.index(b"\n\n") + 2]
                return

    async def aclose(self):
        await self.body.aclose()


class Replicas(httpx.AsyncHTTPTransport):
    """Requests go to the first replica; whatever concerns one that is being answered, to the other."""

    def __init__(self, first, other):
        super().__init__()
        self.first, self.other = httpx.URL(first), httpx.URL(other)
        self.cuts = self.resumed = self.cancels = 0

    async def handle_async_request(self, request):
        body = await request.aread()
        is_back = "last-event-id" in request.headers
        is_cancel = b"notifications/cancelled" in body
        self.resumed += is_back
        self.cancels += is_cancel
        if is_back or is_cancel:
            request.url = request.url.copy_with(port=self.other.port)
            request.headers["host"] = f"{self.other.host}:{self.other.port}"
        response = await super().handle_async_request(request)
        if b'"walk"' not in body:
            return response
        assert response.headers["content-type"] == "text/event-stream", response.headers
        self.cuts += 1
        return httpx.Response(response.status_code, headers=response.headers, stream=Cut(response.stream))


@contextlib.asynccontextmanager
async def connected(url, http):
    """A client in a session: a request of revision 2026-07-28 stands alone, and nobody resumes its answer."""
    transport = streamable_http_client(url, http_client=http)
    if IS_1:
        async with transport as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            yield session
    else:
        async with Client(transport, mode="legacy") as client:
            yield client


async def main(first, other):
    replicas = Replicas(first, other)
    steps = []

    async def progress(done, total, message):
        steps.append(done)

    async with httpx.AsyncClient(transport=replicas, timeout=60) as http, connected(first, http) as client:
        answer = await client.call_tool("walk", {}, progress_callback=progress)
        assert answer.content[0].text == "there", answer
        assert steps == [step + 1 for step in range(STEPS)], steps
        assert replicas.cuts == 1 and replicas.resumed >= 1, vars(replicas)
        if IS_1:
            # This SDK does not tell the server that it has given up a request.
            return

        with anyio.CancelScope() as held:

            async def stop(done, total, message):
                held.cancel()

            await client.call_tool("hold", {}, progress_callback=stop)
        assert held.cancelled_caught
        cancelled = 0
        # The agent returns the number of cancels.
        while cancelled == 0:
            answer = await client.call_tool("cancels", {})
            cancelled = int(answer.content[0].text)
        assert (cancelled, replicas.cancels) == (1, 1), (cancelled, replicas.cancels)


asyncio.run(main(*sys.argv[1:]))
