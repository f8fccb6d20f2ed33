//! `/v1/messages` on the shipped model.

use serde_json::{Value, json};

use crate::client::{Events, get, post, send};
use crate::server::{config, shared, start};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn question(text: &str) -> Value {
    json!({"model": "claude-x", "max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": text}]})
}

fn ask(body: &Value) -> Value {
    let response = post(shared().address, PATH, body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()
}

/// A question that the shipped model answers with a call.
fn question_with_tools() -> Value {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let run = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    json!({"model": "m", "max_tokens": 100, "temperature": 0, "thinking": {"type": "adaptive"},
        "system": [{"type": "text", "text": "You are a coding agent."}],
        "tools": [{"name": "read_file", "description": "Read a file", "input_schema": schema},
            {"name": "run", "description": "Run a shell command", "input_schema": run}],
        "messages": [{"role": "user", "content": "What does src/app/main.py contain?"}]})
}

/// The message that a stream's events make, put together as clients do.
fn assembled(events: &[Value]) -> Value {
    // A slow machine has nothing to say for a while.
    let events: Vec<&Value> = events.iter().filter(|event| event["type"] != "ping").collect();
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let mut message = events[0]["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let mut open = None;
    for event in &events[1..events.len() - 1] {
        let content = message["content"].as_array_mut().unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, event["index"].as_u64()), (None, Some(content.len() as u64)));
                open = Some(content.len());
                content.push(event["content_block"].clone());
                if content.last().unwrap()["type"] == "tool_use" {
                    content.last_mut().unwrap()["input"] = json!("");
                }
            }
            "content_block_delta" => {
                let block = &mut content[open.unwrap()];
                let (member, piece) = match event["delta"]["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => ("input", "partial_json"),
                    other => panic!("{other}"),
                };
                let all = format!("{}{}", block[member].as_str().unwrap(), event["delta"][piece].as_str().unwrap());
                block[member] = json!(all);
            }
            "content_block_stop" => {
                let block = &mut content[open.take().unwrap()];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(block["input"].as_str().unwrap()).unwrap();
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            other => panic!("{other}"),
        }
    }
    message
}

/// A message without what differs from answer to answer.
fn content(message: &Value) -> Value {
    let mut message = message.clone();
    message["id"] = Value::Null;
    message["usage"]["input_tokens"] = Value::Null;
    message["usage"]["cache_read_input_tokens"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
            block["id"] = Value::Null;
        }
    }
    message
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    for body in [
        question("Write a function that adds two numbers."),
        with(
            question("Write a function that adds two numbers."),
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ),
        question_with_tools(),
    ] {
        let whole = ask(&body);
        let streamed = assembled(&Events::open(shared().address, PATH, &with(body, json!({"stream": true}))).rest());
        assert_eq!(content(&streamed), content(&whole));
    }
}

#[test]
fn thinking_and_calls_are_blocks() {
    let answer = ask(&question_with_tools());
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["model"]),
        (&json!("message"), &json!("assistant"), &json!("m"))
    );
    assert_eq!(answer["stop_reason"], "tool_use");
    let blocks = answer["content"].as_array().unwrap();
    assert_eq!(blocks.len(), 2, "{answer}");
    assert_eq!((&blocks[0]["type"], &blocks[0]["thinking"]), (&json!("thinking"), &json!("I will call read_file.")));
    assert_eq!((&blocks[1]["name"], &blocks[1]["input"]), (&json!("read_file"), &json!({"path": "src/app/main.py"})));
    // The result goes back, and so does the thinking.
    let mut body = question_with_tools();
    let result = json!({"type": "tool_result", "tool_use_id": blocks[1]["id"], "content": "print('hello')"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": blocks}));
    messages.push(json!({"role": "user", "content": [result]}));
    let next = ask(&body);
    assert!(matches!(next["stop_reason"].as_str(), Some("end_turn" | "max_tokens" | "tool_use")), "{next}");
    assert!(next["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 0, "{next}");
}

#[test]
fn stop_reasons_are_honest() {
    let short = ask(&with(question("Tell me a story."), json!({"max_tokens": 3})));
    assert_eq!((&short["stop_reason"], &short["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    let whole = ask(&question("Write a function that adds two numbers."));
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(5).take(4).collect();
    let stopped =
        ask(&with(question("Write a function that adds two numbers."), json!({"stop_sequences": ["nowhere", stop]})));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(stopped["content"][0]["text"], text[..text.find(&stop).unwrap()]);
}

#[test]
fn tokens_are_counted_exactly() {
    let body = with(question_with_tools(), json!({"max_tokens": 1}));
    let counted = post(shared().address, COUNT, &body).json()["input_tokens"].as_u64().unwrap();
    let usage = &ask(&body)["usage"];
    let used = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, used);
    let response = post(shared().address, COUNT, &json!({"messages": [{"role": "user", "content": "x"}], "mood": 1}));
    assert_eq!(response.status, 400, "{response:?}");
}

/// llama.cpp issue 19494, vllm-mlx pull request 277: a number in the first system text that changes with every request kept
/// prompts from being found again.
#[test]
fn llama_cpp_19494_the_billing_header_does_not_hide_the_prefix() {
    let body = |cch: &str| {
        let header = format!("x-anthropic-billing-header: cc_version=2.1.7.b1c; cc_entrypoint=cli; cch={cch};");
        let long = "Keep every function short and every name clear. ".repeat(40);
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}],
            "system": [{"type": "text", "text": header}, {"type": "text", "text": long}]})
    };
    // A daemon of its own: what others read makes room for nothing here.
    let folder = tempfile::tempdir().unwrap().keep();
    let own = start(config(&folder));
    let ask = |body: &Value| post(own.address, PATH, body).json();
    let first = ask(&body("00a1f"))["usage"].clone();
    let second = ask(&body("77e3c"))["usage"].clone();
    let (cached, total) = (second["cache_read_input_tokens"].as_u64().unwrap(), |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    });
    assert_eq!(total(&first), total(&second));
    assert!(cached * 10 >= total(&second) * 9 - 640, "{cached} of {} tokens were found again", total(&second));
    assert!(cached >= 256, "{second}");
}

#[test]
fn errors_have_the_apis_own_shape() {
    let address = shared().address;
    let kind = |response: &crate::client::Response| {
        let body = response.json();
        assert_eq!(body["type"], "error", "{body}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        (response.status, body["error"]["type"].as_str().unwrap().to_owned())
    };
    let bad =
        with(question("x"), json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}));
    assert_eq!(kind(&post(address, PATH, &bad)), (400, "invalid_request_error".to_owned()));
    assert_eq!(kind(&get(address, PATH)), (405, "invalid_request_error".to_owned()));
    let headers = "Content-Type: text/plain\r\n";
    assert_eq!(kind(&send(address, "POST", PATH, headers, b"{}")).0, 415);
    let models = send(address, "GET", "/v1/models/none", "anthropic-version: 2023-06-01\r\n", b"");
    assert_eq!(kind(&models), (404, "not_found_error".to_owned()));
    // The words by which Claude Code knows that it has to compact the conversation, before any stream begins.
    let context = get(address, "/v1/models").json()["data"][0]["meta"]["n_ctx"].as_u64().unwrap();
    for stream in [false, true] {
        let long = with(question(&"word ".repeat(context as usize + 1)), json!({"stream": stream}));
        let response = post(address, PATH, &long);
        assert_eq!(kind(&response), (400, "invalid_request_error".to_owned()));
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("prompt is too long: ") && message.ends_with(&format!("> {context} maximum")),
            "{message}"
        );
    }
}
