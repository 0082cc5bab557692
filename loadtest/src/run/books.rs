//! The audit at the end: the gateway's books against the clients' own log and the providers' own count.
//!
//! Owns the comparison: calls, tokens and money, exactly. It reads what others bring and decides nothing about the run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::provider::Stats;

/// Differences of which the details are kept.
const EXAMPLES: usize = 8;

/// A usage record, as far as it is compared.
#[derive(Debug, Deserialize)]
struct Record {
    request_id: String,
    #[serde(default)]
    upstream: Option<String>,
    tokens: u64,
    #[serde(default)]
    search_units: u64,
    #[serde(default)]
    output_tokens: u64,
    unit_price: Decimal,
    cost: Decimal,
    status: u16,
}

/// What a client was told about a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The request's id.
    pub id: String,
    /// Status of the answer; 0: there was none.
    pub status: u16,
    /// The cost in its header.
    pub cost: Option<Decimal>,
}

/// Providers that serve the same models, and so bill at one price.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Names of the providers.
    pub providers: Vec<String>,
    /// Calls that they answered well and that somebody received whole.
    pub calls: u64,
    /// The same by the gateway's metric of its upstreams.
    pub booked_calls: Option<u64>,
    /// Tokens billed for them.
    pub tokens: u64,
    /// Tokens on the gateway's books.
    pub booked_tokens: u64,
    /// What those tokens cost by the list price, as a decimal.
    pub money: String,
    /// What the gateway charged.
    pub booked_money: String,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Usage records.
    pub records: u64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Requests that got an answer.
    pub answered: u64,
    /// Answers that are not on the books.
    pub missing: u64,
    /// Requests that are on the books more than once.
    pub twice: u64,
    /// Answers whose cost or status on the books is another one.
    pub other: u64,
    /// Records that no client asked for.
    pub strange: u64,
    /// Records whose cost is not their quantity times their price.
    pub miscounted: u64,
    /// Sum of the costs that clients were told, as a decimal.
    pub told: String,
    /// Sum of the costs on the books.
    pub booked: String,
    /// By group of providers.
    pub groups: Vec<Group>,
    /// Details of a few differences.
    pub examples: Vec<String>,
}

impl Audit {
    /// Differences between what clients were told and the books.
    pub fn client_differences(&self) -> u64 {
        self.missing + self.twice + self.other + self.strange + self.miscounted
    }

    /// Tokens by which providers and books differ, over all groups.
    pub fn token_difference(&self) -> u64 {
        self.groups.iter().map(|group| group.tokens.abs_diff(group.booked_tokens)).sum()
    }

    /// Calls by which providers and the gateway's metric differ, where that was read.
    pub fn call_difference(&self) -> u64 {
        self.groups.iter().filter_map(|group| Some(group.calls.abs_diff(group.booked_calls?))).sum()
    }

    /// Money by which list price and books differ, as a decimal.
    pub fn money_difference(&self) -> Decimal {
        let amount = |text: &str| Decimal::from_str_exact(text).unwrap_or(Decimal::MAX);
        self.groups.iter().fold(Decimal::ZERO, |sum, group| {
            sum.saturating_add(amount(&group.money).saturating_sub(amount(&group.booked_money)).abs())
        })
    }
}

/// Compares. `books` holds the usage records, a JSON object a line; `calls` the gateway's own count of good calls by
/// upstream, where it lived through the whole run.
///
/// # Errors
/// A line of the books cannot be read.
pub fn audit(
    books: &str,
    claims: &[Claim],
    providers: &BTreeMap<String, Stats>,
    config: &Table,
    places: &BTreeMap<String, String>,
    calls: Option<&BTreeMap<String, u64>>,
) -> Result<Audit, String> {
    let records: Vec<Record> = books
        .lines()
        .map(|line| serde_json::from_str(line).map_err(|error| format!("the books: {error}: {line}")))
        .collect::<Result<_, _>>()?;
    let mut audit = Audit { records: records.len() as u64, requests: claims.len() as u64, ..Audit::default() };
    compare_clients(&mut audit, &records, claims);
    for record in &records {
        let units = if record.search_units > 0 { record.search_units } else { record.tokens };
        let exact = record.output_tokens == 0 && Decimal::from(units) * record.unit_price == record.cost;
        if !exact && record.output_tokens == 0 {
            audit.miscounted += 1;
            note(&mut audit, || {
                format!("{}: {units} × {} is not {}", record.request_id, record.unit_price, record.cost)
            });
        }
    }
    audit.groups = groups(config, places).into_iter().map(|known| count(&known, &records, providers, calls)).collect();
    Ok(audit)
}

fn note(audit: &mut Audit, what: impl FnOnce() -> String) {
    if audit.examples.len() < EXAMPLES {
        let what = what();
        audit.examples.push(what);
    }
}

