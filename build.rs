//! Lets tests and examples find the shared libraries that `cargo xtask native` made, and compiles the C++ half of our
//! CPU kernels against MLX's headers.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(cpu_kernels)");
    // Set by the configuration that stands in for mlx-sys's build script on Linux; elsewhere, and without
    // the feature `mlx`, there is nothing to find.
    if let Ok(lib) = env::var("DEP_MLX_LIB_DIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
    if let Ok(include) = env::var("DEP_MLX_INCLUDE") {
        compile_primitive(&include);
        println!("cargo::rustc-cfg=cpu_kernels");
    }
}

fn compile_primitive(include: &str) {
    let source = "src/mlx/kernels/primitive.cpp";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .file(source)
        .flag(format!("-isystem{include}"))
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .opt_level(2)
        .debug(false)
        .compile("mlxgen_kernels");
}
