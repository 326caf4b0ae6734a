"""Real clients against a running bridge: every requester asks every agent in every way, then 1,000 exchanges of each
requester at once that all have the JSON-RPC id 1, then the same with a `kill -9` of the bridge in the middle.

`tests/clients/run` starts this. It prints the matrix as it stands in the README, and ends with `N passed, N failed`.
"""

import asyncio
import collections
import json
import os
import resource
import subprocess
import sys
import time
import uuid

import nats

import requesters
from agents import PARTS, a2e, family, json_rpc, wanted
from sdks import library_clients
from world import CONTROL, NATS, PATIENCE, Bridge, delete_topics, make_topics, stream_name, until

BEHAVIOURS = ["unary", "stream", "error", "silence", "twice"]
AGENTS = {
    "nats-respond": "nats-py `respond`, which copies the headers",
    "nats-bare": "nats-py, the reply subject without headers",
    "nats-go": "nats.go `Respond`",
    "nats-e2a": "E2A records on NATS",
    "nats-a2e": "A2E messages on NATS",
    "nats-legacy": "legacy A2A on NATS",
    "nats-cloudevent": "CloudEvents on NATS, binary mode",
    "kafka-copies": "confluent-kafka, all headers copied",
    "kafka-plain": "Kafka, plain JSON to the reply topic by name",
    "kafka-spring": "Spring for Kafka, `@SendTo`",
    "kafka-e2a": "E2A records on Kafka",
    "kafka-a2e": "A2E messages on Kafka",
    "kafka-legacy": "legacy A2A on Kafka",
    "kafka-cloudevent": "CloudEvents on Kafka, structured mode",
}
# Cells that the nature of the client leaves empty, and why.
IMPOSSIBLE = {}
# These can hold their answers back.
HOLDING = [agent for agent in AGENTS if agent != "kafka-spring"]
AT_ONCE = 1000


class Report:
    """What passed and what failed, with one line for each failure."""

    def __init__(self):
        self.passed, self.failures = 0, []

    def note(self, what, problem=None):
        """`problem` is what is wrong, if anything is."""
        if problem is None:
            self.passed += 1
        else:
            self.failures.append(what)
            print(f"FAILED {what}: {problem}", flush=True)


def request(agent, id, behave, nonce):
    """A JSON-RPC request for an agent: a tool call, or for a stream a message of A2A 0.3."""
    if behave == "stream":
        method = "message/stream"
        message = {"kind": "message", "role": "user", "messageId": nonce, "parts": [{"kind": "text", "text": "weather"}]}
        params = {"message": message, "metadata": {"behave": behave, "nonce": nonce}}
    else:
        method = "tools/call"
        params = {"name": "weather", "arguments": {"behave": behave, "nonce": nonce}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {"_agentId": agent, **params}}).encode()


def nonce_in(value):
    """The nonce that stands anywhere in an answer."""
    if isinstance(value, dict):
        return value.get("nonce") or next(filter(None, map(nonce_in, value.values())), None)
    if isinstance(value, list):
        return next(filter(None, map(nonce_in, value)), None)
    return None


# ---- What is right ----


def right(agent, behave, kind, number, content):
    """The member of the JSON-RPC answer that one answer of an agent becomes, and its value. README, "How an agent answers"."""
    error = kind == "error"
    match family(agent).__name__:
        case "e2a" if kind == "part":
            return "result", {"response_kind": "e2a.chunk", "body": {"delta_kind": "custom", "delta": content}}
        case "a2e":
            message = lasting(a2e(None, behave, kind, number, content))
            failed = {"code": -32603, "message": content.get("message"), "data": message}
            return ("error", failed) if error else ("result", message)
        case "legacy" if error:
            return "error", {"code": -32603, "message": "the agent answered FAILURE", "data": content}
        case "json_rpc" if not error:
            return "result", json_rpc(None, behave, kind, number, content)["result"]
    return ("error" if error else "result"), content


def lasting(value):
    """Without what an A2E message has anew each time."""
    if not isinstance(value, dict):
        return value
    passing = ("id", "ts", "req_id", "created_at") if "version" in value and "type" in value else ()
    return {name: lasting(one) for name, one in value.items() if name not in passing}


