//! Writes GGUF files, right ones and wrong ones.

#![allow(dead_code, reason = "each test file uses a part")]

use openjet_engine::quant::TensorType;

/// A metadata value.
#[derive(Clone)]
pub(crate) enum Meta {
    U32(u32),
    F32(f32),
    Text(&'static str),
    Bools(Vec<bool>),
    U32s(Vec<u32>),
    Texts(Vec<String>),
    /// Any type number with any bytes.
    Raw(u32, Vec<u8>),
}

/// A tensor's entry. Its place follows the tensor before, unless it is given.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) ty: u32,
    pub(crate) offset: Option<u64>,
}

/// A file to be.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) metadata_count: Option<u64>,
    pub(crate) metadata: Vec<(String, Meta)>,
    pub(crate) tensors: Vec<Tensor>,
}

pub(crate) const F32: u32 = 0;
pub(crate) const Q8_0: u32 = 8;
pub(crate) const Q4_K: u32 = 12;
pub(crate) const Q6_K: u32 = 14;
const ALIGNMENT: u64 = 32;

/// Sizes of a model file.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) hidden: u64,
    pub(crate) ffn: u64,
    pub(crate) vocab: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) rope_dims: u64,
    pub(crate) key_heads: u64,
    pub(crate) value_heads: u64,
    pub(crate) state_dim: u64,
    pub(crate) blocks: u64,
    pub(crate) draft_head: bool,
    pub(crate) context: u32,
}

impl Shape {
    /// A model of the least sizes that show everything.
    pub(crate) const SMALL: Self = Self {
        hidden: 64,
        ffn: 96,
        vocab: 288,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        rope_dims: 16,
        key_heads: 2,
        value_heads: 4,
        state_dim: 32,
        blocks: 4,
        draft_head: true,
        context: 4096,
    };

    /// Qwen3.5-27B with its draft head.
    pub(crate) const BIG: Self = Self {
        hidden: 5120,
        ffn: 17408,
        vocab: 248_320,
        heads: 24,
        kv_heads: 4,
        head_dim: 256,
        rope_dims: 64,
        key_heads: 16,
        value_heads: 48,
        state_dim: 128,
        blocks: 64,
        draft_head: true,
        context: 262_144,
    };
}

/// Whether the usual Q4_K_M recipe spends more bits on block `i` of `n`.
fn more(i: u64, n: u64) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// Id of the token that ends a turn.
const END: u32 = 257;

/// A vocabulary of the 256 bytes, `th`, an end token, and fillers.
fn token(id: u64) -> String {
    match id {
        0..256 => {
            let byte = id as u8;
            // Bytes that are no printable characters are spelled from U+0100 on, in order.
            let spelled = |b: &u8| matches!(*b, 33..=126 | 161..=172 | 174..=255);
            let place = (0..byte).filter(|b| !spelled(b)).count() as u32;
            let c = if spelled(&byte) { u32::from(byte) } else { 256 + place };
            char::from_u32(c).expect("a character below U+0200").to_string()
        }
        256 => "th".into(),
        257 => "<|im_end|>".into(),
        _ => format!("[PAD{id}]"),
    }
}

fn token_type(id: u64) -> u32 {
    match id {
        0..257 => 1,
        257 => 3,
        _ => 5,
    }
}

