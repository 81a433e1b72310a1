//! Objects of a store under a URL: what `file` reads and writes where its path is one.
//!
//! ```text
//! s3://bucket/a/b.csv    an object            s3://bucket/a/*.parquet   those that match, sorted
//! s3://bucket/a/         those directly in it https://host/a.parquet    one; no listing
//! ```
//!
//! Requests are made on the thread for networks. An object is read as it was listed: if its `ETag`
//! changes, reading fails rather than to mix two versions. A sink uploads in parts that become an
//! object on commit; a sink that is dropped gives the parts up.
//!
//! Credentials come from the environment, as AWS's tools have it (`AWS_ACCESS_KEY_ID`, …, roles of
//! containers and instances), or from options. Neither they nor the query of a URL, which may be a
//! signature, appear in a message.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig,
};
use reqwest::Url;

use crate::options::{OptionReader, refuse};
use crate::remote::{Io, KEEPALIVE, chain, redirects, retry_timeout_ns};

mod blob;
mod checkpoints;
mod directory;
mod list;
mod upload;

pub use checkpoints::BucketStore;
pub(crate) use directory::{AgedName, ObjectDirectory};
pub(crate) use list::expand;
pub(crate) use upload::Upload;

/// How long the other end may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest pause before a request is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long it may be silent within an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The hint where keys are missing or wrong.
const KEYS_HINT: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or 's3.anonymous' = \
                         'true' for a public bucket";

/// Where machines of AWS ask for keys. The client does, if it is given none.
const KEYS_OF_MACHINE: &str = "//169.254.169.254/";

/// Where an object is, in options.
pub(crate) const S3_OPTIONS: [OptionSpec; 6] = [
    OptionSpec {
        key: "s3.endpoint",
        values: "http://… or https://…",
        default: "AWS_ENDPOINT_URL, or Amazon's",
        doc: "The server of s3:// paths.",
    },
    OptionSpec {
        key: "s3.region",
        values: "text",
        default: "AWS_REGION, or us-east-1",
        doc: "The region of s3:// paths.",
    },
    OptionSpec {
        key: "s3.access_key_id",
        values: "text",
        default: "AWS_ACCESS_KEY_ID",
        doc: "Who reads or writes.",
    },
    OptionSpec {
        key: "s3.secret_access_key",
        values: "text",
        default: "AWS_SECRET_ACCESS_KEY",
        doc: "The proof of it; better left to the environment.",
    },
    OptionSpec {
        key: "s3.session_token",
        values: "text",
        default: "AWS_SESSION_TOKEN",
        doc: "Belongs to a key for a limited time.",
    },
    OptionSpec {
        key: "s3.anonymous",
        values: "true | false",
        default: "false",
        doc: "Whether requests are not signed, for public buckets.",
    },
];

/// Whether a path is one of a store, and not of a file.
pub fn is_url(path: &str) -> bool {
    ["s3://", "s3a://", "http://", "https://"].iter().any(|scheme| path.starts_with(scheme))
}

/// A store, and how its objects are called.
#[derive(Clone)]
pub(crate) struct ObjectStoreClient {
    io: Arc<Io>,
    store: Arc<dyn ObjectStore>,
    /// The prefix of a path in messages: `s3://bucket/`.
    base: String,
    /// Secrets, which messages must not contain.
    secrets: Arc<Vec<String>>,
    /// Whether it can tell what is in it.
    lists: bool,
    /// How long a request is tried again.
    retry_timeout: Duration,
}

/// A URL cut into its store and the path in it, which may be a pattern.
pub(crate) fn open(
    url: &str,
    options: OptionReader<'_>,
) -> Result<(ObjectStoreClient, String), ConnectorError> {
    let io = Io::shared()?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let retry_timeout = Duration::from_nanos(retry_timeout_ns(options)?);
    let mut secrets = Vec::new();
    let (store, base, path): (Arc<dyn ObjectStore>, String, String) = match scheme {
        "s3" | "s3a" => {
            let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                let hint = Some("write 'path' = 's3://bucket/name.parquet'".into());
                return Err(refuse("path", "it names no bucket", hint));
            }
            let store = s3(bucket, options, retry_timeout, &mut secrets)?;
            (store, format!("{scheme}://{bucket}/"), path.to_owned())
        }
        _ => web(url, retry_timeout, &mut secrets)?,
    };
    let lists = scheme.starts_with("s3");
    let secrets = Arc::new(secrets);
    Ok((ObjectStoreClient { io, store, base, secrets, lists, retry_timeout }, path))
}

