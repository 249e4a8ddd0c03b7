//! The tests of the CPU kernels under tools that watch memory. They are a crate of their own, without MLX.

use crate::{
    boundary::{OTHERS_UNOPTIMISED, SANITIZED, sanitizer_flags},
    process,
    test::cargo,
    tools,
};
use anyhow::{Context, Result, bail};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

pub const PACKAGE: &str = "mlxgen-kernel-tests";

/// The test that does what it should not when asked to, and how it is asked.
const FAULTY: &str = "memory_is_read_to_its_end";
const FAULT: &str = "MLXGEN_KERNEL_FAULT";

/// Tells the tests which paths they must find.
const PATHS: &str = "MLXGEN_KERNEL_PATHS";

/// What watches the memory that the kernels touch.
pub struct Tool {
    pub name: &'static str,
    needs: &'static [&'static tools::Tool],
    build: fn(&Path) -> Result<PathBuf>,
    /// The program that runs the tests, if they do not run by themselves.
    runner: &'static [&'static str],
    /// The instruction sets that the tool knows, where it does not know all.
    paths: Option<fn() -> String>,
    /// What it says of a read behind the end of some memory.
    complaint: &'static str,
    /// Tests that are left out: they take long and touch memory as others do.
    without: &'static [&'static str],
}

pub const TOOLS: [Tool; 2] = [
    Tool {
        name: "address",
        needs: &[],
        build: sanitized,
        runner: &[],
        paths: None,
        complaint: "heap-buffer-overflow",
        without: &["exp::tests", "paths_threads_and_cuts"],
    },
    Tool {
        name: "valgrind",
        needs: &[&tools::VALGRIND],
        build: plain,
        // A vector that is partly outside of its memory is a fault even if it is aligned.
        runner: &["valgrind", "--quiet", "--error-exitcode=1", "--partial-loads-ok=no"],
        paths: Some(known_to_valgrind),
        complaint: "Invalid read",
        without: &[
            "a_row_does_not_depend",
            "any_chunking_of_a_prompt",
            "every_context_up_to_600",
            "exp::tests",
            "functions_are_near",
            "later_tokens_do_not_reach",
            "long_joint_keys",
            "paths_threads_and_cuts",
            "products_are_near",
            "random_shapes",
            "sequences_do_not_touch",
            "the_best_positions",
            "what_is_not_finite",
            "zeros_and_extremes",
        ],
    },
];

impl Tool {
    pub fn check(&self, root: &Path) -> Result<()> {
        tools::require(self.needs)?;
        let tests = (self.build)(root)?;
        // A tool that finds nothing there would find nothing anywhere.
        let faulty = process::output(self.command(root, &tests).arg(FAULTY).env(FAULT, "1"));
        match faulty {
            Err(error) if error.to_string().contains(self.complaint) => {}
            Err(error) => {
                bail!("a read behind the end ended otherwise than by {:?}: {error:#}", self.complaint)
            }
            Ok(_) => bail!("a read behind the end was not found"),
        }
        let mut all = self.command(root, &tests);
        // Those of the files of `base` run with the library's.
        all.arg("mlx::kernels").args(self.without.iter().flat_map(|test| ["--skip", test]));
        if let Some(paths) = self.paths {
            all.env(PATHS, paths());
        }
        process::visible(&mut all)
    }

    fn command(&self, root: &Path, tests: &Path) -> Command {
        let mut command = match self.runner {
            [] => Command::new(tests),
            [program, options @ ..] => {
                let mut command = Command::new(program);
                command.args(options).arg(tests);
                command
            }
        };
        command.current_dir(root);
        command
    }
}

/// The tests as they always are.
fn plain(root: &Path) -> Result<PathBuf> {
    let mut cargo = cargo(root);
    cargo.args(["test", "--quiet", "--locked", "--package", PACKAGE, "--lib", "--no-run"]);
    executable(cargo.arg("--message-format=json"))
}

fn sanitized(root: &Path) -> Result<PathBuf> {
    let mut cargo = cargo(root);
    cargo.args(["rustc", "--quiet", "--locked", "--package", PACKAGE, "--lib", "--profile", "test"]);
    cargo.arg("--target-dir").arg(root.join(SANITIZED)).args(OTHERS_UNOPTIMISED);
    cargo.arg("--message-format=json").arg("--").args(sanitizer_flags("address")).env("RUSTC_BOOTSTRAP", "1");
    executable(&mut cargo)
}

/// The program that a build with messages in JSON made.
fn executable(cargo: &mut Command) -> Result<PathBuf> {
    let messages = process::output(cargo)?;
    let path = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    path.context("cargo does not say where the tests are")
}

fn known_to_valgrind() -> String {
    #[cfg(target_arch = "x86_64")]
    let vectors = std::arch::is_x86_feature_detected!("avx2").then_some("Avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = Some("Neon");
    let paths: Vec<&str> = ["Portable"].into_iter().chain(vectors).collect();
    format!("[{}]", paths.join(", "))
}
