//! Options of anchors, as they are typed: `--anchor-option KEY=VALUE`.

use std::fs;

use crate::{Error, Options};

/// Most bytes of a value that comes from a file.
const MAX_VALUE: u64 = 16 * 1024;

/// Reads `KEY=VALUE` and `KEY=@FILE`. The last line end of a file does not count.
///
/// # Errors
/// [`Error::Unusable`] when one is neither, is said twice, or its file cannot be read.
pub fn typed_options(typed: &[String]) -> Result<Options, Error> {
    let mut options = Options::default();
    for text in typed {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| Error::Unusable(format!("`{text}` is no option of an anchor; write KEY=VALUE")))?;
        if options.get(name).is_some() {
            return Err(Error::Unusable(format!("the anchor's option {name} is given twice")));
        }
        let value = match value.strip_prefix('@') {
            Some(path) => from_file(name, path)?,
            None => value.into(),
        };
        options.insert(name.into(), value);
    }
    Ok(options)
}

fn from_file(name: &str, path: &str) -> Result<String, Error> {
    let fail = |why: &dyn std::fmt::Display| {
        Error::Unusable(format!("the anchor's option {name} cannot be read from {path}: {why}"))
    };
    let size = fs::metadata(path).map_err(|error| fail(&error))?.len();
    if size > MAX_VALUE {
        return Err(fail(&format_args!("it has {size} bytes, and at most {MAX_VALUE} are read")));
    }
    let text = fs::read_to_string(path).map_err(|error| fail(&error))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(typed: &[&str]) -> Result<Options, Error> {
        typed_options(&typed.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_typed_or_come_from_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pin");
        fs::write(&path, "12=34\n").expect("written");
        let options = read(&["ca-file=/a=b", &format!("secret=@{}", path.display())]).expect("options");
        assert_eq!((options.get("ca-file"), options.get("secret")), (Some("/a=b"), Some("12=34")));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for (typed, why) in [
            (&["ca-file"] as &[&str], "write KEY=VALUE"),
            (&["=x"], "write KEY=VALUE"),
            (&["a=1", "a=2"], "twice"),
            (&["a=@/nowhere/x"], "cannot be read from /nowhere/x"),
        ] {
            let error = read(typed).expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
