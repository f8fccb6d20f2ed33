//! What a caller may ask of the sampler, and its limits.

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

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidParam {
    /// The parameter's name, as in [`SamplingParams`].
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl From<InvalidParam> for crate::request::RequestError {
    fn from(e: InvalidParam) -> Self {
        Self::Invalid { field: e.field, message: e.message }
    }
}

/// Most alternatives that a request for log probabilities may ask for.
pub const MAX_TOP_LOGPROBS: u8 = 20;

impl SamplingParams {
    /// Checks every number against its range.
    ///
    /// # Errors
    /// The first parameter that is not a number or out of range.
    pub fn validate(&self) -> Result<(), InvalidParam> {
        in_range("temperature", self.temperature, 0.0, f32::MAX)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        for &(_, bias) in &self.logit_bias {
            in_range("logit_bias", bias, -100.0, 100.0)?;
        }
        match self.logprobs {
            Some(n) if n > MAX_TOP_LOGPROBS => Err(InvalidParam {
                field: "logprobs",
                message: format!("{n} alternatives were asked for; at most {MAX_TOP_LOGPROBS} are given"),
            }),
            _ => Ok(()),
        }
    }

    /// As [`SamplingParams::validate`], and checks that every biased token is one of the `vocab` tokens that there are.
    ///
    /// # Errors
    /// The first parameter that is not a number or out of range.
    pub fn validate_for(&self, vocab: usize) -> Result<(), InvalidParam> {
        self.validate()?;
        match self.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
            Some((token, _)) => Err(InvalidParam {
                field: "logit_bias",
                message: format!("there is no token {token}; ids run from 0 to {}", vocab.saturating_sub(1)),
            }),
            None => Ok(()),
        }
    }

    /// A penalty looks at the tokens so far.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.penalises_repetition() || self.penalises_counts()
    }

    /// The repetition penalty is not neutral.
    pub(super) fn penalises_repetition(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// The presence or the frequency penalty is not neutral.
    pub(super) fn penalises_counts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn in_range(field: &'static str, value: f32, min: f32, max: f32) -> Result<(), InvalidParam> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let message = if max == f32::MAX {
        format!("is {value}, but must be a finite number, {min} or more")
    } else {
        format!("is {value}, but must be a number from {min} to {max}")
    };
    Err(InvalidParam { field, message })
}
