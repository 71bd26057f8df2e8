//! The programs under test, side by side as they are installed: `cvmio`, and `cvmio-bench` and `cvmio-owner`, which cargo builds as examples of
//! this package.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// The program `cvmio`, with the others beside it. `cargo test -p cvmio` builds all; before `--test NAME` the others need
/// `cargo build -p cvmio --examples`, if NAME is a test that starts one.
pub fn cvmio() -> PathBuf {
    static PLACED: Once = Once::new();
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    PLACED.call_once(|| {
        let cvmio = Path::new(env!("CARGO_BIN_EXE_cvmio"));
        fs::create_dir_all(&place).unwrap();
        put(cvmio, &place.join("cvmio"));
        for name in ["cvmio-bench", "cvmio-owner"] {
            put(&cvmio.with_file_name("examples").join(name), &place.join(name));
        }
    });
    place.join("cvmio")
}

/// Has `to` be the file `from`. Other tests may do the same at this moment, or run what is there.
fn put(from: &Path, to: &Path) {
    let inode = |path: &Path| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    if !from.exists() {
        // Of an older build, it would be another program than the one under test.
        let _ = fs::remove_file(to);
        return;
    }
    if inode(from) == inode(to) {
        return;
    }
    let new = to.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&new);
    fs::hard_link(from, &new).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    fs::rename(&new, to).unwrap();
    // Of two names of one file, renaming leaves both.
    let _ = fs::remove_file(&new);
}
