//! The BLAS behind MLX's float32 products: its threads, and its kernels where it chose badly.
//!
//! On Linux it is a private copy of OpenBLAS. An OpenBLAS older than the processor takes the
//! newcomer for a processor of 2004 and runs at a quarter of the speed; then we choose for it.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use super::foreign_threads;

/// The name under which the private copy is loaded.
const PRIVATE_COPY: &CStr = c"libmlxgen_openblas.so";

/// Called once, before the first product.
pub(super) fn init() {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    choose_kernels();
}

/// Sets the number of threads of the BLAS, if it is one that can be told: OpenBLAS. Others keep
/// what they have (Accelerate decides for itself, the reference BLAS has one). Returns whether it
/// was told.
pub fn set_blas_threads(threads: u32) -> bool {
    let Some(set) = symbol(c"openblas_set_num_threads") else { return false };
    let count = i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
    // SAFETY: OpenBLAS declares `void openblas_set_num_threads(int)`.
    let set: extern "C" fn(i32) = unsafe { transmute(set) };
    foreign_threads::called(c"openblas", || set(count));
    true
}

/// Which kernels the BLAS uses, such as `OpenBLAS Haswell`, if it tells.
pub fn blas_description() -> Option<String> {
    super::error::init();
    core_name().map(|core| format!("OpenBLAS {core}"))
}

/// Most multiplications of a product that the BLAS computes straight from its operands, if it does
/// that at all. Larger ones are copied into its own order first, which costs a product with a
/// single vector several times the product itself.
pub fn direct_product_limit() -> Option<usize> {
    static LIMIT: OnceLock<Option<usize>> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        super::error::init();
        match core_name()?.as_str() {
            // OpenBLAS's AVX-512 kernels take this way up to a million; measured, the best are
            // up to about 0.8 million.
            "SkylakeX" | "Cooperlake" | "SapphireRapids" => Some(1 << 19),
            _ => None,
        }
    })
}

fn core_name() -> Option<String> {
    let name = symbol(c"openblas_get_corename")?;
    // SAFETY: OpenBLAS declares `char *openblas_get_corename(void)`.
    let name: extern "C" fn() -> *const c_char = unsafe { transmute(name) };
    let name = name();
    // SAFETY: it returns a string constant.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// A function of our copy of OpenBLAS: a host may have another one under the same names.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names are NUL-terminated; the library is not loaded by this, only found, and it
    // is never unloaded because MLX depends on it.
    let address = unsafe {
        let copy = libc::dlopen(PRIVATE_COPY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if copy.is_null() { std::ptr::null_mut() } else { libc::dlsym(copy, name.as_ptr()) }
    };
    (!address.is_null()).then_some(address)
}

/// Kernels for processors without AVX2.
#[cfg(any(all(target_os = "linux", target_arch = "x86_64"), test))]
fn is_antique(core: &str) -> bool {
    const ANTIQUE: [&str; 12] = [
        "Katmai",
        "Coppermine",
        "Northwood",
        "Prescott",
        "Banias",
        "Core2",
        "Penryn",
        "Dunnington",
        "Nehalem",
        "Sandybridge",
        "Barcelona",
        "Opteron_SSE3",
    ];
    ANTIQUE.iter().any(|antique| antique.eq_ignore_ascii_case(core))
}

/// Replaces kernels of another age, unless the user has chosen them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn choose_kernels() {
    let chosen = std::env::var_os("OPENBLAS_CORETYPE").is_some_and(|core| !core.is_empty());
    if chosen || !core_name().is_some_and(|core| is_antique(&core)) {
        return;
    }
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512cd");
    let choice = if wide {
        c"OPENBLAS_CORETYPE=SkylakeX"
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        c"OPENBLAS_CORETYPE=Haswell"
    } else {
        return;
    };
    let (Some(forget), Some(detect)) = (symbol(c"gotoblas_dynamic_quit"), symbol(c"gotoblas_dynamic_init"))
    else {
        return;
    };
    // SAFETY: OpenBLAS declares both as `void (void)`. The first forgets the table of kernels, the
    // second fills it as the environment says. Nobody computes with this copy of OpenBLAS
    // meanwhile: only MLX calls it, and this runs before the first call of MLX.
    let (forget, detect) = unsafe {
        (transmute::<*mut c_void, extern "C" fn()>(forget), transmute::<*mut c_void, extern "C" fn()>(detect))
    };
    with_variable(choice, || {
        forget();
        detect();
    });
}

