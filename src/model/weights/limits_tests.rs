//! Hostile files under little memory: what a header declares must not be allocated.

use std::process::Command;

/// Address space of the child in KiB: the test program itself and a few threads' arenas.
const ADDRESS_SPACE: u32 = 600 << 10;

/// Runs other tests of this program again where an allocation by a declared size would fail and
/// end the process.
#[test]
fn damaged_files_are_refused_under_little_memory() {
    let tests = [
        "model::weights::gguf::tests::bombs_are_refused_by_the_size_of_the_file",
        "model::weights::gguf::tests::damaged_files_never_panic",
        "model::weights::gguf::tests::tensors_that_do_not_fit_are_refused_by_name",
        "model::weights::safetensors::tests::b17_a_declared_extent_that_the_bytes_do_not_have_is_refused",
        "model::weights::safetensors::tests::b19_a_lying_header_length_is_refused",
        "model::weights::safetensors::tests::damaged_headers_never_panic",
    ];
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {ADDRESS_SPACE} && exec \"$0\" --test-threads=1 --exact \"$@\""))
        .arg(program)
        .args(tests)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
}
