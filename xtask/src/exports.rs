//! `cargo xtask exports`: the built library exports the functions that `exports.txt` lists, and nothing else.

use crate::{process, product::Variant};
use anyhow::{Context, Result, bail};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Compares the dynamic symbols of the built libraries, and the functions that the header declares, with the
/// list.
pub fn check(root: &Path) -> Result<()> {
    let list = root.join("exports.txt");
    let listed = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let listed: BTreeSet<String> =
        listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let header = fs::read_to_string(root.join("include/mlxgen.h")).context("cannot read include/mlxgen.h")?;

    let mut faults = difference("the header declares", &declared(&header), &listed);
    let mut seen = 0;
    for fake in [false, true] {
        let folder = Variant { fake, debug: false }.folder(root);
        let library =
            folder.join(if cfg!(target_os = "macos") { "lib/libmlxgen.dylib" } else { "lib/libmlxgen.so" });
        if library.exists() {
            seen += 1;
            faults.extend(difference(
                &format!("{} exports", folder.display()),
                &exported(&library)?,
                &listed,
            ));
        }
    }
    if seen == 0 {
        bail!("no library is built: run `cargo xtask build` first");
    }
    if !faults.is_empty() {
        bail!("exports.txt does not fit (a change to it is a change of the ABI):\n{}", faults.join("\n"));
    }
    Ok(())
}

fn difference(who: &str, found: &BTreeSet<String>, listed: &BTreeSet<String>) -> Vec<String> {
    let more = found.difference(listed).map(|name| format!("  {who} {name}, which is not listed"));
    let less = listed.difference(found).map(|name| format!("  {name} is listed, but not what {who}"));
    more.chain(less).collect()
}

fn exported(library: &Path) -> Result<BTreeSet<String>> {
    let mut nm = Command::new("nm");
    if cfg!(target_os = "macos") {
        nm.args(["-g", "-U"]);
    } else {
        nm.args(["-D", "--defined-only"]);
    }
    Ok(symbols(&process::output(nm.arg(library))?))
}

/// The names in the output of nm. Mach-O puts an underscore before each.
fn symbols(nm: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.split_whitespace().nth(2)?.to_owned());
    let strip = |name: String| match name.strip_prefix('_') {
        Some(rest) if cfg!(target_os = "macos") => rest.to_owned(),
        _ => name,
    };
    nm.lines().filter_map(name).map(strip).collect()
}

/// The functions in the header: our names right before a parenthesis, outside of comments.
fn declared(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in header.lines() {
        let line = line.trim_start();
        if line.starts_with(['*', '/', '#']) || line.starts_with("typedef") {
            continue;
        }
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("mlxgen_") {
            names.insert(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn differences_are_told_both_ways() {
        let faults = difference("the library exports", &set(&["a", "b"]), &set(&["b", "c"]));
        assert_eq!(faults.len(), 2);
        assert!(faults[0].contains("exports a, which is not listed"));
        assert!(faults[1].contains("c is listed"));
        assert!(difference("x", &set(&["a"]), &set(&["a"])).is_empty());
    }

    #[test]
    fn functions_are_read_from_the_header() {
        let header = "\
/**
 * Calls mlxgen_no(x).
 */
typedef void (*mlxgen_callback)(void *user);
uint32_t mlxgen_abi_version(void);
const char *mlxgen_version_string(void);
mlxgen_status mlxgen_cache_new(mlxgen_model *model,
                               mlxgen_error **out_error);
#define MLXGEN_X (1)
";
        assert_eq!(
            declared(header),
            set(&["mlxgen_abi_version", "mlxgen_version_string", "mlxgen_cache_new"])
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn symbols_are_read_from_nm() {
        let text = "0000000000001000 T mlxgen_a\n0000000000001010 D data\n";
        assert_eq!(symbols(text), set(&["data", "mlxgen_a"]));
    }
}
