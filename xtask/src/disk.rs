//! How much disk `cargo xtask test` takes.

use crate::process;
use anyhow::{Context, Result};
use std::{path::Path, process::Command};

/// GB that a run of all tests may take from nothing, in `target` and in the folder for temporary files: 7.2 of them without
/// what cargo keeps for later builds, as such a run printed; the rest is allowed for that.
const NEEDED: f64 = 11.0;

const GB: f64 = 1e9;

/// A warning where the disk may be too small for a run of all tests.
pub fn warning(root: &Path) -> Result<Option<String>> {
    Ok(too_little(free(root)?, held(root)?))
}

fn too_little(free: f64, held: f64) -> Option<String> {
    let missing = NEEDED - held;
    (free < missing).then(|| {
        format!(
            "warning: {free:.1} GB of the disk are free; a run of all tests needs {NEEDED:.0} GB, of which target \
             holds {held:.1}: some may fail for want of space"
        )
    })
}

/// GB in `target`.
pub fn held(root: &Path) -> Result<f64> {
    let target = root.join("target");
    if !target.exists() {
        return Ok(0.0);
    }
    // Files may vanish meanwhile: the number is good nevertheless. What is mounted there takes nothing.
    let done = Command::new("du").arg("-skx").arg(&target).output().context("cannot run `du`")?;
    kilobytes(&String::from_utf8_lossy(&done.stdout), 0).context("`du` told no size")
}

/// GB that are free where `folder` lies.
fn free(folder: &Path) -> Result<f64> {
    let table = process::output(Command::new("df").arg("-Pk").arg(folder))?;
    kilobytes(table.lines().nth(1).unwrap_or_default(), 3).context("`df` told no free space")
}

fn kilobytes(line: &str, column: usize) -> Option<f64> {
    Some(line.split_whitespace().nth(column)?.parse::<f64>().ok()? * 1024.0 / GB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_tables() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(held(folder.path()).unwrap(), 0.0);
        std::fs::create_dir(folder.path().join("target")).unwrap();
        std::fs::write(folder.path().join("target/file"), vec![1; 4 << 20]).unwrap();
        let held = held(folder.path()).unwrap();
        assert!((0.0041..0.0053).contains(&held), "{held}");
        assert!(free(folder.path()).unwrap() > 0.0);
        assert_eq!(kilobytes("/dev/vda 263174212 1953125 39062500 57% /", 3), Some(40.0));
        assert_eq!(kilobytes("", 0), None);
    }

    #[test]
    fn what_is_there_already_needs_no_room() {
        assert_eq!(too_little(NEEDED, 0.0), None);
        assert_eq!(too_little(1.5, NEEDED - 1.0), None);
        let warning = too_little(NEEDED - 2.5, 2.0).unwrap();
        assert!(warning.contains("holds 2.0"), "{warning}");
    }
}
