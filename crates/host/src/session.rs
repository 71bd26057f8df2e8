//! A VMM's connection for one disk: what vhost-user says, made into lanes.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtqueue::block::features;
use virtqueue::{Device, Rings};

use crate::counters::{Counters, add};
use crate::disk::Disk;
use crate::inflight::{self, Logs};
use crate::lane::{Fate, Start, unblocked};
use crate::limits::Limits;
use crate::memory_map::{MOST_REGIONS, MemoryMap, Piece, Region};
use crate::settings::DiskSettings;
use crate::worker::{Handle, Worker};

/// Largest queue; QEMU has at most 1024 entries.
const MOST_ENTRIES: u16 = 32_768;

/// A disk of the server, whoever is connected.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) settings: DiskSettings,
    pub(crate) disk: Arc<Disk>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limits: Option<Arc<Limits>>,
    pub(crate) workers: Arc<[Worker]>,
    /// The worker of its first queue.
    pub(crate) first_worker: usize,
    pub(crate) is_connected: AtomicBool,
    pub(crate) running: AtomicU16,
    pub(crate) fate: Mutex<Arc<Fate>>,
}

impl Seat {
    pub(crate) fn fate(&self) -> Arc<Fate> {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn name(&self) -> String {
        self.settings.socket.display().to_string()
    }
}

/// One queue, as far as the VMM has told.
#[derive(Debug, Default)]
struct Vring {
    size: u16,
    /// Of descriptors, available and used ring, in the VMM's own addresses.
    addresses: Option<[u64; 3]>,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    /// The VMM has named a kick descriptor, or said that there is none.
    is_kick_known: bool,
    is_enabled: bool,
    lane: Option<Handle>,
}

/// A connection.
pub(crate) struct Session {
    seat: Arc<Seat>,
    features: u64,
    regions: Vec<Region>,
    memory: Arc<MemoryMap>,
    vrings: Vec<Vring>,
    logs: Option<Logs>,
    /// For messages to the VMM. It must be there for a guest of a confidential machine; nothing needs to be said so far.
    _backend: Option<Backend>,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, message.into()))
}

fn unknown<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

