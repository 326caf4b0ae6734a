"""Servers made with published SDKs, to be attached: `sites.py mcp|mcp-stdio|a2a|a2a-compat|jsonrpc PORT`, in the Python of
either generation."""

import asyncio
import functools
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def mcp(port, transport="streamable-http"):
    """An MCP server, of `mcp` 2.x or 1.x."""
    try:
        from mcp.server import MCPServer

        server, options = MCPServer("sums"), {"port": port}
    except ImportError:
        from mcp.server.fastmcp import FastMCP

        server, options = FastMCP("sums", port=port), {}

    @server.tool()
    def add(a: int, b: int) -> str:
        """Adds."""
        return f"the sum is {a + b}"

    @server.tool()
    async def mark(line: str, file: str, until: str) -> str:
        """Writes a line, and waits for a file."""
        with open(file, "a") as marks:
            marks.write(line + "\n")
        while not os.path.exists(until):
            await asyncio.sleep(0.02)
        return "marked"

    if transport == "stdio":
        options = {}
    server.run(transport=transport, **options)


def a2a(port, versions=("1.0",)):
    """An A2A server: of `a2a-sdk` 1.x, for these versions, or of 0.3.x, for 0.3."""
    import uvicorn
    from a2a.server.agent_execution import AgentExecutor
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.tasks import InMemoryTaskStore

    try:
        from a2a.server.apps import A2AStarletteApplication
        from a2a.types import AgentCapabilities, AgentCard, AgentSkill
        from a2a.utils import new_agent_text_message as text_message

        is_1_0 = False
    except ImportError:
        from a2a.helpers.proto_helpers import new_text_message as text_message
        from a2a.server.routes.agent_card_routes import create_agent_card_routes
        from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
        from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
        from starlette.applications import Starlette

        is_1_0 = True

    class Echo(AgentExecutor):
        """Repeats what it is told."""

        async def execute(self, context, event_queue):
            await event_queue.enqueue_event(text_message(f"you said {context.get_user_input()}"))

        async def cancel(self, context, event_queue):
            raise NotImplementedError

    skill = AgentSkill(id="echo", name="Echo", description="Repeats.", tags=["echo"])
    text = {"default_input_modes": ["text/plain"], "default_output_modes": ["text/plain"]}
    card = {"name": "Echo", "description": "Repeats what it is told.", "version": "4.2", "skills": [skill], **text}
    capabilities = AgentCapabilities(streaming=True)
    url = f"http://elsewhere.invalid:{port}/"
    if is_1_0:
        interfaces = [AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=it) for it in versions]
        card = AgentCard(supported_interfaces=interfaces, capabilities=capabilities, **card)
        handler = DefaultRequestHandler(Echo(), InMemoryTaskStore(), card)
        routes = create_jsonrpc_routes(handler, "/", enable_v0_3_compat="0.3" in versions)
        application = Starlette(routes=[*create_agent_card_routes(card), *routes])
    else:
        card = AgentCard(url=url, capabilities=capabilities, **card)
        handler = DefaultRequestHandler(Echo(), InMemoryTaskStore())
        application = A2AStarletteApplication(card, handler).build()
    uvicorn.run(application, port=port)


class Doubling(BaseHTTPRequestHandler):
    """JSON-RPC of nobody in particular, with what Python has."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        response = {"jsonrpc": "2.0", "id": request["id"], "result": f"twice is {2 * request['params']['n']}"}
        body = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def jsonrpc(port):
    """A plain JSON-RPC service."""
    ThreadingHTTPServer(("127.0.0.1", port), Doubling).serve_forever()


if __name__ == "__main__":
    both = functools.partial(a2a, versions=("1.0", "0.3"))
    stdio = functools.partial(mcp, transport="stdio")
    kinds = {"mcp": mcp, "mcp-stdio": stdio, "a2a": a2a, "a2a-compat": both, "jsonrpc": jsonrpc}
    kinds[sys.argv[1]](int(sys.argv[2]))
