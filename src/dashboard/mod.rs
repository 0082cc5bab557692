//! The page that on-call reads: what it shows ([`feed`]), how it is served ([`http`]) and who may see it ([`session`]).
//!
//! Everything it needs is in the binary. It decides nothing: numbers come through [`feed::Feed`], which [`live`] fills
//! from the running gateway, actions are ordinary
//! calls of the admin routes, with a session's cookie and its token against forged requests instead of a bearer token.

pub mod assets;
pub mod feed;
pub mod http;
pub mod live;
pub mod session;
