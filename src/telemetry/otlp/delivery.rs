//! One delivery to a receiver: a POST with a protobuf body, and what to tell when deliveries begin or cease to fail. Knows
//! nothing of what is in the body.

use std::io::Write as _;

use bytes::Bytes;
use reqwest::Client;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::redirect::Policy;

use super::OtlpError;
use super::settings::Settings;

/// Bytes of a receiver's answer that are looked at.
const ANSWER: usize = 64 << 10;

/// The way to a receiver.
#[derive(Debug)]
pub(super) struct Delivery {
    settings: Settings,
    client: Client,
}

impl Delivery {
    /// As `settings` say.
    ///
    /// # Errors
    /// No TLS to be had.
    pub fn new(settings: Settings) -> Result<Delivery, OtlpError> {
        // A second installation is refused and means that the caller has chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .timeout(settings.timeout)
            // The headers may hold a secret that is meant for this receiver alone.
            .redirect(Policy::none())
            .build()
            .map_err(|error| OtlpError(error.to_string()))?;
        Ok(Delivery { settings, client })
    }

    /// A body ready to be sent.
    pub fn pack(&self, plain: Vec<u8>) -> Packed {
        if !self.settings.gzip {
            return Packed { content: plain.into(), coding: None };
        }
        // What is sent once and thrown away is not worth a longer search.
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        match encoder.write_all(&plain).and_then(|()| encoder.finish()) {
            Ok(small) => Packed { content: small.into(), coding: Some("gzip") },
            Err(_) => Packed { content: plain.into(), coding: None },
        }
    }

    /// Sends a body; returns what the receiver has to say to it, cut to nothing if it is long. The error says why it was
    /// not taken. Safe to cancel: the receiver may or may not have it then.
    pub async fn send(&self, packed: &Packed) -> Result<Vec<u8>, String> {
        let mut request = self.client.post(self.settings.endpoint.clone()).headers(self.settings.headers.clone());
        request = request.header(CONTENT_TYPE, "application/x-protobuf");
        if let Some(coding) = packed.coding {
            request = request.header(CONTENT_ENCODING, coding);
        }
        // Without the address: it may hold a password.
        let sent = request.body(packed.content.clone()).send().await;
        let mut answer = sent.map_err(|error| error.without_url().to_string())?;
        if !answer.status().is_success() {
            return Err(format!("the receiver answered with {}", answer.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            if body.len() + chunk.len() > ANSWER {
                return Ok(Vec::new());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// A body ready to be sent.
#[derive(Debug)]
pub(super) struct Packed {
    content: Bytes,
    coding: Option<&'static str>,
}

/// Whether the last delivery failed: a line for each would be noise.
#[derive(Debug, Default)]
pub(super) struct Failing(bool);

impl Failing {
    /// Whether `failed` is news.
    pub fn news(&mut self, failed: bool) -> bool {
        std::mem::replace(&mut self.0, failed) != failed
    }
}
