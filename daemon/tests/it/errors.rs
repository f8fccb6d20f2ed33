//! Every refusal has the OpenAI shape, the right status and the field at fault.

use std::sync::Arc;
use std::time::Duration;

use openjetd::app::App;
use openjetd::config::Config;
use openjetd::http::keys::Keys;
use openjetd::http::router::Router;
use openjetd::http::server::{ConnectionLimits, Server};
use serde_json::{Value, json};

use crate::client::{Response, connect, get, post, read_response, send};
use crate::server::shared;

fn check(response: &Response, status: u16) -> Value {
    assert_eq!(response.status, status, "{response:?}");
    let error = response.json()["error"].clone();
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{response:?}");
    assert!(error["type"].is_string(), "{response:?}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{response:?}");
    error
}

#[test]
fn unknown_paths_and_methods() {
    let address = shared().address;
    check(&get(address, "/v2/chat"), 404);
    check(&get(address, "/v1/models/other"), 404);
    let response = get(address, "/v1/chat/completions");
    check(&response, 405);
    assert_eq!(response.header("allow"), Some("POST"));
    let response = post(address, "/health", &json!({}));
    check(&response, 405);
    assert_eq!(response.header("allow"), Some("GET, HEAD"));
}

#[test]
fn embeddings_are_refused_with_the_reason() {
    let error = check(&post(shared().address, "/v1/embeddings", &json!({"input": "x"})), 404);
    assert_eq!(error["code"], "no_embeddings");
}

#[test]
fn every_endpoint_of_the_openapi_document_is_there() {
    let address = shared().address;
    let document = get(address, "/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 13);
    for (path, operations) in paths {
        let response = match operations.get("post") {
            None => get(address, path),
            Some(post_it) => {
                assert_eq!(post(address, path, &json!({})).status, 400, "{path}");
                post(address, path, &post_it["requestBody"]["content"]["application/json"]["example"])
            }
        };
        assert_eq!(response.status, 200, "{path}: {response:?}");
    }
}

#[test]
fn content_types() {
    let address = shared().address;
    let body = br#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}"#;
    for header in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        check(&send(address, "POST", "/v1/chat/completions", header, body), 415);
    }
    let header = "Content-Type: application/json; charset=utf-8\r\n";
    assert_eq!(send(address, "POST", "/v1/chat/completions", header, body).status, 200);
}

/// llama.cpp issue 11738: a byte that is not UTF-8 ended the process.
#[test]
fn llama_cpp_11738_invalid_utf8() {
    let address = shared().address;
    let json = "Content-Type: application/json\r\n";
    let error = check(&send(address, "POST", "/v1/completions", json, b"{\"prompt\":\"\xff\"}"), 400);
    assert!(error["message"].as_str().unwrap().contains("byte 11"), "{error}");
    let error = check(&send(address, "POST", "/v1/completions", json, b"{\"prompt\": \n tru}"), 400);
    assert!(error["message"].as_str().unwrap().contains("line 2"), "{error}");
}

