//! zstd, as the cargo feature `zstd` builds it.

use std::fmt;

use crate::{Error, Result};

/// What is smaller is stored as it is.
pub(super) const MIN_BYTES: usize = 512;

/// Compresses bytes, unless that saves less than an eighth.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if the library fails.
#[cfg(feature = "zstd")]
pub(super) fn compress(bytes: &[u8], level: i32) -> Result<Option<Vec<u8>>> {
    if bytes.len() < MIN_BYTES {
        return Ok(None);
    }
    let compressed = zstd::bulk::compress(bytes, level)
        .map_err(|source| Error::codec("a value could not be compressed").with_source(source))?;
    Ok((compressed.len() < bytes.len() - bytes.len() / 8).then_some(compressed))
}

/// Compresses nothing in this build.
///
/// # Errors
/// None.
#[cfg(not(feature = "zstd"))]
#[expect(clippy::unnecessary_wraps, reason = "the signature is that of the other build")]
pub(super) fn compress(_: &[u8], _: i32) -> Result<Option<Vec<u8>>> {
    Ok(None)
}

/// Decompresses. It keeps zstd's state, which takes longer to make than a segment takes to decompress.
#[derive(Default)]
pub(super) struct Decompressor {
    #[cfg(feature = "zstd")]
    state: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Decompresses at most `limit` bytes. The declared length is checked before memory is allocated.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for bytes that are damaged or declare another length.
    #[cfg(feature = "zstd")]
    pub(super) fn decompress(&mut self, bytes: &[u8], limit: usize) -> Result<Vec<u8>> {
        let damaged = || Error::codec("compressed bytes are damaged").with("bytes", bytes.len());
        let declared = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten().ok_or_else(damaged)?;
        let declared =
            usize::try_from(declared).ok().filter(|declared| *declared <= limit).ok_or_else(damaged)?;
        let state = match &mut self.state {
            Some(state) => state,
            none => {
                none.insert(zstd::bulk::Decompressor::new().map_err(|source| damaged().with_source(source))?)
            }
        };
        let out = state.decompress(bytes, declared).map_err(|source| damaged().with_source(source))?;
        if out.len() == declared { Ok(out) } else { Err(damaged()) }
    }

    /// Refuses: this build cannot decompress.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec), always.
    #[cfg(not(feature = "zstd"))]
    #[expect(clippy::unused_self, reason = "the signature is that of the other build")]
    pub(super) fn decompress(&mut self, _: &[u8], _: usize) -> Result<Vec<u8>> {
        Err(Error::codec(
            "the value is compressed, and this program was built without the cargo feature `zstd`; enable it in \
             checkpoint-core",
        ))
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}