def wrong(agent, behave, id, nonce, answers):
    """What is wrong with the answers of a cell."""
    for answer in answers:
        if answer.get("jsonrpc") != "2.0" or answer.get("id") != id or type(answer.get("id")) is not type(id):
            return f"not the requester's id {id!r}: {answer}"
    if behave == "silence":
        error = answers[0].get("error", {})
        reason = (error.get("data") or {}).get("reason")
        return None if reason == "timeout" and error["code"] == -32603 else f"no timeout: {answers}"
    expected = wanted(behave, nonce)[: 1 if behave == "twice" else None]
    for answer, one in zip(answers, expected, strict=True):
        member, value = right(agent, behave, *one)
        if {name for name in answer} != {"jsonrpc", "id", member} or lasting(answer[member]) != value:
            return f"not the {member} {value}: {answer}"
    return None


# ---- The cells ----


async def cell(requester, agent, behave, number):
    """One cell: what is wrong with it, and its nonce."""
    nonce = uuid.uuid4().hex
    # A number, a number that is no 64-bit integer, a text.
    id = [number, 10**20 + number, f"req-{number}"][number % 3]
    parts = PARTS if behave == "stream" else 1
    try:
        answers = await requester.ask(agent, request(agent, id, behave, nonce), nonce, parts, watch=behave == "twice")
        return wrong(agent, behave, id, nonce, answers), nonce
    except Exception as error:  # whatever a client throws is what is wrong
        return f"{type(error).__name__}: {error}", nonce


async def cells(all_requesters, bridge, report):
    """Every requester with every agent in every way. What nobody answers is asked first, to wait for all of it at once."""
    asks = [
        (requester, agent, behave)
        for behave in sorted(BEHAVIOURS, key=lambda behave: behave != "silence")
        for requester in all_requesters
        for agent in AGENTS
        if (requester.name, agent, behave) not in IMPOSSIBLE
    ]
    few, late = asyncio.Semaphore(16), await bridge.metric("a2abus_replies_total", outcome="late")

    async def one(number, ask):
        async with few if ask[2] != "silence" else asyncio.Semaphore(1):
            return await cell(*ask, number)

    outcomes = await asyncio.gather(*(one(number, ask) for number, ask in enumerate(asks, 1)))
    problems = {ask: problem for ask, (problem, _) in zip(asks, outcomes)}
    by_nonce = {nonce: ask for ask, (_, nonce) in zip(asks, outcomes)}
    # What came second has been seen by the bridge, so that what it lets through is on its way.
    twice = sum(behave == "twice" for _, _, behave in asks)
    try:
        await until("each second answer counted as late", lambda: counted_late(bridge, late + twice), 15)
    except TimeoutError:
        counted = await bridge.metric("a2abus_replies_total", outcome="late") - late
        report.note("second answers are counted", f"{counted:.0f} of {twice} were counted as late")
    else:
        report.note("second answers are counted")
    for requester in all_requesters:
        for agent in ("nats-respond", "kafka-copies"):
            problem, _ = await cell(requester, agent, "unary", 1)
            report.note(f"{requester.name}, {agent}, at the end", problem)
        for _, body in requester.later():
            ask = by_nonce.get(nonce_in(json.loads(body) if isinstance(body, bytes) else body))
            problems[ask] = problems.get(ask) or f"one answer more: {body}"
    return problems


async def counted_late(bridge, count):
    """Whether the bridge has counted as many answers as late."""
    return await bridge.metric("a2abus_replies_total", outcome="late") >= count


def table(all_requesters, problems):
    """The rows of the matrix, in Markdown."""
    yield f"| agent | {' | '.join(requester.name for requester in all_requesters)} |"
    yield "|---|" + "---|" * len(all_requesters)
    for agent, title in AGENTS.items():
        row = ["".join(mark(problems, requester, agent, behave) for behave in BEHAVIOURS) for requester in all_requesters]
        yield f"| {title} | {' | '.join(row)} |"


def mark(problems, requester, agent, behave):
    """One sign of the matrix."""
    if (requester.name, agent, behave) in IMPOSSIBLE:
        return "-"
    return "✓" if problems[requester, agent, behave] is None else "✗"


