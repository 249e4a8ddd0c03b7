//! mlx-c, compiled from the sources that the mlx-sys crate carries.

use crate::process;
use anyhow::{Context, Result};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// For compilers without std::format.
pub const SHIM: &str = include_str!("std_format.h");

/// Where the mlx-sys crate of `Cargo.lock` has its mlx-c.
pub fn sources(root: &Path) -> Result<PathBuf> {
    let metadata = process::output(
        Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["metadata", "--locked", "--format-version", "1"])
            .current_dir(root),
    )?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "mlx-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .and_then(|manifest| Path::new(manifest).parent())
        .map(|crate_root| crate_root.join("src/mlx-c"))
        .context("cargo knows no package mlx-sys")
}

/// Compiles `libmlxc.a` into `out`.
pub fn compile(sources: &Path, mlx_include: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    let shim = out.join("std_format.h");
    fs::write(&shim, SHIM)?;
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut files =
        fs::read_dir(sources.join("mlx/c"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    files.sort();

    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .pic(true)
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .cargo_metadata(false)
        .target(&target)
        .host(&target)
        .out_dir(out)
        .include(sources)
        .include(mlx_include)
        .flag("-include")
        .flag(&shim)
        .files(files)
        .try_compile("mlxc")?;
    Ok(())
}
