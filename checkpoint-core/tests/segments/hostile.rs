//! Damaged and hostile bytes are errors: no panic, no memory for what is only declared.

use checkpoint_core::backend::segments::{Address, Addresses, MANIFEST, MAX_SEGMENT};
use checkpoint_core::{Error, ErrorKind, Result, TypedBytes};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::data::{Database, THREAD, codec, codecs, eax, gcm, messages, row, typed};

fn number(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number > 0x7f {
        out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap());
    out
}

fn hash(what: u8, bytes: &[u8]) -> [u8; 24] {
    *Sha256::new_with_prefix([what]).chain_update(bytes).finalize().first_chunk().unwrap()
}

/// A manifest by its fields, as the documentation of the format has them.
#[derive(Clone)]
struct Fields {
    head: Vec<u8>,
    tag: Vec<u8>,
    len: u64,
    count: u64,
    key: Vec<u8>,
    digest: Vec<u8>,
    literals: Vec<(u64, Vec<u8>)>,
    literal_count: Option<u64>,
    tail: Vec<u8>,
}

impl Fields {
    /// "header", the segments, "middle" before the last one, "tail".
    fn of(segments: &[&[u8]]) -> (Self, Addresses, Database) {
        let mut database = Database::default();
        let address = |segment: &&[u8]| {
            let address = Address::new(hash(0, segment));
            database.segments.insert(address, TypedBytes::new("segment", segment.to_vec()));
            address
        };
        let addresses: Addresses = segments.iter().map(address).collect();
        let len: usize = segments.iter().map(|segment| segment.len()).sum();
        let fields = Self {
            head: vec![1, 0],
            tag: b"own".to_vec(),
            len: len as u64 + 16,
            count: segments.len() as u64,
            key: vec![0],
            digest: hash(1, addresses.as_bytes()).to_vec(),
            literals: vec![(0, b"header".to_vec()), (segments.len() as u64 - 1, b"middle".to_vec())],
            literal_count: None,
            tail: b"tail".to_vec(),
        };
        (fields, addresses, database)
    }

    fn contents(&self) -> Vec<u8> {
        let mut out = number(self.tag.len() as u64);
        out.extend(&self.tag);
        out.extend(number(self.len));
        out.extend(number(self.count));
        out.extend(&self.key);
        out.extend(&self.digest);
        out.extend(number(self.literal_count.unwrap_or(self.literals.len() as u64)));
        for (segments, bytes) in &self.literals {
            out.extend(number(*segments));
            out.extend(number(bytes.len() as u64));
            out.extend(bytes);
        }
        out.extend(&self.tail);
        out
    }

    fn manifest(&self) -> TypedBytes {
        TypedBytes::new(MANIFEST, [self.head.clone(), self.contents()].concat())
    }
}

fn read(database: &Database, manifest: &TypedBytes, addresses: &Addresses) -> Result<TypedBytes> {
    database.get(&codec(None), manifest, addresses)
}

#[track_caller]
fn is_codec<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec, "{error}");
    error
}

#[test]
fn the_documented_format_is_read() {
    let (fields, addresses, database) = Fields::of(&[b"one", b"two", b"three"]);
    let value = read(&database, &fields.manifest(), &addresses).unwrap();
    assert_eq!(value, TypedBytes::new("own", &b"headeronetwomiddlethreetail"[..]));
    let (mut fields, addresses, database) = Fields::of(&[b"one", b"one"]);
    fields.literals = vec![(2, b"1".to_vec()), (0, b"2".to_vec())];
    fields.len = 12;
    let value = read(&database, &fields.manifest(), &addresses).unwrap();
    assert_eq!(value.data, "oneone12tail");
}

