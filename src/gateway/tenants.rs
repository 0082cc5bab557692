//! Tenants, keys and credits while the gateway runs. Each change is in the journal before it is in force, and in force
//! before it is answered; where replicas share their ledger, in force on each of them ([`super::directory`]).

use std::collections::HashMap;
use std::sync::Arc;

use actix::MailboxError;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::audit::record;
use super::{By, Deed, Gateway};
use crate::actors::ledger::{Credit, NotKept};
use crate::clock;
use crate::config::plan::Tenant;
use crate::config::secret::Secret;
use crate::config::{self, Environment, GivenTenant, Problems};
use crate::edge::auth;
use crate::ids::{KeyFingerprint, TenantId};
use crate::pure::ledger::CreditOutcome;
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::runtime::TenantRuntime;
use crate::store::book::Page;
use crate::store::journal::Journal;
use crate::store::record::{Record, TenantChange, TenantRecord};
use crate::store::redis::directory::Heard;

/// A key that opens something now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    /// SHA-256 of the whole secret.
    pub sha256: [u8; 32],
    /// Names it.
    pub fingerprint: KeyFingerprint,
    /// When it was added on the admin side; `None`: it stands in the tenant's settings.
    pub created: Option<Wall>,
}

/// A key that was just made. Its secret is told once and kept nowhere.
#[derive(Debug)]
pub struct NewKey {
    /// The secret.
    pub secret: Secret,
    /// Names it.
    pub fingerprint: KeyFingerprint,
    /// When.
    pub created: Wall,
    /// Which replicas let it in, where they share tenants.
    pub heard: Option<Heard>,
}

/// Why a change was not made.
#[derive(Debug)]
pub enum Change {
    /// There is no such thing.
    Unknown(String),
    /// It contradicts what is there.
    Conflict(String),
    /// It breaks the configuration's rules.
    Invalid(Problems),
    /// A value makes no sense.
    Value(&'static str, String),
    /// The journal cannot take it, or an actor is restarting; nothing changed.
    NotKept,
    /// A store did not say whether it took the change, which may yet take effect.
    Unheard,
    /// It is in force, but may not survive a power cut.
    Doubtful,
    /// The store that replicas share does not answer; nothing is known to have changed.
    NotShared,
    /// The store that replicas share has it, but not every replica has said that it is in force there.
    NotHeard,
    /// It is in force on this replica only: the store that replicas share does not answer, and gets it when it does.
    OnlyHere,
    /// A fault of the gateway.
    Fault,
}

/// The keys of a tenant that open something: those in its settings and those added since, less those revoked.
pub fn keys_of(plan: &Tenant, page: Option<&Page>) -> Vec<HeldKey> {
    let revoked = |fingerprint: &KeyFingerprint| page.is_some_and(|page| page.revoked.contains_key(fingerprint));
    let stated = plan.keys.iter().filter(|key| !revoked(&key.fingerprint));
    let stated = stated.map(|key| HeldKey { sha256: key.sha256, fingerprint: key.fingerprint.clone(), created: None });
    let added = page.into_iter().flat_map(|page| &page.keys).filter_map(|(fingerprint, key)| {
        let mut sha256 = [0; 32];
        hex::decode_to_slice(&key.sha256, &mut sha256).ok()?;
        Some(HeldKey { sha256, fingerprint: fingerprint.clone(), created: Some(key.created) })
    });
    added.chain(stated).collect()
}

/// Every tenant's keys; the journal is locked only for copying what it adds.
pub(super) fn keys_by_tenant(
    journal: &Journal,
    tenants: &HashMap<TenantId, Arc<TenantRuntime>>,
) -> Vec<(Arc<TenantRuntime>, Vec<HeldKey>)> {
    let pages: HashMap<TenantId, Page> = journal.with_book(|book| {
        let with_keys = |page: &Page| !page.keys.is_empty() || !page.revoked.is_empty();
        let changed = book.tenants.with_details().filter(|(_, page)| with_keys(page));
        let only_keys =
            |page: &Page| Page { keys: page.keys.clone(), revoked: page.revoked.clone(), ..Page::default() };
        changed.map(|(id, page)| (id, only_keys(&page))).collect()
    });
    let keys = |tenant: &Arc<TenantRuntime>| keys_of(&tenant.plan, pages.get(&tenant.plan.id));
    tenants.values().map(|tenant| (Arc::clone(tenant), keys(tenant))).collect()
}

impl Gateway {
    /// The keys of a tenant that open something now.
    pub fn keys_of(&self, plan: &Tenant) -> Vec<HeldKey> {
        self.journal.with_book(|book| keys_of(plan, book.tenants.get(&plan.id).as_deref()))
    }

