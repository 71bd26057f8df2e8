//! Which states a store offers, for an owner who has to choose one: when the anchor was lost, a backup was put back, or a disk has lied.
//!
//! Invariants:
//! 1. Nothing is written, to the store or to an anchor.
//! 2. A state is offered only if an attach gets there in the same steps: from a superblock that opens, along records that open, and not
//!    from a superblock that covers more.
//! 3. A state is shown as a volume only if all of its bitmap opens, and no block of it has two owners: what is free in it can be told from what
//!    is not, so that a session can go on from it without overwriting anything of it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anchor::{Stamp, State as StampState};
use futures::FutureExt;
use seal::slot::{Credential, SlotInfo};

use crate::attach::{AttachOptions, Attaching, keyring};
use crate::cache::NodeKey;
use crate::core::{Core, Environment};
use crate::error::{Error, Kind, Remedy, Result};
use crate::format::ad::Tree;
use crate::format::header::Header;
use crate::format::protections::Freshness;
use crate::format::superblock::Superblock;
use crate::io::{Driven, Io};
use crate::keys::Keyring;
use crate::mutation::{Mutation, mutated};
use crate::open_header::{Opened, Vouching, check_stamp_volume, open_pair};
use crate::policy::Policy;
use crate::replay::{Replay, Replayed, Standing, State};
use crate::volume::Volume;

/// A state of a volume: the generation of its last commit, and the beginning of the chain's head there, which tells two histories with
/// the same generation apart. Written `41:9f3ac2d17be0a455`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateName {
    /// Generation.
    pub generation: u64,
    /// The first bytes of the head.
    pub head: [u8; 8],
}

impl StateName {
    pub(crate) fn of(generation: u64, head: &[u8; 32]) -> Self {
        let mut name = Self { generation, head: [0; 8] };
        name.head.copy_from_slice(&head[..8]);
        name
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.generation, hex::encode(self.head))
    }
}