fn s3(
    bucket: &str,
    options: OptionReader<'_>,
    retry_timeout: Duration,
    secrets: &mut Vec<String>,
) -> Result<Arc<dyn ObjectStore>, ConnectorError> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let keys = [
        ("s3.endpoint", AmazonS3ConfigKey::Endpoint),
        ("s3.region", AmazonS3ConfigKey::Region),
        ("s3.access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("s3.secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
        ("s3.session_token", AmazonS3ConfigKey::Token),
    ];
    for (option, key) in keys {
        if let Some(value) = options.text(option) {
            builder = builder.with_config(key, value);
        }
    }
    if options.bool("s3.anonymous", false)? {
        builder = builder.with_skip_signature(true);
    }
    for key in [AmazonS3ConfigKey::SecretAccessKey, AmazonS3ConfigKey::Token] {
        secrets.extend(builder.get_config_value(&key));
    }
    // A user who names a server without TLS means it.
    let plain = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint]
        .iter()
        .filter_map(|key| builder.get_config_value(key))
        .any(|endpoint| endpoint.starts_with("http://"));
    let store = builder
        .with_client_options(client_options(plain))
        .with_http_connector(Careful { leaves: false })
        .with_retry(retry(retry_timeout))
        .build()
        .map_err(|error| refuse("path", chain(&error), None))?;
    Ok(Arc::new(store))
}

/// The server of buckets, if these options or the environment name another one than Amazon's.
pub(crate) fn s3_endpoint(options: OptionReader<'_>) -> Option<String> {
    let mut builder = AmazonS3Builder::from_env();
    if let Some(endpoint) = options.text("s3.endpoint") {
        builder = builder.with_endpoint(endpoint);
    }
    // The library takes the first of these.
    let keys = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    keys.iter().find_map(|key| builder.get_config_value(key))
}

/// The store of a host, its address for messages, and the path in it.
fn web(
    url: &str,
    retry_timeout: Duration,
    secrets: &mut Vec<String>,
) -> Result<(Arc<dyn ObjectStore>, String, String), ConnectorError> {
    let hint = || Some("write 'path' = 'https://host/name.parquet'".to_owned());
    let mut host = Url::parse(url)
        .map_err(|error| refuse("path", format!("it is no address: {error}"), hint()))?;
    let path =
        Path::from_url_path(host.path()).map_err(|error| refuse("path", chain(&error), hint()))?;
    let directory = if host.path().ends_with('/') { "/" } else { "" };
    let path = format!("{path}{directory}");
    secrets.extend(host.query().map(str::to_owned));
    secrets.extend(host.password().map(str::to_owned));
    host.set_path("");
    host.set_fragment(None);
    let plain = host.scheme() == "http";
    let store = HttpBuilder::new()
        .with_url(host.as_str())
        .with_client_options(client_options(plain))
        .with_http_connector(Careful { leaves: true })
        .with_retry(retry(retry_timeout))
        .build()
        .map_err(|error| refuse("path", chain(&error), hint()))?;
    let mut base = format!("{}://{}", host.scheme(), host.host_str().unwrap_or_default());
    if let Some(port) = host.port() {
        // Writing to a String cannot fail.
        let _ = write!(base, ":{port}");
    }
    Ok((Arc::new(store), base + "/", path))
}

fn client_options(plain: bool) -> ClientOptions {
    // The whole of an answer may take long: it is read as fast as its rows are worked on.
    ClientOptions::new()
        .with_allow_http(plain)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout_disabled()
}

/// Makes clients that keep what is secret with the host that it was given for: keys of a bucket are
/// sent to no other host, and whoever reads an address tells no other what he asked for.
#[derive(Debug)]
struct Careful {
    /// Whether other hosts may be asked at all.
    leaves: bool,
}

impl HttpConnector for Careful {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let asked = |options: &ClientOptions, key| options.get_config_value(&key);
        let plain = asked(options, ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let own = client_options(plain);
        // The machine's own keys come from where the library knows, with limits of its own.
        let timeout = || ClientConfigKey::ConnectTimeout;
        if asked(options, timeout()) != asked(&own, timeout()) {
            return ReqwestConnector::default().connect(options);
        }
        let client = reqwest::Client::builder()
            .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
            .redirect(redirects::policy(self.leaves))
            .referer(false)
            .tcp_keepalive(KEEPALIVE)
            .connect_timeout(CONNECT_TIMEOUT)
            .https_only(!plain)
            .build();
        let failed = |source| Error::Generic { store: "HTTP", source: Box::new(source) };
        Ok(HttpClient::new(client.map_err(failed)?))
    }
}

