//! Where Swift comes from on this machine, and how its commands are run.

use super::{inside::Inside, root};
use crate::{process, tools};
use anyhow::{Context, Result, ensure};
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub enum Toolchain {
    /// `swift` is on the PATH.
    Host,
    /// It lies in a Debian of its own.
    Root(Inside),
}

impl Toolchain {
    /// The Swift that is there.
    pub fn find(repository: &Path) -> Result<Option<Toolchain>> {
        if tools::on_path("swift") {
            return Ok(Some(Toolchain::Host));
        }
        let root = root::folder(repository);
        if root::is_ready(&root) {
            return Ok(Some(Toolchain::Root(Inside::new(&root)?)));
        }
        Ok(None)
    }

    /// Whether its version and place are those that `root` installs.
    pub fn is_ours(&self) -> bool {
        matches!(self, Toolchain::Root(_))
    }

    /// The Swift that is there, or else a new one.
    pub fn set_up(repository: &Path) -> Result<Toolchain> {
        if let Some(toolchain) = Toolchain::find(repository)? {
            return Ok(toolchain);
        }
        let root = root::folder(repository);
        root::set_up(&root)?;
        Ok(Toolchain::Root(Inside::new(&root)?))
    }
}

/// How a command of the toolchain is run. Nothing else of this machine is visible to it when the
/// toolchain lies in a Debian of its own.
pub struct Call {
    pub repository: PathBuf,
    pub folder: PathBuf,
    /// Where Swift keeps its caches.
    pub home: PathBuf,
    pub variables: Vec<(String, String)>,
    /// Seen besides the repository.
    pub extra_folders: Vec<PathBuf>,
}

impl Call {
    pub fn visible(&self, toolchain: &Toolchain, program: &[&str]) -> Result<()> {
        // Only the program's own words: the way into another Debian is long.
        let line = program.join(" ");
        let status = self.command(toolchain, program)?.stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("cannot run `{line}`"))?;
        ensure!(status.success(), "`{line}` failed ({status})");
        Ok(())
    }

    pub fn output(&self, toolchain: &Toolchain, program: &[&str]) -> Result<String> {
        process::output_only(&mut self.command(toolchain, program)?)
    }

    pub fn command(&self, toolchain: &Toolchain, program: &[&str]) -> Result<Command> {
        match toolchain {
            Toolchain::Host => {
                let mut command = Command::new(program[0]);
                command.args(&program[1..]).current_dir(&self.folder);
                command.envs(self.variables.iter().map(|(name, value)| (name, value)));
                Ok(command)
            }
            Toolchain::Root(inside) => {
                // This machine's variables mean nothing there.
                let mut line = vec!["env".into(), "-i".into(), "-C".into(), text(&self.folder)?];
                line.push("PATH=/usr/bin:/bin".into());
                line.push("LANG=C.UTF-8".into());
                line.push(format!("HOME={}", text(&self.home)?));
                line.extend(env::var("TERM").map(|term| format!("TERM={term}")));
                line.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
                line.extend(program.iter().map(|&word| word.to_owned()));
                let mut folders = vec![self.repository.as_path()];
                folders.extend(self.extra_folders.iter().map(PathBuf::as_path));
                inside.command(&folders, &line)
            }
        }
    }
}

pub fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a folder's name is not UTF-8")?.to_owned())
}
