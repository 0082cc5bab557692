//! How well each model is served in each class. Knows the models that it was told of and no others; a model that nobody
//! asks for costs nothing.

use std::collections::HashMap;
use std::time::Duration;

use super::{Fact, Promises, SLOTS, Target, TargetLevel, Verdict};
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::rate_window::RateWindow;
use crate::pure::slo::Budget;
use crate::pure::sparse_window::SparseWindow;
use crate::pure::time::Mono;

/// Percentiles that are taken anew at one snapshot. Each is a walk through a histogram of some 5 µs on the thread that
/// gives out permits.
const FRESH: usize = 32;

/// Fewer bad requests than this over the long window are an accident, not a trend: a model that is asked ten times an
/// hour would else be burning with its first failure.
const LEAST_BAD: u64 = 10;

/// One model in one class, over the window as in [`ClassLevel`](super::ClassLevel).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelLevel {
    /// The model.
    pub model: ModelName,
    /// The class.
    pub class: TrafficClass,
    /// Requests that were answered or failed.
    pub count: u64,
    /// Of those, the ones that the service failed.
    pub failed: u64,
    /// Requests that a limit of the tenant's own refused; not in `count`.
    pub limited: u64,
    /// Median, 95th and 99th percentile of the whole time of answered requests.
    pub total: Option<[Duration; 3]>,
    /// Positions of the class's targets and how they fare with this model.
    pub targets: Vec<(usize, TargetLevel)>,
}

/// What is counted of one model in one class.
#[derive(Debug)]
struct Counts {
    window: SparseWindow,
    failed: RateWindow,
    limited: RateWindow,
    budgets: Vec<(usize, Budget)>,
    /// Whether the percentiles that were shown last are out of date.
    stale: bool,
    /// Answers and their percentiles as shown last; of one moment, so that the two never disagree.
    shown: (u64, Option<[Duration; 3]>),
}

impl Counts {
    fn new(window: Duration, targets: &[Target], class: TrafficClass) -> Counts {
        let own = targets.iter().enumerate().filter(|(_, target)| target.class == class);
        Counts {
            window: SparseWindow::new(window, SLOTS),
            failed: RateWindow::new(window),
            limited: RateWindow::new(window),
            budgets: own.map(|(position, target)| (position, Budget::new(target.allowed_bad))).collect(),
            stale: false,
            shown: (0, None),
        }
    }

    /// Begins a window of another length; the budgets, whose windows are fixed, go on.
    fn forget(&mut self, window: Duration) {
        self.window = SparseWindow::new(window, SLOTS);
        (self.failed, self.limited) = (RateWindow::new(window), RateWindow::new(window));
        self.stale = true;
    }

    fn refresh(&mut self) {
        self.stale = false;
        self.shown = (self.window.count(), self.window.quantiles([0.5, 0.95, 0.99]));
    }
}

/// One model: its lines and what is counted of it.
#[derive(Debug)]
pub(super) struct Model {
    name: ModelName,
    lines: Vec<Duration>,
    by_class: [Option<Box<Counts>>; TrafficClass::ALL.len()],
}

/// One model in the class of a request.
pub(super) struct Asked<'a> {
    lines: &'a [Duration],
    counts: &'a mut Counts,
}

impl Asked<'_> {
    /// The line that holds for this model's requests.
    pub(super) fn line(&self, target: usize) -> Option<Duration> {
        self.lines.get(target).copied()
    }

    pub(super) fn record(&mut self, fact: &Fact, now: Mono) {
        match fact.verdict {
            Verdict::Answered => {
                self.counts.window.record(fact.total, now);
                self.counts.stale = true;
            }
            Verdict::Failed => self.counts.failed.record(false, now),
            Verdict::Limited => self.counts.limited.record(false, now),
            Verdict::NotOurs => {}
        }
    }

    /// The request was good or bad in the eyes of a target.
    pub(super) fn judged(&mut self, target: usize, (good, bad): (u32, u32), now: Mono) {
        if let Some((_, budget)) = self.counts.budgets.iter_mut().find(|(position, _)| *position == target) {
            budget.record(now, good, bad);
        }
    }
}

