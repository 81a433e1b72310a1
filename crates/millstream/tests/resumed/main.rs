//! Jobs that go on from a checkpoint by another plan or another text. Their rows are those of a sum
//! by hand, or of a run that nothing happened to.

mod evolved;
mod library;
mod plans;
mod pool;
mod rig;
