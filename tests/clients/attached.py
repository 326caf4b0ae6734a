"""Published servers, attached to a bridge on Kafka and NATS: called by producers that know only those, and over HTTP."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import urllib.request

import nats
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from inspector import inspected
from ports import free_port
from world import KAFKA, NATS, PATIENCE, RUN, until



def tool(name, arguments):
    """A call of a tool."""
    return {"method": "tools/call", "params": {"name": name, "arguments": arguments}}


ECHO, ADD = tool("echo", {"message": "hello"}), tool("add", {"a": 3, "b": 4})
SEND = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}}
SEND_1_0 = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
# A request to each server, and a text that its answer must contain.
CALLS = {
    "everything": (ECHO, "hello"),
    "files": (tool("read_text_file", {"path": "note.txt"}), "a note"),
    "time": (tool("get_current_time", {"timezone": "Europe/Oslo"}), "Oslo"),
    "everything-http": (ECHO, "hello"),
    "mcp-2-stdio": (ADD, "the sum is 7"),
    "mcp-2": (ADD, "the sum is 7"),
    "mcp-1": (ADD, "the sum is 7"),
    "a2a-1": ({"method": "SendMessage", "params": SEND_1_0}, "you said hello"),
    "a2a-1-by-0.3": ({"method": "message/send", "params": SEND}, "you said hello"),
    "a2a-compat": ({"method": "message/send", "params": SEND}, "you said hello"),
    "a2a-0.3": ({"method": "message/send", "params": SEND}, "you said hello"),
    "a2a-0.3-by-1": ({"method": "SendMessage", "params": SEND_1_0}, "you said hello"),
    "jsonrpc": ({"method": "double", "params": {"n": 4}}, "twice is 8"),
}


def servers(directory):
    """The command of each MCP server over stdio that is there."""
    if os.environ["CLIENTS_MCP_SERVERS"]:
        modules = os.environ["CLIENTS_MCP_SERVERS"]
        node = os.environ["CLIENTS_NODE_22"]
        yield "everything", [node, f"{modules}/server-everything/dist/index.js", "stdio"]
        yield "files", [node, f"{modules}/server-filesystem/dist/index.js", directory]
    if os.environ["CLIENTS_MCP_TIME"]:
        yield "time", [os.environ["CLIENTS_MCP_TIME"]]
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sites.py")
    yield "mcp-2-stdio", [os.environ["CLIENTS_PYTHON"], script, "mcp-stdio", "0"]


def sites():
    """The HTTP servers: what each speaks, its path, and its command for a port."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sites.py")
    current, former = os.environ["CLIENTS_PYTHON"], os.environ["CLIENTS_PYTHON_FORMER"]
    if os.environ["CLIENTS_MCP_SERVERS"]:
        everything = f"{os.environ['CLIENTS_MCP_SERVERS']}/server-everything/dist/index.js"
        node = os.environ["CLIENTS_NODE_22"]
        yield "everything-http", "mcp", "/mcp", lambda port: ["env", f"PORT={port}", node, everything, "streamableHttp"]
    for name, python, protocol, path, kind in (
        ("mcp-2", current, "mcp", "/mcp", "mcp"),
        ("mcp-1", former, "mcp", "/mcp", "mcp"),
        ("a2a-1", current, "a2a", "/", "a2a"),
        ("a2a-1-by-0.3", current, "a2a", "/", "a2a"),
        ("a2a-compat", current, "a2a", "/", "a2a-compat"),
        ("a2a-0.3", former, "a2a", "/", "a2a"),
        ("a2a-0.3-by-1", former, "a2a", "/", "a2a"),
        ("jsonrpc", current, "jsonrpc", "/", "jsonrpc"),
    ):
        yield name, protocol, path, lambda port, of=(python, kind): [of[0], here, of[1], str(port)]


class Site:
    """An HTTP server that runs."""

    def __init__(self, protocol, path, command, log):
        self.protocol, self.log, self.port = protocol, log, free_port()
        self.url, self.command = f"http://127.0.0.1:{self.port}{path}", command(self.port)
        self.start()

    def start(self):
        """Starts it, at its port."""
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def is_up(self):
        """Whether it takes connections; an error if it has ended, since another program may have its port."""
        with socket.socket() as tried:
            is_up = tried.connect_ex(("127.0.0.1", self.port)) == 0
        if self.process.poll() is not None:
            raise SystemError(f"ended with status {self.process.returncode}: {self.command}")
        return is_up

    def kill(self):
        """Kills it."""
        self.process.kill()
        self.process.wait()


