// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk).
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const client = new Client({ name: 'tests', version: '1.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ['weather']);

const call = { name: 'weather', arguments: { city: 'Oslo' } };
const answer = await client.callTool(call);
assert.equal(answer.content[0].text, 'Oslo: -3 degrees');

const seen = [];
const onprogress = ({ progress, total }) => seen.push([progress, total]);
const slow = await client.callTool(call, undefined, { onprogress });
assert.equal(slow.content[0].text, 'Oslo: -3 degrees');
assert.deepEqual(seen, [[1, 2], [2, 2]]);

await assert.rejects(client.callTool({ ...call, name: 'tides' }), /Unknown tool: tides/);
await client.close();
