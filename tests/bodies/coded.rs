//! RG-gnmj: compressed request bodies.

use std::io::Write as _;

use loadtest::provider::{Provider, Script};

use super::peak;
use crate::support::gateway::{Answer, KEY};
use crate::support::{Gateway, assert_signatures, embedding_config};

const BODY: &[u8] = br#"{"model":"emb-a","input":["a text that is compressed","and another one"]}"#;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

fn deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

fn brotli(mut text: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let parameters = brotli::enc::BrotliEncoderParams { quality: 5, ..Default::default() };
    brotli::BrotliCompress(&mut text, &mut packed, &parameters).expect("memory");
    packed
}

fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 3).expect("memory")
}

type Pack = fn(&[u8]) -> Vec<u8>;

const ALL: [(&str, Pack); 4] = [("gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstd)];

async fn send(gateway: &Gateway, coding: &str, body: Vec<u8>) -> Answer {
    gateway.post("/v1/embeddings", KEY, &[("content-encoding", coding)], body).await
}

fn start(extra: &str) -> (Provider, Gateway) {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", extra));
    (provider, gateway)
}

#[tokio::test]
async fn rg_gnmj_every_coding_is_the_same_request() {
    let (provider, gateway) = start("");
    let plain = gateway.post("/v1/embeddings", KEY, &[], BODY).await;
    assert_signatures(&plain.expect(200), "A", &["a text that is compressed", "and another one"]);
    for (coding, pack) in ALL {
        let answer = send(&gateway, coding, pack(BODY)).await;
        answer.expect(200);
        assert_eq!((answer.header("x-cache"), &answer.text), ("HIT", &plain.text), "{coding}");
    }
    send(&gateway, "identity", BODY.to_vec()).await.expect(200);
    assert_eq!(provider.call_count(), 1);
    // And the other way round: what was compressed goes on plain, with headers that agree with it.
    for (number, (coding, pack)) in ALL.into_iter().enumerate() {
        let text = format!("only compressed, number {number}");
        let body = format!("{{\"input\":\"{text}\",\"model\":\"emb-a\"}}");
        let answer = send(&gateway, coding, pack(body.as_bytes())).await;
        assert_signatures(&answer.expect(200), "A", &[&text]);
        let call = provider.calls().pop().expect("called");
        assert_eq!(call.header("content-encoding"), None);
        assert_eq!(call.json()["input"], text);
        let length: usize = call.header("content-length").expect("sized").parse().expect("a number");
        assert_eq!(length, call.body.len());
    }
}

#[tokio::test]
async fn rg_gnmj_what_is_not_understood_or_damaged_is_told() {
    let (provider, gateway) = start("");
    for coding in ["snappy", "gzip, gzip", "compress"] {
        let answer = send(&gateway, coding, gzip(BODY)).await;
        answer.expect(415);
        for accepted in ["gzip", "deflate", "br", "zstd", "identity"] {
            assert!(answer.text.contains(accepted), "{coding}: {}", answer.text);
        }
    }
    for (coding, pack) in ALL {
        let packed = pack(BODY);
        for damaged in
            [packed[..packed.len() / 2].to_vec(), packed[..packed.len() - 1].to_vec(), BODY.to_vec(), Vec::new()]
        {
            let answer = send(&gateway, coding, damaged).await;
            answer.expect(400);
            assert!(answer.text.contains(coding), "{coding}: {}", answer.text);
        }
    }
    assert_eq!(provider.call_count(), 0);
    gateway.embed(serde_json::json!("still well")).await.expect(200);
}

#[tokio::test]
async fn rg_gnmj_a_bomb_is_refused_at_the_limit_without_its_memory() {
    let (provider, gateway) = start("max_body_bytes = 33554432");
    gateway.embed(serde_json::json!("warm")).await.expect(200);
    let before = peak(&gateway);
    // 256 MiB of one letter inside a text; gzip in gzip is not needed for 1000 : 1.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut packed_zstd = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
    for writer in [&mut packed as &mut dyn std::io::Write, &mut packed_zstd] {
        writer.write_all(b"{\"model\":\"emb-a\",\"input\":\"").expect("memory");
        let block = vec![b'a'; 1 << 20];
        for _ in 0..256 {
            writer.write_all(&block).expect("memory");
        }
        writer.write_all(b"\"}").expect("memory");
    }
    let bombs = [("gzip", packed.finish().expect("memory")), ("zstd", packed_zstd.finish().expect("memory"))];
    for (coding, bomb) in bombs {
        assert!(bomb.len() < 2 << 20, "{coding}: {}", bomb.len());
        let answer = send(&gateway, coding, bomb).await;
        answer.expect(413);
        assert_eq!(answer.error_code(), "body_too_large");
        assert!(answer.text.contains("33554432"), "{}", answer.text);
    }
    let grown = peak(&gateway) - before;
    assert!(grown < 48 << 20, "{grown} bytes for two bombs");
    assert_eq!(provider.call_count(), 1);
}
