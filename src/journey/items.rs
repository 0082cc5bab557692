//! A provider counts the items of the call it was sent; the client counts those of its own list. Owns the translation of
//! the provider's words from the one to the other. Refuses to know which provider speaks.

/// Words before the number of an item, lower case; with a bracket the number is closed by one.
const LEADS: [&str; 10] =
    ["input[", "inputs[", "texts[", "documents[", "input.", "inputs.", "texts.", "documents.", "index ", "index: "];

/// `text` with each item's number replaced by what `number` makes of it, and the first item named, in the new numbering.
/// A number for which `number` has nothing stays as it is.
pub fn renumber(text: &str, number: impl Fn(usize) -> Option<usize>) -> (String, Option<usize>) {
    let lower = text.to_ascii_lowercase();
    let mut places: Vec<(usize, usize, usize)> = Vec::new();
    for lead in LEADS {
        for (at, _) in lower.match_indices(lead) {
            let start = at + lead.len();
            let rest = text.get(start..).unwrap_or_default();
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let closed = !lead.ends_with('[') || rest.as_bytes().get(digits) == Some(&b']');
            let word = at > 0 && lower.as_bytes()[at - 1].is_ascii_alphanumeric();
            let known = rest.get(..digits).and_then(|digits| digits.parse().ok()).and_then(&number);
            if let (Some(new), true, false) = (known, closed, word) {
                places.push((start, start + digits, new));
            }
        }
    }
    places.sort_unstable();
    let mut out = String::with_capacity(text.len() + 8);
    let mut copied = 0;
    for (start, end, new) in &places {
        out.push_str(text.get(copied..*start).unwrap_or_default());
        out.push_str(&new.to_string());
        copied = *end;
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    (out, places.first().map(|(_, _, new)| *new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str, first: Option<usize>) {
        let (out, named) = renumber(text, |item| (item < 10).then_some(item + 60));
        assert_eq!((out.as_str(), named), (expected, first));
    }

    #[test]
    fn items_are_named_by_their_place_in_the_clients_list() {
        check("input[3] has 9001 tokens", "input[63] has 9001 tokens", Some(63));
        check("'$.input[3]' is invalid. Please check.", "'$.input[63]' is invalid. Please check.", Some(63));
        check("body.input.3: too long; body.input.4: empty", "body.input.63: too long; body.input.64: empty", Some(63));
        check("The example at index 0 in your batch", "The example at index 60 in your batch", Some(60));
        check("Inputs[0]", "Inputs[60]", Some(60));
        check("texts[9] \u{e4} Index: 1", "texts[69] \u{e4} Index: 61", Some(69));
    }

    #[test]
    fn other_numbers_stay() {
        check("input[10] of another call", "input[10] of another call", None);
        check("input[3", "input[3", None);
        check("at most 3 inputs", "at most 3 inputs", None);
        check("reindex 3", "reindex 3", None);
        check("input[]", "input[]", None);
        check("", "", None);
    }
}
