use std::error::Error as _;

use checkpoint_core::ErrorKind;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion};
use tempfile::TempDir;

use super::*;
use crate::error::describe_tls;

// Made for these tests, and used nowhere else.
const CERT: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBdTCCARugAwIBAgIUTl4P4oauBRGe2/QFqIugf2DJEMQwCgYIKoZIzj0EAwIw\n\
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjEwOTI5MjVaGA8yMTI2MTAyODA5Mjky\n\
NVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDxT\n\
RIB4Em9AuUk513l7bSVtqTfajA74zhPzTadUMtWG6XaKh2+fgpKPGVdxj6/PCu6g\n\
GbWzaom+aZJRKvvyaqqjUzBRMB0GA1UdDgQWBBQ1Q1X+axMLZJKl759Jw1YPg+M+\n\
pzAfBgNVHSMEGDAWgBQ1Q1X+axMLZJKl759Jw1YPg+M+pzAPBgNVHRMBAf8EBTAD\n\
AQH/MAoGCCqGSM49BAMCA0gAMEUCIAu1tIIBO+aAg/fpyrlroMEbwmkx5+oEErNy\n\
5gXaxQYFAiEAt9VdXvx/kQvYIh+fU23XH4uOgYDgopFcW+zpF/kGuWo=\n\
-----END CERTIFICATE-----";
const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----\n\
MHcCAQEEIEyVyaX7TZC7A5mCEZmxF3NZBgCcvNWD7o9XdT1VZA4ToAoGCCqGSM49\n\
AwEHoUQDQgAEPFNEgHgSb0C5STnXeXttJW2pN9qMDvjOE/NNp1Qy1YbpdoqHb5+C\n\
ko8ZV3GPr88K7qAZtbNqib5pklEq+/Jqqg==\n\
-----END EC PRIVATE KEY-----";
const PKCS8: &str = "-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgTJXJpftNkLsDmYIR\n\
mbEXc1kGAJy81YPuj1d1PVVkDhOhRANCAAQ8U0SAeBJvQLlJOdd5e20lbak32owO\n\
+M4T802nVDLVhul2iodvn4KSjxlXcY+vzwruoBm1s2qJvmmSUSr78mqq\n\
-----END PRIVATE KEY-----";
const PKCS1: &str = "-----BEGIN RSA PRIVATE KEY-----\n\
MIIEpAIBAAKCAQEA0j1Q45plMuAKP3rf+lfF0srrAcClVDOxF5B30DequK+Aw4qi\n\
h92jX9tdrwwVBr4kZgLW1hbi0Vyiwynmz0RGvX1qprY43ZAE6KYHkOCATdppfytp\n\
3DwIqyWt2YINaFNmBJEnv8g0ZbrgA1IzpUv6d6awPoaD/UTFDjZd1rCA61fP/+OV\n\
EbaYqlzSmfg2krwevH0WhyA15PSPPAzFWqYgzNUZWgEW6dLqJBvQHymuiVd/t0Yy\n\
jyspq2BjCoVioM2+uaT/vhzZIS3w7u4zvp4HvykEkrY4jwdXwfSB4RTVKtbaZvg3\n\
SrBGdwbrUmAxWBp/aX2avnt7T07kqJk3hfIn3wIDAQABAoIBAAgAZWsowk3Sh+y/\n\
Jr8iIllRwOpGcij5rGM3fhfioewvz4GhttgoXZ26D59Mxdk8a2CB+gM9EXYHjtW2\n\
tEK3M6oKl+5BiTCFj9f66/td4k1dY0MSE1ladm6RrbFVjc449TYtAB23VPBVrQRh\n\
DkBt/9nPFtvTfRXzuvMZPXfqUPSj/msNzY0NG9EOM930hzTdSZRTwnDSMAqYxwVe\n\
IRvBliPRs+7JmwpP/0OIi8yNWiUXsRJFFxut/IecWys1W83teAaUz/qWS4zBGyW4\n\
c7Cn1lxEx31AdQgwpGP0kuLo0y68MSNjcAeVNmK+JwylJQxpOxlkRBQdfR7gKiLl\n\
n2YpqSECgYEA71oNOiScWVgF/gnH/9GsNEwE88tR3zIckB+jYHC9/lLYO5rPAjcN\n\
f33qkrFceCMOKfOgKkZnFYgAt5L9gpiiZchNfFcmKqAxXC3WXaPF5a5/DzNyymtZ\n\
fHjy6BBDZOj3qUSsOWEVLvUKw1YElEv7iBlG1adHrCmal2oaLFqyPwsCgYEA4Nzi\n\
qvtBzfeFL2SwedJ9Gk595HK5bhPSnFySfLUUzlkLJKk4dj0pqShpQk0iNdr77oSO\n\
QXItNrGuUz7wi+LbCIfdYRiNTk0D+xlIXqROSwylla8l3yWeX1vKxCd4qjA5Z/Rf\n\
7vDAMKwoE2gEK8FJTUHaA2ULNwjkszZtcrSNzv0CgYEApeZD/sX7fM3PMXq0HnPF\n\
KWZ7lEOcFtkUBS14v1LFze68I+w0ibOA7ppnKZA3qKmbmqZboJG1x63B2XvPrWKA\n\
RY4lbwa01Jy+OccnqzXl6EIfnXiqmvT3TJhEvWbwX5Q+fRu1R/wrg6Wi9Su89tEH\n\
ohjrCRHuUr1vgn2vcIjYvWsCgYByZ+/rjmqsoILi2hfv42hDOixTTwuJNgyyAWeG\n\
i5tKYYOJ448WmYfYyPbFBPmi7QfBEzBNnAnlCgHn2N4KTiGi9X1tKVC7xfOAjhyE\n\
CpTLGmQlBDgAkONDITDJHEwISwDqIyusJlGicfTx6ro0iOMCq76Ae6h5F81EYSzO\n\
b463AQKBgQCVGFaOYtj6SmnMmluETy35wB2yXKUJroZWvYUJhbQhN59Y6UaELyTS\n\
wJknotaDe2ZkWLu1v+GEXnDIfFhInzmZDnPoOpieSDjQ+20u5EDx8E2hcbM+xd+v\n\
owucprHC7s7M81ssyIuY8pHqto/M8/YTTXnPu039+DNdiZF2Hs/Rag==\n\
-----END RSA PRIVATE KEY-----";
// openssl x509 -req, as in PostgreSQL's manual, makes X.509 version 1.
const VERSION_1: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBJDCBywIUQ+QB1bNzBi0om/X12qVaEWwC19IwCgYIKoZIzj0EAwIwFDESMBAG\n\
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjA1MDc0MVoYDzIxMjYxMDI5MDUwNzQx\n\
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
AAQNP5gT/F8igQbWwTF3pbi4p9OFgVChs6Az+wS3CmFLbpdwFfuHrQccpHe8xHzc\n\
BHb816n5+7iVfhs7JvSr08LjMAoGCCqGSM49BAMCA0gAMEUCIF9gNEShr48lL6f1\n\
HlCfcys7oJ4a/Y5Qfko5EdLp5uTiAiEA6gCzIfrZPzUtEIvgbkxqqimhMqOhIGwb\n\
fhbYQJSHc9k=\n\
-----END CERTIFICATE-----";
const VERSION_1_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgr+pqQd7EFapgAJ+G\n\
ayH7NgyXAuGwYfrUvk695sYBP3ChRANCAAQNP5gT/F8igQbWwTF3pbi4p9OFgVCh\n\
s6Az+wS3CmFLbpdwFfuHrQccpHe8xHzcBHb816n5+7iVfhs7JvSr08Lj\n\
-----END PRIVATE KEY-----";
const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_SEC1: &str = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
                              -----END EC PRIVATE KEY-----";

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn refused(mode: SslMode, root: Option<&RootCert>, client: Option<(&Path, &Path)>) -> String {
    let Err(error) = connector(mode, root, client, false) else {
        panic!("{mode:?} {root:?} {client:?} was accepted")
    };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    format!("{error} {error:?} {:?}", error.source())
}