def unlike_readme(rows):
    """The first row that the README does not have."""
    readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
    with open(readme) as file:
        lines = set(file.read().splitlines())
    return next((f"it lacks the row {row}" for row in rows if row not in lines), None)


# ---- Many at once ----


class Control:
    """Tells the agents in Python and Go what to do with the requests they hold."""

    def __init__(self, client, programs):
        self.client, self.programs = client, programs

    async def say(self, word):
        """All of their answers: how many each holds on each bus."""
        inbox = self.client.new_inbox()
        heard = await self.client.subscribe(inbox)
        await self.client.publish(CONTROL, word.encode(), reply=inbox)
        counts = [json.loads((await heard.next_msg(timeout=60)).data) for _ in range(self.programs)]
        await heard.unsubscribe()
        return sum(map(sum, counts))

    async def is_heard(self):
        """Whether all programs listen."""
        inbox = self.client.new_inbox()
        heard = await self.client.subscribe(inbox)
        await self.client.publish(CONTROL, b"count", reply=inbox)
        try:
            for _ in range(self.programs):
                await heard.next_msg(timeout=1)
        except nats.errors.TimeoutError:
            return False
        finally:
            await heard.unsubscribe()
        return True

    async def holds(self, count):
        """Whether they hold as many."""
        return await self.say("count") >= count


async def ask_with_id_1(requester, number, seen):
    """One exchange that has the id of all others: the nonce of the answer, and the one it should have."""
    agent, nonce = HOLDING[number % len(HOLDING)], uuid.uuid4().hex
    try:
        answer = (await requester.ask(agent, request(agent, 1, "hold", nonce), nonce))[0]
        outcome = "answered" if nonce_in(answer) == nonce and answer["id"] == 1 else "crossed" if nonce_in(answer) else str(answer)
    except Exception as error:  # whatever a client throws
        outcome = f"{type(error).__name__}: {error}"
    seen[requester.name][outcome] += 1


async def equal_ids(all_requesters, control, report):
    """All wait at the same time, then all are answered."""
    seen = collections.defaultdict(collections.Counter)
    asks = [asyncio.ensure_future(ask_with_id_1(requester, number, seen)) for requester in all_requesters for number in range(AT_ONCE)]
    together = AT_ONCE * len(all_requesters)
    try:
        await until(f"{together} requests are at the agents", lambda: control.holds(together))
    except TimeoutError:
        report.note("all wait at once", f"{await control.say('count')} of {together} are at the agents")
    else:
        report.note("all wait at once")
    await control.say(f"release {together}")
    await asyncio.gather(*asks)
    for requester in all_requesters:
        got = seen[requester.name]
        print(f"{requester.name}: {AT_ONCE} at once, all with id 1: {got['answered']} answered, {got['crossed']} crossed", flush=True)
        report.note(f"{requester.name}: equal ids", None if got == {"answered": AT_ONCE} else dict(got.most_common(5)))


