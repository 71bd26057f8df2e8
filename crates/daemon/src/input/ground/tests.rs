use super::*;

/// The kernel's tables of an invented machine. Nodes are looked for where there are none, so a loop device is known by its file's path.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(machine.kernel().devices).unwrap();
        machine
    }

    /// `sda` has two partitions, side by side.
    fn with_a_disk_in_two() -> Self {
        let machine = Self::new();
        machine.device("sda", "8:0", "20000");
        machine.partition("sda/sda1", "8:1", ("2048", "8192"));
        machine.partition("sda/sda2", "8:2", ("10240", "9760"));
        machine
    }

    fn kernel(&self) -> Kernel {
        Kernel { devices: self.0.path().join("dev/block"), nodes: self.0.path().join("none") }
    }

    fn put(&self, device: &str, fact: &str, content: &str) {
        let file = self.0.path().join("devices").join(device).join(fact);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{content}\n")).unwrap();
    }

    /// `place` is that of the device in the tree, below its disk if it is a partition.
    fn device(&self, place: &str, number: &str, sectors: &str) {
        self.put(place, "dev", number);
        self.put(place, "size", sectors);
        let target = self.0.path().join("devices").join(place);
        std::os::unix::fs::symlink(target, self.kernel().devices.join(number)).unwrap();
    }

    fn partition(&self, place: &str, number: &str, (start, sectors): (&str, &str)) {
        self.device(place, number, sectors);
        self.put(place, "partition", "1");
        self.put(place, "start", start);
    }

    fn slave(&self, device: &str, slave: &str) {
        let slaves = self.0.path().join("devices").join(device).join("slaves");
        fs::create_dir_all(&slaves).unwrap();
        let name = Path::new(slave).file_name().unwrap();
        std::os::unix::fs::symlink(self.0.path().join("devices").join(slave), slaves.join(name)).unwrap();
    }

    fn ground(&self, thing: Thing) -> Ground {
        Ground::by_thing(thing, None, &self.kernel())
    }

    fn on(&self, number: &str) -> Ground {
        let device = device_number(&self.kernel().devices.join(number)).unwrap();
        self.ground(Thing::Device(device))
    }
}

fn meet(one: &Ground, other: &Ground) -> bool {
    let found = one.in_common_with(other);
    assert_eq!(found, other.in_common_with(one));
    assert_ne!(found, Some(Common::Itself));
    found.is_some()
}

#[test]
fn a_partition_has_bytes_in_common_with_its_disk_and_with_no_other_partition() {
    let machine = Machine::with_a_disk_in_two();
    machine.device("sdb", "8:16", "20000");
    let [disk, first, second, other] = ["8:0", "8:1", "8:2", "8:16"].map(|number| machine.on(number));
    assert!(meet(&disk, &first) && meet(&disk, &second));
    assert!(!meet(&first, &second), "they lie side by side");
    assert!(!meet(&disk, &other) && !meet(&first, &other));
    assert_eq!(disk.in_common_with(&machine.on("8:0")), Some(Common::Itself));
}

#[test]
fn a_file_lies_on_the_device_of_its_file_system() {
    let machine = Machine::with_a_disk_in_two();
    let number = device_number(&machine.kernel().devices.join("8:1"));
    let file = |inode| Ground::by_thing(Thing::File(number.unwrap(), inode), number, &machine.kernel());
    assert!(meet(&file(5), &machine.on("8:1")) && meet(&file(5), &machine.on("8:0")));
    assert!(!meet(&file(5), &machine.on("8:2")) && !meet(&file(5), &file(6)));
    let new = Thing::New(number.unwrap(), 2, "policy".into());
    assert!(
        meet(&Ground::by_thing(new, number, &machine.kernel()), &machine.on("8:0")),
        "it is to be made there"
    );
}

#[test]
fn logical_volumes_have_bytes_in_common_with_their_disks_only() {
    let machine = Machine::with_a_disk_in_two();
    for (name, number) in [("dm-0", "253:0"), ("dm-1", "253:1")] {
        machine.device(name, number, "1000");
        machine.slave(name, "sda/sda2");
    }
    machine.device("md0", "9:0", "1000");
    machine.slave("md0", "dm-1");
    let [one, two, array] = ["253:0", "253:1", "9:0"].map(|number| machine.on(number));
    assert!(!meet(&one, &two) && !meet(&one, &array), "both lie somewhere on one partition");
    for lower in ["8:2", "8:0"] {
        assert!(meet(&one, &machine.on(lower)) && meet(&array, &machine.on(lower)), "{lower}");
    }
    assert!(meet(&array, &two));
    assert!(!meet(&one, &machine.on("8:1")));
    // Nothing goes round for ever, whatever the tables say.
    machine.slave("dm-1", "md0");
    assert!(meet(&machine.on("9:0"), &machine.on("8:0")));
}

#[test]
fn a_loop_device_is_its_part_of_a_file() {
    let machine = Machine::new();
    let file = machine.0.path().join("image file");
    fs::write(&file, b"").unwrap();
    let loops =
        [("loop0", "7:0", "0", "4096"), ("loop1", "7:1", "0", "4096"), ("loop2", "7:2", "2097152", "8")];
    for (name, number, offset, sectors) in loops {
        machine.device(name, number, sectors);
        machine.put(name, "loop/backing_file", file.to_str().unwrap());
        machine.put(name, "loop/offset", offset);
    }
    machine.partition("loop0/loop0p1", "259:0", ("2048", "1024"));
    let [whole, again, behind, part] = ["7:0", "7:1", "7:2", "259:0"].map(|number| machine.on(number));
    let image = Ground::by(&file, &machine.kernel());
    for device in [&whole, &again, &behind, &part] {
        assert!(meet(device, &image));
    }
    assert!(meet(&whole, &again) && meet(&part, &again), "two devices, and one file");
    assert!(!meet(&whole, &behind) && !meet(&part, &behind), "one begins where the other ends");
    let beside = Ground::by(&machine.0.path().join("other"), &machine.kernel());
    assert!(!meet(&whole, &beside) && !meet(&image, &beside));
}

/// Loop devices over one image; gone when this is dropped.
struct Loops(Vec<PathBuf>);

impl Loops {
    fn over(&mut self, under: &Path) -> Option<PathBuf> {
        let output = std::process::Command::new("losetup").args(["-f", "--show"]).arg(under).output().ok()?;
        let name = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let device = output.status.success().then(|| PathBuf::from(name))?;
        self.0.push(device.clone());
        Some(device)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in self.0.iter().rev() {
            let _ = std::process::Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

#[test]
fn real_loop_devices_are_known_by_what_is_under_them() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let mut loops = Loops(Vec::new());
    let Some(first) = loops.over(&image) else {
        println!("SKIPPED: no loop device to be had");
        return;
    };
    let (second, above) = (loops.over(&image).unwrap(), loops.over(&first).unwrap());
    // By its number: no path leads to the file any more by the name that the loop devices had it under.
    let moved = directory.path().join("moved");
    fs::rename(&image, &moved).unwrap();
    let all = [&first, &second, &above, &moved].map(|path| Ground::of(path));
    for (at, one) in all.iter().enumerate() {
        for other in &all[at + 1..] {
            assert!(meet(one, other), "{one:?} {other:?}");
        }
    }
    let beside = Ground::of(&directory.path().join("policy"));
    assert!(all.iter().all(|ground| !meet(ground, &beside)));
}
