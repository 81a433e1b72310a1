//! One request, until it is answered or refused.

use dataflow::error::ConnectorError;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

use crate::remote::{Backoff, chain};

/// What is asked, and for how long.
#[derive(Clone)]
pub(super) struct Request {
    client: Client,
    url: Url,
    place: String,
    patience_ns: u64,
}

impl Request {
    pub(super) fn new(client: Client, url: Url, patience_ns: u64) -> Self {
        let place = shown(&url);
        Self { client, url, place, patience_ns }
    }

    /// The address without what may be secret in it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    /// Asks until there is an answer that is a success or a 304. What may pass — no connection, a
    /// server in trouble, too many requests — is tried again.
    ///
    /// # Errors
    /// When patience ends, or the answer says that asking again is of no use.
    pub(super) async fn get(
        &self,
        headers: &HeaderMap,
        backoff: &mut Backoff,
    ) -> Result<Response, ConnectorError> {
        loop {
            let asked = self.client.get(self.url.clone()).headers(headers.clone()).send().await;
            let error = match asked {
                Ok(answer) => {
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
        let hint = Some("check 'url'; 'patience' is how long to try again".into());
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
