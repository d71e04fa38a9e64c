//! What a NIC cannot have, and what it says then.

use rustix::process::{Resource, Rlimit, setrlimit};
use testkit::{Deny, Role, deny, role, skip};
use uct_conformance::nic::{Nic, RegisterError};

use crate::memory::{FEW, Pages, page, register_foreign};

pub(crate) fn ranges() {
    let nic = Nic::open_or_skip(2, FEW);
    let memory = Pages::new(1);
    let bad = [
        (memory.addr(), 0),
        (0, 0),
        (memory.addr(), Nic::MAX_LEN + 1),
        (memory.addr(), usize::MAX),
        (usize::MAX, 1),
        (usize::MAX - 8, 8),
        (usize::MAX - 8, 64),
    ];
    for (addr, len) in bad {
        let error = register_foreign(&nic, addr, len).unwrap_err();
        assert_eq!(error, RegisterError::Range { addr, len });
        assert_eq!(error.errno(), None);
    }
    assert_eq!(nic.registrations(), 0);
}

pub(crate) fn of_the_nic() {
    let nic = Nic::with_limit(8, 4 * page()).unwrap_or_else(|error| skip(error.why, error.remedy));
    let memory = Pages::new(5);
    let limit = 4 * page();
    assert_eq!(memory.register(&nic), Err(RegisterError::Limit { wanted: 5 * page(), pinned: 0, limit }));
    // Two bytes on two pages.
    let two = memory.register_part(&nic, page() - 1, 2).unwrap();
    assert_eq!(nic.pinned_bytes(), 2 * page());
    let three = memory.register_part(&nic, 0, 3 * page());
    assert_eq!(three, Err(RegisterError::Limit { wanted: 3 * page(), pinned: 2 * page(), limit }));
    memory.register_part(&nic, 0, 2 * page()).unwrap();
    nic.deregister(two).unwrap();
    memory.register_part(&nic, 0, 2 * page()).unwrap();
}

/// A user nobody else is, for the limit is on what all processes of a user have pinned.
const NOBODY_ELSE: u32 = 47_101;
const SMALL: u64 = 64 << 10;

pub(crate) fn small_memlock() {
    setrlimit(Resource::Memlock, Rlimit { current: Some(SMALL), maximum: Some(SMALL) }).unwrap();
    let nic = match Nic::open(4) {
        Ok(nic) => nic,
        Err(error) => return role::send(format!("unavailable\n{}\n{}", error.why, error.remedy).as_bytes()),
    };
    let n = usize::try_from(SMALL).unwrap() / page();
    let memory = Pages::new(2 * n);
    // Older kernels count the rings too.
    let half = memory.register_part(&nic, 0, n / 2 * page()).unwrap();
    let error = memory.register(&nic).unwrap_err();
    assert_eq!(error, RegisterError::MemLock { limit: Some(SMALL) });
    assert_eq!((nic.registrations(), nic.pinned_bytes()), (1, n / 2 * page()));
    assert_eq!(nic.dma_out_u64(&half, memory.addr()), Ok(0), "that one is still good");
    nic.deregister(half).unwrap();
    // Room again: what was refused is not counted.
    for _ in 0..100 {
        let mr = memory.register_part(&nic, 0, n / 2 * page()).unwrap();
        nic.deregister(mr).unwrap();
    }
    role::send(error.to_string().as_bytes());
}

pub(crate) fn memlock_of_a_user() {
    let mut role = Role::new("limits::small_memlock").as_uid(NOBODY_ELSE).start();
    let message = String::from_utf8(role.recv()).unwrap();
    role.expect_exit(0);
    if let Some(rest) = message.strip_prefix("unavailable\n") {
        let (why, remedy) = rest.split_once('\n').unwrap();
        skip(why, remedy);
    }
    for word in ["RLIMIT_MEMLOCK", "65536 bytes", "ulimit -l"] {
        assert!(message.contains(word), "{message}");
    }
}

const CALLS: [(&str, libc::c_long); 3] = [
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_enter", libc::SYS_io_uring_enter),
];

pub(crate) fn denied() {
    let [name, errno] = role::args() else { panic!("a call and an error number") };
    let (_, call) = CALLS.iter().find(|(known, _)| known == name).unwrap();
    deny(&[Deny { errno: Some(errno.parse().unwrap()), ..Deny::eperm(*call) }]);
    let error = Nic::open(4).map(|_| ()).unwrap_err();
    role::send(error.why.as_bytes());
    role::send(error.remedy.as_bytes());
}

pub(crate) fn system_calls_denied() {
    drop(Nic::open_or_skip(1, 0));
    for (name, _) in CALLS {
        for (errno, remedy) in
            [(libc::EPERM, "profile"), (libc::EACCES, "profile"), (libc::ENOSYS, "sandbox")]
        {
            let mut role = Role::new("limits::denied").arg(name).arg(errno.to_string()).start();
            let why = String::from_utf8(role.recv()).unwrap();
            let to_do = String::from_utf8(role.recv()).unwrap();
            role.expect_exit(0);
            assert!(why.contains(name), "{name}, {errno}: {why}");
            assert!(to_do.contains(remedy), "{name}, {errno}: {to_do}");
        }
    }
}
