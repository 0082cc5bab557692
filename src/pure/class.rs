//! Traffic classes.

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
