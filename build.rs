//! Lets tests and examples find the shared libraries that `cargo xtask native` made.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set by the configuration that stands in for mlx-sys's build script on Linux; elsewhere, and without
    // the feature `mlx`, there is nothing to find.
    if let Ok(lib) = env::var("DEP_MLX_LIB_DIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
