//! Memory of well-known cards.

/// Name as on the command line, MiB as the driver reports them.
pub(crate) const CARDS: [(&str, u64); 22] = [
    ("3060", 12_288),
    ("4070", 12_282),
    ("4080", 16_376),
    ("4060ti-16gb", 16_380),
    ("4070ti-super", 16_376),
    ("5060ti-16gb", 16_311),
    ("5070ti", 16_303),
    ("5080", 16_303),
    ("a4000", 16_376),
    ("l4", 23_034),
    ("3090", 24_576),
    ("4090", 24_564),
    ("a5000", 24_564),
    ("5090", 32_607),
    ("a100-40gb", 40_960),
    ("l40s", 46_068),
    ("a6000", 49_140),
    ("6000ada", 49_140),
    ("a100-80gb", 81_920),
    ("h100", 81_559),
    ("pro6000", 97_887),
    ("h200", 143_771),
];

/// Bytes of the card of this name.
pub(crate) fn memory(name: &str) -> Option<u64> {
    CARDS.iter().find(|card| card.0 == name).map(|card| card.1 << 20)
}
