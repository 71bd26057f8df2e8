//! The JSON of the published framework: `container_name`, `local_result_folder`, `inputs` and `outputs`.
//!
//! An input is `OWNER:CONTAINER`. An output is a path in the container; a slash at its end says that it is a directory, and one with a colon
//! repeats an input: what the container made of it comes back. The Dockerfile lies beside the JSON file.

use serde::Deserialize;

use super::{Guest, GuestPath, Image, Input, Job, Limits, Name, Output, Run};

/// What is wrong with one.
#[derive(Debug)]
pub enum Wrong {
    /// Its shape.
    Json(serde_json::Error),
    /// A value, in a sentence.
    Value(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    container_name: String,
    local_result_folder: std::path::PathBuf,
    #[serde(default)]
    inputs: Vec<String>,
    #[serde(default)]
    outputs: Vec<String>,
}

/// Whether a JSON text looks like one.
pub fn is_one(text: &str) -> bool {
    let value: Result<serde_json::Value, _> = serde_json::from_str(text);
    value.is_ok_and(|value| value.get("container_name").is_some())
}

/// Reads one. `name` is the file's, for a container without a name that passes here.
pub fn read(text: &str, name: &str) -> Result<Job, Wrong> {
    let published: Published = serde_json::from_str(text).map_err(Wrong::Json)?;
    let value = |error: super::KindError| Wrong::Value(error.to_string());
    let inputs = published.inputs.iter().map(|pair| input(pair)).collect::<Result<Vec<_>, _>>()?;
    let output = |path: &String| {
        let path = path.rsplit_once(':').map_or(path.as_str(), |(_, path)| path);
        let from = GuestPath::parse(path).map_err(value)?;
        Ok(Output { from, to: published.local_result_folder.clone(), optional: false, size: None })
    };
    let outputs = published.outputs.iter().map(output).collect::<Result<Vec<_>, Wrong>>()?;
    let is_repeated =
        |input: &Input| outputs.iter().any(|output| output.from.is_at_or_below(input.to.as_str()));
    let inputs = inputs.into_iter().map(|input| Input { writable: is_repeated(&input), ..input }).collect();
    let image =
        Image { archive: None, digest: None, context: Some(".".into()), dockerfile: None, unpacked: None };
    Ok(Job {
        name: Name::parse(&published.container_name).or_else(|_| Name::parse(name)).map_err(value)?,
        image,
        run: Run::default(),
        inputs,
        outputs,
        secrets: Vec::new(),
        volumes: Vec::new(),
        limits: Limits::default(),
        guest: Guest::default(),
    })
}

fn input(pair: &str) -> Result<Input, Wrong> {
    let Some((from, to)) = pair.rsplit_once(':').filter(|(from, _)| !from.is_empty()) else {
        return Err(Wrong::Value(format!(
            "the input {pair:?} is refused: it is OWNER:CONTAINER, the two paths with a colon between"
        )));
    };
    let to = GuestPath::parse(to).map_err(|error| Wrong::Value(error.to_string()))?;
    Ok(Input { from: from.into(), to, writable: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_form_is_understood() {
        let text = r#"{"container_name": "compress", "local_result_folder": "results",
            "inputs": ["data/clips:/data", "conf:/etc/conf"], "outputs": ["/out/", "data/clips:/data", "/log"]}"#;
        let job = Job::parse(text.as_bytes(), "job").unwrap();
        assert_eq!(job.name.as_str(), "compress");
        assert_eq!(job.image.context.as_deref(), Some(std::path::Path::new(".")));
        let inputs: Vec<_> = job.inputs.iter().map(|input| (input.to.as_str(), input.writable)).collect();
        assert_eq!(inputs, [("/data", true), ("/etc/conf", false)]);
        let outputs: Vec<_> = job.outputs.iter().map(|output| output.from.as_str()).collect();
        assert_eq!(outputs, ["/out", "/data", "/log"]);
    }

    #[test]
    fn what_it_does_not_have_is_refused() {
        let refusal = |text: &str| Job::parse(text.as_bytes(), "job").unwrap_err().to_string();
        assert!(refusal(r#"{"container_name": "a"}"#).contains("local_result_folder"));
        assert!(
            refusal(r#"{"container_name": "a", "local_result_folder": "r", "inputs": ["data"]}"#)
                .contains("OWNER:CONTAINER")
        );
        assert!(
            refusal(r#"{"container_name": "a", "local_result_folder": "r", "output": []}"#)
                .contains("did you mean `outputs`?")
        );
        let named =
            Job::parse(br#"{"container_name": "my container", "local_result_folder": "r"}"#, "job").unwrap();
        assert_eq!(named.name.as_str(), "job");
    }
}
