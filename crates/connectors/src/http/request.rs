//! One request, until it is answered or refused.
//!
//! Redirects are followed here and not by the client, which would take most headers along: those of
//! the table go to its own host alone, and not to one to which the server leads, nor back from
//! there.

use dataflow::error::ConnectorError;
use reqwest::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

use crate::remote::{Backoff, chain, redirects};

/// A request, and how long to repeat it.
#[derive(Clone)]
pub(super) struct Request {
    client: Client,
    url: Url,
    /// The table's headers.
    given: HeaderMap,
    place: String,
    retry_timeout_ns: u64,
}

impl Request {
    /// `client` follows no redirects.
    pub(super) fn new(client: Client, url: Url, given: HeaderMap, retry_timeout_ns: u64) -> Self {
        let place = shown(&url);
        Self { client, url, given, place, retry_timeout_ns }
    }

    /// The address without what may be secret in it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn retry_timeout_ns(&self) -> u64 {
        self.retry_timeout_ns
    }

    /// Asks until there is an answer that is a success or a 304. What may pass — no connection, a
    /// server in trouble, too many requests — is tried again.
    ///
    /// # Errors
    /// When the time for tries has passed, or the answer says that asking again is of no use.
    pub(super) async fn get(
        &self,
        headers: &HeaderMap,
        backoff: &mut Backoff,
    ) -> Result<Response, ConnectorError> {
        loop {
            let error = match self.ask(headers).await {
                Ok(answer) => {
                    let answer = answer?;
                    let status = answer.status();
                    if status.is_success() || status == StatusCode::NOT_MODIFIED {
                        return Ok(answer);
                    }
                    let error = self.refused(status, answer.headers().get(RETRY_AFTER));
                    let passes = status.is_server_error()
                        || status == StatusCode::TOO_MANY_REQUESTS
                        || status == StatusCode::REQUEST_TIMEOUT;
                    if !passes {
                        return Err(error);
                    }
                    error
                }
                Err(error) => self.unreachable(error),
            };
            tracing::debug!(%error, "asking again");
            if !backoff.again().await {
                return Err(error);
            }
        }
    }

    /// Asks once, wherever the server leads.
    async fn ask(
        &self,
        headers: &HeaderMap,
    ) -> Result<Result<Response, ConnectorError>, reqwest::Error> {
        let (mut url, mut given) = (self.url.clone(), Some(&self.given));
        let mut redirects = 0;
        loop {
            let mut all = given.cloned().unwrap_or_default();
            all.extend(headers.clone());
            let answer = self.client.get(url.clone()).headers(all).send().await?;
            let to = match answer.headers().get(LOCATION) {
                Some(to) if answer.status().is_redirection() => to,
                _ => return Ok(Ok(answer)),
            };
            if answer.status() == StatusCode::NOT_MODIFIED {
                return Ok(Ok(answer));
            }
            let to = to.to_str().ok().and_then(|to| url.join(to).ok());
            let Some(mut to) = to else {
                return Ok(Err(self.misled("the server redirects to what is no address".into())));
            };
            if let Err(reason) = redirects::check(&url, &to, redirects) {
                return Ok(Err(self.misled(reason)));
            }
            given = given.filter(|_| redirects::same_host(&self.url, &to));
            let names_user = !to.username().is_empty() || to.password().is_some();
            if given.is_some() && !names_user {
                // Both fail only for addresses that cannot have them.
                let _ = to.set_username(self.url.username());
                let _ = to.set_password(self.url.password());
            }
            (url, redirects) = (to, redirects + 1);
        }
    }

    fn misled(&self, message: String) -> ConnectorError {
        let hint = Some("give the address to which it leads as 'url', if you trust it".into());
        ConnectorError::Io { place: self.place.clone(), message, hint }
    }

    fn refused(&self, status: StatusCode, retry_after: Option<&HeaderValue>) -> ConnectorError {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Some("credentials are given by 'header.authorization'".to_owned())
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => Some("check 'url'".to_owned()),
            StatusCode::TOO_MANY_REQUESTS => {
                let after = retry_after.and_then(|value| value.to_str().ok());
                let after = after.map(|after| format!("; the server names {after} s"));
                Some(format!("ask less often: 'interval'{}", after.unwrap_or_default()))
            }
            _ => None,
        };
        let message = format!("the server answers {status}");
        ConnectorError::Io { place: self.place.clone(), message, hint }
    }

    /// A request without an answer.
    fn unreachable(&self, error: reqwest::Error) -> ConnectorError {
        let timed_out = error.is_timeout();
        let error = error.without_url();
        let message = if timed_out {
            format!("no answer within {} s", super::TIMEOUT.as_secs())
        } else {
            format!("cannot be reached: {}", chain(&error))
        };
        let hint = Some("check 'url'; 'retry.timeout' is how long to try again".into());
        ConnectorError::Io { place: self.place.clone(), message, hint }
    }

    /// An answer that broke off.
    pub(super) fn broken(&self, error: reqwest::Error) -> ConnectorError {
        crate::remote::lost(&self.place, chain(&error.without_url()))
    }
}

/// An address for messages: without user, password and query, where secrets are.
fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    // Both fail only for addresses that cannot have them.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    if shown.query().is_some() {
        shown.set_query(Some("…"));
    }
    shown.to_string().replace("%E2%80%A6", "…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_an_address_are_not_shown() {
        let url = Url::parse("https://me:secret@example.org:8443/a.json?token=secret#x").unwrap();
        assert_eq!(shown(&url), "https://example.org:8443/a.json?…");
    }
}
