//! One file per promise.

mod first_request;
