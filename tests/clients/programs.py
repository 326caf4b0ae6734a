"""The programs of the agents, and their control."""

import asyncio
import json
import os
import subprocess
import sys
import uuid

import nats

from cases import AGENTS, request, wrong
from world import CONTROL, PATIENCE, until

HERE = os.path.dirname(os.path.abspath(__file__))


class Control:
    """Sends commands to the agents in Python and Go about the requests that they hold."""

    def __init__(self, client, programs):
        self.client, self.programs = client, programs

    async def send(self, command):
        """Sends a command. Returns how many requests the agents hold."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(CONTROL, command.encode(), reply=inbox)
        counts = [json.loads((await subscription.next_msg(timeout=PATIENCE)).data) for _ in range(self.programs)]
        await subscription.unsubscribe()
        return sum(map(sum, counts))

    async def is_listening(self):
        """Whether all programs listen."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(CONTROL, b"count", reply=inbox)
        try:
            for _ in range(self.programs):
                await subscription.next_msg(timeout=1)
        except nats.errors.TimeoutError:
            return False
        finally:
            await subscription.unsubscribe()
        return True

    async def holds(self, count):
        """Whether they hold as many."""
        return await self.send("count") >= count


class Agents:
    """The programs of the agents, in Python and Go."""

    def __init__(self, directory, go):
        self.directory, self.processes = directory, []
        self.commands = {
            "agents": [sys.executable, os.path.join(HERE, "agents.py")],
            **({"nats-go": [go]} if go else {}),
        }

    async def start(self, client):
        """Starts them; their control, once all of them listen."""
        for name, command in self.commands.items():
            with open(os.path.join(self.directory, f"{name}.log"), "ab") as log:
                self.processes.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        control = Control(client, len(self.processes))
        await until("the agents listen", control.is_listening)
        return control

    async def stop(self):
        """Ends those that the control subject has not ended."""
        for process in self.processes:
            try:
                await asyncio.wait_for(process.wait(), 15)
            except TimeoutError:
                process.kill()
                await process.wait()


class Spring:
    """The program in Java: an agent, and a requester that takes a line for each request."""

    def __init__(self, directory, jars):
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp", os.path.join(jars, "*")]
        source = os.path.join(HERE, "spring", "Spring.java")
        self.command = [os.environ["CLIENTS_JAVA"], *options, source]
        self.log, self.process = os.path.join(directory, "spring.log"), None

    async def start(self):
        """Starts it; its listener may become ready later."""
        with open(self.log, "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    async def line(self):
        """The next line it writes."""
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        if not line:
            raise RuntimeError("Spring has ended, see spring.log")
        return line

    async def check_template(self, report):
        """ReplyingKafkaTemplate requests an answer and an error from every agent, and gets no answer from one."""
        cases = [(agent, behave) for agent in AGENTS for behave in ("unary", "error")] + [("nats-bare", "silence")]
        nonces = [uuid.uuid4().hex for _ in cases]
        for number, (agent, behave) in enumerate(cases):
            self.process.stdin.write(request(agent, number, behave, nonces[number]) + b"\n")
        await self.process.stdin.drain()
        for _ in cases:
            answer = json.loads(await self.line())
            number = answer["id"]
            agent, behave = cases[number]
            report.note(
                f"ReplyingKafkaTemplate, {agent}, {behave}", wrong(agent, behave, number, nonces[number], [answer])
            )

    async def stop(self):
        """Ends it by the end of its input."""
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 15)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
