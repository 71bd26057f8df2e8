//! Packing and unpacking a real tree.

use std::fs;
use std::path::Path;

use super::script::{FORGET, Script, program};
use super::{Place, command};
use crate::error::{Context, Result};
use crate::program::output;
use crate::session::Measured;

/// Copies the tree onto the target.
fn copy(place: &Place<'_>, to: &Path) -> Result<()> {
    fs::create_dir(to).doing(to.display())?;
    let mut copy = command("cp");
    copy.args(["-r", "--no-preserve=all"]).arg(&place.sizes.tree).arg(to);
    output(&mut copy, place.interrupt).map(drop)
}

/// Packs it. Source: in-memory paper, section 5.2.
pub fn tar_compress(place: &Place<'_>) -> Result<Measured> {
    let tree = place.path("tree");
    copy(place, &tree)?;
    place.forget(&tree)?;
    place.timed(|| tar(place, "-czf", &tree))
}

fn tar(place: &Place<'_>, how: &str, tree: &Path) -> Result<()> {
    let mut tar = command("tar");
    tar.arg(how).arg(place.path("a.tar")).arg("-C").arg(tree).arg(".");
    output(&mut tar, place.interrupt).map(drop)
}

/// Unpacks it.
pub fn tar_extract(place: &Place<'_>) -> Result<Measured> {
    let parent = place.sizes.tree.clone();
    tar(place, "-czf", &parent)?;
    let archive = place.path("a.tar");
    place.forget(&archive)?;
    let to = place.path("out");
    fs::create_dir(&to).doing(to.display())?;
    place.timed(|| {
        let mut tar = command("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(&to);
        output(&mut tar, place.interrupt).map(drop)
    })
}

/// Packs the tree as one file. Source: AMD report, section 4.
pub fn lz4_compress(place: &Place<'_>) -> Result<Measured> {
    tar(place, "-cf", &place.sizes.tree)?;
    let archive = place.path("a.tar");
    place.forget(&archive)?;
    place.timed(|| lz4(place, "-1", &archive, &place.path("a.lz4")))
}

/// Unpacks it.
pub fn lz4_extract(place: &Place<'_>) -> Result<Measured> {
    tar(place, "-cf", &place.sizes.tree)?;
    let packed = place.path("a.lz4");
    lz4(place, "-1", &place.path("a.tar"), &packed)?;
    place.forget(&packed)?;
    place.timed(|| lz4(place, "-d", &packed, &place.path("out")))
}

fn lz4(place: &Place<'_>, how: &str, from: &Path, to: &Path) -> Result<()> {
    let mut lz4 = command("lz4");
    lz4.args(["-q", "-f", how]).arg(from).arg(to);
    output(&mut lz4, place.interrupt).map(drop)
}

/// [`tar_compress`] in a guest, where the tree comes as one tar on a disk of its own.
pub fn tar_compress_script() -> Script {
    let tar = program("tar");
    Script {
        before: format!("mkdir $d/tree\n{tar} -xf $data -C $d/tree\n{FORGET}"),
        timed: format!("{tar} -czf $d/a.tar -C $d/tree .\nsync\n"),
    }
}

/// [`tar_extract`] in a guest.
pub fn tar_extract_script() -> Script {
    let (tar, gzip) = (program("tar"), program("gzip"));
    Script {
        before: format!("{gzip} <$data >$d/a.tar\nmkdir $d/out\n{FORGET}"),
        timed: format!("{tar} -xzf $d/a.tar -C $d/out\nsync\n"),
    }
}

/// [`lz4_compress`] in a guest.
pub fn lz4_compress_script() -> Script {
    let lz4 = program("lz4");
    Script {
        before: format!("cat $data >$d/a.tar\n{FORGET}"),
        timed: format!("{lz4} -q -f -1 $d/a.tar $d/a.lz4\nsync\n"),
    }
}

/// [`lz4_extract`] in a guest.
pub fn lz4_extract_script() -> Script {
    let lz4 = program("lz4");
    Script {
        before: format!("{lz4} -q -f -1 $data $d/a.lz4\n{FORGET}"),
        timed: format!("{lz4} -q -f -d $d/a.lz4 $d/out\nsync\n"),
    }
}
