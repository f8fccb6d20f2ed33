//! The CUDA compiler, from NVIDIA's packages on PyPI; no GPU and no driver needed.

use super::python;
use crate::env;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// One release of the compiler and its parts.
const PACKAGES: &str = "nvidia-cuda-nvcc==13.0.88
nvidia-nvvm==13.0.88
nvidia-cuda-crt==13.0.88
nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85
nvidia-cuda-cuobjdump==13.2.86
nvidia-cuda-nvdisasm==13.2.86
";

/// Installs nvcc under `.tools/cuda`; returns the program.
pub(crate) fn install() -> Result<PathBuf> {
    let had = find().is_some();
    python::venv("cuda", PACKAGES)?;
    let nvcc = find().context("nvcc is not where its package should put it: remove .tools/cuda and try again")?;
    if !had {
        // Cargo can't watch for a file that isn't there yet: without this it would keep a build without CUDA.
        let script = env::root().join("kernels/build.rs");
        if script.exists() {
            fs::File::options().append(true).open(script)?.set_modified(SystemTime::now())?;
        }
    }
    Ok(nvcc)
}

/// The nvcc under `.tools/cuda`.
pub(crate) fn find() -> Option<PathBuf> {
    let lib = env::tools().join("cuda/lib");
    let mut pythons = fs::read_dir(lib).ok()?.flatten();
    pythons.find_map(|python| {
        let nvcc = python.path().join("site-packages/nvidia/cu13/bin/nvcc");
        nvcc.is_file().then_some(nvcc)
    })
}
