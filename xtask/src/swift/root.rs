//! Swift on Debian 12, which has none: a Debian 13 in a folder, with its compiler installed.

use crate::{process, tools};
use anyhow::{Context, Result, bail};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

const SUITE: &str = "trixie";
/// The compiler, and what it needs to link programs and to import C.
const PACKAGES: &[&str] = &["swiftlang", "libc6-dev", "libstdc++-14-dev"];
/// Bump when the steps below change: an older folder is made anew.
const RECIPE: &str = "1";

/// Where the folder lies; `MLXGEN_SWIFT_ROOT` lets several checkouts share one.
pub fn folder(repository: &Path) -> PathBuf {
    match std::env::var_os("MLXGEN_SWIFT_ROOT") {
        Some(folder) => folder.into(),
        None => repository.join("target/swift-root"),
    }
}

pub fn is_ready(root: &Path) -> bool {
    fs::read_to_string(stamp(root)).is_ok_and(|recipe| recipe == RECIPE)
}

fn stamp(root: &Path) -> PathBuf {
    root.join("etc/mlxgen-swift-root")
}

/// Makes the folder unless it is there: about 3.3 GB, two to four minutes.
pub fn set_up(root: &Path) -> Result<()> {
    let parent = root.parent().context("the folder for Swift has no parent")?;
    fs::create_dir_all(parent)?;
    let guard = File::create(parent.join("swift-root.lock"))?;
    guard.lock().context("cannot lock the folder for Swift")?;
    if is_ready(root) {
        return Ok(());
    }
    if !tools::is_root() {
        bail!(
            "no swift on the PATH, and only root can set one up here: install Swift 6 \
             or run `sudo cargo xtask swift` on a Debian machine"
        );
    }
    tools::require(&[&tools::DEBOOTSTRAP])?;
    remove(root)?;
    eprintln!("setting up Swift in {} (3.3 GB, some minutes)", root.display());
    process::quiet(Command::new("debootstrap").args(["--variant=minbase", SUITE]).arg(root))?;
    // Waiting for the disk after every file would take longer than the rest.
    fs::write(root.join("etc/dpkg/dpkg.cfg.d/no-sync"), "force-unsafe-io\n")?;
    process::quiet(apt(root).args(["install", "-y", "-q", "--no-install-recommends"]).args(PACKAGES))?;
    process::quiet(apt(root).arg("clean"))?;
    fs::write(stamp(root), RECIPE)?;
    Ok(())
}

fn apt(root: &Path) -> Command {
    let mut command = Command::new("chroot");
    command.arg(root).arg("apt-get").env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    command
}

/// Removes a folder of an interrupted set-up or an older recipe. Nothing of the machine is ever
/// mounted there in a way that is visible here: see `inside`.
fn remove(root: &Path) -> Result<()> {
    match fs::remove_dir_all(root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", root.display()))
        }
        _ => Ok(()),
    }
}
