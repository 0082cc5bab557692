//! Placeholder until the full core lands.
use std::time::Duration;
use serde::Serialize;
use super::class::TrafficClass;
use super::time::Mono;
use crate::config::plan::{Quota, Upstream};
use crate::dialects::Fault;
use crate::ids::{AttemptId, TenantId, WaiterId};
#[derive(Debug, Clone)]
pub struct Ask { pub attempt: AttemptId, pub waiter: WaiterId, pub tenant: TenantId, pub weight: u32, pub class: TrafficClass, pub tokens: u64, pub items: usize, pub may_queue: bool, pub deadline: Mono, pub roll: f64 }
#[derive(Debug, Clone, Copy)]
pub enum Decision { Grant(Grant), Queued, Refuse(Refusal) }
#[derive(Debug, Clone, Copy)]
pub struct Grant { pub attempt: AttemptId, pub probe: bool }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal { pub why: Why, pub retry_at: Option<Mono> }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why { CircuitOpen, RateLimited, Concurrency, QueueFull, Parked, TooLarge, ShuttingDown, Restarting, Quarantined, Draining, NoUpstream }
impl Why { pub fn may_pass(self) -> bool { matches!(self, Why::RateLimited | Why::Concurrency) } }
#[derive(Debug, Clone)]
pub struct Report { pub outcome: Outcome, pub latency: Duration, pub actual_tokens: Option<u64>, pub items: usize }
impl Report { pub fn abandoned() -> Report { Report { outcome: Outcome::Abandoned, latency: Duration::ZERO, actual_tokens: None, items: 0 } } }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome { Success, Timeout, Connection, Fault(Fault, u16), Abandoned }
impl Outcome { pub fn from_fault(fault: Fault, status: u16) -> Outcome { Outcome::Fault(fault, status) } }
#[derive(Debug, Clone)]
pub enum Effect {}
#[derive(Debug, Clone, Copy)]
pub enum Command { Drain, Resume, Open, Close, ShutDown }
#[derive(Debug, Clone)]
pub struct Policy { pub max: usize }
impl Policy { pub fn new(u: &Upstream, _q: &Quota) -> Policy { Policy { max: u.max_concurrency } } }
#[derive(Debug, Serialize)]
pub struct UpstreamSnapshot { pub in_flight: usize, pub calls: u64 }
pub struct Polled { pub served: Vec<(WaiterId, Result<Grant, Refusal>)>, pub effects: Vec<Effect>, pub next_wake: Option<Mono> }
pub struct View { pub usable: bool, pub in_flight: usize, pub latency_ns: u64, pub batch_items: usize }
pub struct UpstreamState { policy: Policy, open: std::collections::HashSet<AttemptId>, queue: std::collections::VecDeque<(WaiterId, AttemptId)>, calls: u64 }
impl UpstreamState {
    pub fn new(policy: Policy, _now: Mono) -> Self { UpstreamState { policy, open: Default::default(), queue: Default::default(), calls: 0 } }
    pub fn ask(&mut self, ask: Ask, _now: Mono) -> Decision {
        if self.open.len() < self.policy.max { self.open.insert(ask.attempt); self.calls += 1; return Decision::Grant(Grant { attempt: ask.attempt, probe: false }); }
        if ask.may_queue { self.queue.push_back((ask.waiter, ask.attempt)); return Decision::Queued; }
        Decision::Refuse(Refusal { why: Why::Concurrency, retry_at: None })
    }
    pub fn finished(&mut self, attempt: AttemptId, _r: Report, _now: Mono) -> Vec<Effect> { self.open.remove(&attempt); Vec::new() }
    pub fn abandon(&mut self, w: WaiterId, _now: Mono) -> Vec<Effect> { self.queue.retain(|q| q.0 != w); Vec::new() }
    pub fn command(&mut self, _c: Command, _now: Mono) -> Vec<Effect> { Vec::new() }
    pub fn reconfigure(&mut self, p: Policy, _now: Mono) { self.policy = p; }
    pub fn heal(&mut self, _now: Mono) {}
    pub fn poll(&mut self, _now: Mono) -> Polled {
        let mut served = Vec::new();
        while self.open.len() < self.policy.max { let Some((w, a)) = self.queue.pop_front() else { break }; self.open.insert(a); self.calls += 1; served.push((w, Ok(Grant { attempt: a, probe: false }))); }
        Polled { served, effects: Vec::new(), next_wake: None }
    }
    pub fn snapshot(&self, _now: Mono) -> UpstreamSnapshot { UpstreamSnapshot { in_flight: self.open.len(), calls: self.calls } }
    pub fn view(&self, _now: Mono) -> View { View { usable: true, in_flight: self.open.len(), latency_ns: 0, batch_items: 1 << 20 } }
}
