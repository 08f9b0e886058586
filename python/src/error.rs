//! Converts errors to Python exceptions.

use std::error::Error as StdError;

use checkpoint_core::{Error, ErrorKind};
use common_postgres::is_refused_connection;
use pyo3::exceptions::{
    PyConnectionError, PyNotImplementedError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception for an error: of the class that callers of LangGraph's own savers and stores expect, with the same
/// message, and with the attributes `kind` and `retryable`. A Python exception that passed through Rust is returned
/// unchanged.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let mut text = error.to_string();
    let mut source = StdError::source(error);
    while let Some(cause) = source {
        if let Some(exception) = cause.downcast_ref::<PyErr>() {
            return exception.clone_ref(py);
        }
        let words = cause.to_string();
        if !words.is_empty() && !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    let exception = match error.kind() {
        ErrorKind::InvalidConfig
            if is_refused_connection(error)
                || checkpoint_mongo::is_refused_connection(error)
                || checkpoint_redis::is_refused_connection(error) =>
        {
            operational(py.get_type::<PyConnectionError>(), error, text)
        }
        ErrorKind::InvalidArgument | ErrorKind::InvalidConfig | ErrorKind::Codec | ErrorKind::Crypto => {
            PyValueError::new_err(text)
        }
        ErrorKind::Unsupported => PyNotImplementedError::new_err(text),
        ErrorKind::Unavailable => operational(py.get_type::<PyConnectionError>(), error, text),
        ErrorKind::Timeout => operational(py.get_type::<PyTimeoutError>(), error, text),
        _ => PyRuntimeError::new_err(text),
    };
    let value = exception.value(py);
    // Built-in exceptions allow any attribute.
    let named = value
        .setattr("kind", error.kind().as_str())
        .and_then(|()| value.setattr("retryable", error.is_retryable()));
    named.err().unwrap_or(exception)
}

/// An exception of this class that is also the `OperationalError` of Python's driver, if the program has imported one.
fn operational(class: Bound<'_, PyType>, error: &Error, text: String) -> PyErr {
    let py = class.py();
    let both = py
        .import("langgraph_ckpt._errors")
        .and_then(|module| module.getattr("operational")?.call1((&class, error.backend())))
        .and_then(|both| Ok(both.cast_into::<PyType>()?));
    // Modules are gone when the interpreter exits.
    PyErr::from_type(both.unwrap_or(class), text)
}

/// The same for a result.
pub(crate) trait OrRaise<T> {
    /// The value, or the error's exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for checkpoint_core::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}
