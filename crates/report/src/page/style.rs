//! The page's style sheet: light and dark, narrow and wide.

/// Plots carry their colours as attributes of SVG elements; rules that name these attributes replace them on a dark page.
pub const CSS: &str = "
:root { --ink: #24292f; --muted: #57606a; --faint: #d0d7de; --back: #ffffff; --box: #f6f8fa; --warn: #9a3412; --good: #116329; --bad: #a40e26; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --muted: #9da7b1; --faint: #3d444d; --back: #0d1117; --box: #161b22; --warn: #ffa657; --good: #56d364; --bad: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.5em; line-height: 1.25; margin: 24px 0 4px; }
h2 { font-size: 1.1em; margin: 24px 0 4px; }
.muted { color: var(--muted); }
.warning { color: var(--warn); font-weight: bold; }
h1, h2, p, ul, ol, summary, caption, th { overflow-wrap: anywhere; }
ul, ol { padding-left: 20px; margin: 4px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 16px; margin: 16px 0; align-items: start; }
figure { margin: 0; background: var(--box); border: 1px solid var(--faint); border-radius: 6px; }
svg { display: block; width: 100%; max-width: 620px; height: auto; margin: 0 auto; }
h2 + .table { margin-top: 4px; }
svg [fill='#24292F'] { fill: var(--ink); }
svg [fill='#57606A'] { fill: var(--muted); }
svg [stroke='#24292F'] { stroke: var(--ink); }
svg [stroke='#D0D7DE'] { stroke: var(--faint); }
.table { overflow-x: auto; margin: 20px 0; }
table { border-collapse: collapse; font-size: 0.9em; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: 4px 0; }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid var(--faint); overflow-wrap: break-word; }
th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.better { color: var(--good); font-weight: 600; }
td.worse { color: var(--bad); font-weight: 600; }
details { margin: 16px 0; }
summary { cursor: pointer; font-weight: bold; }
pre { background: var(--box); padding: 10px; overflow-x: auto; border-radius: 6px; font-size: 0.85em; }
section + section { border-top: 2px solid var(--faint); margin-top: 32px; }
";
