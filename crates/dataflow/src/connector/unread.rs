//! The inputs that a process has yet to read, for whoever watches a running job.
//!
//! A worker learns of a lost input when it reads on. One that is busy with rows, or waits for those
//! of another input, may do so much later: the process that runs it asks the inputs meanwhile.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{ConnectorError, DataflowError};

/// An input that can be lost while nobody reads it.
pub trait InputCheck: Send + Sync {
    /// Whether it can be read on, as far as that is known without waiting.
    ///
    /// # Errors
    /// The error that a read would end with.
    fn check(&self) -> Result<(), ConnectorError>;
}

/// An input that a reader has not read to its end: it drops this when it has.
pub(crate) struct UnreadInput {
    input: Arc<dyn InputCheck>,
    /// The operator of the job that reads it.
    operator: usize,
}

/// The inputs that the readers of a process have not read to their ends.
#[derive(Default)]
pub struct UnreadInputs(Mutex<Vec<Weak<UnreadInput>>>);

impl UnreadInputs {
    /// Adds an input until the answer is dropped.
    pub(crate) fn add(&self, input: Arc<dyn InputCheck>, operator: usize) -> Arc<UnreadInput> {
        let unread = Arc::new(UnreadInput { input, operator });
        let mut inputs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.retain(|input| input.strong_count() > 0);
        inputs.push(Arc::downgrade(&unread));
        unread
    }

    /// Whether all of them can be read on. It never waits for an input or its reader.
    ///
    /// # Errors
    /// That of the first that cannot, with the operator that reads it.
    pub fn check(&self) -> Result<(), DataflowError> {
        let inputs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for unread in inputs.iter().filter_map(Weak::upgrade) {
            let lost = |error| DataflowError::from(error).of_operator(unread.operator);
            unread.input.check().map_err(lost)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lost(&'static str);

    impl InputCheck for Lost {
        fn check(&self) -> Result<(), ConnectorError> {
            let (place, message) = (self.0.to_owned(), "it is gone".to_owned());
            Err(ConnectorError::Io { place, message, hint: None })
        }
    }

    struct There;

    impl InputCheck for There {
        fn check(&self) -> Result<(), ConnectorError> {
            Ok(())
        }
    }

    #[test]
    fn inputs_are_asked_until_they_are_read() {
        let inputs = UnreadInputs::default();
        assert!(inputs.check().is_ok(), "there is none");
        let there = inputs.add(Arc::new(There), 0);
        let first = inputs.add(Arc::new(Lost("a")), 3);
        let second = inputs.add(Arc::new(Lost("b")), 5);
        for (unread, operator, place) in [(first, 3, "a"), (second, 5, "b")] {
            let error = inputs.check().unwrap_err();
            assert_eq!(error.located().and_then(|at| at.operator), Some(operator));
            assert!(error.to_string().contains(place), "{error}");
            drop(unread);
        }
        assert!(inputs.check().is_ok(), "what is left is there");
        drop(there);
        assert!(inputs.check().is_ok());
    }
}
