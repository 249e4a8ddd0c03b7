//! The documents that ship with the library: the rules of its interface, its licences, those of the libraries beside
//! it, and the list of the crates inside it.

use crate::product::Variant;
use crate::{process, test::cargo};
use anyhow::{Context, Result};
use std::{collections::BTreeSet, fs, path::Path};

/// Those of the repository: the licences, and what the header refers to.
const OWN: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", "CONVENTIONS.md"];

/// Fills `share/doc/mlxgen` of the laid-out folder.
pub fn write(root: &Path, variant: Variant, folder: &Path) -> Result<()> {
    let documents = folder.join("share/doc/mlxgen");
    fs::create_dir_all(&documents)?;
    for document in OWN {
        copy(&root.join(document), &documents.join(document))?;
    }
    fs::write(documents.join("RUST-CRATES.txt"), crates(root, variant)?)?;
    #[cfg(target_os = "linux")]
    if !variant.fake {
        copy(&mlx_licence(&root.join("target/native/wheels"))?, &documents.join("LICENSE-mlx"))?;
        copy(&crate::native::mlx_c(root)?.join("LICENSE"), &documents.join("LICENSE-mlx-c"))?;
        // Debian keeps these beside each package; another system's OpenBLAS has them elsewhere.
        for (package, name) in
            [("libopenblas0-pthread", "LICENSE-openblas"), ("libgfortran5", "LICENSE-gfortran")]
        {
            let notice = Path::new("/usr/share/doc").join(package).join("copyright");
            if notice.exists() {
                copy(&notice, &documents.join(name))?;
            }
        }
    }
    Ok(())
}

/// In the folder of the wheel's metadata, whose name carries the version.
#[cfg(target_os = "linux")]
fn mlx_licence(wheels: &Path) -> Result<std::path::PathBuf> {
    let entries = fs::read_dir(wheels)?.collect::<std::io::Result<Vec<_>>>()?;
    let metadata = entries.iter().find(|entry| entry.file_name().to_string_lossy().starts_with("mlx_cpu-"));
    Ok(metadata.context("the wheel has no metadata")?.path().join("licenses/LICENSE"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()))
}

/// One line for each crate that is compiled into the library: name, version, licence.
fn crates(root: &Path, variant: Variant) -> Result<String> {
    let mut tree = cargo(root);
    tree.args(["tree", "--locked", "--package", "mlxgen", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p}: {l}"]);
    if variant.fake {
        tree.args(["--no-default-features", "--features", "fake"]);
    }
    Ok(list(&process::output(&mut tree)?))
}

/// The lines of cargo's tree, each once, without our own and without marks and paths.
fn list(tree: &str) -> String {
    let lines: BTreeSet<String> = tree
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("mlxgen "))
        .map(|line| line.trim_end_matches(" (*)").replace(" (proc-macro)", ""))
        .collect();
    let mut text = String::from("Rust crates compiled into libmlxgen, with their licences.\n\n");
    for line in lines {
        text += &line;
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_that_the_header_refers_to_ship_with_it() {
        let header = include_str!("../../include/mlxgen.h");
        let named: BTreeSet<&str> = header
            .split(|c: char| !c.is_ascii_alphanumeric() && !"._-/".contains(c))
            .map(|word| word.trim_end_matches('.'))
            .filter(|word| word.ends_with(".md"))
            .collect();
        assert!(named.contains("CONVENTIONS.md"));
        assert!(named.iter().all(|name| OWN.contains(name)), "{named:?}");
    }

    #[test]
    fn each_crate_is_listed_once_and_ours_is_not() {
        let tree = "mlxgen v0.1.0 (/somewhere): MIT\nb v2.0.0: MIT\na v1.0.0 (proc-macro): Apache-2.0\n\
                    b v2.0.0: MIT (*)\n\n";
        assert!(list(tree).ends_with("\n\na v1.0.0: Apache-2.0\nb v2.0.0: MIT\n"));
    }
}
