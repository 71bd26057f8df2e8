//! From bytes to a [`Job`]: the only place where a job file is read.

use std::fmt;
use std::path::Path;

use super::{Image, Job, published};
use crate::volume::MAX_VOLUMES;

/// Most bytes of a job file.
pub const MAX_JOB: usize = 1 << 20;
/// How unlike a known word a misspelt one may be.
const TYPING_ERRORS: usize = 3;

/// Why bytes are no job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Line and column, from 1, where they are known.
    pub place: Option<(usize, usize)>,
    /// What is wrong there, in words.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ParseError {}

fn error(message: impl Into<String>) -> ParseError {
    ParseError { place: None, message: message.into() }
}

impl Job {
    /// Reads a job file: JSON if it begins with a brace, TOML if not. `name` is the file's, for jobs of the published framework.
    ///
    /// # Errors
    /// If it is too long, no text, of another shape, or contradicts itself.
    pub fn parse(bytes: &[u8], name: &str) -> Result<Self, ParseError> {
        if bytes.len() > MAX_JOB {
            return Err(error(format!(
                "the job file has {} bytes, and at most {MAX_JOB} are read",
                bytes.len()
            )));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| error("the job file is no text in UTF-8"))?;
        let job = if text.trim_start().starts_with('{') { from_json(text, name)? } else { from_toml(text)? };
        job.check()?;
        Ok(job)
    }

    /// What no single field shows.
    fn check(&self) -> Result<(), ParseError> {
        self.image.check()?;
        let places = || {
            let inputs = self.inputs.iter().map(|input| ("input", &input.to));
            let volumes = self.volumes.iter().map(|volume| ("volume", &volume.to));
            inputs.chain(self.secrets.iter().map(|secret| ("secret", &secret.to))).chain(volumes)
        };
        for (number, (kind, place)) in places().enumerate() {
            for (other_kind, other) in places().skip(number + 1) {
                if place.is_at_or_below(other.as_str()) || other.is_at_or_below(place.as_str()) {
                    return Err(error(format!(
                        "the {kind} at {place} and the {other_kind} at {other} lie at one place, or one in the other"
                    )));
                }
            }
        }
        self.check_outputs()?;
        if self.volumes.len() > MAX_VOLUMES {
            return Err(error(format!("the job has more than {MAX_VOLUMES} volumes")));
        }
        let user = self.run.user.as_deref().unwrap_or("0");
        if user.split(':').count() > 2 || user.split(':').any(|part| part.parse::<u32>().is_err()) {
            return Err(error(format!("run.user {user:?} is refused: it is UID or UID:GID, in numbers")));
        }
        let is_bad = |name: &str| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.run.environment.keys().find(|name| is_bad(name)) {
            return Err(error(format!("run.environment has the name {name:?}, which no variable can have")));
        }
        if self.run.command.as_ref().is_some_and(Vec::is_empty) {
            return Err(error("run.command is empty; leave it out for the image's own command"));
        }
        if self.guest.processors == 0 {
            return Err(error("guest.processors is 0; a machine has one at least"));
        }
        Ok(())
    }

    /// Whether each output has a place of its own, and is there to be read when the container has ended.
    fn check_outputs(&self) -> Result<(), ParseError> {
        for (number, output) in self.outputs.iter().enumerate() {
            let place = |output: &super::Output| output.to.join(output.from.file_name());
            let meets = |other: &&super::Output| {
                place(other).starts_with(place(output)) || place(output).starts_with(place(other))
            };
            if let Some(other) = self.outputs[..number].iter().find(meets) {
                return Err(error(format!(
                    "the outputs {} and {} would lie at one place ({} and {}), or one in the other; give one another directory in `to`",
                    other.from,
                    output.from,
                    place(other).display(),
                    place(output).display()
                )));
            }
            let holds = |to: &super::GuestPath| to != &output.from && to.is_at_or_below(output.from.as_str());
            if let Some(input) = self.inputs.iter().find(|input| holds(&input.to)) {
                return Err(error(format!(
                    "the output {} holds the input {}, which is mounted there and would be missing; name the input as an output of its own",
                    output.from, input.to
                )));
            }
            let meets = |to: &super::GuestPath| {
                to.is_at_or_below(output.from.as_str()) || output.from.is_at_or_below(to.as_str())
            };
            if let Some(volume) = self.volumes.iter().find(|volume| meets(&volume.to)) {
                return Err(error(format!(
                    "the output {} meets the volume {}, which is put away when the container has ended; have it copied elsewhere",
                    output.from, volume.to
                )));
            }
            if let Some(secret) =
                self.secrets.iter().find(|secret| secret.to.is_at_or_below(output.from.as_str()))
            {
                return Err(error(format!(
                    "the output {} would bring the secret {} back",
                    output.from, secret.to
                )));
            }
        }
        Ok(())
    }
}

