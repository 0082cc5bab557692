//! `loadtest provider`: a scripted provider until interrupted.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use loadtest::provider::{Delay, Options, Provider, Quota, Record, Script};
use tokio::signal::unix::{SignalKind, signal};

/// Arguments of `loadtest provider`.
#[derive(Args)]
pub struct Arguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    /// Script to start with, .json or .toml; the options below override it
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Wait before every good answer, in milliseconds
    #[arg(long, value_name = "MS")]
    delay_ms: Option<f64>,
    /// Numbers in a vector (8 unless the script says otherwise; 1536 with --canned)
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Vector space: providers with one space give equal vectors
    #[arg(long, value_name = "NAME")]
    space: Option<String>,
    /// Tokens per minute, then 429 with OpenAI's headers
    #[arg(long, value_name = "N")]
    tpm: Option<u64>,
    /// Requests per minute, then 429 with OpenAI's headers
    #[arg(long, value_name = "N")]
    rpm: Option<u64>,
    /// Prepared answers on /v1/embeddings, for benchmarks: texts are counted, not read
    #[arg(long)]
    canned: bool,
    /// Threads that serve
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Write every finished call to this file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl Arguments {
    fn script(&self) -> Result<Script, Box<dyn Error>> {
        let mut script = match &self.script {
            None => Script::new(),
            Some(path) => {
                let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
                let json = path.extension().is_some_and(|extension| extension == "json");
                let read = if json { Script::from_json(text.as_bytes()) } else { Script::from_toml(&text) };
                read.map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        if self.canned {
            script.canned = true;
            script.record = if self.log.is_some() { Record::Heads } else { Record::Counts };
            script.width = if self.script.is_some() { script.width } else { 1536 };
        }
        if let Some(ms) = self.delay_ms {
            script.delay = Delay::FixedMs(ms);
        }
        if let Some(width) = self.width {
            script.width = width;
        }
        if let Some(space) = &self.space {
            script.space.clone_from(space);
        }
        if self.tpm.is_some() || self.rpm.is_some() {
            let quota = script.quota.get_or_insert_with(Quota::default);
            quota.tpm = self.tpm.unwrap_or(quota.tpm);
            quota.rpm = self.rpm.unwrap_or(quota.rpm);
        }
        Ok(script)
    }
}

/// Runs the provider until the process is told to end.
pub fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let script = arguments.script()?;
    let options =
        Options { listen: arguments.listen, threads: arguments.threads.max(1), log_file: arguments.log.clone() };
    let provider = Provider::start_with(script, &options).map_err(|error| format!("{}: {error}", arguments.listen))?;
    println!("provider listening on {} (control: {}/__control/stats)", provider.base_url(), provider.base_url());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted?,
            _ = terminate.recv() => {}
        }
        provider.stop().await;
        Ok(())
    })
}
