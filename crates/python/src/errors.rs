//! Errors and panics of the engine as exceptions. Their classes are in `millstream._errors`.

use millstream::panics::{Panicked, caught};
use millstream::{Diagnostic, Error, FaultKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

const MODULE: &str = "millstream._errors";

/// An exception of a class of [`MODULE`].
fn exception(
    py: Python<'_>,
    class: &str,
    message: &str,
    attributes: &Bound<'_, PyDict>,
) -> PyResult<PyErr> {
    let class = py.import(MODULE)?.getattr(class)?;
    Ok(PyErr::from_value(class.call((message,), Some(attributes))?))
}

/// An exception as [`exception`] makes it, or the error of making it.
fn exception_of(
    py: Python<'_>,
    class: &str,
    message: &str,
    attributes: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let all = PyDict::new(py);
    attributes(&all)
        .and_then(|()| exception(py, class, message, &all))
        .unwrap_or_else(|error| error)
}

/// An error of a session, with the text of SQL that it may be of.
pub(crate) fn raised(py: Python<'_>, error: &Error, sql: &str) -> PyErr {
    if let Error::Sql(diagnostics) = error.cause()
        && diagnostics.iter().all(|diagnostic| !diagnostic.bug)
    {
        return sql_error(py, diagnostics, sql);
    }
    if let Error::Interrupted = error.cause() {
        // By Ctrl-C the caller would not ask for the result. What a program has dropped must not
        // be a `KeyboardInterrupt`: that ends an event loop in which a task waits for it.
        let message = "it was dropped by abort(), or with its session";
        return exception_of(py, "Aborted", message, |_| Ok(()));
    }
    let class = match error.blame() {
        FaultKind::Bug => "Bug",
        FaultKind::Usage => "UsageError",
        _ => "RunError",
    };
    let statement = error.statement().map(|statement| (statement.sql.clone(), statement.line));
    let details: Vec<String> = error.details().iter().map(|line| in_python(line)).collect();
    let hint = error.hint().map(|hint| in_python(&hint));
    exception_of(py, class, &in_python(&error.to_string()), |attributes| {
        attributes.set_item("details", details)?;
        attributes.set_item("hint", hint)?;
        attributes.set_item("statement", statement.as_ref().map(|(sql, _)| sql))?;
        attributes.set_item("line", statement.as_ref().map(|(_, line)| line))
    })
}

fn sql_error(py: Python<'_>, diagnostics: &[Diagnostic], sql: &str) -> PyErr {
    let named = |diagnostic: &Diagnostic| Diagnostic {
        message: in_python(&diagnostic.message),
        detail: diagnostic.detail.as_deref().map(in_python),
        hint: diagnostic.hint.as_deref().map(in_python),
        ..diagnostic.clone()
    };
    let diagnostics: Vec<_> = diagnostics.iter().map(named).collect();
    let texts = diagnostics.iter().map(|diagnostic| diagnostic.render("<sql>", sql, false));
    let text = texts.collect::<Vec<_>>().join("\n");
    exception_of(py, "SqlError", text.trim_end(), |attributes| {
        let class = py.import(MODULE)?.getattr("Diagnostic")?;
        let all = diagnostics.into_iter().map(|diagnostic| {
            let Diagnostic { line, column, length, message, detail, hint, .. } = diagnostic;
            class.call1((message, line, column, length, detail, hint))
        });
        attributes.set_item("diagnostics", all.collect::<PyResult<Vec<_>>>()?)
    })
}

/// Options of the command line, and what they are in Python.
const OPTIONS: [(&str, &str); 9] = [
    ("--from none", "resume='none'"),
    ("--from", "resume="),
    ("--evolve", "evolve=True"),
    ("--take-over", "take_over=True"),
    ("--state", "state="),
    ("--job", "job="),
    ("--pool-certs", "pool_certs="),
    ("--pool", "pool="),
    ("--workers", "workers="),
];

/// A message with the arguments of Python in place of the options of the command line.
pub(crate) fn in_python(message: &str) -> String {
    let replaced = |text: String, (option, argument): &(&str, &str)| text.replace(option, argument);
    OPTIONS.iter().fold(message.to_owned(), replaced)
}

/// The exception after Ctrl-C.
pub(crate) fn interrupted(py: Python<'_>) -> PyErr {
    exception_of(py, "Interrupted", "interrupted", |_| Ok(()))
}

/// An error that is the fault of the caller.
pub(crate) fn misused(py: Python<'_>, message: &str, hint: &str) -> PyErr {
    exception_of(py, "UsageError", message, |attributes| attributes.set_item("hint", hint))
}

/// An error while a query runs.
pub(crate) fn failed(py: Python<'_>, message: &str, hint: &str) -> PyErr {
    exception_of(py, "RunError", message, |attributes| attributes.set_item("hint", hint))
}

/// Runs code that may panic: a panic is an exception.
pub(crate) fn guarded<T>(py: Python<'_>, run: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    caught(run).unwrap_or_else(|panicked| Err(bug(py, panicked)))
}

/// A panic as an exception.
pub(crate) fn bug(py: Python<'_>, panicked: Panicked) -> PyErr {
    let Panicked { message, place, backtrace } = panicked;
    let details: Vec<String> =
        place.map(|place| format!("a panic at {place}")).into_iter().chain(backtrace).collect();
    exception_of(py, "Bug", &message, |attributes| attributes.set_item("details", details))
}

/// An error of this module, and not of the engine.
pub(crate) fn runtime(message: impl Into<String>) -> PyErr {
    PyRuntimeError::new_err(message.into())
}
