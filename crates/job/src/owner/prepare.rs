//! What can be known before anything is launched: whether the job's files are there, what they take, and whether its results have a place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::volumes;
use crate::archive;
use crate::budget::{Demand, OUTPUT, Plan, SCRATCH};
use crate::error::{Context, Error, Result};
use crate::file::{Job, Size};
use crate::tree::{digest_of, size};

/// Most bytes of a secret.
const MAX_SECRET: u64 = 1 << 20;

/// A job whose files are there and which fits into its guest.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The job.
    pub job: Job,
    /// Its file's text, which the guest reads again.
    pub text: String,
    /// The file's name without what follows the last dot.
    pub name: String,
    /// The directory from which relative paths begin.
    pub base: PathBuf,
    /// Its volumes.
    pub volumes: Vec<crate::volume::Plan>,
    /// How the guest's memory is shared out.
    pub plan: Plan,
}

impl Prepared {
    /// Reads a job file and looks at all that it names.
    ///
    /// # Errors
    /// If it is no job, a file is missing or is not what it is said to be, a result would replace something (unless `replace`), or the job does
    /// not fit into the guest's memory.
    pub fn read(path: &Path, replace: bool) -> Result<Self> {
        let bytes = fs::read(path)
            .map_err(|error| Error::usage(format!("{}: {error}", path.display())).because(error))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let job = Job::parse(&bytes, &name)
            .map_err(|error| Error::usage(format!("{}:{error}", path.display())).because(error))?;
        let text = String::from_utf8(bytes).map_err(|_| Error::usage("the job file is no text in UTF-8"))?;
        let base = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let base = base.canonicalize().of(base)?;
        let demand = demand(&job, &base)?;
        let plan = demand.plan(job.guest.memory.0)?;
        let volumes = volumes::plan(&job, &base)?;
        let prepared = Self { job, text, name, base, volumes, plan };
        if !replace {
            prepared.check_results()?;
        }
        Ok(prepared)
    }

    /// A path of the job file.
    #[must_use]
    pub fn path(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }

    /// Where the manifest goes.
    #[must_use]
    pub fn manifest(&self) -> PathBuf {
        self.base.join(format!("{}.manifest.json", self.job.name))
    }

    /// Where each output goes.
    pub fn results(&self) -> impl Iterator<Item = PathBuf> {
        self.job.outputs.iter().map(|output| self.path(&output.to).join(output.from.file_name()))
    }

    fn check_results(&self) -> Result<()> {
        match self.results().chain([self.manifest()]).find(|path| fs::symlink_metadata(path).is_ok()) {
            Some(path) => Err(Error::usage(format!(
                "{} is there already, and the job would replace it; move it away, or say --replace",
                path.display()
            ))),
            None => Ok(()),
        }
    }
}

fn demand(job: &Job, base: &Path) -> Result<Demand> {
    let mut demand = Demand {
        scratch: job.limits.scratch.map_or(SCRATCH, |Size(bytes)| bytes),
        volumes: job.volumes.len() as u64,
        memory: job.limits.memory.map(|Size(bytes)| bytes),
        outputs: job
            .outputs
            .iter()
            .map(|output| output.size.map_or(OUTPUT, |Size(bytes)| bytes))
            .fold(0, u64::saturating_add),
        ..Demand::default()
    };
    image(job, base, &mut demand)?;
    for input in &job.inputs {
        let (bytes, files) = measured("input", &base.join(&input.from))?;
        demand.inputs = demand.inputs.saturating_add(bytes);
        demand.files = demand.files.saturating_add(files);
    }
    for secret in &job.secrets {
        let path = base.join(&secret.from);
        let (bytes, _) = measured("secret", &path)?;
        if !path.is_file() || bytes > MAX_SECRET {
            return Err(Error::usage(format!(
                "the secret {} is no file of at most {MAX_SECRET} bytes",
                path.display()
            )));
        }
        demand.inputs = demand.inputs.saturating_add(bytes);
        demand.files += 1;
    }
    Ok(demand)
}

fn measured(what: &str, path: &Path) -> Result<(u64, u64)> {
    size(path).map_err(|error| Error::usage(format!("the {what} {}: {error}", path.display())).because(error))
}

fn image(job: &Job, base: &Path, demand: &mut Demand) -> Result<()> {
    let image = &job.image;
    if let (Some(archive), Some(wanted)) = (&image.archive, &image.digest) {
        let path = base.join(archive);
        let file = File::open(&path)
            .map_err(|error| Error::usage(format!("the image {}: {error}", path.display())).because(error))?;
        demand.image = file.metadata().of(&path)?.len();
        let found = digest_of(&file).of(&path)?;
        if found != *wanted {
            return Err(Error::refused(format!(
                "the image {} has {found}, and the job file pins {wanted}",
                path.display()
            )));
        }
        let contents = archive::inspect(File::open(&path).of(&path)?)?;
        demand.unpacked = contents.unpacked;
    }
    if let Some(context) = &image.context {
        let path = base.join(context);
        let dockerfile = path.join(image.dockerfile.as_deref().unwrap_or("Dockerfile"));
        if !dockerfile.is_file() {
            return Err(Error::usage(format!(
                "{} is no file; image.dockerfile names it",
                dockerfile.display()
            )));
        }
        (demand.image, _) = measured("image's context", &path)?;
        // A build copies what it is given, layer by layer.
        demand.unpacked = image.unpacked.map_or_else(|| demand.image.saturating_mul(2), |Size(bytes)| bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(more: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("c")).unwrap();
        fs::write(directory.path().join("c/Dockerfile"), "FROM scratch\n").unwrap();
        let path = directory.path().join("work.toml");
        fs::write(&path, format!("name = \"a\"\n[image]\ncontext = \"c\"\n{more}")).unwrap();
        (directory, path)
    }

    #[test]
    fn missing_files_and_results_that_are_there_are_named_before_a_launch() {
        let refusal = |more: &str| {
            let (_directory, path) = job(more);
            Prepared::read(&path, false).unwrap_err().to_string()
        };
        assert!(refusal("[[inputs]]\nfrom = \"gone\"\nto = \"/in\"\n").contains("the input"));
        assert!(refusal("[[secrets]]\nfrom = \"c\"\nto = \"/s\"\n").contains("no file of at most"));
        assert!(refusal("[guest]\nmemory = \"256M\"\n").contains("guest.memory"));
        let (directory, path) = job("[[outputs]]\nfrom = \"/o/r\"\nto = \"out\"\n");
        let prepared = Prepared::read(&path, false).unwrap();
        assert_eq!(prepared.name, "work");
        fs::create_dir_all(directory.path().join("out/r")).unwrap();
        assert!(Prepared::read(&path, false).unwrap_err().to_string().contains("--replace"));
        assert!(Prepared::read(&path, true).is_ok());
        fs::remove_file(directory.path().join("c/Dockerfile")).unwrap();
        assert!(Prepared::read(&path, true).unwrap_err().to_string().contains("image.dockerfile"));
    }

    #[test]
    fn an_image_that_is_not_the_pinned_one_is_refused() {
        let (directory, path) = job("");
        fs::write(directory.path().join("i.tar"), "image").unwrap();
        let digest = format!("sha256:{}", "0".repeat(64));
        fs::write(&path, format!("name = \"a\"\n[image]\narchive = \"i.tar\"\ndigest = \"{digest}\"\n"))
            .unwrap();
        let refused = Prepared::read(&path, false).unwrap_err().to_string();
        assert!(refused.contains("the job file pins"), "{refused}");
    }
}