    /// Makes a tenant from settings in the form of a `[[tenants]]` entry.
    ///
    /// # Errors
    /// [`Change::Conflict`] for an id or a key that exists, [`Change::Invalid`] for what the configuration's rules
    /// refuse.
    ///
    /// # Cancel safety
    /// Once the journal has it, it is in force too: nothing is awaited in between. Where replicas share tenants, it
    /// comes into force by itself once the store has it.
    pub async fn create_tenant(&self, by: &By, settings: Value) -> Result<(Arc<TenantRuntime>, Option<Heard>), Change> {
        self.catch_up_now().await?;
        let id = settings.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tenant = GivenTenant { id: TenantId::from(id.as_str()), settings: settings.clone() };
        let text = self.changing.lock().await;
        if self.running.load().tenants.contains_key(&tenant.id) {
            return Err(Change::Conflict(format!("the tenant {id:?} exists")));
        }
        let (source, given) = (text.clone(), tenant.clone());
        let checked = spawn_blocking(move || config::check_tenant(&source, &Environment::of_process(), &given));
        let plan = checked.await.map_err(|_panicked| Change::Fault)?.map_err(Change::Invalid)?;
        let before = self.running.load_full();
        if let Some(key) = plan.keys.iter().find(|key| before.keys.has(&key.sha256)) {
            return Err(Change::Conflict(format!("the key {} belongs to another tenant", key.fingerprint)));
        }
        let created = TenantChange::Created(settings.clone());
        let deed = Deed { action: "create_tenant", subject: plan.id.to_string(), before: Value::Null, after: settings };
        if let Some(directory) = self.directory() {
            // Whoever puts it in force, here as on all replicas, takes its turn.
            drop(text);
            let made = self.change_everywhere(directory, &plan.id, &created).await?;
            let Some((_, heard)) = made else {
                return Err(Change::Conflict(format!("the tenant {id:?} exists")));
            };
            self.note(by, deed);
            return Ok((self.tenant(&plan.id).map_err(|_| Change::Fault)?, Some(heard)));
        }
        self.accept(&[change_of(&plan.id, created), record(by, deed)])?;
        let made = self.parts.new_tenant(&plan);
        let mut tenants = before.tenants.clone();
        tenants.insert(plan.id.clone(), Arc::clone(&made));
        self.relabel(&tenants);
        self.running.store(Arc::new(self.parts.with_tenants(&before, tenants)));
        drop(text);
        self.confirmed().await.map(|()| (made, None))
    }

    /// Makes a new key of a tenant.
    ///
    /// # Errors
    /// [`Change::Unknown`] for a tenant that is not there.
    ///
    /// # Cancel safety
    /// As [`Gateway::create_tenant`]; a caller that left has no secret, and revokes the key.
    pub async fn add_key(&self, by: &By, id: &TenantId) -> Result<NewKey, Change> {
        self.catch_up_now().await?;
        let changing = self.changing.lock().await;
        self.tenant(id)?;
        let mut random = [0; 32];
        SysRng.try_fill_bytes(&mut random).map_err(|_no_random_bytes| Change::Fault)?;
        let (secret, sha256) = auth::new_key(&random);
        let fingerprint = auth::fingerprint(&sha256);
        let added = TenantChange::KeyAdded { fingerprint: fingerprint.clone(), sha256: hex::encode(sha256) };
        let deed = Deed {
            action: "add_key",
            subject: id.to_string(),
            before: Value::Null,
            after: json!({ "fingerprint": fingerprint }),
        };
        if let Some(directory) = self.directory() {
            drop(changing);
            let made = self.change_everywhere(directory, id, &added).await?;
            let (created, heard) = made.ok_or(Change::Fault)?;
            self.note(by, deed);
            return Ok(NewKey { secret, fingerprint, created, heard: Some(heard) });
        }
        let change = change_of(id, added);
        let created = change.time();
        self.accept(&[change, record(by, deed)])?;
        self.renew_keys();
        self.confirmed().await?;
        Ok(NewKey { secret, fingerprint, created, heard: None })
    }

