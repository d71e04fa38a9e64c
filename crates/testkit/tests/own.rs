//! The test support under test: what it promises when a role dies, stops, panics or hangs.

#![allow(clippy::unwrap_used)] // tests
#![allow(clippy::print_stdout)] // roles print on purpose

use std::process::ExitCode;
use std::time::{Duration, Instant};

use testkit::{CountingAlloc, Exit, GuardedBuf, RecvError, Resource, Rng, Role, Signal, Test, role};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

fn main() -> ExitCode {
    testkit::main! {
        roles: [echo, answers_environment, panics, hangs, writes_too_far, writes_before, holds_to_limit, drops_root, talks,
            counts_rounds, skipper],
        tests: [
            frames_go_both_ways, a_killed_role, a_stopped_role, a_panicking_role, a_role_that_says_nothing, a_dropped_role,
            closing_ends_a_role, printing_does_not_disturb_frames, rounds_are_fewer_where_everything_takes_longer,
            nothing_is_inherited, a_role_dies_with_its_thread,
            the_watchdog_reports_kills_and_aborts, guards_fault_behind, guards_fault_before, guards_leave_the_bytes_alone,
            canaries, allocations, other_threads_do_not_count, limits_are_put_back, root_is_dropped_for_good,
            a_new_network_namespace, the_network_namespace_of_another, a_new_pid_namespace, a_new_user_namespace, another_user,
            leftovers_are_named => .alone(), nothing_left => .alone(), an_alone_test => .secs(5).alone(),
            a_skip_is_shown, a_skip_fails_in_ci, a_listed_skip_passes_in_ci, the_seed_is_shown, unknown_roles,
        ],
    }
}

fn echo() {
    while let Some(frame) = role::try_recv() {
        role::send(&frame);
    }
}

fn frames_go_both_ways() {
    let mut echo = Role::spawn("echo");
    let mut rng = Rng::new(testkit::seed());
    for len in [0, 1, 4, 65_535, 65_536, 1 << 20] {
        let mut frame = vec![0; len];
        rng.fill(&mut frame);
        assert_eq!(echo.request(&frame), frame);
    }
    echo.send(b"one");
    echo.send(b"two");
    assert_eq!(echo.recv(), b"one");
    assert_eq!(echo.recv(), b"two");
}

fn a_killed_role() {
    let mut echo = Role::spawn("echo");
    assert_eq!(echo.request(b"alive"), b"alive");
    echo.kill();
    assert_eq!(echo.wait(Duration::ZERO), Some(Exit::Signal(Signal::KILL.as_raw())));
    assert_eq!(echo.try_recv(Duration::from_secs(1)), Err(RecvError::Closed));
    assert!(!std::path::Path::new(&format!("/proc/{}", echo.pid())).exists(), "reaped");
}

fn a_stopped_role() {
    let mut echo = Role::spawn("echo");
    assert_eq!(echo.request(b"alive"), b"alive");
    echo.stop();
    echo.send(b"are you there?");
    assert_eq!(echo.try_recv(Duration::from_millis(50)), Err(RecvError::Timeout));
    echo.cont();
    assert_eq!(echo.recv(), b"are you there?");
}

fn panics() {
    role::send(b"about to");
    panic!("as it should");
}

fn a_panicking_role() {
    let mut child = Role::spawn("panics");
    assert_eq!(child.recv(), b"about to");
    child.expect_exit(101);
    assert!(child.stderr().contains("as it should"));
    // A test that waits for more fails, and says why.
    assert!(testkit::expect_panic(|| child.recv()).contains("ended with Some(Code(101))"));
}

fn hangs() {
    role::send(b"hanging");
    let mut child = Role::new("echo").start();
    assert_eq!(child.request(b"child"), b"child");
    role::send(child.pid().to_string().as_bytes());
    testkit::watchdog::bounded("the test that hangs", Duration::from_millis(200), || {
        std::thread::sleep(Duration::from_secs(60));
    });
}

fn a_role_that_says_nothing() {
    let mut echo = Role::new("echo").deadline(Duration::from_millis(50)).start();
    assert!(testkit::expect_panic(|| echo.recv()).contains("Timeout"));
}

fn a_dropped_role() {
    let echo = Role::spawn("echo");
    let pid = echo.pid();
    echo.stop();
    drop(echo);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "killed and reaped");
}

fn closing_ends_a_role() {
    let mut echo = Role::spawn("echo");
    echo.close();
    echo.expect_exit(0);
}

fn talks() {
    println!("to stdout");
    std::process::Command::new("/bin/echo").arg("from a child").status().unwrap();
    role::send(b"and a frame");
    // More than a pipe holds: nobody may block on it for ever.
    let line = "x".repeat(1023);
    for _ in 0..4096 {
        println!("{line}");
    }
}

