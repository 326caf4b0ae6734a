"""Two replicas that share their state, and the clients of the MCP SDKs in TypeScript and Python: what they begin at one
replica goes on at the other."""

import asyncio
import json
import os

import nats

from conformance import is_up
from ports import free_port
from world import NATS, PATIENCE, RUN, stop, until

STEPS = 5


def configuration(door, topic):
    """One of the replicas."""
    return {
        "transports": {"nats": {"type": "nats", "servers": [NATS]}},
        "agents": {"walker": {"description": "Walks.", "to": {"transport": "nats", "topic": topic}}},
        "state": {"log": "nats", "create": True, "prefix": prefix_of(topic)},
        "http": {"listen": f"127.0.0.1:{door}"},
        "admin": {"enabled": False},
    }


def prefix_of(topic):
    """How the subjects of the state's streams begin."""
    return topic.replace(".", "-")


class Walker:
    """An MCP server on NATS: one tool sends progress, one waits for its cancel, one returns the number of cancels."""

    def __init__(self, client):
        self.client, self.cancels = client, 0

    async def take(self, message):
        """Answers a request; a notification is counted if it is a cancel."""
        request = json.loads(message.data)
        id, params = request.get("id"), request.get("params") or {}
        if request.get("method") == "notifications/cancelled":
            self.cancels += 1
        if id is None:
            return
        reply = lambda members: self.client.publish(message.reply, json.dumps({"jsonrpc": "2.0", **members}).encode())
        if request["method"] == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("walk", "hold", "cancels")]
            return await reply({"id": id, "result": {"tools": tools}})
        if request["method"] != "tools/call":
            return await reply({"id": id, "error": {"code": -32601, "message": "Method not found"}})
        token = (params.get("_meta") or {}).get("progressToken")
        walks = {"walk": STEPS, "hold": 1}.get(params["name"], 0)
        for step in range(1, walks + 1):
            progress = {"progressToken": token, "progress": step}
            await reply({"method": "notifications/progress", "params": progress})
        if params["name"] != "hold":
            text = "there" if walks else str(self.cancels)
            await reply({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


def clients():
    """Each client by its name, and its command."""
    resume = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdk", "resume.py")
    yield "mcp 2.x", [os.environ["CLIENTS_PYTHON"], resume]
    yield "mcp 1.x", [os.environ["CLIENTS_PYTHON_FORMER"], resume]
    if os.environ.get("CLIENTS_NODE"):
        yield "@modelcontextprotocol/sdk", ["node", os.path.join(os.environ["CLIENTS_NODE"], "resume.mjs")]


async def replicas(program, directory, report):
    """Runs each client once."""
    topic, client = f"{RUN}.walker", await nats.connect(NATS)
    walker = Walker(client)
    await client.subscribe(topic, cb=walker.take)
    await client.flush()
    doors, processes = [free_port(), free_port()], []
    try:
        for door in doors:
            path = os.path.join(directory, f"replica-{door}.yaml")
            with open(path, "w") as file:
                json.dump(configuration(door, topic), file)
            with open(os.path.join(directory, f"replica-{door}.log"), "ab") as log:
                command = [program, "serve", "-c", path]
                processes.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        for door in doors:
            await until("the replica is up", lambda: is_up(f"http://127.0.0.1:{door}"))
        urls = [f"http://127.0.0.1:{door}/mcp/agents/walker" for door in doors]
        pipe = asyncio.subprocess.PIPE
        for name, command in clients():
            walker.cancels = 0
            process = await asyncio.create_subprocess_exec(*command, *urls, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
            output, _ = await asyncio.wait_for(process.communicate(), 120)
            wrong = output.decode()[-1500:] if process.returncode else None
            report.note(f"{name} at two replicas", wrong)
            print(f"{name} at two replicas: {'FAILED' if wrong else 'works'}", flush=True)
    finally:
        for process in processes:
            await stop(process)
        streams = client.jetstream(timeout=PATIENCE)
        for stream in await streams.streams_info():
            if stream.config.name.startswith(f"{prefix_of(topic)}_".upper()):
                await streams.delete_stream(stream.config.name)
        await client.close()
