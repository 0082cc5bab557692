//! From a parsed body to a [`Call`]: which model, which width, which class, what it may cost. Refuses everything that
//! can be refused without asking anyone.

use std::sync::Arc;

use crate::config::plan::{Matryoshka, ModelKind, Normalization, Stage};
use crate::dialects::client::{AnswerForm, ParsedEmbed};
use crate::dialects::{ClientDialect, EmbedOptions, Input, OriginalBody};
use crate::edge::body::BodyShare;
use crate::edge::scan::Item;
use crate::error::{ApiError, Code};
use crate::ids::{KeyFingerprint, RequestId};
use crate::pure::class::{self, ClassInputs, Classified, TrafficClass, classify};
use crate::pure::migration::Spot;
use crate::pure::time::Mono;
use crate::pure::token_estimate::{Density, Estimate, Sample};
use crate::runtime::collections::{CollectionRuntime, Wanted};
use crate::runtime::{ModelRuntime, Running, TenantRuntime};
use crate::telemetry::traces::RequestTrace;
use crate::tokens;

use super::plan;
use super::rerank::RerankTask;

/// What the edge knows of a request besides its body.
#[derive(Clone)]
pub struct Context {
    /// The configuration this request sees to its end.
    pub running: Arc<Running>,
    /// Its id.
    pub request_id: RequestId,
    /// Whose it is.
    pub tenant: Arc<TenantRuntime>,
    /// By which key.
    pub key: KeyFingerprint,
    /// When its first byte was seen.
    pub started: Mono,
    /// When its client stops waiting, if it said so; nothing is tried again after that.
    pub deadline: Option<Mono>,
    /// Whose words it speaks.
    pub dialect: ClientDialect,
    /// `X-Traffic-Class`.
    pub asked_class: Option<String>,
    /// The collection it belongs to: of `X-Collection`, or asked for by its name as the model.
    pub collection: Option<String>,
    /// `Cache-Control: no-cache`: skip the look-up, still store.
    pub no_cache: bool,
    /// `Cache-Control: no-store`: look up, store nothing.
    pub no_store: bool,
    /// Its place in a distributed trace.
    pub trace: Arc<RequestTrace>,
}

/// A request that is acceptable.
pub struct Call {
    /// What the edge knows.
    pub context: Context,
    /// Its class.
    pub class: TrafficClass,
    /// Whether its class is another than it asked for.
    pub demoted: bool,
    /// The model.
    pub model: Arc<ModelRuntime>,
    /// What the scanner found of each input (for rerank: of each document), in the client's order.
    pub items: Vec<Item>,
    /// What is to be done with them.
    pub task: Task,
    /// How inputs (for rerank: the query) are folded before they are looked up.
    pub normalization: Normalization,
    /// How dense its texts are in tokens.
    pub density: Density,
    /// Keeps the body's share of the memory budget.
    pub share: BodyShare,
}

/// What a request asks for.
pub enum Task {
    /// A vector for each input.
    Embed(EmbedTask),
    /// A score for each document.
    Rerank(RerankTask),
}

/// Inputs to embed.
pub struct EmbedTask {
    /// The inputs in order, one for each of the call's items.
    pub inputs: Vec<Input>,
    /// Whether the client gave one bare input.
    pub single: bool,
    /// Width of the answer; `None`: the native width, which is not known yet.
    pub width: Option<u32>,
    /// Width to ask upstreams for; `None`: their own.
    pub asked_width: Option<u32>,
    /// How the client wants its answer written.
    pub form: AnswerForm,
    /// All else that changes a vector.
    pub options: EmbedOptions,
    /// The client's body, for upstreams of the same dialect.
    pub original: OriginalBody,
    /// The client wants the first input compared with the others instead of the vectors (TEI).
    pub similarity: bool,
}

