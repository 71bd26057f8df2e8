//! `cvmio anchor`: anchors by themselves, and moves from one to another.

use std::sync::Arc;

use anchor::{Anchor, Health, Stamp, State};
use futures::executor::block_on;
use serde_json::{Value, json};
use volume::{AttachOptions, Choice, Environment, Kind, Reading};

use super::create::new_anchor;
use super::offline::{self, Opened};
use crate::cli::anchor::{AnchorCommand, Init, Migrate, Show, Verify, Which};
use cli::failure::Failure;
use cli::output;
use daemon::input::VolumeFiles;
use daemon::{input, system};

/// Carries out a command on an anchor.
///
/// # Errors
/// As the command's help says.
pub fn run(command: &AnchorCommand) -> Result<(), Failure> {
    command.path_only().map_or(Ok(()), offline::refuse_attached_name)?;
    match command {
        AnchorCommand::Show(args) => show(args),
        AnchorCommand::Init(args) => init(args),
        AnchorCommand::Migrate(args) => migrate(args),
        AnchorCommand::Verify(args) => verify(args),
    }
}

fn open(which: &Which) -> Result<Arc<dyn Anchor>, Failure> {
    match (&which.address, &which.policy) {
        (Some(address), _) => {
            let options = input::anchor_options(&which.options.anchor_options)?;
            Ok(anchor::open_address_read_only(address, &options, Some(system::ANCHOR_PATIENCE))?)
        }
        (None, Some(path)) => {
            let policy = input::read_policy(path)?;
            system::open_anchor_read_only(&policy)?
                .ok_or_else(|| Failure::usage(format!("the policy {} names no anchor", path.display())))
        }
        (None, None) => Err(Failure::usage("name an anchor, or a policy with --policy")),
    }
}

fn show(args: &Show) -> Result<(), Failure> {
    let anchor = open(&args.which)?;
    let stamp = block_on(anchor.read())?;
    let health = anchor.health();
    if args.json {
        return output::print_json(&as_json(&anchor.address(), stamp.as_ref(), &health));
    }
    output::print(&as_text(&anchor.address(), stamp.as_ref(), &health));
    Ok(())
}

fn state_of(stamp: &Stamp) -> &'static str {
    match stamp.state {
        State::Claimed => "claimed",
        State::Released => "released",
        State::Terminal => "moved",
    }
}

fn as_json(address: &str, stamp: Option<&Stamp>, health: &Health) -> Value {
    let stamp = stamp.map(|stamp| {
        json!({
            "volume": hex::encode(stamp.volume), "state": state_of(stamp), "generation": stamp.generation,
            "head": hex::encode(stamp.head), "claims": stamp.claims, "session": hex::encode(stamp.session),
            "header-digest": hex::encode(stamp.header_digest), "moved-to": stamp.moved_to(),
        })
    });
    let facts: serde_json::Map<String, Value> =
        health.facts.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
    json!({ "anchor": address, "stamp": stamp, "facts": facts })
}

fn as_text(address: &str, stamp: Option<&Stamp>, health: &Health) -> String {
    let mut lines = vec![address.to_owned()];
    match stamp {
        None => lines.push("  never claimed: no volume lives by it".into()),
        Some(stamp) => {
            let moved = stamp.moved_to().map_or(String::new(), |end| format!(", to ...{end}"));
            lines.push(format!("  volume      {}", hex::encode(stamp.volume)));
            lines.push(format!("  state       {}{moved}", state_of(stamp)));
            lines.push(format!("  generation  {}", stamp.generation));
            lines.push(format!("  head        {}", hex::encode(stamp.head)));
            lines.push(format!(
                "  claimed     {} times, last by session {}",
                stamp.claims,
                hex::encode(stamp.session)
            ));
        }
    }
    lines.extend(health.facts.iter().map(|(name, value)| format!("  {name:<11} {value}")));
    lines.join("\n")
}

fn init(args: &Init) -> Result<(), Failure> {
    let options = input::anchor_options(&args.options.anchor_options)?;
    let created = new_anchor(&args.address, &options)?;
    service::refuse_claimed(created.anchor.as_ref())?;
    let made = created.undo.is_some();
    if args.json {
        return output::print_json(&json!({
            "anchor": created.anchor.address(), "made": made, "notes": created.notes,
        }));
    }
    let what = if made { "made" } else { "there, and no volume lives by it" };
    output::print(&format!("{}: {what}", created.anchor.address()));
    Ok(())
}

