//! Without `cargo xtask native` the compiler says to run it, on Linux.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, process::Command};

#[test]
fn the_compiler_names_the_missing_command() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // A crate that uses mlx-sys with this repository's cargo configuration, and nothing set up.
    fs::create_dir_all(root.join(".cargo")).unwrap();
    for file in ["config.toml", "mlx-missing.toml"] {
        fs::copy(repository.join(".cargo").join(file), root.join(".cargo").join(file)).unwrap();
    }
    let manifest = fs::read_to_string(repository.join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("mlx-sys = ")).unwrap();
    let version = version.replace(", optional = true", "");
    fs::write(
        root.join("Cargo.toml"),
        format!("[package]\nname = \"user\"\nedition = \"2024\"\n\n[dependencies]\nmlx-sys = {version}\n"),
    )
    .unwrap();
    fs::copy(repository.join("Cargo.lock"), root.join("Cargo.lock")).unwrap();
    fs::create_dir(root.join("src")).unwrap();
    fs::write(root.join("src/lib.rs"), "pub use mlx_sys as mlx;\n").unwrap();

    let done = Command::new(env!("CARGO"))
        .args(["check", "--offline"])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", root.join("target"))
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(said.contains("MLX is not set up: run `cargo xtask native` first"), "{said}");
}
