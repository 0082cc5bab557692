//! The shell around the account: who waits, who has left, what lapses, and when a timer is set.

use super::*;
use crate::config::{self, Environment, Source};
use crate::pure::budget_period::BudgetPeriod;
use crate::pure::ledger::Standing;
use crate::store::testing::{MemoryDisk, TENANT, at, hold, usage_line};
use crate::store::writer::Limits;

/// Longest wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a timer is set.
#[derive(Message)]
#[rtype(result = "bool")]
struct TimerIsSet;

impl Handler<TimerIsSet> for LedgerActor {
    type Result = bool;

    fn handle(&mut self, _: TimerIsSet, _: &mut Self::Context) -> bool {
        self.tick.is_some()
    }
}

fn money(units: i128) -> Money {
    Money::from_units(units)
}

fn start(budget: i128) -> (Addr<LedgerActor>, Arc<Journal>) {
    let (actor, journal, _) = start_with_board(budget);
    (actor, journal)
}

fn start_with_board(budget: i128) -> (Addr<LedgerActor>, Arc<Journal>, Arc<Board>) {
    let source = Source::Text { name: "test".to_owned(), text: String::new() };
    let plan = config::load(&source, &Environment::from_iter(Vec::<(String, String)>::new())).expect("the default");
    let (journal, _) = Journal::on(Arc::new(MemoryDisk::default()), Limits::default(), at(0)).expect("opens");
    let journal = Arc::new(journal);
    let terms = Terms { budget: Some(money(budget)), period: BudgetPeriod::None };
    let account = Account::restore(terms, Standing::default());
    let (board, telemetry) = (Arc::new(Board::default()), Telemetry::start(&plan));
    let (kept, shown) = (Arc::clone(&journal), Arc::clone(&board));
    let actor = Supervisor::start(move |_| LedgerActor::new(TENANT.into(), account, shown, kept, telemetry));
    (actor, journal, board)
}

/// An ask for all of a budget of 100 whose cost is hardly known.
fn ask(id: u64, patience: Duration) -> PlaceHold {
    let expires_at = clock::mono().plus(PATIENCE);
    PlaceHold { id: HoldId(id), upper: money(100), likely: money(10), lower: money(1), expires_at, patience, tokens: 1 }
}

fn resolved(id: u64, charge: Option<i128>) -> HoldResolved {
    HoldResolved { id: HoldId(id), charge: charge.map(money), tokens: None }
}

async fn look(actor: &Addr<LedgerActor>) -> AccountSnapshot {
    actor.send(Observe).await.expect("runs").expect("no fault")
}

#[actix_web::test]
async fn a_hold_that_lapses_ends_in_the_journal_and_then_nothing_wakes_the_actor() {
    let (actor, journal) = start(100);
    assert!(!actor.send(TimerIsSet).await.expect("runs"), "an idle tenant sets no timer");
    let short = PlaceHold { expires_at: clock::mono(), ..ask(7, Duration::ZERO) };
    assert_eq!(actor.send(short).await.expect("runs"), Ok(money(100)));
    journal.append(&hold(7, 100)).expect("written");
    assert!(actor.send(TimerIsSet).await.expect("runs"));
    let lapsed = async {
        while journal.with_book(|book| book.open_holds().count()) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, lapsed).await.expect("the release is on the record");
    assert_eq!(look(&actor).await.remaining, Some(money(100)));
    assert!(!actor.send(TimerIsSet).await.expect("runs"), "nothing is left that time alone could change");
}

#[actix_web::test]
async fn whoever_leaves_the_line_gets_nothing_later() {
    let (actor, _journal) = start(100);
    assert_eq!(actor.send(ask(1, PATIENCE)).await.expect("runs"), Ok(money(100)));
    let (second, third) = (actor.send(ask(2, PATIENCE)), actor.send(ask(3, PATIENCE)));
    let answers = async { futures_util::join!(second, third) };
    let facts = async {
        // Messages of one sender arrive in order, and this sender's asks are on their way by now.
        tokio::task::yield_now().await;
        actor.send(resolved(2, None)).await.expect("runs");
        actor.send(resolved(1, Some(30))).await.expect("runs");
    };
    let ((second, third), ()) = futures_util::join!(answers, facts);
    assert_eq!(second.expect("runs"), Err(HoldRefusal::Unavailable));
    assert_eq!(third.expect("runs"), Ok(money(70)), "all that is left, for the last call");
    actor.send(resolved(3, Some(20))).await.expect("runs");
    let account = look(&actor).await;
    assert_eq!((account.remaining, account.open_holds), (Some(money(50)), 0));
}

