//! How much memory a model takes on a GPU with so many agents and so much context, before anything is loaded.
//!
//! [`CudaBackend`](crate::CudaBackend) allocates what stands here: the sizes come from the same functions.

mod table;

use openjet_engine::backend::BackendOptions;
use openjet_engine::engine::DEFAULT_HOST_CACHE;
use openjet_engine::model::Model;
use openjet_engine::step::PAGE_TOKENS;
use serde::{Deserialize, Serialize};

use crate::memory::{FEW_PROMPT_ROWS, PROMPT_ROWS, Shape};
use crate::upload::STAGING;
use crate::weights::{Extents, check_sizes, extents};

/// What a CUDA context with the kernels takes on current drivers, roughly: for a plan without the GPU at hand.
pub const CONTEXT_ESTIMATE: usize = 512 << 20;

/// What is left alone on a GPU that shows a display, unless told otherwise.
pub const DISPLAY_RESERVE: usize = 512 << 20;

/// The driver gives out memory in pieces of this size.
const GRANULE: usize = 2 << 20;

/// The lists of ops and other small things.
const PROGRAMS: usize = GRANULE;

/// Largest pool that is looked for, in pages.
const MOST_PAGES: usize = 1 << 20;

/// Where the embedding table lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Embedding {
    /// On the GPU if everything fits there, else in host memory.
    #[default]
    Auto,
    /// On the GPU.
    Gpu,
    /// In host memory, where the GPU reads single rows. Saves nothing where the table is also the head.
    Host,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Slots, pages, cells and drafts.
    pub backend: BackendOptions,
    /// Where the embedding table lies.
    pub embedding: Embedding,
    /// Bytes that the CUDA context takes.
    pub context: usize,
    /// Bytes that are to stay free, for a display for example.
    pub reserve: usize,
    /// Most bytes of host memory for states of prompts, and as many again for conversations without a slot.
    pub host_cache: usize,
}

impl PlanOptions {
    /// Everything on the GPU, nothing left alone, the host's memory of no interest.
    #[must_use]
    pub fn new(backend: BackendOptions) -> Self {
        Self {
            backend,
            embedding: Embedding::Gpu,
            context: CONTEXT_ESTIMATE,
            reserve: 0,
            host_cache: DEFAULT_HOST_CACHE,
        }
    }
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is for.
    pub name: &'static str,
    /// How it comes about, for people.
    pub detail: String,
    /// Bytes.
    pub bytes: usize,
}

/// Where memory goes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPlan {
    /// Device memory, every part in a fixed order.
    pub parts: Vec<Part>,
    /// Their sum.
    pub total: usize,
    /// Host memory.
    pub host: Vec<Part>,
    /// Bytes of a page of the pool.
    pub page_bytes: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// The embedding table lies in host memory.
    pub host_embedding: bool,
    /// Device memory that it was held against.
    pub available: Option<usize>,
    /// Whether that is enough.
    pub fits: Option<bool>,
    /// The largest pool, in tokens, that fits with everything else as planned; 0 if none does.
    pub largest_pool: Option<usize>,
    #[serde(skip)]
    pub(crate) shape: Shape,
    #[serde(skip)]
    pub(crate) backend: BackendOptions,
}

/// Plans the memory of `model`, on a device with so many bytes (nobody else's) if that is known.
///
/// # Errors
/// When the kernels can't run the model with these options; says why.
pub fn plan(model: &Model, options: &PlanOptions, available: Option<usize>) -> Result<MemoryPlan, String> {
    check_sizes(model, shape_drafts(options, model))?;
    let fits = |plan: &MemoryPlan| available.is_none_or(|bytes| plan.total <= bytes);
    let here = |on_host, prompt_rows| -> Result<MemoryPlan, String> {
        let shape = Shape::new(&model.config, &options.backend, prompt_rows)?;
        Ok(one(shape, options, extents(model, shape_drafts(options, model), on_host), on_host))
    };
    // The first that fits, else the smallest.
    let places = match options.embedding {
        Embedding::Auto => &[false, true][..],
        Embedding::Gpu => &[false],
        Embedding::Host => &[true],
    };
    let mut best = here(places[0], PROMPT_ROWS)?;
    for (&on_host, rows) in places.iter().flat_map(|place| [PROMPT_ROWS, FEW_PROMPT_ROWS].map(|rows| (place, rows))) {
        if fits(&best) {
            break;
        }
        let other = here(on_host, rows)?;
        if other.total < best.total {
            best = other;
        }
    }
    if let Some(bytes) = available {
        best.fits = Some(fits(&best));
        best.available = Some(bytes);
        best.largest_pool = Some(largest_pool(model, options, bytes)?);
    }
    Ok(best)
}

