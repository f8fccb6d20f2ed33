//! From logits to a token: penalties, bias, masks, temperature, filters, counter-based random numbers, and the accept test
//! for drafts.

/// How a request's tokens are chosen.
///
/// The order is: repetition, frequency and presence penalties; logit bias; masks; temperature; top-k; top-p; min-p;
/// normalise.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token (lowest id among equals).
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the shortest prefix, by probability, that reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least `min_p` times the best probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is none.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token generated before.
    pub presence_penalty: f32,
    /// Subtracted once for each time that a token was generated before.
    pub frequency_penalty: f32,
    /// Added to single tokens' logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Random numbers are a function of this and of the token's position.
    pub seed: u64,
    /// Return log probabilities, with this many alternatives.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    /// Greedy, nothing else.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}
