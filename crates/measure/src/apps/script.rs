//! Scripts that run in guests: what each application's is made of.

use crate::program::find;
use crate::target::Contents;
use crate::target::vm::MOUNT;

/// A task as parts of a script for busybox's shell. `$d` is a new directory on the target, `$data` the disk with the tree as one tar.
#[derive(Debug, Default)]
pub struct Script {
    /// What is not counted.
    pub before: String,
    /// What is.
    pub timed: String,
}

/// Lets the guest's page cache forget everything.
pub const FORGET: &str = "sync\necho 3 >/proc/sys/vm/drop_caches\n";

/// A program by the place that it has here and in the guest: busybox has others of the same names.
pub fn program(name: &str) -> String {
    let path = find(name).unwrap_or_else(|| name.into());
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| name.to_string(), std::borrow::Cow::into_owned)
}

impl Script {
    /// The whole script. Its last line says how many nanoseconds it took, and those before are what the program printed.
    pub fn text(&self) -> String {
        let (serial, date) = (Contents::SERIAL, program("date"));
        format!(
            "set -e\n\
             d={MOUNT}/app\n\
             rm -rf $d\n\
             mkdir $d\n\
             for disk in /sys/block/vd*; do\n\
             if [ -e $disk/serial ] && [ \"$(cat $disk/serial)\" = {serial} ]; then data=/dev/${{disk##*/}}; fi\n\
             done\n\
             {}\
             began=$({date} +%s%N)\n\
             {}\
             ended=$({date} +%s%N)\n\
             echo took $((ended - began))\n",
            self.before, self.timed
        )
    }
}