/// Whether the draft head is loaded.
fn shape_drafts(options: &PlanOptions, model: &Model) -> bool {
    options.backend.draft_max > 0 && model.config.has_draft_head
}

fn one(shape: Shape, options: &PlanOptions, weights: Extents, host_embedding: bool) -> MemoryPlan {
    let (pages, page_bytes, slots) = (shape.pages, shape.page_bytes(), shape.slots);
    let part = |name, bytes: usize, detail: String| Part { name, detail, bytes: bytes.next_multiple_of(GRANULE) };
    let drafts = if shape.draft_max > 0 { "draft head included" } else { "no draft head" };
    let table = if host_embedding && weights.host > 0 { ", embedding table in host memory" } else { "" };
    let matrices = weights.matrices + weights.vectors;
    let parts = vec![
        part("weights", matrices, format!("{drafts}{table}")),
        part(
            "key-value pool",
            shape.kv_bytes(),
            format!("{} tokens, {pages} pages of {page_bytes} bytes", pages * PAGE_TOKENS),
        ),
        part("recurrent state", shape.state_bytes(), format!("{slots} agents, {} bytes each", shape.slot_floats() * 4)),
        part("workspace", shape.work_bytes(), "activations, logits, step table".into()),
        part("programs", PROGRAMS, "lists of ops".into()),
        part("CUDA context", options.context, "driver and kernels".into()),
        part("reserve", options.reserve, "left alone".into()),
    ];
    let parts: Vec<Part> = parts.into_iter().filter(|part| part.bytes > 0).collect();
    let host = [
        ("embedding table", weights.host, "pinned; the GPU reads rows of it"),
        ("staging", STAGING, "pinned, while the weights are loaded"),
        ("state", shape.saved_bytes(), "pinned; one that is saved, on its way from the GPU"),
        ("snapshots", options.host_cache, "at most: states of prompts that were read"),
        ("conversations", options.host_cache, "at most: those that gave up their slot"),
    ];
    let host = host.into_iter().filter(|entry| entry.1 > 0);
    let host = host.map(|(name, bytes, detail)| Part { name, bytes, detail: detail.into() }).collect();
    MemoryPlan {
        total: parts.iter().map(|part| part.bytes).sum(),
        parts,
        host,
        page_bytes,
        pages,
        host_embedding: host_embedding && weights.host > 0,
        available: None,
        fits: None,
        largest_pool: None,
        backend: options.backend,
        shape,
    }
}

/// The largest pool that fits into `bytes`, in tokens, with the embedding table where it may be.
fn largest_pool(model: &Model, options: &PlanOptions, bytes: usize) -> Result<usize, String> {
    let on_host = options.embedding != Embedding::Gpu;
    let weights = extents(model, shape_drafts(options, model), on_host);
    let fits = |pages: usize| -> Result<bool, String> {
        let backend = BackendOptions { pages, ..options.backend };
        let shape = Shape::new(&model.config, &backend, FEW_PROMPT_ROWS)?;
        Ok(one(shape, options, weights, on_host).total <= bytes)
    };
    let (mut good, mut bad) = (0, MOST_PAGES);
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        if fits(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good * PAGE_TOKENS)
}

/// Single changes that make a plan fit, the least painful first, as settings.
///
/// # Errors
/// As [`plan`].
pub fn ways_out(model: &Model, options: &PlanOptions, available: usize) -> Result<Vec<String>, String> {
    use openjet_engine::backend::KvType;
    let fits = |options: PlanOptions| plan(model, &options, Some(available)).map(|plan| plan.fits == Some(true));
    let current = plan(model, options, Some(available))?;
    let mut ways = Vec::new();
    if options.embedding == Embedding::Gpu && fits(PlanOptions { embedding: Embedding::Host, ..*options })? {
        ways.push("embedding host".to_owned());
    }
    let with = |backend: BackendOptions| PlanOptions { backend, ..*options };
    for (kv, name) in [(KvType::Q8_0, "q8_0"), (KvType::Q4_0, "q4_0")] {
        let smaller = with(BackendOptions { kv, ..options.backend });
        if plan(model, &smaller, None)?.page_bytes < current.page_bytes && fits(smaller)? {
            ways.push(format!("kv {name}"));
        }
    }
    for slots in (1..options.backend.slots).rev() {
        if fits(with(BackendOptions { slots, ..options.backend }))? {
            ways.push(format!("agents and agents-max {slots}"));
            break;
        }
    }
    if options.backend.draft_max > 0 && fits(with(BackendOptions { draft_max: 0, ..options.backend }))? {
        ways.push("draft 0".to_owned());
    }
    if let Some(pool @ 1..) = current.largest_pool {
        ways.push(format!("ctx {pool}"));
    }
    Ok(ways)
}
