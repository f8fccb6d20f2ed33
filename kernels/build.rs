//! Compiles the device code to one fatbin, if nvcc is found; without it the crate is built without CUDA and says so.
//!
//! nvcc is looked for in `$OPENJET_NVCC`, `.tools/cuda` (where `cargo xtask setup nvcc` puts it), `$CUDA_HOME` and `$PATH`.
//! `$OPENJET_CUDA_ARCHS` restricts the architectures (`90a` or `80,86`) for quick builds, or is `none` to leave CUDA out;
//! `$OPENJET_RACECHECK` being `1` makes code that compute-sanitizer's racecheck can follow, a little slower. The
//! registers and spills of every kernel and function are written to `$OUT_DIR/kernels.txt`; spills beyond what a call saves
//! fail the build.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHS: &str = "80,86,89,90a,100,120";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cuda");
    for name in ["OPENJET_NVCC", "OPENJET_CUDA_ARCHS", "OPENJET_RACECHECK", "CUDA_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rustc-check-cfg=cfg(has_fatbin)");
    println!("cargo:rustc-check-cfg=cfg(has_host_device)");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    if env::var_os("CARGO_FEATURE_HOST_DEVICE").is_some() && env::var("CARGO_CFG_TARGET_ARCH")? == "x86_64" {
        build_host_device();
    }
    if env::var("OPENJET_CUDA_ARCHS").is_ok_and(|archs| archs == "none") {
        return Ok(());
    }
    match find_nvcc()? {
        Some(nvcc) => build_fatbin(&nvcc, &out),
        None => {
            println!(
                "cargo:warning=no nvcc found: built without CUDA (run `cargo xtask setup nvcc`, or set OPENJET_NVCC)"
            );
            Ok(())
        }
    }
}

/// The device code as C++, for tests on the CPU.
fn build_host_device() {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("OPENJET_HOST", None)
        .include("cuda")
        .file("cuda/host/fibre.cpp")
        .file("cuda/host/module.cpp")
        .flag("-mf16c")
        .flag("-mfma")
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas")
        .flag("-Wno-unused-parameter")
        .flag("-Wno-unused-function")
        .flag("-Wno-maybe-uninitialized")
        .opt_level(2)
        .compile("openjet_host_device");
    println!("cargo:rustc-cfg=has_host_device");
}

fn find_nvcc() -> Result<Option<PathBuf>, Box<dyn Error>> {
    if let Some(path) = env::var_os("OPENJET_NVCC") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(Some(path))
        } else {
            Err(format!("OPENJET_NVCC: no file {}", path.display()).into())
        };
    }
    let tools = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../.tools/cuda/lib");
    let fetched = fs::read_dir(tools).into_iter().flatten().flatten();
    let fetched = fetched.map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc"));
    let home = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::split_paths(&path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>();
    Ok(fetched.chain(home).chain(path).find(|nvcc| nvcc.is_file()))
}

