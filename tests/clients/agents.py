"""The agents in Python, each in the style of its library. Requests are JSON-RPC; each agent answers in its own family.

The request tells an agent what to do: `behave` in `params.arguments` (`tools/call`) or `params.metadata`
(`message/stream`) is `unary`, `stream`, `error`, `silence`, `twice`, or `hold`: answer when the control subject permits it.
Every answer repeats the `nonce` of its request, which reveals crossed answers.
"""

import asyncio
import functools
import json
import threading
import time
import uuid

import nats
from confluent_kafka import Consumer, Producer, TopicPartition

import servers
from world import ANSWERS, CONTROL, KAFKA, KAFKA_AGENTS, NATS, NATS_AGENTS, SDK_AGENTS, agent_topic

PARTS = 5
ERROR = {"code": -32050, "message": "no such city"}


def parse_request(body):
    """The id, the behaviour and the nonce of a request."""
    request = json.loads(body)
    params = request.get("params", {})
    options = params.get("arguments") or params.get("metadata") or {}
    return request.get("id"), options.get("behave"), options.get("nonce")


def answers_for(behave, nonce):
    """The answers to make, as (kind, number, content): kind is `part`, `last` or `error`."""
    weather = {"celsius": -3, "nonce": nonce}
    match behave:
        case "unary" | "hold":
            return [("last", 1, weather)]
        case "stream":
            parts = [("part", number, {"part": number, "nonce": nonce}) for number in range(1, PARTS)]
            return [*parts, ("last", PARTS, {"part": PARTS, "nonce": nonce})]
        case "error":
            return [("error", 1, ERROR)]
        case "twice":
            return [("last", number, {**weather, "answer": number}) for number in (1, 2)]
        case _:
            return []


# ---- The families: how one answer is written ----


def json_rpc(id, behave, kind, number, content):
    """A JSON-RPC response; the parts of a stream are the updates of A2A 0.3."""
    head = {"jsonrpc": "2.0", "id": id}
    if kind == "error":
        return {**head, "error": content}
    if behave != "stream":
        return {**head, "result": content}
    task = {"taskId": "t-1", "contextId": "c-1"}
    if kind == "part":
        artifact = {"artifactId": "a-1", "parts": [{"kind": "data", "data": content}]}
        return {**head, "result": {"kind": "artifact-update", **task, "artifact": artifact}}
    status = {"kind": "status-update", **task, "status": {"state": "completed"}, "final": True}
    return {**head, "result": {**status, "metadata": content}}


def e2a(id, behave, kind, number, content):
    """An E2A response record."""
    record = {
        "protocol_version": "1.0",
        "response_id": f"{id}:{number}",
        "request_id": id,
        "sequence": number - 1,
        "is_final": kind != "part",
        "status": {"part": "in_progress", "last": "succeeded", "error": "failed"}[kind],
        "response_kind": {"part": "e2a.chunk", "last": "e2a.complete", "error": "e2a.error"}[kind],
    }
    body = {"delta_kind": "custom", "delta": content} if kind == "part" else {"result": content}
    return {**record, "body": content if kind == "error" else body}


def a2e(id, behave, kind, number, content):
    """An A2E message, as its Python SDK writes it."""
    head = {"id": uuid.uuid4().hex, "version": "1.0", "ts": time.time(), "req_id": id}
    if kind == "error":
        error = {"code": "tool_error", "message": content["message"], "detail": {}, "retryable": False}
        return {"type": "error", **head, **error, "capability_name": "tools"}
    if kind == "part":
        return {"type": "tool/event", **head, "kind": "progress", "data": content, "seq": number}
    result = {"success": True, "tool_name": "weather", "duration_ms": 1, "data": content}
    return {"type": "tool/call/resp", **head, "data": result, "created_at": head["ts"]}


def legacy(id, behave, kind, number, content):
    """A legacy A2A message with a FIPA act."""
    act = {"part": "AGREE", "last": "INFORM", "error": "FAILURE"}[kind]
    return {
        "protocol": "A2A",
        "version": "1.0",
        "messageId": uuid.uuid4().hex,
        "messageType": act,
        "sourceAgent": {"agentId": "legacy"},
        "targetAgent": {"agentId": "caller"},
        "payload": content,
        "metadata": {"correlationId": id},
    }


def cloudevent(id, behave, kind, number, content):
    """A CloudEvent whose data are plain JSON, or a JSON-RPC error."""
    data = {"jsonrpc": "2.0", "id": id, "error": content} if kind == "error" else content
    return {
        "specversion": "1.0",
        "id": uuid.uuid4().hex,
        "source": "/agents/weather",
        "type": "com.example.weather",
        "datacontenttype": "application/json",
        "mcptype": "stream" if kind == "part" else "response",
        "collaborationid": id,
        "data": data,
    }


FAMILIES = {"e2a": e2a, "a2e": a2e, "legacy": legacy, "cloudevent": cloudevent}


def family(agent):
    """How an agent writes, by its name."""
    return FAMILIES.get(agent.split("-", 1)[1], json_rpc)


