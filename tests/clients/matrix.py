"""Real clients against a running bridge: every requester with every agent and every kind of answer; then 1,000 concurrent
exchanges of each requester, all with the JSON-RPC id 1; then the same with a `kill -9` of the bridge in the middle.

`tests/clients/run` starts this. It prints the matrix as it stands in docs/clients.md, and ends with `N passed, N failed`.
"""

import asyncio
import json
import os
import resource
import sys
import time
import uuid

import nats

import requesters
from agents import PARTS
from attached import attached, chain
from cases import AGENTS, BEHAVIOURS, HOLDING, nonce_in, request, wrong
from conformance import conformance
from crowd import equal_ids, killed
from inspector import inspector
from programs import Agents, Spring
from readme import examples, unlike_documents
from replicas import replicas
from sdks import library_clients
from world import HELD_BACK, NATS, PATIENCE, Bridge, delete_topics, make_topics, stream_name, until


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
    """Every requester with every agent and every kind of answer. Requests without an answer go first, to wait for all of
    them at once."""
    cases = [
        (requester, agent, behave)
        for behave in sorted(BEHAVIOURS, key=lambda behave: behave != "silence")
        for requester in all_requesters
        for agent in AGENTS
    ]
    few, late = asyncio.Semaphore(16), await bridge.metric("a2abus_replies_total", outcome="late")

    async def one(number, ask):
        async with few if ask[2] != "silence" else asyncio.Semaphore(1):
            return await cell(*ask, number)

    outcomes = await asyncio.gather(*(one(number, ask) for number, ask in enumerate(cases, 1)))
    problems = {ask: problem for ask, (problem, _) in zip(cases, outcomes)}
    by_nonce = {nonce: ask for ask, (_, nonce) in zip(cases, outcomes)}
    # What came second has been seen by the bridge, so that what it lets through is on its way.
    twice = sum(behave == "twice" for _, _, behave in cases)
    try:
        await until("each second answer counted as late", lambda: counted_late(bridge, late + twice))
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
            if ask is None:
                report.note(f"{requester.name}, answers to nothing", body)
            else:
                problems[ask] = problems[ask] or f"one answer more: {body}"
    return problems


async def counted_late(bridge, count):
    """Whether the bridge has counted as many answers as late."""
    return await bridge.metric("a2abus_replies_total", outcome="late") >= count


def table(all_requesters, problems):
    """The rows of the matrix, in Markdown."""
    yield f"| agent | {' | '.join(requester.name for requester in all_requesters)} |"
    yield "|---|" + "---|" * len(all_requesters)
    for agent, title in AGENTS.items():
        row = [
            "".join(mark(problems, requester, agent, behave) for behave in BEHAVIOURS) for requester in all_requesters
        ]
        yield f"| {title} | {' | '.join(row)} |"


def mark(problems, requester, agent, behave):
    """One sign of the matrix."""
    return "✓" if problems[requester, agent, behave] is None else "✗"


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
    bridge, agents = Bridge(program, directory, door, admin), Agents(directory, go)
    spring = Spring(directory, jars) if jars else None
    make_topics()
    try:
        if spring:
            await spring.start()
        control = await agents.start(client)
        try:
            await everything(bridge, control, spring, report)
        finally:
            await control.send("quit")
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
    return [
        requesters.Curl(door),
        requesters.Nats(),
        requesters.JetStream(),
        requesters.CloudEvents(),
        requesters.Spring(),
    ]


async def everything(bridge, control, spring, report):
    """The matrix, the clients of the SDKs, and many at once."""
    asking = all_requesters(bridge.door)
    await bridge.start("60s")
    for requester in asking:
        await requester.open()
    if spring:
        await spring.line()
    problems = await cells(asking, bridge, report)
    for (requester, agent, behave), problem in problems.items():
        report.note(f"{requester.name}, {agent}, {behave}", problem)
    rows = list(table(asking, problems))
    print("\n".join(rows), flush=True)
    report.note("the matrix is the one in docs/clients.md", unlike_documents(rows))
    await step("the clients of the SDKs", library_clients(bridge.program, bridge.door, report), report)
    await step("two replicas of MCP", replicas(bridge.program, bridge.directory, report), report)
    if os.environ["CLIENTS_MCP_KIT"]:
        kit = conformance(bridge.program, bridge.directory, report)
        await step("the conformance kit of MCP", kit, report)
    if os.environ["CLIENTS_INSPECTOR"]:
        await step("the inspector of MCP", inspector(bridge.program, bridge.directory, report), report)
    await step("attached servers", attached(bridge.program, bridge.directory, report), report)
    await step("a chain of bridges", chain(bridge.program, bridge.directory, report), report)
    await step("the examples of the README", examples(bridge, report), report)
    if spring:
        await step("ReplyingKafkaTemplate", spring.check_template(report), report)
    await bridge.stop()
    # What is held back may wait longer than a client of the matrix.
    await bridge.start(HELD_BACK)
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
    stream = client.jetstream(timeout=PATIENCE)
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
