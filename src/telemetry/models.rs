//! The gauges of models: percentiles, error budgets, burn rates, and when a provider retires them. Knows only models that
//! the configuration names, so that no client can grow the page; a model appears with its first request.

use std::collections::HashSet;

use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::config::plan::Retirement;
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::service_levels::ModelLevel;

use super::labels::{
    BurnWindow, ByModelBurn, ByModelObjective, ByModelPercentile, ByRetirement, LabelPlan, Objective, Quantile,
};
use super::names;
use super::tenants::FloatGauge;

/// Names whose series may be there.
#[derive(Debug, Default)]
struct Listed {
    models: HashSet<ModelName>,
    retirements: Vec<Retirement>,
}

/// The families that tell of one model each.
#[derive(Debug, Default)]
pub(super) struct ModelFamilies {
    latency: Family<ByModelPercentile, FloatGauge>,
    budget: Family<ByModelObjective, FloatGauge>,
    burn: Family<ByModelBurn, FloatGauge>,
    retirement: Family<ByRetirement, FloatGauge>,
    /// Held while series are written or taken away: levels that were taken before a reload cannot bring back a model
    /// that left with it.
    listed: Mutex<Listed>,
}

impl ModelFamilies {
    pub(super) fn new(plan: &LabelPlan) -> ModelFamilies {
        let families = ModelFamilies::default();
        families.relabel(plan);
        families
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        names::MODEL_LATENCY.register(registry, self.latency.clone());
        names::MODEL_SLO_BUDGET.register(registry, self.budget.clone());
        names::MODEL_SLO_BURN_RATE.register(registry, self.burn.clone());
        names::MODEL_RETIREMENT.register(registry, self.retirement.clone());
    }

    /// Takes over the names of `plan`; what left it disappears.
    pub(super) fn relabel(&self, plan: &LabelPlan) {
        let mut listed = self.listed.lock();
        let models: HashSet<ModelName> = plan.models.iter().map(|(name, _)| name.clone()).collect();
        for gone in listed.models.difference(&models) {
            self.remove(gone);
        }
        for gone in listed.retirements.iter().filter(|one| !plan.retirements.contains(one)) {
            self.retirement.remove(&retirement_label(gone));
        }
        for one in &plan.retirements {
            self.retirement.get_or_create(&retirement_label(one)).set(one.on.0 as f64 / 1_000.0);
        }
        *listed = Listed { models, retirements: plan.retirements.clone() };
    }

    fn remove(&self, model: &ModelName) {
        for class in TrafficClass::ALL {
            for quantile in Quantile::ALL {
                let percentile = quantile.percentile();
                self.latency.remove(&ByModelPercentile { class, model: model.clone(), percentile });
            }
        }
        for slo in Objective::ALL {
            self.budget.remove(&ByModelObjective { slo: *slo, model: model.clone() });
            for window in BurnWindow::ALL {
                self.burn.remove(&ByModelBurn { slo: *slo, model: model.clone(), window: *window });
            }
        }
    }

    /// Shows `levels`, whose targets are in the order of [`Objective::ALL`].
    pub(super) fn publish(&self, levels: &[ModelLevel]) {
        let listed = self.listed.lock();
        for level in levels.iter().filter(|level| listed.models.contains(&level.model)) {
            let model = || level.model.clone();
            for (quantile, value) in Quantile::ALL.iter().zip(level.total.unwrap_or_default()) {
                let percentile = quantile.percentile();
                let label = ByModelPercentile { class: level.class, model: model(), percentile };
                self.latency.get_or_create(&label).set(value.as_secs_f64());
            }
            for (position, target) in &level.targets {
                let Some(slo) = Objective::ALL.get(*position).copied() else { continue };
                self.budget.get_or_create(&ByModelObjective { slo, model: model() }).set(target.remaining);
                for (window, rate) in BurnWindow::ALL.iter().zip(target.burn) {
                    self.burn.get_or_create(&ByModelBurn { slo, model: model(), window: *window }).set(rate);
                }
            }
        }
    }
}

/// Where a model ends everywhere, the upstream's label is empty, which to Prometheus is the same as none.
fn retirement_label(one: &Retirement) -> ByRetirement {
    let upstream = one.upstream.as_ref().map(ToString::to_string).unwrap_or_default();
    ByRetirement { model: one.model.clone(), upstream }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pure::service_levels::TargetLevel;
    use crate::pure::slo::Burn;
    use crate::pure::time::Wall;
    use crate::telemetry::exposition::tests::support::{labels, metrics, page};

    /// A model that burns its budget.
    pub(in crate::telemetry) fn level(model: &str) -> ModelLevel {
        let ms = Duration::from_millis;
        let target = TargetLevel { remaining: 0.25, burn: [20.0, 8.0, 15.0, 0.75], urgency: Burn::Fast };
        ModelLevel {
            model: ModelName::from(model),
            class: TrafficClass::InteractiveSearch,
            count: 9,
            failed: 1,
            limited: 0,
            total: Some([ms(10), ms(50), ms(80)]),
            targets: vec![(0, target), (1, target)],
        }
    }

    #[test]
    fn a_model_is_shown_as_long_as_it_is_configured() {
        let metrics = metrics();
        let p95 = [("class", "interactive-search"), ("model", "e5"), ("percentile", "95")];
        let left = [("slo", "interactive_p99"), ("model", "e5")];
        let burn = [("slo", "interactive_p95"), ("model", "e5"), ("window", "1h")];
        assert_eq!(page(&metrics).value("vectorgate_model_latency_seconds", &p95), None);
        metrics.model_levels(&[level("e5"), level("stranger")]);
        let shown = page(&metrics);
        assert_eq!(shown.value("vectorgate_model_latency_seconds", &p95), Some(0.05));
        assert_eq!(shown.value("vectorgate_model_slo_error_budget_remaining", &left), Some(0.25));
        assert_eq!(shown.value("vectorgate_model_slo_burn_rate", &burn), Some(15.0));
        assert!(!shown.samples.keys().any(|(_, labels)| labels.iter().any(|(_, value)| value == "stranger")));

        let mut plan = labels();
        plan.models.remove(0);
        metrics.relabel(&plan);
        metrics.model_levels(&[level("e5")]);
        let shown = page(&metrics);
        assert_eq!(shown.value("vectorgate_model_latency_seconds", &p95), None);
        assert_eq!(shown.value("vectorgate_model_slo_error_budget_remaining", &left), None);
        assert_eq!(shown.value("vectorgate_model_slo_burn_rate", &burn), None);
    }

    #[test]
    fn a_retirement_is_shown_until_the_configuration_drops_it() {
        let metrics = metrics();
        let mut plan = labels();
        plan.retirements.push(Retirement { model: ModelName::from("e5"), upstream: Some("u1".into()), on: Wall(0) });
        metrics.relabel(&plan);
        let at = |upstream: &str| {
            page(&metrics)
                .value("vectorgate_model_retirement_timestamp_seconds", &[("model", "e5"), ("upstream", upstream)])
        };
        assert_eq!((at(""), at("u1")), (Some(1_811_289_600.0), Some(0.0)));
        plan.retirements.pop();
        metrics.relabel(&plan);
        assert_eq!((at(""), at("u1")), (Some(1_811_289_600.0), None));
    }
}
