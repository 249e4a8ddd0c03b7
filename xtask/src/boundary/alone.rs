//! The header by itself, in each version of C and C++.

use crate::process;
use anyhow::{Context, Result};
use std::{fs, path::Path, process::Command};

const C: [&str; 4] = ["c99", "c11", "c17", "c2x"];
const CPP: [&str; 4] = ["c++11", "c++14", "c++17", "c++20"];

const TWICE: &str = "#include <mlxgen.h>\n#include <mlxgen.h>\nint main(void) { return 0; }\n";

pub fn check(root: &Path) -> Result<()> {
    let folder = root.join("target/boundary/header");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let twice = folder.join("twice.c");
    fs::write(&twice, TWICE)?;
    let layout = root.join("tests/c/layout.c");
    for (compiler, language, standards) in [("cc", "c", C), ("c++", "c++", CPP)] {
        for standard in standards {
            compile(root, compiler, language, standard, &twice)?;
        }
    }
    compile(root, "cc", "c", "c11", &layout)?;
    compile(root, "c++", "c++", "c++11", &layout)
}

fn compile(root: &Path, compiler: &str, language: &str, standard: &str, source: &Path) -> Result<()> {
    let mut command = Command::new(compiler);
    command.args(["-x", language, &format!("-std={standard}"), "-fsyntax-only"]);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-I"]);
    process::quiet(command.arg(root.join("include")).arg(source))
}
