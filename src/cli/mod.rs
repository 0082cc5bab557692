//! Commands of the `vectorgate` binary besides `serve`.

pub mod usage;
