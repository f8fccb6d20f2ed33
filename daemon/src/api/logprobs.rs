//! Log probabilities in the form of the completions endpoint.

use openjet_engine::text::Tokenizer;
use serde_json::{Value, json};

use super::answer::Token;

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
