//! Answers and calls that are held to a form: JSON schemas, regular expressions, grammars, forced calls, thinking budgets.

use serde_json::{Value, json};

use crate::client::{Events, post};
use crate::server::{config, shared, start};

const PATH: &str = "/v1/chat/completions";

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn question(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 300})
}

fn ask(body: &Value) -> Value {
    let response = post(shared().address, PATH, body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()["choices"][0].clone()
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap_or_default()
}

fn person() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "kind"], "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
        "kind": {"enum": ["cat", "dog"]},
    }})
}

fn assert_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"));
    assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
    assert!(value["age"].as_u64().unwrap() <= 150, "{text}");
    assert!(value["tags"].as_array().unwrap().iter().all(Value::is_boolean), "{text}");
    assert!(["cat", "dog"].contains(&value["kind"].as_str().unwrap()), "{text}");
}

fn schema_format(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}}})
}

#[test]
fn answers_obey_a_schema_after_the_thinking_with_drafts_and_without() {
    for thinking in [true, false] {
        let body = with(question("Describe an animal."), schema_format(person()));
        let body = with(body, json!({"enable_thinking": thinking}));
        let drafted = ask(&body);
        assert_eq!(drafted["finish_reason"], "stop", "{drafted}");
        assert_person(content(&drafted));
        assert_eq!(drafted["message"].get("reasoning_content").is_some(), thinking);
        let plain = ask(&with(body, json!({"draft": 0})));
        assert_eq!(drafted["message"], plain["message"]);
    }
}

/// All of it is drafted, in more steps than one.
#[test]
fn a_constant_may_be_longer_than_the_rows_that_an_agent_has_in_a_step() {
    let long = "The quick brown fox jumps over the lazy dog, and 12 boxing wizards jump quickly. ".repeat(4);
    let body = with(question("Say it."), schema_format(json!({"const": long})));
    let choice = ask(&with(body, json!({"enable_thinking": false})));
    assert_eq!(serde_json::from_str::<Value>(content(&choice)).unwrap(), json!(long));
}

#[test]
fn sampled_answers_obey_too() {
    for seed in 0..8 {
        let body = with(question("Describe an animal."), schema_format(person()));
        let choice = ask(&with(body, json!({"enable_thinking": false, "temperature": 1.5, "seed": seed, "top_k": 0})));
        assert_person(content(&choice));
    }
}

