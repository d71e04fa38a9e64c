//! What a device has counted since it was made (`hw_counters` of its port in sysfs; for rxe: `drivers/infiniband/sw/rxe/rxe_hw_counters.c`).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The counters of one device at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

/// The counters of this device.
///
/// # Errors
/// What reading them says, or that one is no number.
pub fn counters(device: &str) -> io::Result<Counters> {
    let dir: PathBuf = ["/sys/class/infiniband", device, "ports/1/hw_counters"].iter().collect();
    let number = |name: &str| -> io::Result<u64> {
        std::fs::read_to_string(dir.join(name))?.trim().parse().map_err(io::Error::other)
    };
    // What was read so many milliseconds ago is answered again.
    std::thread::sleep(Duration::from_millis(number(LIFESPAN)? + 1));
    let mut counters = BTreeMap::new();
    for entry in std::fs::read_dir(&dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != LIFESPAN {
            counters.insert(name.clone(), number(&name)?);
        }
    }
    Ok(Counters(counters))
}

const LIFESPAN: &str = "lifespan";

impl Counters {
    /// One of them; 0 if the device has none of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Packets that the device has sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.get("sent_pkts")
    }

    /// Packets that it has received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.get("rcvd_pkts")
    }

    /// How much each has risen since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let rise = |(name, now): (&String, &u64)| (name.clone(), now.saturating_sub(earlier.get(name)));
        Self(self.0.iter().map(rise).collect())
    }
}
