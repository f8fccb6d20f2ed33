#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const TINY: &[u8] = include_bytes!("../../../assets/openjet-tiny-Q4_K_M.gguf");

#[test]
fn the_small_model_can_be_asked() {
    let file = GgufFile::from_bytes("tiny", TINY).unwrap();
    assert_eq!(file.get::<&str>("general.architecture").unwrap(), "qwen35");
    assert_eq!(file.get::<u32>("qwen35.block_count").unwrap(), 9);
    assert_eq!(file.get::<f32>("qwen35.rope.freq_base").unwrap(), 1e7);
    assert_eq!(file.get::<Vec<i32>>("qwen35.rope.dimension_sections").unwrap(), [11, 11, 10, 0]);
    assert_eq!(file.get::<Vec<&str>>("tokenizer.ggml.tokens").unwrap().len(), 8192);
    assert_eq!(file.get::<Vec<bool>>("qwen35.attention.recurrent_layers").unwrap()[2..4], [true, false]);
    assert_eq!(file.get_opt::<bool>("tokenizer.ggml.add_bos_token").unwrap(), None);
    assert_eq!(file.tensors().len(), 124);
    let tensor = file.tensor("blk.0.ssm_conv1d.weight").unwrap();
    assert_eq!((tensor.shape(), tensor.ty), (&[4, 1280][..], StoredType::Known(TensorType::F32)));
    assert_eq!(tensor.bytes.len(), 4 * 4 * 1280);

    let error = file.get::<u32>("general.name").unwrap_err().to_string();
    assert_eq!(error, "tiny: key \"general.name\" is a string of 12 bytes, expected an integer from 0 to 4294967295");
    let error = file.get::<&str>("general.nothing").unwrap_err().to_string();
    assert_eq!(error, "tiny: key \"general.nothing\" is missing, expected a string");
}

#[test]
fn a_mapped_file_is_the_same() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/openjet-tiny-Q4_K_M.gguf");
    let mapped = GgufFile::open(&path).unwrap();
    assert_eq!(mapped.tensors(), GgufFile::from_bytes("tiny", TINY).unwrap().tensors());
    assert!(mapped.bytes() == TINY);
}
