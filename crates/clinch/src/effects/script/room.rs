//! How much memory is left for more processes: of the machine, and of the container if we are in one.

use std::fs::read_to_string;

/// `None` where nobody says.
pub fn free_bytes() -> Option<u64> {
    let of_machine = read_to_string("/proc/meminfo").ok().and_then(|info| free_of_machine(&info));
    let ours = |file: &str| read_to_string(format!("/sys/fs/cgroup/{file}")).unwrap_or_default();
    let of_container = free_of_container(&ours("memory.max"), &ours("memory.current"), &ours("memory.stat"));
    of_machine.into_iter().chain(of_container).min()
}

fn free_of_machine(info: &str) -> Option<u64> {
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    free.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Files that were read are in memory for as long as nobody else needs it.
fn free_of_container(most: &str, held: &str, of_which: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (most, held) = (number(most)?, number(held)?);
    let files = of_which.lines().find_map(|line| number(line.strip_prefix("inactive_file ")?)).unwrap_or(0);
    Some(most.saturating_sub(held.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_what_is_free_is_read_as_the_kernel_writes_it() {
        let info = "MemTotal:       24689764 kB\nMemFree:         100 kB\nMemAvailable:   12345 kB\n";
        assert_eq!(free_of_machine(info), Some(12_345 << 10));
        assert_eq!(free_of_machine("MemTotal: 1 kB\n"), None);
        let of_which = "anon 5\ninactive_file 30\nactive_file 7\n";
        assert_eq!(free_of_container("100\n", "80\n", of_which), Some(50));
        assert_eq!(free_of_container("100\n", "120\n", ""), Some(0));
        assert_eq!(free_of_container("max\n", "80\n", of_which), None, "no limit");
        assert_eq!(free_of_container("", "", ""), None, "no container");
        assert!(free_bytes().is_some_and(|free| free > 0));
    }
}
