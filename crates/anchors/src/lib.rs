//! The kinds of anchors that `cvmio` and its benchmarks know: one line for each.
#![forbid(unsafe_code)]

use anchor::Schemes;

/// Registers them. To be called once, before anything is opened.
pub fn install() {
    anchor::install(table());
}

fn table() -> Schemes {
    // `file:` is in every table.
    let mut table = Schemes::new();
    table.register(anchor_etcd::scheme());
    table.register(anchor_tpm::scheme());
    table.register(anchor_owner::scheme());
    table
}

#[cfg(test)]
mod tests {
    /// Two of one name would end the program at its start.
    #[test]
    fn the_table_is_consistent() {
        let table = super::table();
        let names: Vec<&str> = table.all().iter().map(|scheme| scheme.name).collect();
        assert!(names.starts_with(&["file", "etcd", "tpm", "owner"]), "{names:?}");
    }
}
