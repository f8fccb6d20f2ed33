//! Reads the settings from their sources and says exactly where a bad one stands.

use std::path::Path;

use figment::Figment;
use figment::error::Kind;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Deserializer};

use super::cli::Cli;
use super::{Config, DEFAULT_FILE};

/// A setting that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// All settings, from `cli`, the environment, the file that `cli` names (or [`DEFAULT_FILE`] if it exists) and the defaults.
///
/// # Errors
/// [`ConfigError`] names the source, the key and what is wrong with it.
pub fn load(cli: &Cli) -> Result<Config, ConfigError> {
    let file = match &cli.config {
        Some(path) if !path.is_file() => {
            return Err(ConfigError(format!("--config {}: there is no such file", path.display())));
        }
        Some(path) => Some(path.as_path()),
        None => Some(Path::new(DEFAULT_FILE)).filter(|path| path.is_file()),
    };
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    if let Some(path) = file {
        figment = figment.merge(Toml::file_exact(path));
    }
    let keys = keys();
    figment = figment
        .merge(Env::prefixed("OPENJET_").filter(move |key| keys.iter().any(|k| key == k.as_str())))
        .merge(Serialized::defaults(cli));
    let config: Config = figment.extract().map_err(|e| ConfigError(describe(&e)))?;
    config.check().map_err(|(key, what)| ConfigError(place(figment.find_metadata(key), key) + &what))?;
    Ok(config)
}

/// Text, or a number that stands for its digits: what the environment gives for an index.
pub(super) fn index_or_name<'de, D: Deserializer<'de>>(source: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Index(u64),
        Name(String),
    }
    let either = Option::<Either>::deserialize(source)?;
    Ok(either.map(|either| match either {
        Either::Index(index) => index.to_string(),
        Either::Name(name) => name,
    }))
}

/// Names of `OPENJET_*` variables that look like a misspelt setting, with the setting that may be meant. Others are left
/// alone: container platforms put variables of that form into every process.
#[must_use]
pub fn misspelt_variables() -> Vec<(String, String)> {
    let keys = keys();
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter_map(|name| {
            let key = name.strip_prefix("OPENJET_")?.to_lowercase();
            let near = nearest(&key, keys.iter().map(String::as_str)).filter(|near| *near != key)?;
            (key != "config").then(|| (name.clone(), format!("OPENJET_{}", near.to_uppercase())))
        })
        .collect()
}

/// Every key of [`Config`].
fn keys() -> Vec<String> {
    match serde_json::to_value(Config::default()) {
        Ok(serde_json::Value::Object(map)) => map.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

fn describe(error: &figment::Error) -> String {
    let key = error.path.join(".");
    let what = match &error.kind {
        Kind::UnknownField(name, known) => match nearest(name, known.iter().copied()) {
            Some(near) => format!("there is no setting `{name}`; did you mean `{near}`?"),
            None => format!("there is no setting `{name}`; the settings are {}", known.join(", ")),
        },
        Kind::UnknownVariant(name, known) => format!("`{key}` can't be `{name}`; it is one of {}", known.join(", ")),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) if !key.is_empty() => {
            let expected = match expected.to_string().as_str() {
                "usize" | "u64" => "a whole number".to_owned(),
                "a boolean" => "true or false".to_owned(),
                other => other.to_owned(),
            };
            format!("`{key}` is {found}, but must be {expected}")
        }
        other if key.is_empty() => other.to_string(),
        other => format!("`{key}`: {other}"),
    };
    place(error.metadata.as_ref(), &key) + &what
}

/// Where the value of `key` stands, as the beginning of a message.
fn place(metadata: Option<&figment::Metadata>, key: &str) -> String {
    metadata.map_or_else(String::new, |meta| match &meta.source {
        Some(figment::Source::File(path)) => format!("{}: ", path.display()),
        _ if meta.name.contains("environment") => format!("environment, OPENJET_{}: ", key.to_uppercase()),
        _ => format!("--{key}: "),
    })
}

/// The known name nearest to `name`, if it is near at all.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, k)| *distance <= 1 + k.len() / 4)
        .map(|(_, k)| k)
}

