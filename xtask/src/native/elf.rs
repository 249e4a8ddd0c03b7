//! Takes the process-wide symbols out of a shared library.
//!
//! GCC marks the static variables of inline functions as unique, and the loader then gives all libraries of a
//! process the first one's, whatever their SONAMEs: two copies of MLX would share state. Weak symbols are bound
//! by the usual rules, within each copy.

use anyhow::{Context, Result, ensure};
use std::{fs, path::Path};

const SECTION_DYNSYM: u32 = 11;
const SYMBOL_SIZE: usize = 24;
const BIND_WEAK: u8 = 2;
const BIND_UNIQUE: u8 = 10;

/// Makes the unique symbols of a library weak.
pub fn weaken_unique_symbols(library: &Path) -> Result<()> {
    let mut bytes = fs::read(library)?;
    weaken(&mut bytes).with_context(|| format!("{} is no library of this kind", library.display()))?;
    Ok(fs::write(library, bytes)?)
}

/// Returns how many symbols there were.
fn weaken(elf: &mut [u8]) -> Result<usize> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let sections = number::<8>(elf, 0x28)? as usize;
    let section_size = number::<2>(elf, 0x3a)? as usize;
    let section_count = number::<2>(elf, 0x3c)? as usize;
    let mut changed = 0;
    for section in (0..section_count).map(|index| sections + index * section_size) {
        if number::<4>(elf, section + 4)? as u32 != SECTION_DYNSYM {
            continue;
        }
        let start = number::<8>(elf, section + 0x18)? as usize;
        let size = number::<8>(elf, section + 0x20)? as usize;
        let symbols = elf.get_mut(start..start + size).context("a table beyond the end")?;
        for symbol in symbols.chunks_exact_mut(SYMBOL_SIZE) {
            // The byte after the name: binding above, type below.
            if symbol[4] >> 4 == BIND_UNIQUE {
                symbol[4] = BIND_WEAK << 4 | symbol[4] & 0xf;
                changed += 1;
            }
        }
    }
    Ok(changed)
}

fn number<const SIZE: usize>(elf: &[u8], at: usize) -> Result<u64> {
    let bytes = elf.get(at..at + SIZE).context("cut off")?;
    Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn unique_symbols_become_weak_and_the_library_stays_whole() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("unique.cpp");
        let library = folder.path().join("libunique.so");
        fs::write(
            &source,
            "template <class T> struct S { static int count; }; template <class T> int S<T>::count = 1;\n\
             extern \"C\" int bump() { return ++S<int>::count; }\n",
        )
        .unwrap();
        let built = Command::new("c++").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(built.unwrap().success());
        let kinds = || {
            let nm = Command::new("nm").arg("-D").arg(&library).output().unwrap();
            let text = String::from_utf8(nm.stdout).unwrap();
            text.lines()
                .filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned))
                .collect::<Vec<_>>()
        };

        assert!(kinds().contains(&"u".to_owned()));
        weaken_unique_symbols(&library).unwrap();
        assert!(!kinds().contains(&"u".to_owned()));
        assert!(kinds().contains(&"V".to_owned()));
        assert_eq!(weaken(&mut fs::read(&library).unwrap()).unwrap(), 0);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(weaken(&mut b"hello, this is a text".to_vec()).is_err());
        assert!(weaken(&mut b"\x7fELF\x02\x01".to_vec()).is_err());
    }
}
