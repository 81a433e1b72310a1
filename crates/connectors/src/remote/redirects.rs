//! The rules for redirects: a server may lead to any host, but secrets do not go along.
//!
//! Headers, queries and credentials that a user gives for a host (scheme, name and port) are sent
//! to that host alone. A redirect from TLS to an address without it is refused.

use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};

/// Redirects of one request at most.
pub(crate) const REDIRECTS_MAX: usize = 10;

/// Whether two addresses are of one host: what was given for one may be sent to the other.
pub(crate) fn same_host(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme()
        && a.host_str() == b.host_str()
        && a.port_or_known_default() == b.port_or_known_default()
}

/// Whether an answer of `from` may lead to `to`, after a number of earlier redirects.
///
/// # Errors
/// Why not.
pub(crate) fn check(from: &Url, to: &Url, before: usize) -> Result<(), String> {
    if before >= REDIRECTS_MAX {
        return Err(format!("the server redirects more than {REDIRECTS_MAX} times"));
    }
    match (from.scheme(), to.scheme()) {
        ("http", "http" | "https") | ("https", "https") => Ok(()),
        ("https", "http") => {
            Err("the server redirects from https to http, where everybody can listen".into())
        }
        (_, other) => Err(format!("the server redirects to an address of '{other}'")),
    }
}

/// For a client that follows by itself: to other hosts only where it `leaves`. It must not tell
/// them where it comes from ([`reqwest::ClientBuilder::referer`]).
pub(crate) fn policy(leaves: bool) -> Policy {
    Policy::custom(move |attempt: Attempt<'_>| {
        let from = attempt.previous().last().cloned();
        // The first of those before is what was asked for.
        let before = attempt.previous().len().saturating_sub(1);
        let Some(from) = from else { return attempt.follow() };
        match check(&from, attempt.url(), before) {
            Err(reason) => attempt.error(reason),
            Ok(()) if !leaves && !same_host(&from, attempt.url()) => {
                attempt.error("the server redirects to another host, for which no keys were given")
            }
            Ok(()) => attempt.follow(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn a_host_is_scheme_name_and_port() {
        let host = url("https://a.org/x?secret");
        for same in ["https://a.org/", "https://A.org:443/y", "https://user:word@a.org/"] {
            assert!(same_host(&host, &url(same)), "{same}");
        }
        for other in ["http://a.org/", "https://a.org:444/", "https://b.a.org/", "https://a.org./"]
        {
            assert!(!same_host(&host, &url(other)), "{other}");
        }
    }

    #[test]
    fn redirects_have_a_bound_and_do_not_leave_tls() {
        let (safe, plain) = (url("https://a.org/"), url("http://a.org/"));
        assert_eq!(check(&plain, &safe, 0), Ok(()));
        assert_eq!(check(&safe, &url("https://b.org/"), REDIRECTS_MAX - 1), Ok(()));
        assert!(check(&safe, &plain, 0).unwrap_err().contains("https to http"));
        assert!(check(&safe, &safe, REDIRECTS_MAX).unwrap_err().contains("10 times"));
        assert!(check(&plain, &url("file:///etc/passwd"), 0).unwrap_err().contains("'file'"));
    }
}
