// The client of the MCP SDK in TypeScript (npm @modelcontextprotocol/sdk) at two replicas: the stream of a call is cut off
// after its first event and goes on at the other one, and a cancel comes to the other one.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [first, other] = process.argv.slice(2);
const seen = { cuts: 0, resumed: 0, cancels: 0 };

// The first event, and then the end of the connection.
function cut(body) {
  let text = '';
  return body.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      text += new TextDecoder().decode(chunk);
      const end = text.indexOf('\n\n');
      if (end < 0) return;
      controller.enqueue(new TextEncoder().encode(text.slice(0, end + 2)));
      controller.terminate();
    },
  }));
}

// Requests go to the first replica; messages about a request in progress go to the other.
async function fetchAt(url, init) {
  const headers = new Headers(init.headers);
  const body = init.body ?? '';
  const isBack = headers.has('last-event-id');
  const isCancel = body.includes('notifications/cancelled');
  seen.resumed += isBack;
  seen.cancels += isCancel;
  const response = await fetch(isBack || isCancel ? String(url).replace(first, other) : url, init);
  if (!body.includes('"walk"')) return response;
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  seen.cuts += 1;
  return new Response(cut(response.body), response);
}

const client = new Client({ name: 'tests', version: '1.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(first), { fetch: fetchAt }));

const steps = [];
const onprogress = ({ progress }) => steps.push(progress);
const answer = await client.callTool({ name: 'walk', arguments: {} }, undefined, { onprogress });
assert.equal(answer.content[0].text, 'there');
assert.deepEqual(steps, [1, 2, 3, 4, 5]);
assert.equal(seen.cuts, 1);
assert.ok(seen.resumed >= 1);

const stop = new AbortController();
const held = client.callTool({ name: 'hold', arguments: {} }, undefined, {
  signal: stop.signal,
  onprogress: () => stop.abort('enough'),
});
await assert.rejects(held, /enough/);
assert.equal(seen.cancels, 1);
// The agent returns the number of cancels.
let cancelled = 0;
while (cancelled === 0) {
  const { content } = await client.callTool({ name: 'cancels', arguments: {} });
  cancelled = Number(content[0].text);
}
assert.equal(cancelled, 1);
await client.close();
