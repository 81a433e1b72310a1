//! Why a part of a plan does not stream, before a place of the statement is found for it.

/// Why a subtree does not stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Words of the statement to point at; the first that occurs.
    pub(crate) words: Vec<String>,
    /// Why it cannot stream.
    pub(crate) reason: String,
    pub(crate) hint: Option<String>,
    /// Of what no engine can compute the function, and the columns that it reads.
    pub(crate) wrong: Option<(String, Vec<String>)>,
}

impl Refusal {
    pub(crate) fn new(words: &[&str], reason: impl Into<String>) -> Self {
        let words = words.iter().map(|word| word.to_string()).collect();
        Self { words, reason: reason.into(), hint: None, wrong: None }
    }

    /// Says that it is wrong over input that ends too: the call of a function, which reads columns.
    pub(crate) fn wrong(mut self, call: (String, Vec<String>)) -> Self {
        self.wrong = Some(call);
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
