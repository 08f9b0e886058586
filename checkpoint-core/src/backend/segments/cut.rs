//! Cuts a value into segments, where its own bytes say so.

use std::ops::Range;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::Address;
use crate::serde::decode::{Reader, Token};

/// A value of more bytes than this is split, and so is an element of a value that is split.
pub(super) const SPLIT: usize = 8 * 1024;

/// No segment ends before it has this many bytes.
const MIN: usize = 4 * 1024;

/// After [`MIN`] bytes, a segment ends after this many bytes on average.
const MEAN_REST: u64 = 4 * 1024;

/// A segment ends with the element in which it reaches this many bytes.
const MAX: usize = 16 * 1024;

/// Long texts and bytes are cut more coarsely from this offset on: twice as coarsely at each doubling of it.
const COARSER: usize = 128 * 1024;

/// How often cuts can become twice as coarse.
const COARSEST: u32 = 3;

/// A segment of this many bytes ends, even between elements.
const LONGEST: usize = MAX << COARSEST;

/// An inner value of this many bytes begins with a new segment. Its header, which changes when the value grows, is kept
/// in the manifest.
const OWN: usize = 32 * 1024;

/// What comes before such a value is kept in the manifest too, if it is at most this many bytes since the last cut: in a
/// state with a counter before a long list, only the manifest changes with the counter.
const INLINE: usize = 256;

/// How deep values are searched for elements. What is deeper is cut like text.
const MAX_DEPTH: usize = 16;

/// How many bytes decide about a cut in text, and at least about one after an element.
const WINDOW: usize = 64;

/// Bytes that are kept in the manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal {
    /// How many segments come before it.
    pub(super) segments: usize,
    pub(super) bytes: Vec<u8>,
}

/// A segment that consists of whole elements of a list or entries of a map, and ends where they say so. Whoever finds its
/// bytes after an element will cut them in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The values of an element: 1 in a list, 2 in a map.
    pub(super) values: usize,
    pub(super) elements: usize,
}

/// A segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: Bytes,
    pub(super) run: Option<Run>,
    /// If it was remembered as a run: its bytes were compared.
    pub(super) address: Option<Address>,
}

/// Finds remembered runs, so that their elements need not be read again.
pub(super) trait Runs {
    /// The run that came after the segment `previous` (at the beginning of a value: none), if its elements have so many
    /// `values`, and these bytes begin with it.
    fn find(&self, previous: Option<Address>, values: usize, bytes: &[u8]) -> Option<FoundRun>;
}

/// A remembered run.
#[derive(Debug)]
pub(super) struct FoundRun {
    pub(super) address: Address,
    pub(super) run: Run,
    pub(super) len: usize,
}

/// Remembers nothing.
impl Runs for () {
    fn find(&self, _: Option<Address>, _: usize, _: &[u8]) -> Option<FoundRun> {
        None
    }
}

/// A value in pieces: the segments, with the literals before, between and after them, and at the end the tail.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) literals: Vec<Literal>,
    pub(super) segments: Vec<Piece>,
    /// What comes after the last segment.
    pub(super) tail: Bytes,
}

/// Cuts MessagePack, of which nothing is decoded. Bytes that are not MessagePack are cut like text.
pub(super) fn cut_msgpack(data: &Bytes, known: &dyn Runs) -> Pieces {
    let mut cutter = Cutter::new(data, known);
    cutter.value(0..data.len(), 0, true);
    cutter.finish()
}

/// Cuts bytes of an unknown format.
pub(super) fn cut_bytes(data: &Bytes) -> Pieces {
    let mut cutter = Cutter::new(data, &());
    cutter.text(0..data.len());
    cutter.finish()
}

struct Cutter<'a> {
    data: &'a Bytes,
    known: &'a dyn Runs,
    pieces: Pieces,
    /// The current segment, up to where the walk is.
    segment: Range<usize>,
}

impl<'a> Cutter<'a> {
    fn new(data: &'a Bytes, known: &'a dyn Runs) -> Self {
        Self { data, known, pieces: Pieces::default(), segment: 0..0 }
    }