def started(ends, command, log):
    """A bridge, which ends with `ends`."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    ends.callback(stop, process)
    return process


def stop(process):
    """Ends a bridge as an operator does, and kills it if that takes too long."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def topic(bus, server):
    """Where the requests for a server go."""
    return f"{RUN}.attached.{bus}.{server}"


def is_ready(admin):
    """Whether the bridge is ready."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5).status == 200
    except OSError:
        return False


def config(servers, port, admin):
    """A bridge with every server on each bus."""
    agents = {
        f"{bus}-{server}": {
            "to": {"transport": bus, "topic": topic(bus, server)},
            "attach": {**attach, "reply_topics": [f"{RUN}.attached.answers"]},
        }
        for server, attach in servers.items()
        for bus in ("kafka", "nats")
    }
    return {
        "transports": {
            "kafka": {"type": "kafka", "brokers": [KAFKA]},
            "nats": {"type": "nats", "servers": [NATS]},
        },
        "agents": agents,
        "calls": {"reply_topic": f"{RUN}.attached.replies", "reply_partitions": 1},
        "http": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{admin}"},
    }


def request(server):
    """The request to a server."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, **CALLS[server][0]}).encode()


def over_http(url, server):
    """The answer to a POST."""
    accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if CALLS[server][0]["method"] == "SendMessage":
        accept["a2a-version"] = "1.0"
    http_request = urllib.request.Request(url, request(server), accept)
    body = urllib.request.urlopen(http_request, timeout=PATIENCE).read().decode()
    lines = [line[5:] for line in body.splitlines() if line.startswith("data:")]
    return lines[-1] if lines else body


def over_kafka(server):
    """The answer to a record."""
    place = f"{RUN}.attached.answers"
    reader = Consumer({"bootstrap.servers": KAFKA, "group.id": "plain", "enable.auto.commit": False})
    _, end = reader.get_watermark_offsets(TopicPartition(place, 0), PATIENCE)
    reader.assign([TopicPartition(place, 0, end)])
    producer = Producer({"bootstrap.servers": KAFKA})
    producer.produce(topic("kafka", server), request(server), headers={"kafka_replyTopic": place})
    producer.flush(PATIENCE)
    answer = reader.poll(PATIENCE)
    reader.close()
    return answer.value().decode() if answer else "no answer"


async def over_nats(server):
    """The answer to a request."""
    client = await nats.connect(NATS)
    answer = await client.request(topic("nats", server), request(server), timeout=PATIENCE)
    await client.close()
    return answer.data.decode()


async def ask(base, server):
    """Asks a server in every way; yields each way and its answer."""
    for bus in ("kafka", "nats"):
        doors = {"tools/call": ["mcp/agents"], "SendMessage": ["a2a/agents"], "message/send": ["a2a/agents"]}
        for door in ["rpc", *doors.get(CALLS[server][0]["method"], [])]:
            path = f"{door}/{bus}-{server}"
            yield path, await asyncio.to_thread(over_http, f"{base}/{path}", server)
    yield "a Kafka producer", await asyncio.to_thread(over_kafka, server)
    yield "a NATS client", await over_nats(server)


async def restarted(base, server, site):
    """Kills a server, and starts it again; what is wrong with the answers meanwhile and afterwards."""
    path, expected = f"{base}/rpc/nats-{server}", CALLS[server][1]
    site.kill()
    answer = await asyncio.to_thread(over_http, path, server)
    if "agent_unavailable" not in answer and "UNAVAILABLE" not in answer:
        return f"while it is away: {answer[:500]}"
    site.start()
    await until(f"{server} after its restart", lambda: expected in over_http(path, server))
    return None