impl FromStr for StateName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` names no state; write its generation and the beginning of its head, like 41:9f3ac2d17be0a455"
            )
        };
        let (generation, head) = text.split_once(':').ok_or_else(wrong)?;
        let mut name = Self { generation: generation.parse().map_err(|_| wrong())?, head: [0; 8] };
        hex::decode_to_slice(head, &mut name.head).map_err(|_| wrong())?;
        Ok(name)
    }
}

/// Which state is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// What an attach would begin from, where the store has what the anchor vouches for; else the last one of the session that claimed the
    /// volume last.
    Latest,
    /// The one with this generation, if there is only one.
    Generation(u64),
    /// Exactly this one.
    State(StateName),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        match text.parse() {
            Ok(generation) => Ok(Self::Generation(generation)),
            Err(_) => text.parse().map(Self::State),
        }
    }
}

/// What a superblock leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The session that wrote it.
    pub session: [u8; 16],
    /// How often the volume had been claimed by then.
    pub claims: u64,
    /// The states, in order. Their times are not known: the format has none, and the host owns the clock.
    pub states: Vec<StateName>,
    publication: u64,
    heads: Vec<State>,
}

/// A state that the anchor vouches for, or vouched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The state.
    pub state: StateName,
    /// `claimed`, `released`, or `moved` to another anchor.
    pub standing: &'static str,
    /// How often the volume had been claimed.
    pub claims: u64,
    /// The session that claimed it last.
    pub session: [u8; 16],
    /// Where it moved to, as far as the stamp says.
    pub moved_to: Option<String>,
}

/// What store and anchor say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// What the store offers, the latest claim first.
    pub histories: Vec<History>,
    /// What the anchor holds; `None` if it was lost, or never claimed.
    pub anchor: Option<Found>,
    /// The state that was chosen.
    pub chosen: StateName,
    /// Whether the anchor vouches for the header and key slots that are there.
    pub header_is_anchored: bool,
    /// The key slots that are there.
    pub slots: Vec<SlotInfo>,
}

/// Looks at what a store offers. The chosen state comes with it, attached for reading, so that it can be checked before it is accepted.
///
/// The environment's anchor is the volume's old one, `None` if it is lost.
///
/// # Errors
/// In the job: [`Kind::Usage`] at freshness `off`, or when there is no such state; [`Kind::Corrupt`] when a state cannot be continued;
/// [`Kind::Anchor`] when the anchor is another volume's; and as [`attach`](crate::attach) for header and policy.
pub fn survey(
    environment: Environment,
    policy: Policy,
    credential: Arc<Credential>,
    choice: Choice,
    options: AttachOptions,
) -> Result<Driven<Result<(Survey, Volume)>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        async move {
            let looking = Looking::new(environment, policy, options, io);
            let looked = looking.look(&credential, choice).await?;
            Ok((looked.survey, looked.volume))
        }
        .boxed_local()
    })
}

pub(crate) struct Looking {
    pub(crate) attaching: Attaching,
}

/// What was found, for whoever goes on with it.
pub(crate) struct Looked {
    pub(crate) survey: Survey,
    pub(crate) volume: Volume,
    pub(crate) chosen: State,
    /// The highest number of claims that anything says.
    pub(crate) claims: u64,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) stamp_key: seal::MacKey,
    pub(crate) header_digest: [u8; 32],
}

impl Looking {
    pub(crate) fn new(environment: Environment, policy: Policy, options: AttachOptions, io: Io) -> Self {
        Self { attaching: Attaching { environment, policy, options, read_only: true, io } }
    }

    pub(crate) async fn look(&self, credential: &Credential, choice: Choice) -> Result<Looked> {
        let Attaching { environment, policy, options, io, .. } = &self.attaching;
        let stamp = self.stamp().await?;
        let opened =
            open_pair(io, environment, policy, credential, options, stamp, Vouching::Preferred).await?;
        let Opened { header, slots, digest, key, stamp, stamp_key, .. } = opened;
        if header.freshness == Freshness::Off {
            return Err(Error::new(
                Kind::Usage,
                "freshness is off, so there is no anchor; attach takes what is on the store",
            ));
        }
        let signing = key.mac("stamp");
        let keys = keyring(&header, key)?;
        let superblocks = self.superblocks(&header, &keys).await?;
        let mut histories = Vec::new();
        for superblock in &superblocks {
            let replay = Replay { io, header: &header, keys: &keys, stamp: None, pinned: false };
            histories.push(History::new(superblock, replay.states(superblock).await?));
        }
        let vouched = stamp.as_ref().map(|stamp| Vouched::new(stamp, header.freshness));
        let chosen = choose(&histories, choice, vouched)?;
        // What an attach will do once the anchor holds this: no session is named, so nothing goes on behind it.
        let target = stamp_of(&header.volume, chosen, [0; 16], 0, digest);
        let replay = Replay { io, header: &header, keys: &keys, stamp: Some(&target), pinned: true };
        let replayed = Self::reach(&replay, superblocks.clone()).await?;
        let claims = superblocks.iter().map(|superblock| superblock.claims);
        let claims = claims.chain(stamp.iter().map(|stamp| stamp.claims)).max().unwrap_or(0);
        let survey = Survey {
            histories,
            anchor: stamp.as_ref().map(Found::new),
            chosen: StateName::of(chosen.generation, &chosen.head),
            header_is_anchored: stamp.as_ref().is_some_and(|stamp| stamp.header_digest == digest),
            slots: slots.list(),
        };
        let core = self.attaching.reading_core(header, keys, Some(target), stamp_key, replayed)?;
        let sound = async {
            bitmap_opens(&core, io).await?;
            no_block_has_two_owners(&core, io).await
        };
        sound.await.map_err(|error| survey.instead(error))?;
        let volume = Volume::new(Arc::new(core));
        Ok(Looked { survey, volume, chosen, claims, stamp, stamp_key: signing, header_digest: digest })
    }

    /// All of them, the latest claim's first.
    async fn superblocks(&self, header: &Header, keys: &Keyring) -> Result<Vec<Superblock>> {
        let (mut superblocks, unreadable) = self.attaching.superblocks(header, keys).await?;
        if let Some(error) = unreadable {
            // What the owner is to choose from may not be all.
            return Err(error);
        }
        superblocks.sort_by_key(|superblock| std::cmp::Reverse((superblock.claims, superblock.publication)));
        Ok(superblocks)
    }

    /// What the old anchor holds. A terminal stamp is one as well.
    async fn stamp(&self) -> Result<Option<Stamp>> {
        let Some(anchor) = &self.attaching.environment.anchor else { return Ok(None) };
        let stamp = anchor.read().await?;
        if let Some(stamp) = &stamp {
            check_stamp_volume(stamp, &self.attaching.policy, anchor.as_ref())?;
        }
        Ok(stamp)
    }

    async fn reach(replay: &Replay<'_>, superblocks: Vec<Superblock>) -> Result<Replayed> {
        for superblock in superblocks {
            let replayed = replay.run(superblock).await?;
            if replayed.standing == Standing::Through {
                return Ok(replayed);
            }
        }
        Err(Error::new(
            Kind::Corrupt,
            "the store has changed while it was looked at; see to it that nobody has it attached, and look again",
        ))
    }
}

/// Reads all of the bitmap.
async fn bitmap_opens(core: &Core, io: &Io) -> Result<()> {
    for level in (0..=core.top(Tree::Bitmap).1).rev() {
        for index in 0..core.geometry.nodes(Tree::Bitmap, level) {
            core.node(io, NodeKey { tree: Tree::Bitmap, level, index }).await.map_err(|error| {
                let message = format!("its list of free space is damaged: {error}");
                if error.kind() == Kind::Corrupt { Error::new(Kind::Corrupt, message) } else { error }
            })?;
        }
    }
    Ok(())
}

/// A block that only the journal names is free in the bitmap. Where it is not, a commit behind this state had given it up, and the superblock that
/// leads here has a node there, which was written later than that: who overwrote the data would free the node.
async fn no_block_has_two_owners(core: &Core, io: &Io) -> Result<()> {
    let mut named = core.overlay.physical_blocks();
    named.sort_unstable();
    let mut known: Option<(u32, Vec<u64>)> = None;
    for physical in named {
        let unit = core.geometry.unit_of(physical);
        if known.as_ref().is_none_or(|(of, _)| *of != unit) {
            known = Some((unit, core.unit_bits(io, unit).await?));
        }
        let at = physical - core.geometry.unit_range(unit).start;
        let word = known.as_ref().and_then(|(_, bits)| bits.get(usize::try_from(at / 64).ok()?));
        if word.is_some_and(|word| word >> (at % 64) & 1 == 1) {
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "physical block {physical}, where its journal has data, was used again for something else"
                ),
            ));
        }
    }
    Ok(())
}

/// So many are named to who has to choose another state.
const NAMED: usize = 8;

impl Survey {
    /// Why no session can go on from the chosen state, and which others there are, the latest claim's first.
    fn instead(&self, error: Error) -> Error {
        if error.kind() != Kind::Corrupt {
            return error;
        }
        let states = self.histories.iter().flat_map(|history| history.states.iter().rev());
        let mut others: Vec<String> = Vec::new();
        for name in states.filter(|state| **state != self.chosen).map(StateName::to_string) {
            if others.len() < NAMED && !others.contains(&name) {
                others.push(name);
            }
        }
        let others = match others.is_empty() {
            true => "The store offers no other".to_string(),
            false => format!("Choose another one that the store offers: {}", others.join(", ")),
        };
        let chosen = self.chosen;
        Error::new(Kind::Corrupt, format!("no session can go on from state {chosen}: {error}. {others}"))
    }
}

impl History {
    fn new(superblock: &Superblock, heads: Vec<State>) -> Self {
        Self {
            session: superblock.session,
            claims: superblock.claims,
            publication: superblock.publication,
            states: heads.iter().map(|state| StateName::of(state.generation, &state.head)).collect(),
            heads,
        }
    }
}

impl Found {
    fn new(stamp: &Stamp) -> Self {
        Self {
            state: StateName::of(stamp.generation, &stamp.head),
            standing: match stamp.state {
                StampState::Claimed => "claimed",
                StampState::Released => "released",
                StampState::Terminal => "moved",
            },
            claims: stamp.claims,
            session: stamp.session,
            moved_to: stamp.moved_to(),
        }
    }
}

/// What an attach takes from the anchor.
#[derive(Clone, Copy)]
struct Vouched {
    state: State,
    /// Who may have gone on from there; nobody at level `transaction`.
    session: Option<[u8; 16]>,
}

impl Vouched {
    fn new(stamp: &Stamp, freshness: Freshness) -> Self {
        let session = (freshness != Freshness::Transaction).then_some(stamp.session);
        Self { state: State { generation: stamp.generation, head: stamp.head }, session }
    }
}

fn latest(histories: &[History], vouched: Option<Vouched>) -> Option<State> {
    let is_there = |vouched: &Vouched| histories.iter().any(|history| history.heads.contains(&vouched.state));
    if let Some(Vouched { state, session }) = vouched.filter(is_there) {
        // What others have written behind that has been forgotten, as by an attach.
        let own = histories.iter().filter(|history| Some(history.session) == session);
        let own = own.filter(|history| history.heads.contains(&state));
        let last = own.filter_map(|history| history.heads.last().copied());
        return Some(last.max_by_key(|last| last.generation).unwrap_or(state));
    }
    let whole = histories.iter().filter(|history| !history.heads.is_empty());
    let latest = whole.max_by_key(|history| (history.claims, history.publication));
    latest.and_then(|history| history.heads.last().copied())
}

fn choose(histories: &[History], choice: Choice, vouched: Option<Vouched>) -> Result<State> {
    let all = || histories.iter().flat_map(|history| &history.heads);
    let name = |state: &State| StateName::of(state.generation, &state.head);
    let mut found: Vec<State> = match choice {
        Choice::Latest => {
            let vouched = vouched.filter(|_| !mutated(Mutation::ForgottenOffered));
            latest(histories, vouched).into_iter().collect()
        }
        Choice::Generation(generation) => {
            all().filter(|state| state.generation == generation).copied().collect()
        }
        Choice::State(wanted) => all().filter(|state| name(state) == wanted).copied().collect(),
    };
    found.sort_by_key(|state| state.head);
    found.dedup();
    match found[..] {
        [state] => Ok(state),
        [] => Err(Error::new(
            Kind::Usage,
            "the store does not offer this state: no superblock leads there. Look at what it offers; nothing was changed",
        )
        .or(Remedy::Survey)),
        _ => {
            let names: Vec<String> = found.iter().map(|state| name(state).to_string()).collect();
            Err(Error::new(
                Kind::Usage,
                format!("there are several histories with this generation; name one: {}", names.join(", ")),
            ))
        }
    }
}

/// A stamp for a state, not signed yet.
pub(crate) fn stamp_of(
    volume: &[u8; 16],
    state: State,
    session: [u8; 16],
    claims: u64,
    header_digest: [u8; 32],
) -> Stamp {
    Stamp {
        volume: *volume,
        generation: state.generation,
        head: state.head,
        session,
        claims,
        header_digest,
        state: StampState::Released,
        moved_to: [0; 32],
        mac: [0; 32],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(claims: u64, publication: u64, states: &[(u64, u8)]) -> History {
        let heads: Vec<State> = states
            .iter()
            .map(|(generation, head)| State { generation: *generation, head: [*head; 32] })
            .collect();
        let states = heads.iter().map(|state| StateName::of(state.generation, &state.head)).collect();
        History { session: [1; 16], claims, states, publication, heads }
    }

    #[test]
    fn the_latest_is_of_the_last_claim_and_a_generation_must_be_of_one_history() {
        let histories = [
            history(3, 1, &[(5, 5), (6, 6)]),
            history(2, 9, &[(4, 4), (5, 5), (6, 7), (9, 9)]),
            history(4, 1, &[]),
        ];
        let chosen = |choice| choose(&histories, choice, None).map(|state| (state.generation, state.head[0]));
        assert_eq!(chosen(Choice::Latest), Ok((6, 6)));
        assert_eq!(chosen(Choice::Generation(5)), Ok((5, 5)), "two superblocks, one state");
        assert_eq!(chosen(Choice::Generation(9)), Ok((9, 9)));
        assert_eq!(chosen(Choice::State(StateName { generation: 6, head: [7; 8] })), Ok((6, 7)));
        let two = chosen(Choice::Generation(6)).expect_err("two histories").to_string();
        assert!(two.contains("6:0606060606060606, 6:0707070707070707"), "{two}");
        for nothing in [Choice::Generation(7), Choice::State(StateName { generation: 9, head: [7; 8] })] {
            assert_eq!(chosen(nothing).expect_err("there is none").kind(), Kind::Usage);
        }
    }

    #[test]
    fn who_must_choose_another_state_is_told_which_there_are() {
        let histories = vec![history(4, 1, &[(6, 6), (7, 8)]), history(3, 1, &[(5, 5), (6, 6)])];
        let chosen = histories[0].states[1];
        let mut survey =
            Survey { histories, anchor: None, chosen, header_is_anchored: false, slots: Vec::new() };
        let told = |survey: &Survey| survey.instead(Error::new(Kind::Corrupt, "a node")).to_string();
        let text = told(&survey);
        assert!(text.contains("from state 7:0808080808080808") && text.contains("a node"), "{text}");
        assert!(text.ends_with("offers: 6:0606060606060606, 5:0505050505050505"), "{text}");
        survey.histories.clear();
        assert!(told(&survey).ends_with("The store offers no other"), "{}", told(&survey));
        let io = survey.instead(Error::new(Kind::Io, "the disk"));
        assert_eq!((io.kind(), io.to_string().as_str()), (Kind::Io, "the disk"));
    }

    #[test]
    fn the_latest_is_what_an_attach_would_begin_from() {
        let mut histories =
            [history(3, 1, &[(5, 5), (6, 6), (7, 7)]), history(4, 1, &[(6, 6), (7, 8), (8, 8)])];
        histories[1].session = [2; 16];
        let latest = |generation, head, session: Option<u8>| {
            let state = State { generation, head: [head; 32] };
            let vouched = Vouched { state, session: session.map(|session| [session; 16]) };
            choose(&histories, Choice::Latest, Some(vouched)).map(|state| (state.generation, state.head[0]))
        };
        assert_eq!(latest(6, 6, Some(2)), Ok((8, 8)), "the session that claimed last has gone on");
        assert_eq!(latest(6, 6, Some(1)), Ok((7, 7)));
        assert_eq!(latest(6, 6, Some(3)), Ok((6, 6)), "one that has written nothing yet, or never will");
        assert_eq!(latest(6, 6, None), Ok((6, 6)), "a transaction that was not anchored has not ended");
        assert_eq!(latest(5, 5, Some(2)), Ok((5, 5)), "not from there");
        assert_eq!(latest(9, 9, Some(1)), Ok((8, 8)), "a backup was put back");
    }
}