    fn bytes(&self, range: Range<usize>) -> &'a [u8] {
        self.data.get(range).unwrap_or_default()
    }

    /// Walks over the value at the beginning of the range; what follows it is cut like text.
    fn value(&mut self, range: Range<usize>, depth: usize, is_root: bool) {
        let mut reader = Reader::new(self.bytes(range.clone()));
        let token = if depth < MAX_DEPTH { reader.token().ok() } else { None };
        // What belongs to the token but not to its header.
        let payload = match token {
            Some(Token::Str(text)) => text.len(),
            Some(Token::Bin(bytes) | Token::Ext(_, bytes)) => bytes.len(),
            Some(_) => 0,
            None => return self.text(range),
        };
        let after_token = range.start + reader.position();
        let body = after_token - payload;
        if is_root || range.len() >= OWN {
            self.keep_in_manifest(range.start..body);
        } else {
            self.push(body);
        }
        let end = match token {
            Some(Token::Array(len)) => self.elements(body..range.end, len, 1, depth),
            Some(Token::Map(len)) => self.elements(body..range.end, len, 2, depth),
            Some(Token::Ext(..)) => {
                // A snapshot of a delta channel is a value in an extension: both grow.
                self.value(body..after_token, depth + 1, is_root);
                after_token
            }
            _ => {
                self.text(body..after_token);
                after_token
            }
        };
        self.text(end..range.end);
    }

    /// Walks over the elements of a list or a map. Returns where they end, or where they cannot be read.
    fn elements(&mut self, range: Range<usize>, len: usize, values: usize, depth: usize) -> usize {
        let mut reader = Reader::new(self.bytes(range.clone()));
        // Where the reader began.
        let mut origin = range.start;
        let mut start = range.start;
        let mut number = 0;
        // The elements of the current segment, if it consists of whole short ones.
        let mut run = None;
        while number < len {
            if self.segment.is_empty() {
                run = Some(0);
                if let Some(elements) = self.skip_run(start..range.end, len - number, values) {
                    number += elements;
                    start = self.segment.end;
                    origin = start;
                    reader = Reader::new(self.bytes(start..range.end));
                    continue;
                }
            }
            number += 1;
            let mut value = start;
            let mut end = start;
            for _ in 0..values {
                value = end;
                if reader.skip().is_err() {
                    return start;
                }
                end = origin + reader.position();
            }
            if value - start > SPLIT {
                run = None;
                self.text(start..value);
            } else {
                self.push(value);
            }
            if end - value > SPLIT {
                run = None;
                self.value(value..end, depth + 1, false);
            } else {
                run = run.map(|elements| elements + 1);
                self.push(end);
                let window = range.start.max(start.min(end.saturating_sub(WINDOW)));
                if self.ends_after(window..end, end - start) {
                    self.end_run(run.map(|elements| Run { values, elements }), None);
                }
            }
            start = end;
        }
        start
    }

    /// Takes a remembered run of at most so many elements, if the bytes at the beginning of the range are one. Returns the
    /// number of its elements.
    fn skip_run(&mut self, range: Range<usize>, most: usize, values: usize) -> Option<usize> {
        let previous = match self.pieces.segments.last() {
            Some(piece) => Some(piece.address?),
            None => None,
        };
        let FoundRun { address, run, len } = self.known.find(previous, values, self.bytes(range.clone()))?;
        if run.elements > most {
            return None;
        }
        self.segment = range.start..range.start + len;
        self.end_run(Some(run), Some(address));
        Some(run.elements)
    }

    /// Whether the current segment ends after an element of this length. It is more likely after a long one, so that
    /// segments have the same size on average, whatever the size of elements is.
    fn ends_after(&self, window: Range<usize>, len: usize) -> bool {
        if self.segment.len() < MIN || self.segment.len() >= MAX {
            return self.segment.len() >= MAX;
        }
        (xxh3_64(self.bytes(window)) >> 32) * MEAN_REST < (len as u64) << 32
    }

    /// Cuts where a rolling hash says so.
    fn text(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let coarser =
                ((at - range.start) / COARSER).checked_ilog2().map_or(0, |log| log + 1).min(COARSEST);
            let (min, max) = (MIN << coarser, MAX << coarser);
            if self.segment.len() >= max {
                self.end_segment();
            }
            let bits = MEAN_REST.ilog2() + coarser;
            let limit = range.end.min(at + (max - self.segment.len()));
            let earliest = at + min.saturating_sub(self.segment.len());
            let mut end = at.max(earliest.saturating_sub(WINDOW)).min(limit);
            let mut hash = 0_u64;
            let mut is_cut = false;
            for byte in self.bytes(end..limit) {
                hash = (hash << 1).wrapping_add(GEAR.get(usize::from(*byte)).copied().unwrap_or_default());
                end += 1;
                if end >= earliest && hash.leading_zeros() >= bits {
                    is_cut = true;
                    break;
                }
            }
            self.push(end);
            if is_cut || self.segment.len() >= max {
                self.end_segment();
            }
            at = end;
        }
    }

    /// Adds the bytes up to this place to the current segment.
    fn push(&mut self, end: usize) {
        if self.segment.len() >= LONGEST {
            self.end_segment();
        }
        self.segment.end = end;
    }

    /// Keeps a header, and the little before it, in the manifest.
    fn keep_in_manifest(&mut self, header: Range<usize>) {
        if self.segment.len() > INLINE {
            self.end_segment();
        }
        let bytes = self.bytes(self.segment.start..header.end);
        self.segment = header.end..header.end;
        let segments = self.pieces.segments.len();
        match self.pieces.literals.last_mut() {
            Some(last) if last.segments == segments => last.bytes.extend_from_slice(bytes),
            _ => self.pieces.literals.push(Literal { segments, bytes: bytes.to_vec() }),
        }
    }

    fn end_segment(&mut self) {
        self.end_run(None, None);
    }

    fn end_run(&mut self, run: Option<Run>, address: Option<Address>) {
        let bytes = self.data.slice(self.segment.clone());
        self.pieces.segments.push(Piece { bytes, run, address });
        self.segment.start = self.segment.end;
    }

    fn finish(mut self) -> Pieces {
        self.pieces.tail = self.data.slice(self.segment);
        self.pieces
    }
}

/// What each byte adds to the rolling hash: the output of `SplitMix64` with the seed 0.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut state = 0_u64;
    let mut at = 0;
    while at < table.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    table
};
