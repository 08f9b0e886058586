//! What the backends' `rekey` have in common.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{AssociatedData, ValueCodec};
use crate::rekey::{RekeyOptions, RekeyReport, SealedBy};
use crate::{Cipher, Error, ErrorKind, Result, TypedBytes};

/// A `rekey` of one thread that is under way. It decides what becomes of each value; the backend reads and stores them.
///
/// 1. The backend counts the values by [`SealedBy`] and gives them to [`begin`](Self::begin), which fails if a key is
///    missing.
/// 2. If [`reads_values`](Self::reads_values), it gives every value to [`reseal`](Self::reseal), except those that begin
///    with [`current_head`](Self::current_head), and stores what that returns if the row did not change meanwhile.
/// 3. It counts again if it [has to](Self::must_count_again), and takes the [`report`](Self::report).
#[derive(Debug)]
pub struct Rekeying {
    codec: ValueCodec,
    dry_run: bool,
    /// How many values another AES key has sealed, in a dry run.
    of_other_aes_keys: u64,
    resealed: u64,
    /// Whether there were values of other keys at first.
    had_others: bool,
    failed: Option<(Error, u64)>,
}

impl Rekeying {
    /// How often the rows are read again if some of them changed while they were sealed.
    pub const PASSES: usize = 8;

    /// Checks that there is a cipher, and that it has every key that can be told by these values.
    ///
    /// # Errors
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) without a cipher, [`Crypto`](ErrorKind::Crypto) if it lacks a key. A
    /// dry run needs neither.
    pub fn begin(
        codec: &ValueCodec,
        options: RekeyOptions,
        values: &BTreeMap<SealedBy, u64>,
    ) -> Result<Self> {
        let dry_run = options.dry_run;
        if !dry_run {
            let cipher = codec.cipher.as_ref().ok_or_else(|| {
                Error::invalid_config(
                    "values cannot be sealed without a cipher; give the saver one, or only count",
                )
            })?;
            values.iter().try_for_each(|(sealed_by, count)| {
                check_key(cipher, sealed_by).map_err(|error| error.with("values", count))
            })?;
        }
        let codec = codec.requiring_decryption();
        let had_others = others(&codec, values) > 0;
        Ok(Self { codec, dry_run, of_other_aes_keys: 0, resealed: 0, had_others, failed: None })
    }

    /// Whether values have to be read. A dry run needs them only to try which AES key has sealed them.
    pub fn reads_values(&self) -> bool {
        self.codec.cipher.as_ref().is_some_and(|cipher| !self.dry_run || cipher.sealed_by() == SealedBy::Aes)
    }

    /// Whether plain values are left as they are.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// The bytes with which the values of the sealing key begin (and no others), unless it is an AES key, whose values
    /// have no key id.
    pub fn current_head(&self) -> Option<Bytes> {
        self.codec.cipher.as_ref().and_then(Cipher::sealing_head)
    }

    /// Opens a value and seals it again with the sealing key. Returns `None` if there is nothing to store: the key has
    /// sealed it already, it could not be opened (which [`report`](Self::report) returns later), or this is a dry run.
    pub fn reseal(
        &mut self,
        typed: Result<TypedBytes>,
        row: &AssociatedData<'_>,
        context: impl Fn(Error) -> Error,
    ) -> Option<TypedBytes> {
        let resealed = typed.and_then(|typed| {
            let Some(cipher) = &self.codec.cipher else { return Ok(None) };
            if cipher.is_current(&typed) {
                return Ok(None);
            }
            if self.dry_run {
                self.of_other_aes_keys += u64::from(SealedBy::of(&typed.tag, &typed.data) == SealedBy::Aes);
                return Ok(None);
            }
            self.codec.reseal(typed, row, row).map(Some)
        });
        resealed.unwrap_or_else(|error| {
            self.fail(context(error));
            None
        })
    }

    /// Notes a value that could not be sealed again.
    pub fn fail(&mut self, error: Error) {
        let (_, count) = self.failed.get_or_insert((error, 0));
        *count += 1;
    }

    /// Counts values that were stored.
    pub fn stored(&mut self, count: u64) {
        self.resealed += count;
    }

    /// Whether the values have to be counted again: they were sealed by this call, or meanwhile by another one.
    pub fn must_count_again(&self) -> bool {
        !self.dry_run && (self.resealed > 0 || self.had_others)
    }

    /// Begins another pass over the rows.
    pub fn pass_again(&mut self) {
        self.failed = None;
    }

    /// The report, with the counts after the call.
    ///
    /// # Errors
    /// The first error of a value that could not be sealed again. All other values are sealed by then.
    pub fn report(self, values: BTreeMap<SealedBy, u64>) -> Result<RekeyReport> {
        if let Some((error, count)) = self.failed {
            return Err(error.with("failed", count));
        }
        let remaining = others(&self.codec, &values) + self.of_other_aes_keys;
        Ok(RekeyReport { values, resealed: self.resealed, remaining })
    }

    /// The error for rows that changed in every pass.
    pub fn conflict() -> Error {
        Error::new(ErrorKind::Conflict, "other writers changed the thread all the time; run it again")
            .retryable(true)
    }
}

/// How many values are not sealed as the sealing key seals.
fn others(codec: &ValueCodec, values: &BTreeMap<SealedBy, u64>) -> u64 {
    let current = codec.cipher.as_ref().map_or(SealedBy::Plain, Cipher::sealed_by);
    values.iter().filter(|(sealed_by, _)| **sealed_by != current).map(|(_, count)| count).sum()
}

