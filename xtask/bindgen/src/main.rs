//! Writes the JavaScript that loads a .wasm file, and the .wasm file that it loads. A program of its own, so that
//! `cargo xtask` itself compiles fast.
//!
//! `xtask-bindgen INPUT.wasm FOLDER`

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder] = &args[..] else { bail!("usage: xtask-bindgen INPUT.wasm FOLDER") };
    let mut bindgen = wasm_bindgen_cli_support::Bindgen::new();
    bindgen.input_path(input).out_name("page").typescript(false).omit_default_module_path(false);
    // A quarter of what a browser would load are names of functions, for debuggers.
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen.web(true)?.generate(folder).with_context(|| format!("can't make {input} ready for a browser"))
}
