//! `cvmio volume reanchor`: shows what store and anchor say, and makes the state that was confirmed the one that counts.

use std::path::Path;
use std::sync::Arc;

use anchor::Anchor;
use seal::slot::Credential;
use serde_json::{Value, json};
use volume::policy::Policy;
use volume::{AttachOptions, Environment, Kind, StateName, Survey, Volume};

use super::create::new_anchor;
use crate::cli::header::Reanchor;
use cli::failure::Failure;
use cli::output;
use daemon::check::{self, Report};
use daemon::input::{self, Origin, VolumeFiles};
use daemon::system;

pub fn run(args: &Reanchor) -> Result<(), Failure> {
    let offline = &args.offline;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let policy_path = input::default_policy(&offline.store, offline.policy.as_deref())?;
    let policy = input::read_policy(&policy_path)?;
    let anchor_options = input::anchor_options(&args.anchor_options.anchor_options)?;
    let files = VolumeFiles::known(&offline.store, &policy_path, &policy).opened_by(&offline.credential);
    match &args.anchor {
        Some(address) => files.refuse_new_anchor(address, &anchor_options)?,
        None => files.refuse_same(&[])?,
    }
    // With the lock of one who writes: nobody on this machine may have it attached.
    let store = system::open_store(&offline.store, offline.buffered)?;
    let anchor = old_anchor(args, &policy)?;
    let environment = system::environment(store, anchor);
    let credential = Arc::new(input::load(&offline.credential, Origin::Known)?);
    let (survey, volume) = look(args, &environment, &policy, &credential)?;
    let damage = check_state(&volume)?;
    drop(volume);
    let Some(confirmed) = args.confirm else { return show(args, &policy, &survey, &damage, None) };
    if confirmed != survey.chosen {
        return Err(Failure::usage(format!(
            "{confirmed} was confirmed, but --to names {}; nothing was changed. Look again without --confirm",
            survey.chosen
        )));
    }
    if damage.lost() > 0 && !args.accept_damage {
        return Err(volume::Error::new(
            Kind::Corrupt,
            format!(
                "{} blocks of this state are not what was written there, or cannot be read; nothing was changed. Choose another state, or take it as it is with --accept-damage",
                output::count(damage.lost())
            ),
        )
        .into());
    }
    if args.anchor.is_some() {
        input::check_policy_can_follow(&policy_path)?;
    }
    let opened = Opened { environment, policy: policy.clone(), credential };
    let after = accept(args, opened, survey.chosen, &policy_path)?;
    warn(&policy, &after, &survey);
    show(args, &after, &survey, &damage, Some(&policy_path))
}

fn old_anchor(args: &Reanchor, policy: &Policy) -> Result<Option<Arc<dyn Anchor>>, Failure> {
    match system::open_anchor(policy) {
        Ok(Some(_)) if args.lost_anchor => {
            Err(Failure::usage("the anchor can be read, so it is not lost; leave --lost-anchor out"))
        }
        Ok(anchor) => Ok(anchor),
        Err(failure) if args.lost_anchor => {
            output::warning(&format!("{failure}; going on without"));
            Ok(None)
        }
        Err(failure) => {
            Err(failure.with("if it is lost for good, name a new one with --anchor, and say --lost-anchor"))
        }
    }
}

fn look(
    args: &Reanchor,
    environment: &Environment,
    policy: &Policy,
    credential: &Arc<Credential>,
) -> Result<(Survey, Volume), Failure> {
    let _spinner = output::spinner("looking at the store");
    let (environment, credential) = (environment.clone(), Arc::clone(credential));
    let options = AttachOptions::default();
    Ok(volume::survey(environment, policy.clone(), credential, args.to, options)?.block()?)
}

fn check_state(volume: &Volume) -> Result<Report, Failure> {
    let bar = output::bar("checking", volume.status().mapped_blocks);
    let report = check::check(volume, &Arc::default(), check::THREADS, |blocks| bar.set_position(blocks))?;
    bar.finish_and_clear();
    Ok(report)
}

/// What to reanchor.
struct Opened {
    environment: Environment,
    policy: Policy,
    credential: Arc<Credential>,
}

fn accept(args: &Reanchor, opened: Opened, state: StateName, policy_path: &Path) -> Result<Policy, Failure> {
    let Opened { environment, policy, credential } = opened;
    // An anchor that stays behind unclaimed when this fails is taken when it is done again.
    let anchor_options = input::anchor_options(&args.anchor_options.anchor_options)?;
    let new = |address| new_anchor(address, &anchor_options);
    let anchor = args.anchor.as_deref().map(new).transpose()?.map(|created| created.anchor);
    let _spinner = output::spinner("moving the anchor");
    let path = policy_path.to_path_buf();
    let save = Box::new(move |policy: &Policy| {
        input::save_policy(&path, policy, true)
            .map_err(|failure| volume::Error::new(Kind::Io, failure.to_string()))
    });
    let order = volume::Reanchor { state, anchor, anchor_options, save };
    Ok(volume::reanchor(environment, policy, credential, order, AttachOptions::default())?.block()?)
}