impl Session {
    pub(crate) fn new(seat: Arc<Seat>) -> Self {
        let vrings = (0..seat.settings.queues).map(|_| Vring::default()).collect();
        Self {
            seat,
            features: 0,
            regions: Vec::new(),
            memory: Arc::default(),
            vrings,
            logs: None,
            _backend: None,
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let count = self.vrings.len();
        let place = usize::try_from(index).ok().and_then(|index| self.vrings.get_mut(index));
        place.ok_or_else(|| invalid(format!("queue {index} of a disk with {count}")))
    }

    /// Takes a queue from its worker. What it has in flight ends first.
    fn pause(&mut self, index: u32) -> Result<()> {
        let vring = self.vring(index)?;
        if let Some(lane) = vring.lane.take() {
            vring.base = lane.stop().ok_or(Error::BackendInternalError)?;
            self.seat.running.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn each(&mut self, act: impl Fn(&mut Self, u32) -> Result<()>) -> Result<()> {
        (0..u32::from(self.seat.settings.queues)).try_for_each(|index| act(self, index))
    }

    /// Gives a queue to its worker, once everything about it is known.
    fn go_on(&mut self, index: u32) -> Result<()> {
        let negotiated = self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        let vring = self.vring(index)?;
        let is_enabled = vring.is_enabled || !negotiated;
        let (Some(addresses), true, true) = (vring.addresses, vring.is_kick_known, is_enabled) else {
            return Ok(());
        };
        if vring.lane.is_some() || vring.size == 0 {
            return Ok(());
        }
        let (size, base) = (vring.size, vring.base);
        let copy = |event: &Option<OwnedFd>| event.as_ref().map(OwnedFd::try_clone).transpose();
        let [kick, call, error] = [&vring.kick, &vring.call, &vring.error].map(copy);
        let lengths = Rings::<Piece>::lengths(size);
        let mut pieces = addresses.iter().zip(lengths).map(|(at, length)| self.memory.ring(*at, length));
        let mut next =
            || pieces.next().flatten().ok_or_else(|| invalid("a ring lies outside of the guest's memory"));
        let (descriptors, available, used) = (next()?, next()?, next()?);
        let rings =
            Rings::new(size, descriptors, available, used).map_err(|error| invalid(error.to_string()))?;
        let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        let log = match &self.logs {
            Some(logs) => {
                let missing = || invalid(format!("{logs} has no queue {number} of {size} entries"));
                Some(logs.of(number, size).ok_or_else(missing)?)
            }
            None => None,
        };
        let device = Device::new(rings, base, log).map_err(|breach| invalid(breach.to_string()))?;
        add(&self.seat.counters.resumed, u64::try_from(device.left()).unwrap_or(0));
        let start = Start {
            device,
            memory: self.memory.clone(),
            logs: self.logs.clone(),
            disk: self.seat.disk.clone(),
            counters: self.seat.counters.clone(),
            limits: self.seat.limits.clone(),
            fate: self.fresh_fate(),
            kick: kick.map_err(Error::ReqHandlerError)?,
            call: call.map_err(Error::ReqHandlerError)?,
            error: error.map_err(Error::ReqHandlerError)?,
            spin: self.seat.settings.spin(),
            is_durable: self.features & features::FLUSH == 0,
            name: self.seat.name(),
        };
        let worker = (self.seat.first_worker + usize::from(number)) % self.seat.workers.len();
        let lane = self.seat.workers[worker].add(start).ok_or(Error::BackendInternalError)?;
        self.vring(index)?.lane = Some(lane);
        self.seat.running.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// What ended the service before has no say any more when the first queue begins anew.
    fn fresh_fate(&self) -> Arc<Fate> {
        let mut fate = self.seat.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if fate.is_over() && self.vrings.iter().all(|vring| vring.lane.is_none()) {
            *fate = Arc::default();
        }
        fate.clone()
    }

    fn replace_memory(&mut self, regions: Vec<Region>) -> Result<()> {
        self.each(Self::pause)?;
        self.memory = Arc::new(MemoryMap::new(regions.clone()).map_err(Error::ReqHandlerError)?);
        self.regions = regions;
        self.each(Self::go_on)
    }

    /// The VMM has gone: nothing of its memory is used any more.
    pub(crate) fn end(&mut self) {
        for index in 0..u32::from(self.seat.settings.queues) {
            let _ = self.pause(index);
        }
    }
}

fn region(said: &VhostUserMemoryRegion, file: &File) -> Result<Region> {
    let made = Region::new(said.guest_phys_addr, said.user_addr, said.memory_size, said.mmap_offset, file);
    made.map_err(Error::ReqHandlerError)
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.each(Self::pause)?;
        self.features = 0;
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset_owner()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.seat.disk.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, said: u64) -> Result<()> {
        let known = self.get_features()? | VhostUserVirtioFeatures::LOG_ALL.bits();
        if said & !known != 0 {
            return Err(invalid(format!("features {:#x} that were not offered", said & !known)));
        }
        if said & features::ACCESS_PLATFORM != 0 {
            return Err(invalid(
                "the guest's addresses go through a virtual IOMMU, and this server does not translate them: \
                 take the vIOMMU off this machine (QEMU: no intel-iommu, amd-iommu or virtio-iommu device)",
            ));
        }
        if said & VhostUserVirtioFeatures::LOG_ALL.bits() != 0 {
            return Err(invalid("a log of dirty pages, for a live migration, which this server does not do"));
        }
        self.features = said;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        said: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        if said.len() != files.len() {
            return Err(Error::IncorrectFds);
        }
        let regions: Result<Vec<_>> =
            said.iter().zip(&files).map(|(said, file)| region(said, file)).collect();
        self.replace_memory(regions?).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        self.pause(index)?;
        let size = u16::try_from(entries).ok().filter(|size| (2..=MOST_ENTRIES).contains(size));
        let size = size.filter(|size| size.is_power_of_two());
        self.vring(index)?.size = size.ok_or_else(|| invalid(format!("a queue of {entries} entries")))?;
        self.go_on(index)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.pause(index)?;
        self.vring(index)?.addresses = Some([descriptors, available, used]);
        self.go_on(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.pause(index)?;
        self.vring(index)?.base = u16::try_from(base).map_err(|_| invalid(format!("base {base}")))?;
        self.go_on(index)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.pause(index)?;
        let vring = self.vring(index)?;
        // The queue is stopped until the VMM names a kick again.
        vring.is_kick_known = false;
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        self.pause(index.into())?;
        let vring = self.vring(index.into())?;
        vring.kick = kick.map(|kick| unblocked(kick.into()));
        vring.is_kick_known = true;
        self.go_on(index.into())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let vring = self.vring(index.into())?;
        vring.call = call.map(|call| unblocked(call.into()));
        if let Some(lane) = &vring.lane {
            let copy = vring.call.as_ref().map(OwnedFd::try_clone).transpose();
            lane.set_call(copy.map_err(Error::ReqHandlerError)?);
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, error: Option<File>) -> Result<()> {
        self.vring(index.into())?.error = error.map(|error| unblocked(error.into()));
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        type Bits = VhostUserProtocolFeatures;
        Ok(Bits::REPLY_ACK
            | Bits::MQ
            | Bits::CONFIG
            | Bits::BACKEND_REQ
            | Bits::CONFIGURE_MEM_SLOTS
            | Bits::INFLIGHT_SHMFD
            | Bits::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.seat.settings.queues.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.is_enabled = enable;
        if enable { self.go_on(index) } else { self.pause(index) }
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.seat.disk.config(self.seat.settings.queues).to_bytes();
        let range = offset..offset.saturating_add(size);
        let byte = |at: u32| usize::try_from(at).ok().and_then(|at| config.get(at)).copied().unwrap_or(0);
        Ok(range.map(byte).collect())
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unknown("nothing of this disk's configuration can be written")
    }

    fn set_backend_req_fd(&mut self, backend: Backend) {
        self._backend = Some(backend);
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unknown("this is a disk")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unknown("this is a disk")
    }

    fn get_inflight_fd(&mut self, said: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        if said.num_queues > self.seat.settings.queues || said.queue_size > MOST_ENTRIES {
            let (queues, entries) = (said.num_queues, said.queue_size);
            return Err(invalid(format!("a log for {queues} queues of {entries} entries")));
        }
        inflight::make(said.num_queues, said.queue_size).map_err(Error::ReqHandlerError)
    }

    fn set_inflight_fd(&mut self, said: &VhostUserInflight, file: File) -> Result<()> {
        self.each(Self::pause)?;
        self.logs = Some(Logs::new(said, &file).map_err(Error::ReqHandlerError)?);
        self.each(Self::go_on)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(u64::try_from(MOST_REGIONS).unwrap_or(u64::MAX))
    }

    fn add_mem_region(
        &mut self,
        said: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let mut regions = self.regions.clone();
        regions.push(region(said, &file)?);
        self.replace_memory(regions).map(|()| None)
    }

    fn remove_mem_region(&mut self, said: &VhostUserSingleMemoryRegion) -> Result<()> {
        let is_it = |region: &Region| {
            (region.guest, region.user, region.length)
                == (said.guest_phys_addr, said.user_addr, said.memory_size)
        };
        let regions: Vec<_> = self.regions.iter().filter(|region| !is_it(region)).cloned().collect();
        if regions.len() == self.regions.len() {
            return Err(invalid("it takes away memory that it has not given"));
        }
        self.replace_memory(regions)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unknown("this disk has no state to hand over")
    }

    fn check_device_state(&mut self) -> Result<()> {
        unknown("this disk has no state to hand over")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unknown("this disk shares no memory of its own")
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unknown("this server does no live migration")
    }
}
