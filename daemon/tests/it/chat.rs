//! `/v1/chat/completions` on the shipped model.

use serde_json::{Value, json};

use crate::client::{Events, Response, get, post};
use crate::server::{config, shared, start};

const PATH: &str = "/v1/chat/completions";

fn question(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40})
}

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn ask(body: &Value) -> Value {
    let response: Response = post(shared().address, PATH, body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()
}

fn text(message: &Value, field: &str) -> String {
    message[field].as_str().unwrap_or_default().to_owned()
}

/// Content, reasoning, finish reason of a stream, put together.
fn joined(events: &[Value]) -> (String, String, Value) {
    let (mut content, mut reasoning, mut finish) = (String::new(), String::new(), Value::Null);
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        reasoning += choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null(), "two ends");
            finish = choice["finish_reason"].clone();
        }
    }
    (content, reasoning, finish)
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    for extra in [json!({}), json!({"enable_thinking": false}), json!({"enable_thinking": false, "draft": 0})] {
        let body = with(question("Write a function that adds two numbers."), extra);
        let whole = ask(&body);
        assert_eq!(whole["object"], "chat.completion");
        let message = &whole["choices"][0]["message"];
        let stream = with(body, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let events = Events::open(shared().address, PATH, &stream).all();
        let (content, reasoning, finish) = joined(&events);
        assert_eq!((content, reasoning), (text(message, "content"), text(message, "reasoning_content")));
        assert_eq!(finish, whole["choices"][0]["finish_reason"]);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let last = events.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert!(events[..events.len() - 1].iter().all(|event| event["usage"].is_null()));
        let ids: std::collections::HashSet<_> = events.iter().map(|event| event["id"].to_string()).collect();
        assert_eq!(ids.len(), 1);
    }
}

#[test]
fn usage_and_timings_are_exact() {
    let body = with(question("Name three colours of the sea."), json!({"return_token_ids": true, "max_tokens": 9}));
    let first = ask(&body);
    let usage = &first["usage"];
    assert_eq!(usage["prompt_tokens"], first["prompt_token_ids"].as_array().unwrap().len());
    assert_eq!(usage["completion_tokens"], first["choices"][0]["token_ids"].as_array().unwrap().len());
    assert_eq!(usage["completion_tokens"], 9);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 9, "it begins by thinking: {first}");
    assert_eq!(first["timings"]["predicted_n"], 9);
    let again = ask(&body);
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(again["timings"]["cache_n"], *cached);
    let computed = again["timings"]["prompt_n"].as_u64().unwrap() + cached.as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens"], computed);
}

#[test]
fn finish_reasons_are_honest() {
    let short = ask(&with(question("Tell me a long story."), json!({"max_tokens": 3})));
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["usage"]["completion_tokens"], 3);
}

#[test]
fn stop_strings_end_the_text_and_never_leave() {
    let base = with(question("Write a function that adds two numbers."), json!({"enable_thinking": false}));
    let whole = text(&ask(&base)["choices"][0]["message"], "content");
    // Every substring of a part of the answer, so that stop strings begin and end inside of tokens too.
    let chars: Vec<char> = whole.chars().skip(4).take(14).collect();
    assert_eq!(chars.len(), 14, "too short an answer to test with: {whole:?}");
    for (from, len) in [(0, 1), (1, 3), (2, 5), (3, 7), (5, 9)] {
        let stop: String = chars[from..from + len].iter().collect();
        let expected = &whole[..whole.find(&stop).unwrap()];
        for stream in [false, true] {
            let body = with(base.clone(), json!({"stop": ["never there", stop], "stream": stream}));
            let (content, finish) = if stream {
                let (content, _, finish) = joined(&Events::open(shared().address, PATH, &body).all());
                (content, finish)
            } else {
                let answer = ask(&body);
                assert!(answer["timings"]["draft_n"].is_u64(), "{answer}");
                (text(&answer["choices"][0]["message"], "content"), answer["choices"][0]["finish_reason"].clone())
            };
            assert_eq!(content, expected, "stop {stop:?}");
            assert_eq!(finish, "stop");
        }
    }
}

