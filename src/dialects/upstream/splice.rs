//! Changes a few members of a client's body and leaves every other byte as it stood.
//!
//! Works on the ranges that the scanner found. It knows no field by name; the provider files say what must change.

use bytes::Bytes;

use crate::dialects::OriginalBody;

/// What becomes of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// It stays.
    Keep,
    /// Its value is replaced by this JSON.
    Replace(Vec<u8>),
    /// It goes, with its comma.
    Drop,
}

/// What `edit` says of each member of `original`, by name and raw value.
pub fn edits(original: &OriginalBody, mut edit: impl FnMut(&str, &[u8]) -> Edit) -> Vec<Edit> {
    let members = original.members.iter();
    members
        .map(|(name, range)| original.body.get(range.clone()).map_or(Edit::Keep, |value| edit(name, value)))
        .collect()
}

/// The body of `original` with `edits` made, one a member, and `added` put at the end.
///
/// Gives the original itself, not a copy, if nothing changes. Members whose ranges do not lie in order inside the
/// body, which no scanner produces, are left out.
pub fn splice(original: &OriginalBody, edits: &[Edit], added: &[(&str, Vec<u8>)]) -> Bytes {
    let body = &original.body;
    if added.is_empty() && edits.iter().all(|edit| *edit == Edit::Keep) {
        return body.clone();
    }
    let grown: usize = added.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let replaced: usize = edits.iter().map(|edit| if let Edit::Replace(value) = edit { value.len() } else { 0 }).sum();
    let kept: usize = (original.members.iter().zip(edits))
        .filter(|(_, edit)| **edit == Edit::Keep)
        .map(|((name, range), _)| range.len() + name.len() + 8)
        .sum();
    let mut out = Vec::with_capacity(grown + replaced + kept + 64);

    // A member's span runs from the end of the value before it to the end of its own value, so it holds the comma, the
    // white space and the key just as the client wrote them.
    let opening = body.iter().position(|&byte| byte == b'{').map_or(0, |at| at + 1);
    out.extend_from_slice(&body[..opening]);
    let mut from = opening;
    let mut first = true;
    for ((_, range), edit) in original.members.iter().zip(edits) {
        let (Some(mut lead), Some(value)) = (body.get(from..range.start), body.get(range.clone())) else { continue };
        from = range.end;
        if *edit == Edit::Drop {
            continue;
        }
        if first {
            lead = after_comma(lead);
            first = false;
        }
        out.extend_from_slice(lead);
        match edit {
            Edit::Replace(json) => out.extend_from_slice(json),
            Edit::Keep | Edit::Drop => out.extend_from_slice(value),
        }
    }
    for (key, value) in added {
        if !first {
            out.push(b',');
        }
        first = false;
        crate::dialects::json::write_string(&mut out, key);
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.extend_from_slice(body.get(from..).unwrap_or(b"}"));
    Bytes::from(out)
}

/// What follows the comma that separates a member from the one before it, if there is one before the key.
fn after_comma(lead: &[u8]) -> &[u8] {
    match lead.iter().position(|byte| !byte.is_ascii_whitespace()) {
        Some(at) if lead.get(at) == Some(&b',') => lead.get(at + 1..).unwrap_or_default(),
        _ => lead,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The top-level members of a valid body, found by a plain walk: an independent stand-in for the scanner.
    pub(crate) fn original(body: &str) -> OriginalBody {
        let bytes = body.as_bytes();
        let mut members = Vec::new();
        let (mut depth, mut at, mut key, mut value) = (0usize, 0usize, None::<String>, None::<usize>);
        let mut close = |key: &mut Option<String>, value: &mut Option<usize>, end: usize| {
            if let (Some(name), Some(start)) = (key.take(), value.take()) {
                members.push((name, start..start + body[start..end].trim_end().len()));
            }
        };
        while at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    let start = at;
                    at += 1;
                    while bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    if depth == 1 && key.is_none() {
                        key = Some(serde_json::from_str(&body[start..=at]).expect("a key"));
                    } else if value.is_none() && key.is_some() {
                        value = Some(start);
                    }
                }
                b':' if depth == 1 => {}
                b',' if depth == 1 => close(&mut key, &mut value, at),
                b'}' | b']' => {
                    if depth == 1 {
                        close(&mut key, &mut value, at);
                    }
                    depth -= 1;
                }
                byte => {
                    if key.is_some() && value.is_none() && !byte.is_ascii_whitespace() {
                        value = Some(at);
                    }
                    if matches!(byte, b'{' | b'[') {
                        depth += 1;
                    }
                }
            }
            at += 1;
        }
        OriginalBody { body: Bytes::copy_from_slice(bytes), members }
    }

    #[track_caller]
    fn check(body: &str, edits: &[(&str, Edit)], added: &[(&str, &str)], expected: &str) {
        let added: Vec<(&str, Vec<u8>)> = added.iter().map(|(key, value)| (*key, value.as_bytes().to_vec())).collect();
        let edit = |name: &str, _: &[u8]| {
            edits.iter().find(|(key, _)| *key == name).map_or(Edit::Keep, |(_, edit)| edit.clone())
        };
        let original = original(body);
        let made = splice(&original, &super::edits(&original, edit), &added);
        assert_eq!(std::str::from_utf8(&made).expect("UTF-8"), expected);
        serde_json::from_slice::<serde_json::Value>(&made).expect("valid JSON");
    }

    #[test]
    fn only_what_must_change_changes() {
        let replace = |json: &str| Edit::Replace(json.as_bytes().to_vec());
        let body = " { \"a\" : 1.10 ,\n\t\"b\":[1 , 2],\"c\" : null } ";
        check(body, &[], &[], body);
        check(body, &[("a", replace("7"))], &[], " { \"a\" : 7 ,\n\t\"b\":[1 , 2],\"c\" : null } ");
        check(body, &[("c", Edit::Drop)], &[], " { \"a\" : 1.10 ,\n\t\"b\":[1 , 2] } ");
        check(body, &[("b", Edit::Drop)], &[], " { \"a\" : 1.10,\"c\" : null } ");
        check(body, &[("a", Edit::Drop)], &[], " {\n\t\"b\":[1 , 2],\"c\" : null } ");
        check(body, &[("a", Edit::Drop), ("b", Edit::Drop)], &[], " {\"c\" : null } ");
        check(body, &[("a", Edit::Drop), ("b", Edit::Drop), ("c", Edit::Drop)], &[("d", "1")], " {\"d\":1 } ");
        check(
            body,
            &[],
            &[("d", "1"), ("e", "2")],
            " { \"a\" : 1.10 ,\n\t\"b\":[1 , 2],\"c\" : null,\"d\":1,\"e\":2 } ",
        );
        check("{}", &[], &[("d", "1")], "{\"d\":1}");
    }

    #[test]
    fn an_unchanged_body_is_not_copied() {
        let original = original("{\"a\":1}");
        let same = splice(&original, &[Edit::Keep], &[]);
        assert_eq!(same.as_ptr(), original.body.as_ptr());
    }

    #[test]
    fn ranges_outside_the_body_change_nothing_and_do_not_panic() {
        let broken = OriginalBody { body: Bytes::from_static(b"{}"), members: vec![("a".to_owned(), 5..90)] };
        let made = splice(&broken, &edits(&broken, |_, _| Edit::Drop), &[("b", b"1".to_vec())]);
        assert_eq!(&made[..], b"{\"b\":1}");
    }

    proptest! {
        /// Whatever is dropped and added, the rest has the same values in the same order.
        #[test]
        fn the_rest_survives(count in 0usize..6, dropped in any::<u8>(), add in any::<bool>(), space in 0usize..3) {
            let gap = " ".repeat(space);
            let members: Vec<String> = (0..count).map(|n| format!("{gap}\"k{n}\"{gap}:{gap}[{n},\"x,}}\"]{gap}")).collect();
            let body = format!("{{{}}}", members.join(","));
            let drop = |n: usize| dropped >> n & 1 == 1;
            let edit = |name: &str, _: &[u8]| {
                let n: usize = name[1..].parse().expect("a number");
                if drop(n) { Edit::Drop } else { Edit::Keep }
            };
            let added: Vec<(&str, Vec<u8>)> = if add { vec![("z", b"true".to_vec())] } else { Vec::new() };
            let original = original(&body);
            let made = splice(&original, &edits(&original, edit), &added);
            let value: serde_json::Value = serde_json::from_slice(&made).expect("valid JSON");
            let object = value.as_object().expect("an object");
            prop_assert_eq!(object.len(), (0..count).filter(|&n| !drop(n)).count() + usize::from(add));
            for n in (0..count).filter(|&n| !drop(n)) {
                prop_assert_eq!(&object[&format!("k{n}")][0], &serde_json::json!(n));
            }
        }
    }
}
