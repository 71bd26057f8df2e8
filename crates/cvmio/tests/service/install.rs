//! What `make install` puts where, and whether its initramfs hook finds it there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use crate::common::Desk;

/// What initramfs-tools lends to a hook, as far as ours uses it.
const FUNCTIONS: &str = r#"
copy_exec() {
    [ -x "$1" ] || exit 1
    mkdir -p "$DESTDIR$(dirname "$2")"
    cp "$1" "$DESTDIR$2"
}
manual_add_modules() { echo "$1" >> "$DESTDIR/modules"; }
"#;

/// Runs `make install` for the program that the tests are about.
fn install(settings: &[String]) {
    // It makes what it installs in one directory.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let made = Command::new("make")
        .args([
            "-s",
            "-o",
            "build",
            "install",
            "SUDO=",
            // This package's tests build no other programs.
            "OTHERS=cvmio-bench",
            "LIBRARIES=",
            &format!("BINARY={}", crate::common::programs::cvmio().display()),
        ])
        .args(settings)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Runs an installed hook on this desk's table; what it puts into the initramfs is in `image`.
fn run_hook(desk: &Desk, hook: &Path) -> Output {
    let text = fs::read_to_string(hook).unwrap();
    let path = |name: &str| desk.path(name).display().to_string();
    let text = text
        .replace("/usr/share/initramfs-tools/hook-functions", &path("functions"))
        .replace("TAB=/etc/cvmiotab", &format!("TAB={}", path("tab")));
    assert!(!text.contains("/etc/cvmiotab\n") && !text.contains("initramfs-tools/hook-functions"), "{text}");
    desk.write("hook", text.as_bytes());
    // As mkinitramfs has it, and a directory for its busybox.
    let search = format!("/usr/bin:/sbin:/bin:{}", path("programs"));
    Command::new("sh")
        .args(["-c", "umask 077; exec sh \"$0\"", &path("hook")])
        .env_clear()
        .env("PATH", search)
        .env("DESTDIR", desk.path("image"))
        .output()
        .unwrap()
}

/// A table with a volume for the initramfs, and its policy.
fn tabled() -> Desk {
    let desk = Desk::new();
    desk.done("volume create store --size 32M --key-file key --policy policy.toml --freshness off");
    let path = |name: &str| desk.path(name).display().to_string();
    let line = format!("root /dev/vda {} key-file:{} initramfs\n", path("policy.toml"), path("key"));
    desk.write("tab", line.as_bytes());
    desk.write("functions", FUNCTIONS.as_bytes());
    fs::create_dir(desk.path("programs")).unwrap();
    desk.write("programs/busybox", b"#!/bin/sh\n");
    fs::set_permissions(desk.path("programs/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    desk
}

#[test]
fn all_is_where_it_is_looked_for() {
    let desk = Desk::new();
    for (prefix, initramfs) in [("/usr/local", "etc"), ("/usr", "usr/share")] {
        let root = desk.path(&prefix.replace('/', "-"));
        install(&[format!("DESTDIR={}", root.display()), format!("PREFIX={prefix}")]);
        let below = |path: &str| root.join(prefix.trim_start_matches('/')).join(path);
        for path in [
            "bin/cvmio",
            "bin/cvmio-bench",
            "share/man/man1/cvmio-bench-volume.1",
            "share/man/man1/cvmio-volume-attach.1",
            "lib/systemd/system-generators/cvmio-generator",
        ] {
            assert!(below(path).exists(), "{path} with {prefix}");
        }
        let unit = fs::read_to_string(below("lib/systemd/system/cvmio@.service")).unwrap();
        assert_eq!(unit.matches(&format!("={prefix}/bin/cvmio volume ")).count(), 2);
        for path in ["hooks/cvmio", "scripts/local-top/cvmio", "scripts/local-block/cvmio"] {
            let path = root.join(initramfs).join("initramfs-tools").join(path);
            let mode = fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(mode.permissions().mode() & 0o777, 0o755, "{}", path.display());
        }
        let hook = root.join(initramfs).join("initramfs-tools/hooks/cvmio");
        let hook = fs::read_to_string(hook).unwrap();
        // What it names is there.
        for name in ["CVMIO", "SHUTDOWN"] {
            let place = hook.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap();
            assert!(place.starts_with(&format!("{prefix}/")), "{place}");
            let mode = fs::metadata(root.join(place.trim_start_matches('/'))).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{place}");
        }
    }
}

#[test]
fn the_hook_copies_what_was_installed_wherever_that_is() {
    let desk = tabled();
    let prefix = desk.path("prefix");
    let settings = ["PREFIX=prefix", "INITRAMFS_TOOLS=tools"]
        .map(|setting| setting.replace('=', &format!("={}/", desk.path("").display())));
    install(&settings);
    let hook = desk.path("tools/hooks/cvmio");
    // Twice, as beside the hook of a package.
    for _ in 0..2 {
        let ran = run_hook(&desk, &hook);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let image = |name: &str| desk.read(&format!("image/cvmio/{name}"));
    assert!(image("usr/bin/cvmio") == fs::read(env!("CARGO_BIN_EXE_cvmio")).unwrap());
    assert_eq!(image("shutdown"), fs::read(prefix.join("share/cvmio/shutdown")).unwrap());
    let key = desk.path("key");
    assert_eq!(image(key.strip_prefix("/").unwrap().to_str().unwrap()), desk.read("key"));
    let table = String::from_utf8(image("table")).unwrap();
    assert!(table.starts_with("root /dev/vda ") && table.lines().count() == 1, "{table}");

    // A wrong table is told with its place, and so is a program that is gone.
    let table = desk.read("tab");
    desk.write("tab", b"root /dev/vda /p key-file:/k initramsf\n");
    let ran = run_hook(&desk, &hook);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success() && said.contains("tab:1:30: ") && said.contains("`initramfs`?"), "{said}");
    desk.write("tab", &table);
    fs::remove_file(prefix.join("bin/cvmio")).unwrap();
    let ran = run_hook(&desk, &hook);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success() && said.contains("prefix/bin/cvmio; install cvmio again"), "{said}");
    // Whoever has no table does not need it.
    fs::remove_file(desk.path("tab")).unwrap();
    assert!(run_hook(&desk, &hook).status.success());
}
