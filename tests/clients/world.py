"""What all programs of this test share: names on the brokers, the bridge as a process, waiting with a deadline."""

import asyncio
import json
import os
import re
import signal
import time
import urllib.request

from confluent_kafka.admin import AdminClient, NewTopic

KAFKA = os.environ["A2ABUS_TEST_KAFKA"]
NATS = os.environ["A2ABUS_TEST_NATS"]
# Of this run: the brokers are shared with other tests.
RUN = os.environ["CLIENTS_RUN"]

# What a slow machine may need, in seconds: 5,000 exchanges at once take 15 s on two idle cores, and over 50 s beside other
# work. Nothing waits that long when all is well.
PATIENCE = 180.0
# How long the bridge waits for an answer that is held back, and how long a client waits: longer than the bridge does.
HELD_BACK = "240s"
CLIENT_PATIENCE = 300.0

NATS_AGENTS = [
    "nats-respond",
    "nats-bare",
    "nats-go",
    "nats-e2a",
    "nats-a2e",
    "nats-legacy",
    "nats-cloudevent",
]
KAFKA_AGENTS = [
    "kafka-copies",
    "kafka-plain",
    "kafka-e2a",
    "kafka-a2e",
    "kafka-legacy",
    "kafka-cloudevent",
]
# Agents that answer as MCP servers and A2A agents do (servers.py), for the clients of their SDKs.
SDK_AGENTS = ["nats-sdk", "kafka-sdk"]

CONTROL = f"{RUN}.control"
REQUESTS = f"{RUN}.requests"
REPLIES = f"{RUN}.replies"
JETSTREAM_REQUESTS = f"{RUN}.js.requests"
JETSTREAM_REPLIES = f"{RUN}.js.replies"
# The topic that the bridge itself reads answers from.
ANSWERS = f"{RUN}.answers"
# The topics of the requesters, one a way of asking: two partitions, so that a partition that is named matters.
CE_REPLIES = f"{REPLIES}.ce"
SPRING_REPLIES = f"{REPLIES}.spring"


def agent_topic(agent):
    """The topic or subject on which an agent reads its requests."""
    return f"{RUN}.agents.{agent}"


async def until(what, condition, patience=PATIENCE):
    """Waits until `condition` (a function or a coroutine function) is true, and returns its result."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:.0f} s: {what}")
        await asyncio.sleep(0.02)


async def stop(process):
    """Ends a process as an operator does, and kills it if that takes too long."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 60)
    except TimeoutError:
        process.kill()
        await process.wait()


def make_topics():
    """Creates the Kafka topics of this run."""
    topics = [NewTopic(agent_topic(agent), 1, 1) for agent in (*KAFKA_AGENTS, "kafka-sdk", "kafka-spring")]
    topics += [NewTopic(topic, 2, 1) for topic in (REQUESTS, CE_REPLIES, SPRING_REPLIES, f"{REPLIES}.template")]
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE)


def delete_topics():
    """Deletes them, and those that the bridge made."""
    admin = AdminClient({"bootstrap.servers": KAFKA})
    ours = [name for name in admin.list_topics(timeout=PATIENCE).topics if name.startswith(RUN + ".")]
    for made in (admin.delete_topics(ours) if ours else {}).values():
        made.result(PATIENCE)


