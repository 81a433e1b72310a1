//! Names of objects.

use std::fmt;

use crate::error::CheckpointError;

/// Bytes of a name at most.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of a part of a name at most.
pub const PART_BYTES_MAX: usize = 160;
/// Bytes of the name of a job at most: names of its files are made of it.
pub const JOB_BYTES_MAX: usize = 100;

/// The name of an object: parts behind `/`, each of letters, digits, `.`, `_`, `-` and `=`.
///
/// A part does not begin with a dot, so that no name leads out of a directory and none is that of a
/// temporary file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(String);

impl ObjectName {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is empty or too long, or a part of it is, or has a character that names do not have.
    pub fn new(name: impl Into<String>) -> Result<Self, CheckpointError> {
        let name = name.into();
        let refuse = |reason: String| Err(CheckpointError::invalid(reason));
        if name.len() > NAME_BYTES_MAX {
            return refuse(format!(
                "a name has {} bytes, and {NAME_BYTES_MAX} are allowed",
                name.len()
            ));
        }
        match name.split('/').find(|part| !is_part(part)) {
            Some(part) => refuse(format!(
                "{part:?} cannot be part of a name: 1 to {PART_BYTES_MAX} letters, digits and \
                 '._-=' are allowed, and no dot at the beginning"
            )),
            None => Ok(Self(name)),
        }
    }

    /// Checks the name of a job: one part of [`JOB_BYTES_MAX`] bytes at most.
    ///
    /// # Errors
    /// When it has a character that names do not have, or is too long.
    pub fn job(name: &str) -> Result<Self, CheckpointError> {
        if name.len() > JOB_BYTES_MAX || !is_part(name) || name.starts_with('-') {
            return Err(CheckpointError::invalid(format!(
                "{name:?} cannot name a job: 1 to {JOB_BYTES_MAX} letters, digits and '._-=' are \
                 allowed, and no dot or dash at the beginning"
            )));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This name with a part behind it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn join(&self, part: &str) -> Result<Self, CheckpointError> {
        Self::new(format!("{}/{part}", self.0))
    }

    /// The last part.
    #[must_use]
    pub fn last_part(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// A name that this crate has made of checked parts.
    pub(crate) fn known(name: String) -> Self {
        debug_assert!(Self::new(name.as_str()).is_ok(), "{name}");
        Self(name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_part(part: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte);
    (1..=PART_BYTES_MAX).contains(&part.len()) && !part.starts_with('.') && part.bytes().all(is_fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_where_they_belong() {
        for name in ["a", "clicks/chain/00000000000000000412", "a.b_c-d=1/x"] {
            assert_eq!(ObjectName::new(name).unwrap().as_str(), name);
        }
        let long = "x".repeat(PART_BYTES_MAX + 1);
        let deep = "abc/".repeat(200) + "x";
        for name in ["", "/a", "a/", "a//b", ".", "..", "a/../b", ".tmp", "a b", "ä", "a\0", "a\\b"]
            .into_iter()
            .chain([long.as_str(), &deep])
        {
            assert!(ObjectName::new(name).is_err(), "{name}");
        }
        for job in ["", "a/b", "-x", ".x", &"x".repeat(JOB_BYTES_MAX + 1)] {
            assert!(ObjectName::job(job).is_err(), "{job}");
        }
        assert_eq!(ObjectName::job("clicks.1").unwrap().join("seg").unwrap().last_part(), "seg");
    }
}
