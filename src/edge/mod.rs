//! HTTP in and out; knows nothing about providers.

pub mod scan;
