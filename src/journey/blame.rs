//! Which input an upstream's refusal is about. An upstream counts the inputs of its own call, a client those of its
//! list; cached texts, duplicates and cutting into parts lie between the two. Knows wordings, no upstream and no client.

/// What stands before the number of an input, as providers write it.
const LEADS: [&str; 8] = ["input[", "inputs[", "texts[", "input.", "inputs.", "texts.", "index ", "item "];

/// A message with its inputs counted in another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The message.
    pub message: String,
    /// The first input that it named, by the old count.
    pub named: Option<usize>,
}

/// Replaces every input number of `message` for which `position` knows another.
pub fn rename(message: &str, position: impl Fn(usize) -> Option<usize>) -> Renamed {
    let lower = message.to_ascii_lowercase();
    let mut renamed = Renamed { message: String::with_capacity(message.len()), named: None };
    let mut copied = 0;
    for (at, _) in lower.char_indices() {
        if at < copied || lower[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let Some(lead) = LEADS.iter().find(|lead| lower[at..].starts_with(**lead)) else { continue };
        let start = at + lead.len();
        let digits = lower[start..].bytes().take_while(u8::is_ascii_digit).count();
        let Some((old, new)) =
            lower[start..start + digits].parse().ok().and_then(|old: usize| Some((old, position(old)?)))
        else {
            continue;
        };
        renamed.named.get_or_insert(old);
        renamed.message.push_str(&message[copied..start]);
        renamed.message.push_str(&new.to_string());
        copied = start + digits;
    }
    renamed.message.push_str(&message[copied..]);
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two cached texts came before, so the upstream's 0, 1, 2 are the client's 2, 3, 5.
    #[track_caller]
    fn check(message: &str, expected: &str, named: Option<usize>) {
        let renamed = rename(message, |position| [2, 3, 5].get(position).copied());
        assert_eq!((renamed.message.as_str(), renamed.named), (expected, named));
    }

    #[test]
    fn inputs_are_renamed_however_a_provider_writes_them() {
        check("Invalid 'input[1]': too long", "Invalid 'input[3]': too long", Some(1));
        check("$.inputs[0] and texts[2]", "$.inputs[2] and texts[5]", Some(0));
        check("body.input.2: too short", "body.input.5: too short", Some(2));
        check("The example at index 0 in your batch", "The example at index 2 in your batch", Some(0));
        check("Item 1 is empty", "Item 3 is empty", Some(1));
    }

    #[test]
    fn other_numbers_stay() {
        for message in [
            "input[7] does not exist",
            "input[] and input[x] and input",
            "reindex 0 and my_item 1",
            "maximum 0, got 1",
            "index \u{e4}0",
            "",
        ] {
            check(message, message, None);
        }
        check("input[18446744073709551616]", "input[18446744073709551616]", None);
    }

    proptest! {
        #[test]
        fn any_text_survives(message in "(input\\[|index |[a-z0-9\u{e4} ]|\\])*") {
            prop_assert_eq!(rename(&message, |_| None).message, message.clone());
            prop_assert_eq!(rename(&message, Some).named.is_some(), rename(&message, |_| Some(0)).named.is_some());
        }
    }
}
