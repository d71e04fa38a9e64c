//! Many of everything.

use std::sync::{Arc, Barrier};
use std::thread;

use testkit::{Resource, Role, role, with_rlimit};
use ucp::{MemMap, Status};

use super::roles::{Actor, BY_DEVICE, FILL, WAYS, context, context_by};

pub fn ten_thousand_exports() {
    let count = if BY_DEVICE { 1000 } else { 10_000 }; // the slower the processor, the fewer
    let mut host = Actor::host(4096);
    let mut dpus = WAYS.map(|(tls, _)| Actor::dpu_by(tls));
    let handles: Vec<_> = (0..count).map(|_| host.export()).collect();
    assert_eq!(host.ask("exports").text(), count.to_string());
    let mut tokens: Vec<&[u8]> = handles.iter().map(|handle| &handle[48..56]).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), count, "each is an export of its own");
    for index in [0, 1, 63, 64, count / 2, count - 1] {
        for dpu in &mut dpus {
            dpu.import(&handles[index]).ok();
            assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
        }
        host.ask(&format!("revoke {index}")).ok();
        for dpu in &mut dpus {
            dpu.read(0, 8).err(Status::Stale);
        }
    }
    for dpu in &mut dpus {
        dpu.import(&handles[2]).ok();
    }
    host.ask("drop-region").ok();
    assert_eq!(host.ask("exports").text(), "0");
    for dpu in &mut dpus {
        dpu.read(0, 8).err(Status::Stale);
    }
}

/// As many regions as a process's descriptors allow, all exported, all imported by another context. In a network namespace of its
/// own, where it sees no sockets but its own.
pub fn regions_until_the_limit() {
    let mut child = Role::new("many::leaves_nothing_behind").arg("regions").in_new_netns().start();
    assert_eq!(child.recv(), b"done");
    child.expect_exit(0);
}

fn regions() {
    with_rlimit(Resource::Nofile, 1024, || {
        let ctx = context();
        let dpus = ["mm", "cma"].map(context_by);
        let mut regions = Vec::new();
        // Leave some for the importer's side, which needs one for the time of an import.
        while testkit::open_fds() < 1000 {
            let region = ctx.mem_map(MemMap::allocate(8192).exported()).unwrap();
            region.store(8, regions.len() as u64).unwrap();
            let handle = region.memh_pack().unwrap();
            regions.push((region, handle));
        }
        assert!(regions.len() > 900);
        let import = |dpu: &ucp::Context| -> Vec<_> {
            regions.iter().map(|(_, handle)| dpu.mem_import(handle.as_bytes()).unwrap()).collect()
        };
        let imports = dpus.each_ref().map(import);
        for (index, import) in imports.iter().flat_map(|imports| imports.iter().enumerate()) {
            assert_eq!(import.load::<u64>(8).unwrap(), index as u64);
        }
        let error = loop {
            match ctx.mem_map(MemMap::allocate(8192).exported()) {
                Ok(region) => regions.push((region.memh_pack().map(|handle| (region, handle))).unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.status(), Status::ExceedsLimit);
        assert!(error.to_string().starts_with("RLIMIT_NOFILE (1024) is reached"), "{error}");
        regions.clear();
        assert_eq!(ctx.stats().exports, 0);
        let mut imports = imports.iter().flatten();
        assert!(imports.all(|import| import.load::<u64>(8).unwrap_err().status() == Status::Stale));
    });
}

pub fn beyond_four_gib() {
    let len = (5_usize << 30) + 3;
    let mut host = Actor::host(len);
    for (tls, _) in WAYS {
        let mut dpu = Actor::dpu_by(tls);
        dpu.import(&host.export()).ok();
        let at = (4_u64 << 30) + 12_345;
        dpu.write(at, tls.as_bytes()).ok();
        assert_eq!(host.read(at, tls.len()).ok(), tls.as_bytes());
        assert_eq!(host.read(12_345, 6).ok(), [0; 6], "not where 32 bits would put it");
        let last = len as u64 - 1;
        host.write(last, b"!").ok();
        assert_eq!(dpu.read(last, 1).ok(), b"!");
        dpu.read(last, 2).err(Status::OutOfRange);
        host.write(last, b"?").ok();
    }
}

pub fn threads_import_one_handle() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    for round in 0..21 {
        let ctx = context_by(WAYS[round % WAYS.len()].0);
        let barrier = Arc::new(Barrier::new(16));
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (ctx, handle, barrier) = (ctx.clone(), handle.clone(), Arc::clone(&barrier));
                thread::spawn(move || {
                    barrier.wait();
                    ctx.mem_import(&handle).unwrap()
                })
            })
            .collect();
        let imports: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(imports.iter().all(|import| import.is_same(&imports[0])), "one attachment");
        assert_eq!(ctx.stats().imports, 1);
        drop(imports);
        assert_eq!(ctx.stats().imports, 0, "the last one detached");
    }
}

