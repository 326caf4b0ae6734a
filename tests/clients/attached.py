"""Published MCP servers, attached to a bridge on Kafka and NATS: called by producers that know only those, and over HTTP."""

import asyncio
import json
import os
import signal
import subprocess
import urllib.request

import nats
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conformance import free_port
from world import KAFKA, NATS, PATIENCE, RUN, until

# A tool of each server, with its arguments and a word of its answer.
CALLS = {
    "everything": ("echo", {"message": "hello"}, "hello"),
    "files": ("read_text_file", {"path": "note.txt"}, "a note"),
    "time": ("get_current_time", {"timezone": "Europe/Oslo"}, "Oslo"),
}


def servers(directory):
    """The command of each server that is there."""
    if os.environ["CLIENTS_MCP_SERVERS"]:
        modules = os.environ["CLIENTS_MCP_SERVERS"]
        node = os.environ["CLIENTS_NODE_22"]
        yield "everything", [node, f"{modules}/server-everything/dist/index.js", "stdio"]
        yield "files", [node, f"{modules}/server-filesystem/dist/index.js", directory]
    if os.environ["CLIENTS_MCP_TIME"]:
        yield "time", [os.environ["CLIENTS_MCP_TIME"]]


def topic(bus, server):
    """Where the requests for a server go."""
    return f"{RUN}.attached.{bus}.{server}"


def is_ready(admin):
    """Whether the bridge is ready."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5).status == 200
    except OSError:
        return False


def config(commands, directory, port, admin):
    """A bridge with every server on each bus."""
    agents = {
        f"{bus}-{server}": {
            "description": f"The MCP server {server}.",
            "to": {"transport": bus, "topic": topic(bus, server)},
            "attach": {"command": command, "directory": directory, "reply_topics": [f"{RUN}.attached.answers"]},
        }
        for server, command in commands.items()
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
    """A call of one of its tools."""
    name, arguments, _ = CALLS[server]
    call = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()


def over_http(url, server):
    """The answer to a POST."""
    accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    asked = urllib.request.Request(url, request(server), accept)
    said = urllib.request.urlopen(asked, timeout=PATIENCE).read().decode()
    lines = [line[5:] for line in said.splitlines() if line.startswith("data:")]
    return lines[-1] if lines else said


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
        for path in (f"rpc/{bus}-{server}", f"mcp/agents/{bus}-{server}"):
            yield path, await asyncio.to_thread(over_http, f"{base}/{path}", server)
    yield "a Kafka producer", await asyncio.to_thread(over_kafka, server)
    yield "a NATS client", await over_nats(server)


async def attached(program, directory, report):
    """Calls a tool of each server in every way."""
    commands = dict(servers(directory))
    with open(os.path.join(directory, "note.txt"), "w") as note:
        note.write("a note")
    topics = [topic("kafka", server) for server in commands] + [f"{RUN}.attached.answers", f"{RUN}.attached.replies"]
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for one in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        one.result(PATIENCE)
    port = admin_port = free_port()
    while admin_port == port:
        admin_port = free_port()
    base = f"http://127.0.0.1:{port}"
    file = os.path.join(directory, "attached.json")
    with open(file, "w") as written:
        json.dump(config(commands, directory, port, admin_port), written)
    with open(os.path.join(directory, "attached.log"), "ab") as log:
        bridge = subprocess.Popen([program, "serve", "-c", file], stdout=log, stderr=log)
    try:
        await until("the bridge with attached servers", lambda: is_ready(admin_port))
        for server in commands:
            word = CALLS[server][2]
            async for way, answer in ask(base, server):
                wrong = None if '"result"' in answer and word in answer else answer[:500]
                report.note(f"{server} by {way}", wrong)
                print(f"attached {server} by {way}: {'FAILED' if wrong else 'works'}", flush=True)
    finally:
        bridge.send_signal(signal.SIGTERM)
        bridge.wait(60)