#[test]
fn a_wrong_field_is_an_error() {
    let (good, addresses, database) = Fields::of(&[b"one", b"two", b"three"]);
    let wrong: [fn(&mut Fields); 16] = [
        |fields| fields.head = vec![],
        |fields| fields.head = vec![0, 0],
        |fields| fields.head = vec![1, 2],
        |fields| fields.head = vec![1, 1],
        |fields| fields.tag = b"\xff".to_vec(),
        |fields| fields.len -= 1,
        |fields| fields.len = u64::MAX,
        |fields| fields.count = 2,
        |fields| fields.count = 1 << 32,
        |fields| fields.key = vec![2],
        |fields| fields.digest[5] ^= 1,
        |fields| fields.literal_count = Some(u64::MAX),
        |fields| fields.literals[1].0 = 4,
        |fields| fields.literals[1].0 = u64::MAX,
        |fields| fields.literals[0].1.clear(),
        |fields| fields.tail.push(0),
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let mut fields = good.clone();
        change(&mut fields);
        let error = read(&database, &fields.manifest(), &addresses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Codec, "change {at}: {error}");
    }
    let mut newer = good.clone();
    newer.head = vec![2, 0];
    assert!(is_codec(read(&database, &newer.manifest(), &addresses)).to_string().contains("newer"));
    // A number of eleven bytes, and one of more than 64 bits.
    for len in [vec![0x80; 11], [vec![0xff; 9], vec![0x7f]].concat()] {
        let mut bytes = vec![1, 0, 3];
        bytes.extend(b"own");
        bytes.extend(len);
        bytes.extend([0; 40]);
        is_codec(read(&database, &TypedBytes::new(MANIFEST, bytes), &addresses));
    }
    let bytes = good.manifest().data;
    for end in 0..bytes.len() {
        is_codec(read(&database, &TypedBytes::new(MANIFEST, bytes.slice(..end)), &addresses));
    }
    // Keyed addresses, and no cipher.
    let mut keyed = good;
    keyed.key = [vec![1], vec![5; 20]].concat();
    for codec in [codec(None), codec(Some(gcm()))] {
        let error = database.get(&codec, &keyed.manifest(), &addresses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);
    }
}

#[test]
fn wrong_segments_are_errors() {
    let (fields, addresses, good) = Fields::of(&[b"one", b"two", b"three"]);
    let manifest = fields.manifest();
    let [first, second, _] = addresses.iter().collect::<Vec<_>>()[..] else { panic!("three") };
    let mut database = good.clone();
    database.segments.remove(&second);
    assert!(is_codec(read(&database, &manifest, &addresses)).to_string().contains(&second.to_string()));
    for segment in [
        TypedBytes::new("segment", &b"ONE"[..]),
        TypedBytes::new("segment", &b""[..]),
        TypedBytes::new("segments", &b"one"[..]),
        TypedBytes::new("msgpack", &b"one"[..]),
        TypedBytes::new("segment.zstd", &b"one"[..]),
        TypedBytes::new("segment.zstd", &b""[..]),
    ] {
        let mut database = good.clone();
        database.segments.insert(first, segment);
        is_codec(read(&database, &manifest, &addresses));
    }
    let (fields, addresses, database) = Fields::of(&[&vec![5; MAX_SEGMENT + 1]]);
    is_codec(read(&database, &fields.manifest(), &addresses));

    // Lists that are not those of the manifest.
    is_codec(Addresses::new(vec![0; 25]));
    let value = TypedBytes::msgpack(&b"\x05"[..]);
    is_codec(read(&database, &value, &addresses));
    is_codec(read(&database, &fields.manifest(), &Addresses::default()));
}

#[test]
fn what_repeats_too_often_is_refused_before_it_is_joined() {
    // 4 GiB of segments, which is more than a value may have.
    let long = vec![5; MAX_SEGMENT];
    let segments = vec![&*long; 16_384];
    let (mut fields, addresses, database) = Fields::of(&segments[..2]);
    let addresses: Addresses = addresses.iter().cycle_to(segments.len());
    fields.count = segments.len() as u64;
    fields.len = (segments.len() * MAX_SEGMENT) as u64 + 16;
    fields.digest = hash(1, addresses.as_bytes()).to_vec();
    is_codec(read(&database, &fields.manifest(), &addresses));
}

/// Repeats what an iterator has up to a length.
trait CycleTo: Iterator<Item = Address> + Sized {
    fn cycle_to(self, len: usize) -> Addresses {
        let items: Vec<_> = self.collect();
        items.iter().copied().cycle().take(len).collect()
    }
}

impl<I: Iterator<Item = Address>> CycleTo for I {}

