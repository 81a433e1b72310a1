//! The functions of the program in a checkpoint: a job goes on with the ones that it began with.

use std::collections::BTreeMap;

use dataflow::job::JobFunction;

/// The counter of a checkpoint that holds the fingerprint of a function begins so.
const FUNCTION: &str = "function ";

/// The counters that hold the fingerprints of a job's functions.
pub(super) fn counters(functions: &[JobFunction]) -> impl Iterator<Item = (String, u64)> + '_ {
    functions.iter().map(|of| (format!("{FUNCTION}{}", of.name), of.fingerprint))
}

/// The first function of a job that was another one in the checkpoint of these counters. One whose
/// fingerprint is not known, now or then, is taken for the same.
pub(super) fn changed<'f>(
    functions: &'f [JobFunction],
    saved: &BTreeMap<String, u64>,
) -> Option<&'f str> {
    let is_changed = |of: &&JobFunction| {
        let was = saved.get(&format!("{FUNCTION}{}", of.name)).copied().unwrap_or(0);
        was != 0 && of.fingerprint != 0 && was != of.fingerprint
    };
    functions.iter().find(is_changed).map(|of| of.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(all: &[(&str, u64)]) -> Vec<JobFunction> {
        let function = |(name, fingerprint): &(&str, u64)| JobFunction {
            name: (*name).to_owned(),
            fingerprint: *fingerprint,
            volatile: false,
        };
        all.iter().map(function).collect()
    }

    #[test]
    fn a_function_of_another_fingerprint_is_found() {
        let saved = counters(&functions(&[("a", 1), ("b", 2), ("c", 0)])).collect();
        assert_eq!(changed(&functions(&[("a", 1), ("b", 2), ("c", 5), ("new", 9)]), &saved), None);
        assert_eq!(changed(&functions(&[("a", 1), ("b", 3)]), &saved), Some("b"));
        assert_eq!(changed(&functions(&[("a", 0)]), &saved), None);
        assert_eq!(changed(&functions(&[("a", 1)]), &BTreeMap::new()), None);
    }
}
