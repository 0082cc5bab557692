//! `vectorgate serve`: from a file to a running gateway, with a first request to try.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::clock;
use crate::config::plan::{ModelKind, Plan, Provider};
use crate::config::{self, Environment, Joined, Source};
use crate::gateway::Gateway;
use crate::server::{self, Listeners};
use crate::telemetry::{Telemetry, panics};

/// Runs the gateway until it is told to stop. Exit code 1 when it cannot start.
pub fn run(path: Option<&Path>) -> ExitCode {
    let source = Source::of(path);
    let loaded = source.read().and_then(|text| {
        let plan = config::load_with(&text, &Environment::of_process(), &Joined::default())?;
        Ok((text, plan))
    });
    let (text, plan) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    let telemetry = Telemetry::start(&plan);
    panics::install();
    // Two TLS providers in one process make rustls panic at first use, so the one we build with is named.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    let outcome = actix_web::rt::System::new().block_on(gateway(source, text, plan, Arc::clone(&telemetry)));
    telemetry.stop();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn gateway(source: Source, text: Source, plan: Plan, telemetry: Arc<Telemetry>) -> io::Result<()> {
    let gateway = Gateway::start(source, text, plan, telemetry).map_err(io::Error::other)?;
    gateway.catch_up_at_start().await;
    let listeners = server::bind(&gateway)?;
    announce(&gateway.running.load().plan, &listeners)?;
    server::serve(gateway, listeners).await
}

/// Says where the gateway listens, what it serves, and how to try it.
fn announce(plan: &Plan, listeners: &Listeners) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", plan.describe(clock::wall()))?;
    let scheme = if plan.server.tls.is_some() { "https" } else { "http" };
    writeln!(out, "clients: {scheme}://{}", listeners.client_addr)?;
    writeln!(out, "admin:   http://{}", listeners.admin_addr)?;
    if plan.upstreams.iter().any(|upstream| upstream.provider == Provider::Simulated) {
        writeln!(
            out,
            "\nThe vectors of the simulated provider are hashed character n-grams, made in this process.\n\
             They are not a model's vectors: good for a first look, useless for a real search."
        )?;
    }
    let model = plan.models.iter().find(|model| model.kind == ModelKind::Embedding);
    if let Some(model) = model {
        let key = plan.demo_key.as_ref().map_or("$VECTORGATE_KEY", |key| key.expose());
        writeln!(
            out,
            "\ntry it:\n  curl -i {scheme}://{}/v1/embeddings -H 'Authorization: Bearer {key}' \
             -H 'Content-Type: application/json' \\\n       -d '{{\"model\":\"{}\",\"input\":\"How do I configure \
             mutual TLS?\"}}'",
            listeners.client_addr, model.name
        )?;
    }
    out.flush()
}
