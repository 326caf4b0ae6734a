"""An agent on NATS: python agent.py SERVER SUBJECT. It answers every call of a tool with the weather of the city."""

import asyncio
import json
import sys

import nats


async def answer(message):
    request = json.loads(message.data)
    city = request["params"]["arguments"]["city"]
    result = {"content": [{"type": "text", "text": f"-3 degrees in {city}"}]}
    await message.respond(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())


async def main(server, subject):
    connection = await nats.connect(server)
    await connection.subscribe(subject, cb=answer)
    await connection.flush()
    print("listening to", subject, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
