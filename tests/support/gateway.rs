//! Starts, steers and ends gateway processes; only ever those it started.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::secrets;

/// Longest wait for a process to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of tenant `t1` in [`embedding_config`].
pub const KEY: &str = "test-key-one";

/// The key of tenant `t2` in [`embedding_config`].
pub const KEY_TWO: &str = "test-key-two";

/// A running gateway process. Killed when dropped.
pub struct Gateway {
    child: Child,
    folder: TempDir,
    /// Where clients connect, `http://…`.
    pub url: String,
    /// Where administrators connect, `http://…`.
    pub admin: String,
    environment: Vec<(String, String)>,
    client: reqwest::Client,
    /// Texts that were embedded; none may ever be written down.
    texts: Mutex<BTreeSet<String>>,
}

/// [`embedding_config`] without its first tenant.
pub fn without_t1(config: &str) -> String {
    let (first, second) = (config.find("[[tenants]]\nid = \"t1\""), config.find("[[tenants]]\nid = \"t2\""));
    format!("{}{}", &config[..first.expect("t1")], &config[second.expect("t2")..])
}

/// A configuration with model `emb-a` of space `A` at each of the given (id, provider word, base URL), tenants `t1` and
/// `t2`, and whatever `extra` tables and keys the test needs. Keys of `[[models]]` go into `model`, of `[[tenants]]`
/// `t1` into `tenant`.
pub fn embedding_config(upstreams: &[(&str, &str, &str)], model: &str, tenant: &str, extra: &str) -> String {
    let hash = |key: &str| {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(key.as_bytes()))
    };
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\n{extra}\n\
         [[models]]\nname = \"emb-a\"\nspace = \"A\"\n{model}\n\
         [[tenants]]\nid = \"t1\"\nkey_sha256 = [\"{}\"]\n{tenant}\n\
         [[tenants]]\nid = \"t2\"\nkey_sha256 = [\"{}\"]\n",
        hash(KEY),
        hash(KEY_TWO)
    );
    for (id, provider, url) in upstreams {
        text.push_str(&format!(
            "[[upstreams]]\nid = \"{id}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
             api_key = {{ value = \"upstream-secret-{id}\" }}\nserves = [{{ model = \"emb-a\" }}]\n"
        ));
    }
    text
}

impl Gateway {
    /// Starts a gateway with a configuration of its own, in a folder of its own.
    #[track_caller]
    pub fn start(config: &str) -> Gateway {
        Self::start_with(config, &[])
    }

    /// The same, with these variables in its environment.
    #[track_caller]
    pub fn start_with(config: &str, environment: &[(&str, &str)]) -> Gateway {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("gateway.toml"), config).expect("the configuration is written");
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::launch(folder, environment.collect())
    }

    /// Starts a gateway by a command that ends in starting what its last arguments say; its process must become that.
    #[track_caller]
    pub fn start_under(config: &str, wrapper: &[&str]) -> Gateway {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("gateway.toml"), config).expect("the configuration is written");
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut command = Command::new(wrapper.first().expect("a command"));
        command.args(&wrapper[1..]).arg(binary());
        let (child, url, admin) = spawn_by(command, folder.path(), &[]);
        let client = reqwest::Client::new();
        Gateway { child, folder, url, admin, environment: Vec::new(), client, texts: Mutex::default() }
    }

    /// Starts a gateway in a folder that another one has left, with its ledger.
    #[track_caller]
    pub fn start_in(folder: TempDir) -> Gateway {
        Self::launch(folder, Vec::new())
    }

    #[track_caller]
    fn launch(folder: TempDir, environment: Vec<(String, String)>) -> Gateway {
        // The client library is built without a TLS provider; loopback needs none, but it insists.
        drop(rustls::crypto::ring::default_provider().install_default());
        let (child, url, admin) = spawn(folder.path(), &environment);
        let client = reqwest::Client::new();
        Gateway { child, folder, url, admin, environment, client, texts: Mutex::default() }
    }

    /// The folder of the process: `gateway.toml`, `data`, `log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it like `kill -9`, and starts another one in the same folder.
    #[track_caller]
    pub fn crash_and_restart(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        let (child, url, admin) = spawn(self.folder.path(), &self.environment);
        (self.child, self.url, self.admin) = (child, url, admin);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    /// Stops it without closing anything: it does nothing until [`Gateway::wake`].
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn wake(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Starts another one in the same folder after this one has ended.
    #[track_caller]
    pub fn restart(&mut self) {
        self.wait();
        let (child, url, admin) = spawn(self.folder.path(), &[]);
        (self.child, self.url, self.admin) = (child, url, admin);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return status;
            }
            assert!(Instant::now() < until, "the gateway did not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A POST with a key; headers as (name, value).
    pub async fn post(&self, path: &str, key: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
        let mut request = self.client.post(format!("{}{path}", self.url));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            request = request.header("content-type", "application/json");
        }
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::of(request.body(body.into()).send().await.expect("the gateway answers")).await
    }

    /// A GET with a key.
    pub async fn get(&self, path: &str, key: &str) -> Answer {
        let mut request = self.client.get(format!("{}{path}", self.url));
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        Answer::of(request.send().await.expect("the gateway answers")).await
    }

    /// `POST /v1/embeddings` by tenant `t1`, model `emb-a`.
    pub async fn embed(&self, input: Value) -> Answer {
        self.embed_with(json!({ "model": "emb-a", "input": input })).await
    }

    /// `POST /v1/embeddings` by tenant `t1` with a whole body.
    pub async fn embed_with(&self, body: Value) -> Answer {
        secrets::remember(&self.texts, &body["input"]);
        self.post("/v1/embeddings", KEY, &[], body.to_string()).await
    }

    /// `GET` on the admin side.
    pub async fn admin_get(&self, path: &str) -> Answer {
        let sent = self.client.get(format!("{}{path}", self.admin)).send().await;
        Answer::of(sent.expect("the admin side answers")).await
    }

    /// `GET` on the admin side with these headers.
    pub async fn admin_get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = self.client.get(format!("{}{path}", self.admin));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Answer::of(request.send().await.expect("the admin side answers")).await
    }

    /// `POST` on the admin side.
    pub async fn admin_post(&self, path: &str, body: Value) -> Answer {
        let request = self.client.post(format!("{}{path}", self.admin)).json(&body);
        Answer::of(request.send().await.expect("the admin side answers")).await
    }

    /// Any call on the admin side, with a bearer token unless it is empty.
    pub async fn admin(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> Answer {
        let method = method.parse::<reqwest::Method>().expect("a method");
        let mut request = self.client.request(method, format!("{}{path}", self.admin));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        Answer::of(request.send().await.expect("the admin side answers")).await
    }

    /// Replaces its configuration file, in force after the next reload.
    pub fn configure(&self, config: &str) {
        std::fs::write(self.folder.path().join("gateway.toml"), config).expect("the configuration is written");
    }

    /// Runs on with this configuration.
    pub async fn reload(&self, config: &str) {
        self.configure(config);
        self.admin_post("/admin/reload", json!({})).await.expect(200);
    }

    /// The value of one series on `/metrics`, the labels as written there; 0 if it is absent.
    pub async fn metric(&self, series: &str) -> f64 {
        let text = self.admin_get("/metrics").await.text;
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// A tenant's balance from the admin side.
    pub async fn tenant(&self, id: &str) -> Value {
        self.admin_get(&format!("/admin/tenants/{id}")).await.json()
    }

    /// The usage records, by the command line.
    #[track_caller]
    pub fn usage(&self) -> Vec<Value> {
        let output = self.command(&["usage", "--format", "jsonl"]);
        output.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
    }

    /// Runs a `vectorgate` command with this gateway's configuration; its standard output.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = self.try_command(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a `vectorgate` command that may fail.
    #[track_caller]
    pub fn try_command(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(binary())
            .args(arguments)
            .args(["--config", "gateway.toml"])
            .current_dir(self.folder.path())
            .output()
            .expect("the command runs")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let running = matches!(self.child.try_wait(), Ok(None));
        let pages = if running { secrets::pages(&self.admin) } else { Vec::new() };
        if running && let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("the gateway process could not be ended: {error}");
        }
        if !std::thread::panicking() {
            let texts = self.texts.lock().expect("no test panicked here");
            let files = secrets::files(self.folder.path());
            for (what, text) in pages.iter().chain(&files).chain([&("the log".to_owned(), self.log())]) {
                secrets::check(what, text, &texts);
                secrets::check_made_keys(what, text);
            }
        }
    }
}

/// The program under test; `VECTORGATE_TEST_BINARY` names another build of it, for measurements.
pub fn binary() -> PathBuf {
    std::env::var_os("VECTORGATE_TEST_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_vectorgate").into(), PathBuf::from)
}

