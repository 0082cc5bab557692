//! How each provider speaks.

pub mod cut;