fn printing_does_not_disturb_frames() {
    let mut child = Role::spawn("talks");
    assert_eq!(child.recv(), b"and a frame");
    child.expect_exit(0);
    assert!(child.stderr().starts_with("to stdout\nfrom a child\n"));
    assert!(child.stderr().len() > 4 << 20);
}

fn counts_rounds() {
    role::send(role::rounds(100).to_string().as_bytes());
}

fn rounds_are_fewer_where_everything_takes_longer() {
    for (scale, rounds, said) in
        [("1", "100", ""), ("10", "10", "rounds: 10 of 100\n"), ("1000", "1", "rounds: 1 of 100\n")]
    {
        let mut child = Role::new("counts_rounds").env("RUCX_TEST_SCALE", scale).start();
        assert_eq!(String::from_utf8(child.recv()).unwrap(), rounds);
        child.expect_exit(0);
        assert_eq!(child.stderr(), said);
    }
}

fn answers_environment() {
    let fds =
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| fd.file_name().into_string().unwrap());
    let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    names.sort();
    let ids = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |start: &str| ids.lines().find(|line| line.starts_with(start)).unwrap_or("?").to_owned();
    let lines = [
        format!("args {:?}", role::args()),
        format!("env {names:?}"),
        format!("fds {}", fds.count()),
        format!("net {}", std::fs::read_link("/proc/self/ns/net").unwrap().display()),
        format!("user {}", std::fs::read_link("/proc/self/ns/user").unwrap().display()),
        format!("pid {}", std::process::id()),
        line("Uid:"),
        line("Groups:"),
        format!(
            "owner {}",
            std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self/stat").unwrap())
        ),
        format!("name {}", std::fs::read_to_string("/proc/self/comm").unwrap().trim()),
    ];
    role::send(lines.join("\n").as_bytes());
}

fn environment_of(role: Role) -> String {
    let mut child = role.start();
    let text = String::from_utf8(child.recv()).unwrap();
    child.expect_exit(0);
    text
}

fn nothing_is_inherited() {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open("/dev/null").unwrap();
    // Not close-on-exec, as a C library may leave it.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    assert!(file.as_raw_fd() > 2);
    let text = environment_of(Role::new("answers_environment").arg("a b").arg("c").env("UCX_TLS", "shm"));
    assert!(text.contains(r#"args ["a b", "c"]"#), "{text}");
    // 0, 1, 2, the two of the frames, the one reading the directory.
    assert!(text.contains("\nfds 6\n"), "{text}");
    let allowed = [
        "ASAN_OPTIONS",
        "LLVM_PROFILE_FILE",
        "PATH",
        "RUCX_SEED",
        "RUST_BACKTRACE",
        "TSAN_OPTIONS",
        "UCX_TLS",
    ];
    let env = text.lines().find_map(|line| line.strip_prefix("env ")).unwrap();
    for name in env.trim_matches(['[', ']']).split(", ") {
        assert!(allowed.contains(&name.trim_matches('"')), "{env}");
    }
    assert!(env.contains("UCX_TLS"), "{env}");
    assert!(text.contains("\nname answers_environ"), "{text}");
}

fn a_role_dies_with_its_thread() {
    let (pid, fd) = std::thread::spawn(|| {
        let child = std::mem::ManuallyDrop::new(Role::spawn("echo"));
        (child.pid(), child.pidfd().try_clone_to_owned().unwrap())
    })
    .join()
    .unwrap();
    let options = rustix::process::WaitIdOptions::EXITED;
    let id = rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&fd));
    let status = rustix::process::waitid(id, options).unwrap().unwrap();
    assert_eq!(status.terminating_signal(), Some(Signal::KILL.as_raw()), "pid {pid}");
}

