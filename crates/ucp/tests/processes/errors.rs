//! The table of errors, row by row.

use testkit::Role;
use ucp::wire::handle::Handle;
use ucp::{Context, Features, MemMap, RawMem, Status};
use ucs::config::Env;

use super::roles::{Actor, FILL, context, mkey_offset, repaired};

const SELF: u16 = 1;
const SHM: u16 = 2;
/// Where the token lies in a key of shm.
const SHM_TOKEN: usize = 48;

pub fn bytes_of_the_wire_arrive_both_ways() {
    let (mut host, mut dpu) = (Actor::host(1 << 20), Actor::dpu());
    let handle = host.export();
    let how = dpu.import(&handle).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    assert!(how.contains("self: no: offered for "), "{how}");
    assert_eq!(dpu.read(0, 1 << 20).ok(), vec![FILL; 1 << 20]);
    dpu.write(12_345, b"from the DPU").ok();
    assert_eq!(host.read(12_345, 12).ok(), b"from the DPU");
    host.write(77, b"from the host").ok();
    assert_eq!(dpu.read(77, 13).ok(), b"from the host");
}

pub fn truncated_at_every_byte() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    let ctx = context();
    for len in 0..handle.len() {
        let error = ctx.mem_import(&handle[..len]).unwrap_err();
        assert_eq!(error.status(), Status::InvalidHandle, "{len} bytes: {error}");
        let text = error.to_string();
        assert!(text.contains("it ends too early"), "{len} bytes: {text}");
    }
    ctx.mem_import(&handle).unwrap();
}

pub fn trailing_bytes() {
    let mut host = Actor::host(4096);
    let mut handle = host.export();
    let len = handle.len();
    handle.push(0);
    let error = context().mem_import(&handle).unwrap_err();
    assert_eq!(error.to_string(), format!("not a valid handle: at byte {len}: 1 bytes follow the end"));
}

pub fn not_a_handle() {
    let ctx = context();
    let cases: [(&[u8], &str); 3] = [
        (b"", "not a valid handle: at byte 0: it ends too early: 4 more bytes are needed"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "not a valid handle: at byte 0: it does not begin with \"RXMH\": this is no packed memory handle",
        ),
        (
            b"RXMH\x02\x00\x48\x00\x48\x00\x00\x00",
            "not a valid handle: at byte 4: version 2 is not known here, which is version 1",
        ),
    ];
    for (bytes, expected) in cases {
        let error = ctx.mem_import(bytes).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.status()), (expected, Status::InvalidHandle));
        assert_eq!(error.remedy(), "pass on exactly the bytes that memh_pack gave");
    }
    let long = vec![0; (64 << 10) + 1];
    let text = ctx.mem_import(&long).unwrap_err().to_string();
    assert_eq!(
        text,
        "not a valid handle: at byte 65536: 65537 bytes are more than the 65536 a handle can have"
    );
}

pub fn wrong_token() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let handle = host.export();
    let at = mkey_offset(&handle, SHM) + SHM_TOKEN;
    for bit in [0, 64, 127] {
        let mut wrong = handle.clone();
        wrong[at + bit / 8] ^= 1 << (bit % 8);
        let text = dpu.import(&repaired(wrong)).err(Status::AccessDenied);
        assert!(text.contains("shm: no: the exporter refuses: the token is wrong"), "{text}");
    }
    dpu.import(&handle).ok();
    // Another export's token is no better.
    let other = host.export();
    let mut mixed = handle.clone();
    let token = mkey_offset(&other, SHM) + SHM_TOKEN;
    mixed[at..at + 16].copy_from_slice(&other[token..token + 16]);
    dpu.import(&repaired(mixed)).err(Status::AccessDenied);
}

pub fn missing_token() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let mut handle = host.export();
    let at = mkey_offset(&handle, SHM) + SHM_TOKEN;
    handle[at..at + 16].fill(0);
    dpu.import(&repaired(handle)).err(Status::AccessDenied);
}

