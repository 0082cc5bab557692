//! Chat as it passes through: which API a route speaks, and the little that must be known of its requests and answers to
//! route, meter and end them.
//!
//! Bodies are never rebuilt: a request keeps every byte but those that must change, an answer keeps every byte. Nothing
//! here translates between providers, and nothing here does IO.

pub mod answer;
pub mod event;
pub mod meter;
pub mod request;
pub mod tokens;

use crate::config::plan::Provider;

/// What a chat route speaks, in requests and answers alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChatApi {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's older completions.
    Completions,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

impl ChatApi {
    /// The path below a provider's version, and of our own route below `/v1`.
    pub const fn operation(self) -> &'static str {
        match self {
            ChatApi::Chat => "chat/completions",
            ChatApi::Completions => "completions",
            ChatApi::Responses => "responses",
            ChatApi::Messages => "messages",
        }
    }

    /// Whether upstreams of `provider` speak it.
    pub const fn is_spoken_by(self, provider: Provider) -> bool {
        match provider {
            Provider::OpenAi | Provider::Azure | Provider::Vllm | Provider::Ollama => {
                !matches!(self, ChatApi::Messages)
            }
            Provider::Anthropic => matches!(self, ChatApi::Messages),
            Provider::Simulated => matches!(self, ChatApi::Chat),
            Provider::Cohere | Provider::Voyage | Provider::Jina | Provider::Tei => false,
        }
    }

    /// Where a model is asked for whose upstreams are of `provider`.
    pub const fn route_of(provider: Provider) -> &'static str {
        match provider {
            Provider::Anthropic => "/v1/messages",
            _ => "/v1/chat/completions",
        }
    }

    /// Whether a stream has its usage in an event that is only there if the request asks for it.
    pub const fn has_usage_on_request(self) -> bool {
        matches!(self, ChatApi::Chat | ChatApi::Completions)
    }
}
