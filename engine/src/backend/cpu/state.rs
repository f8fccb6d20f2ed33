//! Recurrent state of the slots, and what a step keeps of its rows so that the state can follow what was accepted.

use crate::backend::StateImage;
use crate::model::ModelConfig;

/// One conversation's state.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Tokens consumed.
    pub(super) consumed: u32,
    /// One for each `DeltaNet` layer, in order.
    pub(super) layers: Vec<LayerState>,
    /// The trunk's last hidden state, which the draft head's next cell needs.
    pub(super) pending: Vec<f32>,
}

/// State of one `DeltaNet` layer.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    /// value heads x value dimensions x key dimensions.
    pub(super) memory: Vec<f32>,
    /// The last `taps - 1` inputs of the convolution, oldest first: (taps - 1) x channels.
    pub(super) inputs: Vec<f32>,
}

impl Slot {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let layer = || LayerState {
            memory: vec![0.0; config.value_heads * config.state_dim * config.state_dim],
            inputs: vec![0.0; (config.conv_taps - 1) * config.conv_channels()],
        };
        Self {
            consumed: 0,
            layers: config.recurrent.iter().filter(|&&r| r).map(|_| layer()).collect(),
            pending: vec![0.0; config.hidden],
        }
    }

    /// Back to an empty conversation, in place.
    pub(super) fn reset(&mut self) {
        self.consumed = 0;
        for vector in self.vectors_mut() {
            vector.fill(0.0);
        }
    }

    fn vectors_mut(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        let layers = self.layers.iter_mut().flat_map(|l| [&mut l.memory, &mut l.inputs]);
        layers.chain(std::iter::once(&mut self.pending))
    }

    /// `consumed`, then every vector's bytes.
    pub(super) fn save(&mut self) -> StateImage {
        let mut bytes = self.consumed.to_le_bytes().to_vec();
        for vector in self.vectors_mut() {
            bytes.extend_from_slice(bytemuck::cast_slice(vector));
        }
        StateImage::new(bytes)
    }

    /// Bytes of a saved slot.
    pub(super) fn saved_bytes(&mut self) -> usize {
        4 + self.vectors_mut().map(|v| 4 * v.len()).sum::<usize>()
    }

    /// Takes over a saved state; the image must be [`Self::saved_bytes`] long.
    pub(super) fn load(&mut self, image: &[u8]) {
        let (head, mut rest) = image.split_at(4);
        self.consumed = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        for vector in self.vectors_mut() {
            let (bytes, after) = rest.split_at(4 * vector.len());
            bytemuck::cast_slice_mut(vector).copy_from_slice(bytes);
            rest = after;
        }
    }
}

/// What one `DeltaNet` layer computed of a step's rows, for replay.
#[derive(Debug, Default)]
pub(super) struct LayerRows {
    /// Inputs of the convolution: rows x channels.
    pub(super) inputs: Vec<f32>,
    /// Normalised queries: rows x key heads x dimensions.
    pub(super) q: Vec<f32>,
    /// Normalised keys: rows x key heads x dimensions.
    pub(super) k: Vec<f32>,
    /// Values: rows x value heads x dimensions.
    pub(super) v: Vec<f32>,
    /// Logarithm of the decay: rows x value heads.
    pub(super) log_decay: Vec<f32>,
    /// Write strength: rows x value heads.
    pub(super) beta: Vec<f32>,
}
