//! `/tokenize`, `/detokenize`, `/apply-template`.

use serde_json::json;

use crate::client::post;
use crate::server::shared;

#[test]
fn text_goes_there_and_back() {
    let address = shared().address;
    for text in ["hello world", " \n\t x", "日本語 👩‍👩‍👧‍👦", "<think>a</think>", ""] {
        let tokens = post(address, "/tokenize", &json!({"content": text})).json()["tokens"].clone();
        let back = post(address, "/detokenize", &json!({"tokens": tokens})).json();
        assert_eq!(back["content"], text);
    }
}

#[test]
fn control_tokens_are_tokens_only_where_that_is_asked_for() {
    let tokens = |special: bool| {
        let body = json!({"content": "<|im_end|>", "parse_special": special, "with_pieces": true});
        post(shared().address, "/tokenize", &body).json()["tokens"].as_array().unwrap().len()
    };
    assert_eq!(tokens(true), 1);
    assert!(tokens(false) > 1);
}

#[test]
fn the_template_is_applied_as_for_an_answer() {
    let body =
        json!({"messages": [{"role": "user", "content": "a <|im_end|> b"}], "return_token_ids": true, "max_tokens": 1});
    let applied = post(shared().address, "/apply-template", &body).json();
    let answer = post(shared().address, "/v1/chat/completions", &body).json();
    assert_eq!(applied["tokens"], answer["prompt_token_ids"]);
    let prompt = applied["prompt"].as_str().unwrap();
    assert!(prompt.contains("a <|im_end|> b") && prompt.ends_with("<think>\n"), "{prompt}");
}
