//! What the command line changes of a scenario: single keys, the length, the rate.

use toml::{Table, Value};

use super::Scenario;

/// Changes asked for.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Keys by path with their values as TOML, `gateway.quota.interactive_reserve=0`.
    pub set: Vec<String>,
    /// Length of all phases and variants together, in seconds.
    pub duration_s: Option<f64>,
    /// Requests per second of the first traffic; the others change in proportion.
    pub rate: Option<f64>,
}

/// Reads a scenario with changes, and with those of one of its variants.
///
/// # Errors
/// What cannot be read or set, in words.
pub fn apply(text: &str, overrides: &Overrides, variant: &Table) -> Result<Scenario, String> {
    let mut table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    // The command line has the last word, so that a variant cannot undo what somebody wants to see.
    for (path, value) in flatten(variant) {
        set(&mut table, &path, value)?;
    }
    for assignment in &overrides.set {
        let (path, value) = assignment.split_once('=').ok_or_else(|| format!("{assignment:?} is not key=value"))?;
        set(&mut table, path.trim(), read_value(value.trim()))?;
    }
    let mut scenario: Scenario = Value::Table(table).try_into().map_err(|error: toml::de::Error| error.to_string())?;
    if let Some(total_s) = overrides.duration_s {
        let variants = scenario.variants.len().max(1) as f64;
        let factor = total_s / (scenario.length().as_secs_f64() * variants).max(1e-9);
        scenario.phases.iter_mut().for_each(|phase| phase.s *= factor);
    }
    if let Some(rate) = overrides.rate {
        let first = scenario.traffic.iter().map(super::Traffic::rate).find(|rate| *rate > 0.0);
        let factor = rate / first.ok_or("no traffic of this scenario has a rate")?;
        scenario.traffic.iter_mut().for_each(|traffic| traffic.scale(factor));
    }
    scenario.check()?;
    Ok(scenario)
}

/// A value as TOML; what is none is a text, so that quotes may be left out.
fn read_value(text: &str) -> Value {
    let read = toml::from_str::<Table>(&format!("value = {text}")).ok().and_then(|mut table| table.remove("value"));
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn flatten(table: &Table) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !key.contains('.') => {
                all.extend(flatten(inner).into_iter().map(|(path, value)| (format!("{key}.{path}"), value)));
            }
            _ => all.push((key.clone(), value.clone())),
        }
    }
    all
}

/// Puts a value at a path. Entries of lists are named by their number, or by their `name` or `id`; `*` is all of them.
fn set(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let mut root = Value::Table(std::mem::take(table));
    let done = set_in(&mut root, path, &value).map_err(|why| format!("{path}: {why}"));
    if let Value::Table(changed) = root {
        *table = changed;
    }
    done
}

fn set_in(place: &mut Value, path: &str, value: &Value) -> Result<(), String> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (place, rest) {
        (Value::Table(table), None) => {
            table.insert(first.to_owned(), value.clone());
            Ok(())
        }
        (Value::Table(table), Some(rest)) => {
            set_in(table.entry(first.to_owned()).or_insert_with(|| Value::Table(Table::new())), rest, value)
        }
        (Value::Array(list), rest) => {
            let named = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str) == Some(first);
            let mut found = false;
            for (number, entry) in list.iter_mut().enumerate() {
                if first == "*" || number.to_string() == first || named(entry, "name") || named(entry, "id") {
                    found = true;
                    match rest {
                        Some(rest) => set_in(entry, rest, value)?,
                        None => *entry = value.clone(),
                    }
                }
            }
            if found { Ok(()) } else { Err(format!("the list has no entry {first:?}")) }
        }
        (other, _) => Err(format!("{first:?} is below a {}, which has no keys", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        [[phases]]
        name = \"a\"
        s = 10
        [[traffic]]
        name = \"queries\"
        arrivals = { constant = 20 }
        [[traffic]]
        name = \"bulk\"
        arrivals = { poisson = 5 }
        [gateway.quota]
        interactive_reserve = 0.3
        [[gateway.upstreams]]
        id = \"eu\"
        tpm = 5
    ";

    fn with(set: &[&str], variant: &str) -> Result<Scenario, String> {
        let overrides = Overrides { set: set.iter().map(|text| (*text).to_owned()).collect(), ..Overrides::default() };
        apply(TEXT, &overrides, &toml::from_str(variant).expect("TOML"))
    }

    #[test]
    fn keys_are_set_by_path() {
        let set = ["gateway.quota.interactive_reserve=0", "gateway.upstreams.eu.tpm=9", "traffic.*.tenant=acme"];
        let scenario = with(&set, "").expect("a scenario");
        assert_eq!(scenario.gateway["quota"]["interactive_reserve"].as_integer(), Some(0));
        assert_eq!(scenario.gateway["upstreams"][0]["tpm"].as_integer(), Some(9));
        assert!(scenario.traffic.iter().all(|traffic| traffic.tenant == "acme"));
    }

    #[test]
    fn the_command_line_wins_over_a_variant() {
        let variant = "gateway.quota.interactive_reserve = 0.5\ngateway.cache.backend = \"off\"";
        let scenario = with(&["gateway.quota.interactive_reserve=0.1"], variant).expect("a scenario");
        assert_eq!(scenario.gateway["quota"]["interactive_reserve"].as_float(), Some(0.1));
        assert_eq!(scenario.gateway["cache"]["backend"].as_str(), Some("off"));
    }

    #[test]
    fn what_cannot_be_set_is_told() {
        assert!(with(&["seed"], "").expect_err("refused").contains("not key=value"));
        assert!(with(&["traffic.none.tenant=x"], "").expect_err("refused").contains("no entry"));
        assert!(with(&["seed.x=1"], "").is_err());
    }

    #[test]
    fn length_and_rates_change_in_proportion() {
        let overrides = Overrides { duration_s: Some(5.0), rate: Some(40.0), ..Overrides::default() };
        let scenario = apply(TEXT, &overrides, &Table::new()).expect("a scenario");
        assert_eq!(scenario.length().as_secs_f64(), 5.0);
        let rates: Vec<f64> = scenario.traffic.iter().map(super::super::Traffic::rate).collect();
        assert_eq!(rates, [40.0, 10.0]);
    }
}
