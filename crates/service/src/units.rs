//! systemd units for the table's volumes: a drop-in for each, and who wants it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use anchor::Needs;
use store::Address;

use super::tab::Line;
use cli::failure::Failure;
use daemon::input;

/// Writes the units into `directory`, as a generator does into its first argument (systemd.generator(7)).
///
/// # Errors
/// When something cannot be written.
pub fn write(lines: &[Line], tab: &Path, directory: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(format!("the units cannot be written to {}: {error}", directory.display()))
    };
    // systemd wants to know where from, wherever it stands itself.
    let tab = std::path::absolute(tab).map_err(fail)?;
    for line in lines.iter().filter(|line| !line.initramfs) {
        let unit = format!("cvmio@{}.service", line.target.name);
        let drop_in = directory.join(format!("{unit}.d"));
        fs::create_dir_all(&drop_in).map_err(fail)?;
        fs::write(drop_in.join("50-cvmiotab.conf"), drop_in_text(line, &tab)).map_err(fail)?;
        if line.noauto {
            continue;
        }
        let dependency = if line.nofail { "wants" } else { "requires" };
        let wanted = directory.join(format!("local-fs.target.{dependency}"));
        fs::create_dir_all(&wanted).map_err(fail)?;
        let link = wanted.join(&unit);
        // Written again, it is the same.
        let _ = fs::remove_file(&link);
        symlink(PathBuf::from("..").join("cvmio@.service"), &link).map_err(fail)?;
    }
    Ok(())
}

/// What is particular to a volume. Stopping goes the other way round: what is `Before` when starting is put away first.
fn drop_in_text(line: &Line, tab: &Path) -> String {
    let target = &line.target;
    let mut text =
        format!("# Made of {} by cvmio-generator.\n[Unit]\nSourcePath={}\n", tab.display(), tab.display());
    let mut add = |setting: &str, value: &str| text += &format!("{setting}={value}\n");
    // Not everything below /dev is a device.
    let address = Address::of(&target.store).unwrap_or_else(|_| Address::File(target.store.clone()));
    let store = without_parents(address.path());
    let is_file = ["/dev/shm", "/dev/hugepages", "/dev/mqueue"].iter().any(|at| store.starts_with(at));
    if store.starts_with("/dev") && !is_file {
        let device = format!("{}.device", escape(&store));
        add("BindsTo", &device);
        add("After", &device);
    } else {
        add("RequiresMountsFor", &quote(&store));
    }
    let anchor = anchor_of(&target.policy);
    // A policy that is released with the key is not there before.
    let policy = if target.release_dir.is_some() { None } else { Some(&target.policy) };
    let files = [
        policy,
        target.key_file.as_ref(),
        target.passphrase_file.as_ref(),
        target.key_from_ca.as_ref(),
        target.simulated_seat.as_ref(),
    ];
    for path in files.into_iter().flatten().chain(&anchor.paths) {
        add("RequiresMountsFor", &quote(path));
    }
    for device in &anchor.devices {
        let device = format!("{}.device", escape(&without_parents(device)));
        add("Wants", &device);
        add("After", &device);
    }
    if anchor.network || target.key_from.is_some() {
        add("Wants", "network-online.target");
        add("After", "network-online.target");
    }
    if let Some(mountpoint) = &target.mountpoint {
        let mountpoint = without_parents(mountpoint);
        if let Some(parent) = mountpoint.parent() {
            add("RequiresMountsFor", &quote(parent));
        }
        add("Before", &format!("{}.mount", escape(&mountpoint)));
    }
    if target.may_be_ublk() {
        add("Wants", "modprobe@ublk_drv.service");
        add("After", "modprobe@ublk_drv.service");
    }
    if !line.noauto && !line.nofail {
        add("Before", "local-fs.target");
    }
    text
}

/// What the anchor needs, as far as the policy can be read so early.
fn anchor_of(policy: &Path) -> Needs {
    let needs = || {
        let policy = input::read_policy(policy).ok()?;
        let (address, scheme) = anchor::schemes().check(&policy.anchor?, &policy.anchor_options).ok()?;
        Some((scheme.needs)(address.rest()))
    };
    needs().unwrap_or_default()
}

/// The same path without `..`, which systemd does not take, and by which another path would have the same name. Where it leads, the links in
/// front of it say, if they are there already; they stay where nothing goes back behind them.
fn without_parents(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, component| {
        if component == Component::ParentDir {
            whole = whole.canonicalize().unwrap_or(whole);
            whole.pop();
        } else {
            whole.push(component);
        }
        whole
    })
}

/// A path in a list of paths; `%` would begin a specifier.
fn quote(path: &Path) -> String {
    let text =
        without_parents(path).to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{text}\"")
}

