//! The files that ship, and the default configuration.

use super::super::plan::{Matryoshka, ModelKind, Provider, Tokenizer};
use super::super::schema::{Key, Otherwise, SECTIONS, Type};
use super::super::tree::{self, Origin, Table, Value};
use super::super::{DEFAULT_TEXT, builtin};
use super::*;

/// The default file with its examples: a line that starts with `#` and no space is a key or a heading.
fn with_examples() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(example) if !example.starts_with(' ') => example.to_owned(),
        _ => line.to_owned(),
    };
    DEFAULT_TEXT.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.value, &b.value))
        }
        (Value::Table(a), Value::Table(b)) => {
            let within = |a: &Table, b: &Table| {
                a.iter().all(|(key, node)| b.get(key).is_some_and(|other| same(&node.value, &other.value)))
            };
            within(a, b) && within(b, a)
        }
        _ => false,
    }
}

/// Keys whose example says more than the default would.
const TELLING_EXAMPLES: &[&str] = &[
    "models.tokenizer",
    "models.case",
    "models.slo",
    "upstreams.region",
    "upstreams.breaker",
    "upstreams.serves",
    "tenants.key_sha256",
];

#[track_caller]
fn check_keys(section: &str, keys: &'static [Key], table: &Table) {
    for key in keys {
        let name = format!("{section}.{}", key.name);
        let node = table.get(key.name).unwrap_or_else(|| panic!("{name} is not in gateway.toml"));
        if let Otherwise::Is(text) = key.default
            && !TELLING_EXAMPLES.contains(&name.as_str())
        {
            let default = tree::parse_value(text, &Origin::Default).expect("a default is TOML");
            assert!(same(&node.value, &default), "{name} is not at its default {text}");
        }
        if let (Type::Tables(inner), Value::List(list)) = (key.ty, &node.value) {
            let Some(Value::Table(first)) = list.first().map(|node| &node.value) else {
                panic!("{name} has no example")
            };
            check_keys(&name, inner, first);
        }
    }
}

#[test]
fn the_default_file_holds_every_key_at_its_default() {
    let Ok(tree) = tree::parse(&with_examples()) else { panic!("the examples are not TOML") };
    for section in SECTIONS {
        match tree.get(section.name).map(|node| &node.value) {
            Some(Value::Table(table)) => check_keys(section.name, section.keys, table),
            Some(Value::List(_)) => {
                let (first, _) = tree.tables(section.name).next().expect("an example");
                check_keys(section.name, section.keys, first);
            }
            _ => panic!("[{}] is not in gateway.toml", section.name),
        }
    }
}

#[test]
fn the_examples_are_right() {
    // The one thing that they leave out: a second model for the collection to move to.
    let text = with_examples() + "\n[[models]]\nname = \"text-embedding-3-large\"\n";
    let plan = plan(&text, &[("OPENAI_API_KEY", "k")]);
    assert_eq!(plan.collections[0].name, "handbook");
}

#[test]
fn the_default_serves_the_simulated_provider_to_the_demo_tenant() {
    let plan = plan(DEFAULT_TEXT, &[]);
    assert_eq!(plan.models.len(), 3);
    assert_eq!(plan.models[1].name.as_str(), "simulated-rerank");
    assert_eq!(plan.models[1].kind, ModelKind::Rerank);
    assert_eq!((plan.models[2].name.as_str(), plan.models[2].kind), ("simulated-chat", ModelKind::Chat));
    assert_eq!(plan.models[0].name.as_str(), "simulated-embedding");
    assert_eq!(plan.models[0].dimensions, Some(384));
    assert_eq!(plan.models[0].prices.input.map(|price| price.times(1_000_000).to_string()), Some("0.0184".to_owned()));
    assert_eq!(plan.upstreams[0].provider, Provider::Simulated);
    assert_eq!(plan.tenants[0].id.as_str(), "demo");
    assert_eq!(plan.tenants[0].budget.map(|budget| budget.to_string()), Some("10".to_owned()));
    assert_eq!(plan.demo_key.as_ref().map(|key| key.expose()), Some(builtin::DEMO_KEY));
    assert_eq!(plan.warnings, Vec::<String>::new());
    assert_eq!(plan.version.len(), 12);
    assert!(plan.server.workers >= 1);
    let nothing = load_text("", &[]).expect("an empty file is the default");
    assert_eq!(format!("{:?}", nothing.server), format!("{:?}", plan.server));
}

