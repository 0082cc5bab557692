//! `loadtest list`, `run` and `report`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use loadtest::report::{self, RunResult};
use loadtest::run;
use loadtest::scenario::{self, Overrides, find};

/// Arguments of `loadtest list`.
#[derive(Args)]
pub struct ListArguments {
    /// Folder of the scenarios [default: the bundled ones]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
}

/// Arguments of `loadtest run`.
#[derive(Args)]
pub struct RunArguments {
    /// Name of a scenario (see `loadtest list`), or a path to a .toml file
    name: String,
    /// Send everything to this OpenAI-compatible server instead of starting any
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// Key sent to the target
    #[arg(long, value_name = "SECRET", env = "LOADTEST_KEY", hide_env_values = true, requires = "target")]
    key: Option<String>,
    /// Model asked of the target
    #[arg(long, value_name = "NAME", requires = "target")]
    model: Option<String>,
    /// Length of the whole run in seconds; phases keep their proportions
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    /// Requests per second of the first traffic; the others keep their proportion to it
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Change a key of the scenario, such as gateway.quota.interactive_reserve=0 or traffic.queries.timeout_s=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Folder of the results [default: loadtest-out/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The gateway's program [default: the one beside this program, built first under `cargo run`]
    #[arg(long, value_name = "FILE")]
    gateway: Option<PathBuf>,
    /// Folder of the scenarios [default: the bundled ones]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
    /// Nothing is shown while it runs
    #[arg(long)]
    quiet: bool,
}

/// Arguments of `loadtest sabotage`.
#[derive(Args)]
pub struct SabotageArguments {
    /// Length of each run in seconds [default: the scenario's own]
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    /// The gateway's program [default: the one beside this program, built first under `cargo run`]
    #[arg(long, value_name = "FILE")]
    gateway: Option<PathBuf>,
}

/// Arguments of `loadtest report`.
#[derive(Args)]
pub struct ReportArguments {
    /// Folders of finished runs; two or more are compared
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,
    /// Write the page to this file [default: report.html in the one folder, comparison.html beside several]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Prints every scenario with what it proves.
pub fn list(arguments: &ListArguments) -> Result<(), Box<dyn Error>> {
    let folder = arguments.scenarios.clone().unwrap_or_else(find::bundled);
    let all = scenario::list(&folder)?;
    let width = all.iter().map(|listed| listed.name.len()).max().unwrap_or(0);
    for listed in &all {
        println!("{:<width$}  {}", listed.name, listed.proves);
    }
    Ok(())
}

/// Runs a scenario. An error if an expectation fails.
pub fn run(arguments: RunArguments) -> Result<(), Box<dyn Error>> {
    let folder = arguments.scenarios.clone().unwrap_or_else(find::bundled);
    let listed = find::find(&folder, &arguments.name)?;
    let out = arguments.out.unwrap_or_else(|| Path::new("loadtest-out").join(&listed.name));
    let options = run::Options {
        overrides: Overrides { set: arguments.set, duration_s: arguments.duration, rate: arguments.rate },
        target: arguments.target,
        key: arguments.key,
        model: arguments.model,
        gateway: arguments.gateway,
        quiet: arguments.quiet,
    };
    let finished = run::run(&listed, &options)?;
    let page = report::write(&out, &finished.result, &finished.histograms)?;
    print!("{}", report::table(&finished.result));
    println!("\n  report: {}", page.display());
    conclusion(&finished.result)
}

/// Runs every scenario that guards something against every sabotage. An error unless each sabotage is noticed by its own
/// scenario and by no other.
pub fn sabotage(arguments: &SabotageArguments) -> Result<(), Box<dyn Error>> {
    let mut guards = Vec::new();
    for listed in scenario::list(&find::bundled())? {
        let read = scenario::apply(&listed.text, &Overrides::default(), &toml::Table::new())?;
        guards.extend(read.sabotage.map(|sabotage| (listed, sabotage)));
    }
    let mut wrong = 0;
    for (_, sabotage) in &guards {
        println!("{}", sabotage.what);
        for (listed, own) in &guards {
            let overrides =
                Overrides { set: sabotage.set.clone(), duration_s: arguments.duration, ..Overrides::default() };
            let gateway = arguments.gateway.clone();
            let options = run::Options { overrides, gateway, quiet: true, ..run::Options::default() };
            let result = run::run(listed, &options)?.result;
            let must_fail = own.what == sabotage.what;
            let as_promised = result.passed() != must_fail;
            wrong += u32::from(!as_promised);
            let word = if result.passed() { "passes" } else { "fails" };
            let note = if as_promised { "" } else { "  <- it should not" };
            println!("  {:<20} {word}{note}", listed.name);
            for verdict in result.verdicts.iter().filter(|verdict| verdict.holds == Some(false)) {
                println!("      {}  ({})", verdict.that, verdict.seen);
            }
        }
    }
    match wrong {
        0 => Ok(()),
        many => Err(format!("{many} runs did not end as they should").into()),
    }
}

fn conclusion(result: &RunResult) -> Result<(), Box<dyn Error>> {
    let failed = result.verdicts.iter().filter(|verdict| verdict.holds == Some(false)).count();
    match failed {
        0 => Ok(()),
        1 => Err("an expectation does not hold".into()),
        many => Err(format!("{many} expectations do not hold").into()),
    }
}

/// Shows a finished run again, or compares several.
pub fn report(arguments: &ReportArguments) -> Result<(), Box<dyn Error>> {
    let results: Vec<RunResult> = arguments.runs.iter().map(|run| report::read(run)).collect::<Result<_, _>>()?;
    let text = match results.as_slice() {
        [one] => report::table(one),
        many => report::compared(many),
    };
    print!("{text}");
    let beside =
        |run: &PathBuf| if run.is_dir() { run.clone() } else { run.parent().unwrap_or(Path::new(".")).to_owned() };
    let page = match (&arguments.out, arguments.runs.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [one]) => beside(one).join("report.html"),
        (None, many) => many.first().map(beside).unwrap_or_default().with_file_name("comparison.html"),
    };
    fs::write(&page, report::html(&results.iter().collect::<Vec<_>>()))
        .map_err(|error| format!("{}: {error}", page.display()))?;
    println!("\n  report: {}", page.display());
    Ok(())
}
