//! Jobs without SQL.
