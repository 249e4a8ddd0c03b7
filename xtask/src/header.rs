//! `cargo xtask header`: `include/mlxgen.h` from `src/ffi`, by cbindgen.

use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Writes the header, or with `verify` only says whether the committed one is what the sources make.
pub fn run(root: &Path, verify: bool) -> Result<()> {
    let path = root.join("include/mlxgen.h");
    let made = generate(root)?;
    let there = fs::read_to_string(&path).unwrap_or_default();
    if made == there {
        return Ok(());
    }
    if verify {
        bail!(
            "include/mlxgen.h is not what src/ffi makes: run `cargo xtask header`\n{}",
            first_difference(&there, &made)
        );
    }
    fs::create_dir_all(root.join("include"))?;
    fs::write(&path, made).with_context(|| format!("cannot write {}", path.display()))
}

fn generate(root: &Path) -> Result<String> {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources(&root.join("src/ffi"))? {
        builder = builder.with_src(source);
    }
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    Ok(String::from_utf8(text)?)
}

/// The files of the room in the order in which a reader meets the objects; those not named here come last.
fn sources(room: &Path) -> Result<Vec<PathBuf>> {
    const ORDER: [&str; 12] = [
        "library",
        "log",
        "status",
        "error",
        "buffer",
        "cancel",
        "engine",
        "tokenizer",
        "model",
        "cache",
        "event",
        "stream",
    ];
    let mut files = fs::read_dir(room)
        .with_context(|| format!("cannot read {}", room.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    // cbindgen follows the `mod` lines of mod.rs, and would meet every file a second time.
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("mod.rs")
    });
    files.sort_by_key(|path| {
        let name = path.file_stem().unwrap_or_default().to_owned();
        (ORDER.iter().position(|&known| known == name).unwrap_or(ORDER.len()), name)
    });
    Ok(files)
}

fn first_difference(old: &str, new: &str) -> String {
    let (mut old, mut new) = (old.lines(), new.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                return format!(
                    "line {number}\n  committed: {}\n  made now:  {}",
                    old.unwrap_or("(end)"),
                    new.unwrap_or("(end)")
                );
            }
        }
    }
    "the ends of their lines differ".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_in_the_order_of_the_manual() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["stream.rs", "zebra.rs", "ape.rs", "library.rs", "mod.rs", "notes.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> = sources(folder.path())
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["library.rs", "stream.rs", "ape.rs", "zebra.rs"]);
    }

    #[test]
    fn the_first_different_line_is_told() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "line 2\n  committed: b\n  made now:  c");
        assert_eq!(first_difference("a\n", "a\nb\n"), "line 2\n  committed: (end)\n  made now:  b");
    }
}
