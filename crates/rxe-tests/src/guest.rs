//! What a test does to the guest, as its root.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs `ip(8)`.
///
/// # Panics
/// It fails.
pub fn ip(args: &[&str]) {
    let output = Command::new("/bin/ip").args(args).output().expect("/bin/ip");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// B's end of the cable between two network namespaces is down as long as this is there, however the test ends.
#[derive(Debug)]
pub struct Unplugged(());

impl Unplugged {
    /// Takes it down.
    ///
    /// # Panics
    /// As [`ip`].
    #[must_use]
    pub fn now() -> Self {
        ip(&["-n", "b", "link", "set", "net-b", "down"]);
        Self(())
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        ip(&["-n", "b", "link", "set", "net-b", "up"]);
    }
}

/// What goes by the cable between the hosts goes each way at this rate, as long as this is there (`tc-tbf(8)`).
#[derive(Debug)]
pub struct SlowCable(());

impl SlowCable {
    /// Of that rate, as `tc(8)` writes it.
    ///
    /// # Panics
    /// `tc` cannot be run, or refuses.
    #[must_use]
    pub fn of(rate: &str) -> Self {
        let made = Self(());
        for host in ["a", "b"] {
            // Room for all that is on its way at once: a device of rxe sends what it is asked for as fast as it can.
            let end = format!("net-{host}");
            let words =
                ["qdisc", "add", "dev", &end, "root", "tbf", "rate", rate, "burst", "64kb", "limit", "64mb"];
            assert!(Self::tc(host, &words), "no {rate} on {end}");
        }
        made
    }

    fn tc(host: &str, words: &[&str]) -> bool {
        let status = Command::new("/bin/ip").args(["netns", "exec", host, "/bin/tc"]).args(words).status();
        status.expect("/bin/ip").success()
    }
}

impl Drop for SlowCable {
    fn drop(&mut self) {
        for host in ["a", "b"] {
            let _ = Self::tc(host, &["qdisc", "del", "dev", &format!("net-{host}"), "root"]);
        }
    }
}

/// Lets any user use the devices.
///
/// # Panics
/// There are none, or this is not root.
pub fn devices_are_for_all() {
    for entry in std::fs::read_dir("/dev/infiniband").expect("RDMA devices") {
        let path = entry.expect("an entry").path();
        std::fs::set_permissions(path, Permissions::from_mode(0o666)).expect("root's rights");
    }
}
