//! What the manifests, the compose file and the image say of ports, paths and metrics is what the program does.

use loadtest::provider::{Provider, Script};
use serde_json::json;

use crate::support::{Gateway, embedding_config};

const DOCKERFILE: &str = include_str!("../../Dockerfile");
const COMPOSE: &str = include_str!("../../compose.yml");
const SCRAPED: &str = include_str!("../../config/compose/prometheus.yml");
const SET: &str = include_str!("../../config/kubernetes/stateful-set.yaml");
const SERVICES: &str = include_str!("../../config/kubernetes/service.yaml");
const AUTOSCALER: &str = include_str!("../../config/kubernetes/autoscaler.yaml");
const MONITOR: &str = include_str!("../../config/kubernetes/monitoring/service-monitor.yaml");

/// The ports that the image listens on: clients, admin.
fn ports() -> [String; 2] {
    ["VECTORGATE_SERVER__LISTEN", "VECTORGATE_SERVER__ADMIN_LISTEN"].map(|name| {
        let said = DOCKERFILE.split_once(&format!("{name}=0.0.0.0:")).unwrap_or_else(|| panic!("{name} is not set")).1;
        said.split(|c: char| !c.is_ascii_digit()).next().expect("a port").to_owned()
    })
}

#[test]
fn everybody_means_the_ports_on_which_the_image_listens() {
    let [clients, admin] = ports();
    let expected = [
        (DOCKERFILE, format!("EXPOSE {clients} {admin}\n")),
        (DOCKERFILE, format!("\"health\", \"--address\", \"127.0.0.1:{admin}\"")),
        (SET, format!("{{ name: http, containerPort: {clients} }}")),
        (SET, format!("{{ name: admin, containerPort: {admin} }}")),
        (SET, format!("prometheus.io/port: \"{admin}\"")),
        (SERVICES, "targetPort: http\n".to_owned()),
        (SERVICES, format!("port: {admin}\n      targetPort: admin\n")),
        (MONITOR, "- port: admin\n".to_owned()),
        (COMPOSE, format!("127.0.0.1:{clients}:{clients}\n")),
        (COMPOSE, format!("127.0.0.1:{admin}:{admin}\n")),
        (SCRAPED, format!("gateway:{admin}")),
    ];
    for (file, part) in expected {
        assert!(file.contains(&part), "{part:?} is not in {file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_the_autoscaler_ask_for_what_there_is() {
    let provider = Provider::start(Script::new().space("A").width(8).delay_ms(50.0));
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", "");
    let gateway = Gateway::start(&config.replace("serves = [", "max_concurrency = 1\nserves = ["));
    // The second one waits for the first.
    let (one, two) = tokio::join!(gateway.embed(json!("one")), gateway.embed(json!("two")));
    assert_eq!((one.status, two.status), (200, 200));
    let paths: Vec<&str> =
        SET.split("path: ").skip(1).map(|rest| rest.split([',', ' ', '}']).next().expect("a path")).collect();
    assert_eq!(paths, ["/readyz", "/readyz", "/healthz"], "start, readiness, life");
    for path in paths {
        assert_eq!(gateway.admin_get(path).await.status, 200, "{path}");
    }
    let series = AUTOSCALER.split_once("seriesQuery: '").expect("a series").1.split('{').next().expect("a name");
    let class = AUTOSCALER.split_once("class=").expect("a class").1.split('"').nth(1).expect("a value");
    let page = gateway.admin_get("/metrics").await.text;
    let found = page.lines().any(|line| line.starts_with(series) && line.contains(&format!("class=\"{class}\"")));
    assert!(found, "{series} of class {class} is not on {page}");
}
