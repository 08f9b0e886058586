//! TLS with rustls.

use std::path::Path;
use std::sync::Arc;

use checkpoint_core::{Error, Result};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Makes the configuration of TLS: the system's roots or those in a file, and the client's certificate with its key.
pub(crate) fn client_config(
    roots: Option<&Path>,
    client: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>> {
    // Explicit, so that it does not depend on the process-wide default provider of the application.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid_config("this build has no usable TLS version").with_source(error))?
        .with_root_certificates(root_store(roots)?);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = read_certificates("tls_client_certificate", certificate)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| unreadable("tls_client_certificate's key", key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                Error::invalid_config(
                    "the client's certificate and key do not match, or are of an unknown kind",
                )
                .with_source(error)
            })?
        }
    };
    Ok(Arc::new(config))
}

fn root_store(file: Option<&Path>) -> Result<RootCertStore> {
    let certificates = match file {
        Some(path) => read_certificates("tls_root_certificates", path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are ignored, as long as there are others.
    let (added, _) = roots.add_parsable_certificates(certificates);
    match (added, file) {
        (0, Some(path)) => Err(Error::invalid_config("no certificate in tls_root_certificates is usable")
            .with("path", path.display())),
        (0, None) => Err(Error::invalid_config(
            "the system has no trusted certificates; name a file in tls_root_certificates",
        )),
        _ => Ok(roots),
    }
}

fn read_certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(option, path, error))?;
    if certificates.is_empty() {
        return Err(unreadable(option, path, pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn unreadable(option: &'static str, path: &Path, error: pem::Error) -> Error {
    let (what, source) = match error {
        pem::Error::Io(error) => ("cannot be read", Some(error)),
        pem::Error::NoItemsFound => ("has nothing of its kind in PEM format", None),
        // The source would show lines of the file, which may be a key.
        _ => ("is not a PEM file, or is damaged", None),
    };
    let error = Error::invalid_config(format!("the file in {option} {what}")).with("path", path.display());
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}
