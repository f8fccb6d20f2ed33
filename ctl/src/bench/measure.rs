//! The measurements.

use std::future::pending;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use indicatif::ProgressBar;
use openjet_bench::Spread;
use openjet_proto::AgentStatus;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::facts::{Facts, agents};
use super::http::Server;
use super::load::{Asker, Prompts};
use super::report::{Beside, Decode, FollowUp, Prompt, Report};
use super::stream::Answer;

/// Tokens of a short prompt.
const SHORT: usize = 64;
/// Tokens of the prompt that is read beside writing agents.
const BESIDE: usize = 20_000;
/// New tokens of a follow-up.
const NEW: usize = 8;
/// Drafts where depths are not what is measured.
const USUAL: usize = 2;
/// How long agents are watched that write undisturbed.
const ALONE: Duration = Duration::from_secs(1);
/// Most agents at long contexts.
const LONG_AGENTS: usize = 4;

/// What is to be measured.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) agents: Vec<usize>,
    pub(super) drafts: Vec<usize>,
    pub(super) long: usize,
    pub(super) tokens: usize,
    pub(super) runs: usize,
    pub(super) quick: bool,
}

impl Plan {
    /// Steps of the progress bar.
    pub(super) fn steps(&self) -> usize {
        self.runs * (self.agents.len() * self.drafts.len() + self.prompts().len() + 1 + self.beside().len())
    }

    /// The most agents at once.
    fn most(&self) -> usize {
        self.agents.iter().copied().max().unwrap_or(1)
    }

    /// How many write beside a prompt: one, and as many as there may be beside it.
    fn beside(&self) -> Vec<usize> {
        match self.most() {
            0 | 1 => Vec::new(),
            most if most > 2 && !self.quick => vec![1, (most - 1).min(3)],
            _ => vec![1],
        }
    }

    fn prompts(&self) -> Vec<usize> {
        let mut all: Vec<usize> = [512, 4096, self.long].into_iter().filter(|&n| n <= self.long).collect();
        if self.quick {
            all = vec![self.long];
        }
        all.dedup();
        all
    }
}

/// Measures one daemon.
pub(super) struct Bench {
    asker: Asker,
    facts: Facts,
    prompts: Prompts,
    /// Which token follows which.
    chain: Option<Vec<u32>>,
    wrong: usize,
}

impl Bench {
    pub(super) fn new(server: Server, facts: Facts, temperature: f64, chain: Option<Vec<u32>>) -> Self {
        let prompts = Prompts::new(chain.as_ref().map_or(facts.vocab, Vec::len));
        Self { asker: Asker { server, temperature }, facts, prompts, chain, wrong: 0 }
    }

    /// Everything.
    pub(super) async fn all(&mut self, plan: &Plan, bar: &ProgressBar) -> anyhow::Result<Report> {
        // What a first request wakes up does not count.
        self.together(1, SHORT, 8, USUAL).await?;
        let mut report = Report {
            kind: "serving".into(),
            date: openjet_bench::today(),
            daemon: self.facts.daemon.clone(),
            model: self.facts.model.clone(),
            model_bytes: self.facts.model_bytes,
            model_hash: self.facts.model_hash.clone(),
            backend: self.facts.backend.clone(),
            driver: openjet_kernels::device::driver_version(),
            temperature: self.asker.temperature,
            runs: plan.runs,
            tokens: plan.tokens,
            ..Report::default()
        };
        let mut deepest = usize::MAX;
        for &drafts in &plan.drafts {
            if drafts > deepest {
                bar.inc((plan.runs * plan.agents.len()) as u64);
                continue;
            }
            for &agents in &plan.agents {
                bar.set_message(format!("{agents} agents, {drafts} drafts"));
                let decode = self.decode(agents, SHORT, drafts, plan, bar).await?;
                // A draft is verified at every place up to the depth that the daemon allows.
                let places = decode.offered.len();
                if drafts > places && places > 0 && agents == plan.agents[0] {
                    deepest = places;
                }
                report.decode.push(decode);
            }
        }
        if deepest < plan.drafts.iter().copied().max().unwrap_or(0) {
            report.notes.push(format!("drafts of {deepest} tokens are the deepest that the daemon made"));
        }
        for tokens in plan.prompts() {
            bar.set_message(format!("a prompt of {tokens} tokens"));
            report.prompts.push(self.prompt(tokens, plan.runs, bar).await?);
        }
        bar.set_message(format!("contexts of {} tokens", plan.long));
        self.long(plan, &mut report, bar).await?;
        bar.set_message("writing beside a prompt");
        self.beside(plan, &mut report, bar).await?;
        report.wrong_texts = self.chain.as_ref().map(|_| self.wrong);
        Ok(report)
    }

