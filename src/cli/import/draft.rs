//! Our configuration while it is being put together: tables in the order of the file, and notes on what is missing.

use toml_edit::Value;

/// Keys of one table, in order.
pub(super) type Keys = Vec<(String, Value)>;

/// One entry of an upstream's `serves`.
#[derive(Debug, Clone)]
pub(super) struct Serve {
    pub model: String,
    pub remote: String,
    pub prices: Keys,
}

/// One `[[upstreams]]` entry.
#[derive(Debug, Clone)]
pub(super) struct Upstream {
    pub id: String,
    /// Everything but the id and what it serves: what two deployments must share to be one upstream.
    pub keys: Keys,
    pub serves: Vec<Serve>,
}

/// A configuration in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// `[name]` tables.
    pub sections: Vec<(&'static str, Keys)>,
    /// `[[models]]`, by name.
    pub models: Vec<(String, Keys)>,
    pub upstreams: Vec<Upstream>,
    /// `[[tenants]]`.
    pub tenants: Vec<Keys>,
    notes: Vec<String>,
}

impl Draft {
    /// Says that something did not come along, and why.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// What did not come along, in the order of the file that was read.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sets a key of a `[name]` table.
    pub(super) fn set(&mut self, section: &'static str, key: &str, value: impl Into<Value>) {
        let at = self.sections.iter().position(|(name, _)| *name == section).unwrap_or_else(|| {
            self.sections.push((section, Vec::new()));
            self.sections.len() - 1
        });
        put(&mut self.sections[at].1, key, value);
    }

    /// The keys of the model of that name, if it is there.
    pub(super) fn model(&mut self, name: &str) -> Option<&mut Keys> {
        self.models.iter_mut().find(|(known, _)| known == name).map(|(_, keys)| keys)
    }

    /// The file.
    pub(super) fn to_toml(&self) -> String {
        let mut out =
            String::from("# Made from a LiteLLM configuration. Look it through, then run `vectorgate check`.\n");
        if !self.notes.is_empty() {
            out.push_str("#\n# Not carried over:\n");
            for note in &self.notes {
                out.push_str(&format!("# - {}\n", note.replace('\n', " ")));
            }
        }
        for (name, keys) in &self.sections {
            table(&mut out, &format!("[{name}]"), keys);
        }
        for (name, keys) in &self.models {
            let mut all = vec![("name".to_owned(), Value::from(name.as_str()))];
            all.extend(keys.iter().cloned());
            table(&mut out, "[[models]]", &all);
        }
        for upstream in &self.upstreams {
            let mut all = vec![("id".to_owned(), Value::from(upstream.id.as_str()))];
            all.extend(upstream.keys.iter().cloned());
            table(&mut out, "[[upstreams]]", &all);
            out.push_str("serves = [\n");
            for serve in &upstream.serves {
                let mut one = toml_edit::InlineTable::new();
                one.insert("model", Value::from(serve.model.as_str()));
                if serve.remote != serve.model {
                    one.insert("as", Value::from(serve.remote.as_str()));
                }
                for (key, value) in &serve.prices {
                    one.insert(key, value.clone());
                }
                out.push_str(&format!("    {one},\n"));
            }
            out.push_str("]\n");
        }
        for keys in &self.tenants {
            table(&mut out, "[[tenants]]", keys);
        }
        out
    }
}

/// Sets a key, in its old place if it is there.
pub(super) fn put(keys: &mut Keys, key: &str, value: impl Into<Value>) {
    let value = value.into();
    match keys.iter_mut().find(|(known, _)| known == key) {
        Some((_, old)) => *old = value,
        None => keys.push((key.to_owned(), value)),
    }
}

fn table(out: &mut String, header: &str, keys: &Keys) {
    out.push_str(&format!("\n{header}\n"));
    for (key, value) in keys {
        out.push_str(&format!("{key} = {}\n", value.to_string().trim()));
    }
}