#[actix_web::test]
async fn an_ask_that_comes_after_its_asker_has_left_holds_nothing() {
    let (actor, _journal) = start(100);
    actor.send(resolved(1, None)).await.expect("runs");
    assert_eq!(actor.send(ask(1, PATIENCE)).await.expect("runs"), Err(HoldRefusal::Unavailable));
    assert_eq!(look(&actor).await.open_holds, 0);
    assert_eq!(actor.send(ask(2, PATIENCE)).await.expect("runs"), Ok(money(100)));
}

#[actix_web::test]
async fn those_who_wait_outlast_a_fault_and_their_patience_still_ends() {
    let (actor, _journal) = start(100);
    assert_eq!(actor.send(ask(1, PATIENCE)).await.expect("runs"), Ok(money(100)));
    let waits = actor.send(ask(2, PATIENCE));
    let tires = actor.send(ask(3, Duration::from_millis(50)));
    let faults = async {
        tokio::task::yield_now().await;
        actor.send(Drill).await.expect("survives");
        actor.send(resolved(3, None)).await.expect("runs");
    };
    let (tired, ()) = futures_util::join!(tires, faults);
    tired.expect("runs").expect_err("refused, or seen to have left");
    let settles = async { actor.send(resolved(1, Some(30))).await.expect("runs") };
    let (waited, ()) = futures_util::join!(waits, settles);
    assert_eq!(waited.expect("runs"), Ok(money(70)));
    let impatient = actor.send(ask(4, Duration::from_millis(20))).await.expect("runs");
    assert_eq!(impatient, Err(HoldRefusal::Exhausted), "nothing settled");
}

/// An ask of 100 for a small part of a budget.
fn small(id: u64) -> PlaceHold {
    PlaceHold { likely: money(100), lower: money(100), ..ask(id, Duration::ZERO) }
}

fn hold_lent(board: &Board, ask: &PlaceHold) -> bool {
    board.hold(&ask.core(clock::mono()), ask.tokens, clock::wall())
}

#[actix_web::test]
async fn a_tenant_that_asks_seldom_keeps_its_loan_and_nothing_wakes_its_actor() {
    let (actor, _journal, board) = start_with_board(1_000_000);
    assert_eq!(actor.send(small(1)).await.expect("runs"), Ok(money(100)));
    actor.send(resolved(1, Some(60))).await.expect("runs");
    // Whatever was set while the call was open has come and gone.
    let quiet = async {
        while actor.send(TimerIsSet).await.expect("runs") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, quiet).await.expect("no timer is left");
    assert!(hold_lent(&board, &small(2)), "its second call asks nobody, however long after the first");
    assert_eq!(board.account().map(|all| (all.held, all.remaining)), Some((money(100), Some(money(999_840)))));
    let lent = board.settle(HoldId(2), money(40), None, (clock::mono(), clock::wall())).expect("within the loan");
    assert_eq!(lent.remaining, Some(money(999_900)));
    let account = look(&actor).await;
    assert_eq!((account.spent, account.remaining, account.open_holds), (money(100), Some(money(999_900)), 0));
}

#[actix_web::test]
async fn the_first_call_of_all_asks_nobody() {
    let (actor, _journal, board) = start_with_board(1_000_000);
    let before = look(&actor).await;
    assert!(hold_lent(&board, &small(1)));
    assert_eq!(
        look(&actor).await,
        AccountSnapshot { remaining: Some(money(999_900)), held: money(100), open_holds: 1, ..before }
    );
}

