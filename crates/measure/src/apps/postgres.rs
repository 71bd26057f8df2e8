//! PostgreSQL by pgbench, with the settings that it comes with.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::script::{Script, program};
use super::{Place, Sizes, command};
use crate::error::{Context, Error, Result};
use crate::program::{Server, output};
use crate::session::Measured;

/// PostgreSQL refuses to run as root; the user that Debian makes for it.
const USER: &str = "postgres";

/// User and group.
fn ids() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:x:")?.split(':');
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn no_user() -> Error {
    Error::usage("there is no user `postgres`; Debian's package postgresql makes it")
}

/// A command as the data base's user; `beside` as for [`Traces::words`](super::traced::Traces::words).
fn as_user(place: &Place<'_>, program: &str, beside: bool) -> Command {
    if !rustix::process::geteuid().is_root() {
        return place.command_with(program, beside);
    }
    let mut whole = command("setpriv");
    whole.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]);
    let inner = place.command_with(program, beside);
    whole.arg(inner.get_program()).args(inner.get_args());
    whole
}

/// Lets that user have a directory, and come as far as it.
fn hand_over(path: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (user, _) = ids().ok_or_else(no_user)?;
    for above in
        path.ancestors().skip(1).take_while(|above| above.starts_with("/tmp") && *above != Path::new("/tmp"))
    {
        // Our own temporary directories are private.
        let permissions = fs::metadata(above).doing(above.display())?.permissions();
        fs::set_permissions(above, fs::Permissions::from_mode(permissions.mode() | 0o011))
            .doing(above.display())?;
    }
    chown(path, Some(user), None).doing(path.display())
}

/// pgbench's transactions, four clients.
pub fn pgbench(place: &Place<'_>) -> Result<Measured> {
    hand_over(place.directory)?;
    let private = crate::ledger::Place::temporary("cvmio-bench-postgres-")?;
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o711)).doing("permissions")?;
    let socket = private.path().join("socket");
    fs::create_dir(&socket).doing(socket.display())?;
    hand_over(&socket)?;
    let data = place.path("data");
    let mut make = as_user(place, "initdb", false);
    make.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "-D"])
        .arg(&data);
    output(make.current_dir("/"), place.interrupt)?;
    let mut server = as_user(place, "postgres", true);
    server.current_dir("/").arg("-D").arg(&data).arg("-k").arg(&socket).args(["-c", "listen_addresses="]);
    let mut server = Server::start(&mut server)?;
    let bench = || {
        let mut bench = as_user(place, "pgbench", false);
        bench.current_dir("/").arg("-h").arg(&socket).args(["-U", "postgres"]);
        bench
    };
    let ready = socket.join(".s.PGSQL.5432");
    server.wait_until(place.interrupt, || {
        ready.exists()
            && bench()
                .args(["-i", "-q", "-s", "1", "postgres"])
                .output()
                .is_ok_and(|done| done.status.success())
    })?;
    let mut run = bench();
    run.args(["-n", "-c", "4", "-T", &place.sizes.seconds.to_string(), "postgres"]);
    let said = output(&mut run, place.interrupt)?;
    drop(server);
    figures(&said)
}

/// [`pgbench`] in a guest, whose only user is root, but for this one.
///
/// # Errors
/// When this machine does not have the user.
pub fn script(sizes: &Sizes) -> Result<Script> {
    let (user, group) = ids().ok_or_else(no_user)?;
    let [setpriv, initdb, postgres, pgbench] = ["setpriv", "initdb", "postgres", "pgbench"].map(program);
    let seconds = sizes.seconds;
    Ok(Script {
        before: format!(
            "cd /\n\
             chown {user}:{group} $d\n\
             su='{setpriv} --reuid {user} --regid {group} --clear-groups --'\n\
             $su {initdb} --no-sync --auth=trust --username=postgres --encoding=UTF8 --no-locale -D $d/data >/run/initdb 2>&1 \
             || {{ tail -n 20 /run/initdb >&2; exit 1; }}\n\
             $su {postgres} -D $d/data -k $d -c listen_addresses= >/run/postgres 2>&1 &\n\
             server=$!\n\
             bench=\"$su {pgbench} -h $d -U postgres\"\n\
             until $bench -i -q -s 1 postgres >/run/filled 2>&1; do\n\
             kill -0 $server || {{ tail -n 20 /run/postgres >&2; exit 1; }}\n\
             sleep 0.2\n\
             done\n"
        ),
        timed: format!("$bench -n -c 4 -T {seconds} postgres\nkill -INT $server\nwait $server || true\n"),
    })
}

pub(super) fn figures(said: &str) -> Result<Measured> {
    let number = |prefix: &str| {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(prefix))?;
        line.trim_start_matches([' ', '=']).split_whitespace().next()?.parse::<f64>().ok()
    };
    let value = number("tps").ok_or_else(|| Error::io(format!("pgbench says no tps: {}", said.trim())))?;
    let latency = number("latency average").map(|latency| ("latency-average-ms".to_string(), latency));
    Ok(Measured { value, figures: BTreeMap::from_iter(latency), course: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let measured =
            figures("latency average = 4.2 ms\ntps = 950.5 (without initial connection time)\n").unwrap();
        assert!(
            (measured.value - 950.5).abs() < 1e-9
                && (measured.figures["latency-average-ms"] - 4.2).abs() < 1e-9
        );
        assert!(figures("nothing").is_err());
    }
}
