//! Peers that a comparison starts itself: the provider, the release gateway beside this program, and nginx as a plain
//! proxy where it is installed. All on loopback, with files in a folder of their own; all end with the comparison.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Peer;
use crate::clock;
use crate::engine::Target;
use crate::provider::{Delay, Options, Provider, Script};

/// The key of the only tenant of the temporary gateway.
pub const KEY: &str = "vg-compare-key-for-loopback-only";
/// SHA-256 of [`KEY`].
const KEY_SHA256: &str = "71e3140ce01c7b8118ab385ffdc3a1659e6c481b2b9af02447c06fd5d830d9a8";
/// The model that the temporary gateway serves.
pub const MODEL: &str = "text-embedding-3-small";

/// How long a server may take to answer for the first time.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a server may take to end when told to.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Servers of one comparison. Dropping ends them and removes their files.
pub struct OwnPeers {
    /// The peers, the direct one first.
    pub peers: Vec<Peer>,
    children: Vec<Child>,
    folder: PathBuf,
    _provider: Provider,
}

impl OwnPeers {
    /// Starts them, the provider with this delay.
    ///
    /// # Errors
    /// Which of them did not start and why; those already started are ended.
    pub fn start(delay_ms: f64) -> Result<Self, String> {
        let script = Script { width: 1536, delay: Delay::FixedMs(delay_ms), ..Script::new().canned() };
        let options = Options { threads: 2, ..Options::default() };
        let provider = Provider::start_with(script, &options).map_err(|error| format!("provider: {error}"))?;
        let folder = std::env::temp_dir().join(format!("vectorgate-compare-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let direct = Peer { name: "direct".to_owned(), target: target(provider.addr())?, pid: None };
        let upstream = provider.addr();
        let mut own = Self { peers: vec![direct], children: Vec::new(), folder, _provider: provider };
        if let Some(nginx) = find_nginx() {
            own.add("nginx", nginx_command(&nginx, &own.folder, upstream))?;
        }
        own.add("gateway", gateway_command(&own.folder, upstream))?;
        Ok(own)
    }

    fn add(&mut self, name: &str, command: io::Result<(Command, SocketAddr)>) -> Result<(), String> {
        let explain = |error: io::Error| format!("{name}: {error}");
        let (mut command, address) = command.map_err(explain)?;
        let output = fs::File::create(self.folder.join(format!("{name}.log"))).map_err(explain)?;
        let errors = output.try_clone().map_err(explain)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(explain)?;
        let pid = child.id();
        self.children.push(child);
        let deadline = clock::now() + START_PATIENCE;
        while !answers(address) {
            let ended = self.children.last_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || clock::now() > deadline {
                let log = fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
                return Err(format!("{name} did not come up at {address}: {}", last_lines(&log, 5)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.peers.push(Peer { name: name.to_owned(), target: target(address)?, pid: Some(pid) });
        Ok(())
    }
}

impl Drop for OwnPeers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Asked first, so that nginx takes its workers along; a server that does not listen is killed.
            let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            let deadline = clock::now() + if asked.is_ok() { END_PATIENCE } else { Duration::ZERO };
            if !ended_by(child, deadline) {
                // Nothing else can be done about a process that survives this.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        // A folder that cannot be removed is left to the system's own cleaning.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn ended_by(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(Some(_)) | Err(_) => return true,
            Ok(None) if clock::now() > deadline => return false,
            Ok(None) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join(" / ")
}

fn target(address: SocketAddr) -> Result<Target, String> {
    Target::parse(&format!("http://{address}/v1"))
}

/// A port that is free now. Somebody else may take it before it is used; then the server says so and the run ends.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Whether an HTTP server answers anything at all.
fn answers(address: SocketAddr) -> bool {
    let asked = TcpStream::connect_timeout(&address, Duration::from_secs(1)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut start = [0; 5];
        stream.read_exact(&mut start)?;
        Ok(start)
    });
    asked.is_ok_and(|start| &start == b"HTTP/")
}

fn gateway_command(folder: &Path, upstream: SocketAddr) -> io::Result<(Command, SocketAddr)> {
    let program = std::env::current_exe()?.with_file_name("vectorgate");
    if !program.is_file() {
        let why = format!("{} is not there; build it with `cargo build --release`", program.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let (address, admin) = (free_port()?, free_port()?);
    let file = folder.join("gateway.toml");
    fs::write(&file, gateway_config(address, admin, upstream, &folder.join("data")))?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(file).current_dir(folder);
    // Settings and keys of whoever runs the comparison must not change what is compared.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("VECTORGATE_") || name.starts_with("OPENAI_") || name.starts_with("OTEL_")
        }) {
            command.env_remove(name);
        }
    }
    Ok((command, address))
}

fn gateway_config(address: SocketAddr, admin: SocketAddr, upstream: SocketAddr, data: &Path) -> String {
    let data = data.display();
    format!(
        r#"[server]
listen = "{address}"
admin_listen = "{admin}"

[store]
path = "{data}"

[[models]]
name = "{MODEL}"
kind = "embedding"
dimensions = 1536
price_usd_per_million_tokens = "0.02"

[[upstreams]]
id = "provider"
provider = "openai"
base_url = "http://{upstream}/v1"
api_key = {{ value = "provider-key" }}
max_concurrency = 1024
serves = [ {{ model = "{MODEL}", as = "{MODEL}" }} ]

[[tenants]]
id = "compare"
key_sha256 = ["{KEY_SHA256}"]
budget = "1000000.00"
"#
    )
}

fn find_nginx() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.map(|folder| folder.join("nginx")).find(|program| program.is_file())
}

fn nginx_command(program: &Path, folder: &Path, upstream: SocketAddr) -> io::Result<(Command, SocketAddr)> {
    let address = free_port()?;
    let home = folder.join("nginx");
    fs::create_dir_all(&home)?;
    let file = home.join("nginx.conf");
    fs::write(&file, nginx_config(address, upstream, &home))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(&home).arg("-c").arg(&file).args(["-e", "stderr"]);
    Ok((command, address))
}

fn nginx_config(address: SocketAddr, upstream: SocketAddr, home: &Path) -> String {
    let home = home.display();
    format!(
        "daemon off;
worker_processes 2;
pid {home}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 256m;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    keepalive_requests 1000000;
    upstream provider {{ server {upstream}; keepalive 256; keepalive_requests 1000000; }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_configuration_is_toml_and_names_the_upstream() {
        let address: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let upstream: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let text = gateway_config(address, address, upstream, Path::new("somewhere/data"));
        let value: toml::Table = toml::from_str(&text).expect("TOML");
        assert_eq!(value["upstreams"][0]["base_url"].as_str(), Some("http://127.0.0.1:9/v1"));
        assert_eq!(value["tenants"][0]["key_sha256"][0].as_str().map(str::len), Some(64));
    }

    #[test]
    fn nginx_keeps_its_files_in_the_folder_of_the_run() {
        let address: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let upstream: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let text = nginx_config(address, upstream, Path::new("/somewhere"));
        assert!(text.contains("server 127.0.0.1:9;") && text.contains("listen 127.0.0.1:1 "));
        let paths = text.lines().filter(|line| line.contains("_path ") || line.trim_start().starts_with("pid "));
        assert!(paths.clone().count() == 6 && paths.clone().all(|line| line.contains(" /somewhere/")));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn a_server_that_does_not_come_up_is_told_on_with_its_last_words() {
        let folder = std::env::temp_dir().join(format!("vectorgate-own-peers-test-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let provider = Provider::start(Script::new());
        let mut own = OwnPeers { peers: Vec::new(), children: Vec::new(), folder: folder.clone(), _provider: provider };
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such key >&2"]);
        let error = own.add("server", free_port().map(|address| (command, address))).expect_err("it ended");
        assert!(error.contains("no such key"), "{error}");
        drop(own);
        assert!(!folder.exists());
    }
}
