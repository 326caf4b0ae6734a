// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk) over HTTP+SSE, the transport of 2024-11-05.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';

const client = new Client({ name: 'tests', version: '1.0' });
await client.connect(new SSEClientTransport(new URL(process.argv[2])));

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ['weather']);

const seen = [];
const onprogress = ({ progress, total }) => seen.push([progress, total]);
const answer = await client.callTool({ name: 'weather', arguments: { city: 'Oslo' } }, undefined, { onprogress });
assert.equal(answer.content[0].text, 'Oslo: -3 degrees');
// As on standard input, this SDK drops progress that comes in one piece with the answer.
assert.deepEqual(seen, [[1, 2], [2, 2]].slice(0, seen.length));
await client.close();
