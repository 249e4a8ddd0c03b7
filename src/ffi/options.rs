//! Structs that grow: reading options of older and newer callers, filling what they ask about.

use super::guard::{self, Call};
use super::status::mlxgen_status;
use crate::base::{Code, Error, Result};

/// No version of a struct comes near it: a larger size is what was there before.
const LARGEST: usize = 4096;

/// A C struct that begins with its size.
///
/// # Safety
/// `repr(C)`, a `usize` first, and every field takes any bit pattern.
pub(super) unsafe trait Versioned: Copy {
    /// As the header calls it, without the prefix.
    const NAME: &'static str;
    /// Its size in the first version that had it.
    const FIRST_SIZE: usize;

    /// What `_init` fills in.
    fn defaults() -> Self;
}

/// Implements `Versioned` and freezes the layout of the first version: each field's offset.
///
/// The end is checked too: a struct that ends in padding would let a later version's field read
/// the padding of an older caller.
macro_rules! versioned {
    ($name:ident, $short:literal, $first_size:literal, { $($field:ident: $offset:literal),* }, $last:ident: $last_type:ty, $defaults:expr) => {
        // SAFETY: the layout is checked below; all fields are numbers and nullable pointers.
        unsafe impl $crate::ffi::options::Versioned for $name {
            const NAME: &'static str = $short;
            const FIRST_SIZE: usize = $first_size;

            fn defaults() -> Self {
                $defaults
            }
        }
        const _: () = {
            use std::mem::offset_of;
            $(assert!(offset_of!($name, $field) == $offset, "the layout is frozen");)*
            assert!(offset_of!($name, struct_size) == 0, "the size comes first");
            assert!(size_of::<$name>() >= $first_size, "fields are only added");
            assert!(
                offset_of!($name, $last) + size_of::<$last_type>() == size_of::<$name>(),
                "fill the padding at the end with a reserved field"
            );
        };
    };
}
pub(super) use versioned;

impl Call {
    /// The options at `pointer`, the argument `options`, with defaults for what an older caller
    /// does not know; NULL gives the defaults.
    pub(super) fn options<T: Versioned>(&self, pointer: *const T) -> Result<T> {
        self.options_of(pointer, "options")
    }

    /// The same for the argument `field`.
    pub(super) fn options_of<T: Versioned>(&self, pointer: *const T, field: &str) -> Result<T> {
        if pointer.is_null() { Ok(T::defaults()) } else { self.read(pointer, field) }
    }

    /// The same for the argument `field`, which cannot be NULL.
    pub(super) fn read<T: Versioned>(&self, pointer: *const T, field: &str) -> Result<T> {
        let mut options = T::defaults();
        let size = self.struct_size_of(pointer, field)?;
        let known = size.min(size_of::<T>());
        // SAFETY: by the promise of `Call`, `struct_size` bytes are readable at `pointer`; any bit
        // pattern is a value of `T`.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut options).cast::<u8>(), known)
        };
        for position in known..size {
            // SAFETY: as above; `position` is below `struct_size`.
            if unsafe { *pointer.cast::<u8>().add(position) } != 0 {
                let (name, known) = (T::NAME, size_of::<T>());
                return Err(Error::invalid_argument(format!(
                    "{field}, a mlxgen_{name}, has {size} bytes and is set at byte {position}, but this \
                     library knows only {known}: the option is newer than the library"
                ))
                .field(field)
                .position(position as u64));
            }
        }
        Ok(options)
    }

    /// INVALID_ARGUMENT unless the struct at `pointer`, the argument `out`, says a usable size.
    pub(super) fn struct_size<T: Versioned>(&self, pointer: *const T) -> Result<usize> {
        self.struct_size_of(pointer, "out")
    }

    /// The same for the argument `field`.
    pub(super) fn struct_size_of<T: Versioned>(&self, pointer: *const T, field: &str) -> Result<usize> {
        self.required(pointer, field)?;
        // SAFETY: by the promise of `Call`, a non-NULL struct begins with its size.
        let size = unsafe { pointer.cast::<usize>().read_unaligned() };
        check_size::<T>(size).map(|()| size)
    }

    /// Fills the struct at `pointer`, which `struct_size` has accepted, as far as the caller knows
    /// it, and clears what only the caller knows.
    pub(super) fn fill<T: Versioned>(&self, pointer: *mut T, value: &T) -> Result<()> {
        let size = self.struct_size(pointer)?;
        // SAFETY: by the promise of `Call`, `struct_size` bytes are writable at `pointer`.
        unsafe { fill_bytes(pointer, value, size) };
        Ok(())
    }
}

/// The `_init` function of `T`.
///
/// # Safety
/// `size` bytes must be writable at `pointer`, unless it is NULL.
pub(super) unsafe fn init<T: Versioned>(pointer: *mut T, size: usize) -> mlxgen_status {
    let fill = |call: &Call| {
        call.required(pointer, T::NAME)?;
        check_size::<T>(size)?;
        // SAFETY: the caller promises `size` writable bytes.
        unsafe { fill_bytes(pointer, &T::defaults(), size) };
        Ok(Code::Ok)
    };
    // SAFETY: there are no other pointers than the struct's.
    unsafe { guard::fallible(std::ptr::null_mut(), [], fill) }
}

