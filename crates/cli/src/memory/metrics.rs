//! The metrics of a memory server, for Prometheus: `memory --metrics`.

use millstream::pool::Stat;

/// A metric of a memory server.
struct MemoryMetric {
    /// Behind `millstream_pool_`.
    name: &'static str,
    help: &'static str,
    /// Whether it only grows.
    is_counter: bool,
    value: fn(&Stat) -> u64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Stat) -> u64) -> MemoryMetric {
    MemoryMetric { name, help, is_counter: false, value }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Stat) -> u64) -> MemoryMetric {
    MemoryMetric { name, help, is_counter: true, value }
}

const REFUSALS: &str = "Requests and clients that were refused; a load without room counts once";

const METRICS: [MemoryMetric; 14] = [
    gauge("bytes", "Bytes of extents, manifests and definitions", |stat| stat.bytes),
    gauge("budget_bytes", "Bytes that the server may hold", |stat| stat.bytes_max),
    gauge("extents", "Extents", |stat| stat.extents.into()),
    gauge("tables", "Tables", |stat| stat.tables.into()),
    gauge("versions", "Versions that are kept", |stat| stat.versions.into()),
    gauge("damaged", "Tables of the directory whose bytes were lost", |stat| stat.damaged.into()),
    gauge("leases", "Leases that hold a version", |stat| stat.leases.into()),
    gauge("loads", "Loads under way", |stat| stat.loads.into()),
    gauge("clients", "Clients", |stat| stat.clients.into()),
    gauge("mapped", "Clients that map the memory", |stat| stat.mapped.into()),
    counter("reads", "READs of blocks that the processor served", |stat| stat.reads),
    counter("read_bytes", "Bytes of these READs", |stat| stat.read_bytes),
    counter("refusals", REFUSALS, |stat| stat.refusals),
    gauge("up", "1 while the server serves", |_| 1),
];

/// The page, in the format OpenMetrics.
pub(super) fn page(stat: &Stat) -> String {
    let escaped = stat.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page = String::new();
    for MemoryMetric { name, help, is_counter, value } in METRICS {
        let (kind, suffix) = if is_counter { ("counter", "_total") } else { ("gauge", "") };
        let value = value(stat);
        page += &format!(
            "# HELP millstream_pool_{name} {help}.\n# TYPE millstream_pool_{name} {kind}\n\
             millstream_pool_{name}{suffix}{{server=\"{escaped}\"}} {value}\n"
        );
    }
    page + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_metric_once_and_names_the_server() {
        let stat = Stat { name: "m\"0".into(), bytes: 77, reads: 5, ..Stat::default() };
        let page = page(&stat);
        assert!(page.contains("\nmillstream_pool_reads_total{server=\"m\\\"0\"} 5\n"), "{page}");
        assert!(page.contains("\nmillstream_pool_bytes{server=\"m\\\"0\"} 77\n"), "{page}");
        assert_eq!(page.matches("# TYPE ").count(), METRICS.len());
        assert!(page.ends_with("\n# EOF\n"));
    }

    #[test]
    fn the_reference_page_is_complete() {
        let page = include_str!("../../../../docs/metrics.md");
        for MemoryMetric { name, help, is_counter, .. } in METRICS {
            let suffix = if is_counter { "_total" } else { "" };
            assert!(
                page.contains(&format!("| `millstream_pool_{name}{suffix}` | {help} |")),
                "{name}"
            );
        }
    }
}