/// llama.cpp pull request 27196, vllm issue 53488: with drafts they were 0.0 or wrong.
#[test]
fn llama_cpp_27196_log_probabilities_belong_to_the_contents_tokens_with_drafts_too() {
    let base = with(
        question("Write a Python function `clamp` that does this: Return value limited to the range low to high."),
        json!({"enable_thinking": false, "logprobs": true, "top_logprobs": 3}),
    );
    let plain = ask(&with(base.clone(), json!({"draft": 0})));
    let drafted = ask(&base);
    let entries = plain["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let content = text(&plain["choices"][0]["message"], "content");
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    let spelled = String::from_utf8_lossy(&bytes).into_owned();
    assert_eq!(spelled.trim(), content.trim());
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the chosen token is the likeliest.
        assert_eq!(top[0]["token"], entry["token"]);
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    assert_eq!(drafted["choices"][0]["logprobs"], plain["choices"][0]["logprobs"]);
}

#[test]
fn any_model_name_is_echoed() {
    assert_eq!(ask(&with(question("x"), json!({"model": "gpt-x", "max_tokens": 1})))["model"], "gpt-x");
    assert_eq!(ask(&with(question("x"), json!({"max_tokens": 1})))["model"], "openjet-tiny");
}

#[test]
fn a_seed_repeats_a_sampled_answer() {
    let body = |seed: u64| with(question("Write a poem."), json!({"temperature": 1.5, "seed": seed}));
    let say = |seed: u64| ask(&body(seed))["choices"][0]["message"].to_string();
    assert_eq!(say(1), say(1));
    assert!((2..6).any(|seed| say(seed) != say(1)));
}

#[test]
fn logit_bias_and_penalties_arrive() {
    let base =
        with(question("Say hello."), json!({"enable_thinking": false, "return_token_ids": true, "max_tokens": 4}));
    let plain = ask(&base);
    let first = plain["choices"][0]["token_ids"][0].as_u64().unwrap();
    let banned = ask(&with(base, json!({"logit_bias": {first.to_string(): -100}})));
    assert_ne!(banned["choices"][0]["token_ids"][0], first);
}

/// lucebox pull request 641 and others: characters of several tokens came out as U+FFFD.
#[test]
fn lucebox_641_characters_are_whole() {
    // Bytes of these are several tokens each; the model repeats its own context when pressed to.
    let text = "👩‍👩‍👧‍👦 日本語 é";
    let ids = post(shared().address, "/tokenize", &json!({"content": text})).json()["tokens"].clone();
    let ids: Vec<u64> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert!(ids.len() > text.chars().count(), "every character is a token here, so nothing is tested");
    // Only these tokens may be drawn, so that characters begin, break off and end anywhere.
    let bias: serde_json::Map<String, Value> = ids.iter().map(|id| (id.to_string(), json!(100))).collect();
    for seed in 0..6 {
        let body = with(
            question("x"),
            json!({"logit_bias": bias, "temperature": 2, "top_k": 0, "top_p": 1, "seed": seed,
            "stream": true, "ignore_eos": true, "enable_thinking": false, "return_token_ids": true}),
        );
        // The client refuses chunks that are not UTF-8 by themselves.
        let events = Events::open(shared().address, PATH, &body).all();
        let (content, ..) = joined(&events);
        let ids: Vec<Value> =
            events.iter().filter_map(|e| e["choices"][0]["token_ids"].as_array()).flatten().cloned().collect();
        assert_eq!(ids.len(), 40);
        let whole = post(shared().address, "/detokenize", &json!({"tokens": ids})).json();
        assert_eq!(content, whole["content"].as_str().unwrap(), "the stream differs from its tokens read at once");
    }
}

#[test]
fn a_conversation_goes_on_with_thinking_and_tools_in_its_history() {
    let tools = json!([{"type": "function", "function": {"name": "read_file", "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]);
    let body = json!({"max_tokens": 8, "temperature": 0, "tools": tools, "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "What is in a.txt?"},
        {"role": "assistant", "content": null, "reasoning_content": "I read it.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"a.txt\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "hello"},
    ]});
    assert_eq!(ask(&body)["usage"]["completion_tokens"], 8);
    let prompt = post(shared().address, "/apply-template", &body).json()["prompt"].as_str().unwrap().to_owned();
    for part in
        ["Be brief.", "\"name\": \"read_file\"", "<parameter=path>\na.txt\n", "<tool_response>\nhello", "I read it."]
    {
        assert!(prompt.contains(part), "no {part:?} in {prompt}");
    }
}

#[test]
fn sessions_keep_their_agent() {
    let ask = |name: &str| {
        let headers = format!("Content-Type: application/json\r\nX-Session-Id: {name}\r\n");
        let body = with(question("Which one are you?"), json!({"max_tokens": 1})).to_string();
        let response = crate::client::send(shared().address, "POST", PATH, &headers, body.as_bytes());
        assert_eq!(response.status, 200, "{response:?}");
    };
    ask("test-session");
    let slots = get(shared().address, "/slots").json();
    assert!(slots.as_array().unwrap().iter().any(|slot| slot["session"] == "test-session"), "{slots}");
}

fn tool(name: &str, description: &str, parameter: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]});
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

#[test]
fn tool_calls_come_whole_and_in_pieces() {
    let tools = json!([tool("read_file", "Read a file", "path"), tool("run", "Run a shell command", "command")]);
    let body = json!({"temperature": 0, "max_tokens": 100, "tools": tools, "messages": [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "What does src/app/main.py contain?"}]});
    for extra in [json!({}), json!({"parallel_tool_calls": false})] {
        let body = with(body.clone(), extra);
        let answer = ask(&body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let message = &choice["message"];
        assert_eq!(message["content"], Value::Null);
        assert_eq!(message["reasoning_content"], "I will call read_file.");
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!((&calls[0]["type"], &calls[0]["function"]["name"]), (&json!("function"), &json!("read_file")));
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"path": "src/app/main.py"}));

        let events = Events::open(shared().address, PATH, &with(body, json!({"stream": true}))).all();
        let (content, reasoning, finish) = joined(&events);
        assert_eq!((content.as_str(), reasoning.as_str()), ("", "I will call read_file."));
        assert_eq!(finish, "tool_calls");
        let deltas: Vec<&Value> =
            events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).collect();
        assert_eq!(deltas[0]["function"]["name"], "read_file");
        assert!(deltas[0]["id"].as_str().is_some_and(|id| !id.is_empty()));
        assert!(deltas[1..].iter().all(|delta| delta["index"] == 0 && delta.get("id").is_none()));
        assert!(deltas.len() > 2, "the arguments came in one piece: {deltas:?}");
        let joined: String = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&joined).unwrap(), arguments);
    }
    // A call that is cut off is no call.
    let short = ask(&with(body, json!({"max_tokens": 20})));
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["choices"][0]["message"].get("tool_calls"), None, "{short}");
}

