//! API keys, and web pages of other origins.

use serde_json::{Value, json};

use crate::client::{Events, get, post, send};
use crate::server::{config, shared, start};

const FILE: &str = "ann 0123456789abcdef-ann\nbob 0123456789abcdef-bob 1\n";

fn authorized(key: &str) -> String {
    format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n")
}

#[test]
fn without_a_known_key_nothing_but_health_is_served() {
    let folder = tempfile::tempdir().unwrap().keep();
    let file = folder.join("keys");
    std::fs::write(&file, FILE).unwrap();
    let server = start(openjetd::config::Config { api_keys: Some(file), ..config(&folder) });
    assert_eq!(get(server.address, "/health").status, 200);
    let body = json!({"prompt": "x", "max_tokens": 2});
    for path in ["/v1/models", "/slots", "/metrics", "/", "/ws"] {
        let response = get(server.address, path);
        assert_eq!(response.status, 401, "{path}");
        assert!(response.header("www-authenticate").is_some(), "{path}");
    }
    let response = post(server.address, "/v1/completions", &body);
    assert_eq!((response.status, &response.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    let response = post(server.address, "/v1/messages", &body);
    assert_eq!((response.status, &response.json()["error"]["type"]), (401, &json!("authentication_error")));
    let text = body.to_string();
    let ask = |headers: &str| send(server.address, "POST", "/v1/completions", headers, text.as_bytes());
    assert_eq!(ask(&authorized("0123456789abcdef-ann")).status, 200);
    assert_eq!(ask("Content-Type: application/json\r\nX-Api-Key: 0123456789abcdef-ann\r\n").status, 200);
    assert_eq!(ask(&authorized("0123456789abcdef-eve")).status, 401);

    // Bob's second request waits for his first to end, in a stream that is being read; Ann's does not.
    let long = json!({"prompt": "x", "max_tokens": 20_000, "ignore_eos": true, "stream": true});
    let headers = "Authorization: Bearer 0123456789abcdef-bob\r\n";
    let mut running = Events::open_with(server.address, "/v1/completions", headers, &long);
    running.next().unwrap();
    let refused = ask(&authorized("0123456789abcdef-bob"));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(ask(&authorized("0123456789abcdef-ann")).status, 200);
    drop(running);
    let free = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ask(&authorized("0123456789abcdef-bob")).status == 200
    });
    assert!(free, "the place of a request whose client left was not given back");
}

#[test]
fn pages_of_other_origins_are_let_in_by_name_only() {
    let origin = "Origin: http://pages.example\r\n";
    let preflight =
        format!("{origin}Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n");
    let response = send(shared().address, "OPTIONS", "/v1/completions", &preflight, b"");
    assert_eq!((response.status, response.header("access-control-allow-origin")), (405, None));
    assert_eq!(send(shared().address, "GET", "/v1/models", origin, b"").header("access-control-allow-origin"), None);

    let folder = tempfile::tempdir().unwrap().keep();
    let origins = vec!["http://pages.example".to_owned()];
    let server = start(openjetd::config::Config { cors_origins: origins, ..config(&folder) });
    let response = send(server.address, "OPTIONS", "/v1/completions", &preflight, b"");
    assert_eq!((response.status, response.header("access-control-allow-headers")), (204, Some("content-type")));
    let response = send(server.address, "GET", "/v1/models", origin, b"");
    assert_eq!(response.header("access-control-allow-origin"), Some("http://pages.example"));
    let other = send(server.address, "GET", "/v1/models", "Origin: http://other.example\r\n", b"");
    assert_eq!(other.header("access-control-allow-origin"), None);
}

/// Every metric has help, a type, and a name by Prometheus's conventions; counters count and histograms fill.
#[test]
fn metrics_follow_the_conventions_and_the_requests() {
    let folder = tempfile::tempdir().unwrap().keep();
    let server = start(config(&folder));
    let scrape = || {
        let response = get(server.address, "/metrics");
        assert_eq!(response.status, 200);
        assert!(response.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
        response.body
    };
    let body = json!({"prompt": "x", "max_tokens": 12, "ignore_eos": true});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    let text = scrape();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(value("openjet_requests_total{finish=\"length\"}"), 1.0);
    assert_eq!(value("openjet_generated_tokens_total"), 12.0);
    let all_agents = |name: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{agent=\"")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    assert_eq!(all_agents("openjet_agent_generated_tokens_total"), 12.0);
    assert_eq!(all_agents("openjet_first_token_seconds_count"), 1.0);
    assert_eq!(all_agents("openjet_queue_seconds_count"), 1.0);
    assert!(all_agents("openjet_inter_token_seconds_count") >= 1.0);
    assert_eq!(value("openjet_agents"), 4.0);
    assert_eq!(value("openjet_ready"), 1.0);
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert!(name.starts_with("openjet_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert!(!name.contains("_ms"), "{name}: base units are seconds");
    }
    // The dashboard asks for nothing that is not there.
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let words = target["expr"].as_str().unwrap().split(|c: char| !c.is_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("openjet_")) {
                let found = text.lines().any(|line| line.starts_with(name) && !line[name.len()..].starts_with('_'));
                assert!(found, "the dashboard asks for {name}");
                asked += 1;
            }
        }
    }
    assert!(asked > 10);
}
