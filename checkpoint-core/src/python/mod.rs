//! Typed views of the Python objects that agents store.