/// tt-inference-server issue 4386: with `tool_choice` none there were calls nevertheless.
#[test]
fn tt_inference_server_4386_there_is_no_call_with_tool_choice_none() {
    let tools = json!([tool("read_file", "Read a file", "path")]);
    let body = json!({"temperature": 0, "max_tokens": 100, "tools": tools, "messages": [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "What does src/app/main.py contain?"}]});
    assert_eq!(ask(&body)["choices"][0]["finish_reason"], "tool_calls", "it calls nothing, so nothing is tested");
    let none = ask(&with(body, json!({"tool_choice": "none"})));
    assert_eq!(none["choices"][0]["message"].get("tool_calls"), None, "{none}");
    assert_ne!(none["choices"][0]["finish_reason"], "tool_calls");
    assert!(!text(&none["choices"][0]["message"], "content").contains("tool_call>"), "{none}");
}

/// An answer that a stop string ends is counted by the daemon, not by the engine.
#[test]
fn cached_tokens_are_the_same_whatever_ends_the_answer() {
    let question = "Count the words of this sentence, and then those of the next one as well. ".repeat(12);
    let base = json!({
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 8, "enable_thinking": false,
    });
    let cached = |body: &Value, finish: &str| {
        let answer = ask(body);
        assert_eq!(answer["choices"][0]["finish_reason"], finish, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    cached(&base, "length");
    let expected = cached(&base, "length");
    assert!(expected > 64);
    assert_eq!(cached(&with(base, json!({"stop": ["e", "a", "o", " "]})), "stop"), expected);
}

/// Coding agents seldom say it; so their runs can be repeated.
#[test]
fn a_setting_is_the_temperature_of_requests_that_say_none() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(openjetd::config::Config { temperature: Some(0.0), ..config(folder.path()) });
    let greedy = question("Write a function that adds two numbers.");
    let said = |body: &Value| post(server.address, PATH, body).json()["choices"][0].clone();
    let silent = json!({"messages": greedy["messages"], "max_tokens": 40});
    assert_eq!(said(&silent), said(&greedy));
    assert_ne!(said(&with(silent, json!({"temperature": 2, "seed": 1}))), said(&greedy));
}
