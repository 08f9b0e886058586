//! `rekey`
use crate::error::BACKEND;
use crate::shared::Shared;
use checkpoint_core::{Error, RekeyOptions, RekeyReport, Result};
pub(crate) async fn rekey(_shared: &Shared, _thread_id: &str, _options: RekeyOptions) -> Result<RekeyReport> {
    Err(Error::unsupported(BACKEND, "rekey"))
}