fn compare_clients(audit: &mut Audit, records: &[Record], claims: &[Claim]) {
    let mut by_id: HashMap<&str, Vec<&Record>> = HashMap::with_capacity(records.len());
    for record in records {
        by_id.entry(&record.request_id).or_default().push(record);
    }
    let sent: BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
    for (id, same) in &by_id {
        if !sent.contains(id) {
            audit.strange += same.len() as u64;
            note(audit, || format!("{id} is on the books and was never sent"));
        }
        if same.len() > 1 {
            audit.twice += 1;
            note(audit, || format!("{id} is on the books {} times", same.len()));
        }
    }
    let mut told = Decimal::ZERO;
    for claim in claims.iter().filter(|claim| claim.status != 0) {
        audit.answered += 1;
        told += claim.cost.unwrap_or_default();
        match by_id.get(claim.id.as_str()).and_then(|same| same.first()) {
            None => {
                audit.missing += 1;
                note(audit, || format!("{} was answered with {} and is not on the books", claim.id, claim.status));
            }
            Some(record) => {
                let same_cost = claim.cost.is_none_or(|cost| cost == record.cost);
                if !same_cost || claim.status != record.status {
                    audit.other += 1;
                    let (cost, booked) = (claim.cost.unwrap_or_default(), record.cost);
                    note(audit, || {
                        let (status, written) = (claim.status, record.status);
                        format!(
                            "{}: the client was told {status} and {cost}, the books say {written} and {booked}",
                            claim.id
                        )
                    });
                }
            }
        }
    }
    audit.told = told.normalize().to_string();
    audit.booked = records.iter().map(|record| record.cost).sum::<Decimal>().normalize().to_string();
}

/// Upstreams that serve the same models, with the providers behind them and their price per token.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    models: BTreeSet<String>,
    upstreams: BTreeSet<String>,
    providers: BTreeSet<String>,
    price: Option<Decimal>,
}

fn groups(config: &Table, places: &BTreeMap<String, String>) -> Vec<Known> {
    let tables = |name: &str| config.get(name).and_then(Value::as_array).into_iter().flatten();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let per_usd = config.get("money").map(|money| text(money, "per_usd")).filter(|text| !text.is_empty());
    let per_usd = Decimal::from_str_exact(per_usd.as_deref().unwrap_or("0.92")).unwrap_or(Decimal::ONE);
    let price = |model: &str| {
        let entry = tables("models").find(|entry| text(entry, "name") == model)?;
        let usd = Decimal::from_str_exact(&text(entry, "price_usd_per_million_tokens")).ok()?;
        Some(usd * per_usd / Decimal::from(1_000_000))
    };
    let mut groups: Vec<Known> = Vec::new();
    for upstream in tables("upstreams") {
        let url = text(upstream, "base_url");
        let Some(provider) = places.iter().find(|(address, _)| url.contains(address.as_str())) else { continue };
        let serves = upstream.get("serves").and_then(Value::as_array).into_iter().flatten();
        let models: BTreeSet<String> = serves.map(|serves| text(serves, "model")).collect();
        let mut own = Known {
            price: models.first().and_then(|model| price(model)),
            models,
            upstreams: BTreeSet::from([text(upstream, "id")]),
            providers: BTreeSet::from([provider.1.clone()]),
        };
        // Whatever shares a model or a provider is counted together.
        let (same, others) = groups.into_iter().partition::<Vec<_>, _>(|known| {
            !known.models.is_disjoint(&own.models) || !known.providers.is_disjoint(&own.providers)
        });
        for known in same {
            own.price = own.price.filter(|price| known.price == Some(*price));
            own.models.extend(known.models);
            own.upstreams.extend(known.upstreams);
            own.providers.extend(known.providers);
        }
        groups = others;
        groups.push(own);
    }
    groups
}

fn count(
    known: &Known,
    records: &[Record],
    providers: &BTreeMap<String, Stats>,
    calls: Option<&BTreeMap<String, u64>>,
) -> Group {
    let stats: Vec<&Stats> = known.providers.iter().filter_map(|name| providers.get(name)).collect();
    let booked: Vec<&Record> = records
        .iter()
        .filter(|record| record.upstream.as_ref().is_some_and(|upstream| known.upstreams.contains(upstream)))
        .collect();
    let tokens: u64 = stats.iter().map(|stats| stats.tokens_delivered).sum();
    let booked_money: Decimal = booked.iter().map(|record| record.cost).sum();
    // Searches are not billed by the token, and models of several prices cannot be told apart by tokens alone.
    let by_token = booked.iter().all(|record| record.search_units == 0);
    let money = known.price.filter(|_| by_token).map_or(booked_money, |price| price * Decimal::from(tokens));
    Group {
        providers: known.providers.iter().cloned().collect(),
        calls: stats.iter().map(|stats| stats.delivered).sum(),
        booked_calls: calls.map(|calls| known.upstreams.iter().filter_map(|id| calls.get(id)).sum()),
        tokens,
        booked_tokens: booked.iter().map(|record| record.tokens).sum(),
        money: money.normalize().to_string(),
        booked_money: booked_money.normalize().to_string(),
    }
}

