//! The Rust declarations of mlx-c, made as mlx-sys's own build script makes them.

use crate::process;
use anyhow::{Context, Result};
use std::{env, fs, path::Path, process::Command};

/// Runs [`generate`] in a process of its own, because libclang is found through the environment.
pub fn generate_with(libclang: &Path, headers: &Path, out: &Path) -> Result<()> {
    process::quiet(
        Command::new(env::current_exe()?)
            .env("LIBCLANG_PATH", libclang)
            .arg("native-bindings")
            .args([headers, out]),
    )
}

/// Writes the declarations of all headers in `mlxc/mlx/c` to the file `out`.
pub fn generate(mlxc: &Path, out: &Path) -> Result<()> {
    let folder = mlxc.join("mlx/c");
    let mut headers = fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();

    // The libclang of the Python registry comes without the headers that belong to a compiler.
    let compiler_headers = process::output(Command::new("cc").arg("-print-file-name=include"))?;
    let mut builder = bindgen::Builder::default()
        .rust_target("1.73.0".parse().expect("a Rust version"))
        .blocklist_function("malloc")
        .blocklist_function("realloc")
        .clang_arg(format!("-I{}", mlxc.display()))
        .clang_args(["-isystem", compiler_headers.trim()]);
    for header in headers {
        builder = builder.header(header.to_string_lossy());
    }
    builder.generate()?.write_to_file(out)?;
    Ok(())
}
