//! Log probabilities in the forms of the two `OpenAI` endpoints.

use openjet_engine::step::Logprobs;
use openjet_engine::text::Tokenizer;
use serde_json::{Value, json};

use super::answer::Token;

/// An entry of `logprobs.content` of a chat answer; `None` for a token without log probabilities.
#[must_use]
pub fn chat(token: &Token, tokenizer: &Tokenizer) -> Option<Value> {
    let Logprobs { chosen, top } = token.logprobs.as_ref()?;
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id);
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
    };
    let mut out = entry(token.id, *chosen);
    out["top_logprobs"] = top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    Some(out)
}

/// `logprobs` of a completion's piece: parallel lists. `offset` is where the piece's text begins in the whole, in characters,
/// and is moved on.
#[must_use]
pub fn completion(tokens: &[Token], tokenizer: &Tokenizer, offset: &mut usize) -> Value {
    let text = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    let (mut texts, mut chosen, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let Some(logprobs) = &token.logprobs else { continue };
        let this = text(token.id);
        offsets.push(*offset);
        *offset += this.chars().count();
        texts.push(this);
        chosen.push(logprobs.chosen);
        let top = logprobs.top.iter().map(|&(id, logprob)| (text(id), json!(logprob)));
        tops.push(Value::Object(top.collect()));
    }
    json!({ "tokens": texts, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets })
}
