// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk) with all that the published server `everything`
// can do: resources and their changes, prompts, completion, progress, a cancel, and questions of the server.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema, ResourceUpdatedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const client = new Client({ name: 'tests', version: '1.0' }, { capabilities });
client.setRequestHandler(CreateMessageRequestSchema, async () => (
  { role: 'assistant', model: 'm', content: { type: 'text', text: 'a sample' } }
));
client.setRequestHandler(ElicitRequestSchema, async () => ({ action: 'accept', content: { name: 'Ada' } }));
client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [{ uri: 'file:///srv', name: 'srv' }] }));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));

const { tools } = await client.listTools();
assert.ok(tools.some((tool) => tool.name === 'echo'));
const { resources } = await client.listResources();
assert.ok(resources.length > 0);
const { contents } = await client.readResource({ uri: resources[0].uri });
assert.equal(contents[0].uri, resources[0].uri);
const { resourceTemplates } = await client.listResourceTemplates();
assert.ok(resourceTemplates.length > 0);
const { prompts } = await client.listPrompts();
assert.ok(prompts.some((prompt) => prompt.name === 'args-prompt'));
const prompt = await client.getPrompt({ name: 'args-prompt', arguments: { city: 'Oslo' } });
assert.match(prompt.messages[0].content.text, /Oslo/);
const ref = { type: 'ref/prompt', name: 'completable-prompt' };
const { completion } = await client.complete({ ref, argument: { name: 'department', value: 'S' } });
assert.deepEqual(completion.values, ['Sales', 'Support']);

const say = async (name, args = {}, more = {}) => {
  const { content } = await client.callTool({ name, arguments: args }, undefined, more);
  return content.map((part) => part.text).join(' ');
};
const steps = [];
await say('trigger-long-running-operation', { duration: 0.4, steps: 4 }, {
  onprogress: ({ progress }) => steps.push(progress),
});
assert.deepEqual(steps, [1, 2, 3, 4]);
assert.match(await say('trigger-sampling-request', { prompt: 'hello' }), /a sample/);
assert.match(await say('trigger-elicitation-request'), /Ada/);

// The server leaves a cancelled call unanswered. After that it can still ask over HTTP, where its question names its call.
if (process.argv[3] === 'http') {
  const stop = new AbortController();
  const cancelled = say('trigger-long-running-operation', { duration: 3, steps: 30 }, {
    signal: stop.signal,
    onprogress: () => stop.abort('enough'),
  });
  await assert.rejects(cancelled, /enough/);
  assert.match(await say('trigger-sampling-request', { prompt: 'again' }), /a sample/);
}
// The server reports changes of the resources of its only client, the bridge, while this is switched on.
const changed = new Promise((done) => {
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => done(params.uri));
});
await client.subscribeResource({ uri: resources[0].uri });
assert.match(await say('toggle-subscriber-updates'), /Started/);
assert.equal(await changed, resources[0].uri);
assert.match(await say('toggle-subscriber-updates'), /Stopped/);
await client.unsubscribeResource({ uri: resources[0].uri });
assert.match(await say('echo', { message: 'still there' }), /still there/);
await client.close();
