//! A plan as text, for `check` and for the start of `serve`.
//!
//! Shows what will happen: who answers for which model, in which order, at what price, for whom. Never a secret.

use std::fmt::Write as _;
use std::time::Duration;

use super::plan::{
    CacheBackend, CacheScope, Durability, LedgerStore, Matryoshka, Model, ModelKind, Plan, Prices, Provider, Serves,
    Upstream,
};
use crate::ids::SpaceId;
use crate::pure::money::UnitPrice;
use crate::pure::time::Wall;
use crate::pure::utc::Day;

impl Plan {
    /// The routing table, the tenants, the collections, what will be retired by `now` or later, and the warnings, as
    /// lines for a terminal. Holds no secret.
    pub fn describe(&self, now: Wall) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = self.write_head(&mut text);
        text.push_str("\nmodels\n");
        text.push_str(&self.models_table());
        text.push_str("\ntenants\n");
        text.push_str(&self.tenants_table());
        if !self.collections.is_empty() {
            text.push_str("\ncollections\n");
            text.push_str(&self.collections_table());
        }
        if self.models.iter().any(|model| model.slo != self.slo) {
            text.push_str("\nobjectives of their own\n");
            text.push_str(&self.objectives_table());
        }
        if !self.retirements.is_empty() {
            text.push_str("\nretirements\n");
            text.push_str(&self.retirements_table(now));
        }
        for warning in &self.warnings {
            let _ = write!(text, "\nwarning: {warning}");
        }
        if !self.warnings.is_empty() {
            text.push('\n');
        }
        text
    }

    /// The upstreams that answer for `model`, in the order in which they are tried: by tier, then by the file.
    fn answering(&self, model: &Model) -> Vec<(&Upstream, &Serves)> {
        let space = |serves: &Serves| self.models.iter().find(|one| one.name == serves.model).map(|one| &one.space);
        let answers = |serves: &Serves| {
            serves.model == model.name || (model.kind == ModelKind::Embedding && space(serves) == Some(&model.space))
        };
        let all =
            self.upstreams.iter().flat_map(|upstream| upstream.serves.iter().map(move |serves| (&**upstream, serves)));
        let mut answering: Vec<_> = all.filter(|(_, serves)| answers(serves)).collect();
        answering.sort_by_key(|(upstream, _)| upstream.tier);
        answering
    }

    fn write_head(&self, text: &mut String) -> std::fmt::Result {
        let admin = match (&self.server.admin_token, self.server.admin_listen.ip().is_loopback()) {
            (Some(_), _) => "with a token",
            (None, _) => "without a token: this machine only",
        };
        writeln!(text, "configuration {}", self.version)?;
        writeln!(text, "  clients   {} ({} workers)", self.server.listen, self.server.workers)?;
        writeln!(text, "  admin     {} ({admin})", self.server.admin_listen)?;
        let ledger = match self.store.ledger {
            LedgerStore::Embedded => format!("embedded in {}", self.store.path.display()),
            LedgerStore::Redis => "in Redis".to_owned(),
        };
        let durability = match self.store.durability {
            Durability::Process => "survives the death of the process",
            Durability::Power => "survives a power cut",
        };
        writeln!(text, "  ledger    {ledger}, {durability}")?;
        let scope = match self.cache.scope {
            CacheScope::Tenant => "each tenant its own",
            CacheScope::Shared => "shared by all tenants",
        };
        let memory = bytes(self.cache.max_bytes);
        let ttl = self.cache.ttl.as_secs();
        match self.cache.backend {
            CacheBackend::Off => writeln!(text, "  cache     off")?,
            CacheBackend::Memory => writeln!(text, "  cache     {memory} in memory, {ttl} s, {scope}")?,
            CacheBackend::Redis => writeln!(text, "  cache     in Redis, {ttl} s, {scope}")?,
            CacheBackend::Tiered => writeln!(text, "  cache     {memory} in memory, then Redis, {ttl} s, {scope}")?,
        }
        if self.upstreams.iter().any(|upstream| upstream.provider == Provider::Simulated) {
            text.push_str("  simulated provider: its vectors are hashed n-grams, not those of a model\n");
        }
        Ok(())
    }

    fn models_table(&self) -> String {
        let currency = &self.currency;
        let mut table = TextTable::new(&[
            "model",
            "space",
            "width",
            "upstream",
            "tier",
            "as",
            "tokens/min",
            "requests/min",
            "at once",
            &format!("{currency} per million tokens"),
        ]);
        for model in &self.models {
            let mut first = true;
            let answering = self.answering(model);
            let head = |first: bool, text: String| if first { text } else { String::new() };
            for (upstream, serves) in &answering {
                table.row([
                    head(first, model.name.to_string()),
                    head(first, space(model)),
                    head(first, width(model)),
                    upstream.id.to_string(),
                    upstream.tier.to_string(),
                    serves.remote_name.clone(),
                    limit(upstream.tpm),
                    limit(upstream.rpm),
                    upstream.max_concurrency.to_string(),
                    price(&serves.prices, currency),
                ]);
                first = false;
            }
            if answering.is_empty() {
                let mut row = vec![model.name.to_string(), space(model), width(model), "none".to_owned()];
                row.resize(9, String::new());
                row.push(price(&model.prices, currency));
                table.row(row);
            }
        }
        table.finish()
    }

    fn tenants_table(&self) -> String {
        let mut table = TextTable::new(&["tenant", "budget", "class", "keys", "models", "tokens/min", "requests/min"]);
        for tenant in &self.tenants {
            let budget = tenant.budget.map(|budget| format!("{budget} {}", self.currency));
            let models = tenant.models.as_ref();
            let models = models.map(|all| all.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(", "));
            table.row([
                tenant.id.to_string(),
                budget.unwrap_or_else(|| "unlimited".to_owned()),
                tenant.class.map_or_else(|| "by request".to_owned(), |class| class.to_string()),
                tenant.keys.iter().map(|key| key.fingerprint.as_str()).collect::<Vec<_>>().join(", "),
                models.unwrap_or_else(|| "all".to_owned()),
                limit(tenant.tpm),
                limit(tenant.rpm),
            ]);
        }
        table.finish()
    }

    fn collections_table(&self) -> String {
        let mut table = TextTable::new(&["collection", "from", "to", "begins at"]);
        for collection in &self.collections {
            table.row([
                collection.name.clone(),
                collection.from.to_string(),
                collection.to.to_string(),
                collection.position.to_string(),
            ]);
        }
        table.finish()
    }

    fn objectives_table(&self) -> String {
        let mut table = TextTable::new(&["model", "95 of 100 within", "99 of 100 within"]);
        for model in self.models.iter().filter(|model| model.slo != self.slo) {
            let (p95, p99) = match model.kind {
                ModelKind::Embedding => (model.slo.interactive_p95, model.slo.interactive_p99),
                ModelKind::Rerank => (model.slo.rerank_p95, model.slo.rerank_p99),
                ModelKind::Chat => (model.slo.chat_p95, model.slo.chat_p99),
            };
            let ms = |line: Duration| format!("{} ms", line.as_secs_f64() * 1_000.0);
            table.row([model.name.to_string(), ms(p95), ms(p99)]);
        }
        table.finish()
    }

    fn retirements_table(&self, now: Wall) -> String {
        let mut table = TextTable::new(&["model", "upstream", "on", "days left"]);
        for one in &self.retirements {
            let upstream = one.upstream.as_ref().map_or_else(|| "all".to_owned(), |upstream| upstream.to_string());
            table.row([one.model.to_string(), upstream, Day(one.on).to_string(), one.days_left(now).to_string()]);
        }
        table.finish()
    }
}

