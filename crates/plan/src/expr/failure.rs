//! The texts of DataFusion's errors.

use datafusion::error::DataFusionError;

/// The innermost error that says something.
pub(crate) fn root(error: &DataFusionError) -> &DataFusionError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => root(inner),
        DataFusionError::Shared(inner) => root(inner),
        DataFusionError::Collection(all) => all.first().map_or(error, root),
        DataFusionError::External(inner) => match inner.downcast_ref::<DataFusionError>() {
            Some(inner) => root(inner),
            None => error,
        },
        other => other,
    }
}

/// Its text without the prefixes that say which part of DataFusion is speaking.
pub(crate) fn message_of(error: &DataFusionError) -> String {
    let error = root(error);
    let text = match error {
        DataFusionError::ArrowError(inner, _) => inner.to_string(),
        other => other.strip_backtrace(),
    };
    let prefixes = [
        "Error during planning: ",
        "This feature is not implemented: ",
        "Execution error: ",
        "Compute error: ",
        "type_coercion\ncaused by\n",
        "Arrow error: ",
        "External error: ",
    ];
    let mut rest = text.as_str();
    while let Some(short) = prefixes.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = short;
    }
    rest.to_string()
}
