//! The one script behind every change of a shared balance: how it is called and what it answers.
//!
//! Owns key names and the reading of answers. Knows neither connections nor what an answer is good for.

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{RedisResult, Script};

use crate::ids::TenantId;
use crate::pure::money::Money;
use crate::pure::time::Wall;

/// How amounts are added and compared exactly.
const AMOUNTS: &str = include_str!("amounts.lua");

/// The rules.
const ACCOUNT: &str = include_str!("account.lua");

/// The hashes, sets and the stream of one tenant, in the script's order.
const PARTS: [&str; 9] = ["book", "holds", "due", "lapsed", "credits", "parts", "records", "numbers", "late"];

/// The script of the accounts.
pub(super) fn account_script() -> Script {
    Script::new(&format!("{AMOUNTS}\n{ACCOUNT}"))
}

/// One of a tenant's keys. The tenant is the hash tag, so that all of them lie in one slot of a cluster.
fn key(tenant: &TenantId, part: &str) -> String {
    format!("vectorgate:{{{tenant}}}:{part}")
}

/// The stream of a tenant's records.
pub(super) fn records_key(tenant: &TenantId) -> String {
    key(tenant, "records")
}

/// One call of the script.
pub(super) struct Verb {
    keys: Vec<String>,
    arguments: Vec<String>,
}

/// What every call says of the tenant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// The budget; `None`: unlimited.
    pub(super) budget: Option<Money>,
    /// Start of the current period.
    pub(super) period: Wall,
    /// When, by the server's clock, the call has no business any more; 0: never.
    pub(super) deadline: i64,
}

impl Verb {
    pub(super) fn new(verb: &str, tenant: &TenantId, frame: Frame) -> Verb {
        let budget = frame.budget.map_or_else(|| "-".to_owned(), units);
        Verb {
            keys: PARTS.iter().map(|part| key(tenant, part)).collect(),
            arguments: vec![verb.to_owned(), budget, frame.period.0.to_string(), frame.deadline.to_string()],
        }
    }

    pub(super) fn with(mut self, argument: impl Into<String>) -> Verb {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn with_money(self, amount: Money) -> Verb {
        self.with(units(amount))
    }

    /// Runs it.
    ///
    /// # Errors
    /// Those of the connection and of the server.
    pub(super) async fn run(&self, script: &Script, mut connection: MultiplexedConnection) -> RedisResult<Reply> {
        let mut call = script.prepare_invoke();
        call.key(&self.keys).arg(&self.arguments);
        let words: Vec<String> = call.invoke_async(&mut connection).await?;
        Ok(Reply { words })
    }
}

/// The words of an answer: `status, epoch, remaining, hope, period, spent, held, credits, written off, open holds`, then the
/// verb's own.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    words: Vec<String>,
}

/// Where the verb's own words begin.
const OWN: usize = 10;

impl Reply {
    fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    pub(super) fn status(&self) -> &str {
        self.word(0)
    }

    pub(super) fn epoch(&self) -> &str {
        self.word(1)
    }

    /// What new holds may take; `None` for an unlimited tenant.
    pub(super) fn remaining(&self) -> Option<Money> {
        (self.word(2) != "-").then(|| money(self.word(2)))
    }

    /// Whether settlements of open holds may free money.
    pub(super) fn hope(&self) -> bool {
        self.word(3) == "1"
    }

    pub(super) fn period(&self) -> Wall {
        Wall(self.word(4).parse().unwrap_or(0))
    }

    pub(super) fn spent(&self) -> Money {
        money(self.word(5))
    }

    pub(super) fn held(&self) -> Money {
        money(self.word(6))
    }

    pub(super) fn credits(&self) -> Money {
        money(self.word(7))
    }

    pub(super) fn written_off(&self) -> Money {
        money(self.word(8))
    }

    pub(super) fn open_holds(&self) -> usize {
        self.word(9).parse().unwrap_or(0)
    }

    /// One of the verb's own words.
    pub(super) fn own(&self, at: usize) -> &str {
        self.word(OWN + at)
    }

    pub(super) fn own_money(&self, at: usize) -> Money {
        money(self.own(at))
    }
}

/// An amount as the script keeps it: whole units of 10⁻¹⁸. Nothing there is ever negative.
pub(super) fn units(amount: Money) -> String {
    amount.max(Money::ZERO).units().to_string()
}

/// The reverse of [`units`]; an amount beyond the largest reads as the largest.
pub(super) fn money(text: &str) -> Money {
    if text.is_empty() {
        return Money::ZERO;
    }
    Money::from_units(text.parse().unwrap_or(i128::MAX))
}
