//! Certificates of a TLS server and of a client.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::run::Result;

/// The role that logs in by certificate.
const CLIENT: &str = "cert_user";

/// Writes `ca.crt`, `server.crt` and `.key`, `client.crt` and `.key`, and `wrong-ca.crt`, which has signed none of them.
pub(super) fn make(folder: &Path) -> Result<()> {
    let (ca, issuer) = authority("checkpoint test")?;
    let (wrong_ca, _) = authority("somebody else")?;
    let (server, server_key) = signed(
        "localhost",
        &["localhost", "127.0.0.1", "::1"],
        ExtendedKeyUsagePurpose::ServerAuth,
        &issuer,
    )?;
    let (client, client_key) = signed(CLIENT, &[], ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
    let files = [
        ("ca.crt", ca.pem()),
        ("wrong-ca.crt", wrong_ca.pem()),
        ("server.crt", server.pem()),
        ("server.key", server_key.serialize_pem()),
        ("client.crt", client.pem()),
        ("client.key", client_key.serialize_pem()),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, &text)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        // libpq rejects a key that other users may read.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode =
                std::fs::Permissions::from_mode(if text.contains("PRIVATE KEY") { 0o600 } else { 0o644 });
            std::fs::set_permissions(&path, mode).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn authority(name: &str) -> Result<(Certificate, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate, Issuer::new(params, key)))
}

fn signed(
    name: &str,
    hosts: &[&str],
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(Certificate, KeyPair)> {
    let mut params = CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages.push(usage);
    // Some clients require the authority's key identifier, and some an explicit `CA:FALSE`.
    params.use_authority_key_identifier_extension = true;
    params.is_ca = IsCa::ExplicitNoCa;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok((certificate, key))
}