#[actix_web::test]
async fn the_last_call_waits_for_calls_in_the_loan() {
    let (actor, _journal, board) = start_with_board(1_000);
    look(&actor).await;
    assert!(hold_lent(&board, &small(1)), "an eighth is lent");
    // It would probably fit into what is beside the loan, but may cost more than that, and another is under way.
    let large = PlaceHold { upper: money(950), likely: money(10), lower: money(1), ..small(2) };
    assert_eq!(actor.send(large).await.expect("runs"), Err(HoldRefusal::Exhausted), "it cannot wait");
    let large = PlaceHold { upper: money(950), likely: money(10), lower: money(1), patience: PATIENCE, ..small(3) };
    let settles = async {
        tokio::task::yield_now().await;
        actor.send(resolved(1, Some(40))).await.expect("runs");
    };
    let (placed, ()) = futures_util::join!(actor.send(large), settles);
    assert_eq!(placed.expect("runs"), Ok(money(950)));
}

#[actix_web::test]
async fn what_is_lent_is_called_in_before_anybody_is_refused() {
    let (actor, _journal, board) = start_with_board(100_000);
    actor.send(small(1)).await.expect("runs").expect("covered");
    assert!(hold_lent(&board, &small(2)), "its loan is out");
    let rest = |id, upper| PlaceHold { upper: money(upper), likely: money(upper), lower: money(upper), ..small(id) };
    assert_eq!(actor.send(rest(3, 99_801)).await.expect("runs"), Err(HoldRefusal::Exhausted), "more than is there");
    assert_eq!(actor.send(rest(4, 99_800)).await.expect("runs"), Ok(money(99_800)), "all of it");
    assert!(!hold_lent(&board, &small(5)), "and nothing is left to lend");
    assert_eq!(actor.send(small(5)).await.expect("runs"), Err(HoldRefusal::Exhausted));
    for (id, charge) in [(1, 100), (2, 70), (4, 99_800)] {
        actor.send(resolved(id, Some(charge))).await.expect("runs");
    }
    let account = look(&actor).await;
    assert_eq!((account.spent, account.remaining, account.held), (money(99_970), Some(money(30)), Money::ZERO));
}

#[actix_web::test]
async fn a_hold_of_the_loan_that_lapses_ends_in_the_journal() {
    let (actor, journal, board) = start_with_board(1_000_000);
    actor.send(small(1)).await.expect("runs").expect("covered");
    assert!(hold_lent(&board, &PlaceHold { expires_at: clock::mono(), ..small(2) }));
    journal.append(&hold(2, 100)).expect("written");
    assert!(board.has_lapsed(clock::mono()));
    actor.send(LoanLapsed).await.expect("runs");
    assert_eq!(journal.with_book(|book| book.open_holds().count()), 0);
    assert_eq!(look(&actor).await.held, money(100), "the first is still open");
}

#[actix_web::test]
async fn the_tenants_own_limits_are_one_count_whoever_takes_of_them() {
    let (actor, _journal, board) = start_with_board(1_000_000);
    board.limit(None, Some(3));
    assert_eq!(actor.send(small(1)).await.expect("runs"), Ok(money(100)));
    assert!(hold_lent(&board, &small(2)) && hold_lent(&board, &small(3)));
    let before = board.account().expect("published");
    assert!(!hold_lent(&board, &small(4)), "a fourth in a minute");
    assert!(matches!(actor.send(small(4)).await.expect("runs"), Err(HoldRefusal::RateLimited(_))));
    assert_eq!(board.account(), Some(before), "a refusal leaves everything as it was");
    assert!(board.release(HoldId(2), clock::mono()), "its call failed");
    assert!(hold_lent(&board, &small(5)), "so another may go");
    actor.send(resolved(1, None)).await.expect("runs");
    assert_eq!(actor.send(small(6)).await.expect("runs"), Ok(money(100)));
    assert!(!hold_lent(&board, &small(7)));
}

/// What the clock of [`a_budget_is_refilled_at_the_edge_of_its_period_once`] shows, milliseconds.
static TIME_OF_DAY: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

fn time_of_day() -> Wall {
    Wall(TIME_OF_DAY.load(std::sync::atomic::Ordering::Relaxed))
}