fn migrate(args: &Migrate) -> Result<(), Failure> {
    let offline = &args.offline;
    let options = input::anchor_options(&args.options.anchor_options)?;
    anchor::check_address(&args.to, &options)?;
    let policy_path = input::default_policy(&offline.store, offline.policy.as_deref())?;
    let refuse_same = |files: VolumeFiles<'_>| files.refuse_new_anchor(&args.to, &options);
    let Opened { environment, policy, credential } = offline::open_with(offline, true, refuse_same)?;
    // Before anything moves that it would have to follow.
    input::check_policy_can_follow(&policy_path)?;
    let from = environment.anchor.as_ref().map(|anchor| anchor.address());
    let Some(from) = from.filter(|from| *from != args.to) else {
        return Err(Failure::usage("the policy names no anchor, or this very one; nothing was changed"));
    };
    let credential = Arc::new(credential);
    let state = {
        let _spinner = output::spinner("looking at the store");
        let attach = AttachOptions::default();
        let job = volume::survey(
            environment.clone(),
            policy.clone(),
            Arc::clone(&credential),
            Choice::Latest,
            attach,
        )?;
        let (survey, _volume) = job.block()?;
        let anchored = survey.anchor.as_ref().ok_or_else(|| {
            Failure::usage("the anchor was never claimed, so there is nothing to move; name it in the policy")
        })?;
        if !survey.header_is_anchored {
            return Err(volume::Error::new(
                Kind::Stale,
                "the header on the store is not the one that the anchor vouches for; nothing was changed. Look at it with `cvmio volume reanchor`",
            )
            .into());
        }
        if anchored.standing == "claimed" && !args.force {
            return Err(Failure::usage(
                "the last session did not detach; nothing was changed. Attach and detach the volume, or say --force if nobody has it",
            ));
        }
        survey.chosen
    };
    // A store that is not what the anchor vouches for is refused as by an attach, and one that was moved half-way goes on.
    let created = new_anchor(&args.to, &options)?;
    let path = policy_path.clone();
    let save = Box::new(move |policy: &volume::policy::Policy| {
        input::save_policy(&path, policy, true)
            .map_err(|failure| volume::Error::new(Kind::Io, failure.to_string()))
    });
    let order = volume::Reanchor { state, anchor: Some(created.anchor), anchor_options: options, save };
    let after = {
        let _spinner = output::spinner("moving to the new anchor");
        volume::reanchor(environment, policy, credential, order, AttachOptions::default())?.block()?
    };
    if offline.json {
        return output::print_json(&json!({
            "store": offline.store, "policy": policy_path, "from": from, "anchor": after.anchor, "state": state.to_string(),
        }));
    }
    output::print(&format!(
        "the volume lives by {} now; {from} is of no use any more\n  policy  {}",
        after.anchor.as_deref().unwrap_or("none"),
        policy_path.display()
    ));
    Ok(())
}

fn verify(args: &Verify) -> Result<(), Failure> {
    let offline = &args.offline;
    let Opened { environment, policy, credential } = offline::open(offline, false)?;
    let Environment { anchor: Some(anchor), .. } = environment.clone() else {
        return Err(Failure::usage(
            "the policy names no anchor: its freshness is off, so there is nothing to verify",
        ));
    };
    let options = AttachOptions { reading: Reading::PinnedBesideWriter, ..AttachOptions::default() };
    let volume = {
        let _spinner = output::spinner("replaying the journal");
        volume::attach_read_only(environment, policy, credential, options)?.block()?
    };
    let status = volume.status();
    if offline.json {
        return output::print_json(&json!({
            "store": offline.store, "anchor": anchor.address(), "volume": status.volume,
            "generation": status.generation, "claims": status.claims,
        }));
    }
    output::print(&format!(
        "{} is what {} vouches for: generation {}, claimed {} times",
        offline.store.display(),
        anchor.address(),
        status.generation,
        status.claims
    ));
    Ok(())
}
