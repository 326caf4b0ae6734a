"""The requesters: a client of each transport, which sends requests and collects answers.

Each has `ask(agent, request, nonce, parts)`, which sends a JSON-RPC request and returns the first `parts` answers, and
`later()`, which returns the answers that came to requests that had all of theirs.
"""

import asyncio
import json
import os
import threading

import nats
from confluent_kafka import Consumer, Producer, TopicPartition

from world import (
    CE_REPLIES,
    CLIENT_PATIENCE,
    JETSTREAM_REPLIES,
    JETSTREAM_REQUESTS,
    KAFKA,
    NATS,
    REQUESTS,
    RUN,
    SPRING_REPLIES,
    stream_name,
)


class Inbox:
    """Answers by correlation: whoever waits for a key takes them in their order."""

    def __init__(self):
        self.queues, self.late = {}, []

    def open(self, key):
        """Collects answers to this key from now on."""
        self.queues[key] = asyncio.Queue()

    def put(self, key, body):
        """An answer has come."""
        queue = self.queues.get(key)
        if queue is None:
            self.late.append((key, body))
        else:
            queue.put_nowait(body)

    async def take(self, key, count):
        """The next answers to a key, then no more of it."""
        try:
            return [json.loads(await asyncio.wait_for(self.queues[key].get(), CLIENT_PATIENCE)) for _ in range(count)]
        finally:
            queue = self.queues.pop(key)
            while not queue.empty():
                self.late.append((key, queue.get_nowait()))


