//! How often to try again, and for how long.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The wait after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(50);

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);

/// Tries that follow one another, until one succeeds or the time for it has passed.
#[derive(Debug)]
pub(crate) struct Backoff {
    retry_timeout: Duration,
    /// When the last try may begin: counted from the first failure.
    ends: Option<Instant>,
    wait: Duration,
}

impl Backoff {
    pub(crate) fn new(retry_timeout_ns: u64) -> Self {
        Self { retry_timeout: Duration::from_nanos(retry_timeout_ns), ends: None, wait: FIRST }
    }

    /// A try has succeeded.
    pub(crate) fn reset(&mut self) {
        self.ends = None;
        self.wait = FIRST;
    }

    /// A try has failed: waits before the next one; false, at once, when
    /// the time for it has passed.
    pub(crate) async fn again(&mut self) -> bool {
        let now = Instant::now();
        let ends = *self.ends.get_or_insert(now + self.retry_timeout);
        if now >= ends {
            return false;
        }
        sleep(self.wait.min(ends - now)).await;
        self.wait = (self.wait * 2).min(LONGEST);
        true
    }
}
