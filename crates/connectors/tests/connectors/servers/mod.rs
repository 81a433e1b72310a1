//! The other ends: small servers that a test starts itself, on a port of its own.

pub mod flight;
pub mod peer;
pub mod s3;
pub mod serving;

pub use serving::Serving;

/// An address at which nobody listens.
pub fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
