//! The tool as its users meet it: output and exit status.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use openjet_proto::control::{AgentCount, ConversationStatus, ErrorDetail, ErrorReply, Forgotten};
use openjet_proto::{AgentState, AgentStatus};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");

fn openjetctl(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_openjetctl")).args(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn inspect_reports_a_model_that_runs() {
    let output = openjetctl(&["inspect", TINY, "--tensors"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = stdout(&output);
    for line in [
        "blocks        8: 6 DeltaNet, 2 attention; with a draft head",
        "blk.0.ssm_conv1d.weight",
        "OpenJet can run it.",
    ] {
        assert!(report.contains(line), "{line} is not in\n{report}");
    }
    let output = openjetctl(&["--json", "inspect", TINY]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runnable"], true);
    assert_eq!(report["config"]["hidden"], 256);
    assert_eq!(report["tokenizer"]["tokens"], 8192);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 124);
    // Tensors of the three types are all tensors.
    let types = report["types"].as_array().unwrap();
    assert_eq!(types.iter().map(|ty| ty["tensors"].as_u64().unwrap()).sum::<u64>(), 124);
    assert_eq!(types.iter().map(|ty| ty["bytes"].as_u64().unwrap()).sum::<u64>(), report["tensor_bytes"]);
}

#[test]
fn inspect_tells_every_reason_against_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broken.gguf");
    let mut bytes = std::fs::read(TINY).unwrap();
    // Two tensors get other names, so that they are missed and not known.
    for name in [&b"blk.0.ffn_up.weight"[..], b"blk.7.attn_k_norm.weight"] {
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        bytes[at + 1] = b'X';
    }
    std::fs::write(&file, bytes).unwrap();
    let output = openjetctl(&["inspect", file.to_str().unwrap()]);
    assert_eq!(code(&output), 1);
    let report = stdout(&output);
    assert!(report.contains("  - tensor \"blk.0.ffn_up.weight\" is missing, expected shape 256 x 768\n"), "{report}");
    assert!(report.contains("  - tensor \"blk.7.attn_k_norm.weight\" is missing, expected shape 256\n"), "{report}");
    assert!(stderr(&output).contains("broken.gguf can't be run"), "{}", stderr(&output));
}

#[test]
fn what_is_no_model_is_named() {
    let output = openjetctl(&["inspect", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("ctl/Cargo.toml: is not a GGUF file"), "{}", stderr(&output));
    assert_eq!(code(&openjetctl(&["inspect", "/nowhere.gguf"])), 1);
    assert_eq!(code(&openjetctl(&["inspect"])), 2);
    assert_eq!(code(&openjetctl(&["agents", "set", "0"])), 2);
}

#[test]
fn a_plan_fits_or_says_what_would() {
    let output = openjetctl(&["plan", TINY, "--agents", "2", "--ctx", "4096", "--card", "3090"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let table = stdout(&output);
    for part in [
        "weights  ",
        "key-value pool  ",
        "CUDA context  ",
        "left  ",
        "largest pool  ",
        "snapshots  ",
        "conversations  ",
    ] {
        assert!(table.contains(&format!("\n  {part}")), "{part} is not in\n{table}");
    }
    assert!(stdout(&openjetctl(&["plan", TINY])).contains("It fits on: 3060, "));

    // Weights, context, state and workspace take most of this; f16 cells of 32,768 tokens do not fit beside them.
    let output = openjetctl(&["plan", TINY, "--ctx", "32768", "--kv", "f16", "--gpu-memory", "0.75"]);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    assert!(stdout(&output).contains("\n  missing  "), "{}", stdout(&output));
    assert!(stdout(&output).contains("It would fit with kv q4_0\n"), "{}", stdout(&output));
    assert!(stderr(&output).contains("the plan needs "), "{}", stderr(&output));
    // There is no GPU where the tests run without one, or there is and the plan is held against it.
    let output = openjetctl(&["plan", TINY, "--gpu", "99"]);
    assert_eq!(code(&output), 1);
    assert!(!stderr(&output).is_empty());

    let output = openjetctl(&["--json", "plan", TINY, "--ctx", "6400", "--gpu-memory", "24", "--host-cache", "300"]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["fits"], plan["pages"].as_u64()), (&true.into(), Some(100)));
    let parts = plan["parts"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>(), plan["total"]);
    let host = |plan: &serde_json::Value, name: &str| {
        let parts = plan["host"].as_array().unwrap();
        parts.iter().find(|part| part["name"] == name).unwrap()["bytes"].as_u64().unwrap()
    };
    assert_eq!((host(&plan, "snapshots"), host(&plan, "conversations")), (300 << 20, 300 << 20));
    // Without the option it is what the daemon would take here.
    let output = openjetctl(&["--json", "plan", TINY]);
    let here = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(host(&here, "conversations"), openjet_engine::memory::host_cache() as u64);
    // The advice holds: what is said to be the largest pool fits, one page more does not.
    let largest = plan["largest_pool"].as_u64().unwrap();
    for (pool, expected) in [(largest, 0), (largest + 64, 1)] {
        let output = openjetctl(&["plan", TINY, "--ctx", &pool.to_string(), "--gpu-memory", "24"]);
        assert_eq!(code(&output), expected, "{pool}");
    }
    assert_eq!(code(&openjetctl(&["plan", TINY, "--card", "voodoo2"])), 2);
    assert_eq!(code(&openjetctl(&["plan", TINY, "--gpu-memory", "-1"])), 2);
}

#[test]
fn completions_and_manual_pages_know_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(code(&openjetctl(&["man", dir.path().to_str().unwrap()])), 0);
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&openjetctl(&["completions", shell]));
        for verb in [
            "status", "agents", "models", "load", "unload", "drain", "events", "metrics", "log", "setup", "pull",
            "doctor", "top", "forget", "plan", "man",
        ] {
            assert!(script.contains(verb), "{shell} lacks {verb}");
            assert!(dir.path().join(format!("openjetctl-{verb}.1")).is_file(), "no manual page for {verb}");
        }
    }
    assert!(stdout(&openjetctl(&["man"])).contains(".TH openjetctl 1"));
}

