//! Another model while the daemon runs.

use std::path::Path;
use std::time::{Duration, Instant};

use openjetd::config::{BackendChoice, Config};
use serde_json::{Value, json};

use crate::client::{Events, Response, control, get, post};
use crate::server::{Server, config, start};

const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/fixtures/models/toy-equal-heads.gguf");

/// A daemon that finds `other` and `broken` beside the model that ships with it.
fn with_models(folder: &Path, change: impl FnOnce(&mut Config)) -> Server {
    let models = folder.join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::copy(OTHER, models.join("other.gguf")).unwrap();
    std::fs::write(models.join("broken.gguf"), &std::fs::read(OTHER).unwrap()[..4000]).unwrap();
    let mut config = Config { model_paths: vec![models], ..config(folder) };
    change(&mut config);
    start(config)
}

fn load(server: &Server, body: &Value) -> Response {
    control(&server.control, "POST", "/v1/load", &body.to_string())
}

fn loaded(server: &Server) -> String {
    control(&server.control, "GET", "/v1/status", "").json()["model"]["file"].as_str().unwrap_or("shipped").to_owned()
}

fn stream(server: &Server, tokens: usize) -> Events {
    let body = json!({"prompt": "x", "max_tokens": tokens, "ignore_eos": true, "stream": true});
    let mut events = Events::open(server.address, "/v1/completions", &body);
    assert!(events.next().is_some());
    events
}

fn answers(server: &Server) {
    let response = post(server.address, "/v1/completions", &json!({"prompt": [5, 6], "max_tokens": 2}));
    assert_eq!(response.status, 200, "{response:?}");
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn another_model_takes_over_and_requests_to_the_old_one_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |config| config.state_dir = Some(folder.path().join("state")));
    let models = control(&server.control, "GET", "/v1/models", "").json();
    let ids: Vec<_> = models.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["openjet-tiny", "broken", "other"]);
    assert_eq!((&models[0]["loaded"], &models[2]["problem"]), (&json!(true), &Value::Null));
    assert!(models[1]["problem"].is_string(), "{models}");

    let running = stream(&server, 100);
    let reply = load(&server, &json!({"model": "other", "agents": 2}));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["file"].as_str().unwrap().ends_with("other.gguf"));
    assert!(loaded(&server).ends_with("other.gguf"));
    assert_eq!(control(&server.control, "GET", "/v1/agents", "").json().as_array().unwrap().len(), 2);
    answers(&server);
    assert_eq!(running.all().last().unwrap()["choices"][0]["finish_reason"], "length");

    // What can't be loaded leaves what serves alone, and says why.
    for (body, words) in [
        (json!({"model": "broken"}), "broken.gguf"),
        (json!({"model": "nothing"}), "there is no model nothing in "),
        (json!({"model": "/nowhere/x.gguf"}), "/nowhere/x.gguf"),
        (json!({"model": "other", "agents": 0}), "`agents` is 0"),
        (json!({"model": "other", "speed": 9}), "unknown field `speed`"),
    ] {
        let reply = load(&server, &body);
        assert!((400..500).contains(&reply.status) && reply.body.contains(words), "{body}: {reply:?}");
    }
    assert!(loaded(&server).ends_with("other.gguf"));
    answers(&server);
    // The first one again, and its conversations can be kept: the folder was let go.
    assert_eq!(load(&server, &json!({"model": "openjet-tiny"})).status, 200);
    assert_eq!(loaded(&server), "shipped");
    answers(&server);
}

#[test]
fn where_the_old_one_must_go_first_its_requests_are_told_and_it_comes_back_if_the_new_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |config| config.drain_s = 1);
    let running = stream(&server, 30_000);
    assert_eq!(load(&server, &json!({"model": "other", "replace": true})).status, 200);
    let last = running.rest().pop().unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("another model takes this one's place"), "{last}");
    answers(&server);

    // The file disappears while the old one's requests still have their time.
    let _running = stream(&server, 30_000);
    let extra = folder.path().join("models/extra.gguf");
    std::fs::copy(OTHER, &extra).unwrap();
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| load(&server, &json!({"model": "extra", "replace": true})));
        wait_for("a drain", || get(server.address, "/health").json()["state"] == "draining");
        let refused = post(server.address, "/v1/completions", &json!({"prompt": "x"}));
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("draining")));
        let busy = load(&server, &json!({"model": "other"}));
        assert!(busy.status == 409 && busy.body.contains("already"), "{busy:?}");
        std::fs::remove_file(&extra).unwrap();
        let reply = reply.join().unwrap();
        assert!(reply.status == 409 && reply.body.contains("the old model serves again"), "{reply:?}");
    });
    assert!(loaded(&server).ends_with("other.gguf"));
    answers(&server);
}