class Curl:
    """The program curl on `/rpc`, the agent in `params._agentId`."""

    name = "curl on /rpc"

    def __init__(self, door):
        self.door, self.late = door, []

    async def open(self):
        """Nothing to connect."""

    async def close(self):
        """Nor to close."""

    async def ask(self, agent, request, nonce, parts=1, watch=False):
        """One call of the program."""
        arguments = ["-sS", "-N", "--max-time", str(CLIENT_PATIENCE), "-H", "content-type: application/json"]
        process = await asyncio.create_subprocess_exec(
            "curl", *arguments, "-d", request, f"{self.door}/rpc", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if not output.startswith(b"data:") and b"\ndata:" not in output:
            return [json.loads(output)]
        got = [json.loads(line[5:]) for line in output.splitlines() if line.startswith(b"data:")]
        self.late += [(nonce, one) for one in got[parts:]]
        return got[:parts]

    def later(self):
        """Parts beyond the requested ones."""
        return self.late


class Door:
    """The same door by as many connections as there are requests, which curl would need a process each for."""

    name = "HTTP on /rpc"

    def __init__(self, door):
        self.host, port = door.removeprefix("http://").split(":")
        self.port = int(port)

    async def open(self):
        """Connects for each request."""

    async def close(self):
        """Each request closes its own."""

    async def ask(self, agent, request, nonce, parts=1, watch=False):
        """One HTTP request on a connection of its own."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        head = f"POST /rpc HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {len(request)}\r\n"
        writer.write(f"{head}content-type: application/json\r\naccept: application/json\r\n\r\n".encode() + request)
        try:
            answer = await asyncio.wait_for(reader.read(), CLIENT_PATIENCE)
        finally:
            writer.close()
        return [json.loads(answer.partition(b"\r\n\r\n")[2])]

    def later(self):
        """One answer is all that HTTP has room for."""
        return []


class Nats:
    """nats-py: `request` where one answer is awaited, an inbox of its own for the others."""

    name = "NATS request"
    subject = f"{RUN}.nats.requests"

    def __init__(self):
        self.inbox = Inbox()

    async def open(self):
        """Connects."""
        self.client = await nats.connect(NATS)
        self.prefix = self.client.new_inbox()
        await self.client.subscribe(f"{self.prefix}.*", cb=self.on)
        await self.client.flush()

    async def on(self, message):
        """An answer has come to the inbox."""
        self.inbox.put(message.subject.removeprefix(self.prefix + "."), message.data)

    async def close(self):
        """Closes the connection."""
        await self.client.drain()

    async def ask(self, agent, request, nonce, parts=1, watch=False):
        """`watch`: an inbox shows what comes after the first answer, which `request` drops."""
        if parts == 1 and not watch:
            answer = await self.client.request(self.subject, request, timeout=CLIENT_PATIENCE)
            return [json.loads(answer.data)]
        self.inbox.open(nonce)
        await self.client.publish(self.subject, request, reply=f"{self.prefix}.{nonce}")
        return await self.inbox.take(nonce, parts)

    def later(self):
        """What came to inboxes that had all of theirs."""
        return self.inbox.late


class JetStream:
    """JetStream: the request is stored, and `ce-replyto` names a subject that a stream covers, too."""

    name = "JetStream"

    def __init__(self):
        self.inbox = Inbox()

    async def open(self):
        """Connects, and reads a stream of its own from its end."""
        self.client = await nats.connect(NATS)
        self.stream = self.client.jetstream(timeout=CLIENT_PATIENCE)
        await self.stream.add_stream(name=stream_name("replies"), subjects=[f"{JETSTREAM_REPLIES}.*"], storage="memory")
        policy = nats.js.api.DeliverPolicy.NEW
        await self.stream.subscribe(
            f"{JETSTREAM_REPLIES}.*",
            stream=stream_name("replies"),
            cb=self.on,
            ordered_consumer=True,
            deliver_policy=policy,
        )

    async def on(self, message):
        """An answer has been stored."""
        self.inbox.put(message.subject.rpartition(".")[2], message.data)

    async def close(self):
        """Closes the connection."""
        await self.client.drain()

    async def ask(self, agent, request, nonce, parts=1, watch=False):
        """A plain JSON-RPC request with one header."""
        self.inbox.open(nonce)
        headers = {"ce-replyto": f"{JETSTREAM_REPLIES}.{nonce}"}
        await self.stream.publish(JETSTREAM_REQUESTS, request, headers=headers, stream=stream_name("requests"))
        return await self.inbox.take(nonce, parts)

    def later(self):
        """The answers that came after the first."""
        return self.inbox.late


class Kafka:
    """A client of Kafka that reads one topic of answers; the subclasses send the requests and correlate the answers."""

    topic = None

    def __init__(self):
        self.inbox, self.stopping = Inbox(), False

    async def open(self):
        """Reads all partitions from their ends."""
        self.loop = asyncio.get_running_loop()
        self.producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 0})
        self.consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": "unused", "enable.auto.commit": False})
        ends = []
        for partition in (0, 1):
            place = TopicPartition(self.topic, partition)
            _, place.offset = await asyncio.to_thread(self.consumer.get_watermark_offsets, place, CLIENT_PATIENCE)
            ends.append(place)
        self.consumer.assign(ends)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        """Until the requester is closed."""
        while not self.stopping:
            self.producer.poll(0)
            message = self.consumer.poll(0.1)
            if message is not None and not message.error():
                self.loop.call_soon_threadsafe(self.inbox.put, self.key(message), message.value())

    async def close(self):
        """Stops reading."""
        self.stopping = True
        await asyncio.to_thread(self.thread.join)
        self.consumer.close()

    async def ask(self, agent, request, nonce, parts=1, watch=False):
        """Sends it and waits."""
        key, message = self.message(agent, nonce)
        self.inbox.open(key)
        self.producer.produce(REQUESTS, request, **message)
        self.producer.poll(0)
        return await self.inbox.take(key, parts)

    def later(self):
        """The answers that came after the first."""
        return self.inbox.late


class CloudEvents(Kafka):
    """A CloudEvent in binary mode: `ce_replyto`, `ce_replypartition`, `ce_callid` and the key of the record."""

    name = "Kafka ce_replyto"
    topic = CE_REPLIES

    def message(self, agent, nonce):
        """The partition is the second one: an answer in the first would have come there by chance."""
        headers = {
            "ce_specversion": "1.0",
            "ce_id": nonce,
            "ce_source": "/clients/ce",
            "ce_type": "com.example.ask",
            "ce_mcptype": "request",
            "ce_targetagent": agent,
            "ce_callid": nonce,
            "ce_replyto": self.topic,
            "ce_replypartition": "1",
            "content-type": "application/json",
        }
        return (1, nonce), {"key": nonce.encode(), "headers": headers}

    @staticmethod
    def key(message):
        """By call id, and the key must have come back, too."""
        headers = dict(message.headers() or [])
        call = (headers.get("ce_callid") or b"").decode()
        return message.partition(), call if message.key() == call.encode() else f"{call} key {message.key()}"


class Spring(Kafka):
    """Sends the headers of Spring's ReplyingKafkaTemplate; like Spring, it makes correlation ids of 16 raw bytes."""

    name = "Kafka Spring headers"
    topic = SPRING_REPLIES

    def message(self, agent, nonce):
        """The nonce is not sent: only the correlation id identifies the request."""
        correlation = os.urandom(16)
        headers = {
            "kafka_replyTopic": self.topic.encode(),
            "kafka_replyPartition": (1).to_bytes(4, "big"),
            "kafka_correlationId": correlation,
        }
        return (1, correlation), {"headers": headers}

    @staticmethod
    def key(message):
        """By the raw correlation id."""
        return message.partition(), dict(message.headers() or []).get("kafka_correlationId")