pub fn forged_fields() {
    let (mut host, mut dpu) = (Actor::host(8192), Actor::dpu());
    let handle = host.export();
    // Address, length, epoch: the token is right, the rest is not.
    for (offset, value) in [(16, 4096_u64), (24, 4096), (56, 3)] {
        let mut forged = handle.clone();
        forged[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        let text = dpu.import(&repaired(forged)).err(Status::InvalidHandle);
        assert!(text.contains("does not describe the export whose token it carries"), "{text}");
    }
    // Another registration, another context: there is no such export.
    for offset in [32, 48] {
        let mut forged = handle.clone();
        forged[offset] ^= 0x55;
        dpu.import(&repaired(forged)).err(Status::Stale);
    }
    // A line of the table that is another's, and one that is none.
    for slot in [2_u32, 70_000] {
        let mut forged = handle.clone();
        let at = mkey_offset(&handle, SHM) + 4;
        forged[at..at + 4].copy_from_slice(&slot.to_le_bytes());
        dpu.import(&repaired(forged)).err(Status::Stale);
    }
}

pub fn other_boot() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let mut handle = host.export();
    let at = mkey_offset(&handle, SHM) - 16;
    handle[at] ^= 1;
    let text = dpu.import(&repaired(handle)).err(Status::Unreachable);
    assert!(text.contains("the exporter offers self ("), "{text}");
    assert!(text.contains("shm: no: offered for "), "{text}");
    assert!(text.contains("run both sides on one machine"), "{text}");
}

pub fn revoked() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let handle = host.export();
    dpu.import(&handle).ok();
    host.ask("revoke 0").ok();
    let text = dpu.read(0, 8).err(Status::Stale);
    assert_eq!(text, "stale after 0 bytes: the export was revoked or dropped");
    dpu.write(0, b"late").err(Status::Stale);
    let text = dpu.import(&handle).err(Status::Stale);
    assert!(text.contains("shm: no: stale: the export was revoked or dropped"), "{text}");
    assert_eq!(host.read(0, 4).ok(), [FILL; 4]);
    // A new export of the same region is another one: the old handle stays stale.
    let newer = host.export();
    dpu.import(&newer).ok();
    dpu.read(0, 8).ok();
    dpu.import(&handle).err(Status::Stale);
}

pub fn revoked_twice() {
    let mut host = Actor::host(4096);
    host.export();
    host.ask("revoke 0").ok();
    host.ask("revoke 0").ok();
}

pub fn region_dropped() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let handle = host.export();
    dpu.import(&handle).ok();
    host.ask("drop-region").ok();
    dpu.read(0, 8).err(Status::Stale);
    dpu.import(&handle).err(Status::Stale);
}

pub fn context_dropped() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let handle = host.export();
    dpu.import(&handle).ok();
    host.ask("drop-context").ok();
    dpu.read(0, 8).err(Status::Stale);
    let text = dpu.import(&handle).err(Status::Stale);
    assert!(text.contains("nobody listens on its service socket"), "{text}");
    // Nor does one who has never been connected reach it.
    Actor::dpu().import(&handle).err(Status::Stale);
}

pub fn one_of_two_exports_revoked() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let (first, second) = (host.export(), host.export());
    assert_ne!(first, second);
    dpu.import(&first).ok();
    let mut other = Actor::dpu();
    other.import(&second).ok();
    host.ask("revoke 0").ok();
    dpu.read(0, 8).err(Status::Stale);
    assert_eq!(other.read(0, 8).ok(), [FILL; 8]);
}

pub fn owned_buffer_reaches_its_own_context_only() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::buffer(vec![7_u8; 10_000]).exported()).unwrap();
    let results = region.md_results().to_string();
    assert!(
        results.contains(
            "shm: no: an owned buffer: shm can only give away memory that it allocated: use MemMap::allocate"
        ),
        "{results}"
    );
    let handle = region.memh_pack().unwrap();
    let import = ctx.mem_import(handle.as_bytes()).unwrap();
    assert_eq!(import.transport(), "self");
    let mut bytes = [0; 3];
    import.read(9_997, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 3]);
    import.write(5, b"written").unwrap();
    let mut seen = [0; 7];
    region.read(5, &mut seen).unwrap();
    assert_eq!(&seen, b"written");
    // Elsewhere it is unreachable, and the error says what to do.
    let text = Actor::dpu().import(handle.as_bytes()).err(Status::Unreachable);
    assert!(
        text.contains("it is reached within its own context only: export memory of MemMap::allocate"),
        "{text}"
    );
    let text = context().mem_import(handle.as_bytes()).unwrap_err().to_string();
    assert!(text.contains("self: no: offered for"), "{text}");
}

