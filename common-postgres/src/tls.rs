//! TLS with rustls, in libpq's modes.

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_core::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{SslMode, invalid};

/// The trusted root certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootCert {
    /// The operating system's roots.
    System,
    /// The roots in a PEM file.
    File(PathBuf),
}

impl RootCert {
    /// A path, or `system`.
    pub(crate) fn named(path: PathBuf) -> Self {
        if path == Path::new("system") { Self::System } else { Self::File(path) }
    }
}

/// The driver's TLS connector, or `None` when TLS is off.
pub(crate) fn connector(
    mode: SslMode,
    root: Option<&RootCert>,
    client: Option<(&Path, &Path)>,
    direct: bool,
) -> Result<Option<MakeRustlsConnect>> {
    Ok(client_config(mode, root, client, direct)?.map(MakeRustlsConnect::new))
}

fn client_config(
    mode: SslMode,
    root: Option<&RootCert>,
    client: Option<(&Path, &Path)>,
    direct: bool,
) -> Result<Option<ClientConfig>> {
    let weak = matches!(mode, SslMode::Disable | SslMode::Prefer);
    if direct && weak {
        return Err(invalid("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full"));
    }
    if root == Some(&RootCert::System) && !matches!(mode, SslMode::VerifyFull | SslMode::Disable) {
        return Err(invalid(
            "sslrootcert=system needs sslmode=verify-full: anyone can get a certificate from a public authority",
        ));
    }
    // Explicit, so that it does not depend on the process-wide default provider of the application.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match (mode, root) {
        (SslMode::Disable, _) => return Ok(None),
        (_, Some(RootCert::File(path))) => {
            let given = read_certs("sslrootcert", path)?;
            let roots = root_store(&given)?;
            let check = match mode {
                SslMode::VerifyFull => Check::Full(full_verifier(roots, &provider)?),
                _ => Check::Chain(roots),
            };
            Arc::new(Verifier::new(check, given, &provider))
        }
        (SslMode::VerifyFull, _) => full_verifier(root_store(&system_roots()?)?, &provider)?,
        (SslMode::VerifyCa, _) => {
            return Err(invalid(
                "sslmode=verify-ca needs sslrootcert, the file with the authority's certificate",
            ));
        }
        (SslMode::Prefer | SslMode::Require, _) => Arc::new(Verifier::new(Check::Key, Vec::new(), &provider)),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("this build has no usable TLS version").with_source(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let pair = read_pair(cert, key, &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
    };
    if direct {
        // Direct TLS requires ALPN.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Some(config))
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let error = invalid("the system has no trusted certificates; name a file in sslrootcert");
        return Err(match found.errors.into_iter().next() {
            Some(source) => error.with_source(source),
            None => error,
        });
    }
    Ok(found.certs)
}

fn root_store(certs: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are ignored, as long as there are others.
    let (added, _) = roots.add_parsable_certificates(certs.iter().cloned());
    if added == 0 {
        return Err(invalid("no certificate in sslrootcert is usable"));
    }
    Ok(Arc::new(roots))
}

/// rustls' own verifier: chain, dates, purpose and name.
fn full_verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| invalid("the certificates in sslrootcert are not usable").with_source(error))
}

fn read_certs(parameter: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certs: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(parameter, path, error))?;
    if certs.is_empty() {
        return Err(unreadable(parameter, path, pem::Error::NoItemsFound));
    }
    Ok(certs)
}

/// The client's certificate and its key.
fn read_pair(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey> {
    let key_of = |error: rustls::Error| {
        invalid("the certificate in sslcert and the key in sslkey do not match, or are of an unknown kind")
            .with("sslcert", cert.display())
            .with("sslkey", key.display())
            .with_source(error)
    };
    let chain = read_certs("sslcert", cert)?;
    let signer = provider.key_provider.load_private_key(read_key(key)?).map_err(key_of)?;
    let pair = CertifiedKey::new(chain, signer);
    match pair.keys_match() {
        // rustls does not parse certificates of X.509 version 1. The server may accept them.
        Ok(()) | Err(rustls::Error::InvalidCertificate(_)) => Ok(pair),
        Err(error) => Err(key_of(error)),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        _ if is_encrypted(path) => invalid(
            "the key in sslkey is encrypted; write it without a passphrase, readable by this user only",
        )
        .with("path", path.display()),
        error => unreadable("sslkey", path, error),
    })
}

