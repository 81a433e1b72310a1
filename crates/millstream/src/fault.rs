//! A failure as nodes tell it each other: the user hears the same of it wherever it was.
//!
//! The control plane carries a text. Its first line is the message; each line behind that is a
//! field, `name value`, in which a line end is written as `\n`. A field that is not known is passed
//! over.

use crate::error::Error;

/// Whose fault it is, hence the exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultKind {
    /// That of the input, the output, the machine, or the network.
    #[default]
    Failure,
    /// That of the arguments or the SQL.
    Usage,
    /// Ours: a bug.
    Bug,
}

const FAULT_KINDS: [(&str, FaultKind); 3] =
    [("failure", FaultKind::Failure), ("usage", FaultKind::Usage), ("bug", FaultKind::Bug)];

/// The rest of a failure beside its message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fault {
    pub(crate) blame: FaultKind,
    /// The statement, by number in its job.
    pub(crate) statement: Option<usize>,
    pub(crate) expression: Option<String>,
    pub(crate) details: Vec<String>,
    pub(crate) hint: Option<String>,
}

/// The text for the control plane.
pub(crate) fn encode(error: &Error, statement: Option<usize>) -> String {
    let mut text = error.to_string().replace('\n', " ");
    let mut field = |name: &str, value: &str| {
        text.push_str(&format!("\n{name} {}", value.replace('\\', "\\\\").replace('\n', "\\n")));
    };
    let blame = FAULT_KINDS.iter().find(|(_, blame)| *blame == error.blame());
    field("blame", blame.map_or("failure", |(name, _)| name));
    if let Some(statement) = statement {
        field("statement", &statement.to_string());
    }
    if let Some(expression) = error.expression() {
        field("expression", &expression);
    }
    error.details().iter().for_each(|detail| field("detail", detail));
    if let Some(hint) = error.hint() {
        field("hint", &hint);
    }
    text
}

/// The rest that such a text tells beside the message.
pub(crate) fn decode(text: &str) -> Fault {
    let mut fault = Fault::default();
    for line in text.lines().skip(1) {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let value = unescaped(value);
        match name {
            "blame" => {
                let blame = FAULT_KINDS.iter().find(|(name, _)| *name == value);
                fault.blame = blame.map_or(FaultKind::Failure, |(_, blame)| *blame);
            }
            "statement" => fault.statement = value.parse().ok(),
            "expression" => fault.expression = Some(value),
            "detail" => fault.details.push(value),
            "hint" => fault.hint = Some(value),
            _ => {}
        }
    }
    fault
}

fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => text.push('\n'),
                other => text.extend(other),
            },
            (c, false) => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use dataflow::error::{ConnectorError, DataflowError};

    use super::*;

    #[test]
    fn what_one_node_tells_another_hears() {
        let (place, message) = ("c:\\new".to_owned(), "two\nlines".to_owned());
        let hint = Some("do this,\nor \\n that".to_owned());
        let error = ConnectorError::Io { place, message, hint: hint.clone() };
        let text = encode(&DataflowError::Connector(error).into(), Some(2));
        assert_eq!(text.lines().next(), Some("c:\\new: two lines"));
        let fault = decode(&text);
        assert_eq!((fault.blame, fault.statement), (FaultKind::Failure, Some(2)));
        assert_eq!((fault.hint, fault.details), (hint, vec![]));
        let (message, hint) = ("no folder".to_owned(), "name one".to_owned());
        let usage = decode(&encode(&Error::Usage { message, hint }, None));
        assert_eq!((usage.blame, usage.hint.as_deref()), (FaultKind::Usage, Some("name one")));
    }

    #[test]
    fn what_is_malformed_tells_less() {
        assert_eq!(decode(""), Fault::default());
        let text = "m\nblame x\nstatement -1\nodd\nnew 7\ndetail d\\";
        let fault = Fault { details: vec!["d".into()], ..Fault::default() };
        assert_eq!(decode(text), fault);
        assert_eq!(decode("m\nexpression a / b").expression.as_deref(), Some("a / b"));
    }
}