#[test]
fn what_cannot_fit_is_refused_with_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |config| {
        (config.backend, config.gpu) = (BackendChoice::Cuda, Some("emulated".into()));
        (config.ctx, config.draft) = (Some(2048), 0);
    });
    let reply = load(&server, &json!({"model": "openjet-tiny", "ctx": 60_000_000}));
    assert_eq!(reply.status, 409);
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    for part in ["does not fit on", "  key-value pool  ", "it would fit with ctx "] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    // Asked for its plan only, the same is no error, and what would fit is told in numbers.
    let plan = |body: Value| control(&server.control, "POST", "/v1/plan", &body.to_string()).json();
    let refused = plan(json!({"model": "openjet-tiny", "ctx": 60_000_000}));
    assert_eq!((&refused["fits"], &refused["memory"]), (&json!(false), &Value::Null));
    assert!(refused["verdict"].as_str().unwrap().contains("it would fit with ctx "), "{refused}");
    let fits = plan(json!({"model": "openjet-tiny"}));
    assert_eq!((&fits["fits"], &fits["model"]["name"]), (&json!(true), &json!("openjet-tiny")));
    let bytes = |value: &Value| value.as_u64().unwrap();
    let parts: u64 = fits["memory"]["parts"].as_array().unwrap().iter().map(|part| bytes(&part["bytes"])).sum();
    assert_eq!(parts, bytes(&fits["memory"]["total"]));
    assert!(parts <= bytes(&fits["available"]));
    let loaded = control(&server.control, "GET", "/v1/status", "").json();
    assert_eq!(loaded["memory"]["parts"][0]["name"], fits["memory"]["parts"][0]["name"]);
    // Its times say nothing of a GPU, so it was not measured.
    assert_eq!(loaded["tuning"]["source"], "built_in");
    assert!(loaded["tuning"]["tile_cycles"]["Q4_K"].as_u64().is_some_and(|cycles| cycles > 0), "{loaded}");
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn unloaded_it_refuses_and_loads_the_last_model_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |_| {});
    assert_eq!(load(&server, &json!({"model": "other"})).status, 200);
    let unload = || control(&server.control, "POST", "/v1/unload", "").json();
    assert!(unload()["model"].is_string());
    assert_eq!(unload(), json!({"model": null}));
    assert_eq!(get(server.address, "/health").json()["state"], "unloaded");
    let refused = post(server.address, "/v1/completions", &json!({"prompt": "x"}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("unloaded")));
    assert_eq!(control(&server.control, "PUT", "/v1/agents", r#"{"count": 2}"#).status, 503);
    assert_eq!(load(&server, &json!({})).status, 200);
    assert!(loaded(&server).ends_with("other.gguf"));
    answers(&server);
}

#[test]
fn unused_it_is_unloaded_and_the_next_request_brings_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |config| config.idle_unload_s = Some(1));
    let asleep = || {
        let health = get(server.address, "/health");
        // Whoever balances load may still send requests here.
        assert_eq!(health.status, 200, "{health:?}");
        health.json()["state"] == "unloaded"
    };
    wait_for("the model was not unloaded", asleep);
    std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(|| answers(&server)))));
    assert!(!asleep());
}

#[test]
fn drained_it_refuses_until_it_is_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_models(folder.path(), |_| {});
    let drain = |on: bool| control(&server.control, "PUT", "/v1/drain", &json!({ "on": on }).to_string()).json();
    let running = stream(&server, 100);
    assert_eq!(drain(true), json!({"on": true, "requests": 1}));
    assert_eq!(get(server.address, "/health").status, 503);
    assert_eq!(post(server.address, "/v1/completions", &json!({"prompt": "x"})).status, 503);
    assert_eq!(running.all().last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(drain(false)["on"], false);
    answers(&server);
}