/// PKCS#8 marks encryption in the first line, the older formats in a header.
fn is_encrypted(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| {
        text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
    })
}

fn unreadable(parameter: &'static str, path: &Path, error: pem::Error) -> Error {
    let (what, source) = match error {
        pem::Error::Io(error) => ("cannot be read", Some(error)),
        pem::Error::NoItemsFound if parameter == "sslkey" => ("has no private key in PEM format", None),
        pem::Error::NoItemsFound => ("has no certificate in PEM format", None),
        // The source would show lines of the file, which may be a key.
        _ => ("is not a PEM file, or is damaged", None),
    };
    let message = format!("the file in {parameter} {what}");
    let error = Error::invalid_config(message).with("path", path.display());
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

/// What the verifier checks.
enum Check {
    /// The server has the key of its certificate: `require` and `prefer`.
    Key,
    /// Also, one of the roots has signed its certificate: `verify-ca`.
    Chain(Arc<RootCertStore>),
    /// Also, the certificate is for the host's name: `verify-full`.
    Full(Arc<WebPkiServerVerifier>),
}

/// Implements libpq's modes. rustls itself only has full verification.
struct Verifier {
    check: Check,
    /// The certificates of `sslrootcert`.
    given: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(check: Check, given: Vec<CertificateDer<'static>>, provider: &CryptoProvider) -> Self {
        Self { check, given, algorithms: provider.signature_verification_algorithms }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let check = match self.check {
            Check::Key => "key",
            Check::Chain(_) => "chain",
            Check::Full(_) => "full",
        };
        f.debug_struct("Verifier")
            .field("check", &check)
            .field("given", &self.given.len())
            .finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = || ParsedCertificate::try_from(end_entity);
        let verified = match &self.check {
            Check::Key => return Ok(ServerCertVerified::assertion()),
            Check::Chain(roots) => {
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed()?, roots, intermediates, now, algorithms)
                    .map(|()| ServerCertVerified::assertion())
            }
            Check::Full(full) => {
                full.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
        };
        match verified {
            // PostgreSQL's manual creates a self-signed server certificate that is marked as an authority's, and libpq
            // accepts it as its own root. webpki has checked the dates before this mark; only the name is still unchecked.
            Err(error)
                if webpki_error(&error) == Some(&webpki::Error::CaUsedAsEndEntity)
                    && self.given.contains(end_entity) =>
            {
                if matches!(self.check, Check::Full(_)) {
                    verify_server_name(&parsed()?, server_name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match verify_tls13_signature(message, cert, dss, &self.algorithms) {
            // With OpenSSL 3.0 and older, the manual's commands create certificates of version 1. rustls does not parse
            // them, but without verification only their key is needed.
            Err(error) if matches!(self.check, Check::Key) && is_version_1(&error) => {
                let key = public_key(cert).ok_or(error)?;
                verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
            }
            result => result,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The public key of a certificate of any version.
fn public_key(cert: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let anchor = webpki::anchor_from_trusted_cert(cert).ok()?;
    // An anchor has only the contents of the key's SEQUENCE.
    let key = DistinguishedName::in_sequence(&anchor.subject_public_key_info);
    Some(SubjectPublicKeyInfoDer::from(key.as_ref()).into_owned())
}

/// The verification error from webpki, for which rustls has no error of its own.
pub(crate) fn webpki_error(error: &rustls::Error) -> Option<&webpki::Error> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => error.downcast_ref(),
        _ => None,
    }
}

/// Whether a certificate is of X.509 version 1.
pub(crate) fn is_version_1(error: &rustls::Error) -> bool {
    webpki_error(error) == Some(&webpki::Error::UnsupportedCertVersion)
}
