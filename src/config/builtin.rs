//! What the configuration serves when it names no model and no upstream: real providers that the environment points
//! to, else the simulated one.
//!
//! Knows the two variables that it looks at and the demo key; refuses to know how entries are checked: what it adds
//! goes the way of everything written.

use super::environment::Environment;
use super::tree::{Node, Origin, Table, Value, parse_as};

/// The secret of the tenant `demo`. It is public, so it opens nothing that is not bound to loopback.
pub(crate) const DEMO_KEY: &str = "vg-demo-key";

/// SHA-256 of [`DEMO_KEY`].
pub(crate) const DEMO_KEY_SHA256: &str = "f0da5774ddd43cf0ffac182e87cc9be314210d17ee79e5520b71a6d0913330d7";

const SIMULATED: &str = r#"
[[models]]
name = "simulated-embedding"
[[models]]
name = "simulated-rerank"
[[models]]
name = "simulated-chat"
[[upstreams]]
id = "simulated"
provider = "simulated"
serves = [{ model = "simulated-embedding" }, { model = "simulated-rerank" }, { model = "simulated-chat" }]
"#;

const OPENAI: &str = r#"
[[models]]
name = "text-embedding-3-small"
[[models]]
name = "text-embedding-3-large"
[[models]]
name = "text-embedding-ada-002"
[[upstreams]]
id = "openai"
provider = "openai"
api_key = { env = "OPENAI_API_KEY" }
serves = [
    { model = "text-embedding-3-small" },
    { model = "text-embedding-3-large" },
    { model = "text-embedding-ada-002" },
]
"#;

const TEI: &str = r#"
[[models]]
name = "tei"
price_usd_per_million_tokens = "0"
[[upstreams]]
id = "tei"
provider = "tei"
serves = [{ model = "tei" }]
"#;

const DEMO: &str = r#"
[[tenants]]
id = "demo"
budget = "10.00"
"#;

/// Adds the built-in models and upstreams if `tree` has none of either, and then the tenant `demo` if it has no
/// tenant.
pub(crate) fn add(tree: &mut Table, environment: &Environment) {
    if has(tree, "models") || has(tree, "upstreams") {
        return;
    }
    let tei_url = environment.get("VECTORGATE_TEI_URL");
    let openai = environment.get("OPENAI_API_KEY").is_some();
    if openai {
        append(tree, OPENAI, |_| {});
    }
    if let Some(url) = tei_url {
        append(tree, TEI, |entry| {
            if entry.get("id").is_some() {
                let at = Origin::Variable("VECTORGATE_TEI_URL".into());
                entry.set("base_url", Node { value: Value::Text(url.to_owned()), at });
            }
        });
    }
    if !openai && tei_url.is_none() {
        append(tree, SIMULATED, |_| {});
    }
    if !has(tree, "tenants") {
        append(tree, DEMO, |entry| {
            let hash = Node { value: Value::Text(DEMO_KEY_SHA256.to_owned()), at: Origin::Default };
            entry.set("key_sha256", Node { value: Value::List(vec![hash]), at: Origin::Default });
        });
    }
}

/// Whether anything is written under this name; also something of the wrong kind, which is reported later.
fn has(tree: &Table, list: &str) -> bool {
    match tree.get(list).map(|node| &node.value) {
        Some(Value::List(list)) => !list.is_empty(),
        Some(_) => true,
        None => false,
    }
}

fn append(tree: &mut Table, text: &str, mut change: impl FnMut(&mut Table)) {
    // The texts are part of the program and a test loads each.
    let added = parse_as(text, &Origin::Default).unwrap_or_default();
    for (name, node) in added.iter() {
        tree.set_if_absent(name, &Node { value: Value::List(Vec::new()), at: Origin::Default });
        let Some(Node { value: Value::List(list), .. }) = tree.get_mut(name) else { continue };
        let Value::List(entries) = &node.value else { continue };
        for entry in entries {
            let mut entry = entry.clone();
            if let Value::Table(table) = &mut entry.value {
                change(table);
            }
            list.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_demo_keys_hash_is_that_of_its_text() {
        assert_eq!(hex::encode(Sha256::digest(DEMO_KEY)), DEMO_KEY_SHA256);
    }
}