impl Gguf {
    /// A whole model: `Q8_0` matrices, or the usual `Q4_K_M` recipe's types.
    pub(crate) fn model(s: &Shape, q4_k_m: bool) -> Self {
        let all = s.blocks + u64::from(s.draft_head);
        let inner = s.value_heads * s.state_dim;
        let channels = 2 * s.key_heads * s.state_dim + inner;
        let matrix = if q4_k_m { Q4_K } else { Q8_0 };
        let better = |i| if q4_k_m && more(i, all) { Q6_K } else { matrix };
        let mut file = Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
        };
        let u = |n: u64| Meta::U32(n as u32);
        for (key, value) in [
            ("general.architecture", Meta::Text("qwen35")),
            ("general.name", Meta::Text("made for a test")),
            ("qwen35.block_count", u(all)),
            ("qwen35.nextn_predict_layers", u(u64::from(s.draft_head))),
            ("qwen35.context_length", Meta::U32(s.context)),
            ("qwen35.embedding_length", u(s.hidden)),
            ("qwen35.feed_forward_length", u(s.ffn)),
            ("qwen35.attention.head_count", u(s.heads)),
            ("qwen35.attention.head_count_kv", u(s.kv_heads)),
            ("qwen35.attention.key_length", u(s.head_dim)),
            ("qwen35.attention.value_length", u(s.head_dim)),
            ("qwen35.attention.layer_norm_rms_epsilon", Meta::F32(1e-6)),
            ("qwen35.full_attention_interval", u(4)),
            ("qwen35.rope.dimension_count", u(s.rope_dims)),
            ("qwen35.rope.freq_base", Meta::F32(1e7)),
            ("qwen35.ssm.conv_kernel", u(4)),
            ("qwen35.ssm.state_size", u(s.state_dim)),
            ("qwen35.ssm.group_count", u(s.key_heads)),
            ("qwen35.ssm.time_step_rank", u(s.value_heads)),
            ("qwen35.ssm.inner_size", u(inner)),
            ("tokenizer.ggml.model", Meta::Text("gpt2")),
            ("tokenizer.ggml.pre", Meta::Text("qwen35")),
            ("tokenizer.ggml.tokens", Meta::Texts((0..s.vocab).map(token).collect())),
            ("tokenizer.ggml.token_type", Meta::U32s((0..s.vocab).map(token_type).collect())),
            ("tokenizer.ggml.merges", Meta::Texts(vec!["t h".into()])),
            ("tokenizer.ggml.eos_token_id", Meta::U32(END)),
        ] {
            file.metadata.push((key.to_owned(), value));
        }
        file.add("token_embd.weight", &[s.hidden, s.vocab], matrix);
        file.add("output.weight", &[s.hidden, s.vocab], if q4_k_m { Q6_K } else { Q8_0 });
        file.add("output_norm.weight", &[s.hidden], F32);
        for i in 0..all {
            let mut add = |part: &str, dims: &[u64], ty| file.add(&format!("blk.{i}.{part}"), dims, ty);
            add("attn_norm.weight", &[s.hidden], F32);
            add("post_attention_norm.weight", &[s.hidden], F32);
            add("ffn_gate.weight", &[s.hidden, s.ffn], matrix);
            add("ffn_up.weight", &[s.hidden, s.ffn], matrix);
            add("ffn_down.weight", &[s.ffn, s.hidden], better(i));
            if i < s.blocks && (i + 1) % 4 != 0 {
                add("attn_qkv.weight", &[s.hidden, channels], better(i));
                add("attn_gate.weight", &[s.hidden, inner], matrix);
                add("ssm_alpha.weight", &[s.hidden, s.value_heads], matrix);
                add("ssm_beta.weight", &[s.hidden, s.value_heads], matrix);
                add("ssm_conv1d.weight", &[4, channels], F32);
                add("ssm_dt.bias", &[s.value_heads], F32);
                add("ssm_a", &[s.value_heads], F32);
                add("ssm_norm.weight", &[s.state_dim], F32);
                add("ssm_out.weight", &[inner, s.hidden], matrix);
            } else {
                add("attn_q.weight", &[s.hidden, 2 * s.heads * s.head_dim], matrix);
                add("attn_k.weight", &[s.hidden, s.kv_heads * s.head_dim], matrix);
                add("attn_v.weight", &[s.hidden, s.kv_heads * s.head_dim], better(i));
                add("attn_output.weight", &[s.heads * s.head_dim, s.hidden], matrix);
                add("attn_q_norm.weight", &[s.head_dim], F32);
                add("attn_k_norm.weight", &[s.head_dim], F32);
            }
            if i == s.blocks {
                add("nextn.eh_proj.weight", &[2 * s.hidden, s.hidden], matrix);
                add("nextn.enorm.weight", &[s.hidden], F32);
                add("nextn.hnorm.weight", &[s.hidden], F32);
                add("nextn.shared_head_norm.weight", &[s.hidden], F32);
            }
        }
        file
    }

    pub(crate) fn add(&mut self, name: &str, dims: &[u64], ty: u32) {
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), ty, offset: None });
    }

    /// Sets or adds a metadata value.
    pub(crate) fn set(&mut self, key: &str, value: Meta) {
        match self.metadata.iter_mut().find(|entry| entry.0 == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.metadata.retain(|entry| entry.0 != key);
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the test names a tensor of the model")
    }

    /// Header, metadata and tensor table, padded, and how many bytes of tensors are to follow.
    pub(crate) fn header(&self) -> (Vec<u8>, u64) {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            meta(&mut out, value);
        }
        let mut next = 0_u64;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.ty.to_le_bytes());
            let offset = tensor.offset.unwrap_or(next);
            out.extend(offset.to_le_bytes());
            // Shapes that no file can hold have no place either.
            next = offset.saturating_add(tensor_bytes(tensor).min(1 << 40)).min(1 << 50).next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        (out, next)
    }

    /// The whole file, its tensors filled with a pattern that decodes to small numbers.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut out, data) = self.header();
        // A wrong offset may ask for any size.
        out.extend((0..data.min(1 << 24)).map(|i| if i % 2 == 0 { (i % 7) as u8 } else { 0x21 }));
        out
    }

    /// The whole file with random weights of usual sizes, so that what is written depends on everything before it.
    pub(crate) fn random(&self, seed: u64) -> Vec<u8> {
        let (mut out, _) = self.header();
        let start = out.len();
        let mut state = seed;
        // SplitMix64.
        let mut random = move || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        for tensor in &self.tensors {
            out.resize(start + (out.len() - start).next_multiple_of(ALIGNMENT as usize), 0);
            let elements: u64 = tensor.dims.iter().product();
            let mut unit = || (random() >> 40) as f32 / (1u64 << 24) as f32;
            if tensor.ty == F32 {
                let (least, most) = match tensor.name.splitn(3, '.').last().unwrap_or_default() {
                    "ssm_a" => (-0.3, -0.003),
                    "ssm_dt.bias" | "ssm_conv1d.weight" => (-1.0, 1.0),
                    _ => (0.7, 1.3),
                };
                (0..elements).for_each(|_| out.extend((least + (most - least) * unit()).to_le_bytes()));
                continue;
            }
            assert_eq!(tensor.ty, Q8_0, "random weights are floats or blocks of bytes");
            // Blocks of 32 bytes with a scale; the deviation is that of a matrix that keeps a vector's length, and half more.
            let scale = 1.5 * 3f32.sqrt() / 127.0 / (tensor.dims[0] as f32).sqrt();
            for _ in 0..elements / 32 {
                out.extend(half::f16::from_f32(scale).to_le_bytes());
                (0..32).for_each(|_| out.push(((unit() * 255.0) as i32 - 127) as i8 as u8));
            }
        }
        out
    }

    /// Writes the file with a hole in place of the tensors, which costs no room.
    pub(crate) fn write_with_holes(&self, path: &std::path::Path) {
        let (header, data) = self.header();
        std::fs::write(path, &header).expect("the folder can be written to");
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file has just been made");
        file.set_len(header.len() as u64 + data).expect("files may have holes");
    }
}

