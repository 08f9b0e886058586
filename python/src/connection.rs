//! The connection options of PostgreSQL savers and stores.

use std::time::Duration;

use checkpoint_core::ResultExt;
use checkpoint_postgres::PostgresConfig;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::OrRaise;

/// Parses a connection string, with defaults from the environment, as Python's own savers and stores do.
pub(crate) fn config(py: Python<'_>, conn_string: &str) -> PyResult<PostgresConfig> {
    PostgresConfig::from_conn_string(conn_string).at("postgres", "from_conn_string").or_raise(py)
}

/// The keyword arguments of Python; `None` keeps the builder's default.
pub(crate) struct Options<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl Options<'_, '_> {
    pub(crate) fn text(&self, name: &'static str) -> PyResult<Option<String>> {
        self.given(name)?
            .map(|value| {
                value.extract().map_err(|_| PyTypeError::new_err(format!("{name} must be a string")))
            })
            .transpose()
    }

    pub(crate) fn flag(&self, name: &'static str) -> PyResult<Option<bool>> {
        self.given(name)?
            .map(|value| {
                value.extract().map_err(|_| PyTypeError::new_err(format!("{name} must be True or False")))
            })
            .transpose()
    }

    /// An integer that fits the type.
    pub(crate) fn number<N: TryFrom<u64>>(&self, name: &'static str) -> PyResult<Option<N>> {
        let Some(value) = self.given(name)? else { return Ok(None) };
        let number = value.extract::<u64>().ok().and_then(|number| N::try_from(number).ok());
        number.map(Some).ok_or_else(|| refused(name, "a whole number, 0 or more", &value))
    }

    pub(crate) fn seconds(&self, name: &'static str) -> PyResult<Option<Duration>> {
        let Some(value) = self.given(name)? else { return Ok(None) };
        let seconds = value.extract().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.map(Some).ok_or_else(|| refused(name, "a number of seconds", &value))
    }

    fn given(&self, name: &'static str) -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }
}

fn refused(name: &'static str, what: &str, found: &Bound<'_, PyAny>) -> PyErr {
    match found.repr() {
        Ok(found) => PyValueError::new_err(format!("{name} must be {what}, not {found}")),
        Err(error) => error,
    }
}

/// Sets the connection options of the builder of a saver or a store.
macro_rules! connect {
    ($builder:expr, $options:expr) => {{
        let (mut builder, options) = ($builder, $crate::connection::Options($options));
        if let Some(schema) = options.text("schema")? {
            builder = builder.schema(schema);
        }
        if let Some(most) = options.number("max_connections")? {
            builder = builder.max_connections(most);
        }
        if let Some(timeout) = options.seconds("connect_timeout")? {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(timeout) = options.seconds("acquire_timeout")? {
            builder = builder.acquire_timeout(timeout);
        }
        if let Some(timeout) = options.seconds("statement_timeout")? {
            builder = builder.statement_timeout(timeout);
        }
        if let Some(pgbouncer) = options.flag("pgbouncer")? {
            builder = builder.pgbouncer(pgbouncer);
        }
        if let Some(retries) = options.number("max_retries")? {
            builder = builder.max_retries(retries);
        }
        builder
    }};
}
