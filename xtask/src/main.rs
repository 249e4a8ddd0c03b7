//! Developer tasks of libmlxgen: `cargo xtask <task>`.

mod ahead;
mod boundary;
mod disk;
mod examples;
mod exports;
mod header;
mod kernels;
mod native;
mod notices;
mod process;
mod product;
mod python;
mod rooms;
mod smollm2;
mod step;
mod swift;
mod test;
mod tools;

use anyhow::{Result, bail};
use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask <task>

  native              set up MLX for this machine (Linux; macOS needs nothing)
  build [--fake] [--debug]
                      build the library into target/dist, with the fake back end into target/dist-fake
  dist                the same as an archive
  header [--verify]   write include/mlxgen.h, or check that it is up to date
  header --check      check that the header compiles alone, its layout and the form of its comments
  boundary [SETTING] [NAME...]
                      run the C tests: plain (the default), valgrind, address, thread or real
  rooms               check that each room uses only the rooms below it
  demo                stream an answer from a model (MODEL and PROMPT in the environment)
  test [PART...]      run every test, or the steps whose names contain a part
  bench [ARGUMENT...] measure what the library promises (--pairs N, --only NAME...)
  models-table        compare every family with the reference and write docs/models.md
  bench-peers         install llama.cpp for 'bench' to compare with
  environment         set up the Python of the tests and benchmarks
  exports             check what the built libraries export against exports.txt
  swift               set up a Swift where there is none (Debian, as root)
  swift test          build and test the Swift binding and example
  swift run FOLDER COMMAND...
                      run a command of the Swift toolchain in a folder of the repository";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["native"] => native::set_up(&root()),
        ["header"] => header::run(&root(), false),
        ["header", "--verify"] => header::run(&root(), true),
        ["header", "--check"] => boundary::check_header(&root()),
        ["boundary"] => boundary::check(&root(), boundary::Setting::Plain, &[]),
        ["boundary", setting, names @ ..] => match boundary::Setting::from_name(setting) {
            Some(setting) => boundary::check(&root(), setting, names),
            None => bail!("{USAGE}"),
        },
        ["rooms"] => rooms::check(&root()),
        ["demo"] => examples::demo(&root()),
        ["models-table"] => python::models_table(&root()),
        ["bench-peers"] => python::peers(&root()),
        ["bench", arguments @ ..] => python::bench(&root(), arguments),
        ["test", only @ ..] => test::run(&root(), only),
        ["environment"] => python::environment(&root()).map(drop),
        ["exports"] => exports::check(&root()),
        ["build", options @ ..] => {
            let mut variant = product::Variant::default();
            for option in options {
                match *option {
                    "--fake" => variant.fake = true,
                    "--debug" => variant.debug = true,
                    _ => bail!("{USAGE}"),
                }
            }
            product::build(&root(), variant)
        }
        ["dist"] => product::pack(&root()),
        ["swift"] => swift::set_up(&root()),
        ["swift", "test"] => swift::test(&root()),
        ["swift", "run", folder, program @ ..] => swift::run(&root(), folder, program),
        // Its own process, because libclang is found through an environment variable.
        #[cfg(target_os = "linux")]
        ["native-bindings", headers, out] => native::bindings::generate(Path::new(headers), Path::new(out)),
        _ => bail!("{USAGE}"),
    }
}

/// The repository. Asked at run time, so that a moved folder is seen.
fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().expect("xtask lies in the repository").to_owned()
}
