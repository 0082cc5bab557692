//! nginx as a plain proxy: what clients see who go to the provider through something that does nothing for them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::find_program;
use super::process::{Server, answers_http, free_port};

/// Starts nginx in front of `upstream`; `None`: it is not installed.
///
/// # Errors
/// It did not come up.
pub fn start(name: &str, folder: &Path, upstream: SocketAddr) -> Result<Option<Server>, String> {
    start_with(name, folder, upstream, "")
}

/// The same with a cache: nginx keeps each good answer and gives it to everybody who sends the same body.
///
/// # Errors
/// It did not come up.
pub fn start_caching(name: &str, folder: &Path, upstream: SocketAddr) -> Result<Option<Server>, String> {
    start_with(name, folder, upstream, CACHE)
}

/// A cache keyed by path and body.
const CACHE: &str = "proxy_cache answers;
            proxy_cache_key \"$request_uri $request_body\";
            proxy_cache_methods POST;
            proxy_cache_valid 200 1h;
            proxy_cache_lock on;
            proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
            client_body_buffer_size 1m;
            client_body_in_single_buffer on;";

fn start_with(name: &str, folder: &Path, upstream: SocketAddr, cache: &str) -> Result<Option<Server>, String> {
    let Some(program) = find_program("nginx") else { return Ok(None) };
    let explain = |error: std::io::Error| format!("{name}: {error}");
    let address = free_port().map_err(explain)?;
    let home = folder.join(name);
    fs::create_dir_all(&home).map_err(explain)?;
    let file = home.join("nginx.conf");
    fs::write(&file, config(address, upstream, &home, cache)).map_err(explain)?;
    let mut command = Command::new(program);
    command.arg("-p").arg(&home).arg("-c").arg(&file).args(["-e", "stderr"]);
    Server::start(name, command, address, folder, answers_http).map(Some)
}

fn config(address: SocketAddr, upstream: SocketAddr, home: &Path, cache: &str) -> String {
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
    proxy_cache_path {home}/cache keys_zone=answers:16m max_size=1g;
    upstream provider {{ server {upstream}; keepalive 256; keepalive_requests 1000000; }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            {cache}
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
    fn nginx_keeps_its_files_in_the_folder_of_the_run() {
        let address: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let upstream: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let text = config(address, upstream, Path::new("/somewhere"), "");
        assert!(!text.contains("proxy_cache answers;"));
        assert!(config(address, upstream, Path::new("/somewhere"), CACHE).contains("proxy_cache answers;"));
        assert!(text.contains("server 127.0.0.1:9;") && text.contains("listen 127.0.0.1:1 "));
        let paths = text.lines().filter(|line| line.contains("_path ") || line.trim_start().starts_with("pid "));
        assert!(paths.clone().count() == 7 && paths.clone().all(|line| line.contains(" /somewhere/")));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
