//! What the machine has and could still give to this process.

#[cfg(target_os = "linux")]
use std::fs;
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Address space that stays free below a limit on it: for stacks of threads and arenas of malloc.
#[cfg(target_os = "linux")]
const ADDRESS_MARGIN: u64 = 128 << 20;

/// Bytes of memory that this process may count on at most: the machine's or its control group's.
pub fn total() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| platform_total().unwrap_or(4 << 30))
}

/// Bytes that can be taken now without swapping, being killed, or meeting a limit.
/// `u64::MAX` when the system does not tell.
pub fn available() -> u64 {
    platform_available().unwrap_or(u64::MAX)
}

#[cfg(target_vendor = "apple")]
fn platform_total() -> Option<u64> {
    super::os::physical_memory()
}

#[cfg(target_vendor = "apple")]
fn platform_available() -> Option<u64> {
    super::os::available_memory()
}

#[cfg(target_os = "linux")]
fn platform_total() -> Option<u64> {
    let machine = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let groups = groups().iter().filter_map(Group::limit);
    Some(groups.fold(machine, u64::min))
}

#[cfg(target_os = "linux")]
fn platform_available() -> Option<u64> {
    let machine = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let groups = groups().iter().filter_map(Group::available);
    let least = groups.fold(machine, u64::min);
    Some(least.min(address_space().unwrap_or(u64::MAX)))
}

/// What `ulimit -v` and `ulimit -d` leave.
#[cfg(target_os = "linux")]
fn address_space() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let space = soft_limit(&limits, "Max address space");
    let data = soft_limit(&limits, "Max data size");
    if space.is_none() && data.is_none() {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let left = |limit: Option<u64>, used: &str| {
        let used = field(&status, used)?;
        Some(limit?.saturating_sub(used).saturating_sub(ADDRESS_MARGIN))
    };
    [left(space, "VmSize:"), left(data, "VmData:")].into_iter().flatten().min()
}

/// The bytes of a line such as `MemTotal:  1024 kB`.
#[cfg(target_os = "linux")]
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

/// The soft limit of a line of `/proc/self/limits`; `None` when unlimited.
#[cfg(target_os = "linux")]
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A control group that bounds this process's memory.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Group {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// Of `memory.stat`: file pages that can be dropped.
    droppable: &'static str,
}

#[cfg(target_os = "linux")]
impl Group {
    fn limit(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.limit)).ok()?.trim().parse().ok()
    }

    fn available(&self) -> Option<u64> {
        let limit = self.limit()?;
        let usage: u64 = fs::read_to_string(self.folder.join(self.usage)).ok()?.trim().parse().ok()?;
        let statistics = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let droppable =
            statistics.lines().find_map(|line| line.strip_prefix(self.droppable)?.trim().parse().ok());
        Some(limit.saturating_sub(usage.saturating_sub(droppable.unwrap_or(0))))
    }
}

/// The groups of this process and their parents that set a limit. They are looked up once.
#[cfg(target_os = "linux")]
fn groups() -> &'static [Group] {
    static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();
    GROUPS.get_or_init(|| {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        find_groups(&membership, Path::new("/sys/fs/cgroup"))
    })
}

#[cfg(target_os = "linux")]
fn find_groups(membership: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, limit, usage, droppable) = if controllers.is_empty() {
            (root.to_owned(), "memory.max", "memory.current", "inactive_file ")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            let names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ");
            (root.join("memory"), names.0, names.1, names.2)
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        // Inside a container the path may be that of the host; then only the root is there.
        for ancestor in path.ancestors() {
            let group = Group { folder: root.join(ancestor), limit, usage, droppable };
            if group.limit().is_some() {
                groups.push(group);
            }
        }
    }
    groups
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells() {
        assert!(total() > 64 << 20);
        assert!(available() > 0 && available() < u64::MAX);
    }

    #[test]
    fn lines_of_proc_are_read() {
        let text = "MemTotal:       24676500 kB\nMemAvailable:   12 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!(field(text, "MemFree:"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space  4096  unlimited  bytes\n\
                      Max data size  unlimited  unlimited  bytes\n";
        assert_eq!(soft_limit(limits, "Max address space"), Some(4096));
        assert_eq!(soft_limit(limits, "Max data size"), None);
    }

    #[test]
    fn control_groups_and_their_parents_bound_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "1000000\n");
        write("a/memory.current", "900000\n");
        write("a/memory.stat", "anon 7\ninactive_file 300000\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "5000\n");
        write("memory/c/memory.usage_in_bytes", "1000\n");
        let groups = find_groups("4:cpu:/z\n3:memory:/c/gone\n0::/a/b\n", root.path());
        let limits: Vec<_> = groups.iter().filter_map(Group::limit).collect();
        assert_eq!(limits, [5000, 1_000_000]);
        let available: Vec<_> = groups.iter().filter_map(Group::available).collect();
        assert_eq!(available, [4000, 400_000]);
    }
}
