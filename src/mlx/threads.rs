//! The thread budget of the BLAS behind MLX's float32 products.

/// Sets the number of threads of the BLAS, if it is one that can be told: OpenBLAS. Others keep
/// what they have (Accelerate decides for itself, the reference BLAS has one). Returns whether it
/// was told.
pub fn set_blas_threads(threads: u32) -> bool {
    #[cfg(unix)]
    {
        // SAFETY: the name is NUL-terminated; looking a symbol up has no other effect.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"openblas_set_num_threads".as_ptr()) };
        if !symbol.is_null() {
            let count = i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
            // SAFETY: OpenBLAS declares `void openblas_set_num_threads(int)`.
            let set: extern "C" fn(i32) = unsafe { std::mem::transmute(symbol) };
            set(count);
            return true;
        }
    }
    let _ = threads;
    false
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
