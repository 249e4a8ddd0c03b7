//! `cargo xtask boundary`: the C tests of `tests/c`, on the library with the fake back end as it is, under
//! valgrind, and built with a sanitizer; and some of them on the real library.

mod alone;
mod comments;
mod library;
mod pairs;
mod programs;

use anyhow::{Result, bail};
use std::path::Path;

pub use library::{OTHERS_UNOPTIMISED, SANITIZED, Setting, sanitizer_flags};

/// Checks the header by itself: it compiles alone, structs have their frozen layout, comments their form.
pub fn check_header(root: &Path) -> Result<()> {
    alone::check(root)?;
    let functions = comments::read(root)?;
    report("comments in include/mlxgen.h", comments::lint(&functions))
}

/// Builds and runs the C tests, or those of them that are named.
pub fn check(root: &Path, setting: Setting, names: &[&str]) -> Result<()> {
    let library = library::build(root, setting)?;
    let outcome = programs::run(root, setting, &library, names)?;
    report("C tests", outcome.faults)?;
    if setting == Setting::Plain && names.is_empty() {
        report("codes", pairs::compare(&comments::read(root)?, &outcome.notes))?;
    }
    Ok(())
}

fn report(what: &str, faults: Vec<String>) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{what}:\n{}", faults.join("\n"))
}
