//! The origin of a table that is a cache: the files or objects whose rows it has.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::Source;
use pool::manifest::ORIGIN_BYTES_MAX;

use crate::file::FileConnector;
use crate::file::paths::absolute;
use crate::format::fnv;
use crate::object::{is_url, s3_endpoint};
use crate::options::{OptionReader, nearest, refuse};

/// The options of an origin begin with it.
const PREFIX: &str = "origin.";

/// How often an origin is looked at where 'origin.refresh' says nothing else, in ns.
const AGE_MAX_NS: u64 = 60_000_000_000;

/// Options of the connector `file` that an origin does not have: a cache has an end, is read, and
/// has no other table beside it.
const NOT_OF_ORIGINS: [&str; 3] = ["path", "watch", "watch.settle"];

/// Options of a table of a pool that a cache does not have.
const NOT_OF_CACHES: [(&str, &str); 4] = [
    ("layout", "a cache is loaded as a whole, and lists are of no use"),
    ("version", "a cache has its newest version"),
    ("commit.interval", "nobody writes it"),
    ("commit.bytes", "nobody writes it"),
];

/// The files or objects that a cache is a copy of.
#[derive(Clone)]
pub(super) struct CacheOrigin {
    /// As the connector `file` takes them.
    options: Options,
    /// See [`CachedOrigin::name`](pool::manifest::CachedOrigin::name).
    pub(super) name: String,
    /// How long ago, in ns, somebody may have looked at it last.
    pub(super) age_max_ns: u64,
}

impl CacheOrigin {
    /// The origin of a table with these options; `None` if it is no cache.
    ///
    /// # Errors
    /// When the options do not fit each other.
    pub(super) fn of(all: &Options) -> Result<Option<Self>, ConnectorError> {
        let reader = OptionReader(all);
        let Some(path) = reader.text("origin") else {
            let Some(key) = all.keys().find(|key| key.starts_with(PREFIX)) else { return Ok(None) };
            let hint = "say where its rows come from: 'origin' = 'data/*.parquet'";
            return Err(refuse(key, "is of a table that has an origin", Some(hint.into())));
        };
        if let Some((key, why)) = NOT_OF_CACHES.iter().find(|(key, _)| all.contains_key(*key)) {
            return Err(refuse(key, *why, Some("leave it out, or 'origin'".into())));
        }
        if crate::file::is_pipe(path) {
            return Err(refuse("origin", "a pipe is read once, and cannot be loaded again", None));
        }
        let mut options = Options::from([("path".to_owned(), path.to_owned())]);
        for (key, value) in all {
            let own = key.strip_prefix(PREFIX).filter(|own| *own != "refresh");
            if let Some(own) = own {
                check_option(key, own)?;
                options.insert(own.to_owned(), value.clone());
            }
        }
        // A cache has no table of bad rows beside it.
        let on_bad = OptionReader(&options).choice("on_bad", &["skip", "fail"]);
        if on_bad.map_err(of_origin)? == Some(1) {
            options.remove("on_bad");
        }
        let age_max_ns = reader.duration_ns("origin.refresh")?.unwrap_or(AGE_MAX_NS);
        let name = name_of(path, &options);
        // One process loads, and would tell of rows that are left out; all read what it has loaded.
        options.entry("on_bad".to_owned()).or_insert_with(|| "fail".to_owned());
        if name.len() > ORIGIN_BYTES_MAX {
            let message = format!("with its options it has more than {ORIGIN_BYTES_MAX} bytes");
            return Err(refuse("origin", message, None));
        }
        Ok(Some(Self { options, name, age_max_ns }))
    }

    /// A number that is another one when the files or objects are others, or have changed.
    ///
    /// # Errors
    /// When there are none, or they cannot be looked at.
    pub(super) fn mark(&self) -> Result<u64, ConnectorError> {
        FileConnector::mark(&self.options).map_err(of_origin)
    }

    /// Its columns.
    ///
    /// # Errors
    /// When they cannot be found out.
    pub(super) fn columns(&self) -> Result<Option<SchemaRef>, ConnectorError> {
        FileConnector::default().infer(&self.options).map_err(of_origin)
    }

    /// Reads all columns of a table.
    ///
    /// # Errors
    /// When it cannot be read, or has other columns.
    pub(super) fn source(&self, table: &TableDef) -> Result<Arc<dyn Source>, ConnectorError> {
        let all: Vec<usize> = (0..table.schema.fields().len()).collect();
        let def = TableDef { options: self.options.clone(), buckets: vec![], ..table.clone() };
        FileConnector::default().source(&def, &all).map_err(of_origin)
    }
}

