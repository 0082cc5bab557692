//! `[[models]]`: kinds, widths, prices, fallbacks.

use std::collections::HashMap;
use std::sync::Arc;

use super::sections::{self, MoneyRules};
use crate::config::catalogue;
use crate::config::fields::Fields;
use crate::config::plan::{Case, Matryoshka, Model, ModelKind, Prices, Slo, Tokenizer};
use crate::config::problem::{Report, nearest};
use crate::config::schema::MODEL_SLO;
use crate::config::tree::{Node, Value};
use crate::ids::{ModelName, SpaceId};
use crate::pure::utc;

/// A model and where it is written.
pub(super) struct ModelEntry<'a> {
    pub model: Arc<Model>,
    pub fields: Fields<'a>,
}

/// Finds the entry of that name.
pub(super) fn find<'a, 'b>(models: &'b [ModelEntry<'a>], name: &str) -> Option<&'b ModelEntry<'a>> {
    models.iter().find(|entry| entry.model.name.as_str() == name)
}

/// What to do about a name that no model has.
pub(super) fn unknown_model_hint(models: &[ModelEntry], name: &str) -> String {
    match nearest(name, models.iter().map(|entry| entry.model.name.as_str())) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("add [[models]] name = \"{name}\""),
    }
}

pub(super) fn build<'a>(
    entries: &[Fields<'a>],
    money: &MoneyRules,
    slo: &Slo,
    report: &mut Report,
) -> Vec<ModelEntry<'a>> {
    let mut models: Vec<ModelEntry> = Vec::new();
    for fields in entries {
        let Some(name) = fields.opt_text("name") else { continue };
        if find(&models, name).is_some() {
            fields.problem(report, "name", format!("the model \"{name}\" is there twice"), "remove one, or rename it");
            continue;
        }
        let model = Arc::new(model(name, fields, (money, slo), report));
        models.push(ModelEntry { model, fields: fields.clone() });
    }
    for entry in &models {
        check_fallbacks(entry, &models, report);
    }
    check_spaces(&models, report);
    models
}

fn model(name: &str, fields: &Fields, (money, slo): (&MoneyRules, &Slo), report: &mut Report) -> Model {
    let kind = match fields.text("kind") {
        "rerank" => ModelKind::Rerank,
        "chat" => ModelKind::Chat,
        _ => ModelKind::Embedding,
    };
    let dimensions: Option<u32> = fields.int_unless_zero("dimensions");
    let matryoshka = fields.value("matryoshka").map_or(Matryoshka::None, matryoshka);
    let enforce_dimensions: Option<u32> = fields.int_unless_zero("enforce_dimensions");
    if kind == ModelKind::Embedding {
        check_widths(fields, dimensions, &matryoshka, enforce_dimensions, report);
    } else {
        for key in ["dimensions", "matryoshka", "enforce_dimensions", "space"] {
            if fields.has(key) {
                fields.problem(report, key, "only embedding models have one", "remove it");
            }
        }
    }
    let retires = fields.opt_text("retires").and_then(|date| {
        let day = utc::parse_day(date);
        match day {
            Some(_) => fields.warning(report, "retires", format!("the provider retires it on {date}")),
            None => fields.problem(report, "retires", format!("\"{date}\" is no day"), "write it like 2027-01-31"),
        }
        day
    });
    if let Some(near) = catalogue::suggest(name).filter(|_| !catalogue::knows(name)) {
        let text = format!("\"{name}\" is not in the catalogue, so nothing is known of it; did you mean \"{near}\"?");
        fields.warning(report, "name", text);
    }
    Model {
        name: ModelName::from(name),
        kind,
        space: SpaceId::from(fields.opt_text("space").unwrap_or(name)),
        dimensions,
        matryoshka,
        enforce_dimensions,
        max_input_tokens: fields.int_unless_zero("max_input_tokens"),
        max_output_tokens: fields.int_unless_zero("max_output_tokens"),
        tokenizer: match fields.text("tokenizer") {
            "cl100k" => Tokenizer::Cl100k,
            "o200k" => Tokenizer::O200k,
            "bytes" => Tokenizer::Bytes,
            _ => Tokenizer::Unknown,
        },
        case: match fields.text("case") {
            "folded" => Case::Folded,
            "kept" => Case::Kept,
            _ => Case::Unknown,
        },
        symmetric: fields.flag("symmetric"),
        prices: prices(fields, money, report),
        pairwise: fields.flag("pairwise"),
        fallbacks: fields.texts("fallbacks").iter().map(|(name, _)| ModelName::from(*name)).collect(),
        retires,
        slo: match fields.table("slo", MODEL_SLO) {
            Some(own) => sections::slo_with(slo, &own, kind, report),
            None => slo.clone(),
        },
    }
}

/// The prices that `fields` states.
pub(super) fn prices(fields: &Fields, money: &MoneyRules, report: &mut Report) -> Prices {
    Prices {
        input: money.price(fields, "price_usd_per_million_tokens", 1_000_000, report),
        output: money.price(fields, "output_price_usd_per_million_tokens", 1_000_000, report),
        search: money.price(fields, "price_usd_per_thousand_searches", 1_000, report),
    }
}