impl Call {
    /// What it is called in logs and traces.
    pub fn operation(&self) -> &'static str {
        match self.task {
            Task::Embed(_) => "embeddings",
            Task::Rerank(_) => "rerank",
        }
    }

    /// Tokens of one input, or of one document together with the query, as this model's providers have counted so far.
    pub fn estimate(&self, index: usize) -> Estimate {
        self.model.correct(self.uncorrected(index))
    }

    /// The same without what was learned.
    pub fn uncorrected(&self, index: usize) -> Estimate {
        let tokenizer = self.model.plan.tokenizer;
        let of = |item: &Item| item.estimate(tokenizer).dense(self.density);
        let own = of(&self.items[index]);
        match &self.task {
            Task::Embed(_) => own,
            Task::Rerank(rerank) => own.plus(of(&rerank.query_item)),
        }
    }

    /// Whether the answer to one input is the same whatever stands beside it: only then may inputs be told apart, that
    /// is split over calls, folded and cached.
    pub fn items_stand_alone(&self) -> bool {
        match &self.task {
            Task::Embed(embed) => !embed.options.late_chunking,
            Task::Rerank(_) => self.model.plan.pairwise,
        }
    }

    /// Bytes that one input takes in a call's body.
    pub fn raw_bytes(&self, index: usize) -> u64 {
        let bytes = match &self.task {
            Task::Embed(embed) => embed.inputs[index].len(),
            Task::Rerank(rerank) => rerank.documents[index].raw().len(),
        };
        bytes as u64 + 1
    }
}

/// The class of a request of so many items.
///
/// # Errors
/// `X-Traffic-Class` names no class.
pub fn classified(
    context: &Context,
    route: class::Route,
    items: usize,
    service_tier: Option<&str>,
) -> Result<Classified, ApiError> {
    let quota = &context.running.plan.quota;
    classify(ClassInputs {
        tenant_class: context.tenant.plan.class,
        header: context.asked_class.as_deref(),
        service_tier,
        route,
        items,
        over: quota.classify_batch_over_inputs,
        interactive_max: quota.interactive_max_inputs,
    })
    .map_err(|unknown| ApiError::new(Code::UnknownParameterValue, unknown.to_string()).param("X-Traffic-Class"))
}

/// The density of a request's texts where tokens are limited; elsewhere nobody needs it, and it is not free.
pub fn density(context: &Context, model: &ModelRuntime, sample: &Sample) -> Density {
    match model.tokens_limited || context.tenant.plan.tpm.is_some() {
        true => tokens::density(model.plan.tokenizer, sample),
        false => Density::default(),
    }
}

/// The model that a request names, or, where its dialect lets it name none, the only one of that kind that the tenant
/// may use.
///
/// # Errors
/// It is unknown, not allowed or of another kind; none is named and there are several, or none.
pub fn model(context: &Context, name: Option<&str>, kind: ModelKind) -> Result<Arc<ModelRuntime>, ApiError> {
    match name {
        Some(name) => context.running.model_for(&context.tenant, name, kind),
        None => context.running.only_model(&context.tenant, kind),
    }
}

/// Makes a [`Call`] for vectors.
///
/// # Errors
/// The model is unknown, not allowed or of another kind; it and the collection contradict each other; the width is not
/// one of its widths; the class is unknown.
pub fn embed(
    mut context: Context,
    parsed: ParsedEmbed,
    similarity: bool,
    items: Vec<Item>,
    sample: &Sample,
    share: BodyShare,
) -> Result<Call, ApiError> {
    let wanted = context.running.wanted(&context.tenant, parsed.model.as_deref(), context.collection.as_deref())?;
    let tier = service_tier(&parsed.original);
    let classified = classified(&context, class::Route::Embed, items.len(), tier.as_deref())?;
    let (model, (width, asked_width)) = match wanted {
        Wanted::Model(model) => {
            let widths = widths(&model, parsed.dimensions)?;
            (model, widths)
        }
        Wanted::Collection(collection) => {
            // A request that named the collection as its model belongs to it as much as one with the header.
            context.collection = Some(collection.plan.name.clone());
            let spot = spot(&collection, parsed.inputs.first(), items.first());
            let model = context.running.model_of(&collection, classified.class, spot)?;
            let widths = widths(&model, parsed.dimensions)
                .map_err(|error| of_collection(error, &collection, &model, classified.class))?;
            (model, widths)
        }
    };
    if let Some(limit) = model.plan.max_input_tokens {
        check_token_lists(&items, limit)?;
    }
    let cache = &context.running.plan.cache;
    let normalization =
        if classified.class.is_interactive() { cache.normalize_queries } else { cache.normalize_documents };
    let mut options = parsed.options;
    if model.plan.symmetric {
        // What the text is for changes nothing, so no upstream has to be told, and a hit is a hit for all.
        (options.input_type, options.task) = (None, None);
    }
    let task = EmbedTask {
        inputs: parsed.inputs,
        single: parsed.single,
        width,
        asked_width,
        form: parsed.form,
        options,
        original: parsed.original,
        similarity,
    };
    let (class, demoted) = (classified.class, classified.demoted);
    let density = density(&context, &model, sample);
    Ok(Call { context, class, demoted, model, items, task: Task::Embed(task), normalization, density, share })
}