/// An error of the connector `file`, with the options of the table in place of its own.
pub(super) fn of_origin(error: ConnectorError) -> ConnectorError {
    match error {
        ConnectorError::Option { key, message, hint } if key == "path" => {
            ConnectorError::Option { key: "origin".into(), message, hint }
        }
        ConnectorError::Option { key, message, hint } => {
            ConnectorError::Option { key: format!("{PREFIX}{key}"), message, hint }
        }
        ConnectorError::Io { place, message, hint } => {
            let hint = hint.map(|hint| hint.replace("'on_bad'", "'origin.on_bad'"));
            ConnectorError::Io { place, message, hint }
        }
        error => error,
    }
}

fn check_option(key: &str, own: &str) -> Result<(), ConnectorError> {
    let specs = FileConnector::default();
    let known = || {
        let keys = specs.options().iter().map(|spec| spec.key);
        keys.filter(|key| !NOT_OF_ORIGINS.contains(key))
    };
    if known().any(|known| known == own) {
        return Ok(());
    }
    let near = nearest(own, known().chain(["refresh"]));
    let hint = near.map(|near| format!("did you mean '{PREFIX}{near}'?"));
    Err(refuse(key, "is no option of an origin", hint))
}

/// The name of an origin, without secrets: the path, the server of a bucket, and the options that
/// say how it is read.
fn name_of(path: &str, options: &Options) -> String {
    let is_named = |(key, _): &(&String, &String)| {
        !key.starts_with("s3.") && !["path", "retry.timeout"].contains(&key.as_str())
    };
    let mut named: Vec<String> =
        options.iter().filter(is_named).map(|(key, value)| format!("{key}={value}")).collect();
    let path = match path.split_once("://") {
        Some((scheme, rest)) if is_url(path) && !scheme.starts_with("s3") => {
            let rest = rest.split('#').next().unwrap_or_default();
            // A query may be a secret: a number tells it from others.
            let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
            let query = unsigned(query);
            if !query.is_empty() {
                named.push(format!("query {:016x}", fnv(query.as_bytes())));
            }
            format!("{scheme}://{}", without_user(rest))
        }
        // A question mark is of a pattern here.
        Some((scheme, rest)) if is_url(path) => {
            if let Some(endpoint) = s3_endpoint(OptionReader(options)) {
                let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
                let host = without_user(host);
                named.push(format!("s3.endpoint={scheme}://{}", host.trim_end_matches('/')));
            }
            format!("{scheme}://{rest}")
        }
        _ => absolute(path),
    };
    if named.is_empty() { path } else { format!("{path} ({})", named.join(", ")) }
}

/// A host and a path without the name and the password of a user.
fn without_user(rest: &str) -> String {
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{}{path}", host.rsplit('@').next().unwrap_or(host))
}

/// A query without its signature, which is another one each time that somebody signs the address.
fn unsigned(query: &str) -> String {
    let parts: Vec<(String, &str)> = query
        .split('&')
        .map(|part| (part.split('=').next().unwrap_or_default().to_ascii_lowercase(), part))
        .collect();
    let has = |key: &&str| parts.iter().any(|(own, _)| own == key);
    let by = SIGNATURES.iter().find(|(needs, _)| needs.iter().all(has));
    let is_of_it =
        |key: &str| by.is_some_and(|(needs, beside)| needs.contains(&key) || beside.contains(&key));
    let kept = parts.iter().filter(|(key, _)| !is_of_it(key));
    kept.map(|(_, part)| *part).collect::<Vec<_>>().join("&")
}

/// The parameters by which addresses of stores are signed: those that show that one is, and what
/// may stand beside them. Those of others are ordinary parameters, which tell origins apart.
type SignatureParameters = (&'static [&'static str], &'static [&'static str]);