/// Loudly: somebody may read the log who was not there.
fn warn(before: &Policy, after: &Policy, survey: &Survey) {
    let volume = hex::encode(after.volume);
    let anchored = survey.anchor.as_ref().map_or("nothing".into(), |found| found.state.to_string());
    output::warning(&format!(
        "volume {volume} was reanchored: {} counts from now on, where the anchor had vouched for {anchored}",
        survey.chosen
    ));
    if !survey.header_is_anchored {
        output::warning(
            "nothing vouches for the header that is there: key slots that were removed may be back; look at them with `cvmio volume key list`",
        );
    }
    if before.anchor != after.anchor {
        let [old, new] = [before, after].map(|policy| policy.anchor.as_deref().unwrap_or("none"));
        output::warning(&format!("its anchor is {new} now; {old} must not be used any more"));
    }
}

fn show(
    args: &Reanchor,
    policy: &Policy,
    survey: &Survey,
    damage: &Report,
    done: Option<&Path>,
) -> Result<(), Failure> {
    if args.offline.json {
        return output::print_json(&json!({
            "store": args.offline.store, "reanchored": done.is_some(), "chosen": survey.chosen.to_string(),
            "anchor": policy.anchor, "anchored": anchored_json(survey), "histories": histories_json(survey),
            "header-is-anchored": survey.header_is_anchored,
            "damaged-blocks": damage.damaged_blocks, "unreadable-blocks": damage.unreadable_blocks,
            "blocks": damage.blocks,
        }));
    }
    if let Some(path) = done {
        output::print(&format!(
            "{} counts from now on\n  anchor  {}\n  policy  {}",
            survey.chosen,
            policy.anchor.as_deref().unwrap_or("none"),
            path.display()
        ));
        return Ok(());
    }
    output::print(&text(args, survey, damage));
    Ok(())
}

fn text(args: &Reanchor, survey: &Survey, damage: &Report) -> String {
    let mut lines = vec![match &survey.anchor {
        Some(found) => {
            let moved = found.moved_to.as_ref().map_or(String::new(), |end| format!(", to ...{end}"));
            format!(
                "anchor: {}, {}{moved}; claimed {} times, last by session {}",
                found.state,
                found.standing,
                found.claims,
                hex::encode(found.session)
            )
        }
        None => "anchor: lost, or never claimed".into(),
    }];
    if survey.anchor.is_some() && !survey.header_is_anchored {
        lines.push("header: NOT the one that the anchor vouches for; removed key slots may be back".into());
    }
    let slots: Vec<String> =
        survey.slots.iter().map(|slot| format!("{} {}", slot.index, slot.label).trim_end().into()).collect();
    lines.push(format!("key slots: {}", slots.join(", ")));
    for history in &survey.histories {
        let (Some(first), Some(last)) = (history.states.first(), history.states.last()) else { continue };
        lines.push(format!(
            "store: {} {}, {first} to {last} (times are not known), claim {}, session {}",
            history.states.len(),
            if history.states.len() == 1 { "state" } else { "states" },
            history.claims,
            hex::encode(history.session)
        ));
    }
    lines.push(format!("chosen: {}{}", survey.chosen, distance(survey)));
    let first = damage.damaged.iter().chain(&damage.unreadable).map(|(block, _)| *block).min();
    lines.push(match damage.lost() {
        0 => format!("  {} blocks checked, all whole", output::count(damage.blocks)),
        lost => format!(
            "  {} blocks checked, {} DAMAGED or unreadable (from block {} on); it is accepted with --accept-damage only",
            output::count(damage.blocks),
            output::count(lost),
            first.unwrap_or(0)
        ),
    });
    lines.push(format!(
        "Nothing was changed. If this is the state that you expect, and no machine has the volume attached, do it again with --to {} --confirm {}{}",
        survey.chosen,
        survey.chosen,
        if damage.lost() > 0 { " --accept-damage" } else { "" }
    ));
    if args.anchor.is_none() && survey.anchor.as_ref().is_some_and(|found| found.standing == "moved") {
        lines.push("The volume has moved away from this anchor: name the new one with --anchor.".into());
    }
    lines.join("\n")
}

/// How far the chosen state is from what the anchor vouches for.
fn distance(survey: &Survey) -> String {
    let Some(anchored) = survey.anchor.as_ref().map(|found| found.state) else { return String::new() };
    let chosen = survey.chosen;
    let records = |count: u64| if count == 1 { "1 record".into() } else { format!("{count} records") };
    if chosen == anchored {
        ", the state that the anchor vouches for".into()
    } else if chosen.generation < anchored.generation {
        let lost = records(anchored.generation - chosen.generation);
        format!(", OLDER than what the anchor vouches for: at least {lost} of its journal are given up")
    } else {
        let more = records(chosen.generation - anchored.generation);
        format!(", {more} of journal more than the anchor vouches for")
    }
}

fn anchored_json(survey: &Survey) -> Value {
    survey.anchor.as_ref().map_or(Value::Null, |found| {
        json!({
            "state": found.state.to_string(), "standing": found.standing, "claims": found.claims,
            "session": hex::encode(found.session), "moved-to": found.moved_to,
        })
    })
}

fn histories_json(survey: &Survey) -> Value {
    let history = |history: &volume::History| {
        let states: Vec<String> = history.states.iter().map(ToString::to_string).collect();
        json!({ "claims": history.claims, "session": hex::encode(history.session), "states": states })
    };
    survey.histories.iter().map(history).collect()
}
