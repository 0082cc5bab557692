//! Exact token counts where the vocabulary is public. Owns the loaded tokenizers; refuses to estimate
//! (`pure/token_estimate.rs`) and to decide when exactness is worth its 15 to 30 µs a kilobyte.

use bpe_openai::{cl100k_base, o200k_base};

use crate::config::plan::Tokenizer;
use crate::pure::token_estimate::{Density, Sample};

/// Tokens of `text`, exactly; `None` where the tokenizer is not known here. Not raised to 1 for an empty text.
///
/// The first call for a vocabulary loads it (20 ms); see [`preload`]. Text that looks like a special token is
/// counted as the ordinary text it is.
pub fn count_exact(tokenizer: Tokenizer, text: &str) -> Option<u64> {
    let count = match tokenizer {
        Tokenizer::Cl100k => cl100k_base().count(text),
        Tokenizer::O200k => o200k_base().count(text),
        Tokenizer::Bytes => text.len(),
        Tokenizer::Unknown => return None,
    };
    u64::try_from(count).ok()
}

/// How dense the texts are of which `sample` was taken, in at most 60 µs; as the class sum has it where the tokenizer is not
/// known here.
pub fn density(tokenizer: Tokenizer, sample: &Sample) -> Density {
    count_exact(tokenizer, sample.text()).map(|exact| Density::of(sample, exact)).unwrap_or_default()
}

/// Loads the vocabulary now, so that no request waits for it.
pub fn preload(tokenizer: Tokenizer) {
    count_exact(tokenizer, "");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pure::token_estimate::{ClassCounts, Estimate, Sample};

    #[track_caller]
    fn check(tokenizer: Tokenizer, text: &str, expected: Option<u64>) {
        assert_eq!(count_exact(tokenizer, text), expected, "{text:?}");
    }

    #[test]
    fn counts_like_the_published_vocabularies() {
        check(Tokenizer::Cl100k, "", Some(0));
        check(Tokenizer::Cl100k, "hello world", Some(2));
        check(Tokenizer::O200k, "hello world", Some(2));
        check(Tokenizer::Cl100k, "tiktoken is great!", Some(6));
        check(Tokenizer::Bytes, "né", Some(3));
        check(Tokenizer::Unknown, "hello", None);
    }

    const ENGLISH: &str = "To configure mutual TLS, place the certificate of the authority in the folder that the service \
        reads at its start, and name it in the settings file. Clients present a certificate of their own; a request \
        without one is refused before anything else is looked at. Certificates are renewed every ninety days, and the \
        service takes a new one into use without being started again. If a client reports that its connection was \
        reset, look first at the clock of its machine: a certificate that begins to be valid tomorrow is not valid today.";

    const DUTCH: &str = "Om wederzijdse TLS in te stellen, plaatst u het certificaat van de uitgever in de map die de dienst \
        bij het opstarten leest, en noemt u het in het instellingenbestand. Gebruikers tonen een eigen certificaat; een \
        aanvraag zonder certificaat wordt geweigerd voordat er naar iets anders wordt gekeken. Certificaten worden elke \
        negentig dagen vernieuwd, en de dienst neemt een nieuw certificaat in gebruik zonder opnieuw te worden gestart. \
        Meldt een gebruiker dat de verbinding is verbroken, kijk dan eerst naar de klok van de machine.";

    const CHINESE: &str = "要配置双向认证，请把签发机构的证书放在服务启动时读取的文件夹中，并在设置文件里写明它的名称。客户端出示自己的证书；\
        没有证书的请求会在查看其他内容之前被拒绝。证书每九十天更新一次，服务无需重新启动即可使用新的证书。\
        如果客户端报告连接被重置，请先检查那台机器的时钟：明天才开始有效的证书今天是无效的。";

    /// What is expected of a request with these texts, and its exact count.
    fn guessed_and_exact(tokenizer: Tokenizer, texts: &[&str]) -> (f64, f64) {
        let mut sample = Sample::default();
        for text in texts {
            sample.begin();
            sample.add(text.as_bytes());
        }
        let density = density(tokenizer, &sample);
        let likely = texts.iter().map(|text| Estimate::of(ClassCounts::of(text), tokenizer).dense(density).likely);
        let exact = texts.iter().map(|text| count_exact(tokenizer, text).expect("known tokenizer"));
        (likely.sum::<u64>() as f64, exact.sum::<u64>() as f64)
    }

    #[test]
    fn the_estimate_is_within_a_tenth_of_the_exact_count_in_several_languages() {
        let code = include_str!("tokens.rs").split("#[cfg(test)]").next().unwrap_or_default();
        let long = include_str!("pure/token_bucket.rs");
        let queries =
            ["hoe stel ik wederzijdse TLS in?", "clock skew", "证书什么时候更新", "fn preload(tokenizer: Tokenizer)"];
        let chapters: Vec<&str> = include_str!("../README.md").split("\n## ").collect();
        let several: [(&str, &[&str]); 7] = [
            ("English", &[ENGLISH]),
            ("Dutch", &[DUTCH]),
            ("Chinese", &[CHINESE]),
            ("code", &[code]),
            ("a long file of code", &[long]),
            ("a batch of several languages", &[ENGLISH, DUTCH, CHINESE, code]),
            ("the chapters of a handbook", &chapters),
        ];
        let single: Vec<[&str; 1]> = queries.iter().map(|query| [*query]).collect();
        for tokenizer in [Tokenizer::Cl100k, Tokenizer::O200k] {
            for (name, texts) in several.iter().copied().chain(single.iter().map(|query| (query[0], &query[..]))) {
                let (likely, exact) = guessed_and_exact(tokenizer, texts);
                let off = (likely / exact - 1.0) * 100.0;
                println!("{tokenizer:?}, {name}: {likely} for {exact}, {off:+.1} %");
                assert!(off.abs() <= 10.0, "{tokenizer:?}, {name}: {likely} for {exact}, {off:+.1} %");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn exact_counts_lie_within_the_estimate(text in "(?s)(.{0,200}| {0,300}|[a-z]{0,300})") {
            for tokenizer in [Tokenizer::Cl100k, Tokenizer::O200k] {
                let estimate = Estimate::of(ClassCounts::of(&text), tokenizer);
                let exact = count_exact(tokenizer, &text).expect("known tokenizer").max(1);
                prop_assert!(estimate.lower <= exact && exact <= estimate.upper, "{exact} in {estimate:?}");
            }
        }
    }
}
