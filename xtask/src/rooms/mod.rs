//! `cargo xtask rooms`: each room of the crate uses only the rooms below it.
//!
//! The check reads the sources as text without comments and literals, so it sees test code, macros and code
//! behind features too. What it looks for are `crate::` paths and the name `mlx_sys`.

mod source;

use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each room with the rooms it may use besides itself.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "ffi",
        &["engine", "generate", "checkpoint", "store", "model", "cache", "sample", "text", "mlx", "base"],
    ),
    ("engine", &["generate", "checkpoint", "store", "model", "cache", "sample", "text", "mlx", "base"]),
    ("generate", &["checkpoint", "store", "sample", "text", "model", "cache", "mlx", "base"]),
    ("checkpoint", &["store", "cache", "mlx", "base"]),
    ("store", &["cache", "mlx", "base"]),
    ("model", &["cache", "mlx", "base"]),
    ("cache", &["mlx", "base"]),
    ("sample", &["text", "mlx", "base"]),
    ("text", &["base"]),
    ("mlx", &["base"]),
    ("base", &[]),
];

/// Checks the sources below `root`.
pub fn check(root: &Path) -> Result<()> {
    let mut faults = Vec::new();
    for folder in ["src", "tests", "benches", "examples"] {
        for file in rust_files(&root.join(folder))? {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = file.strip_prefix(root).expect("below the root");
            faults.extend(faults_in(name, &text));
        }
    }
    if !faults.is_empty() {
        bail!("paths against the arrows between the rooms:\n{}", faults.join("\n"));
    }
    Ok(())
}

/// What is wrong in one file, whose name is relative to the repository.
fn faults_in(file: &Path, text: &str) -> Vec<String> {
    let code = source::code(text);
    let room = room_of(file);
    let mut faults = Vec::new();
    let mut fault = |at: usize, what: String| {
        let line = code[..at].matches('\n').count() + 1;
        faults.push(format!("  {}:{line}: {what}", file.display()));
    };

    if room != Some("mlx") {
        for at in source::words(&code, "mlx_sys") {
            fault(at, "only the room mlx may name mlx_sys".into());
        }
    }
    // Tests and examples outside the crate, and its root, belong to no room.
    let Some(room) = room else { return faults };
    let Some((_, below)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        fault(0, format!("`{room}` is no room that the design knows"));
        return faults;
    };
    for (at, used) in source::crate_paths(&code) {
        if !ROOMS.iter().any(|(name, _)| *name == used) {
            fault(at, format!("`crate::{used}` leads to no room"));
        } else if used != room && !below.contains(&used.as_str()) {
            fault(at, format!("`{room}` may not use `{used}`"));
        }
    }
    faults
}

/// The room that a file of `src/` belongs to.
fn room_of(file: &Path) -> Option<&str> {
    let inside = file.strip_prefix("src").ok()?;
    if inside == Path::new("lib.rs") {
        return None;
    }
    Path::new(inside.iter().next()?).file_stem()?.to_str()
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !folder.is_dir() {
        return Ok(files);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(file: &str, text: &str) -> Vec<String> {
        faults_in(Path::new(file), text)
    }

    #[test]
    fn a_path_upwards_is_caught_with_its_line() {
        assert_eq!(
            faults("src/cache/plain.rs", "use crate::mlx::Array;\nuse crate::model::Config;\n"),
            ["  src/cache/plain.rs:2: `cache` may not use `model`"]
        );
        assert_eq!(faults("src/base/error.rs", "fn f() { crate::mlx::eval() }").len(), 1);
        assert_eq!(faults("src/sample/mod.rs", "use crate::cache;").len(), 1);
    }

    #[test]
    fn paths_downwards_and_inside_a_room_are_fine() {
        let text = "use crate::{base::Error, mlx::{self, Array}};\nuse crate::cache::Plain;";
        assert!(faults("src/cache/mod.rs", text).is_empty());
        assert!(faults("src/ffi/engine.rs", "use crate::engine::Engine;").is_empty());
        assert!(faults("src/lib.rs", "pub use crate::ffi::x;").is_empty());
    }

    #[test]
    fn groups_test_code_and_macros_count() {
        assert_eq!(faults("src/mlx/ops.rs", "use crate::{base::Error, text::{A, B}, model};").len(), 2);
        let text = "#[cfg(test)]\nmod tests { use crate::engine::Engine; }";
        assert_eq!(faults("src/model/mod.rs", text).len(), 1);
        let text = "macro_rules! m { () => { $crate::ffi::status::X } }";
        assert_eq!(faults("src/base/mod.rs", text).len(), 1);
        assert_eq!(faults("src/base/mod.rs", "use crate :: {\n  // up\n  mlx,\n};").len(), 1);
    }

    #[test]
    fn comments_and_literals_do_not_count() {
        let text = r##"
            //! crate::ffi
            /* crate::ffi /* mlx_sys */ mlx_sys */
            const A: &str = "crate::ffi \" mlx_sys";
            const B: &str = r#"crate::ffi " mlx_sys"#;
            const C: (char, u8) = ('"', b'"');
            fn f<'a>(x: &'a str) -> &'a str { x }
            use crate::mlx::Array; // the only fault
        "##;
        assert_eq!(faults("src/text/mod.rs", text), ["  src/text/mod.rs:8: `text` may not use `mlx`"]);
    }

    #[test]
    fn mlx_sys_is_named_only_in_its_room() {
        assert!(faults("src/mlx/array.rs", "use mlx_sys::mlx_array;").is_empty());
        assert_eq!(faults("src/model/mod.rs", "use mlx_sys::mlx_array;").len(), 1);
        assert_eq!(faults("src/lib.rs", "extern crate mlx_sys;").len(), 1);
        assert_eq!(faults("tests/a.rs", "use mlx_sys as m;").len(), 1);
        assert!(faults("src/model/mod.rs", "let my_mlx_sys_count = 1;").is_empty());
    }

    #[test]
    fn unknown_rooms_are_told() {
        assert_eq!(faults("src/util.rs", "").len(), 1);
        assert_eq!(faults("src/text/mod.rs", "use crate::helpers::x;").len(), 1);
    }

    #[test]
    fn this_repository_is_in_order() {
        check(&crate::root()).unwrap();
    }
}
