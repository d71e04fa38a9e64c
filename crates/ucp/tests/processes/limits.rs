//! Limits of the process, reached: each a typed error that names the limit.

use testkit::{Resource, Role, role, with_rlimit};
use ucp::{MapError, MemMap, PackedMemh, Region, Status};
use ucs::mem::{Limit, MemError};

use super::roles::{Actor, BY_DEVICE, REMOTE, WAYS, builder_by, context, role_by};

/// Sends `Debug` of the limit in an error, and its status.
fn tell(what: &str, error: &dyn std::fmt::Display, status: Status, remedy: &str) {
    role::send(format!("{what}: {status:?}: {error} [{remedy}]").as_bytes());
}

pub fn host_at_limits() {
    let ctx = context();
    let map = |len| ctx.mem_map(MemMap::allocate(len).exported());
    // Bytes of one file: ftruncate beyond it would raise SIGXFSZ and end the process.
    with_rlimit(Resource::Fsize, 1 << 20, || {
        let error = map((1 << 20) + 1).unwrap_err();
        assert!(matches!(
            error,
            MapError::Mem(MemError::Limit { limit: Limit::FileSize, value: 1_048_576, .. })
        ));
        tell("fsize", &error, error.status(), &error.remedy());
        map(1 << 20).unwrap();
        // The export table is a file, too.
        let error = map(4096).unwrap().memh_pack().unwrap_err();
        tell("fsize at pack", &error, error.status(), &error.remedy());
    });
    let region = map(4096).unwrap();
    // The service thread has answered: a thread that starts needs address space, too.
    let handle = region.memh_pack().unwrap();
    drop(context().mem_import(handle.as_bytes()).unwrap());
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    with_rlimit(Resource::As, pages * 4096 + (64 << 20), || {
        let error = map(1 << 30).unwrap_err();
        tell("as", &error, error.status(), &error.remedy());
    });
    let files = testkit::open_fds() as u64 + 20;
    with_rlimit(Resource::Nofile, files, || {
        let mut regions: Vec<(Region, PackedMemh)> = Vec::new();
        let error = loop {
            match map(4096) {
                Ok(region) => {
                    let handle = region.memh_pack().unwrap();
                    regions.push((region, handle));
                }
                Err(error) => break error,
            }
            assert!(regions.len() < 100);
        };
        tell("nofile", &error, error.status(), &error.remedy());
        // What is there still works.
        regions[0].0.write(0, b"still").unwrap();
    });
    // A first pack needs descriptors for the table and the service.
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    for spare in 0..6 {
        let files = highest_fd() + 1 + spare;
        with_rlimit(Resource::Nofile, files, || match region.memh_pack() {
            Ok(_) => role::send(format!("nofile at pack: {spare} spare suffice").as_bytes()),
            Err(error) => {
                assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
                assert_eq!(error.status(), Status::ExceedsLimit);
            }
        });
    }
    region.memh_pack().unwrap();
}

fn highest_fd() -> u64 {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter_map(|fd| fd.file_name().to_str()?.parse().ok()).max().unwrap()
}

pub fn exporter_runs_into_each_limit() {
    let mut host = Role::spawn("limits::host_at_limits");
    let mut next = || String::from_utf8(host.recv()).unwrap();
    assert_eq!(
        next(),
        "fsize: ExceedsLimit: RLIMIT_FSIZE (1048576) is reached: 1048577 bytes were asked for [raise it with `ulimit -f` \
         (LimitFSIZE= in a systemd unit), or map smaller regions]"
    );
    let text = next();
    assert!(
        text.starts_with("fsize at pack: ExceedsLimit: the export table: RLIMIT_FSIZE (1048576) is reached"),
        "{text}"
    );
    let text = next();
    assert!(text.starts_with("as: ExceedsLimit: RLIMIT_AS ("), "{text}");
    assert!(text.ends_with("1073741824 bytes were asked for [raise it with `ulimit -v` (LimitAS= in a systemd unit), or map less]"), "{text}");
    let text = next();
    assert!(text.starts_with("nofile: ExceedsLimit: RLIMIT_NOFILE ("), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
    let text = next();
    assert!(text.starts_with("nofile at pack: "), "{text}");
    host.expect_exit(0);
}

pub fn dpu_at_limits() {
    let ctx = context();
    let (first, second) = (role::recv(), role::recv());
    // No descriptor is to be had, then one, then two …: it never succeeds by halves.
    let mut needed = None;
    for spare in 0..20 {
        let files = highest_fd() + 1 + spare;
        let done = with_rlimit(Resource::Nofile, files, || match ctx.mem_import(&first) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.to_string().contains("RLIMIT_NOFILE"), "{spare} spare: {error}");
                assert_eq!(error.status(), Status::ExceedsLimit, "{error}");
                assert!(error.remedy().contains("ulimit -n"), "{error}");
                false
            }
        });
        if done {
            needed = Some(spare);
            break;
        }
    }
    role::send(format!("{} descriptors", needed.unwrap()).as_bytes());
    if BY_DEVICE {
        return; // which maps nothing
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    // Room for a thread that is just starting: its stack, and an arena of malloc's (64 MiB, at first twice that). Without its stack for
    // signals the standard library ends the process.
    with_rlimit(Resource::As, pages * 4096 + (256 << 20), || {
        // Without cma there is an error; with it there is no need of a mapping.
        match ctx.mem_import(&second) {
            Ok(import) => {
                role::send(format!("as: {}: {}", import.transport(), import.md_results()).as_bytes())
            }
            Err(error) => tell("as", &error, error.status(), &error.remedy()),
        }
    });
    ctx.mem_import(&second).unwrap().write(1 << 29, b"works").unwrap();
}

