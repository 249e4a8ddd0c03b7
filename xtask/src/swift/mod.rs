//! `cargo xtask swift`: the Swift binding and its example, built and tested wherever Swift can be had.

mod checks;
mod inside;
mod root;
mod toolchain;

use crate::product::Variant;
use anyhow::{Result, bail};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use toolchain::Toolchain;

/// Makes sure that there is a Swift.
pub fn set_up(repository: &Path) -> Result<()> {
    Toolchain::set_up(repository).map(drop)
}

/// Whether a Swift is set up or missed where there is none: it takes minutes and gigabytes.
pub fn is_required() -> bool {
    env::var_os("MLXGEN_REQUIRE_SWIFT").is_some_and(|value| value == "1")
}

/// Builds and tests the binding and the example; without a Swift, only where one [`is_required`].
pub fn test(repository: &Path) -> Result<()> {
    let toolchain = match Toolchain::find(repository)? {
        Some(toolchain) => toolchain,
        None if is_required() => Toolchain::set_up(repository)?,
        None => {
            println!("Swift: skipped, there is none (`cargo xtask swift` sets one up)");
            return Ok(());
        }
    };
    checks::run(&Workshop { repository: repository.into(), toolchain })
}

/// Runs a command of the toolchain, such as `swift build`, in `folder` of the repository.
pub fn run(repository: &Path, folder: &str, program: &[&str]) -> Result<()> {
    if program.is_empty() {
        bail!("nothing to run");
    }
    let workshop = Workshop { repository: repository.into(), toolchain: Toolchain::set_up(repository)? };
    let fake = Variant { fake: true, ..Variant::default() };
    let product = [Variant::default(), fake].map(|variant| variant.folder(repository));
    let product = product.iter().find(|folder| folder.exists()).unwrap_or(&product[0]);
    workshop.call(folder, product, &[])?.visible(&workshop.toolchain, program)
}

/// A repository and the Swift that works on it.
struct Workshop {
    repository: PathBuf,
    toolchain: Toolchain,
}

impl Workshop {
    /// A command in `folder` of the repository, which builds against and runs with `product`.
    fn call(&self, folder: &str, product: &Path, variables: &[(&str, &str)]) -> Result<toolchain::Call> {
        let home = self.repository.join("target/swift/home");
        fs::create_dir_all(&home)?;
        let library = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
        let mut call = toolchain::Call {
            repository: self.repository.clone(),
            folder: self.repository.join(folder),
            home,
            variables: vec![
                ("PKG_CONFIG_PATH".into(), toolchain::text(&product.join("lib/pkgconfig"))?),
                (library.into(), toolchain::text(&product.join("lib"))?),
            ],
            extra_folders: Vec::new(),
        };
        call.variables.extend(variables.iter().map(|&(name, value)| (name.into(), value.into())));
        Ok(call)
    }
}
