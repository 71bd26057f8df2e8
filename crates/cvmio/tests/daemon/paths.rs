//! One path given for two things: compared as files, whatever they are called, and refused before anything is written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use crate::common::machine::quietly;
use crate::common::{Desk, Said};

/// A volume, its files under other names too, and what all of them hold.
struct Twice {
    desk: Desk,
    before: BTreeMap<String, Vec<u8>>,
    bound: bool,
}

impl Twice {
    fn new() -> Self {
        let desk = Desk::new();
        desk.create("");
        for (file, link) in [("disk.img", "store-2"), ("anchor", "anchor-2"), ("key", "key-2")] {
            fs::hard_link(desk.path(file), desk.path(link)).unwrap();
        }
        symlink("disk.img.policy.toml", desk.path("policy-2")).unwrap();
        fs::write(desk.path("bound"), b"").unwrap();
        let at = |name: &str| desk.path(name).display().to_string();
        let bound = quietly(&format!("mount --bind {} {}", at("disk.img"), at("bound")));
        let before = everything(&desk);
        Self { desk, before, bound }
    }

    /// Refused, with these words, and nothing has changed.
    fn check(&self, command: &str, said: &Said, why: &str) {
        assert!(said.code == 2 && said.error.contains(why), "{command}: {said:?}");
        let after = everything(&self.desk);
        assert!(after.keys().eq(self.before.keys()), "{command}: a file came or went: {:?}", after.keys());
        assert!(after == self.before, "{command}: something was changed");
    }

    fn refused(&self, command: &str, why: &str) {
        let here = self.desk.path("");
        let command = command.replace("[DIR]", here.to_str().unwrap().trim_end_matches('/'));
        self.check(&command, &self.desk.run(&command), why);
    }
}

impl Drop for Twice {
    fn drop(&mut self) {
        if self.bound {
            quietly(&format!("umount {}", self.desk.path("bound").display()));
        }
    }
}

/// All files, but for the runtime directory.
fn everything(desk: &Desk) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(desk.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap()).filter(|name| name != "run");
    names.map(|name| (name.clone(), fs::read(desk.path(&name)).unwrap_or_default())).collect()
}

#[test]
fn a_stream_goes_over_nothing_that_the_volume_lives_by() {
    let twice = Twice::new();
    let mut names = vec!["disk.img", "store-2", "policy-2", "anchor-2", "key-2", "other"];
    names.extend(twice.bound.then_some("bound"));
    for name in names {
        let export = "volume export disk.img --key-file key --stream-key-file other --resume --to";
        twice.refused(&format!("{export} {name}"), "as the stream");
    }
    // Standard output may be one of them, too.
    let mut export =
        twice.desk.command("volume export disk.img --key-file key --stream-key-file other --to -");
    let store = fs::File::options().read(true).append(true).open(twice.desk.path("disk.img")).unwrap();
    let output = export.stdout(store).output().unwrap();
    let said = Said {
        code: output.status.code().unwrap_or(-1),
        out: String::new(),
        error: String::from_utf8(output.stderr).unwrap(),
    };
    twice.check("export to standard output", &said, "as the stream");
}

#[test]
fn a_new_volume_is_made_on_no_file_of_its_stream() {
    let twice = Twice::new();
    let import = "volume import disk.img --key-file key --stream-key-file other --anchor file:[DIR]/new";
    twice.refused(&format!("{import} --to store-2 --force"), "as the stream");
    twice.refused(&format!("{import} --to new.img --policy store-2 --force"), "as the stream");
    let mut from_stdin = twice.desk.command(
        "volume import - --key-file key --stream-key-file other --freshness off --to store-2 --force --policy new.toml",
    );
    let store = fs::File::open(twice.desk.path("disk.img")).unwrap();
    let output = from_stdin.stdin(store).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let said = Said { code: output.status.code().unwrap_or(-1), out: String::new(), error };
    twice.check("import from standard input", &said, "as the stream");
}

#[test]
fn a_header_backup_is_no_file_of_the_volume() {
    let twice = Twice::new();
    for name in ["disk.img", "store-2", "policy-2", "anchor-2", "key-2"] {
        twice.refused(&format!("volume header backup disk.img {name} --key-file key"), "as the backup");
        twice.refused(&format!("volume header restore disk.img {name} --key-file key"), "as the backup");
    }
}

#[test]
fn a_new_anchor_is_no_file_of_the_volume() {
    let twice = Twice::new();
    for name in ["disk.img", "store-2", "policy-2", "anchor", "anchor-2", "key-2"] {
        let new = format!("file:[DIR]/{name}");
        twice.refused(&format!("anchor migrate disk.img --key-file key --to {new}"), "as the new anchor");
        twice.refused(
            &format!("volume reanchor disk.img --key-file key --anchor {new} --to latest"),
            "as the new anchor",
        );
    }
    // An anchor by itself is made over nothing, whatever it is.
    for name in ["disk.img", "policy-2", "key"] {
        let here = twice.desk.path(name);
        let said = twice.desk.run(&format!("anchor init file:{}", here.display()));
        assert_eq!(said.code, 8, "{said:?}");
        assert!(everything(&twice.desk) == twice.before, "{name}");
    }
}

#[test]
fn what_is_prepared_is_two_files() {
    let twice = Twice::new();
    twice.refused("volume prepare new.toml --size 16M --anchor file:[DIR]/new.toml", "as the anchor");
    symlink("new.toml", twice.desk.path("to-new")).unwrap();
    let said = twice.desk.run(&format!(
        "volume prepare ./new.toml --size 16M --anchor file:{}",
        twice.desk.path("to-new").display()
    ));
    assert!(said.code == 2 && said.error.contains("as the anchor"), "{said:?}");
    assert!(!twice.desk.path("new.toml").exists());
}

/// By its policy, which somebody has written by hand.
#[test]
fn a_volume_that_is_there_has_four_files() {
    let twice = Twice::new();
    let policy = String::from_utf8(twice.desk.read("disk.img.policy.toml")).unwrap();
    let (store, anchor) = (twice.desk.path("store-2"), twice.desk.path("anchor"));
    let wrong = policy.replace(anchor.to_str().unwrap(), store.to_str().unwrap());
    twice.desk.write("wrong.toml", wrong.as_bytes());
    for command in ["attach disk.img", "check disk.img", "grow disk.img --size 32M", "key add disk.img"] {
        let said = twice.desk.run(&format!("volume {command} --key-file key --policy wrong.toml"));
        assert!(said.code == 2 && said.error.contains("the store and as the anchor"), "{command}: {said:?}");
        for (given, why) in
            [("anchor-2", "the anchor and as the key file"), ("policy-2", "the policy and as")]
        {
            let said = twice.desk.run(&format!("volume {command} --key-file {given}"));
            assert!(said.code == 2 && said.error.contains(why), "{command}: {said:?}");
        }
    }
    let config = format!(
        r#"{{"name":"disk","store":"{}","policy":"{}","key-file":"{}","as":"nbd"}}"#,
        twice.desk.path("disk.img").display(),
        twice.desk.path("wrong.toml").display(),
        twice.desk.path("key").display()
    );
    twice.desk.write("config.json", config.as_bytes());
    let said = twice.desk.run("volume activate --config config.json");
    assert!(said.code == 2 && said.error.contains("the store and as the anchor"), "{said:?}");
    for (name, bytes) in &twice.before {
        assert!(twice.desk.read(name) == *bytes, "{name} was changed");
    }
}
