//! `loadtest compare`: servers side by side under the same load.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use loadtest::compare::own_peers::{KEY, MODEL, OwnPeers};
use loadtest::compare::{Peer, Workload, added, compare, table};
use loadtest::engine::Target;
use tokio::signal::unix::{SignalKind, signal};

/// Arguments of `loadtest compare`.
#[derive(Args)]
pub struct Arguments {
    /// Base URL of the upstream itself, as an OpenAI client is given it (ends in /v1)
    #[arg(long, value_name = "URL", requires = "gateway")]
    direct: Option<String>,
    /// Base URL of the gateway
    #[arg(long, value_name = "URL", requires = "direct")]
    gateway: Option<String>,
    /// Process of the gateway, to measure its CPU time and memory
    #[arg(long, value_name = "PID", requires = "gateway")]
    gateway_pid: Option<u32>,
    /// Base URL of nginx or another plain proxy
    #[arg(long, value_name = "URL", requires = "direct")]
    nginx: Option<String>,
    /// Its process; children count too
    #[arg(long, value_name = "PID", requires = "nginx")]
    nginx_pid: Option<u32>,
    /// Delay of the provider that is started where no URLs are given [default: 20, with --saturate 0]
    #[arg(long, value_name = "MS", conflicts_with = "direct")]
    delay_ms: Option<f64>,
    /// Compare gateways that record more and more: only metrics, the log, some traces, all traces
    #[arg(long, conflicts_with = "direct")]
    recording: bool,
    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 200.0)]
    rate: f64,
    /// As many requests as --connections clients get answered, instead of a rate
    #[arg(long)]
    saturate: bool,
    /// Length of each measurement
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Measurements of each server, in turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Connections at most; with --saturate exactly
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: usize,
    /// Key sent to every server
    #[arg(long, value_name = "SECRET", env = "LOADTEST_KEY", hide_env_values = true, default_value = KEY, hide_default_value = true)]
    key: String,
    /// Model asked for
    #[arg(long, value_name = "NAME", default_value = MODEL)]
    model: String,
    /// Texts in a request
    #[arg(long, value_name = "N", default_value_t = 1)]
    inputs: usize,
    /// Characters in a text
    #[arg(long, value_name = "N", default_value_t = 60)]
    characters: usize,
    /// Encoding asked for; none: the member is not sent
    #[arg(long, value_enum)]
    encoding: Option<Encoding>,
    /// Different requests; 0: no two are the same; a small number measures caches, nginx's own too
    #[arg(long, value_name = "N", default_value_t = 0)]
    different: u64,
    /// Requests of 24 MB (2,048 texts) sent beside the others, per second; not measured, but they must be answered. Those of one
    /// measurement are written before it and lie in memory
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    monsters: f64,
    /// Traffic class sent as X-Traffic-Class
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Write everything measured to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Encoding {
    Float,
    Base64,
}

impl Arguments {
    fn workload(&self) -> Result<Workload, Box<dyn Error>> {
        if !(self.rate > 0.0 && self.rate < 1e6) {
            return Err("--rate must lie between 0 and 1000000".into());
        }
        if !(0.0..=1e3).contains(&self.monsters) {
            return Err("--monsters must lie between 0 and 1000".into());
        }
        let mut headers = HeaderMap::new();
        if let Some(class) = &self.class {
            headers.insert("x-traffic-class", HeaderValue::from_str(class)?);
        }
        Ok(Workload {
            rate_per_s: (!self.saturate).then_some(self.rate),
            duration: Duration::try_from_secs_f64(self.seconds)?,
            rounds: self.rounds.max(1),
            connections: self.connections.max(1),
            key: self.key.clone(),
            model: self.model.clone(),
            inputs: self.inputs.max(1),
            characters: self.characters,
            encoding: self.encoding.map(|encoding| match encoding {
                Encoding::Float => "float".to_owned(),
                Encoding::Base64 => "base64".to_owned(),
            }),
            different: self.different,
            monsters_per_s: self.monsters,
            headers,
        })
    }

    fn given_peers(&self) -> Result<Vec<Peer>, String> {
        let named = [
            ("direct", &self.direct, None),
            ("nginx", &self.nginx, self.nginx_pid),
            ("gateway", &self.gateway, self.gateway_pid),
        ];
        let given = named.into_iter().filter_map(|(name, url, pid)| url.as_ref().map(|url| (name, url, pid)));
        given.map(|(name, url, pid)| Ok(Peer { name: name.to_owned(), target: Target::parse(url)?, pid })).collect()
    }
}

/// Measures and prints the table.
pub fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let workload = arguments.workload()?;
    let given = arguments.given_peers()?;
    let delay_ms = arguments.delay_ms.unwrap_or(if arguments.saturate { 0.0 } else { 20.0 });
    let own = match (given.is_empty(), arguments.recording) {
        (false, _) => None,
        (true, true) => Some(OwnPeers::start_recording(delay_ms)?),
        (true, false) => Some(OwnPeers::start(delay_ms, arguments.different > 0)?),
    };
    let peers = own.as_ref().map_or(given, |own| own.peers.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measuring = compare(&peers, &workload, |name, round, sample| {
        eprintln!(
            "round {}/{} {name}: {:.1} req/s, p50 {:.2} ms, p99 {:.2} ms, {} not ok",
            round + 1,
            workload.rounds,
            sample.per_s,
            sample.p50_ms,
            sample.p99_ms,
            sample.not_ok
        );
    });
    let measured = runtime.block_on(async {
        // Peers of our own are ended on the way out, so being told to end must not end the process at once.
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        tokio::select! {
            measured = measuring => measured,
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
            _ = terminate.recv() => Err("terminated".to_owned()),
        }
    })?;
    print!("{}", table(&measured));
    if arguments.recording {
        print!("{}", added(&measured));
    }
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_vec_pretty(&measured)?)?;
    }
    let not_ok: u64 = measured.iter().map(|peer| peer.median.not_ok).sum();
    if not_ok > 0 { Err(format!("{not_ok} requests had no good answer").into()) } else { Ok(()) }
}
