// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk): over HTTP, or with the command of a server
// that it starts.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const client = new Client({ name: 'tests', version: '1.0' });
const [server, ...args] = process.argv.slice(2);
await client.connect(args.length > 0
  ? new StdioClientTransport({ command: server, args })
  : new StreamableHTTPClientTransport(new URL(server)));

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ['weather']);

const call = { name: 'weather', arguments: { city: 'Oslo' } };
const answer = await client.callTool(call);
assert.equal(answer.content[0].text, 'Oslo: -3 degrees');

const seen = [];
const onprogress = ({ progress, total }) => seen.push([progress, total]);
const slow = await client.callTool(call, undefined, { onprogress });
assert.equal(slow.content[0].text, 'Oslo: -3 degrees');
// On standard input this SDK drops progress that comes in one piece with the answer.
const count = args.length > 0 ? seen.length : 2;
assert.deepEqual(seen, [[1, 2], [2, 2]].slice(0, count));

await assert.rejects(client.callTool({ ...call, name: 'tides' }), /Unknown tool: tides/);
await client.close();