pub fn raw_memory_reaches_its_own_context_only() {
    let ctx = context();
    let mut bytes = vec![3_u8; 70_000];
    // SAFETY: `bytes` outlives the region, and is not touched but through it.
    let raw = unsafe { RawMem::new(bytes.as_mut_ptr(), bytes.len()) };
    let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let import = ctx.mem_import(handle.as_bytes()).unwrap();
    let mut seen = vec![0; 70_000];
    import.read(0, &mut seen).unwrap();
    assert_eq!(seen, vec![3; 70_000]);
    import.write(69_999, b"!").unwrap();
    let mut last = [0];
    region.read(69_999, &mut last).unwrap();
    assert_eq!(&last, b"!");
    assert_eq!(region.atomic_u64(0).unwrap_err().status(), Status::Unsupported);
    Actor::dpu().import(handle.as_bytes()).err(Status::Unreachable);
    drop(region);
    assert_eq!(import.read(0, &mut last).unwrap_err().status(), Status::Stale);
    assert_eq!(bytes[69_999], b'!');
}

pub fn raw_memory_unmapped() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    let ctx = context();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a fresh mapping, touched through the region only.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), 3 * 4096, access, flags) }.unwrap();
    // SAFETY: as above; unmapping is allowed.
    let raw = unsafe { RawMem::new(start.cast(), 3 * 4096) };
    let region = ctx.mem_map(MemMap::raw(raw).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let import = ctx.mem_import(handle.as_bytes()).unwrap();
    import.write(0, &[1; 3 * 4096]).unwrap();
    // SAFETY: within the mapping.
    unsafe { mprotect(start.wrapping_byte_add(8192), 4096, MprotectFlags::READ) }.unwrap();
    let error = import.write(4096, &[2; 8192]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "access denied after 4096 bytes: the pages are mapped, but not for this access"
    );
    // SAFETY: the mapping's last page.
    unsafe { munmap(start.wrapping_byte_add(8192), 4096) }.unwrap();
    let error = import.read(0, &mut [0; 3 * 4096]).unwrap_err();
    assert_eq!(error.to_string(), "stale after 8192 bytes: the owner has unmapped it");
    assert_eq!(error.status(), Status::Stale);
    // SAFETY: the rest of it.
    unsafe { munmap(start, 8192) }.unwrap();
    assert_eq!(region.read(0, &mut [0]).unwrap_err().status(), Status::Stale);
    // An export names the address: mapped again, there is new data.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let again = unsafe { mmap_anonymous(start, 4096, access, flags) }.unwrap();
    assert_eq!(again, start);
    let mut bytes = [9; 4];
    import.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

pub fn no_exporting_transport() {
    let ctx = Context::builder().features(Features::EXPORTED_MEMH).set("UCX_TLS", "shm").build().unwrap();
    let error = ctx.mem_map(MemMap::buffer(vec![0_u8; 10]).exported()).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert_eq!(
        error.to_string(),
        "exported(): no transport in use can export it: self: no: not allowed by UCX_TLS; shm: no: an owned buffer: shm can \
         only give away memory that it allocated: use MemMap::allocate"
    );
    // Without the hint, it is found at the pack.
    let region = ctx.mem_map(MemMap::buffer(vec![0_u8; 10])).unwrap();
    let error = region.memh_pack().unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert_eq!(error.remedy(), "use memory of MemMap::allocate, or allow more transports in UCX_TLS");
}

pub fn feature_missing() {
    let ctx = Context::builder().build().unwrap();
    assert_eq!(ctx.mem_map(MemMap::allocate(10).exported()).unwrap_err().status(), Status::InvalidParam);
    let region = ctx.mem_map(MemMap::allocate(10)).unwrap();
    let error = region.memh_pack().unwrap_err();
    assert_eq!(error.to_string(), "the context was made without Features::EXPORTED_MEMH");
    assert_eq!(error.remedy(), "make the context with features(Features::EXPORTED_MEMH)");
    assert_eq!(ctx.mem_import(b"").unwrap_err().status(), Status::InvalidParam);
}

pub fn zero_length() {
    let (mut host, mut dpu) = (Actor::host(0), Actor::dpu());
    let handle = host.export();
    let content = Handle::decode(&handle, |_| true).unwrap();
    assert_eq!((content.length, content.registration_id, content.entries.len()), (0, 0, 0));
    dpu.import(&handle).ok();
    assert_eq!(dpu.read(0, 0).ok(), b"");
    dpu.read(0, 1).err(Status::OutOfRange);
    dpu.write(0, b"x").err(Status::OutOfRange);
    host.read(0, 1).err(Status::OutOfRange);
    host.ask("revoke 0").ok();
    // The dummy of an exporter that is gone is as good: it names nothing.
    host.0.kill();
    dpu.import(&handle).ok();
}

pub fn out_of_range() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    dpu.import(&host.export()).ok();
    assert_eq!(
        dpu.read(4090, 7).err(Status::OutOfRange),
        "7 bytes at offset 4090 do not lie within 4096 bytes"
    );
    dpu.read(u64::MAX, 1).err(Status::OutOfRange);
    dpu.write(4096, b"x").err(Status::OutOfRange);
    dpu.ask("view-read 1 4096").err(Status::OutOfRange);
    assert_eq!(dpu.read(4096, 0).ok(), b"");
    dpu.read(4097, 0).err(Status::OutOfRange);
}