    /// Asks for the continuations of all prompts at once.
    async fn ask_all(&mut self, prompts: &[Vec<u32>], tokens: usize, drafts: usize) -> anyhow::Result<Vec<Answer>> {
        let mut tasks = JoinSet::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let (asker, prompt) = (self.asker.clone(), prompt.clone());
            tasks.spawn(async move { (i, asker.ask(&prompt, tokens, Some(drafts), pending()).await) });
        }
        let mut answers: Vec<Option<Answer>> = prompts.iter().map(|_| None).collect();
        while let Some(done) = tasks.join_next().await {
            let (i, answer) = done?;
            answers[i] = Some(answer?);
        }
        let answers: Vec<Answer> = answers.into_iter().flatten().collect();
        for (prompt, answer) in prompts.iter().zip(&answers) {
            self.check(prompt, answer, tokens)?;
        }
        Ok(answers)
    }

    /// Whether an answer is whole, and the known text where there is one.
    fn check(&mut self, prompt: &[u32], answer: &Answer, tokens: usize) -> anyhow::Result<()> {
        if answer.ids.len() != tokens {
            bail!("an answer has {} tokens in place of {tokens}", answer.ids.len());
        }
        if let Some(next) = &self.chain {
            let before = prompt.last().into_iter().chain(&answer.ids);
            let right = before.zip(&answer.ids).all(|(&before, id)| next.get(before as usize) == Some(id));
            self.wrong += usize::from(!right);
        }
        Ok(())
    }

    async fn slots(&self) -> anyhow::Result<Vec<AgentStatus>> {
        agents(&self.asker.server).await.map_err(|failure| anyhow!("{failure}"))
    }

    async fn together(
        &mut self,
        agents: usize,
        context: usize,
        tokens: usize,
        drafts: usize,
    ) -> anyhow::Result<Vec<Answer>> {
        let prompts: Vec<_> = (0..agents).map(|_| self.prompts.next(context)).collect();
        self.ask_all(&prompts, tokens, drafts).await
    }

    async fn decode(
        &mut self,
        agents: usize,
        context: usize,
        drafts: usize,
        plan: &Plan,
        bar: &ProgressBar,
    ) -> anyhow::Result<Decode> {
        let mut runs = Writing::default();
        for _ in 0..plan.runs {
            let before = self.slots().await?;
            let answers = self.together(agents, context, plan.tokens, drafts).await?;
            runs.add(&answers, &before, &self.slots().await?)?;
            bar.inc(1);
        }
        Ok(runs.decode(agents, context, drafts))
    }

    async fn prompt(&mut self, tokens: usize, runs: usize, bar: &ProgressBar) -> anyhow::Result<Prompt> {
        let (mut rates, mut firsts) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let answers = self.together(1, tokens, 1, 0).await?;
            let answer = answers.first().context("no answer")?;
            let timings = answer.timings.context("an answer without timings")?;
            rates.push(timings.prompt_n as f64 / timings.prompt_ms.max(1e-3) * 1e3);
            firsts.push(ms(answer.first_token()));
            bar.inc(1);
        }
        Ok(Prompt { tokens, tok_s: Spread::of(&rates), first_token_ms: Spread::of(&firsts) })
    }

    /// Conversations that are long already: their next requests, and writing on all of them at once.
    async fn long(&mut self, plan: &Plan, report: &mut Report, bar: &ProgressBar) -> anyhow::Result<()> {
        let room = self.facts.pool / (plan.long + 2 * plan.tokens + 64);
        let agents = plan.most().min(LONG_AGENTS).min(room);
        if agents == 0 {
            report.notes.push(format!("the pool of {} tokens holds no context of {}", self.facts.pool, plan.long));
            return Ok(());
        }
        let (mut writing, mut single, mut at_once) = (Writing::default(), Times::default(), Times::default());
        for _ in 0..plan.runs {
            let mut talks: Vec<_> = (0..agents).map(|_| self.prompts.next(plan.long)).collect();
            for talk in &mut talks {
                // Read one after the other, so that each is whole in its own slot.
                let read = self.ask_all(std::slice::from_ref(talk), NEW, 0).await?;
                talk.extend(read.first().map(|answer| &answer.ids[..]).unwrap_or_default());
                talk.extend(self.prompts.next(NEW));
            }
            let answers = self.ask_all(&talks[..1], NEW, 0).await?;
            single.add(&answers)?;
            talks[0].extend(answers.first().map(|answer| &answer.ids[..]).unwrap_or_default());
            talks[0].extend(self.prompts.next(NEW));
            let before = self.slots().await?;
            let answers = self.ask_all(&talks, plan.tokens, USUAL).await?;
            at_once.add(&answers)?;
            writing.add(&answers, &before, &self.slots().await?)?;
            bar.inc(1);
        }
        report.decode.push(writing.decode(agents, plan.long, USUAL));
        report.follow_ups.push(single.follow_up(1, plan.long));
        if agents > 1 {
            report.follow_ups.push(at_once.follow_up(agents, plan.long));
        }
        Ok(())
    }

    /// Writing, while another's prompt is read.
    async fn beside(&mut self, plan: &Plan, report: &mut Report, bar: &ProgressBar) -> anyhow::Result<()> {
        let numbers = plan.beside();
        if numbers.is_empty() {
            report.notes.push("nobody can write beside a prompt: there is one agent".into());
        }
        let prompt = BESIDE.min(plan.long);
        for agents in numbers {
            let mut parts: [Vec<f64>; 5] = Default::default();
            for _ in 0..plan.runs {
                let part = self.beside_once(agents, prompt).await?;
                parts.iter_mut().zip(part).for_each(|(all, one)| all.push(one));
                bar.inc(1);
            }
            let [alone, meanwhile, share, gap, first] = parts.map(|values| Spread::of(&values));
            report.beside.push(Beside {
                agents,
                prompt,
                drafts: USUAL,
                alone_tok_s: alone,
                meanwhile_tok_s: meanwhile,
                share,
                longest_gap_ms: gap,
                first_token_ms: first,
            });
        }
        Ok(())
    }

    /// Tokens a second of one agent before and meanwhile, their ratio, the longest gap and the prompt's first token in ms.
    async fn beside_once(&mut self, agents: usize, prompt: usize) -> anyhow::Result<[f64; 5]> {
        let room = self.facts.context.saturating_sub(SHORT + 1);
        let (stop, stopped) = watch::channel(false);
        let (tell, mut told) = watch::channel(0usize);
        let mut tasks = JoinSet::new();
        for _ in 0..agents {
            let (asker, text, mut stopped, tell) =
                (self.asker.clone(), self.prompts.next(SHORT), stopped.clone(), tell.clone());
            tasks.spawn(async move {
                tell.send_modify(|started| *started += 1);
                let stop = async move {
                    let _sender_gone = stopped.wait_for(|&stop| stop).await;
                };
                asker.ask(&text, room, Some(USUAL), stop).await
            });
        }
        told.wait_for(|&started| started == agents).await?;
        // Once this one has its answer, the others write too.
        self.together(1, SHORT, 1, USUAL).await?;
        let before = Instant::now();
        tokio::time::sleep(ALONE).await;
        let long = [self.prompts.next(prompt)];
        let from = Instant::now();
        let answers = self.ask_all(&long, 1, 0).await?;
        let first = answers.first().context("no answer")?.first_token();
        let to = from + first;
        stop.send_replace(true);
        let (mut rate_before, mut rate_meanwhile, mut longest) = (0.0, 0.0, Duration::ZERO);
        while let Some(done) = tasks.join_next().await {
            let answer = done??;
            rate_before += answer.tokens_between(before, from) as f64 / (from - before).as_secs_f64();
            rate_meanwhile += answer.tokens_between(from, to) as f64 / first.as_secs_f64();
            // A gap that outlasts the prompt counts as far as it is known.
            let last = answer.steps.iter().map(|step| step.0).filter(|&at| at <= to).max().unwrap_or(from);
            longest =
                answer.gaps_between(from, to).into_iter().chain([to - last]).max().unwrap_or_default().max(longest);
        }
        let (before, meanwhile) = (rate_before / agents as f64, rate_meanwhile / agents as f64);
        Ok([before, meanwhile, meanwhile / before.max(1e-9), ms(longest), ms(first)])
    }
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

