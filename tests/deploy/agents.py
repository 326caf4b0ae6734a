"""Two agents, one on NATS and one on Kafka, that answer every request with its arguments, until they are killed."""

import asyncio
import json
import sys
import threading

import confluent_kafka
import nats


def answer(body):
    request = json.loads(body)
    result = {"echo": request["params"]["arguments"]}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def on_kafka(brokers, topic):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": brokers, "group.id": f"{topic}.agent", "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500})
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers})
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        headers = dict(message.headers())
        partition = int(headers["ce_replypartition"])
        producer.produce(headers["ce_replyto"].decode(), answer(message.value()), partition=partition)
        producer.flush()


async def on_nats(server, subject):
    connection = await nats.connect(server)

    async def respond(message):
        await message.respond(answer(message.data))

    await connection.subscribe(subject, cb=respond)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


brokers, topic, server, subject = sys.argv[1:]
threading.Thread(target=on_kafka, args=(brokers, topic), daemon=True).start()
asyncio.run(on_nats(server, subject))