pub fn read_only_is_refused() {
    let (mut host, mut dpu) = (Actor::read_only_host(8192), Actor::dpu());
    dpu.import(&host.export()).ok();
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    let text = dpu.write(0, b"no").err(Status::AccessDenied);
    assert_eq!(text, "access denied after 0 bytes: the region was exported read-only");
    dpu.ask_with("view-write 0", b"no").err(Status::AccessDenied);
    // The owner writes, and the importer sees it.
    host.write(0, b"the owner may").ok();
    assert_eq!(dpu.read(0, 13).ok(), b"the owner may");
}

pub fn read_only_buffer() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::read_only_buffer(&b"static bytes"[..]).exported()).unwrap();
    assert_eq!(region.write(0, b"no").unwrap_err().status(), Status::AccessDenied);
    assert_eq!(region.store(0, 1_u64).unwrap_err().status(), Status::AccessDenied);
    let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
    assert_eq!(import.write(0, b"no").unwrap_err().status(), Status::AccessDenied);
    let mut bytes = [0; 12];
    import.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"static bytes");
}

pub fn configuration() {
    let build = |name: &str, value: &str| Context::builder().ignore_env().set(name, value).build();
    let error = build("UCX_TLS", "shn").unwrap_err();
    assert_eq!(error.to_string(), "UCX_TLS: unknown in the list: shn");
    assert_eq!(error.remedy(), "did you mean shm? There are: mm, posix, self, shm, sm");
    let error = build("UCX_TLS", "^self,shm").unwrap_err();
    assert_eq!(error.status(), Status::NoDevice);
    assert_eq!(
        error.to_string(),
        "no transport can be used: self: no: not allowed by UCX_TLS; shm: no: not allowed by UCX_TLS"
    );
    let error = build("UCX_IMPORT_TIMEOUT", "soon").unwrap_err();
    assert!(error.to_string().contains("UCX_IMPORT_TIMEOUT"), "{error}");
    assert_eq!(error.status(), Status::InvalidParam);
    let error = build("UCX_SHM_ATTACH", "socket,telepathy").unwrap_err();
    assert_eq!(error.to_string(), "UCX_SHM_ATTACH: unknown in the list: telepathy");
    // A transport of C UCX that is not here changes nothing; sm is shm; a builder's setting wins.
    let env = Env::from_pairs([("UCX_TLS", "rc_mlx5,sm")]);
    let ctx = Context::builder().env(env.clone()).build().unwrap();
    assert_eq!(ctx.transports().map(|(component, _)| component.name()).collect::<Vec<_>>(), ["shm"]);
    let ctx = Context::builder().env(env).set("UCX_TLS", "self").build().unwrap();
    assert_eq!(ctx.transports().map(|(component, _)| component.name()).collect::<Vec<_>>(), ["self"]);
    // The environment of a process counts.
    let mut dpu = Actor(Role::new("roles::dpu").env("UCX_TLS", "self").start());
    let text = dpu.import(&Actor::host(4096).export()).err(Status::Unreachable);
    assert!(text.contains("shm: no: not allowed by UCX_TLS"), "{text}");
    assert!(text.contains("[allow one of the transports that the exporter offers in UCX_TLS]"), "{text}");
}

pub fn debug_shows_no_secret() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let len = handle.as_bytes().len();
    assert_eq!(format!("{handle:?}"), format!("PackedMemh {{ export: 1, bytes: <{len} secret bytes> }}"));
    let import = ctx.mem_import(handle.as_bytes()).unwrap();
    let at = mkey_offset(handle.as_bytes(), SELF) + 8;
    let token = &handle.as_bytes()[at..at + 16];
    let printed = format!("{ctx:?} {region:?} {import:?} {:?}", Handle::decode(handle.as_bytes(), |_| true));
    for window in token.windows(2) {
        let decimal = format!("{}, {}", window[0], window[1]);
        let hex = format!("{:02x}{:02x}", window[0], window[1]);
        assert!(!printed.contains(&decimal) || hex == "0000", "{decimal} of the token in {printed}");
    }
    assert!(printed.contains("<secret>"), "{printed}");
}
