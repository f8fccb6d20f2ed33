//! Hundreds of malformed bodies and requests: each is answered, none harms the daemon.

use std::io::Write;
use std::net::Shutdown;

use openjetd::api::fields::Field;
use openjetd::api::{chat, completions, sampling, text};
use serde_json::{Value, json};

use crate::client::{connect, post, read_response, send};
use crate::server::shared;

const JSON: &str = "Content-Type: application/json\r\n";

fn alive() {
    let body = json!({"prompt": "def", "max_tokens": 2, "temperature": 0});
    assert_eq!(post(shared().address, "/v1/completions", &body).status, 200);
}

/// Sends a body that may be anything. The answer must be whole and of the right shape.
fn survives(path: &str, body: &[u8]) {
    let response = send(shared().address, "POST", path, JSON, body);
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    assert!(matches!(response.status, 200 | 400 | 413), "{shown}: {response:?}");
    let value = response.json();
    assert_eq!(value.get("error").is_some(), response.status != 200, "{shown}: {response:?}");
}

/// A value of every kind, small and extreme.
fn values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{ffff}👩‍👩‍👧‍👦"),
        json!([]),
        json!([[[[]]]]),
        json!([null]),
        json!({}),
        json!({"type": "function"}),
    ]
}

#[test]
fn every_field_takes_or_refuses_every_kind_of_value() {
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    let completion = json!({"prompt": "x", "max_tokens": 1});
    let tables: [(&str, Value, Vec<&Field>); 4] = [
        ("/v1/chat/completions", chat, chat::request::FIELDS.iter().chain(sampling::FIELDS).collect()),
        ("/v1/completions", completion, completions::request::FIELDS.iter().chain(sampling::FIELDS).collect()),
        ("/tokenize", json!({"content": "x"}), text::TOKENIZE_FIELDS.iter().collect()),
        ("/detokenize", json!({"tokens": [1]}), text::DETOKENIZE_FIELDS.iter().collect()),
    ];
    let mut sent = 0;
    for (path, base, fields) in tables {
        for field in fields.iter().filter(|field| field.name != "stream") {
            for value in values() {
                let mut body = base.clone();
                body[field.name] = value;
                if body["max_tokens"].is_null() && path.starts_with("/v1") {
                    body["max_completion_tokens"] = json!(1);
                }
                if path == "/v1/completions" {
                    body.as_object_mut().unwrap().remove("max_completion_tokens");
                }
                survives(path, body.to_string().as_bytes());
                sent += 1;
            }
        }
    }
    assert!(sent > 500, "{sent}");
    alive();
}

#[test]
fn every_truncation_is_refused() {
    let body = json!({"messages": [{"role": "assistant", "content": "é", "tool_calls": [{"id": "a", "type": "function",
        "function": {"name": "f", "arguments": "{\"a\": [1, null]}"}}]}, {"role": "user", "content": [{"type": "text",
        "text": "\n日本"}]}], "max_tokens": 1, "logit_bias": {"5": -1.5e0}, "stop": ["a", "b"]})
    .to_string();
    for end in 0..body.len() {
        let response = send(shared().address, "POST", "/v1/chat/completions", JSON, &body.as_bytes()[..end]);
        assert_eq!(response.status, 400, "cut at {end}: {response:?}");
        assert!(response.json()["error"]["message"].is_string());
    }
    alive();
}

#[test]
fn every_flipped_byte_is_survived() {
    let body = br#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"temperature":0.5,"stop":["x"]}"#;
    for i in 0..body.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut body = body.to_vec();
            body[i] ^= flip;
            // A budget that grew is none of this test's business.
            if body.windows(16).any(|w| w == b"\"max_tokens\":1,\"") {
                survives("/v1/chat/completions", &body);
            }
        }
    }
    alive();
}

#[test]
fn odd_bodies() {
    let deep = "[".repeat(100_000);
    let deep_object = "{\"a\":".repeat(50_000);
    let many_keys = format!("{{{}\"z\":1}}", (0..50_000).map(|i| format!("\"k{i}\":1,")).collect::<String>());
    let long_number = format!("{{\"prompt\":\"x\",\"seed\":{}}}", "9".repeat(100_000));
    let twice = r#"{"prompt":"a","prompt":"b","max_tokens":1}"#;
    let messages =
        |n| json!({"messages": vec![json!({"role": "user", "content": "a"}); n], "max_tokens": 1}).to_string();
    let bodies: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"null",
        b"true",
        b"0",
        b"\"x\"",
        b"[]",
        b"{",
        b"}",
        b"{}",
        b"{}{}",
        b"{\"prompt\"}",
        b"{'prompt':'x'}",
        b"\xef\xbb\xbf{}",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"{\"prompt\":\"\\ud800\"}",
        b"{\"prompt\":\"\\u0000\",\"max_tokens\":1}",
        b"{\"prompt\":NaN}",
        b"{\"prompt\":\"x\",\"temperature\":1e999}",
        b"{\"prompt\":\"x\",\"temperature\":-0.0,\"max_tokens\":1}",
        b"{\"prompt\":\"x\",}",
        b"{\"prompt\":\"\n\"}",
        b"prompt=x",
        b"<xml/>",
        deep.as_bytes(),
        deep_object.as_bytes(),
        many_keys.as_bytes(),
        long_number.as_bytes(),
        twice.as_bytes(),
    ];
    for body in bodies {
        survives("/v1/completions", body);
        survives("/v1/chat/completions", body);
    }
    for count in [100, 10_000] {
        survives("/v1/chat/completions", messages(count).as_bytes());
    }
    alive();
}

#[test]
fn malformed_requests() {
    let many_headers = format!("GET /health HTTP/1.1\r\n{}\r\n", "X-A: b\r\n".repeat(5000));
    let long_header = format!("GET /health HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(1 << 20));
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(1 << 17));
    let chunked = |chunks: &str| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\n{JSON}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{chunks}"
        )
    };
    let requests: Vec<Vec<u8>> = [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "GET  /health  HTTP/1.1\r\n\r\n",
        "get /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\nHost: x\n\n",
        "GET http:// HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost x\r\n\r\n",
        "GET /health HTTP/1.1\r\n: x\r\n\r\n",
        "GET /health HTTP/1.1\r\nA\0: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\u{4}\u{8}\0\0\0\0\0\0\0\0\0",
        "PRI * HTTP/1.1\r\n\r\n",
        "CONNECT x:1 HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "\u{16}\u{3}\u{1}\0",
        "GET /%00%ff/../health HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /health?a=%zz#x HTTP/1.1\r\nHost: x\r\n\r\n",
        &many_headers,
        &long_header,
        &long_path,
        &chunked("zz\r\n{}\r\n0\r\n\r\n"),
        &chunked("2\r\n{}"),
        &chunked("ffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
        &chunked("2\r\n{}\r\n0\r\n\r\n"),
        &chunked("-2\r\n{}\r\n0\r\n\r\n"),
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([b"\xff\xfe\xfd\xfc\r\n\r\n".to_vec(), b"GET /\xff HTTP/1.1\r\nHost: \xff\r\n\r\n".to_vec(), vec![0; 4096]])
    .collect();
    for request in requests {
        let mut stream = connect(shared().address);
        // It may be refused before it is whole.
        let _refused_already = stream.write_all(&request);
        let _closed_already = stream.shutdown(Shutdown::Write);
        if let Some(response) = read_response(&mut stream) {
            let shown = String::from_utf8_lossy(&request[..request.len().min(100)]).into_owned();
            assert!(response.status < 500 || response.status == 505, "{shown:?}: {response:?}");
        }
    }
    alive();
}