def clients():
    """The clients of the SDKs of MCP with all that a server can do."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdk")
    yield "mcp 2.x", [os.environ["CLIENTS_PYTHON"], os.path.join(here, "capable_2.py")]
    yield "mcp 1.x", [os.environ["CLIENTS_PYTHON_FORMER"], os.path.join(here, "capable_1.py")]
    if os.environ["CLIENTS_NODE"]:
        yield "@modelcontextprotocol/sdk", ["node", os.path.join(os.environ["CLIENTS_NODE"], "capable.mjs")]


def inspections():
    """The requests of the inspector to the server `everything`: its arguments, and a check of the answer."""
    names = lambda kind: lambda answer: [one["name"] for one in answer[kind]]
    yield ["tools/list"], lambda answer: "echo" in names("tools")(answer)
    echo = ["--tool-name", "echo", "--tool-arg", "message=hello"]
    yield ["tools/call", *echo], lambda answer: "hello" in answer["content"][0]["text"]
    yield ["resources/list"], lambda answer: len(answer["resources"]) > 0
    yield ["prompts/list"], lambda answer: "args-prompt" in names("prompts")(answer)
    oslo = ["--prompt-name", "args-prompt", "--prompt-args", "city=Oslo"]
    yield ["prompts/get", *oslo], lambda answer: "Oslo" in answer["messages"][0]["content"]["text"]


async def modern(base, server, report):
    """A client whose requests stand alone, with a server that has sessions."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdk")
    for bus in ("kafka", "nats"):
        command = [os.environ["CLIENTS_PYTHON"], os.path.join(here, "add_2.py"), f"{base}/mcp/agents/{bus}-{server}"]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        wrong = (ended.stdout + ended.stderr)[-1500:] if ended.returncode else None
        report.note(f"mcp 2.x without a session with {bus}-{server}", wrong)
        print(f"mcp 2.x without a session with {bus}-{server}: {'FAILED' if wrong else 'works'}", flush=True)