const SIGNATURES: [SignatureParameters; 6] = [
    // Amazon S3, Google Cloud Storage, the two as they were before, CloudFront, Azure.
    (
        &["x-amz-signature", "x-amz-date"],
        &[
            "x-amz-algorithm",
            "x-amz-credential",
            "x-amz-expires",
            "x-amz-security-token",
            "x-amz-signedheaders",
        ],
    ),
    (
        &["x-goog-signature", "x-goog-date"],
        &["x-goog-algorithm", "x-goog-credential", "x-goog-expires", "x-goog-signedheaders"],
    ),
    (&["signature", "expires", "awsaccesskeyid"], &["x-amz-security-token"]),
    (&["signature", "expires", "googleaccessid"], &[]),
    (&["signature", "key-pair-id"], &["expires", "policy"]),
    (
        &["sig", "se", "sv"],
        &[
            "ss", "srt", "sr", "sp", "st", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks",
            "skv",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn options(all: &[(&str, &str)]) -> Options {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn named(all: &[(&str, &str)]) -> String {
        CacheOrigin::of(&options(all)).unwrap().unwrap().name
    }

    #[test]
    fn an_origin_has_one_name_and_no_secrets() {
        assert!(CacheOrigin::of(&options(&[("table", "t")])).unwrap().is_none());
        let here = absolute("x.csv");
        assert_eq!(named(&[("origin", "x.csv")]), here);
        assert_eq!(named(&[("origin", &here), ("origin.refresh", "1 h")]), here);
        assert_eq!(
            named(&[
                ("origin", "s3://b/x/*.csv"),
                ("origin.s3.secret_access_key", "geheim"),
                ("origin.format", "csv"),
                ("origin.csv.header", "false"),
            ]),
            "s3://b/x/*.csv (csv.header=false, format=csv)"
        );
        assert_eq!(named(&[("origin", "https://u:p@h/a.csv")]), "https://h/a.csv");
        assert_eq!(named(&[("origin", "x.csv"), ("origin.retry.timeout", "1 min")]), here);
        assert_eq!(named(&[("origin", "x.csv"), ("origin.on_bad", "fail")]), here);
        let skips = named(&[("origin", "x.csv"), ("origin.on_bad", "skip")]);
        assert_eq!(skips, format!("{here} (on_bad=skip)"));
    }

    #[test]
    fn two_origins_have_two_names() {
        let of = |origin: &str| named(&[("origin", origin)]);
        let rome = of("https://h/get?city=rome&token=geheim");
        assert!(rome.starts_with("https://h/get (query ") && !rome.contains("geheim"), "{rome}");
        assert_ne!(rome, of("https://h/get?city=paris&token=geheim"));
        assert_ne!(rome, of("https://h/get"));
        assert_eq!(rome, of("https://h/get?city=rome&token=geheim#here"));
        // An address that was signed again is the same one.
        let signed = |version, at| {
            of(&format!(
                "https://h/a.csv?versionId={version}&X-Amz-Date={at}&X-Amz-Signature=a{at}"
            ))
        };
        assert_eq!(signed(1, 1), signed(1, 2));
        assert_ne!(signed(1, 1), signed(2, 1));
        assert_eq!(signed(1, 1), of("https://h/a.csv?versionId=1"));
        assert_eq!(of("https://h/a.csv?sv=2&se=3&sp=r&sig=x%3D"), "https://h/a.csv");
        // Parameters that stand beside a signature are ordinary ones where there is none.
        assert_ne!(of("https://h/get?sig=1&st=1"), of("https://h/get?sig=1&st=2"));
        // Patterns of a bucket, and buckets of two servers.
        assert_ne!(of("s3://b/x?.csv"), of("s3://b/x?.json"));
        let at = |endpoint| named(&[("origin", "s3://b/*.csv"), ("origin.s3.endpoint", endpoint)]);
        assert_eq!(at("http://u:p@test:9000/"), "s3://b/*.csv (s3.endpoint=http://test:9000)");
        assert_ne!(at("http://test:9000"), at("http://store:9000"));
    }

    #[test]
    fn options_that_an_origin_has_not_are_refused_at_their_keys() {
        for (all, key) in [
            (&[("origin.refresh", "1 s")][..], "origin.refresh"),
            (&[("origin", "x.csv"), ("origin.path", "y.csv")], "origin.path"),
            (&[("origin", "x.csv"), ("origin.watch", "1 s")], "origin.watch"),
            (&[("origin", "x.csv"), ("origin.fromat", "csv")], "origin.fromat"),
            (&[("origin", "x.csv"), ("origin.refresh", "often")], "origin.refresh"),
            (&[("origin", "x.csv"), ("origin.on_bad", "table")], "origin.on_bad"),
            (&[("origin", "x.csv"), ("version", "1")], "version"),
            (&[("origin", "x.csv"), ("commit.interval", "1 s")], "commit.interval"),
        ] {
            match CacheOrigin::of(&options(all)) {
                Err(ConnectorError::Option { key: at, .. }) => assert_eq!(at, key),
                _ => panic!("{all:?}"),
            }
        }
    }
}
