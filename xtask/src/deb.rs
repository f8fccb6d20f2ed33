//! `cargo xtask deb`: the Debian package.

use crate::{env, setup, sh, web};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Options of `deb`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The programs that go into it.
    #[arg(long, value_enum, default_value = "release")]
    pub(crate) profile: Profile,
    /// Its version; the workspace's if not given.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    pub(crate) version: String,
    /// Have it checked by lintian.
    #[arg(long)]
    pub(crate) lint: bool,
}

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// For users: optimized, with the page and the code for GPUs, packed small.
    Release,
    /// For tests: what they have built already, packed fast.
    Dev,
}

/// A file as it is, where it goes, and its mode.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/openjet.service", "usr/lib/systemd/system/openjet.service", 0o644),
    ("packaging/openjet.socket", "usr/lib/systemd/system/openjet.socket", 0o644),
    ("packaging/openjet-control.socket", "usr/lib/systemd/system/openjet-control.socket", 0o644),
    ("packaging/openjet-suspend.service", "usr/lib/systemd/system/openjet-suspend.service", 0o644),
    ("packaging/openjet.sysusers", "usr/lib/sysusers.d/openjet.conf", 0o644),
    ("packaging/openjet.tmpfiles", "usr/lib/tmpfiles.d/openjet.conf", 0o644),
    ("packaging/openjet.toml", "etc/openjet/openjet.toml", 0o644),
    ("packaging/debian/copyright", "usr/share/doc/openjet/copyright", 0o644),
    ("packaging/debian/lintian-overrides", "usr/share/lintian/overrides/openjet", 0o644),
    ("packaging/debian/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/debian/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/debian/postrm", "DEBIAN/postrm", 0o755),
];

/// Where shells look for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/openjetctl"),
    ("zsh", "usr/share/zsh/vendor-completions/_openjetctl"),
    ("fish", "usr/share/fish/vendor_completions.d/openjetctl.fish"),
];

/// Builds the package and says where it is.
pub(crate) fn run(args: &Args) -> Result<()> {
    let package = build(args)?;
    println!("{}", package.display());
    if args.lint {
        if env::find("lintian").is_none() {
            setup::apt::install(&["lintian"], "a check of the package")?;
        }
        sh::run(sh::cmd("lintian").args(["--fail-on", "error,warning", "--info"]).arg(&package))?;
    }
    Ok(())
}

