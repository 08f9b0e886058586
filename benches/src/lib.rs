//! The speed workload.