/// First tokens of follow-ups, and what was read for them.
#[derive(Default)]
struct Times {
    first: Vec<f64>,
    computed: Vec<f64>,
}

impl Times {
    fn add(&mut self, answers: &[Answer]) -> anyhow::Result<()> {
        for answer in answers {
            self.first.push(ms(answer.first_token()));
            self.computed.push(answer.timings.context("an answer without timings")?.prompt_n as f64);
        }
        Ok(())
    }

    fn follow_up(&self, agents: usize, context: usize) -> FollowUp {
        let (computed, first_token_ms) = (Spread::of(&self.computed), Spread::of(&self.first));
        FollowUp { agents, context, new_tokens: NEW, computed, first_token_ms }
    }
}

/// Runs in which agents write at the same time.
#[derive(Default)]
struct Writing {
    rates: Vec<f64>,
    steps: Vec<f64>,
    tokens: Vec<f64>,
    offered: Vec<u64>,
    accepted: Vec<u64>,
}

impl Writing {
    /// Adds a run. Slots keep the facts of the last request; those that look other than before served this run's.
    fn add(&mut self, answers: &[Answer], before: &[AgentStatus], after: &[AgentStatus]) -> anyhow::Result<()> {
        // While all of them write: from the last first token to the first last one.
        let from = answers.iter().filter_map(|answer| Some(answer.steps.first()?.0)).max().context("no answer")?;
        let to = answers.iter().filter_map(|answer| Some(answer.steps.last()?.0)).min().context("no answer")?;
        if to > from {
            let count: usize = answers.iter().map(|answer| answer.tokens_between(from, to)).sum();
            let gaps: Vec<f64> = answers.iter().flat_map(|answer| answer.gaps_between(from, to)).map(ms).collect();
            self.rates.push(count as f64 / (to - from).as_secs_f64());
            self.steps.push(Spread::of(&gaps).median);
            self.tokens.push(count as f64 / gaps.len().max(1) as f64);
        }
        for slot in after.iter().filter(|slot| before.iter().all(|before| before.first_token_ms != slot.first_token_ms))
        {
            add_up(&mut self.offered, &slot.drafts_offered);
            add_up(&mut self.accepted, &slot.drafts_accepted);
        }
        Ok(())
    }

    fn decode(self, agents: usize, context: usize, drafts: usize) -> Decode {
        Decode {
            agents,
            context,
            drafts,
            total_tok_s: Spread::of(&self.rates),
            step_ms: Spread::of(&self.steps),
            tokens_per_step: Spread::of(&self.tokens),
            offered: self.offered,
            accepted: self.accepted,
        }
    }
}

/// Adds counts by place.
fn add_up(all: &mut Vec<u64>, more: &[u64]) {
    all.resize(all.len().max(more.len()), 0);
    all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
}
