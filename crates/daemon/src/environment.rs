//! What the sessions of one daemon stand on: the store and the anchor, with their locks, and the owner's policy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use seal::slot::Credential;
use store::Access;
use volume::policy::Policy;
use volume::{AttachOptions, Enlarge, Environment, Grown, Growth, Left, RekeyOrder, Rekeyed, Volume, Window};

use super::Order;
use crate::{allowance, input, system};
use cli::failure::Failure;

/// Held from the first session to the end of the last one: in between nobody else gets the store.
pub struct SessionEnvironment {
    environment: Environment,
    policy: Policy,
    /// Where the owner keeps that.
    policy_file: PathBuf,
    /// The volume has grown, and the file does not say so yet.
    unsaved: bool,
    options: AttachOptions,
    read_only: bool,
}

/// What opens a volume, and what its owner wants of a new key.
pub struct Rekeying {
    /// It opens the volume, before and after.
    pub credential: Credential,
    /// What opens the other slots that stay.
    pub keep: Vec<Credential>,
    /// Whether the rest of them may go.
    pub remove_others: bool,
}

impl Rekeying {
    fn order(&self) -> RekeyOrder {
        let keep = self.keep.iter().map(input::copy).collect();
        RekeyOrder { keep, remove_others: self.remove_others, force: false }
    }
}

impl SessionEnvironment {
    /// Opens store and anchor.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub fn new(order: &Order) -> Result<Self, Failure> {
        allowance::check(order.memory, order.block_cache)?;
        let policy = order.policy.clone();
        let read_only = order.reading.is_some();
        let access =
            Access { buffered: order.buffered, read_only, create: None, deadline: order.store_timeout };
        let store = system::open_store_with(&order.store, access)?;
        let access = if read_only { anchor::Access::ReadOnly } else { anchor::Access::ReadWrite };
        let anchor = open_anchor(&policy, access, order.anchor_timeout)?;
        let options = AttachOptions {
            memory: order.memory,
            block_cache: order.block_cache,
            discard: order.discard,
            window: Window { time: order.interval, ..Window::default() },
            reading: order.reading.unwrap_or_default(),
            ..AttachOptions::default()
        };
        let environment = system::environment(store, anchor);
        let policy_file = order.policy_file.clone();
        Ok(Self { environment, policy, policy_file, unsaved: false, options, read_only })
    }

    #[cfg(test)]
    pub fn on(environment: Environment, policy: Policy, policy_file: PathBuf) -> Self {
        let options = AttachOptions::default();
        Self { environment, policy, policy_file, unsaved: false, options, read_only: false }
    }

    /// Where the volume lies.
    pub fn store(&self) -> &dyn store::Store {
        self.environment.store.as_ref()
    }

    /// A session; behind the one that has left this, if that is said.
    ///
    /// # Errors
    /// The volume's own.
    pub fn attach(&self, credential: Credential, follows: Option<Left>) -> Result<Volume, Failure> {
        let attach = if self.read_only { volume::attach_read_only } else { volume::attach };
        let options = AttachOptions { follows, ..self.options };
        Ok(attach(self.environment.clone(), self.policy.clone(), credential, options)?.block()?)
    }

    /// Finds out what speaks against a new key, also beside a session.
    ///
    /// # Errors
    /// That.
    pub fn check_rekey(&self, wanted: &Rekeying) -> Result<(), Failure> {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        let credential = input::copy(&wanted.credential);
        Ok(volume::check_rekey(environment, policy, credential, wanted.order(), self.options)?.block()?)
    }

    /// Gives the volume a new key, between two sessions, of which the first has left this.
    ///
    /// # Errors
    /// The volume's own.
    pub fn begin_rekey(&self, wanted: &Rekeying, follows: Left) -> Result<Rekeyed, Failure> {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        let credential = input::copy(&wanted.credential);
        let options = AttachOptions { follows: Some(follows), ..self.options };
        Ok(volume::begin_rekey(environment, policy, credential, wanted.order(), options)?.block()?)
    }

    /// What a growth would make of the volume, also beside a session. The store is made longer for it.
    ///
    /// # Errors
    /// What speaks against it.
    pub fn check_growth(
        &self,
        credential: &Credential,
        logical_blocks: Option<u64>,
    ) -> Result<Grown, Failure> {
        input::check_policy_can_follow(&self.policy_file)?;
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        let (credential, enlarge) = (input::copy(credential), self.enlarge());
        let job =
            volume::check_growth(environment, policy, credential, logical_blocks, enlarge, self.options)?;
        Ok(job.block()?)
    }

    /// Lets the volume grow, between two sessions, and lives by the new policy from then on.
    ///
    /// # Errors
    /// The volume's own.
    pub fn grow(&mut self, credential: &Credential, logical_blocks: Option<u64>) -> Result<Grown, Failure> {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        // Saved behind it: the next session must have the policy that the header in force needs, wherever else that could not be put.
        let (enlarge, save) = (self.enlarge(), Box::new(|_: &Policy| Ok(())));
        let growth = Growth { logical_blocks, enlarge, save, force: false };
        let job = volume::grow(environment, policy, input::copy(credential), growth, self.options)?;
        let grown = job.block()?;
        self.unsaved |= grown.policy != self.policy;
        self.policy = grown.policy.clone();
        Ok(grown)
    }

    /// Sees to it that the owner's file has the policy that this lives by.
    ///
    /// # Errors
    /// When it cannot be written; the next call tries again.
    pub fn save_policy(&mut self) -> Result<(), Failure> {
        if self.unsaved {
            input::save_when_grown(&self.policy_file)(&self.policy)?;
            self.unsaved = false;
        }
        Ok(())
    }

    fn enlarge(&self) -> Enlarge {
        system::enlarge(self.environment.store.clone())
    }
}

/// The anchor for a session, which waits for it as long as its owner said.
fn open_anchor(
    policy: &Policy,
    access: anchor::Access,
    timeout: Option<Duration>,
) -> Result<Option<Arc<dyn anchor::Anchor>>, Failure> {
    let open = |address: &String| anchor::schemes().open(address, &policy.anchor_options, access, timeout);
    Ok(policy.anchor.as_ref().map(open).transpose()?)
}
