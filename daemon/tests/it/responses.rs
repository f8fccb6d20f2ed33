//! `/v1/responses` on the shipped model.

use serde_json::{Value, json};

use crate::client::{Events, post};
use crate::server::shared;

const PATH: &str = "/v1/responses";

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn question(text: &str) -> Value {
    json!({"model": "m", "max_output_tokens": 40, "temperature": 0, "input": text})
}

/// A question that the shipped model answers with a call of `read_file`.
fn question_with_tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    json!({"model": "m", "max_output_tokens": 100, "temperature": 0, "instructions": "You are a coding agent.",
        "tools": [{"type": "function", "name": "read_file", "description": "Read a file", "parameters": parameters,
            "strict": false},
            {"type": "web_search"}, {"type": "image_generation", "output_format": "png"}],
        "input": [{"type": "message", "role": "user", "content":
            [{"type": "input_text", "text": "What does src/app/main.py contain?"}]}]})
}

fn ask(body: &Value) -> Value {
    let response = post(shared().address, PATH, body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()
}

fn stream(body: Value) -> Vec<Value> {
    Events::open(shared().address, PATH, &with(body, json!({"stream": true}))).rest()
}

/// The output that a stream's events make, put together as clients do; every event is checked against its place.
fn assembled(events: &[Value]) -> Vec<Value> {
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    let (mut items, mut open): (Vec<Value>, Option<(Value, String)>) = (Vec::new(), None);
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().unwrap();
        assert_eq!(event["output_index"], items.len(), "{event}");
        if kind == "response.output_item.added" {
            assert_eq!(event["item"]["status"], "in_progress");
            open = Some((event["item"].clone(), String::new()));
            continue;
        }
        let (item, text) = open.as_mut().unwrap();
        if kind == "response.output_item.done" {
            assert_eq!((&event["item"]["id"], &event["item"]["status"]), (&item["id"], &json!("completed")));
            items.push(event["item"].clone());
            open = None;
            continue;
        }
        assert_eq!(event["item_id"], item["id"], "{event}");
        if kind.ends_with(".delta") {
            *text += event["delta"].as_str().unwrap();
        }
        for member in ["text", "arguments", "input"] {
            if kind.ends_with(".done") && event.get(member).is_some() {
                assert_eq!(event[member], text.as_str(), "{kind}");
            }
        }
    }
    assert!(open.is_none());
    items
}

/// Items without what differs from answer to answer.
fn plain(items: &Value) -> Value {
    let mut items = items.clone();
    for item in items.as_array_mut().unwrap() {
        item["id"] = Value::Null;
        if item.get("call_id").is_some() {
            item["call_id"] = Value::Null;
        }
    }
    items
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    for body in [
        question("Write a function that adds two numbers."),
        with(question("Write a function that adds two numbers."), json!({"reasoning": {"effort": "none"}})),
        question_with_tools(),
    ] {
        let whole = ask(&body);
        let events = stream(body);
        let last = &events.last().unwrap()["response"];
        assert_eq!(Value::Array(assembled(&events)), last["output"]);
        assert_eq!(plain(&last["output"]), plain(&whole["output"]));
        assert_eq!(last["status"], whole["status"]);
        assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    }
}

#[test]
fn functions_are_called_and_their_outputs_read() {
    let answer = ask(&question_with_tools());
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    let output = answer["output"].as_array().unwrap();
    assert_eq!(output[0]["content"][0], json!({"type": "reasoning_text", "text": "I will call read_file."}));
    let call = &output[1];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("read_file")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"path": "src/app/main.py"}));
    let usage = &answer["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    // The conversation goes on from its items, or from the response's id; both are the same prompt.
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "print('hello')"});
    let mut items = question_with_tools()["input"].as_array().unwrap().clone();
    items.extend(output.iter().cloned());
    items.push(result.clone());
    let by_items = ask(&with(question_with_tools(), json!({"input": items})));
    let by_id = ask(&with(question_with_tools(), json!({"input": [result], "previous_response_id": answer["id"]})));
    assert_eq!(plain(&by_id["output"]), plain(&by_items["output"]));
    assert_eq!(by_id["usage"]["input_tokens"], by_items["usage"]["input_tokens"]);
    assert_eq!(by_id["previous_response_id"], answer["id"]);
}

