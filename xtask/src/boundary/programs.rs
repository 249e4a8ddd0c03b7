//! Compiles the programs of `tests/c` and runs each in a folder of its own.

use super::library::{Library, Setting};
use crate::{process, smollm2};
use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// How a program is linked, and on which library it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    /// Exports its own symbols.
    Exporting,
    /// Opens the library at run time.
    Opening,
    /// Needs the shipped library and a real model.
    Real,
}

const PROGRAMS: [(&str, Kind); 19] = [
    ("arguments", Kind::Usual),
    ("cache", Kind::Usual),
    ("callbacks", Kind::Usual),
    ("engine", Kind::Usual),
    ("exits", Kind::Usual),
    ("forked", Kind::Usual),
    ("handles", Kind::Usual),
    ("library", Kind::Usual),
    ("model", Kind::Usual),
    ("estimate", Kind::Usual),
    ("names", Kind::Exporting),
    ("panics", Kind::Usual),
    ("real", Kind::Real),
    ("signals", Kind::Usual),
    ("stream", Kind::Usual),
    ("threads", Kind::Usual),
    ("tokenizer", Kind::Usual),
    ("unload", Kind::Opening),
    ("versions", Kind::Usual),
];
/// Linked into the programs; `layout` is only compiled.
const SHARED: [&str; 3] = ["check", "every", "layout"];

/// Programs that run at once.
const WORKERS: usize = 3;

pub struct Outcome {
    pub faults: Vec<String>,
    /// What the programs noted of functions and codes.
    pub notes: String,
}

pub fn run(root: &Path, setting: Setting, library: &Library, names: &[&str]) -> Result<Outcome> {
    check_list(root)?;
    let folder = root.join("target/boundary").join(setting.name());
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let mut programs: Vec<_> =
        PROGRAMS.into_iter().filter(|(name, kind)| fits(setting, name, *kind)).collect();
    if !names.is_empty() {
        programs.retain(|(name, _)| names.contains(name));
        ensure!(programs.len() == names.len(), "not all of {names:?} are C tests of this setting");
    }
    let bench = Bench { root, setting, library, folder: &folder, model: model(root, setting)? };
    let (queue, faults) = (Mutex::new(programs.into_iter()), Mutex::new(Vec::new()));
    let lock = |fault| faults.lock().expect("no worker panics").push(fault);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no worker panics").next();
                    let Some((name, kind)) = next else { break };
                    let start = Instant::now();
                    match bench.test(name, kind) {
                        Ok(()) => eprintln!("  passed {:6.1} s  {name}", start.elapsed().as_secs_f64()),
                        Err(error) => lock(format!("  {name}: {error:#}")),
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no worker panics");
    Ok(Outcome { faults, notes: fs::read_to_string(folder.join("pairs")).unwrap_or_default() })
}

/// A test that is not in the list would silently not run.
fn check_list(root: &Path) -> Result<()> {
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(root.join("tests/c"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            there.insert(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    let listed: BTreeSet<String> =
        PROGRAMS.iter().map(|(name, _)| *name).chain(SHARED).map(str::to_owned).collect();
    ensure!(there == listed, "tests/c has {there:?}, the list has {listed:?}");
    Ok(())
}

fn fits(setting: Setting, name: &str, kind: Kind) -> bool {
    match setting {
        Setting::Real => kind != Kind::Usual,
        // What stands in for the allocator must be in the program from its start on.
        Setting::Address | Setting::Thread => kind == Kind::Usual,
        // There is one thread at a time, so a handler interrupts nothing.
        Setting::Valgrind => kind != Kind::Real && name != "signals",
        Setting::Plain => kind != Kind::Real,
    }
}

fn model(root: &Path, setting: Setting) -> Result<Option<PathBuf>> {
    if setting == Setting::Real { smollm2::file(root).map(Some) } else { Ok(None) }
}

struct Bench<'a> {
    root: &'a Path,
    setting: Setting,
    library: &'a Library,
    folder: &'a Path,
    model: Option<PathBuf>,
}

impl Bench<'_> {
    fn test(&self, name: &str, kind: Kind) -> Result<()> {
        let program = self.compile(name, kind)?;
        let folder = self.folder.join(format!("{name}.files"));
        fs::create_dir_all(&folder)?;
        let (out, err) = (folder.join("stdout"), folder.join("stderr"));
        let mut command = self.command(name, &program);
        command.arg(&folder).current_dir(&folder).stdin(Stdio::null());
        command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        command.env("MLXGEN_TEST_LIBRARY", &self.library.file);
        command.env("MLXGEN_TEST_PAIRS", self.folder.join("pairs"));
        if self.setting != Setting::Plain {
            command.env("MLXGEN_TEST_CHECKED", "1");
        } else if name == "threads" {
            command.env("MLXGEN_TEST_SECONDS", "30");
        }
        if let Some(model) = &self.model {
            command.env("MLXGEN_TEST_MODEL", model);
        }
        let status = wait(&mut command, self.limit())?;
        let said = fs::read_to_string(&out)? + &String::from_utf8_lossy(&fs::read(&err)?);
        if !status.success() {
            let how = status.signal().map_or(format!("{status}"), |signal| format!("signal {signal}"));
            bail!("ended with {how}\n{said}");
        }
        ensure!(said.is_empty(), "said something:\n{said}");
        Ok(())
    }

    fn compile(&self, name: &str, kind: Kind) -> Result<PathBuf> {
        let sources = self.root.join("tests/c");
        let program = self.folder.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
        cc.arg(self.root.join("include")).arg("-o").arg(&program);
        cc.arg(sources.join(name).with_extension("c"));
        if kind == Kind::Opening {
            return process::quiet(cc.arg("-ldl")).map(|()| program);
        }
        cc.args([sources.join("check.c"), sources.join("every.c")]);
        if kind == Kind::Exporting {
            cc.arg("-rdynamic");
        }
        cc.args(&self.library.link).arg(&self.library.file);
        let folder = self.library.file.parent().context("a library lies in a folder")?;
        cc.arg(format!("-Wl,-rpath,{}", folder.display()));
        process::quiet(&mut cc).map(|()| program)
    }

    fn command(&self, name: &str, program: &Path) -> Command {
        // What other threads had in hand when a process was forked or left is lost, and rightly so.
        let leaks = !["exits", "forked"].contains(&name);
        if self.setting == Setting::Valgrind {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--error-exitcode=99", "--fair-sched=yes"]);
            command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
            command.arg(if leaks { "--leak-check=full" } else { "--leak-check=no" });
            let known = self.root.join("tests/c/valgrind.supp");
            command.arg(format!("--suppressions={}", known.display())).arg(program);
            return command;
        }
        let mut command = Command::new(program);
        // Forks of a process with threads, and exits that leave some behind, are what some tests are about.
        let known = self.root.join("tests/c/tsan.supp");
        let options = "halt_on_error=1:exitcode=99:die_after_fork=0:report_thread_leaks=0:suppressions=";
        command.env("TSAN_OPTIONS", format!("{options}{}", known.display()));
        command.env("ASAN_OPTIONS", format!("exitcode=99:detect_leaks={}", u8::from(leaks)));
        command
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(if self.setting == Setting::Plain { 120 } else { 600 })
    }
}

/// Waits for the end; a program that does not come to it is killed.
fn wait(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    let mut child = command.spawn()?;
    let until = Instant::now() + limit;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    bail!("did not end within {limit:?}")
}