impl Config {
    /// Whether every setting is within its range.
    ///
    /// # Errors
    /// The key of the first that is not, and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let config = self;
        let within = |key: &'static str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err((key, format!("`{key}` is {value}, but must be {low} to {high}")))
            }
        };
        within("agents", config.agents as u64, 1, 256)?;
        within("draft", config.draft as u64, 0, 16)?;
        within("queue", config.queue as u64, 1, 100_000)?;
        within("body_limit_mib", config.body_limit_mib as u64, 1, 1024)?;
        within("header_timeout_s", config.header_timeout_s, 1, 3600)?;
        within("body_timeout_s", config.body_timeout_s, 1, 3600)?;
        within("write_timeout_s", config.write_timeout_s, 1, 3600)?;
        within("connections", config.connections as u64, 1, 1_000_000)?;
        within("ping_s", config.ping_s, 1, 3600)?;
        if config.admin_on_loopback && !super::is_loopback(&config.listen) {
            let why = "only users of this machine may change things without a key: set admin_key instead";
            let what = format!("`listen` is {}, which other machines reach; {why}", config.listen);
            return Err(("admin_on_loopback", what));
        }
        within("drain_s", config.drain_s, 0, 86_400)?;
        if let Some(reserve) = config.gpu_reserve_mib {
            within("gpu_reserve_mib", reserve, 0, 1 << 20)?;
        }
        if let Some(wait) = config.gpu_wait_s {
            within("gpu_wait_s", wait, 0, 3600)?;
        }
        if let Some(idle) = config.idle_unload_s {
            within("idle_unload_s", idle, 1, 1 << 24)?;
        }
        if let Some(folder) = config.model_paths.iter().find(|folder| !folder.is_absolute()) {
            return Err((
                "model_paths",
                format!("`model_paths` has {}, but must have absolute paths", folder.display()),
            ));
        }
        within("conversations_gib", config.conversations_gib, 1, 1 << 20)?;
        within("conversations_days", config.conversations_days, 1, 36_500)?;
        if let Some(most) = config.agents_max {
            within("agents_max", most as u64, 1, 256)?;
        }
        if let Some(cache) = config.host_cache_mib {
            within("host_cache_mib", cache as u64, 0, 1 << 24)?;
        }
        if let Some(folder) = config.state_dir.as_ref().filter(|folder| !folder.is_absolute()) {
            return Err(("state_dir", format!("`state_dir` is {}, but must be an absolute path", folder.display())));
        }
        if let Some(budget) = config.thinking_budget {
            within("thinking_budget", budget as u64, 0, u64::from(u32::MAX))?;
        }
        if let Some(temperature) = config.temperature.filter(|t| !(0.0..=2.0).contains(t)) {
            return Err(("temperature", format!("`temperature` is {temperature}, but must be 0 to 2")));
        }
        if let Some(ctx) = config.ctx {
            within("ctx", ctx as u64, 64, 1 << 26)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::result_large_err)]

    use std::path::PathBuf;

    use clap::Parser;
    use figment::Jail;

    use super::*;
    use crate::config::BackendChoice;

    fn cli(args: &[&str]) -> Cli {
        Cli::try_parse_from([&["openjetd"], args].concat()).unwrap()
    }

    fn file_error(text: &str) -> String {
        let mut message = String::new();
        Jail::expect_with(|jail| {
            jail.create_file("x.toml", text)?;
            message = load(&cli(&["--config", "x.toml"])).unwrap_err().to_string();
            Ok(())
        });
        message
    }

    #[test]
    fn flag_over_environment_over_file_over_default() {
        Jail::expect_with(|jail| {
            jail.create_file("x.toml", "agents = 2\ndraft = 1\nqueue = 9\nkv = \"f16\"")?;
            jail.set_env("OPENJET_AGENTS", "3");
            jail.set_env("OPENJET_DRAFT", "2");
            jail.set_env("OPENJET_SERVICE_HOST", "10.0.0.1");
            let config = load(&cli(&["--config", "x.toml", "--agents", "5", "--backend", "cpu"])).unwrap();
            assert_eq!((config.agents, config.draft, config.queue), (5, 2, 9));
            assert_eq!((config.kv, config.backend), (openjet_engine::backend::KvType::F16, BackendChoice::Cpu));
            assert_eq!(config.listen, Config::default().listen);
            Ok(())
        });
    }

    #[test]
    fn unknown_key_names_file_and_nearest() {
        let message = file_error("agnets = 2");
        assert!(
            message.contains("x.toml") && message.contains("`agnets`") && message.contains("`agents`"),
            "{message}"
        );
    }

    #[test]
    fn wrong_type_and_range_name_the_key() {
        assert!(
            file_error("agents = \"many\"").contains("`agents` is string \"many\""),
            "{}",
            file_error("agents = \"many\"")
        );
        assert!(file_error("agents = true").ends_with("but must be a whole number"), "{}", file_error("agents = true"));
        let message = file_error("agents = 0");
        assert!(message.contains("x.toml: `agents` is 0, but must be 1 to 256"), "{message}");
        assert!(file_error("kv = \"q3\"").contains("one of f32, f16, q8_0, q4_0"), "{}", file_error("kv = \"q3\""));
        assert!(file_error("agents = = 2").contains("x.toml"), "{}", file_error("agents = = 2"));
    }

    #[test]
    fn environment_errors_name_the_variable() {
        Jail::expect_with(|jail| {
            jail.set_env("OPENJET_AGENTS", "few");
            let message = load(&cli(&[])).unwrap_err().to_string();
            assert!(message.contains("OPENJET_AGENTS"), "{message}");
            jail.set_env("OPENJET_AGENTS", "0");
            let message = load(&cli(&[])).unwrap_err().to_string();
            assert!(message.contains("OPENJET_AGENTS: `agents` is 0"), "{message}");
            let message = load(&cli(&["--agents", "0"])).unwrap_err().to_string();
            assert!(message.starts_with("--agents: `agents` is 0"), "{message}");
            Ok(())
        });
    }

    #[test]
    fn text_is_shown_on_the_loopback_unless_it_is_said_otherwise() {
        let shows =
            |listen: &str, show_text| Config { listen: listen.into(), show_text, ..Config::default() }.shows_text();
        assert!(shows("127.0.0.1:1", None) && shows("[::1]:1", None) && shows("localhost:1", None));
        assert!(!shows("0.0.0.0:1", None) && !shows("box:1", None) && !shows("[::]:1", None));
        assert!(shows("0.0.0.0:1", Some(true)) && !shows("127.0.0.1:1", Some(false)));
    }

    #[test]
    fn missing_file_is_named() {
        let message = load(&cli(&["--config", "/nowhere/x.toml"])).unwrap_err().to_string();
        assert!(message.contains("/nowhere/x.toml"), "{message}");
    }

    #[test]
    fn misspelt_variable_is_found() {
        Jail::expect_with(|jail| {
            jail.set_env("OPENJET_AGNETS", "3");
            jail.set_env("OPENJET_PORT", "tcp://10.0.0.1:80");
            assert_eq!(misspelt_variables(), [("OPENJET_AGNETS".to_owned(), "OPENJET_AGENTS".to_owned())]);
            Ok(())
        });
    }

    #[test]
    fn the_packaged_file_shows_every_key_with_its_default() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/openjet.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let uncommented: String = text
            .lines()
            .map(|line| line.strip_prefix("#").filter(|rest| !rest.starts_with([' ', '#'])).unwrap_or(""))
            .fold(String::new(), |all, line| all + line + "\n");
        for key in keys() {
            assert!(uncommented.lines().any(|line| line.starts_with(&format!("{key} = "))), "no line for {key}");
        }
        Jail::expect_with(|jail| {
            jail.create_file("x.toml", &uncommented)?;
            let shown = load(&cli(&["--config", "x.toml"])).unwrap();
            let examples = [
                "model",
                "idle_unload_s",
                "gpu_wait_s",
                "agents_max",
                "control",
                "gpu",
                "gpu_reserve_mib",
                "ctx",
                "host_cache_mib",
                "api_keys",
                "admin_key",
                "state_dir",
                "temperature",
                "thinking_budget",
                "show_text",
            ];
            let without = |config: &Config| {
                let mut all = serde_json::to_value(config).unwrap();
                all.as_object_mut().unwrap().retain(|key, _| !examples.contains(&key.as_str()));
                all
            };
            assert_eq!(without(&shown), without(&Config::default()));
            Ok(())
        });
    }
}
