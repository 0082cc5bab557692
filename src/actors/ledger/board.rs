//! A tenant's balance as workers see it, the part of it that is lent to them, and the tenant's own limits. Written by the
//! actor, read without a hop; owns the lock over all, so that what is shown is true at any moment. Refuses to decide how
//! much is lent.

use parking_lot::Mutex;

use crate::ids::HoldId;
use crate::pure::ledger::{Account, AccountSnapshot, HoldAsk, Loan, plus};
use crate::pure::money::Money;
use crate::pure::tenant_limits::{Allowances, Exceeded, TenantLimits};
use crate::pure::time::{Mono, Wall};

/// A tenant's balance as workers see it: written by the actor after each change, read without a hop.
#[derive(Debug, Default)]
pub struct Board(Mutex<BoardState>);

#[derive(Debug, Default)]
struct BoardState {
    /// Beside what is lent.
    remaining: Option<Money>,
    exhausted: bool,
    resets_at: Option<Wall>,
    /// Start of the period that charges count in; of the last one, where the budget has periods no more.
    period_start: Wall,
    /// Counted here and nowhere else, whoever takes of them.
    limits: Option<TenantLimits>,
    account: Option<AccountSnapshot>,
    loan: Loan,
    /// The balance is the shared ledger's, which shows it by [`Board::show`]; the actor publishes nothing.
    shared: bool,
}

/// A settlement within what is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// What new holds may take after it; `None` without a budget.
    pub remaining: Option<Money>,
    /// Start of the period that the charge counts in.
    pub period_start: Wall,
}

impl BoardState {
    fn remaining(&self) -> Option<Money> {
        self.remaining.map(|remaining| plus(remaining, self.loan.left()))
    }

    fn lent(&self) -> Lent {
        Lent { remaining: self.remaining(), period_start: self.loan.period_start() }
    }

    fn return_tokens(&mut self, id: HoldId, billed: Option<u64>, now: Mono) {
        if let Some(limits) = &mut self.limits {
            limits.settle(id, billed, now);
        }
    }

    fn show(&mut self, account: &Account) {
        (self.remaining, self.exhausted) = (account.remaining(), account.is_exhausted());
        self.resets_at = account.resets_at();
        self.period_start = account.standing().period_start;
        self.account = Some(account.snapshot());
    }
}

impl Board {
    /// A board whose balance the shared ledger shows.
    pub fn of_shared_ledger() -> Board {
        Board(Mutex::new(BoardState { shared: true, ..BoardState::default() }))
    }

    /// Whether the balance is the shared ledger's.
    pub fn is_of_shared_ledger(&self) -> bool {
        self.0.lock().shared
    }

    /// The whole balance as it is now; `None` before the first time.
    pub fn account(&self) -> Option<AccountSnapshot> {
        let state = self.0.lock();
        let (account, loan) = (state.account?, &state.loan);
        Some(AccountSnapshot {
            remaining: account.remaining.map(|remaining| plus(remaining, loan.left())),
            held: plus(account.held, loan.held()),
            spent: plus(account.spent, loan.charged()),
            open_holds: account.open_holds + loan.open_holds(),
            ..account
        })
    }

    /// Shows an account of the shared ledger as its server told it last, whether a refusal would be final, and when the
    /// budget is refilled next.
    pub fn show(&self, account: AccountSnapshot, exhausted: bool, resets_at: Option<Wall>) {
        let mut state = self.0.lock();
        (state.remaining, state.exhausted, state.resets_at) = (account.remaining, exhausted, resets_at);
        state.account = Some(account);
    }

    /// What is left of the tenant's own limits; `None` if it has none.
    pub fn limits(&self, now: Mono) -> Option<Allowances> {
        self.0.lock().limits.as_mut().map(|limits| limits.allowances(now))
    }

    /// Whether nothing is counted against the tenant's own limits now: what was taken of them is a minute old.
    pub fn is_unlimited(&self, now: Mono) -> bool {
        self.0.lock().limits.as_mut().is_none_or(|limits| limits.is_untouched(now))
    }

    /// What new holds may take; `None` for an unlimited tenant.
    pub fn remaining(&self) -> Option<Money> {
        self.0.lock().remaining()
    }

    /// Whether nothing is left and no open hold can leave anything.
    pub fn exhausted(&self) -> bool {
        self.0.lock().exhausted
    }