impl Image {
    fn check(&self) -> Result<(), ParseError> {
        match (&self.archive, &self.digest, &self.context) {
            (Some(_), Some(_), None) if self.dockerfile.is_none() && self.unpacked.is_none() => Ok(()),
            (Some(archive), None, None) => Err(error(format!(
                "image.digest is missing: it pins what is run; `sha256sum {}` prints it, and it is written `sha256:DIGITS`",
                archive.display()
            ))),
            (Some(_), Some(_), None) => {
                Err(error("image.dockerfile and image.unpacked are for image.context"))
            }
            (None, None, Some(_)) => match &self.dockerfile {
                Some(name)
                    if name.is_empty()
                        || Path::new(name)
                            .components()
                            .any(|part| !matches!(part, std::path::Component::Normal(_))) =>
                {
                    Err(error(format!(
                        "image.dockerfile {name:?} is refused: it is the name of a file in the context"
                    )))
                }
                _ => Ok(()),
            },
            (None, Some(_), Some(_)) => Err(error("image.digest is for image.archive")),
            (Some(_), _, Some(_)) => {
                Err(error("image.archive and image.context are two ways; leave one out"))
            }
            (None, _, None) => Err(error("the job has no image: name image.archive, or image.context")),
        }
    }
}

fn from_json(text: &str, name: &str) -> Result<Job, ParseError> {
    let at = |error: &serde_json::Error| (error.line() > 0).then(|| (error.line(), error.column()));
    let fail = |error: serde_json::Error| {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or(&message);
        ParseError { place: at(&error), message: with_suggestion(message) }
    };
    if published::is_one(text) {
        return published::read(text, name).map_err(|wrong| match wrong {
            published::Wrong::Json(wrong) => fail(wrong),
            published::Wrong::Value(message) => error(message),
        });
    }
    serde_json::from_str(text).map_err(fail)
}

fn from_toml(text: &str) -> Result<Job, ParseError> {
    toml::from_str(text).map_err(|wrong: toml::de::Error| {
        let place = wrong.span().map(|span| {
            let before = &text[..span.start.min(text.len())];
            let line = before.rsplit('\n').next().unwrap_or_default();
            (before.matches('\n').count() + 1, line.chars().count() + 1)
        });
        ParseError { place, message: with_suggestion(wrong.message().trim()) }
    })
}

/// Adds the known word that is nearest to a misspelt one. serde names the words in backquotes, the misspelt one first.
fn with_suggestion(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let near = message.starts_with("unknown").then(|| words.next()).flatten().and_then(|misspelt| {
        let distances = words.map(|known| (strsim::damerau_levenshtein(misspelt, known), known));
        distances.min().filter(|(distance, _)| *distance <= TYPING_ERRORS)
    });
    match near {
        Some((_, known)) => format!("{message}; did you mean `{known}`?"),
        None => message.into(),
    }
}

