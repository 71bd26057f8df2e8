//! Volumes of a job, on the owner's side: looked at before the launch, opened for the guest behind its evidence.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use zeroize::Zeroizing;

use super::ssh::Channel;
use crate::error::{Context, Error, Result};
use crate::file::{Job, Volume};
use crate::guest::Word;
use crate::volume::{MAX_FILE, Plan, RELEASED, Used};

/// Looks at each volume of a job: its disk, its policy, and whether what opens it is there.
///
/// # Errors
/// If something is missing, or a volume's anchor is one that its host could roll back.
pub fn plan(job: &Job, base: &Path) -> Result<Vec<Plan>> {
    let (mut plans, mut taken) = (Vec::new(), 0);
    for volume in &job.volumes {
        let plan = one(volume, base, taken).map_err(|error| error.about(about(volume)))?;
        if plans.iter().any(|other: &Plan| other.id == plan.id) {
            return Err(Error::usage(format!(
                "{}: another volume of the job has the same policy",
                about(volume)
            )));
        }
        taken += plan.routes.len();
        plans.push(plan);
    }
    Ok(plans)
}

fn about(volume: &Volume) -> String {
    format!("the volume for {}", volume.to)
}

fn one(volume: &Volume, base: &Path, taken: usize) -> Result<Plan> {
    let disk = base.join(&volume.disk);
    let kind = fs::metadata(&disk).map(|status| status.file_type()).map_err(|error| {
        Error::usage(format!(
            "its disk {}: {error}; `truncate -s SIZE` makes a file that is one",
            disk.display()
        ))
        .because(error)
    })?;
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::usage(format!(
            "its disk {} is neither a file nor a block device",
            disk.display()
        )));
    }
    let path = base.join(&volume.policy);
    let text = String::from_utf8(read(&path)?.to_vec())
        .map_err(|_| Error::usage(format!("{} is no text in UTF-8", path.display())))?;
    let plan = Plan::of(&text, taken).map_err(|why| Error::usage(format!("{}: {why}", path.display())))?;
    for file in [base.join(&volume.key_file).as_path()].into_iter().chain(plan.anchor_files()) {
        read(file)?;
    }
    Ok(plan)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let missing = |error: std::io::Error| Error::usage(format!("{}: {error}", path.display())).because(error);
    let mut bytes = Zeroizing::new(Vec::new());
    File::open(path).map_err(missing)?.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(missing)?;
    match bytes.len() as u64 > MAX_FILE {
        false => Ok(bytes),
        true => Err(Error::usage(format!("{} has more than {MAX_FILE} bytes", path.display()))),
    }
}

/// Sends what opens each volume. **Only over a channel whose host key the evidence vouches for.**
///
/// # Errors
/// If something cannot be read or sent.
pub fn open(channel: &Channel, job: &Job, plans: &[Plan], base: &Path) -> Result<()> {
    for (number, (volume, plan)) in job.volumes.iter().zip(plans).enumerate() {
        let grant = plan.grant(&base.join(&volume.key_file), read)?;
        let text =
            serde_json::to_vec(&grant).map(Zeroizing::new).map_err(|error| Error::io(error.to_string()))?;
        channel.ask(Word::Volume(number), |to| to.write_all(&text).of("what opens a volume"))?;
    }
    Ok(())
}

