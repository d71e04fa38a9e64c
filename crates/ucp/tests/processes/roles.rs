//! A host and a DPU that do what a test tells them, one command a frame.
//!
//! Commands are words; payload comes in a frame of its own. An answer is `ok:` and payload, or `err:STATUS:TEXT`.

use std::fmt::Display;
use std::time::Duration;

use testkit::{Child, Role, role};
use ucp::{Context, ContextBuilder, Features, ImportedRegion, MemMap, PackedMemh, Status};

pub(crate) use super::transports::{BY_DEVICE, NEARBY, REMOTE};

pub fn context() -> Context {
    builder().build().unwrap()
}

/// Of a context that exports, also to who shares a device with it.
pub fn builder() -> ContextBuilder {
    let builder = Context::builder().features(Features::EXPORTED_MEMH);
    let is_told = std::env::var_os("UCX_VERBS_SHARE").is_some();
    if BY_DEVICE && !is_told { builder.set("UCX_VERBS_SHARE", "y") } else { builder }
}

/// A context that is allowed these transports, or one of [`WAYS`].
pub fn context_by(way: &str) -> Context {
    builder_by(way).build().unwrap()
}

pub fn builder_by(way: &str) -> ContextBuilder {
    let builder = Context::builder().features(Features::EXPORTED_MEMH);
    variables(way).into_iter().fold(builder, |builder, (name, value)| builder.set(name, value))
}

/// What a DPU is allowed in UCX_TLS, and the components by which it reaches another process's memory then.
#[cfg(not(feature = "rxe-tests"))]
pub const WAYS: [(&str, &[u16]); 3] = [("mm", &[2]), ("cma", &[3]), ("all", &[2, 3])];
/// By an RDMA device.
#[cfg(feature = "rxe-tests")]
pub const WAYS: [(&str, &[u16]); 2] = [(NEARBY, &[4]), (REMOTE, &[4])];

/// The variables by which a DPU has this way alone.
pub fn variables(way: &str) -> Vec<(&str, &str)> {
    match way {
        NEARBY | REMOTE => super::transports::variables(way).to_vec(),
        tls => vec![("UCX_TLS", tls)],
    }
}

/// What an import is refused with when the exporter is gone: another machine may only be away for a while.
pub fn status_of_gone(way: &str) -> Status {
    if way == REMOTE { Status::Unreachable } else { Status::Stale }
}

/// What an access says then.
pub fn words_of_gone(way: &str) -> &'static str {
    if way == REMOTE {
        "the exporting process is gone, or there was no way to it for too long"
    } else {
        "the exporting process is gone"
    }
}

/// What an import says of an export that is over.
pub fn words_of_revoked(way: &str) -> &'static str {
    if way == REMOTE {
        "the exporter says that it is revoked or dropped"
    } else {
        "the export was revoked or dropped"
    }
}

/// A role that has this way alone.
pub fn role_by(name: &str, way: &str) -> Role {
    variables(way).into_iter().fold(Role::new(name), |role, (name, value)| role.env(name, value))
}

/// Where the line of the export table lies in a key.
pub const SLOT: usize = 4;
/// Where the token does.
pub const TOKEN: usize = 48;

/// What every one of these components said.
#[track_caller]
pub fn assert_each_says(components: &[u16], text: &str, said: &str) {
    for component in components {
        let name = uct::api::ComponentId(*component).name().unwrap();
        assert!(text.contains(&format!("{name}: no: {said}")), "{name}: {text}");
    }
}

/// The byte a host fills its memory with.
pub const FILL: u8 = 0x5a;

fn answer<E: Display>(result: Result<Vec<u8>, E>, status: impl Fn(&E) -> Status) {
    match result {
        Ok(payload) => role::send(&[b"ok:", payload.as_slice()].concat()),
        Err(error) => role::send(format!("err:{:?}:{error}", status(&error)).as_bytes()),
    }
}

fn number(word: Option<&str>) -> u64 {
    word.unwrap().parse().unwrap()
}

