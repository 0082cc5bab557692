//! No secret is ever shown, however a configuration is mangled, and nothing panics.

use proptest::prelude::*;

use super::*;

const SECRET: &str = "sk-never-shown";

fn text() -> String {
    let secrets = format!("api_key = {{ value = \"{SECRET}\" }}\nprovider = \"tei\"");
    let server = format!(
        "[server]\nadmin_token = {{ value = \"{SECRET}\" }}\ndrain_s = 3\n[store]\nredis_url = \"redis://:{SECRET}@h\"\npath = \"p\"\n"
    );
    valid_and(&server).replace("provider = \"tei\"", &secrets)
}

/// Gives line `a` the key of line `b`, where both have one.
fn mangle(text: &str, a: usize, b: usize, cut: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (a, b) = (a % lines.len(), b % lines.len());
    let mangled = |(index, line): (usize, &&str)| match (line.split_once(" = "), lines[b].split_once(" = ")) {
        (Some((_, value)), Some((key, _))) if index == a => {
            format!("{key} = {}", &value[..value.len().saturating_sub(cut)])
        }
        _ => (*line).to_owned(),
    };
    lines.iter().enumerate().map(mangled).collect::<Vec<_>>().join("\n")
}

proptest! {
    #[test]
    fn a_secret_is_never_shown(a in 0_usize..40, b in 0_usize..40, cut in prop_oneof![4 => Just(0_usize), 1 => 1_usize..4]) {
        let text = mangle(&text(), a, b, cut);
        let source = Source::Text { name: "t.toml".to_owned(), text: text.clone() };
        let shown = match load(&source, &empty()) {
            Ok(plan) => format!("{} {plan:?} {source:?}", plan.describe(Wall(0))),
            Err(problems) => format!("{problems} {problems:?} {source:?}"),
        };
        prop_assert!(!shown.contains(SECRET), "{text}\n{shown}");
    }
}
