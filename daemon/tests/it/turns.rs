//! Conversations over several turns.

use serde_json::{Value, json};

use crate::client::post;
use crate::server::shared;

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// Qwen3.8 issues 48, 112 and 131: the history was rendered in another way than it was written, so that no turn's prompt began
/// with the one before it.
#[test]
fn qwen_48_each_turn_begins_with_all_of_the_one_before() {
    let questions = [
        "Write a Python function `add` that does this: Return the sum of two numbers.",
        "Write a Python function `area` that does this: Return the area of a circle.",
        "Write a Python function `clamp` that does this: Return value limited to the range low to high.",
    ];
    let mut messages = Vec::new();
    let mut before: Vec<u64> = Vec::new();
    for question in questions {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 250, "return_token_ids": true});
        let answer = post(shared().address, "/v1/chat/completions", &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let prompt = ids(&answer["prompt_token_ids"]);
        assert_eq!(
            prompt[..before.len()],
            before[..],
            "the turn does not begin with what was read and written before it"
        );
        before = [prompt, ids(&choice["token_ids"])].concat();
        messages.push(choice["message"].clone());
    }
}