#[test]
fn without_a_daemon_the_status_is_3() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let output = openjetctl(&["--socket", socket.to_str().unwrap(), "status"]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("no daemon listens on"), "{}", stderr(&output));
    // A file that nobody listens on any more.
    drop(UnixListener::bind(&socket).unwrap());
    assert_eq!(code(&openjetctl(&["--socket", socket.to_str().unwrap(), "status"])), 3);
}

/// Answers one request on `socket` with `status` and `body`, and gives the request's first line and body.
fn answer(socket: &Path, status: &str, body: &impl serde::Serialize) -> thread::JoinHandle<(String, String)> {
    let listener = UnixListener::bind(socket).unwrap();
    let body = serde_json::to_string(body).unwrap();
    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_lowercase());
        }
        let length =
            head.iter().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        stream.get_mut().write_all(reply.as_bytes()).unwrap();
        (head.remove(0), String::from_utf8(body).unwrap())
    })
}

fn agent(id: usize) -> AgentStatus {
    AgentStatus {
        id,
        state: AgentState::Decode,
        request: Some(7),
        session: None,
        context_tokens: 120,
        context_limit: 32_768,
        prompt_done: 100,
        prompt_tokens: 100,
        cached_tokens: 64,
        generated_tokens: 20,
        tokens_per_second: 41.26,
        tokens_per_second_now: 40.0,
        pages: 2,
        pages_shared: 0,
        drafts_offered: vec![10, 10],
        drafts_accepted: vec![9, 6],
        first_token_ms: Some(12.0),
        queued_ms: 0.0,
        task: None,
        tail: None,
    }
}

