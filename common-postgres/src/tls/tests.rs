use std::error::Error as _;

use checkpoint_core::ErrorKind;
use tempfile::TempDir;

use super::*;

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
fn keys_are_read_in_every_form_and_belong_to_their_certificate() {
    let folder = TempDir::new().unwrap();
    let cert = file(&folder, "client.crt", CERT);
    for (name, key) in [("sec1.key", SEC1), ("pkcs8.key", PKCS8)] {
        let key = file(&folder, name, key);
        assert!(connector(SslMode::Require, None, Some((&cert, &key)), false).unwrap().is_some(), "{name}");
    }
    let key = file(&folder, "pkcs1.key", PKCS1);
    let shown = refused(SslMode::Require, None, Some((&cert, &key)));
    assert!(shown.contains("do not belong together") && shown.contains("pkcs1.key"), "{shown}");
    assert!(matches!(read_key(&key).unwrap(), PrivateKeyDer::Pkcs1(_)), "it is read all the same");
}

#[test]
fn files_that_cannot_be_used_are_named_and_not_shown() {
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
        ("odd.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "can be used"),
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
fn what_goes_together() {
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
        assert!(connector(mode, None, None, true).is_err(), "direct TLS leaves no choice");
    }
    assert!(connector(SslMode::Require, None, None, true).unwrap().is_some());
}
