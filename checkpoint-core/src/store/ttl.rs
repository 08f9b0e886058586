//! Time to live of items.

use std::time::Duration;

use crate::{Error, Result};

/// A store's defaults for the TTL of items. Operations may override them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TtlConfig {
    /// The TTL of an item whose put sets none; `None`, the default, disables expiry.
    pub default_ttl: Option<Duration>,
    /// Whether reading an item refreshes its TTL; the default is `true`.
    pub refresh_on_read: bool,
}

impl Default for TtlConfig {
    fn default() -> Self {
        Self { default_ttl: None, refresh_on_read: true }
    }
}

impl TtlConfig {
    /// Creates the default: items do not expire unless their put sets a TTL, and reads refresh it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the TTL of an item whose put sets none.
    #[must_use]
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.default_ttl = Some(ttl);
        self
    }

    /// Sets whether reading an item refreshes its TTL.
    #[must_use]
    pub fn refresh_on_read(mut self, refresh: bool) -> Self {
        self.refresh_on_read = refresh;
        self
    }

    /// Rejects an invalid default TTL.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a default of zero, or of thousands of years.
    pub fn check(&self) -> Result<()> {
        match self.default_ttl {
            Some(ttl) if ttl.is_zero() || ttl > Ttl::MAX => {
                Err(Error::invalid_config("the default TTL must be more than zero and less than 4,000 years"))
            }
            _ => Ok(()),
        }
    }
}

/// How long an item lives after it was put or read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum Ttl {
    /// The default of the store's [`TtlConfig`].
    #[default]
    Default,
    /// The item does not expire.
    Never,
    /// This many minutes, which may be a fraction.
    Minutes(f64),
}

impl Ttl {
    /// The most minutes that fit into a 32-bit column.
    const MAX: Duration = Duration::from_secs(i32::MAX as u64 * 60);

    /// Resolves the store's default. `None` means that the item does not expire.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for minutes that are zero, negative, NaN, or more than
    /// 4,000 years.
    pub fn resolve(self, config: &TtlConfig) -> Result<Option<Duration>> {
        match self {
            Self::Default => Ok(config.default_ttl),
            Self::Never => Ok(None),
            Self::Minutes(minutes) => match Duration::try_from_secs_f64(minutes * 60.0) {
                Ok(ttl) if !ttl.is_zero() && ttl <= Self::MAX => Ok(Some(ttl)),
                _ => Err(Error::invalid_argument(
                    "invalid TTL; it must be more than zero minutes and less than 4,000 years",
                )
                .with("minutes", minutes)),
            },
        }
    }
}

impl From<Duration> for Ttl {
    fn from(ttl: Duration) -> Self {
        Self::Minutes(ttl.as_secs_f64() / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ttls_are_rejected() {
        let config = TtlConfig::new().default_ttl(Duration::from_secs(90));
        assert_eq!(Ttl::Default.resolve(&config).unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(Ttl::Never.resolve(&config).unwrap(), None);
        assert_eq!(Ttl::Minutes(0.5).resolve(&config).unwrap(), Some(Duration::from_secs(30)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e18, 1e-12] {
            let error = Ttl::Minutes(wrong).resolve(&config).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument, "{wrong}");
        }
        assert!(TtlConfig::new().default_ttl(Duration::ZERO).check().is_err());
    }
}