/// A request is tried again, with growing pauses, for `retry_timeout`, however often that is: the
/// library would give up after ten times, which are some seconds.
fn retry(retry_timeout: Duration) -> RetryConfig {
    let backoff = BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() };
    RetryConfig { max_retries: usize::MAX, retry_timeout, backoff }
}

impl ObjectStoreClient {
    /// The name of an object for messages, and for what its extension tells.
    fn name(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Runs one request to its end, with a bound on silence.
    fn ask<T: Send + 'static>(
        &self,
        place: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, ConnectorError> {
        let (store, place) = (self.clone(), place.to_owned());
        // It may be tried again until then, and once more.
        let longest = self.retry_timeout.saturating_add(SILENCE_MAX);
        self.io.wait(async move {
            match tokio::time::timeout(longest, request).await {
                Ok(answer) => answer.map_err(|error| store.error_at(&place, &error)),
                Err(_) => Err(silent(&place, longest)),
            }
        })
    }

    /// The error of a store, in words.
    fn error_at(&self, place: &str, error: &Error) -> ConnectorError {
        let (message, hint) = match error {
            Error::NotFound { .. } => ("no such object or bucket".to_owned(), None),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                let hint = if self.lists { KEYS_HINT } else { "the address needs a signature" };
                (format!("access is refused: {}", self.cause(error)), Some(hint.to_owned()))
            }
            Error::Precondition { .. } => (
                "it was replaced while it was read".to_owned(),
                Some("run the query again, and replace objects while nobody reads them".into()),
            ),
            other if chain(other).contains(KEYS_OF_MACHINE) => {
                let cause = self.cause(other);
                let message = format!("there are no keys, and this machine gives none: {cause}");
                (message, Some(KEYS_HINT.to_owned()))
            }
            other => {
                let hint =
                    "check 'path' and 's3.endpoint'; 'retry.timeout' is how long to try again";
                (self.cause(other), self.lists.then(|| hint.to_owned()))
            }
        };
        ConnectorError::Io { place: place.to_owned(), message, hint }
    }

    /// The cause of an error: of a server's answer in XML, its code and message.
    fn cause(&self, error: &Error) -> String {
        let mut text = chain(error);
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            rest.split_once(&format!("</{name}>")).map(|(inner, _)| inner.trim().to_owned())
        };
        if let Some(code) = element("Code") {
            text = match element("Message") {
                Some(message) => format!("{code}: {message}"),
                None => code,
            };
        }
        for secret in self.secrets.iter().filter(|secret| !secret.is_empty()) {
            text = text.replace(secret.as_str(), "…");
        }
        text
    }
}

/// A store that can be written, and the path in it.
fn written(
    opened: (ObjectStoreClient, String),
) -> Result<(ObjectStoreClient, String), ConnectorError> {
    if opened.0.lists {
        return Ok(opened);
    }
    let hint = Some("write to 's3://…' or to a file".into());
    Err(refuse("path", "a web server cannot be written to", hint))
}

fn silent(place: &str, longest: Duration) -> ConnectorError {
    ConnectorError::Io {
        place: place.to_owned(),
        message: format!("no answer within {} s", longest.as_secs()),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use dataflow::connector::Options;

    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn urls_are_cut_into_store_and_path() {
        let options = options(&[("s3.region", "eu-west-1")]);
        let cut = |url| open(url, OptionReader(&options)).map(|(store, path)| (store.base, path));
        assert_eq!(cut("s3://b/a/*.csv").unwrap(), ("s3://b/".into(), "a/*.csv".into()));
        assert_eq!(cut("s3://b").unwrap(), ("s3://b/".into(), String::new()));
        let signed = cut("https://me:secret@h:8443/a%20b/c.csv?signature=secret").unwrap();
        assert_eq!(signed, ("https://h:8443/".into(), "a b/c.csv".into()));
        assert!(cut("s3:///x").is_err());
        assert!(is_url("s3://b/x") && !is_url("./s3/b") && !is_url("/data/x.csv"));
    }

    #[test]
    fn secrets_and_xml_stay_out_of_messages() {
        let options = options(&[("s3.secret_access_key", "hush"), ("s3.access_key_id", "me")]);
        let (store, _) = open("s3://b/x", OptionReader(&options)).unwrap();
        let xml = "403: <Error><Code>Denied</Code><Message>not hush</Message><A>me</A></Error>";
        let error = Error::PermissionDenied { path: "x".into(), source: xml.into() };
        let text = store.error_at("s3://b/x", &error).to_string();
        assert_eq!(text, "s3://b/x: access is refused: Denied: not …");
    }
}