#[test]
fn regexes_and_grammars() {
    for (format, expected) in [
        (json!({"type": "regex", "regex": "[0-9]{3}/[a-c]{2}"}), r"^\d{3}/[abc]{2}$"),
        (json!({"type": "grammar", "grammar": "start: \"yes\" | \"no\" | N\nN: /[1-9]{4}/"}), r"^(yes|no|[1-9]{4})$"),
    ] {
        for thinking in [true, false] {
            let body = json!({"response_format": format, "enable_thinking": thinking});
            let choice = ask(&with(question("Say something."), body));
            let text = content(&choice);
            let fits = match expected.contains('/') {
                true => text.len() == 6 && text.as_bytes()[3] == b'/' && text[..3].bytes().all(|b| b.is_ascii_digit()),
                false => text == "yes" || text == "no" || text.len() == 4 && text.bytes().all(|b| b.is_ascii_digit()),
            };
            assert!(fits, "{text:?} does not match {expected}");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
}

#[test]
fn json_objects() {
    let choice = ask(&with(question("Reply in JSON."), json!({"response_format": {"type": "json_object"}})));
    let text = content(&choice);
    match choice["finish_reason"].as_str().unwrap() {
        "stop" => assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text:?}"),
        "length" => assert!(text.is_empty() || text.starts_with('{'), "{text:?}"),
        other => panic!("{other}"),
    }
}

/// llama.cpp pull requests 17572 and others: a schema that makes no sense was an internal error.
#[test]
fn llama_cpp_17572_what_can_not_be_kept_to_is_refused_by_name() {
    let schema = "response_format.json_schema.schema";
    for (extra, param) in [
        (schema_format(json!({"type": "wizard"})), schema),
        (schema_format(json!({"type": "object", "properties": 3})), schema),
        (schema_format(json!({"$ref": "#/nowhere"})), schema),
        (json!({"response_format": {"type": "regex", "regex": "(("}}), "response_format"),
        (json!({"response_format": {"type": "grammar", "grammar": "%llguidance"}}), "response_format"),
        (json!({"response_format": {"type": "grammar", "grammar": ""}}), "response_format"),
        (with(schema_format(person()), json!({"ignore_eos": true})), "ignore_eos"),
    ] {
        let response = post(shared().address, PATH, &with(question("x"), extra.clone()));
        assert_eq!(response.status, 400, "{extra}: {response:?}");
        assert_eq!(response.json()["error"]["param"], param, "{extra}: {response:?}");
    }
}

fn tools() -> Value {
    let edit = json!({"type": "object", "required": ["path", "line", "mode"], "properties": {
        "path": {"type": "string", "pattern": "^[a-z]{1,8}\\.py$"}, "line": {"type": "integer", "minimum": 1, "maximum": 99},
        "mode": {"type": "string", "enum": ["insert", "replace"]},
        "flags": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/flag"}}},
        "$defs": {"flag": {"enum": ["a", "b"]}}});
    json!([
        {"type": "function", "function": {"name": "edit", "description": "Edit a file", "parameters": edit}},
        {"type": "function", "function": {"name": "list", "description": "List files"}},
    ])
}

fn assert_call(call: &Value) {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "edit" => {
            let path = arguments["path"].as_str().unwrap();
            assert!(path.ends_with(".py") && path.len() <= 11, "{arguments}");
            assert!((1..=99).contains(&arguments["line"].as_u64().unwrap()), "{arguments}");
            assert!(["insert", "replace"].contains(&arguments["mode"].as_str().unwrap()), "{arguments}");
            if let Some(flags) = arguments.get("flags") {
                assert!(flags.as_array().unwrap().iter().all(|flag| flag == "a" || flag == "b"), "{arguments}");
            }
        }
        "list" => assert_eq!(arguments, json!({})),
        other => panic!("{other}"),
    }
}

#[test]
fn calls_can_be_forced() {
    let base = with(question("Hello, how are you?"), json!({"tools": tools(), "parallel_tool_calls": false}));
    let named = json!({"type": "function", "function": {"name": "edit"}});
    for choice in [json!("required"), named.clone()] {
        for thinking in [true, false] {
            for seed in 0..2 {
                let extra =
                    json!({"tool_choice": choice, "enable_thinking": thinking, "temperature": seed, "seed": seed});
                let body = with(base.clone(), extra);
                let answer = ask(&body);
                assert_eq!(answer["finish_reason"], "tool_calls", "{body}: {answer}");
                let calls = answer["message"]["tool_calls"].as_array().unwrap();
                assert_eq!(calls.len(), 1);
                assert_call(&calls[0]);
                if choice == named {
                    assert_eq!(calls[0]["function"]["name"], "edit");
                }
                assert_eq!(
                    ask(&with(body, json!({"draft": 0})))["message"]["tool_calls"][0]["function"],
                    calls[0]["function"]
                );
            }
        }
    }
}

#[test]
fn several_calls_can_be_forced() {
    let list = json!([tools()[1]]);
    let body = with(question("List all."), json!({"tools": list, "tool_choice": "required", "max_tokens": 200}));
    let answer = ask(&with(body, json!({"enable_thinking": false})));
    let calls = answer["message"]["tool_calls"].as_array().unwrap();
    assert!(!calls.is_empty());
    calls.iter().for_each(assert_call);
}

/// vllm issue 30439: the arguments came in one piece at the end.
#[test]
fn vllm_30439_forced_calls_stream_in_pieces() {
    let tool = json!({"type": "function", "function": {"name": "write", "parameters": {"type": "object",
        "properties": {"text": {"type": "string", "minLength": 60, "maxLength": 80}}, "required": ["text"]}}});
    let body = with(
        question("Write."),
        json!({"tools": [tool], "tool_choice": "required", "enable_thinking": false,
        "parallel_tool_calls": false, "stream": true}),
    );
    let events = Events::open(shared().address, PATH, &body).all();
    let pieces: Vec<&str> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
        .filter(|piece| !piece.is_empty())
        .collect();
    assert!(pieces.len() > 8, "{pieces:?}");
    let arguments: Value = serde_json::from_str(&pieces.concat()).unwrap();
    assert!((60..=80).contains(&arguments["text"].as_str().unwrap().chars().count()), "{arguments}");
}

#[test]
fn strict_tools_are_held_where_the_model_calls_by_itself() {
    let mut tool = json!({"type": "function", "function": {"name": "read_file", "description": "Read a file", "strict": true,
        "parameters": {"type": "object", "required": ["path", "lines"], "properties": {
            "path": {"type": "string"}, "lines": {"type": "integer", "maximum": 500, "minimum": 1}}}}});
    let run = json!({"type": "function", "function": {"name": "run", "description": "Run a shell command", "parameters":
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}});
    let messages = json!([{"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "What does src/app/main.py contain?"}]);
    let ask_with =
        |tool: &Value| ask(&json!({"messages": messages, "tools": [tool, run], "temperature": 0, "max_tokens": 120}));
    let held = ask_with(&tool);
    let call = &held["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(call["name"], "read_file", "{held}");
    assert!((1..=500).contains(&arguments["lines"].as_u64().unwrap()), "{arguments}");
    // Not held, the model leaves out what it was not trained to write.
    tool["function"]["strict"] = json!(false);
    let free = ask_with(&tool);
    let arguments: Value =
        serde_json::from_str(free["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments.get("lines"), None, "the schema is kept to without help, so nothing is tested");
}

#[test]
fn other_apis_force_calls_too() {
    let schema = tools()[0]["function"]["parameters"].clone();
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "edit", "disable_parallel_tool_use": true})] {
        let body = json!({"model": "m", "max_tokens": 200, "temperature": 0, "tool_choice": choice,
            "tools": [{"name": "edit", "input_schema": schema}], "messages": [{"role": "user", "content": "Hello"}]});
        let answer = post(shared().address, "/v1/messages", &body).json();
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let block = &answer["content"][0];
        assert_call(&json!({"function": {"name": block["name"], "arguments": block["input"].to_string()}}));
    }
    let body = json!({"model": "m", "max_output_tokens": 200, "temperature": 0, "tool_choice": "required", "input": "Hello",
        "parallel_tool_calls": false, "tools": [{"type": "function", "name": "edit", "parameters": schema, "strict": true}]});
    let answer = post(shared().address, "/v1/responses", &body).json();
    let output = answer["output"].as_array().unwrap();
    let call =
        output.iter().find(|item| item["type"] == "function_call").unwrap_or_else(|| panic!("no call in {answer}"));
    assert_call(&json!({"function": call}));
    let format = json!({"format": {"type": "json_schema", "name": "p", "schema": person(), "strict": true}});
    let body =
        json!({"model": "m", "temperature": 0, "input": "Hello", "text": format, "reasoning": {"effort": "none"}});
    let answer = post(shared().address, "/v1/responses", &body).json();
    assert_person(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    let format = json!({"format": {"type": "json_schema", "schema": person()}});
    let body = json!({"model": "m", "max_tokens": 200, "temperature": 0, "output_config": format,
        "messages": [{"role": "user", "content": "Hello"}]});
    let answer = post(shared().address, "/v1/messages", &body).json();
    assert_person(answer["content"][0]["text"].as_str().unwrap());
}

/// tt-inference-server issue 4386: with a schema, pieces of the end of the thinking came into the answer.
#[test]
fn tt_inference_server_4386_a_schema_and_thinking_are_kept_apart() {
    let body = with(question("Describe an animal."), schema_format(person()));
    let events = Events::open(shared().address, PATH, &with(body, json!({"stream": true}))).all();
    let delta =
        |event: &Value, member: &str| event["choices"][0]["delta"][member].as_str().unwrap_or_default().to_owned();
    let text: String = events.iter().map(|event| delta(event, "content")).collect();
    let thinking: String = events.iter().map(|event| delta(event, "reasoning_content")).collect();
    assert_person(&text);
    assert!(!thinking.is_empty() && !thinking.contains("think>"), "{thinking:?}");
}

#[test]
fn thinking_ends_at_its_budget() {
    let base =
        question("Write a Python function `clamp` that does this: Return value limited to the range low to high.");
    let response = post(shared().address, PATH, &base).json();
    let free = response["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(free > 8, "it thinks too little for a test: {response}");
    for budget in [0, 1, 5] {
        for draft in [0, 4] {
            let body = with(base.clone(), json!({"thinking_budget": budget, "draft": draft}));
            let response = post(shared().address, PATH, &body).json();
            let thought = response["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
            assert!(thought <= budget + 2, "{thought} tokens of thinking with a budget of {budget}");
            let text = response["choices"][0]["message"]["content"].as_str().unwrap();
            assert!(!text.is_empty() && !text.contains("think>"), "{response}");
        }
    }
    // More than it needs changes nothing.
    let roomy = post(shared().address, PATH, &with(base, json!({"thinking_budget": free + 50}))).json();
    assert_eq!(roomy["choices"][0]["message"], response["choices"][0]["message"]);
}

#[test]
fn an_answer_that_is_cut_off_says_so() {
    let body = with(question("Describe an animal."), schema_format(person()));
    let choice = ask(&with(body, json!({"enable_thinking": false, "max_tokens": 4})));
    assert_eq!(choice["finish_reason"], "length");
    let forced = json!({"tools": tools(), "tool_choice": "required", "enable_thinking": false, "max_tokens": 8});
    let choice = ask(&with(question("x"), forced));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"].get("tool_calls"), None);
    assert!(content(&choice).starts_with("<function="), "what was written of the call is text: {choice}");
}

/// Coding agents leave the choice to the model; the setting `tool_choice` has small models call nevertheless.
#[test]
fn a_setting_forces_calls_where_the_request_leaves_it_to_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(openjetd::config::Config {
        tool_choice: "edit".to_owned(),
        thinking_budget: Some(5),
        ..config(folder.path())
    });
    let ask = |path: &str, body: &Value| {
        let response = post(server.address, path, body);
        assert_eq!(response.status, 200, "{body}: {response:?}");
        response.json()
    };
    let body = with(question("Hello"), json!({"tools": tools(), "tool_choice": "auto", "enable_thinking": false}));
    let answer = ask(PATH, &body)["choices"][0].clone();
    assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
    let call = &answer["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "edit");
    assert_call(call);
    // With the call's result the model is free again: it can end.
    let mut messages = body["messages"].as_array().unwrap().clone();
    messages.push(answer["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "done"}));
    let after = ask(PATH, &with(body.clone(), json!({"messages": messages, "max_tokens": 30})));
    assert_ne!(after["choices"][0]["finish_reason"], "tool_calls", "{after}");
    // So it is where the request decides, or does not offer the tool.
    let other = json!([tools()[1]]);
    for extra in
        [json!({"tool_choice": "none"}), json!({"tools": other}), json!({"response_format": {"type": "json_object"}})]
    {
        let answer = ask(PATH, &with(with(body.clone(), extra.clone()), json!({"max_tokens": 30})));
        assert_ne!(answer["choices"][0]["finish_reason"], "tool_calls", "{extra}: {answer}");
    }
    // The other setting: thinking is closed where the request does not say when.
    let answer = ask(PATH, &with(body.clone(), json!({"enable_thinking": true})));
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() <= 8, "{answer}");
    let schema = &tools()[0]["function"]["parameters"];
    let answer = ask(
        "/v1/messages",
        &json!({"model": "m", "max_tokens": 200, "tools": [{"name": "edit", "input_schema": schema}],
            "messages": [{"role": "user", "content": "Hello"}]}),
    );
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let answer = ask(
        "/v1/responses",
        &json!({"model": "m", "input": "Hello", "reasoning": {"effort": "none"},
            "tools": [{"type": "function", "name": "edit", "parameters": schema}]}),
    );
    assert_eq!(answer["output"][0]["type"], "function_call", "{answer}");
}