#[test]
fn keys_are_read_in_every_format_and_must_match_the_certificate() {
    let folder = TempDir::new().unwrap();
    let cert = file(&folder, "client.crt", CERT);
    for (name, key) in [("sec1.key", SEC1), ("pkcs8.key", PKCS8)] {
        let key = file(&folder, name, key);
        assert!(connector(SslMode::Require, None, Some((&cert, &key)), false).unwrap().is_some(), "{name}");
    }
    let key = file(&folder, "pkcs1.key", PKCS1);
    let shown = refused(SslMode::Require, None, Some((&cert, &key)));
    assert!(shown.contains("do not match") && shown.contains("pkcs1.key"), "{shown}");
    assert!(matches!(read_key(&key).unwrap(), PrivateKeyDer::Pkcs1(_)), "the key itself is read");
}

#[test]
fn errors_name_unusable_files_without_their_contents() {
    let folder = TempDir::new().unwrap();
    let cert = file(&folder, "client.crt", CERT);
    let damaged = SEC1.replace("MHcCAQ", "%%%%%%");
    let table = [
        ("encrypted.key", ENCRYPTED, "is encrypted"),
        ("encrypted-sec1.key", ENCRYPTED_SEC1, "is encrypted"),
        ("cert-instead.key", CERT, "has no private key"),
        ("empty.key", "", "has no private key"),
        ("damaged.key", damaged.as_str(), "damaged"),
        ("cut.key", SEC1.get(..100).unwrap(), "damaged"),
    ];
    for (name, text, words) in table {
        let key = file(&folder, name, text);
        let shown = refused(SslMode::Require, None, Some((&cert, &key)));
        assert!(shown.contains(words) && shown.contains(name), "{shown}");
        assert!(!shown.contains("EEIEyVyaX7TZC7A5m"), "the key is shown: {shown}");
    }
    let missing = folder.path().join("missing.pem");
    let shown = refused(SslMode::Require, None, Some((&cert, &missing)));
    assert!(
        shown.contains("sslkey") && shown.contains("missing.pem") && shown.contains("NotFound"),
        "{shown}"
    );
    let shown = refused(SslMode::Require, None, Some((&missing, &missing)));
    assert!(shown.contains("sslcert") && shown.contains("missing.pem"), "{shown}");

    let roots = [
        ("no.crt", "", "has no certificate"),
        ("key.crt", SEC1, "has no certificate"),
        (
            "odd.crt",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
            "no certificate in sslrootcert is usable",
        ),
    ];
    for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        for (name, text, words) in roots {
            let root = RootCert::File(file(&folder, name, text));
            let shown = refused(mode, Some(&root), None);
            assert!(shown.contains(words) && shown.contains("sslrootcert"), "{shown}");
        }
        let shown = refused(mode, Some(&RootCert::File(missing.clone())), None);
        assert!(shown.contains("sslrootcert") && shown.contains("missing.pem"), "{shown}");
    }
}

