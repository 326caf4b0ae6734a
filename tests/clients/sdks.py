"""The clients of the SDKs of A2A and MCP against `/rpc/{agent}`, `/mcp/agents/{agent}`, `a2abus stdio` and
`/a2a/agents/{agent}`, each a program of its own."""

import asyncio
import os

from hooks import listen
from world import SDK_AGENTS

# The client starts its server, which asks the bridge.
STDIO = "a2abus stdio"
# Another card of the same agent says that it speaks A2A.
SKILLS = "skills"
HERE = os.path.dirname(os.path.abspath(__file__))


def programs():
    """Name, command, path and further arguments of each client that is there."""
    current, former = os.environ["CLIENTS_PYTHON"], os.environ["CLIENTS_PYTHON_FORMER"]
    rpc, a2a = "rpc", "a2a/agents"
    yield "a2a-sdk 1.x, protocol 1.0", [current, "a2a_1_0.py"], rpc, ["1.0"]
    yield "a2a-sdk 1.x, protocol 0.3", [current, "a2a_1_0.py"], rpc, ["0.3"]
    yield "a2a-sdk 0.3", [former, "a2a_0_3.py"], rpc, []
    for binding in ("JSONRPC", "HTTP+JSON"):
        yield f"a2a-sdk 1.x, by its card, {binding}", [current, "card_1_0.py"], a2a, [binding]
        yield f"a2a-sdk 0.3, by its card, {binding}", [former, "card_0_3.py"], a2a, [binding]
    if os.environ.get("CLIENTS_JAF"):
        yield "jaf-py", [os.environ["CLIENTS_JAF"], "jaf_2.py"], a2a, []
    for path in (rpc, "mcp/agents", STDIO):
        yield f"mcp 2.x on {path}", [current, "mcp_2.py"], path, []
        yield f"mcp 1.x on {path}", [former, "mcp_1.py"], path, []
    yield "mcp 1.x, HTTP+SSE", [former, "sse_1.py"], "mcp/agents", []
    yield "mcp 2.x, skills of A2A", [current, "skill_2.py"], SKILLS, []
    yield "mcp 1.x, skills of A2A", [former, "skill_1.py"], SKILLS, []
    if os.environ.get("CLIENTS_NODE"):
        node = os.environ["CLIENTS_NODE"]
        yield "@modelcontextprotocol/sdk, HTTP+SSE", ["node", os.path.join(node, "sse.mjs")], "mcp/agents", []
        yield "@modelcontextprotocol/sdk, skills of A2A", ["node", os.path.join(node, "skill.mjs")], SKILLS, []
        for path in (rpc, "mcp/agents", STDIO):
            yield f"@modelcontextprotocol/sdk on {path}", ["node", os.path.join(node, "mcp.mjs")], path, []
        for binding in ("JSONRPC", "HTTP+JSON"):
            yield f"@a2a-js/sdk, by its card, {binding}", ["node", os.path.join(node, "card.mjs")], a2a, [binding]


def server(bridge, door, path, agent):
    """What a client is given to connect to."""
    if path == STDIO:
        return [bridge, "stdio", "--url", door, "--agent", agent]
    if path == SKILLS:
        return [f"{door}/mcp/agents/{SKILLS}-{agent}"]
    return [f"{door}/{path}/{agent}"]


async def library_clients(bridge, door, report):
    """Each with each agent, two programs at a time."""
    listen(int(os.environ["CLIENTS_HOOKS"]))
    two = asyncio.Semaphore(2)

    async def one(name, command, path, arguments, agent):
        async with two:
            program = [command[0], os.path.join(HERE, "sdk", command[1]), *server(bridge, door, path, agent)]
            process = await asyncio.create_subprocess_exec(
                *program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            output, _ = await asyncio.wait_for(process.communicate(), 180)
        lines = output.decode().strip().splitlines()
        report.note(f"{name} with {agent}", None if process.returncode == 0 else "\n".join(lines[-15:]))
        print(f"{name} with {agent}: {'works' if process.returncode == 0 else 'FAILED'}", flush=True)

    await asyncio.gather(*(one(*program, agent) for program in programs() for agent in SDK_AGENTS))