/// Exports one region of `args[0]` bytes, filled with [`FILL`]; with `args[1] == "ro"`, read-only; with `nofile=N`, under that
/// limit of descriptors.
pub fn host() {
    if let Some(limit) = role::args().iter().find_map(|arg| arg.strip_prefix("nofile=")) {
        let limit = Some(limit.parse().unwrap());
        let limit = rustix::process::Rlimit { current: limit, maximum: limit };
        rustix::process::setrlimit(testkit::Resource::Nofile, limit).unwrap();
    }
    let ctx = context();
    let len = role::args()[0].parse().unwrap();
    let mut map = MemMap::allocate(len).exported();
    if role::args().get(1).is_some_and(|arg| arg == "ro") {
        map = map.read_only();
    }
    let mut region = Some(ctx.mem_map(map).unwrap());
    if len <= 1 << 24 {
        region.as_ref().unwrap().write(0, &vec![FILL; len]).unwrap();
    }
    let mut ctx = Some(ctx);
    let mut handles: Vec<PackedMemh> = Vec::new();
    while let Some(command) = role::try_recv() {
        let command = String::from_utf8(command).unwrap();
        let mut words = command.split(' ');
        let region_ref = || region.as_ref().unwrap();
        match words.next().unwrap() {
            "export" => {
                let handle = region_ref().memh_pack();
                let bytes = handle.as_ref().map(|handle| handle.as_bytes().to_vec()).map_err(Clone::clone);
                handles.extend(handle);
                answer(bytes, |error| error.status());
            }
            "revoke" => {
                let index = usize::try_from(number(words.next())).unwrap();
                answer(handles[index].revoke().map(|()| Vec::new()), |error| error.status());
            }
            "read" => {
                let mut bytes = vec![0; usize::try_from(number(words.next())).unwrap()];
                let at = number(words.next());
                answer(region_ref().read(at, &mut bytes).map(|()| bytes), |error| error.status());
            }
            "write" => {
                let at = number(words.next());
                answer(region_ref().write(at, &role::recv()).map(|()| Vec::new()), |error| error.status());
            }
            "drop-region" => {
                region = None;
                role::send(b"ok:");
            }
            "drop-context" => {
                region = None;
                handles.clear();
                ctx = None;
                role::send(b"ok:");
            }
            "another" => {
                // A newer region, at the same address very likely: the old one must have been dropped.
                let new = ctx.as_ref().unwrap().mem_map(MemMap::allocate(len).exported()).unwrap();
                new.write(0, b"the newer region").unwrap();
                let handle = new.memh_pack().unwrap();
                let address = new.address();
                region = Some(new);
                handles.push(handle);
                role::send(format!("ok:{address}").as_bytes());
            }
            "address" => role::send(format!("ok:{}", region_ref().address()).as_bytes()),
            "kept" => role::send(format!("ok:{}", ctx.as_ref().unwrap().stats().kept_bytes).as_bytes()),
            "exports" => role::send(format!("ok:{}", ctx.as_ref().unwrap().stats().exports).as_bytes()),
            "fds" => role::send(format!("ok:{}", testkit::open_fds()).as_bytes()),
            "exec" => {
                use std::os::unix::process::CommandExt;
                let error = std::process::Command::new("/bin/sleep").arg("60").exec();
                panic!("exec: {error}");
            }
            "exit" => return,
            other => panic!("unknown command {other}"),
        }
    }
}

/// Imports what it is sent, and keeps it.
pub fn dpu() {
    let ctx = context();
    let mut imports: Vec<ImportedRegion> = Vec::new();
    while let Some(command) = role::try_recv() {
        let command = String::from_utf8(command).unwrap();
        let mut words = command.split(' ');
        match words.next().unwrap() {
            "import" => {
                let import = ctx.mem_import(&role::recv());
                let how = import.as_ref().map(|import| import.md_results().to_string().into_bytes());
                let how = how.map_err(|error| (error.status(), format!("{error} [{}]", error.remedy())));
                imports.extend(import);
                match how {
                    Ok(how) => role::send(&[b"ok:", how.as_slice()].concat()),
                    Err((status, text)) => role::send(format!("err:{status:?}:{text}").as_bytes()),
                }
            }
            "read" => {
                let import = imports.last().unwrap();
                let mut bytes = vec![0; usize::try_from(number(words.next())).unwrap()];
                let at = number(words.next());
                answer(import.read(at, &mut bytes).map(|()| bytes), |error| error.status());
            }
            "write" => {
                let at = number(words.next());
                let import = imports.last().unwrap();
                answer(import.write(at, &role::recv()).map(|()| Vec::new()), |error| error.status());
            }
            "view-read" => {
                let mut bytes = vec![0; usize::try_from(number(words.next())).unwrap()];
                let at = number(words.next());
                let view = imports.last().unwrap().view().unwrap();
                answer(view.read(at, &mut bytes).map(|()| bytes), |error| error.status());
            }
            "view-write" => {
                let at = number(words.next());
                let view = imports.last().unwrap().view().unwrap();
                answer(view.write(at, &role::recv()).map(|()| Vec::new()), |error| error.status());
            }
            "check" => role::send(format!("ok:{:?}", imports.last().unwrap().check()).as_bytes()),
            "cpu" => role::send(format!("ok:{}", super::limits::cpu_time().as_millis()).as_bytes()),
            "drop" => {
                imports.pop();
                role::send(b"ok:");
            }
            "exit" => return,
            other => panic!("unknown command {other}"),
        }
    }
}

