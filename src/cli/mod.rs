//! Commands other than `serve`.

pub mod check;
pub mod key;
