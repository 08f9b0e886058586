//! `copy_thread`
use crate::error::BACKEND;
use crate::shared::Shared;
use checkpoint_core::{Error, Result};
pub(crate) async fn copy_thread(_shared: &Shared, _source: &str, _target: &str) -> Result<()> {
    Err(Error::unsupported(BACKEND, "copy_thread"))
}
