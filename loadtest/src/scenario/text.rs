//! Texts that look like what people ask and what handbooks say, in several languages, from a number.
//!
//! The same number gives the same text in every run: queries that repeat are equal, and a report can be run again.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Deserialize;

use super::amount::Amount;

/// Where a traffic's texts come from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Texts {
    /// Different texts; 0: no two are the same.
    pub pool: usize,
    /// Exponent of the Zipf law by which texts of the pool are chosen; absent: all alike. Search logs have about 1.
    pub zipf: Option<f64>,
    /// Words in a text.
    pub words: Amount,
    /// Languages in turn: en, de, es, fr, ja.
    pub languages: Vec<Language>,
}

impl Default for Texts {
    fn default() -> Self {
        Self { pool: 0, zipf: None, words: Amount::Uniform([3, 12]), languages: vec![Language::En] }
    }
}

/// A language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    En,
    /// German.
    De,
    /// Spanish.
    Es,
    /// French.
    Fr,
    /// Japanese.
    Ja,
}

impl Language {
    /// Words of what people ask about.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::En => &[
                "how",
                "configure",
                "mutual",
                "tls",
                "proxy",
                "invoice",
                "refund",
                "vacation",
                "policy",
                "laptop",
                "printer",
                "badge",
                "access",
                "vpn",
                "password",
                "reset",
                "travel",
                "expense",
                "report",
                "manager",
                "approval",
                "deadline",
                "contract",
                "supplier",
                "warehouse",
                "shipping",
                "delay",
                "customer",
                "complaint",
                "warranty",
                "meeting",
                "room",
                "calendar",
                "backup",
                "restore",
                "database",
                "upgrade",
                "certificate",
                "renewal",
                "parking",
                "canteen",
                "payroll",
                "salary",
                "sick",
                "leave",
                "training",
                "security",
                "incident",
                "phishing",
                "mail",
                "quota",
                "license",
                "phone",
                "contact",
                "order",
                "return",
                "address",
                "change",
                "tax",
                "form",
            ],
            Self::De => &[
                "wie",
                "rechnung",
                "erstattung",
                "urlaub",
                "antrag",
                "drucker",
                "ausweis",
                "zugang",
                "passwort",
                "zurücksetzen",
                "dienstreise",
                "spesen",
                "genehmigung",
                "frist",
                "vertrag",
                "lieferant",
                "lager",
                "versand",
                "verspätung",
                "kunde",
                "beschwerde",
                "gewährleistung",
                "besprechung",
                "kalender",
                "sicherung",
                "datenbank",
                "zertifikat",
                "verlängern",
                "parkplatz",
                "kantine",
                "gehalt",
                "krankmeldung",
                "schulung",
                "sicherheit",
                "vorfall",
                "lizenz",
                "bestellung",
                "rückgabe",
                "anschrift",
                "steuer",
            ],
            Self::Es => &[
                "cómo",
                "factura",
                "reembolso",
                "vacaciones",
                "solicitud",
                "impresora",
                "acceso",
                "contraseña",
                "viaje",
                "gastos",
                "aprobación",
                "plazo",
                "contrato",
                "proveedor",
                "almacén",
                "envío",
                "retraso",
                "cliente",
                "queja",
                "garantía",
                "reunión",
                "calendario",
                "copia",
                "certificado",
                "renovar",
                "nómina",
                "baja",
                "formación",
                "seguridad",
                "incidente",
                "licencia",
                "pedido",
                "devolución",
                "dirección",
            ],
            Self::Fr => &[
                "comment",
                "facture",
                "remboursement",
                "congés",
                "demande",
                "imprimante",
                "accès",
                "passe",
                "voyage",
                "frais",
                "validation",
                "délai",
                "contrat",
                "fournisseur",
                "entrepôt",
                "livraison",
                "retard",
                "client",
                "réclamation",
                "garantie",
                "réunion",
                "agenda",
                "sauvegarde",
                "certificat",
                "renouveler",
                "salaire",
                "arrêt",
                "formation",
                "sécurité",
                "incident",
                "licence",
                "commande",
                "retour",
                "adresse",
            ],
            Self::Ja => &[
                "請求書",
                "返金",
                "休暇",
                "申請",
                "印刷",
                "入館証",
                "接続",
                "暗証番号",
                "再設定",
                "出張",
                "経費",
                "承認",
                "期限",
                "契約",
                "仕入先",
                "倉庫",
                "配送",
                "遅延",
                "顧客",
                "苦情",
                "保証",
                "会議室",
                "予定",
                "復元",
                "証明書",
                "更新",
                "駐車場",
                "食堂",
                "給与",
                "研修",
            ],
        }
    }
}

/// A number that belongs to these fields, the same in every run of this build.
pub fn mixed(fields: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    fields.hash(&mut hasher);
    hasher.finish()
}

impl Texts {
    /// The number of the text that the request of `number` asks for in its place `place`.
    pub fn choose(&self, rng: &mut SmallRng, number: u64, place: usize) -> u64 {
        match (self.pool, self.zipf) {
            (0, _) => number.wrapping_mul(4096).wrapping_add(place as u64),
            (pool, None) => rng.random_range(0..pool as u64),
            (pool, Some(exponent)) => match Zipf::new(pool as f64, exponent.max(0.0)) {
                Ok(ranks) => (ranks.sample(rng) as u64).saturating_sub(1),
                Err(_) => rng.random_range(0..pool as u64),
            },
        }
    }

    /// The text of a number, in lower case: `salt` keeps runs, and traffics that should not share texts, apart.
    pub fn render(&self, salt: u64, number: u64) -> String {
        let mut rng = SmallRng::seed_from_u64(mixed((salt, number)));
        let turn = usize::try_from(number).unwrap_or(0) % self.languages.len().max(1);
        let words = self.languages.get(turn).copied().unwrap_or(Language::En).words();
        let count = self.words.draw(&mut rng);
        let mut text = String::with_capacity(count * 9 + 12);
        for _ in 1..count {
            text.push_str(words.get(rng.random_range(0..words.len())).copied().unwrap_or_default());
            text.push(' ');
        }
        // The number is part of the text, so that different numbers never make the same one.
        text.push_str(&format!("{number:x}"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn texts(pool: usize, zipf: Option<f64>) -> Texts {
        Texts { pool, zipf, languages: vec![Language::En, Language::Ja], ..Texts::default() }
    }

    #[test]
    fn texts_repeat_by_their_number_and_differ_between_numbers() {
        let texts = texts(0, None);
        assert_eq!(texts.render(1, 7), texts.render(1, 7));
        assert_ne!(texts.render(1, 7), texts.render(2, 7));
        let all: HashSet<String> = (0..500).map(|number| texts.render(1, number)).collect();
        assert_eq!(all.len(), 500);
        assert!(all.iter().all(|text| *text == text.to_lowercase() && text.trim() == text));
    }

    #[test]
    fn a_zipf_pool_has_favourites_and_an_endless_one_has_none() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut favourites = 0;
        for number in 0..2000 {
            let chosen = texts(1000, Some(1.0)).choose(&mut rng, number, 0);
            assert!(chosen < 1000);
            favourites += u64::from(chosen < 10);
        }
        assert!((500..1200).contains(&favourites), "{favourites} of 2000 ask for the ten favourites");
        let endless: HashSet<u64> = (0..100)
            .flat_map(|number| (0..3).map(move |place| (number, place)))
            .map(|(number, place)| texts(0, None).choose(&mut SmallRng::seed_from_u64(number), number, place))
            .collect();
        assert_eq!(endless.len(), 300);
    }
}