/// Bytes of a tensor, if there can be any.
fn tensor_bytes(tensor: &Tensor) -> u64 {
    let elements = tensor.dims.iter().fold(1_u64, |n, &d| n.saturating_mul(d));
    match TensorType::from_ggml_id(tensor.ty) {
        Some(ty) => (elements / ty.block_elements() as u64).saturating_mul(ty.block_bytes() as u64),
        None => elements.saturating_mul(4),
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn meta(out: &mut Vec<u8>, value: &Meta) {
    let array = |out: &mut Vec<u8>, element: u32, count: usize| {
        out.extend(9_u32.to_le_bytes());
        out.extend(element.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        Meta::U32(v) => {
            out.extend(4_u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Meta::F32(v) => {
            out.extend(6_u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Meta::Text(v) => {
            out.extend(8_u32.to_le_bytes());
            text(out, v);
        }
        Meta::Bools(v) => {
            array(out, 7, v.len());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        Meta::U32s(v) => {
            array(out, 4, v.len());
            out.extend(v.iter().flat_map(|n| n.to_le_bytes()));
        }
        Meta::Texts(v) => {
            array(out, 8, v.len());
            for entry in v {
                text(out, entry);
            }
        }
        Meta::Raw(ty, bytes) => {
            out.extend(ty.to_le_bytes());
            out.extend(bytes);
        }
    }
}