/// The name of a path's unit (systemd.unit(5), "String escaping"); the path has no `..`.
fn escape(path: &Path) -> String {
    let parts: Vec<String> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let mut name = String::new();
    for (index, byte) in parts.join("/").bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if index == 0 => name.push_str("\\x2e"),
            b if b.is_ascii_alphanumeric() || b":_.".contains(&b) => name.push(char::from(b)),
            b => name += &format!("\\x{b:02x}"),
        }
    }
    if name.is_empty() { "-".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tab::parse;

    const TABLE: &str = "\
ledger /dev/disk/by-id/virtio-1 /etc/l.toml key-file:/k/l fs=ext4,mountpoint=/srv/my-data
scratch /var/lib/s.img /etc/s.toml passphrase-file:/k/s loop,nofail
spare /dev/vdd /etc/p.toml key-file:/k/p noauto,as=auto
root /dev/vda /etc/r.toml ask initramfs
quick /dev/shm/q.img /etc/q.toml key-file:/k/q noauto
";

    #[test]
    fn paths_are_named_as_systemd_names_them() {
        for (path, name) in [
            ("/dev/vdb", "dev-vdb"),
            ("/dev/disk/by-id/virtio-1", "dev-disk-by\\x2did-virtio\\x2d1"),
            ("/", "-"),
            ("/.a//b/", "\\x2ea-b"),
            ("/a%b", "a\\x25b"),
            ("/\u{e4}", "\\xc3\\xa4"),
        ] {
            assert_eq!(escape(Path::new(path)), name);
        }
    }

    #[test]
    fn paths_go_nowhere_and_back() {
        for (path, plain) in [
            ("/dev/../dev/shm/v", "/dev/shm/v"),
            ("/dev/./shm//../vdb", "/dev/vdb"),
            ("/../etc/p", "/etc/p"),
            ("/none/../dev/vdb", "/dev/vdb"),
            ("/dev/disk/by-id/x", "/dev/disk/by-id/x"),
        ] {
            assert_eq!(without_parents(Path::new(path)), Path::new(plain), "{path}");
        }
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("a/deep")).unwrap();
        symlink("a/deep", at("link")).unwrap();
        assert_eq!(without_parents(&at("link/../key")), at("a/key"), "as the kernel has it");
        assert_eq!(without_parents(&at("link/key")), at("link/key"));
        let line = |store: &str, more: &str| {
            let text = format!("v {store} /etc/../etc/p key-file:/k/../k/v {more}");
            drop_in_text(&parse(&text).unwrap()[0], Path::new("/etc/cvmiotab"))
        };
        let text = line("/dev/../dev/shm/v", "fs=ext4,mountpoint=/srv/../mnt/v");
        assert!(!text.contains("..") && !text.contains("BindsTo"), "{text}");
        for wanted in ["/dev/shm/v", "/etc/p", "/k/v", "/mnt"] {
            assert!(text.contains(&format!("RequiresMountsFor=\"{wanted}\"\n")), "{wanted}: {text}");
        }
        assert!(text.contains("Before=mnt-v.mount\n"), "{text}");
        // A server's socket is a file, also below /dev.
        let text = line("vhost-user:/run/x/../s.sock", "store-timeout=1m");
        assert!(text.contains("RequiresMountsFor=\"/run/s.sock\"\n") && !text.contains("BindsTo"), "{text}");
        let text = line("/dev/shm/../vdb", "-");
        assert!(text.contains("BindsTo=dev-vdb.device\n"), "{text}");
        let text = line("/srv/../dev/vdb", "-");
        assert!(text.contains("BindsTo=dev-vdb.device\n"), "{text}");
    }

    #[test]
    fn each_line_has_a_drop_in_and_is_wanted_as_it_says() {
        let lines = parse(TABLE).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // Twice, as at a reload.
        for _ in 0..2 {
            write(&lines, Path::new("/etc/cvmiotab"), directory.path()).unwrap();
        }
        let ledger = fs::read_to_string(at("cvmio@ledger.service.d/50-cvmiotab.conf")).unwrap();
        assert_eq!(
            ledger,
            "# Made of /etc/cvmiotab by cvmio-generator.\n[Unit]\nSourcePath=/etc/cvmiotab\n\
             BindsTo=dev-disk-by\\x2did-virtio\\x2d1.device\nAfter=dev-disk-by\\x2did-virtio\\x2d1.device\n\
             RequiresMountsFor=\"/etc/l.toml\"\nRequiresMountsFor=\"/k/l\"\nRequiresMountsFor=\"/srv\"\n\
             Before=srv-my\\x2ddata.mount\nBefore=local-fs.target\n"
        );
        let scratch = fs::read_to_string(at("cvmio@scratch.service.d/50-cvmiotab.conf")).unwrap();
        assert!(
            scratch.contains("RequiresMountsFor=\"/var/lib/s.img\"\n") && !scratch.contains("local-fs"),
            "{scratch}"
        );
        let quick = fs::read_to_string(at("cvmio@quick.service.d/50-cvmiotab.conf")).unwrap();
        assert!(
            quick.contains("RequiresMountsFor=\"/dev/shm/q.img\"\n") && !quick.contains("BindsTo"),
            "{quick}"
        );
        assert!(at("local-fs.target.requires/cvmio@ledger.service").is_symlink());
        assert!(at("local-fs.target.wants/cvmio@scratch.service").is_symlink());
        let spare = fs::read_to_string(at("cvmio@spare.service.d/50-cvmiotab.conf")).unwrap();
        assert!(
            spare.ends_with("Wants=modprobe@ublk_drv.service\nAfter=modprobe@ublk_drv.service\n"),
            "{spare}"
        );
        assert!(!ledger.contains("ublk"));
        assert!(!at("cvmio@root.service.d").exists());
        let count = |name| fs::read_dir(at(name)).unwrap().count();
        assert_eq!((count("local-fs.target.requires"), count("local-fs.target.wants")), (1, 1));
    }

    #[test]
    fn a_volume_whose_key_is_released_waits_for_the_network_and_not_for_its_policy() {
        let line = "l /srv/l.img /run/r/policy.toml key-from:kbs+https://o/a/volume/l key-from-ca=/k/ca.pem,release-dir=/run/r,simulated-seat=/k/seat";
        let lines = crate::tab::parse(line).unwrap();
        let text = drop_in_text(&lines[0], Path::new("/etc/cvmiotab"));
        assert!(text.contains("Wants=network-online.target\nAfter=network-online.target\n"), "{text}");
        assert!(!text.contains("/run/r"), "what is released is not there before: {text}");
        for file in ["/k/ca.pem", "/k/seat"] {
            assert!(text.contains(&format!("RequiresMountsFor=\"{file}\"\n")), "{text}");
        }
    }
}
