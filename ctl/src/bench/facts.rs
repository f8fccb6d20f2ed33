//! What is measured: the daemon, its model, its card.

use std::path::Path;

use anyhow::Context;
use openjet_engine::gguf::GgufFile;
use openjet_proto::AgentStatus;
use openjet_proto::control::DaemonStatus;
use serde_json::Value;

use super::http::Server;
use crate::client::Client;
use crate::failure::Failure;

/// Tokens of a page of the pool.
const PAGE: usize = 64;

/// What the daemon says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) model: String,
    pub(super) model_bytes: u64,
    /// BLAKE3 of the model's file, where it can be read here.
    pub(super) model_hash: Option<String>,
    pub(super) vocab: usize,
    /// Tokens that one agent's context holds.
    pub(super) context: usize,
    /// Tokens that all agents share.
    pub(super) pool: usize,
    pub(super) agents: usize,
    /// The rest needs the control socket.
    pub(super) has_socket: bool,
    pub(super) daemon: Option<String>,
    pub(super) backend: Option<String>,
}

impl Facts {
    /// What can be asked over HTTP.
    pub(super) async fn ask(server: &Server) -> Result<Self, Failure> {
        let models = server.get("/v1/models").await?;
        let (model, meta) = (&models["data"][0], &models["data"][0]["meta"]);
        let number = |name: &str| {
            let number = meta[name].as_u64().map(|n| n as usize);
            number.with_context(|| format!("/v1/models has no `{name}`: is it an openjetd of this version?"))
        };
        let (context, vocab) = (number("n_ctx")?, number("n_vocab")?);
        Ok(Self {
            model: model["id"].as_str().unwrap_or_default().to_owned(),
            model_bytes: meta["size"].as_u64().unwrap_or_default(),
            vocab,
            context,
            pool: context,
            agents: agents(server).await?.len(),
            ..Self::default()
        })
    }

    /// What the control socket tells besides, if it can be reached and is the same daemon's.
    pub(super) fn add_status(&mut self, client: &Client, server: &Server) {
        let Ok(status) = client.get::<DaemonStatus>("/v1/status") else { return };
        if !server.has_port_of(&status.listen) {
            return;
        }
        self.has_socket = true;
        self.daemon = Some(status.version);
        if let Some(engine) = status.engine {
            self.pool = engine.pages_total * PAGE;
            self.backend = Some(engine.backend);
        }
        self.model_hash = status.model.and_then(|model| hash(Path::new(&model.file?)));
    }
}

/// Every agent.
pub(super) async fn agents(server: &Server) -> Result<Vec<AgentStatus>, Failure> {
    let slots: Value = server.get("/slots").await?;
    Ok(serde_json::from_value(slots).context("/slots can't be read; use an openjetctl of the daemon's version")?)
}

fn hash(file: &Path) -> Option<String> {
    let hash = GgufFile::open(file).ok()?.hash();
    Some(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}
