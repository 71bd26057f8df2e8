//! Tables, right and wrong.

use super::*;
use crate::FrontEnd;
use crate::filesystem::FileSystem;
use daemon::polling::Poll;
use proptest::prelude::*;

const TABLE: &str = "\
# name  store      policy            key                    options
ledger  /dev/vdb   /etc/ledger.toml  key-file:/k/ledger     fs=ext4,mountpoint=/srv/ledger,mount-option=noatime,mount-option=nodev,nofail

  scratch /dev/vdc /etc/scratch.toml passphrase-file:/k/p   loop,noauto,memory=64M,block-cache=1G,discard=on,queues=4,interval=500ms,provision=thin,metrics=unix:/m,poll=adaptive
plain\t/dev/vdd\t/etc/plain.toml\tkey-file:/k/plain\t-
device /dev/vde /etc/device.toml key-file:/k/device       as=auto,on-tamper=read-only,tamper-hook=/usr/sbin/page
root   /dev/vda /etc/root.toml   ask                      initramfs,on-tamper=stop
image  /dev/vdf /etc/image.toml  key-file:/k/image        as=auto,read-only
owned  /dev/vdg /run/r/policy.toml key-from:kbs+https://owner.example/default/volume/owned key-from-ca=/k/ca.pem,release-dir=/run/r
";