async def killed(all_requesters, control, bridge, report):
    """Some are answered when the bridge is killed; all are when it is back."""
    seen = collections.defaultdict(collections.Counter)
    asks = [asyncio.ensure_future(ask_with_id_1(requester, number, seen)) for requester in all_requesters for number in range(AT_ONCE)]
    together = AT_ONCE * len(all_requesters)
    await until(f"{together} requests are at the agents", lambda: control.holds(together))
    await control.say(f"release {together // 6}")
    await until("some are answered", lambda: sum(got.total() for got in seen.values()) >= together // 10)
    await bridge.kill()
    before = sum(got.total() for got in seen.values())
    await control.say("open")
    await bridge.start("60s")
    await asyncio.gather(*asks)
    print(f"killed when {before} of {together} were answered", flush=True)
    report.note("killed in the middle", None if 0 < before < together else f"{before} of {together} were answered")
    for requester in all_requesters:
        got, again = seen[requester.name], len(requester.later())
        print(f"{requester.name}: {got['answered']} of {AT_ONCE} answered, {got['crossed']} crossed, {again} a second time", flush=True)
        report.note(f"{requester.name}: after a kill", None if got == {"answered": AT_ONCE} else dict(got.most_common(5)))


# ---- The whole ----


class Agents:
    """The programs of the agents, in Python and Go."""

    def __init__(self, directory, go):
        here = os.path.dirname(os.path.abspath(__file__))
        self.directory, self.processes = directory, []
        self.commands = {"agents": [sys.executable, os.path.join(here, "agents.py")], **({"nats-go": [go]} if go else {})}

    async def start(self, client):
        """Starts them; their control, once all of them listen."""
        for name, command in self.commands.items():
            with open(os.path.join(self.directory, f"{name}.log"), "ab") as log:
                self.processes.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        control = Control(client, len(self.processes))
        await until("the agents listen", control.is_heard)
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
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spring", "Spring.java")
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

    async def asks(self, report):
        """ReplyingKafkaTemplate asks every agent for an answer and for an error, and one that says nothing."""
        asks = [(agent, behave) for agent in AGENTS for behave in ("unary", "error")] + [("nats-bare", "silence")]
        nonces = [uuid.uuid4().hex for _ in asks]
        for number, (agent, behave) in enumerate(asks):
            self.process.stdin.write(request(agent, number, behave, nonces[number]) + b"\n")
        await self.process.stdin.drain()
        for _ in asks:
            answer = json.loads(await self.line())
            number = answer["id"]
            agent, behave = asks[number]
            report.note(f"ReplyingKafkaTemplate, {agent}, {behave}", wrong(agent, behave, number, nonces[number], [answer]))

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


async def main(program, directory, door, admin):
    """Returns the status to exit with."""
    raise_file_limit()
    go, jars = os.environ.get("CLIENTS_GO"), os.environ.get("CLIENTS_SPRING")
    if not go:
        del AGENTS["nats-go"]
        HOLDING.remove("nats-go")
    if not jars:
        del AGENTS["kafka-spring"]
    report, client = Report(), await nats.connect(NATS)
    bridge, agents, spring = Bridge(program, directory, door, admin), Agents(directory, go), Spring(directory, jars) if jars else None
    make_topics()
    try:
        if spring:
            await spring.start()
        control = await agents.start(client)
        try:
            await everything(bridge, control, spring, report)
        finally:
            await control.say("quit")
    finally:
        await bridge.stop()
        await agents.stop()
        if spring:
            await spring.stop()
        await clean(client)
    print(f"{report.passed} passed, {len(report.failures)} failed")
    return 1 if report.failures else 0


def all_requesters(door):
    """One of each kind, in the order of the columns."""
    return [requesters.Curl(door), requesters.Nats(), requesters.JetStream(), requesters.CloudEvents(), requesters.Spring()]


async def everything(bridge, control, spring, report):
    """The matrix, the clients of the SDKs, and many at once."""
    asking = all_requesters(bridge.door)
    await bridge.start("10s")
    for requester in asking:
        await requester.open()
    if spring:
        await spring.line()
    problems = await cells(asking, bridge, report)
    for (requester, agent, behave), problem in problems.items():
        report.note(f"{requester.name}, {agent}, {behave}", problem)
    rows = list(table(asking, problems))
    print("\n".join(rows), flush=True)
    report.note("the matrix is the one in the README", unlike_readme(rows))
    await step("the clients of the SDKs", library_clients(bridge.door, report), report)
    if spring:
        await step("ReplyingKafkaTemplate", spring.asks(report), report)
    await bridge.stop()
    # What is held back may wait longer than a client of the matrix.
    await bridge.start("60s")
    await step("equal ids", equal_ids([requesters.Door(bridge.door), *asking[1:]], control, report), report)
    await step("a kill", killed(asking[2:], control, bridge, report), report)
    for requester in asking:
        await requester.close()


async def step(name, doing, report):
    """Goes on with the next one when this one ends with an error."""
    began = time.monotonic()
    try:
        await doing
    except Exception as error:  # it is what the step has come to
        report.note(name, f"{type(error).__name__}: {error}")
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


async def clean(client):
    """Leaves nothing on the brokers."""
    stream = client.jetstream()
    for kind in ("requests", "replies"):
        try:
            await stream.delete_stream(stream_name(kind))
        except nats.js.errors.Error as error:
            print(f"stream {stream_name(kind)} is left: {error}")
    await client.close()
    delete_topics()


def raise_file_limit():
    """A thousand connections at once, here and in the bridge."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