pub fn same_handle_twice() {
    for (tls, _) in WAYS {
        let mut host = Actor::host(4096);
        let (handle, other) = (host.export(), host.export());
        let ctx = context_by(tls);
        let first = ctx.mem_import(&handle).unwrap();
        let second = ctx.mem_import(&handle).unwrap();
        assert!(first.is_same(&second));
        assert_eq!(ctx.stats().imports, 1);
        assert!(!ctx.mem_import(&other).unwrap().is_same(&first), "another export is another import");
        drop(first);
        let mut bytes = [0; 4];
        second.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [FILL; 4]);
    }
}

pub fn threads_read_and_write() {
    // By a device one access follows the other, and who waits for the 64 before it waits for a bounded time.
    let rounds = if BY_DEVICE { 5 } else { 50 };
    for (tls, _) in WAYS {
        let mut host = Actor::host(1 << 20);
        let ctx = context_by(tls);
        let import = ctx.mem_import(&host.export()).unwrap();
        // More threads than in-flight slots.
        let threads: Vec<_> = (0..80_u64)
            .map(|index| {
                let import = import.clone();
                thread::spawn(move || {
                    let at = index * 8192;
                    let byte = u8::try_from(index).unwrap();
                    for round in 0..rounds {
                        import.write(at, &[byte ^ round; 8192]).unwrap();
                        let mut bytes = [0; 8192];
                        import.read(at, &mut bytes).unwrap();
                        assert_eq!(bytes, [byte ^ round; 8192]);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(host.read(79 * 8192, 1).ok(), [79 ^ (rounds - 1)]);
    }
}

pub fn leaves_nothing_behind() {
    if role::args().first().is_some_and(|arg| arg == "regions") {
        testkit::leaves_nothing("rucx-", regions);
    } else {
        testkit::leaves_nothing("rucx-", || {
            let ctx = context();
            let region = ctx.mem_map(MemMap::allocate(1 << 20).exported()).unwrap();
            let handle = region.memh_pack().unwrap();
            let owned = ctx.mem_map(MemMap::buffer(vec![0; 100]).exported()).unwrap();
            let dpus = ["mm", "cma"].map(context_by);
            let imports = dpus.each_ref().map(|dpu| dpu.mem_import(handle.as_bytes()).unwrap());
            imports.iter().for_each(|import| import.write(0, b"something").unwrap());
            let import = dpus[1].mem_import(owned.memh_pack().unwrap().as_bytes()).unwrap();
            import.write(0, b"something").unwrap();
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
            assert!(sockets.contains("@rucx-"), "it is there while it is used");
        });
    }
    role::send(b"done");
}

pub fn nothing_is_left_behind() {
    let mut child = Role::new("many::leaves_nothing_behind").in_new_netns().start();
    assert_eq!(child.recv(), b"done");
    child.expect_exit(0);
    // Nor by a host that is killed.
    let mut host = Actor::host(1 << 20);
    host.export();
    let pid = host.0.pid();
    host.0.kill();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let shm: Vec<_> =
        std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(shm.iter().all(|name| !name.to_string_lossy().contains("rucx")), "{shm:?}");
}

/// A thousand contexts connect to one exporter, one after the other: it holds nothing of them.
pub fn connections_do_not_add_up() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    context().mem_import(&handle).unwrap();
    let before: usize = host.ask("fds").text().parse().unwrap();
    let mappings = testkit::mappings();
    for round in 0..if BY_DEVICE { 20 } else { 1000 } {
        context_by(WAYS[round % WAYS.len()].0).mem_import(&handle).unwrap().write(0, b"x").unwrap();
    }
    // Other tests run beside this one in this process: far less than 1,000 is what counts.
    assert!(testkit::mappings() < mappings + 500);
    let begin = std::time::Instant::now();
    while host.ask("fds").text().parse::<usize>().unwrap() > before + 2 {
        assert!(begin.elapsed().as_secs() < 2, "descriptors add up");
        thread::sleep(std::time::Duration::from_millis(10));
    }
}