#[test]
fn custom_tools_are_called_with_text() {
    let mut body = question_with_tools();
    body["tools"] = json!([{"type": "custom", "name": "read_file", "description": "Read a file"}]);
    for body in [body.clone(), with(body, json!({"stream": true}))] {
        let answer = match body.get("stream") {
            None => ask(&body),
            Some(_) => {
                let events = stream(body);
                assembled(&events);
                events.last().unwrap()["response"].clone()
            }
        };
        let call = answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "custom_tool_call");
        let call = call.unwrap_or_else(|| panic!("no call in {answer}"));
        assert_eq!((&call["name"], &call["status"]), (&json!("read_file"), &json!("completed")));
        assert!(call["input"].as_str().unwrap().contains("main.py"), "{call}");
    }
}

#[test]
fn thinking_goes_back_and_forth_where_nothing_else_is_kept() {
    let body = with(question_with_tools(), json!({"include": ["reasoning.encrypted_content"], "store": false}));
    let answer = ask(&body);
    let mut reasoning = answer["output"][0].clone();
    assert!(reasoning["encrypted_content"].is_string(), "{reasoning}");
    reasoning.as_object_mut().unwrap().remove("content");
    let items = |reasoning: &Value| {
        let mut items = body["input"].as_array().unwrap().clone();
        items.extend([reasoning.clone(), answer["output"][1].clone()]);
        items.push(json!({"type": "function_call_output", "call_id": answer["output"][1]["call_id"], "output": "x"}));
        with(body.clone(), json!({"input": items, "max_output_tokens": 1}))
    };
    let tokens = |body: &Value| ask(body)["usage"]["input_tokens"].clone();
    assert_eq!(tokens(&items(&reasoning)), tokens(&items(&answer["output"][0])));
    // It was not to be kept.
    let body = with(question("x"), json!({"previous_response_id": answer["id"]}));
    let response = post(shared().address, PATH, &body);
    assert_eq!(response.status, 400);
    assert_eq!(response.json()["error"]["param"], "previous_response_id");
}

#[test]
fn ends_are_honest() {
    let short = with(question("Tell me a story."), json!({"max_output_tokens": 3}));
    let answer = ask(&short);
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(stream(short).last().unwrap()["type"], "response.incomplete");
    // A call that is cut off is text, and nobody is told to make it.
    let cut = with(question_with_tools(), json!({"max_output_tokens": 22}));
    let events = stream(cut.clone());
    let done =
        |kind: &str| events.iter().any(|e| e["type"] == "response.output_item.done" && e["item"]["type"] == kind);
    assert!(!done("function_call") && done("message"), "{events:?}");
    let text = ask(&cut)["output"][1]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("<function=read_file>"), "{text}");
}

/// Codex offers the tools of MCP servers in namespaces.
#[test]
fn tools_within_namespaces_are_called() {
    let parameters =
        json!({"type": "object", "properties": {"word": {"enum": ["left", "right"]}}, "required": ["word"]});
    let note = json!({"type": "function", "name": "note", "parameters": parameters});
    let offered = json!([note, {"type": "namespace", "name": "mcp__notes", "tools": [note]}]);
    let choice = json!({"type": "function", "name": "note", "namespace": "mcp__notes"});
    let body =
        json!({"model": "m", "input": "Hello", "tools": offered, "tool_choice": choice, "max_output_tokens": 200});
    let answer = ask(&body);
    let call =
        answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap().clone();
    assert_eq!((&call["name"], &call["namespace"]), (&json!("note"), &json!("mcp__notes")), "{answer}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["left", "right"].contains(&arguments["word"].as_str().unwrap()), "{answer}");
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"});
    let input = json!([{"role": "user", "content": "Hello"}, call, output]);
    let next = json!({"model": "m", "input": input, "tools": offered, "max_output_tokens": 2});
    assert_eq!(ask(&next)["usage"]["output_tokens"], 2);
}