    /// When the budget is refilled next.
    pub fn resets_at(&self) -> Option<Wall> {
        self.0.lock().resets_at
    }

    /// Start of the period that charges count in.
    pub fn period_start(&self) -> Wall {
        self.0.lock().period_start
    }

    /// Publishes an account's balance.
    pub fn publish(&self, account: &Account) {
        let mut state = self.0.lock();
        if !state.shared {
            state.show(account);
        }
    }
}

/// For the workers: what is within the loan needs no actor.
impl Board {
    /// Holds money out of the loan, and takes `tokens` out of the tenant's own limits; false where the actor must be asked,
    /// and nothing has changed then.
    pub fn hold(&self, ask: &HoldAsk, tokens: u64, wall: Wall) -> bool {
        let mut state = self.0.lock();
        let BoardState { loan, limits, .. } = &mut *state;
        if !loan.hold(ask, wall) {
            return false;
        }
        let exceeded = limits.as_mut().is_some_and(|limits| limits.take(ask.id, tokens, ask.now).is_err());
        if exceeded {
            loan.release(ask.id);
        }
        !exceeded
    }

    /// Settles a hold of the loan, for which `tokens` were billed; `None` where the actor must do it.
    pub fn settle(&self, id: HoldId, charge: Money, tokens: Option<u64>, at: (Mono, Wall)) -> Option<Lent> {
        let mut state = self.0.lock();
        if !state.loan.settle(id, charge, at.1) {
            return None;
        }
        state.return_tokens(id, tokens, at.0);
        Some(state.lent())
    }

    /// Frees a hold of the loan, for which nothing was billed; false where the actor must do it.
    pub fn release(&self, id: HoldId, now: Mono) -> bool {
        let mut state = self.0.lock();
        let released = state.loan.release(id);
        if released {
            state.return_tokens(id, None, now);
        }
        released
    }

    /// Charges what was spent without a hold; `None` where the actor must do it.
    pub fn meter(&self, charge: Money, wall: Wall) -> Option<Lent> {
        let mut state = self.0.lock();
        state.loan.meter(charge, wall).then(|| state.lent())
    }
}

/// For the actor: the account and its loan, as one step for whoever reads.
impl Board {
    /// Whether anything is lent.
    pub fn lends(&self) -> bool {
        self.0.lock().loan.is_out()
    }

    /// Whether a hold of the loan is past its time.
    pub fn has_lapsed(&self, now: Mono) -> bool {
        self.0.lock().loan.has_lapsed(now)
    }

    /// Sets the tenant's own limits, tokens and requests a minute; what was taken stays taken.
    pub fn limit(&self, tpm: Option<u64>, rpm: Option<u64>) {
        let limits = &mut self.0.lock().limits;
        match limits {
            Some(limits) => limits.reconfigure(tpm, rpm),
            None => *limits = (tpm.is_some() || rpm.is_some()).then(|| TenantLimits::new(tpm, rpm)),
        }
    }

    /// Takes a call out of the tenant's own limits.
    ///
    /// # Errors
    /// The limit that is used up; nothing was taken then.
    pub fn take(&self, id: HoldId, tokens: u64, now: Mono) -> Result<(), Exceeded> {
        self.0.lock().limits.as_mut().map_or(Ok(()), |limits| limits.take(id, tokens, now))
    }

    /// A call that was taken out of the tenant's own limits has ended: `billed` tokens, or it never cost anything.
    pub fn return_tokens(&self, id: HoldId, billed: Option<u64>, now: Mono) {
        self.0.lock().return_tokens(id, billed, now);
    }

    /// Books what the loan was charged.
    pub fn book(&self, account: &mut Account) {
        self.step(account, |account, loan| account.book(loan));
    }

    /// Takes a hold of the loan over.
    pub fn adopt(&self, account: &mut Account, id: HoldId) {
        self.step(account, |account, loan| account.adopt(loan, id));
    }

    /// Takes everything back.
    pub fn call_in(&self, account: &mut Account) {
        self.step(account, Account::call_in);
    }

    /// Makes the loan as large as is good.
    pub fn lend(&self, account: &mut Account) {
        self.step(account, Account::lend);
    }

    fn step(&self, account: &mut Account, step: impl FnOnce(&mut Account, &mut Loan)) {
        let mut state = self.0.lock();
        if !state.shared {
            step(account, &mut state.loan);
            state.show(account);
        }
    }
}
