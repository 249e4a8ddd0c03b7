//! The library that the C tests run on.

use crate::{
    process,
    product::{self, Variant},
    test::cargo,
    tools,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const FILE: &str = if cfg!(target_os = "macos") { "libmlxgen.dylib" } else { "libmlxgen.so" };

/// How the tests are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// On the library with the fake back end.
    Plain,
    /// The same under valgrind.
    Valgrind,
    /// On a library with the fake back end that was built with AddressSanitizer.
    Address,
    /// The same with ThreadSanitizer.
    Thread,
    /// On the library that is shipped.
    Real,
}

impl Setting {
    pub const ALL: [Setting; 5] =
        [Setting::Plain, Setting::Valgrind, Setting::Address, Setting::Thread, Setting::Real];

    pub fn name(self) -> &'static str {
        match self {
            Setting::Plain => "plain",
            Setting::Valgrind => "valgrind",
            Setting::Address => "address",
            Setting::Thread => "thread",
            Setting::Real => "real",
        }
    }

    pub fn from_name(name: &str) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// The name that rustc and gcc give the sanitizer, and the stem of rustc's run-time library.
    pub fn sanitizer(self) -> Option<(&'static str, &'static str)> {
        match self {
            Setting::Address => Some(("address", "asan")),
            Setting::Thread => Some(("thread", "tsan")),
            _ => None,
        }
    }

    /// There is no valgrind for macOS on ARM, and what the sanitizers look at is the same code everywhere.
    pub fn works_here(self) -> bool {
        cfg!(target_os = "linux") || matches!(self, Setting::Plain | Setting::Real)
    }

    pub fn is_fake(self) -> bool {
        self != Setting::Real
    }
}

/// What a test is linked with.
pub struct Library {
    pub file: PathBuf,
    /// Further arguments for the linker of the programs.
    pub link: Vec<String>,
}

pub fn build(root: &Path, setting: Setting) -> Result<Library> {
    if let Some((sanitizer, runtime)) = setting.sanitizer() {
        return sanitized(root, sanitizer, runtime);
    }
    if setting == Setting::Valgrind {
        tools::require(&[&tools::VALGRIND])?;
    }
    let variant = Variant { fake: setting.is_fake(), debug: setting.is_fake() };
    product::build(root, variant)?;
    Ok(Library { file: variant.folder(root).join("lib").join(FILE), link: Vec::new() })
}

/// One folder for all that is built with sanitizers, so that the other crates are built once.
pub const SANITIZED: &str = "target/sanitize";

/// They need no optimisation there.
pub const OTHERS_UNOPTIMISED: [&str; 4] = [
    "--config",
    "profile.dev.package.\"*\".opt-level=0",
    "--config",
    "profile.dev.package.tokenizers.opt-level=0",
];

/// Crates that threads meet in. ThreadSanitizer has to see their atomics; what other crates do is safe Rust, and
/// what they allocate is checked wherever they come from.
const MEETING_PLACES: [&str; 4] = ["parking_lot", "parking_lot_core", "lock_api", "crossbeam-channel"];

/// Builds the Rust code itself with a sanitizer: the stable compiler can, when told that it may. Its run-time
/// library must be in the program, not in the shared library.
fn sanitized(root: &Path, sanitizer: &str, runtime: &str) -> Result<Library> {
    let folder = root.join(SANITIZED);
    let flags = sanitizer_flags(sanitizer);
    let mut cargo = cargo(root);
    cargo.args(["rustc", "--quiet", "--locked", "--package", "mlxgen", "--lib", "--crate-type", "cdylib"]);
    cargo.args(["--no-default-features", "--features", "fake", "--target-dir"]).arg(&folder);
    cargo.args(OTHERS_UNOPTIMISED);
    if sanitizer == "thread" {
        cargo.arg("-Zprofile-rustflags");
        for package in MEETING_PLACES {
            cargo.arg("--config").arg(format!("profile.dev.package.{package}.rustflags={flags:?}"));
        }
    }
    cargo.arg("--").args(&flags).args(["-C", "link-arg=-Wl,-z,nodelete"]).env("RUSTC_BOOTSTRAP", "1");
    process::visible(&mut cargo)?;
    let file = folder.join(sanitizer).with_extension("so");
    fs::copy(folder.join("debug/libmlxgen.so"), &file)?;

    // Without this check a flag that is no longer understood would make the test empty.
    let symbols = process::output(Command::new("nm").args(["-D", "--undefined-only"]).arg(&file))?;
    let hook = format!("__{runtime}_");
    ensure!(symbols.contains(&hook), "{} was not built with the sanitizer: no {hook}*", file.display());

    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib").join(host()?).join("lib");
    let archive = fs::read_dir(&libraries)
        .with_context(|| format!("cannot read {}", libraries.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(&format!("_rt.{runtime}.a")))
        .with_context(|| format!("rustc has no run-time library for the {sanitizer} sanitizer"))?;
    let link = ["-Wl,--whole-archive", &archive.to_string_lossy(), "-Wl,--no-whole-archive", "-rdynamic"]
        .into_iter()
        .chain(["-ldl", "-lrt", "-lm", "-lpthread"])
        .map(str::to_owned)
        .collect();
    Ok(Library { file, link })
}

/// What tells rustc to build one crate with a sanitizer and the others without.
pub fn sanitizer_flags(sanitizer: &str) -> [String; 3] {
    [
        format!("-Zsanitizer={sanitizer}"),
        "-Cunsafe-allow-abi-mismatch=sanitizer".into(),
        // Else generic code comes from crates that have compiled it before, without the sanitizer.
        "-Zshare-generics=no".into(),
    ]
}

fn host() -> Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say its host")?.to_owned())
}
