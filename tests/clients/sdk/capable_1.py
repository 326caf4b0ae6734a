"""The client of the MCP SDK (PyPI mcp 1.x) with all that the published server `everything` can do: resources and their
changes, prompts, completion, progress, a cancel, and questions of the server."""

import asyncio
import sys

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client


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
        message = getattr(message, "root", None)
        if isinstance(message, types.ResourceUpdatedNotification):
            changed.put_nowait(message.params.uri)

    callbacks["message_handler"] = received

    async def progress(done, total, message):
        seen.append(done)
        begun.set()

    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write, **callbacks) as session:
        await session.initialize()

        async def say(name, progress=None, **arguments):
            answer = await session.call_tool(name, arguments, progress_callback=progress)
            return " ".join(part.text for part in answer.content)

        assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
        resources = (await session.list_resources()).resources
        read_back = await session.read_resource(resources[0].uri)
        assert read_back.contents[0].uri == resources[0].uri, read_back
        assert (await session.list_resource_templates()).resourceTemplates
        assert "args-prompt" in [prompt.name for prompt in (await session.list_prompts()).prompts]
        prompt = await session.get_prompt("args-prompt", {"city": "Oslo"})
        assert "Oslo" in prompt.messages[0].content.text, prompt
        ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
        values = (await session.complete(ref, {"name": "department", "value": "S"})).completion.values
        assert values == ["Sales", "Support"], values
        await say("trigger-long-running-operation", progress, duration=0.4, steps=4)
        assert seen == [1, 2, 3, 4], seen
        assert "a sample" in await say("trigger-sampling-request", prompt="hello")
        assert "Ada" in await say("trigger-elicitation-request")

        # The server leaves a cancelled call unanswered. After that it can still ask over HTTP, where its question names its
        # call.
        if way == "http":
            # This SDK sends no cancel by itself: the id of a request is that of the session, counted from 0.
            begun.clear()
            held = asyncio.create_task(say("trigger-long-running-operation", progress, duration=3, steps=30))
            await begun.wait()
            params = types.CancelledNotificationParams(requestId=session._request_id - 1)
            cancel = types.CancelledNotification(params=params)
            await session.send_notification(types.ClientNotification(cancel))
            try:
                await held
            except Exception as error:
                assert "cancel" in str(error), error
            else:
                raise AssertionError("a cancelled call was answered")
            assert "a sample" in await say("trigger-sampling-request", prompt="again")
        # The server reports changes of the resources of its only client, the bridge, while this is switched on.
        uri = resources[0].uri
        await session.subscribe_resource(uri)
        assert "Started" in await say("toggle-subscriber-updates")
        assert await asyncio.wait_for(changed.get(), 60) == uri
        assert "Stopped" in await say("toggle-subscriber-updates")
        await session.unsubscribe_resource(uri)
        assert "still there" in await say("echo", message="still there")


asyncio.run(main(*sys.argv[1:]))
