//! What a matmul's work costs on a card: predicted by compute capability.

use serde::{Deserialize, Serialize};

use crate::repack::WeightType;

/// Types of weights.
const TYPES: usize = WeightType::ALL.len();

/// Most cycles that anything is taken to cost, so that no sum of them overflows.
const MOST_CYCLES: u32 = 1 << 20;

/// What the parts of a matmul are taken to cost when they are shared out among the blocks, in cycles of an SM; only their ratios
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// The start of a part of a share: the first weights come from far, and the last products are waited for.
    pub part: u32,
    /// A tile of each type, by the type's number.
    pub tile: [u32; TYPES],
}

/// What a tile's time is taken to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The longer one.
    Both,
    /// That of memory, which brings it.
    Memory,
    /// That of the instructions, which decode it.
    Decoding,
}

/// A row of the table: of the cards with a compute capability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) capability: (i32, i32),
    /// Tenths of bytes of weights that memory brings an SM in a cycle.
    pub(crate) bytes: u32,
    /// Cycles of a part's start.
    pub(crate) part: u32,
}

/// A tile is taken to cost what memory takes for it: on the H200 the self-test found that 1.9% better than the longer of memory and
/// decoding. Only 9.0 was measured, on an H200. The others are predicted: what the memory of the card named delivers (94% of its rate, as on the
/// H200), by SMs and clock; the start of a part takes as many cycles everywhere.
const PACES: [Pace; 6] = [
    // A100
    Pace { capability: (8, 0), bytes: 126, part: PART },
    // RTX 3090
    Pace { capability: (8, 6), bytes: 63, part: PART },
    // RTX 4090
    Pace { capability: (8, 9), bytes: 30, part: PART },
    Pace { capability: (9, 0), bytes: 173, part: PART },
    // B200
    Pace { capability: (10, 0), bytes: 267, part: PART },
    // RTX 5090, RTX PRO 6000
    Pace { capability: (12, 0), bytes: 41, part: PART },
];

/// 5 us on the H200: at 24 rows an op whose blocks have one part takes that much beside its tiles, and the inputs with all their rows
/// come to shared memory in two pieces for each part.
const PART: u32 = 9900;

/// Cycles of an SM to decode a tile and multiply it by 16 rows, measured on the H200 (`examples/tuning.rs`) and taken to be the same
/// elsewhere; at 24 rows they are within a tenth of it.
const DECODING: [u32; TYPES] = {
    let mut cycles = [0; TYPES];
    cycles[WeightType::F32 as usize] = 1200;
    cycles[WeightType::F16 as usize] = 695;
    cycles[WeightType::Q4_0 as usize] = 381;
    cycles[WeightType::Q4_1 as usize] = 385;
    cycles[WeightType::Q5_0 as usize] = 452;
    cycles[WeightType::Q5_1 as usize] = 465;
    cycles[WeightType::Q8_0 as usize] = 331;
    cycles[WeightType::Q2_K as usize] = 444;
    cycles[WeightType::Q3_K as usize] = 470;
    cycles[WeightType::Q4_K as usize] = 230;
    cycles[WeightType::Q5_K as usize] = 279;
    cycles[WeightType::Q6_K as usize] = 327;
    cycles[WeightType::IQ4_NL as usize] = 476;
    cycles[WeightType::IQ4_XS as usize] = 516;
    cycles
};

impl Pace {
    /// The row of a device: that of its compute capability, else of the next lower one that there is. The emulated device has none
    /// and takes the measured one.
    pub(crate) fn of(capability: Option<(i32, i32)>) -> Self {
        let wanted = capability.unwrap_or((9, 0));
        PACES.into_iter().rev().find(|pace| pace.capability <= wanted).unwrap_or(PACES[0])
    }

    /// For people.
    pub(crate) fn name(self) -> String {
        let (major, minor) = self.capability;
        format!("the table of compute capability {major}.{minor}")
    }

    pub(crate) fn tuning(self, limit: Limit, part: u32) -> Tuning {
        let tile = WeightType::ALL.map(|ty| {
            let memory = ty.tile_bytes() as u32 * 10 / self.bytes;
            match limit {
                Limit::Both => memory.max(ty.decoding()),
                Limit::Memory => memory,
                Limit::Decoding => ty.decoding(),
            }
        });
        Tuning { part, tile }
    }
}

impl WeightType {
    const fn decoding(self) -> u32 {
        DECODING[self as usize]
    }
}

impl Tuning {
    /// The table's.
    #[must_use]
    pub fn built_in(capability: Option<(i32, i32)>) -> Self {
        let pace = Pace::of(capability);
        pace.tuning(Limit::Memory, pace.part)
    }

    pub(crate) fn tile(&self, ty: WeightType) -> u64 {
        u64::from(self.tile[ty as usize])
    }

    /// Whether every cost is one that something can have.
    pub(crate) fn is_sane(&self) -> bool {
        self.part <= MOST_CYCLES && self.tile.iter().all(|&cost| (1..=MOST_CYCLES).contains(&cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_takes_the_row_of_its_capability_or_the_next_lower() {
        for (capability, row) in
            [((8, 0), (8, 0)), ((8, 7), (8, 6)), ((9, 0), (9, 0)), ((10, 3), (10, 0)), ((12, 1), (12, 0))]
        {
            assert_eq!(Pace::of(Some(capability)).capability, row);
        }
        assert_eq!(Pace::of(Some((7, 5))).capability, (8, 0));
        assert_eq!(Pace::of(None).capability, (9, 0));
    }

    #[test]
    fn every_row_is_sane_and_costs_grow_with_what_limits() {
        for pace in PACES {
            let of = |limit| pace.tuning(limit, pace.part);
            let (both, memory, decoding) = (of(Limit::Both), of(Limit::Memory), of(Limit::Decoding));
            assert!([both, memory, decoding].iter().all(Tuning::is_sane), "{pace:?}");
            for ty in WeightType::ALL {
                assert_eq!(both.tile(ty), memory.tile(ty).max(decoding.tile(ty)));
            }
        }
        // Where memory is slow for the SMs there are, bytes alone count.
        let slow = Pace::of(Some((8, 9)));
        assert_eq!(slow.tuning(Limit::Both, 0), slow.tuning(Limit::Memory, 0));
    }
}
