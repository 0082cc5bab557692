//! The page's files, built into the binary. Knows their names and media types, nothing of their content.
//!
//! Everything is served from this origin, so the page works without any other host and under a policy that forbids
//! them all ([`POLICY`]).

use sha2::{Digest, Sha256};

/// Content security policy of every answer: own scripts, styles and connections only, nothing inline, no framing.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                          connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// One file.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// Its path below `/dashboard/`; empty: the page itself.
    pub name: &'static str,
    /// Its media type.
    pub media_type: &'static str,
    /// Its bytes.
    pub body: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Every file.
pub const ASSETS: &[Asset] = &[
    Asset { name: "", media_type: "text/html; charset=utf-8", body: include_str!("assets/index.html") },
    Asset { name: "app.js", media_type: SCRIPT, body: include_str!("assets/app.js") },
    Asset { name: "api", media_type: "text/html; charset=utf-8", body: include_str!("assets/api.html") },
    Asset { name: "api.js", media_type: SCRIPT, body: include_str!("assets/api.js") },
    Asset { name: "actions.js", media_type: SCRIPT, body: include_str!("assets/actions.js") },
    Asset { name: "charts.js", media_type: SCRIPT, body: include_str!("assets/charts.js") },
    Asset { name: "format.js", media_type: SCRIPT, body: include_str!("assets/format.js") },
    Asset { name: "models.js", media_type: SCRIPT, body: include_str!("assets/models.js") },
    Asset { name: "summary.js", media_type: SCRIPT, body: include_str!("assets/summary.js") },
    Asset { name: "table.js", media_type: SCRIPT, body: include_str!("assets/table.js") },
    Asset { name: "views.js", media_type: SCRIPT, body: include_str!("assets/views.js") },
    Asset { name: "app.css", media_type: STYLE, body: include_str!("assets/app.css") },
    Asset { name: "icon.svg", media_type: "image/svg+xml", body: include_str!("assets/icon.svg") },
    Asset { name: "uplot.js", media_type: SCRIPT, body: include_str!("vendor/uplot.js") },
    Asset { name: "uplot.css", media_type: STYLE, body: include_str!("vendor/uplot.css") },
    Asset {
        name: "uplot-license.txt",
        media_type: "text/plain; charset=utf-8",
        body: include_str!("vendor/uplot-LICENSE.txt"),
    },
];

impl Asset {
    /// A strong validator of the bytes, quoted as `ETag` wants it.
    pub fn etag(&self) -> String {
        format!("\"{}\"", hex::encode(&Sha256::digest(self.body.as_bytes())[..12]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_page_needs_another_host_or_inline_code() {
        for asset in ASSETS.iter().filter(|asset| !asset.name.starts_with("uplot")) {
            let foreign = asset.body.replace("http://www.w3.org/", "");
            assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{}", asset.name);
            assert!(!foreign.contains("innerHTML") && !foreign.contains("eval("), "{}", asset.name);
        }
        let page = ASSETS[0].body;
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="));
        for (at, _) in page.match_indices("<script") {
            assert!(page[at..].starts_with("<script ") && page[at..].contains("src="), "an inline script");
        }
    }

    #[test]
    fn every_file_that_the_page_names_is_there() {
        let known = |name: &str| ASSETS.iter().any(|asset| asset.name == name);
        let mut named = 0;
        for asset in ASSETS.iter().filter(|asset| !asset.name.starts_with("uplot")) {
            for quoted in asset.body.split('"').skip(1).step_by(2) {
                let file = quoted.strip_prefix("dashboard/").or_else(|| quoted.strip_prefix("./"));
                let file =
                    file.filter(|file| file.ends_with(".js") || file.ends_with(".css") || file.ends_with(".svg"));
                if let Some(file) = file {
                    named += 1;
                    assert!(known(file), "{file} in {}", asset.name);
                }
            }
        }
        assert!(named >= 10, "only {named} references found");
    }
}
