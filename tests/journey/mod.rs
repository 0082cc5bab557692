//! One file per promise.

mod first_request;
mod many_upstreams;