#[test]
fn incompatible_options_are_rejected() {
    let folder = TempDir::new().unwrap();
    let root = RootCert::named(file(&folder, "ca.crt", CERT));
    assert!(connector(SslMode::Disable, Some(&root), None, false).unwrap().is_none());
    for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        assert!(connector(mode, Some(&root), None, false).unwrap().is_some());
    }
    assert!(refused(SslMode::VerifyCa, None, None).contains("sslrootcert"));
    for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa] {
        assert!(refused(mode, Some(&RootCert::System), None).contains("verify-full"));
    }
    assert_eq!(RootCert::named("system".into()), RootCert::System);
    for mode in [SslMode::Disable, SslMode::Prefer] {
        assert!(connector(mode, None, None, true).is_err(), "direct TLS requires TLS");
    }
    assert!(connector(SslMode::Require, None, None, true).unwrap().is_some());
}

const VERIFYING: [SslMode; 2] = [SslMode::VerifyCa, SslMode::VerifyFull];

/// A server's certificate and key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn new(cert: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            chain: vec![cert.der().clone()],
            key: PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        }
    }

    fn pem(cert: &str, key: &str) -> Self {
        Self {
            chain: vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
            key: PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        }
    }

    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> (Self, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        // Otherwise a root with the same name and another key would be tried.
        params.distinguished_name.push(DnType::CommonName, format!("{:x?}", key.public_key_raw().get(1..9)));
        change(&mut params);
        let cert = params.self_signed(&key).unwrap();
        (Self::new(&cert, &key), cert.pem())
    }

    fn server(&self, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let signer = provider.key_provider.load_private_key(self.key.clone_key()).unwrap();
        // Like PostgreSQL, it does not parse its certificate.
        let pair = SingleCertAndKey::from(CertifiedKey::new(self.chain.clone(), signer));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(pair));
        Arc::new(config)
    }
}

