//! How long items live.

use std::time::Duration;

use crate::{Error, Result};

/// What a store does about the lives of items unless an operation says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TtlConfig {
    /// How long an item lives whose put says nothing: for ever, unless set.
    pub default_ttl: Option<Duration>,
    /// Whether reading an item that has a time to live lets that begin anew: yes, unless set.
    pub refresh_on_read: bool,
}

impl Default for TtlConfig {
    fn default() -> Self {
        Self { default_ttl: None, refresh_on_read: true }
    }
}

impl TtlConfig {
    /// Items live for ever unless their put says otherwise, and reading them lets their time begin anew.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long an item lives whose put says nothing.
    #[must_use]
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.default_ttl = Some(ttl);
        self
    }

    /// Sets whether reading an item lets its time begin anew.
    #[must_use]
    pub fn refresh_on_read(mut self, refresh: bool) -> Self {
        self.refresh_on_read = refresh;
        self
    }

    /// Refuses a default that no item could have.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a default of zero, or of thousands of years.
    pub fn check(&self) -> Result<()> {
        match self.default_ttl {
            Some(ttl) if ttl.is_zero() || ttl > Ttl::LONGEST => Err(Error::invalid_config(
                "the default time to live is more than zero and less than 4,000 years",
            )),
            _ => Ok(()),
        }
    }
}

/// How long one item lives after it was put, or read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum Ttl {
    /// As the store's [`TtlConfig`] says.
    #[default]
    Default,
    /// For ever.
    Never,
    /// For so many minutes, which may be a fraction.
    Minutes(f64),
}

impl Ttl {
    /// As many minutes as a column of 32 bits holds.
    const LONGEST: Duration = Duration::from_secs(i32::MAX as u64 * 60);

    /// What this comes to in a store: none is for ever.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for minutes that are zero, negative, NaN, or more than
    /// 4,000 years.
    pub fn resolve(self, config: &TtlConfig) -> Result<Option<Duration>> {
        match self {
            Self::Default => Ok(config.default_ttl),
            Self::Never => Ok(None),
            Self::Minutes(minutes) => match Duration::try_from_secs_f64(minutes * 60.0) {
                Ok(ttl) if !ttl.is_zero() && ttl <= Self::LONGEST => Ok(Some(ttl)),
                _ => Err(Error::invalid_argument(
                    "a time to live is a number of minutes, more than zero and less than 4,000 years",
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
    fn only_lives_that_end_some_day_are_taken() {
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