/// All models.
#[derive(Debug)]
pub(super) struct Models {
    window: Duration,
    targets: Vec<Target>,
    listed: Vec<Model>,
    positions: HashMap<ModelName, usize>,
    /// Whose turn it is to be brought up to date first.
    turn: usize,
}

impl Models {
    pub(super) fn new(promises: &Promises) -> Models {
        let mut models = Models {
            window: promises.window,
            targets: Vec::new(),
            listed: Vec::new(),
            positions: HashMap::new(),
            turn: 0,
        };
        models.reconfigure(promises);
        models
    }

    /// Takes over new models, lines and window. Models that stay keep what was counted; another window starts empty.
    pub(super) fn reconfigure(&mut self, promises: &Promises) {
        let kinds = |targets: &[Target]| targets.iter().map(|one| (one.class, one.allowed_bad)).collect::<Vec<_>>();
        let comparable = kinds(&promises.targets) == kinds(&self.targets);
        let earlier = std::mem::take(&mut self.listed).into_iter().filter(|_| comparable);
        let mut earlier: HashMap<ModelName, _> = earlier.map(|model| (model.name, model.by_class)).collect();
        if promises.window != self.window {
            for counts in earlier.values_mut().flatten().flatten() {
                counts.forget(promises.window);
            }
        }
        self.window = promises.window;
        self.targets.clone_from(&promises.targets);
        self.listed = (promises.models.iter())
            .map(|(name, lines)| Model {
                name: name.clone(),
                lines: lines.clone(),
                by_class: earlier.remove(name).unwrap_or_default(),
            })
            .collect();
        self.positions = self.listed.iter().enumerate().map(|(at, model)| (model.name.clone(), at)).collect();
    }

    /// The model of a request, if it has one that is known.
    pub(super) fn of(&mut self, fact: &Fact) -> Option<Asked<'_>> {
        let position = *self.positions.get(fact.model.as_ref()?)?;
        let (window, targets) = (self.window, &self.targets);
        let Model { lines, by_class, .. } = self.listed.get_mut(position)?;
        let counts =
            by_class[fact.class as usize].get_or_insert_with(|| Box::new(Counts::new(window, targets, fact.class)));
        Some(Asked { lines, counts })
    }

    /// Every model in each class in which it was ever asked.
    pub(super) fn levels(&mut self, now: Mono) -> Vec<ModelLevel> {
        let mut all: Vec<(&ModelName, TrafficClass, &mut Counts)> = (self.listed.iter_mut())
            .flat_map(|Model { name, by_class, .. }| {
                let classes = TrafficClass::ALL.into_iter().zip(by_class.iter_mut());
                classes.filter_map(|(class, counts)| Some((&*name, class, &mut **counts.as_mut()?)))
            })
            .collect();
        let (asked, first, mut fresh) = (all.len(), self.turn, 0);
        for step in 0..asked {
            let at = (first + step) % asked;
            let counts = &mut *all[at].2;
            counts.stale |= counts.window.advance(now);
            if counts.stale && fresh < FRESH {
                fresh += 1;
                counts.refresh();
                if fresh == FRESH {
                    self.turn = at + 1;
                }
            }
        }
        all.into_iter()
            .map(|(model, class, counts)| {
                let (answered, total) = counts.shown;
                let failed = counts.failed.totals(now).bad;
                let level =
                    |(position, budget): &mut (usize, Budget)| (*position, TargetLevel::of(budget, now, LEAST_BAD));
                ModelLevel {
                    model: model.clone(),
                    class,
                    count: answered + failed,
                    failed,
                    limited: counts.limited.totals(now).bad,
                    total,
                    targets: counts.budgets.iter_mut().map(level).collect(),
                }
            })
            .collect()
    }
}
