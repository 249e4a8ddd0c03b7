//! Long tasks of one core, begun before their step of `cargo xtask test` has its turn: at a low priority, beside
//! the steps before it.

use crate::process;
use anyhow::{Context, Result, bail};
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A task of ours in a process of its own, so that what it says can be kept until its step.
pub struct Ahead {
    child: Child,
    said: PathBuf,
    line: String,
}

impl Ahead {
    /// Starts `cargo xtask TASK...`.
    pub fn start(root: &Path, task: &[&str]) -> Result<Self> {
        let program = env::current_exe().context("cannot tell which program this is")?;
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(program).args(task).current_dir(root);
        Self::spawn(&root.join("target/ahead"), &task.join("-"), command)
    }

    fn spawn(folder: &Path, name: &str, mut command: Command) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let said = folder.join(name);
        let file = File::create(&said).with_context(|| format!("cannot write {}", said.display()))?;
        let line = process::line(&command);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot run `{line}`"))?;
        Ok(Self { child, said, line })
    }

    /// Waits for its end and shows what it said.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait().with_context(|| format!("cannot wait for `{}`", self.line))?;
        let said = fs::read(&self.said).with_context(|| format!("cannot read {}", self.said.display()))?;
        eprint!("{}", String::from_utf8_lossy(&said));
        if !status.success() {
            bail!("`{}` failed ({status})", self.line);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ahead_is_one_of_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let run = |code: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", code]);
            Ahead::spawn(folder.path(), "task", command).unwrap().finish()
        };
        run("echo out; echo err >&2").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("task")).unwrap(), "out\nerr\n");
        assert!(run("exit 3").unwrap_err().to_string().contains("3"));
    }
}