/// Runs `work` with one more environment variable. `setenv` may move and free the list while
/// another thread of the host reads it; so a longer list takes its place for the moment, and
/// neither list is ever freed.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn with_variable(assignment: &'static CStr, work: impl FnOnce()) {
    use std::sync::atomic::{AtomicPtr, Ordering};

    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: `environ` is an aligned pointer for the whole process, which C programs replace by
    // plain stores of a pointer; here it is only touched atomically.
    let list = unsafe { AtomicPtr::from_ptr((&raw mut environ).cast::<*mut c_void>()) };
    let old = list.load(Ordering::Acquire).cast::<*mut c_char>();
    let mut longer = vec![assignment.as_ptr().cast_mut()];
    let mut entry = old;
    // SAFETY: the list is an array of strings that ends with NULL.
    while !entry.is_null() && unsafe { !(*entry).is_null() } {
        // SAFETY: as above; the end was not reached yet.
        longer.push(unsafe { *entry });
        // SAFETY: the element was not the last, so the next one is inside the array.
        entry = unsafe { entry.add(1) };
    }
    longer.push(std::ptr::null_mut());
    let longer = Box::leak(longer.into_boxed_slice()).as_mut_ptr().cast::<c_void>();
    list.store(longer, Ordering::Release);
    work();
    // If somebody has set the environment meanwhile, theirs stays.
    let _ = list.compare_exchange(longer, old.cast(), Ordering::AcqRel, Ordering::Acquire);
}

/// Cores that can work at the same time, as far as the system tells: hardware threads that share
/// a core gain nothing here. At least one.
pub fn physical_cores() -> u32 {
    let logical = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    siblings_per_core().map_or(logical, |siblings| logical.div_ceil(siblings)).max(1)
}

#[cfg(target_os = "linux")]
fn siblings_per_core() -> Option<u32> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").ok()?;
    count_cpu_list(list.trim()).filter(|count| *count > 0)
}

#[cfg(not(target_os = "linux"))]
fn siblings_per_core() -> Option<u32> {
    None
}

/// Counts the processors in a list such as `0-1,8`.
#[cfg(any(target_os = "linux", test))]
fn count_cpu_list(list: &str) -> Option<u32> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                last.checked_sub(first).map(|span| span + 1)
            }
            None => part.parse::<u32>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn antique_kernels_are_replaced_on_a_processor_with_more() {
        assert!(is_antique("Prescott") && is_antique("prescott"));
        assert!(!is_antique("Haswell") && !is_antique("Zen") && !is_antique("SkylakeX"));
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        if std::env::var_os("OPENBLAS_CORETYPE").is_none() && is_x86_feature_detected!("avx2") {
            let before: Vec<_> = std::env::vars_os().collect();
            let told = blas_description().unwrap();
            assert!(!is_antique(told.trim_start_matches("OpenBLAS ")), "{told}");
            assert_eq!(std::env::vars_os().collect::<Vec<_>>(), before);
        }
    }

    #[test]
    fn the_thread_count_can_be_set() {
        assert_eq!(set_blas_threads(1), cfg!(target_os = "linux"));
    }

    #[test]
    fn processor_lists_are_counted() {
        assert_eq!(count_cpu_list("0"), Some(1));
        assert_eq!(count_cpu_list("0-1"), Some(2));
        assert_eq!(count_cpu_list("0,64"), Some(2));
        assert_eq!(count_cpu_list("0-3,8"), Some(5));
        assert_eq!(count_cpu_list("3-1"), None);
        assert_eq!(count_cpu_list(""), None);
        assert!(physical_cores() >= 1);
    }
}
