//! Owns the traffic classes and the rule by which a request gets one. Refuses to know what a class then means for queues
//! and quota.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a request is for; decides its queue, its share of the quota and its objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficClass {
    /// A person waits for search results.
    InteractiveSearch,
    /// Documents are being indexed.
    BatchIngestion,
    /// Results are being re-ordered; a person waits.
    Rerank,
    /// Generative traffic passing through the same door.
    Chat,
}

impl TrafficClass {
    /// Every class, in the order of reports.
    pub const ALL: [TrafficClass; 4] =
        [TrafficClass::InteractiveSearch, TrafficClass::BatchIngestion, TrafficClass::Rerank, TrafficClass::Chat];

    /// The name in headers, records and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            TrafficClass::InteractiveSearch => "interactive-search",
            TrafficClass::BatchIngestion => "batch-ingestion",
            TrafficClass::Rerank => "rerank",
            TrafficClass::Chat => "chat",
        }
    }

    /// The class of that name, if there is one.
    pub fn parse(text: &str) -> Option<TrafficClass> {
        TrafficClass::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// Whether a search waits for the answer, which can do without: lexical results take its place.
    pub const fn is_search(self) -> bool {
        matches!(self, TrafficClass::InteractiveSearch | TrafficClass::Rerank)
    }

    /// Whether a person waits for the answer.
    pub const fn is_interactive(self) -> bool {
        !matches!(self, TrafficClass::BatchIngestion)
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a route is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Texts to vectors.
    Embed,
    /// Query and documents to scores.
    Rerank,
    /// Messages to text.
    Chat,
}

/// Everything that has a say in a request's class.
#[derive(Debug, Clone, Copy)]
pub struct ClassInputs<'a> {
    /// The class of the key's tenant.
    pub tenant_class: Option<TrafficClass>,
    /// The value of `X-Traffic-Class`.
    pub header: Option<&'a str>,
    /// `service_tier` of the body.
    pub service_tier: Option<&'a str>,
    /// What the route is for.
    pub route: Route,
    /// Input texts (for rerank: documents).
    pub items: usize,
    /// With no class given, more items than this is batch.
    pub over: usize,
    /// More items than this is batch whatever was said; not for rerank, where a query has many documents by nature.
    pub interactive_max: usize,
}

/// The class applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classified {
    /// The class.
    pub class: TrafficClass,
    /// Whether another one was asked for, and the size of the request overruled it.
    pub demoted: bool,
}

/// `X-Traffic-Class` names no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownClass;

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("X-Traffic-Class must be one of interactive-search, batch-ingestion, rerank")
    }
}

impl std::error::Error for UnknownClass {}

/// The class of a request: the tenant's own, else the header's, else the hint of `service_tier`, else by route and size.
/// Bulk disguised as interactive is demoted, whoever vouched for it.
///
/// # Errors
/// [`UnknownClass`] when the header names no class, even if the tenant's own class would win: a client with a typing error
/// should learn of it.
pub fn classify(inputs: ClassInputs<'_>) -> Result<Classified, UnknownClass> {
    let header = inputs.header.map(str::trim).filter(|header| !header.is_empty());
    let header = header.map(|header| by_header(header, inputs.route).ok_or(UnknownClass)).transpose()?;
    let asked = inputs.tenant_class.or(header).or_else(|| by_service_tier(inputs));
    let class = asked.unwrap_or_else(|| by_route(inputs.route, inputs.items > inputs.over));
    // Chat and rerank keep their name: their size is not a number of texts to index.
    let bulk = inputs.route == Route::Embed && inputs.items > inputs.interactive_max && class.is_interactive();
    let class = match inputs.route {
        _ if bulk => TrafficClass::BatchIngestion,
        // Whoever waits for a chat waits for no search: its objectives are others, and words do not take its place.
        Route::Chat if class.is_interactive() => TrafficClass::Chat,
        _ => class,
    };
    Ok(Classified { class, demoted: bulk && asked.is_some() })
}

fn by_header(header: &str, route: Route) -> Option<TrafficClass> {
    let class = TrafficClass::parse(&header.to_ascii_lowercase());
    class.filter(|class| *class != TrafficClass::Chat || route == Route::Chat)
}

fn by_service_tier(inputs: ClassInputs<'_>) -> Option<TrafficClass> {
    match inputs.service_tier {
        Some("flex") => Some(TrafficClass::BatchIngestion),
        Some("priority") => Some(by_route(inputs.route, false)),
        Some(_) | None => None,
    }
}