fn build_fatbin(nvcc: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let archs = env::var("OPENJET_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.into());
    let fatbin = out.join("openjet.fatbin");
    let mut command = Command::new(nvcc);
    command.args([
        "-fatbin",
        "-O3",
        "-std=c++17",
        "-Xptxas",
        "-v",
        "--threads",
        "2",
        "-fmad=false",
        "-diag-suppress=177",
        "-o",
    ]);
    command.arg(&fatbin).arg("cuda/openjet.cu");
    if env::var_os("OPENJET_RACECHECK").as_deref() == Some(OsStr::new("1")) {
        command.arg("-DOPENJET_RACECHECK");
    }
    let mut lowest = u32::MAX;
    for arch in archs.split(',').map(str::trim) {
        command.arg("-gencode").arg(format!("arch=compute_{arch},code=sm_{arch}"));
        lowest = lowest.min(arch.trim_end_matches(char::is_alphabetic).parse::<u32>()?);
    }
    // Cards that came after this list compile the oldest architecture's code at start. Code for 90a has no such form.
    if archs.split(',').any(|arch| arch.trim() == lowest.to_string()) {
        command.arg("-gencode").arg(format!("arch=compute_{lowest},code=compute_{lowest}"));
    }
    let log = compile(&mut command, &fatbin, out)?;
    let report = report(&log);
    fs::write(out.join("kernels.txt"), &report)?;
    fs::write(out.join("nvcc.log"), log.as_bytes())?;
    let spills = report.lines().filter(|line| spills(line)).collect::<Vec<_>>();
    if !spills.is_empty() && env::var_os("OPENJET_ALLOW_SPILLS").as_deref() != Some(OsStr::new("1")) {
        return Err(format!("kernels spill registers:\n{}", spills.join("\n")).into());
    }
    println!("cargo:rustc-cfg=has_fatbin");
    println!("cargo:rustc-env=OPENJET_CUDA_ARCHS_BUILT={archs}");
    Ok(())
}

/// Runs nvcc and returns what it says of each kernel. Cargo runs this script once for each profile and set of features,
/// and nvcc takes minutes: what it made of the same sources and flags is kept in the target folder and used again.
fn compile(command: &mut Command, fatbin: &Path, out: &Path) -> Result<String, Box<dyn Error>> {
    let mut key = DefaultHasher::new();
    let flags = command.get_args().filter(|arg| *arg != fatbin.as_os_str());
    flags.chain([command.get_program()]).for_each(|word| word.hash(&mut key));
    hash_folder(Path::new("cuda"), &mut key)?;
    // OUT_DIR is target/PROFILE/build/CRATE/out.
    let target = out.ancestors().nth(4).ok_or("OUT_DIR is not inside a target folder")?;
    let kept = target.join("openjet-fatbin").join(format!("{:016x}", key.finish()));
    if let Ok(log) = fs::read_to_string(kept.join("nvcc.log")) {
        fs::copy(kept.join("openjet.fatbin"), fatbin)?;
        return Ok(log);
    }
    let done = command.output()?;
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stdout);
        return Err(format!("{} failed:\n{log}{said}", command.get_program().display()).into());
    }
    fs::create_dir_all(&kept)?;
    fs::copy(fatbin, kept.join("openjet.fatbin"))?;
    // Written last: it tells that the fatbin is whole.
    fs::write(kept.join("nvcc.log"), &log)?;
    Ok(log)
}

/// Hashes the names and contents of all files in `folder`.
fn hash_folder(folder: &Path, key: &mut DefaultHasher) -> Result<(), Box<dyn Error>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    paths.sort();
    for path in paths {
        path.hash(key);
        if path.is_dir() {
            hash_folder(&path, key)?;
        } else {
            fs::read(&path)?.hash(key);
        }
    }
    Ok(())
}

/// Bytes that a function may store: functions save the registers of their caller once a call, which counts as spilling.
const SPILL_LIMIT: u64 = 512;

/// One line a kernel or function and architecture from ptxas's words.
fn report(log: &str) -> String {
    let mut lines = String::new();
    let (mut arch, mut name) = (String::new(), String::new());
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            arch = rest.split("' for '").nth(1).unwrap_or_default().trim_end_matches('\'').to_owned();
        } else if let Some(rest) = line.split("Function properties for ").nth(1) {
            name = rest.trim().to_owned();
        } else if line.contains("bytes spill stores") {
            lines += &format!("{arch} {name}: {}\n", line.trim());
        } else if let Some(rest) = line.split("Used ").nth(1) {
            lines += &format!("{arch}: {rest}\n");
        }
    }
    lines
}

/// Whether a line of the report tells of more spilling than calls explain.
fn spills(line: &str) -> bool {
    let stores = line.split(',').find(|part| part.contains("spill stores"));
    let bytes = stores.and_then(|part| part.split_whitespace().next()?.parse::<u64>().ok());
    bytes.is_some_and(|bytes| bytes > SPILL_LIMIT)
}
