//! What the process itself uses, as the kernel says, under the names that every exporter has for it.

use super::book::{Entry, Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fs::{read_dir, read_to_string};

#[derive(Debug)]
pub struct ProcessMetrics;

const CPU: (&str, &str) = ("process_cpu_seconds_total", "Processor time, in user and kernel mode");
const RESIDENT: (&str, &str) = ("process_resident_memory_bytes", "Memory that is resident");
const VIRTUAL: (&str, &str) = ("process_virtual_memory_bytes", "Memory that is mapped");
const OPEN_FDS: (&str, &str) = ("process_open_fds", "File descriptors that are open");
const MAX_FDS: (&str, &str) = ("process_max_fds", "File descriptors that may be open");
const START: (&str, &str) = ("process_start_time_seconds", "When the process began");

/// What is known; nothing where the kernel does not say.
#[derive(Debug, Default, PartialEq)]
struct Used {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    open_fds: Option<u64>,
    max_fds: Option<u64>,
    start_seconds: Option<f64>,
}

impl ProcessMetrics {
    pub fn entries() -> Vec<Entry> {
        let kind = |name: &str| if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
        let entry = |(name, help)| Entry { name, kind: kind(name), labels: &[], words: Vec::new(), help };
        [CPU, RESIDENT, VIRTUAL, OPEN_FDS, MAX_FDS, START].map(entry).to_vec()
    }
}

impl Used {
    fn now() -> Used {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = read_to_string("/proc/self/stat").unwrap_or_default();
        let booted = read_to_string("/proc/stat").ok().and_then(|text| field(&text, "btime "));
        let memory = read_to_string("/proc/self/statm").unwrap_or_default();
        let page = rustix::param::page_size() as u64;
        let pages = |nth| memory.split(' ').nth(nth)?.trim().parse::<u64>().ok()?.checked_mul(page);
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        // The one that reads the directory is in it.
        let open = read_dir("/proc/self/fd").ok().map(|found| found.count().saturating_sub(1) as u64);
        let after_name = |nth| after_name(&stat, nth);
        Used {
            cpu_seconds: after_name(11).zip(after_name(12)).map(|(user, kernel)| (user + kernel) / ticks),
            resident_bytes: pages(1),
            virtual_bytes: pages(0),
            open_fds: open,
            max_fds: limits.current,
            start_seconds: after_name(19).zip(booted).map(|(since_boot, boot)| boot + since_boot / ticks),
        }
    }
}

/// The so-manieth number after the name of the process, which may have anything in it but the last `)`.
fn after_name(stat: &str, nth: usize) -> Option<f64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(nth)?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let used = Used::now();
        if let Some(seconds) = used.cpu_seconds {
            let name = CPU.0.strip_suffix("_total").unwrap_or(CPU.0);
            let metric = encoder.encode_descriptor(name, CPU.1, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        let whole = [
            (RESIDENT, used.resident_bytes),
            (VIRTUAL, used.virtual_bytes),
            (OPEN_FDS, used.open_fds),
            (MAX_FDS, used.max_fds),
        ];
        let whole = whole.map(|(named, value)| (named, value.map(|value| value as f64)));
        for ((name, help), value) in whole.into_iter().chain([(START, used.start_seconds)]) {
            let Some(value) = value else { continue };
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h1_a_process_says_what_it_uses() {
        let used = Used::now();
        let known = [used.resident_bytes, used.virtual_bytes, used.open_fds, used.max_fds];
        assert!(known.iter().all(|value| value.is_some_and(|value| value > 0)), "{used:?}");
        assert!(used.cpu_seconds.is_some(), "{used:?}");
        // In this century.
        assert!(used.start_seconds.is_some_and(|at| at > 946_684_800.0), "{used:?}");
    }

    #[test]
    fn h1_a_name_with_brackets_and_spaces_shifts_no_number() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0";
        assert_eq!(after_name(stat, 11), Some(250.0));
        assert_eq!(after_name(stat, 12), Some(50.0));
        assert_eq!(after_name("nothing", 11), None);
    }
}