/// The JSON schema of a job file.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Job).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Size;

    const LEAST: &str = "name = \"a\"\n[image]\ncontext = \"here\"\n";

    fn refusal(text: &str) -> String {
        Job::parse(text.as_bytes(), "x").unwrap_err().to_string()
    }

    #[test]
    fn the_same_job_is_read_from_toml_and_from_json() {
        let toml = "name = \"a\"\n[image]\ncontext = \"here\"\n[[inputs]]\nfrom = \"data\"\nto = \"/in/\"\n[limits]\nmemory = \"64M\"\ntime = \"2m\"\n";
        let json = r#"{"name": "a", "image": {"context": "here"}, "inputs": [{"from": "data", "to": "/in"}], "limits": {"memory": 67108864, "time": 120}}"#;
        let job = Job::parse(toml.as_bytes(), "x").unwrap();
        assert_eq!(job, Job::parse(json.as_bytes(), "x").unwrap());
        assert_eq!((job.limits.memory, job.guest.processors), (Some(Size(64 << 20)), 2));
        // What is written is read as the same job.
        assert_eq!(job, Job::parse(serde_json::to_string(&job).unwrap().as_bytes(), "x").unwrap());
    }

    #[test]
    fn errors_name_the_line_and_the_word_that_was_meant() {
        assert_eq!(
            refusal(&format!("{LEAST}[run]\ncomand = [\"x\"]\n")),
            "5:1: unknown field `comand`, expected one of `command`, `environment`, `user`, `directory`; did you mean `command`?"
        );
        assert!(
            refusal(&format!("{LEAST}[guest]\nmemory = \"two\"\n")).starts_with("5:10: "),
            "{}",
            refusal(&format!("{LEAST}[guest]\nmemory = \"two\"\n"))
        );
        let json = refusal("{\"name\": \"a\",\n \"imag\": {}}");
        assert!(json.starts_with("2:7: ") && json.ends_with("did you mean `image`?"), "{json}");
        assert!(refusal("name = \n").starts_with("1:"));
        assert!(refusal("name = \"a b\"\n[image]\ncontext = \"x\"").contains("a letter or digit first"));
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let with = |more: &str| refusal(&format!("{LEAST}{more}"));
        assert!(
            with("[[inputs]]\nfrom = \"a\"\nto = \"/in\"\n[[inputs]]\nfrom = \"b\"\nto = \"/in/b\"\n")
                .contains("one in the other")
        );
        assert!(
            with("[[outputs]]\nfrom = \"/a/x\"\nto = \"o\"\n[[outputs]]\nfrom = \"/b/x\"\nto = \"o\"\n")
                .contains("would lie at one place (o/x and o/x)")
        );
        assert!(
            with("[[outputs]]\nfrom = \"/a/x\"\nto = \"o\"\n[[outputs]]\nfrom = \"/y\"\nto = \"o/x\"\n")
                .contains("one in the other")
        );
        assert!(
            with("[[secrets]]\nfrom = \"k\"\nto = \"/s/k\"\n[[outputs]]\nfrom = \"/s\"\nto = \"o\"\n")
                .contains("bring the secret /s/k back")
        );
        assert!(
            with("[[inputs]]\nfrom = \"a\"\nto = \"/d/in\"\n[[outputs]]\nfrom = \"/d\"\nto = \"o\"\n")
                .contains("holds the input /d/in")
        );
        let volume = "[[volumes]]\nto = \"/data\"\ndisk = \"d\"\npolicy = \"p\"\nkey-file = \"k\"\n";
        assert!(with(&format!("{volume}{volume}")).contains("the volume at /data and the volume at /data"));
        for output in ["/data", "/data/x"] {
            let output = format!("[[outputs]]\nfrom = {output:?}\nto = \"o\"\n");
            assert!(with(&format!("{volume}{output}")).contains("meets the volume /data"), "{output}");
        }
        let many: String = (0..9).map(|number| volume.replace("/data", &format!("/d{number}"))).collect();
        assert!(with(&many).contains("more than 8 volumes"));
        assert!(with("[run]\nuser = \"root\"\n").contains("in numbers"));
        assert!(with("[run]\ncommand = []\n").contains("image's own command"));
        assert!(with("[run]\nenvironment = { \"A=B\" = \"c\" }\n").contains("no variable"));
        assert!(with("[guest]\nprocessors = 0\n").contains("one at least"));
        assert!(with("[[outputs]]\nfrom = \"../x\"\nto = \"o\"\n").contains("begin with a slash"));
    }

    #[test]
    fn an_image_is_pinned_or_built() {
        let image = |lines: &str| refusal(&format!("name = \"a\"\n[image]\n{lines}\n"));
        assert!(image("archive = \"a.tar\"").contains("`sha256sum a.tar` prints it"));
        assert!(image("").contains("has no image"));
        assert!(image("context = \"a\"\narchive = \"b\"").contains("two ways"));
        assert!(image("context = \"a\"\ndockerfile = \"../b\"").contains("name of a file"));
        let digest = format!("sha256:{}", "00".repeat(32));
        assert!(
            image(&format!("archive = \"a\"\ndigest = \"{digest}\"\ndockerfile = \"b\""))
                .contains("for image.context")
        );
        assert!(
            Job::parse(
                format!("name = \"a\"\n[image]\narchive = \"a\"\ndigest = \"{digest}\"\n").as_bytes(),
                "x"
            )
            .is_ok()
        );
    }

    #[test]
    fn the_schema_has_each_section() {
        let schema = schema();
        for section in ["name", "image", "run", "inputs", "outputs", "secrets", "volumes", "limits", "guest"]
        {
            assert!(schema["properties"].get(section).is_some(), "{section}");
        }
        assert_eq!(schema["additionalProperties"], serde_json::json!(false));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for text in [
            "",
            "{",
            "[",
            "{}",
            "\u{feff}",
            "name = 1",
            "{\"container_name\": 1}",
            "{\"inputs\": [\":\"], \"container_name\": \"a\"}",
        ] {
            assert!(Job::parse(text.as_bytes(), "x").is_err(), "{text}");
        }
        assert!(Job::parse(&[0xff], "x").is_err() && Job::parse(&vec![b' '; MAX_JOB + 1], "x").is_err());
    }
}
