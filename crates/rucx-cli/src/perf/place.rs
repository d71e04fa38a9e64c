//! Which CPU each process has.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// How often a side looks for the other before it offers its CPU to others: where each has its own, and where both have one.
const SPINS: u32 = 1 << 14;
const SPINS_OF_ONE: u32 = 16;

/// Where the two processes run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Placement {
    /// The CPU of the process that measures.
    pub(super) here: Option<u32>,
    /// The peer's.
    pub(super) peer: Option<u32>,
    /// In words.
    pub(super) words: String,
}

impl Placement {
    /// Two CPUs of different cores, else of one, of those this process may use.
    pub(super) fn choose() -> Self {
        let Ok(allowed) = sched_getaffinity(None) else {
            return Self { words: "wherever the kernel has them run".to_owned(), ..Self::default() };
        };
        let cpus: Vec<u32> = (0..).take(CpuSet::MAX_CPU).filter(|cpu| is_set(&allowed, *cpu)).collect();
        Self::among(&cpus, core_of)
    }

    fn among(cpus: &[u32], core_of: impl Fn(u32) -> Option<(u32, u32)>) -> Self {
        let [first, rest @ ..] = cpus else {
            return Self { words: "wherever the kernel has them run".to_owned(), ..Self::default() };
        };
        let Some(next) = rest.first() else {
            let words = format!("CPU {first} for both, there is one only: they take turns");
            return Self { here: Some(*first), peer: Some(*first), words };
        };
        let core = core_of(*first);
        let other =
            rest.iter().find(|cpu| core.is_some() && core_of(**cpu).is_some_and(|one| Some(one) != core));
        let words = match (other, core) {
            (Some(other), _) => format!("CPU {first} here, CPU {other} the peer: different cores"),
            (None, Some(_)) => format!("CPU {first} here, CPU {next} the peer: threads of one core"),
            (None, None) => format!("CPU {first} here, CPU {next} the peer"),
        };
        Self { here: Some(*first), peer: Some(*other.unwrap_or(next)), words }
    }

    /// How often each side looks before it offers its CPU to others.
    pub(super) fn spins(&self) -> u32 {
        if self.here.is_some() && self.here != self.peer { SPINS } else { SPINS_OF_ONE }
    }
}

fn is_set(set: &CpuSet, cpu: u32) -> bool {
    usize::try_from(cpu).is_ok_and(|cpu| set.is_set(cpu))
}

/// Its core and that one's package.
fn core_of(cpu: u32) -> Option<(u32, u32)> {
    let number = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some((number("core_id")?, number("physical_package_id")?))
}

/// Has this thread, and those it starts from now on, run on `cpu` only. Where that is refused, it runs where it did.
pub(super) fn stay_on(cpu: Option<u32>) {
    let Some(cpu) = cpu.and_then(|cpu| usize::try_from(cpu).ok()) else { return };
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::warn!(%errno, cpu, "sched_setaffinity");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_told_apart() {
        let pairs = |cpu: u32| Some((cpu / 2, 0));
        let none = |_| None;
        let of = |cpus: &[u32], core: &dyn Fn(u32) -> Option<(u32, u32)>| {
            let placement = Placement::among(cpus, core);
            (placement.here, placement.peer, placement.spins())
        };
        assert_eq!(of(&[0, 1, 2, 3], &pairs), (Some(0), Some(2), SPINS));
        assert_eq!(of(&[2, 3], &pairs), (Some(2), Some(3), SPINS));
        assert_eq!(of(&[4, 5, 6], &none), (Some(4), Some(5), SPINS));
        assert_eq!(of(&[7], &pairs), (Some(7), Some(7), SPINS_OF_ONE));
        assert_eq!(of(&[], &pairs), (None, None, SPINS_OF_ONE));
    }
}
