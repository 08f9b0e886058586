//! Ciphers, copies of threads, and what is stored instead of values.

use checkpoint_core::backend::segments::{MANIFEST, SegmentCodec};
use checkpoint_core::backend::{AssociatedData, SplitCheckpoint, SplitRules, ValueCodec};
use checkpoint_core::{
    ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig, Cipher, ErrorKind,
    PutOptions, Result, TypedBytes,
};

use super::data::{Database, THREAD, codec, codecs, eax, gcm, messages, row, typed};

#[test]
fn with_a_cipher_addresses_are_keyed_and_nothing_is_in_clear() {
    let value = typed(&messages(0..30));
    let canary = &text_of(&value)[..20];
    let plain = codec(None).split(value.clone(), &row(THREAD)).unwrap();
    assert_eq!(plain.addresses, codec(None).split(value.clone(), &row("another")).unwrap().addresses);
    let mut lists = vec![plain.addresses.clone()];
    for cipher in [gcm(), eax(), Cipher::aes_gcm("k1", &[8; 32]).unwrap(), Cipher::aes(&[7; 32]).unwrap()] {
        let codec = codec(Some(cipher));
        for thread_id in [THREAD, "another"] {
            let split = codec.split(value.clone(), &row(thread_id)).unwrap();
            assert!(split.value.is_sealed());
            for segment in &split.segments {
                let sealed = codec.seal_segment(segment, thread_id).unwrap();
                assert!(sealed.is_sealed());
                assert!(!contains(&sealed.data, canary) && !contains(&split.value.data, canary));
            }
            assert_eq!(split.addresses.len(), plain.addresses.len());
            lists.push(split.addresses);
        }
    }
    for (at, list) in lists.iter().enumerate() {
        for address in list.iter() {
            assert!(lists[..at].iter().all(|other| other.iter().all(|other| other != address)));
        }
    }
}