/// What a role answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Ok(Vec<u8>),
    Err { status: String, text: String },
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        match bytes.strip_prefix(b"ok:") {
            Some(payload) => Self::Ok(payload.to_vec()),
            None => {
                let text = String::from_utf8_lossy(bytes);
                let mut parts = text.splitn(3, ':').skip(1);
                let mut part = || parts.next().unwrap().to_owned();
                Self::Err { status: part(), text: part() }
            }
        }
    }

    #[track_caller]
    pub fn ok(self) -> Vec<u8> {
        match self {
            Self::Ok(payload) => payload,
            Self::Err { status, text } => panic!("{status}: {text}"),
        }
    }

    #[track_caller]
    pub fn text(self) -> String {
        String::from_utf8(self.ok()).unwrap()
    }

    /// The text of an error that must have this status.
    #[track_caller]
    pub fn err(self, expected: Status) -> String {
        match self {
            Self::Err { status, text } => {
                assert_eq!(status, format!("{expected:?}"), "{text}");
                text
            }
            Self::Ok(payload) => panic!("{expected:?} was expected, and {} bytes came", payload.len()),
        }
    }
}

/// A running role, with commands as methods.
#[derive(Debug)]
pub struct Actor(pub Child);

impl Actor {
    pub fn host(len: usize) -> Self {
        Self(Role::new("roles::host").arg(len.to_string()).start())
    }

    pub fn read_only_host(len: usize) -> Self {
        Self(Role::new("roles::host").arg(len.to_string()).arg("ro").start())
    }

    pub fn dpu() -> Self {
        Self(Role::spawn("roles::dpu"))
    }

    /// A DPU with a variable set.
    pub fn dpu_with(name: &str, value: &str) -> Self {
        Self::dpu_of(&[(name, value)])
    }

    /// A DPU with variables set.
    pub fn dpu_of(variables: &[(&str, &str)]) -> Self {
        let role = Role::new("roles::dpu");
        Self(variables.iter().fold(role, |role, (name, value)| role.env(*name, *value)).start())
    }

    /// A DPU that is allowed these transports, or one of [`WAYS`].
    pub fn dpu_by(way: &str) -> Self {
        Self::dpu_by_with(way, &[])
    }

    /// The same, with more variables set.
    pub fn dpu_by_with(way: &str, more: &[(&str, &str)]) -> Self {
        Self::dpu_of(&[&variables(way), more].concat())
    }

    pub fn ask(&mut self, command: &str) -> Answer {
        Answer::parse(&self.0.request(command.as_bytes()))
    }

    pub fn ask_with(&mut self, command: &str, payload: &[u8]) -> Answer {
        self.0.send(command.as_bytes());
        self.ask_raw(payload)
    }

    fn ask_raw(&mut self, payload: &[u8]) -> Answer {
        Answer::parse(&self.0.request(payload))
    }

    pub fn export(&mut self) -> Vec<u8> {
        self.ask("export").ok()
    }

    pub fn import(&mut self, handle: &[u8]) -> Answer {
        self.ask_with("import", handle)
    }

    pub fn read(&mut self, at: u64, len: usize) -> Answer {
        self.ask(&format!("read {len} {at}"))
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Answer {
        self.ask_with(&format!("write {at}"), bytes)
    }

    /// Asks until the answer is an error of this status, at most for two seconds: for what a watcher must first notice.
    pub fn read_until(&mut self, status: Status) -> String {
        let begin = std::time::Instant::now();
        loop {
            match self.read(0, 8) {
                Answer::Ok(_) if begin.elapsed() < Duration::from_secs(2) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                answer => return answer.err(status),
            }
        }
    }
}

/// A handle's bytes with its checksum put right, for tests that change them.
pub fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[64..68].fill(0);
    let crc = crc32c::crc32c(&bytes);
    bytes[64..68].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A handle with the keys of these components changed by `change`, which gets the bytes from the key on.
pub fn with_keys(handle: &[u8], components: &[u16], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = handle.to_vec();
    for component in components {
        let at = mkey_offset(handle, *component);
        change(&mut bytes[at..]);
    }
    repaired(bytes)
}

/// Where the key of component `number` begins in a handle.
pub fn mkey_offset(bytes: &[u8], number: u16) -> usize {
    let mut at = 72;
    loop {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if word(at) == number {
            return at + 12 + usize::from(bytes[at + 8]);
        }
        at += 8 + usize::from(word(at + 4));
    }
}
