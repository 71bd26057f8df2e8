//! A program's grammar as data, so that another program can offer its words in completions.
//!
//! It holds what completions need: names, one line of help, values and where they come from. What may stand beside what, it leaves to the program.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};

/// A command and all below it, but for those that are not for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Grammar {
    /// Its word.
    pub name: String,
    about: Option<String>,
    arguments: Vec<Argument>,
    /// What is below it.
    pub commands: Vec<Grammar>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Argument {
    id: String,
    short: Option<char>,
    long: Option<String>,
    help: Option<String>,
    value_name: Option<String>,
    takes_value: bool,
    is_repeated: bool,
    is_required: bool,
    values: Vec<(String, Option<String>)>,
    hint: String,
}

impl Grammar {
    /// That of a command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
        Self {
            name: command.get_name().into(),
            about: command.get_about().map(ToString::to_string),
            arguments: arguments.map(Argument::of).collect(),
            commands: below.map(Self::of).collect(),
        }
    }

    /// The same under another word.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// A command that has the same words.
    #[must_use]
    pub fn command(self) -> Command {
        let command = Command::new(kept(self.name)).args(self.arguments.into_iter().map(Argument::argument));
        let command = command.subcommands(self.commands.into_iter().map(Self::command));
        self.about.into_iter().fold(command, Command::about)
    }
}

impl Argument {
    fn of(argument: &Arg) -> Self {
        let values = argument.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        Self {
            id: argument.get_id().to_string(),
            short: argument.get_short(),
            long: argument.get_long().map(String::from),
            help: argument.get_help().map(ToString::to_string),
            value_name: argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string),
            takes_value: argument.get_action().takes_values(),
            is_repeated: matches!(argument.get_action(), ArgAction::Append | ArgAction::Count),
            is_required: argument.is_required_set(),
            values: values
                .map(|value| (value.get_name().to_string(), value.get_help().map(ToString::to_string)))
                .collect(),
            hint: format!("{:?}", argument.get_value_hint()),
        }
    }

    fn argument(self) -> Arg {
        let action = match (self.takes_value, self.is_repeated) {
            (true, true) => ArgAction::Append,
            (true, false) => ArgAction::Set,
            (false, true) => ArgAction::Count,
            (false, false) => ArgAction::SetTrue,
        };
        let mut argument = Arg::new(kept(self.id)).action(action).required(self.is_required);
        if self.takes_value && self.is_repeated && self.long.is_none() {
            argument = argument.num_args(1..);
        }
        argument = self.short.into_iter().fold(argument, Arg::short);
        argument = self.long.map(kept).into_iter().fold(argument, Arg::long);
        argument = self.help.into_iter().fold(argument, Arg::help);
        if !self.takes_value {
            return argument;
        }
        argument = self.value_name.map(kept).into_iter().fold(argument, Arg::value_name);
        // One that this version of the library does not know is of no use to it.
        argument = self.hint.parse::<clap::ValueHint>().into_iter().fold(argument, Arg::value_hint);
        if self.values.is_empty() {
            return argument;
        }
        let values = self.values.into_iter().map(|(name, help)| {
            let value = clap::builder::PossibleValue::new(kept(name));
            help.into_iter().fold(value, clap::builder::PossibleValue::help)
        });
        argument.value_parser(PossibleValuesParser::new(values))
    }
}

/// The library wants names for ever. A grammar is read once, by a program that ends when it has printed it.
fn kept(name: String) -> &'static str {
    name.leak()
}
