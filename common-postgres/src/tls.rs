//! TLS by rustls, with libpq's words for how much of it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_core::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_cert::der::{Decode as _, Encode as _};

use crate::config::{SslMode, invalid};

/// Who may sign the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootCert {
    /// Those that the system trusts.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

impl RootCert {
    /// A path, or `system`.
    pub(crate) fn named(path: PathBuf) -> Self {
        if path == Path::new("system") { Self::System } else { Self::File(path) }
    }
}

/// Makes what the driver connects with, or nothing when TLS is not wanted.
pub(crate) fn connector(
    mode: SslMode,
    root: Option<&RootCert>,
    client: Option<(&Path, &Path)>,
    direct: bool,
) -> Result<Option<MakeRustlsConnect>> {
    let weak = matches!(mode, SslMode::Disable | SslMode::Prefer);
    if direct && weak {
        return Err(invalid("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full"));
    }
    if root == Some(&RootCert::System) && !matches!(mode, SslMode::VerifyFull | SslMode::Disable) {
        return Err(invalid(
            "sslrootcert=system needs sslmode=verify-full: anybody can get such a certificate",
        ));
    }
    let name = mode == SslMode::VerifyFull;
    let check = match (mode, root) {
        (SslMode::Disable, _) => return Ok(None),
        (_, Some(RootCert::File(path))) => Check::roots(read_certs("sslrootcert", path)?, name)?,
        (SslMode::VerifyFull, _) => Check::roots(system_roots()?, name)?,
        (SslMode::VerifyCa, _) => {
            return Err(invalid(
                "sslmode=verify-ca needs sslrootcert, the file with the authority's certificate",
            ));
        }
        (SslMode::Prefer | SslMode::Require, _) => Check::Nothing,
    };
    // Named here, so that nothing depends on what the application chose for its whole process.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("this build has no TLS that can be used").with_source(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { check, provider: Arc::clone(&provider) }));
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let pair = read_pair(cert, key, &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
    };
    if direct {
        // A server that is spoken to without a word before must be told what is spoken.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Some(MakeRustlsConnect::new(config)))
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let error = invalid("the system has no certificates that it trusts; name a file in sslrootcert");
        return Err(match found.errors.into_iter().next() {
            Some(source) => error.with_source(source),
            None => error,
        });
    }
    // One that cannot be read among hundreds is the system's business.
    Ok(found.certs)
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
        invalid("the certificate in sslcert and the key in sslkey do not belong together, or are of an unknown kind")
            .with("sslcert", cert.display())
            .with("sslkey", key.display())
            .with_source(error)
    };
    let chain = read_certs("sslcert", cert)?;
    let signer = provider.key_provider.load_private_key(read_key(key)?).map_err(key_of)?;
    let pair = CertifiedKey::new(chain, signer);
    match pair.keys_match() {
        // A certificate of version 1, as openssl makes them unless told otherwise, cannot be read here. That need not
        // stop it: the server looks at it.
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

/// In PKCS#8 the first line says so, in the older formats a header.
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
        // These would hold lines of the file, and that may be a key.
        _ => ("is no PEM file, or it is damaged", None),
    };
    let message = format!("the file in {parameter} {what}");
    let error = Error::invalid_config(message).with("path", path.display());
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

/// What the server's certificate must be.
enum Check {
    /// Anything: the connection is encrypted, and whoever answers is believed.
    Nothing,
    /// Signed by one of these, and for the host's name if that matters.
    Roots { roots: RootCertStore, given: Vec<CertificateDer<'static>>, name: bool },
}

impl Check {
    fn roots(given: Vec<CertificateDer<'static>>, name: bool) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(given.iter().cloned());
        if added == 0 {
            return Err(invalid("none of the certificates in sslrootcert can be used"));
        }
        Ok(Self::Roots { roots, given, name })
    }
}

/// rustls knows full verification only; libpq's other modes leave parts of it out, never the proof that the server has
/// its certificate's key.
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (roots, name) = match &self.check {
            Check::Nothing => (0, false),
            Check::Roots { roots, name, .. } => (roots.len(), *name),
        };
        f.debug_struct("Verifier").field("roots", &roots).field("name", &name).finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Check::Roots { roots, given, name } = &self.check else {
            return Ok(ServerCertVerified::assertion());
        };
        let cert = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms) {
            // PostgreSQL's manual makes a server's certificate with a command that marks it as an authority's, and
            // libpq takes it as root and server's certificate in one. So do we, for that very certificate. The dates
            // were looked at before.
            Err(error) if is_authority(&error) && given.contains(end_entity) => {}
            result => result?,
        }
        if *name {
            verify_server_name(&cert, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        // openssl makes certificates of version 1 unless told otherwise. They say nothing that could be verified, but
        // where nothing is, libpq takes them, and their key is all that is needed.
        if let (Check::Nothing, Some(key)) = (&self.check, public_key(cert)) {
            return verify_tls13_signature_with_raw_key(message, &key, dss, algorithms);
        }
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The key of a certificate of any version.
fn public_key(cert: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let cert = x509_cert::Certificate::from_der(cert).ok()?;
    cert.tbs_certificate.subject_public_key_info.to_der().ok().map(Into::into)
}

/// Whether the only fault of a certificate is that it is an authority's.
fn is_authority(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if format!("{other:?}").contains("CaUsedAsEndEntity"))
}