fn the_watchdog_reports_kills_and_aborts() {
    let mut child = Role::spawn("hangs");
    assert_eq!(child.recv(), b"hanging");
    let grandchild: i32 = String::from_utf8(child.recv()).unwrap().parse().unwrap();
    child.expect_signal(Signal::ABORT);
    let report = child.stderr();
    for part in [
        "WATCHDOG: the test that hangs still runs after",
        " hangs: wchan ",
        "syscall ",
        "role \"echo\", pid ",
    ] {
        assert!(report.contains(part), "{part:?} is not in {report}");
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::fs::read_to_string(format!("/proc/{grandchild}/comm")).is_ok_and(|comm| comm.trim() == "echo")
    {
        assert!(Instant::now() < deadline, "the hanging role's child still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn writes_too_far() {
    let mut buf = GuardedBuf::new(100);
    buf.fill(1);
    role::send(&buf);
    buf.touch_guard();
}

fn writes_before() {
    let mut buf = GuardedBuf::front(100);
    buf.fill(2);
    role::send(&buf);
    buf.touch_guard();
}

fn guards_fault_behind() {
    let mut child = Role::spawn("writes_too_far");
    assert_eq!(child.recv(), [1; 100]);
    child.expect_signal(Signal::SEGV);
}

fn guards_fault_before() {
    let mut child = Role::spawn("writes_before");
    assert_eq!(child.recv(), [2; 100]);
    child.expect_signal(Signal::SEGV);
}

fn guards_leave_the_bytes_alone() {
    let page = rustix::param::page_size();
    for len in [0, 1, 7, page - 1, page, page + 1, 3 * page] {
        let (mut back, mut front) = (GuardedBuf::new(len), GuardedBuf::front(len));
        assert!(back.iter().chain(front.iter()).all(|byte| *byte == 0));
        back.fill(3);
        front.fill(4);
        assert_eq!((back.len(), front.len()), (len, len));
        assert_eq!(front.as_ptr().addr() % page, 0);
        assert_eq!((back.as_ptr().addr() + len) % page, 0);
        assert_eq!(back.as_mut_ptr().cast_const(), back.as_ptr());
    }
}

fn canaries() {
    testkit::assert_writes_exactly(8, 16, |buf| buf[..8].copy_from_slice(&[0x5a; 8]));
    let refused =
        |n, write: fn(&mut [u8])| testkit::expect_panic(|| testkit::assert_writes_exactly(n, 16, write));
    assert_eq!(refused(8, |buf| buf[..9].fill(1)), "byte 8 was written, of 8 announced");
    assert_eq!(refused(8, |buf| buf[..7].fill(1)), "byte 7 was not written, of 8 announced");
    let mut canary = testkit::Canary::new(4, 0);
    canary.body()[1] = 1;
    assert_eq!((canary.check(4), canary.check(2), canary.check(1)), (Ok(()), Ok(()), Err(1)));
}

fn allocations() {
    let mut v: Vec<u8> = Vec::with_capacity(64);
    assert_eq!(testkit::count_allocs(|| v.extend([1; 64])), 0);
    assert_eq!(testkit::count_allocs(|| v.push(1)), 1);
    let (boxed, counts) = testkit::alloc::counting(|| Box::new([0u8; 100]));
    assert_eq!((counts.allocs, counts.frees, counts.bytes), (1, 0, 100));
    drop(boxed);
}

fn other_threads_do_not_count() {
    let (go, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            go.wait();
            drop(std::hint::black_box(vec![0u8; 1000]));
            wait.wait();
        });
        assert_eq!(
            testkit::count_allocs(|| {
                go.wait();
                wait.wait();
            }),
            0
        );
    });
}

fn holds_to_limit() {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let open = || std::fs::File::open("/dev/null");
    let denied = testkit::with_rlimit(Resource::Nofile, 3, || open().is_err());
    let caught =
        testkit::expect_panic(|| testkit::with_rlimit::<()>(Resource::Nofile, 3, || panic!("inside")));
    let restored = rustix::process::getrlimit(Resource::Nofile) == before;
    role::send(&[denied.into(), (caught == "inside").into(), restored.into(), open().is_ok().into()]);
    assert!(
        std::panic::catch_unwind(|| testkit::with_rlimit(Resource::Core, u64::MAX - 1, || ())).is_ok()
            || !testkit::is_root()
    );
}

fn limits_are_put_back() {
    let mut child = Role::spawn("holds_to_limit");
    assert_eq!(child.recv(), [1, 1, 1, 1]);
}

fn drops_root() {
    let answer = match testkit::drop_to_uid(65_534, 65_534) {
        Ok(()) => {
            // The kernel gives /proc/self of a process that is not dumpable to root.
            let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self/stat").unwrap());
            assert_eq!(owner, 65_534);
            assert!(testkit::drop_to_uid(0, 0).is_err(), "back to root");
            "dropped".to_owned()
        }
        Err(error) => format!("{:?}", error.kind()),
    };
    role::send(answer.as_bytes());
}

fn root_is_dropped_for_good() {
    let mut child = Role::spawn("drops_root");
    let expected: &[u8] = if testkit::is_root() { b"dropped" } else { b"PermissionDenied" };
    assert_eq!(child.recv(), expected);
    child.expect_exit(0);
}

fn a_new_network_namespace() {
    let text = environment_of(Role::new("answers_environment").in_new_netns());
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert!(text.contains("\nnet net:["), "{text}");
    assert!(!text.contains(&ours.display().to_string()), "{text}");
}