#[test]
fn each_line_is_a_volume() {
    let lines = parse(TABLE).unwrap();
    let names: Vec<&str> = lines.iter().map(|line| line.target.name.as_str()).collect();
    assert_eq!(names, ["ledger", "scratch", "plain", "device", "root", "image", "owned"]);
    let ledger = &lines[0].target;
    assert_eq!((ledger.fs, ledger.mount_options.as_deref()), (Some(FileSystem::Ext4), Some("noatime,nodev")));
    assert_eq!((lines[0].noauto, lines[0].nofail, lines[1].noauto), (false, true, true));
    assert_eq!(
        (lines[1].target.memory, lines[1].target.block_cache, lines[1].target.queues),
        (64 << 20, 1 << 30, 4)
    );
    assert_eq!((lines[0].target.poll, lines[1].target.poll), (Poll::Off, Poll::Adaptive));
    assert_eq!(lines[2].target.key_file.as_deref(), Some(Path::new("/k/plain")));
    assert_eq!((lines[2].target.front_end, lines[3].target.front_end), (FrontEnd::Fuse, FrontEnd::Auto));
    let device = &lines[3].target;
    assert_eq!(device.on_tamper, OnTamper::ReadOnly);
    assert_eq!(device.tamper_hook.as_deref(), Some(Path::new("/usr/sbin/page")));
    assert_eq!((lines[4].initramfs, lines[4].target.on_tamper), (true, OnTamper::Stop));
    let image = &lines[5].target;
    assert!(image.read_only && image.may_be_ublk() && !image.may_go_on());
    let owned = &lines[6].target;
    let released = owned.released().unwrap();
    assert_eq!(released.address.to_string(), "kbs+https://owner.example:8080/default/volume/owned");
    assert_eq!(released.policy().as_ref(), Some(&owned.policy));
    assert_eq!(released.authorities.as_deref(), Some(Path::new("/k/ca.pem")));
    assert!(owned.key_file.is_none() && released.seat.is_none());
    assert_eq!(parse("").unwrap(), []);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (line, column, part) in [
        ("a", 2, "a store is missing"),
        ("a /s", 5, "a policy is missing"),
        ("a /s /p", 8, "a key is missing"),
        ("a/b /s /p key-file:/k", 1, "cannot be a volume's name"),
        ("a vhost-user:s /p key-file:/k", 3, "`vhost-user:s` names no absolute path"),
        ("a ivshmem:1 /p key-file:/k", 3, "not supported yet"),
        ("a s /p key-file:/k", 3, "`s` is no absolute path, which begins with `/`"),
        ("a UUID=1-2 /p key-file:/k", 3, "did you mean `/dev/disk/by-uuid/1-2`?"),
        ("a PARTLABEL=x /p key-file:/k", 3, "did you mean `/dev/disk/by-partlabel/x`?"),
        ("a /s key-file:/k", 6, "a policy is missing before the key"),
        ("a /s /p key-fil:/k", 9, "did you mean `key-file`?"),
        ("a /s /p key-from:https://o/a/b/c", 9, "write kbs+https://HOST"),
        ("a /s /p key-from:kbs+https://o/a/b", 9, "REPOSITORY/TYPE/TAG"),
        ("a /s /p key-from:kbs+https://o/a/b/c initramfs", 9, "cannot ask the owner"),
        ("a /s /p key-file:/k release-dir=/r", 21, "go with key-from"),
        ("a /s /p key-from:kbs+https://o/a/b/c key-from-ca=x", 50, "`x` is no absolute path"),
        ("a /s /p key-file:k", 18, "`k` is no absolute path"),
        ("a /s /p /k", 9, "says not where the key is"),
        ("a /s /p key-file", 9, "says not where the key is"),
        ("a /s /p key-file:", 18, "`` is no absolute path"),
        ("a /s /p key-file:/k loop,mountpiont=/x", 26, "did you mean `mountpoint`?"),
        ("a /s /p key-file:/k colour=red", 21, "there is no option `colour`"),
        ("a /s /p key-file:/k loop,loop", 26, "twice"),
        ("a /s /p key-file:/k loop=yes", 21, "takes no value"),
        ("a /s /p key-file:/k fs", 21, "wants a value"),
        ("a /s /p key-file:/k mount-option=", 21, "wants a value"),
        ("a /s /p key-file:/k fs=ntfs,mountpoint=/x", 24, "no file system that is made here"),
        ("a /s /p key-file:/k fs=ext3,mountpoint=/x", 24, "did you mean `ext4`?"),
        ("a /s /p key-file:/k fs=ext4,mountpoint=x", 40, "`x` is no absolute path"),
        ("a /s /p key-file:/k loop,memory=1X", 33, "not a size"),
        ("a /s /p key-file:/k loop,memory=", 26, "wants a value"),
        ("a /s /p key-file:/k queues=two", 28, "`two` is no number of queues; there are 1 to 64"),
        ("a /s /p key-file:/k queues=65", 28, "`65` is no number of queues"),
        ("a /s /p key-file:/k queues=0", 28, "`0` is no number of queues"),
        ("a /s /p key-file:/k queues=-1", 28, "`-1` is no number of queues"),
        ("a /s /p key-file:/k interval=1", 30, "`1` is not a time; write it like"),
        ("a /s /p key-file:/k provision=thick", 31, "did you mean `thin`?"),
        ("a /s /p key-file:/k metrics=9100", 29, "`9100` is no address; write it like"),
        ("a /s /p key-file:/k metrics=unix:m", 34, "`m` is no absolute path"),
        ("a /s /p key-file:/k as=iscsi", 24, "`iscsi` is no front end; there are auto, fuse, nbd and ublk"),
        ("a /s /p key-file:/k as=ubkl", 24, "did you mean `ublk`?"),
        ("a /s /p key-file:/k as=ublk,loop", 21, "loop goes with fuse"),
        ("a /s /p key-file:/k loop,", 26, "a comma too many"),
        ("a /s /p key-file:/k ,loop", 21, "a comma too many"),
        ("a /s /p key-file:/k fs=ext4", 21, "go together"),
        ("a /s /p key-file:/k mountpoint=/x", 21, "go together"),
        ("a /s /p key-file:/k mount-option=noatime", 21, "want fs and mountpoint"),
        ("a /s /p key-file:/k as=nbd,fs=ext4,mountpoint=/x", 21, "no block device to be mounted"),
        ("a /s /p key-file:/k loop noauto", 26, "apart by commas"),
        ("a /s /p ask", 9, "`ask` goes with the option initramfs only"),
        ("a /s /p ask initramfs,nofail", 13, "`initramfs` stands alone"),
        ("a /s /p key-file:/k poll=fast", 26, "off, adaptive and always"),
        ("a /s /p key-file:/k on-tamper=panic", 31, "continue, read-only and stop"),
        ("a /s /p key-file:/k on-tamper=readonly", 31, "did you mean `read-only`?"),
        ("a /s /p key-file:/k tamper-hook=page", 33, "`page` is no absolute path"),
        ("\u{e4}\u{e4} /s /p key-file:/k", 1, "cannot be a volume's name"),
        ("a /\u{e4}\u{e4} p key-file:/k", 7, "`p` is no absolute path"),
    ] {
        let error = parse(&format!("# first\n{line}\n")).unwrap_err();
        assert_eq!((error.line, error.column), (2, column), "{line}: {error}");
        assert!(error.message.contains(part), "{line}: {error}");
    }
}

