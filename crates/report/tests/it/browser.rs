//! The page in a real browser: narrow and wide, light and dark.

use std::fs;
use std::process::Command;

use report::page::{Options, page};

use super::golden;

/// Appended to a copy of the page: writes what the browser made of it where the test can read it.
const PROBE: &str = r#"<script>
const all = [...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect());
const text = getComputedStyle(document.querySelector("svg [fill='#24292F']")).fill;
const back = getComputedStyle(document.body).backgroundColor;
document.body.innerHTML = '<p id=probe>' + JSON.stringify({
  plots: all.length,
  shown: all.filter(box => box.width > 250 && box.height > 100 && box.right <= innerWidth + 1).length,
  overflow: document.documentElement.scrollWidth > innerWidth, width: innerWidth, text, back,
}) + '</p>';
</script>"#;

struct Seen {
    probe: serde_json::Value,
    console: String,
}

/// What Chromium makes of the page.
fn look(width: u32, dark: bool) -> Seen {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let html = page(&[golden()], &Options::default()).unwrap();
    fs::write(&file, html.replace("</main>", &format!("</main>{PROBE}"))).unwrap();
    let scheme = if dark { 0 } else { 1 };
    let output = Command::new("timeout")
        .args([
            "60",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let console = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = console.lines().filter(|line| line.contains("CONSOLE")).collect();
    let probe = dom.split("id=\"probe\">").nth(1).and_then(|rest| rest.split("</p>").next());
    let probe = probe.unwrap_or_else(|| panic!("the page did not come up: {dom}")).replace("&gt;", ">");
    Seen { probe: serde_json::from_str(&probe).unwrap(), console: console.join("\n") }
}

fn chromium() -> bool {
    let there =
        Command::new("chromium").arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: chromium is not installed");
    }
    there
}

#[test]
fn the_page_is_whole_in_a_browser() {
    if !chromium() {
        return;
    }
    for (width, dark) in [(1280, false), (500, true)] {
        let Seen { probe, console } = look(width, dark);
        assert_eq!(console, "", "width {width}");
        assert_eq!((&probe["plots"], &probe["shown"]), (&7.into(), &7.into()), "{probe}");
        assert_eq!(probe["overflow"], false, "{probe}");
        let (text, back) = match dark {
            true => ("rgb(230, 237, 243)", "rgb(13, 17, 23)"),
            false => ("rgb(36, 41, 47)", "rgb(255, 255, 255)"),
        };
        assert_eq!((probe["text"].as_str(), probe["back"].as_str()), (Some(text), Some(back)), "{probe}");
    }
}
