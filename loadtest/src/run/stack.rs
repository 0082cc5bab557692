//! The servers of one variant: providers in this process; gateways, nginx and Redis as children.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use toml::{Table, Value};

use crate::provider::{Options, Provider, Script, Stats};
use crate::scenario::Scenario;
use crate::servers::gateway::Gateway;
use crate::servers::process::{Server, free_port};
use crate::servers::{nginx, redis};

/// A text in every request with which a gateway compares its upstreams: those are no client's calls.
const OWN_CHECK: &str = "How do I configure mutual TLS on an internal proxy?";

/// The key of a tenant in every run.
pub fn key_of(tenant: &str) -> String {
    format!("vg-load-{tenant}")
}

/// The servers. Dropping ends them, gateways first.
pub struct Stack {
    /// The gateways.
    pub gateways: Vec<Mutex<Gateway>>,
    /// nginx, where the scenario wants it and it is installed.
    pub nginx: Option<Server>,
    /// The providers by name.
    pub providers: BTreeMap<String, Provider>,
    /// The gateways' configuration in force.
    pub config: Table,
    _redis: Option<Server>,
    _folder: TempDir,
}

impl Stack {
    /// Starts everything. The providers' faults begin with [`Stack::begin`].
    ///
    /// # Errors
    /// What did not start and why; what had started is ended.
    pub fn start(scenario: &Scenario, program: Option<&Path>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("vectorgate-load-").tempdir();
        let folder = folder.map_err(|error| format!("a temporary folder: {error}"))?;
        let mut providers = BTreeMap::new();
        for (name, spec) in &scenario.providers {
            let options = Options { threads: 2, ..Options::default() };
            let provider = Provider::start_with(apart(spec.script.clone()), &options);
            providers.insert(name.clone(), provider.map_err(|error| format!("provider {name}: {error}"))?);
        }
        let redis = if scenario.redis { Some(redis::start(folder.path())?) } else { None };
        let redis = match redis {
            Some(None) => {
                return Err("this scenario needs redis-server, which is not installed \
                            (Debian: apt-get install redis-server)"
                    .to_owned());
            }
            other => other.flatten(),
        };
        let nginx = match scenario.nginx.as_ref().and_then(|name| providers.get(name)) {
            Some(provider) => nginx::start("nginx", folder.path(), provider.addr())?,
            None => None,
        };
        let places: BTreeMap<String, SocketAddr> = providers
            .iter()
            .map(|(name, provider)| (name.clone(), provider.addr()))
            .chain(redis.as_ref().map(|redis| ("redis".to_owned(), redis.address)))
            .collect();
        let config = complete(&scenario.gateway, &places);
        let mut gateways = Vec::new();
        if let Some(program) = program {
            for number in 0..scenario.gateways {
                let port = || free_port().map_err(|error| format!("a port: {error}"));
                let addresses = (port()?, port()?);
                let name = if scenario.gateways == 1 { "gateway".to_owned() } else { format!("gateway-{number}") };
                let text = toml::to_string(&at(&config, addresses)).map_err(|error| error.to_string())?;
                gateways.push(Mutex::new(Gateway::start(&name, program, folder.path(), &text, addresses)?));
            }
        }
        Ok(Self { gateways, nginx, providers, config, _redis: redis, _folder: folder })
    }

    /// Puts the scripts with their faults in force: their times count from now, and nothing has been seen yet.
    pub fn begin(&self, scenario: &Scenario) {
        for (name, provider) in &self.providers {
            if let Some(spec) = scenario.providers.get(name) {
                provider.set_script(apart(scenario.script(spec)));
            }
        }
    }

    /// What every provider has seen so far.
    pub fn stats(&self) -> BTreeMap<String, Stats> {
        self.providers.iter().map(|(name, provider)| (name.clone(), provider.stats())).collect()
    }

    /// Where the gateways' clients and administrators connect.
    pub fn addresses(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let both = |gateway: &Mutex<Gateway>| {
            let gateway = gateway.lock();
            (gateway.clients, gateway.admin)
        };
        self.gateways.iter().map(both).collect()
    }
}

/// The script, with the gateway's own checks kept out of the log: they begin as soon as it listens.
fn apart(mut script: Script) -> Script {
    script.apart.push(OWN_CHECK.to_owned());
    script
}

/// The configuration with everything that a scenario need not say.
fn complete(given: &Table, places: &BTreeMap<String, SocketAddr>) -> Table {
    let mut config = given.clone();
    for value in config.iter_mut().map(|(_, value)| value) {
        fill(value, places);
    }
    for tenant in list(&mut config, "tenants", || "id = \"demo\"".to_owned()) {
        let id = tenant.get("id").and_then(Value::as_str).unwrap_or_default();
        let hash = hex::encode(Sha256::digest(key_of(id).as_bytes()));
        tenant.entry("key_sha256").or_insert_with(|| Value::Array(vec![Value::String(hash)]));
    }
    for upstream in list(&mut config, "upstreams", String::new) {
        let secret = Table::from_iter([("value".to_owned(), Value::String("provider-key".to_owned()))]);
        upstream.entry("api_key").or_insert(Value::Table(secret));
    }
    config
}

/// The tables of a list, which gets one entry where it is missing and `default` is not empty.
fn list<'a>(config: &'a mut Table, name: &str, default: fn() -> String) -> Vec<&'a mut Table> {
    let first = toml::from_str::<Table>(&default()).unwrap_or_default();
    let empty = if first.is_empty() { Vec::new() } else { vec![Value::Table(first)] };
    let entries = config.entry(name).or_insert(Value::Array(empty));
    entries.as_array_mut().into_iter().flatten().filter_map(Value::as_table_mut).collect()
}

/// Puts addresses in the place of `{NAME}`.
fn fill(value: &mut Value, places: &BTreeMap<String, SocketAddr>) {
    match value {
        Value::String(text) => {
            for (name, address) in places {
                *text = text.replace(&format!("{{{name}}}"), &address.to_string());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| fill(value, places)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| fill(value, places)),
        _ => {}
    }
}

/// The configuration of one gateway at its own addresses.
fn at(config: &Table, (clients, admin): (SocketAddr, SocketAddr)) -> Table {
    let mut config = config.clone();
    let server = config.entry("server").or_insert_with(|| Value::Table(Table::new()));
    if let Some(server) = server.as_table_mut() {
        server.insert("listen".to_owned(), Value::String(clients.to_string()));
        server.insert("admin_listen".to_owned(), Value::String(admin.to_string()));
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_completed() {
        let given: Table = toml::from_str(
            "[[upstreams]]\nid = \"eu\"\nbase_url = \"http://{eu}/v1\"\n[[tenants]]\nid = \"acme\"\nbudget = \"1\"",
        )
        .expect("TOML");
        let address: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let config = complete(&given, &BTreeMap::from([("eu".to_owned(), address)]));
        assert_eq!(config["upstreams"][0]["base_url"].as_str(), Some("http://127.0.0.1:9/v1"));
        assert_eq!(config["upstreams"][0]["api_key"]["value"].as_str(), Some("provider-key"));
        assert_eq!(config["tenants"][0]["key_sha256"][0].as_str().map(str::len), Some(64));
        let own = at(&config, (address, address));
        assert_eq!(own["server"]["listen"].as_str(), Some("127.0.0.1:9"));
        assert_eq!(complete(&Table::new(), &BTreeMap::new())["tenants"][0]["id"].as_str(), Some("demo"));
    }
}
