// The official Anthropic client for Node.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.OPENJET_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Write a Python function that adds two numbers." }];
const edit = {
  name: "edit",
  input_schema: { type: "object", properties: { line: { type: "integer", minimum: 1, maximum: 99 } }, required: ["line"] },
};
const stream = client.messages.stream({
  model: "any", messages, temperature: 0, max_tokens: 300, thinking: { type: "enabled", budget_tokens: 1024 },
  tools: [edit], tool_choice: { type: "any", disable_parallel_tool_use: true },
});
const message = await stream.finalMessage();
assert.equal(message.stop_reason, "tool_use");
const call = message.content.find((block) => block.type === "tool_use");
assert.ok(call.input.line >= 1 && call.input.line <= 99);
const counted = await client.messages.countTokens({ model: "any", messages });
assert.ok(counted.input_tokens > 5);
