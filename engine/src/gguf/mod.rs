//! GGUF version 3: a checked, mapped view of a model file.