fn the_network_namespace_of_another() {
    let mut other = Role::new("echo").in_new_netns().start();
    let file = format!("/proc/{}/ns/net", other.pid());
    let theirs = std::fs::read_link(&file).unwrap();
    let text = environment_of(Role::new("answers_environment").in_netns(file));
    assert!(text.contains(&format!("\nnet {}\n", theirs.display())), "{text}");
    assert_eq!(other.request(b"hi"), b"hi");
    // What is no namespace is told, and the step.
    let error = Role::new("echo").in_netns("/dev/null").try_start().unwrap_err();
    assert!(error.to_string().starts_with("setns: "), "{error}");
}

fn a_new_pid_namespace() {
    let text = environment_of(Role::new("answers_environment").in_new_pidns());
    assert!(text.contains("\npid 1\n"), "{text}");
    let mut child = Role::new("echo").in_new_pidns().start();
    assert_eq!(child.request(b"hi"), b"hi");
    child.stop();
    child.cont();
    child.kill();
}

fn a_new_user_namespace() {
    let text = environment_of(Role::new("answers_environment").in_new_userns().in_new_netns());
    let ours = std::fs::read_link("/proc/self/ns/user").unwrap();
    assert!(!text.contains(&ours.display().to_string()), "{text}");
    assert!(text.contains(&format!("Uid:\t{}", rustix::process::getuid().as_raw())), "{text}");
}

fn another_user() {
    let text = environment_of(Role::new("answers_environment").as_uid(65_534));
    assert!(text.contains("Uid:\t65534\t65534\t65534\t65534"), "{text}");
    assert!(text.contains("\nGroups:\t\n") || text.contains("\nGroups:\t \n"), "{text}");
    assert!(text.contains("\nowner 65534\n"), "dumpable: {text}");
}

fn leftovers_are_named() {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("rucx-testkit-{}", std::process::id());
    let mut kept = None;
    let message = testkit::expect_panic(|| {
        testkit::leaves_nothing("rucx-testkit-", || {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
            let socket = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
            let file = std::path::PathBuf::from(format!("/dev/shm/{name}"));
            std::fs::write(&file, b"").unwrap();
            kept = Some((socket, file));
        });
    });
    let (socket, file) = kept.unwrap();
    std::fs::remove_file(file).unwrap();
    drop(socket);
    for part in [format!("unix socket @{name}"), format!("/dev/shm/{name}"), "fd ".to_owned()] {
        assert!(message.contains(&part), "{part} is not in {message}");
    }
}

fn nothing_left() {
    let (fds, mappings) = (testkit::open_fds(), testkit::mappings());
    testkit::leaves_nothing("rucx-", || {
        let mut echo = Role::spawn("echo");
        assert!(testkit::open_fds() > fds);
        assert_eq!(echo.request(b"x"), b"x");
        let pages = GuardedBuf::new(1);
        assert!(testkit::mappings() > mappings);
        drop(pages);
    });
    assert_eq!(testkit::open_fds(), fds);
}

fn an_alone_test() {
    assert!(!role::is_role());
}

/// A run of the harness inside a role, with the command line and the variables given.
fn skipper() {
    let tests = vec![
        Test::new("some::skip", || testkit::skip("no such device", "plug one in")),
        Test::new("some::failure", || {
            if std::env::var("FAIL").is_ok() {
                let _ = testkit::seed();
                panic!("as asked");
            }
        }),
    ];
    // The harness reads the process's own command line, which is a role's: so run this binary's tests by hand.
    let code = testkit::harness::run(["skipper", "--test-threads", "1"], tests);
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 101 });
}

fn a_skip_is_shown() {
    let mut child = Role::spawn("skipper");
    child.expect_exit(0);
    let output = child.stderr();
    assert!(output.contains("test result: ok. 1 passed; 0 failed; 1 ignored"), "{output}");
    assert!(output.contains("\nSKIP some::skip: no such device — plug one in\n"), "{output}");
}

fn a_skip_fails_in_ci() {
    let mut child = Role::new("skipper").env("CI", "true").start();
    child.expect_exit(101);
    assert!(child.stderr().contains("skipped, which is a failure in CI: no such device — plug one in"));
}

fn a_listed_skip_passes_in_ci() {
    let mut child =
        Role::new("skipper").env("CI", "true").env("RUCX_ALLOWED_SKIPS", "other,some::skip").start();
    child.expect_exit(0);
}

fn the_seed_is_shown() {
    let mut child = Role::new("skipper").env("FAIL", "1").env("RUCX_SEED", "0xabc").start();
    child.expect_exit(101);
    assert!(child.stderr().contains("as asked\nRUCX_SEED=0xabc repeats it"), "{}", child.stderr());
}

fn unknown_roles() {
    let mut child = Role::spawn("nobody");
    child.expect_exit(126);
    assert!(child.stderr().contains("this binary has no role \"nobody\""));
}
