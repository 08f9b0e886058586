//! The parameters of a saver in its URL, among those of the driver.

use std::time::Duration;

use checkpoint_core::{Error, Result};
use percent_encoding::percent_decode_str;

/// What a URL says to the saver.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) collection: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) sharded: Option<bool>,
}

/// Takes the saver's parameters out of a URL. Errors do not show them: they may be a part of a password.
pub(crate) fn parameters(url: &str) -> Result<(String, Parameters)> {
    let (start, query) = url.split_once('?').unwrap_or((url, ""));
    // The driver wants the scheme in lower case.
    let mut rest = match start.split_once("://") {
        Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
        None => start.to_owned(),
    };
    let mut parameters = Parameters::default();
    let mut separator = '?';
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("collection", value) => {
                let name = percent_decode_str(value).decode_utf8();
                let wrong = |_| Error::invalid_config("collection in the URL is not UTF-8");
                parameters.collection = Some(name.map_err(wrong)?.into_owned());
            }
            ("ttl", value) => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                let wrong =
                    || Error::invalid_config("ttl in the URL is a whole number of seconds, at least 1");
                parameters.ttl = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
            }
            ("sharded", value) => {
                let wrong = |_| Error::invalid_config("sharded in the URL is true or false");
                parameters.sharded = Some(value.parse().map_err(wrong)?);
            }
            _ => {
                rest.push(separator);
                rest.push_str(pair);
                separator = '&';
            }
        }
    }
    Ok((rest, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart_from_the_drivers() {
        for (url, rest, collection, ttl, sharded) in [
            ("mongodb://h", "mongodb://h", None, None, None),
            ("MongoDB+srv://u:P@h/d?sharded=true", "mongodb+srv://u:P@h/d", None, None, Some(true)),
            (
                "mongodb://a,b:1/d?collection=a%20b&replicaSet=r&ttl=60&tls=true",
                "mongodb://a,b:1/d?replicaSet=r&tls=true",
                Some("a b"),
                Some(60),
                None,
            ),
        ] {
            let found = parameters(url).unwrap();
            let ttl = ttl.map(Duration::from_secs);
            let expected = Parameters { collection: collection.map(str::to_owned), ttl, sharded };
            assert_eq!(found, (rest.to_owned(), expected), "{url}");
        }
        for wrong in ["ttl=SECRET", "ttl=0", "sharded=SECRET", "collection=%FF"] {
            let error = parameters(&format!("mongodb://h/?{wrong}")).unwrap_err();
            assert!(error.message().contains("in the URL") && !format!("{error:?}").contains("SECRET"));
        }
    }
}
