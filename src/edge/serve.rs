//! One request of any client dialect: read, parse, take the journey, render. Which dialect and which task a path stands
//! for is the route table's to know.

use std::rc::Rc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::config::plan::ModelKind;
use crate::dialects::{ClientDialect, client};
use crate::error::{ApiError, Code};
use crate::ids::ModelName;
use crate::journey::classify::{self, Call, Context};
use crate::journey::settle::Finished;
use crate::journey::{self, rerank};
use crate::lifecycle::InFlight;
use crate::worker::Worker;

use super::body::{self, BodyLimits, Overflow, ScannedBody};
use super::outlive::{Panicked, outlive};
use super::request::{self, Arrival};
use super::respond;
use super::routes::{Entry, Op};
use super::scan::ScanLimits;
use super::stream::Held;

/// Answers a POST of the route table.
pub async fn post(http: HttpRequest, mut payload: Payload, entry: Entry) -> HttpResponse {
    let mut dialect = entry.dialect_of(http.headers());
    let worker = match super::worker(&http) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&http, dialect, &error),
    };
    let present = worker.crowd.enter();
    let arrival = request::arrive(&worker, &http);
    match answer(&worker, &http, &mut payload, entry, &mut dialect, arrival.clone()).await {
        Ok((finished, in_flight)) => respond::answer(finished, Held { present, in_flight }),
        Err(error) => {
            let (operation, class) = entry.op.stands_for();
            request::refused(&worker, &arrival, operation, class, &error);
            respond::error(dialect, &arrival.request_id, Some(arrival.trace.id()), &error)
        }
    }
}

async fn answer(
    worker: &Rc<Worker>,
    http: &HttpRequest,
    payload: &mut Payload,
    entry: Entry,
    dialect: &mut ClientDialect,
    arrival: Arrival,
) -> Result<(Finished, InFlight), ApiError> {
    let (context, in_flight) = request::enter(worker, http, arrival, *dialect).await?;
    let incoming = Incoming { http, payload, worker, context };
    let named = super::routes::model_of(http)?;
    let call = match incoming.op(entry.op, named.as_deref()) {
        Op::Embed => incoming.embed(named).await?,
        Op::Rerank { shared } => incoming.rerank(named, shared, dialect).await?,
        Op::Similarity => incoming.similarity(named, true).await?,
        Op::Root => incoming.similarity(named, false).await?,
    };
    run(Rc::clone(worker), call, in_flight).await
}

/// A request whose body is still to be read.
struct Incoming<'a> {
    http: &'a HttpRequest,
    payload: &'a mut Payload,
    worker: &'a Rc<Worker>,
    context: Context,
}

impl Incoming<'_> {
    /// TEI's root path does what the model is for.
    fn op(&self, op: Op, named: Option<&str>) -> Op {
        let kind = named.and_then(|name| {
            let model = self.context.running.models.get(&ModelName::from(name))?;
            Some(model.plan.kind)
        });
        match (op, kind) {
            (Op::Root, Some(ModelKind::Rerank)) => Op::Rerank { shared: false },
            _ => op,
        }
    }

    /// The body in memory.
    async fn read(&mut self, fields: &'static [&'static str], limits: ScanLimits) -> Result<ScannedBody, ApiError> {
        self.read_or(fields, limits, Overflow::Refuse).await
    }

    async fn read_or(
        &mut self,
        fields: &'static [&'static str],
        limits: ScanLimits,
        overflow: Overflow,
    ) -> Result<ScannedBody, ApiError> {
        let server = &self.context.running.plan.server;
        let _stage = self.context.trace.stage("receive");
        let body_limits = BodyLimits { max_bytes: server.max_body_bytes, idle: server.body_timeout };
        let budget = &self.worker.gateway.bodies;
        body::read(self.http, self.payload, (fields, limits), body_limits, budget, overflow).await
    }

    async fn embed(mut self, named: Option<String>) -> Result<Call, ApiError> {
        let dialect = self.context.dialect;
        let overflow = match client::may_spool(dialect) {
            true => Overflow::Spool(self.context.running.plan.server.spool_dir.clone()),
            false => Overflow::Refuse,
        };
        let scanned = self.read_or(client::item_fields(dialect), client::scan_limits(dialect), overflow).await?;
        embed_call(self.context, scanned, named, false)
    }

    /// `only`: whether nothing but a comparison is meant; else texts to embed may stand there, too.
    async fn similarity(mut self, named: Option<String>, only: bool) -> Result<Call, ApiError> {
        let dialect = self.context.dialect;
        let whole = self.read(&[], ScanLimits::default()).await?;
        let compares = whole.scan.raw(&whole.bytes, "inputs").is_some_and(|raw| raw.first() == Some(&b'{'));
        let similarity = only || compares;
        let bytes: Bytes = if similarity { client::similarity_as_embed(&whole.bytes)? } else { whole.bytes.clone() };
        let scanned = whole.again(bytes, client::item_fields(dialect), client::scan_limits(dialect))?;
        embed_call(self.context, scanned, named, similarity)
    }

    async fn rerank(
        mut self,
        named: Option<String>,
        shared: bool,
        dialect: &mut ClientDialect,
    ) -> Result<Call, ApiError> {
        let mut scanned = self.read(client::RERANK_ITEM_FIELDS, client::rerank_scan_limits()).await?;
        if shared {
            *dialect = client::rerank_dialect(&scanned.scan, *dialect);
            self.context.dialect = *dialect;
        }
        let _stage = self.context.trace.stage("classify");
        let mut parsed = client::parse_rerank(*dialect, &scanned.scan, &scanned.bytes)?;
        parsed.model = named.or(parsed.model);
        let items = scanned.scan.take_items(&[parsed.field]);
        let query = scanned.scan.take_items(&["query"]).pop();
        let query = query.ok_or_else(|| ApiError::new(Code::InvalidInput, "`query` is missing").param("query"))?;
        rerank::call(self.context, parsed, query, items, &scanned.scan.sample, scanned.share)
    }
}

/// The model in the path wins over one in the body: it is what the client was configured with.
fn embed_call(
    context: Context,
    mut scanned: ScannedBody,
    named: Option<String>,
    similarity: bool,
) -> Result<Call, ApiError> {
    let _stage = context.trace.stage("classify");
    let dialect = context.dialect;
    let mut parsed = client::parse_embed(dialect, &scanned.scan, &scanned.bytes)?;
    parsed.model = named.or(parsed.model);
    let items = scanned.scan.take_items(client::item_fields(dialect));
    classify::embed(context, parsed, similarity, items, &scanned.scan.sample, scanned.share)
}

/// Takes the journey to its end: a client that leaves drops this future, and the journey learns of it through the token
/// instead of being cut.
async fn run(worker: Rc<Worker>, call: Call, in_flight: InFlight) -> Result<(Finished, InFlight), ApiError> {
    let gone = CancellationToken::new();
    let leaving = gone.clone().drop_guard();
    let finished = outlive(Box::pin(async move { (journey::serve(worker, call, gone).await, in_flight) })).await;
    leaving.disarm();
    finished.map_err(|Panicked| ApiError::new(Code::Internal, "the request hit a fault of the gateway"))
}
