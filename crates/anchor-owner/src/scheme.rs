//! The client as an anchor by the scheme `owner:`.

use crate::client::Files;
use crate::wire::Refusal;
use crate::{Address, Client, Error, Times};
use anchor::{
    Anchor, BlockingAnchor, Created, Failure, Limits, Needs, Opening, OptionKey, Options, Scheme, Stamp,
    Threaded,
};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

const AUTHORITY: &str = "ca-file";
const CERTIFICATE: &str = "cert-file";
const KEY: &str = "key-file";

/// The scheme `owner:HOST:PORT/NAME`.
#[must_use]
pub fn scheme() -> Scheme {
    Scheme {
        name: "owner",
        form: Address::FORM,
        options: &[
            OptionKey {
                name: AUTHORITY,
                secret: false,
                about: "the authority of the service's certificate (PEM)",
            },
            OptionKey {
                name: CERTIFICATE,
                secret: false,
                about: "this machine's certificate for the service (PEM)",
            },
            OptionKey { name: KEY, secret: false, about: "the key of that certificate (PEM)" },
        ],
        check: |rest, options| client(rest, options).map(drop),
        needs: |_| Needs { network: true, ..Needs::default() },
        open: |opening| Ok(threaded(opening)? as Arc<dyn Anchor>),
        create: |opening| {
            // The service makes the place, by its owner's order. Here it only has to be there.
            Ok(Created { anchor: threaded(opening)?, undo: None, notes: Vec::new() })
        },
    }
}

fn client(rest: &str, options: &Options) -> Result<Client, anchor::Error> {
    let wrong = |why: String| {
        anchor::Error::Unusable(format!("anchor address \"owner:{rest}\": {why}; write {}", Address::FORM))
    };
    let address: Address = rest.parse().map_err(wrong)?;
    let file = |name: &str| {
        let path = options.get(name).ok_or_else(|| {
            anchor::Error::Unusable(format!("an anchor at the owner's service needs the option {name}=FILE"))
        })?;
        match Path::new(path).is_absolute() {
            true => Ok(path.into()),
            // What a relative path means depends on the working directory.
            false => Err(anchor::Error::Unusable(format!("the option {name}={path} has a relative path"))),
        }
    };
    let files = Files { authority: file(AUTHORITY)?, certificate: file(CERTIFICATE)?, key: file(KEY)? };
    Client::new(address, files, Times::default()).map_err(wrong)
}

fn threaded(opening: &Opening<'_>) -> Result<Arc<Threaded>, anchor::Error> {
    let client = client(opening.address.rest(), opening.options)?;
    let limits = Limits { timeout: opening.timeout, ..Limits::default() };
    Threaded::spawn(client, limits)
}

impl BlockingAnchor for Client {
    fn read(&mut self) -> Result<Option<Stamp>, Failure> {
        Ok(self.ask_stamp()?.map(|stamp| *stamp))
    }

    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Failure> {
        Ok(self.compare_and_swap(expected, new)?)
    }

    fn address(&self) -> String {
        format!("owner:{}", self.place())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let entries = self.seen().map(|position| ("log-entries", position.number.to_string()));
        entries.into_iter().collect()
    }

    fn certificate_until(&self) -> Option<SystemTime> {
        Client::certificate_until(self)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Conflict(held) => Failure::Refused(anchor::Error::Conflict(held)),
            // Another attempt may succeed without anyone's help.
            Error::Unreachable(..)
            | Error::Lost(..)
            | Error::Unavailable(..)
            | Error::Refused(_, Refusal::Superseded, _)
            | Error::Random => Failure::Away(error.to_string()),
            // A person can mend it while the session waits.
            Error::Files(_)
            | Error::Credentials(_)
            | Error::Tls(..)
            | Error::NotOwner(_)
            | Error::Nonsense(..)
            | Error::OtherQuestion(_)
            | Error::Refused(_, Refusal::NotAllowed | Refusal::BadRequest, _) => {
                Failure::Setup(error.to_string())
            }
            Error::Refused(_, Refusal::Retired | Refusal::OtherVolume, _) | Error::RolledBack(..) => {
                Failure::Refused(anchor::Error::Unusable(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refusal(rest: &str, pairs: &[(&str, &str)]) -> String {
        match (scheme().check)(rest, &options(pairs)) {
            Err(anchor::Error::Unusable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_missing_is_named_before_anything_is_opened() {
        let all = [(AUTHORITY, "/a"), (CERTIFICATE, "/b"), (KEY, "/c")];
        assert_eq!((scheme().check)("h:1/a", &options(&all)), Ok(()));
        assert!(refusal("h:1/a", &all[..2]).contains("key-file=FILE"));
        assert!(refusal("h:1/a", &[(AUTHORITY, "a"), all[1], all[2]]).contains("relative path"));
        assert!(refusal("h/a", &all).contains("write owner:HOST:PORT/NAME"));
        assert!((scheme().needs)("h:1/a").network);
    }
}