#[test]
fn a_real_provider_in_the_environment_takes_the_simulated_ones_place() {
    let both = plan(DEFAULT_TEXT, &[("OPENAI_API_KEY", "sk-1"), ("VECTORGATE_TEI_URL", "http://t:80/")]);
    let names: Vec<&str> = both.models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["text-embedding-3-small", "text-embedding-3-large", "text-embedding-ada-002", "tei"]);
    assert_eq!(both.upstreams[0].api_key.as_ref().map(|key| key.expose()), Some("sk-1"));
    assert_eq!(both.upstreams[0].base_url, "https://api.openai.com/v1");
    assert_eq!(both.upstreams[1].base_url, "http://t:80");
    assert_eq!(both.models[3].dimensions, None);
    assert_eq!(both.models[0].tokenizer, Tokenizer::Cl100k);
    assert_eq!(both.models[0].matryoshka, Matryoshka::Range { min: 1, max: 1536 });
    assert!(both.demo_key.is_some());
    let simulated = plan(DEFAULT_TEXT, &[("OPENAI_API_KEY", "")]);
    assert_eq!(simulated.upstreams[0].provider, Provider::Simulated);
    let tuned = plan("", &[("VECTORGATE_UPSTREAMS__SIMULATED__TPM", "5"), ("VECTORGATE_TENANTS__DEMO__BUDGET", "1")]);
    assert_eq!(tuned.upstreams[0].tpm, Some(5));
}

#[test]
fn a_wrong_tei_address_names_its_variable() {
    check_with(
        "",
        &[("VECTORGATE_TEI_URL", "nonsense")],
        &[
            "environment variable VECTORGATE_TEI_URL: upstreams[0].base_url (tei): is not an absolute URL; expected http:// \
           or https:// with a host and no user, query or fragment",
        ],
    );
}

#[test]
fn the_demo_key_opens_nothing_to_other_machines() {
    let expected = "server.listen: 0.0.0.0:80 can be reached from other machines, but the tenant \"demo\" has the public \
                    demo key; configure [[tenants]] with keys of `vectorgate key new`, or listen on 127.0.0.1";
    check("[server]\nlisten = \"0.0.0.0:80\"\n", &[&format!("t.toml:2: {expected}")]);
    check_with(
        "",
        &[("VECTORGATE_SERVER__LISTEN", "0.0.0.0:80")],
        &[&format!("environment variable VECTORGATE_SERVER__LISTEN: {expected}")],
    );
    check(&valid_and("[server]\nlisten = \"0.0.0.0:80\"\n"), &[]);
    let copied = VALID.replace(&"a".repeat(64), builtin::DEMO_KEY_SHA256).replace("id = \"t\"", "id = \"demo\"");
    check(&format!("{copied}[server]\nlisten = \"0.0.0.0:80\"\n"), &[&format!("t.toml:14: {expected}")]);
}

#[test]
fn tenants_of_ones_own_take_the_demo_tenants_place() {
    let plan = plan("[[tenants]]\nid = \"t\"\n", &[]);
    assert_eq!(plan.tenants.len(), 1);
    assert!(plan.demo_key.is_none());
    assert_eq!(plan.models[0].name.as_str(), "simulated-embedding");
}

#[test]
fn the_production_example_is_valid() {
    let text = include_str!("../../../config/production.toml");
    let environment = [("VECTORGATE_ADMIN_TOKEN", "t"), ("OPENAI_EU_KEY", "e"), ("OPENAI_US_KEY", "u")];
    let plan = plan(text, &environment);
    assert_eq!(plan.warnings, Vec::<String>::new());
    let missing = load_text(text, &[]).expect_err("three variables");
    assert_eq!(missing.0.len(), 3, "{missing}");
}

#[test]
fn a_missing_file_is_one_problem() {
    let source = Source::File("/nonexistent/gateway.toml".into());
    let problems = load(&source, &empty()).expect_err("no such file");
    assert_eq!(problems.0.len(), 1);
    assert!(problems.to_string().starts_with("/nonexistent/gateway.toml: cannot be read: "));
}

