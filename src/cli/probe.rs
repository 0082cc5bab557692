//! `vectorgate probe`: calls every upstream of every shared space once and compares their vectors.

use std::path::Path;
use std::process::ExitCode;

use crate::config::{self, Environment, Source};
use crate::sentinel::{self, SAME};

/// Prints a table; exit code 1 when an upstream differs or does not answer.
pub fn run(config: Option<&Path>) -> ExitCode {
    let plan = match config::load(&Source::of(config), &Environment::of_process()) {
        Ok(plan) => plan,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    let spaces = sentinel::shared_spaces(&plan);
    if spaces.is_empty() {
        println!("every vector space has one upstream: there is nothing to compare");
        return ExitCode::SUCCESS;
    }
    let sound = actix_web::rt::System::new().block_on(async {
        let mut sound = true;
        println!("{:<36} {:<24} {:>6} {:>9}  verdict", "space", "upstream", "width", "cosine");
        for (space, members) in &spaces {
            let mut reference: Option<Vec<Vec<f32>>> = None;
            for member in members {
                let id = &member.upstream.id;
                match sentinel::fingerprint(member).await {
                    Err(reason) => {
                        sound = false;
                        println!("{space:<36} {id:<24} {:>6} {:>9}  no answer: {reason}", "-", "-");
                    }
                    Ok(vectors) => {
                        let width = vectors.first().map_or(0, Vec::len);
                        let cosine = reference.as_ref().map(|reference| sentinel::lowest_cosine(reference, &vectors));
                        let verdict = match cosine {
                            None => "reference",
                            Some(cosine) if cosine >= SAME => "same vectors",
                            Some(_) => {
                                sound = false;
                                "DIFFERENT VECTORS"
                            }
                        };
                        println!("{space:<36} {id:<24} {width:>6} {:>9.6}  {verdict}", cosine.unwrap_or(1.0));
                        reference.get_or_insert(vectors);
                    }
                }
            }
        }
        sound
    });
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
