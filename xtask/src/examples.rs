//! The C examples, built against the laid-out library as a user builds them; `cargo xtask demo`.

use crate::{
    process,
    product::{self, Variant},
    smollm2, tools,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const QUESTION: &str = "What is the capital of France?";

/// Builds `examples/c` with its Makefile and returns the folder of the programs.
pub fn build(root: &Path) -> Result<PathBuf> {
    tools::require(&[&tools::MAKE])?;
    let programs = root.join("target/examples/c");
    process::quiet(
        Command::new("make")
            .arg("-C")
            .arg(root.join("examples/c"))
            .arg(format!("MLXGEN={}", Variant::default().folder(root).display()))
            .arg(format!("BUILD={}", programs.display()))
            // Variables given to a make that called us are not meant for this one.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKEOVERRIDES"),
    )?;
    Ok(programs)
}

/// Sets everything up and streams an answer. `MODEL` (a folder or a .gguf file) and `PROMPT` in the environment
/// take the place of SmolLM2 and its question.
pub fn demo(root: &Path) -> Result<()> {
    let given = |name| env::var_os(name).filter(|value| !value.is_empty());
    let model = match given("MODEL") {
        Some(model) => PathBuf::from(model),
        None => smollm2::file(root)?,
    };
    product::build(root, Variant::default())?;
    let chat = build(root)?.join("chat");
    eprintln!();
    process::visible(Command::new(chat).arg(model).arg(given("PROMPT").unwrap_or(QUESTION.into())))
}

/// Runs the examples, built each way that they offer, on the real model: each must name Paris and say nothing
/// else anywhere.
pub fn check(root: &Path) -> Result<()> {
    tools::require(&[&tools::CMAKE, &tools::PKG_CONFIG])?;
    let model = smollm2::file(root)?;
    let made = [build(root)?, build_with_cmake(root)?];
    for folder in made {
        let chat = process::output_only(Command::new(folder.join("chat")).arg(&model).arg(QUESTION))?;
        ensure!(chat.contains("Paris"), "chat answers: {chat}");
        let minimal = process::output_only(Command::new(folder.join("minimal")).arg(&model))?;
        ensure!(minimal.contains("Paris"), "minimal answers: {minimal}");
    }
    Ok(())
}

fn build_with_cmake(root: &Path) -> Result<PathBuf> {
    let programs = root.join("target/examples/c-cmake");
    process::quiet(
        Command::new("cmake")
            .arg("-S")
            .arg(root.join("examples/c"))
            .arg("-B")
            .arg(&programs)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", Variant::default().folder(root).display())),
    )?;
    process::quiet(Command::new("cmake").arg("--build").arg(&programs))?;
    Ok(programs)
}

/// The laid-out folder can be moved: a program is built against a copy, the copy gets another name, and the
/// program still runs, from any folder, with every library of ours from the new place.
pub fn check_moved(root: &Path) -> Result<()> {
    tools::require(&[&tools::PKG_CONFIG])?;
    let model = smollm2::file(root)?;
    let place = root.join("target/moved");
    let (before, after) = (place.join("before"), place.join("a folder with spaces"));
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    process::quiet(Command::new("cp").arg("-a").arg(Variant::default().folder(root)).arg(&before))?;
    let flags = process::output(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "mlxgen"])
            .env("PKG_CONFIG_PATH", before.join("lib/pkgconfig")),
    )?;
    let own_place = if cfg!(target_os = "macos") { "@executable_path" } else { "$ORIGIN" };
    process::quiet(
        Command::new("cc")
            .arg(root.join("examples/c/minimal.c"))
            .args(flags.split_whitespace())
            .arg(format!("-Wl,-rpath,{own_place}/lib"))
            .arg("-o")
            .arg(before.join("minimal")),
    )?;
    fs::rename(&before, &after)?;

    let program = after.join("minimal");
    let answer = process::output_only(Command::new(&program).arg(&model).current_dir("/"))?;
    ensure!(answer.contains("Paris"), "minimal answers: {answer}");
    if cfg!(target_os = "linux") {
        let loaded = process::output(Command::new("ldd").arg(&program))?;
        check_loaded(&loaded, &after.join("lib"))?;
    }
    fs::remove_dir_all(&place).context("cannot clean up")
}

/// What ldd lists is complete, everything of ours comes from `lib`, and there is no BLAS besides ours.
fn check_loaded(ldd: &str, lib: &Path) -> Result<()> {
    let ours: Vec<String> = fs::read_dir(lib)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    for line in ldd.lines() {
        let Some((name, path)) = line.trim().split_once(" => ") else { continue };
        if path.starts_with("not found") {
            bail!("{name} is not found");
        }
        if ours.iter().any(|file| file == name) {
            let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
            ensure!(Path::new(path).parent() == Some(lib), "{name} comes from {path}");
        } else if ["blas", "lapack", "gfortran"].iter().any(|foreign| name.contains(foreign)) {
            bail!("{name} of the system is loaded");
        }
    }
    ensure!(ldd.contains("libmlxgen_openblas"), "OpenBLAS is not loaded:\n{ldd}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_from_elsewhere_are_caught() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path();
        for name in ["libmlxgen.so.1", "libmlxgen_openblas.so"] {
            fs::write(lib.join(name), "").unwrap();
        }
        let lines = |ours: &Path, more: &str| {
            format!(
                "\tlinux-vdso.so.1 (0x1)\n\tlibmlxgen.so.1 => {0}/libmlxgen.so.1 (0x2)\n\
                 \tlibmlxgen_openblas.so => {0}/libmlxgen_openblas.so (0x3)\n\tlibc.so.6 => /lib/libc.so.6 (0x4)\n{more}",
                ours.display()
            )
        };
        check_loaded(&lines(lib, ""), lib).unwrap();
        assert!(check_loaded(&lines(Path::new("/elsewhere"), ""), lib).is_err());
        assert!(check_loaded(&lines(lib, "\tlibblas.so.3 => /lib/libblas.so.3 (0x5)"), lib).is_err());
        assert!(check_loaded(&lines(lib, "\tlibx.so => not found"), lib).is_err());
        assert!(check_loaded("\tlibc.so.6 => /lib/libc.so.6 (0x4)", lib).is_err());
    }
}