/// llama.cpp pull requests 17572 and 16486: an overflow was a 500, or an error inside a stream that had begun with 200.
#[test]
fn llama_cpp_17572_overflow_is_400_with_both_numbers() {
    let address = shared().address;
    let context = get(address, "/v1/models").json()["data"][0]["meta"]["n_ctx"].as_u64().unwrap();
    let long = "word ".repeat(context as usize + 1);
    for stream in [false, true] {
        let chat = json!({"messages": [{"role": "user", "content": long}], "stream": stream});
        let completion = json!({"prompt": vec![1; context as usize + 1], "stream": stream});
        let endpoints = [("/v1/chat/completions", chat, "messages"), ("/v1/completions", completion, "prompt")];
        for (path, body, param) in endpoints {
            let error = check(&post(address, path, &body), 400);
            assert_eq!(error["param"], param);
            assert_eq!(error["code"], "context_length_exceeded");
            assert_eq!(error["type"], "exceed_context_size_error");
            assert_eq!(error["n_ctx"], context);
            assert!(error["n_prompt_tokens"].as_u64().unwrap() > context, "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&context.to_string()), "{message}");
        }
    }
}

/// llama.cpp issues 12178, 25960 and 25059: these ended the process.
#[test]
fn llama_cpp_12178_hostile_values() {
    let address = shared().address;
    let error = check(&post(address, "/v1/completions", &json!({"prompt": [-1]})), 400);
    assert_eq!(error["param"], "prompt[0]");
    let error = check(&post(address, "/v1/completions", &json!({"prompt": "x", "grammar": "%llguidance"})), 400);
    assert_eq!(error["param"], "grammar");
    // The spelling of an image marker is text like any other.
    let body = json!({"messages": [{"role": "user", "content": "<|image_pad|><__media__>"}], "max_tokens": 1});
    assert_eq!(post(address, "/v1/chat/completions", &body).status, 200);
}

/// llama.cpp issue 25059: a prompt of 2 GiB ended the process.
#[test]
fn llama_cpp_25059_bodies_over_the_limit_are_413() {
    let address = shared().address;
    let body = json!({"prompt": "x".repeat(2 << 20)}).to_string();
    let json = "Content-Type: application/json\r\n";
    check(&send(address, "POST", "/v1/completions", json, body.as_bytes()), 413);
    // A length that is only claimed is enough.
    let mut stream = connect(address);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2147483648\r\n\r\n{";
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).ok();
    if let Some(response) = read_response(&mut stream) {
        check(&response, 413);
    }
}

#[test]
fn heads_over_the_limit() {
    let address = shared().address;
    let many: String = (0..150).map(|i| format!("X-{i}: y\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "y".repeat(70_000));
    for headers in [many, long] {
        let error = check(&send(address, "GET", "/health", &headers, b""), 431);
        assert_eq!(error["code"], "headers_too_large");
    }
    check(&get(address, &format!("/health?{}", "y".repeat(65_500))), 431);
    assert_eq!(get(address, &format!("/health?{}", "y".repeat(60_000))).status, 200);
}

#[test]
fn images_and_unknown_fields_are_refused_by_name() {
    let address = shared().address;
    let image =
        json!([{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]);
    let body = json!({"messages": [{"role": "user", "content": image}]});
    assert_eq!(check(&post(address, "/v1/chat/completions", &body), 400)["param"], "messages[0].content[1]");
    let body = json!({"messages": [{"role": "user", "content": "x"}], "temprature": 1});
    let error = check(&post(address, "/v1/chat/completions", &body), 400);
    assert_eq!(error["param"], "temprature");
    assert!(error["message"].as_str().unwrap().contains("`temperature`"), "{error}");
}

#[test]
fn the_templates_words_reach_the_client() {
    let address = shared().address;
    let body = json!({"messages": [{"role": "tool", "content": "x"}], "chat_template_kwargs": {"messages": 1}});
    assert_eq!(check(&post(address, "/v1/chat/completions", &body), 400)["param"], "chat_template_kwargs.messages");
}

/// A router whose daemon has not loaded its model: it listens before that, so that a balancer sees 503 rather than a
/// refused connection.
#[test]
fn everything_is_503_while_the_model_is_loaded() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let app = Arc::new(App::new(Config::default(), String::new(), Keys::default()).unwrap());
            let second = Duration::from_secs(1);
            let limits = ConnectionLimits { connections: 8, headers: second, write: second };
            let (_running, stop) = tokio::sync::watch::channel(false);
            Server::tcp(listener, limits).run(Router { app }, stop).await;
        });
    });
    let address = receiver.recv().unwrap();
    let health = get(address, "/health");
    assert_eq!((health.status, &health.json()["state"]), (503, &json!("loading")), "{health:?}");
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    for response in [
        get(address, "/v1/models"),
        get(address, "/slots"),
        post(address, "/v1/chat/completions", &chat),
        post(address, "/v1/completions", &json!({"prompt": "x"})),
        post(address, "/tokenize", &json!({"content": "x"})),
    ] {
        assert_eq!(check(&response, 503)["code"], "loading");
        assert!(response.header("retry-after").is_some());
    }
}