async def skilled(base, server, report):
    """Clients of A2A, for which each tool of an MCP server is a skill in its card."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdk")
    request, expected = CALLS[server]
    called = [request["params"]["name"], json.dumps(request["params"]["arguments"]), expected]
    for sdk, python, script in (
        ("a2a-sdk 1.x", os.environ["CLIENTS_PYTHON"], "tool_1_0.py"),
        ("a2a-sdk 0.3", os.environ["CLIENTS_PYTHON_FORMER"], "tool_0_3.py"),
    ):
        for bus, binding in (("kafka", "JSONRPC"), ("nats", "HTTP+JSON")):
            command = [python, os.path.join(here, script), f"{base}/a2a/agents/{bus}-{server}", binding, *called]
            ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
            wrong = (ended.stdout + ended.stderr)[-1500:] if ended.returncode else None
            report.note(f"{sdk} with a tool of {bus}-{server}", wrong)
            print(f"{sdk} with a tool of {bus}-{server}: {'FAILED' if wrong else 'works'}", flush=True)


async def capable(base, server, directory, report):
    """Every client with a server that has resources, prompts and questions, on each bus."""
    way = "http" if server.endswith("-http") else "stdio"
    for bus in ("kafka", "nats"):
        url = f"{base}/mcp/agents/{bus}-{server}"
        for name, command in clients():
            run = asyncio.to_thread(
                subprocess.run, [*command, url, way], capture_output=True, text=True, timeout=120
            )
            ended = await run
            wrong = (ended.stdout + ended.stderr)[-1500:] if ended.returncode else None
            report.note(f"{name} with all of {bus}-{server}", wrong)
            print(f"{name} with all of {bus}-{server}: {'FAILED' if wrong else 'works'}", flush=True)
        for (method, *arguments), is_right in inspections() if os.environ["CLIENTS_INSPECTOR"] else ():
            wrong = await asyncio.to_thread(inspected, url, method, arguments, is_right, directory)
            report.note(f"inspector, {method} of {bus}-{server}", wrong)
            print(f"inspector, {method} of {bus}-{server}: {'FAILED' if wrong else 'works'}", flush=True)


async def attached(program, directory, report):
    """Calls a tool of each server in every way."""
    with open(os.path.join(directory, "note.txt"), "w") as note:
        note.write("a note")
    with contextlib.ExitStack() as ends:
        log = ends.enter_context(open(os.path.join(directory, "attached.log"), "ab"))
        running = {}
        for name, protocol, path, command in sites():
            running[name] = Site(protocol, path, command, log)
            ends.callback(running[name].kill)
        await with_sites(program, directory, running, ends, log, report)


async def with_sites(program, directory, running, ends, log, report):
    """Calls a tool of each server in every way, while the HTTP servers run."""
    for site in running.values():
        await until(f"{site.command}", site.is_up)
    own = {name: {"command": command, "directory": directory} for name, command in servers(directory)}
    own |= {name: {"url": site.url, "protocol": site.protocol} for name, site in running.items()}
    for server in own:
        if server.startswith("everything"):
            # It has questions for the client of its call.
            own[server]["concurrency"] = 1
    topics = [topic("kafka", server) for server in own] + [f"{RUN}.attached.answers", f"{RUN}.attached.replies"]
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for one in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        one.result(PATIENCE)
    port, admin_port = free_port(), free_port()
    base = f"http://127.0.0.1:{port}"
    file = os.path.join(directory, "attached.json")
    with open(file, "w") as written:
        json.dump(config(own, port, admin_port), written)
    started(ends, [program, "serve", "-c", file], log)
    await until("the bridge with attached servers", lambda: is_ready(admin_port))
    for server in own:
        expected = CALLS[server][1]
        async for way, answer in ask(base, server):
            wrong = None if '"result"' in answer and expected in answer else answer[:500]
            report.note(f"{server} by {way}", wrong)
            print(f"attached {server} by {way}: {'FAILED' if wrong else 'works'}", flush=True)
        if server.startswith("everything"):
            await capable(base, server, directory, report)
        if server.startswith("mcp-"):
            await modern(base, server, report)
        if CALLS[server][0]["method"] == "tools/call":
            await skilled(base, server, report)
    for server, site in running.items():
        wrong = await restarted(base, server, site)
        report.note(f"{server} killed and started again", wrong)
        print(f"attached {server} killed and started again: {'FAILED' if wrong else 'works'}", flush=True)


async def chain(program, directory, report):
    """A client, a bridge, Kafka, `a2abus attach`, a server: the bridge before the server is killed in a call."""
    marks, go = os.path.join(directory, "marks"), os.path.join(directory, "go")
    name, port, admin_port = f"{RUN}.chain", free_port(), free_port()
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for one in admin.create_topics([NewTopic(f"{name}.{it}", 1, 1) for it in ("requests", "replies")]).values():
        one.result(PATIENCE)
    to = {"transport": "kafka", "topic": f"{name}.requests"}
    common = {
        "transports": {"kafka": {"type": "kafka", "brokers": [KAFKA]}},
        "state": {"log": "kafka", "create": True, "prefix": f"{name}.state"},
        "calls": {"timeout": "60s", "reply_topic": f"{name}.replies", "reply_partitions": 1},
        "http": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{admin_port}"},
    }
    files = {side: os.path.join(directory, f"chain-{side}.json") for side in ("front", "back")}
    for side, more in (("front", {"agents": {"chain": {"description": "Marks.", "to": to}}}), ("back", {})):
        with open(files[side], "w") as written:
            json.dump(common | more, written)
    python, here = os.environ["CLIENTS_PYTHON"], os.path.dirname(os.path.abspath(__file__))

    def mark(line):
        return ask(line, tool("mark", {"line": line, "file": marks, "until": go}))

    def ask(line, call):
        body = json.dumps({"jsonrpc": "2.0", "id": line, **call}).encode()
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        http_request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp/agents/chain", body, headers)
        response = urllib.request.urlopen(http_request, timeout=PATIENCE).read().decode()
        lines = [line[5:] for line in response.splitlines() if line.startswith("data:")]
        return lines[-1] if lines else response

    async def is_there():
        return '"result"' in await asyncio.to_thread(ask, "add", ADD)

    def marked():
        return open(marks).read().split() if os.path.exists(marks) else []

    with contextlib.ExitStack() as ends:
        log = ends.enter_context(open(os.path.join(directory, "attached.log"), "ab"))
        site = Site("mcp", "/mcp", lambda port: [python, os.path.join(here, "sites.py"), "mcp", str(port)], log)
        ends.callback(site.kill)
        await until("the server of the chain", site.is_up)
        attach = [program, "attach", "chain", "-c", files["back"], "--url", site.url, "--topic", to["topic"]]
        attach += ["--no-announce"]
        started(ends, [program, "serve", "-c", files["front"]], log)
        back = started(ends, attach, log)
        await until("the bridge of the chain", lambda: is_ready(admin_port))
        await until("the bridge before the server", is_there)
        first_call = asyncio.create_task(asyncio.to_thread(mark, "first"))
        await until("the call in the server", lambda: marked() == ["first"])
        back.kill()
        back.wait()
        open(go, "w").close()
        started(ends, attach, log)
        answer = await first_call
        # Kafka gives the topic to the new process once it has missed the old one for long enough.
        await until("the chain after its restart", is_there, 2 * PATIENCE)
        after = await asyncio.to_thread(mark, "second")
        has_outcome = any(outcome in answer for outcome in ("answer_lost", '"timeout"', "marked"))
        is_right = has_outcome and '"result"' in after
        wrong = None if is_right and marked() == ["first", "second"] else f"{answer[:300]} {after[:300]} {marked()}"
        report.note("a chain whose bridge was killed in a call", wrong)
        print(f"a chain whose bridge was killed in a call: {wrong or answer[:200]}", flush=True)