#[actix_web::test]
async fn a_budget_is_refilled_at_the_edge_of_its_period_once() {
    let set = |wall: Wall| TIME_OF_DAY.store(wall.0, std::sync::atomic::Ordering::Relaxed);
    let source = Source::Text { name: "test".to_owned(), text: String::new() };
    let plan = config::load(&source, &Environment::from_iter(Vec::<(String, String)>::new())).expect("the default");
    let telemetry = Telemetry::start(&plan);
    let (journal, _) = Journal::on(Arc::new(MemoryDisk::default()), Limits::default(), at(0)).expect("opens");
    let journal = Arc::new(journal);
    let period_start = || journal.with_book(|book| book.tenants.get(&TENANT.into()).map(|page| page.period_start));
    let board = Arc::new(Board::default());
    let begin = |standing: Standing| {
        let terms = Terms { budget: Some(money(100)), period: BudgetPeriod::Day };
        let account = Account::restore(terms, standing);
        let (board, kept, telemetry) = (Arc::clone(&board), Arc::clone(&journal), Arc::clone(&telemetry));
        Supervisor::start(move |_| {
            LedgerActor::new(TENANT.into(), account, board, kept, telemetry).with_wall(time_of_day)
        })
    };
    let midnight = at(crate::pure::utc::DAY_MS);
    set(Wall(midnight.0 - 1));
    let actor = begin(Standing::default());
    let settle = |id, charge| SettleHold { id: HoldId(id), charge: money(charge), tokens: None };
    let ask = |id, upper| PlaceHold {
        upper: money(upper),
        likely: money(upper),
        lower: money(upper),
        ..ask(id, Duration::ZERO)
    };
    assert_eq!(actor.send(ask(1, 70)).await.expect("runs"), Ok(money(70)));
    assert_eq!(actor.send(ask(2, 30)).await.expect("runs"), Ok(money(30)));
    actor.send(settle(2, 30)).await.expect("runs").expect("open");
    assert_eq!(actor.send(ask(3, 1)).await.expect("runs"), Err(HoldRefusal::Exhausted), "the last millisecond");
    assert_eq!(board.resets_at(), Some(midnight));

    set(midnight);
    assert_eq!(actor.send(ask(4, 30)).await.expect("runs"), Ok(money(30)), "the first");
    assert_eq!(period_start(), Some(midnight), "in the journal before the answer");
    assert_eq!(board.remaining(), Some(Money::ZERO), "70 are still held for the call that crosses the edge");
    let settled = actor.send(settle(1, 60)).await.expect("runs").expect("open");
    assert_eq!((settled.charged, settled.period_start), (money(60), midnight), "it counts where it settles");
    assert_eq!(board.remaining(), Some(money(10)));
    set(Wall(midnight.0 - 5));
    assert_eq!(look(&actor).await.spent, money(60), "a clock that steps back refills nothing");
    set(Wall(midnight.0 + 5));
    assert_eq!(look(&actor).await.spent, money(60), "nor does one that comes to the edge again");
}

#[actix_web::test]
async fn a_balance_is_given_up_only_once_nothing_is_under_way_and_the_journal_says_the_same() {
    let (actor, journal, board) = start_with_board(100_000);
    let leaves = async || actor.send(Leave).await.expect("runs");
    assert_eq!(look(&actor).await.remaining, Some(money(100_000)));
    let within = PlaceHold { upper: money(10), ..ask(1, Duration::ZERO) };
    assert!(board.hold(&within.core(clock::mono()), 1, at(0)), "a call out of what is lent");
    assert!(!leaves().await, "it is under way");
    actor.send(resolved(1, Some(7))).await.expect("runs");
    assert!(!leaves().await, "the journal does not know of it");
    assert!(board.lends(), "and the balance is as good as before");
    journal.append(&usage_line(1, 7)).expect("written");
    board.limit(None, Some(9));
    board.take(HoldId(2), 1, clock::mono()).expect("the first of a minute");
    assert!(!leaves().await, "a request counts against the tenant's own limit");
    board.return_tokens(HoldId(2), None, clock::mono());
    assert!(leaves().await);
    assert!(!board.lends(), "nothing is out");
    let refused = actor.send(ask(4, PATIENCE)).await.expect("runs");
    assert_eq!(refused, Err(HoldRefusal::Unavailable), "whoever asks late gets nothing");
    assert!(!actor.send(TimerIsSet).await.expect("runs"));
    drop(actor);
    let ended = async {
        while Arc::strong_count(&board) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the actor has ended");
}
