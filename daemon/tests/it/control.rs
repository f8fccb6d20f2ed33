//! The control socket.

use serde_json::json;

use crate::client::control;
use crate::server::{config, shared, start};

#[test]
fn status_and_agents() {
    let server = shared();
    let status = control(&server.control, "GET", "/v1/status", "");
    assert_eq!(status.status, 200);
    let status: openjet_proto::control::DaemonStatus = serde_json::from_value(status.json()).unwrap();
    assert_eq!(status.health, openjet_proto::Health::Ready);
    assert_eq!(status.model.unwrap().name, "openjet-tiny");
    assert_eq!(status.listen, server.address.to_string());
    let agents = control(&server.control, "GET", "/v1/agents", "");
    let agents: Vec<openjet_proto::AgentStatus> = serde_json::from_value(agents.json()).unwrap();
    assert_eq!(agents.len(), status.engine.unwrap().agents.len());
}

#[test]
fn agents_can_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(config(folder.path()));
    for count in [6, 1, 4] {
        let reply = control(&server.control, "PUT", "/v1/agents", &json!({"count": count}).to_string());
        assert_eq!((reply.status, reply.json()), (200, json!({"count": count})));
        let agents = control(&server.control, "GET", "/v1/agents", "").json();
        assert_eq!(agents.as_array().unwrap().len(), count);
    }
    let reply = control(&server.control, "PUT", "/v1/agents", r#"{"count": 100000}"#);
    assert_eq!(reply.status, 409, "{reply:?}");
}

#[test]
fn errors_have_message_and_hint() {
    let socket = &shared().control;
    for (method, path, body, status) in [
        ("GET", "/v1/nothing", "", 404),
        ("POST", "/v1/status", "", 405),
        ("DELETE", "/v1/agents", "", 405),
        ("PUT", "/v1/agents", "{", 400),
        ("PUT", "/v1/agents", "[]", 400),
        ("PUT", "/v1/agents", r#"{"count": -1}"#, 400),
        ("PUT", "/v1/agents", r#"{"count": 1, "more": 2}"#, 400),
        ("PUT", "/v1/agents", r#"{"count": 0}"#, 409),
    ] {
        let reply = control(socket, method, path, body);
        assert_eq!(reply.status, status, "{method} {path} {body}: {reply:?}");
        let error: openjet_proto::control::ErrorReply = serde_json::from_value(reply.json()).unwrap();
        assert!(!error.error.message.is_empty() && !error.error.hint.is_empty());
    }
}
