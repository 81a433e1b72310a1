//! The certificates of a cluster: an authority of its own, and one for each node.
//!
//! ```text
//!   cert init  CA      CA/ca.pem    CA/ca.key          stay where certificates are issued
//!   cert issue CA N    N/node.pem   N/node.key   N/ca.pem    go to a node
//! ```
//!
//! A certificate says that its holder is a node of the cluster, and not which: every node may be
//! any rank. One of a reader says that its holder may read what services of the cluster serve, and
//! is no node. Keys are readable by their owner alone.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustix::fs::OFlags;

use crate::error::ClusterError;

/// Bytes of a certificate or a key at most.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// The name that the certificate of every node is made out to.
pub(crate) const NODE_NAME: &str = "node.millstream";
/// The name that the certificate of every reader is made out to.
pub(crate) const READER_NAME: &str = "reader.millstream";
/// The name of every authority: they differ in their keys.
const AUTHORITY: &str = "millstream cluster";
/// How much earlier a certificate counts, for clocks that are behind.
const EARLIER: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Makes the authority of a new cluster in a directory: `ca.pem` and `ca.key`. It counts for `days`
/// days.
///
/// # Errors
/// When there is one already, or files cannot be written.
pub fn init(directory: &Path, days: u32) -> Result<(), ClusterError> {
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = authority(days)?.self_signed(&key).map_err(failed)?;
    create_dir(directory)?;
    write(&directory.join("ca.key"), &key.serialize_pem(), 0o600)?;
    write(&directory.join("ca.pem"), &certificate.pem(), 0o644)
}

/// Issues a node's certificate: `node.pem`, `node.key` and the authority's `ca.pem` in a directory.
/// It counts for `days` days.
///
/// # Errors
/// When `authority` holds no authority, the directory has a certificate already, or files cannot be
/// written.
pub fn issue(authority: &Path, directory: &Path, days: u32) -> Result<(), ClusterError> {
    let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    issue_to(NODE_NAME, purposes, authority, directory, days)
}

/// Issues a reader's certificate, in the same files: its holder connects with services, and nobody
/// connects with it.
///
/// # Errors
/// As [`issue`].
pub fn issue_reader(authority: &Path, directory: &Path, days: u32) -> Result<(), ClusterError> {
    issue_to(READER_NAME, vec![ExtendedKeyUsagePurpose::ClientAuth], authority, directory, days)
}

fn issue_to(
    name: &str,
    purposes: Vec<ExtendedKeyUsagePurpose>,
    authority: &Path,
    directory: &Path,
    days: u32,
) -> Result<(), ClusterError> {
    let ca_key = read(&authority.join("ca.key"))?;
    let ca_pem = read(&authority.join("ca.pem"))?;
    let unusable = |error: rcgen::Error| ClusterError::Certificate {
        file: authority.join("ca.key"),
        detail: error.to_string(),
    };
    let ca_key = KeyPair::from_pem(&ca_key).map_err(unusable)?;
    let issuer = Issuer::new(self::authority(days)?, ca_key);
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes;
    set_validity(&mut params, days);
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    create_dir(directory)?;
    write(&directory.join("node.key"), &key.serialize_pem(), 0o600)?;
    write(&directory.join("node.pem"), &certificate.pem(), 0o644)?;
    write(&directory.join("ca.pem"), &ca_pem, 0o644)
}

fn authority(days: u32) -> Result<CertificateParams, ClusterError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, days);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(EARLIER);
    params.not_after = epoch + now + DAY * days;
}

fn create_dir(directory: &Path) -> Result<(), ClusterError> {
    std::fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))
}

/// Writes a file that is not there yet.
fn write(file: &Path, text: &str, mode: u32) -> Result<(), ClusterError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
    written.map_err(|error| unwritten(file, &error))
}

fn unwritten(file: &Path, error: &std::io::Error) -> ClusterError {
    ClusterError::Certificate { file: file.to_owned(), detail: error.to_string() }
}

/// Reads a certificate or a key; a pipe or a device in its place is not waited for.
pub(crate) fn read(file: &Path) -> Result<String, ClusterError> {
    read_bounded(file).map_err(|error| unwritten(file, &error))
}

fn read_bounded(file: &Path) -> io::Result<String> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let metadata = opened.metadata()?;
    if !metadata.is_file() || metadata.len() > PEM_BYTES_MAX {
        let message = format!("is no file of at most {PEM_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut text = String::new();
    opened.take(PEM_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn failed(error: rcgen::Error) -> ClusterError {
    ClusterError::System {
        what: "a key or certificate",
        source: std::io::Error::other(error.to_string()),
    }
}
