//! What a provider takes in one call for vectors or scores.
//!
//! Knows published limits and what an upstream's entry says instead; refuses to know how a batch is split.

use super::plan::{ModelKind, Provider, Upstream};

/// Limits of one call; `None`: no such limit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchLimits {
    /// Most inputs, or documents to rank.
    pub items: Option<usize>,
    /// Most tokens, all inputs together.
    pub tokens: Option<u64>,
    /// Most bytes of body.
    pub bytes: Option<u64>,
}

/// The published limits of an embeddings call to `provider` for the model that it calls `remote_name`.
pub fn of(provider: Provider, remote_name: &str) -> BatchLimits {
    let items = |items| BatchLimits { items: Some(items), ..BatchLimits::default() };
    match provider {
        Provider::OpenAi => BatchLimits { tokens: Some(300_000), ..items(2048) },
        // Azure counts the sum against the quota only, as far as is known.
        Provider::Azure => items(2048),
        Provider::Cohere => items(96),
        Provider::Voyage => BatchLimits { tokens: Some(voyage_tokens(remote_name)), ..items(1000) },
        // The smaller of two limits seen: 512 with v4.
        Provider::Jina => items(512),
        // TEI's defaults, `--max-client-batch-size` and `--payload-limit`; a server started with others says so in
        // its `[[upstreams]]` entry.
        Provider::Tei => BatchLimits { bytes: Some(2_000_000), ..items(32) },
        Provider::Ollama | Provider::Vllm | Provider::Anthropic | Provider::Simulated => BatchLimits::default(),
    }
}

/// The published limits of a rerank call. Tokens count the query once with each document.
pub fn of_rerank(provider: Provider, remote_name: &str) -> BatchLimits {
    let items = |items| BatchLimits { items: Some(items), ..BatchLimits::default() };
    match provider {
        Provider::Cohere => items(10_000),
        Provider::Voyage => BatchLimits { tokens: Some(voyage_rerank_tokens(remote_name)), ..items(1000) },
        Provider::Tei => of(provider, remote_name),
        _ => BatchLimits::default(),
    }
}

/// The limits of a call to `upstream` for a model of that kind that it calls `remote_name`: what its entry states, else
/// the provider's.
pub fn of_upstream(upstream: &Upstream, remote_name: &str, kind: ModelKind) -> BatchLimits {
    let published = match kind {
        ModelKind::Rerank => of_rerank(upstream.provider, remote_name),
        ModelKind::Embedding | ModelKind::Chat => of(upstream.provider, remote_name),
    };
    BatchLimits {
        items: upstream.max_batch_items.or(published.items),
        tokens: upstream.max_batch_tokens.or(published.tokens),
        bytes: upstream.max_batch_bytes.or(published.bytes),
    }
}

/// Voyage limits a call's tokens by model. A model that is not listed gets the least of them.
fn voyage_tokens(model: &str) -> u64 {
    match model {
        "voyage-4-lite" | "voyage-3.5-lite" => 1_000_000,
        "voyage-4" | "voyage-3.5" | "voyage-2" => 320_000,
        _ => 120_000,
    }
}

/// The first generation takes half of what the later ones take.
fn voyage_rerank_tokens(model: &str) -> u64 {
    match model {
        "rerank-1" | "rerank-lite-1" => 300_000,
        _ => 600_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(provider: Provider, model: &str, items: Option<usize>, tokens: Option<u64>, bytes: Option<u64>) {
        assert_eq!(of(provider, model), BatchLimits { items, tokens, bytes });
    }

    #[test]
    fn published_limits() {
        check(Provider::OpenAi, "text-embedding-3-small", Some(2048), Some(300_000), None);
        check(Provider::Cohere, "embed-v4.0", Some(96), None, None);
        check(Provider::Voyage, "voyage-4-lite", Some(1000), Some(1_000_000), None);
        check(Provider::Voyage, "voyage-4", Some(1000), Some(320_000), None);
        check(Provider::Voyage, "voyage-9-large", Some(1000), Some(120_000), None);
        check(Provider::Tei, "BAAI/bge-m3", Some(32), None, Some(2_000_000));
        check(Provider::Ollama, "nomic-embed-text", None, None, None);
    }

    #[test]
    fn published_limits_of_rerank() {
        let check = |provider, model, items, tokens, bytes| {
            assert_eq!(of_rerank(provider, model), BatchLimits { items, tokens, bytes });
        };
        check(Provider::Cohere, "rerank-v3.5", Some(10_000), None, None);
        check(Provider::Voyage, "rerank-2.5", Some(1000), Some(600_000), None);
        check(Provider::Voyage, "rerank-lite-1", Some(1000), Some(300_000), None);
        check(Provider::Tei, "BAAI/bge-reranker-base", Some(32), None, Some(2_000_000));
        check(Provider::Jina, "jina-reranker-m0", None, None, None);
    }
}