fn authority(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn handshake(
    mode: SslMode,
    root: Option<&Path>,
    server: Arc<ServerConfig>,
    name: &'static str,
) -> Result<(), rustls::Error> {
    let root = root.map(|path| RootCert::File(path.to_owned()));
    let config = client_config(mode, root.as_ref(), None, false).unwrap().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

/// The message of the error when the handshake fails.
fn message(result: Result<(), rustls::Error>) -> &'static str {
    let (kind, message, retryable) = describe_tls(&result.unwrap_err());
    assert_eq!((kind, retryable), (ErrorKind::InvalidConfig, false));
    message
}

#[test]
fn each_mode_verifies_chain_and_name_as_documented() {
    let folder = TempDir::new().unwrap();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    authority(&mut ca);
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let root = file(&folder, "ca.crt", &ca_cert.pem());
    let other = file(&folder, "other.crt", &Identity::self_signed(authority).1);
    let both = file(&folder, "both.crt", &format!("{}{CERT}", ca_cert.pem()));
    let issuer = Issuer::new(ca, ca_key);
    let signed = |change: fn(&mut CertificateParams)| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        Identity::new(&params.signed_by(&key, &issuer).unwrap(), &key)
    };
    let good = signed(|_| {});
    let old = signed(|params| params.not_after = date_time_ymd(2001, 1, 1));
    for version in [&TLS12, &TLS13] {
        for root in [&root, &both] {
            for mode in VERIFYING {
                handshake(mode, Some(root), good.server(version), "localhost").unwrap();
            }
        }
        handshake(SslMode::VerifyCa, Some(&root), good.server(version), "other").unwrap();
        let misnamed = handshake(SslMode::VerifyFull, Some(&root), good.server(version), "other");
        assert!(message(misnamed).contains("another name"));
        for mode in VERIFYING.into_iter().chain([SslMode::Require, SslMode::Prefer]) {
            let wrong = handshake(mode, Some(&other), good.server(version), "localhost");
            assert!(message(wrong).contains("not signed by"));
            let expired = handshake(mode, Some(&root), old.server(version), "localhost");
            assert!(message(expired).contains("expired"));
        }
        // Without a root, neither is verified.
        handshake(SslMode::Require, None, old.server(version), "other").unwrap();
    }
}

#[test]
fn a_self_signed_certificate_is_its_own_root() {
    let folder = TempDir::new().unwrap();
    let kinds: [fn(&mut CertificateParams); 2] = [authority, |_| {}];
    for change in kinds {
        let (identity, pem) = Identity::self_signed(change);
        let root = file(&folder, "server.crt", &pem);
        let (impostor, other) = Identity::self_signed(change);
        let (old, old_pem) = Identity::self_signed(|params| {
            change(params);
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        });
        let old_root = file(&folder, "old.crt", &old_pem);
        let other = file(&folder, "other.crt", &other);
        for version in [&TLS12, &TLS13] {
            for mode in VERIFYING {
                handshake(mode, Some(&root), identity.server(version), "localhost").unwrap();
                let wrong = handshake(mode, Some(&other), identity.server(version), "localhost");
                assert!(message(wrong).contains("not signed by"));
                let wrong = handshake(mode, Some(&root), impostor.server(version), "localhost");
                assert!(message(wrong).contains("not signed by"));
                let expired = handshake(mode, Some(&old_root), old.server(version), "localhost");
                assert!(message(expired).contains("expired"));
            }
            handshake(SslMode::VerifyCa, Some(&root), identity.server(version), "other").unwrap();
            let misnamed = handshake(SslMode::VerifyFull, Some(&root), identity.server(version), "other");
            assert!(message(misnamed).contains("another name"));
        }
    }
}

#[test]
fn the_server_must_have_the_key_of_its_certificate() {
    let (identity, _) = Identity::self_signed(|_| {});
    let (other, _) = Identity::self_signed(|_| {});
    for cert in [&identity.chain, &Identity::pem(VERSION_1, VERSION_1_KEY).chain] {
        let thief = Identity { chain: cert.clone(), key: other.key.clone_key() };
        for version in [&TLS12, &TLS13] {
            for mode in [SslMode::Prefer, SslMode::Require] {
                assert!(handshake(mode, None, thief.server(version), "localhost").is_err(), "{version:?}");
            }
        }
    }
}

#[test]
fn certificates_of_version_1_work_only_without_verification() {
    let folder = TempDir::new().unwrap();
    let root = file(&folder, "v1.crt", VERSION_1);
    let identity = Identity::pem(VERSION_1, VERSION_1_KEY);
    for mode in [SslMode::Prefer, SslMode::Require] {
        handshake(mode, None, identity.server(&TLS13), "localhost").unwrap();
        let old = message(handshake(mode, None, identity.server(&TLS12), "localhost"));
        assert!(old.contains("version 3") && old.contains("TLS 1.3"), "{old}");
    }
    for mode in VERIFYING {
        let refused = message(handshake(mode, Some(&root), identity.server(&TLS13), "localhost"));
        assert!(refused.contains("version 3"), "{refused}");
    }
    // An authority may be of version 1.
    let key = KeyPair::from_pem(VERSION_1_KEY).unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, "localhost");
    let issuer = Issuer::new(ca, key);
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    for mode in VERIFYING {
        handshake(mode, Some(&root), Identity::new(&cert, &key).server(&TLS13), "localhost").unwrap();
    }
}
