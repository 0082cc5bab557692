//! Peers that a comparison starts itself: the provider, the release gateway beside this program, and nginx as a plain
//! proxy where it is installed; or gateways that record more and less.

use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;

use super::Peer;
use crate::engine::Target;
use crate::provider::{Delay, Options, Provider, Script};
use crate::servers::collector;
use crate::servers::gateway::{self, Gateway};
use crate::servers::nginx;
use crate::servers::process::{Server, free_port};

/// The key of the only tenant of the temporary gateway.
pub const KEY: &str = "vg-compare-key-for-loopback-only";
/// SHA-256 of [`KEY`].
const KEY_SHA256: &str = "71e3140ce01c7b8118ab385ffdc3a1659e6c481b2b9af02447c06fd5d830d9a8";
/// The model that the temporary gateway serves.
pub const MODEL: &str = "text-embedding-3-small";

/// Servers of one comparison. Dropping ends them and removes their files.
pub struct OwnPeers {
    /// The peers, the direct one first.
    pub peers: Vec<Peer>,
    _nginx: Option<Server>,
    _gateways: Vec<Gateway>,
    _provider: Provider,
    _folder: TempDir,
}

impl OwnPeers {
    /// Starts them, the provider with this delay; where the load is for `caches`, nginx has one, too.
    ///
    /// # Errors
    /// Which of them did not start and why; those already started are ended.
    pub fn start(delay_ms: f64, caches: bool) -> Result<Self, String> {
        let (provider, folder) = ground(delay_ms)?;
        let upstream = provider.addr();
        let mut peers = vec![peer("direct", upstream, None)?];
        let nginx = match caches {
            true => nginx::start_caching("nginx", folder.path(), upstream)?,
            false => nginx::start("nginx", folder.path(), upstream)?,
        };
        if let Some(nginx) = &nginx {
            peers.push(peer("nginx", nginx.address, Some(nginx.pid()))?);
        }
        let gateway = own_gateway("gateway", folder.path(), upstream, &[])?;
        peers.push(peer("gateway", gateway.clients, Some(gateway.pid()))?);
        Ok(Self { peers, _nginx: nginx, _gateways: vec![gateway], _provider: provider, _folder: folder })
    }

    /// Starts gateways that record more and more: nothing beyond the metrics, which are always on; the log; traces as
    /// sampled unless told otherwise; a trace of every request.
    ///
    /// # Errors
    /// Which of them did not start and why; those already started are ended.
    pub fn start_recording(delay_ms: f64) -> Result<Self, String> {
        let (provider, folder) = ground(delay_ms)?;
        let collector = collector::start().map_err(|error| format!("a collector: {error}"))?;
        let traces = format!("http://{collector}/v1/traces");
        let log = ("VECTORGATE_LOG", "info");
        let to = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces.as_str());
        let recording: [(&str, &[(&str, &str)]); 4] = [
            ("silent", &[("VECTORGATE_LOG", "off")]),
            ("log", &[log]),
            ("traces", &[log, to]),
            ("all-traces", &[log, to, ("OTEL_TRACES_SAMPLER", "always_on")]),
        ];
        let mut peers = Vec::new();
        let mut gateways = Vec::new();
        for (name, environment) in recording {
            let gateway = own_gateway(name, folder.path(), provider.addr(), environment)?;
            peers.push(peer(name, gateway.clients, Some(gateway.pid()))?);
            gateways.push(gateway);
        }
        Ok(Self { peers, _nginx: None, _gateways: gateways, _provider: provider, _folder: folder })
    }
}

/// The provider with this delay, and a folder for what the others write.
fn ground(delay_ms: f64) -> Result<(Provider, TempDir), String> {
    let script = Script { width: 1536, delay: Delay::FixedMs(delay_ms), ..Script::new().canned() };
    let options = Options { threads: 2, ..Options::default() };
    let provider = Provider::start_with(script, &options).map_err(|error| format!("provider: {error}"))?;
    let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
    Ok((provider, folder))
}

fn own_gateway(
    name: &str,
    folder: &Path,
    upstream: SocketAddr,
    environment: &[(&str, &str)],
) -> Result<Gateway, String> {
    let port = || free_port().map_err(|error| format!("a port: {error}"));
    let addresses = (port()?, port()?);
    let config = gateway_config(addresses, upstream);
    Gateway::start_with(name, &gateway::program(None)?, folder, &config, addresses, environment)
}

fn peer(name: &str, address: SocketAddr, pid: Option<u32>) -> Result<Peer, String> {
    Ok(Peer { name: name.to_owned(), target: Target::parse(&format!("http://{address}/v1"))?, pid })
}

fn gateway_config((address, admin): (SocketAddr, SocketAddr), upstream: SocketAddr) -> String {
    format!(
        r#"[server]
listen = "{address}"
admin_listen = "{admin}"

[[models]]
name = "{MODEL}"
kind = "embedding"
dimensions = 1536
price_usd_per_million_tokens = "0.02"

[[upstreams]]
id = "provider"
provider = "openai"
base_url = "http://{upstream}/v1"
api_key = {{ value = "provider-key" }}
max_concurrency = 1024
serves = [ {{ model = "{MODEL}", as = "{MODEL}" }} ]

[[tenants]]
id = "compare"
key_sha256 = ["{KEY_SHA256}"]
budget = "1000000.00"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_configuration_is_toml_and_names_the_upstream() {
        let address: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let upstream: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let text = gateway_config((address, address), upstream);
        let value: toml::Table = toml::from_str(&text).expect("TOML");
        assert_eq!(value["upstreams"][0]["base_url"].as_str(), Some("http://127.0.0.1:9/v1"));
        assert_eq!(value["tenants"][0]["key_sha256"][0].as_str().map(str::len), Some(64));
    }
}
