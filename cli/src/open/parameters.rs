//! The parameters of this program in the URLs of servers, among those of the saver.
//!
//! Errors do not show what the URL says: it may be a part of a password.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::failure::{Failure, Result};

/// Takes parameters out of a URL. `take` gets the name and the value of each, and says whether it is one of this program's.
pub(super) fn taken_out(url: &str, mut take: impl FnMut(&str, &str) -> Result<bool>) -> Result<String> {
    let (start, query) = url.split_once('?').unwrap_or((url, ""));
    let mut rest = start.to_owned();
    let mut separator = '?';
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !take(name, value)? {
            rest.push(separator);
            rest.push_str(pair);
            separator = '&';
        }
    }
    Ok(rest)
}

pub(super) fn text(name: &str, value: &str) -> Result<String> {
    let decoded = percent_decode_str(value).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| Failure::usage(format!("{name} in the URL is not UTF-8 with percent-encoded bytes")))
}

/// How long a thread is kept.
pub(super) fn ttl(value: &str) -> Result<Duration> {
    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        Failure::usage(
            "ttl in the URL is a number of seconds: how long a thread is kept after its last write",
        )
    })
}

pub(super) fn flag(name: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| Failure::usage(format!("{name} in the URL is true or false")))
}
