//! Long values as segments: what is split is assembled again, versions share what they have in common, and damaged or
//! hostile bytes are errors.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod data;
mod golden;
mod hostile;
mod properties;
mod sharing;
mod threads;
