//! `cvmio volume grow`

use std::path::Path;

use serde_json::json;
use store::{BLOCK_SIZE, FileStore, Store};
use volume::format::protections::Provision;
use volume::{AttachOptions, Grown, Growth, Kind};

use crate::cli::grow::Grow;
use crate::failure::Failure;
use crate::input::{self, Origin};
use crate::{output, system};

pub fn run(args: &Grow) -> Result<(), Failure> {
    let offline = &args.offline;
    let logical_blocks = args.size.map(input::whole_blocks).transpose()?;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let policy_path = input::default_policy(&offline.store, offline.policy.as_deref())?;
    let policy = input::read_policy(&policy_path)?;
    // With the lock of one who writes: nobody on this machine may have it attached.
    let store = system::open_store(&offline.store, offline.buffered)?;
    let anchor = system::open_anchor(&policy)?;
    let credential = input::load(&offline.credential, Origin::Known)?;
    let growth = Growth {
        logical_blocks,
        enlarge: enlarge(store.clone()),
        save: save(&policy_path),
        force: args.force,
    };
    let spinner = output::spinner("growing the volume");
    let environment = system::environment(store, anchor);
    let grown = volume::grow(environment, policy, credential, growth, AttachOptions::default())?.block()?;
    drop(spinner);
    report(args, &grown, &policy_path)
}

/// Makes a file longer. For a volume with full provisioning its space is taken at once, as when it was created.
fn enlarge(store: FileStore) -> volume::Enlarge {
    Box::new(move |blocks, provision| {
        store.extend(blocks)?;
        match provision {
            Provision::Full => {
                store.allocate().map_err(|error| volume::Error::new(Kind::Usage, error.to_string()))
            }
            Provision::Thin => Ok(()),
        }
    })
}

fn save(path: &Path) -> volume::SavePolicy {
    let path = path.to_path_buf();
    Box::new(move |policy| {
        input::save_policy(&path, policy, true).map_err(|failure| {
            volume::Error::new(Kind::Io, format!("{failure}; the volume has grown: grow it again to end it"))
        })
    })
}

fn report(args: &Grow, grown: &Grown, policy: &Path) -> Result<(), Failure> {
    let block = BLOCK_SIZE as u64;
    let (before, now) = (grown.before, grown.now);
    if args.offline.json {
        return output::print_json(&json!({
            "store": args.offline.store, "policy": policy, "grown": before != now,
            "size-before": before.0 * block, "size": now.0 * block,
            "store-size-before": before.1 * block, "store-size": now.1 * block,
            "growths": grown.growths,
        }));
    }
    let size = |blocks: u64| output::bytes(blocks * block);
    output::print(&match (before.0 != now.0, before.1 != now.1) {
        (false, false) => format!(
            "the volume has {} and uses {} of its store already; there is nothing to do",
            size(now.0),
            size(now.1)
        ),
        (false, true) => format!(
            "grown: {} of the store are used, {} before; the size stays {}",
            size(now.1),
            size(before.1),
            size(now.0)
        ),
        (true, _) => format!(
            "grown from {} to {}; it uses {} of its store\n  policy  {}\nAttach it, and enlarge what is on it (resize2fs, xfs_growfs). Whoever has a copy of the policy or a header backup needs a new one.",
            size(before.0),
            size(now.0),
            size(now.1),
            policy.display()
        ),
    });
    Ok(())
}