/// The place of a request's query: that of its first input, so that a question and its variants, sent as one request,
/// stay together. Case and surrounding white space move nobody; the settings of the cache have no say in it.
fn spot(collection: &CollectionRuntime, input: Option<&Input>, item: Option<&Item>) -> Spot {
    let Some(item) = item else { return Spot::of(&collection.plan.name, &[0; 32]) };
    // Only a canary looks at it, and its queries are small: reading one back from disk blocks nobody.
    let input = input.filter(|_| collection.position.stage == Stage::Canary);
    let loaded = input.and_then(|input| input.load_blocking().ok());
    let digest = loaded.map_or(item.digest, |input| plan::digest(input.raw(), item, Normalization::Lowercase));
    Spot::of(&collection.plan.name, &digest)
}

/// An error about the model that a collection's stage chose, which the client did not name.
fn of_collection(
    error: ApiError,
    collection: &CollectionRuntime,
    model: &ModelRuntime,
    class: TrafficClass,
) -> ApiError {
    let message = format!(
        "{}; the collection {:?} is at stage {:?}, where {class} has vectors of {:?}",
        error.message,
        collection.plan.name,
        collection.position.stage.as_str(),
        model.plan.name.as_str()
    );
    ApiError { message: message.into(), ..error }
}

/// `service_tier` of the body, a hint at the class.
fn service_tier(original: &OriginalBody) -> Option<String> {
    let (_, range) = original.members.iter().find(|(name, _)| name == "service_tier")?;
    serde_json::from_slice(original.body.get(range.clone())?).ok()
}

/// The width of the answer, and the width to ask upstreams for.
fn widths(model: &ModelRuntime, asked: Option<u32>) -> Result<(Option<u32>, Option<u32>), ApiError> {
    let plan = &model.plan;
    let native = model.native_width();
    let unsupported = |message: String| ApiError::new(Code::UnsupportedDimensions, message).param("dimensions");
    if let Some(enforced) = plan.enforce_dimensions {
        return match asked {
            Some(asked) if asked != enforced => Err(unsupported(format!(
                "every vector of {:?} has {enforced} dimensions here (enforce_dimensions); {asked} were asked for",
                plan.name.as_str()
            ))),
            _ => Ok((Some(enforced), (native != Some(enforced)).then_some(enforced))),
        };
    }
    match asked {
        None => Ok((native, None)),
        Some(asked) if native == Some(asked) => Ok((native, Some(asked))),
        Some(asked) if may_ask(&plan.matryoshka, asked, native) => Ok((Some(asked), Some(asked))),
        Some(asked) => Err(unsupported(format!(
            "{:?} has no vectors of {asked} dimensions: {}",
            plan.name.as_str(),
            allowed_widths(model)
        ))),
    }
}

/// Whether an upstream can be asked for that width: a listed one, or one of a range up to the native width.
fn may_ask(matryoshka: &Matryoshka, asked: u32, native: Option<u32>) -> bool {
    let listed = matches!(matryoshka, Matryoshka::Widths(_));
    matryoshka.allows(asked) && (listed || native.is_none_or(|native| asked <= native))
}

fn allowed_widths(model: &ModelRuntime) -> String {
    let native = model.native_width().map_or_else(|| "its native width".to_owned(), |width| width.to_string());
    match &model.plan.matryoshka {
        Matryoshka::None => format!("only {native} is supported"),
        Matryoshka::Range { min, max } => format!("{min} to {max} are supported"),
        Matryoshka::Widths(widths) => {
            let list: Vec<String> = widths.iter().map(u32::to_string).collect();
            format!("{} and {native} are supported", list.join(", "))
        }
    }
}

/// Token lists have an exact length, so one that is too long is refused before anything is called.
fn check_token_lists(items: &[Item], limit: u32) -> Result<(), ApiError> {
    let too_long = items.iter().enumerate().find(|(_, item)| item.tokens > limit);
    match too_long {
        None => Ok(()),
        Some((index, item)) => Err(ApiError::new(
            Code::InvalidInput,
            format!("input[{index}] has {} tokens; the model takes at most {limit}", item.tokens),
        )
        .param("input")),
    }
}