fn matryoshka(value: &Value) -> Matryoshka {
    let width = |node: &Node| match node.value {
        Value::Int(width) => u32::try_from(width).ok(),
        _ => None,
    };
    match value {
        Value::List(list) if list.is_empty() => Matryoshka::None,
        Value::List(list) => {
            let mut widths: Vec<u32> = list.iter().filter_map(width).collect();
            widths.sort_unstable();
            widths.dedup();
            Matryoshka::Widths(widths)
        }
        Value::Table(range) => match (range.get("min").and_then(width), range.get("max").and_then(width)) {
            (Some(min), Some(max)) => Matryoshka::Range { min, max },
            _ => Matryoshka::None,
        },
        _ => Matryoshka::None,
    }
}

fn check_widths(
    fields: &Fields,
    dimensions: Option<u32>,
    matryoshka: &Matryoshka,
    enforce: Option<u32>,
    report: &mut Report,
) {
    if let Matryoshka::Range { min, max } = matryoshka
        && min > max
    {
        fields.problem(report, "matryoshka", format!("min {min} is more than max {max}"), "swap them");
    }
    let widest = match matryoshka {
        Matryoshka::None => None,
        // A list with the native width in its midst is that of a provider which makes wider vectors when asked to.
        Matryoshka::Widths(widths) if dimensions.is_some_and(|native| widths.contains(&native)) => None,
        Matryoshka::Widths(widths) => widths.last().copied(),
        Matryoshka::Range { max, .. } => Some(*max),
    };
    if let (Some(native), Some(widest)) = (dimensions, widest)
        && widest > native
    {
        let what = format!("{widest} is wider than the model's {native} dimensions");
        fields.problem(report, "matryoshka", what, format!("a vector can only be cut: at most {native}"));
    }
    let Some(width) = enforce else { return };
    if Some(width) == dimensions || matryoshka.allows(width) {
        return;
    }
    let allowed = match (matryoshka, dimensions) {
        (Matryoshka::None, None) => "state `dimensions` and `matryoshka` of this model".to_owned(),
        (Matryoshka::None, Some(native)) => format!("this model has {native} dimensions and cannot be cut"),
        (Matryoshka::Widths(widths), _) => format!("it can be cut to {widths:?}"),
        (Matryoshka::Range { min, max }, _) => format!("it can be cut to {min} up to {max}"),
    };
    fields.problem(
        report,
        "enforce_dimensions",
        format!("vectors of this model cannot have {width} dimensions"),
        allowed,
    );
}

fn check_fallbacks(entry: &ModelEntry, models: &[ModelEntry], report: &mut Report) {
    let ModelEntry { model, fields } = entry;
    if model.fallbacks.is_empty() {
        return;
    }
    if model.kind != ModelKind::Chat {
        let what = if model.kind == ModelKind::Embedding {
            "an embedding model has no fallbacks: another model's vectors lie in another space"
        } else {
            "only chat models have fallbacks: scores of two rerankers cannot be compared"
        };
        let right = "remove it; a mirror of the same weights is another upstream, or a model with the same `space`";
        fields.problem(report, "fallbacks", what, right);
    }
    for (name, at) in fields.texts("fallbacks") {
        let path = fields.path.key("fallbacks");
        match find(models, name) {
            _ if name == model.name.as_str() => {
                report.problem(&at, &path, format!("\"{name}\" is the model itself"), "remove it")
            }
            None => {
                report.problem(&at, &path, format!("no model is called \"{name}\""), unknown_model_hint(models, name));
            }
            Some(other) if model.kind == ModelKind::Chat && other.model.kind != ModelKind::Chat => {
                report.problem(&at, &path, format!("\"{name}\" is not a chat model"), "name a chat model");
            }
            Some(_) => {}
        }
    }
}

/// Models of one space answer for each other, so each must be able to make vectors of the others' width.
fn check_spaces(models: &[ModelEntry], report: &mut Report) {
    let mut first: HashMap<&str, &ModelEntry> = HashMap::new();
    for entry in models.iter().filter(|entry| entry.model.kind == ModelKind::Embedding) {
        let space = entry.model.space.as_str();
        let Some(other) = first.get(space) else {
            first.insert(space, entry);
            continue;
        };
        if let (Some(mine), Some(theirs)) = (leaving_width(&entry.model), leaving_width(&other.model))
            && !can_make(&entry.model, theirs)
            && !can_make(&other.model, mine)
        {
            let what =
                format!("{mine} dimensions, but \"{}\" of the same space \"{space}\" has {theirs}", other.model.name);
            let right = "give them spaces of their own, or the same `enforce_dimensions`";
            entry.fields.problem(report, "space", what, right);
        }
    }
}

fn leaving_width(model: &Model) -> Option<u32> {
    model.enforce_dimensions.or(model.dimensions)
}

fn can_make(model: &Model, width: u32) -> bool {
    match model.enforce_dimensions {
        Some(enforced) => enforced == width,
        None => model.dimensions == Some(width) || model.matryoshka.allows(width),
    }
}
