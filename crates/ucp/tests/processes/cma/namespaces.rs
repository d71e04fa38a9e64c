//! Exporter and importer in different namespaces, as containers are.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testkit::Role;
use ucp::{MemMap, Status};

use super::{NOBODY, raw_host};
use crate::roles::{Actor, FILL, context};

fn dpu(role: Role) -> Actor {
    Actor(role.start())
}

fn raw(role: Role) -> Actor {
    Actor(role.start())
}

fn host_role() -> Role {
    Role::new("cma::host").arg("4096")
}

fn dpu_role() -> Role {
    Role::new("roles::dpu")
}

/// Importing works, and what is written is there.
#[track_caller]
fn reaches(host: &mut Actor, dpu: &mut Actor) {
    dpu.import(&host.export()).ok();
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    dpu.write(100, b"across").ok();
    assert_eq!(host.ask("read 6 100").ok(), b"across");
    host.ask("revoke 0").ok();
    dpu.read(0, 1).err(Status::Stale);
}

/// The process behind the socket has a pid here if it lives in a namespace below.
pub fn other_pid_namespace() {
    reaches(&mut raw(host_role().in_new_pidns()), &mut Actor::dpu());
    let text = dpu(dpu_role().in_new_pidns()).import(&raw_host(4096).export()).err(Status::Unreachable);
    assert!(text.contains("cma: no: the exporter's pid is not visible from this pid namespace"), "{text}");
    assert!(text.contains("docker: --pid container:NAME or host"), "{text}");
    // Two of them side by side do not see each other; allocated memory is reached all the same.
    let mut host = Actor(Role::new("roles::host").arg("4096").in_new_pidns().start());
    let mut other = dpu(dpu_role().in_new_pidns());
    let how = other.import(&host.export()).text();
    assert!(how.contains("shm: descriptor passed"), "{how}");
}

pub fn other_user_namespace() {
    // From outside, with rights over what is inside.
    reaches(&mut raw(host_role().in_new_userns()), &mut Actor::dpu());
    // From inside, root there or not, there are none over what is outside.
    let mut inside = dpu(dpu_role().in_new_userns());
    let text = inside.import(&raw_host(4096).export()).err(Status::Unreachable);
    assert!(
        text.contains("Operation not permitted (os error 1): the exporter lives in another user namespace"),
        "{text}"
    );
    assert!(text.contains("run both sides in one user namespace"), "{text}");
    let how = inside.import(&Actor::host(4096).export()).text();
    assert!(how.contains("shm: descriptor passed"), "{how}");
}

pub fn other_mount_namespace() {
    reaches(&mut raw(host_role().in_new_mountns()), &mut dpu(dpu_role().in_new_mountns()));
}

/// All of them at once, but for the user's, as two containers without a common one.
pub fn as_two_containers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let apart = |role: Role| role.in_new_netns().in_new_pidns().in_new_mountns().env("UCX_SERVICE_DIR", path);
    let mut host = Actor(apart(Role::new("roles::host").arg("4096")).start());
    let mut dpu = dpu(apart(dpu_role()));
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    dpu.write(0, b"between containers").ok();
    assert_eq!(host.read(0, 18).ok(), b"between containers");
    // Raw memory needs the pid.
    let text = dpu.import(&raw(apart(host_role())).export()).err(Status::Unreachable);
    assert!(text.contains("cma: no: the exporter's pid is not visible from this pid namespace"), "{text}");
}

pub fn other_network_namespace() {
    let mut far = raw(host_role().in_new_netns());
    let text = Actor::dpu().import(&far.export()).err(Status::Unreachable);
    assert!(
        text.contains("cma: no: the exporter's service socket is in another network namespace"),
        "{text}"
    );
    assert!(
        text.contains(
            "[set UCX_SERVICE_DIR on both sides to a directory that both see, or run both in one network"
        ),
        "{text}"
    );
}

fn entries(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect()
}

/// A directory that both sides see takes the place of the network namespace that they do not share.
pub fn service_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let far = |role: Role| role.in_new_netns().env("UCX_SERVICE_DIR", path);
    let mut host = raw(far(host_role()));
    reaches(&mut host, &mut dpu(dpu_role().env("UCX_SERVICE_DIR", path)));
    let handle = host.export();
    let names = entries(directory.path());
    assert!(names.len() == 1 && names[0].starts_with("rucx-") && names[0].len() == 37, "{names:?}");
    let mode = std::fs::metadata(directory.path().join(&names[0])).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "who may enter the directory may connect; the token is what counts");
    reaches(&mut raw(far(host_role())), &mut dpu(far(dpu_role())));
    // shm goes the same way, and then needs no ptrace rights.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut allocated = Actor(far(Role::new("roles::host").arg("4096")).start());
    let mut nobody = dpu(dpu_role().env("UCX_SERVICE_DIR", path).as_uid(NOBODY));
    let how = nobody.import(&allocated.export()).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    // Who does not know the directory, or another one, is told.
    let text = Actor::dpu().import(&handle).err(Status::Unreachable);
    assert!(text.contains("and in a directory that is not known here"), "{text}");
    assert!(text.contains("[set UCX_SERVICE_DIR here, too"), "{text}");
    let other = tempfile::tempdir().unwrap();
    let mut lost = dpu(dpu_role().env("UCX_SERVICE_DIR", other.path().to_str().unwrap()));
    let text = lost.import(&handle).err(Status::Unreachable);
    assert!(text.contains("is not in the directory that UCX_SERVICE_DIR names here"), "{text}");
    // Where the network namespace is the same, nobody needs it.
    let mut near = raw(host_role().env("UCX_SERVICE_DIR", path));
    reaches(&mut near, &mut Actor::dpu());
    // An exporter that ends removes its socket; one that is killed leaves it, and nothing is mistaken for it.
    let count = || entries(directory.path()).len();
    let before = count();
    near.0.send(b"exit");
    near.0.expect_exit(0);
    assert_eq!(count(), before - 1);
    host.0.kill();
    assert_eq!(count(), before - 1);
    let text = dpu(dpu_role().env("UCX_SERVICE_DIR", path)).import(&handle).err(Status::Stale);
    assert!(text.contains("nobody listens on its socket in UCX_SERVICE_DIR"), "{text}");
    allocated.0.send(b"exit");
    allocated.0.expect_exit(0);
    assert_eq!(count(), before - 2);
}

pub fn service_directory_that_is_none() {
    let packed = |path: &str| {
        let builder = ucp::Context::builder().features(ucp::Features::EXPORTED_MEMH);
        let ctx = builder.set("UCX_SERVICE_DIR", path).build().unwrap();
        let error = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap().memh_pack().unwrap_err();
        (error.status(), error.to_string(), error.remedy())
    };
    let (status, text, remedy) = packed("/nonexistent/directory");
    assert_eq!(status, Status::InvalidParam);
    assert!(
        text.contains("UCX_SERVICE_DIR: no service socket in /nonexistent/directory: No such file"),
        "{text}"
    );
    assert_eq!(remedy, "make the directory, or name another one");
    let (status, _, remedy) = packed(&format!("/tmp/{}", "x".repeat(100)));
    assert_eq!(
        (status, remedy.as_str()),
        (Status::InvalidParam, "name a directory with a path of at most 60 bytes")
    );
    // Without it, the same works.
    context().mem_map(MemMap::allocate(4096).exported()).unwrap().memh_pack().unwrap();
}
