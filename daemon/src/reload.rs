//! Takes changed settings while the daemon runs, on SIGHUP.

use serde_json::{Map, Value};

use crate::app::App;
use crate::config::cli::Cli;
use crate::config::{self, Config};
use crate::http::keys::Keys;
use crate::log;

/// The settings that take effect at once; the others need a restart.
const AT_ONCE: [&str; 14] = [
    "agents",
    "api_keys",
    "body_limit_mib",
    "body_timeout_s",
    "cors_origins",
    "drain_s",
    "idle_unload_s",
    "log",
    "model_paths",
    "ping_s",
    "strict_calls",
    "strict_model",
    "thinking_budget",
    "tool_choice",
];

/// Reads all settings and the keys again. Nothing changes unless all of them are good.
///
/// # Errors
/// What is wrong with them.
pub async fn reload(app: &App, cli: &Cli) -> anyhow::Result<()> {
    let (now, read) = (app.config(), config::load(cli)?);
    let keys = Keys::load(read.api_keys.as_deref())?;
    let (next, later) = merge(&now, &read)?;
    if next.log != now.log {
        log::set(&next.log).map_err(|message| anyhow::anyhow!(message))?;
    }
    if next.agents != now.agents
        && let Some(serving) = app.phase().loaded()
    {
        serving.engine.set_agents(next.agents).await.map_err(|message| anyhow::anyhow!("`agents`: {message}"))?;
    }
    app.set_config(next, keys);
    if later.is_empty() {
        tracing::info!("settings read again");
    } else {
        tracing::warn!("settings read again; at the next start these take effect: {}", later.join(", "));
    }
    Ok(())
}

/// The settings in force once `read` was read, and the keys of those that must wait for a restart.
fn merge(now: &Config, read: &Config) -> anyhow::Result<(Config, Vec<String>)> {
    let (mut next, read) = (members(now)?, members(read)?);
    let mut later = Vec::new();
    for (key, value) in read {
        if AT_ONCE.contains(&key.as_str()) {
            next.insert(key, value);
        } else if next.get(&key) != Some(&value) {
            later.push(key);
        }
    }
    Ok((serde_json::from_value(Value::Object(next))?, later))
}

fn members(config: &Config) -> anyhow::Result<Map<String, Value>> {
    Ok(serde_json::from_value(serde_json::to_value(config)?)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_can_change_changes_and_the_rest_is_named() {
        let now = Config::default();
        let read = Config {
            drain_s: 7,
            idle_unload_s: Some(60),
            listen: "127.0.0.1:1".to_owned(),
            ctx: Some(4096),
            ..Config::default()
        };
        let (next, later) = merge(&now, &read).unwrap();
        assert_eq!(next, Config { drain_s: 7, idle_unload_s: Some(60), ..Config::default() });
        assert_eq!(later, ["listen", "ctx"]);
    }

    #[test]
    fn the_list_names_settings() {
        let all = members(&Config::default()).unwrap();
        assert!(AT_ONCE.iter().all(|key| all.contains_key(*key)));
    }
}