class Bridge:
    """The bridge as a process on free ports, which may be killed and started again."""

    def __init__(self, program, directory, door, admin):
        self.program, self.directory = program, directory
        self.door, self.admin = f"http://127.0.0.1:{door}", f"http://127.0.0.1:{admin}"
        self.ports = (door, admin)
        self.process = None

    def configuration(self, timeout):
        """JSON is YAML."""
        door, admin = self.ports
        dead_letter = {"transport": "kafka", "topic": f"{RUN}.dlq"}
        streams = [{"name": stream_name("requests"), "subjects": [JETSTREAM_REQUESTS], "storage": "memory"}]
        return {
            "instance": "clients",
            "transports": {
                # A member of its group by name takes its partitions up again at once after a kill.
                "kafka": {"type": "kafka", "brokers": [KAFKA], "instance_id": RUN},
                "nats": {
                    "type": "nats",
                    "servers": [NATS],
                    # A request that the killed bridge had is delivered again after this time.
                    "jetstream": {"manage": True, "ack_wait": "10s", "streams": streams},
                },
            },
            "bindings": [
                {"name": "nats", "transport": "nats", "topics": [f"{RUN}.nats.requests"], "dead_letter": dead_letter},
                {
                    "name": "jetstream",
                    "transport": "nats",
                    "topics": [JETSTREAM_REQUESTS],
                    "stream": stream_name("requests"),
                    "durable": f"{RUN}",
                    "reply_topics": [f"{JETSTREAM_REPLIES}.*"],
                    "dead_letter": dead_letter,
                },
                {
                    "name": "kafka",
                    "transport": "kafka",
                    "topics": [REQUESTS],
                    "group": RUN,
                    "reply_topics": [f"{REPLIES}.*"],
                    "dead_letter": dead_letter,
                },
            ],
            "routes": [
                {
                    "name": bus,
                    "when": {"targetagent": f"{bus}-*"},
                    "to": [{"transport": bus, "topic": agent_topic("{targetagent}")}],
                }
                for bus in ("nats", "kafka")
            ],
            "agents": {
                agent: {
                    "description": "The weather of a city.",
                    "skills": [{"id": "forecast", "description": "The weather of a city."}],
                }
                for agent in SDK_AGENTS
            }
            | {
                f"skills-{agent}": {
                    "description": "The weather of a city.",
                    "protocol": "a2a",
                    "skills": [{"id": "forecast", "description": "The weather of a city."}],
                    "to": {"transport": agent.split("-")[0], "topic": agent_topic(agent)},
                }
                for agent in SDK_AGENTS
            }
            | {
                # The agent of the examples in the README.
                "weather": {
                    "description": "The weather of a city.",
                    # The agent of the tests speaks MCP too; the README's does not.
                    "protocol": "a2a",
                    "skills": [{"id": "forecast", "description": "The weather of a city."}],
                    "to": {"transport": "nats", "topic": agent_topic("nats-sdk")},
                }
            },
            "a2a": {
                "push_notifications": {
                    "enabled": True,
                    "allowed_urls": [f"http://127.0.0.1:{os.environ['CLIENTS_HOOKS']}/"],
                }
            },
            "calls": {"timeout": timeout, "reply_topic": ANSWERS, "reply_partitions": 2},
            "http": {
                "listen": f"127.0.0.1:{door}",
                "drain_grace": "5s",
                # All clients have one address, and share two cores: 1,000 connect before the first of them sends.
                "header_timeout": HELD_BACK,
                "max_connections_per_client": 4096,
            },
            "admin": {"listen": f"127.0.0.1:{admin}"},
        }

    async def start(self, timeout):
        """Starts it, with that `calls.timeout`, and waits until it is ready."""
        path = os.path.join(self.directory, "a2abus.yaml")
        with open(path, "w") as file:
            json.dump(self.configuration(timeout), file, indent=1)
        with open(os.path.join(self.directory, "serve.log"), "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                self.program, "serve", "-c", path, stdout=log, stderr=log
            )
        await until("the bridge is ready", self.ready)

    async def ready(self):
        """Whether it is ready; an error when it has ended."""
        if self.process.returncode is not None:
            raise RuntimeError(f"the bridge has ended with {self.process.returncode}, see serve.log")
        return await asyncio.to_thread(self._get, "/readyz") is not None

    def _get(self, path):
        try:
            with urllib.request.urlopen(self.admin + path, timeout=5) as response:
                return response.read().decode()
        except OSError:
            return None

    async def metric(self, name, **labels):
        """The sum of a counter or gauge over the lines that have these labels."""
        text = await asyncio.to_thread(self._get, "/metrics") or ""
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(r"(\w+)(\{.*\})? (\S+)", line)
            if (
                found
                and found[1] == name
                and all(f'{key}="{value}"' in (found[2] or "") for key, value in labels.items())
            ):
                total += float(found[3])
        return total

    async def kill(self):
        """As `kill -9` does."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self):
        """Ends it as an operator does."""
        if self.process is not None:
            await stop(self.process)


def stream_name(kind):
    """A stream of this run."""
    return f"{RUN}-{kind}"
