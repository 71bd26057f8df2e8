//! Disks that `cvmio-host` serves to an unmodified guest, shaped like a confidential one: in each mode, beside one of QEMU's own, and
//! killed under load.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A server of one disk of 64 MiB.
struct Server {
    program: PathBuf,
    directory: PathBuf,
    mode: &'static str,
    child: Child,
}

impl Server {
    fn start(program: &Path, directory: &Path, mode: &'static str) -> Self {
        let child = Self::spawn(program, directory, mode);
        Self { program: program.into(), directory: directory.into(), mode, child }
    }

    fn spawn(program: &Path, directory: &Path, mode: &str) -> Child {
        let at = |ending: &str| directory.join(format!("{mode}.{ending}"));
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(at("img"));
        file.and_then(|file| file.set_len(64 << 20)).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg("--socket").arg(at("sock")).arg("--disk").arg(at("img"));
        command.args(["--mode", mode, "--id", mode, "--queues", "2"]).arg("--control").arg(at("control"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{mode}: it is never ready");
        child
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.mode))
    }

    /// A counter of the server's, now.
    fn counter(&self, name: &str) -> u64 {
        let control = self.directory.join(format!("{}.control", self.mode));
        let mut command = Command::new(&self.program);
        let output = command.args(["status", "--json", "--control"]).arg(control).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, rest) = text.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("{name}: {text}"));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    }

    /// Dies as by a crash, and another one goes on.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.program, &self.directory, self.mode);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the guest does. Disks are known by their serial numbers; one of QEMU's own has none.
const SCRIPT: &str = r#"
    # Anew, with a queue that is polled.
    rmmod virtio_blk
    insmod /modules/*virtio_blk.ko poll_queues=1
    name() { for disk in /sys/block/vd*; do if [ "$(cat $disk/serial)" = "$1" ]; then echo ${disk##*/}; fi; done; }
    interrupts() { grep "$(basename $(readlink /sys/block/$1/device))-" /proc/interrupts | tr -s ' ' | cut -d' ' -f3,4 | tr ' ' '\n' | awk '{ n += $1 } END { print n + 0 }'; }
    dmesg | grep -i 'software IO TLB: mapped\|swiotlb' | head -n 3
    polled=$(name poll)
    fio() { /usr/bin/fio --output=fio.log "$@" || { cat fio.log; exit 1; }; }
    before=$(interrupts $polled)
    fio --name=polled --filename=/dev/$polled --rw=randread --bs=4k --ioengine=io_uring --hipri=1 --direct=1 --number_ios=500 --size=64m
    grep -o 'total=r=[0-9]*' fio.log || cat fio.log
    echo "interrupts of polled requests: $(($(interrupts $polled) - before))"

    # The thesis' stack: a protected volume on the polled disk.
    head -c 32 /dev/urandom > key
    cvmio volume create /dev/$polled --size 24M --key-file key --policy policy.toml --anchor file:/root/anchor
    cvmio volume attach /dev/$polled --name day --key-file key --policy policy.toml --as ublk
    mkfs.ext4 -q /dev/ublkb0
    mount -t ext4 /dev/ublkb0 /mnt
    head -c 3000000 /dev/urandom > content
    cp content /mnt/content
    umount /mnt
    mount -t ext4 /dev/ublkb0 /mnt
    cmp content /mnt/content && echo 'the volume has it'
    umount /mnt
    cvmio volume detach day

    # Under load while the server is killed.
    for mode in adaptive interrupt; do
        disk=$(name $mode)
        fio --name=verified --filename=/dev/$disk --rw=randwrite --bs=4k --size=12m --ioengine=libaio --iodepth=8 --direct=1 --fsync=64 \
            --verify=crc32c --verify_fatal=1
        grep -q 'err= 0' fio.log && echo "verified on $mode"
        blkdiscard /dev/$disk 2>/dev/null || true
    done

    # The legacy path is as it was.
    own=$(name '')
    dd if=content of=/dev/$own bs=4k conv=fsync 2>/dev/null
    head -c 3000000 /dev/$own | cmp - content && echo "QEMU's own disk has it"
"#;

#[test]
fn a_confidential_guests_disks_are_served_in_each_mode_and_survive_kills() {
    let Some(bed) = guest::bed() else { return };
    let program = bed.host();
    let directory = tempfile::tempdir().unwrap();
    let start = |mode| Server::start(&program, directory.path(), mode);
    let polled = start("poll");
    let mut killed = [start("adaptive"), start("interrupt")];
    let own = bed.disk("own", 16 << 20);
    let guest = bed
        .guest()
        .modules(&["ublk_drv", "ext4"])
        .programs(&["usr/sbin/mkfs.ext4"])
        .machine_program(Path::new("/usr/bin/fio"))
        .disk(&own)
        .served_disk(&polled.socket())
        .served_disk(&killed[0].socket())
        .served_disk(&killed[1].socket())
        .limit(Duration::from_secs(600));
    let is_over = AtomicBool::new(false);
    let (said, (kills, seen)) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let (mut kills, mut seen) = ([0; 2], Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                seen.push((polled.counter("reads"), polled.counter("kicks")));
                for (server, kills) in killed.iter_mut().zip(&mut kills) {
                    // Each life of a server gets some way.
                    if *kills < 3 && server.counter("writes") > 200 {
                        server.kill();
                        *kills += 1;
                    }
                }
            }
            (kills, seen)
        });
        let said = guest.run(&format!("set -eu\n{SCRIPT}"));
        is_over.store(true, Ordering::Relaxed);
        (said, killer.join().unwrap())
    });
    let said = match said {
        Ok(outcome) if outcome.code == 0 => outcome.output,
        Ok(outcome) => panic!("{outcome}"),
        Err(trouble) => panic!("{trouble}"),
    };
    println!("{said}");
    for expected in
        ["the volume has it", "verified on adaptive", "verified on interrupt", "QEMU's own disk has it"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let (_, of_polled) = said.split_once("interrupts of polled requests: ").unwrap();
    let of_polled: u64 = of_polled.lines().next().unwrap().parse().unwrap();
    assert!(of_polled <= 1, "{of_polled} interrupts for 500 requests: {said}");
    // QEMU kicks each queue once when a driver begins, and this guest's drivers begin several times. Between two looks they do not.
    let is_quiet = |(reads, kicks): &(u64, u64)| {
        seen.iter()
            .any(|(later, then)| later.saturating_sub(*reads) >= 300 && then.saturating_sub(*kicks) <= 1)
    };
    assert!(seen.iter().any(is_quiet), "a server that polls is kicked: {seen:?}");
    assert_eq!(kills, [3, 3], "the servers were killed in the middle: {said}");
    for server in &killed {
        assert_eq!(server.counter("errors"), 0);
    }
}
