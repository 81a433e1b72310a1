//! Encrypted connections, as `sslmode` of libpq asks for them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::errors::PgError;
use crate::server::{PgServer, TlsMode};

fn own(message: impl Into<String>, hint: &str) -> PgError {
    PgError::Own { message: message.into(), hint: hint.into() }
}

/// The beginning of an encrypted connection.
///
/// # Errors
/// When the certificates cannot be read.
pub(crate) fn client(server: &PgServer) -> Result<ClientConnection, PgError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let name = ServerName::try_from(server.host.clone())
        .map_err(|_| own(format!("'{}' is no name of a host", server.host), "check 'url'"))?;
    let has_roots = server.root_certificate.is_some();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| own(error.to_string(), "report this"))?;
    let builder = match server.tls {
        TlsMode::VerifyFull => builder.with_root_certificates(roots(server)?),
        TlsMode::Prefer | TlsMode::Require if !has_roots => {
            let verifier = AnyCertificate { chain: None, provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        _ => {
            let chain = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots(server)?),
                Arc::clone(&provider),
            );
            let chain =
                chain.build().map_err(|error| own(error.to_string(), "check 'sslrootcert'"))?;
            let verifier = AnyCertificate { chain: Some(chain), provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let config = Arc::new(builder.with_no_client_auth());
    ClientConnection::new(config, name).map_err(|error| own(error.to_string(), "report this"))
}

/// The certificates that are trusted: those of the file, else those that browsers trust.
fn roots(server: &PgServer) -> Result<RootCertStore, PgError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = &server.root_certificate else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(roots);
    };
    let hint = "'sslrootcert' is a file of certificates in PEM";
    let unfit = |error: &dyn std::fmt::Display| own(format!("'{file}': {error}"), hint);
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unfit(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unfit(&error))?;
        roots.add(certificate).map_err(|error| unfit(&error))?;
    }
    if roots.is_empty() {
        return Err(own(format!("'{file}' has no certificate"), hint));
    }
    Ok(roots)
}

/// The fault of the server, if an error of the connection names one.
pub(crate) fn refused(error: &std::io::Error) -> Option<PgError> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(why) => own(
            format!("the certificate of the server is not accepted: {why}"),
            "check 'sslrootcert' and the name of the host in 'url'",
        ),
        error => own(format!("no encrypted connection: {error}"), "check 'sslmode' in 'url'"),
    })
}

/// Takes the certificate of any host, if `chain` takes it at all.
#[derive(Debug)]
struct AnyCertificate {
    /// `None`: any certificate.
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
