//! `openjetctl models`, `load`, `unload` and `drain`.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openjet_proto::Health;
use openjet_proto::control::{DaemonStatus, Drain, Draining, LoadModel, ModelFile, ModelStatus, Unloaded};

use crate::client::Client;
use crate::failure::Failure;
use crate::text;

/// Longest wait for a model to be loaded or unloaded.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Time between two looks at how far the daemon is.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) fn list(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let models: Vec<ModelFile> = client.get("/v1/models")?;
    if json {
        return text::json(&models, out);
    }
    let row = |model: &ModelFile| {
        let state = match (&model.problem, model.loaded) {
            (_, true) => "loaded",
            (Some(_), _) => "can't be run",
            (None, _) => "",
        };
        let file = model.file.as_deref().unwrap_or("shipped with openjetd");
        [model.id.clone(), text::bytes(model.bytes), state.to_owned(), file.to_owned()]
    };
    let rows: Vec<_> = models.iter().map(row).collect();
    out.write_all(text::table(&["model", "size", "state", "file"], &rows).as_bytes())?;
    for model in &models {
        if let Some(problem) = &model.problem {
            writeln!(out, "\n{}: {problem}", model.id)?;
        }
    }
    Ok(())
}

pub(crate) fn load(client: &Client, mut asked: LoadModel, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    // A path is the caller's; a bare name is looked up by the daemon, unless such a file lies here.
    if let Some(path) =
        asked.model.as_deref().map(Path::new).filter(|path| path.components().count() > 1 || path.is_file())
    {
        asked.model = Some(std::path::absolute(path)?.display().to_string());
    }
    let over = AtomicBool::new(false);
    let model: ModelStatus = std::thread::scope(|scope| {
        let _watch = (!json && stderr().is_terminal()).then(|| scope.spawn(|| watch(client, &over)));
        let model = client.patient(PATIENCE).post("/v1/load", &asked);
        over.store(true, Ordering::Release);
        model
    })?;
    if json {
        return text::json(&model, out);
    }
    writeln!(out, "{} serves, until the daemon is restarted; the setting `model` makes it stay", model.name)?;
    Ok(())
}

/// Shows how far a load is, on one line of the terminal.
fn watch(client: &Client, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        std::thread::sleep(LOOK);
        let Ok(status) = client.get::<DaemonStatus>("/v1/status") else { continue };
        let loading = match status.health {
            Health::Loading { detail } => Some(detail),
            _ => status.change,
        };
        eprint!("\r\x1b[K{}", loading.unwrap_or_default());
    }
    eprint!("\r\x1b[K");
}

pub(crate) fn unload(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let unloaded: Unloaded = client.patient(PATIENCE).post("/v1/unload", &())?;
    if json {
        return text::json(&unloaded, out);
    }
    match unloaded.model {
        Some(model) => writeln!(out, "{model} is unloaded; `openjetctl load` loads it again")?,
        None => writeln!(out, "no model was loaded")?,
    }
    Ok(())
}

/// Refuses new requests and, if asked, waits for the running ones; or takes requests again.
pub(crate) fn drain(client: &Client, on: bool, wait: bool, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let mut state: Draining = client.put("/v1/drain", &Drain { on })?;
    while on && wait && state.requests > 0 {
        std::thread::sleep(LOOK);
        state.requests = client.get::<DaemonStatus>("/v1/status")?.requests;
    }
    if json {
        return text::json(&state, out);
    }
    match (on, state.requests) {
        (true, 0) => writeln!(out, "no request runs, new ones are refused; `openjetctl drain --off` takes them again")?,
        (true, running) => writeln!(out, "new requests are refused, {running} still run")?,
        (false, _) => writeln!(out, "requests are taken again")?,
    }
    Ok(())
}
