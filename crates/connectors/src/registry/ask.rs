//! Requests to a registry, until they are answered or refused.

use std::sync::Arc;
use std::time::Duration;

use dataflow::error::ConnectorError;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};

use crate::options::{OptionReader, refuse};
use crate::remote::{Backoff, KEEPALIVE, chain, redirects};

/// How long the other end may take to accept a connection, and to say something after a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How long a registry that cannot be reached is asked again, where 'retry.timeout' says nothing,
/// as brokers are.
const RETRY_TIMEOUT_NS: u64 = 300_000_000_000;

/// The media type that registries accept.
const CONTENT: &str = "application/vnd.schemaregistry.v1+json";

/// A registry that is asked.
#[derive(Clone)]
pub(super) struct Asked {
    client: Client,
    url: Url,
    place: Arc<str>,
    /// The name of the format, which begins those of the options.
    format: Arc<str>,
    credentials: Credentials,
    retry_timeout_ns: u64,
}

impl Asked {
    pub(super) fn new(options: OptionReader<'_>, format: &str) -> Result<Self, ConnectorError> {
        let key = |name: &str| format!("{format}.{name}");
        let url_key = key("url");
        let older = options.text(&key("schema-registry.url"));
        let hint = format!("write '{url_key}' = 'http://localhost:8081'");
        let text = match options.text(&url_key).or(older) {
            Some(text) => text,
            None => options.required(&url_key, &hint)?,
        };
        let unfit = |message: String| refuse(&url_key, message, Some(hint.clone()));
        let mut url = Url::parse(text).map_err(|error| unfit(format!("it is none: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(unfit(format!("'{}' is no way to ask", url.scheme())));
        }
        let user = (url.username().to_owned(), url.password().unwrap_or_default().to_owned());
        let credentials = credentials(options, &key, user)?;
        // Both fail only for addresses that cannot have them.
        let (_, _) = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.set_fragment(None);
        let mut builder = Client::builder()
            .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
            .redirect(redirects::policy(false))
            .referer(false)
            .tcp_keepalive(KEEPALIVE)
            .connect_timeout(TIMEOUT)
            .read_timeout(TIMEOUT);
        let ca = key("ssl.ca.location");
        if let Some(path) = options.text(&ca) {
            let bytes = std::fs::read(path);
            let bytes = bytes.map_err(|error| refuse(&ca, format!("{path}: {error}"), None))?;
            let certificates = Certificate::from_pem_bundle(&bytes)
                .map_err(|error| refuse(&ca, format!("{path}: {}", chain(&error)), None))?;
            for certificate in certificates {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.build().map_err(|error| unfit(chain(&error)))?;
        let retry_timeout_ns = options.duration_ns("retry.timeout")?.unwrap_or(RETRY_TIMEOUT_NS);
        let place = format!("schema registry {url}").into();
        Ok(Self { client, url, place, format: format.into(), credentials, retry_timeout_ns })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    fn at(&self, path: &[&str]) -> Url {
        let mut url = self.url.clone();
        // It fails only for addresses that have no path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Asks for something. `Err` within: the registry says that it is not there.
    pub(super) async fn get(&self, path: &[&str]) -> Result<Result<Value, String>, ConnectorError> {
        self.ask(|| self.client.get(self.at(path))).await
    }

    /// Gives a schema to a subject, and gets its number.
    pub(super) async fn register(
        &self,
        subject: &str,
        kind: &str,
        text: &str,
    ) -> Result<u32, ConnectorError> {
        let mut body = json!({"schema": text});
        // Older registries know Avro alone, and not this word.
        if kind != "AVRO" {
            body["schemaType"] = json!(kind);
        }
        let body = body.to_string();
        let request = || {
            let request = self.client.post(self.at(&["subjects", subject, "versions"]));
            request.header(CONTENT_TYPE, CONTENT).body(body.clone())
        };
        let answer = self.ask(request).await?.map_err(|reason| {
            self.failed(format!("it has no subject '{subject}': {reason}"), None)
        })?;
        let id = answer.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| self.failed("its answer to a new schema has no number".into(), None))
    }

    async fn ask(
        &self,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Result<Value, String>, ConnectorError> {
        let mut backoff = Backoff::new(self.retry_timeout_ns);
        let mut tries = 0;
        loop {
            let error = match self.ask_once(request()).await {
                Outcome::Answer(answer) => return Ok(answer),
                Outcome::Refused(error) => return Err(error),
                Outcome::MayPass(error) => error,
            };
            if tries == 0 {
                tracing::warn!(target: "registry", %error, "it is asked again: rows wait for it");
            }
            tries += 1;
            if !backoff.again().await {
                return Err(error);
            }
        }
    }

    async fn ask_once(&self, mut request: RequestBuilder) -> Outcome {
        request = match &self.credentials {
            Credentials::None => request,
            Credentials::User { name, word } => request.basic_auth(name, Some(word)),
            Credentials::Token(token) => request.bearer_auth(token),
        };
        let mut answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Outcome::MayPass(self.unreachable(error)),
        };
        let status = answer.status();
        let mut bytes = vec![];
        loop {
            match answer.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                    bytes.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => {
                    let message = format!("its answer has more than {ANSWER_BYTES_MAX} bytes");
                    return Outcome::Refused(self.failed(message, None));
                }
                Ok(None) => break,
                Err(error) => return Outcome::MayPass(self.unreachable(error)),
            }
        }
        let answer: Option<Value> = serde_json::from_slice(&bytes).ok();
        let detail =
            answer.as_ref().and_then(|answer| answer.get("message")).and_then(Value::as_str);
        let detail =
            detail.map(|detail| format!(": {}", detail.chars().take(500).collect::<String>()));
        let detail = detail.unwrap_or_default();
        match status {
            _ if status.is_success() => match answer {
                Some(answer) => Outcome::Answer(Ok(answer)),
                None => {
                    let hint = format!("check '{}.url'", self.format);
                    let message = "its answer is no JSON: is it a schema registry?".into();
                    Outcome::Refused(self.failed(message, Some(hint)))
                }
            },
            StatusCode::NOT_FOUND => {
                Outcome::Answer(Err(format!("{} does not know it{detail}", self.place)))
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Outcome::MayPass(self.failed(format!("it answers {status}{detail}"), None))
            }
            _ if status.is_server_error() => {
                Outcome::MayPass(self.failed(format!("it answers {status}{detail}"), None))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let hint = format!(
                    "credentials are given by '{0}.basic-auth.user-info' or \
                     '{0}.bearer-auth.token'",
                    self.format
                );
                Outcome::Refused(self.failed(format!("it answers {status}{detail}"), Some(hint)))
            }
            StatusCode::CONFLICT => {
                let hint = "columns that are new must be able to be NULL, as the compatibility of \
                            the subject asks; or give another subject";
                let message =
                    format!("the schema of the table does not fit the earlier ones{detail}");
                Outcome::Refused(self.failed(message, Some(hint.into())))
            }
            _ => Outcome::Refused(self.failed(format!("it answers {status}{detail}"), None)),
        }
    }

    fn failed(&self, message: String, hint: Option<String>) -> ConnectorError {
        ConnectorError::Io { place: self.place.to_string(), message, hint }
    }

    /// A request without an answer.
    fn unreachable(&self, error: reqwest::Error) -> ConnectorError {
        let timed_out = error.is_timeout();
        let message = if timed_out {
            format!("no answer within {} s", TIMEOUT.as_secs())
        } else {
            format!("cannot be reached: {}", chain(&error.without_url()))
        };
        let hint = format!("check '{}.url'; 'retry.timeout' is how long to try again", self.format);
        self.failed(message, Some(hint))
    }
}

enum Outcome {
    /// `Err`: the registry does not have it.
    Answer(Result<Value, String>),
    Refused(ConnectorError),
    MayPass(ConnectorError),
}

/// How the registry knows who asks.
#[derive(Clone)]
enum Credentials {
    None,
    User { name: String, word: String },
    Token(String),
}

fn credentials(
    options: OptionReader<'_>,
    key: &dyn Fn(&str) -> String,
    of_url: (String, String),
) -> Result<Credentials, ConnectorError> {
    let (basic, bearer) = (key("basic-auth.user-info"), key("bearer-auth.token"));
    let given = match options.text(&basic) {
        Some(user) => {
            let parts = user.split_once(':');
            let hint = format!("write '{basic}' = 'user:password'");
            let (name, word) = parts.ok_or_else(|| {
                refuse(&basic, "it has no ':' between user and password", Some(hint))
            })?;
            Some((name.to_owned(), word.to_owned()))
        }
        None => Some(of_url).filter(|(name, _)| !name.is_empty()),
    };
    match (given, options.text(&bearer)) {
        (Some(_), Some(_)) => Err(refuse(&bearer, "there are two sorts of credentials", None)),
        (Some((name, word)), None) => Ok(Credentials::User { name, word }),
        (None, Some(token)) => Ok(Credentials::Token(token.to_owned())),
        (None, None) => Ok(Credentials::None),
    }
}
