//! Running a command in another Debian's folder, with parts of this machine's file system at
//! their own paths.
//!
//! The mounts are made in a mount namespace of the command: they vanish with it, however it ends,
//! and nobody else sees them. Where even root may not mount, PRoot translates the paths instead.

use crate::{process, tools};
use anyhow::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Arguments: the root, the folders to bind, `--`, the command. The compiler finds its own
/// libraries through /proc.
const ENTER: &str = r#"
set -e
root=$1; shift
while [ "$1" != -- ]; do mount --rbind "$1" "$root$1"; shift; done
shift
exec chroot "$root" "$@"
"#;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    MountNamespace,
    /// For a user who may not mount, where the kernel gives namespaces to everyone.
    UserNamespace,
    Proot,
}

/// A folder with a Debian in it, and the way into it that works on this machine.
pub struct Inside {
    root: PathBuf,
    way: Way,
}

impl Inside {
    pub fn new(root: &Path) -> Result<Self> {
        for way in [Way::MountNamespace, Way::UserNamespace] {
            let inside = Inside { root: root.into(), way };
            if process::quiet(&mut inside.command(&[], &["true".into()])?).is_ok() {
                return Ok(inside);
            }
        }
        tools::require(&[&tools::PROOT])?;
        Ok(Inside { root: root.into(), way: Way::Proot })
    }

    /// `program` with its arguments, seeing `folders` of this machine at their own paths.
    pub fn command(&self, folders: &[&Path], program: &[String]) -> Result<Command> {
        let mut binds = vec![PathBuf::from("/proc"), PathBuf::from("/dev")];
        for folder in folders {
            fs::create_dir_all(self.root.join(folder.strip_prefix("/")?))?;
            binds.push(folder.to_path_buf());
        }
        let mut command = match self.way {
            Way::Proot => Command::new("proot"),
            _ => Command::new("unshare"),
        };
        match self.way {
            Way::Proot => {
                command.arg("-r").arg(&self.root).args(["-w", "/"]);
                for bind in &binds {
                    command.arg("-b").arg(bind);
                }
            }
            way => {
                if way == Way::UserNamespace {
                    command.args(["--user", "--map-root-user"]);
                }
                command.args(["--mount", "--propagation", "private", "--", "sh", "-c", ENTER, "sh"]);
                command.arg(&self.root).args(&binds).arg("--");
            }
        }
        command.args(program);
        Ok(command)
    }
}