/// Builds the package; returns its file.
pub(crate) fn build(args: &Args) -> Result<PathBuf> {
    let programs = programs(args.profile)?;
    let folder = env::target().join("deb");
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("{} can't be emptied", root.display()))?;
    }
    for program in ["openjetd", "openjetctl"] {
        let place = root.join("usr/bin").join(program);
        place_file(&programs.join(program), &place, 0o755)?;
        sh::run(sh::cmd("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(&place))?;
    }
    for (source, place, mode) in FILES {
        place_file(&env::root().join(source), &root.join(place), *mode)?;
    }
    write(&root.join("DEBIAN/conffiles"), "/etc/openjet/openjet.toml\n")?;
    documents(&root, &programs, &args.version)?;
    control(&folder, &root, &args.version)?;

    let package = folder.join(format!("openjet_{}_{}.deb", args.version, architecture()?));
    let packing: &[&str] = if args.profile == Profile::Release { &["-Zxz"] } else { &["-Zgzip", "-z1"] };
    let mut pack = sh::cmd("dpkg-deb");
    pack.args(["--root-owner-group", "--build"]).args(packing).arg(&root).arg(&package);
    // The same files give the same package.
    pack.env("SOURCE_DATE_EPOCH", commit_time("%ct"));
    sh::capture(&mut pack)?;
    Ok(package)
}

/// Builds the programs; returns their folder.
fn programs(profile: Profile) -> Result<PathBuf> {
    if profile == Profile::Dev {
        sh::capture(&mut dev_build())?;
        return Ok(env::target().join("debug"));
    }
    if std::env::var_os("OPENJET_CUDA_ARCHS").is_none_or(|archs| archs != "none") {
        setup::nvcc::install().context("a package without the code for GPUs is made with OPENJET_CUDA_ARCHS=none")?;
    }
    web::build()?;
    sh::run(sh::cargo().args(["build", "--release", "--locked", "--package", "openjetd", "--package", "openjetctl"]))?;
    Ok(env::target().join("release"))
}

/// The build of the programs that tests start: with devices that can be made to fail.
pub(crate) fn dev_build() -> std::process::Command {
    let mut build = sh::cargo();
    build.args([
        "build",
        "--locked",
        "--package",
        "openjetd",
        "--package",
        "openjetctl",
        "--features",
        "openjetd/emulated",
    ]);
    build
}

/// Manual pages, completions and the list of changes.
fn documents(root: &Path, programs: &Path, version: &str) -> Result<()> {
    let openjetctl = programs.join("openjetctl");
    let pages = root.join("usr/share/man/man1");
    sh::capture(sh::cmd(&openjetctl).arg("man").arg(&pages))?;
    write(&root.join("usr/share/man/man8/openjetd.8"), &sh::capture(sh::cmd(programs.join("openjetd")).arg("--man"))?)?;
    for (shell, place) in COMPLETIONS {
        write(&root.join(place), &sh::capture(sh::cmd(&openjetctl).args(["completions", shell]))?)?;
    }
    let changes = format!(
        "openjet ({version}) unstable; urgency=medium\n\n  * The changes of each version are in CHANGELOG.md of the source.\n\n \
         -- OpenJet maintainers <openjet@users.noreply.github.com>  {}\n",
        commit_time("%cD")
    );
    write(&root.join("usr/share/doc/openjet/changelog"), &changes)?;
    let mut compress = sh::cmd("gzip");
    compress
        .args(["-9n", "--recursive"])
        .arg(root.join("usr/share/man"))
        .arg(root.join("usr/share/doc/openjet/changelog"));
    sh::run(&mut compress)
}

/// What dpkg reads.
fn control(folder: &Path, root: &Path, version: &str) -> Result<()> {
    let sums = "find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums && du -sk usr etc | cut -f1";
    let sizes = sh::capture(sh::cmd("sh").args(["-c", sums]).current_dir(root))?;
    let kilobytes: u64 = sizes.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
    let template = fs::read_to_string(env::root().join("packaging/debian/control"))?;
    let filled = template
        .replace("{version}", version)
        .replace("{architecture}", &architecture()?)
        .replace("{kilobytes}", &kilobytes.to_string())
        .replace("{libraries}", &libraries(folder, root)?);
    write(&root.join("DEBIAN/control"), &filled)
}

/// The packages whose libraries the programs are linked with.
fn libraries(folder: &Path, root: &Path) -> Result<String> {
    // The program insists on a source package around it.
    write(&folder.join("debian/control"), "Source: openjet\n\nPackage: openjet\nArchitecture: any\n")?;
    let mut find = sh::cmd("dpkg-shlibdeps");
    find.current_dir(folder)
        .arg("-O")
        .args(["openjetd", "openjetctl"].map(|program| root.join("usr/bin").join(program)));
    let found = sh::capture(&mut find).context("the Debian package dpkg-dev has the program that finds them")?;
    match found.trim().strip_prefix("shlibs:Depends=") {
        Some(list) => Ok(list.to_owned()),
        None => bail!("dpkg-shlibdeps said: {found}"),
    }
}

fn architecture() -> Result<String> {
    Ok(sh::capture(sh::cmd("dpkg").arg("--print-architecture"))?.trim().to_owned())
}

/// When the checkout was committed, in a form that git knows; now where there is no git.
fn commit_time(form: &str) -> String {
    let git = sh::capture(sh::cmd("git").args(["log", "-1"]).arg(format!("--format={form}")));
    let date = || sh::capture(sh::cmd("date").arg(if form == "%ct" { "+%s" } else { "-R" }));
    git.or_else(|_| date()).unwrap_or_default().trim().to_owned()
}

fn place_file(source: &Path, place: &Path, mode: u32) -> Result<()> {
    let shown = || format!("{} can't be put to {}", source.display(), place.display());
    fs::create_dir_all(place.parent().unwrap_or(place)).with_context(shown)?;
    fs::copy(source, place).with_context(shown)?;
    fs::set_permissions(place, fs::Permissions::from_mode(mode)).with_context(shown)
}

fn write(place: &Path, text: &str) -> Result<()> {
    let shown = || format!("{} can't be written", place.display());
    fs::create_dir_all(place.parent().unwrap_or(place)).with_context(shown)?;
    fs::write(place, text).with_context(shown)?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o644)).with_context(shown)
}