fn check_size<T: Versioned>(size: usize) -> Result<()> {
    let (name, first) = (T::NAME, T::FIRST_SIZE);
    let rule = match size {
        _ if size < first => format!("no version of it has fewer than {first} bytes"),
        _ if size > LARGEST => format!("no version of it has more than {LARGEST} bytes"),
        _ => return Ok(()),
    };
    Err(Error::invalid_argument(format!(
        "struct_size of mlxgen_{name} is {size}, but {rule}: was mlxgen_{name}_init called?"
    ))
    .field("struct_size"))
}

/// # Safety
/// `size` bytes must be writable at `pointer`.
unsafe fn fill_bytes<T: Versioned>(pointer: *mut T, value: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: `size` covers both ranges and the leading number; a `T` has `known` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), pointer.cast::<u8>(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, size - known);
        pointer.cast::<usize>().write_unaligned(size);
    }
}

/// The meaning of an enumeration's number.
pub(super) fn choice<T: Copy>(value: i32, field: &str, meanings: &[(i32, T)]) -> Result<T> {
    let found = meanings.iter().find(|(number, _)| *number == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<String> = meanings.iter().map(|(number, _)| number.to_string()).collect();
        Error::invalid_argument(format!("{field} is {value}; it can be {}", known.join(", "))).field(field)
    })
}

pub(super) fn flag(value: i32, field: &str) -> Result<bool> {
    choice(value, field, &[(0, false), (1, true)])
}

/// INVALID_ARGUMENT if other bits than those of `known` are set.
pub(super) fn bits(value: u32, known: u32, field: &str) -> Result<()> {
    if value & !known == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{field} has unknown bits: {:#x}", value & !known)).field(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second version of a struct that began with `first` alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Second {
        struct_size: usize,
        first: u64,
        second: u64,
    }

    versioned!(Second, "second", 16, { first: 8, second: 16 }, second: u64, Second {
        struct_size: 0,
        first: 1,
        second: 2
    });

    /// What a caller of a third version passes.
    #[repr(C)]
    struct Third {
        known: Second,
        third: u64,
    }

    fn read(pointer: *const Second) -> Result<Second> {
        let mut answer = Err(Error::internal("not run"));
        let body = |call: &Call| {
            answer = call.options(pointer);
            Ok(Code::Ok)
        };
        // SAFETY: the tests pass NULL or structs with as many bytes as they say.
        unsafe { guard::fallible(std::ptr::null_mut(), [], body) };
        answer
    }

    #[test]
    fn older_and_newer_callers_are_understood() {
        let none = read(std::ptr::null()).unwrap();
        assert_eq!((none.first, none.second), (1, 2));
        let older = [16_usize, 7];
        let older = read((&raw const older).cast()).unwrap();
        assert_eq!((older.first, older.second), (7, 2), "what an older caller lacks is the default");
        let mut newer = Third { known: Second { struct_size: 32, first: 7, second: 8 }, third: 0 };
        assert_eq!(read((&raw const newer).cast()).unwrap().second, 8);
        newer.third = 1 << 40;
        let refused = read((&raw const newer).cast()).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.detail().field.as_deref(), Some("options"));
        assert!(refused.message().contains("mlxgen_second"), "{}", refused.message());
        assert_eq!(refused.detail().position, Some(29));
        for size in [0, 8, 15, LARGEST + 1, usize::MAX] {
            newer.known.struct_size = size;
            let refused = read((&raw const newer).cast()).unwrap_err();
            assert_eq!(refused.detail().field.as_deref(), Some("struct_size"), "{size}");
            let rule = if size < 16 { "no version of it has fewer than 16" } else { "more than 4096" };
            let text = refused.message();
            assert!(text.contains(&size.to_string()) && text.contains(rule), "{text}");
        }
    }

    #[test]
    fn init_clears_what_only_the_caller_knows() {
        let mut newer = Third { known: Second { struct_size: 9, first: 9, second: 9 }, third: 9 };
        let pointer = (&raw mut newer).cast::<Second>();
        // SAFETY: the sizes are at most that of the struct behind the pointer.
        unsafe {
            assert_eq!(init(pointer, 32), 0);
            assert_eq!((newer.known, newer.third), (Second { struct_size: 32, first: 1, second: 2 }, 0));
            newer.known.second = 9;
            assert_eq!(init(pointer, 16), 0);
            assert_eq!(newer.known, Second { struct_size: 16, first: 1, second: 9 }, "not beyond its size");
            assert_eq!(init(pointer, 15), Code::InvalidArgument as i32);
            assert_eq!(init(std::ptr::null_mut::<Second>(), 24), Code::InvalidArgument as i32);
        }
    }

    #[test]
    fn numbers_without_a_meaning_are_refused_by_name() {
        assert_eq!(choice(2, "device", &[(1, 'a'), (2, 'b')]).unwrap(), 'b');
        let refused = flag(2, "logprobs").unwrap_err();
        assert_eq!(refused.detail().field.as_deref(), Some("logprobs"));
        assert!(bits(3, 3, "flags").is_ok());
        assert!(bits(4, 3, "flags").unwrap_err().message().contains("0x4"));
    }
}