fn by_route(route: Route, many: bool) -> TrafficClass {
    match (route, many) {
        (Route::Rerank, _) => TrafficClass::Rerank,
        (Route::Chat, _) => TrafficClass::Chat,
        (Route::Embed, false) => TrafficClass::InteractiveSearch,
        (Route::Embed, true) => TrafficClass::BatchIngestion,
    }
}

#[cfg(test)]
mod tests {
    use super::TrafficClass::{BatchIngestion, Chat, InteractiveSearch, Rerank};
    use super::*;

    const EMBED: ClassInputs<'_> = ClassInputs {
        tenant_class: None,
        header: None,
        service_tier: None,
        route: Route::Embed,
        items: 1,
        over: 16,
        interactive_max: 64,
    };

    #[track_caller]
    fn check(inputs: ClassInputs<'_>, class: TrafficClass, demoted: bool) {
        assert_eq!(classify(inputs), Ok(Classified { class, demoted }), "{inputs:?}");
    }

    #[test]
    fn key_then_header_then_hint_then_route_then_size() {
        check(EMBED, InteractiveSearch, false);
        check(ClassInputs { items: 16, ..EMBED }, InteractiveSearch, false);
        check(ClassInputs { items: 17, ..EMBED }, BatchIngestion, false);
        check(ClassInputs { items: 500, ..EMBED }, BatchIngestion, false);
        check(ClassInputs { service_tier: Some("flex"), ..EMBED }, BatchIngestion, false);
        check(ClassInputs { service_tier: Some("priority"), items: 30, ..EMBED }, InteractiveSearch, false);
        check(ClassInputs { service_tier: Some("auto"), items: 30, ..EMBED }, BatchIngestion, false);
        check(
            ClassInputs { header: Some("batch-ingestion"), service_tier: Some("priority"), ..EMBED },
            BatchIngestion,
            false,
        );
        check(ClassInputs { header: Some(" Interactive-Search "), items: 30, ..EMBED }, InteractiveSearch, false);
        check(ClassInputs { header: Some(""), ..EMBED }, InteractiveSearch, false);
        let ingest = ClassInputs { tenant_class: Some(BatchIngestion), header: Some("interactive-search"), ..EMBED };
        check(ingest, BatchIngestion, false);
        check(ClassInputs { route: Route::Rerank, items: 1_000, ..EMBED }, Rerank, false);
        check(ClassInputs { route: Route::Chat, ..EMBED }, Chat, false);
        check(ClassInputs { route: Route::Chat, service_tier: Some("priority"), ..EMBED }, Chat, false);
        check(ClassInputs { route: Route::Rerank, header: Some("batch-ingestion"), ..EMBED }, BatchIngestion, false);
        for header in ["chat", "interactive-search", "rerank"] {
            check(ClassInputs { route: Route::Chat, header: Some(header), ..EMBED }, Chat, false);
        }
        check(ClassInputs { route: Route::Chat, service_tier: Some("flex"), ..EMBED }, BatchIngestion, false);
        check(ClassInputs { route: Route::Chat, tenant_class: Some(BatchIngestion), ..EMBED }, BatchIngestion, false);
    }

    #[test]
    fn bulk_in_disguise_is_demoted_whoever_vouches_for_it() {
        check(ClassInputs { header: Some("interactive-search"), items: 64, ..EMBED }, InteractiveSearch, false);
        check(ClassInputs { header: Some("interactive-search"), items: 65, ..EMBED }, BatchIngestion, true);
        check(ClassInputs { header: Some("rerank"), items: 65, ..EMBED }, BatchIngestion, true);
        check(ClassInputs { tenant_class: Some(InteractiveSearch), items: 65, ..EMBED }, BatchIngestion, true);
        check(ClassInputs { service_tier: Some("priority"), items: 65, ..EMBED }, BatchIngestion, true);
        check(ClassInputs { header: Some("batch-ingestion"), items: 65, ..EMBED }, BatchIngestion, false);
    }

    #[test]
    fn an_unknown_class_is_an_error_even_under_a_tenants_own() {
        for header in ["bulk", "chat", "interactive", "0"] {
            assert_eq!(classify(ClassInputs { header: Some(header), ..EMBED }), Err(UnknownClass), "{header}");
        }
        let vouched = ClassInputs { tenant_class: Some(BatchIngestion), header: Some("bulk"), ..EMBED };
        assert_eq!(classify(vouched), Err(UnknownClass));
        for class in [InteractiveSearch, BatchIngestion, Rerank] {
            assert!(UnknownClass.to_string().contains(class.as_str()));
        }
    }
}
