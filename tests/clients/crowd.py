"""Many exchanges at once that all have the JSON-RPC id 1, and the same with a `kill -9` of the bridge in the middle."""

import asyncio
import collections
import uuid

from cases import HOLDING, nonce_in, request
from world import HELD_BACK, until

AT_ONCE = 1000


async def ask_with_id_1(requester, number, seen):
    """One exchange that has the id of all others: the nonce of the answer, and the one it should have."""
    agent, nonce = HOLDING[number % len(HOLDING)], uuid.uuid4().hex
    try:
        answer = (await requester.ask(agent, request(agent, 1, "hold", nonce), nonce))[0]
        outcome = (
            "answered"
            if nonce_in(answer) == nonce and answer["id"] == 1
            else "crossed" if nonce_in(answer) else str(answer)
        )
    except Exception as error:  # whatever a client throws
        outcome = f"{type(error).__name__}: {error}"
    seen[requester.name][outcome] += 1


async def equal_ids(all_requesters, control, report):
    """All wait at the same time, then all are answered."""
    seen, before = collections.defaultdict(collections.Counter), answered_again(all_requesters)
    requests = [
        asyncio.ensure_future(ask_with_id_1(requester, number, seen))
        for requester in all_requesters
        for number in range(AT_ONCE)
    ]
    together = AT_ONCE * len(all_requesters)
    try:
        await until(f"{together} requests are at the agents", lambda: control.holds(together))
    except TimeoutError:
        report.note("all wait at once", f"{await control.send('count')} of {together} are at the agents")
    else:
        report.note("all wait at once")
    # An agent may hold a request twice: the bridge sends it again if a slow bus does not confirm it in time.
    answered = asyncio.gather(*requests)
    while not answered.done():
        await control.send(f"release {together}")
        await asyncio.wait([answered], timeout=1)
    await answered
    again = answered_again(all_requesters) - before
    for requester in all_requesters:
        got, twice = seen[requester.name], again[requester.name]
        print(
            f"{requester.name}: {AT_ONCE} at once with id 1: {got['answered']} answered, {got['crossed']} crossed, {twice} again",
            flush=True,
        )
        right = got == {"answered": AT_ONCE} and not twice
        report.note(
            f"{requester.name}: equal ids", None if right else f"{dict(got.most_common(5))}, {twice} a second time"
        )


def answered_again(all_requesters):
    """How many requests of each requester had an answer after theirs."""
    return collections.Counter({requester.name: len(requester.later()) for requester in all_requesters})


async def killed(all_requesters, control, bridge, report):
    """Some are answered when the bridge is killed; all are when it is back."""
    seen, before = collections.defaultdict(collections.Counter), answered_again(all_requesters)
    requests = [
        asyncio.ensure_future(ask_with_id_1(requester, number, seen))
        for requester in all_requesters
        for number in range(AT_ONCE)
    ]
    together = AT_ONCE * len(all_requesters)
    await until(f"{together} requests are at the agents", lambda: control.holds(together))
    await control.send(f"release {together // 6}")
    await until("some are answered", lambda: sum(got.total() for got in seen.values()) >= together // 10)
    await bridge.kill()
    had = sum(got.total() for got in seen.values())
    await control.send("open")
    await bridge.start(HELD_BACK)
    await asyncio.gather(*requests)
    again = answered_again(all_requesters) - before
    print(f"killed when {had} of {together} were answered", flush=True)
    report.note("killed in the middle", None if 0 < had < together else f"{had} of {together} were answered")
    for requester in all_requesters:
        got, twice = seen[requester.name], again[requester.name]
        print(
            f"{requester.name}: {got['answered']} of {AT_ONCE} answered, {got['crossed']} crossed, {twice} again",
            flush=True,
        )
        report.note(
            f"{requester.name}: after a kill", None if got == {"answered": AT_ONCE} else dict(got.most_common(5))
        )
