//! How much memory this process may use, and how much of it what is kept of conversations gets without a setting.

use std::path::{Component, Path};

/// Share of the memory for conversations without a slot, and as much again for states of prompts.
const SHARE: u64 = 8;

/// More is of no use: what is read again from so far back is on disk, or was forgotten.
const MOST: u64 = 64 << 30;

/// Bytes for each of the two where nothing is set: an eighth of the memory; 1 GiB where it is not known how much there is.
#[must_use]
pub fn host_cache() -> usize {
    let kinds = ["/proc/meminfo", "/proc/self/cgroup"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let group = Path::new("/sys/fs/cgroup");
    let limit = usable(
        &kinds[0],
        limit_of(&kinds[1], |folder| {
            let path = group.join(folder.strip_prefix("/").unwrap_or(folder)).join("memory.max");
            std::fs::read_to_string(path).ok()
        }),
    );
    limit.map_or(crate::engine::DEFAULT_HOST_CACHE, |bytes| (bytes / SHARE).min(MOST) as usize)
}

/// The machine's memory, or what the control group may use of it.
fn usable(meminfo: &str, group: Option<u64>) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map(|kib| kib << 10);
    total.into_iter().chain(group).min()
}

/// The smallest limit of a control group (version 2) and those that it is in; `read` gives a group's `memory.max`.
fn limit_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    if own.components().any(|part| part == Component::ParentDir) {
        // It is outside of what this process sees.
        return None;
    }
    own.ancestors().filter_map(|group| read(group)?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_the_machine_and_the_control_groups_counts() {
        let meminfo = "MemTotal:       65536000 kB\nMemFree:         1000 kB\n";
        assert_eq!(usable(meminfo, None), Some(65_536_000 << 10));
        assert_eq!(usable(meminfo, Some(8 << 30)), Some(8 << 30));
        assert_eq!(usable("", Some(1)), Some(1));
        assert_eq!(usable("nothing of the kind", None), None);
        let limits = |group: &Path| match group.to_str() {
            Some("/system.slice/openjet.service") => Some("max\n".to_owned()),
            Some("/system.slice") => Some("34359738368\n".to_owned()),
            _ => None,
        };
        assert_eq!(limit_of("0::/system.slice/openjet.service\n", limits), Some(32 << 30));
        assert_eq!(limit_of("0::/elsewhere\n", limits), None);
        assert_eq!(limit_of("3:memory:/old\n", limits), None);
        assert_eq!(limit_of("0::/../outside\n", limits), None);
    }

    #[test]
    fn this_machine_has_some() {
        assert!((16 << 20..=MOST as usize).contains(&host_cache()), "{}", host_cache());
    }
}
