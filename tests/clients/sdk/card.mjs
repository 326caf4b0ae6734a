// The client of the A2A SDK in TypeScript (npm @a2a-js/sdk), which knows nothing but the URL of an agent.

import assert from "node:assert/strict";
import { Role, TaskState } from "@a2a-js/sdk";
import {
  ClientFactory,
  ClientFactoryOptions,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from "@a2a-js/sdk/client";

// The path of the card is relative to it.
const url = `${process.argv[2]}/`;
const binding = process.argv[3];
const transports = { JSONRPC: new JsonRpcTransportFactory(), "HTTP+JSON": new RestTransportFactory() };
const client = await new ClientFactory({
  ...ClientFactoryOptions.default,
  transports: [transports[binding]],
}).createFromUrl(url);

const ask = (text) => ({
  tenant: "",
  message: {
    messageId: crypto.randomUUID(),
    contextId: "",
    taskId: "",
    role: Role.ROLE_USER,
    parts: [{ content: { $case: "text", value: text }, filename: "", mediaType: "text/plain", metadata: undefined }],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});
const text = (part) => part.content.value;
const state = ({ payload }) => payload.value.status?.state;

const answer = await client.sendMessage(ask("Oslo"));
assert.equal(text(answer.parts[0]), "Oslo: -3 degrees");

const events = [];
for await (const event of client.sendMessageStream(ask("Oslo"))) events.push(event);
const kinds = events.map(({ payload }) => payload.$case);
assert.deepEqual(kinds, ["task", "statusUpdate", "artifactUpdate", "artifactUpdate", "artifactUpdate", "statusUpdate"]);
const { id } = events[0].payload.value;
const stored = await client.getTask({ tenant: "", id });
assert.equal(stored.status.state, TaskState.TASK_STATE_COMPLETED);
assert.deepEqual(stored.artifacts[0].parts.map(text), ["part 0", "part 1", "part 2"]);
const listed = await client.listTasks({
  tenant: "",
  contextId: stored.contextId,
  status: TaskState.TASK_STATE_UNSPECIFIED,
  pageToken: "",
  statusTimestampAfter: undefined,
});
assert.deepEqual(listed.tasks.map((task) => task.id), [id]);

// A task that goes on until it is cancelled, seen by two.
const first = client.sendMessageStream(ask("hold"));
const held = (await first.next()).value.payload.value;
while (state((await first.next()).value) !== TaskState.TASK_STATE_WORKING);
const second = client.resubscribeTask({ tenant: "", id: held.id });
assert.equal((await second.next()).value.payload.value.id, held.id);
const hook = `http://127.0.0.1:${process.env.CLIENTS_HOOKS}/${crypto.randomUUID()}`;
const config = { tenant: "", taskId: held.id, id: "hook", url: hook, token: "t0k", authentication: undefined };
const set = await client.createTaskPushNotificationConfig(config);
assert.deepEqual([set.id, set.url, set.token], ["hook", hook, "t0k"]);
const name = { tenant: "", taskId: held.id, id: "hook" };
assert.equal((await client.getTaskPushNotificationConfig(name)).url, hook);
const cancelled = await client.cancelTask({ tenant: "", id: held.id, metadata: undefined });
assert.equal(cancelled.status.state, TaskState.TASK_STATE_CANCELED);
for (const stream of [first, second]) {
  let last;
  for await (const event of stream) last = event;
  assert.equal(state(last), TaskState.TASK_STATE_CANCELED);
}
let calls = [];
for (let turn = 0; turn < 600 && !JSON.stringify(calls.at(-1)?.body ?? "").includes("CANCELED"); turn += 1) {
  await new Promise((done) => setTimeout(done, 50));
  calls = await (await fetch(hook)).json();
}
assert.ok(calls.length > 0 && calls.every((call) => call.token === "t0k"));
await client.deleteTaskPushNotificationConfig(name);
await assert.rejects(client.getTaskPushNotificationConfig(name));

await assert.rejects(client.getTask({ tenant: "", id: "nobody" }));
