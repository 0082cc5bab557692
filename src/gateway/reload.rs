//! Another configuration for a gateway that runs. It is checked and built completely before anything changes; then one
//! pointer is exchanged. Requests that began before keep the configuration they began with.

use std::sync::Arc;

use serde::Serialize;
use tokio::task::spawn_blocking;

use super::{By, Deed, Gateway, given_tenants};
use crate::actors::router::RulesChanged;
use crate::actors::upstream::Retired;
use crate::clock;
use crate::config::plan::Plan;
use crate::config::{self, Environment, GivenTenant, Joined, Problem, Problems, Source};
use crate::manager;
use crate::pure::time::Wall;
use crate::pure::utc;
use crate::runtime::Running;
use crate::sentinel::Watched;
use crate::telemetry::labels::{LabelPlan, Objective};

/// What reloads came to, for the status page.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// Reloads that took effect.
    pub applied: u64,
    /// Reloads that changed nothing because the configuration was not valid.
    pub refused: u64,
    /// The last one.
    pub last: Option<LastReload>,
    /// Why tenants that were made on the admin side are left out.
    pub left_out: Vec<Problem>,
}

/// One reload.
#[derive(Debug, Clone, Serialize)]
pub struct LastReload {
    /// When.
    #[serde(with = "utc::stamp")]
    pub at: Wall,
    /// By which right.
    pub by: String,
    /// `applied` or `refused`.
    pub result: &'static str,
    /// The version that runs since.
    pub version: String,
    /// What was wrong.
    pub problems: Vec<Problem>,
    /// What deserves a look.
    pub warnings: Vec<String>,
}

impl Status {
    pub(super) fn new(left_out: Vec<Problem>) -> Status {
        Status { left_out, ..Status::default() }
    }
}

impl Gateway {
    /// What reloads came to.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Where the configuration comes from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// When the process began to serve.
    pub fn started(&self) -> Wall {
        self.started
    }

    /// Reads the configuration again and puts it in force; returns its version.
    ///
    /// # Errors
    /// Everything that is wrong with it; nothing changed then.
    ///
    /// # Cancel safety
    /// Dropping the future either leaves everything as it was or the new configuration in force.
    pub async fn reload(&self, by: &By) -> Result<String, Problems> {
        let mut text = self.changing.lock().await;
        let _told = manager::reloading(&self.lifecycle);
        let before = self.running.load_full();
        let loaded = self.load(&before).await;
        match loaded {
            Ok((read, plan)) => {
                *text = read;
                Ok(self.apply(by, plan, &before))
            }
            Err(problems) => {
                self.refuse(by, &before, &problems);
                Err(problems)
            }
        }
    }

    async fn load(&self, before: &Arc<Running>) -> Result<(Source, Plan), Problems> {
        let (source, before) = (self.source.clone(), Arc::clone(before));
        let given = given_tenants(&self.journal);
        let loading = spawn_blocking(move || {
            let text = source.read()?;
            let environment = Environment::of_process();
            // Those that run must fit; those that were left out are welcome once they do.
            let fits = |tenant: &GivenTenant| {
                before.tenants.contains_key(&tenant.id) || config::check_tenant(&text, &environment, tenant).is_ok()
            };
            let given: Vec<GivenTenant> = given.into_iter().filter(fits).collect();
            let joined = Joined { tenants: &given, running: Some(&before.plan) };
            let plan = config::load_with(&text, &environment, &joined)?;
            Ok((text, plan))
        });
        loading.await.unwrap_or_else(|panic| Err(Problems(vec![fault(&self.source, &panic.to_string())])))
    }

    /// Exchanges the configuration; nothing here can fail.
    fn apply(&self, by: &By, plan: Plan, before: &Running) -> String {
        let version = plan.version.clone();
        let mut warnings = plan.warnings.clone();
        self.telemetry.metrics.relabel(&LabelPlan::from_plan(&plan));
        self.parts.register(&plan);
        let (running, news) = self.parts.build(plan, Some(before));
        let running = Arc::new(running);
        warnings.extend(overruled(&running));
        if let (Some(shown), Some(certificate)) = (&self.certificate, &running.plan.server.tls) {
            shown.exchange(certificate);
        }
        self.cache.reconfigure(&running.plan.cache);
        self.bodies.resize(running.plan.server.max_buffered_bytes);
        let watched_before = Watched::of(&before.plan, &before.upstreams, &Watched::default());
        let watched = Watched::of(&running.plan, &running.upstreams, &watched_before);
        self.parts.watch().watch(&watched_before, watched);
        self.running.store(Arc::clone(&running));
        self.tell_stages(before, &running);
        self.warn_of_retirements(&running.plan);
        news.tell();
        let promises = Objective::promises(&running.plan);
        if before.plan.retry != running.plan.retry || Objective::promises(&before.plan) != promises {
            self.router.do_send(RulesChanged { retry: running.plan.retry.clone(), promises });
        }
        for gone in before.upstreams.iter() {
            if running.upstreams.iter().all(|stays| stays.plan.id != gone.plan.id) {
                gone.actor.do_send(Retired);
            }
        }
        self.telemetry.events.reload_applied(&version);
        {
            let mut status = self.status.lock();
            status.applied += 1;
            // Whoever is still left out does not fit this configuration either, but only a start judges anew.
            status.left_out.retain(|problem| running.tenants.keys().all(|id| problem.entry != id.as_str()));
            status.last = Some(LastReload {
                at: clock::wall(),
                by: by.0.to_string(),
                result: "applied",
                version: version.clone(),
                problems: Vec::new(),
                warnings,
            });
        }
        self.note(
            by,
            Deed {
                action: "reload",
                subject: self.source.name(),
                before: before.plan.version.clone().into(),
                after: version.clone().into(),
            },
        );
        version
    }

    fn refuse(&self, by: &By, running: &Running, problems: &Problems) {
        for problem in &problems.0 {
            tracing::error!(%problem, "the configuration is refused and changes nothing");
        }
        self.telemetry.events.reload_refused(problems.0.len());
        let version = running.plan.version.clone();
        {
            let mut status = self.status.lock();
            status.refused += 1;
            status.last = Some(LastReload {
                at: clock::wall(),
                by: by.0.to_string(),
                result: "refused",
                version: version.clone(),
                problems: problems.0.clone(),
                warnings: Vec::new(),
            });
        }
        self.note(
            by,
            Deed {
                action: "reload_refused",
                subject: self.source.name(),
                before: version.clone().into(),
                after: version.into(),
            },
        );
    }
}

/// Where a stage that was set at run time holds over what the file says.
fn overruled(running: &Running) -> Vec<String> {
    let collections = running.plan.collections.iter().filter_map(|plan| running.collections.get(&plan.name));
    let held = collections.filter(|one| one.by.is_some() && one.position != one.plan.position);
    held.map(|one| {
        let (name, file, set) = (&one.plan.name, one.plan.position, one.position);
        format!(
            "collections ({name}): the file says \"{file}\", but the stage \"{set}\" was set on the admin side on {} and \
             holds; change it there",
            utc::Stamp(one.since)
        )
    })
    .collect()
}

/// A fault of the program itself while it loaded.
fn fault(source: &Source, what: &str) -> Problem {
    Problem {
        file: source.name(),
        line: None,
        variable: None,
        key: String::new(),
        entry: String::new(),
        what: format!("the gateway failed to read it: {what}"),
        right: String::new(),
        given: false,
    }
}
