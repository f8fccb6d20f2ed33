// The Vercel AI SDK with its client for compatible servers: it executes a call and goes on with the result.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "openjet", baseURL: process.env.OPENJET_URL + "/v1", includeUsage: true });
const model = provider("any");
let executed = 0;
const edit = tool({
  description: "Edit a file",
  inputSchema: z.object({ line: z.number().int().min(1).max(99) }),
  execute: async ({ line }) => {
    executed += 1;
    return `line ${line} is done`;
  },
});
const options = { model, temperature: 0, maxRetries: 0 };
const forced = await generateText({ ...options, prompt: "Edit.", tools: { edit }, toolChoice: "required", maxOutputTokens: 300 });
assert.ok(executed >= 1);
assert.equal(forced.toolResults[0].toolName, "edit");
const stream = streamText({ ...options, prompt: "Write a Python function that adds two numbers.", maxOutputTokens: 60 });
let parts = 0;
for await (const part of stream.fullStream) {
  assert.notEqual(part.type, "error", JSON.stringify(part));
  parts += 1;
}
assert.ok(parts > 5);
assert.ok((await stream.usage).outputTokens > 0);