/// Whether a manifest names the volumes that were opened for its guest, at their places, and each as put away in order.
#[must_use]
pub fn are_those_opened(used: &[Used], job: &Job, ids: &[String]) -> bool {
    let is_same = |((used, volume), id): ((&Used, &Volume), &String)| {
        used.to == volume.to.as_str()
            && [&used.volume, &used.after.volume].into_iter().all(|found| found == id)
            && used.before.as_ref().is_none_or(|before| before.volume == *id)
            && used.after.state == RELEASED
    };
    used.len() == job.volumes.len()
        && used.len() == ids.len()
        && used.iter().zip(&job.volumes).zip(ids).all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Stamp;

    #[test]
    fn a_manifest_names_the_volumes_that_were_opened_and_no_others() {
        let text = "name = \"a\"\n[image]\ncontext = \"c\"\n[[volumes]]\nto = \"/d\"\ndisk = \"d\"\npolicy = \"p\"\nkey-file = \"k\"\n";
        let (job, ids) = (Job::parse(text.as_bytes(), "a").unwrap(), ["ab".to_string()]);
        let stamp = |volume: &str, state: &str| Stamp {
            volume: volume.into(),
            state: state.into(),
            generation: 3,
            head: String::new(),
            claims: 1,
        };
        let used = |to: &str, id: &str, before: &str, state: &str| Used {
            to: to.into(),
            volume: id.into(),
            before: Some(stamp(before, "claimed")),
            after: stamp(id, state),
        };
        let right = used("/d", "ab", "ab", RELEASED);
        assert!(are_those_opened(std::slice::from_ref(&right), &job, &ids));
        assert!(are_those_opened(&[Used { before: None, ..right.clone() }], &job, &ids), "a new one");
        for wrong in [
            vec![],
            vec![right.clone(), right],
            vec![used("/e", "ab", "ab", RELEASED)],
            vec![used("/d", "cd", "ab", RELEASED)],
            vec![used("/d", "ab", "cd", RELEASED)],
            vec![used("/d", "ab", "ab", "claimed")],
        ] {
            assert!(!are_those_opened(&wrong, &job, &ids), "{wrong:?}");
        }
    }

    const POLICY: &str = "version = 1\nvolume = \"ID\"\nfreshness = \"strict\"\nanchor = \"owner:h:1/a\"\n[anchor-options]\nkey-file = \"FILE\"\n";

    #[test]
    fn what_a_volume_lacks_is_named_before_a_launch() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let volume = |number: usize| {
            format!(
                "[[volumes]]\nto = \"/d{number}\"\ndisk = \"disk\"\npolicy = \"policy\"\nkey-file = \"key\"\n"
            )
        };
        let job = |volumes: &str| {
            Job::parse(format!("name = \"a\"\n[image]\ncontext = \"c\"\n{volumes}").as_bytes(), "a").unwrap()
        };
        let one = job(&volume(0));
        let refusal = || plan(&one, directory.path()).unwrap_err().to_string();
        assert!(
            refusal().contains("the volume for /d0: its disk") && refusal().contains("truncate"),
            "{}",
            refusal()
        );
        fs::create_dir(at("disk")).unwrap();
        assert!(refusal().contains("neither a file nor a block device"), "{}", refusal());
        fs::remove_dir(at("disk")).unwrap();
        fs::write(at("disk"), "").unwrap();
        let policy =
            POLICY.replace("ID", &"ab".repeat(16)).replace("FILE", &at("client.key").display().to_string());
        fs::write(at("policy"), &policy).unwrap();
        assert!(refusal().contains("key: No such file"), "{}", refusal());
        fs::write(at("key"), "k").unwrap();
        assert!(refusal().contains("client.key: No such file"), "{}", refusal());
        fs::write(at("client.key"), vec![0; 200_000]).unwrap();
        assert!(refusal().contains("more than"), "{}", refusal());
        fs::write(at("client.key"), "c").unwrap();
        assert_eq!(plan(&one, directory.path()).unwrap()[0].routes[0].port, 7001);
        // V2, with the place that is to be mended.
        fs::write(at("policy"), policy.replace("owner:h:1/a", "file:/x")).unwrap();
        assert!(refusal().contains("policy: its anchor `file:`"), "{}", refusal());
        fs::write(at("policy"), &policy).unwrap();
        let two = job(&format!("{}{}", volume(0), volume(1)));
        assert!(plan(&two, directory.path()).unwrap_err().to_string().contains("same policy"));
    }
}