#[test]
fn no_two_volumes_share_a_name_or_a_mountpoint() {
    let one = "a /s /p key-file:/k fs=ext4,mountpoint=/srv";
    assert!(parse(&format!("{one}\n{one}")).unwrap_err().message.contains("line 1 has a volume `a`"));
    let error = parse(&format!("{one}\n b{}", one.trim_start_matches('a'))).unwrap_err();
    assert_eq!((error.line, error.column), (2, 2));
    assert!(error.message.contains("line 1 is mounted on /srv already"), "{error}");
}

#[test]
fn what_is_no_text_is_named_with_its_place() {
    assert_eq!(text_of(TABLE.as_bytes()), Ok(TABLE));
    let error = text_of(b"# \xc3\xa4\na \xc3\xa4\xe4 /p").unwrap_err();
    assert_eq!((error.line, error.column), (2, 4));
    assert!(error.message.contains("UTF-8"), "{error}");
}

/// As an editor of another system writes it.
#[test]
fn a_mark_of_the_byte_order_and_the_ends_of_lines_of_another_system_are_no_part_of_a_table() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let told = |bytes: &[u8]| {
        std::fs::write(file.path(), bytes).unwrap();
        read(file.path()).map(|lines| lines.into_iter().map(|line| line.target).collect::<Vec<_>>())
    };
    let plain = told(b"a /s /p key-file:/k fs=ext4,mountpoint=/srv\n").unwrap();
    for bytes in [
        &b"\xef\xbb\xbfa /s /p key-file:/k fs=ext4,mountpoint=/srv\n"[..],
        b"\xef\xbb\xbfa /s /p key-file:/k fs=ext4,mountpoint=/srv\r\n",
    ] {
        assert_eq!(format!("{:?}", told(bytes).unwrap()), format!("{plain:?}"));
    }
    assert!(told(b"\xff\xfea /s /p key-file:/k").is_err(), "UTF-16 is no text here");
}

/// A line like one of the table's, with something of it changed.
fn damaged() -> impl Strategy<Value = String> {
    let lines: Vec<&'static str> = TABLE.lines().collect();
    (prop::sample::select(lines), any::<prop::sample::Index>(), any::<prop::sample::Index>(), ".{0,3}")
        .prop_map(|(line, from, to, new)| {
            let characters: Vec<char> = line.chars().collect();
            let (from, to) = (from.index(characters.len() + 1), to.index(characters.len() + 1));
            let (from, to) = (from.min(to), from.max(to).min(from.min(to) + 3));
            characters[..from]
                .iter()
                .copied()
                .chain(new.chars())
                .chain(characters[to..].iter().copied())
                .collect()
        })
}

proptest! {
    /// Whatever is written, the answer is a table of usable volumes, or a place inside the text.
    #[test]
    fn any_text_is_read_or_refused_with_its_place(text in prop_oneof![".{0,200}", damaged(), "[a/:=,# \\n\\t-]{0,80}"]) {
        match parse(&text) {
            Ok(lines) => prop_assert!(lines.iter().all(|line| line.initramfs || line.target.check().is_ok())),
            Err(error) => {
                let line = text.lines().nth(error.line - 1);
                prop_assert!(line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&error.column)), "{error}");
            }
        }
    }
}