    /// Takes a key's power away, be it one of the configuration or one that was added; when it was.
    ///
    /// # Errors
    /// [`Change::Unknown`] for a tenant or a key that is not there.
    ///
    /// # Cancel safety
    /// As [`Gateway::create_tenant`].
    pub async fn revoke_key(
        &self,
        by: &By,
        id: &TenantId,
        fingerprint: &KeyFingerprint,
    ) -> Result<(Wall, Option<Heard>), Change> {
        self.catch_up_now().await?;
        let changing = self.changing.lock().await;
        let tenant = self.tenant(id)?;
        let (held, revoked) = self.journal.with_book(|book| {
            let page = book.tenants.get(id);
            let held = keys_of(&tenant.plan, page.as_deref()).into_iter().find(|key| key.fingerprint == *fingerprint);
            (held, page.as_deref().and_then(|page| page.revoked.get(fingerprint)).map(|revoked| revoked.at))
        });
        if held.is_none() && (revoked.is_none() || self.directory().is_none()) {
            return revoked.map(|at| (at, None)).ok_or_else(|| {
                Change::Unknown(format!("the tenant {:?} has no key {:?}", id.as_str(), fingerprint.as_str()))
            });
        }
        let end = TenantChange::KeyRevoked { fingerprint: fingerprint.clone() };
        let deed = Deed {
            action: "revoke_key",
            subject: id.to_string(),
            before: json!({ "fingerprint": fingerprint }),
            after: Value::Null,
        };
        let Some(directory) = self.directory() else {
            return self.revoke_here(id, (end, clock::wall()), by, deed).await.map(|at| (at, None));
        };
        drop(changing);
        match self.change_everywhere(directory, id, &end).await {
            Ok(made) => {
                // Once more for a key that was revoked: then this is about who has heard of it.
                if held.is_some() {
                    self.note(by, deed);
                }
                made.map(|(at, heard)| (at, Some(heard))).ok_or(Change::Fault)
            }
            // Whoever takes a key's power away must not be turned away altogether.
            Err(Change::NotShared) => {
                if let Some(held) = held {
                    let _changing = self.changing.lock().await;
                    // Later than the key, whatever the clocks say: the later word counts.
                    let at = clock::wall().max(Wall(held.created.map_or(0, |created| created.0 + 1)));
                    self.revoke_here(id, (end, at), by, deed).await?;
                }
                Err(Change::OnlyHere)
            }
            Err(change) => Err(change),
        }
    }

    async fn revoke_here(
        &self,
        id: &TenantId,
        (end, at): (TenantChange, Wall),
        by: &By,
        deed: Deed,
    ) -> Result<Wall, Change> {
        let change = Record::TenantChange(TenantRecord { time: at, tenant: id.clone(), change: end });
        self.accept(&[change, record(by, deed)])?;
        self.renew_keys();
        self.confirmed().await.map(|()| at)
    }

    /// Adds money on top of a tenant's budget; whether this very credit had been given before.
    ///
    /// # Errors
    /// [`Change::Conflict`] for another amount under a key that was used, [`Change::Value`] for an amount that is none.
    ///
    /// # Cancel safety
    /// The credit is given or not, never half.
    pub async fn credit(&self, by: &By, id: &TenantId, amount: Money, key: &str) -> Result<bool, Change> {
        self.catch_up_now().await?;
        let tenant = self.tenant(id)?;
        let before = tenant.board.remaining();
        match self.place_credit(&tenant, amount, key).await {
            Ok(Ok(CreditOutcome::Applied)) => {}
            Ok(Ok(CreditOutcome::Repeated)) => return Ok(true),
            Ok(Ok(CreditOutcome::Conflict)) => {
                let message = format!("the idempotency key {key:?} was used for another amount; use a new one");
                return Err(Change::Conflict(message));
            }
            Ok(Ok(CreditOutcome::Refused)) => {
                return Err(Change::Value("amount", "must be above zero, and the sum must stay countable".to_owned()));
            }
            Ok(Err(_)) | Err(_) => return Err(Change::NotKept),
        }
        let after = tenant.board.remaining();
        self.note(
            by,
            Deed {
                action: "credit",
                subject: id.to_string(),
                before: json!({ "remaining": before }),
                after: json!({ "remaining": after, "amount": amount, "idempotency_key": key }),
            },
        );
        self.confirmed().await.map(|()| false)
    }

    /// Puts the journal's word on keys in force.
    fn renew_keys(&self) {
        let before = self.running.load_full();
        self.running.store(Arc::new(self.parts.with_tenants(&before, before.tenants.clone())));
    }

    async fn place_credit(
        &self,
        tenant: &TenantRuntime,
        amount: Money,
        key: &str,
    ) -> Result<Result<CreditOutcome, NotKept>, MailboxError> {
        if let Some(shared) = &tenant.shared {
            return Ok(shared.ledger.credit(&shared.account, amount, key).await.map_err(|_down| NotKept));
        }
        tenant.ledger.send(Credit { amount, idempotency_key: key.to_owned() }).await
    }

    fn tenant(&self, id: &TenantId) -> Result<Arc<TenantRuntime>, Change> {
        let unknown = || Change::Unknown(format!("there is no tenant {:?}", id.as_str()));
        self.running.load().tenants.get(id).cloned().ok_or_else(unknown)
    }
}

fn change_of(tenant: &TenantId, change: TenantChange) -> Record {
    Record::TenantChange(TenantRecord { time: clock::wall(), tenant: tenant.clone(), change })
}