#[cfg(feature = "zstd")]
#[test]
fn compressed_bytes_cannot_be_long() {
    let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
    let (mut fields, addresses, mut database) = Fields::of(&[b"one"]);
    let only = addresses.iter().next().unwrap();
    database.segments.insert(only, TypedBytes::new("segment.zstd", pack(b"one")));
    assert!(read(&database, &fields.manifest(), &addresses).is_ok());
    let unsized_frame = zstd::stream::encode_all(&b"one"[..], 3).unwrap();
    for segment in
        [pack(&vec![0; 100_000_000]), pack(b"two"), unsized_frame, [pack(b"one"), pack(b"one")].concat()]
    {
        let mut database = database.clone();
        database.segments.insert(only, TypedBytes::new("segment.zstd", segment));
        is_codec(read(&database, &fields.manifest(), &addresses));
    }
    let packed = |fields: &Fields| TypedBytes::new(MANIFEST, [vec![1, 1], pack(&fields.contents())].concat());
    assert!(read(&database, &packed(&fields), &addresses).is_ok());
    fields.tail = vec![0; 2_000_000];
    fields.len += fields.tail.len() as u64 - 4;
    assert!(read(&database, &fields.manifest(), &addresses).is_ok());
    is_codec(read(&database, &packed(&fields), &addresses));
    // Many literals in a few bytes are read, but not kept one by one.
    fields.len -= fields.tail.len() as u64;
    fields.tail.clear();
    fields.literals.extend(vec![(0, Vec::new()); 400_000]);
    assert!(packed(&fields).data.len() < 1_000);
    assert!(read(&database, &packed(&fields), &addresses).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_manifests_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        list in prop::collection::vec(any::<u8>(), 0..100),
        head in any::<bool>(),
    ) {
        let bytes = if head { [vec![1, bytes.len().to_le_bytes()[0] & 1], bytes].concat() } else { bytes };
        if let Ok(addresses) = Addresses::new(list) {
            let found = read(&Database::default(), &TypedBytes::new(MANIFEST, bytes), &addresses);
            prop_assert!(found.is_ok() || found.unwrap_err().kind() == ErrorKind::Codec);
        }
    }

    #[test]
    fn altered_manifests_are_errors_or_values(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
    ) {
        let (fields, addresses, database) = Fields::of(&[b"one", b"two", b"three"]);
        let mut bytes = fields.manifest().data.to_vec();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        bytes.truncate(bytes.len() - end.index(bytes.len()) / 10);
        match read(&database, &TypedBytes::new(MANIFEST, bytes), &addresses) {
            Ok(value) => prop_assert!(value.data.len() <= 60),
            Err(error) => prop_assert!(matches!(error.kind(), ErrorKind::Codec | ErrorKind::Crypto)),
        }
    }
}

#[test]
fn altered_ciphertext_does_not_open() {
    let value = typed(&messages(0..14));
    for (at, codec) in codecs().into_iter().enumerate() {
        let mut database = Database::default();
        let split = database.round_trip(&codec, &value);
        let segments = database.segments.clone();
        for (address, segment) in segments {
            for place in [0, 1, 7, 20, segment.data.len() / 2, segment.data.len() - 1] {
                let mut data = segment.data.to_vec();
                data[place] ^= 1;
                database.segments.insert(address, TypedBytes::new(segment.tag.clone(), data));
                let error = database.get(&codec, &split.value, &split.addresses).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::Codec | ErrorKind::Crypto),
                    "codec {at}, byte {place}: {error}"
                );
            }
            database.segments.insert(address, segment);
        }
    }
}

#[test]
fn a_segment_of_another_thread_is_refused_if_the_cipher_binds_it() {
    for cipher in [gcm(), eax()] {
        let codec = codec(Some(cipher));
        let split = codec.split(typed(&messages(0..14)), &row(THREAD)).unwrap();
        let other = codec.split(typed(&messages(0..14)), &row("other")).unwrap();
        let mut reader = codec.reader(THREAD);
        for (address, segment) in split.addresses.iter().zip(&other.segments) {
            reader.add(address, codec.seal_segment(segment, "other").unwrap());
        }
        assert_eq!(reader.missing(&other.addresses).len(), other.segments.len());
        let is_bound = split.value.tag.ends_with("+aes256gcm");
        match reader.open(split.value, &split.addresses, &row(THREAD)) {
            // AES-EAX binds nothing, and the segment has the bytes of the address.
            Ok(found) => assert!(!is_bound && found == typed(&messages(0..14))),
            Err(error) => assert!(is_bound && error.kind() == ErrorKind::Crypto),
        }
    }
}
