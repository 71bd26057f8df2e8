//! What every front end must do alike, on a kernel that has them all.

use std::time::Duration;

#[test]
fn fuse_loop_and_ublk_pass_the_suite() {
    let Some(bed) = guest::bed() else { return };
    let guest = bed.guest().modules(&["fuse", "loop", "ublk_drv"]).tests("linux");
    let said = guest.limit(Duration::from_secs(480)).succeed(
        "linux --test-threads 1 conformance::fuse_file conformance::loop_device conformance::ublk_devices --nocapture",
    );
    assert!(said.contains("29 passed; 0 failed") && !said.contains("SKIPPED"), "{said}");
}
