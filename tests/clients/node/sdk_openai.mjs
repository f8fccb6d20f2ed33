// The official OpenAI client for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.OPENJET_URL + "/v1", apiKey: "none", maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { path: { type: "string", maxLength: 20 }, line: { type: "integer", minimum: 1, maximum: 99 } },
  required: ["path", "line"],
};
const messages = [{ role: "user", content: "Write a Python function that adds two numbers." }];

const whole = await client.chat.completions.create({ model: "any", messages, temperature: 0, max_tokens: 40 });
let text = "";
for await (const chunk of await client.chat.completions.create({ model: "any", messages, temperature: 0, max_tokens: 40, stream: true })) {
  text += chunk.choices[0]?.delta?.reasoning_content ?? chunk.choices[0]?.delta?.content ?? "";
}
assert.ok(text.startsWith(whole.choices[0].message.reasoning_content.slice(0, 10)));

const forced = await client.chat.completions.create({
  model: "any", messages, temperature: 0, max_tokens: 200, parallel_tool_calls: false,
  tools: [{ type: "function", function: { name: "edit", parameters } }], tool_choice: "required",
});
const call = forced.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "edit");
assert.ok(JSON.parse(call.function.arguments).line >= 1);

const stream = client.responses.stream({
  model: "any", input: "Edit.", temperature: 0, max_output_tokens: 200, parallel_tool_calls: false,
  tools: [{ type: "function", name: "edit", parameters, strict: false }], tool_choice: "required",
});
const response = await stream.finalResponse();
assert.equal(response.output.find((item) => item.type === "function_call").name, "edit");
