//! Panics as errors: caught, with their message and their place.
//!
//! A panic is a bug of ours or of a library, and ends the job or the statement that met it, not the
//! process. A program that calls [`keep`] learns where it was and prints nothing of it by itself;
//! without that, only its message is known.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};

/// A panic, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Its message.
    pub message: String,
    /// File, line and column of the source text, where [`keep`] was called.
    pub place: Option<String>,
    /// The calls that led there, where the variable `RUST_BACKTRACE` asks for them.
    pub backtrace: Option<String>,
}

impl Panicked {
    /// By its payload, as the end of a thread that was joined has it.
    pub fn of(payload: &(dyn Any + Send)) -> Self {
        Self { message: message(payload), place: None, backtrace: None }
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is a bug in millstream: {}", self.message)
    }
}

thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    /// The last panic of this thread that nobody has taken.
    static LAST: RefCell<Option<Panicked>> = const { RefCell::new(None) };
}

/// Does some work; a panic of it is an error. The caller drops all that it leaves half done.
///
/// # Errors
/// The panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    CATCHING.set(CATCHING.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    done.map_err(|payload| {
        let kept = LAST.try_with(|last| last.borrow_mut().take()).ok().flatten();
        kept.unwrap_or_else(|| Panicked::of(&*payload))
    })
}

/// Has this process keep the place of a panic for its catcher, and hands a panic that
/// [`caught`] does not see to `others`. For programs, at their start: it is the only thing here
/// that is of the whole process.
pub fn keep(others: impl Fn(Panicked) + Send + Sync + 'static) {
    set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        let backtrace = Backtrace::capture();
        let panicked = Panicked {
            message: message(info.payload()),
            place: info.location().map(|at| short(&at.to_string()).to_owned()),
            backtrace: (backtrace.status() == BacktraceStatus::Captured)
                .then(|| backtrace.to_string()),
        };
        match CATCHING.get() {
            0 => others(panicked),
            _ => LAST.set(Some(panicked)),
        }
    }));
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("it did not say why").to_owned()
}

/// A place without the directory in which it was compiled.
fn short(place: &str) -> &str {
    let behind = |mark: &str| place.split_once(mark).map(|(_, rest)| rest);
    let of_registry = behind("/registry/src/").and_then(|rest| rest.split_once('/'));
    of_registry.map(|(_, rest)| rest).or(behind("/library/")).unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_where() {
        // Other tests of this process may fail while this hook is there.
        keep(|panicked| eprintln!("{panicked:?}"));
        assert_eq!(caught(|| 7), Ok(7));
        let panicked = caught(|| -> u32 { panic!("the {} is torn", "tape") }).unwrap_err();
        assert_eq!(panicked.message, "the tape is torn");
        assert_eq!(panicked.to_string(), "this is a bug in millstream: the tape is torn");
        let place = panicked.place.unwrap();
        assert!(place.starts_with("crates/dataflow/src/error/panics.rs:"), "{place}");
        let inner = caught(|| {
            let inner = caught(|| [1][std::hint::black_box(1)]);
            inner.unwrap_err().message
        });
        assert!(inner.unwrap().starts_with("index out of bounds"));
        assert_eq!(LAST.take(), None, "each was taken");
    }

    #[test]
    fn a_place_of_a_library_begins_with_its_name() {
        let place = "/cargo/registry/src/index.crates.io-1/arrow-1.0.0/src/a.rs:1:2";
        assert_eq!(short(place), "arrow-1.0.0/src/a.rs:1:2");
        assert_eq!(short("/rustc/0a1b/library/core/src/a.rs:1:2"), "core/src/a.rs:1:2");
        assert_eq!(short("crates/plan/src/a.rs:1:2"), "crates/plan/src/a.rs:1:2");
    }
}