#[track_caller]
fn spawn(folder: &Path, environment: &[(String, String)]) -> (Child, String, String) {
    spawn_by(Command::new(binary()), folder, environment)
}

#[track_caller]
fn spawn_by(mut command: Command, folder: &Path, environment: &[(String, String)]) -> (Child, String, String) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log file");
    let mut child = command
        .args(["serve", "--config", "gateway.toml"])
        .current_dir(folder)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("the gateway starts");
    let stdout = child.stdout.take().expect("piped");
    let (mut url, mut admin) = (None, None);
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while url.is_none() || admin.is_none() {
        line.clear();
        if reader.read_line(&mut line).expect("readable") == 0 {
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            panic!("the gateway did not start: {log}");
        }
        if let Some(rest) = line.strip_prefix("clients: ") {
            url = Some(rest.trim().to_owned());
        }
        if let Some(rest) = line.strip_prefix("admin:   ") {
            admin = Some(rest.trim().to_owned());
        }
    }
    // Whatever else it prints is read away, so that it never blocks on a full pipe.
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        drop(reader.read_to_end(&mut rest));
    });
    (child, url.expect("printed"), admin.expect("printed"))
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: reqwest::header::HeaderMap,
    /// Body.
    pub text: String,
}

impl Answer {
    async fn of(response: reqwest::Response) -> Answer {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let answer = Answer { status, headers, text: response.text().await.expect("a whole body") };
        let head = format!("{:?}", answer.headers);
        for text in [&head, &answer.text] {
            secrets::check("an answer", text, &BTreeSet::new());
        }
        answer
    }

    /// A header's value; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The body as JSON, with the status asserted.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// The error's code in the OpenAI shape.
    #[track_caller]
    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("no code: {}", self.text)).to_owned()
    }
}
