//! What is built and tested with Swift: the binding on the fake library, its documentation, the
//! example's output, and both once more with the real model where it is.

use super::{Workshop, toolchain::text};
use crate::product::{self, Variant};
use anyhow::{Result, ensure};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

const BINDING: &str = "bindings/swift";
const EXAMPLE: &str = "examples/swift/chat";
const ANSWER: &str = "The capital of France is Paris.";
const WARNINGS: [&str; 2] = ["-Xswiftc", "-warnings-as-errors"];

pub fn run(workshop: &Workshop) -> Result<()> {
    let fake = Variant { fake: true, debug: true };
    product::build(&workshop.repository, fake)?;
    let fake = fake.folder(&workshop.repository);
    swift(workshop, BINDING, &fake, "test", &WARNINGS, &[])?;
    swift(workshop, EXAMPLE, &fake, "build", &WARNINGS, &[])?;
    let said = format!("{ANSWER}\n");
    examples(workshop, &fake, &make_model(&workshop.repository)?, |answer| answer == said)?;
    // Other toolchains may format in another way and lack the compiler of the documentation.
    if workshop.toolchain.is_ours() {
        format(workshop, &fake)?;
        document(workshop, &fake)?;
    }

    let real = Variant::default().folder(&workshop.repository);
    let model = model(&workshop.repository);
    if !real.join("lib").exists() || !model.exists() {
        println!("Swift: the real model's tests are skipped, target/dist or the model is missing");
        return Ok(());
    }
    let only = ["--filter", "RealModelTests"];
    // Where the run path in a program decides, it is linked anew with that of the other library.
    let build = if cfg!(target_os = "macos") { &WARNINGS[..] } else { &["--skip-build"] };
    let options = [&only, build].concat();
    swift(workshop, BINDING, &real, "test", &options, &[("MLXGEN_SMOLLM2", &text(&model)?)])?;
    if cfg!(target_os = "macos") {
        swift(workshop, EXAMPLE, &real, "build", &WARNINGS, &[])?;
    }
    examples(workshop, &real, &model, |answer| answer.contains("Paris"))
}

/// The real model, as `make demo` fetches it.
fn model(repository: &Path) -> PathBuf {
    match env::var_os("MLXGEN_SMOLLM2") {
        Some(path) => path.into(),
        None => repository.join("target/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    }
}

/// A model of the fake library that gives one answer.
fn make_model(repository: &Path) -> Result<PathBuf> {
    let folder = repository.join("target/swift/model");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("fake-model.json"), format!(r#"{{"script":{{"text":"{ANSWER}"}}}}"#))?;
    Ok(folder)
}

/// Where a package is built: in target/, so that a checkout stays clean.
fn build_folder(workshop: &Workshop, package: &str) -> PathBuf {
    workshop.repository.join("target/swift").join(package)
}

fn swift(
    workshop: &Workshop,
    package: &str,
    product: &Path,
    command: &str,
    options: &[&str],
    variables: &[(&str, &str)],
) -> Result<()> {
    let folder = text(&build_folder(workshop, package))?;
    // SwiftPM's own sandbox is not there on every system, and needs rights that ours may not give.
    let mut program = vec!["swift", command, "--build-path", &folder, "--disable-sandbox"];
    program.extend(options);
    let library = text(&product.join("lib"))?;
    if cfg!(target_os = "macos") {
        // The system's own programs drop the variables that lead to libraries.
        program.extend(["-Xlinker", "-rpath", "-Xlinker", &library]);
    }
    let mut call = workshop.call(package, product, variables)?;
    call.extra_folders.extend(outside(workshop));
    call.visible(&workshop.toolchain, &program)
}

/// Runs both examples and judges what they print.
fn examples(
    workshop: &Workshop,
    product: &Path,
    model: &Path,
    is_right: impl Fn(&str) -> bool,
) -> Result<()> {
    let model = text(model)?;
    for (name, more) in [("chat", &["What is the capital of France?"][..]), ("minimal", &[])] {
        let program = text(&build_folder(workshop, EXAMPLE).join("debug").join(name))?;
        let mut call = workshop.call(EXAMPLE, product, &[])?;
        call.extra_folders.extend(outside(workshop));
        let answer = call.output(&workshop.toolchain, &[&[&program[..], &model], more].concat())?;
        ensure!(is_right(&answer), "the Swift example {name} answered {answer:?}");
    }
    Ok(())
}

/// The real model's folder when it does not lie in the repository.
fn outside(workshop: &Workshop) -> Option<PathBuf> {
    let folder = model(&workshop.repository).canonicalize().ok()?.parent()?.to_path_buf();
    (!folder.starts_with(&workshop.repository)).then_some(folder)
}

fn format(workshop: &Workshop, product: &Path) -> Result<()> {
    let lint = ["swift", "format", "lint", "--strict", "--configuration", ".swift-format", "--recursive"];
    let files = ["Package.swift", "Sources", "Tests", "../../examples/swift"];
    workshop.call(BINDING, product, &[])?.visible(&workshop.toolchain, &[&lint[..], &files].concat())
}

/// Builds the documentation: a link that leads nowhere, or a parameter without its words, fails.
fn document(workshop: &Workshop, product: &Path) -> Result<()> {
    let folder = workshop.repository.join("target/swift/documentation");
    let graphs = folder.join("symbols");
    fs::create_dir_all(&graphs)?;
    let (graphs, out) = (text(&graphs)?, text(&folder.join("out"))?);
    let emit = ["-Xswiftc", "-emit-symbol-graph", "-Xswiftc", "-emit-symbol-graph-dir", "-Xswiftc"];
    let build = text(&folder.join("build"))?;
    let call = workshop.call(BINDING, product, &[])?;
    let compile = ["swift", "build", "--build-path", &build, "--target", "MLXGen", "--disable-sandbox"];
    call.visible(&workshop.toolchain, &[&compile[..], &emit, &[&graphs]].concat())?;
    let names = ["--fallback-display-name", "MLXGen", "--fallback-bundle-identifier", "mlxgen"];
    let convert = ["/usr/libexec/swift/bin/docc", "convert", "Sources/MLXGen/MLXGen.docc"];
    let paths = ["--additional-symbol-graph-dir", &graphs, "--output-dir", &out, "--warnings-as-errors"];
    call.visible(&workshop.toolchain, &[&convert[..], &names, &paths].concat())
}
