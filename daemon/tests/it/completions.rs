//! `/v1/completions` on the shipped model.

use serde_json::{Value, json};

use crate::client::{Events, post};
use crate::server::shared;

const PATH: &str = "/v1/completions";

fn ask(body: &Value) -> Value {
    let response = post(shared().address, PATH, body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()
}

#[test]
fn text_tokens_and_lists_give_the_same() {
    let prompt = "def add(a, b):\n";
    let ids = post(shared().address, "/tokenize", &json!({"content": prompt})).json()["tokens"].clone();
    let texts: Vec<String> = [json!(prompt), ids.clone(), json!([prompt]), json!([ids])]
        .iter()
        .map(|prompt| {
            ask(&json!({"prompt": prompt, "temperature": 0, "max_tokens": 12}))["choices"][0]["text"].to_string()
        })
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0] && text.len() > 2), "{texts:?}");
}

#[test]
fn several_prompts_give_several_choices() {
    let prompts = ["def add(a, b):\n", "import os\n", "class Tree:\n"];
    let together = ask(&json!({"prompt": prompts, "temperature": 0, "max_tokens": 10}));
    let choices = together["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (i, prompt) in prompts.iter().enumerate() {
        let alone = ask(&json!({"prompt": prompt, "temperature": 0, "max_tokens": 10}));
        assert_eq!((&choices[i]["text"], &choices[i]["index"]), (&alone["choices"][0]["text"], &json!(i)));
    }
    let body = json!({"prompt": prompts, "temperature": 0, "max_tokens": 10, "stream": true,
        "stream_options": {"include_usage": true}});
    let events = Events::open(shared().address, PATH, &body).all();
    let mut texts = vec![String::new(); 3];
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    let expected: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, expected);
    assert_eq!(events.last().unwrap()["usage"], together["usage"]);
}

#[test]
fn echo_puts_the_prompt_first() {
    let plain = ask(&json!({"prompt": "import ", "temperature": 0, "max_tokens": 5}));
    let body = json!({"prompt": "import ", "temperature": 0, "max_tokens": 5, "echo": true});
    let expected = format!("import {}", plain["choices"][0]["text"].as_str().unwrap());
    assert_eq!(ask(&body)["choices"][0]["text"], expected);
}

#[test]
fn log_probabilities_are_parallel_lists() {
    let answer = ask(&json!({"prompt": "import ", "temperature": 0, "max_tokens": 5, "logprobs": 2}));
    let choice = &answer["choices"][0];
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    assert_eq!((list("tokens").len(), list("token_logprobs").len(), list("text_offset").len()), (5, 5, 5));
    assert!(list("top_logprobs").iter().all(|top| top.as_object().unwrap().len() == 2));
    let joined: String = list("tokens").iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, choice["text"].as_str().unwrap());
}

#[test]
fn the_default_is_sixteen_tokens() {
    let answer = ask(&json!({"prompt": "import ", "temperature": 0, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[test]
fn a_suffix_is_filled_before_or_refused() {
    let response = post(shared().address, PATH, &json!({"prompt": "def f():\n", "suffix": "\n", "max_tokens": 3}));
    let has_markers = post(shared().address, "/tokenize", &json!({"content": "<|fim_middle|>"})).json()["tokens"]
        .as_array()
        .is_some_and(|tokens| tokens.len() == 1);
    if has_markers {
        assert_eq!(response.status, 200, "{response:?}");
    } else {
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!("suffix")), "{response:?}");
    }
}

#[test]
fn stop_strings_work_here_too() {
    let whole = ask(&json!({"prompt": "import ", "temperature": 0, "max_tokens": 12}));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(2).take(3).collect();
    let answer = ask(&json!({"prompt": "import ", "temperature": 0, "max_tokens": 12, "stop": stop}));
    assert_eq!(answer["choices"][0]["text"], text[..text.find(&stop).unwrap()]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn texts_obey_a_form() {
    let format = json!({"type": "regex", "regex": " [0-9]{3}-[a-c]{2}"});
    let body =
        json!({"prompt": ["The number is", "It is"], "response_format": format, "max_tokens": 40, "temperature": 0});
    for choice in ask(&body)["choices"].as_array().unwrap() {
        let text = choice["text"].as_str().unwrap();
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        assert!(text.len() == 7 && text[1..4].bytes().all(|b| b.is_ascii_digit()) && &text[4..5] == "-", "{text:?}");
    }
}
