"""A server of the Model Context Protocol, over standard input and output, with one tool. What it is called with goes as a
line of JSON into the file that NOTES names, so that tests see whether a call was executed and how. Its result is in RESULT."""

import json
import os
import sys

TOOL = {
    "name": "note",
    "description": "Writes a note.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "word": {"type": "string", "enum": ["left", "right"]},
            "urgent": {"type": "boolean"},
        },
        "required": ["word", "urgent"],
        "additionalProperties": False,
    },
}


def answer(method, params):
    if method == "initialize":
        server = {"name": "notes", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:
            notes.write(json.dumps(params["arguments"]) + "\n")
        return {"content": [{"type": "text", "text": os.environ["RESULT"]}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    # Notifications have no id and want no answer.
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
