//! Anchors, as far as they are typed.

use clap::Args;

/// What an anchor needs beside its address.
#[derive(Args, Debug, Clone, Default)]
pub struct AnchorOptions {
    /// What the anchor needs beside its address, for the policy's [anchor-options]; may be said more than once. KEY=@FILE takes the value
    /// from FILE, as is right for a secret
    #[arg(long = "anchor-option", value_name = "KEY=VALUE")]
    pub anchor_options: Vec<String>,
}
