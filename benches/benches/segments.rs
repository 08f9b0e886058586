//! Long values as segments: the bytes that versions of a conversation cost, and the speed of splitting and assembling.
//! Messages are `LangChain`'s, of 1 KiB, with random words.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark without its data cannot run; it prints sizes"
)]

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::time::Duration;

use checkpoint_core::backend::segments::{Address, SegmentCodec};
use checkpoint_core::backend::{AssociatedData, ValueCodec};
use checkpoint_core::python::{HumanMessage, Message};
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{Bytes, Cipher, TypedBytes};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const THREAD: &str = "thread";

const ROW: AssociatedData<'_> =
    AssociatedData::Blob { thread_id: THREAD, checkpoint_ns: "", channel: "messages", version: "1" };

/// Random numbers that are the same in every run: `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A text from 2,000 words, of which some are more frequent.
fn text(seed: u64, len: usize) -> String {
    let mut random = Random(seed);
    let mut text = String::new();
    while text.len() < len {
        let word = random.next();
        let mut word = Random((word % 2_000).min((word >> 20) % 2_000).min((word >> 40) % 2_000));
        for _ in 0..2 + word.next() % 8 {
            text.push(char::from(u8::try_from(word.next() % 26).map_or(b'a', |letter| b'a' + letter)));
        }
        text.push(' ');
    }
    text.truncate(len);
    text
}

fn message(seed: u64) -> Message {
    let id = Random(seed).next();
    HumanMessage::new(text(seed, 848)).with_id(format!("{:08x}-5b1c-4d0e-9f33-0a1b2c3d4e5f", id >> 32)).into()
}

fn messages(seeds: std::ops::Range<u64>) -> Vec<Message> {
    seeds.map(message).collect()
}

fn encode(messages: &[Message]) -> Bytes {
    to_msgpack(messages).expect("messages encode").into()
}

fn codecs() -> [(&'static str, SegmentCodec); 4] {
    let sealed =
        ValueCodec { cipher: Some(Cipher::aes_gcm("k", &[1; 32]).expect("a key")), ..ValueCodec::default() };
    let (plain, sealed) = (SegmentCodec::new(ValueCodec::default()), SegmentCodec::new(sealed));
    [
        ("plain", plain.clone()),
        ("AES-256-GCM", sealed.clone()),
        ("zstd", plain.with_zstd(3)),
        ("zstd, AES-256-GCM", sealed.with_zstd(3)),
    ]
}

/// What a thread has stored.
#[derive(Clone, Default)]
struct Stored {
    known: HashSet<Address>,
    segments: usize,
    manifests: usize,
    addresses: usize,
}

/// An edit of a list of messages, of which the argument is the position.
type Change = fn(&mut Vec<Message>, usize);

impl Stored {
    fn put(&mut self, codec: &SegmentCodec, value: &Bytes) {
        let split = codec.split(TypedBytes::msgpack(value.clone()), &ROW).expect("it splits");
        self.manifests += split.value.data.len();
        self.addresses += split.addresses.as_bytes().len();
        for segment in &split.segments {
            if self.known.insert(segment.address()) {
                self.segments += codec.seal_segment(segment, THREAD).expect("it is sealed").data.len();
            }
        }
    }
}

fn sizes() {
    let list = messages(0..1_000);
    println!("bytes of a list that grows by one message of {} bytes at each step", encode(&list[..1]).len());
    println!(
        "{:20} {:>5} {:>11} {:>9} {:>9} {:>9} {:>9}",
        "", "steps", "full copies", "segments", "manifests", "addresses", "sum"
    );
    for (name, codec) in codecs() {
        let (mut stored, mut full) = (Stored::default(), 0);
        for step in 1..=list.len() {
            let value = encode(&list[..step]);
            full += value.len();
            stored.put(&codec, &value);
            if [100, 300, 1_000].contains(&step) {
                let Stored { segments, manifests, addresses, .. } = stored;
                let sum = segments + manifests + addresses;
                println!(
                    "{name:20} {step:>5} {full:>11} {segments:>9} {manifests:>9} {addresses:>9} {sum:>9}"
                );
            }
        }
    }
    println!("\nmean bytes of new segments after a change to 1,000 messages, over 40 places");
    let changes: [(&str, Change); 6] = [
        ("replace one", |list, at| list[at] = message(1_000_000)),
        ("insert one", |list, at| list.insert(at, message(1_000_000))),
        ("remove one", |list, at| drop(list.remove(at))),
        ("trim the first", |list, at| drop(list.drain(..at))),
        ("swap two", |list, at| list.swap(at, 999 - at)),
        ("rotate", |list, at| list.rotate_left(at)),
    ];
    let [(_, codec), ..] = codecs();
    let mut original = Stored::default();
    original.put(&codec, &encode(&list));
    for (name, change) in changes {
        let new = |place: usize| {
            let (mut list, mut stored) = (list.clone(), original.clone());
            change(&mut list, 3 + place * 24);
            stored.put(&codec, &encode(&list));
            stored.segments - original.segments
        };
        println!("{name:20} {:>7}", (0..40).map(new).sum::<usize>() / 40);
    }
    println!();
}

fn segments(criterion: &mut Criterion) {
    sizes();
    let value = encode(&messages(0..594));
    let mut group = criterion.benchmark_group(format!("{} bytes of messages", value.len()));
    group.throughput(Throughput::Bytes(value.len() as u64));
    for (name, codec) in codecs() {
        group.bench_function(format!("split, {name}"), |bench| {
            bench.iter(|| codec.split(TypedBytes::msgpack(black_box(value.clone())), &ROW));
        });
        let split = codec.split(TypedBytes::msgpack(value.clone()), &ROW).expect("it splits");
        group.bench_function(format!("seal all segments, {name}"), |bench| {
            bench.iter(|| {
                let seal = |segment| codec.seal_segment(black_box(segment), THREAD);
                split.segments.iter().map(seal).collect::<Result<Vec<_>, _>>()
            });
        });
        let seal = |segment| codec.seal_segment(segment, THREAD).expect("it is sealed");
        let stored: HashMap<_, _> =
            split.segments.iter().map(|segment| (segment.address(), seal(segment))).collect();
        group.bench_function(format!("assemble, {name}"), |bench| {
            bench.iter(|| {
                let mut reader = codec.reader(THREAD);
                for (address, segment) in &stored {
                    reader.add(*address, segment.clone());
                }
                reader.open(black_box(split.value.clone()), &split.addresses, &ROW)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500))
        .sample_size(20);
    targets = segments
}
criterion_main!(benches);
