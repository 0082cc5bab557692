//! Expectations: sums of figures compared with each other, `queries.storm.p95_ms <= queries.calm.p95_ms + 10`.
//!
//! Owns their small language: numbers and names of figures, `+ - * /` from left to right with `* /` first, one comparison.
//! Words are separated by spaces. It knows no figure; they are handed in.

use std::collections::BTreeMap;

/// Figures by name.
pub type Figures = BTreeMap<String, f64>;

/// How two sides compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `>`
    Above,
    /// `==`
    Equal,
}

/// A sum of products.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum(Vec<(bool, Vec<(bool, Term)>)>);

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Number(f64),
    Figure(String),
}

/// A comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    left: Sum,
    comparison: Comparison,
    right: Sum,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It holds, or it does not: the two sides.
    Decided {
        /// Whether it holds.
        holds: bool,
        /// Value of the left side.
        left: f64,
        /// Value of the right side.
        right: f64,
    },
    /// A figure of this name is not there.
    Missing(String),
}

/// Reads a comparison.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Claim, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let comparison = |word: &str| match word {
        "<=" => Some(Comparison::AtMost),
        ">=" => Some(Comparison::AtLeast),
        "<" => Some(Comparison::Below),
        ">" => Some(Comparison::Above),
        "==" => Some(Comparison::Equal),
        _ => None,
    };
    let place = words.iter().position(|word| comparison(word).is_some());
    let place = place.ok_or_else(|| format!("{text:?} has none of <=, >=, <, >, == between spaces"))?;
    let (left, rest) = words.split_at(place);
    let (sign, right) = rest.split_first().ok_or("no comparison")?;
    let comparison = comparison(sign).ok_or("no comparison")?;
    Ok(Claim { left: sum(left)?, comparison, right: sum(right)? })
}

/// Reads one side of a comparison.
///
/// # Errors
/// What is wrong with it.
pub fn parse_sum(text: &str) -> Result<Sum, String> {
    sum(&text.split_whitespace().collect::<Vec<_>>())
}

fn sum(words: &[&str]) -> Result<Sum, String> {
    let mut products = vec![(true, Vec::new())];
    let mut words = words.iter();
    let mut multiply = true;
    loop {
        let word = words.next().ok_or("a number or a figure is missing")?;
        let term = match word.parse::<f64>() {
            Ok(number) => Term::Number(number),
            Err(_) if word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') => {
                Term::Figure((*word).to_owned())
            }
            Err(_) => return Err(format!("{word:?} is neither a number nor a figure")),
        };
        if let Some((_, product)) = products.last_mut() {
            product.push((multiply, term));
        }
        multiply = true;
        match words.next() {
            None => return Ok(Sum(products)),
            Some(&"+") => products.push((true, Vec::new())),
            Some(&"-") => products.push((false, Vec::new())),
            Some(&"*") => {}
            Some(&"/") => multiply = false,
            Some(other) => return Err(format!("{other:?} is none of + - * /")),
        }
    }
}

impl Sum {
    /// The figures that it names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(_, product)| product).filter_map(|(_, term)| match term {
            Term::Figure(name) => Some(name.as_str()),
            Term::Number(_) => None,
        })
    }

    /// Its value.
    ///
    /// # Errors
    /// The name of a figure that is not there.
    pub fn value(&self, figures: &Figures) -> Result<f64, String> {
        self.0.iter().try_fold(0.0, |total, (add, product)| {
            let product = product.iter().try_fold(1.0, |value, (multiply, term)| {
                let term = match term {
                    Term::Number(number) => *number,
                    Term::Figure(name) => *figures.get(name).ok_or_else(|| name.clone())?,
                };
                Ok::<_, String>(if *multiply { value * term } else { value / term })
            })?;
            Ok(if *add { total + product } else { total - product })
        })
    }
}

impl Claim {
    /// The figures that it names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.left.names().chain(self.right.names())
    }

    /// Compares the two sides. What is not a number holds in no comparison.
    pub fn decide(&self, figures: &Figures) -> Outcome {
        let (left, right) = match (self.left.value(figures), self.right.value(figures)) {
            (Ok(left), Ok(right)) => (left, right),
            (Err(name), _) | (_, Err(name)) => return Outcome::Missing(name),
        };
        let near = left == right || (left - right).abs() <= 1e-9 * left.abs().max(right.abs()).min(f64::MAX);
        let holds = match self.comparison {
            Comparison::AtMost => left <= right || near,
            Comparison::AtLeast => left >= right || near,
            Comparison::Below => left < right && !near,
            Comparison::Above => left > right && !near,
            Comparison::Equal => near,
        };
        Outcome::Decided { holds, left, right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        [("a.p95_ms", 30.0), ("b.p95_ms", 20.0), ("zero", 0.0)].map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[track_caller]
    fn check(text: &str, expected: bool) {
        let claim = parse(text).expect("a claim");
        assert!(matches!(claim.decide(&figures()), Outcome::Decided { holds, .. } if holds == expected), "{text}");
    }

    #[test]
    fn claims_are_decided_by_figures() {
        check("a.p95_ms <= 30", true);
        check("a.p95_ms < 30", false);
        check("a.p95_ms <= b.p95_ms + 10", true);
        check("a.p95_ms <= b.p95_ms + 9", false);
        check("a.p95_ms - b.p95_ms == 10", true);
        check("2 + 3 * 4 == 14", true);
        check("a.p95_ms / b.p95_ms >= 1.5", true);
        check("a.p95_ms / b.p95_ms > 1.5", false);
        check("a.p95_ms / zero > 5", true);
        check("zero / zero == 0", false);
    }

    #[test]
    fn a_figure_that_is_not_there_is_named() {
        let claim = parse("a.p95_ms <= c.p95_ms").expect("a claim");
        assert_eq!(claim.decide(&figures()), Outcome::Missing("c.p95_ms".to_owned()));
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let error = parse(text).expect_err("refused");
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        refused("a.p95_ms", "none of <=");
        refused("a <=", "missing");
        refused("a b <= 3", "none of + - * /");
        refused("a-b <= 3", "neither a number");
    }
}
