//! `cargo xtask native`: MLX as cargo, the linker and the loader want it, in `target/native`.
//!
//! On Linux: libmlx from its Python wheel, mlx-c compiled from the sources inside the mlx-sys crate, the
//! bindings generated from its headers, and a cargo configuration file that puts the three in the place of
//! mlx-sys's build script. On macOS that build script works and there is nothing to do.

#[cfg(target_os = "linux")]
mod elf;
#[cfg(target_os = "linux")]
mod libraries;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mlxc;

#[cfg(target_os = "linux")]
pub mod bindings;
#[cfg(target_os = "linux")]
pub use linux::set_up;
#[cfg(target_os = "linux")]
pub use mlxc::sources as mlx_c;

#[cfg(not(target_os = "linux"))]
pub fn set_up(_root: &std::path::Path) -> anyhow::Result<()> {
    eprintln!("native: nothing to do here, mlx-sys builds MLX itself");
    Ok(())
}