#[test]
fn agents_are_shown_and_set() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let path = socket.to_str().unwrap();

    let daemon = answer(&socket, "200 OK", &[agent(0), agent(1)]);
    let output = openjetctl(&["--socket", path, "agents"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(daemon.join().unwrap().0, "get /v1/agents http/1.1");
    let table = stdout(&output);
    assert_eq!(table.lines().count(), 3, "{table}");
    let cells: Vec<_> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(cells, ["1", "writing", "120", "32768", "100/100", "20", "41.3", "75", "%", "-"]);

    std::fs::remove_file(&socket).unwrap();
    let daemon = answer(&socket, "200 OK", &AgentCount { count: 6 });
    let output = openjetctl(&["--socket", path, "--json", "agents", "set", "6"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "{\"count\":6}\n"));
    assert_eq!(daemon.join().unwrap(), ("put /v1/agents http/1.1".into(), "{\"count\":6}".into()));
}

#[test]
fn conversations_are_listed_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let run = |args: &[&str]| openjetctl(&[&["--socket", socket.to_str().unwrap()], args].concat());
    let kept = ConversationStatus {
        id: "00f1".into(),
        session: Some("editor".into()),
        tokens: 4096,
        bytes: 3 << 20,
        unused_s: 61.0,
    };
    let daemon = answer(&socket, "200 OK", &[kept]);
    let list = stdout(&run(&["forget"]));
    assert_eq!(daemon.join().unwrap().0, "get /v1/conversations http/1.1");
    assert!(list.contains("00f1") && list.contains("editor") && list.contains("4096"), "{list}");

    for (args, sent) in [(["forget", "editor"], r#"{"conversation":"editor"}"#), (["forget", "--all"], r#""all""#)] {
        std::fs::remove_file(&socket).unwrap();
        let daemon = answer(&socket, "200 OK", &Forgotten { count: 2 });
        let output = run(&args);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "2 conversations forgotten\n"));
        assert_eq!(daemon.join().unwrap(), ("post /v1/forget http/1.1".into(), sent.into()));
    }
    for (args, printed) in [(&["forget", "nobody"][..], ""), (&["--json", "forget", "nobody"], "{\"count\":0}\n")] {
        std::fs::remove_file(&socket).unwrap();
        let daemon = answer(&socket, "200 OK", &Forgotten { count: 0 });
        let output = run(args);
        daemon.join().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (1, printed));
        assert!(stderr(&output).contains("no conversation nobody"), "{}", stderr(&output));
    }
    assert_eq!(code(&run(&["forget", "x", "--all"])), 2);
}

#[test]
fn a_refusal_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let error = ErrorDetail { message: "40 agents need 6 GB more".into(), hint: "ask for fewer".into() };
    let daemon = answer(&socket, "409 Conflict", &ErrorReply { error });
    let output = openjetctl(&["--socket", socket.to_str().unwrap(), "agents", "set", "40"]);
    daemon.join().unwrap();
    assert_eq!(code(&output), 1);
    assert_eq!(stderr(&output), "openjetctl: 40 agents need 6 GB more; ask for fewer\n");
}

#[test]
fn setup_says_which_model_fits_a_card() {
    let output = openjetctl(&["--json", "setup", "--card", "3090"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let best = &report["best"];
    assert_eq!((&best["size"], &best["agents"]), (&"27B".into(), &4.into()), "{report}");
    // The weights are those of the public file, give or take a few percent.
    let weights = best["weights"].as_f64().unwrap();
    assert!((weights / 17.1e9 - 1.0).abs() < 0.05, "{weights}");
    let sizes: Vec<_> =
        report["choices"].as_array().unwrap().iter().map(|choice| choice["size"].as_str().unwrap()).collect();
    assert_eq!(sizes, ["27B", "9B", "4B", "2B", "0.8B"]);
    // What is too large is said to be.
    let small = stdout(&openjetctl(&["setup", "--card", "3060"]));
    assert!(small.lines().any(|line| line.trim_start().starts_with("27B") && line.contains("does not fit")), "{small}");
    assert!(small.contains("openjetctl pull unsloth/Qwen3.5-9B-MTP-GGUF:"), "{small}");
    // Whatever this machine has, there is an answer.
    let here = openjetctl(&["setup"]);
    assert!(stdout(&here).contains("the CPU") || stdout(&here).contains("CUDA"), "{}", stdout(&here));
}

#[test]
fn the_doctor_names_what_is_wrong_and_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let output = openjetctl(&["--socket", socket.to_str().unwrap(), "doctor"]);
    assert_eq!(code(&output), 1);
    let report = stdout(&output);
    assert!(
        report.contains("no daemon listens on") && report.contains("-> `sudo systemctl start openjet`"),
        "{report}"
    );
    let output = openjetctl(&["--socket", socket.to_str().unwrap(), "--json", "doctor"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bad = findings.as_array().unwrap().iter().filter(|finding| finding["state"] == "bad");
    assert!(bad.clone().all(|finding| finding["fix"].is_string()) && bad.count() >= 1, "{findings}");
}

#[test]
fn top_needs_a_terminal_and_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    assert_eq!(code(&openjetctl(&["--socket", socket.to_str().unwrap(), "top"])), 3);
}
