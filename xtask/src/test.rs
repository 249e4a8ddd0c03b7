//! `cargo xtask test [PART...]`: every check, or those whose name contains a part, one after another, each with
//! its time; a failed one does not stop the others.

use crate::{
    ahead::Ahead,
    boundary::{self, Setting},
    disk, examples, exports, header, kernels, native, process,
    product::{self, Variant},
    python, rooms, smollm2, swift,
};
use anyhow::{Result, bail};
use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// The options of cargo that choose each back end.
const BACK_ENDS: [(&str, &[&str]); 2] =
    [("mlx", &[]), ("fake", &["--no-default-features", "--features", "fake"])];

/// Steps whose work begins before their turn.
const LIBRARY: &str = "library";
const PYTHON: &str = "Python environment";
const TOOLCHAIN: &str = "Swift toolchain";

pub fn run(root: &Path, only: &[&str]) -> Result<()> {
    let mut report = Report { only: only.iter().map(|&part| part.to_owned()).collect(), steps: Vec::new() };
    if only.is_empty()
        && let Some(warning) = disk::warning(root)?
    {
        eprintln!("{warning}");
    }
    report.step("native", || native::set_up(root));
    // Each keeps one core busy for minutes on a fresh machine, while the steps before its own leave one idle.
    let begin = |name, task| report.takes(name).then(|| Ahead::start(root, task)).transpose();
    let library = begin(LIBRARY, &["build"])?;
    let python = begin(PYTHON, &["environment"])?;
    let toolchain = if swift::is_required() { begin(TOOLCHAIN, &["swift"])? } else { None };

    report.step("format", || process::visible(cargo(root).args(["fmt", "--all", "--check"])));
    report.step("rooms", || rooms::check(root));
    report.step("header", || header::run(root, true));
    report.step("header by itself", || boundary::check_header(root));
    for (name, options) in BACK_ENDS {
        report.step(&format!("clippy, {name}"), || clippy(root, options));
    }
    report.step("clippy, kernel tests", || clippy(root, &["--package", kernels::PACKAGE]));
    report.step("clippy, xtask", || clippy(root, &["--profile", "tasks", "--package", "xtask"]));

    report
        .step("library with the fake back end", || product::build(root, Variant { fake: true, debug: true }));
    report.step("model", || smollm2::file(root).map(drop));

    let nextest = process::quiet(cargo(root).args(["nextest", "--version"])).is_ok();
    for (name, options) in BACK_ENDS {
        report.step(&format!("Rust tests, {name}"), || {
            rust_tests(root, nextest, "--cargo-profile=dev", options)
        });
    }
    report.step("kernel tests", || {
        rust_tests(root, nextest, "--cargo-profile=dev", &["--package", kernels::PACKAGE])
    });
    for tool in kernels::TOOLS.into_iter().filter(|_| cfg!(target_os = "linux")) {
        report.step(&format!("kernel tests, {}", tool.name), || tool.check(root));
    }
    report.step("Rust tests, xtask", || {
        rust_tests(root, nextest, "--cargo-profile=tasks", &["--package", "xtask"])
    });
    let settings = Setting::ALL.into_iter().filter(|setting| setting.works_here());
    let (fake, real): (Vec<_>, Vec<_>) = settings.partition(|setting| setting.is_fake());
    for setting in fake {
        report.step(&format!("C tests, {}", setting.name()), || boundary::check(root, setting, &[]));
    }
    report.ahead(PYTHON, python);
    for suite in python::ON_FAKE {
        report.step(&format!("Python tests, {suite}"), || python::tests(root, suite));
    }

    report.ahead(LIBRARY, library);
    report.step("exports", || exports::check(root));
    for setting in real {
        report.step(&format!("C tests, {}", setting.name()), || boundary::check(root, setting, &[]));
    }
    report.step("C examples", || examples::check(root));
    report.step("moved folder", || examples::check_moved(root));
    for suite in python::ON_REAL {
        report.step(&format!("Python tests, {suite}"), || python::tests(root, suite));
    }
    report.ahead(TOOLCHAIN, toolchain);
    report.step("Swift", || swift::test(root));
    report.step("Python types", || python::types(root));
    eprintln!("\ntarget holds {:.1} GB", disk::held(root)?);
    report.close()
}

pub fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root);
    cargo
}

fn clippy(root: &Path, options: &[&str]) -> Result<()> {
    process::visible(
        cargo(root).args(["clippy", "--quiet", "--all-targets"]).args(options).args(["--", "-D", "warnings"]),
    )
}

fn rust_tests(root: &Path, nextest: bool, profile: &str, options: &[&str]) -> Result<()> {
    let mut cargo = cargo(root);
    if nextest {
        cargo.args(["nextest", "run", "--no-fail-fast", profile]);
    } else {
        cargo.args(["test", "--no-fail-fast"]).arg(profile.replace("--cargo-profile", "--profile"));
    }
    process::visible(cargo.args(options))
}

/// What became of each step.
#[derive(Default)]
struct Report {
    /// Parts of the names of the steps to run; none: all of them.
    only: Vec<String>,
    steps: Vec<(String, Duration, bool)>,
}

impl Report {
    /// Whether the step is one of those to run.
    fn takes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// A step whose work was begun before, if it was.
    fn ahead(&mut self, name: &str, begun: Option<Ahead>) {
        if let Some(begun) = begun {
            self.step(name, || begun.finish());
        }
    }

    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        if !self.takes(name) {
            return;
        }
        eprintln!("\n== {name}");
        let start = Instant::now();
        let done = work();
        if let Err(error) = &done {
            eprintln!("{name}: {error:#}");
        }
        self.steps.push((name.to_owned(), start.elapsed(), done.is_ok()));
    }

    fn close(self) -> Result<()> {
        if self.steps.is_empty() {
            bail!("no step has such a name");
        }
        println!("\n{}", self.table());
        match self.steps.iter().filter(|(.., passed)| !passed).count() {
            0 => Ok(()),
            failed => bail!("{failed} of {} steps failed", self.steps.len()),
        }
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (name, time, passed) in &self.steps {
            let word = if *passed { "passed" } else { "FAILED" };
            table += &format!("{word} {:7.1} s  {name}\n", time.as_secs_f64());
        }
        let passed = self.steps.iter().filter(|(.., passed)| *passed).count();
        table + &format!("steps: {passed} passed, {} failed", self.steps.len() - passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_whole_and_stops_nothing() {
        let mut report = Report::default();
        let mut after = false;
        report.step("one", || bail!("no"));
        report.step("two", || {
            after = true;
            Ok(())
        });
        assert!(after);
        let table = report.table();
        assert!(table.starts_with("FAILED"), "{table}");
        assert!(table.ends_with("steps: 1 passed, 1 failed"), "{table}");
        assert!(report.close().is_err());
    }

    #[test]
    fn a_part_of_the_name_chooses_steps() {
        let mut report = Report { only: vec!["fake".into()], ..Report::default() };
        report.step("Rust tests, mlx", || unreachable!());
        report.step("Rust tests, fake", || Ok(()));
        assert_eq!(report.steps.len(), 1);
        report.close().unwrap();
        assert!(Report { only: vec!["typo".into()], ..Report::default() }.close().is_err());
    }
}
