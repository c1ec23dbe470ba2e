// The official Node client against a router: node client.mjs PART.

import assert from "node:assert/strict";
import OpenAI from "openai";

const model = "dsv4";
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "Tells the weather.",
    parameters: {
      type: "object",
      properties: { 城市: { enum: ["北京", "Zürich"] }, days: { type: "integer", minimum: 1, maximum: 7 } },
      required: ["城市", "days"],
    },
  },
};
const client = new OpenAI();
const strict = new OpenAI({ maxRetries: 0 });
const ask = (content) => [{ role: "user", content }];

async function fails(kind, fields) {
  try {
    await strict.chat.completions.create({ model, messages: ask("a"), max_tokens: 4, ...fields });
  } catch (e) {
    assert(e instanceof kind, `${e}`);
    return e;
  }
  assert.fail(JSON.stringify(fields));
}

async function models() {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert(ids.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
}

async function plain() {
  const fields = { model, messages: ask("Tell me."), max_tokens: 40, temperature: 0 };
  const whole = await client.chat.completions.create(fields);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  for (const usage of [true, false]) {
    let text = "";
    const finish = [], usages = [], ids = new Set();
    const options = usage ? { stream_options: { include_usage: true } } : {};
    for await (const chunk of await client.chat.completions.create({ ...fields, stream: true, ...options })) {
      ids.add(chunk.id);
      if (chunk.usage) usages.push(chunk.usage.completion_tokens);
      for (const c of chunk.choices) {
        text += c.delta.content ?? "";
        if (c.finish_reason) finish.push(c.finish_reason);
      }
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(finish, [whole.choices[0].finish_reason]);
    assert.equal(ids.size, 1);
    assert.deepEqual(usages, usage ? [whole.usage.completion_tokens] : []);
  }
  const once = { model, prompt: "Once", max_tokens: 12, temperature: 0 };
  let text = "";
  for await (const p of await client.completions.create({ ...once, stream: true })) text += p.choices[0].text;
  assert.equal(text, (await client.completions.create(once)).choices[0].text);
}

async function tools() {
  const fields = { model, messages: ask("Weather?"), tools: [weather], tool_choice: "required", max_tokens: 400 };
  const whole = (await client.chat.completions.create(fields)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  assert.equal(whole.message.content, null);
  for (const call of whole.message.tool_calls) {
    const said = JSON.parse(call.function.arguments);
    assert(call.function.name === "weather" && ["北京", "Zürich"].includes(said["城市"]) && said.days >= 1 && said.days <= 7);
  }
  const final = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.equal(final.choices[0].finish_reason, "tool_calls");
  assert.deepEqual(
    final.choices[0].message.tool_calls.map((c) => c.function.arguments),
    whole.message.tool_calls.map((c) => c.function.arguments),
  );
  const one = await client.chat.completions.create({ ...fields, parallel_tool_calls: false });
  assert.equal(one.choices[0].message.tool_calls.length, 1);
  const history = [
    ...fields.messages, whole.message, ...whole.message.tool_calls.map((c) => ({ role: "tool", tool_call_id: c.id, content: "晴" })),
  ];
  const after = await client.chat.completions.create({ model, messages: history, tools: [weather], tool_choice: "none", max_tokens: 9 });
  assert(after.choices[0].message.content && !after.choices[0].message.tool_calls);
}

async function bound() {
  const schema = {
    type: "object",
    properties: { title: { type: "string" }, steps: { type: "array", items: { type: "string" }, minItems: 1 } },
    required: ["title", "steps"],
    additionalProperties: false,
  };
  const parsed = await client.chat.completions.parse({
    model, messages: ask("Plan."), max_tokens: 600, response_format: { type: "json_schema", json_schema: { name: "plan", strict: true, schema } },
  });
  const said = JSON.parse(parsed.choices[0].message.content);
  assert.deepEqual(Object.keys(said), ["title", "steps"]);
  assert(said.steps.length >= 1);
}

async function errors() {
  let e = await fails(OpenAI.BadRequestError, { n: 2 });
  assert.deepEqual([e.status, e.param, e.code, e.type], [400, "n", "unsupported", "invalid_request_error"]);
  assert(e.requestID && e.message.includes("n must be 1"));
  e = await fails(OpenAI.NotFoundError, { model: "another" });
  assert.deepEqual([e.param, e.code], ["model", "model_not_found"]);
  e = await fails(OpenAI.BadRequestError, { max_tokens: 600000, stream: true });
  assert.equal(e.code, "context_length_exceeded");
  e = await fails(OpenAI.BadRequestError, { tools: [{ type: "function", function: { name: "f", parameters: { not: {} } } }] });
  assert.equal(e.param, "tools[0].function.parameters.not");
  const { response } = await client.chat.completions
    .create({ model, messages: ask("a"), max_tokens: 1 }, { headers: { "X-Request-Id": "mine-1" } }).withResponse();
  assert.equal(response.headers.get("x-request-id"), "mine-1");
}

const long = (text) => ({ model, messages: ask(text), max_tokens: 4000, stream: true, ignore_eos: true });

async function leaving() {
  const streams = [];
  for (const text of ["long 0", "long 1", "long 2", "long 3"]) {
    streams.push(await client.chat.completions.create(long(text)));
  }
  const e = await fails(OpenAI.InternalServerError, {});
  assert.equal(e.status, 503);
  assert.equal(e.headers.get("retry-after"), "1");
  for (const stream of streams) stream.controller.abort();
  const patient = new OpenAI({ maxRetries: 8 });
  await patient.chat.completions.create({ model, messages: ask("next"), max_tokens: 4 });
}

async function broken() {
  let begun = false, finish = null;
  try {
    for await (const chunk of await strict.chat.completions.create(long("long"))) {
      if (chunk.choices[0].delta.content && !begun) {
        begun = true;
        console.log("streaming");
      }
      finish = chunk.choices[0].finish_reason ?? finish;
    }
  } catch (e) {
    assert(e instanceof OpenAI.APIError, `${e}`);
    assert.equal(e.type, "pd_decode_error");
    assert(e.code);
    assert.equal(finish, null);
    return;
  }
  assert.fail("a broken stream ended like a whole one");
}

for (const part of { answers: [models, plain, tools, bound, errors, leaving], broken: [broken] }[process.argv[2]]) {
  await part();
  console.log(part.name, "ok");
}