/// Fails if a ring cannot have the key that sealed a value.
fn check_key(cipher: &Cipher, sealed_by: &SealedBy) -> Result<()> {
    if cipher.may_open(sealed_by) {
        return Ok(());
    }
    Err(match sealed_by {
        SealedBy::AesGcm(id) => {
            Error::crypto("the key ring lacks a key of the thread; add it with with_aes_gcm_decryption_key")
                .with("key_id", id)
        }
        SealedBy::Aes => Error::crypto(
            "the thread has values of Cipher::aes, and the key ring has no such key; add it with \
             with_aes_decryption_key",
        ),
        other => Error::crypto("the thread has values of an unknown cipher").with("cipher", other),
    })
}

#[cfg(all(test, feature = "encryption"))]
mod tests {
    use super::*;

    const ROW: AssociatedData<'_> =
        AssociatedData::Blob { thread_id: "t", checkpoint_ns: "", channel: "c", version: "1" };

    fn codec(cipher: Cipher) -> ValueCodec {
        ValueCodec { cipher: Some(cipher), return_sealed: true, ..ValueCodec::default() }
    }

    fn plain() -> TypedBytes {
        TypedBytes::msgpack(&b"\x05"[..])
    }

    #[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn begin(codec: &ValueCodec) -> Rekeying {
        Rekeying::begin(codec, RekeyOptions::default(), &BTreeMap::new()).unwrap()
    }

    #[test]
    fn values_of_the_sealing_key_are_left_and_all_others_sealed_again() {
        let rings = [
            Cipher::aes_gcm("new", &[1; 32])
                .and_then(|ring| ring.with_aes_gcm_decryption_key("old", &[2; 32])),
            Cipher::aes(&[1; 16]).and_then(|ring| ring.with_aes_gcm_decryption_key("old", &[2; 32])),
        ];
        let old = Cipher::aes_gcm("old", &[2; 32]).unwrap().seal(&plain(), &ROW).unwrap();
        for ring in rings {
            let codec = codec(ring.and_then(|ring| ring.with_aes_decryption_key(&[3; 16])).unwrap());
            let mut rekeying = begin(&codec);
            let eax = Cipher::aes(&[3; 16]).unwrap().seal(&plain(), &ROW).unwrap();
            for value in [plain(), old.clone(), eax] {
                let sealed = rekeying.reseal(Ok(value), &ROW, |error| error).unwrap();
                assert_eq!(codec.open(sealed.clone(), &ROW).unwrap(), plain());
                let head = rekeying.current_head().unwrap_or_default();
                assert!(sealed.data.starts_with(&head));
                assert_eq!(rekeying.reseal(Ok(sealed), &ROW, |error| error), None);
            }
            assert!(rekeying.report(BTreeMap::new()).is_ok());
        }
    }

    #[test]
    fn what_cannot_be_opened_is_reported_with_its_number() {
        let mut rekeying = begin(&codec(Cipher::aes(&[1; 16]).unwrap()));
        let foreign = Cipher::aes(&[3; 16]).unwrap().seal(&plain(), &ROW).unwrap();
        for _ in 0..2 {
            let resealed = rekeying.reseal(Ok(foreign.clone()), &ROW, |error| error.with("row", "r"));
            assert_eq!(resealed, None);
        }
        let error = rekeying.report(BTreeMap::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);
        assert!(error.to_string().contains("row") && error.to_string().contains("failed"), "{error}");
    }

    #[test]
    fn a_missing_cipher_or_key_is_found_before_anything_is_done() {
        let begin = |codec: &ValueCodec, sealed_by: SealedBy, dry_run| {
            let options = RekeyOptions { dry_run };
            Rekeying::begin(codec, options, &[(sealed_by, 7)].into()).map_err(|error| error.kind()).map(drop)
        };
        let old = || SealedBy::AesGcm("old".into());
        let ring = codec(Cipher::aes_gcm("new", &[1; 32]).unwrap());
        for (codec, sealed_by, expected) in [
            (&ValueCodec::default(), SealedBy::Plain, Err(ErrorKind::InvalidConfig)),
            (&ring, old(), Err(ErrorKind::Crypto)),
            (&ring, SealedBy::Aes, Err(ErrorKind::Crypto)),
            (&ring, SealedBy::Other("rot13".into()), Err(ErrorKind::Crypto)),
            (&ring, SealedBy::AesGcm("new".into()), Ok(())),
            (&ring, SealedBy::Plain, Ok(())),
        ] {
            assert_eq!(begin(codec, sealed_by.clone(), false), expected, "{sealed_by}");
            assert_eq!(begin(codec, sealed_by, true), Ok(()));
        }
        let error = Rekeying::begin(&ring, RekeyOptions::default(), &[(old(), 7)].into()).unwrap_err();
        assert!(error.to_string().contains("old"), "{error}");
    }

    #[test]
    fn a_dry_run_tries_the_aes_keys_and_stores_nothing() {
        let ring = Cipher::aes(&[1; 16]).unwrap();
        let mut rekeying =
            Rekeying::begin(&codec(ring.clone()), RekeyOptions { dry_run: true }, &BTreeMap::new()).unwrap();
        assert!(rekeying.reads_values());
        let own = ring.seal(&plain(), &ROW).unwrap();
        let foreign = Cipher::aes(&[3; 16]).unwrap().seal(&plain(), &ROW).unwrap();
        for value in [own, foreign, plain()] {
            assert_eq!(rekeying.reseal(Ok(value), &ROW, |error| error), None);
        }
        let report = rekeying.report([(SealedBy::Aes, 2), (SealedBy::Plain, 1)].into()).unwrap();
        assert_eq!((report.remaining, report.resealed), (2, 0));
    }
}
