//! Steps that run again only when what they depend on has changed.

use anyhow::{Context, Result};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// Remembers finished steps by a hash of their inputs, one small file each.
pub struct Steps {
    task: &'static str,
    stamps: PathBuf,
}

impl Steps {
    /// The steps of a task, whose name stands before what they say.
    pub fn new(task: &'static str, stamps: PathBuf) -> Result<Self> {
        fs::create_dir_all(&stamps).with_context(|| format!("cannot make {}", stamps.display()))?;
        Ok(Self { task, stamps })
    }

    /// Runs `work` unless it has run before with the same inputs and its outputs are still there. Returns the
    /// hash of the inputs, to be an input of the steps that build on this one.
    pub fn run(
        &self,
        name: &str,
        inputs: &[&str],
        outputs: &[&Path],
        work: impl FnOnce() -> Result<()>,
    ) -> Result<String> {
        let hash = hash(inputs);
        let stamp = self.stamps.join(name);
        let done = fs::read_to_string(&stamp).is_ok_and(|text| text == hash)
            && outputs.iter().all(|output| output.exists());
        if !done {
            // A step that is interrupted must not look finished.
            if stamp.exists() {
                fs::remove_file(&stamp)?;
            }
            eprintln!("{}: {name}", self.task);
            work().with_context(|| format!("{}: {name} failed", self.task))?;
            fs::write(&stamp, &hash)?;
        }
        Ok(hash)
    }
}

pub fn hash(inputs: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::cell::Cell;

    #[test]
    fn a_step_runs_again_only_for_new_inputs_lost_outputs_and_after_failure() {
        let folder = tempfile::tempdir().unwrap();
        let steps = Steps::new("test", folder.path().join("stamps")).unwrap();
        let output = folder.path().join("output");
        let runs = Cell::new(0);
        let run = |input: &str| {
            steps
                .run("step", &[input], &[&output], || {
                    runs.set(runs.get() + 1);
                    Ok(fs::write(&output, input)?)
                })
                .unwrap()
        };

        let first = run("a");
        assert_eq!(run("a"), first);
        assert_eq!(runs.get(), 1);
        assert_ne!(run("b"), first);
        assert_eq!(runs.get(), 2);
        fs::remove_file(&output).unwrap();
        run("b");
        assert_eq!(runs.get(), 3);
        assert!(steps.run("step", &["c"], &[&output], || bail!("no")).is_err());
        run("b");
        assert_eq!(runs.get(), 4);
    }
}
