//! Exhaustive exploration of small protocol models.
//!
//! A [`Model`] names its initial states, the steps that each state allows and the invariants that
//! every state keeps. [`explore`] visits every reachable state breadth first, so that the first
//! violation it reports has a shortest trace. A model uses the protocol's own types wherever they
//! can be cloned and hashed: what is checked here is what runs.
//!
//! It does not sample, does not reduce by symmetry, and keeps all states in memory.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A protocol small enough to be explored in whole.
pub trait Model {
    /// All that the next step may depend on.
    type State: Clone + Eq + Hash + Debug;
    /// The event, for a reader of the trace.
    type Step: Clone + Debug;

    /// Where exploration begins.
    fn initial(&self) -> Vec<Self::State>;

    /// Appends each step that `state` allows, with the state that it leads to or the violation that
    /// it is.
    fn steps(&self, state: &Self::State, out: &mut Steps<Self::Step, Self::State>);

    /// The invariant of each state.
    ///
    /// # Errors
    /// The invariant that does not hold.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// True where the protocol may rest. A state without steps that is not final is a dead end.
    fn is_final(&self, state: &Self::State) -> bool;
}

/// Steps, each with the state that it leads to or the violation that it is.
pub type Steps<Step, State> = Vec<(Step, Result<State, String>)>;

/// The statistics of a complete exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States that are final.
    pub finals: usize,
}

/// A broken invariant and the shortest way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub reason: String,
    /// Steps from an initial state, one a line.
    pub trace: String,
    /// Distinct states that were visited before it was found.
    pub states: usize,
}

/// Visits every reachable state.
///
/// # Errors
/// The first violation, with a shortest trace; or that there are more than `states_max` states.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Result<Explored, Violation> {
    let mut search = Search::<M> {
        states: Vec::new(),
        same: Vec::new(),
        index: HashMap::default(),
        steps: 0,
        finals: 0,
    };
    for state in model.initial() {
        search.visit(model, state, None)?;
    }
    let mut out = Vec::new();
    let mut next = 0;
    while next < search.states.len() {
        let state = search.states[next].0.clone();
        model.steps(&state, &mut out);
        if out.is_empty() && !model.is_final(&state) {
            return Err(search.violation("dead end".into(), Some(next), None));
        }
        search.steps += out.len();
        for (step, result) in out.drain(..) {
            match result {
                Ok(reached) => search.visit(model, reached, Some((next, step)))?,
                Err(reason) => return Err(search.violation(reason, Some(next), Some(step))),
            }
        }
        if search.states.len() > states_max {
            return Err(search.violation(format!("more than {states_max} states"), None, None));
        }
        next += 1;
    }
    Ok(Explored { states: search.states.len(), steps: search.steps, finals: search.finals })
}

/// A state and how it was first reached: the index of the state before it, and the step.
type Reached<M> = (<M as Model>::State, Option<(usize, <M as Model>::Step)>);

struct Search<M: Model> {
    states: Vec<Reached<M>>,
    /// For each state the state before it with the same hash.
    same: Vec<Option<usize>>,
    /// Hash of a state to the last state that has it.
    index: HashMap<u64, usize, BuildHasherDefault<Fold>>,
    steps: usize,
    finals: usize,
}

impl<M: Model> Search<M> {
    fn visit(
        &mut self,
        model: &M,
        state: M::State,
        from: Option<(usize, M::Step)>,
    ) -> Result<(), Violation> {
        let mut hasher = Fold::default();
        state.hash(&mut hasher);
        let at = self.states.len();
        let before = self.index.insert(hasher.finish(), at);
        let mut same = before;
        while let Some(i) = same {
            if self.states[i].0 == state {
                self.index.insert(hasher.finish(), before.unwrap_or(i));
                return Ok(());
            }
            same = self.same[i];
        }
        self.same.push(before);
        self.finals += usize::from(model.is_final(&state));
        let checked = model.check(&state);
        self.states.push((state, from));
        checked.map_err(|reason| self.violation(reason, Some(at), None))
    }

    fn violation(&self, reason: String, at: Option<usize>, last: Option<M::Step>) -> Violation {
        let mut steps: Vec<M::Step> = last.into_iter().collect();
        let mut next = at;
        while let Some((from, step)) = next.and_then(|i| self.states[i].1.clone()) {
            steps.push(step);
            next = Some(from);
        }
        let mut trace = String::new();
        for step in steps.iter().rev() {
            writeln!(trace, "{step:?}").expect("writing to a string does not fail");
        }
        if let Some(i) = at {
            write!(trace, "{:?}", self.states[i].0).expect("writing to a string does not fail");
        }
        Violation { reason, trace, states: self.states.len() }
    }
}

/// Multiplies and folds each word in: states are many, small, and nobody's attack.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23).wrapping_add(word);
    }
}
