//! `openjetctl agents`.

use std::io::Write;

use openjet_proto::control::{AgentCount, Kicked};
use openjet_proto::{AgentState, AgentStatus};

use crate::client::Client;
use crate::failure::Failure;
use crate::text;

pub(crate) fn list(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let agents: Vec<AgentStatus> = client.get("/v1/agents")?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &agents)?;
        writeln!(out)?;
    } else {
        out.write_all(describe(&agents).as_bytes())?;
    }
    Ok(())
}

pub(crate) fn set(client: &Client, count: u32, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let now: AgentCount = client.put("/v1/agents", &AgentCount { count: count as usize })?;
    if json {
        serde_json::to_writer(&mut *out, &now)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{} agents", now.count)?;
    }
    Ok(())
}

/// Ends what an agent is doing.
pub(crate) fn kick(client: &Client, agent: u32, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let kicked: Kicked = client.post(&format!("/v1/agents/{agent}/kick"), &())?;
    if json {
        return text::json(&kicked, out);
    }
    if kicked.ended {
        writeln!(out, "the request of agent {agent} was ended; its client was told")?;
    } else {
        writeln!(out, "agent {agent} serves no request")?;
    }
    Ok(())
}

/// A table with a line for each agent.
pub(crate) fn describe(agents: &[AgentStatus]) -> String {
    let rows: Vec<_> = agents.iter().map(row).collect();
    text::table(&["agent", "state", "context", "limit", "prompt", "written", "tok/s", "drafts", "session"], &rows)
}

fn row(agent: &AgentStatus) -> [String; 9] {
    let state = match agent.state {
        AgentState::Idle => "idle",
        AgentState::Sharing => "waiting",
        AgentState::Prefill => "reading",
        AgentState::Decode => "writing",
    };
    let offered: u64 = agent.drafts_offered.iter().sum();
    let accepted: u64 = agent.drafts_accepted.iter().sum();
    [
        agent.id.to_string(),
        state.into(),
        agent.context_tokens.to_string(),
        agent.context_limit.to_string(),
        format!("{}/{}", agent.prompt_done, agent.prompt_tokens),
        agent.generated_tokens.to_string(),
        format!("{:.1}", agent.tokens_per_second),
        text::or_dash((offered > 0).then(|| format!("{:.0} %", 100.0 * accepted as f64 / offered as f64))),
        text::or_dash(agent.session.as_deref()),
    ]
}