pub fn importer_runs_into_each_limit() {
    let ways = |attach| WAYS.map(|(tls, components)| (tls, components, attach));
    for (tls, components, attach) in ways("socket,proc,pidfd").into_iter().chain(ways("socket")) {
        let (mut small, mut large) = (Actor::host(4096), Actor::host(if BY_DEVICE { 4096 } else { 1 << 30 }));
        let mut dpu = role_by("limits::dpu_at_limits", tls).env("UCX_SHM_ATTACH", attach).start();
        dpu.send(&small.export());
        dpu.send(&large.export());
        let text = String::from_utf8(dpu.recv()).unwrap();
        assert!(text.ends_with(" descriptors") && !text.starts_with("0 "), "{text}");
        if BY_DEVICE {
            dpu.expect_exit(0);
            continue;
        }
        let text = String::from_utf8(dpu.recv()).unwrap();
        let begins = if tls == "mm" { "as: ExceedsLimit: RLIMIT_AS (" } else { "as: cma: " };
        assert!(text.starts_with(begins), "{text}");
        let told = text.contains("RLIMIT_AS (") && text.contains("1073741824 bytes were asked for");
        assert_eq!(told, components.contains(&2), "{text}");
        dpu.expect_exit(0);
    }
}

pub fn too_many_imports() {
    for (tls, _) in WAYS {
        let mut host = Actor::host(4096);
        let ctx = builder_by(tls).set("UCX_MAX_IMPORTS", "3").build().unwrap();
        let handles: Vec<_> = (0..4).map(|_| host.export()).collect();
        let mut imports: Vec<_> = handles[..3].iter().map(|handle| ctx.mem_import(handle).unwrap()).collect();
        let error = ctx.mem_import(&handles[3]).unwrap_err();
        assert_eq!(error.status(), Status::ExceedsLimit);
        assert_eq!(
            error.to_string(),
            "3 imported regions are alive in this context, and UCX_MAX_IMPORTS allows no more"
        );
        // The same handle again is no new one; one dropped makes room.
        imports.push(ctx.mem_import(&handles[0]).unwrap());
        imports.remove(1);
        ctx.mem_import(&handles[3]).unwrap();
    }
}

/// An exporter that can have no more descriptors: its importers wait, it does not spin, and it serves them as soon as it can.
pub fn host_without_descriptors() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    role::send(region.memh_pack().unwrap().as_bytes());
    with_rlimit(Resource::Nofile, 3, || {
        let before = cpu_time();
        role::send(b"none left");
        let _ = role::recv();
        role::send(format!("{}", (cpu_time() - before).as_millis()).as_bytes());
    });
    let _ = role::recv();
}

pub fn cpu_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::try_from(time).unwrap()
}

pub fn exporter_without_descriptors_does_not_spin() {
    for (tls, _) in WAYS {
        let mut host = Role::spawn("limits::host_without_descriptors");
        let handle = host.recv();
        assert_eq!(host.recv(), b"none left");
        let timeout = ("UCX_IMPORT_TIMEOUT", "500ms");
        let mut dpu = Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "socket"), timeout]);
        let text = dpu.import(&handle).err(Status::Unreachable);
        assert!(tls == REMOTE || text.contains("no answer on the service socket within"), "{text}");
        host.send(b"go on");
        let millis: u64 = String::from_utf8(host.recv()).unwrap().parse().unwrap();
        assert!(millis < 250, "{millis} ms of processor time in half a second of waiting");
        dpu.import(&handle).ok();
    }
}

/// Mappings of a process: `vm.max_map_count`, if descriptors allow to come that far.
pub fn host_at_map_count() {
    let ctx = context();
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let maps: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    with_rlimit(Resource::Nofile, hard.min(maps + 1000), || {
        let mut regions = Vec::new();
        let error = loop {
            match ctx.mem_map(MemMap::allocate(1).exported()) {
                Ok(region) => regions.push(region),
                Err(error) => break error,
            }
            assert!((regions.len() as u64) < maps);
        };
        let expected = if hard > maps { "vm.max_map_count" } else { "RLIMIT_NOFILE" };
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.status(), Status::ExceedsLimit);
        regions.truncate(regions.len() - 100);
        regions.push(ctx.mem_map(MemMap::allocate(1).exported()).unwrap());
        role::send(format!("{} regions, then: {error} [{}]", regions.len(), error.remedy()).as_bytes());
    });
}

pub fn regions_until_the_map_count() {
    let mut host =
        Role::new("limits::host_at_map_count").deadline(std::time::Duration::from_secs(60)).start();
    let text = String::from_utf8(host.recv()).unwrap();
    assert!(text.contains(" regions, then: ") && text.contains("is reached"), "{text}");
    host.expect_exit(0);
}
