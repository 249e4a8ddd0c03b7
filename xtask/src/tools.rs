//! Programs and libraries of the system that a task needs: found, installed, or asked for.

use crate::process;
use anyhow::{Context, Result, bail};
use std::{
    env,
    fs::File,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

/// One thing that the system has to have.
pub struct Tool {
    /// What a person calls it.
    pub name: &'static str,
    /// The Debian package that brings it.
    pub package: &'static str,
    pub is_there: fn() -> bool,
}

pub const CXX: Tool = Tool { name: "a C++ compiler", package: "g++", is_there: || on_path("c++") };
pub const PIP: Tool = Tool {
    name: "Python 3 with pip",
    package: "python3-pip",
    is_there: || process::quiet(Command::new("python3").args(["-m", "pip", "--version"])).is_ok(),
};
pub const VENV: Tool = Tool {
    name: "Python 3 with venv",
    package: "python3-venv",
    is_there: || process::quiet(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok(),
};
pub const MAKE: Tool = Tool { name: "make", package: "make", is_there: || on_path("make") };
pub const CMAKE: Tool = Tool { name: "CMake", package: "cmake", is_there: || on_path("cmake") };
pub const PKG_CONFIG: Tool =
    Tool { name: "pkg-config", package: "pkg-config", is_there: || on_path("pkg-config") };
pub const OPENBLAS: Tool =
    Tool { name: "OpenBLAS", package: "libopenblas0-pthread", is_there: || openblas().is_some() };

pub const VALGRIND: Tool = Tool { name: "valgrind", package: "valgrind", is_there: || on_path("valgrind") };
pub const DEBOOTSTRAP: Tool =
    Tool { name: "debootstrap", package: "debootstrap", is_there: || on_path("debootstrap") };
pub const PROOT: Tool = Tool { name: "PRoot", package: "proot", is_there: || on_path("proot") };

/// Makes sure that all of these are there. As root on a Debian machine the missing ones are installed;
/// elsewhere one line says what to install.
pub fn require(tools: &[&Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().copied().filter(|tool| !(tool.is_there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() && on_path("apt-get") {
        install(&missing)?;
    }
    match missing_line(&missing) {
        Some(line) => bail!("{line}"),
        None => Ok(()),
    }
}

/// The line that tells what is still missing.
fn missing_line(tools: &[&Tool]) -> Option<String> {
    let missing: Vec<&&Tool> = tools.iter().filter(|tool| !(tool.is_there)()).collect();
    let names: Vec<&str> = missing.iter().map(|tool| tool.name).collect();
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "missing: {}; on Debian or Ubuntu: sudo apt-get install {}",
            names.join(", "),
            packages.join(" ")
        )
    })
}

fn install(tools: &[&Tool]) -> Result<()> {
    // Tasks of ours may run side by side, and apt-get does not wait for another.
    let guard = File::create(env::temp_dir().join("mlxgen-install.lock")).context("cannot make a lock")?;
    guard.lock().context("cannot lock the installing of packages")?;
    let packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    eprintln!("installing {}", packages.join(" "));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let install =
        || process::quiet(apt().args(["install", "-y", "-q", "--no-install-recommends"]).args(&packages));
    // A fresh machine has no package lists, or old ones.
    if install().is_err() {
        process::quiet(apt().args(["update", "-q"]))?;
        install()?;
    }
    Ok(())
}

/// OpenBLAS with its own threads, where the system's packages put it.
pub fn openblas() -> Option<PathBuf> {
    const FILE: &str = "libopenblas.so.0";
    let debian = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let places = [format!("{debian}/openblas-pthread"), debian, "/usr/lib64".into(), "/usr/lib".into()];
    places.iter().map(|place| Path::new(place).join(FILE)).find(|file| file.exists())
}

pub fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

pub fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|me| me.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_what_is_missing_and_nothing_else() {
        let here = Tool { name: "air", package: "air", is_there: || true };
        let gone = Tool { name: "a unicorn", package: "libunicorn-dev", is_there: || false };
        let gone_too = Tool { name: "a dragon", package: "dragon", is_there: || false };
        assert_eq!(
            missing_line(&[&here, &gone, &gone_too]).as_deref(),
            Some(
                "missing: a unicorn, a dragon; on Debian or Ubuntu: sudo apt-get install libunicorn-dev dragon"
            )
        );
        assert_eq!(missing_line(&[&here]), None);
    }

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-here"));
    }
}