#[test]
fn a_plan_describes_itself() {
    let text = format!(
        "[server]\nworkers = 2\n{}tpm = 9\nclass = \"rerank\"\nbudget = \"1.50\"\n[[upstreams]]\nid = \"far\"\nprovider = \
         \"tei\"\nbase_url = \"http://h:1\"\ntier = 1\ntpm = 500\nserves = [{{ model = \"m\", price_usd_per_million_tokens = \
         \"0\" }}]\n",
        VALID.replace("id = \"a\"", "id = \"a\"\ntier = 2")
    );
    let plan = plan(&text, &[]);
    let expected = format!(
        "configuration {}
  clients   127.0.0.1:8080 (2 workers)
  admin     127.0.0.1:8081 (without a token: this machine only)
  ledger    embedded in data, survives the death of the process
  cache     256 MiB in memory, 86400 s, each tenant its own

models
  model  space  width  upstream  tier  as  tokens/min  requests/min  at once  EUR per million tokens
  m      m      8      far       1     m   500         -             64       0
                       a         2     m   -           -             64       0.92

tenants
  tenant  budget    class   keys              models  tokens/min  requests/min
  t       1.5 EUR   rerank  aaaaaaaaaaaaaaaa  all     9           -
",
        plan.version
    );
    let squeeze =
        |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    assert_eq!(squeeze(&plan.describe(Wall(0))), squeeze(&expected));
}

/// A file that ships for a container: its secrets lie in files, which are `folder`'s here.
#[track_caller]
fn check_in_container(text: &str, mounted: &str, secrets: &[(&str, &str)], more: &[(&str, &str)]) -> Plan {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, secret) in secrets {
        std::fs::write(folder.path().join(name), secret).expect("written");
    }
    // As the image sets them.
    let image = [
        ("VECTORGATE_SERVER__LISTEN", "0.0.0.0:8080"),
        ("VECTORGATE_SERVER__ADMIN_LISTEN", "0.0.0.0:8081"),
        ("VECTORGATE_STORE__PATH", "/data"),
    ];
    let dockerfile = include_str!("../../../Dockerfile");
    for (name, value) in image {
        assert!(dockerfile.contains(&format!("{name}={value}")), "{name} is not set by the image");
    }
    assert!(text.contains(mounted), "{mounted}");
    let text = text.replace(mounted, folder.path().to_str().expect("a path"));
    let plan = plan(&text, &[&image, more].concat());
    assert_eq!(plan.warnings, Vec::<String>::new());
    plan
}

#[test]
fn what_compose_mounts_is_valid() {
    let text = include_str!("../../../config/compose/gateway.toml");
    let compose = include_str!("../../../compose.yml");
    let variable = "VECTORGATE_TENANTS__APP__KEY_SHA256";
    assert!(compose.contains(variable));
    let hash = format!("[\"{}\"]", "b".repeat(64));
    let plan = check_in_container(text, "/run/secrets", &[("admin_token", "t")], &[(variable, &hash)]);
    assert_eq!(plan.tenants[0].keys.len(), 1);
    assert!(compose.contains("stop_grace_period: 40s") && plan.server.drain.as_secs() < 40);
}

#[test]
fn what_the_cluster_mounts_is_valid_and_pods_have_the_time_to_drain() {
    let text = include_str!("../../../config/kubernetes/gateway.toml");
    let set = include_str!("../../../config/kubernetes/stateful-set.yaml");
    let secrets = [("admin-token", "t"), ("openai-key", "k"), ("redis-url", "redis://:p@redis:6379/0")];
    let plan = check_in_container(text, "/etc/vectorgate/secrets", &secrets, &[]);
    let number = |after: &str| -> u64 {
        let rest = set.split_once(after).unwrap_or_else(|| panic!("{after}")).1;
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().and_then(|text| text.parse().ok()).expect(after)
    };
    let (grace, stop) = (number("terminationGracePeriodSeconds:"), number("sleep: { seconds:"));
    assert!(grace > stop + plan.server.drain.as_secs(), "{grace} s for {stop} s and {:?}", plan.server.drain);
    assert!(set.contains("path: /readyz, port: admin") && set.contains("path: /healthz, port: admin"));
}

#[test]
fn the_unit_gives_the_time_to_drain() {
    let unit = include_str!("../../../config/systemd/vectorgate.service");
    let drain = plan(DEFAULT_TEXT, &[]).server.drain;
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("a limit");
    assert!(stop.parse::<u64>().expect("seconds") > drain.as_secs());
    assert!(unit.contains("Type=notify\n"));
}
