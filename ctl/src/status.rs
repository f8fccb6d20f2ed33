//! `openjetctl status`.

use std::io::Write;

use openjet_proto::control::DaemonStatus;
use openjet_proto::device::{TuningSource, TuningStatus};
use openjet_proto::{EngineStatus, Health};

use crate::client::Client;
use crate::failure::Failure;
use crate::{agents, text};

pub(crate) fn run(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let status: DaemonStatus = client.get("/v1/status")?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &status)?;
        writeln!(out)?;
    } else {
        out.write_all(describe(&status).as_bytes())?;
    }
    Ok(())
}

fn describe(status: &DaemonStatus) -> String {
    let health = match &status.health {
        Health::Loading { detail } => format!("loading: {detail}"),
        Health::Ready => "ready".into(),
        Health::Draining => "stopping when the running requests are done".into(),
        Health::Unloaded { on_demand: true } => "idle: the next request loads the model".into(),
        Health::Unloaded { on_demand: false } => "no model is loaded; `openjetctl load` loads one".into(),
        Health::Failed { reason } => format!("failed: {reason}"),
    };
    let mut lines = vec![
        format!("state     {health}"),
        format!(
            "daemon    openjetd {}, process {}, up {}, http://{}",
            status.version,
            status.pid,
            text::duration(status.uptime_s),
            status.listen
        ),
    ];
    if let Some(model) = &status.model {
        let file = model.file.as_deref().unwrap_or("shipped with openjetd");
        lines.push(format!("model     {} ({file}, {})", model.name, text::bytes(model.bytes)));
    }
    lines.extend(status.tuning.as_ref().map(describe_tuning));
    lines.extend(status.change.iter().map(|change| format!("change    {change}")));
    let mut description = lines.join("\n") + "\n";
    if let Some(engine) = &status.engine {
        description += &describe_engine(engine);
    }
    description
}

fn describe_tuning(tuning: &TuningStatus) -> String {
    let source = match tuning.source {
        TuningSource::BuiltIn => "not measured".to_owned(),
        TuningSource::Measured => format!("measured in {:.2} s", tuning.seconds),
        TuningSource::Cached => "measured at an earlier start".to_owned(),
    };
    let faster = tuning.faster_percent;
    let faster = if faster > 0.0 { format!(": matmuls take {faster:.1}% less time") } else { String::new() };
    format!("tuning    {}, {source}{faster}", tuning.name)
}

fn describe_engine(engine: &EngineStatus) -> String {
    let computed = engine.prompt_tokens_computed + engine.prompt_tokens_cached;
    format!(
        "backend   {}\n\
         requests  {} finished, {} cancelled, {} waiting\n\
         tokens    {} written; {} of prompts, {} of them not computed again\n\
         pool      {} of {} pages free\n\n{}",
        engine.backend,
        engine.requests_finished,
        engine.requests_cancelled,
        engine.queued,
        text::count(engine.tokens_generated),
        text::count(computed),
        text::count(engine.prompt_tokens_cached),
        engine.pages_free,
        engine.pages_total,
        agents::describe(&engine.agents)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_told_with_its_origin_and_gain() {
        let tuning = |source, faster_percent| {
            let name = "tiles by memory, 2840 cycles a part".into();
            describe_tuning(&TuningStatus {
                source,
                name,
                faster_percent,
                seconds: 0.312,
                part_cycles: 1,
                tile_cycles: [].into(),
            })
        };
        let measured = "tuning    tiles by memory, 2840 cycles a part, measured in 0.31 s: matmuls take 1.3% less time";
        assert_eq!(tuning(TuningSource::Measured, 1.32), measured);
        assert!(tuning(TuningSource::Cached, 0.0).ends_with("a part, measured at an earlier start"));
        assert!(tuning(TuningSource::BuiltIn, 0.0).ends_with("a part, not measured"));
    }
}
