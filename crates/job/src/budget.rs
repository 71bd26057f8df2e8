//! Whether a job fits into its guest's memory, before anything is launched: everything that is written in the guest lies in memory.

use std::fmt;

use crate::error::{Error, Result};

/// What the guest's kernel, its programs and their buffers take, the job's log among them.
const SYSTEM: u64 = 320 << 20;
/// What a volume's daemon takes: 32 MiB for changes and map, and less than 64 MiB beside; the rest is for its loop device.
const VOLUME: u64 = 112 << 20;
/// Memory that the container's processes get at least, where the job file states none.
const LEAST: u64 = 64 << 20;
/// What the container may write beside its outputs, where the job file does not say.
pub const SCRATCH: u64 = 256 << 20;
/// What an output may take, where the job file does not say.
pub const OUTPUT: u64 = 64 << 20;
/// Bytes that a file takes in memory beside its content: its inode, and half a page.
const PER_FILE: u64 = 4096;

/// What a job takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// The image as it is sent.
    pub image: u64,
    /// The image unpacked.
    pub unpacked: u64,
    /// All inputs and secrets.
    pub inputs: u64,
    /// All their files.
    pub files: u64,
    /// All outputs, as the job file declares them.
    pub outputs: u64,
    /// What the container may write beside them.
    pub scratch: u64,
    /// Volumes, whose daemons take memory.
    pub volumes: u64,
    /// Memory of the container's processes, if the job file states it.
    pub memory: Option<u64>,
}

/// How a guest's memory is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of the file system that holds image, inputs, outputs and all that is written.
    pub storage: u64,
    /// Bytes for the container: its processes, and what they write.
    pub container: u64,
}

impl Demand {
    /// Bytes of files.
    fn storage(&self) -> u64 {
        // The container's writes and its outputs are copied once, when they are packed; the archive goes when it is unpacked.
        let parts = [
            self.image,
            self.unpacked,
            self.inputs,
            self.files.saturating_mul(PER_FILE),
            self.outputs,
            self.scratch,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// What is neither the container's nor a file.
    fn system(&self) -> u64 {
        SYSTEM.saturating_add(self.volumes.saturating_mul(VOLUME))
    }

    /// Shares out a guest's memory.
    ///
    /// # Errors
    /// If it does not fit, with each part and the least memory that would do.
    pub fn plan(&self, memory: u64) -> Result<Plan> {
        let storage = self.storage();
        let processes = self.memory.unwrap_or(LEAST);
        let system = self.system();
        let needed = [system, storage, processes].into_iter().fold(0, u64::saturating_add);
        if needed > memory {
            let least = needed.div_ceil(64 << 20).saturating_mul(64);
            return Err(Error::no_space(format!(
                "the job does not fit into the guest's memory of {}: {self}; set guest.memory to \"{least}M\" or more",
                mib(memory)
            )));
        }
        let rest = memory - system - storage;
        let container = self.memory.unwrap_or(rest).saturating_add(self.scratch).saturating_add(self.outputs);
        Ok(Plan { storage, container })
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = ("the system", self.system());
        let memory = self.memory.unwrap_or(LEAST);
        let files = self.inputs.saturating_add(self.files.saturating_mul(PER_FILE));
        let parts = [
            system,
            ("the image as it is sent", self.image),
            ("unpacked", self.unpacked),
            ("inputs", files),
            ("outputs", self.outputs),
            ("what it may write beside them", self.scratch),
            ("its processes", memory),
        ];
        let parts: Vec<String> =
            parts.iter().map(|(name, bytes)| format!("{name} {}", mib(*bytes))).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fits_is_shared_out_and_what_does_not_names_the_size_that_would() {
        let demand = Demand {
            image: 100 * MIB,
            unpacked: 300 * MIB,
            inputs: 10 * MIB,
            files: 3,
            outputs: 20 * MIB,
            scratch: SCRATCH,
            volumes: 0,
            memory: None,
        };
        let plan = demand.plan(2048 * MIB).unwrap();
        assert!(plan.storage > 686 * MIB && plan.storage < 687 * MIB);
        assert_eq!(plan.container, 2048 * MIB - SYSTEM - plan.storage + SCRATCH + 20 * MIB);
        let refused = demand.plan(1050 * MIB).unwrap_err().to_string();
        assert!(
            refused.contains("1050 MiB")
                && refused.contains("unpacked 300 MiB")
                && refused.contains("\"1088M\""),
            "{refused}"
        );
        assert!(demand.plan(1088 * MIB).is_ok());
        let stated = Demand { memory: Some(512 * MIB), ..demand };
        assert_eq!(stated.plan(2048 * MIB).unwrap().container, 512 * MIB + SCRATCH + 20 * MIB);
        assert!(stated.plan(1088 * MIB).is_err());
        let with_volume = Demand { volumes: 1, ..demand };
        assert!(with_volume.plan(1182 * MIB).is_err() && with_volume.plan(1183 * MIB).is_ok());
    }

    #[test]
    fn no_number_overflows() {
        let demand = Demand {
            image: u64::MAX,
            unpacked: u64::MAX,
            files: u64::MAX,
            memory: Some(u64::MAX),
            ..Demand::default()
        };
        assert!(demand.plan(u64::MAX - 1).is_err());
    }
}