/// Calls by upstream and status in a gateway's metrics.
pub fn calls_by_status(metrics: &str) -> BTreeMap<(String, String), u64> {
    let mut calls = BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("vectorgate_upstream_requests_total{") else { continue };
        let label = |name: &str| rest.split_once(&format!("{name}=\""))?.1.split_once('"').map(|(value, _)| value);
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
        if let (Some(upstream), Some(status)) = (label("upstream"), label("status")) {
            *calls.entry((upstream.to_owned(), status.to_owned())).or_default() += value as u64;
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
        [money]
        per_usd = "1"
        [[models]]
        name = "m"
        price_usd_per_million_tokens = "1000"
        [[upstreams]]
        id = "one"
        base_url = "http://127.0.0.1:1/v1"
        serves = [{ model = "m" }]
        [[upstreams]]
        id = "two"
        base_url = "http://127.0.0.1:2/v1"
        serves = [{ model = "m" }]
    "#;

    fn record(id: &str, tokens: u64, cost: &str) -> String {
        format!(
            r#"{{"request_id":"{id}","upstream":"one","tokens":{tokens},"unit_price":"0.001","cost":"{cost}","status":200}}"#
        )
    }

    fn claim(id: &str, status: u16, cost: &str) -> Claim {
        Claim { id: id.to_owned(), status, cost: Decimal::from_str_exact(cost).ok() }
    }

    fn run(books: &[String], claims: &[Claim], tokens: u64) -> Audit {
        let stats = |tokens| Stats { delivered: 1, tokens_delivered: tokens, ..Stats::default() };
        let providers = BTreeMap::from([("eu".to_owned(), stats(tokens)), ("us".to_owned(), stats(0))]);
        let place = |port, name: &str| (format!("127.0.0.1:{port}"), name.to_owned());
        let places = BTreeMap::from([place(1, "eu"), place(2, "us")]);
        let config = toml::from_str(CONFIG).expect("TOML");
        audit(&books.join("\n"), claims, &providers, &config, &places, None).expect("readable")
    }

    #[test]
    fn books_that_agree_have_no_difference() {
        let audit = run(&[record("a", 5, "0.005")], &[claim("a", 200, "0.005"), claim("b", 0, "")], 5);
        assert_eq!((audit.client_differences(), audit.token_difference()), (0, 0), "{:?}", audit.examples);
        assert_eq!((audit.requests, audit.answered), (2, 1));
        assert_eq!(audit.money_difference(), Decimal::ZERO);
        assert_eq!(audit.groups.len(), 1, "two ways to one model are one group");
    }

    #[track_caller]
    fn check(books: &[&String], claims: &[&Claim], part: &str) {
        let books: Vec<String> = books.iter().copied().cloned().collect();
        let claims: Vec<Claim> = claims.iter().copied().cloned().collect();
        let audit = run(&books, &claims, 5);
        assert_eq!(audit.client_differences(), 1, "{:?}", audit.examples);
        assert!(audit.examples[0].contains(part), "{:?}", audit.examples);
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let (record_a, claim_a) = (record("a", 5, "0.005"), claim("a", 200, "0.005"));
        check(&[], &[&claim_a], "not on the books");
        check(&[&record_a, &record_a], &[&claim_a], "2 times");
        check(&[&record_a], &[&claim("a", 200, "0.006")], "told 200 and 0.006");
        check(&[&record_a], &[&claim("a", 502, "0.005")], "told 502");
        check(&[&record_a], &[], "never sent");
        check(&[&record("a", 4, "0.005")], &[&claim_a], "is not 0.005");
        let audit = run(&[record_a], &[claim("a", 200, "0.005")], 7);
        assert_eq!((audit.token_difference(), audit.money_difference()), (2, Decimal::new(2, 3)));
    }

    #[test]
    fn calls_are_read_from_metrics() {
        let text = "vectorgate_upstream_requests_total{upstream=\"one\",status=\"200\"} 7\n\
                    vectorgate_upstream_requests_total{upstream=\"one\",status=\"503\"} 2\n";
        let of = |status: &str| ("one".to_owned(), status.to_owned());
        assert_eq!(calls_by_status(text), BTreeMap::from([(of("200"), 7), (of("503"), 2)]));
    }
}
