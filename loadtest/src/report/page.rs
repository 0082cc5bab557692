//! The frame of a report: its style, and nothing from anywhere else.

/// A whole page around `body`.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = super::chart::escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
}

const STYLE: &str = "
:root { color-scheme: light dark; --ground: #f7f8fa; --card: #fff; --text: #1c2128; --muted: #5b6572; --edge: #dfe3e8;
  --even: #eef1f5; --odd: #f7f8fa; --good: #1a7f4b; --bad: #c62f3b; --mark: #a3570a; --mark-ground: #f6e3c5;
  --c0: #1f6feb; --c1: #b3440d; --c2: #8250df; --c3: #0e7f83; --c4: #b32d82; --c5: #5d7a00; --c6: #6e4a1e; --c7: #46516b; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1116; --card: #171b22; --text: #e4e9f0; --muted: #97a2b0;
  --edge: #2b323c; --even: #1d232c; --odd: #171b22; --good: #4cc38a; --bad: #ff6b76; --mark: #f0b45c; --mark-ground: #4a3513;
  --c0: #6cb0ff; --c1: #ff9561; --c2: #c3a0ff; --c3: #4fd1d5; --c4: #ff8ccc; --c5: #b4d455; --c6: #d9b383; --c7: #a9b6d3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 10px; } h3 { font-size: 15px; margin: 22px 0 6px; }
p { margin: 4px 0 10px; } .muted { color: var(--muted); }
.verdict { display: inline-block; padding: 3px 12px; border-radius: 99px; color: #fff; font-weight: 600; }

.yes { color: var(--good); } .no { color: var(--bad); }
.verdict.yes { background: #1a7f4b; color: #fff; } .verdict.no { background: #c62f3b; color: #fff; }
section.card, figure { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px; margin: 12px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px 5px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--edge); }
th { color: var(--muted); font-weight: 600; } tr:last-child td { border-bottom: 0; }
th.t, td.t { text-align: left; } td .wrap { display: block; white-space: normal; min-width: 200px; }
figcaption { font-weight: 600; margin-bottom: 4px; } figure svg { width: 100%; height: auto; display: block; }
svg text { font: 11.5px system-ui, sans-serif; fill: var(--muted); } svg .grid { stroke: var(--edge); stroke-width: 1; }
svg .band.even { fill: var(--even); } svg .band.odd { fill: var(--odd); } svg text.phase { font-weight: 600; fill: var(--text); }
svg rect.mark { fill: var(--mark-ground); stroke: var(--mark); stroke-width: .6; } svg line.mark { stroke: var(--mark); stroke-width: .8; stroke-dasharray: 2 3; }
svg text.mark { fill: var(--text); font-size: 10.5px; } svg rect.bad { fill: var(--bad); opacity: .55; }
svg .line { fill: none; stroke-width: 1.9; stroke-linejoin: round; } svg .line.dashed { stroke-dasharray: 6 4; }
svg .c0 { stroke: var(--c0); } svg .c1 { stroke: var(--c1); } svg .c2 { stroke: var(--c2); } svg .c3 { stroke: var(--c3); }
svg .c4 { stroke: var(--c4); } svg .c5 { stroke: var(--c5); } svg .c6 { stroke: var(--c6); } svg .c7 { stroke: var(--c7); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 8px 0 0; padding: 0; font-size: 13px; }
.legend i { display: inline-block; width: 18px; height: 0; border-top: 3px solid; margin-right: 6px; vertical-align: middle; }
.legend i.dashed { border-top-style: dashed; } .legend i.bad { border-color: var(--bad); border-top-width: 8px; opacity: .6; }
.legend .c0 { border-color: var(--c0); } .legend .c1 { border-color: var(--c1); } .legend .c2 { border-color: var(--c2); }
.legend .c3 { border-color: var(--c3); } .legend .c4 { border-color: var(--c4); } .legend .c5 { border-color: var(--c5); }
.legend .c6 { border-color: var(--c6); } .legend .c7 { border-color: var(--c7); }
details summary { cursor: pointer; color: var(--muted); } ul.plain { margin: 4px 0; padding-left: 18px; }
";
