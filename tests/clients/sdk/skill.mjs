// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk) and an agent that speaks A2A: its skill is a
// tool.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const client = new Client({ name: 'tests', version: '1.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ['forecast']);

const call = { name: 'forecast', arguments: { text: 'Oslo' } };
const answer = await client.callTool(call);
assert.equal(answer.content[0].text, 'Oslo: -3 degrees');
assert.equal(answer.structuredContent.state, 'completed');
assert.equal(answer.isError, false);

const seen = [];
const onprogress = ({ progress, message }) => seen.push([progress, message]);
const task = await client.callTool(call, undefined, { onprogress });
assert.deepEqual(task.content.map((part) => part.text), ['part 0', 'part 1', 'part 2']);
assert.deepEqual(seen, [[1, 'working'], [2, 'part 0'], [3, 'part 1'], [4, 'part 2']]);

const refused = await client.callTool({ ...call, arguments: { city: 'Oslo' } });
assert.equal(refused.isError, true);
await client.close();
