//! Memory that B exports and A imports, with no transport but `verbs`: B does nothing while A reads and writes it, until it takes it back.

use rxe_tests::{Host, Hosts, counters};
use ucp::{Context, Features, MemMap, Status};

use crate::messages::{bytes_of, text_of};
use crate::{Line, pattern};

/// Bytes of it; the pattern is repeated.
const ALL: usize = 20 * crate::LEN + 1000;

fn content(add: u8) -> Vec<u8> {
    pattern().iter().cycle().map(|byte| byte.wrapping_add(add)).take(ALL).collect()
}

/// What this host does, and what its device has counted then.
pub(crate) fn talk(host: Host, hosts: Hosts) {
    let device = host.device(hosts);
    let features = Features::EXPORTED_MEMH | Features::AMO64;
    let builder = Context::builder().features(features).ignore_env().set("UCX_TLS", "verbs");
    let ctx = builder.set("UCX_ATOMIC_MODE", "device").build().unwrap();
    let mut line = Line::open(host);
    let before = counters(&device).unwrap();
    if host == Host::B {
        let memory = ctx.mem_map(MemMap::allocate(ALL).exported()).unwrap();
        memory.write(0, &content(0)).unwrap();
        let handle = memory.memh_pack().unwrap();
        line.swap_text(&text_of(handle.as_bytes()));
        line.swap_words("written");
        let mut seen = vec![0; ALL];
        memory.read(0, &mut seen).unwrap();
        assert!(seen[8..] == content(1)[8..], "what A has written is there");
        assert_eq!(memory.load::<u64>(0).unwrap(), 12);
        handle.revoke().unwrap();
        line.swap_words("taken back");
    } else {
        let memory = ctx.mem_import(&bytes_of(&line.swap_text("which memory?"))).unwrap();
        assert_eq!((memory.len(), memory.transport()), (ALL as u64, "verbs"));
        let mut seen = vec![0; ALL];
        memory.read(0, &mut seen).unwrap();
        assert!(seen == content(0), "what B has written is read");
        memory.write(0, &content(1)).unwrap();
        memory.write(0, &5_u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.fetch_add(0, 7_u64).unwrap(), 5);
        line.swap_words("written");
        line.swap_words("taken back");
        assert_eq!(memory.read(0, &mut seen).unwrap_err().status(), Status::Stale);
    }
    let packets = (ALL / 4096) as u64;
    let rise = counters(&device).unwrap().since(&before);
    assert!(rise.sent() >= packets && rise.received() >= packets, "{packets} packets each way: {rise:?}");
    line.swap_words("counted");
}
