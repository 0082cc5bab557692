//! The command line of the load tools. Owns arguments and exit codes; the work is done in the library.

mod compare_command;
mod provider_command;
mod run_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Load tools for Vectorgate.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the scenarios with what each proves.
    List(run_command::ListArguments),
    /// Run a scenario: starts providers and a gateway, sends the load, checks what must hold, writes a report.
    ///
    /// Everything runs on loopback, at free ports, with files in a temporary folder, and ends with the run. Exit code 1 if
    /// an expectation of the scenario does not hold.
    Run(run_command::RunArguments),
    /// Check the checker: take the gateway's guards away one by one; exactly the scenario that watches each must fail.
    ///
    /// Takes about a quarter of an hour.
    Sabotage(run_command::SabotageArguments),
    /// Show a finished run again, or compare several.
    Report(run_command::ReportArguments),
    /// Run the scripted provider alone: every dialect, delays, faults, quota, and a log of what it saw.
    ///
    /// Answers at once, on one server, as OpenAI (/v1/embeddings, /v1/chat/completions), Azure (/openai/…), Cohere
    /// (/v1/embed, /v2/embed, /v1/rerank, /v2/rerank), Voyage (/voyage/v1/…), Jina (/jina/v1/…), TEI (/embed, /rerank,
    /// /info, also under /tei), Ollama (/api/embed), vLLM (/vllm/…), Mistral (/mistral/…) and Anthropic (/v1/messages).
    ///
    /// While it runs: GET /__control/calls, GET /__control/stats, GET or POST /__control/script (JSON),
    /// POST /__control/reset. GET /__control/script prints every key a script may have.
    Provider(provider_command::Arguments),
    /// Measure what the hop through a gateway costs: servers side by side under the same load.
    ///
    /// Without URLs it starts all of them: a provider, the release gateway found beside this program, and nginx as a
    /// plain proxy if it is installed. Rounds are interleaved; the table holds their medians. Exit code 1 if a request
    /// had no good answer.
    Compare(compare_command::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::List(arguments) => run_command::list(&arguments),
        Command::Run(arguments) => run_command::run(arguments),
        Command::Sabotage(arguments) => run_command::sabotage(&arguments),
        Command::Report(arguments) => run_command::report(&arguments),
        Command::Provider(arguments) => provider_command::run(arguments),
        Command::Compare(arguments) => compare_command::run(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadtest: {error}");
            ExitCode::FAILURE
        }
    }
}
