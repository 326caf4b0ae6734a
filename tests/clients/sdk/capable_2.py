"""The client of the MCP SDK (PyPI mcp 2.x) with all that the published server `everything` can do: resources and their
changes, prompts, completion, progress, a cancel, and questions of the server."""

import asyncio
import sys

from mcp import Client, types


async def sample(context, params):
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


async def elicit(context, params):
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def roots(context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///srv", name="srv")])


async def main(url, way):
    seen, begun, changed = [], asyncio.Event(), asyncio.Queue()
    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}

    async def received(message):
        if isinstance(message, types.ResourceUpdatedNotification):
            changed.put_nowait(message.params.uri)

    callbacks["message_handler"] = received

    async def progress(done, total, message):
        seen.append(done)
        begun.set()

    # With a session: the question arrives on the stream of the call.
    async with Client(url, mode="legacy", **callbacks) as client:

        async def say(name, progress=None, **arguments):
            answer = await client.call_tool(name, arguments, progress_callback=progress)
            return " ".join(part.text for part in answer.content)

        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        resources = (await client.list_resources()).resources
        read_back = await client.read_resource(resources[0].uri)
        assert read_back.contents[0].uri == resources[0].uri, read_back
        assert (await client.list_resource_templates()).resource_templates
        assert "args-prompt" in [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("args-prompt", {"city": "Oslo"})
        assert "Oslo" in prompt.messages[0].content.text, prompt
        ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
        values = (await client.complete(ref, {"name": "department", "value": "S"})).completion.values
        assert values == ["Sales", "Support"], values
        await say("trigger-long-running-operation", progress, duration=0.4, steps=4)
        assert seen == [1, 2, 3, 4], seen
        assert "a sample" in await say("trigger-sampling-request", prompt="hello")
        assert "Ada" in await say("trigger-elicitation-request")

        # The server leaves a cancelled call unanswered. After that it can still ask over HTTP, where its question names its
        # call.
        if way == "http":
            # This SDK sends a cancel when its caller gives up.
            begun.clear()
            held = asyncio.create_task(say("trigger-long-running-operation", progress, duration=3, steps=30))
            await begun.wait()
            held.cancel()
            try:
                await held
            except asyncio.CancelledError:
                pass
            assert "a sample" in await say("trigger-sampling-request", prompt="again")
        # The server reports changes of the resources of its only client, the bridge, while this is switched on.
        uri = resources[0].uri
        await client.subscribe_resource(uri)
        assert "Started" in await say("toggle-subscriber-updates")
        assert await asyncio.wait_for(changed.get(), 60) == uri
        assert "Stopped" in await say("toggle-subscriber-updates")
        await client.unsubscribe_resource(uri)
        assert "still there" in await say("echo", message="still there")
    # In revision 2026-07-28, the question is the answer to the call, which the client then sends again.
    async with Client(url, **callbacks) as client:
        assert client.protocol_version == "2026-07-28", client.protocol_version
        for name, expected in (("trigger-sampling-request", "a sample"), ("trigger-elicitation-request", "Ada")):
            answer = await client.call_tool(name, {"prompt": "hello"})
            assert expected in answer.content[-1].text + answer.content[0].text, answer


asyncio.run(main(*sys.argv[1:]))