fn space(model: &Model) -> String {
    let name: &SpaceId = &model.space;
    match model.kind {
        ModelKind::Embedding => name.to_string(),
        other => format!("({})", other.as_str()),
    }
}

fn width(model: &Model) -> String {
    if model.kind != ModelKind::Embedding {
        return String::new();
    }
    let native = model.dimensions.map_or_else(|| "learned".to_owned(), |width| width.to_string());
    match (model.enforce_dimensions, &model.matryoshka) {
        (Some(width), _) => format!("{width} of {native}"),
        (None, Matryoshka::None) => native,
        (None, Matryoshka::Widths(widths)) => {
            let widths: Vec<String> = widths.iter().map(u32::to_string).collect();
            format!("{native} ({})", widths.join("/"))
        }
        (None, Matryoshka::Range { min, max }) => format!("{native} ({min}-{max})"),
    }
}

fn limit(per_minute: Option<u64>) -> String {
    per_minute.map_or_else(|| "-".to_owned(), |limit| limit.to_string())
}

fn price(prices: &Prices, currency: &str) -> String {
    let per_million = |price: UnitPrice| price.times(1_000_000);
    let parts = [
        prices.input.map(|price| per_million(price).to_string()),
        prices.output.map(|price| format!("{} out", per_million(price))),
        prices.search.map(|price| format!("{} {currency} per thousand searches", price.times(1000))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "unknown".to_owned() } else { parts.join(", ") }
}

fn bytes(count: u64) -> String {
    if count >= 1 << 20 { format!("{} MiB", count >> 20) } else { format!("{count} bytes") }
}

/// Rows with aligned columns.
struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    fn new(head: &[&str]) -> TextTable {
        TextTable { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn finish(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::from(" ");
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(line, " {:<width$} ", cell(row, column));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}
