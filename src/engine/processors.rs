//! How many threads are useful.

use std::thread;

/// Physical cores that this process may use; at least 1.
pub fn physical() -> u32 {
    let usable =
        thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    match cores() {
        Some(cores) if cores > 0 => cores.min(usable),
        _ => usable,
    }
}

/// Distinct sets of sibling hardware threads.
#[cfg(target_os = "linux")]
fn cores() -> Option<u32> {
    let mut siblings = std::collections::HashSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(set) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            siblings.insert(set);
        }
    }
    u32::try_from(siblings.len()).ok()
}

#[cfg(not(target_os = "linux"))]
fn cores() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_a_core() {
        assert!(super::physical() >= 1);
    }
}