fn text_of(value: &TypedBytes) -> Vec<u8> {
    let at = value.data.windows(7).position(|window| window == b"content").unwrap();
    value.data[at + 10..at + 60].to_vec()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_copied_thread_is_read_and_continued() {
    let list = messages(0..60);
    for codec in codecs() {
        let mut database = Database::default();
        let split = database.round_trip(&codec, &typed(&list));
        let is_bound = codec.values().cipher.is_some() && split.value.tag.ends_with("+aes256gcm");

        // Unchanged, as a copy inside of the database.
        let mut reader = codec.reader("copy");
        for (address, segment) in &database.segments {
            reader.add(*address, segment.clone());
        }
        let copied = reader.open(split.value.clone(), &split.addresses, &row("copy"));
        match copied {
            Ok(copied) => assert!(!is_bound && copied == typed(&list)),
            Err(error) => assert!(is_bound && error.kind() == ErrorKind::Crypto),
        }

        // Sealed again. The addresses stay.
        let mut reader = codec.reader("copy");
        for (address, segment) in &database.segments {
            let resealed = codec.reseal_segment(*address, segment.clone(), THREAD, "copy").unwrap();
            reader.add(*address, resealed);
        }
        let resealed = codec.values().reseal(split.value.clone(), &row(THREAD), &row("copy")).unwrap();
        assert_eq!(reader.open(resealed, &split.addresses, &row("copy")).unwrap(), typed(&list));

        // The copy goes on; its reader has values of both origins.
        let next = codec.split(typed(&messages(0..61)), &row("copy")).unwrap();
        let is_shared = next.addresses.as_bytes().starts_with(split.addresses.as_bytes());
        assert_eq!(is_shared, codec.values().cipher.is_none());
        for segment in &next.segments {
            reader.add(segment.address(), codec.seal_segment(segment, "copy").unwrap());
        }
        assert_eq!(reader.open(next.value, &next.addresses, &row("copy")).unwrap(), typed(&messages(0..61)));
    }
}

#[test]
fn after_a_new_key_old_values_open_and_new_ones_are_stored_again() {
    let value = typed(&messages(0..30));
    let mut database = Database::default();
    let before = [codec(None), codec(Some(eax())), codec(Some(gcm()))].map(|codec| {
        let split = database.round_trip(&codec, &value);
        (codec, split)
    });
    let ring = Cipher::aes_gcm("k2", &[2; 32]).unwrap();
    let ring =
        ring.with_aes_gcm_decryption_key("k1", &[7; 32]).unwrap().with_aes_decryption_key(&[9; 16]).unwrap();
    let ring = codec(Some(ring));
    let new = database.round_trip(&ring, &value);
    for (codec, split) in before {
        assert_eq!(database.get(&ring, &split.value, &split.addresses).unwrap(), value);
        assert!(new.addresses.iter().all(|new| split.addresses.iter().all(|old| old != new)));
        let error = database.get(&codec, &new.value, &new.addresses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);
    }
}

#[test]
fn two_ciphers_with_the_same_key_have_different_addresses() {
    // A ring opens what both of its ciphers stored, whichever seals.
    let value = typed(&messages(0..30));
    let first = codec(Some(Cipher::aes(&[5; 32]).unwrap()));
    let mut database = Database::default();
    let split = database.round_trip(&first, &value);
    let ring = Cipher::aes_gcm("k", &[5; 32]).unwrap().with_aes_decryption_key(&[5; 32]).unwrap();
    let ring = codec(Some(ring));
    assert_eq!(database.get(&ring, &split.value, &split.addresses).unwrap(), value);
    assert_ne!(ring.split(value, &row(THREAD)).unwrap().addresses, split.addresses);
}

#[test]
fn values_with_the_tag_of_manifests_are_stored_inside_of_one() {
    let opaque = ValueCodec { opaque_values: true, ..ValueCodec::default() };
    let opaque = SegmentCodec::new(opaque);
    for tag in [MANIFEST, "segments+aes", "segments+aes256gcm"] {
        for len in [0, 3, 50_000] {
            let value = TypedBytes::new(tag, vec![1; len]);
            let split = Database::default().round_trip(&opaque, &value);
            assert_eq!((&*split.value.tag, split.addresses.len()), (MANIFEST, 0));
        }
    }
    for tag in ["segment", "segmentsx", "x+segments"] {
        let value = TypedBytes::new(tag, vec![1; 100]);
        assert_eq!(Database::default().round_trip(&opaque, &value).value, value);
    }
}

#[test]
fn ciphertext_of_others_stays_whole() {
    let opaque = SegmentCodec::new(ValueCodec { opaque_values: true, ..ValueCodec::default() });
    let value = TypedBytes::new("msgpack+aes", vec![1; 50_000]);
    let split = Database::default().round_trip(&opaque, &value);
    assert_eq!((split.value, split.addresses.len()), (value.clone(), 0));
    let error = codec(None).split(value, &row(THREAD)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Crypto);
}

#[test]
fn a_manifest_that_cannot_be_opened_may_be_returned_sealed() {
    let sealing = codec(Some(gcm()));
    let mut database = Database::default();
    let split = database.round_trip(&sealing, &typed(&messages(0..30)));
    let keeping = SegmentCodec::new(ValueCodec { return_sealed: true, ..ValueCodec::default() });
    let found = database.get(&keeping, &split.value, &split.addresses).unwrap();
    assert_eq!(found, split.value);
    let sealing = codec(Some(eax()));
    let split = database.round_trip(&sealing, &typed(&messages(0..30)));
    let opaque = SegmentCodec::new(ValueCodec { opaque_values: true, ..ValueCodec::default() });
    for codec in [codec(None), opaque] {
        let error = database.get(&codec, &split.value, &split.addresses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);
    }
}

#[test]
fn exchanged_segments_do_not_open() {
    for cipher in [gcm(), eax()] {
        let codec = codec(Some(cipher));
        let mut database = Database::default();
        let split = database.round_trip(&codec, &typed(&messages(0..60)));
        let [first, second, ..] = split.addresses.iter().collect::<Vec<_>>()[..] else { panic!("two") };
        let segment = database.segments[&second].clone();
        database.segments.insert(first, segment);
        let error = database.get(&codec, &split.value, &split.addresses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);

        // In the right places, but in another order.
        let mut list: Vec<_> = split.addresses.iter().collect();
        list.swap(0, 1);
        let error = database.get(&codec, &split.value, &list.into_iter().collect()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crypto);
    }
}

struct Rules(SegmentCodec);

impl SplitRules for Rules {
    fn is_inline(&self, value: &ChannelValue) -> bool {
        value.as_blob().is_none()
    }
    fn version_key(&self, version: &ChannelVersion) -> Result<String> {
        Ok(version.to_string())
    }
    fn check_name(&self, _: &'static str, _: &str) -> Result<()> {
        Ok(())
    }
    fn segments(&self) -> Option<&SegmentCodec> {
        Some(&self.0)
    }
}

#[test]
fn a_checkpoint_is_split_into_rows_and_segments() {
    for codec in codecs() {
        let list = ChannelValue::encode(&messages(0..40)).unwrap();
        let checkpoint = Checkpoint::new(0).with_channel("messages", list.clone(), 1).with_channel(
            "short",
            ChannelValue::encode(&[1, 2]).unwrap(),
            1,
        );
        let config = CheckpointConfig::new(THREAD);
        let new: ChannelVersions = checkpoint.channel_versions.clone();
        let rules = Rules(codec.clone());
        let options = PutOptions::default();
        let split =
            SplitCheckpoint::new(codec.values(), &rules, &config, &checkpoint, &new, &options).unwrap();
        let [messages, short] = &split.blobs[..] else { panic!("two values") };
        assert!(short.addresses.is_empty() && short.segments.is_empty());
        let stored: usize =
            messages.segments.iter().map(checkpoint_core::backend::segments::Segment::len).sum();
        assert!(split.bytes() > stored && stored > 30_000);
        let mut reader = codec.reader(THREAD);
        for segment in &messages.segments {
            reader.add(segment.address(), codec.seal_segment(segment, THREAD).unwrap());
        }
        let place = AssociatedData::Blob {
            thread_id: THREAD,
            checkpoint_ns: "",
            channel: "messages",
            version: &messages.version,
        };
        let opened = reader.open_value(messages.value.clone(), &messages.addresses, &place).unwrap();
        assert_eq!(opened, list);
    }
}