def answers(agent, body):
    """The bodies that an agent answers a request with."""
    if agent in SDK_AGENTS:
        return servers.answered(body)
    id, behave, nonce = parse_request(body)
    return [json.dumps(family(agent)(id, behave, *one)).encode() for one in answers_for(behave, nonce)]


# ---- Holding answers back ----


class Held:
    """Requests whose answers wait for the control subject."""

    def __init__(self):
        self.lock, self.waiting, self.open = threading.Lock(), [], False

    def keep(self, answer):
        """Keeps it, unless nothing is held any more."""
        with self.lock:
            if not self.open:
                self.waiting.append(answer)
                return True
        return False

    def take(self, count):
        """The first `count`, in the order they came."""
        with self.lock:
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def set_open(self, is_open):
        """Whether requests to hold are answered at once from now on. Opening drops what was held."""
        with self.lock:
            self.open, self.waiting = is_open, []


# ---- NATS ----


async def nats_answer(client, agent, message):
    """Answers on the reply subject, as the agent does."""
    for body in answers(agent, message.data):
        if agent == "nats-respond":
            # Copies the headers of the request.
            await message.respond(body)
        elif agent == "nats-cloudevent":
            await client.publish(message.reply, *binary(body))
        else:
            await client.publish(message.reply, body)


def binary(body):
    """A CloudEvent in the binary mode of the NATS binding."""
    event = json.loads(body)
    data = json.dumps(event.pop("data")).encode()
    return data, "", {f"ce-{name}": value for name, value in event.items()}


async def serve_nats(client, held, agents):
    """Reads the subjects of the agents."""

    async def on(agent, message):
        _, behave, _ = parse_request(message.data)
        if behave == "hold" and held.keep((agent, message)):
            return
        await nats_answer(client, agent, message)

    for agent in agents:
        await client.subscribe(agent_topic(agent), cb=functools.partial(on, agent))


# ---- Kafka ----


class KafkaAgents(threading.Thread):
    """The agents on Kafka: each reads the one partition of its topic."""

    def __init__(self, held, agents):
        super().__init__(daemon=True)
        self.held, self.agents, self.stopping = held, agents, False
        self.producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 0})
        self.consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": "unused", "enable.auto.commit": False})

    def run(self):
        by_topic = {agent_topic(agent): agent for agent in self.agents}
        self.consumer.assign([TopicPartition(topic, 0, 0) for topic in by_topic])
        while not self.stopping:
            self.producer.poll(0)
            message = self.consumer.poll(0.1)
            if message is None or message.error():
                continue
            agent = by_topic[message.topic()]
            _, behave, _ = parse_request(message.value())
            if behave == "hold" and self.held.keep((agent, message)):
                continue
            self.answer(agent, message)

    def answer(self, agent, message):
        """Answers at the reply address, as the agent does."""
        headers = dict(message.headers() or [])
        for body in answers(agent, message.value()):
            if agent == "kafka-plain":
                # Knows nothing but the name of the topic. One key, so that its answers stay in order.
                self.producer.produce(ANSWERS, body, key=json.dumps(parse_request(message.value())[0]))
                continue
            if "ce_replyto" not in headers:
                print(f"{agent}: no reply address: {headers}", flush=True)
                return
            to = {"topic": headers["ce_replyto"].decode(), "partition": int(headers["ce_replypartition"])}
            if agent == "kafka-copies":
                to["headers"] = message.headers()
            elif agent == "kafka-cloudevent":
                to["headers"] = {"content-type": b"application/cloudevents+json"}
            self.producer.produce(value=body, **to)
        self.producer.poll(0)


# ---- Control ----


async def main():
    """Runs all agents until the control subject says `quit`."""
    client = await nats.connect(NATS)
    on_nats, on_kafka = Held(), Held()
    kafka = KafkaAgents(on_kafka, [*KAFKA_AGENTS, "kafka-sdk"])
    await serve_nats(client, on_nats, [agent for agent in (*NATS_AGENTS, "nats-sdk") if agent != "nats-go"])
    kafka.start()
    quit = asyncio.Event()

    async def control(message):
        command, _, number = message.data.decode().partition(" ")
        match command:
            case "release":
                for agent, request in on_nats.take(int(number)):
                    await nats_answer(client, agent, request)
                for agent, request in on_kafka.take(int(number)):
                    kafka.answer(agent, request)
            case "open" | "close":
                on_nats.set_open(command == "open")
                on_kafka.set_open(command == "open")
            case "quit":
                quit.set()
        await message.respond(json.dumps([len(on_nats.waiting), len(on_kafka.waiting)]).encode())

    await client.subscribe(CONTROL, cb=control)
    await client.flush()
    await quit.wait()
    kafka.stopping = True
    await asyncio.to_thread(kafka.join)
    kafka.producer.flush(10)
    kafka.consumer.close()
    await client.drain()


if __name__ == "__main__":
    asyncio.run(main())
